// SPDX-License-Identifier: Apache-2.0
// The command: its first operand names what to do.
#include <string.h>

#include "cli.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *text;
} commands[] = {
    { "info", cmd_info, "the devices, and what the engine makes of them" },
    { "run", cmd_run, "run a case file and compare with what it expects" },
    { "check", cmd_check, "every op in every kernel set against the reference" },
    { "bench", cmd_bench, "time the ops against what the device can do" },
    { "dump", cmd_dump, "source and options of an op's programs, for a bug report" },
    { "cache", cmd_cache, "list, verify, clear or fill the folder of compiled programs" },
};
enum { NUM_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_usage(FILE *to)
{
    fprintf(to, "usage: clinfer COMMAND ...\n");
    for (int i = 0; i < NUM_COMMANDS; i++)
        fprintf(to, "  %-6s %s\n", commands[i].name, commands[i].text);
    fprintf(to, "`clinfer COMMAND --help` has the details; `clinfer --version` the version\n");
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    for (int i = 0; i < NUM_COMMANDS; i++)
        if (!strcmp(name, commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    if (!strcmp(name, "--version")) {
        printf("clinfer %s\n", clinfer_version());
        return cli_finish(CLI_RIGHT);
    }
    const bool help = !strcmp(name, "--help") || !strcmp(name, "-h");
    if (*name && !help)
        cli_error("no command \"%s\"", name);
    print_usage(help ? stdout : stderr);
    return help ? cli_finish(CLI_RIGHT) : CLI_USAGE;
}
