/* The state: where it is read from, when, and what every call does first.

   FAKE_NVML names a folder with two files; without it, it is the folder that this library was loaded from.
   - `state`: text, one item a line (see read_line); replaced as a whole by whoever scripts the cards.
   - `board`: 8 bytes that change when `state` was replaced (so that a call costs no system call), then for every function
     64 bytes of name and 8 of how often it was called, by all processes together. It may be absent.
   The text is also read again when its time of change moves, looked at every 50 ms, so that an editor serves as well. */
#define _GNU_SOURCE
#include "state.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct slot { char name[64]; uint64_t calls; };
struct board { uint64_t generation; struct slot slots[N_FUNCTIONS]; };

static const char *const function_names[] = {
#define FUNCTION(name) #name,
#include "functions.h"
#undef FUNCTION
};
static const char *const number_names[] = {
#define NUMBER(name) #name,
#include "numbers.h"
#undef NUMBER
};
static const char *const text_names[] = {
#define TEXT(name) #name,
#include "texts.h"
#undef TEXT
};

struct state state;
struct device devices[MAX_GPUS], mig_devices[MAX_GPUS][MAX_MIG];

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct board private_board, *board = &private_board;
static uint64_t seen_generation = UINT64_MAX;
static double looked_s = -1;
static struct timespec seen_change;
static ino_t seen_file;
static int n_inits, init_epoch, opened;

double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void lock_state(void) { pthread_mutex_lock(&mutex); }
void unlock_state(void) { pthread_mutex_unlock(&mutex); }
void leave(int *unused) { (void)unused; unlock_state(); }

static void path_of(const char *name, char *out, size_t size) {
    static char own[4096];
    Dl_info info;
    const char *folder = getenv("FAKE_NVML");
    if (!own[0] && dladdr((void *)&state, &info) && info.dli_fname) {
        snprintf(own, sizeof own, "%s", info.dli_fname);
        char *slash = strrchr(own, '/');
        if (slash) *slash = 0; else snprintf(own, sizeof own, ".");
    }
    snprintf(out, size, "%s/%s", folder && folder[0] ? folder : own, name);
}

static void open_board(void) {
    char path[4096];
    opened = 1;
    for (int g = 0; g < MAX_GPUS; g++) {
        devices[g] = (struct device){g, -1};
        for (int m = 0; m < MAX_MIG; m++) mig_devices[g][m] = (struct device){g, m};
    }
    pthread_atfork(lock_state, unlock_state, unlock_state);
    path_of("board", path, sizeof path);
    int file = open(path, O_RDWR | O_CLOEXEC);
    struct stat info;
    if (file >= 0 && fstat(file, &info) == 0 && (size_t)info.st_size >= sizeof(struct board)) {
        void *map = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (map != MAP_FAILED) board = map;
    }
    if (file >= 0) close(file);
    for (int i = 0; i < N_FUNCTIONS; i++) strncpy(board->slots[i].name, function_names[i], sizeof board->slots[i].name - 1);
}

/* ---- reading ---- */

static void decode(const char *from, char *to) {
    size_t n = 0;
    for (; *from && n < TEXT_BYTES - 1; from++) {
        if (*from == '%' && from[1] && from[2]) {
            const char hex[3] = {from[1], from[2], 0};
            to[n++] = (char)strtol(hex, NULL, 16);
            from += 2;
        } else {
            to[n++] = *from;
        }
    }
    to[n] = 0;
}

static int find(const char *name, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}

static int parse_number(const char *text, struct number *number) {
    char kind[16];
    struct number made = {CONSTANT, 0, 0, 1, 0.5, 0};
    if (sscanf(text, "%lf", &made.low) == 1) {
        *number = made;
        return 1;
    }
    if (sscanf(text, "%15s %lf %lf %lf %lf %lf", kind, &made.low, &made.high, &made.period_s, &made.duty, &made.start_s) != 6)
        return 0;
    made.kind = !strcmp(kind, "square") ? SQUARE : !strcmp(kind, "sine") ? SINE : !strcmp(kind, "ramp") ? RAMP : ABSENT;
    if (made.kind != ABSENT && made.period_s > 0) *number = made;
    return made.kind != ABSENT;
}

static int parse_failure(const char *text, struct failure *failures) {
    char name[80];
    unsigned code, every;
    if (sscanf(text, "%79s %u %u", name, &code, &every) != 3) return 0;
    int function = find(name, function_names, N_FUNCTIONS);
    if (function < 0) return 0;
    failures[function] = (struct failure){(unsigned short)code, (unsigned short)(every ? every : 1)};
    return 1;
}

