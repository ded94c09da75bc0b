/* Stands in for NVIDIA's management library, so that its real Python binding runs without a card.
 *
 * Every call reads the file $NVML_STUB anew; a line is one fact:
 *
 *     driver gone                                                  there is a library, and no driver
 *     card <uuid> <bus id> <MiB> <processes> <name with spaces>    in the order of their indices
 *     lost <card>                                                  it does not answer any more
 *     remap <card>                                                 memory rows wait for a reset
 *     mig <card>                                                   it is cut into slices
 *     secret <card>                                                its processes are told to nobody
 *     link <card> <bus id of the other end>                        NVLink, 25,000 MB/s each way
 *     xid <card> <number>                                          an error; each is told once
 *
 * Compiled with OLD_DRIVER it lacks what drivers of before 2020 lack.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15 };
enum { CARDS = 16, LINKS = 18, XIDS = 64, XID_EVENTS = 8, SPEED_COMMON = 90 };

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } Event;
typedef struct { unsigned id, scope; long long at, latency; int type, result; union { unsigned ui; double d; } value; } Field;

typedef struct {
    char uuid[96], bus_id[32], name[96], ends[LINKS][32];
    unsigned long long mib;
    unsigned processes, links;
    int lost, remap, mig, secret;
} Card;

static struct { Card cards[CARDS]; int count, gone, xids, xid_card[XIDS], xid[XIDS]; } now;
static int told; /* how many errors the caller has heard of */

static void look(void) {
    char line[512];
    FILE *file = fopen(getenv("NVML_STUB"), "r");
    memset(&now, 0, sizeof now);
    if (!file) { now.gone = 1; return; }
    while (fgets(line, sizeof line, file)) {
        Card card = {0};
        char end[32];
        int index, number;
        if (!strncmp(line, "driver gone", 11)) now.gone = 1;
        if (sscanf(line, "card %95s %31s %llu %u %95[^\n]", card.uuid, card.bus_id, &card.mib, &card.processes, card.name) == 5)
            now.cards[now.count++] = card;
        if (sscanf(line, "lost %d", &index) == 1) now.cards[index].lost = 1;
        if (sscanf(line, "remap %d", &index) == 1) now.cards[index].remap = 1;
        if (sscanf(line, "mig %d", &index) == 1) now.cards[index].mig = 1;
        if (sscanf(line, "secret %d", &index) == 1) now.cards[index].secret = 1;
        if (sscanf(line, "link %d %31s", &index, end) == 2) strcpy(now.cards[index].ends[now.cards[index].links++], end);
        if (sscanf(line, "xid %d %d", &index, &number) == 2) { now.xid_card[now.xids] = index; now.xid[now.xids++] = number; }
    }
    fclose(file);
}

/* A handle is the index plus one, so that none is null. */
static int card_of(void *handle, Card **card) {
    look();
    long index = (long)handle - 1;
    if (now.gone) return UNINITIALIZED;
    if (index < 0 || index >= now.count) return INVALID_ARGUMENT;
    *card = &now.cards[index];
    return (*card)->lost ? GPU_IS_LOST : OK;
}

#define CARD Card *card; int no = card_of(handle, &card); if (no) return no;

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
    Card *card;
    *handle = (void *)((long)index + 1);
    return card_of(*handle, &card);
}
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned size) { CARD snprintf(uuid, size, "%s", card->uuid); return OK; }
int nvmlDeviceGetName(void *handle, char *name, unsigned size) { CARD snprintf(name, size, "%s", card->name); return OK; }
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) { CARD memory->total = card->mib << 20; return OK; }
int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) { CARD strcpy(pci->bus_id, card->bus_id); return OK; }

int nvmlEventSetCreate(void **set) { *set = &told; return OK; }
int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *types) { CARD *types = XID_EVENTS; return OK; }
int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) { CARD (void)types; (void)set; return OK; }
int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
    (void)set;
    for (unsigned waited = 0; waited <= timeout_ms; waited += 20) {
        look();
        if (now.gone) return UNINITIALIZED;
        if (told < now.xids) {
            event->device = (void *)((long)now.xid_card[told] + 1);
            event->type = XID_EVENTS;
            event->data = now.xid[told++];
            return OK;
        }
        usleep(20000);
    }
    return TIMEOUT;
}

#ifndef OLD_DRIVER
int nvmlSystemGetDriverVersion(char *version, unsigned size) { snprintf(version, size, "550.54.15"); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12040; return OK; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) { CARD *major = 8; *minor = 0; return OK; }
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) {
    CARD
    if (link >= LINKS) return INVALID_ARGUMENT;
    *active = link < card->links;
    return card->links ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, Pci *pci) { CARD strcpy(pci->bus_id, card->ends[link]); return OK; }
int nvmlDeviceGetFieldValues(void *handle, int count, Field *fields) {
    CARD
    for (int i = 0; i < count; i++) {
        fields[i].result = fields[i].id == SPEED_COMMON ? OK : NOT_SUPPORTED;
        fields[i].value.ui = 25000;
    }
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, void *infos) {
    CARD
    if (card->secret) return NO_PERMISSION;
    if (infos) memset(infos, 0, 24 * card->processes);
    int is_too_small = *count < card->processes;
    *count = card->processes;
    return is_too_small ? 7 : OK;
}
int nvmlDeviceGetRemappedRows(void *handle, unsigned *right, unsigned *wrong, unsigned *pending, unsigned *failed) {
    CARD
    *right = *wrong = *failed = 0;
    *pending = card->remap;
    return OK;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) { CARD *current = *pending = card->mig; return OK; }
#endif
