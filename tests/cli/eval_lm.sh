# Evaluation of language models: texts, windows, positions, storage types, choices, JSON, refusals.
. "$CLI/lib.inc"
. "$CLI/lm.inc"
small_lm m
mhla eval m text.txt | figures
mhla eval m --data text.txt --window 64 --by-position --bucket 32 | figures
mhla eval m text.txt --window 32 --json >json || exit
json <json | grep -E '(model|attention|storage|documents|words|bytes) ' | sort | head -7
json <json | positive '(bits_per_byte|word_perplexity|byte_perplexity|token_perplexity|tokens_per_second)$'
mhla eval m text.txt --dtype all --limit 20 | figures | sed -E "s| [-+]N %| N %|"
echo '-- a document per line, and a folder'
mkdir d
printf '{"text": "It was the age"}\n{"text": "of times"}\n' >d/a.jsonl
printf 'wisdom\n\f\nfoolishness' >d/b.txt
mhla eval m d --json | json | grep -E '(documents|words|bytes) '
echo '-- choices'
printf '{"context": "It was the", "choices": ["age of", "best of times"], "gold": 0}\n{"question": "of", "choices": {"text": ["a", "b"], "label": ["x", "y"]}, "answerKey": "y"}' >q.jsonl
mhla eval m --choices q.jsonl | figures
printf '{"contexts": ["It was the", "of"], "ending": "age", "gold": 0}\n{"sentence": "It was _ of times.", "option1": "the best", "option2": "a", "answer": "1"}\n' >w.jsonl; mhla eval m --choices w.jsonl | figures
# of two that are the same the first one counts: one question right, one wrong, and the standard error of a sample of two
printf '{"context": "a", "choices": ["b", "b"], "gold": 0}\n{"context": "a", "choices": ["b", "b"], "gold": 1}\n' >tie.jsonl; mhla eval m --choices tie.jsonl | grep acc
mhla eval m --choices q.jsonl --limit 1 --json | json | grep questions
mhla eval m --choices q.jsonl --log-samples log.jsonl --json >json; wc -l <log.jsonl
sed -E 's/-[0-9]+\.[0-9]+/-N/g; s/("prediction(_norm)?"|"acc(_norm)?"): [01]/\1: N/g' log.jsonl
# the line agrees with itself and with the figures: the choice with the largest log-likelihood is the prediction
awk -F'"loglikelihood": ' '{ split($2, x, /[][, ]+/); best = x[2] + 0 >= x[3] + 0 ? 0 : 1; if ($0 ~ "\"prediction\": " best ",") n++ } END { print n, "predictions" }' log.jsonl
echo "acc $(grep -c '"acc": 1' log.jsonl) of 2: $(json <json | grep '\.acc ' | sed 's/.* //')" | sed -E 's/acc 0 of 2: 0$/agrees/; s/acc 1 of 2: 0.5$/agrees/; s/acc 2 of 2: 1$/agrees/'
mhla eval m --choices w.jsonl --log-samples log.jsonl --dtype all >/dev/null; sed -E 's/("storage": "[a-z0-9_]*", )("contexts".*"ending": "[^"]*").*/\1\2/' log.jsonl
echo '-- refusals'
mhla eval m text.txt --log-samples log.jsonl; echo "-> $?"
mhla eval m --choices q.jsonl --log-samples no/where; echo "-> $?"
mhla eval m --choices q.jsonl --log-samples /dev/full; echo "-> $?"
mkfifo pipe; timeout 60 mhla eval m --choices q.jsonl --log-samples pipe; echo "-> $?"
cp log.jsonl before.jsonl; mhla eval m --choices none.jsonl --log-samples log.jsonl; echo "-> $?"; cmp log.jsonl before.jsonl
exec 3<>pipe; mhla eval m --choices q.jsonl --log-samples pipe >/dev/null; sed 2q <&3 | wc -l; exec 3>&- # there is a reader
mhla eval m; echo "-> $?"
mhla eval m nothing.txt; echo "-> $?"
printf '' >empty.txt; mhla eval m empty.txt; echo "-> $?"
mhla eval m text.txt --window 1; echo "-> $?"
mhla eval m text.txt --beyond far; echo "-> $?"
mhla eval m text.txt --dtype int3; echo "-> $?"
mhla eval m text.txt text.txt text.txt text.txt --window 400 --beyond clamp | figures | head -1
printf 'ok\377' >bad.txt; mhla eval m bad.txt; echo "-> $?"
printf '{"context": "a", "choices": ["b"], "gold": 3}\n' >bad.jsonl; mhla eval m --choices bad.jsonl; echo "-> $?"
printf '' >empty.jsonl; mhla eval m --choices empty.jsonl; echo "-> $?"
