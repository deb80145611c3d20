#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh [--quick] [--limit SECONDS]: checks and times the kernels with every OpenCL driver of this machine. Writes nothing
# outside its folder, and ends by itself. Needs nothing of the machine, a shell included:
#     libc/ld-linux-x86-64.so.2 --library-path libc tools/dash run.sh
quick=false limit=450
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=true ;;
    --limit) limit=${2:-}; shift ;;
    *) limit= ;;
    esac
    case $limit in
    ''|*[!0-9]*) echo "usage: run.sh [--quick] [--limit SECONDS]" >&2; exit 2 ;;
    esac
    shift
done
case $0 in
*/*) cd "${0%/*}" || exit 1 ;;
esac
here=$PWD
for ld in "$here"/libc/ld-*; do :; done

# The folder's own tools, with its own C library.
own() {
    program=$1
    shift
    "$ld" --library-path "$here/libc:$here/tools/lib" "$here/tools/$program" "$@"
}
now() { own date +%s; }
start=$(now) || { echo "run.sh: nothing can be run here: is this another kind of processor?" >&2; exit 1; }
end=$((start + limit - 5))

i=1
while ! own mkdir "$here/results-$i" 2>/dev/null; do
    i=$((i + 1))
    [ $i -lt 1000 ] || { echo "run.sh: no folder for results can be made in $here" >&2; exit 1; }
done
results=$here/results-$i scratch=$here/scratch-$i
own mkdir "$scratch" "$scratch/tmp" "$scratch/home" "$scratch/pocl" "$scratch/vendors" || exit 1
trap 'cd "$here"; own rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM HUP
# Whatever a driver likes to write goes to the scratch folder; so do core files.
export HOME="$scratch/home" XDG_CACHE_HOME="$scratch/home" XDG_CONFIG_HOME="$scratch/home" XDG_DATA_HOME="$scratch/home"
export XDG_RUNTIME_DIR="$scratch/tmp" TMPDIR="$scratch/tmp" TMP="$scratch/tmp" TEMP="$scratch/tmp"
export POCL_CACHE_DIR="$scratch/pocl" CUDA_CACHE_PATH="$scratch/home" NEO_CACHE_DIR="$scratch/home" MESA_SHADER_CACHE_DIR="$scratch/home"
export CLINFER_CACHE_DIR='' CLINFER_LOG=error CLINFER_TEST_DATA="$here/cases" CLINFER_CL_SRC="$here/cl"
unset CLINFER_DEVICE CLINFER_CL_DIR LD_PRELOAD OPENCL_LAYERS
export PATH="${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin" # some drivers call a linker
ulimit -c 0 2>/dev/null # shells without it have no core files to speak of
cd "$scratch" || exit 1

# PoCL asks hwloc, which looks in /sys; where there is none it is told: the processors, and 4 GiB of memory.
if [ ! -d /sys/devices/system/cpu ] && [ -r /proc/cpuinfo ]; then
    cpus=0
    while read -r word line; do
        [ "$word" != processor ] || cpus=$((cpus + 1))
    done </proc/cpuinfo
    export HWLOC_SYNTHETIC="[NUMANode(memory=4294967296)] core:$((cpus ? cpus : 1)) pu:1"
fi

wrong=0 left_out=0 drivers=0
say() { printf '%s\n' "$*"; printf '%s\n' "$*" >>"$results/summary.txt"; }

# The machine's own C library where it is new enough: its drivers were built for it.
native=false
if LD_LIBRARY_PATH=$here/lib "$here/bin/clinfer" --version >/dev/null 2>&1; then
    native=true
fi
say "$("$ld" --library-path "$here/lib:$here/libc" "$here/bin/clinfer" --version), at most $limit s, $($native && echo "the machine's own C library" || echo "the folder's C library")"

# add NAME LIBRARY: a driver; its .icd file is written here.
known=' '
add() {
    stem=${2##*/}
    stem=${stem%%.so*}
    case $known in
    *" $stem "*) return ;;
    esac
    known="$known$stem "
    drivers=$((drivers + 1))
    own mkdir "$scratch/vendors/$drivers" && printf '%s\n' "$2" >"$scratch/vendors/$drivers/driver.icd" && printf '%s\n' "$1" >"$scratch/vendors/$drivers.name"
}
[ -d "${OCL_ICD_VENDORS:-}" ] || OCL_ICD_VENDORS=/etc/OpenCL/vendors
for icd in "$OCL_ICD_VENDORS"/*.icd; do
    library=
    [ -f "$icd" ] && read -r library <"$icd"
    if [ -n "$library" ]; then
        name=${icd##*/}
        add "${name%.icd}" "$library"
    fi
