#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# on_runtime.sh system|intel|both|intel_loader COMMAND...: runs the command where these OpenCL drivers are: the system's,
# Intel's CPU runtime alone, PoCL and it side by side, or it under its own loader. Exit status 77 (skipped), with the reason, where
# Intel's is not installed: tools/test.sh does that, and says in CLINFER_NO_INTEL why it could not.
set -eu
runtime=$1
shift
case $runtime in
system) exec "$@" ;;
intel|both|intel_loader) ;;
*) echo "no runtime is called $runtime"; exit 2 ;;
esac
intel=${XDG_CACHE_HOME:-${HOME:-}/.cache}/clinfer-intel-opencl
if [ ! -e "$intel/complete" ]; then
    echo "SKIPPED: no Intel CPU runtime: ${CLINFER_NO_INTEL:-tools/test.sh installs it}"
    exit 77
fi
unset OCL_ICD_FILENAMES
case $runtime in
intel) export OCL_ICD_VENDORS="$intel/vendors" LD_LIBRARY_PATH="$intel/loader:$intel/venv/lib" ;;
both) export OCL_ICD_VENDORS="$intel/both" LD_LIBRARY_PATH="$intel/loader:$intel/venv/lib" ;;
intel_loader) export OCL_ICD_VENDORS="$intel/vendors" LD_LIBRARY_PATH="$intel/venv/lib" ;;
esac
exec "$@"
