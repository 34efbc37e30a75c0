# Images out of noise: the same pixels for any batch and number of threads, classes by name, grids, folders that go on, pictures
# made again, animations, refusals.
. "$CLI/lib.inc"
. "$CLI/dit.inc"
small_dit m
s="mhla sample -m m --steps 4 --quiet"
report() { sed -E 's/, [0-9.]+ (s|ms|us) \([^)]*\)/, TIME/'; }
$s -n 3 --out a.png | report; echo "-> $?"
for how in '--batch 1' '--batch 7 --threads 1' '--batch 16 --threads 3'; do
    $s -n 3 --out b.png $how >/dev/null; cmp a.png b.png && echo "$how: the same"
done
$s -n 3 --out b.png --seed 1 >/dev/null; cmp -s a.png b.png || echo 'another seed: other images'
$s -n 3 --out b.png --guidance 1 >/dev/null; cmp -s a.png b.png || echo 'no guidance: other images'
$s -c 'ankle BOOT, 2,none' --out b.png | report
for sampler in ddpm ddim dpm++ unipc; do $s -c 1 --sampler $sampler --out b.png | report; done
$s -c bag --size 12x8 --out b.png | report
$s --json -c bag --out b.png | json | grep -v seconds | sed 's/\(weights\) .*/\1/'

echo '-- a folder, stopped and gone on with'
$s -n 2 --out f | report
find f -type f | sort
$s -n 3 --out f | report
mhla sample -m m --steps 5 --quiet -n 3 --out f; echo "-> $?"
mhla sample -m ./m --steps 4 --quiet -n 3 --out f | report # weights are known by their hash
cp -r m commas && sed -i 's/"Bag"/"Bag, of leather"/' commas/config.json
sed -i 's/"Trouser"/"\\u00dcber"/' commas/config.json # as the folder of a class may be called
for name in 'über' 'U\314\210BER' 'uber'; do mhla sample -m commas --steps 1 --quiet -c "$(printf "$name")" --out over.png | report; done
sed -i 's/"\\u00dcber"/"Trouser"/' commas/config.json
mhla sample -m commas --steps 4 --quiet -n 1 -c 'trouser, Bag, of leather,0' --out commas.png | report
$s -n 1 -c bag --seed 2 --out one.png >/dev/null; cmp one.png f/2-Bag/000002.png && echo 'alone or in a folder: the same file'

mhla sample -m m --steps 5 --batch 4 -n 100000 -c 0,1 --quiet --out big >out 2>err &
while [ ! -e big/0-T-shirt_top/000000.png ]; do sleep 0.05; done
kill -INT $!; wait $!; echo "-> $?"; sed 's/[0-9][0-9]* of/N of/' err; wc -c <out
find big -name '*.png' | while read -r file; do mhla sample --quiet --like "$file" --out big.png >/dev/null || echo "$file"; break; done

echo '-- made again'
mhla sample --quiet --like f/1-Trouser/000001.png | report; cmp f/1-Trouser/000001.png 000001-again.png && echo 'the same file'
mhla sample --quiet --like a.png --out again.png --batch 5 | report; cmp a.png again.png && echo 'the same file'
small_dit other '' 3; mhla sample --quiet --like a.png -m other --out no.png 2>err; echo "-> $?"; sed -E 's/[0-9a-f]{12}/HASH/g' err
seed=8; small_dit moved; seed=7
mhla sample --quiet --like a.png -m moved --out no.png 2>err; echo "-> $?"; sed -E 's/[0-9a-f]{12}/HASH/g' err
mhla sample --quiet --like a.png -m moved --out no.png --any-model >/dev/null 2>err; echo "-> $?"
sed -E 's/[0-9a-f]{12}/HASH/g; s/[0-9]+ of [0-9]+ pixels/N of N pixels/' err
mv m gone; mhla sample --quiet --like a.png --out no2.png; echo "-> $?"; mv gone m
ls no2.png 2>/dev/null
base64 -d >plain.png <<END
iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAGUlEQVR42mPUYIAAJgacDMZLDAwMYfjVAAA0nAFfFOStxgAAAABJRU5ErkJggg==
END
mhla sample --like plain.png; echo "-> $?"
head -c 300 a.png >torn.png; mhla sample --like torn.png 2>err; echo "-> $?"; wc -l <err
mhla sample --like nowhere.png; echo "-> $?"
mhla sample --like a.png --steps 3; echo "-> $?"

echo '-- animated'
$s -c 0 --animate --out moving.png | report
grep -a -c acTL moving.png; mhla sample --quiet --like moving.png | report; cmp moving.png moving-again.png && echo 'the same file'

echo '-- bfloat16'
$s -c 1 --out f32.png >/dev/null; $s -c 1 --dtype bfloat16 --out half.png | report
cmp -s f32.png half.png || echo 'other pixels'
mhla sample --quiet --like half.png | report; cmp half.png half-again.png && echo 'the same file'
$s -c 1 --dtype int3; echo "-> $?"

echo '-- flows'
process=flow small_dit flow '' 3
for sampler in euler dpm++ unipc; do mhla sample -m flow --steps 4 --quiet --sampler $sampler --shift 3 -c 1 --out b.png | report; done
mhla sample -m flow --quiet --sampler ddim; echo "-> $?"

echo '-- latents'
small_dit latents '' 4
mhla sample -m latents --quiet --steps 2 --out b.png; echo "-> $?"
mhla sample -m latents --quiet --steps 2 --animate --out b.npy; echo "-> $?"
mhla sample -m latents --quiet --steps 2 -n 3 --out b.npy | report; head -c 128 b.npy | tail -c 118 | tr -s " "; wc -c <b.npy

echo '-- refusals'
mhla sample; echo "-> $?"
mhla sample -m nowhere; echo "-> $?"
$s -c bad; echo "-> $?"
$s -c sneaker; echo "-> $?"
$s -c 4; echo "-> $?"
$s -c 1,,2; echo "-> $?"
$s --size 9x8; echo "-> $?"
$s --sampler euler; echo "-> $?"
$s --sampler heun; echo "-> $?"
$s --eta 2; echo "-> $?"
$s --guided-channels 2; echo "-> $?"
$s --guidance 0; echo "-> $?"
$s --guidance -3; echo "-> $?"
$s --steps 2000; echo "-> $?"
$s --out no/where.png; echo "-> $?"
(ulimit -f 1; $s -n 3 --size 32x32 --out large.png; echo "-> $?") 2>&1 | cat # what is printed is not a file
ls large* 2>/dev/null
$s --weights best; echo "-> $?"
$s --out ''; echo "-> $?"
$s --out b.jpg; echo "-> $?"
$s -n 250000 --out c.png; echo "-> $?"
mhla sample -m m --steps 60 -n 100000 -c 0,1 --animate --out c.png; echo "-> $?"
small_dit n '' 1 0
mhla sample -m n --quiet --steps 2 --out b.png | report
mhla sample -m n --quiet --steps 2 --guidance 4 --out c.png; echo "-> $?"
mhla sample -m n --quiet --steps 2 -c none --out c.png; echo "-> $?"
small_dit bad nan
mhla sample -m bad --quiet --steps 2 --out c.png; echo "-> $?"
mhla sample -m bad --quiet --steps 2 --out c; echo "-> $?"
ls -d c c.png 2>/dev/null
head -c 2000 m/model.safetensors >bad/model.safetensors; mhla sample -m bad --out c.png 2>err; echo "-> $?"; wc -l <err
. "$CLI/lm.inc"
small_lm lm; mhla sample -m lm --out c.png; echo "-> $?"
ls c.png c.png.* 2>/dev/null
exit 0
