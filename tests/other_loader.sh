#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# other_loader.sh CLINFER DATA: a case of each operation under the loader that LD_LIBRARY_PATH begins with, which is not
# the system's.
set -eu
clinfer=$1 data=$2 want=${LD_LIBRARY_PATH%%:*}/libOpenCL.so.1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
for case in rope_fp8_scaled_partial norm_per_head mla_store_scaled mla_decode_small; do
    rm -f "$dir"/ld.*
    if LD_DEBUG=files LD_DEBUG_OUTPUT=$dir/ld "$clinfer" run "$data/$case.safetensors" >"$dir/out" 2>&1 &&
        grep -q "calling init: $want" "$dir"/ld.*; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $case: $(cat "$dir/out"), loaders: $(grep -h 'calling init: .*libOpenCL' "$dir"/ld.*)"
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
