// SPDX-License-Identifier: Apache-2.0
// What the commands of `clinfer` share: options, messages, JSON, the context.
#ifndef CLINFER_TOOLS_CLI_H_
#define CLINFER_TOOLS_CLI_H_

#include <stdbool.h>
#include <stdio.h>

#include <clinfer/clinfer.h>

// Exit statuses.
enum { CLI_RIGHT = 0, CLI_WRONG = 1, CLI_USAGE = 2 };

enum { CLI_MAX_OPERANDS = 8 };

// Options that a command takes.
enum {
    CLI_JSON = 1,    // --json
    CLI_DEVICE = 2,  // --device D
    CLI_OUT = 4,     // -o OUT
    CLI_VARIANT = 8, // --set row|group, --arith f32|bf16, --gemm own|clblast
    CLI_FILTER = 16, // --filter TEXT
    CLI_CASE = 32,   // --case NAME
};

struct cli_command {
    const char *usage; // "clinfer run CASE [-o OUT]", one line
    unsigned options;  // CLI_* bits
    int min_operands, max_operands;
};

struct cli_options {
    bool json;
    const char *device, *out, *filter, *test_case; // NULL: not given
    clinfer_kernel_set set;
    clinfer_arith arith;
    clinfer_gemm gemm;
    const char *operands[CLI_MAX_OPERANDS];
    int num_operands;
};

// argv[0] is the command's name. False: the command ends with *status, all said (--help prints the usage).
bool cli_parse(int argc, char **argv, const struct cli_command *command, struct cli_options *options,
               int *status);

// "clinfer: " and the message, to stderr.
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
void cli_error(const char *format, ...);

// A context on the chosen device, with its programs cached on disk. NULL, with a message, where there is
// none. The log goes to stderr when CLINFER_LOG is set.
clinfer_ctx *cli_context(const struct cli_options *options);
// The same; what the options do not say is taken from `params`.
clinfer_ctx *cli_context_from(const struct cli_options *options, struct clinfer_ctx_params params);

void cli_json_string(FILE *to, const char *text);
void cli_json_number(FILE *to, double x); // null where x is not finite

// `status`, or CLI_WRONG with a message where stdout could not be written.
int cli_finish(int status);

// argv[0] is the command's name; each returns the exit status.
int cmd_bench(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_cache(int argc, char **argv);
int cmd_dump(int argc, char **argv);

#endif