static int read_gpu_line(struct gpu *gpu, const char *name, const char *rest) {
    int id = find(name, number_names, N_NUMBERS);
    if (id >= 0) return parse_number(rest, &gpu->numbers[id]);
    id = find(name, text_names, N_TEXTS);
    if (id >= 0) {
        decode(rest, gpu->texts[id]);
        return 1;
    }
    if (!strcmp(name, "fail")) return parse_failure(rest, gpu->failures);
    if (!strcmp(name, "process")) {
        struct process p;
        if (gpu->n_processes == MAX_PROCESSES) return 0;
        if (sscanf(rest, "%u %u %lf %u %u %u %u %u %u", &p.kind, &p.pid, &p.memory_bytes, &p.sm, &p.memory, &p.encoder,
                   &p.decoder, &p.gpu_instance, &p.compute_instance) != 9) return 0;
        gpu->processes[gpu->n_processes++] = p;
        return 1;
    }
    if (!strcmp(name, "field")) {
        int used = 0;
        unsigned field;
        if (gpu->n_fields == MAX_FIELDS || sscanf(rest, "%u %n", &field, &used) != 1) return 0;
        gpu->fields[gpu->n_fields].id = field;
        return parse_number(rest + used, &gpu->fields[gpu->n_fields++].value);
    }
    if (!strcmp(name, "peer")) {
        int other, level, links, status;
        if (sscanf(rest, "%d %d %d %d", &other, &level, &links, &status) != 4 || other < 0 || other >= MAX_GPUS) return 0;
        gpu->peers[other].level = level, gpu->peers[other].links = links, gpu->peers[other].status = status;
        return 1;
    }
    if (!strcmp(name, "mig_device")) {
        char made[TEXT_BYTES * 3], uuid[TEXT_BYTES * 3];
        if (gpu->n_mig == MAX_MIG) return 0;
        struct mig_device *m = &gpu->mig[gpu->n_mig];
        if (sscanf(rest, "%u %u %lf %lf %287s %287s", &m->gpu_instance, &m->compute_instance, &m->memory_bytes, &m->used_bytes,
                   made, uuid) != 6) return 0;
        decode(made, m->name);
        decode(uuid, m->uuid);
        gpu->n_mig++;
        return 1;
    }
    return 0;
}

static int read_line(const char *line) {
    char word[80], name[80];
    int used = 0, gpu;
    if (sscanf(line, "%79s %n", word, &used) != 1) return 1;
    const char *rest = line + used;
    if (!strcmp(word, "gpu")) {
        if (sscanf(rest, "%d %79s %n", &gpu, name, &used) != 2 || gpu < 0 || gpu >= MAX_GPUS) return 0;
        if (gpu >= state.n_gpus) state.n_gpus = gpu + 1;
        return read_gpu_line(&state.gpus[gpu], name, rest + used);
    }
    if (!strcmp(word, "driver")) return decode(rest, state.driver), 1;
    if (!strcmp(word, "nvml")) return decode(rest, state.nvml), 1;
    if (!strcmp(word, "cuda")) return sscanf(rest, "%d", &state.cuda) == 1;
    if (!strcmp(word, "init")) return sscanf(rest, "%d", &state.init_code) == 1;
    if (!strcmp(word, "unloaded")) return sscanf(rest, "%d", &state.unloaded) == 1;
    if (!strcmp(word, "epoch")) return sscanf(rest, "%d", &state.epoch) == 1;
    if (!strcmp(word, "fail")) return parse_failure(rest, state.failures);
    if (!strcmp(word, "latency")) {
        double seconds;
        if (sscanf(rest, "%79s %lf", name, &seconds) != 2) return 0;
        int function = find(name, function_names, N_FUNCTIONS);
        if (function >= 0) state.latency_s[function] = seconds;
        return function >= 0;
    }
    if (!strcmp(word, "event")) {
        if (state.n_events == MAX_EVENTS) return 0;
        struct event *e = &state.events[state.n_events];
        return sscanf(rest, "%llu %d %llu %llu", &e->seq, &e->gpu, &e->type, &e->data) == 4 && ++state.n_events;
    }
    if (!strcmp(word, "process_name")) {
        if (state.n_names == MAX_NAMES || sscanf(rest, "%u %n", &state.names[state.n_names].pid, &used) != 1) return 0;
        decode(rest + used, state.names[state.n_names++].name);
        return 1;
    }
    return 0;
}

static void read_text(const char *path) {
    char line[1024];
    FILE *file = fopen(path, "re");
    if (!file) return;
    memset(state.gpus, 0, sizeof(struct gpu) * (size_t)state.n_gpus);
    memset(state.failures, 0, sizeof state.failures);
    memset(state.latency_s, 0, sizeof state.latency_s);
    state.n_gpus = state.init_code = state.unloaded = state.epoch = state.n_events = state.n_names = 0;
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        line[strcspn(line, "\r\n")] = 0;
        if (line[0] && line[0] != '#' && !read_line(line)) fprintf(stderr, "fake_nvml: %s:%d is not understood: %s\n", path, number, line);
    }
    fclose(file);
}

