# Small runs by hand: whole, killed in the middle of a line, none at all.
put() { # put FILE HEADER DATA: header of less than 256 bytes
    printf "\\$(printf %03o ${#2})\\0\\0\\0\\0\\0\\0\\0%s$3" "$2" >"$1"
}
mkdir plots; cd plots || exit 1
mkdir -p one/checkpoints/step-00000020 two empty
echo '{"data": {"source": "made up"}, "train": {"init": ""}}' >one/recipe.json
cat >one/metrics.jsonl <<END
{"kind":"step","step":10,"epoch":0.5,"loss":2.25,"rate":0.001,"images_per_second":250}
{"kind":"test","step":20,"epoch":1,"images":100,"loss":1.5,"accuracy":0.4375,"classes":[0.25,0.625]}
END
echo '{"model": "deit_nano", "attention": "mhla", "blocks": [2, 1], "mix": "uniform", "class_names": ["<cat>", "dog"]}' \
    >one/checkpoints/step-00000020/config.json
put one/checkpoints/step-00000020/model.safetensors \
    '{"blocks.0.attn.piece_attn.conv.weight":{"dtype":"F32","shape":[2,2,1,1],"data_offsets":[0,16]}}' \
    '\0\0\200\77\0\0\0\0\0\0\0\0\0\0\200\77'
printf '{"kind":"step","step":10,"epoch":0.5,"loss":2}\nnonsense\n{"kind":"test","step":20,"epoch":1,"accuracy":0.5}\n{"kind":"st' \
    >two/metrics.jsonl
mhla plot one; echo "-> $?"
grep -o '43.75&nbsp;%\|&lt;cat&gt;\|data:image/png\|before training' one/report.html | sort | uniq -c | sed 's/^ *//'
grep -c 'https*:\|<script src\|<link' one/report.html
mhla plot two/; echo "-> $?"
mhla plot one two; echo "-> $?"
grep -o '<h1>.*</h1>' report.html
mhla plot one two --output both.html; echo "-> $?"
cmp report.html both.html && echo "the same bytes"
echo "failures:"
mhla plot; echo "-> $?"
mhla plot empty; echo "-> $?"
mhla plot nowhere; echo "-> $?"
mhla plot one/recipe.json; echo "-> $?"
mhla plot one empty --output none.html; echo "-> $?"
mhla plot one --output no/where.html 2>&1
mhla plot one --out x.html; echo "-> $?"
ls . empty
