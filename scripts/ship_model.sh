#!/bin/sh
# ship_model.sh NAME RUN COMMAND: makes models/NAME from a training run, measures it and writes its card, models/NAME/README.md, with hash,
# figures and samples. NAME is lm-small, deit-fashion, dit-fashion or sana-emoji; COMMAND is what trained it, as Markdown. Needs build/mhla,
# and the data of `mhla data`. dit-fashion is measured with deit-fashion: make that one first.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
set -eu
cd "$(dirname "$0")/.."
[ $# -eq 3 ] || { echo 'usage: scripts/ship_model.sh NAME RUN COMMAND' >&2; exit 2; }
name=$1 run=$2 command=$3
mhla=${MHLA:-build/mhla}
folder=models/$name
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
field() { grep -o "\"$1\": *[^,}]*" "$2" | head -n 1 | sed 's/^[^:]*: *//; s/"//g'; }
round() { awk -v x="$1" -v n="$2" 'BEGIN { printf "%.*f", n, x }'; }

case $name in
lm-small)
    file=$name.gguf
    $mhla convert "$run" "$new/$file" --dtype q8_0 ;;
*)
    file=model.safetensors
    $mhla convert "$run" "$new/model" --dtype bfloat16
    mv "$new"/model/* "$new" && rmdir "$new/model" ;;
esac
if [ "$name" = sana-emoji ]; then # rows of its words, so that it can be tried without the encoder; the encoder by its name
    awk '/skin tone/ { next }
         { sub(/^[^ ]+  [^ ]+  [^:]+: /, "") }
         /^[^ ]+$/ || /^flag: / || /^[^ ]+ (face|cat|heart|square|circle|apple)$/' data/emoji/pictures.txt |
        cat recipes/sana-emoji.txt - | awk '!seen[$0]++' >"$new/words.txt"
    $mhla captions "$new/words.txt" --encoder data/smollm2 --instruction "$(field instruction "$new/text.json")" --rows bfloat16 \
        -o "$new/captions" --quiet
    sed -i 's|"encoder": ".*"|"encoder": "data/smollm2"|; s|"source": ".*"|"source": "words.txt"|' "$new/text.json" "$new/captions/captions.json"
fi
rm -rf "$folder" && mkdir -p "$folder" && cp -R "$new"/* "$folder"
parameters=$($mhla info "$name" --json | grep -o '"parameters": [0-9]*' | head -n 1 | sed 's/.*: //')
recipe=recipes/$name.toml
commit=${COMMIT:-$(git rev-parse --short HEAD)}
card=$folder/README.md

case $name in
lm-small)
    eval="mhla eval lm-small data/text/validation.txt --limit 20000"
    $mhla ${eval#mhla } --json >"$new/eval.json"
    what="A language model with MHLA and a vocabulary of 8,192 byte-level tokens."
    data='English text of `mhla data text`: Bibles, commentaries and dictionaries from Debian packages. All of it is in the public domain, except the
dictionary GCIDE (GNU GPL, version 2 or later)'
    measures="bits per byte of the first 20,000 tokens of the validation text | $(round "$(field bits_per_byte "$new/eval.json")" 3)"
    limits="It knows the language of its texts, old religious prose and dictionary entries, and no facts. It does not follow instructions or chat. Use it to
try the program, not as a source of information." ;;
deit-fashion)
    eval="mhla eval deit-fashion fashion-mnist"
    $mhla ${eval#mhla } --json >"$new/eval.json"
    what="A classifier of clothes with MHLA: 28 x 28 grey pixels, padded to 32 x 32, as 256 tokens in 16 blocks."
    data='Fashion-MNIST (60,000 training images, MIT licence), `mhla data fashion-mnist`'
    $mhla ${eval#mhla } --limit 500 --json >"$new/first.json"
    measures="accuracy on the first 500 test images (\`--limit 500\`) | $(awk -v x="$(field accuracy "$new/first.json")" 'BEGIN { printf "%.2f %%", 100 * x }') |
| accuracy on the 10,000 test images | $(awk -v x="$(field accuracy "$new/eval.json")" 'BEGIN { printf "%.2f %%", 100 * x }') |
| test loss | $(round "$(field loss "$new/eval.json")" 4)"
    limits="It knows ten classes of small grey images on black. It was not trained on photographs. Longer training gives a higher accuracy: it saw each image little more than once." ;;
dit-fashion)
    eval="mhla sample -m dit-fashion --classes all -n 10 --guidance 2 --steps 25 --seed 0 --out dit-fashion-samples
    mhla measure fashion-mnist dit-fashion-samples --features deit-fashion --size 28x28"
    rm -rf "$new/samples"
    $mhla sample -m dit-fashion --classes all -n 10 --guidance 2 --steps 25 --seed 0 --out "$new/samples" >/dev/null
    $mhla measure fashion-mnist "$new/samples" --features deit-fashion --size 28x28 --json >"$new/eval.json"
    $mhla sample -m dit-fashion --classes all -n 4 --guidance 2 --steps 25 --seed 0 --out "$folder/samples.png" >/dev/null
    what="A diffusion model with MHLA that draws clothes by class: 32 x 32 grey pixels as 64 tokens in 4 blocks."
    data='Fashion-MNIST (60,000 training images, MIT licence), `mhla data fashion-mnist`'
    measures="share of 100 images that deit-fashion assigns to the intended class | $(awk -v x="$(field accuracy "$new/eval.json")" 'BEGIN { printf "%.1f %%", 100 * x }') |
| Fréchet distance of deit-fashion's features to the 10,000 test images (not FID) | $(round "$(field frechet_distance "$new/eval.json")" 2)"
    limits="It draws ten classes at one size. The images are rough compared with the data, shoes most of all: training was short. All 6,000 updates of the recipe give better ones (docs/dit-fashion.png)." ;;
sana-emoji)
    step=$(field step "$run/best/state.json")
    loss=$(grep '"kind":"test"' "$run/metrics.jsonl" | grep "\"step\":$step," | tr ',' '\n' | sed -n 's/^"\(ema_\)\{0,1\}loss"://p' | sort -g | head -n 1)
    eval=
    draw="mhla sample -m sana-emoji --prompts recipes/sana-emoji.txt -n 4 --seed 0 --out samples.png"
    $mhla ${draw#mhla } --out "$folder/samples.png" --quiet
    what="A text-to-image model with MHLA that draws emoji by their names: SANA's transformer on 32 x 32 pixels, as 64 tokens in 4 blocks. It reads the
rows that SmolLM2-135M-Instruct makes of a prompt."
    data='3,275 of 3,641 emoji with their names, `mhla data emoji` (font: SIL OFL 1.1); rows of text by SmolLM2-135M-Instruct (Apache-2.0), `mhla data smollm2`'
    measures="test loss (flow matching, 366 images and names that were held out) | $(round "$loss" 4) |
| pictures of twenty captions, and how often a classifier names the right group | [docs/text-to-image.md](../../docs/text-to-image.md)"
    limits="It draws 32 x 32 pixels, one emoji at a time. The rows of the $(wc -l <"$new/words.txt" | tr -d ' ') texts in [words.txt](words.txt) come with it. Any other prompt needs the text encoder, once: \`mhla data smollm2\` puts it
where the model looks for it, data/smollm2 in the current folder; otherwise \`--text-encoder\` names it. Names that it was not trained on, and mixtures of names, often fail." ;;
*)
    echo "ship_model.sh: $name: expected lm-small, deit-fashion, dit-fashion or sana-emoji" >&2
    exit 2 ;;
esac

{
    printf '# %s\n\n%s\n\n' "$name" "$what"
    printf '| | |\n| --- | --- |\n'
    printf '| parameters | %s |\n' "$(echo "$parameters" | sed -E ':a; s/([0-9])([0-9]{3})($|,)/\1,\2\3/; ta')"
    printf '| data | %s |\n' "$(echo "$data" | tr '\n' ' ' | sed 's/ $//')"
    printf '| recipe | [%s](../../%s) |\n| command | %s |\n| program | mhla of commit %s |\n' "$recipe" "$recipe" "$command" "$commit"
    printf '| file | %s, %s bytes |\n| SHA-256 | `%s` |\n' "$file" "$(wc -c <"$folder/$file" | tr -d ' ')" "$(sha256sum "$folder/$file" | cut -d ' ' -f 1)"
    printf '| license of the weights | Apache-2.0, as the project |\n\n## Measures\n\n| | |\n| --- | --- |\n| %s |\n' "$measures"
    [ -z "$eval" ] || printf '\nTo measure again:\n\n    %s\n' "$eval"
    printf '\n## Limits\n\n%s\n' "$limits"
} >"$card"
case $name in
lm-small)
    printf '\n## Ten samples\n\nSeeds 0 to 9; the seeds are not selected, the prompt is: `MHLA_ISA=plain mhla generate -m lm-small -p "In the beginning" --seed N --tokens 40`. Other kernels round\ndifferently and may choose other words.\n' >>"$card"
    for seed in 0 1 2 3 4 5 6 7 8 9; do
        printf '\n```text\n%s\n```\n' "In the beginning$(MHLA_ISA=plain $mhla generate -m lm-small -p "In the beginning" --seed $seed --tokens 40)" >>"$card"
    done ;;
dit-fashion)
    printf '\n## Samples\n\nSeeds from 0, four images of each class, not selected:\n\n![ten rows of clothes, one class in each](samples.png)\n\n    mhla sample -m dit-fashion --classes all -n 4 --guidance 2 --steps 25 --seed 0 --out samples.png\n' >>"$card" ;;
sana-emoji)
    printf '\n## Samples\n\nThe captions of [recipes/sana-emoji.txt](../../recipes/sana-emoji.txt), a row each: ten that were trained, then ten that were held out. Seeds 0 to 3, not\nselected:\n\n![twenty rows of emoji, one caption in each](samples.png)\n\n    %s\n' "$draw" >>"$card" ;;
esac
echo "$folder: $(du -sk "$folder" | cut -f 1) KiB"
