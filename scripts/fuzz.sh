#!/bin/sh
# fuzz.sh SECONDS: each tests/fuzz/fuzz_*.c for so long, with libFuzzer, ASan and UBSan. What it learns stays in
# build-fuzz/corpus; tests/fuzz/corpus/NAME, where it exists, is where NAME starts from.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
set -eu
case ${1:-} in '' | *[!0-9]*) echo "usage: scripts/fuzz.sh SECONDS" >&2; exit 2 ;; esac
cd "$(dirname "$0")/.."
cmake -S . -B build-fuzz -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMHLA_FUZZ=ON -DMHLA_OPENMP=OFF \
    -DBUILD_TESTING=OFF -DMHLA_SANITIZE=address,undefined >/dev/null
env -u MAKEFLAGS -u MAKELEVEL cmake --build build-fuzz --parallel "$(nproc)" --target fuzzers
for source in tests/fuzz/fuzz_*.c; do
    [ -e "$source" ] || { echo "no fuzzers in tests/fuzz"; exit 0; }
    name=$(basename "$source" .c)
    log=build-fuzz/log/$name
    mkdir -p "build-fuzz/corpus/$name" build-fuzz/log
    seeds=tests/fuzz/corpus/$name
    [ -d "$seeds" ] || seeds=
    echo "fuzz: $name for $1 s"
    "build-fuzz/$name" -max_total_time="$1" -timeout=20 -rss_limit_mb=4096 -artifact_prefix="$log-" -print_final_stats=1 \
        "build-fuzz/corpus/$name" $seeds >"$log" 2>&1 || { tail -n 40 "$log"; exit 1; }
    grep -E 'stat::number_of_executed_units' "$log"
done
