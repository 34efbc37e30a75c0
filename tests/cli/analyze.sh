# Attention looked into: fresh classifiers of every attention side by side, a run, a diffusion model, a language model; files
# that it writes; what it refuses. (What the numbers are is tested in tests/analysis/test_matrix.c and test_look.c.)
. "$CLI/lib.inc"
. "$CLI/data.inc"
. "$CLI/lm.inc"
. "$CLI/dit.inc"
plain() { figures | sed 's/; .* for the SVD/; TIME/'; }
small_data data
size=image=8,8,channels=1,padding=0,0,patch=2,dim=16,depth=2,classes=4
mhla analyze --help
mhla analyze -m deit_nano,$size --data data --samples 6 --token 5 --layer 1 | plain; echo "-> $?"

echo "# seven attentions, all files"
models=
for kind in softmax linear mhla focused inline mala rala; do models="$models -m deit_nano,attention=$kind,$size"; done
mhla analyze $models --data data --samples 3 --out out --dump dump --layer 0 --head 1 >text; echo "-> $?"
grep -c '^  mean' text
sed -n 's/: deit_nano.*//p' text
tail -n 3 text | figures
json <out/analysis.json | awk '$1 ~ /attention$/ && $1 !~ /by_head/ { print $2 }'
json <out/analysis.json | positive 'effective_rank$'
awk -F, '{ print NF }' out/analysis.csv | sort | uniq -c | sed 's/^ *//'
grep -c '^<figure class="look"' out/report.html
grep -c 'https*:\|<script src\|<link' out/report.html
grep -A 1 keydown out/report.html | grep -c ctrlKey # shortcuts of the browser stay its own
find dump -type f | sort | sed 4q; find dump -type f | wc -l | tr -d ' '

echo "# a run: what it was trained on"
mhla train --source data $small_model --batch 16 --steps 20 --out run --quiet >/dev/null || exit
mhla analyze run --no-rank --samples 4 --json run.json | plain; echo "-> $?"
json <run.json | grep -E '^models.0.(name|data|attention|samples|rank_samples) |0.shares_before.own|by_head.0.rank '

odd=$(printf 'r\377un') # no UTF-8: U+FFFD in files of text
cp -r run "$odd"
mhla analyze "$odd" --no-rank --samples 1 --json odd.json --csv odd.csv >/dev/null; echo "-> $?"
json <odd.json | grep '^models.0.name '; sed -n '2s/,.*//p' odd.csv

echo "# a diffusion model, a language model"
small_dit dit
mhla analyze dit --data data --samples 2 --time 300 --html dit.html | plain; echo "-> $?"
small_lm lm
mhla analyze lm --data text.txt --samples 2 --window 40 --html lm.html --json lm.json | plain; echo "-> $?"
json <lm.json | grep -c 'loss_by_position[.]'
mhla analyze lm_micro --data text.txt --samples 1 --window 16 --rows 4 >text; echo "-> $?"
grep rows text
mhla analyze lm_micro,attention=softmax lm_micro --data text.txt --samples 1 --window 32 | grep -o 'tokens in .*'; echo "-> $?"
mhla analyze lm_micro,attention=softmax,max_position_embeddings=8 --data text.txt --samples 1 --window 16 2>&1 | grep -c "longer than the 8"

echo "# refused"
mhla analyze; echo "-> $?"
mhla analyze nowhere; echo "-> $?"
mhla analyze deit_nano; echo "-> $?"
mhla analyze deit_nano,attention=none --data data; echo "-> $?"
mhla analyze deit_nano --data nowhere; echo "-> $?"
mhla analyze run --layer 2; echo "-> $?"
mhla analyze run --head 9; echo "-> $?"
mhla analyze run --image 24; echo "-> $?"
mhla analyze run --token 16 --samples 1 >text; echo "-> $?"
mhla analyze run --samples 0; echo "-> $?"
mhla analyze run --split both; echo "-> $?"
mhla analyze run --no-rank --rank-samples 3; echo "-> $?"
mhla analyze run --html page.txt; echo "-> $?"
mhla analyze run --csv no/where.csv; echo "-> $?"
mhla analyze run --out text/below; echo "-> $?"
mhla analyze run --out text; echo "-> $?"
mhla analyze run --time 300; echo "-> $?"
mhla analyze run --window 16; echo "-> $?"
mhla analyze lm --data out/report.html --time 300; echo "-> $?"
mhla analyze deit_nano,image=256,256,patch=2,channels=1 --data data; echo "-> $?"
mhla analyze lm --data data; echo "-> $?"
mhla analyze lm --data out/report.html --window 300; echo "-> $?"
printf 'a\377b\n' >latin; mhla analyze lm --data latin; echo "-> $?"
: >empty; mhla analyze lm --data empty; echo "-> $?"
ls page.txt 2>/dev/null
exit 0
