# VLT: trained, stopped and resumed, its parts of a batch, tested, fine-tuned with other blocks, another size and another
# attention, analyzed stage by stage; batch norm refuses what it cannot learn from.
. "$CLI/lib.inc"
. "$CLI/data.inc"
small_data data 48 16
sizes="--model vlt_nano --dims 8,8,12,16 --heads 1,1,1,2 --depths 1 --projection 12 --blocks 2,2,1,1 --mean 0.4 --deviation 0.25"
train="mhla train --source data $sizes --image 16 --batch 16 --log.steps 1 --rate 3e-3 --drop_path 0.1 --ema 0.5"
$train --steps 6 --out run --seed 3 2>log; echo "-> $?"
grep -c 'test accuracy' log
mhla eval run | sed 's/[0-9.]* %.*//; s/loss.*//' | head -3
mhla info run | sed -n '1,3p'
echo '--- stopped and resumed, recomputed, with any number of threads: the same bytes'
same() { for f in model ema optimizer; do cmp run/last/$f.safetensors $1/last/$f.safetensors || return; done; echo same; }
OMP_NUM_THREADS=1 $train --steps 6 --out one --seed 3 --quiet >/dev/null 2>&1
same one
$train --steps 6 --out again --seed 3 --recompute true --quiet >/dev/null 2>&1
same again
$train --steps 200 --out whole --quiet >/dev/null 2>&1
$train --steps 200 --out stopped --quiet 2>/dev/null &
while [ ! -s stopped/metrics.jsonl ]; do sleep 0.02; done
kill -INT $!; wait $!; echo "-> $?"
if [ -e stopped/checkpoints/step-00000200 ]; then echo 'it was too late'; fi
mhla train --resume stopped --quiet >/dev/null; echo "-> $?"
for f in model ema optimizer; do cmp whole/last/$f.safetensors stopped/last/$f.safetensors; done
echo '--- other attentions, bfloat16, a batch in parts'
for attention in rala mala; do
    $train --steps 2 --attention $attention --out $attention --quiet >/dev/null 2>&1; echo "-> $?"
done
$train --steps 2 --dtype bfloat16 --accumulate 2 --out narrow --quiet >/dev/null 2>&1; echo "-> $?"
mhla eval narrow --dtype bfloat16 >/dev/null; echo "-> $?"
echo '--- fine-tuning'
tune="mhla train --source data $sizes --batch 16 --steps 1"
$tune --image 24 --blocks 3,2,2,2 --init run --out finer 2>&1 | grep -E '^(weights|images|new|mixing|of another|not used)' | sed 's/from [^ ]*:/from FILE:/'
$tune --image 16 --init rala --out mixed 2>&1 | grep -E '^(weights|new|of another|not used)' | sed 's/from [^ ]*:/from FILE:/'
echo '--- analysis'
mhla analyze run --samples 4 --rank-samples 1 --csv stage1.csv >/dev/null; echo "-> $?"
mhla analyze run --samples 4 --rank-samples 1 --stage 2 --csv stage2.csv >/dev/null; echo "-> $?"
cut -d, -f1-5 stage1.csv stage2.csv
mhla analyze run --stage 5; echo "-> $?"
echo '--- refused'
$train --steps 1 --image 8 --blocks 1 --accumulate 16 --out alone --quiet; echo "-> $?"
$train --steps 1 --image 8 --blocks 1 --batch 3 --accumulate 2 --out alone --quiet; echo "-> $?" # one of its pieces
if [ -e alone ]; then echo 'a folder without a run'; fi
mhla info mhla_vlt_tiny --image 24; echo "-> $?"
