# A run: trained, tested, looked at, classified with, stopped and gone on with.
. "$CLI/lib.inc"
. "$CLI/data.inc"
small_data data
train="mhla train --source data $small_model --batch 16 --log.steps 1 --rate 3e-3"
$train --steps 12 --out run --seed 3 2>log; echo "-> $?"
grep -c 'test accuracy' log
sed -n 's/[0-9][0-9.:e+-]*/N/g; /^step/{p;q;}' log
ls run run/best/ | tr '\n' ' '; echo
wc -l <run/metrics.jsonl
grep -o 'class="\(chart\|map\|card\|bar c0\)"' run/report.html | sort | uniq -c | sed 's/^ *//'
mhla eval run | figures
mhla eval run/last/model.safetensors --json --data data >json || exit
json <json | positive '^(images|accuracy|top5|loss)$'
mhla info run
echo '--- on a terminal of 60 columns no line is longer'
if command -v script >/dev/null; then
    script -qec "stty cols 60; $train --steps 12 --out narrow --seed 3" /dev/null >log </dev/null
    tr '\r' '\n' <log | sed 's/.\[K//' | grep ' left  ' | awk 'length > 59 { long = 1 } END { print (NR > 0 && !long ? "fits" : "wraps") }'
else
    echo fits
fi
echo '--- again: the same bytes; stopped and gone on with, too'
$train --steps 12 --out again --seed 3 --quiet >/dev/null 2>&1
cmp run/last/model.safetensors again/last/model.safetensors && cmp run/last/optimizer.safetensors again/last/optimizer.safetensors && echo same
$train --steps 12 --out run --seed 3; echo "-> $?"
mhla train --resume run --quiet; echo "-> $?"
echo '--- a wrong key or value on the command line is wrong usage'
for wrong in '--train.rates 1' '--rate fast' '--attention none'; do $train --out wrong $wrong; echo "-> $?"; done
ls wrong 2>/dev/null
echo '--- fine-tuning'
$train --steps 2 --out tuned --init run --attention softmax --classes 6 2>&1 | grep -E '^(weights from|new|of another|not used)'
echo '--- an average of the weights: a run uses whichever scored better'
$train --steps 6 --ema 0.5 --out averaged --quiet >/dev/null 2>&1
mhla eval averaged | sed -n 's/[a-z]*[.]safetensors/FILE/; 1p'
for weights in raw ema; do mhla eval averaged --weights $weights | sed -n 1p; done
mhla eval averaged --weights best; echo "-> $?"
mhla eval run --weights ema; echo "-> $?"
