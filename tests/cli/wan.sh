# Wan from its sizes to clips: training on clips, other attentions and layers out of its weights, sampling, what does not fit together.
. "$CLI/lib.inc"
. "$CLI/data.inc"
recipe=$CLI/../../recipes/wan-moving.toml
small_clips clips
small_data data
mhla info wan_1300m gate=true hybrid=3 --no-measure; echo "-> $?"
small="--source clips --patch 2 --dim 24 --ffn 32 --depth 3 --heads 2 --blocks 3,2,2 --steps 4 --batch 8 --warmup_steps 1 --sample.steps 2 --sample.columns 1"
for kind in mhla linear softmax; do
    mhla train "$recipe" $small --attention $kind --out $kind --quiet >/dev/null 2>log; echo "$kind -> $?"
    tail -n 1 $kind/metrics.jsonl | json | positive 'loss'
done
ls mhla/samples
mhla train "$recipe" $small --init softmax --hybrid 2 --lepe true --out hybrid 2>&1 >/dev/null | grep -E '^(weights|new|of another|not used)'
mhla info hybrid --no-measure | sed -n 1,4p

echo "# clips"
mhla sample -m hybrid -c all -n 2 --steps 2 --out two.png --quiet | sed 's/, .*//'; echo "-> $?"
mhla sample --like two.png --out again.png --quiet | tail -n 1; echo "-> $?"
mhla sample -m hybrid -c 1 --steps 2 --frames 5 --size 8x12 --out longer.npy 2>&1 | sed 's/, .*//'
dd if=longer.npy bs=1 skip=10 count=80 2>/dev/null; echo
mhla sample -m hybrid -c 1,none --steps 2 --out folder --quiet | sed 's/, .*//'; find folder -type f | sort
mhla sample -m hybrid -c 1,none --steps 2 --out folder --quiet
mhla sample -m hybrid -c 1 -n 2 --steps 2 --out two.y4m --quiet | sed 's/, .*//'; head -n 1 two.y4m; wc -c <two.y4m | tr -d ' '
mhla sample -m hybrid -c 1 -n 2 --steps 2 --out - --quiet 2>said | cmp - two.y4m && echo 'the same on standard output'; sed 's/, .*//' said
mhla sample -m hybrid -c 1 --out - --json; echo "-> $?"
mhla sample -m hybrid --animate; echo "-> $?"
mhla analyze hybrid --samples 2 --rank-samples 1 --rows 9 --json hybrid.json --html hybrid.html | figures | sed 's/; .* for the SVD/; TIME/'; echo "-> $?"
json <hybrid.json | grep -E '^models.0.(frames|frame_blocks|grid[.0-9]*|blocks[.0-9]*) |mixing.0.(frames|along_after.frames.0.0|shares_before.own) ' | sed 's/\(after.*\|own\) .*/\1 N/'
mhla analyze hybrid --data data --samples 1; echo "-> $?"

echo "# clips of files: folders of frames, .y4m"
mkdir -p own/train/one/frames own/train/two own/test/one
y4m() { printf 'YUV4MPEG2 W8 H8 F8:1 C420jpeg\n'; for i in $(seq "$1"); do printf 'FRAME\n'; yes "clip $i" | head -c 96; done; }
y4m 13 >own/train/one/a.y4m; y4m 13 >own/train/two/b.y4m; y4m 6 >own/test/one/c.y4m
cp folder/1-*/000000.png own/train/one/frames/0.png; for i in 1 2 3; do cp own/train/one/frames/0.png own/train/one/frames/$i.png; done
echo '{"frames": 3, "height": 8, "width": 8}' >own/clips.json
mhla train "$recipe" $small --source own --channels 3 --batch 4 --out own-run --quiet >/dev/null; echo "-> $?"
mhla info own-run --no-measure | grep input
mhla data show own --recipe "$recipe" --set model.blocks=1,1,1 --set train.batch=3 -n 3 -o own.png | wc -l | tr -d ' '

echo "# captions of clips"
. "$CLI/lm.inc"
small_lm encoder
for file in one/a.y4m one/frames two/b.y4m; do printf '{"file_name": "%s", "text": "a clip, %s"}\n' $file $file; done >own/train/metadata.jsonl
echo '{"file_name": "one/c.y4m", "text": "another clip"}' >own/test/metadata.jsonl
mhla captions own --encoder encoder --out rows --quiet; echo "-> $?"
tiny="--task video --source own --captions rows --model wan_micro --channels 3 --patch 2 --dim 24 --ffn 32 --depth 2 --heads 2 --blocks 3,2,2 --batch 4 --steps 3"
mhla train $tiny --sample.columns 1 --sample.rows 2 --sample.steps 2 --out told --quiet; echo "-> $?"
ls told/samples
mhla info told --no-measure | sed -n 2,4p
mhla sample -m told -p 'a clip, two' --steps 2 -o told.png --quiet | sed 's/, [0-9.]* [a-z]*$//'; echo "-> $?"
mhla sample --like told.png --quiet | tail -n 1
mhla train --task video $small --source own --channels 3 --model wan_micro --batch 4 --out named --quiet; echo "-> $?"
grep -h '"classes"' named/last/config.json told/last/config.json | tr -d ' '
echo '{"frames": 40}' >own/clips.json; mhla train "$recipe" $small --source own --out a --quiet; echo "-> $?"
rm own/clips.json; mhla train "$recipe" $small --source own --out a --quiet; echo "-> $?"

echo "# what does not fit"
mhla train "$recipe" $small --source data --image 8 --frames 3 --out a --quiet; echo "-> $?"
mhla train "$CLI/../../recipes/dit-fashion.toml" --source clips --out a --quiet; echo "-> $?"
mhla train "$recipe" $small --frames 4 --out a --quiet; echo "-> $?"
mhla train "$recipe" $small --augment.crop pad --out a --quiet; echo "-> $?"
mhla train --source clips --model deit_nano --out a --quiet; echo "-> $?"
rm clips/test_clips.npy
mhla train "$recipe" $small --out a --quiet; echo "-> $?"
mhla sample -m mhla --frames 1 --steps 2 --out b.png 2>&1 | sed "s|, [0-9.]* [a-z]* (.*||"
