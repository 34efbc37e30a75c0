# Several processes that are stopped, killed, or do not fit together: all end, with one sentence; the run resumes with any number.
. "$CLI/data.inc"
. "$CLI/ranks.inc"
small_data data 64
long="mhla train --source data $small_model --batch 16 --steps 3000 --rate 3e-3 --ema 0.9 --log.steps 1 --eval.epochs 0 --parts 8
    --checkpoint.steps 100 --quiet"
pid_of() { # RANK: the process of this case
    for p in $(pgrep -x mhla); do
        [ "$(readlink "/proc/$p/cwd")" = "$PWD" ] || continue
        tr '\0' '\n' 2>/dev/null <"/proc/$p/environ" | grep -q "^OMPI_COMM_WORLD_RANK=$1$" && echo "$p"
    done
}
until_signal() { # SIGNAL RANK COMMAND..: sent to that rank after some more lines of the log
    signal=$1 rank=$2; shift 2
    before=$(lines)
    "$@" >log 2>&1 & run=$!
    while [ "$(lines)" -lt $((before + 25)) ] && kill -0 $run 2>/dev/null; do sleep 0.05; done
    begin=$(date +%s)
    kill -"$signal" "$(pid_of "$rank")" && wait $run
    code=$?
    [ $(($(date +%s) - begin)) -le 10 ] || echo 'they took longer than 10 seconds'
    for i in $(seq 50); do [ -n "$(pid_of 0)$(pid_of 1)" ] || break; sleep 0.1; done
    [ -z "$(pid_of 0)$(pid_of 1)" ] || echo 'some are still there'
    [ $code -ne 0 ] && echo 'ended'
}
lines() { if [ -e run/metrics.jsonl ]; then wc -l <run/metrics.jsonl; else echo 0; fi; }
told() { own <log | grep -a 'mhla: \|^Stopp' | sed 's/([^)]*)/(HOST)/; s/for [0-9]* s/for N s/'; }
echo '# stopped with 4 ranks, killed with 2, a rank 0 killed with 3, a hanging one with 2; resumed by one: the bytes of one'
$long --out whole
until_signal TERM 1 ranks 4 $long --out run; told
until_signal KILL 1 ranks 2 mhla train --resume run --quiet; told
until_signal KILL 0 ranks 3 mhla train --resume run --quiet; told
until_signal STOP 1 ranks 2 mhla train --resume run --quiet; told
for p in $(pid_of 1); do kill -KILL "$p"; done
mhla train --resume run --quiet
same whole run
echo '# mpirun itself is killed'
rm -rf run
ranks 2 true; mpirun -n 2 $long --steps 40000 --out run >/dev/null 2>&1 & run=$!
while [ "$(lines)" -lt 5 ]; do sleep 0.05; done
kill -KILL $run; wait $run 2>/dev/null
for i in $(seq 100); do [ -n "$(pid_of 0)$(pid_of 1)" ] || break; sleep 0.1; done
[ -z "$(pid_of 0)$(pid_of 1)" ] && echo 'all have ended'
echo '# what does not fit together'
short="mhla train --source data $small_model --batch 16 --steps 1 --quiet"
say() { own | grep -a '^mhla' | sed 's/SHA-256 [0-9a-f]*../SHA-256 ../; s/([0-9a-f]*..)/(..)/; s/ on [^ ]* (/ on HOST (/g; s|in /[^ ]*/|in /../|g'; }
ranks 3 $short --parts 2 --out no 2>&1 | say
$short --out old >/dev/null; ranks 2 mhla train --resume old 2>&1 | say
mpirun -n 1 $short --out no : -n 1 $short --out no --rate 2e-3 2>&1 | say
cp -r data other; printf '\377' | dd of=other/train-images-idx3-ubyte bs=1 seek=30 conv=notrunc 2>/dev/null
mpirun -n 1 $short --out no : -n 1 $short --source other --out no 2>&1 | say
mpirun -n 1 $short --out no : -n 1 mhla train --bogus 1 2>&1 | say
ranks 3 mhla train nothing.toml 2>&1 | say | sed 's/ or in .*//'
ranks 3 mhla train --resume nothing 2>&1 | say
ranks 2 mhla info 2>&1 | say
ls no 2>&1
echo '# launchers whose processes do not find one another: never N runs in one folder'
alone() { sed 's/Open MPI v*[0-9.]*/Open MPI/g; s/([^)]*)/(..)/; s/opened: .*\. Was/opened. Was/; s|^\(mhla [^:]*: [^:]*: \)/[^ ]*/|\1/../|'; }
OMPI_COMM_WORLD_SIZE=4 $short --out no 2>&1 | alone
OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=1 $short --out no; echo "-> $?"
SLURM_PROCID=0 SLURM_NTASKS=4 $short --out no 2>&1 | alone
MHLA_MPI_PLUGIN=/nowhere/mhla-mpi.so ranks 2 $short --out no 2>&1 | say | alone
ls no 2>&1
MHLA_LAUNCHER=none SLURM_PROCID=0 SLURM_NTASKS=4 $short --out no
