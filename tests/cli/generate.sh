# Continuations: the same seed the same text, several of one reading, states reused, stop strings, JSON, refusals.
. "$CLI/lib.inc"
. "$CLI/lm.inc"
small_lm m
g="mhla generate -m m --threads 1 --ignore-eos"
$g -p 'It was the best' --tokens 40 --seed 5 >a; echo "-> $?"
printf 'It was the best\n' | $g --tokens 40 --seed 5 >b; cmp a b && echo 'standard input: the same'
echo 'It was the best' >prompt; $g -f prompt --tokens 40 --seed 5 >b; cmp a b && echo 'a file: the same'
$g -p 'It was the best' --tokens 40 --seed 6 >b; cmp -s a b || echo 'another seed: another text'
$g -p 'It was the best' --tokens 40 --seed 5 --storage bfloat16 >/dev/null 2>&1; echo "bfloat16 -> $?"

echo '-- several'
$g -p 'It was the best' --tokens 40 --seed 5 -n 8 --json >eight; echo "-> $?"
$g -p 'It was the best' --tokens 40 --seed 5 --json >one
$g -p 'It was the best' --tokens 40 --seed 8 --json >four
ending() { grep '"finish"' "$1" | grep "\"index\": $2," | sed 's/"index": [0-9]*, //'; }
[ "$(ending eight 0)" = "$(ending one 0)" ] && echo 'the first is that of its seed'
[ "$(ending eight 3)" = "$(ending four 0)" ] && echo 'so is the fourth'
grep -c '"finish": "length"' eight
$g -p 'It was the best' --tokens 3 --seed 5 -n 8 | grep -a -c '^\[[1-8]\] '

echo '-- states'
$g -p 'It was the best' --tokens 20 --seed 5 --state s >first; echo "-> $?"
$g -p '' --append --tokens 20 --seed 5 --state s >second 2>err; echo "-> $?"; cat err
{ head -c -1 first; cat second; } >both; cmp a both && echo 'two halves make the whole'
$g -p 'It was the worst of times' --append --tokens 4 --seed 5 --state s >/dev/null 2>err; cat err
rm s; $g -f text.txt --beyond clamp --tokens 5 --seed 1 --state s >a; $g -f text.txt --beyond clamp --tokens 5 --seed 1 --state s >b 2>err
cmp a b && echo 'the prompt again: the same'; sed 's/[0-9][0-9]* tokens/N tokens/' err
$g -f text.txt --tokens 5 --seed 1 --state many -n 3 --beyond clamp >a; $g -f text.txt --tokens 5 --seed 1 -n 3 --state many >b 2>err
cmp a b && echo 'several of a state: the same'; sed 's/[0-9][0-9]* tokens/N tokens/' err
head -c 100 s >torn; $g -p x --state torn --tokens 2 2>err; echo "-> $?"; wc -l <err
small_lm other >/dev/null; printf 'x' | dd of=other/model.safetensors bs=1 seek=9000 conv=notrunc 2>/dev/null
mhla generate -m other -p x --state s --tokens 2 2>err; echo "-> $?"; wc -l <err
$g -p x --state s --beyond chunk --max-tokens 999 --tokens 2; echo "another policy -> $?"
# a stop text of two tokens, and one that begins inside of a token: what is kept is what was written
$g -p 'It was the best' --seed 5 --tokens 9 --json >nine
for tokens in 2 1; do
    stop=$(grep '"id"' nine | tail -$tokens | sed 's/.*"text": "\(.*\)", "logprob".*/\1/' | tr -d '\n')
    [ $tokens = 2 ] || stop=e$stop
    rm s; $g -p 'It was the best' --seed 5 --tokens 9 --stop "$stop" --state s --json | grep -c '"finish": "stop"'
    $g -p '' --tokens 1 --seed 1 --state s 2>&1 >/dev/null
done

