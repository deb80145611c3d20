#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install.sh BUILD_DIR SOURCE_DIR CC: an installed copy is complete, exports only clinfer_*, and an outside program
# builds against it through pkg-config and runs.
set -eu
build=$1 source=$2 cc=$3
dest=$(mktemp -d)
trap 'rm -rf "$dest"' EXIT
meson install -C "$build" --no-rebuild --destdir "$dest" >/dev/null
pc=$(find "$dest" -name clinfer.pc)
lib=$(dirname "$(dirname "$pc")")
prefix=$(sed -n 's/^prefix=//p' "$pc")

for f in bin/clinfer include/clinfer/clinfer.h include/clinfer/mla_decode_branch.h; do
    [ -e "$dest$prefix/$f" ] || { echo "FAILED: $f is not installed"; exit 1; }
done
[ -L "$lib/libclinfer.so.0" ] || { echo "FAILED: no soname link libclinfer.so.0"; exit 1; }
others=$(nm -D --defined-only "$lib/libclinfer.so" | awk '$2 ~ /[TDBRVW]/ && $3 !~ /^clinfer_/ { print $3 }' | grep -vE '^(_init|_fini|__asan|__odr|__ubsan)' || true)
[ -z "$others" ] || { echo "FAILED: exported beside clinfer_*: $others"; exit 1; }

flags=$(PKG_CONFIG_PATH=$lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$dest pkg-config --cflags --libs clinfer)
$cc -std=c11 "$source/examples/01_norm_own_buffers.c" -o "$dest/app" $flags
LD_LIBRARY_PATH=$lib "$dest/app"
echo "1 passed, 0 failed"
