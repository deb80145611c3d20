#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a folder that checks and times the kernels on a machine where nothing can be installed: see docs/device-check.md.
set -eu
usage="usage: tools/device_check.sh make DIR [--with-pocl] [--build BUILD]"
fail() { echo "device_check.sh: $*" >&2; exit 1; }
bad_usage() { echo "$usage" >&2; exit 2; }

source=$(cd "$(dirname "$0")/.." && pwd)
build=$source/build dir='' pocl=false
[ "${1:-}" = make ] || bad_usage
shift
while [ $# -gt 0 ]; do
    case $1 in
    --with-pocl) pocl=true ;;
    --build) [ $# -gt 1 ] || bad_usage; build=$2; shift ;;
    -*) bad_usage ;;
    *) [ -z "$dir" ] || bad_usage; dir=$1 ;;
    esac
    shift
done
[ -n "$dir" ] || bad_usage
[ -x "$build/tools/clinfer" ] || fail "there is no $build/tools/clinfer: build first (meson setup build && ninja -C build)"
! [ -e "$dir" ] || [ -z "$(ls -A "$dir")" ] || fail "$dir exists and is not empty"

# The C library goes apart: a machine's own is better company for its drivers where it is new enough.
is_libc() {
    case ${1##*/} in
    ld-linux*|ld64*|libc.so*|libm.so*|libmvec.so*|libdl.so*|libpthread.so*|librt.so*|libresolv.so*|libutil.so*|libanl.so*) return 0 ;;
    esac
    return 1
}

copy() { cp -L "$1" "$2" || fail "$1 cannot be copied to $2"; }

# bundle PROGRAM FOLDER: every library that PROGRAM loads, into FOLDER or libc/. Plugins of PoCL load each other.
bundle() {
    LD_LIBRARY_PATH=$(dirname "$1") ldd "$1" >"$dir/ldd" || fail "ldd $1 says: $(cat "$dir/ldd")"
    ! grep -q 'not found' "$dir/ldd" || fail "$1 lacks a library: $(grep 'not found' "$dir/ldd")"
    grep -o '/[^ ]*' "$dir/ldd" | grep -v ':$' | while read -r lib; do
        if is_libc "$lib"; then
            copy "$lib" "$dir/libc/"
        elif ! [ -e "$2/${lib##*/}" ] && ! [ -e "$2/pocl/${lib##*/}" ]; then
            copy "$lib" "$2/"
        fi
    done
    rm "$dir/ldd"
}

# library NAME: where the dynamic linker finds it.
library() {
    case $1 in
    /*) echo "$1" ;;
    *) /sbin/ldconfig -p | sed -n "s|.*[[:space:]]${1//./\\.} .* => ||p" | head -1 ;;
    esac
}

take_program() { # PROGRAM FOLDER LIBRARIES
    copy "$1" "$2/"
    bundle "$1" "$3"
}

# PoCL finds its files from the place of its library, and calls a linker, which would look for crt files and
# libraries: the one here wraps it (tools/device_check_ld.c).
take_pocl() {
    local lib=$dir/pocl/lib/here from plugin
    from=$(library libpocl.so.2)
    [ -n "$from" ] || fail "--with-pocl: libpocl.so.2 is not installed"
    mkdir -p "$lib/pocl" "$dir/pocl/share" "$dir/pocl/bin"
    take_program "$from" "$lib" "$lib"
    for plugin in "$(dirname "$from")"/pocl/*.so; do
        take_program "$plugin" "$lib/pocl" "$lib"
    done
    cp -rL "$(dirname "$from")/../../share/pocl" "$dir/pocl/share/pocl" || fail "PoCL's files cannot be copied"
    copy "$(command -v ld)" "$dir/pocl/bin/ld.real"
    bundle "$(command -v ld)" "$lib"
    ${CC:-cc} -O1 -static -o "$dir/pocl/bin/ld" "$source/tools/device_check_ld.c" ||
        fail "--with-pocl: no static program can be built (libc.a is in libc6-dev)"
}

# All of it, or nothing.
complete=false
trap '$complete || rm -rf "${dir:?}"/*' EXIT
mkdir -p "$dir"/bin "$dir"/lib "$dir"/libc "$dir"/testlib "$dir"/tools/lib "$dir"/cases
take_program "$build/tools/clinfer" "$dir/bin" "$dir/lib"
loader=$(library libOpenCL.so.1)
[ -n "$loader" ] || fail "the OpenCL loader, libOpenCL.so.1, is not installed"
take_program "$loader" "$dir/lib" "$dir/lib"
for test in test_formats test_cases; do
    if [ -x "$build/tests/$test" ]; then
        take_program "$build/tests/$test" "$dir/bin" "$dir/testlib"
    else
        echo "left out: $test, which is not built"
    fi
done
for tool in dash timeout mkdir rm date; do
    command -v $tool >/dev/null || fail "there is no $tool here, which the folder needs"
    take_program "$(command -v $tool)" "$dir/tools" "$dir/tools/lib"
done
for lib in libdl.so.2 libpthread.so.0 librt.so.1; do # drivers built against an older C library load these
    copy "$(library $lib)" "$dir/libc/"
done
if $pocl; then
    take_pocl
fi
copy "$source/tools/device_check_run.sh" "$dir/run.sh"
cp "$source"/tests/data/*.safetensors "$dir/cases/"
cp -r "$source/cl" "$dir/cl"
sed -n "s/^ops = \[\(.*\)\]/\1/p" "$source/meson.build" | tr -d "',\"" >"$dir/ops"
[ -s "$dir/ops" ] || fail "meson.build names no operations"
chmod +x "$dir/run.sh"
complete=true
echo "$dir: $(du -sh "$dir" | cut -f1), run.sh in it does the rest"
