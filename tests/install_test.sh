#!/bin/sh
# install_test.sh BUILD_DIR: what `make install` leaves is enough for a program that has never seen this tree, by
# pkg-config (shared, static) and by find_package (both). Also: the libraries show no name but mhla_*.
set -eu
build=$1
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
cc=${CC:-cc}

make -C "$root" install BUILD="$build" PREFIX="$prefix" DESTDIR= >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
for file in include/mhla/mhla.h include/mhla/nn.h share/man/man1/mhla.1 share/man/man3/mhla.3; do
    [ -f "$prefix/$file" ] || { echo "not installed: $file"; exit 1; }
done

mkdir "$work/user" && cd "$work/user"
# every recipe is found by its name, far from the tree; only its data is missing
for recipe in "$root"/recipes/*.toml; do
    name=$(basename "$recipe" .toml)
    said=$("$prefix/bin/mhla" train "$name" --source no/such/data --out run 2>&1) && { echo "mhla train $name works without data"; exit 1; }
    case $said in *no/such/data*) ;; *) echo "mhla train $name: $said"; exit 1 ;; esac
done
said=$("$prefix/bin/mhla" train no-such-recipe 2>&1) && { echo "mhla train no-such-recipe works"; exit 1; }
case $said in *"known recipes: "*fashion-mnist*) ;; *) echo "no known recipes are listed: $said"; exit 1 ;; esac
cat >mean.c <<'END'
#include <mhla/mhla.h>
#include <stdio.h>

int main(void) {
    float q[2] = {1, 1}, k[2] = {1, 1}, v[2] = {1, 3}, mix[1] = {1}, o[2];
    int grid[1] = {2}, blocks[1] = {1};
    if (mhla_attention(o, q, k, v, mix, 1, 2, 1, 1, 1, 1, grid, blocks) != MHLA_OK)
        return puts(mhla_message()), 1;
    printf("mhla %s: %.3f %.3f\n", mhla_version(), o[0], o[1]);
}
END
cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(mhla 0.2 REQUIRED)
add_executable(by_cmake mean.c)
target_link_libraries(by_cmake mhla::mhla)
add_executable(by_cmake_static mean.c)
target_link_libraries(by_cmake_static mhla::static)
END
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name mhla.pc)")
libdir=$(dirname "$PKG_CONFIG_PATH")
export PKG_CONFIG_PATH
$cc mean.c -o by_pkgconfig $(pkg-config --cflags --libs mhla) -Wl,-rpath,"$libdir"
awk '/^```/ { inside = $0 == "```c"; next } inside' "$root/README.md" >readme.c # as it is printed there
$cc readme.c -o readme $(pkg-config --cflags --libs mhla) -Wl,-rpath,"$libdir"
./readme | grep '^o\[0\] = -*[0-9]' || { echo "the README's program in C does not print o[0]"; exit 1; }
$cc mean.c -o by_pkgconfig_static $(pkg-config --cflags mhla) "$libdir/libmhla.a" \
    $(pkg-config --static --libs mhla | sed 's/-lmhla//')
{ cmake -S . -B . -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" && cmake --build .; } >cmake.log 2>&1 || { cat cmake.log; exit 1; }

version=$(pkg-config --modversion mhla)
for program in by_pkgconfig by_pkgconfig_static by_cmake by_cmake_static; do
    output=$(./$program)
    echo "$program: $output"
    [ "$output" = "mhla $version: 2.000 2.000" ] || { echo "expected: mhla $version: 2.000 2.000"; exit 1; }
done

# libmhla-nn, which is static only.
cat >model.c <<'END'
#include <mhla/nn.h>
#include <stdio.h>

int main(void) {
    const char *settings[] = {"classes=10"};
    mhla_model *model;
    mhla_model_info info = {.size = sizeof info};
    if (mhla_model_create(&model, "deit_nano", settings, 1, 0) || mhla_model_query(model, &info))
        return puts(mhla_message()), 1;
    printf("%s: %lld parameters\n", info.name, (long long)info.parameters);
    mhla_model_free(model);
}
END
$cc -Wall -Werror model.c -o model $(pkg-config --cflags --libs mhla-nn)
./model | grep '^deit_nano: [0-9]* parameters$' || { echo "a program with a model printed: $(./model)"; exit 1; }

# The examples, with what is installed and nothing else.
for source in "$root"/examples/*.c; do
    name=$(basename "$source" .c)
    $cc -std=c11 -Wall -Wextra -Werror "$source" -o "$name" $(pkg-config --cflags --libs mhla-nn) -lm
    ./"$name" >"$name.out" || { echo "examples/$name.c failed:"; cat "$name.out"; exit 1; }
done

# The README's program, as printed there.
sed -n '/^```c$/,/^```$/p' "$root/README.md" | sed '/^```/d' >readme.c
$cc -Wall -Werror readme.c -o readme $(pkg-config --cflags --libs mhla) -Wl,-rpath,"$libdir"
./readme | grep -q '^o\[0\] = -\{0,1\}[0-9]' || { echo "the README's program printed: $(./readme)"; exit 1; }

strangers=$({ nm -D --defined-only "$libdir/libmhla.so"; nm -g --defined-only "$libdir/libmhla.a" "$libdir/libmhla-nn.a"; } |
    awk 'NF == 3 && $2 != "A" && $3 !~ /^mhla_/ { print $3 }')
[ -z "$strangers" ] || { echo "names without the prefix mhla_:" $strangers; exit 1; }
needed=$(objdump -p "$libdir/libmhla.so" | awk '$1 == "NEEDED" && $2 !~ /^(libc|libm|libpthread|libgomp|libomp|ld-linux.*)\.so/ { print $2 }')
[ -z "$needed" ] || { echo "libmhla needs more than libc, libm and OpenMP:" $needed; exit 1; }
