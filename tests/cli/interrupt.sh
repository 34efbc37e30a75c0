# A signal: a checkpoint, a sentence that says how to go on, and the end that it would have had.
. "$CLI/data.inc"
small_data data
train="mhla train --source data $small_model --batch 16 --rate 3e-3 --drop_path 0.2 --mixup 0.2 --ema 0.9 --log.steps 1 --eval.epochs 0"
$train --steps 1500 --out whole --quiet; echo "-> $?"
begun() { while [ ! -s "$1/metrics.jsonl" ]; do sleep 0.05; done; }
for signal in INT TERM HUP; do
    rm -rf stopped
    $train --steps 1500 --out stopped --quiet 2>log &
    begun stopped
    kill -$signal $!; kill -$signal $! # one request, sent twice as timeout(1) does it
    wait $!; echo "$signal -> $?"
    cat log
    grep -c 'id="curves"' stopped/report.html
    if [ -e stopped/checkpoints/step-00001500 ]; then echo 'it was too late'; fi
done
mhla train --resume stopped --quiet; echo "-> $?"
for file in model ema optimizer; do cmp whole/last/$file.safetensors stopped/last/$file.safetensors && echo "$file: the same"; done
cmp whole/last/state.json stopped/last/state.json && echo 'state: the same'
[ "$(wc -l <whole/metrics.jsonl)" = "$(wc -l <stopped/metrics.jsonl)" ] && echo 'as many lines'
echo '# killed after its first evaluation: the page shows it'
$train --eval.steps 5 --steps 150000 --out killed --quiet 2>log &
begun killed
ls killed | grep report # before there is anything to draw
for i in $(seq 600); do grep -q 'Accuracy by class' killed/report.html && break; sleep 0.1; done
kill -KILL $!; wait $! 2>/dev/null
grep -q 'Accuracy by class' killed/report.html && echo 'it does'
echo '# nohup: SIGHUP stays ignored'
nohup $train --steps 600 --out nohup --quiet >log 2>&1 &
begun nohup
kill -HUP $!
wait $!; echo "-> $?"
grep -v nohup: log
echo '# whoever reads its lines goes first, as tee(1) does at Ctrl-C: the run goes on, and a signal ends it as ever'
mkfifo lines
sleep 600 <lines & reader=$!
$train --steps 1500000 --eval.steps 20 --eval.limit 8 --out unread >lines 2>&1 & run=$!
begun unread
kill -KILL $reader; wait $reader 2>/dev/null
steps() { wc -l <unread/metrics.jsonl; }
before=$(steps); for i in $(seq 600); do [ "$(steps)" -gt $((before + 100)) ] && echo 'it went on' && break; kill -0 $run || break; sleep 0.1; done
kill -INT $run; wait $run; echo "-> $?"
