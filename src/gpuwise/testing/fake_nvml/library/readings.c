/* Readings of one number, and those of a few that belong together. */
#include "state.h"

typedef struct device Dev;
typedef unsigned long long u64;

/* A MIG device has no readings of the whole card. */
#define WHOLE(d) do { if ((d)->mig >= 0) return NOT_SUPPORTED; } while (0)

#define GET_UNSIGNED(name, id, scale)             \
    NVML(name, Dev *d, unsigned *out) {           \
        ENTER(name, d);                           \
        WHOLE(d);                                 \
        return put_unsigned(d, id, scale, out);   \
    }
GET_UNSIGNED(nvmlDeviceGetPowerUsage, n_power_w, 1e3)
GET_UNSIGNED(nvmlDeviceGetPowerManagementLimit, n_power_limit_w, 1e3)
GET_UNSIGNED(nvmlDeviceGetPowerManagementDefaultLimit, n_power_limit_default_w, 1e3)
GET_UNSIGNED(nvmlDeviceGetFanSpeed, n_fan, 100)
GET_UNSIGNED(nvmlDeviceGetNumFans, n_n_fans, 1)
GET_UNSIGNED(nvmlDeviceGetPerformanceState, n_performance_state, 1)
GET_UNSIGNED(nvmlDeviceGetPowerState, n_performance_state, 1)
GET_UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, n_pcie_generation, 1)
GET_UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, n_pcie_width, 1)
GET_UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, n_pcie_generation_max, 1)
GET_UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, n_pcie_width_max, 1)
GET_UNSIGNED(nvmlDeviceGetGpuMaxPcieLinkGeneration, n_pcie_generation_device_max, 1)
GET_UNSIGNED(nvmlDeviceGetPcieReplayCounter, n_pcie_replays, 1)
GET_UNSIGNED(nvmlDeviceGetPersistenceMode, n_persistence, 1)
GET_UNSIGNED(nvmlDeviceGetComputeMode, n_compute_mode, 1)
GET_UNSIGNED(nvmlDeviceGetDisplayMode, n_display_mode, 1)
GET_UNSIGNED(nvmlDeviceGetDisplayActive, n_display_active, 1)
GET_UNSIGNED(nvmlDeviceGetAccountingMode, n_accounting, 1)
GET_UNSIGNED(nvmlDeviceGetVirtualizationMode, n_virtualization_mode, 1)
GET_UNSIGNED(nvmlDeviceGetMinorNumber, n_minor, 1)
GET_UNSIGNED(nvmlDeviceGetModuleId, n_module_id, 1)
GET_UNSIGNED(nvmlDeviceGetBoardId, n_board_id, 1)
GET_UNSIGNED(nvmlDeviceGetMultiGpuBoard, n_multi_gpu_board, 1)
GET_UNSIGNED(nvmlDeviceGetBrand, n_brand, 1)
GET_UNSIGNED(nvmlDeviceGetArchitecture, n_architecture, 1)
GET_UNSIGNED(nvmlDeviceGetBusType, n_bus_type, 1)
GET_UNSIGNED(nvmlDeviceGetNumGpuCores, n_n_cores, 1)
GET_UNSIGNED(nvmlDeviceGetMemoryBusWidth, n_memory_bus_bits, 1)
GET_UNSIGNED(nvmlDeviceGetNumaNodeId, n_numa_node, 1)
GET_UNSIGNED(nvmlDeviceGetPowerSource, n_power_source, 1)
GET_UNSIGNED(nvmlDeviceGetRetiredPagesPendingStatus, n_retired_pages_pending, 1)

NVML(nvmlDeviceGetEnforcedPowerLimit, Dev *d, unsigned *out) {
    ENTER(nvmlDeviceGetEnforcedPowerLimit, d);
    WHOLE(d);
    return put_unsigned(d, n_power_limit_enforced_w, 1e3, out) == OK ? OK : put_unsigned(d, n_power_limit_w, 1e3, out);
}

NVML(nvmlDeviceGetPowerManagementMode, Dev *d, unsigned *out) {
    double limit;
    ENTER(nvmlDeviceGetPowerManagementMode, d);
    NEED(out);
    *out = number_of(d, n_power_limit_w, &limit) == OK;
    return OK;
}

NVML(nvmlDeviceGetPowerManagementLimitConstraints, Dev *d, unsigned *min, unsigned *max) {
    ENTER(nvmlDeviceGetPowerManagementLimitConstraints, d);
    int code = put_unsigned(d, n_power_limit_min_w, 1e3, min);
    return code ? code : put_unsigned(d, n_power_limit_max_w, 1e3, max);
}

