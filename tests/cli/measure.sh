# Two sets of pictures compared by a classifier's features: the same set twice, its two splits, parts of it; what cannot be
# compared. (Inception's weights are fetched, so they have no place here.)
. "$CLI/lib.inc"
. "$CLI/data.inc"
small_data data
mhla train --source data $small_model --batch 16 --steps 60 --rate 3e-3 --out run --quiet >/dev/null || exit
mhla measure --help
mhla measure data data --features run | sed 's/named .*/named/; s/score  .*/score/'; echo "-> $?"
mhla measure data data --features run --split train --limit 20 --json >json 2>err; echo "-> $?"
json <json | grep -E '^(inception|dims|real|generated|precision|recall) '
json <json | awk '$1 == "frechet_distance" { print $1, $2 < 1e-6 ? "is nothing" : $2 }'
json <json | positive 'score$'
json <json | positive 'accuracy$'
wc -l <err
mhla measure data data --features run --limit 12 --dump features >out; echo "-> $?"
for file in features/*; do echo "$file"; head -c 128 "$file" | tail -c 118 | tr -s ' '; done

echo "# classes by names of other scripts: one of the four is right"
cp -rL run/best named && sed -i 's/^ *"0"/"Ä"/; s/^ *"1"/"Ö"/; s/^ *"2"/"日"/; s/^ *"3"/"Ω"/' named/config.json
base64 -d >plain.png <<END
iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAGUlEQVR42mPUYIAAJgacDMZLDAwMYfjVAAA0nAFfFOStxgAAAABJRU5ErkJggg==
END
for class in Ä Ö 日 Ω; do
    rm -rf made && mkdir -p "made/$class" && cp plain.png "made/$class/1.png" && cp plain.png "made/$class/2.png"
    mhla measure data made --features named --json 2>/dev/null | json | grep accuracy
done | sort
echo "# refused"
mhla measure --clip nowhere data prompts.txt; echo "-> $?"
mhla measure --clip run data; echo "-> $?"
mhla measure --clip run data prompts.txt --features run; echo "-> $?"
mhla measure data data --features run --tokenizer x; echo "-> $?"
mhla measure --clip run data prompts.txt; echo "-> $?"
mkdir empty class class/a
mhla measure data --features run; echo "-> $?"
mhla measure data data; echo "-> $?"
mhla measure data data --features run --neighbours 65; echo "-> $?"
mhla measure data data --features run --size 4x4x4; echo "-> $?"
mhla measure data data --features run --resize area; echo "-> $?"
mhla measure data data --features run --dump json; echo "-> $?"
mhla measure data data --features run --split both; echo "-> $?"
mhla measure data data --features data 2>err; echo "-> $?"; sed 's/ Known are .*//' err
mhla measure data data --features nowhere; echo "-> $?"
mhla measure data data --features inception; echo "-> $?"
mhla measure data empty --features run; echo "-> $?"
mhla measure data class --features run; echo "-> $?"
mhla measure data nowhere --features run; echo "-> $?"
mhla measure data json --features run; echo "-> $?"
mhla measure data data --features run --limit 1; echo "-> $?"
