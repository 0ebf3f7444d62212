/* Profiles that a card can be divided by, from the tables of `nvidia-smi mig -lgip` in NVIDIA's MIG user guide ("A100");
 * H100: driver 580.159.04 of an H100 80GB HBM3;
 * H200: issue 120 of NVIDIA/mig-parted. */
#include "state.h"

#include <stdio.h>

typedef struct device Dev;

#define FORM(type, number) (sizeof(type) | (unsigned)(number) << 24)

/* What every profile has of a card, whatever its memory; those of A100 first. `index` is NVML_GPU_INSTANCE_PROFILE_*, sizes of
 * placements are eighths of the memory. */
struct profile {
    unsigned index, id, slices, instances, processors, copies, decoders, jpegs, ofas, eighths;
    const char *suffix;
};
static const struct profile profiles[2][7] = {
    {{0, 19, 1, 7, 14, 1, 0, 0, 0, 1, ""}, {7, 20, 1, 1, 14, 1, 1, 1, 1, 1, "+me"}, {9, 15, 1, 4, 14, 1, 1, 0, 0, 2, ""},
     {1, 14, 2, 3, 28, 2, 1, 0, 0, 2, ""}, {2, 9, 3, 2, 42, 3, 2, 0, 0, 4, ""}, {3, 5, 4, 1, 56, 4, 2, 0, 0, 4, ""},
     {4, 0, 7, 1, 98, 7, 5, 1, 1, 8, ""}},
    {{0, 19, 1, 7, 16, 1, 1, 1, 0, 1, ""}, {7, 20, 1, 1, 16, 1, 1, 1, 1, 1, "+me"}, {9, 15, 1, 4, 26, 1, 1, 1, 0, 2, ""},
     {1, 14, 2, 3, 32, 2, 2, 2, 0, 2, ""}, {2, 9, 3, 2, 60, 3, 3, 3, 0, 4, ""}, {3, 5, 4, 1, 64, 4, 4, 4, 0, 4, ""},
     {4, 0, 7, 1, 132, 8, 7, 7, 1, 8, ""}},
};
/* MB of an eighth, two, four and all of A100 40GB, A100 80GB, H100 80GB and H200, and the GB of their names. */
static const unsigned sizes[4][4] = {{4864, 9984, 20096, 40448}, {9728, 19968, 40448, 81152}, {9984, 20096, 40448, 81152}, {16384, 33024, 71168, 143104}};
static const unsigned names[4][4] = {{5, 10, 20, 40}, {10, 20, 40, 80}, {10, 20, 40, 80}, {18, 35, 71, 141}};

/* Row of `sizes`; -1 for a card whose table is not here. */
static int card_of(const Dev *d) {
    double major, mig, bytes;
    if (number_of(d, n_mig, &mig) || number_of(d, n_compute_capability_major, &major) || number_of(d, n_memory_total_bytes, &bytes))
        return -1;
    int gib = (int)(bytes / (1 << 30) + 0.5);
    if (major == 8) return gib > 38 && gib <= 40 ? 0 : gib > 78 && gib <= 80 ? 1 : -1;
    return major != 9 ? -1 : gib > 78 && gib <= 80 ? 2 : gib > 138 && gib <= 141 ? 3 : -1;
}

static unsigned of_card(const unsigned (*table)[4], int card, const struct profile *p) {
    return table[card][p->eighths == 8 ? 3 : p->eighths / 2];
}

static int profile_of(const Dev *d, unsigned number, int by_id, int *card, const struct profile **out) {
    *card = card_of(d);
    if (d->mig >= 0 || (!by_id && number > 0x11)) return INVALID_ARGUMENT;
    for (int i = 0; *card >= 0 && i < 7; i++) {
        *out = &profiles[*card >= 2][i];
        if ((by_id ? (*out)->id : (*out)->index) == number) return OK;
    }
    return NOT_SUPPORTED;
}