NVML(nvmlDeviceGetTotalEnergyConsumption, Dev *d, u64 *out) {
    ENTER(nvmlDeviceGetTotalEnergyConsumption, d);
    WHOLE(d);
    return put_long(d, n_energy_j, 1e3, out);
}

#define GET_REASONS(name, id)           \
    NVML(name, Dev *d, u64 *out) {      \
        ENTER(name, d);                 \
        return put_long(d, id, 1, out); \
    }
GET_REASONS(nvmlDeviceGetCurrentClocksEventReasons, n_event_reasons)
GET_REASONS(nvmlDeviceGetCurrentClocksThrottleReasons, n_event_reasons)
GET_REASONS(nvmlDeviceGetSupportedClocksEventReasons, n_event_reasons_supported)
GET_REASONS(nvmlDeviceGetSupportedClocksThrottleReasons, n_event_reasons_supported)

/* ---- use ---- */

struct rates { unsigned gpu, memory; };

NVML(nvmlDeviceGetUtilizationRates, Dev *d, struct rates *out) {
    ENTER(nvmlDeviceGetUtilizationRates, d);
    WHOLE(d);
    NEED(out);
    int code = put_unsigned(d, n_utilization, 100, &out->gpu);
    return code ? code : put_unsigned(d, n_memory_utilization, 100, &out->memory);
}

/* The window is the driver's, in microseconds. */
#define GET_ENGINE(name, id)                                    \
    NVML(name, Dev *d, unsigned *out, unsigned *window) {       \
        ENTER(name, d);                                         \
        WHOLE(d);                                               \
        NEED(window);                                           \
        *window = 167000;                                       \
        return put_unsigned(d, id, 100, out);                   \
    }
GET_ENGINE(nvmlDeviceGetEncoderUtilization, n_encoder_utilization)
GET_ENGINE(nvmlDeviceGetDecoderUtilization, n_decoder_utilization)
GET_ENGINE(nvmlDeviceGetJpgUtilization, n_jpeg_utilization)
GET_ENGINE(nvmlDeviceGetOfaUtilization, n_ofa_utilization)

NVML(nvmlDeviceGetEncoderCapacity, Dev *d, int codec, unsigned *out) {
    (void)codec;
    ENTER(nvmlDeviceGetEncoderCapacity, d);
    return put_unsigned(d, n_encoder_capacity, 100, out);
}

NVML(nvmlDeviceGetEncoderStats, Dev *d, unsigned *sessions, unsigned *rate, unsigned *latency) {
    ENTER(nvmlDeviceGetEncoderStats, d);
    NEED(rate && latency);
    *rate = *latency = 0;
    return put_unsigned(d, n_encoder_sessions, 1, sessions);
}

NVML(nvmlDeviceGetEncoderSessions, Dev *d, unsigned *count, void *sessions) {
    (void)sessions;
    ENTER(nvmlDeviceGetEncoderSessions, d);
    NEED(count);
    *count = 0;
    return OK;
}

struct fbc { unsigned sessions, rate, latency; };
NVML(nvmlDeviceGetFBCStats, Dev *d, struct fbc *out) {
    ENTER(nvmlDeviceGetFBCStats, d);
    NEED(out);
    *out = (struct fbc){0, 0, 0};
    return OK;
}

/* ---- memory ---- */

struct memory { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };

static int memory_of(const Dev *d, struct memory_v2 *out) {
    out->reserved = 0;
    if (d->mig >= 0) {
        out->total = clamp_long(GPU(d)->mig[d->mig].memory_bytes), out->used = clamp_long(GPU(d)->mig[d->mig].used_bytes);
    } else {
        int code = put_long(d, n_memory_total_bytes, 1, &out->total);
        if (code || (code = put_long(d, n_memory_used_bytes, 1, &out->used))) return code;
        put_long(d, n_memory_reserved_bytes, 1, &out->reserved);
    }
    u64 taken = out->used + out->reserved;
    out->free = out->total > taken ? out->total - taken : 0;
    return OK;
}

NVML(nvmlDeviceGetMemoryInfo, Dev *d, struct memory *out) {
    struct memory_v2 all;
    ENTER(nvmlDeviceGetMemoryInfo, d);
    NEED(out);
    int code = memory_of(d, &all);
    /* the first form counts what the driver keeps as used */
    if (code == OK) *out = (struct memory){all.total, all.free, all.total - all.free};
    return code;
}

