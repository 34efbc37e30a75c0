# A disk that becomes full in the middle of a run: one sentence, exit code 1, the last checkpoint stays whole; with space
# again the run goes on to the same bytes. The disk is a small tmpfs in a mount namespace of its own.
. "$CLI/lib.inc"
. "$CLI/data.inc"
if [ -z "${INSIDE:-}" ]; then
    for way in -m -rm; do
        if unshare $way sh -c 'mkdir -p try && mount -t tmpfs -o size=64k none try' 2>/dev/null; then
            INSIDE=1 exec unshare $way sh "$CLI/disk_full.sh"
        fi
    done
    echo "skip: no small tmpfs can be mounted here"
    exit
fi
small_data data
train="mhla train --source $PWD/data $small_model --batch 16 --rate 3e-3 --ema 0.9 --steps 9 --checkpoint.steps 2 --quiet"
$train --out whole >/dev/null 2>&1; echo "-> $?"
one=$(du -sk whole/last/ | cut -f 1)
mkdir disk
mount -t tmpfs -o size=$((one * 5 / 2))k none disk
$train --out disk/run >out 2>err; echo "-> $?"
cat out; sed 's,step-[0-9]*/[a-z.]*,step-N/FILE,' err
ls -A disk/run/checkpoints | grep -c tmp
cat disk/run/last/model.safetensors >/dev/null && mhla info disk/run/last | sed -n 4p
mhla train --resume disk/run --quiet >out 2>err; echo "-> $?"
sed 's,step-[0-9]*/[a-z.]*,step-N/FILE,' err
mount -o remount,size=64m disk
mhla train --resume disk/run --quiet >out 2>err; echo "-> $?"
for file in model ema optimizer; do cmp whole/last/$file.safetensors disk/run/last/$file.safetensors && echo "$file same"; done
echo '--- other verbs on a full disk'
dd if=/dev/zero of=disk/filler bs=1M 2>/dev/null
mhla convert whole disk/copy.safetensors; echo "-> $?"
mhla plot whole --output disk/report.html; echo "-> $?"
ls disk
umount disk
