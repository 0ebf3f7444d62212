/* Error counters, NVLink, peers, modes that come in pairs, and what this library refuses. */
#include "state.h"

#include <string.h>

typedef struct device Dev;
typedef unsigned long long u64;

NVML(nvmlDeviceGetEccMode, Dev *d, unsigned *now, unsigned *pending) {
    ENTER(nvmlDeviceGetEccMode, d);
    int code = put_unsigned(d, n_ecc, 1, now);
    if (code) return code;
    return put_unsigned(d, n_ecc_pending, 1, pending) == OK ? OK : put_unsigned(d, n_ecc, 1, pending);
}

static int ecc_total(const Dev *d, int uncorrected, int ever, u64 *out) {
    static const enum number_id ids[2][2] = {{n_ecc_corrected, n_ecc_corrected_ever}, {n_ecc_uncorrected, n_ecc_uncorrected_ever}};
    if ((uncorrected | ever) & ~1) return INVALID_ARGUMENT;
    return put_long(d, ids[uncorrected][ever], 1, out);
}

NVML(nvmlDeviceGetTotalEccErrors, Dev *d, int uncorrected, int ever, u64 *out) {
    ENTER(nvmlDeviceGetTotalEccErrors, d);
    return ecc_total(d, uncorrected, ever, out);
}

NVML(nvmlDeviceGetMemoryErrorCounter, Dev *d, int uncorrected, int ever, int where, u64 *out) {
    ENTER(nvmlDeviceGetMemoryErrorCounter, d);
    /* all are in the device's memory (2, or DRAM 1 by another name) */
    int code = ecc_total(d, uncorrected, ever, out);
    if (code == OK && where != 2) *out = 0;
    return code;
}

NVML(nvmlDeviceGetDetailedEccErrors, Dev *d, int uncorrected, int ever, u64 out[4]) {
    ENTER(nvmlDeviceGetDetailedEccErrors, d);
    NEED(out);
    memset(out, 0, 4 * sizeof *out);
    return ecc_total(d, uncorrected, ever, &out[2]);
}

NVML(nvmlDeviceGetDefaultEccMode, Dev *d, unsigned *out) { ENTER(nvmlDeviceGetDefaultEccMode, d); return put_unsigned(d, n_ecc, 1, out); }

NVML(nvmlDeviceGetRemappedRows, Dev *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ENTER(nvmlDeviceGetRemappedRows, d);
    int code = put_unsigned(d, n_remapped_rows_corrected, 1, corrected);
    if (code || (code = put_unsigned(d, n_remapped_rows_uncorrected, 1, uncorrected))) return code;
    code = put_unsigned(d, n_remap_pending, 1, pending);
    return code ? code : put_unsigned(d, n_remap_failed, 1, failed);
}

struct histogram { unsigned max, high, partial, low, none; };
NVML(nvmlDeviceGetRowRemapperHistogram, Dev *d, struct histogram *out) {
    ENTER(nvmlDeviceGetRowRemapperHistogram, d);
    NEED(out);
    *out = (struct histogram){0, 0, 0, 0, 0};
    put_unsigned(d, n_remap_banks_none, 1, &out->none);
    return put_unsigned(d, n_remap_banks_max, 1, &out->max);
}

static int retired(const Dev *d, int doubly, unsigned *count, u64 *addresses, u64 *times) {
    unsigned n;
    NEED(count);
    if (doubly != 0 && doubly != 1) return INVALID_ARGUMENT;
    int code = put_unsigned(d, doubly ? n_retired_pages_double : n_retired_pages_single, 1, &n);
    if (code) return code;
    unsigned room = *count;
    *count = n;
    if (room < n || (n && !addresses)) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++) {
        addresses[i] = 0x100000ull * (i + 1);
        if (times) times[i] = 0;
    }
    return OK;
}

NVML(nvmlDeviceGetRetiredPages, Dev *d, int cause, unsigned *count, u64 *addresses) {
    ENTER(nvmlDeviceGetRetiredPages, d);
    return retired(d, cause, count, addresses, NULL);
}

NVML(nvmlDeviceGetRetiredPages_v2, Dev *d, int cause, unsigned *count, u64 *addresses, u64 *times) {
    ENTER(nvmlDeviceGetRetiredPages_v2, d);
    return retired(d, cause, count, addresses, times);
}

struct violation { u64 reference_us, violation_ns; };
NVML(nvmlDeviceGetViolationStatus, Dev *d, int policy, struct violation *out) {
    static const enum number_id policies[] = {n_held_sw_power_cap_s, n_held_sw_thermal_s, n_held_sync_boost_s, n_held_board_limit_s,
                                              n_held_low_utilization_s, n_held_reliability_s};
    ENTER(nvmlDeviceGetViolationStatus, d);
    NEED(out);
    if (policy < 0 || policy > 11) return INVALID_ARGUMENT;
    out->reference_us = clamp_long(1e6 * now_s());
    return policy < 6 ? put_long(d, policies[policy], 1e9, &out->violation_ns) : NOT_SUPPORTED;
}

