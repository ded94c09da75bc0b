/* Stands in for NVIDIA's management library, so that its real Python binding runs without a GPU.
 *
 * Every call reads the file $NVML_STUB anew; a line is one fact:
 *
 *     driver gone                                                  there is a library, and no driver
 *     gpu <uuid> <bus id> <MiB> <processes> <name with spaces>    in the order of their indices
 *     lost <gpu>                                                  it does not answer any more
 *     keeps <gpu> <MiB>                                            so much of its memory is the driver's
 *     limit <gpu> <MiB> <path of a control group>                 so much of it may a control group have
 *     remap <gpu>                                                 memory rows wait for a reset
 *     mig <gpu>                                                   MIG is enabled on it
 *     slice <gpu> <number> <uuid> <MiB> <processes> <profile>     a MIG slice of it
 *     nameless                                                    the names of slices do not end with their profile
 *     closed <gpu>                                                its memory is told to nobody while MIG is enabled
 *     secret <gpu>                                                its processes are told to nobody
 *     link <gpu> <bus id of the other end>                        NVLink, 25,000 MB/s each way
 *     xid <gpu> <number>                                          an error; each is told once
 *     use <gpu> <percent> <MiB> <mW> <°C>                         what it does; without such a line nobody can say
 *     mute <gpu> <percent|used|watts|celsius>                      one call about what it does is not supported
 *     errs <gpu> <percent|used|watts|celsius>                      one call about what it does fails
 *     hangs <gpu>                                                 a call about what it does never returns
 *     stuck <gpu>                                                 no call about it ever returns
 *
 * Compiled with OLD_DRIVER it lacks what drivers of before 2020 lack.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, UNKNOWN = 999 };
enum { PERCENT, USED, WATTS, CELSIUS, CALLS };
enum { GPUS = 16, SLICES = 7, LINKS = 18, XIDS = 64, XID_EVENTS = 8, SPEED_COMMON = 90 };

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { const char *name_space; unsigned long long soft, hard, used; } Limits;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } Event;
typedef struct { unsigned multiprocessors, copy, decoder, encoder, jpeg, ofa, gpu_parts, compute_parts; unsigned long long mib; } Attributes;
typedef struct { unsigned id, scope; long long at, latency; int type, result; union { unsigned ui; double d; } value; } Field;

typedef struct Gpu {
    char profile[32];
    struct Gpu *slices[SLICES];
    char uuid[96], bus_id[32], name[96], ends[LINKS][32];
    unsigned long long mib, kept;
    unsigned processes, links;
    int lost, remap, mig, closed, secret, hangs, stuck, is_used, percent, watts_m, celsius;
    unsigned long long used;
    int answers[CALLS]; /* what each call about what it does returns, if not OK */
} Gpu;

static const char *const CALL[CALLS] = {"percent", "used", "watts", "celsius"};

static __thread struct { Gpu gpus[GPUS], slices[GPUS * SLICES]; struct { int gpu; unsigned long long mib; char path[256]; } limits[GPUS]; int limited, count, cut, nameless, gone, xids, xid_gpu[XIDS], xid[XIDS]; } now;
static int told; /* how many errors the caller has heard of */

