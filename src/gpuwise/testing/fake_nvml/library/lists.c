/* Processes, field values, samples and events. */
#define _GNU_SOURCE
#include "state.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct device Dev;
typedef unsigned long long u64;

/* ---- processes ---- */

struct process_v1 { unsigned pid; u64 memory; };
struct process_v2 { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; };

static int on(const Dev *d, const struct process *p, unsigned kind) {
    if (!(p->kind & kind)) return 0;
    return d->mig < 0 || (GPU(d)->mig[d->mig].gpu_instance == p->gpu_instance && GPU(d)->mig[d->mig].compute_instance == p->compute_instance);
}

static int processes_of(const Dev *d, unsigned kind, unsigned *count, void *out, size_t size) {
    NEED(count);
    unsigned room = *count, n = 0;
    const struct gpu *gpu = GPU(d);
    for (int i = 0; i < gpu->n_processes; i++) n += (unsigned)on(d, &gpu->processes[i], kind);
    *count = n;
    if (n == 0) return OK;
    if (room < n || !out) return INSUFFICIENT_SIZE;
    char *at = out;
    for (int i = 0; i < gpu->n_processes; i++) {
        const struct process *p = &gpu->processes[i];
        if (!on(d, p, kind)) continue;
        struct process_v2 made = {p->pid, p->memory_bytes < 0 ? UINT64_MAX : clamp_long(p->memory_bytes), p->gpu_instance, p->compute_instance};
        memcpy(at, &made, size);
        at += size;
    }
    return OK;
}

#define GET_PROCESSES(name, kind, type)                            \
    NVML(name, Dev *d, unsigned *count, struct type *out) {        \
        ENTER(name, d);                                            \
        return processes_of(d, kind, count, out, sizeof *out);     \
    }
GET_PROCESSES(nvmlDeviceGetComputeRunningProcesses, 1, process_v1)
GET_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 1, process_v2)
GET_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 1, process_v2)
GET_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, 2, process_v1)
GET_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, 2, process_v2)
GET_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 2, process_v2)
GET_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, 4, process_v1)
GET_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, 4, process_v2)
GET_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, 4, process_v2)

/* Mode 0 compute, 1 graphics, 2 MPS. */
struct detail { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; u64 protected_memory; };
struct details { unsigned version, mode, count; struct detail *processes; };

NVML(nvmlDeviceGetRunningProcessDetailList, Dev *d, struct details *out) {
    ENTER(nvmlDeviceGetRunningProcessDetailList, d);
    NEED(out);
    if (out->version != (sizeof(struct details) | 1u << 24)) return VERSION_MISMATCH;
    if (out->mode > 2) return INVALID_ARGUMENT;
    unsigned room = out->count, n = 0;
    const struct gpu *gpu = GPU(d);
    for (int i = 0; i < gpu->n_processes; i++) {
        const struct process *p = &gpu->processes[i];
        if (!on(d, p, 1u << out->mode)) continue;
        if (n < room && out->processes)
            out->processes[n] = (struct detail){p->pid, p->memory_bytes < 0 ? UINT64_MAX : clamp_long(p->memory_bytes), p->gpu_instance,
                                                p->compute_instance, 0};
        n++;
    }
    out->count = n;
    return n && (room < n || !out->processes) ? INSUFFICIENT_SIZE : OK;
}

struct use { unsigned pid; u64 at_us; unsigned sm, memory, encoder, decoder; };

static u64 wall_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (u64)t.tv_sec * 1000000u + (u64)t.tv_nsec / 1000u;
}

NVML(nvmlDeviceGetProcessUtilization, Dev *d, struct use *out, unsigned *count, u64 since_us) {
    double samples;
    ENTER(nvmlDeviceGetProcessUtilization, d);
    NEED(count);
    if (d->mig >= 0 || number_of(d, n_process_samples, &samples) || samples <= 0) return NOT_SUPPORTED;
    unsigned room = *count, n = 0;
    u64 now = wall_us();
    const struct gpu *gpu = GPU(d);
    if (since_us >= now) return NOT_FOUND;
    for (int i = 0; i < gpu->n_processes; i++) {
        const struct process *p = &gpu->processes[i];
        if (n < room && out) out[n] = (struct use){p->pid, now, p->sm, p->memory, p->encoder, p->decoder};
        n++;
    }
    *count = n;
    if (n == 0) return NOT_FOUND;
    return room < n || !out ? INSUFFICIENT_SIZE : OK;
}

/* ---- samples ---- */

struct sample { u64 at_us; union { double d; unsigned u; u64 ull; } value; };

NVML(nvmlDeviceGetSamples, Dev *d, int kind, u64 since_us, int *type, unsigned *count, struct sample *out) {
    static const enum number_id ids[] = {n_power_w, n_utilization, n_memory_utilization, n_encoder_utilization, n_decoder_utilization, n_sm_clock_hz, n_memory_clock_hz};
    static const double scales[] = {1e3, 100, 100, 100, 100, 1e-6, 1e-6};
    ENTER(nvmlDeviceGetSamples, d);
    NEED(type && count);
    if (kind < 0 || kind > 6) return INVALID_ARGUMENT;
    unsigned room = *count, value = 0;
    u64 now = wall_us();
    int code = put_unsigned(d, ids[kind], scales[kind], &value);
    if (code) return code;
    if (since_us >= now) return NOT_FOUND;
    *type = 1;
    *count = 1;
    if (!out || !room) return OK;
    out[0].at_us = now;
    out[0].value.ull = value;
    return OK;
}

