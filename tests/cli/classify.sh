# Pictures from a file, a folder and standard input; broken and missing ones are told and passed over.
. "$CLI/lib.inc"
. "$CLI/data.inc"
small_data data
mhla train --source data $small_model --batch 16 --steps 60 --rate 3e-3 --out run --quiet >/dev/null || exit
mkdir pictures
base64 -d >pictures/a.png <<END
iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAGUlEQVR42mPUYIAAJgacDMZLDAwMYfjVAAA0nAFfFOStxgAAAABJRU5ErkJggg==
END
head -c 60 pictures/a.png >pictures/broken.png
echo none >pictures/notes.txt
mhla classify pictures/a.png --model run --top 2 | figures; echo "-> $?"
mhla classify pictures --model run --top 1 >out 2>err; echo "-> $?"
grep -c '%' out; sed -E 's/: [^:]*$/: .../' err
mhla classify - --model run --json <pictures/a.png >json; echo "-> $?"
json <json | grep -c probability
json <json | positive 'probability$'
mhla classify nowhere.png --model run; echo "-> $?"
: >empty.png
mhla classify empty.png --model run 2>err; echo "-> $?"; wc -l <err
mkdir void
mhla classify void --model run; echo "-> $?"
mhla classify - --model run </dev/null 2>err; echo "-> $?"; wc -l <err
echo '-- dtypes'
for dtype in float32 bfloat16 q8_0; do mhla classify pictures/a.png --model run --top 1 --dtype $dtype | figures; done
mhla classify pictures/a.png --model run --dtype int3; echo "-> $?"
mhla eval run data --dtype bfloat16 | figures | grep -v weights
mhla eval run data --dtype all --weights raw | figures | sed 's/^weights .*/weights/'
mhla eval run data --dtype all --json | json | grep dtype | sed -E 's/[0-9.e-]+$/N/'