echo '-- ends'
$g -p 'It was' --temperature 0 --tokens 30 --stop 'never' --stop 'seen' --json | grep -c '"finish": "length"'
$g -p 'It was' --seed 3 --tokens 200 --stop e --json | grep '"finish"' | grep -c '"finish": "stop", "stop": "e"'
$g -p 'It was' --seed 3 --tokens 200 --stop e | grep -c e
$g -p 'It was' --tokens 4 --json --logprobs 3 --temperature 0 | json | grep -c 'top.*logprob'
$g -p 'It was' --tokens 4 --seed 1 --stats 2>&1 >/dev/null | figures | sed 's/N [mun]*s,/TIME,/'
$g -f text.txt --tokens 500 --seed 1 >/dev/null; echo "full -> $?"
cat text.txt text.txt text.txt text.txt text.txt text.txt >long; $g -f long >out; echo "too long -> $?"; wc -c <out
$g -f long -n 3 --max-tokens 20 >out; echo "too long for three -> $?"
rm -f s; $g -p 'It was' --seed 1 --tokens 4 --state s >/dev/null; $g -f long --append --state s 2>&1 | sed 1d
$g -p '' --tokens 5 --seed 1 >/dev/null; echo "nothing -> $?"
$g -p 'a b c' --beyond chunk --max-tokens 1000 --tokens 700 --seed 1 --json | grep -c '"finish": "length", "tokens": 700'
$g -p 'a b c' --tokens 700 --seed 1 --json | grep '"finish"' | grep -c '"finish": "length"'

echo '-- bias and penalties'
ids() { $g -p 'It was the best' --seed 5 --json "$@" | sed -n 's/.*"id": \([0-9]*\),.*/\1/p' | tr '\n' ' '; echo; }
ids --tokens 4 --logit-bias 42=100
$g -p x --tokens 4 --logit-bias e=100
first=$(ids --tokens 1 --temperature 0); [ "$(ids --tokens 1 --temperature 0 --logit-bias "${first% }=-inf")" != "$first" ] && echo 'never drawn'
ids --tokens 40 --temperature 0 --presence-penalty 1000 >a; tr ' ' '\n' <a | grep . | sort | uniq -d | grep -c . # none twice
ids --tokens 40 --temperature 0 --frequency-penalty 1000 >b; cmp a b && echo 'alike when both are strong'
ids --tokens 5 --temperature 0 --presence-penalty -1000 | tr ' ' '\n' | grep . | sort -u | wc -l # what was there once comes again

echo '-- Ctrl-C'
$g -p 'It was' --tokens 0 --beyond clamp --seed 1 >out 2>err &
while [ ! -s out ]; do sleep 0.05; done
kill -INT $!; wait $!; echo "-> $?"; cat err

$g -p 'It was' --tokens 0 --beyond clamp --seed 1 >/dev/full; echo "nowhere to write -> $?" # without end otherwise

echo '-- a tokenizer that takes the space from the front of a text'
mkdir words; cp m/config.json m/model.safetensors words
awk 'BEGIN {
    meta = "{\"type\": \"Metaspace\", \"replacement\": \"▁\", \"prepend_scheme\": \"always\", \"split\": true}"
    printf "{\"pre_tokenizer\": %s, \"decoder\": %s, \"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [[\"<unk>\", 0]", meta, meta
    for (i = 1; i < 280; i++) printf ", [\"▁w%d\", -%d]", i, i
    print "]}}" }' >words/tokenizer.json
w="mhla generate -m words --threads 1 --ignore-eos --seed 2"
$w -p 'w1 w2' --tokens 6 >a; grep -c '^ w' a
rm -f s; { $w -p 'w1 w2' --tokens 3 --state s | tr -d '\n'; $w -p '' --tokens 3 --state s 2>/dev/null; } >b; cmp a b && echo 'two halves make the whole'

echo '-- refusals'
mhla generate -p x; echo "-> $?"
mhla generate -m nowhere -p x 2>err; echo "-> $?"; wc -l <err
$g -p x -f prompt; echo "-> $?"
$g -p x --beyond never; echo "-> $?"
$g -p x --beyond chunk; echo "-> $?"
$g -p x --temperature -1; echo "-> $?"
$g -p x --temperature nan; echo "-> $?"
$g -p x --top-p 2; echo "-> $?"
$g -p x --top-p -0.1; echo "-> $?"
$g -p x --top-k -1; echo "-> $?"
$g -p x --min-p 1.5; echo "-> $?"
$g -p x --repeat-penalty 0; echo "-> $?"
$g -p x --presence-penalty inf; echo "-> $?"
$g -p x --logit-bias 5; echo "-> $?"
$g -p x --logit-bias 5=much; echo "-> $?"
$g -p x --logit-bias 280=1; echo "-> $?"
$g -p x --logit-bias 'zqx=1'; echo "-> $?"
$g -p x -n 0; echo "-> $?"
$g -f missing; echo "-> $?"
$g -p x --state no/where; echo "-> $?"
$g -p x --append; echo "-> $?"
$g -p x --logprobs 2; echo "-> $?"
printf 'a\377b' >bad; $g -f bad; echo "-> $?"
rm m/tokenizer.json; $g -p x 2>err; echo "-> $?"; wc -l <err
