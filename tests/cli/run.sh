#!/bin/sh
# run.sh PROGRAM [NAME...]: every tests/cli/NAME.sh runs with `mhla` in its path; what it prints on both streams, then its
# exit code, must be expected/NAME.txt; a line "skip: why" leaves it out. UPDATE=1 writes that file instead of comparing.
set -u
here=$(cd "$(dirname "$0")" && pwd)
program=$1; shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
ln -s "$(cd "$(dirname "$program")" && pwd)/$(basename "$program")" "$work/bin/mhla"
PATH=$work/bin:$PATH
CLI=$here
export PATH CLI
unset MHLA_ISA BENCH_SECONDS
[ $# -gt 0 ] || set -- $(cd "$here" && ls ./*.sh | sed 's|^\./||; s|\.sh$||' | grep -v '^run$')
failed=0
for name; do
    rm -rf "$work/cwd"; mkdir "$work/cwd"
    (cd "$work/cwd" && sh "$here/$name.sh"; echo "exit $?") 2>&1 | # a new dataset changes one case, not every one
        sed 's/known datasets: .*/known datasets: .../' >"$work/got"
    if grep -q '^skip: ' "$work/got"; then # what this machine does not allow, said by the case itself
        echo "cli: $name skipped: $(sed -n 's/^skip: //p' "$work/got")"
        continue
    fi
    if [ -n "${UPDATE:-}" ]; then cp "$work/got" "$here/expected/$name.txt"; fi
    if diff -u "$here/expected/$name.txt" "$work/got" >"$work/diff"; then
        echo "cli: $name ok"
    else
        echo "cli: $name FAILED"
        cat "$work/diff"
        failed=$((failed + 1))
    fi
done
[ "$failed" -eq 0 ]
