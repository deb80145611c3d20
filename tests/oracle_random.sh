#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# oracle_random.sh CLINFER ORACLE_DIR SEED N: N cases of random shapes, judged by the oracle. It wants numpy and ml_dtypes,
# from a venv under the user's cache folder, which is made where it can be; exit status 77 (skipped) where not.
set -eu
clinfer=$1 oracle=$2 seed=$3 n=$4
venv=${XDG_CACHE_HOME:-$HOME/.cache}/clinfer-oracle
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
if ! "$venv/bin/python" -c 'import numpy, ml_dtypes' 2>/dev/null; then
    python3 -m venv "$venv" >"$dir/log" 2>&1 && "$venv/bin/pip" install -q numpy ml_dtypes >>"$dir/log" 2>&1 || {
        echo "SKIPPED: no numpy and ml_dtypes: $(tail -n 1 "$dir/log")"
        exit 77
    }
fi
"$venv/bin/python" "$oracle/make_cases.py" "$dir" "$seed" --random "$n" >/dev/null
passed=0 failed=0
for case in "$dir"/*.safetensors; do
    if "$clinfer" run "$case" >"$dir/out" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $(basename "$case"), seed $seed: $(cat "$dir/out")"
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed = "$n" ]
