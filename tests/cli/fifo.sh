# A FIFO, a device or a folder in place of a file: every verb says so at once, none waits for a writer (124 would be timeout's).
# A prompt may come through a FIFO: it is read like a stream.
. "$CLI/data.inc"
. "$CLI/lm.inc"
m() { timeout 60 mhla "$@" 2>&1 >/dev/null | grep -v 'by hand' | tail -n 1; } # what is said about it
pipe() { rm -f "$1"; mkfifo "$1"; }
small_lm lm chat
small_data data
mhla train --source data $small_model --batch 16 --steps 2 --out run --quiet >/dev/null 2>&1
mkfifo pipe pipe.gguf pipe.safetensors pipe.png pipe.jsonl pipe.npy pipe.toml
for what in pipe pipe.gguf pipe.safetensors /dev/zero; do
    echo "# a model: $what"
    m info $what; m eval $what data; m analyze $what --data data; m generate -m $what -p x; m chat -m $what </dev/null
    m classify --model $what lm/x.png; m sample -m $what; m convert $what out; m convert $what out.gguf; m tokenize $what --text x
    m plot $what
done
echo "# files of a model"
for file in config.json model.safetensors tokenizer.json tokenizer_config.json; do
    rm -rf copy; cp -r lm copy; pipe copy/$file
    m info copy; m generate -m copy -p x --tokens 1; m chat -m copy </dev/null; m eval copy text.txt; m analyze copy --data text.txt
done
for file in config.json model.safetensors state.json; do
    rm -rf copy; cp -r run copy; pipe copy/last/$file
    m info copy/last; m eval copy/last/ --data data; m train --resume copy --quiet
done
for file in recipe.json metrics.jsonl; do
    rm -rf copy; cp -r run copy; pipe copy/$file
    m plot copy; m train --resume copy --quiet
done
echo "# data"
m eval lm pipe; m eval lm pipe.jsonl; m eval lm --choices pipe.jsonl; m analyze lm --data pipe
m classify --model run pipe.png; m measure pipe.npy data --features run; m measure data data --features pipe
m tokenize lm --out x.shard pipe; m tokenize train t.json pipe; m train pipe.toml --source data --out r --quiet
for file in train-images-idx3-ubyte train-labels-idx1-ubyte classes.txt; do
    rm -rf copy; cp -r data copy; pipe copy/$file
    m train --source copy $small_model --steps 1 --out r --quiet
done
mkdir -p copy/train/a copy/val/a; rm -f copy/*ubyte*; mkfifo copy/train/a/x.png
m train --source copy $small_model --steps 1 --out r --quiet
mkdir texts; mkfifo texts/train.txt texts/validation.txt; cp lm/tokenizer.json texts
m train --task text --source texts --steps 1 --out r --quiet
m data cifar10-test c --from pipe; m data smollm2 c --from pipe; m data fashion-mnist c --from data
echo "# states, results"
for verb in "generate -p x" chat; do m $verb -m lm --state pipe --tokens 1 </dev/null; done
m plot run --output pipe; m tokenize lm --out pipe text.txt; m convert lm pipe.safetensors
echo "# prompts: a stream is read to its end, what has none is refused"
printf 'It was' >prompt
mhla generate -m lm --threads 1 --tokens 4 --seed 1 -f prompt >a 2>/dev/null
cat prompt >pipe & mhla generate -m lm --threads 1 --tokens 4 --seed 1 -f pipe >b 2>/dev/null
wait; cmp a b && echo 'the same through a FIFO'
mhla generate -m lm --threads 1 --tokens 4 --seed 1 -f /dev/stdin <prompt >b 2>/dev/null; cmp a b && echo 'the same through /dev/stdin'
m generate -m lm -f /dev/zero; m generate -m lm </dev/zero; m generate -m lm -f data; m tokenize lm /dev/zero