struct profile_info { unsigned id, p2p, slices, instances, processors, copies, decoders, encoders, jpegs, ofas; unsigned long long mb; };
struct profile_v2 {
    unsigned version, id, p2p, slices, instances, processors, copies, decoders, encoders, jpegs, ofas;
    unsigned long long mb;
    char name[96];
};
struct profile_v3 {
    unsigned version, id, slices, instances, processors, copies, decoders, encoders, jpegs, ofas;
    unsigned long long mb;
    char name[96];
    unsigned capabilities;
};

static struct profile_info told(int card, const struct profile *p) {
    return (struct profile_info){p->id, 0, p->slices, p->instances, p->processors, p->copies, p->decoders, 0, p->jpegs, p->ofas, of_card(sizes, card, p)};
}

static void name_of(int card, const struct profile *p, char *out) {
    snprintf(out, 96, "MIG %ug.%ugb%s", p->slices, of_card(names, card, p), p->suffix);
}

NVML(nvmlDeviceGetGpuInstanceProfileInfo, Dev *d, unsigned profile, struct profile_info *out) {
    int card;
    const struct profile *found;
    ENTER(nvmlDeviceGetGpuInstanceProfileInfo, d);
    NEED(out);
    int code = profile_of(d, profile, 0, &card, &found);
    if (code == OK) *out = told(card, found);
    return code;
}

NVML(nvmlDeviceGetGpuInstanceProfileInfoV, Dev *d, unsigned profile, void *out) {
    int card;
    const struct profile *p;
    ENTER(nvmlDeviceGetGpuInstanceProfileInfoV, d);
    NEED(out);
    unsigned version = *(unsigned *)out;
    if (version != FORM(struct profile_v2, 2) && version != FORM(struct profile_v3, 3)) return VERSION_MISMATCH;
    int code = profile_of(d, profile, 0, &card, &p);
    if (code) return code;
    if (version == FORM(struct profile_v2, 2)) {
        struct profile_v2 *two = out;
        *two = (struct profile_v2){version, p->id, 0, p->slices, p->instances, p->processors, p->copies, p->decoders, 0, p->jpegs, p->ofas, of_card(sizes, card, p), ""};
        name_of(card, p, two->name);
    } else {
        struct profile_v3 *three = out;
        *three = (struct profile_v3){version, p->id, p->slices, p->instances, p->processors, p->copies, p->decoders, 0, p->jpegs, p->ofas, of_card(sizes, card, p), "", 0};
        name_of(card, p, three->name);
    }
    return OK;
}

struct placement { unsigned start, size; };
NVML(nvmlDeviceGetGpuInstancePossiblePlacements_v2, Dev *d, unsigned id, struct placement *out, unsigned *count) {
    int card;
    const struct profile *p;
    ENTER(nvmlDeviceGetGpuInstancePossiblePlacements_v2, d);
    NEED(count);
    int code = profile_of(d, id, 1, &card, &p);
    if (code) return code;
    /* the eighth eighth is the larger profiles' only */
    unsigned n = p->eighths == 1 ? 7 : p->slices == 2 ? 3 : p->slices == 4 ? 1 : 8 / p->eighths;
    for (unsigned i = 0; out && i < n && i < *count; i++) out[i] = (struct placement){i * p->eighths, p->eighths};
    *count = n;
    return OK;
}

struct attributes { unsigned processors, copies, decoders, encoders, jpegs, ofas, slices, compute_slices; unsigned long long mb; };
NVML(nvmlDeviceGetAttributes_v2, Dev *d, struct attributes *out) {
    ENTER(nvmlDeviceGetAttributes_v2, d);
    NEED(out);
    int card = card_of(d);
    if (d->mig < 0 || card < 0) return NOT_SUPPORTED;
    unsigned mb = (unsigned)(GPU(d)->mig[d->mig].memory_bytes / (1 << 20) + 0.5);
    for (int i = 0; i < 7; i++) {
        const struct profile *p = &profiles[card >= 2][i];
        if (of_card(sizes, card, p) != mb) continue;
        *out = (struct attributes){p->processors, p->copies, p->decoders, 0, p->jpegs, p->ofas, p->slices, p->slices, mb};
        return OK;
    }
    return NOT_SUPPORTED;
}
