#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds with gcc, and with gcc and clang under ASan and UBSan, and runs all tests.
# --long adds what does not fit into 20 minutes on two cores. Ends with one line "N passed, N failed, N skipped".
. "$(dirname "$0")/setup.sh"

long=false
for arg in "$@"; do
    case $arg in
    --long) long=true ;;
    *) echo "usage: tools/test.sh [--long]" >&2; exit 2 ;;
    esac
done

need_packages $build_packages g++ binutils clang libclang-rt-14-dev llvm libcriterion-dev libclblast-dev python3-venv oclgrind
need_intel
sanitize="-Db_sanitize=address,undefined -Db_lundef=false -Dc_args=-fno-sanitize-recover=all -Dbuildtype=debugoptimized -Doptimization=1"
need_build build -Dwerror=true -Dtests=enabled
CC=gcc need_configured build-asan-gcc -Dwerror=true -Dtests=enabled $sanitize
CC=clang need_configured build-asan-clang -Dwerror=true -Dtests=enabled $sanitize

# One driver cache serves all three: the kernels are the same.
mkdir -p build/pocl-cache
for dir in build-asan-gcc build-asan-clang; do
    [ -L $dir/pocl-cache ] || { rm -rf $dir/pocl-cache; ln -s ../build/pocl-cache $dir/pocl-cache; }
done

logs=
reports=0 broken=0
# run_tests DIR LOG OPTIONS...: builds what these tests need, and runs them. All output goes to the log; the summary tells.
run_tests() {
    dir=$1 log=$2
    shift 2
    say "tests in $dir${*:+ ($*)}"
    rm -rf "$dir/sanitizer" "$dir/meson-logs/$log.json"
    mkdir -p "$dir/sanitizer"
    # A test runner may call a sanitizer's report a pass: reports go to files, and no file may exist.
    ASAN_OPTIONS=exitcode=99:log_path=$root/$dir/sanitizer/asan UBSAN_OPTIONS=log_path=$root/$dir/sanitizer/ubsan:print_stacktrace=1 \
        PYTHONUNBUFFERED=1 meson test -C "$dir" --logbase "$log" "$@" 2>&1 |
        tee "$dir/$log.txt" | { grep --line-buffered -E '^ *[0-9]+/[0-9]+ ' || true; }
    if [ "${PIPESTATUS[0]}" != 0 ]; then
        broken=$((broken + 1))
        tail -n 20 "$dir/$log.txt"
    fi
    logs="$logs $dir/meson-logs/$log.json"
    for report in "$dir"/sanitizer/*; do
        [ -e "$report" ] || continue
        say "a sanitizer's report: $report"
        head -40 "$report"
        reports=$((reports + 1))
    done
}

# Of the random calls of the op tests a share, which has every type and edge; --long runs them all. The same share under
# a sanitizer finds its kernels compiled: what a driver's compiler leaks would be reported there.
export OPTEST_SHARE=5
run_tests build all --no-suite long --no-suite injection
if $long; then
    OPTEST_SHARE=1 run_tests build long --suite long --suite op
fi
run_tests build-asan-gcc asan --suite unit --suite tools --suite examples --suite engine
run_tests build-asan-clang asan --suite unit --suite bench --suite op
python3 tests/summary.py --reports $reports --broken $broken $logs
