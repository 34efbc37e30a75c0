#!/bin/sh
# ship_model.sh NAME RUN COMMAND: makes models/NAME from a training run, measures it and writes its card, models/NAME/README.md, with hash,
# figures and samples. NAME is lm-small, deit-fashion or dit-fashion; COMMAND is what trained it, as Markdown. Needs build/mhla, and the
# data of `mhla data`. dit-fashion is measured with deit-fashion: make that one first.
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
rm -rf "$folder" && mkdir -p "$folder" && cp "$new"/* "$folder"
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
*)
    echo "ship_model.sh: $name: expected lm-small, deit-fashion or dit-fashion" >&2
    exit 2 ;;
esac

{
    printf '# %s\n\n%s\n\n' "$name" "$what"
    printf '| | |\n| --- | --- |\n'
    printf '| parameters | %s |\n' "$(echo "$parameters" | sed -E ':a; s/([0-9])([0-9]{3})($|,)/\1,\2\3/; ta')"
    printf '| data | %s |\n' "$(echo "$data" | tr '\n' ' ' | sed 's/ $//')"
    printf '| recipe | [%s](../../%s) |\n| command | %s |\n| program | mhla of commit %s |\n' "$recipe" "$recipe" "$command" "$commit"
    printf '| file | %s, %s bytes |\n| SHA-256 | `%s` |\n' "$file" "$(wc -c <"$folder/$file" | tr -d ' ')" "$(sha256sum "$folder/$file" | cut -d ' ' -f 1)"
    printf '| license of the weights | Apache-2.0, as the project |\n\n## Measures\n\n| | |\n| --- | --- |\n| %s |\n\nTo measure again:\n\n    %s\n' "$measures" "$eval"
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
esac
echo "$folder: $(du -sk "$folder" | cut -f 1) KiB"
