#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# no_clblast.sh CLINFER DATA: where no CLBlast is installed own kernels serve, and forcing it is an error that says so.
set -eu
clinfer=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# A file that is no library, where the dynamic linker looks first.
echo no library >"$dir/libclblast.so.1"
passed=0 failed=0
# expect STATUS TEXT ARGUMENTS...
expect() {
    status=$1 text=$2
    shift 2
    code=0
    LD_LIBRARY_PATH=$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} CLINFER_LOG=info "$clinfer" "$@" >"$dir/out" 2>&1 || code=$?
    if { [ "$status" = any ] || [ $code = "$status" ]; } && [ "$(grep -c "$text" "$dir/out")" = 1 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED clinfer $*: status $code, $(cat "$dir/out")"
    fi
}
case=$2/mla_decode_f32_weights.safetensors
expect 1 '^clinfer: no CLBlast: ' run "$case" --gemm clblast
expect 0 '^output .* ok$' run "$case" --gemm own
expect 0 '^output .* ok$' run "$case"
expect any 'info: no CLBlast, own kernels serve: ' run "$case" --set group # said once, whatever the set has
expect 2 'usage: clinfer run ' run "$case" --gemm best
echo "$passed passed, $failed failed"
[ $failed = 0 ]
