// SPDX-License-Identifier: Apache-2.0
#pragma once

// The library's only look at the environment. NULL where `name` is unset, and for every name in a process
// that runs with more rights than whoever started it (setuid, setgid, file capabilities). "" is kept as "".
const char *clf_getenv(const char *name);
