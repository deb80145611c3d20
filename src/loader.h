// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <stdbool.h>

// Whether there is an OpenCL loader; without one every OpenCL call returns CL_DEVICE_NOT_AVAILABLE.
bool clf_loader_found(void);
