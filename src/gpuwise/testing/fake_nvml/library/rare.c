/* What few clients ask: modes that are off on these cards, counts that are zero, and what they do not have. */
#include "state.h"

#include <string.h>

typedef struct device Dev;
typedef unsigned long long u64;

#define FORM(type, number) (sizeof(type) | (unsigned)(number) << 24)

/* ---- of the system ---- */

NVML(nvmlGetExcludedDeviceCount, unsigned *out) {
    ENTER_SYSTEM(nvmlGetExcludedDeviceCount);
    NEED(out);
    *out = 0;
    return OK;
}

struct confidential { unsigned environment, feature, tools; };
NVML(nvmlSystemGetConfComputeState, struct confidential *out) {
    ENTER_SYSTEM(nvmlSystemGetConfComputeState);
    NEED(out);
    *out = (struct confidential){0, 0, 0};
    return OK;
}

NVML(nvmlSystemGetConfComputeCapabilities, unsigned out[2]) {
    ENTER_SYSTEM(nvmlSystemGetConfComputeCapabilities);
    NEED(out);
    out[0] = out[1] = 0;
    return OK;
}

#define REFUSE_SYSTEM(name) \
    NVML(name, void *out) { (void)out; ENTER_SYSTEM(name); return NOT_SUPPORTED; }
REFUSE_SYSTEM(nvmlSystemGetConfComputeGpusReadyState)
REFUSE_SYSTEM(nvmlSystemGetConfComputeKeyRotationThresholdInfo)
REFUSE_SYSTEM(nvmlSystemGetConfComputeSettings)
REFUSE_SYSTEM(nvmlSystemGetNvlinkBwMode)
REFUSE_SYSTEM(nvmlSystemGetDriverBranch)
NVML(nvmlGetVgpuVersion, void *supported, void *current) {
    (void)supported, (void)current;
    ENTER_SYSTEM(nvmlGetVgpuVersion);
    return NOT_SUPPORTED;
}

/* ---- of a card ---- */

/* Enough for the accounting of as many processes as a driver keeps; none is kept while it is off. */
NVML(nvmlDeviceGetAccountingBufferSize, Dev *d, unsigned *out) {
    double accounting;
    ENTER(nvmlDeviceGetAccountingBufferSize, d);
    NEED(out);
    int code = number_of(d, n_accounting, &accounting);
    if (code == OK) *out = 4000;
    return code;
}

NVML(nvmlDeviceGetAccountingPids, Dev *d, unsigned *count, unsigned *pids) {
    double accounting;
    (void)pids;
    ENTER(nvmlDeviceGetAccountingPids, d);
    NEED(count);
    int code = number_of(d, n_accounting, &accounting);
    if (code == OK) *count = 0;
    return code;
}

NVML(nvmlDeviceGetAdaptiveClockInfoStatus, Dev *d, unsigned *out) {
    ENTER(nvmlDeviceGetAdaptiveClockInfoStatus, d);
    NEED(out);
    *out = 0;
    return OK;
}

/* No clock domain is at fault. */
struct clock_monitor { unsigned version, faulty, n; struct { unsigned domain, faults; } of[32]; };
NVML(nvmlDeviceGetClkMonStatus, Dev *d, struct clock_monitor *out) {
    ENTER(nvmlDeviceGetClkMonStatus, d);
    NEED(out);
    out->faulty = out->n = 0;
    return OK;
}

/* Use by engine: processor, frame buffer, video, bus; the last four are of no meaning. */
struct engine { unsigned there, percent, up, down; };
struct engines { unsigned flags; struct engine of[8]; };
NVML(nvmlDeviceGetDynamicPstatesInfo, Dev *d, struct engines *out) {
    static const enum number_id ids[] = {n_utilization, n_memory_utilization, n_decoder_utilization};
    ENTER(nvmlDeviceGetDynamicPstatesInfo, d);
    NEED(out);
    memset(out, 0, sizeof *out);
    for (int i = 0; i < 3; i++) out->of[i].there = put_unsigned(d, ids[i], 100, &out->of[i].percent) == OK;
    return OK;
}

/* Offsets of a curve of clocks: of GeForce only, which have fans. */
#define GET_OFFSET(name)                  \
    NVML(name, Dev *d, int *out) {        \
        double fans;                      \
        ENTER(name, d);                   \
        NEED(out);                        \
        int code = number_of(d, n_n_fans, &fans); \
        if (code == OK) *out = 0;         \
        return code;                      \
    }
GET_OFFSET(nvmlDeviceGetGpcClkVfOffset)
GET_OFFSET(nvmlDeviceGetMemClkVfOffset)

struct repair { unsigned version, channel, processor; };
NVML(nvmlDeviceGetRepairStatus, Dev *d, struct repair *out) {
    double rows;
    ENTER(nvmlDeviceGetRepairStatus, d);
    NEED(out);
    if (out->version != FORM(struct repair, 1)) return VERSION_MISMATCH;
    int code = number_of(d, n_remap_pending, &rows);
    if (code == OK) out->channel = out->processor = 0;
    return code;
}

NVML(nvmlDeviceGetUnrepairableMemoryFlag_v1, Dev *d, unsigned *out) {
    ENTER(nvmlDeviceGetUnrepairableMemoryFlag_v1, d);
    return put_unsigned(d, n_remap_failed, 1, out);
}

/* As an H100 has it (driver 580): no shared page tables, no chip beside it, nothing encrypted. */
struct addressing { unsigned version, value; };
NVML(nvmlDeviceGetAddressingMode, Dev *d, struct addressing *out) {
    ENTER(nvmlDeviceGetAddressingMode, d);
    NEED(out);
    if (out->version != FORM(struct addressing, 1)) return VERSION_MISMATCH;
    out->value = 0;
    return OK;
}

