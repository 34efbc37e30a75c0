#!/bin/sh
# setup.sh GROUP: finds what the make target GROUP needs, prints what is missing and installs it from Debian's packages.
# If nothing is missing, it installs nothing. Missing means "does not work", not "is not a package": a cmake from elsewhere
# is as good. Some packages are optional: if they cannot be installed, a note says what will not work.
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
set -eu
missing=
optional=

need() { # need PACKAGES... -- TEST...: unless the test succeeds, the packages are missing
    names=
    while [ "$1" != -- ]; do names="$names $1"; shift; done
    shift
    ("$@") >/dev/null 2>&1 || missing="$missing$names"
}
want() { # as need, but the target works without the packages
    names=
    while [ "$1" != -- ]; do names="$names $1"; shift; done
    shift
    ("$@") >/dev/null 2>&1 || optional="$optional$names"
}
works_mpi() { have mpirun && compiles mpicc mpi.h; }
have() { command -v "$1"; }
compiles() { # compiles COMPILER INCLUDE FLAGS...: a program that includes INCLUDE compiles and links
    compiler=$1 include=$2; shift 2
    printf '#include <stdarg.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <setjmp.h>\n#include <%s>\nint main(void) { return 0; }\n' "$include" |
        "$compiler" -x c - -o /dev/null "$@"
}
cmake_new_enough() { # 3.25 or later
    cmake --version | awk '/^cmake version/ { split($3, v, "."); ok = v[1] > 3 || (v[1] == 3 && v[2] >= 25) } END { exit !ok }'
}

group_build() {
    need gcc libc6-dev -- compiles "${CC:-cc}" stdio.h -fopenmp
    need cmake -- cmake_new_enough
    need pkg-config -- have pkg-config
    need libpng-dev -- compiles "${CC:-cc}" png.h -lpng
    need libjpeg-dev -- compiles "${CC:-cc}" jpeglib.h -ljpeg
    need zlib1g-dev -- compiles "${CC:-cc}" zlib.h -lz
    need libjansson-dev -- compiles "${CC:-cc}" jansson.h -ljansson
    need libpcre2-dev -- compiles "${CC:-cc}" pcre2.h -DPCRE2_CODE_UNIT_WIDTH=8 -lpcre2-8
    need libutf8proc-dev -- compiles "${CC:-cc}" utf8proc.h -lutf8proc
    need libwebp7 -- compiles "${CC:-cc}" stdio.h -l:libwebp.so.7 # likewise loaded
    need liblapack3 -- compiles "${CC:-cc}" stdio.h -l:liblapack.so.3 # loaded at run time, when it is needed
}
group_run() { # what is typed after `make install`
    group_build
    want python3-pip -- python3 -m pip --version # `mhla data smollm2`, cifar10-test and inception
}
group_test() {
    group_build
    need libcmocka-dev -- compiles "${CC:-cc}" cmocka.h -lcmocka
    need python3-pip -- python3 -m pip --version # what `mhla data` uses
    want libopenmpi-dev openmpi-bin -- works_mpi # tests of several processes; without, they are skipped
    want mandoc -- have mandoc                   # the test of scripts/docs.sh, likewise
}
group_python() {
    group_build
    need python3-venv python3-dev -- python3 -c 'import ensurepip, sysconfig, os; assert os.path.exists(sysconfig.get_paths()["include"] + "/Python.h")'
}
group_lint() {
    group_build
    need clang-format -- have clang-format
    need clang-tidy -- have clang-tidy
    need python3 -- have python3
    need g++ -- have c++
}
group_fuzz() {
    group_build
    need clang libclang-rt-14-dev libstdc++-12-dev -- compiles clang stdio.h -fsanitize=address -lstdc++
}
group_conformance() {
    group_build
    need python3 python3-pip -- python3 -m pip --version
}
group_docs() {
    need mandoc -- have mandoc
    need python3 -- have python3
}
group_check_slow() {
    group_test
    group_fuzz
    group_conformance
    need valgrind libc6-dbg -- have valgrind
    need gcc-aarch64-linux-gnu libc6-dev-arm64-cross -- compiles aarch64-linux-gnu-gcc stdio.h -fopenmp
    need qemu-user -- have qemu-aarch64
}

group=${1:-build}
case $group in
build | run | test | python | lint | fuzz | conformance | docs | check-slow) group=group_$(echo "$group" | tr - _) ;;
*) echo "usage: scripts/setup.sh [build|run|test|python|lint|fuzz|conformance|docs|check-slow]" >&2; exit 2 ;;
esac
$group
[ -n "$missing$optional" ] || exit 0

required=$missing
packages=$(printf '%s\n' $missing $optional | sort -u | tr '\n' ' ')
packages=${packages% }
by_hand() {
    if [ -z "$required" ]; then
        echo "mhla: $1; some datasets of \`mhla data\`, or some tests, need $packages: apt-get install $packages" >&2
        exit 0
    fi
    echo "mhla: $1; please install these packages, then try again:" >&2
    echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends $packages" >&2
    exit 1
}
echo "missing here: $packages"
command -v apt-get >/dev/null || by_hand "this is not Debian"
root=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null && sudo -v || by_hand "only root may install, and sudo does not work"
    root=sudo
fi
apt() { $root env DEBIAN_FRONTEND=noninteractive apt-get "$@"; }
echo "installing from Debian's packages ..."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
{ apt update && apt install -y --no-install-recommends $packages; } >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    by_hand "apt-get failed"
}
missing=
optional=
$group
[ -z "$missing" ] || by_hand "still missing after installing (does an older one come first in PATH?):$missing"