done
IFS=:
for folder in ${LD_LIBRARY_PATH:-} /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/lib64 /usr/lib /lib64 /lib /usr/local/lib64 /usr/local/lib \
    /usr/local/nvidia/lib64 /usr/lib/nvidia /usr/lib/wsl/lib /opt/rocm/lib /opt/rocm/opencl/lib /opt/amdgpu-pro/lib/x86_64-linux-gnu \
    /opt/intel/oneapi/compiler/latest/lib /usr/lib/x86_64-linux-gnu/intel-opencl /usr/lib64/intel-opencl /vendor/lib64 /system/vendor/lib64; do
    for library in libnvidia-opencl.so.1 libamdocl64.so libigdrcl.so libintelocl.so libmali.so libmali.so.1 libOpenCL_adreno.so libpocl.so.2 \
        libRusticlOpenCL.so.1 libMesaOpenCL.so.1; do
        if [ -n "$folder" ] && [ -e "$folder/$library" ]; then
            name=${library%%.so*}
            add "${name#lib}" "$folder/$library"
        fi
    done
done
unset IFS
others=$drivers
if [ -d "$here/pocl" ]; then
    known=' '
    add pocl-of-this-folder "$here/pocl/lib/here/libpocl.so.2"
fi

# with_driver SECONDS PROGRAM ARGUMENTS...: on the driver that OCL_ICD_VENDORS holds, for so long at most. The folder's PoCL
# takes the folder's C library.
theirs=${LD_LIBRARY_PATH:-}
with_driver() (
    seconds=$1 program=$2
    shift 2
    libraries=$here/lib
    group=--foreground # an interrupt from the terminal reaches it
    case $program in
    test_*) libraries=$libraries:$here/testlib group= ;; # it has children, which are to end with it
    esac
    if $ours; then
        libraries=$libraries:$here/pocl/lib/here
        export DEVICE_CHECK_LD="$ld" DEVICE_CHECK_LIBS="$here/libc:$here/pocl/lib/here" DEVICE_CHECK_LD_REAL="$here/pocl/bin/ld.real"
        export PATH="$here/pocl/bin:$PATH"
    fi
    if $native && ! $ours; then
        export LD_LIBRARY_PATH="$libraries${theirs:+:$theirs}"
        own timeout $group -k 3 "$seconds" "$here/bin/$program" "$@"
    else
        unset LD_LIBRARY_PATH
        own timeout $group -k 3 "$seconds" "$ld" --library-path "$libraries:$here/libc${theirs:+:$theirs}:/usr/lib64:/lib64" "$here/bin/$program" "$@"
    fi
)

