// SPDX-License-Identifier: Apache-2.0
#ifndef CLF_ENV_H_
#define CLF_ENV_H_

// The library's only look at the environment. NULL where `name` is unset, and for every name in a process
// that runs with more rights than whoever started it (setuid, setgid, file capabilities). "" is kept as "".
const char *clf_getenv(const char *name);

#endif
