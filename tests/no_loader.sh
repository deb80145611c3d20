#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# no_loader.sh CLINFER: without an OpenCL loader the command starts, says so, and does what needs no device.
set -eu
clinfer=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# Files that are no libraries, where the dynamic linker looks first.
echo no library >"$dir/libOpenCL.so.1"
echo no library >"$dir/libOpenCL.so"
passed=0 failed=0
# expect STATUS TEXT ARGUMENTS...
expect() {
    status=$1 text=$2
    shift 2
    code=0
    LD_LIBRARY_PATH=$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} CLINFER_CACHE_DIR=$dir/cache "$clinfer" "$@" >"$dir/out" 2>&1 || code=$?
    if [ $code = "$status" ] && grep -q "$text" "$dir/out"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED clinfer $*: status $code, $(cat "$dir/out")"
    fi
}
expect 1 'no OpenCL loader: libOpenCL.so.1' info
expect 1 'no OpenCL loader: libOpenCL.so.1' bench --filter rope
expect 1 'no OpenCL loader: libOpenCL.so.1' run "$2/rope_bf16_freqs.safetensors"
expect 0 "$dir/cache" cache path
expect 0 '0 programs' cache list
expect 0 'clinfer 0' --version
echo "$passed passed, $failed failed"
[ $failed = 0 ]
