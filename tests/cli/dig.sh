# DiG from its sizes to images: training, bfloat16, measuring, sampling, a look into its attention; MHLA out of GLA's weights; weights
# that were trained with scans; LiT out of a DiT.
. "$CLI/lib.inc"
. "$CLI/data.inc"
small_data data
recipes=$CLI/../../recipes
mhla info dig_s --no-measure; echo "-> $?"
mhla info dig_s attention=mhla-dit cpe=none --no-measure | sed -n 4,5p
mhla info dit_s_2 attention=lit --no-measure | sed -n 4,5p
mhla info dig_micro attention=mhla scan=four; echo "-> $?"
small="--source data --image 8 --patch 2 --dim 16 --depth 4 --heads 2 --blocks 2 --steps 6 --batch 8 --warmup_steps 1 --sample.steps 2 --sample.columns 1"
for kind in gla mhla mhla-dit; do
    mhla train $recipes/dig-fashion.toml $small --attention $kind --out $kind --quiet >/dev/null 2>log; echo "$kind -> $?"
    tail -n 1 $kind/metrics.jsonl | json | positive 'loss'
done
mhla train $recipes/dig-fashion.toml $small --dtype bfloat16 --out bf16 --quiet >/dev/null 2>&1; echo "bfloat16 -> $?"
mhla sample -m gla --classes all -n 1 --steps 2 --out gla.png --quiet | sed 's/, .*//'; echo "-> $?"
mhla sample -m mhla -c 1 -n 1 --steps 2 --size 12x8 --out mhla.png --quiet | sed 's/, .*//'; echo "-> $?"
mhla sample -m gla -c 1 --steps 2 --dtype bfloat16 --out bf16.png --quiet | sed 's/, .*//'; echo "-> $?"
mhla analyze gla mhla --samples 2 --html a.html --json a.json | grep '^  mean' | figures; echo "-> $?"
json <a.json | grep -E '^models[.][01][.]attention '

mhla train --source data --model deit_nano $small_model --batch 16 --steps 2 --out judge --quiet >/dev/null 2>&1
mhla sample -m gla -n 2 --steps 2 --out images --quiet >/dev/null
mhla measure data images --features judge --size 8x8 --json 2>/dev/null | json | positive 'frechet_distance'

echo "# from GLA to MHLA"
mhla train $recipes/dig-fashion.toml $small --init gla --attention mhla --out tuned 2>&1 >/dev/null | grep -E '^(weights|new|of another|not used)'

echo "# from a DiT to LiT"
mhla train $recipes/dit-fashion.toml $small --attention softmax --out dit >/dev/null 2>&1
mhla train $recipes/dit-fashion.toml $small --init dit --attention lit --heads 1 --out lit 2>&1 >/dev/null | grep -E '^(weights|new|of another|not used)'

echo "# weights that were trained with scans"
mhla convert mhla scanned >/dev/null
sed -i 's/"scan": "raster"/"scan": "four"/' scanned/config.json
mhla sample -m scanned -c 1 --steps 2 --out scanned.png --quiet | sed 's/, .*//'; echo "-> $?"
mhla train $recipes/dig-fashion.toml $small --init scanned --attention mhla --steps 1 --out again 2>&1 >/dev/null | grep -E '^(weights|new)'
grep scan again/last/config.json
sed -i 's/"depth": 4/"depth": 3/' scanned/config.json
mhla info scanned; echo "-> $?"
