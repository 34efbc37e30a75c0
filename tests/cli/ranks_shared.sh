# Evaluation, latents and sampling under mpirun: what one process prints and writes, for any number of ranks.
. "$CLI/data.inc"
. "$CLI/vae.inc"
. "$CLI/lm.inc"
. "$CLI/dit.inc"
. "$CLI/ranks.inc"
unseconds() { sed -E 's/(speed|"seconds|"images_per_second|"tokens_per_second).*//; s/, [0-9.]+ (s|ms|us) \([^)]*\)//'; }
small_data data 150
alike() { # NUMBERS OF RANKS, then a command that prints: the same lines
    many=$1; shift
    "$@" 2>err | unseconds >one; [ -s one ] || cat err
    for n in $many; do ranks "$n" "$@" 2>err | unseconds >several; cmp one several && echo "$n ranks: the same" || cat err; done
}
echo '# images'
mhla train --source data $small_model --batch 16 --steps 2 --rate 3e-3 --quiet --out run >/dev/null
alike '2 3' mhla eval run --json --dtype all
alike 5 mhla eval run --split train --limit 131 --classes
echo '# texts in windows, questions, needles'
small_lm m >/dev/null
for i in $(seq 40); do echo "The $i best of times, it was $((i * 7)) years of wisdom."; done >long.txt
alike '2 3 8' mhla eval m --data text.txt --data long.txt --window 24 --batch 2 --bucket 4 --json
alike 2 mhla eval m --data long.txt --limit 100 --by-position
for i in $(seq 19); do echo "{\"context\": \"It was the $i\", \"choices\": [\"age of\", \"best\", \"a\"], \"gold\": $((i % 3))}"; done >q.jsonl
alike '2 3' mhla eval m --choices q.jsonl --json
mhla eval m --choices q.jsonl --log-samples log1 >/dev/null; ranks 3 mhla eval m --choices q.jsonl --log-samples log3 >/dev/null; cmp log1 log3
alike 3 mhla eval m --needle --lengths 100,200 --samples 3 --json
echo '# latents'
small_vae vae
mhla latents data --vae vae --size 8 --out latents --quiet | sed 's/^[a-z0-9]*://' >one
for n in 2 4; do
    ranks $n mhla latents data --vae vae --size 8 --out latents$n --quiet | sed 's/^[a-z0-9]*://' | cmp one - && diff -r latents latents$n && echo "$n ranks: the same"
done
rm latents2/train-00001.safetensors; ranks 3 mhla latents data --vae vae --size 8 --out latents2 --quiet | grep -o '[0-9]* were there'
diff -r latents latents2 && echo 'made again: the same'
echo '# samples: a grid, an array, an animation, a folder that is resumed, an image made again'
small_dit d
s="mhla sample -m d --steps 3 --quiet"
for out in grid.png array.npy; do
    $s -n 3 --out one-$out >/dev/null
    for n in 2 7; do ranks $n $s -n 3 --out $n-$out >/dev/null; cmp one-$out $n-$out && echo "$out, $n ranks: the same"; done
done
$s -c 0,1,2 --animate --out one.png >/dev/null; ranks 2 $s -c 0,1,2 --animate --out two.png >/dev/null; cmp one.png two.png && echo 'animated: the same'
$s -c 1 --out one.png >/dev/null; ranks 4 $s -c 1 --out four.png >/dev/null; cmp one.png four.png && echo 'fewer images than ranks: the same'
$s -n 3 --out f1 >/dev/null; ranks 3 $s -n 2 --out f3 | unseconds; ranks 2 $s -n 3 --out f3 | unseconds; diff -r f1 f3 && echo 'folder: the same'
ranks 2 mhla sample --quiet --like one-grid.png --out again.png | grep -o 'the same pixels'
echo '# refused'
say() { own | grep -a '^mhla' | sed 's/is [0-9a-f]\{64\}/is HASH/g'; }
ranks 2 mhla generate -m m --prompt a 2>&1 | say
ranks 2 mhla reproduce mqar 2>&1 | say
ranks 2 mhla reproduce scaling --quick --work w2 2>&1 | say
ranks 2 mhla eval m --longbench . 2>&1 | say
mpirun -n 1 mhla eval run : -n 1 mhla eval run --limit 3 2>&1 | say
small_vae other 1 8; ln -s vae v0; mkdir at1; ln -s ../other at1/v0; ln -s ../data at1/data
mpirun -n 1 mhla latents data --vae v0 --out no : -wdir at1 -n 1 mhla latents data --vae v0 --out no 2>&1 | say
mkdir at1/vae; cp vae/* at1/vae; mpirun -n 1 mhla latents data --vae vae --out own : -wdir at1 -n 1 mhla latents data --vae vae --out own 2>&1 | say
cp -r run at1/run; cp -r m at1/m; echo 'Other words.' >at1/long.txt
mpirun -n 1 mhla eval m --data long.txt : -wdir at1 -n 1 mhla eval m --data long.txt 2>&1 | say | sed 's/is [0-9a-f]*\.\./is HASH../g'
ls no at1/no 2>&1 | sed 's/.*: //'
