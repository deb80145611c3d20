// SPDX-License-Identifier: Apache-2.0
// A text generator on the library: see options_usage. Exit status 0, 1 where the input or the device is
// wrong, 2 for a wrong command line.
#include "output.h"

#include <stdio.h>
#include <unistd.h>

static int failed(int status, const struct error *error)
{
    fprintf(stderr, "generate: %s\n", error->text);
    return status;
}

static bool run(struct options *options, struct error *error)
{
    struct session session;
    struct output output = { .terminal = isatty(STDERR_FILENO) };
    if (!options_read(options, error) || !session_open(&session, options, error))
        return false;
    bool ok = session_run(&session, output_step, &output, error);
    if (ok)
        output_end(&output, &session);
    session_close(&session);
    if (fflush(stdout) || ferror(stdout))
        ok = fail(error, "stdout: not all could be written");
    return ok;
}

int main(int argc, char **argv)
{
    struct options options;
    struct error error;
    if (!options_parse(argc, argv, &options, &error)) {
        fprintf(stderr, "%s", options_usage);
        return failed(2, &error);
    }
    if (options.help) {
        fputs(options_usage, stdout);
        options_free(&options);
        return 0;
    }
    const bool ok = run(&options, &error);
    options_free(&options);
    return ok ? 0 : failed(1, &error);
}
