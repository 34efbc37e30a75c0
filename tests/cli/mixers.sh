# Every mixer that MHLA is compared with, and a hybrid of four of them, through the verbs: trained, measured, gone on with, converted, looked into,
# generated from, alone and eight at once, and remembered.
mkdir data
i=0
while [ $i -lt 60 ]; do
    printf 'Document %d: the quick brown fox jumps over %d lazy dogs and %d cats.\n\f\n' $i $((i % 7)) $((i % 5))
    i=$((i + 1))
done >data/train.txt
printf 'Document 61: the quick brown fox jumps over 3 lazy dogs and 2 cats.\n' >data/validation.txt
mhla tokenize train data/tokenizer.json data/train.txt --vocabulary 320 >/dev/null; echo "-> $?"
echo '{"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}' >data/tokenizer_config.json
train="mhla train --model lm_micro --source data --context 32 --batch 4 --rate 5e-3 --threads 1 --steps 20 --quiet"
generate='mhla generate -p Document --tokens 12 --temperature 0'
for mixer in gla retnet mamba mamba2 gated_deltanet hybrid; do
    echo "--- $mixer"
    case $mixer in
    hybrid) $train --attention gla --num_hidden_layers 4 --mamba2_layers 1 --attn_layers 2 --gated_deltanet_layers 3 --out $mixer >/dev/null 2>&1 ;;
    *) $train --attention $mixer --num_hidden_layers 2 --out $mixer >/dev/null 2>&1 ;;
    esac
    echo "-> $?"
    mhla train --resume $mixer --quiet >/dev/null 2>&1; echo "-> $?"
    mhla eval $mixer data/validation.txt --json 2>/dev/null | grep -c bits_per_byte
    $generate -m $mixer >one 2>/dev/null; echo "-> $?"
    $generate -m $mixer --state $mixer.state >two 2>/dev/null && $generate -m $mixer --state $mixer.state >three 2>/dev/null
    cmp one two && cmp one three && echo 'the same with a state'
    mhla generate -m $mixer -p Document --tokens 5 -n 8 --seed 1 >/dev/null 2>&1; echo "-> $?"
    echo 'Document' | mhla chat -m $mixer --tokens 3 >/dev/null 2>&1; echo "-> $?"
    mhla convert $mixer $mixer.gguf >/dev/null 2>&1 && $generate -m $mixer.gguf >four 2>/dev/null
    cmp one four && echo 'the same from GGUF'
    for dtype in bfloat16 q8_0; do
        mhla convert $mixer $mixer-$dtype.gguf --dtype $dtype >/dev/null 2>&1 && $generate -m $mixer-$dtype.gguf >/dev/null 2>&1; echo "-> $?"
    done
    mhla info $mixer 2>/dev/null | grep -c parameters
    mhla analyze -m $mixer --data data/validation.txt --window 16 --samples 1 --out look-$mixer >/dev/null; echo "-> $?"
done