static void look(void) {
    char line[512];
    FILE *file = fopen(getenv("NVML_STUB"), "r");
    memset(&now, 0, sizeof now);
    if (!file) { now.gone = 1; return; }
    while (fgets(line, sizeof line, file)) {
        Gpu gpu = {0};
        char end[32];
        int index, number;
        if (!strncmp(line, "driver gone", 11)) now.gone = 1;
        if (sscanf(line, "gpu %95s %31s %llu %u %95[^\n]", gpu.uuid, gpu.bus_id, &gpu.mib, &gpu.processes, gpu.name) == 5)
            now.gpus[now.count++] = gpu;
        if (sscanf(line, "lost %d", &index) == 1) now.gpus[index].lost = 1;
        if (sscanf(line, "limit %d %llu %255s", &now.limits[now.limited].gpu, &now.limits[now.limited].mib, now.limits[now.limited].path) == 3)
            now.limited++;
        if (sscanf(line, "keeps %d %llu", &index, &gpu.kept) == 2) now.gpus[index].kept = gpu.kept;
        if (sscanf(line, "remap %d", &index) == 1) now.gpus[index].remap = 1;
        if (sscanf(line, "mig %d", &index) == 1) now.gpus[index].mig = 1;
        if (sscanf(line, "closed %d", &index) == 1) now.gpus[index].closed = 1;
        if (!strncmp(line, "nameless", 8)) now.nameless = 1;
        if (sscanf(line, "slice %d %d %95s %llu %u %31s", &index, &number, gpu.uuid, &gpu.mib, &gpu.processes, gpu.profile) == 6) {
            Gpu *slice = &now.slices[now.cut++];
            *slice = gpu;
            snprintf(slice->name, sizeof slice->name, "%.50s MIG %.31s", now.gpus[index].name, gpu.profile);
            now.gpus[index].slices[number] = slice;
        }
        if (sscanf(line, "hangs %d", &index) == 1) now.gpus[index].hangs = 1;
        if (sscanf(line, "stuck %d", &index) == 1) now.gpus[index].stuck = 1;
        if (sscanf(line, "use %d %d %llu %d %d", &index, &gpu.percent, &gpu.used, &gpu.watts_m, &gpu.celsius) == 5) {
            Gpu *it = &now.gpus[index];
            it->is_used = 1, it->percent = gpu.percent, it->used = gpu.used, it->watts_m = gpu.watts_m, it->celsius = gpu.celsius;
        }
        for (int call = 0; call < CALLS; call++) {
            char word[32];
            if (sscanf(line, "mute %d %31s", &index, word) == 2 && !strcmp(word, CALL[call]))
                now.gpus[index].answers[call] = NOT_SUPPORTED;
            if (sscanf(line, "errs %d %31s", &index, word) == 2 && !strcmp(word, CALL[call]))
                now.gpus[index].answers[call] = UNKNOWN;
        }
        if (sscanf(line, "secret %d", &index) == 1) now.gpus[index].secret = 1;
        if (sscanf(line, "link %d %31s", &index, end) == 2) strcpy(now.gpus[index].ends[now.gpus[index].links++], end);
        if (sscanf(line, "xid %d %d", &index, &number) == 2) { now.xid_gpu[now.xids] = index; now.xid[now.xids++] = number; }
    }
    fclose(file);
}

/* A handle is the index plus one, so that none is null; of a slice its number plus one besides, in hundreds. */
static int gpu_of(void *handle, Gpu **gpu) {
    look();
    long index = (long)handle % 100 - 1, slice = (long)handle / 100 - 1;
    if (now.gone) return UNINITIALIZED;
    if (index < 0 || index >= now.count) return INVALID_ARGUMENT;
    Gpu *whole = *gpu = &now.gpus[index];
    while (whole->stuck) pause();
    if (whole->lost) return GPU_IS_LOST;
    if (slice >= 0) *gpu = whole->slices[slice];
    return *gpu ? OK : INVALID_ARGUMENT;
}

#define GPU Gpu *gpu; int no = gpu_of(handle, &gpu); if (no) return no;

int nvmlInitWithFlags(unsigned flags) { (void)flags; look(); return now.gone ? DRIVER_NOT_LOADED : OK; }
int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int error) {
    switch (error) {
    case UNINITIALIZED: return "Uninitialized";
    case NOT_SUPPORTED: return "Not Supported";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

int nvmlDeviceGetCount_v2(unsigned *count) { look(); *count = now.count; return now.gone ? UNINITIALIZED : OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    Gpu *gpu;
    *handle = (void *)((long)index + 1);
    return gpu_of(*handle, &gpu);
}
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned size) { GPU snprintf(uuid, size, "%s", gpu->uuid); return OK; }
int nvmlDeviceGetName(void *handle, char *name, unsigned size) {
    GPU
    snprintf(name, size, "%s", gpu->name);
    if (now.nameless && *gpu->profile) strstr(name, " MIG ")[0] = 0;
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    GPU
    if (gpu->closed) return NO_PERMISSION;
    memory->total = gpu->mib << 20;
    memory->used = gpu->used << 20;
    return gpu->answers[USED];
}
int nvmlDeviceGetUtilizationRates(void *handle, Utilization *rates) {
    GPU
    while (gpu->hangs) pause();
    rates->gpu = gpu->percent;
    return gpu->is_used ? gpu->answers[PERCENT] : NOT_SUPPORTED;
}
int nvmlDeviceGetPowerUsage(void *handle, unsigned *mw) { GPU *mw = gpu->watts_m; return gpu->is_used ? gpu->answers[WATTS] : NOT_SUPPORTED; }
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) {
    GPU
    (void)sensor;
    *celsius = gpu->celsius;
    return gpu->is_used ? gpu->answers[CELSIUS] : NOT_SUPPORTED;
}
int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) { GPU strcpy(pci->bus_id, gpu->bus_id); return OK; }

