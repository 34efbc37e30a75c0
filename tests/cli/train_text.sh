# A language model from text alone: a tokenizer is trained, then a model, it is measured, looked at and gone on with; the same
# from shards; attention replaced.
mkdir data
i=0
while [ $i -lt 60 ]; do
    printf 'Document %d: the quick brown fox jumps over %d lazy dogs and %d cats.\n\f\n' $i $((i % 7)) $((i % 5))
    i=$((i + 1))
done >data/train.txt
printf 'Document 61: the quick brown fox jumps over 3 lazy dogs and 2 cats.\n' >data/validation.txt
mhla tokenize train data/tokenizer.json data/train.txt --vocabulary 320 >/dev/null; echo "-> $?"
train="mhla train --model lm_micro --source data --context 32 --batch 4 --rate 5e-3 --threads 1 --steps 30 --log.steps 10"
$train --out run 2>log; echo "-> $?"
grep -c 'bits per byte of validation text' log
ls run run/best/ | tr '\n' ' '; echo
grep -c tokens_per_second run/metrics.jsonl
grep -o 'Bits per byte of validation text' run/report.html | head -n 1
echo '--- from shards: the same bytes; and gone on with'
mkdir shards
mhla tokenize data --out shards/train.shard data/train.txt >/dev/null && mhla tokenize data --out shards/validation.shard data/validation.txt >/dev/null
cp data/tokenizer.json shards
mhla train --model lm_micro --source shards --context 32 --batch 4 --rate 5e-3 --threads 1 --steps 30 --out other --quiet >/dev/null 2>&1
cmp run/last/model.safetensors other/last/model.safetensors && echo same
mhla train --resume run --quiet; echo "-> $?"
echo '--- softmax first, then MHLA in its place'
$train --attention softmax --num_heads 2 --out softmax --quiet >/dev/null 2>&1
$train --init softmax --num_heads 2 --expand_k 1 --steps 2 --out adapted 2>&1 | grep -E '^(weights from|new|of another|not used)'
echo '--- what is wrong'
$train --context 4096 --out wrong; echo "-> $?"
printf 'x' >>shards/tokenizer.json
mhla train --model lm_micro --source shards --out wrong; echo "-> $?"
mkdir none
mhla train --model lm_micro --source none --out wrong; echo "-> $?"
if [ -e wrong ]; then echo 'something was left behind'; fi
