# Ctrl-C: a checkpoint, a sentence that says how to go on, and the end that it would have had.
. "$CLI/data.inc"
small_data data
train="mhla train --source data $small_model --batch 16 --rate 3e-3 --drop_path 0.2 --mixup 0.2 --ema 0.9 --log.steps 1 --eval.epochs 0"
$train --steps 1500 --out whole --quiet; echo "-> $?"
$train --steps 1500 --out stopped --quiet 2>log &
while [ ! -s stopped/metrics.jsonl ]; do sleep 0.05; done
kill -INT $!; kill -INT $! # one request, sent twice as timeout(1) does it
wait $!; echo "-> $?"
cat log
if [ -e stopped/checkpoints/step-00001500 ]; then echo 'it was too late'; fi
mhla train --resume stopped --quiet; echo "-> $?"
for file in model ema optimizer; do cmp whole/last/$file.safetensors stopped/last/$file.safetensors && echo "$file: the same"; done
cmp whole/last/state.json stopped/last/state.json && echo 'state: the same'
[ "$(wc -l <whole/metrics.jsonl)" = "$(wc -l <stopped/metrics.jsonl)" ] && echo 'as many lines'
