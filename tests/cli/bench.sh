# Each group once, at sizes that take no time; figures are not judged.
. "$CLI/lib.inc"
mhla bench forward backward --batch 2 --heads 2 --grid 6x6 --blocks 2x3 --key 8 --value 16 --compare --seconds 0.01 |
    sed 1d | figures
mhla bench forward backward --tokens 40 --heads 2 --key 12 --value 8 --operator focused,inline,mala,rala --seconds 0.01 --json |
    json | grep -E '\.(group|variant|sizes) '
mhla bench --tokens 100 --chunk 16 --heads 2 --kv-heads 1 --compare --dtype float32,bfloat16 --seconds 0.01 --json >json || exit
json <json | positive '(best_ms|median_ms|calls|gflop|percent_of_peak|workspace_bytes|rows\.[0-9]+\.gflops|peak_f32_gflops)$'
json <json | grep -E '\.(group|variant|dtype|sizes) '
mhla bench causal causal-backward --tokens 70 --heads 4 --kv-heads 2 --key 8 --value 12 --operator simple-gla,gla,gated-delta --seconds 0.01 --json |
    json | grep -E '\.(group|variant|sizes) '
mhla bench mamba conv-2048 scan-1 --seconds 0.01 --json | json | grep -E "\.(group|shape|sizes) "
mhla bench layers deit-out-256 lm-proj-8 --seconds 0.01 --json | json | grep -E '\.(group|shape|sizes) '
mhla bench lm-340m micro --operator mhla,softmax,gla,retnet,mamba,mamba2,gated_deltanet --dtype bfloat16,q8_0 --seconds 0.01 --json >json || exit
json <json | positive '(tokens_per_second|memory_allows|percent_of_memory|weight_bytes|state_bytes|state_bytes_per_token)$'
json <json | grep -E '\.(variant|dtype) '
mhla bench forward --operator retnet --seconds 0.01; echo "-> $?"
mhla bench decode step clamp-2k --seconds 0.01 --json >json || exit
json <json | positive '(us_per_token|read_us|ratio|state_bytes)$'
mhla bench forward deit-t --batch 1 --feature elu --denominator released --threads 2 --backend pthreads --isa plain \
    --seconds 0.01 | sed 1d | figures
mhla bench models deit-t-1 deit-t-softmax-1 --seconds 0.01 >text || exit
sed 1d text | figures
mhla bench models deit-t-1 --seconds 0.01 --json >json || exit
json <json | positive '(gflop|percent_of_peak|memory_bytes|images_per_second)$'
json <json | grep -E '\.(group|shape|sizes) '
mhla bench forward decode step --batch 2 --heads 2 --tokens 64 --simulate-threads 4,16 --seconds 0.01 | figures |
    sed -E 's/ +N%/  N%/g' # 100% and more fill their column
mhla bench layers deit-out-256 --simulate-threads 8 --seconds 0.01 --json >json || exit
json <json | positive '(one_thread_ms|ms|speedup)$'
json <json | grep -E '\.(name|threads) '
for list in 8, 1 x 2,3,4,5,6,7,8,9,10; do mhla bench --simulate-threads $list; echo "-> $?"; done
mhla bench --simulate-threads 8 --threads 2; echo "-> $?"
