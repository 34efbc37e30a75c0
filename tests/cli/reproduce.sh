. "$CLI/lib.inc"
mhla reproduce; echo "-> $?"
mhla reproduce --help >/dev/null || exit
mhla reproduce mqa; echo "-> $?"
mhla reproduce scaling --shuffle-labels; echo "-> $?"
mhla reproduce heads --seeds 101; echo "-> $?"
mhla reproduce scaling --data data; echo "-> $?"
mhla reproduce heads --data no/where; echo "-> $?"
mhla reproduce scaling --work /proc/no/where; echo "-> $?"
: >file; mhla reproduce scaling --out file/pages --work w; echo "-> $?"
mkdir -p w/scaling-quick && echo "[1]" >w/scaling-quick/results.jsonl && mhla reproduce scaling --quick --work w; echo "-> $?"
echo "{}x" >w/scaling-quick/results.jsonl; echo "{}" >>w/scaling-quick/results.jsonl; mhla reproduce scaling --quick --work w; echo "-> $?"
rm -r w file
mhla reproduce scaling --help
mhla reproduce mqar --attention soft; echo "-> $?"
mhla reproduce mqar --width 7; echo "-> $?"
mhla reproduce mqar --out no/where; echo "-> $?"
mhla reproduce mqar --help
small="--width 8 --vocabulary 1024 --steps 5 --tokens 1024 --tests 2"
mhla reproduce mqar $small --out mqar.json 2>/dev/null | figures
json <mqar.json | sed -E 's/(loss|seconds|accuracy) .*/\1 N/' >fields
mhla reproduce mqar $small --json 2>/dev/null | json | sed -E 's/(loss|seconds|accuracy) .*/\1 N/' | cmp - fields || exit
cat fields
ls
