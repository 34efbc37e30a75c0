#!/bin/sh
# lint.sh [CHECK...]: format, include direction, the public headers in strict C and C++, scripts, clang-tidy (format, includes,
# header, scripts, tidy). All of it runs; fails if anything complained. `make format` mends the first.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
cd "$(dirname "$0")/.." || exit 1
failed=
check() { # check NAME COMMAND...
    name=$1; shift
    if "$@"; then echo "lint: $name ok"; else echo "lint: $name FAILED"; failed="$failed $name"; fi
}
sources() { find src cli tests bench examples python -name '*.[ch]' 2>/dev/null | sort; }

format() { clang-format --dry-run --Werror $(sources); }
header() {
    for file in include/mhla/*.h; do
        cc -std=c11 -pedantic -Wall -Wextra -Werror -fsyntax-only -Iinclude -x c "$file" &&
            c++ -std=c++11 -pedantic -Wall -Wextra -Werror -fsyntax-only -Iinclude -x c++ "$file" || return 1
    done
}
scripts() {
    for script in scripts/*.sh tests/*.sh .ci/run; do
        case $(head -n 1 "$script") in *bash*) bash -n "$script" ;; *) sh -n "$script" ;; esac || return 1
    done
    python3 - <<'END'
import pathlib
for path in (p for d in ("scripts", "tests", "python", "bench", "examples") for p in pathlib.Path(d).rglob("*.py")):
    compile(path.read_text(), str(path), "exec")
END
}
tidy() { # without OpenMP, whose header clang may not have; kernels once, as the plain ISA compiles them
    cmake -S . -B build-lint -DMHLA_OPENMP=OFF >/dev/null || return 1
    python3 - <<'END'
import json
path = "build-lint/compile_commands.json"
rows = json.load(open(path))
json.dump([r for r in rows if "-DMHLA_ISA=" not in r["command"] or "-DMHLA_ISA=plain" in r["command"]], open(path, "w"))
END
    find src cli -name '*.c' | sort | xargs -P "$(nproc)" -n 1 clang-tidy -p build-lint --quiet 2>build-lint/tidy.log ||
        { grep -v 'warnings\? generated' build-lint/tidy.log; return 1; }
}

for name in ${*:-format includes header scripts tidy}; do
    case $name in
    includes) check includes python3 scripts/check_includes.py ;;
    format | header | scripts | tidy) check "$name" "$name" ;;
    *) echo "lint.sh: no check $name: there are format, includes, header, scripts, tidy" >&2; exit 2 ;;
    esac
done
[ -z "$failed" ] || { echo "lint failed:$failed"; exit 1; }