int nvmlEventSetCreate(void **set) { *set = &told; return OK; }
int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *types) { GPU *types = XID_EVENTS; return OK; }
int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) { GPU (void)types; (void)set; return OK; }
int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
    (void)set;
    for (unsigned waited = 0; waited <= timeout_ms; waited += 20) {
        look();
        if (now.gone) return UNINITIALIZED;
        if (told < now.xids) {
            event->device = (void *)((long)now.xid_gpu[told] + 1);
            event->type = XID_EVENTS;
            event->data = now.xid[told++];
            return OK;
        }
        usleep(20000);
    }
    return TIMEOUT;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory2 *memory) {
    GPU
    if (memory->version != 0x02000028) return INVALID_ARGUMENT;
    memory->total = gpu->mib << 20;
    memory->reserved = gpu->kept << 20;
    return OK;
}
int nvmlDeviceGetMemoryLimits_v1(void *handle, Limits *limits) {
    GPU
    for (int i = 0; i < now.limited; i++)
        if (gpu == &now.gpus[now.limits[i].gpu] && !strcmp(now.limits[i].path, limits->name_space)) {
            limits->hard = now.limits[i].mib ? now.limits[i].mib << 20 : ~0ULL;
            return OK;
        }
    return strstr(limits->name_space, "gone") ? UNKNOWN : 6; /* not found */
}
int nvmlSystemGetDriverVersion(char *version, unsigned size) { snprintf(version, size, "550.54.15"); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12040; return OK; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) { GPU *major = 8; *minor = 0; return OK; }
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) {
    GPU
    if (link >= LINKS) return INVALID_ARGUMENT;
    *active = link < gpu->links;
    return gpu->links ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, Pci *pci) { GPU strcpy(pci->bus_id, gpu->ends[link]); return OK; }
int nvmlDeviceGetFieldValues(void *handle, int count, Field *fields) {
    GPU
    for (int i = 0; i < count; i++) {
        fields[i].result = fields[i].id == SPEED_COMMON ? OK : NOT_SUPPORTED;
        fields[i].value.ui = 25000;
    }
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, void *infos) {
    GPU
    if (gpu->secret) return NO_PERMISSION;
    if (infos) memset(infos, 0, 24 * gpu->processes);
    int is_too_small = *count < gpu->processes;
    *count = gpu->processes;
    return is_too_small ? 7 : OK;
}
int nvmlDeviceGetRemappedRows(void *handle, unsigned *right, unsigned *wrong, unsigned *pending, unsigned *failed) {
    GPU
    *right = *wrong = *failed = 0;
    *pending = gpu->remap;
    return OK;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) { GPU *current = *pending = gpu->mig; return OK; }
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { GPU *count = SLICES; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned number, void **slice) {
    GPU
    *slice = (void *)((long)handle + 100 * ((long)number + 1));
    return gpu->slices[number] ? OK : NOT_FOUND;
}
int nvmlDeviceGetAttributes_v2(void *handle, Attributes *parts) {
    GPU
    if (sscanf(gpu->profile, "%uc.%ug", &parts->compute_parts, &parts->gpu_parts) != 2) {
        sscanf(gpu->profile, "%ug", &parts->gpu_parts);
        parts->compute_parts = parts->gpu_parts;
    }
    return OK;
}
#endif
