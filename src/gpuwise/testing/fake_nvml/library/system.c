/* The library itself, the system, and which cards there are. */
#include "state.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

typedef struct device Dev;

NVML(nvmlInit, void) { GUARDED(enter_init(f_nvmlInit)); return OK; }
NVML(nvmlInit_v2, void) { GUARDED(enter_init(f_nvmlInit_v2)); return OK; }
NVML(nvmlInitWithFlags, unsigned flags) { (void)flags; GUARDED(enter_init(f_nvmlInitWithFlags)); return OK; }
NVML(nvmlShutdown, void) { GUARDED(leave_library(f_nvmlShutdown)); return OK; }

__attribute__((visibility("default"))) const char *nvmlErrorString(int code) {
    static const char *const words[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
        "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires restart",
        "The operating system has blocked the request.", "RM has detected an NVML/RM version mismatch.", "In use by another client",
        "Insufficient Memory", "No data", "vGPU ECC not supported", "Insufficient resources", "Frequency not supported",
        "Argument version mismatch", "Deprecated", "System not ready", "GPU not found", "Invalid state", "Reset type not supported"};
    return code >= 0 && code < (int)(sizeof words / sizeof *words) ? words[code] : "Unknown Error";
}

NVML(nvmlSystemGetDriverVersion, char *out, unsigned size) {
    ENTER_SYSTEM(nvmlSystemGetDriverVersion);
    return put_text(state.driver, out, size);
}

NVML(nvmlSystemGetNVMLVersion, char *out, unsigned size) {
    ENTER_ANYTIME(nvmlSystemGetNVMLVersion);
    return put_text(state.nvml, out, size);
}

NVML(nvmlSystemGetCudaDriverVersion, int *out) {
    ENTER_ANYTIME(nvmlSystemGetCudaDriverVersion);
    NEED(out);
    *out = state.cuda;
    return OK;
}

NVML(nvmlSystemGetCudaDriverVersion_v2, int *out) {
    ENTER_ANYTIME(nvmlSystemGetCudaDriverVersion_v2);
    NEED(out);
    *out = state.cuda;
    return OK;
}

NVML(nvmlSystemGetProcessName, unsigned pid, char *out, unsigned size) {
    ENTER_SYSTEM(nvmlSystemGetProcessName);
    NEED(out && size);
    for (int i = 0; i < state.n_names; i++) {
        if (state.names[i].pid != pid) continue;
        snprintf(out, size, "%s", state.names[i].name);
        return OK;
    }
    return NOT_FOUND;
}

NVML(nvmlUnitGetCount, unsigned *out) {
    ENTER_SYSTEM(nvmlUnitGetCount);
    NEED(out);
    *out = 0;
    return OK;
}

NVML(nvmlSystemGetHicVersion, unsigned *count, void *entries) {
    ENTER_SYSTEM(nvmlSystemGetHicVersion);
    (void)entries;
    NEED(count);
    *count = 0;
    return OK;
}

#define GET_COUNT(name)                \
    NVML(name, unsigned *out) {        \
        ENTER_SYSTEM(name);            \
        NEED(out);                     \
        *out = (unsigned)state.n_gpus; \
        return OK;                     \
    }
GET_COUNT(nvmlDeviceGetCount)
GET_COUNT(nvmlDeviceGetCount_v2)

/* A lost card has no handle any more. */
static int handle_of(int gpu, Dev **out) {
    double lost;
    NEED(out);
    if (gpu < 0 || gpu >= state.n_gpus) return INVALID_ARGUMENT;
    if (number_of(&devices[gpu], n_lost, &lost) == OK && lost > 0) return (int)lost;
    *out = &devices[gpu];
    return OK;
}

#define GET_BY_INDEX(name)                                              \
    NVML(name, unsigned index, Dev **out) {                             \
        ENTER_SYSTEM(name);                                             \
        return handle_of(index < MAX_GPUS ? (int)index : -1, out);      \
    }
GET_BY_INDEX(nvmlDeviceGetHandleByIndex)
GET_BY_INDEX(nvmlDeviceGetHandleByIndex_v2)

