# Evaluation of language models: texts, windows, positions, storage types, choices, JSON, refusals.
. "$CLI/lib.inc"
. "$CLI/lm.inc"
small_lm m
mhla eval m text.txt | figures
mhla eval m --data text.txt --window 64 --by-position --bucket 32 | figures
mhla eval m text.txt --window 32 --json >json || exit
json <json | grep -E '(model|attention|storage|documents|words|bytes) ' | sort | head -7
json <json | positive '(bits_per_byte|word_perplexity|byte_perplexity|token_perplexity|tokens_per_second)$'
mhla eval m text.txt --storage all --limit 20 | figures | sed -E "s| [-+]N %| N %|"
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
echo '-- refusals'
mhla eval m; echo "-> $?"
mhla eval m nothing.txt; echo "-> $?"
printf '' >empty.txt; mhla eval m empty.txt; echo "-> $?"
mhla eval m text.txt --window 1; echo "-> $?"
mhla eval m text.txt --beyond far; echo "-> $?"
mhla eval m text.txt --storage int3; echo "-> $?"
mhla eval m text.txt text.txt text.txt text.txt --window 400 --beyond clamp | figures | head -1
printf 'ok\377' >bad.txt; mhla eval m bad.txt; echo "-> $?"
printf '{"context": "a", "choices": ["b"], "gold": 3}\n' >bad.jsonl; mhla eval m --choices bad.jsonl; echo "-> $?"
printf '' >empty.jsonl; mhla eval m --choices empty.jsonl; echo "-> $?"
