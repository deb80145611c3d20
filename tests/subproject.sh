#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# subproject.sh SOURCE_DIR CC: another Meson project takes the library as a subproject, shared and static, builds nothing else
# of it, and its program runs.
set -eu
source=$1 cc=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/app/subprojects"
ln -s "$source" "$dir/app/subprojects/clinfer"
cp "$source/examples/01_norm_own_buffers.c" "$dir/app/app.c"
cat >"$dir/app/meson.build" <<'END'
project('app', 'c', default_options: ['c_std=c11'])
executable('app', 'app.c', dependencies: dependency('clinfer', fallback: 'clinfer'))
END
passed=0
for kind in shared static; do
    CC=$cc meson setup "$dir/$kind" "$dir/app" -Ddefault_library=$kind --wrap-mode=default >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
    ninja -C "$dir/$kind" >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
    others=$(find "$dir/$kind/subprojects/clinfer" -type f -perm -u+x ! -name '*.so*' ! -name '*.h' ! -path '*/meson-*')
    [ -z "$others" ] || { echo "FAILED: $kind: the subproject also builds $others"; exit 1; }
    "$dir/$kind/app" || { echo "FAILED: $kind: the program fails"; exit 1; }
    passed=$((passed + 1))
done
echo "$passed passed, 0 failed"
