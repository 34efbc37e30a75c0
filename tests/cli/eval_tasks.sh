# Tasks of language models: files of the hub, LongBench, needles; JSON, samples, a page; refusals, after which nothing is written.
. "$CLI/lib.inc"
. "$CLI/lm.inc"
small_lm m
tasks=$CLI/../measure/tasks
for task in piqa openbookqa boolq winogrande mmlu lambada_openai wikitext; do
    echo "-- $task"
    mhla eval m --task $task "$tasks/$task.jsonl" | tail -n +2 | figures
done
echo '-- arc'
mhla eval m --task arc_challenge "$tasks/arc.jsonl" "$tasks/arc.jsonl" --limit 3 --json | json | grep -E '(task|questions|acc|acc_norm) ' | sed -E 's/(acc[a-z_]*) .*/\1 N/'
mhla eval m --task arc_easy "$tasks/arc.jsonl" --dtype all | tail -4 | figures
mhla eval m --task lambada_openai "$tasks/lambada_openai.jsonl" --log-samples log.jsonl --limit 2 --json | json | positive '(perplexity|perplexity_stderr)$'
sed -E 's|-[0-9]+\.[0-9]+|-N|g; s|"greedy": .*"gold|"greedy": ..., "gold|; s|"acc": .*|"acc": ...|' log.jsonl
echo '-- wrong files'
bad() { printf "$2" >bad.jsonl; mhla eval m --task $1 bad.jsonl --log-samples log.jsonl --json; echo "-> $?"; }
cp log.jsonl before.jsonl
bad piqa '{"goal": "g", "sol1": "a", "sol2": "b", "label": 0}\n{"goal": "g", "sol1": "a", "label": 0}\n'
bad arc_easy '{"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "F"}\n'
bad boolq '{"question": "q", "passage": ["p"], "label": 0}\n'
bad winogrande '{"sentence": "s", "option1": "a", "option2": "b", "answer": "1"}'
bad mmlu '\n\n{"question": "q"'
bad lambada_openai '{"text": "ok \377"}\n'
bad piqa ''
bad wikitext '{"text": "a"}\n'
cmp log.jsonl before.jsonl
mhla eval m --task pica x.jsonl; echo "-> $?"
mhla eval m --task piqa; echo "-> $?"
mhla eval m --task piqa none.jsonl; echo "-> $?"
mhla eval m --task piqa --choices q.jsonl x.jsonl; echo "-> $?"
echo '-- longbench'
mkdir -p long/data
echo '{"qasper": "Read {context} {input}", "lcc": "{context}", "samsum": "{context}"}' >long/dataset2prompt.json
echo '{"qasper": 4, "lcc": 4, "samsum": 4}' >long/dataset2maxlen.json
printf '{"input": "who?", "context": "It was", "answers": ["the best"], "length": 2, "all_classes": null}\n' >long/data/qasper.jsonl
printf '{"input": "", "context": "%%s", "answers": ["of times"]}\n{"input": "", "context": "a", "answers": ["b"]}\n' | sed "s/%s/$(tr '\n' ' ' <text.txt)/" >long/lcc.jsonl
mhla eval m --longbench long --context 64 --log-samples log.jsonl | figures
sed -E 's/"answer": .*, "answers"/"answer": A, "answers"/; s/"score": .*/"score": N}/' log.jsonl
mhla eval m --longbench long --limit 1 --json | json | grep -E '(task|group|metric|questions|cut) '
cp log.jsonl before.jsonl
printf '{"input": "", "context": "a", "answers": []}\n' >long/samsum.jsonl
mhla eval m --longbench long --log-samples log.jsonl; echo "-> $?"
printf '{"input": "", "answers": ["a"]}\n' >long/samsum.jsonl
mhla eval m --longbench long --log-samples log.jsonl; echo "-> $?"
cmp log.jsonl before.jsonl
rm long/samsum.jsonl
mhla eval m --longbench long --context 4; echo "-> $?"
mhla eval m --longbench long --context 4096; echo "-> $?"
mhla eval m --longbench nowhere; echo "-> $?"
echo '-- needle'
mhla eval m --needle --samples 2 --out page.html | figures
grep -c '<rect ' page.html
mhla eval m --needle --samples 2 --lengths 250 --depths 0,12.5 --seed 3 --json | json | grep -E '(ids|tokens|depth|asked) '
rm m/tokenizer.json
mhla eval m --needle --samples 2 --lengths 16 --depths 50 | figures
rm page.html
mhla eval m --needle --lengths 5 --out page.html; echo "-> $?"
mhla eval m --needle --lengths 1000 --out page.html; echo "-> $?"
mhla eval m --needle --lengths 1000 --beyond clamp --samples 1 --depths 0 | tail -n +2 | figures | head -1
mhla eval m --needle --lengths 64,x; echo "-> $?"
mhla eval m --needle --depths 101; echo "-> $?"
mhla eval m --needle --out no/where.html; echo "-> $?"
mhla eval m --needle text.txt; echo "-> $?"
mhla eval m --lengths 64 text.txt; echo "-> $?"
ls page.html 2>&1
