# Captions encoded once, a text-to-image model trained on them, from pixels and from latents; what has changed since is noticed.
. "$CLI/lib.inc"
. "$CLI/dit.inc"
. "$CLI/lm.inc"
. "$CLI/vae.inc"
. "$CLI/captions.inc"
small_captions data
small_lm encoder
small_vae vae '' 8 3
tiny="--model sana_nano --in_channels 3 --sample_size 8 --patch_size 2 --blocks 2 --batch 8 --steps 6 --eval.steps 3 --sample.columns 1 --sample.rows 4 --sample.steps 2"
mhla captions --help
mhla captions data --encoder encoder --instruction 'It is ' --out rows 2>err; echo "-> $?"; tail -1 err | figures
ls rows
sed -E 's/"(source|encoder)": .*"/"\1": "..."/; s/"[0-9a-f]{64}"/"..."/' rows/captions.json
echo "# what is missing is made again, to the same bytes"
mkdir killed && cp rows/captions.json killed
mhla captions data --encoder encoder --instruction 'It is ' --out killed --threads 1 --quiet; echo "-> $?"
diff -r rows killed && echo same
mhla captions data --encoder encoder --instruction 'It is ' --out killed --json 2>/dev/null | json
printf 'a red bag\n\ntrousers\n' >words
mhla captions words --encoder encoder --longest 2 --out words.rows --quiet; echo "-> $?"
echo "# training"
mhla train --source data --captions rows $tiny --out run 2>err; echo "-> $?"
grep -c '^step .*test loss' err
ls run run/samples run/last
json <run/samples/rows.json
sed -E 's/"(encoder)": .*"/"\1": "..."/; s/"[0-9a-f]{64}"/"..."/' run/last/text.json
grep -o '<div class="rows">.*</div>' run/report.html | head -n 1
mhla train --source data --captions rows $tiny --attention mhla --init run --caption_drop 0.5 --recompute true --dtype bfloat16 --out tuned --quiet; echo "mhla -> $?"
mhla data show -r run/recipe.json -o show.png -n 4 >/dev/null; echo "show -> $?"
mhla info run --no-measure | head -n 2
mhla latents data --vae vae --size 16 --out latents --quiet >/dev/null; echo "latents -> $?"
mhla train --source latents --captions rows --model sana_nano --attention mhla --blocks 2 --batch 8 --steps 3 --vae vae --sample.columns 1 --sample.rows 2 \
    --sample.steps 2 --out latent --quiet; echo "-> $?"
grep -E '"(in_channels|sample_size|caption_channels)"' latent/last/config.json | tr -d ' '
ls latent/samples
echo "# refused"
mhla captions data --out x; echo "-> $?"
mhla captions data --encoder encoder; echo "-> $?"
mhla captions --encoder encoder --out x; echo "-> $?"
mhla captions data --encoder run --out x; echo "-> $?"
mhla captions data --encoder encoder --out run; echo "-> $?"
mhla captions data --encoder encoder --out rows; echo "-> $?"
mhla captions none --encoder encoder --out x 2>&1 | sed 's/known.*//'
mhla train --source data $tiny --out y; echo "-> $?"
mhla train --source data --captions nowhere $tiny --out y; echo "-> $?"
mhla train --source data --captions words.rows $tiny --out y; echo "-> $?"
mhla train --source data --captions rows $tiny --caption_channels 8 --out y; echo "-> $?"
mhla train --task text-to-image --source data --captions rows --model dit_micro --out y; echo "-> $?"
mhla train --task diffusion --source data $tiny --out y; echo "-> $?"
sed -i 's/trousers, number 9/shorts, number 9/' data/test/metadata.jsonl
mhla train --source data --captions rows $tiny --out y; echo "-> $?"
mhla captions data --encoder encoder --instruction 'It is ' --out rows; echo "-> $?"
mhla train --resume run; echo "-> $?"
sed -i '1d' data/train/metadata.jsonl
mhla train --source data --captions rows $tiny --out y; echo "-> $?"
rm data/train/metadata.jsonl data/test/metadata.jsonl
mhla captions data --encoder encoder --out x; echo "-> $?"
ls x y 2>/dev/null
