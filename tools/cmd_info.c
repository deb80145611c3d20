// SPDX-License-Identifier: Apache-2.0
// clinfer info: a line for each device.
#include <stdlib.h>

#include "cli.h"

enum { MAX_DEVICES = 64, PATH_SIZE = 8192 };

static void print_json(unsigned index, const struct clinfer_device_info *d, const char *cache)
{
    const struct {
        const char *name, *text;
    } strings[] = { { "platform", d->platform },
                    { "device", d->device },
                    { "type", d->type },
                    { "driver", d->driver },
                    { "set", d->set == CLINFER_SET_GROUP ? "group" : "row" } };
    const struct {
        const char *name;
        clinfer_cap cap;
    } caps[] = { { "fp16", CLINFER_CAP_FP16 },
                 { "subgroups", CLINFER_CAP_SUBGROUPS },
                 { "il", CLINFER_CAP_IL },
                 { "denormals", CLINFER_CAP_DENORMALS } };
    printf("{\"index\":%u", index);
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++) {
        printf(",\"%s\":", strings[i].name);
        cli_json_string(stdout, strings[i].text);
    }
    for (size_t i = 0; i < sizeof caps / sizeof caps[0]; i++)
        printf(",\"%s\":%s", caps[i].name, d->caps & (unsigned) caps[i].cap ? "true" : "false");
    printf(",\"local_kib\":%llu,\"max_alloc\":%llu,\"cache\":", (unsigned long long) d->local_bytes / 1024,
           (unsigned long long) d->max_alloc);
    if (cache)
        cli_json_string(stdout, cache);
    else
        printf("null");
    printf("}\n");
}

static void print_caps(unsigned caps)
{
#define CLINFER_X(name, bit, text)                                                                           \
    if (caps & (1u << (bit)))                                                                                \
        printf("  has: %s\n", text);
    CLINFER_CAP_LIST(CLINFER_X)
#undef CLINFER_X
}

static void print_text(unsigned index, const struct clinfer_device_info *d, const char *cache)
{
    printf("%u: %s\n", index, d->device);
    printf("  %s, %s, driver %s, %s, %u compute units\n", d->platform, d->type, d->driver, d->version,
           d->compute_units);
    printf("  %llu MiB memory, at most %llu MiB a buffer, %llu KiB local\n",
           (unsigned long long) d->global_bytes >> 20, (unsigned long long) d->max_alloc >> 20,
           (unsigned long long) d->local_bytes >> 10);
    print_caps(d->caps);
    printf("  kernel set: %s; compiled programs: %s\n", d->set == CLINFER_SET_GROUP ? "group" : "row",
           cache ? cache : "not kept");
}

int cmd_info(int argc, char **argv)
{
    static const struct cli_command command = { "clinfer info [--json]", CLI_JSON, 0, 0 };
    struct clinfer_device_info info[MAX_DEVICES];
    struct cli_options o;
    char error[512], path[PATH_SIZE];
    unsigned count = 0;
    int status;
    if (!cli_parse(argc, argv, &command, &o, &status))
        return status;
    const bool kept = clinfer_cache_path(NULL, path, sizeof path) == CLINFER_OK;
    if (clinfer_devices(info, MAX_DEVICES, &count, error, sizeof error)) {
        cli_error("%s", error);
        return CLI_WRONG;
    }
    for (unsigned i = 0; i < count && i < MAX_DEVICES; i++)
        (o.json ? print_json : print_text)(i, &info[i], kept ? path : NULL);
    return cli_finish(CLI_RIGHT);
}
