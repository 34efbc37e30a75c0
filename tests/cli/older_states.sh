# Sequences that version 0.1 saved: each is loaded, and continues as 0.1 itself continued it. The lines of expected/ were written by
# 0.1. Softmax, MHLA, linear attention, and a hybrid of the three with short convolutions; a text within one chunk, over several,
# past the trained length, and a conversation.
tar xzf "$CLI/states-0.1.tar.gz" && cd states-0.1 || exit
for model in models/*; do cp tokenizer.json tokenizer_config.json "$model"; done
for state in softmax-long mhla-short mhla-long mhla-beyond linear-short hybrid-long; do
    flags=; [ $state != mhla-beyond ] || flags='--beyond chunk --max-tokens 256'
    mhla generate -m "models/${state%-*}" --state "states/$state" --append -p ' fox jumps over' --tokens 8 --temperature 0 --ignore-eos $flags --json >out 2>err || cat err
    echo "$state:" $(sed -n 's/.*"id": \([0-9]*\),.*/\1/p' out)
done
echo 'the lazy' | mhla chat -m models/hybrid --state states/hybrid-chat --tokens 6 --temperature 0 2>err || cat err
echo '--- saved again and continued'
mhla generate -m models/hybrid --state states/hybrid-long --append -p ' dogs' --tokens 4 --temperature 0 --ignore-eos 2>err || cat err