/* Reads the state again if it changed. Call with the lock held. */
void read_state(void) {
    char path[4096];
    struct stat info;
    if (!opened) open_board();
    uint64_t generation = __atomic_load_n(&board->generation, __ATOMIC_ACQUIRE);
    double now = now_s();
    if (generation == seen_generation && now - looked_s < 0.05) return;
    looked_s = now;
    path_of("state", path, sizeof path);
    if (stat(path, &info) != 0) return;
    int same = info.st_ino == seen_file && info.st_mtim.tv_sec == seen_change.tv_sec && info.st_mtim.tv_nsec == seen_change.tv_nsec;
    if (same && generation == seen_generation) return;
    seen_generation = generation, seen_change = info.st_mtim, seen_file = info.st_ino;
    read_text(path);
}

/* Reads the state again if it changed, however short ago it was looked at. Call with the lock held. */
void look_again(void) {
    looked_s = 0;
    read_state();
}

/* A descriptor that can be read from when the script was replaced; below zero where the system gives none. */
int watch_state(void) {
    char path[4096];
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    path_of("", path, sizeof path);
    if (watch >= 0 && inotify_add_watch(watch, path, IN_MOVED_TO | IN_CLOSE_WRITE) < 0) {
        close(watch);
        return -1;
    }
    return watch;
}

/* ---- what every call does first ---- */

static int failing(const struct failure *failure, uint64_t calls) {
    return failure->code && calls % failure->every == 0 ? failure->code : OK;
}

static int begin(int function, uint64_t *calls) {
    lock_state();
    read_state();
    *calls = __atomic_add_fetch(&board->slots[function].calls, 1, __ATOMIC_RELAXED);
    double latency = state.latency_s[function];
    if (latency > 0) {
        struct timespec wait = {(time_t)latency, (long)(1e9 * (latency - floor(latency)))};
        unlock_state();
        nanosleep(&wait, NULL);
        lock_state();
        read_state();
    }
    return failing(&state.failures[function], *calls);
}

static int known(const struct device *device) {
    for (int g = 0; g < state.n_gpus; g++) {
        if (device == &devices[g]) return 1;
        for (int m = 0; m < MAX_MIG; m++)
            if (device == &mig_devices[g][m]) return m < state.gpus[g].n_mig;
    }
    return 0;
}

/* Takes the lock, which leave() gives back, whatever is returned. */
int enter(int function, struct device *device, int needs_init) {
    uint64_t calls;
    int code = begin(function, &calls);
    if (needs_init) {
        if (!n_inits) return UNINITIALIZED;
        if (state.unloaded) return DRIVER_NOT_LOADED;
        /* a driver loaded anew does not know the open files of the library */
        if (init_epoch != state.epoch) return UNKNOWN;
    }
    if (code || !device) return code;
    if (!known(device)) return INVALID_ARGUMENT;
    double lost;
    if (number_of(device, n_lost, &lost) == OK && lost > 0) return (int)lost;
    return failing(&GPU(device)->failures[function], calls);
}

int enter_init(int function) {
    uint64_t calls;
    int code = begin(function, &calls);
    if (code) return code;
    if (state.unloaded) return DRIVER_NOT_LOADED;
    if (state.init_code) return state.init_code;
    n_inits++;
    init_epoch = state.epoch;
    return OK;
}

int leave_library(int function) {
    uint64_t calls;
    int code = begin(function, &calls);
    if (code) return code;
    if (!n_inits) return UNINITIALIZED;
    n_inits--;
    return OK;
}

/* ---- numbers ---- */

int value_of(const struct number *number, double *out) {
    double since = number->kind > CONSTANT ? now_s() - number->start_s : 0;
    double phase = number->kind > CONSTANT ? since / number->period_s : 0;
    switch (number->kind) {
    case ABSENT: return NOT_SUPPORTED;
    case CONSTANT: *out = number->low; return OK;
    case SQUARE: *out = phase - floor(phase) < number->duty ? number->high : number->low; return OK;
    case SINE: *out = number->low + (number->high - number->low) * (0.5 - 0.5 * cos(2 * 3.14159265358979323846 * phase)); return OK;
    case RAMP: *out = number->low + number->high * since; return OK;
    }
    return NOT_SUPPORTED;
}

int number_of(const struct device *device, enum number_id id, double *out) { return value_of(&GPU(device)->numbers[id], out); }

unsigned clamp_unsigned(double value) { return value <= 0 ? 0 : value >= 4294967295.0 ? 4294967295u : (unsigned)(value + 0.5); }

unsigned long long clamp_long(double value) {
    return value <= 0 ? 0 : value >= 18446744073709551615.0 ? UINT64_MAX : (unsigned long long)(value + 0.5);
}

int put_unsigned(const struct device *device, enum number_id id, double scale, unsigned *out) {
    double value;
    NEED(out);
    int code = number_of(device, id, &value);
    if (code == OK) *out = clamp_unsigned(scale * value);
    return code;
}

int put_long(const struct device *device, enum number_id id, double scale, unsigned long long *out) {
    double value;
    NEED(out);
    int code = number_of(device, id, &value);
    if (code == OK) *out = clamp_long(scale * value);
    return code;
}

int put_text(const char *text, char *out, unsigned size) {
    NEED(out);
    if (!text[0]) return NOT_SUPPORTED;
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}
