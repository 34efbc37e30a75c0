# What a harness reads: one line per variant, single calls in milliseconds; nothing else.
. "$CLI/lib.inc"
small="--heads 2 --tokens 64 --key 16 --value 16"
BENCH_SECONDS=0.01 mhla bench --engine forward $small >out || exit
json <out | positive '^ms\.0$'
json <out | grep variant
awk 'END { print NR, "line" }' out
OMP_NUM_THREADS=1 BENCH_SECONDS=0.01 mhla bench --engine backward $small --compare --dtype f32,bf16 | json | grep variant
