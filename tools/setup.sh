# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
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

# Of packages that pip knows; the second is not pulled in by the first, which wants it.
intel_packages="intel-opencl-rt==2026.2.0 intel-cmplr-lib-rt==2026.2.0"

# Into the folder, from nothing; the last line of its log says what went wrong.
install_intel() {
    rm -rf "$1"
    mkdir -p "$1/vendors" "$1/both" "$1/loader" || return
    if [ "$(df -Pk "$1" | awk 'NR == 2 { print int($4 / 1024) }')" -lt 2000 ]; then
        echo "it takes 2000 MB of disk while it is unpacked"
        return 1
    fi
    python3 -m venv "$1/venv" || { echo "python3 makes no virtual environment (python3-venv)"; return 1; }
    "$1/venv/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check --timeout 20 --retries 2 $intel_packages || {
        echo "pip finds no $intel_packages: no network, or nothing for this system"
        return 1
    }
    [ -e "$1/venv/lib/libintelocl.so" ] || { echo "libintelocl.so is not among its files"; return 1; }
    echo "$1/venv/lib/libintelocl.so" | tee "$1/vendors/intel.icd" >"$1/both/intel.icd" || return
    for icd in /etc/OpenCL/vendors/pocl*.icd; do
        [ ! -e "$icd" ] || cp "$icd" "$1/both" || return
    done
    # The venv has a loader of its own, which the system's is to come before.
    ln -s "$(readlink -f "$(gcc -print-file-name=libOpenCL.so.1)")" "$1/loader/libOpenCL.so.1" || return
    echo "$intel_packages" >"$1/complete" # the last: what an interrupt leaves is made anew
}

# Intel's CPU runtime for OpenCL, beside PoCL, once: 1 GB in a folder of the user's cache, where tests/on_runtime.sh looks.
# Where it cannot be had, one line says why and CLINFER_NO_INTEL is set to that.
need_intel() {
    if [ -z "${XDG_CACHE_HOME:-}${HOME:-}" ]; then
        export CLINFER_NO_INTEL="neither HOME nor XDG_CACHE_HOME says where the user's cache is"
        say "no Intel CPU runtime, its tests are skipped: $CLINFER_NO_INTEL"
        return
    fi
    intel=${XDG_CACHE_HOME:-$HOME/.cache}/clinfer-intel-opencl
    if [ "$(cat "$intel/complete" 2>/dev/null)" = "$intel_packages" ]; then
        return
    fi
    say "installing Intel's CPU runtime in $intel: $intel_packages"
    log=$(mktemp)
    if ! install_intel "$intel" >"$log" 2>&1; then
        CLINFER_NO_INTEL=$(grep . "$log" | tail -n 1)
        export CLINFER_NO_INTEL
        say "not installed, its tests are skipped: $CLINFER_NO_INTEL"
        rm -rf "$intel"
    fi
    rm -f "$log"
}

# need_configured DIR OPTIONS...: configures where the options are new. Without options any configured folder will do.
need_configured() {
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
}

# need_build DIR OPTIONS...: that, then compiles what changed.
need_build() {
    need_configured "$@"
    say "building $dir"
    ninja -C "$dir" >"$dir/build.log" 2>&1 || { cat "$dir/build.log"; exit 1; }
}

build_packages="gcc libc6-dev meson ninja-build pkg-config python3 ocl-icd-opencl-dev opencl-c-headers libxxhash-dev libcjson-dev libpcre2-dev pocl-opencl-icd"
