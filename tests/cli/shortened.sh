# A dataset that becomes shorter while it is trained on: one sentence with its name, exit code 1, no core; the last checkpoint is
# whole, and with the data as they were the run goes on. Files above 1 MiB are mapped; smaller ones are read at once.
. "$CLI/data.inc"
small_data data
n=20000 # pictures of 64 bytes
for file in images-idx3 labels-idx1; do
    for split in train t10k; do
        name=data/$split-$file-ubyte
        mv $name part
        if [ $file = images-idx3 ]; then head=16 one=64; else head=8 one=1; fi
        { { printf '0\n0\n8\n%d\n' $((head / 4 - 1)); printf '0\n0\n'; printf '%d\n%d\n' $((n / 256)) $((n % 256)); } | bytes
          head -c $head part | tail -c +9
          tail -c +$((head + 1)) part >body; while [ "$(wc -c <body)" -lt $((n * one)) ]; do cat body body >twice; mv twice body; done
          head -c $((n * one)) body; } >$name
    done
done
rm part body
cp -r data whole
mhla train --source data $small_model --batch 16 --steps 1000000 --checkpoint.steps 5 --eval.epochs 0 --log.steps 1 --out run --quiet 2>log &
pid=$!
while [ "$(cat run/metrics.jsonl 2>/dev/null | wc -l)" -lt 12 ] && kill -0 $pid 2>/dev/null; do sleep 0.05; done
: >data/train-images-idx3-ubyte
wait $pid; echo "-> $?"
cat log
echo "# the run as it was left"
[ "$(mhla info run/last | wc -l)" -gt 3 ] && echo 'a whole checkpoint'
mhla eval run/last/ --data whole --json | grep -c accuracy
rm -r data; mv whole data
mhla train --resume run --quiet 2>log &
pid=$!
before=$(wc -l <run/metrics.jsonl)
while [ "$(wc -l <run/metrics.jsonl)" -le "$before" ] && kill -0 $pid 2>/dev/null; do sleep 0.05; done
kill -INT $pid; wait $pid; echo "-> $?"; sed "s/[0-9][0-9]*/N/g" log
find run -name '*tmp*'
echo "# nothing of its name steers the terminal"
name=$(printf 'X\302\233\342\200\256Y')
mv data "$name"
mhla train --source "$name" $small_model --batch 16 --steps 1000000 --eval.epochs 0 --log.steps 1 --out again --quiet 2>log &
while [ ! -s again/metrics.jsonl ] && kill -0 $! 2>/dev/null; do sleep 0.05; done
: >"$name/train-images-idx3-ubyte"
wait $!; echo "-> $?"
cat log
