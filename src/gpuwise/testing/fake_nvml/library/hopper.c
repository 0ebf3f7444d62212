/* Counters of the processors between two samples, of Hopper and newer ones for servers, and limits of the clocks by state: as an
 * H100 80GB HBM3 under driver 580.159.04 said them (benchmarks/records/foreign/gpu_2026-11-27f.md). */
#include "state.h"

#include <stdlib.h>

typedef struct device Dev;

static int has_counters(const Dev *d) {
    double major, mig;
    return !number_of(d, n_compute_capability_major, &major) && !number_of(d, n_mig, &mig) && major >= 9;
}

struct support { unsigned version, supported; };
NVML(nvmlGpmQueryDeviceSupport, Dev *d, struct support *out) {
    ENTER(nvmlGpmQueryDeviceSupport, d);
    NEED(out);
    if (out->version != 1) return VERSION_MISMATCH;
    out->supported = has_counters(d);
    return OK;
}

NVML(nvmlGpmQueryIfStreamingEnabled, Dev *d, unsigned *out) {
    ENTER(nvmlGpmQueryIfStreamingEnabled, d);
    NEED(out);
    *out = 0;
    return OK;
}

/* A sample is whose it is: what is played does not change within it. */
struct sample { const Dev *of; };
NVML(nvmlGpmSampleAlloc, struct sample **out) {
    ENTER_SYSTEM(nvmlGpmSampleAlloc);
    NEED(out);
    *out = calloc(1, sizeof **out);
    return OK;
}

NVML(nvmlGpmSampleFree, struct sample *sample) {
    ENTER_SYSTEM(nvmlGpmSampleFree);
    NEED(sample);
    free(sample);
    return OK;
}

NVML(nvmlGpmSampleGet, Dev *d, struct sample *sample) {
    ENTER(nvmlGpmSampleGet, d);
    NEED(sample);
    if (!has_counters(d)) return NOT_SUPPORTED;
    sample->of = d;
    return OK;
}

struct counter { unsigned id; int from; double times; const char *short_name, *long_name, *unit; };
#define NOTHING (-1)
static const struct counter counters[] = {
    {1, n_utilization, 100, "gract", "GRAPHICS_UTIL", "%"}, {2, n_utilization, 100, "smutil", "SM_UTIL", "%"},
    {3, NOTHING, 0, "smocc", "SM_OCCUPANCY", "%"}, {4, NOTHING, 0, "intutil", "INTEGER_UTIL", "%"},
    {5, NOTHING, 0, "mmaact", "ANY_TENSOR_UTIL", "%"}, {6, NOTHING, 0, "dfmat", "DFMA_TENSOR_UTIL", "%"},
    {7, NOTHING, 0, "hmmat", "HMMA_TENSOR_UTIL", "%"}, {9, NOTHING, 0, "immat", "IMMA_TENSOR_UTIL", "%"},
    {10, n_memory_utilization, 100, "dram", "DRAM_BW_UTIL", "%"}, {11, NOTHING, 0, "fp64", "FP64_UTIL", "%"},
    {12, NOTHING, 0, "fp32", "FP32_UTIL", "%"}, {13, NOTHING, 0, "fp16", "FP16_UTIL", "%"},
    {20, n_pcie_sent_bytes_per_s, 1.0 / (1 << 20), "pcitx", "PCIE_TX_PER_SEC", "MiB/s"},
    {21, n_pcie_received_bytes_per_s, 1.0 / (1 << 20), "pcirx", "PCIE_RX_PER_SEC", "MiB/s"},
};

struct metric { unsigned id; int code; double value; struct { const char *short_name, *long_name, *unit; } words; };
struct metrics { unsigned version, n; struct sample *first, *second; struct metric metrics[]; };
NVML(nvmlGpmMetricsGet, struct metrics *asked) {
    ENTER_SYSTEM(nvmlGpmMetricsGet);
    NEED(asked);
    if (asked->version != 1) return VERSION_MISMATCH;
    if (!asked->first || !asked->second || !asked->first->of || asked->first->of != asked->second->of) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < asked->n; i++) {
        struct metric *m = &asked->metrics[i];
        /* a number that names nothing is answered too */
        m->code = OK;
        m->value = 0;
        m->words.short_name = m->words.long_name = NULL;
        m->words.unit = "%";
        for (unsigned c = 0; c < sizeof counters / sizeof *counters; c++) {
            if (counters[c].id != m->id) continue;
            if (counters[c].from != NOTHING) m->code = number_of(asked->first->of, (enum number_id)counters[c].from, &m->value);
            m->value *= counters[c].times;
            m->words.short_name = counters[c].short_name;
            m->words.long_name = counters[c].long_name;
            m->words.unit = counters[c].unit;
        }
    }
    return OK;
}

/* Whether it is an H100 of 80 GB: of no other card were the limits seen. */
static int is_h100(const Dev *d) {
    double major, bytes;
    if (number_of(d, n_compute_capability_major, &major) || number_of(d, n_memory_total_bytes, &bytes)) return 0;
    return major == 9 && bytes > 78.0 * (1 << 30) && bytes <= 80.0 * (1 << 30);
}

NVML(nvmlDeviceGetMinMaxClockOfPState, Dev *d, unsigned clock, unsigned state, unsigned *least, unsigned *most) {
    static const enum number_id highest[] = {n_sm_clock_max_hz, n_sm_clock_max_hz, n_memory_clock_max_hz, n_video_clock_max_hz};
    static const unsigned lowest[] = {345, 345, 0, 765}, memory_of_p2 = 1593;
    ENTER(nvmlDeviceGetMinMaxClockOfPState, d);
    NEED(least && most && clock < 4);
    if (!is_h100(d) || (state != 0 && state != 2)) return NOT_SUPPORTED;
    int code = put_unsigned(d, highest[clock], 1e-6, most);
    if (clock == 2 && state == 2) *most = memory_of_p2;
    *least = clock == 2 ? *most : lowest[clock];
    return code;
}

NVML(nvmlDeviceGetSupportedPerformanceStates, Dev *d, unsigned *out, unsigned bytes) {
    unsigned now, n = bytes / sizeof *out;
    ENTER(nvmlDeviceGetSupportedPerformanceStates, d);
    NEED(out && n);
    int code = put_unsigned(d, n_performance_state, 1, &now);
    if (code) return code;
    for (unsigned i = 0; i < n; i++) out[i] = 32;
    out[0] = 0;
    if (is_h100(d) && n > 1) {
        out[0] = 2;
        out[1] = 0;
    } else if (now && n > 1) {
        out[1] = now;
    }
    return OK;
}