NVML(nvmlDeviceGetMemoryInfo_v2, Dev *d, struct memory_v2 *out) {
    ENTER(nvmlDeviceGetMemoryInfo_v2, d);
    NEED(out);
    if (out->version != (sizeof(struct memory_v2) | 2u << 24)) return VERSION_MISMATCH;
    return memory_of(d, out);
}

struct bar1 { u64 total, free, used; };
NVML(nvmlDeviceGetBAR1MemoryInfo, Dev *d, struct bar1 *out) {
    ENTER(nvmlDeviceGetBAR1MemoryInfo, d);
    NEED(out);
    int code = put_long(d, n_bar1_total_bytes, 1, &out->total);
    if (code || (code = put_long(d, n_bar1_used_bytes, 1, &out->used))) return code;
    out->free = out->total > out->used ? out->total - out->used : 0;
    return OK;
}

/* ---- temperature and fans ---- */

NVML(nvmlDeviceGetTemperature, Dev *d, int sensor, unsigned *out) {
    ENTER(nvmlDeviceGetTemperature, d);
    WHOLE(d);
    return sensor ? INVALID_ARGUMENT : put_unsigned(d, n_temperature_c, 1, out);
}

struct temperature_v1 { unsigned version; int sensor, value; };
NVML(nvmlDeviceGetTemperatureV, Dev *d, struct temperature_v1 *out) {
    ENTER(nvmlDeviceGetTemperatureV, d);
    WHOLE(d);
    NEED(out);
    if (out->version != (sizeof(struct temperature_v1) | 1u << 24)) return VERSION_MISMATCH;
    return out->sensor ? INVALID_ARGUMENT : put_unsigned(d, n_temperature_c, 1, (unsigned *)&out->value);
}

NVML(nvmlDeviceGetTemperatureThreshold, Dev *d, int kind, unsigned *out) {
    static const enum number_id kinds[] = {
        n_temperature_shutdown_c, n_temperature_slowdown_c, n_memory_temperature_max_c, n_temperature_max_c,
        n_temperature_target_min_c, n_temperature_target_c, n_temperature_target_max_c
    };
    ENTER(nvmlDeviceGetTemperatureThreshold, d);
    if (kind < 0 || kind > 7) return INVALID_ARGUMENT;
    return kind < 7 ? put_unsigned(d, kinds[kind], 1, out) : NOT_SUPPORTED;
}

struct margin { unsigned version; int value; };
NVML(nvmlDeviceGetMarginTemperature, Dev *d, struct margin *out) {
    double supported, most, now;
    ENTER(nvmlDeviceGetMarginTemperature, d);
    NEED(out);
    if (number_of(d, n_temperature_margin, &supported) || number_of(d, n_temperature_max_c, &most) || number_of(d, n_temperature_c, &now))
        return NOT_SUPPORTED;
    out->value = (int)(most - now);
    return OK;
}

NVML(nvmlDeviceGetFanSpeed_v2, Dev *d, unsigned fan, unsigned *out) {
    double n;
    ENTER(nvmlDeviceGetFanSpeed_v2, d);
    if (number_of(d, n_n_fans, &n) || fan >= n) return INVALID_ARGUMENT;
    return put_unsigned(d, n_fan, 100, out);
}

NVML(nvmlDeviceGetMinMaxFanSpeed, Dev *d, unsigned *min, unsigned *max) {
    ENTER(nvmlDeviceGetMinMaxFanSpeed, d);
    int code = put_unsigned(d, n_fan_min, 100, min);
    return code ? code : put_unsigned(d, n_fan_max, 100, max);
}

/* 0: by temperature, the driver's own */
NVML(nvmlDeviceGetFanControlPolicy_v2, Dev *d, unsigned fan, unsigned *out) {
    double n;
    ENTER(nvmlDeviceGetFanControlPolicy_v2, d);
    NEED(out);
    if (number_of(d, n_n_fans, &n)) return NOT_SUPPORTED;
    if (fan >= n) return INVALID_ARGUMENT;
    *out = 0;
    return OK;
}

NVML(nvmlDeviceGetTargetFanSpeed, Dev *d, unsigned fan, unsigned *out) {
    (void)fan;
    ENTER(nvmlDeviceGetTargetFanSpeed, d);
    return put_unsigned(d, n_fan, 100, out);
}

struct fan_rpm { unsigned version, fan, rpm; };
NVML(nvmlDeviceGetFanSpeedRPM, Dev *d, struct fan_rpm *out) {
    ENTER(nvmlDeviceGetFanSpeedRPM, d);
    NEED(out);
    return put_unsigned(d, n_fan_rpm, 1, &out->rpm);
}

