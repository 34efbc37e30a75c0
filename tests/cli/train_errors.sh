# What cannot be trained, tested or classified: one sentence, exit code 1 or 2, nothing half written.
. "$CLI/data.inc"
small_data data
mhla train --source nowhere/at/all --out r; echo "-> $?"
mhla train no-such-recipe.toml --out r 2>err; echo "-> $?"; sed 's| or in /.*/share| or in PREFIX/share|' err
mhla train --epoch 3 --out r; echo "-> $?"
mhla train --epochs many --out r; echo "-> $?"
mhla train --out; echo "-> $?"
mhla train --resume r; echo "-> $?"
mhla train --resume r --epochs 3; echo "-> $?"
mhla train --source data --patch 5 --out r; echo "-> $?"
printf 'train.epochz = 3\n' >bad.toml
mhla train bad.toml --out r; echo "-> $?"
ls r 2>/dev/null
mhla eval; echo "-> $?"
mhla eval data 2>err; echo "-> $?"; sed 's/ Known are .*//' err
mhla classify picture.png; echo "-> $?"
mhla info deit_tiny attention=sofmax; echo "-> $?"
mhla info no-such-model; echo "-> $?"
# standard output and error are closed: what would have gone there goes into no file of the run
mhla train --source data $small_model --batch 16 --steps 2 --log.steps 1 --out closed >&- 2>&-; echo "-> $?"
grep -vc '^{' closed/metrics.jsonl; true