static int by_uuid(const char *uuid, Dev **out) {
    NEED(uuid && out);
    for (int g = 0; g < state.n_gpus; g++) {
        if (!strcmp(state.gpus[g].texts[t_uuid], uuid)) return handle_of(g, out);
        for (int m = 0; m < state.gpus[g].n_mig; m++)
            if (!strcmp(state.gpus[g].mig[m].uuid, uuid)) return *out = &mig_devices[g][m], OK;
    }
    return NOT_FOUND;
}

NVML(nvmlDeviceGetHandleByUUID, const char *uuid, Dev **out) { ENTER_SYSTEM(nvmlDeviceGetHandleByUUID); return by_uuid(uuid, out); }

/* kind 1 is the text; the bytes are of no client that is known */
struct uuid { unsigned version, kind; char text[44]; };
NVML(nvmlDeviceGetHandleByUUIDV, const struct uuid *uuid, Dev **out) {
    ENTER_SYSTEM(nvmlDeviceGetHandleByUUIDV);
    NEED(uuid && uuid->kind == 1);
    return by_uuid(uuid->text, out);
}

NVML(nvmlDeviceGetHandleBySerial, const char *serial, Dev **out) {
    ENTER_SYSTEM(nvmlDeviceGetHandleBySerial);
    NEED(serial && out);
    for (int g = 0; g < state.n_gpus; g++)
        if (state.gpus[g].texts[t_serial][0] && !strcmp(state.gpus[g].texts[t_serial], serial)) return handle_of(g, out);
    return NOT_FOUND;
}

struct pci { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; };

static int pci_of(const Dev *device, struct pci *out) {
    double domain, bus, slot, id = 0, subsystem = 0;
    NEED(out);
    if (number_of(device, n_pci_domain, &domain) || number_of(device, n_pci_bus, &bus) || number_of(device, n_pci_device, &slot))
        return NOT_SUPPORTED;
    number_of(device, n_pci_device_id, &id);
    number_of(device, n_pci_subsystem_id, &subsystem);
    *out = (struct pci){"", clamp_unsigned(domain), clamp_unsigned(bus), clamp_unsigned(slot), clamp_unsigned(id), clamp_unsigned(subsystem), ""};
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", out->domain, out->bus & 0xff, out->device & 0xff);
    return OK;
}

static int by_bus_id(const char *wanted, Dev **out) {
    NEED(wanted && out);
    unsigned domain, bus, slot;
    if (sscanf(wanted, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(wanted, "%x:%x", &bus, &slot) != 2) return INVALID_ARGUMENT;
    }
    for (int g = 0; g < state.n_gpus; g++) {
        struct pci pci;
        if (pci_of(&devices[g], &pci) == OK && pci.domain == domain && pci.bus == bus && pci.device == slot) return handle_of(g, out);
    }
    return NOT_FOUND;
}

NVML(nvmlDeviceGetHandleByPciBusId, const char *id, Dev **out) { ENTER_SYSTEM(nvmlDeviceGetHandleByPciBusId); return by_bus_id(id, out); }
NVML(nvmlDeviceGetHandleByPciBusId_v2, const char *id, Dev **out) { ENTER_SYSTEM(nvmlDeviceGetHandleByPciBusId_v2); return by_bus_id(id, out); }
NVML(nvmlDeviceGetPciInfo_v3, Dev *d, struct pci *out) { ENTER(nvmlDeviceGetPciInfo_v3, d); return pci_of(d, out); }

/* The older forms: no long bus id. */
static int old_pci(const Dev *device, void *out, size_t size) {
    struct pci pci;
    NEED(out);
    int code = pci_of(device, &pci);
    if (code == OK) memcpy(out, &pci, size);
    return code;
}

NVML(nvmlDeviceGetPciInfo, Dev *d, void *out) { ENTER(nvmlDeviceGetPciInfo, d); return old_pci(d, out, offsetof(struct pci, bus_id)); }
NVML(nvmlDeviceGetPciInfo_v2, Dev *d, void *out) { ENTER(nvmlDeviceGetPciInfo_v2, d); return old_pci(d, out, offsetof(struct pci, bus_id)); }

NVML(nvmlDeviceGetIndex, Dev *d, unsigned *out) {
    ENTER(nvmlDeviceGetIndex, d);
    NEED(out);
    *out = (unsigned)(d->mig >= 0 ? d->mig : d->gpu);
    return OK;
}

