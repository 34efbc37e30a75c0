# A run that somebody else has made, with links in it where training writes and removes: what they point to stays as it is.
. "$CLI/data.inc"
small_data data
mhla train --source data $small_model --batch 16 --steps 2 --out run --quiet >/dev/null 2>&1
mkdir victim; echo precious >victim/file
for name in .tmp-step-00000009 .old-step-00000001 prev-step-00000001 .tmp-step-00000004; do ln -s ../../victim run/checkpoints/$name; done
ln -s ../victim run/.x.0123456789abcdef.mhla-tmp
echo '{"step": 1}' >victim/log; ln -sf ../victim/log run/metrics.jsonl
sed -i 's/"steps": 2/"steps": 4/' run/recipe.json run/last/state.json
mhla train --resume run --quiet >/dev/null; echo "-> $?"
cat victim/file victim/log; ls -A victim run/checkpoints
echo '--- checkpoints'
rm run/metrics.jsonl; touch run/metrics.jsonl
mhla train --resume run --quiet >/dev/null; echo "-> $?"
cat victim/file; ls -A victim run/checkpoints
echo '--- a log that is a link to nothing'
rm -r run; mhla train --source data $small_model --batch 16 --steps 2 --out run --quiet >/dev/null 2>&1
ln -sf ../victim/new run/metrics.jsonl
sed -i 's/"steps": 2/"steps": 4/' run/recipe.json run/last/state.json
mhla train --resume run --quiet; echo "-> $?"
ls -A victim