/* ---- clocks ---- */

static int clock_of(const Dev *d, int kind, unsigned *out) {
    static const enum number_id kinds[] = {n_graphics_clock_hz, n_sm_clock_hz, n_memory_clock_hz, n_video_clock_hz};
    if (kind < 0 || kind > 3) return INVALID_ARGUMENT;
    int code = put_unsigned(d, kinds[kind], 1e-6, out);
    return code && kind == 0 ? put_unsigned(d, n_sm_clock_hz, 1e-6, out) : code;
}

static int max_clock_of(const Dev *d, int kind, unsigned *out) {
    static const enum number_id kinds[] = {n_sm_clock_max_hz, n_sm_clock_max_hz, n_memory_clock_max_hz, n_video_clock_max_hz};
    return kind < 0 || kind > 3 ? INVALID_ARGUMENT : put_unsigned(d, kinds[kind], 1e-6, out);
}

static int application_clock_of(const Dev *d, int kind, unsigned *out) {
    if (kind < 0 || kind > 3) return INVALID_ARGUMENT;
    return kind == 3 ? NOT_SUPPORTED : put_unsigned(d, kind == 2 ? n_memory_clock_application_hz : n_sm_clock_application_hz, 1e-6, out);
}

#define GET_CLOCK(name, of)                       \
    NVML(name, Dev *d, int kind, unsigned *out) { \
        ENTER(name, d);                           \
        WHOLE(d);                                 \
        return of(d, kind, out);                  \
    }
GET_CLOCK(nvmlDeviceGetClockInfo, clock_of)
GET_CLOCK(nvmlDeviceGetMaxClockInfo, max_clock_of)
GET_CLOCK(nvmlDeviceGetMaxCustomerBoostClock, max_clock_of)
GET_CLOCK(nvmlDeviceGetApplicationsClock, application_clock_of)
GET_CLOCK(nvmlDeviceGetDefaultApplicationsClock, application_clock_of)

NVML(nvmlDeviceGetClock, Dev *d, int kind, int which, unsigned *out) {
    ENTER(nvmlDeviceGetClock, d);
    return which == 0 ? clock_of(d, kind, out) : which == 3 ? max_clock_of(d, kind, out) : application_clock_of(d, kind, out);
}

static int one_clock(const Dev *d, enum number_id id, unsigned *count, unsigned *out) {
    NEED(count);
    unsigned room = *count;
    *count = 1;
    return out && room ? put_unsigned(d, id, 1e-6, out) : INSUFFICIENT_SIZE;
}

NVML(nvmlDeviceGetSupportedMemoryClocks, Dev *d, unsigned *count, unsigned *out) {
    ENTER(nvmlDeviceGetSupportedMemoryClocks, d);
    return one_clock(d, n_memory_clock_max_hz, count, out);
}

NVML(nvmlDeviceGetSupportedGraphicsClocks, Dev *d, unsigned memory, unsigned *count, unsigned *out) {
    (void)memory;
    ENTER(nvmlDeviceGetSupportedGraphicsClocks, d);
    return one_clock(d, n_sm_clock_max_hz, count, out);
}

/* ---- PCIe ---- */

NVML(nvmlDeviceGetPcieThroughput, Dev *d, int received, unsigned *out) {
    ENTER(nvmlDeviceGetPcieThroughput, d);
    if (received != 0 && received != 1) return INVALID_ARGUMENT;
    return put_unsigned(d, received ? n_pcie_received_bytes_per_s : n_pcie_sent_bytes_per_s, 1e-3, out);
}

/* Megabits per second and lane, as NVML tells it. */
static int pcie_speed(const Dev *d, enum number_id id, unsigned *out) {
    static const unsigned by_generation[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};
    unsigned generation;
    NEED(out);
    int code = put_unsigned(d, id, 1, &generation);
    if (code == OK) *out = generation < 7 ? by_generation[generation] : 0;
    return code;
}

NVML(nvmlDeviceGetPcieSpeed, Dev *d, unsigned *out) { ENTER(nvmlDeviceGetPcieSpeed, d); return pcie_speed(d, n_pcie_generation, out); }
NVML(nvmlDeviceGetPcieLinkMaxSpeed, Dev *d, unsigned *out) {
    ENTER(nvmlDeviceGetPcieLinkMaxSpeed, d);
    /* an enumeration: 1 is 2500 Mbit/s, 2 is 5000, ... */
    return put_unsigned(d, n_pcie_generation_max, 1, out);
}