# step NAME WEIGHT ENDING PROGRAM ARGUMENTS...: its share of the time until $deadline; output to $out/NAME.ENDING.
step() {
    name=$1 weight=$2 ending=$3
    shift 3
    began=$(now)
    slice=$(((deadline - began) * weight / weights))
    weights=$((weights - weight))
    [ $slice -ge 3 ] || slice=3 # a shorter one shows nothing; the last ones go without
    if [ $((deadline - began)) -lt 3 ]; then
        say "$label: left out, no time: $name"
        left_out=$((left_out + 1))
        return
    fi
    with_driver $slice "$@" >"$out/$name.$ending" 2>"$out/$name.log"
    status=$?
    took=$(($(now) - began))
    case $status in
    0) say "$label: ok: $name, $took s" ;;
    124|137) say "$label: stopped after $took s, what it had is kept: $name"; left_out=$((left_out + 1)) ;;
    1|2) say "$label: WRONG: $name, see ${out#"$here"/}/$name.log"; wrong=$((wrong + 1)) ;;
    *) say "$label: CRASHED with status $status: $name, see ${out#"$here"/}/$name.log"; wrong=$((wrong + 1)) ;;
    esac
    printf '{"driver":"%s","device":%d,"step":"%s","status":%d,"seconds":%d}\n' "$driver" "$device" "$name" $status $took >>"$results/steps.jsonl"
}

run_quick() {
    weights=2
    step check-rms_norm_kv_cache 1 jsonl clinfer check rms_norm_kv_cache --filter odd/ragged --json --device "$device"
    step bench-rms_norm_kv_cache 1 jsonl clinfer bench rms_norm_kv_cache --filter smollm2-9x3x64/bf16/decode1 --json --device "$device"
}

run_all() {
    read -r ops <"$here/ops"
    weights=0
    for op in $ops; do weights=$((weights + 5)); done
    weights=$((weights + 2))
    for op in $ops; do
        step "check-$op" 3 jsonl clinfer check "$op" --json --device "$device"
    done
    export CLINFER_DEVICE="$device"
    for test in test_formats test_cases; do
        if $native && ! $ours && [ -x "$here/bin/$test" ]; then
            step $test 1 txt $test --jobs 1
        else # they start themselves again, which the loader's call does not allow
            weights=$((weights - 1))
            say "$label: left out, it needs the machine's own C library: $test"
            left_out=$((left_out + 1))
        fi
    done
    unset CLINFER_DEVICE
    for op in $ops; do
        step "bench-$op" 2 jsonl clinfer bench "$op" --json --device "$device"
    done
}

# The devices of a driver, one after another.
run_driver() {
    out=$results/$n-$driver
    own mkdir "$out" || exit 1
    label=$driver
    left=$((end - $(now)))
    if [ $left -lt 3 ]; then
        say "$label: left out, no time: all of it"
        left_out=$((left_out + 1))
        return
    fi
    with_driver $((left < 60 ? left : 60)) clinfer info --json >"$out/info.jsonl" 2>"$out/info.log"
    status=$?
    devices=0
    while read -r line; do devices=$((devices + 1)); done <"$out/info.jsonl"
    if [ $status != 0 ] || [ $devices = 0 ]; then
        read -r line <"$out/info.log" || line="status $status"
        say "$label: no device: $line"
        return
    fi
    device=0
    while [ $device -lt $devices ]; do
        label=$driver/$device
        working=$((working + 1))
        out=$results/$n-$driver/$device
        own mkdir "$out" || exit 1
        deadline=$(now)
        deadline=$((deadline + (end - deadline) / ((drivers - n + 1) * (devices - device))))
        if $quick; then run_quick; else run_all; fi
        device=$((device + 1))
    done
}

n=1 working=0
while [ $n -le $drivers ]; do
    read -r driver <"$scratch/vendors/$n.name"
    export OCL_ICD_VENDORS="$scratch/vendors/$n"
    ours=false
    [ $n -le $others ] || ours=true
    run_driver
    n=$((n + 1))
done
if [ $working = 0 ]; then
    say "no OpenCL device was found with $drivers drivers: see docs/device-check.md"
    wrong=$((wrong + 1))
fi
say "$working devices, $wrong steps wrong, $left_out left out or stopped; $(($(now) - start)) s; all in ${results#"$here"/}"
[ $wrong = 0 ]
