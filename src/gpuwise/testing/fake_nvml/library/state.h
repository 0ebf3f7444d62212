/* A library that answers as NVML does, from a text file. See state.c for the file's form. */
#ifndef FAKE_NVML_STATE_H
#define FAKE_NVML_STATE_H
#include <stdint.h>
#include <stddef.h>

enum { MAX_GPUS = 32, MAX_PROCESSES = 128, MAX_MIG = 8, MAX_FIELDS = 64, MAX_EVENTS = 64, MAX_NAMES = 256, TEXT_BYTES = 96 };

/* nvml.h: nvmlReturn_t */
enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25, UNKNOWN = 999
};

enum number_id {
#define NUMBER(name) n_##name,
#include "numbers.h"
#undef NUMBER
    N_NUMBERS
};

enum text_id {
#define TEXT(name) t_##name,
#include "texts.h"
#undef TEXT
    N_TEXTS
};

enum function_id {
#define FUNCTION(name) f_##name,
#include "functions.h"
#undef FUNCTION
    N_FUNCTIONS
};

/* A number that may change with time: what it is now is value_of(). */
struct number {
    enum { ABSENT, CONSTANT, SQUARE, SINE, RAMP } kind;
    double low, high, period_s, duty, start_s;
};

struct process {
    unsigned kind; /* 1 compute, 2 graphics, 4 MPS */
    unsigned pid, gpu_instance, compute_instance;
    double memory_bytes; /* below zero: not available */
    unsigned sm, memory, encoder, decoder; /* percent */
};

struct mig_device {
    unsigned gpu_instance, compute_instance;
    double memory_bytes, used_bytes;
    char name[TEXT_BYTES], uuid[TEXT_BYTES];
};

struct failure { unsigned short code, every; };

struct gpu {
    struct number numbers[N_NUMBERS];
    char texts[N_TEXTS][TEXT_BYTES];
    struct process processes[MAX_PROCESSES];
    struct mig_device mig[MAX_MIG];
    struct { unsigned id; struct number value; } fields[MAX_FIELDS];
    struct { int level, links, status; } peers[MAX_GPUS];
    struct failure failures[N_FUNCTIONS];
    int n_processes, n_mig, n_fields;
};

struct event { unsigned long long seq; int gpu; unsigned long long type, data; };

struct state {
    int n_gpus, init_code, unloaded, epoch, n_events, n_names, cuda;
    char driver[TEXT_BYTES], nvml[TEXT_BYTES];
    struct gpu gpus[MAX_GPUS];
    struct failure failures[N_FUNCTIONS];
    double latency_s[N_FUNCTIONS];
    struct event events[MAX_EVENTS];
    struct { unsigned pid; char name[TEXT_BYTES]; } names[MAX_NAMES];
};

/* nvmlDevice_t points at one of these: a card, or a MIG device of it (mig >= 0). */
struct device { int gpu, mig; };

extern struct state state;
extern struct device devices[MAX_GPUS], mig_devices[MAX_GPUS][MAX_MIG];

double now_s(void);
void leave(int *unused);
int enter(int function, struct device *device, int needs_init);
int enter_init(int function);
int leave_library(int function);
void lock_state(void);
void unlock_state(void);
void read_state(void);
void look_again(void);
int watch_state(void);
int value_of(const struct number *number, double *out);
int number_of(const struct device *device, enum number_id id, double *out);
unsigned clamp_unsigned(double value);
unsigned long long clamp_long(double value);
int put_unsigned(const struct device *device, enum number_id id, double scale, unsigned *out);
int put_long(const struct device *device, enum number_id id, double scale, unsigned long long *out);
int put_text(const char *text, char *out, unsigned size);

#define GPU(device) (&state.gpus[(device)->gpu])
/* One exported function; the build reads these lines for functions.h. Every one begins with ENTER or ENTER_SYSTEM. */
#define NVML(name, ...) __attribute__((visibility("default"))) int name(__VA_ARGS__)
#define GUARDED(call)                                     \
    int guard_ __attribute__((cleanup(leave), unused)) = 0; \
    do { int code_ = (call); if (code_) return code_; } while (0)
#define ENTER(name, device) GUARDED(enter(f_##name, (device), 1))
#define ENTER_SYSTEM(name) GUARDED(enter(f_##name, NULL, 1))
#define ENTER_ANYTIME(name) GUARDED(enter(f_##name, NULL, 0))
#define NEED(pointer) do { if (!(pointer)) return INVALID_ARGUMENT; } while (0)
#endif
