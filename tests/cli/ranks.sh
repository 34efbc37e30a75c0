# Several processes under mpirun: the bytes of one process for any number of them, of each kind of task; resumed with other numbers.
. "$CLI/data.inc"
. "$CLI/ranks.inc"
small_data data 64
small_data big 48 16
recipes=$CLI/../../recipes
echo '# images: dropped paths, mixed images, an average, two workers, clipping'
images="mhla train --source data $small_model --batch 16 --steps 6 --rate 3e-3 --drop_path 0.2 --mixup 0.2 --ema 0.9 --clip 1 --workers 2
    --log.steps 1 --eval.steps 3 --parts 8 --quiet"
$images --out whole
for n in 1 2 3 4 8; do ranks $n $images --out r$n >/dev/null; same whole r$n; done
echo '# more buckets of gradients than may be under way at once, sent during the backward pass'
deep="mhla train --source data $small_model --depth 36 --batch 8 --steps 4 --rate 3e-3 --drop_path 0.2 --clip 1 --log.steps 1 --eval.steps 4 --parts 8 --quiet"
$deep --out deep >/dev/null; for n in 2 3; do ranks $n $deep --out deep$n >/dev/null; same deep deep$n; done
echo '# as many pieces as parts; the parts of a recipe that says nothing'
$images --accumulate 16 --out pieces >/dev/null
ranks 2 $images --accumulate 16 --out pieces2 >/dev/null; same pieces pieces2
ranks 2 mhla train --source data $small_model --batch 16 --steps 1 --out usual 2>log; echo "-> $?"
grep -o '^2 ranks' log; grep -o '8 parts' log; grep -c '^step 1 of 1' log
grep -o '"parts": 8' usual/recipe.json
echo '# batch norms, whose statistics follow the parts'
vlt="mhla train --source big --model vlt_nano --dims 8,8,12,16 --heads 1,1,1,2 --depths 1 --projection 12 --blocks 2,2,1,1 --mean 0.4
    --deviation 0.25 --image 16 --batch 32 --rate 3e-3 --drop_path 0.1 --ema 0.5 --steps 2 --parts 8 --accumulate 16 --log.steps 1 --quiet"
$vlt --out vlt >/dev/null; ranks 3 $vlt --out vlt3 >/dev/null; same vlt vlt3
echo '# text, with more parts than windows'
mkdir words
i=0
while [ $i -lt 40 ]; do
    printf 'Document %d: the quick brown fox jumps over %d lazy dogs and %d cats.\n\f\n' $i $((i % 7)) $((i % 5))
    i=$((i + 1))
done >words/train.txt
printf 'Document 61: the quick brown fox jumps over 3 lazy dogs and 2 cats.\n' >words/validation.txt
mhla tokenize train words/tokenizer.json words/train.txt --vocabulary 300 >/dev/null
text="mhla train --model lm_micro --source words --context 32 --batch 5 --rate 5e-3 --steps 4 --log.steps 1 --clip 1 --parts 8
    --num_hidden_layers 8 --quiet"
$text --out text >/dev/null; for n in 2 3; do ranks $n $text --out text$n >/dev/null; same text text$n; done
echo '# diffusion and an autoencoder, with their grids'
dit="mhla train --source data --model dit_micro --image 8 --patch 2 --dim 16 --depth 2 --heads 2 --batch 16 --steps 4 --eval.steps 2
    --ema 0.9 --label_drop 0.1 --sample.steps 3 --sample.columns 3 --parts 4 --quiet"
$dit --out dit >/dev/null; ranks 3 $dit --out dit3 >/dev/null; same dit dit3
vae="mhla train $recipes/vae-emoji.toml --source data --sample_size 8 --norm_num_groups 4 --block_out_channels 8,8,8 --latent_channels 2
    --batch 16 --steps 4 --warmup_steps 1 --eval.steps 2 --sample.columns 4 --sample.rows 2 --parts 4 --quiet"
$vae --out vae >/dev/null; ranks 3 $vae --out vae3 >/dev/null; same vae vae3