/* ---- NVLink: the first nvlinks_active of n_nvlinks are up ---- */

static int link_of(const Dev *d, unsigned link, int *up) {
    double n, active;
    if (number_of(d, n_n_nvlinks, &n)) return NOT_SUPPORTED;
    if (link >= n) return INVALID_ARGUMENT;
    *up = number_of(d, n_nvlinks_active, &active) ? 1 : link < active;
    return OK;
}

NVML(nvmlDeviceGetNvLinkState, Dev *d, unsigned link, unsigned *out) {
    int up;
    ENTER(nvmlDeviceGetNvLinkState, d);
    NEED(out);
    int code = link_of(d, link, &up);
    if (code == OK) *out = (unsigned)up;
    return code;
}

NVML(nvmlDeviceGetNvLinkVersion, Dev *d, unsigned link, unsigned *out) {
    int up, code;
    ENTER(nvmlDeviceGetNvLinkVersion, d);
    return (code = link_of(d, link, &up)) ? code : put_unsigned(d, n_nvlink_version, 1, out);
}

NVML(nvmlDeviceGetNvLinkCapability, Dev *d, unsigned link, int capability, unsigned *out) {
    int up, code;
    ENTER(nvmlDeviceGetNvLinkCapability, d);
    NEED(out);
    if (capability < 0 || capability > 5) return INVALID_ARGUMENT;
    if ((code = link_of(d, link, &up)) == OK) *out = (unsigned)up;
    return code;
}

/* Links are shared out among the other cards in turn; a switch reaches them all. */
static int other_end(const Dev *d, unsigned link) {
    int others = state.n_gpus - 1;
    if (others < 1) return -1;
    int other = (int)link % others;
    return other >= d->gpu ? other + 1 : other;
}

NVML(nvmlDeviceGetNvLinkRemoteDeviceType, Dev *d, unsigned link, unsigned *out) {
    int up, code;
    double by_switch = 0;
    ENTER(nvmlDeviceGetNvLinkRemoteDeviceType, d);
    NEED(out);
    if ((code = link_of(d, link, &up))) return code;
    number_of(d, n_nvlink_switch, &by_switch);
    *out = by_switch > 0 ? 2 : 0;
    return up ? OK : NOT_SUPPORTED;
}

struct pci { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; };
extern int nvmlDeviceGetPciInfo_v3(Dev *d, struct pci *out);

static int remote_pci(Dev *d, unsigned link, int *other) {
    int up, code = link_of(d, link, &up);
    double by_switch = 0;
    if (code) return code;
    number_of(d, n_nvlink_switch, &by_switch);
    *other = up && by_switch <= 0 ? other_end(d, link) : -1;
    return *other < 0 ? NOT_SUPPORTED : OK;
}

NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2, Dev *d, unsigned link, struct pci *out) {
    int other;
    {
        ENTER(nvmlDeviceGetNvLinkRemotePciInfo_v2, d);
        NEED(out);
        int code = remote_pci(d, link, &other);
        if (code) return code;
    }
    return nvmlDeviceGetPciInfo_v3(&devices[other], out);
}

NVML(nvmlDeviceGetNvLinkErrorCounter, Dev *d, unsigned link, int counter, u64 *out) {
    static const enum number_id counters[] = {n_nvlink_replays, n_nvlink_recoveries, n_nvlink_crc_errors};
    int up, code;
    ENTER(nvmlDeviceGetNvLinkErrorCounter, d);
    NEED(out);
    if (counter < 0 || counter > 4) return INVALID_ARGUMENT;
    if ((code = link_of(d, link, &up))) return code;
    *out = 0;
    /* all on the first link */
    return link == 0 && counter < 3 ? put_long(d, counters[counter], 1, out) : OK;
}

/* ---- peers ---- */

NVML(nvmlDeviceGetTopologyCommonAncestor, Dev *a, Dev *b, int *out) {
    double node_a = -1, node_b = -1;
    ENTER(nvmlDeviceGetTopologyCommonAncestor, a);
    NEED(out && b);
    number_of(a, n_numa_node, &node_a);
    number_of(b, n_numa_node, &node_b);
    int level = GPU(a)->peers[b->gpu].level;
    *out = a->gpu == b->gpu ? 0 : level ? level : node_a == node_b ? 40 : 50;
    return OK;
}

NVML(nvmlDeviceGetP2PStatus, Dev *a, Dev *b, int capability, int *out) {
    double links_a = 0, links_b = 0;
    ENTER(nvmlDeviceGetP2PStatus, a);
    NEED(out && b);
    if (capability < 0 || capability > 4) return INVALID_ARGUMENT;
    number_of(a, n_nvlinks_active, &links_a);
    number_of(b, n_nvlinks_active, &links_b);
    *out = capability == 2 ? (links_a > 0 && links_b > 0 ? 0 : 5) : GPU(a)->peers[b->gpu].status;
    return OK;
}

