#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# device_check.sh BUILD_DIR SOURCE_DIR: the folder that tools/device_check.sh makes is complete: it checks and times kernels in
# a root that holds nothing else, ends in time with what it has, says what it left out, and writes nowhere but in itself.
set -eu
build=$1 source=$2
make=$source/tools/device_check.sh
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
passed=0 failed=0
# expect NAME SEEN COMMAND...: COMMAND must succeed.
expect() {
    name=$1 seen=$2
    shift 2
    if "$@" >/dev/null 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $name: $seen"
    fi
}
finish() { echo "$passed passed, $failed failed"; [ $failed = 0 ]; exit; }
# ends STATUS WORDS COMMAND...: with that status and these words in its output.
ends() {
    status=$1 words=$2 code=0
    shift 2
    "$@" >"$root/out" 2>&1 || code=$?
    expect "$*" "status $code, $(cat "$root/out")" eval '[ $code = $status ] && grep -q "$words" "$root/out"'
    rm -f "$root/out"
}

ends 2 usage "$make"
ends 2 usage "$make" make
ends 2 usage "$make" make "$root/check" --frobnicate
ends 1 'build first' "$make" make "$root/check" --build "$root/nothing"
ends 1 'not empty' "$make" make "$source/cl" --build "$build"
mkdir "$root/dev" "$root/proc" "$root/tmp"
if ! "$make" make "$root/check" --with-pocl --build "$build" >"$root/out" 2>&1; then
    if grep -q 'is not installed\|no static program' "$root/out"; then
        echo "skipped: the folder's own PoCL: $(cat "$root/out")"
        finish
    fi
    echo "FAILED make: $(cat "$root/out")"
    failed=$((failed + 1))
    finish
fi
rm "$root/out"
ends 2 usage "$root/check/run.sh" --limit soon
expect "a usage error makes no folder" "$(ls "$root/check")" eval '! ls -d "$root"/check/results-*'

if [ "$(id -u)" != 0 ] || ! unshare -m true 2>/dev/null; then
    echo "skipped: a root without anything else: that wants root and a mount namespace"
    finish
fi
mknod -m 666 "$root/dev/null" c 1 3
mknod -m 666 "$root/dev/zero" c 1 5
mknod -m 444 "$root/dev/urandom" c 1 9
loader=$(cd "$root/check/libc" && ls ld-*)
# inside ARGUMENTS...: run.sh with its own shell and an empty environment; the output is $text, the status $code.
inside() {
    code=0
    text=$(unshare -m sh -c 'mount -t proc proc "$0/proc" && exec env -i "$(command -v chroot)" "$0" "$@"' "$root" \
        "/check/libc/$loader" --library-path /check/libc /check/tools/dash /check/run.sh "$@" 2>&1) || code=$?
}

inside --quick
r=$root/check/results-1
expect "quick" "status $code: $text" [ $code = 0 ]
expect "the check" "$text" grep -q '^{"op":"rms_norm_kv_cache","case":"odd/ragged","variant":"row","ok":true,' "$r/1-pocl-of-this-folder/0/check-rms_norm_kv_cache.jsonl"
expect "the times" "$text" grep -q '"case": "rms_norm_kv_cache/smollm2-9x3x64/bf16/decode1", "median_us": [0-9]' "$r/1-pocl-of-this-folder/0/bench-rms_norm_kv_cache.jsonl"
expect "the steps" "$text" eval '[ "$(grep -c "\"status\":0" "$r/steps.jsonl")" = 2 ]'
expect "the summary" "$text" grep -q '^1 devices, 0 steps wrong, 0 left out' "$r/summary.txt"
expect "nothing outside" "$(ls -A "$root" "$root/tmp" "$root/check")" \
    eval '[ "$(ls -A "$root" | tr "\n" " ")" = "check dev proc tmp " ] && [ -z "$(ls -A "$root/tmp")" ] && [ "$(ls -d "$root"/check/scratch* 2>/dev/null)" = "" ]'

start=$SECONDS
inside --limit 12
r=$root/check/results-2
expect "a limit" "$((SECONDS - start)) s" [ $((SECONDS - start)) -le 20 ]
expect "a limit: nothing wrong" "status $code: $text" [ $code = 0 ]
expect "a limit: stopped" "$text" grep -q '^pocl-of-this-folder/0: stopped after .* s, what it had is kept: check-fused_qk_rope' "$r/summary.txt"
expect "a limit: left out" "$text" grep -q '^pocl-of-this-folder/0: left out, no time: bench-mla_decode_branch' "$r/summary.txt"
expect "a limit: whole lines" "$text" eval '[ -e "$r/1-pocl-of-this-folder/0/check-fused_qk_rope.jsonl" ] && ! grep -hv "^{.*}$" "$r"/1-*/0/*.jsonl'

rm -r "$root/check/pocl"
inside --quick
expect "no driver" "status $code: $text" eval '[ $code = 1 ] && grep -q "no OpenCL device was found with 0 drivers" <<<"$text"'
finish
