# Conversations: by the model's template, from standard input; only new tokens are read; without a template a sentence.
. "$CLI/lib.inc"
. "$CLI/lm.inc"
small_lm m chat
c="mhla chat -m m --threads 1 --tokens 6 --seed 3"
printf 'Hello\nAgain\n' | $c --system 'Be good.' >a; echo "-> $?"
printf 'Hello\n\nAgain\n/exit\nnever read\n' | $c --system 'Be good.' >b; cmp a b && echo 'the same'
printf 'Hello\n/reset\nHello\n' | $c >a; printf 'Hello\n' | $c >b; cat b b >twice; cmp a twice && echo 'anew'
printf 'Hello\n' | $c >a; printf 'user: Hello\nassistant:' | mhla generate -m m --threads 1 --tokens 6 --seed 3 >b; cmp a b && echo 'as generate'
printf 'Hello\nAgain\n' | $c --temperature 0 --tokens 2 --stats 2>&1 >/dev/null | figures | sed 's/N [mun]*s,/TIME,/'
printf '' | $c; echo "-> $?"
printf 'Hello\nAga\377in\n' | $c >a; echo "-> $?"; wc -l <a
printf '%s\n' '{"chat_template": "\n{% frobnicate %}"}' >m/tokenizer_config.json; echo Hello | $c; echo "-> $?"
echo '{"chat_template": "{{ raise_exception(\"no\") }}"}' >m/tokenizer_config.json; echo Hello | $c; echo "-> $?"
rm m/tokenizer_config.json; echo Hello | $c; echo "-> $?"