NVML(nvmlDeviceOnSameBoard, Dev *a, Dev *b, int *out) {
    double board_a = -1, board_b = -2;
    ENTER(nvmlDeviceOnSameBoard, a);
    NEED(out && b);
    number_of(a, n_board_id, &board_a);
    number_of(b, n_board_id, &board_b);
    *out = board_a == board_b;
    return OK;
}

NVML(nvmlDeviceGetTopologyNearestGpus, Dev *d, int level, unsigned *count, Dev **out) {
    ENTER(nvmlDeviceGetTopologyNearestGpus, d);
    NEED(count);
    unsigned room = *count, n = 0;
    for (int g = 0; level >= 40 && g < state.n_gpus; g++)
        if (g != d->gpu && n++ < room && out) out[n - 1] = &devices[g];
    *count = n;
    return OK;
}

/* Every processor and every memory node: the machine's own are not ours to know. */
#define GET_AFFINITY(name)                                          \
    NVML(name, Dev *d, unsigned n, unsigned long *out) {            \
        ENTER(name, d);                                             \
        NEED(out && n);                                             \
        memset(out, 0, n * sizeof *out);                            \
        out[0] = 1;                                                 \
        return OK;                                                  \
    }
GET_AFFINITY(nvmlDeviceGetCpuAffinity)
#define GET_SCOPED_AFFINITY(name)                                   \
    NVML(name, Dev *d, unsigned n, unsigned long *out, int scope) { \
        ENTER(name, d);                                             \
        (void)scope;                                                \
        NEED(out && n);                                             \
        memset(out, 0, n * sizeof *out);                            \
        out[0] = 1;                                                 \
        return OK;                                                  \
    }
GET_SCOPED_AFFINITY(nvmlDeviceGetCpuAffinityWithinScope)
GET_SCOPED_AFFINITY(nvmlDeviceGetMemoryAffinity)

/* ---- what Linux or these cards do not have, and what takes root ---- */

#define REFUSE(name, code, ...)   \
    NVML(name, Dev *d, __VA_ARGS__) { ENTER(name, d); return code; }
REFUSE(nvmlDeviceGetDriverModel, NOT_SUPPORTED, unsigned *a, unsigned *b)
REFUSE(nvmlDeviceGetDriverModel_v2, NOT_SUPPORTED, unsigned *a, unsigned *b)
REFUSE(nvmlDeviceGetBridgeChipInfo, NOT_SUPPORTED, void *a)
REFUSE(nvmlDeviceGetInforomVersion, NOT_SUPPORTED, int a, char *b, unsigned c)
REFUSE(nvmlDeviceGetAutoBoostedClocksEnabled, NOT_SUPPORTED, unsigned *a, unsigned *b)
REFUSE(nvmlDeviceGetAPIRestriction, NOT_SUPPORTED, int a, unsigned *b)
REFUSE(nvmlDeviceGetGpuOperationMode, NOT_SUPPORTED, unsigned *a, unsigned *b)
REFUSE(nvmlDeviceGetNvLinkUtilizationCounter, NOT_SUPPORTED, unsigned a, unsigned b, u64 *c, u64 *e)
REFUSE(nvmlDeviceGetAccountingStats, NOT_FOUND, unsigned a, void *b)
REFUSE(nvmlDeviceGetGpuFabricInfo, NOT_SUPPORTED, void *a)
REFUSE(nvmlDeviceGetConfComputeMemSizeInfo, NOT_SUPPORTED, void *a)
REFUSE(nvmlDeviceSetPersistenceMode, NO_PERMISSION, unsigned a)
REFUSE(nvmlDeviceSetPowerManagementLimit, NO_PERMISSION, unsigned a)
REFUSE(nvmlDeviceSetEccMode, NO_PERMISSION, unsigned a)
REFUSE(nvmlDeviceSetMigMode, NO_PERMISSION, unsigned a, int *b)
REFUSE(nvmlDeviceSetComputeMode, NO_PERMISSION, unsigned a)
REFUSE(nvmlDeviceSetGpuLockedClocks, NO_PERMISSION, unsigned a, unsigned b)
REFUSE(nvmlDeviceSetApplicationsClocks, NO_PERMISSION, unsigned a, unsigned b)
REFUSE(nvmlDeviceSetFanSpeed_v2, NO_PERMISSION, unsigned a, unsigned b)
REFUSE(nvmlDeviceSetDefaultFanSpeed_v2, NO_PERMISSION, unsigned a)
REFUSE(nvmlDeviceSetFanControlPolicy, NO_PERMISSION, unsigned a, unsigned b)
REFUSE(nvmlDeviceSetTemperatureThreshold, NO_PERMISSION, int a, int *b)
REFUSE(nvmlDeviceSetGpcClkVfOffset, NO_PERMISSION, int a)
REFUSE(nvmlDeviceSetMemClkVfOffset, NO_PERMISSION, int a)
REFUSE(nvmlDeviceSetMemoryLockedClocks, NO_PERMISSION, unsigned a, unsigned b)
