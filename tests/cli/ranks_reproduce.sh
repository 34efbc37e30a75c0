# An experiment under mpirun: the table and the trainings of one process.
if grep -q -a '__asan_init\|__tsan_init' "$(command -v mhla)"; then
    echo 'skip: with sanitizers an experiment takes ten minutes; ranks and ranks_shared try what it is made of'
    exit 0
fi
. "$CLI/data.inc"
. "$CLI/ranks.inc"
small_data data 150
heads="mhla reproduce heads --quick --data data"
$heads --work w1 >one 2>/dev/null; ranks 2 $heads --work w2 2>err | sed 's/w2/w1/g' >two
grep -v -i 'minutes\|seconds' one >a; grep -v -i 'minutes\|seconds' two >b; cmp a b && echo 'the same table'; wc -l <w2/heads-quick/results.jsonl
for run in w1/runs/*/; do diff -r "$run"last "w2/runs/$(basename "$run")/last"; done
