# Conversations: by the model's template, from standard input; only new tokens are read; without a template a sentence.
. "$CLI/lib.inc"
. "$CLI/lm.inc"
small_lm m chat
c="mhla chat -m m --threads 1 --tokens 6 --seed 3"
printf 'Hello\nAgain\n' | $c --system 'Be good.' >a; echo "-> $?"
printf 'Hello\n\nAgain\n/exit\nnever read\n' | $c --system 'Be good.' >b; cmp a b && echo 'the same'
printf 'Hello\n/reset\nHello\n' | $c >a; printf 'Hello\n' | $c >b; cat b b >twice; cmp a twice && echo 'anew'
printf 'Hello\n' | $c >a; printf 'user: Hello\nassistant:' | mhla generate -m m --threads 1 --tokens 6 --seed 3 >b; cmp a b && echo 'as generate'
printf 'Hello\nAgain\n' | $c --temperature 0 --tokens 2 --stats 2>&1 | grep -a -c '^mhla chat: ' # each after its answer's line
printf 'Hello\nAgain\n' | $c --temperature 0 --tokens 2 --stats 2>&1 >/dev/null | figures | sed 's/N [mun]*s,/TIME,/'
printf '' | $c; echo "-> $?"
printf 'Hello\n' | $c --max-tokens 3; echo "too long -> $?"
printf 'Hello\n' | $c --logit-bias 42=100 --tokens 3 | tr -d '\n' | wc -c
printf 'Hello\n' | $c --logit-bias none=1; echo "-> $?"
echo '# lines that are not text are skipped, and the conversation continues'
printf 'Hello\nAga\377in\nHe\0llo\n/exit\0\n/reset\0 \nAgain\n' | $c >a; echo "-> $?"
printf 'Hello\nAgain\n' | $c >b; cmp a b && echo 'the same'
printf 'Hello\n' | $c --system "$(printf 'Be \377good')"; echo "-> $?"
# a conversation that is kept: in two runs as in one, and the second reads little
sys='Be good. Be good, and be brief: it was the best of times, it was the worst of times, it was the age of wisdom.'
read_of() { sed -n 's/^mhla chat: \([0-9]*\) tokens read.*/\1/p' "$1"; }
printf 'Hello\nAgain\n' | $c --system "$sys" >a; echo "-> $?"
printf 'Hello\n' | $c --system "$sys" --state s --stats >b 2>one; echo "-> $?"
printf 'Again\n' | $c --state s --stats >>b 2>two; echo "-> $?"; cmp a b && echo 'the same in two runs'
grep 'reused' two | sed 's/, [0-9]* tokens/, N tokens/'
[ "$(sed -n 's/.* messages, \([0-9]*\) tokens.*/\1/p' two)" -gt 80 ] && [ "$(read_of two)" -lt 25 ] && echo 'read once'
printf '' | $c --system "$sys" --state s 2>/dev/null; echo "-> $?"
printf '/reset\nHello\n' | $c --state s 2>/dev/null >b; printf 'Hello\n' | $c --system "$sys" >a; cmp a b && echo 'anew, the system stays'
printf '' | $c --state s 2>&1 | sed 's/, [0-9]* tokens/, N tokens/'
printf '' | $c --system 'Another.' --state s; echo "-> $?"
printf 'Hello\n' | $c --state t >/dev/null; printf '' | $c --system "$sys" --state t; echo "-> $?"
mhla generate -m m --threads 1 --tokens 2 --seed 3 -p 'Hello' --state g >/dev/null; echo Hello | $c --state g; echo "-> $?"
head -c 300 s >cut; echo Hello | $c --state cut; echo "-> $?"
cp s before; sed -i.old 's/"norm_eps": 1e-6/"norm_eps": 1e-5/' m/config.json; echo Hello | $c --state s; echo "-> $?"; cmp s before && echo 'left alone'
mv m/config.json.old m/config.json
echo Hello | $c --state no/where >/dev/null ; echo "-> $?"
printf '%s\n' '{"chat_template": "\n{% frobnicate %}"}' >m/tokenizer_config.json; echo Hello | $c; echo "-> $?"
echo '{"chat_template": "{{ raise_exception(\"no\") }}"}' >m/tokenizer_config.json; echo Hello | $c; echo "-> $?"
rm m/tokenizer_config.json; echo Hello | $c; echo "-> $?"
