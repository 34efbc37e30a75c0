# Pipelines of clips from the command line: animations, videos and frames, a kill and going on, other sizes, refusals.
. "$CLI/lib.inc"
. "$CLI/pipeline.inc"
small_wan w
report() { sed -E 's/, [0-9.]+ (s|ms|us)$/, TIME/'; }
m="mhla sample -m w --steps 3 --quiet"
$m -p 'a cat' -o a.png | report; grep -a -c acTL a.png
mhla sample -m w --steps 3 -p 'a cat' -o b.png 2>&1 | report; cmp a.png b.png && echo 'the same file'
$m -p 'a cat' -o b.png --threads 3 >/dev/null; cmp a.png b.png && echo 'the same with 3 threads'
$m -p 'a cat' --negative '' -o b.png >/dev/null; cmp -s a.png b.png || echo 'another negative prompt: another clip'
mhla sample --like a.png --quiet | report
$m -p 'a cat' -o a.y4m | report; head -n 1 a.y4m; wc -c <a.y4m
$m -p 'a cat' -o - 2>log | cmp - a.y4m && echo 'the same on standard output'; report <log
if $m -p 'a cat' -o a.webp >log 2>&1; then
    head -c 4 a.webp; grep -a -o ANMF a.webp | wc -l
    mhla sample --like a.webp --quiet >/dev/null && cmp a.webp a-again.webp && echo 'the same file'
else
    grep libwebp7 log >&2 # without the library
fi
$m -p 'a cat' -n 2 -o folder | report; find folder -name '000[19].png' | sort
$m -p 'a cat' -n 2 -o folder | report
mhla sample --like folder/000001-1/0004.png --quiet | report
$m -p 'a cat' -o a.npy | report; head -c 128 a.npy | tr -d '\0' | grep -a -o "(1, 3, 9, 32, 48)"
mhla sample -m w --steps 3 -p 'a cat' --negative '' --frames 13 --size 48x64 -o long.png 2>&1 | report
$m -p 'a cat' --size 96x128 --memory 33M -o tiled.png | report | sed 's/[0-9]* blended tiles of [0-9]*/N blended tiles of N/'; mhla sample --like tiled.png --quiet | tail -n 1
mhla sample -m w -p 'a cat' --dry-run | sed -E 's/[0-9.]+ ([KM]iB|B)/SIZE/g'

echo '-- killed, and gone on with'
long="mhla sample -m w --steps 200 --quiet -p cat"
$long -o whole.png >/dev/null
for after in 1 2 3; do
    $long -o k.png --resume >/dev/null 2>&1 &
    was=$(cksum k.png.state 2>/dev/null)
    while [ ! -s k.png.state ] || [ "$(cksum k.png.state)" = "$was" ]; do sleep 0.01; done
    kill -KILL $!; wait $! 2>/dev/null
done
[ -e k.png ] && echo 'it was not killed'
$long -o k.png --resume | report; cmp k.png whole.png && echo 'the same file'; ls k.png*
$long -o whole -n 2 >/dev/null
for after in 1 2 3; do # a folder: the same command
    $long -o k -n 2 >/dev/null 2>&1 &
    was=$(cksum k/000000-0.state 2>/dev/null)
    while [ ! -s k/000000-0.state ] || [ "$(cksum k/000000-0.state)" = "$was" ]; do sleep 0.01; done
    kill -KILL $!; wait $! 2>/dev/null
done
ls k
$long -o k -n 2 | report; diff -r k whole && echo 'the same files'

echo '-- refused'
$m -p 'a cat' --frames 8; echo "-> $?"
$m -p 'a cat' --size 50x32; echo "-> $?"
$m -p 'a cat' --size 40x32; echo "-> $?"
$m -p 'a cat' --size 96x128 --memory 1M -o none.png 2>&1 | sed 's/takes [0-9]*/takes N/'; ls | grep none
$m -p 'a cat' -o a.mp4; echo "-> $?"
mhla sample --like a.y4m; echo "-> $?"
echo 'no tensors' >none.pth; $m -p 'a cat' --vae none.pth; echo "-> $?"
cp w/model_index.json index; sed 's/^{/{"transformer_2": ["diffusers", "WanTransformer3DModel"], /' index >w/model_index.json
$m -p 'a cat'; echo "-> $?"; mv index w/model_index.json
$m -p 'a cat' --animate; echo "-> $?"
$m -p 'a cat' --text-encoder w/vae; echo "-> $?"
mv w/tokenizer gone; $m -p 'a cat'; echo "-> $?"