/* ---- field values ---- */

struct field { unsigned id, scope; long long at_us, latency_us; unsigned type; int code; union { double d; unsigned u; u64 ull; long long sll; int i; } value; };

/* Numbers whose field is unsigned, or unsigned long long (wide), scaled. */
static const struct { unsigned id; enum number_id number; double scale; int wide; } field_numbers[] = {
    {1, n_ecc, 1, 0}, {2, n_ecc_pending, 1, 0}, {3, n_ecc_corrected, 1, 1}, {4, n_ecc_uncorrected, 1, 1}, {5, n_ecc_corrected_ever, 1, 1},
    {6, n_ecc_uncorrected_ever, 1, 1}, {29, n_retired_pages_single, 1, 1}, {30, n_retired_pages_double, 1, 1}, {31, n_retired_pages_pending, 1, 0},
    {38, n_nvlink_crc_errors, 1, 1}, {52, n_nvlink_replays, 1, 1}, {59, n_nvlink_recoveries, 1, 1},
    {74, n_held_sw_power_cap_s, 1e9, 1}, {75, n_held_sw_thermal_s, 1e9, 1}, {76, n_held_sync_boost_s, 1e9, 1}, {77, n_held_board_limit_s, 1e9, 1},
    {78, n_held_low_utilization_s, 1e9, 1}, {79, n_held_reliability_s, 1e9, 1}, {82, n_memory_temperature_c, 1, 0}, {83, n_energy_j, 1e3, 1},
    {90, n_nvlink_bytes_per_s, 1e-6, 0}, {91, n_n_nvlinks, 1, 0}, {94, n_pcie_replays, 1, 0},
    {138, n_nvlink_sent_bytes, 1.0 / 1024, 1}, {139, n_nvlink_received_bytes, 1.0 / 1024, 1}, {140, n_nvlink_sent_bytes, 1.0 / 1024, 1},
    {141, n_nvlink_received_bytes, 1.0 / 1024, 1}, {142, n_remapped_rows_corrected, 1, 0}, {143, n_remapped_rows_uncorrected, 1, 0},
    {144, n_remap_pending, 1, 0}, {145, n_remap_failed, 1, 0}, {161, n_nvlink_replays, 1, 1}, {162, n_nvlink_recoveries, 1, 1},
    {163, n_nvlink_crc_errors, 1, 1}, {164, n_nvlink_bytes_per_s, 1e-6, 0}, {166, n_nvlink_version, 1, 0}, {173, n_pcie_correctable_errors, 1, 0},
    {185, n_power_w, 1e3, 0}, {186, n_power_w, 1e3, 0}, {187, n_power_limit_min_w, 1e3, 0}, {188, n_power_limit_max_w, 1e3, 0},
    {189, n_power_limit_default_w, 1e3, 0}, {190, n_power_limit_w, 1e3, 0}, {191, n_energy_j, 1e3, 1}, {192, n_power_limit_w, 1e3, 0},
    {230, n_recovery_action, 1, 0}, {269, n_held_sw_thermal_s, 1e9, 1}, {270, n_held_hw_thermal_s, 1e9, 1}, {271, n_held_hw_power_brake_s, 1e9, 1}};

/* How far each threshold lies from where the card begins to slow down for heat (fields 193 to 196). */
static int margin_of(const Dev *d, unsigned id, int *out) {
    static const enum number_id ids[] = {n_temperature_shutdown_c, n_temperature_slowdown_c, n_memory_temperature_max_c, n_temperature_max_c};
    double threshold, most, margin;
    if (number_of(d, n_temperature_margin, &margin) || number_of(d, ids[id - 193], &threshold) || number_of(d, n_temperature_max_c, &most)) return NOT_SUPPORTED;
    *out = id == 195 ? 0 : (int)(most - threshold);
    return OK;
}

/* NVLink counters of one link (the scope), where not all links are asked for: traffic is shared out, errors are on the first. */
static int of_link(const Dev *d, unsigned id, unsigned scope, double *value) {
    double n;
    if (!((id >= 138 && id <= 141) || (id >= 161 && id <= 163)) || scope == UINT32_MAX) return OK;
    if (number_of(d, n_n_nvlinks, &n) || scope >= n) return INVALID_ARGUMENT;
    *value = id < 161 ? *value / n : scope == 0 ? *value : 0;
    return OK;
}

