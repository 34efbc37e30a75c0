# A run that version 0.1 began, killed after its checkpoint of step 100: it resumes, and ends where 0.1 itself ended. The archive has
# the run, its data, and the weights that 0.1 came to on a CPU with AVX-512. Other kernels round differently, and so does a build
# for sanitizers, in which the compiler fuses other products and sums: these must come to the same accuracy.
tar xzf "$CLI/run-0.1.tar.gz" || exit
head -n 2 run/metrics.jsonl >before
mhla train --resume run --quiet; echo "-> $?"
head -n 2 run/metrics.jsonl | cmp - before && echo 'rows kept'
kernels=$(mhla info --no-measure | sed -n 's/^kernels *\([a-z0-9]*\).*/\1/p')
if grep -q -a '__asan_init\|__tsan_init\|__ubsan_handle' "$(command -v mhla)"; then kernels=sanitized; fi
case $kernels in
avx512*) cmp run/last/model.safetensors finished.safetensors && echo same ;;
*) mhla eval run | grep -q '^accuracy *100' && echo same ;;
esac
