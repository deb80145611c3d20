# SPDX-License-Identifier: Apache-2.0
# Sourced by demo.sh and test.sh: the packages they need, and a build folder.
set -eu
cd "$(dirname "$0")/.."
root=$PWD

say() { printf '== %s\n' "$*"; }

missing() {
    for p in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || printf '%s ' "$p"
    done
}

# Installs what of the named Debian packages is missing, as root or through sudo.
need_packages() {
    if ! command -v dpkg-query >/dev/null; then
        say "no dpkg here: expecting the equivalents of: $*"
        return
    fi
    want=$(missing "$@")
    [ -n "$want" ] || return 0
    run=
    if [ "$(id -u)" != 0 ]; then
        run=sudo
        command -v sudo >/dev/null || { say "missing: $want"; say "install them as root: apt-get install $want"; exit 1; }
    fi
    say "installing: $want"
    $run apt-get update -q >/dev/null
    $run env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $want >/dev/null
}

# need_build DIR OPTIONS...: configures where the options are new, then compiles what changed. Without options any
# configured folder will do.
need_build() {
    dir=$1
    shift
    again=
    if [ -e "$dir/build.ninja" ]; then
        again=--reconfigure
    fi
    if [ -z "$again" ] || { [ $# -gt 0 ] && [ "$(cat "$dir/options" 2>/dev/null)" != "$*" ]; }; then
        say "configuring $dir"
        meson setup $again "$dir" "$@" >"$dir.log" 2>&1 || { cat "$dir.log"; exit 1; }
        rm -f "$dir.log"
        echo "$*" >"$dir/options"
    fi
    say "building $dir"
    ninja -C "$dir" >"$dir/build.log" 2>&1 || { cat "$dir/build.log"; exit 1; }
}

build_packages="gcc libc6-dev meson ninja-build pkg-config python3 ocl-icd-opencl-dev opencl-c-headers libxxhash-dev libcjson-dev pocl-opencl-icd"
