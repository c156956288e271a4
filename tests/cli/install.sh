#!/usr/bin/env bash
# What `make install` installs is enough for programs outside: two of the examples are built against the
# installed tree, in a folder of their own, through pkg-config (shared and static) and CMake's find_package,
# and run by the installed launcher.
set -u
bin=$(cd "${ADAPTDL_BIN:-build/release/bin}" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0
ok() { echo "ok - $1"; }
not_ok() { echo "not ok - $1: $2"; tail -n 15 "$tmp/log" 2>/dev/null | sed 's/^/# /'; failed=1; }
# check NAME COMMAND...: that it succeeds
check() {
    local name=$1
    shift
    if "$@" >"$tmp/log" 2>&1; then ok "$name"; else not_ok "$name" "exit $?: $*"; fi
}

DESTDIR=$tmp/stage cmake --install "$bin/.." --prefix /opt/adaptdl >"$tmp/log" 2>&1 || not_ok install "cmake --install"
# Moved away from where it was installed to: nothing in it may name a prefix.
mv "$tmp/stage/opt/adaptdl" "$tmp/at" && prefix=$tmp/at
check nothing_names_the_prefix test -z "$(grep -rlI -e /opt/adaptdl -e "$root" "$prefix" --include=*.pc --include=*.cmake)"
for file in bin/adaptdl bin/adaptdl-sched bin/adaptdl-keeper include/adaptdl/adaptdl.h lib/libadaptdl.so lib/libadaptdl.a \
    lib/libadaptdl-nn.so lib/libadaptdl-nn.a share/man/man1/adaptdl.1 share/bash-completion/completions/adaptdl \
    share/zsh/site-functions/_adaptdl share/fish/vendor_completions.d/adaptdl.fish; do
    [ -s "$prefix/$file" ] || not_ok installed_files "$file is missing"
done
check the_installed_program_runs "$prefix/bin/adaptdl" version
check the_manual_page_is_read man -l "$prefix/share/man/man1/adaptdl.1"

# ---- a lean library: what a training program loads ----
needed=$(ldd "$prefix/lib/libadaptdl.so")
echo "info - libadaptdl.so needs $(wc -l <<<"$needed") objects, libadaptdl-nn.so $(ldd "$prefix/lib/libadaptdl-nn.so" | wc -l)"
if grep -qE 'curl|ldap|krb5|dnnl|OpenCL|gomp|sqlite|microhttpd' <<<"$needed" || [ "$(wc -l <<<"$needed")" -gt 12 ]; then
    echo "$needed" >"$tmp/log"
    not_ok the_library_is_lean "see the list"
else
    ok the_library_is_lean
fi

# ---- programs outside ----
mkdir "$tmp/outside" && cd "$tmp/outside" || exit 1
cp "$root/examples/goodput.c" "$root/examples/mnist.c" "$root/examples/images.h" .
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
# build NAME OUT PACKAGE SOURCE [--static]
build() {
    local flags libs
    flags=$(pkg-config --cflags "$3") libs=$(pkg-config --libs ${5:-} "$3") || return 1
    [ "${5:-}" = --static ] && libs=$(sed -E 's/-ladaptdl(-nn)?\b/-l:libadaptdl\1.a/g' <<<"$libs")
    # shellcheck disable=SC2086
    check "$1" cc -std=c11 -D_GNU_SOURCE -Wall -Werror $flags "$4" -o "$2" $libs -lm "-Wl,-rpath,$prefix/lib"
}
build pkg_config_shared goodput adaptdl goodput.c
check the_shared_program_runs ./goodput
build pkg_config_static goodput-static adaptdl goodput.c --static
check the_static_program_runs env -u LD_LIBRARY_PATH ./goodput-static
! ldd ./goodput-static | grep -q adaptdl && ok static_is_static || not_ok static_is_static "it needs libadaptdl.so"
build pkg_config_nn mnist adaptdl-nn mnist.c
build pkg_config_nn_static mnist-static adaptdl-nn mnist.c --static
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 XDG_RUNTIME_DIR=$tmp
for program in mnist mnist-static; do
    check "${program}_trains" "$prefix/bin/adaptdl" run -n 2 -- "./$program" --examples 200 --epochs 1 --threads 1
    grep -q 'Test set: Average loss' "$tmp/log" || not_ok "${program}_trains" "no result"
done

cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.16)
project(outside C)
find_package(adaptdl 0.1 REQUIRED)
add_executable(goodput goodput.c)
target_link_libraries(goodput adaptdl::adaptdl)
add_executable(mnist mnist.c)
target_compile_definitions(mnist PRIVATE _GNU_SOURCE)
target_link_libraries(mnist adaptdl::adaptdl-nn m)
END
check find_package cmake -S . -B made -DCMAKE_PREFIX_PATH="$prefix"
check find_package_builds cmake --build made
check find_package_runs made/goodput
cmp -s <(made/goodput) <(./goodput-static) && ok all_ways_give_the_same || not_ok all_ways_give_the_same "the output differs"
sed -i 's/find_package(adaptdl 0.1/find_package(adaptdl 7.0/' CMakeLists.txt
cmake -S . -B other -DCMAKE_PREFIX_PATH="$prefix" >"$tmp/log" 2>&1
[ $? -ne 0 ] && grep -q 'version: 0' "$tmp/log" && ok another_version_is_refused || not_ok another_version_is_refused "it was taken"
exit $failed
