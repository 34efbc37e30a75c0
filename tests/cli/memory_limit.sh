# Little address space (ulimit -v), many threads asked for: every verb ends, with its result or with one sentence and exit code
# 1. And LAPACK, which is loaded by those who need it only: not linked, and missed with a clear message.
. "$CLI/lib.inc"
. "$CLI/data.inc"
. "$CLI/dit.inc"
. "$CLI/lm.inc"
program=$(command -v mhla)
if grep -q -a '__asan_init\|__tsan_init' "$program"; then
    echo "skip: sanitizers need the whole address space"
    exit
fi
small_data data
small_dit m
base64 -d >image.png <<END
iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAGUlEQVR42mPUYIAAJgacDMZLDAwMYfjVAAA0nAFfFOStxgAAAABJRU5ErkJggg==
END
small_lm lm
train="mhla train --source data $small_model --batch 16 --quiet"
$train --steps 2 --out run >/dev/null 2>&1; echo "-> $?"
OMP_NUM_THREADS=24 # their stacks alone are more than the smaller limits
export OMP_NUM_THREADS

ends() { # ends COMMAND...: under each limit, exit code 0, or 1 and a message
    last=
    for limit in 40000 80000 130000 200000 360000; do
        rm -rf made
        (ulimit -v $limit; exec timeout -s KILL 120 "$@") >out 2>err </dev/null
        code=$?
        case $code in
        0) last=' and does its work within 360 MB' ;;
        1) grep -q '^mhla' err || { echo "$*: $limit kB: exit code 1, but:"; cat out err; } ;;
        *) echo "$*: $limit kB: exit code $code"; cat out err ;;
        esac
    done
    echo "$2${3:+ $3} ends${last:-: 360 MB are not enough}"
}
ends mhla --version
ends mhla info
ends mhla info run
ends mhla check --brief
ends $train --steps 1 --out made
ends mhla eval run
ends mhla classify --model run image.png
ends mhla sample -m m --steps 2 --quiet -n 2 --out made
ends mhla generate -m lm -p 'It was' --tokens 4
ends mhla tokenize train made text.txt --vocabulary 280
ends mhla convert run made
ends mhla plot run --output made
ends mhla analyze run --samples 2
ends mhla measure data data --features run

(ulimit -v 60000; mhla info | grep '^memory  *0\.0') # a rate that was not measured is not shown

echo '--- LAPACK'
ldd "$program" | grep -i 'lapack\|blas'
mkdir none && : >none/liblapack.so.3
LD_LIBRARY_PATH=$PWD/none
export LD_LIBRARY_PATH
mhla analyze run --samples 2 2>&1 | sed 's/(.*)/(WHY)/'
mhla analyze run --samples 2 --no-rank >/dev/null; echo "-> $?"
mhla measure data data --features run >out 2>err; echo "-> $?"
cat out; sed 's/(.*)/(WHY)/' err
