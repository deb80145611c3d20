// SPDX-License-Identifier: Apache-2.0
// The command line of `generate`.
#ifndef GENERATE_OPTIONS_H_
#define GENERATE_OPTIONS_H_

#include "weights.h"

enum options_kv_type { KV_F32, KV_F16, KV_BF16, KV_F8_E4M3, KV_F8_E4M3_SCALED };
enum options_attention { ATTENTION_AUTO, ATTENTION_GQA, ATTENTION_MLA };

struct options_text {
    const char *text; // need not end with a NUL
    size_t size;
};

struct options {
    const char *model;            // --model FILE; NULL: the one that the program carries
    struct options_text *prompts; // --prompt TEXT, each of them; after options_read --prompts' lines
    size_t num_prompts;
    const char *prompts_file;         // --prompts FILE
    const char *nll_file;             // --nll FILE
    struct options_text nll;          // after options_read: its bytes
    int64_t max_tokens;               // -n N: new tokens of a prompt; default 32
    enum options_kv_type kv_type;     // --kv-type T; default f16
    enum weights_type weights;        // --weights f32|bf16|q8_0|f8_e4m3; default bf16
    enum options_attention attention; // --attention gqa|mla; default: as the model's architecture says
    int64_t page_size;                // --page-size N; default 16
    int64_t pages;                    // --pages N; 0, the default: as many as all prompts need
    int64_t batch;                    // --batch N: prompts that run at a time; default 8
    int64_t chunk;                    // --chunk N: tokens of a prompt in a step; default 128
    double temperature, top_p;        // --temperature X, default 0: greedy; --top-p X, default 1
    uint64_t seed;                    // --seed N; default 0
    bool special;                     // --special: prompts may spell special tokens
    bool deterministic;               // --deterministic: a prompt's text is the same whatever runs beside it
    bool json, help;                  // --json, --help
    const char *device;               // --device D; NULL: CLINFER_DEVICE's, or the first
    char *texts;                      // what options_read has read
};

extern const char options_usage[];

// Options may be written `--name VALUE` or `--name=VALUE`. False: status 2, with the reason.
// Texts stay argv's.
bool options_parse(int argc, char **argv, struct options *options, struct error *error);

// Reads the files that --prompts and --nll name. False: status 1, with the reason.
bool options_read(struct options *options, struct error *error);

void options_free(struct options *options);

#endif
