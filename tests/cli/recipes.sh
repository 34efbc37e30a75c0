# Every recipe is understood: the only thing that is missing is its data.
for recipe in "$CLI"/../../recipes/*.toml; do
    mhla train "$recipe" --source no/such/data --out run; echo "$(basename "$recipe") -> $?"
    if [ -e run ]; then echo 'something was left behind'; fi
done
# Every recipe trains: two updates on data made here, with all that it says but its sizes.
. "$CLI/data.inc"
. "$CLI/vae.inc"
. "$CLI/dit.inc"
. "$CLI/lm.inc"
. "$CLI/captions.inc"
small_data pictures
small_clips clips
small_vae vae
mhla latents pictures --vae vae --size 8 --out latents --quiet >/dev/null
small_captions named
small_lm encoder
mhla captions named --encoder encoder --out captions --quiet >/dev/null
mkdir texts
i=0
while [ $i -lt 40 ]; do
    printf 'Document %d: the quick brown fox jumps over %d lazy dogs and %d cats.\n\f\n' $i $((i % 7)) $((i % 5))
    i=$((i + 1))
done >texts/train.txt
printf 'Document 61: the quick brown fox jumps over 3 lazy dogs and 2 cats.\n' >texts/validation.txt
mhla tokenize train texts/tokenizer.json texts/train.txt --vocabulary 320 >/dev/null
mhla train --model lm_micro --source texts --attention softmax --hidden_size 32 --num_hidden_layers 1 --num_heads 2 --num_kv_heads 2 --intermediate_size 64 \
    --context 32 --batch 4 --steps 1 --out teacher --quiet >/dev/null 2>&1
short="--steps 2 --batch 4 --accumulate 1 --seed 1 --eval.limit 4 --threads 1 --quiet"
pictures="--source pictures --image 8 --channels 1 --patch 2 --dim 16 --depth 1 --heads 2 --mean 0.4 --deviation 0.25"
for recipe in "$CLI"/../../recipes/*.toml; do
    name=$(basename "$recipe" .toml)
    case $(sed -n 's/^task = "\(.*\)"/\1/p' "$recipe") in
    diffusion) set -- --source pictures --image 8 --channels 1 --patch 2 --dim 16 --depth 1 --heads 2 --warmup_steps 1 --sample.steps 2 --sample.columns 2 ;;
    text)
        set -- --source texts --hidden_size 32 --num_hidden_layers 1 --num_heads 2 --intermediate_size 64 --context 32 --warmup_steps 1
        if grep -q '^tokenizer' "$recipe"; then set -- "$@" --tokenizer texts/tokenizer.json --init teacher --num_kv_heads 2; fi
        ;;
    *) set -- $pictures --padding 0 --warmup_epochs 0 ;;
    esac
    case $name in
    wan-*) set -- --source clips --patch 2 --dim 24 --ffn 32 --depth 1 --heads 2 --blocks 3,2,2 --warmup_steps 1 --sample.steps 2 --sample.columns 1 ;;
    *-latents) set -- --source latents --vae vae --patch 1 --dim 16 --depth 1 --heads 2 --warmup_steps 1 --sample.steps 2 --sample.columns 2 ;;
    sana-*) set -- --source named --captions captions --sample_size 8 --num_layers 1 --num_attention_heads 2 --attention_head_dim 8 \
        --num_cross_attention_heads 1 --warmup_steps 1 --sample.steps 2 --sample.columns 1 --sample.rows 2 ;;
    vae-*) set -- --source pictures --sample_size 8 --block_out_channels 8,8,8 --warmup_steps 1 ;;
    vlt-*) set -- --source pictures --image 16 --channels 1 --dims 8,8,12,16 --heads 1,1,1,2 --depths 1 --projection 12 --blocks 2,2,1,1 \
        --mean 0.4 --deviation 0.25 --warmup_epochs 0 ;;
    esac
    mhla train "$recipe" "$@" $short --out "run-$name" >log 2>&1; code=$?
    echo "$name trains -> $code"
    [ $code -eq 0 ] || tail -n 2 log
    [ -s "run-$name/last/model.safetensors" ] || echo 'no weights'
done
