/* Stands in for NVIDIA's management library, as far as the container toolkit's hook calls it, without a GPU.
 *
 * Each limit that is set is a line of the file $NVML_CALLS: the GPU, the soft and the hard limit in bytes, and the
 * control group. GPUs have 16,276 MiB; more is refused, as NVIDIA's header says. Compiled with OLD_DRIVER it sets none.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK, INVALID_ARGUMENT = 2, NOT_FOUND = 6 };
#define UNLIMITED (~0ULL)

typedef struct { const char *name_space; unsigned long long soft, hard; } Limits;

static char uuids[16][96];
static int known;

int nvmlInit_v2(void) { return OK; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) { return error == INVALID_ARGUMENT ? "Invalid Argument" : "Not Found"; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    if (strncmp(uuid, "GPU-", 4) || known == 16) return NOT_FOUND;
    strncpy(uuids[known], uuid, sizeof uuids[0] - 1);
    *handle = uuids[known++];
    return OK;
}

#ifndef OLD_DRIVER
int nvmlDeviceSetMemoryLimits_v1(void *handle, Limits *limits) {
    if (limits->soft > limits->hard || (limits->hard != UNLIMITED && limits->hard > 16276ULL << 20)) return INVALID_ARGUMENT;
    FILE *calls = fopen(getenv("NVML_CALLS"), "a");
    fprintf(calls, "%s %llu %llu %s\n", (char *)handle, limits->soft, limits->hard, limits->name_space);
    fclose(calls);
    return OK;
}
#endif