static int field_of(const Dev *d, struct field *f) {
    double value;
    const struct gpu *gpu = GPU(d);
    for (int i = 0; i < gpu->n_fields; i++) {
        if (gpu->fields[i].id != f->id) continue;
        int code = value_of(&gpu->fields[i].value, &value);
        f->type = 3, f->value.ull = clamp_long(value);
        return code;
    }
    if (f->id >= 193 && f->id <= 196) {
        f->type = 5;
        return margin_of(d, f->id, &f->value.i);
    }
    for (size_t i = 0; i < sizeof field_numbers / sizeof *field_numbers; i++) {
        if (field_numbers[i].id != f->id) continue;
        int code = number_of(d, field_numbers[i].number, &value);
        if (code || (code = of_link(d, f->id, f->scope, &value))) return code;
        f->type = field_numbers[i].wide ? 3 : 1;
        if (field_numbers[i].wide) f->value.ull = clamp_long(field_numbers[i].scale * value);
        else f->value.u = clamp_unsigned(field_numbers[i].scale * value);
        return OK;
    }
    return NOT_SUPPORTED;
}

NVML(nvmlDeviceGetFieldValues, Dev *d, int count, struct field *fields) {
    ENTER(nvmlDeviceGetFieldValues, d);
    if (count < 1 || !fields) return INVALID_ARGUMENT;
    long long now = (long long)wall_us();
    for (int i = 0; i < count; i++) {
        fields[i].at_us = now, fields[i].latency_us = 0, fields[i].value.ull = 0;
        fields[i].code = d->mig >= 0 ? NOT_SUPPORTED : field_of(d, &fields[i]);
    }
    return OK;
}

NVML(nvmlDeviceClearFieldValues, Dev *d, int count, struct field *fields) {
    ENTER(nvmlDeviceClearFieldValues, d);
    for (int i = 0; fields && i < count; i++) fields[i].code = NOT_SUPPORTED;
    return OK;
}

/* ---- events ---- */

struct set { u64 seen, types[MAX_GPUS]; int watch; };
struct event_data { Dev *device; u64 type, data; unsigned gpu_instance, compute_instance; };

static u64 last_event(void) {
    u64 last = 0;
    for (int i = 0; i < state.n_events; i++)
        if (state.events[i].seq > last) last = state.events[i].seq;
    return last;
}

NVML(nvmlEventSetCreate, struct set **out) {
    ENTER_SYSTEM(nvmlEventSetCreate);
    NEED(out);
    *out = calloc(1, sizeof **out);
    if (!*out) return 20;
    (*out)->seen = last_event();
    (*out)->watch = watch_state();
    return OK;
}

NVML(nvmlEventSetFree, struct set *set) {
    ENTER_ANYTIME(nvmlEventSetFree);
    if (set && set->watch >= 0) close(set->watch);
    free(set);
    return OK;
}

NVML(nvmlDeviceGetSupportedEventTypes, Dev *d, u64 *out) {
    ENTER(nvmlDeviceGetSupportedEventTypes, d);
    NEED(out);
    *out = 0x1f;
    return OK;
}

NVML(nvmlDeviceRegisterEvents, Dev *d, u64 types, struct set *set) {
    ENTER(nvmlDeviceRegisterEvents, d);
    NEED(set);
    set->types[d->gpu] |= types;
    return OK;
}

/* Sleeps until the script is replaced, or for `left_s`. Where the system has no watch left to give it looks again every 20 ms:
   polling faster would cost its callers, who expect a call that blocks, a part of a core. */
static void sleep_until_changed(const struct set *set, double left_s) {
    double longest_s = set->watch >= 0 ? 3600 : 0.02;
    struct pollfd watched = {set->watch, POLLIN, 0};
    char told[4096];
    poll(&watched, 1, (int)(1e3 * (left_s < longest_s ? left_s : longest_s)) + 1);
    while (set->watch >= 0 && read(set->watch, told, sizeof told) > 0) {}
}

/* Enters with the lock held and leaves with it held; sleeps without it. */
static int wait_for(struct set *set, struct event_data *out, unsigned timeout_ms) {
    double end = now_s() + 1e-3 * timeout_ms;
    NEED(set && out);
    for (;;) {
        if (state.unloaded) return DRIVER_NOT_LOADED;
        for (int i = 0; i < state.n_events; i++) {
            const struct event *e = &state.events[i];
            if (e->seq <= set->seen || e->gpu < 0 || e->gpu >= state.n_gpus || !(set->types[e->gpu] & e->type)) continue;
            set->seen = e->seq;
            *out = (struct event_data){&devices[e->gpu], e->type, e->data, UINT32_MAX, UINT32_MAX};
            return OK;
        }
        if (now_s() >= end) return TIMEOUT;
        unlock_state();
        sleep_until_changed(set, end - now_s());
        lock_state();
        look_again();
    }
}

NVML(nvmlEventSetWait, struct set *set, struct event_data *out, unsigned timeout_ms) {
    ENTER_SYSTEM(nvmlEventSetWait);
    return wait_for(set, out, timeout_ms);
}

NVML(nvmlEventSetWait_v2, struct set *set, struct event_data *out, unsigned timeout_ms) {
    ENTER_SYSTEM(nvmlEventSetWait_v2);
    return wait_for(set, out, timeout_ms);
}
