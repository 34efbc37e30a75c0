. "$CLI/lib.inc"
. "$CLI/data.inc"
mhla reproduce; echo "-> $?"
mhla reproduce --help >/dev/null || exit
mhla reproduce mqa; echo "-> $?"
mhla reproduce scaling --shuffle-labels; echo "-> $?"
mhla reproduce heads --seeds 101; echo "-> $?"
mhla reproduce heads --long; echo "-> $?"
mhla reproduce deit --long --quick; echo "-> $?"
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
mkdir there; mhla reproduce mqar --out there; echo "-> $?"; rmdir there # before it trains, not after it
timeout 60 mhla reproduce mqar --out "$(printf %0300d 7)" 2>&1 | sed 's/0000*7/LONG/'; echo "-> $?"
mhla reproduce mqar --help
small="--width 8 --vocabulary 1024 --steps 5 --tokens 1024 --tests 2"
mhla reproduce mqar $small --out mqar.json 2>/dev/null | figures
json <mqar.json | sed -E 's/(loss|seconds|accuracy) .*/\1 N/' >fields
mhla reproduce mqar $small --json 2>/dev/null | json | sed -E 's/(loss|seconds|accuracy) .*/\1 N/' | cmp - fields || exit
cat fields
ls

echo "# finished results in a folder that cannot be written: the table, and a page elsewhere"
small_data data 64
plain="setpriv --bounding-set=-dac_override" # root writes anywhere
[ "$(id -u)" = 0 ] || plain=
heads="mhla reproduce heads --quick --data data --work w"
$heads >first 2>/dev/null; echo "-> $?"
chmod -R a-w w
$plain $heads >again; echo "-> $?"
diff first again
$plain $heads --json >/dev/null; echo "-> $?"
$plain $heads --out pages | tail -n 1; echo "-> $?"
diff -r w/heads-quick pages
$plain $heads --seeds 2; echo "-> $?"
chmod -R u+w w
echo "# interrupted in training"
small_data more 6400
for signal in INT TERM HUP; do
    rm -rf w
    mhla reproduce heads --quick --data more --work w 2>log &
    until cat w/runs/*/metrics.jsonl 2>/dev/null | grep -q step; do sleep 0.05; done
    kill -$signal $!; wait $!; echo "$signal -> $?"
    tail -n 1 log
done
echo "# and in measuring" # the whole form takes minutes: nobody is too late to stop it
mhla reproduce scaling --work w 2>log &
until grep -q part log 2>/dev/null; do sleep 0.05; done
kill -INT $!; wait $!; echo "-> $?"
tail -n 1 log
python3 - <<'END' # what cannot go on ends with the same code, not by the signal, which a shell would not tell apart
import os, signal, subprocess, time
p = subprocess.Popen(["mhla", "reproduce", "mqar", "--threads", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while len(os.listdir(f"/proc/{p.pid}/task")) == 1: time.sleep(0.05)  # until it trains
p.send_signal(signal.SIGINT)
print("mqar ->", p.wait())
END
rm -rf w more data
