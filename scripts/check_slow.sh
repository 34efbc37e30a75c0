#!/bin/sh
# check_slow.sh [STAGE...]: what takes too long for every change. Without arguments all of them:
#   faults      the n-th call of malloc, write, fsync, .. fails, for every n, under ASan (tests/support/faults.h)
#   asan_clang  all tests with clang's ASan and UBSan
#   tsan        ThreadSanitizer, with our own pthreads (OpenMP's runtime is opaque to it)
#   valgrind    memcheck with the AVX2 kernels (valgrind has no AVX-512)
#   fuzz        every fuzzer for FUZZ_SECONDS (300)
#   conformance our readers of files on test suites that others wrote, which it fetches
#   arm64       cross build, NEON, run under qemu-user
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/stages.sh

build() { # build DIR CMAKE_OPTIONS...
    dir=$1; shift
    cmake -S . -B "$dir" -DCMAKE_BUILD_TYPE=RelWithDebInfo "$@" >/dev/null &&
        env -u MAKEFLAGS -u MAKELEVEL cmake --build "$dir" --parallel "$(nproc)" --target tests
}

tsan() {
    build build-tsan -DMHLA_SANITIZE=thread -DMHLA_OPENMP=OFF &&
        MHLA_TEST_BACKEND=pthreads ctest --test-dir build-tsan --output-on-failure --no-tests=error
}

# Tests honour MHLA_TEST_QUICK by drawing fewer cases: both valgrind and qemu are some 50 times slower than the CPU.
valgrind_all() {
    build build-valgrind -DMHLA_OPENMP=OFF || return 1
    bad=0
    for test in build-valgrind/test_*; do
        log=build-valgrind/valgrind-$(basename "$test").log
        # libjpeg's own SIMD reads beyond its rows, harmlessly, but what follows from it looks uninitialised
        if JSIMD_FORCENONE=1 MHLA_ISA=avx2 MHLA_TEST_QUICK=1 valgrind -q --fair-sched=try --error-exitcode=99 --leak-check=full \
            --errors-for-leak-kinds=definite "$test" >"$log" 2>&1; then
            echo "valgrind: $test passed"
        else
            tail -n 60 "$log"
            echo "valgrind: $test FAILED"
            bad=1
        fi
    done
    return $bad
}

# cmocka for arm64 comes from Debian too, but is only unpacked into build-arm64: with package lists of its own the
# machine needs no foreign architecture.
cmocka_arm64() {
    debs=$PWD/build-arm64/deb
    [ ! -e "$debs/tree/usr/include/cmocka.h" ] || return 0
    echo "unpacking libcmocka for arm64 into build-arm64"
    mkdir -p "$debs/lists/partial" "$debs/cache/archives/partial"
    set -- -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State::Lists="$debs/lists" \
        -o Dir::State::Status=/dev/null -o Dir::Cache="$debs/cache" -o Acquire::Languages=none \
        -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1
    apt-get "$@" update && (cd "$debs" && apt-get "$@" download libcmocka0:arm64 libcmocka-dev:arm64) || return 1
    for deb in "$debs"/*.deb; do dpkg -x "$deb" "$debs/tree" || return 1; done
}

arm64() {
    cmocka_arm64 || return 1
    lib=$PWD/build-arm64/deb/tree/usr
    build build-arm64 -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
        -DMHLA_NN=OFF -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CROSSCOMPILING_EMULATOR="qemu-aarch64;-L;/usr/aarch64-linux-gnu" \
        -DCMOCKA_INCLUDE="$lib/include" -DCMOCKA_LIBRARY="$lib/lib/aarch64-linux-gnu/libcmocka.so" &&
        MHLA_TEST_EMULATOR=qemu-user MHLA_TEST_QUICK=1 ctest --test-dir build-arm64 --output-on-failure --no-tests=error
}

faults() {
    build build-asan -DMHLA_SANITIZE=address,undefined &&
        MHLA_FULL=1 ctest --test-dir build-asan -R '^test_faults' --output-on-failure --no-tests=error
}

for stage in ${*:-faults asan_clang tsan valgrind fuzz conformance arm64}; do
    case $stage in
    faults) stage faults faults ;;
    asan_clang) stage asan_clang make asan CC=clang ;;
    tsan) stage tsan tsan ;;
    valgrind) stage valgrind valgrind_all ;;
    fuzz) stage fuzz scripts/fuzz.sh "${FUZZ_SECONDS:-300}" ;;
    conformance) stage conformance env -u MAKEFLAGS -u MAKELEVEL make conformance ;;
    arm64) stage arm64 arm64 ;;
    *) echo "no such stage: $stage" >&2; exit 2 ;;
    esac
done
stages_end
