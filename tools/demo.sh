#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and runs tensors of a real language model through the library on PoCL, once
# with an empty program cache and once with the compiled programs on disk; then a decode loop over the page pool on every
# OpenCL device that is installed; then texts of a small language model.
if [ $# -gt 0 ]; then
    echo "usage: tools/demo.sh" >&2
    exit 2
fi
. "$(dirname "$0")/setup.sh"

need_packages $build_packages
need_build build
clinfer=$root/build/tools/clinfer

# The driver keeps a cache of its own; both are emptied so that the first pass is a first start, and the
# driver's again so that the second shows what this library kept.
export CLINFER_CACHE_DIR=$root/build/demo-cache POCL_CACHE_DIR=$root/build/demo-pocl CLINFER_DEVICE=${CLINFER_DEVICE:-cpu}
rm -rf "$CLINFER_CACHE_DIR"

say "the devices here"
mkdir -p "$POCL_CACHE_DIR"
"$clinfer" info

pass() {
    rm -rf "$POCL_CACHE_DIR"
    mkdir -p "$POCL_CACHE_DIR"
    for case in "$root"/tests/data/smollm2_*.safetensors; do
        name=$(basename "$case" .safetensors)
        start=$(date +%s%N)
        "$clinfer" run "$case" >"$root/build/demo.log" 2>&1 || { cat "$root/build/demo.log"; say "$name: FAILED"; exit 1; }
        ms=$((($(date +%s%N) - start) / 1000000))
        sed 's/^/   /' "$root/build/demo.log"
        printf '%-30s %6d ms for the whole process: compile or load, run, check, store\n' "$name" "$ms"
    done
}
say "SmolLM2-135M, cold start: every kernel is compiled (layer 9's RoPE; layer 17's attention as MLA, fp8 weights)"
pass
say "the same, warm start: compiled kernels come from disk"
pass
say "200 decode steps of SmolLM2's layer 17 over the page pool, against the scalar reference, on each device here"
decode() {
    "$@" "$root/build/tools/decode_demo" "$root/tests/data/smollm2_layer17_mla_rope48.safetensors" 200 $device || { say "decode steps: FAILED"; exit 1; }
}
for i in $(seq 0 $(($("$clinfer" info --json | wc -l) - 1))); do
    device="--device $i" decode env
done
if [ -e "${XDG_CACHE_HOME:-${HOME:-}/.cache}/clinfer-intel-opencl/complete" ]; then # test.sh installs it
    device='' decode "$root/tests/on_runtime.sh" intel
fi
say "text: four prompts at once over a pool that holds two of them, by the model in examples/generate/model, on ${CLINFER_DEVICE}"
"$root/build/examples/generate/generate" --prompt "In the beginning" --prompt "And it came to pass" --prompt "Blessed are they" \
    --prompt "The word of the LORD came" --pages 6 --deterministic || { say "text: FAILED"; exit 1; }
say "for a model that has read more: build/examples/generate/generate --model \$(tools/fetch-model.sh) --prompt TEXT"
say "what is on disk"
"$clinfer" cache list
say "done: all results agree with the expected ones"
