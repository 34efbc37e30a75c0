# Pipelines of images from the command line: prompts, the same pixels for any batch and number of threads, folders, images made again, what it
# will take, going on after a kill, refusals.
. "$CLI/lib.inc"
. "$CLI/pipeline.inc"
small_sana s
report() { sed -E 's/, [0-9.]+ (s|ms|us)$/, TIME/'; }
m="mhla sample -m s --steps 4 --quiet"
$m -p 'a cat' -n 3 -o a.png | report
for how in '--batch 1' '--batch 2 --threads 1' '--threads 3'; do
    $m -p 'a cat' -n 3 -o b.png $how >/dev/null; cmp a.png b.png && echo "$how: the same"
done
for other in '--seed 1' '--guidance 1' '--negative dogs' '--no-instruction' '--sampler unipc' '--shift 1' '--dtype bfloat16'; do
    $m -p 'a cat' -n 3 -o b.png $other >/dev/null; cmp -s a.png b.png || echo "$other: other images"
done
$m -p 'a cat' --size 24x40 -o b.png | report
$m -p 'a cat' -o b.npy | report; head -c 128 b.npy | tr -d '\0' | grep -a -o "(1, 3, 32, 32)"
$m -p 'a cat' -o b.png --json | json | grep -v seconds | sed 's/\(weights\) .*/\1/'

echo '-- made again'
mhla sample --like a.png --quiet -o again.png | report
mhla sample --like a.png --quiet --dtype float32; echo "-> $?"
seed=8; small_sana other; seed=7
mhla sample --like a.png --quiet -m other -o no.png 2>err; echo "-> $?"; sed -E 's/[0-9a-f]{12}/HASH/g' err
mhla sample --quiet -p 'a cat' --transformer s/transformer --vae s/vae --text-encoder s/text_encoder --tokenizer s/tokenizer \
    --scheduler s/scheduler/scheduler_config.json --steps 4 -n 3 -o parts.png | report
mhla sample --like parts.png --quiet -o again.png | report
cmp again.png parts.png && echo 'the same file'

echo '-- a file of prompts, a folder'
printf 'a cat\r\n\n the best of times\na dog' >prompts
$m --prompts prompts -n 2 -o f --text-cache rows | report; ls f; ls rows | wc -l
$m --prompts prompts -n 2 -o f --text-cache rows | report
rm f/000002-0.png; $m --prompts - -n 2 -o f --text-cache rows <prompts | report
$m --prompts prompts -n 2 --steps 5 -o f; echo "-> $?"
mhla sample --like f/000003-1.png --quiet | report
mhla sample -m s -p 'a cat' --dry-run --text-cache rows | sed -E 's/[0-9.]+ ([KM]iB|B)/SIZE/g'
mhla sample -m s -p 'a hen' --dry-run --json | json | positive '(bytes|adds|seconds|parameters)$'

echo '-- killed, and gone on with'
$m -p 'a cat' --steps 400 -o whole.png >/dev/null
mhla sample -m s -p 'a cat' --steps 400 --quiet -o k.png >/dev/null 2>&1 &
while [ ! -s k.png.state ]; do sleep 0.01; done
kill -KILL $!; wait $! 2>/dev/null
mhla sample -m s -p 'a cat' --steps 400 --quiet -o k.png; echo "-> $?"
mhla sample -m s -p 'a dog' --steps 400 --quiet -o k.png --resume; echo "-> $?"
mhla sample -m s -p 'a cat' --steps 400 --quiet -o k.png --resume | report
cmp k.png whole.png && echo 'the same file'; ls k.png*
mhla sample -m s -p 'a cat' --quiet --steps 4 --preview 2 -o p.png | report; ls p.*

echo '-- refused'
mhla sample -m s; echo "-> $?"
mhla sample -m s -p 'a cat' --classes 3; echo "-> $?"
mhla sample -m s -p 'a cat' --prompts prompts; echo "-> $?"
$m -p 'a cat' --size 33x32; echo "-> $?"
$m -p 'a cat' --frames 5; echo "-> $?"
$m -p 'a cat' -o a.y4m; echo "-> $?"
$m -p "$(printf 'a\377')" -o no.png; echo "-> $?"
: >empty; $m --prompts empty; echo "-> $?"
mhla sample -m s/transformer -p 'a cat'; echo "-> $?"
mhla sample -m s/transformer --dry-run; echo "-> $?"
mv s/vae gone; $m -p 'a cat'; echo "-> $?"; mv gone s/vae
kind=nan; small_sana broken; kind=
for part in text_encoder transformer vae; do # one component at a time answers with what is no number
    cp -r s "s-$part"; rm -r "s-$part/$part"; cp -r "broken/$part" "s-$part"
    mhla sample -m "s-$part" --steps 4 --quiet -p 'a cat' -o no.png; echo "-> $?"
done
sed -i 's/flow_prediction/epsilon/' s/scheduler/scheduler_config.json; $m -p 'a cat'; echo "-> $?"
[ ! -e no.png ] || echo "no.png is there"
