// SPDX-License-Identifier: Apache-2.0
// The linker of a device check's folder, for PoCL: ld.real through the folder's own loader, without the
// libraries that a compiler adds. Kernels need none of them, and there may be none. Linked statically, as a
// machine may have no C library; device_check_run.sh says in DEVICE_CHECK_LD and DEVICE_CHECK_LIBS where
// loader and libraries are.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *loader = getenv("DEVICE_CHECK_LD"), *libs = getenv("DEVICE_CHECK_LIBS"),
               *real = getenv("DEVICE_CHECK_LD_REAL");
    char **args = calloc((size_t) argc + 5, sizeof *args);
    int n = 0;
    if (!loader || !libs || !real || !args) {
        (void) fputs("ld: this one is run by a device check's run.sh alone\n", stderr);
        return 1;
    }
    args[n++] = (char *) loader;
    args[n++] = "--library-path";
    args[n++] = (char *) libs;
    args[n++] = (char *) real;
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "-l", 2))
            args[n++] = argv[i];
    (void) execv(loader, args);
    perror(loader);
    return 1;
}
