# Training pictures to look at: a grid and the labels, the same for the same seed; what is refused.
. "$CLI/data.inc"
small_data data
cat >r.toml <<'END'
seed = 3
data.source = "data"
model = {image = [8], padding = [0], patch = 2, dim = 16, depth = 1, crop = 1, mean = [0.4], deviation = [0.25]}
train = {batch = 16, smoothing = 0.1}
[augment]
crop = "pad"
pad = 1
mixup = 0.8
cutmix = 1.0
END
size() { od -An -tu1 -j16 -N8 "$1" | awk '{ print $3 * 256 + $4, "x", $7 * 256 + $8 }'; }
mhla data show --help
mhla data show --recipe r.toml -o a.png >a; echo "-> $?"
size a.png
wc -l <a
sed -E 's/[0-9]+\.[0-9]+/N/g' a | sed -E 's/^row ([0-9]) column ([0-9])  image [0-9]+  class [0-9]( N \+ class [0-9] N)?$/row \1 column \2 ok/' | head -3
grep -c ' + ' a | awk '{ print ($1 > 8 ? "most are mixed" : $1) }'
mhla data show -r r.toml -o b.png >b; cmp a b && cmp a.png b.png && echo 'the same again'
mhla data show -r r.toml -o b.png --seed 4 >b; cmp -s a b || echo 'another seed: others'
mhla data show data -r r.toml -o b.png >b; cmp a b && echo 'the data by its name: the same'
mhla data show -r r.toml -o b.jpg -n 5 --columns 9 --set augment.mixup=0 --set augment.cutmix=0 | sed 's/image.*  //'; ls b.jpg
mhla data show data -o c.png | wc -l; mhla data show data -o c.png -n 50 --set augment.mixup=0.8 | wc -l # fewer pictures than a batch has
echo '-- refusals'
mhla data show -r r.toml; echo "-> $?"
mhla data show a b -o a.png; echo "-> $?"
mhla data show -r r.toml -o a.gif; echo "-> $?"
mhla data show -r r.toml -o no/where.png >/dev/null; echo "-> $?"
mhla data show -r r.toml -o a.png -n 401; echo "-> $?"
mhla data show -r r.toml -o a.png --set augment.mixup=lots; echo "-> $?"
mhla data show nowhere -r r.toml -o a.png; echo "-> $?"
mhla data show -r r.toml -o a.png --set task=text; echo "-> $?"