NVML(nvmlDeviceGetC2cModeInfoV, Dev *d, unsigned *out) {
    double ecc;
    ENTER(nvmlDeviceGetC2cModeInfoV, d);
    NEED(out);
    int code = number_of(d, n_ecc, &ecc);
    if (code == OK) *out = 0;
    return code;
}

NVML(nvmlDeviceGetConfComputeProtectedMemoryUsage, Dev *d, u64 out[3]) {
    ENTER(nvmlDeviceGetConfComputeProtectedMemoryUsage, d);
    NEED(out);
    memset(out, 0, 3 * sizeof *out);
    return OK;
}

/* The errors that are played are all of the device's memory, none of its static one. */
struct sram_errors { unsigned version; u64 counts[11]; unsigned exceeded; };
NVML(nvmlDeviceGetSramEccErrorStatus, Dev *d, struct sram_errors *out) {
    double ecc;
    ENTER(nvmlDeviceGetSramEccErrorStatus, d);
    NEED(out);
    if (out->version != FORM(struct sram_errors, 1)) return VERSION_MISMATCH;
    int code = number_of(d, n_ecc, &ecc);
    if (code == OK) *out = (struct sram_errors){.version = out->version};
    return code;
}

/* Whatever arguments follow the card are left alone. */
#define REFUSE_CARD(name) \
    NVML(name, Dev *d) { ENTER(name, d); return NOT_SUPPORTED; }
REFUSE_CARD(nvmlDeviceGetActiveVgpus)
REFUSE_CARD(nvmlDeviceGetBBXTimeData_v1)
REFUSE_CARD(nvmlDeviceGetConfComputeGpuAttestationReport)
REFUSE_CARD(nvmlDeviceGetConfComputeGpuCertificate)
REFUSE_CARD(nvmlDeviceGetCoolerInfo)
REFUSE_CARD(nvmlDeviceGetCreatableVgpus)
REFUSE_CARD(nvmlDeviceGetCurrentClockFreqs)
REFUSE_CARD(nvmlDeviceGetDramEncryptionMode)
REFUSE_CARD(nvmlDeviceGetFBCSessions)
REFUSE_CARD(nvmlDeviceGetGpcClkMinMaxVfOffset)
REFUSE_CARD(nvmlDeviceGetGridLicensableFeatures)
REFUSE_CARD(nvmlDeviceGetGridLicensableFeatures_v2)
REFUSE_CARD(nvmlDeviceGetGridLicensableFeatures_v3)
REFUSE_CARD(nvmlDeviceGetGridLicensableFeatures_v4)
REFUSE_CARD(nvmlDeviceGetHostVgpuMode)
REFUSE_CARD(nvmlDeviceGetHostname_v1)
REFUSE_CARD(nvmlDeviceGetInforomConfigurationChecksum)
REFUSE_CARD(nvmlDeviceGetIrqNum)
REFUSE_CARD(nvmlDeviceGetLastBBXFlushTime)
REFUSE_CARD(nvmlDeviceGetMemClkMinMaxVfOffset)
REFUSE_CARD(nvmlDeviceGetPdi)
REFUSE_CARD(nvmlDeviceGetPerformanceModes)
REFUSE_CARD(nvmlDeviceGetPgpuMetadataString)
REFUSE_CARD(nvmlDeviceGetSupportedVgpus)
REFUSE_CARD(nvmlDeviceGetVgpuHeterogeneousMode)
REFUSE_CARD(nvmlDeviceGetVgpuMetadata)
REFUSE_CARD(nvmlDeviceGetVgpuSchedulerCapabilities)
REFUSE_CARD(nvmlDeviceGetVgpuSchedulerLog)
REFUSE_CARD(nvmlDeviceGetVgpuSchedulerState)
REFUSE_CARD(nvmlDeviceGetVgpuUtilization)
REFUSE_CARD(nvmlDeviceGetVgpuProcessUtilization)
REFUSE_CARD(nvmlDeviceGetCapabilities)
REFUSE_CARD(nvmlDeviceGetClockOffsets)
REFUSE_CARD(nvmlDeviceGetGpuFabricInfoV)
REFUSE_CARD(nvmlDeviceGetGpuInstanceById)
REFUSE_CARD(nvmlDeviceGetGpuInstanceRemainingCapacity)
REFUSE_CARD(nvmlDeviceGetGpuInstances)
REFUSE_CARD(nvmlDeviceGetNvLinkUtilizationControl)
REFUSE_CARD(nvmlDeviceGetNvlinkBwMode)
REFUSE_CARD(nvmlDeviceGetNvlinkSupportedBwModes)
REFUSE_CARD(nvmlDeviceGetPlatformInfo)
REFUSE_CARD(nvmlDeviceGetProcessesUtilizationInfo)
REFUSE_CARD(nvmlDeviceGetThermalSettings)
REFUSE_CARD(nvmlDeviceGetVgpuCapabilities)
REFUSE_CARD(nvmlDeviceGetVgpuInstancesUtilizationInfo)
REFUSE_CARD(nvmlDeviceGetVgpuProcessesUtilizationInfo)
REFUSE_CARD(nvmlDeviceGetVgpuTypeCreatablePlacements)
REFUSE_CARD(nvmlDeviceGetVgpuTypeSupportedPlacements)
REFUSE_CARD(nvmlDeviceWorkloadPowerProfileGetCurrentProfiles)
REFUSE_CARD(nvmlDeviceWorkloadPowerProfileGetProfilesInfo)
REFUSE_CARD(nvmlDeviceValidateInforom)
REFUSE_CARD(nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts)