NVML(nvmlDeviceGetName, Dev *d, char *out, unsigned size) {
    ENTER(nvmlDeviceGetName, d);
    return put_text(d->mig >= 0 ? GPU(d)->mig[d->mig].name : GPU(d)->texts[t_name], out, size);
}

NVML(nvmlDeviceGetUUID, Dev *d, char *out, unsigned size) {
    ENTER(nvmlDeviceGetUUID, d);
    return put_text(d->mig >= 0 ? GPU(d)->mig[d->mig].uuid : GPU(d)->texts[t_uuid], out, size);
}

#define GET_TEXT(name, id)                              \
    NVML(name, Dev *d, char *out, unsigned size) {      \
        ENTER(name, d);                                 \
        return put_text(GPU(d)->texts[id], out, size);  \
    }
GET_TEXT(nvmlDeviceGetSerial, t_serial)
GET_TEXT(nvmlDeviceGetVbiosVersion, t_vbios)
GET_TEXT(nvmlDeviceGetBoardPartNumber, t_board_part_number)
GET_TEXT(nvmlDeviceGetInforomImageVersion, t_inforom)

NVML(nvmlDeviceGetGspFirmwareVersion, Dev *d, char *out) {
    ENTER(nvmlDeviceGetGspFirmwareVersion, d);
    return put_text(GPU(d)->texts[t_gsp_version], out, TEXT_BYTES);
}

NVML(nvmlDeviceGetGspFirmwareMode, Dev *d, unsigned *enabled, unsigned *by_default) {
    ENTER(nvmlDeviceGetGspFirmwareMode, d);
    int code = put_unsigned(d, n_gsp_mode, 1, by_default);
    return code ? code : put_unsigned(d, n_gsp_mode, 1, enabled);
}

NVML(nvmlDeviceGetCudaComputeCapability, Dev *d, int *major, int *minor) {
    ENTER(nvmlDeviceGetCudaComputeCapability, d);
    int code = put_unsigned(d, n_compute_capability_major, 1, (unsigned *)major);
    return code ? code : put_unsigned(d, n_compute_capability_minor, 1, (unsigned *)minor);
}

/* ---- MIG ---- */

NVML(nvmlDeviceGetMigMode, Dev *d, unsigned *now, unsigned *pending) {
    ENTER(nvmlDeviceGetMigMode, d);
    int code = put_unsigned(d, n_mig, 1, now);
    if (code) return code;
    return put_unsigned(d, n_mig_pending, 1, pending) == OK ? OK : put_unsigned(d, n_mig, 1, pending);
}

NVML(nvmlDeviceGetMaxMigDeviceCount, Dev *d, unsigned *out) {
    double mig;
    ENTER(nvmlDeviceGetMaxMigDeviceCount, d);
    NEED(out);
    *out = number_of(d, n_mig, &mig) == OK ? 7 : 0;
    return OK;
}

NVML(nvmlDeviceGetMigDeviceHandleByIndex, Dev *d, unsigned index, Dev **out) {
    ENTER(nvmlDeviceGetMigDeviceHandleByIndex, d);
    NEED(out);
    if (d->mig >= 0 || index >= MAX_MIG) return INVALID_ARGUMENT;
    if ((int)index >= GPU(d)->n_mig) return NOT_FOUND;
    *out = &mig_devices[d->gpu][index];
    return OK;
}

NVML(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, Dev *d, Dev **out) {
    ENTER(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, d);
    NEED(out);
    if (d->mig < 0) return INVALID_ARGUMENT;
    *out = &devices[d->gpu];
    return OK;
}

NVML(nvmlDeviceIsMigDeviceHandle, Dev *d, unsigned *out) {
    ENTER(nvmlDeviceIsMigDeviceHandle, d);
    NEED(out);
    *out = d->mig >= 0;
    return OK;
}

#define GET_INSTANCE(name, which)             \
    NVML(name, Dev *d, unsigned *out) {       \
        ENTER(name, d);                       \
        NEED(out);                            \
        if (d->mig < 0) return NOT_SUPPORTED; \
        *out = GPU(d)->mig[d->mig].which;     \
        return OK;                            \
    }
GET_INSTANCE(nvmlDeviceGetGpuInstanceId, gpu_instance)
GET_INSTANCE(nvmlDeviceGetComputeInstanceId, compute_instance)
