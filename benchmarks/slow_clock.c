/* A clock that runs SLOW_CLOCK times slower, for a program whose instructions are counted: it then runs tens of times slower
   itself and would miss what it does by the clock. Preloaded; answers of the clock are divided, waits are multiplied.

       cc -O2 -fPIC -shared -o slow_clock.so slow_clock.c -ldl; SLOW_CLOCK=20 LD_PRELOAD=./slow_clock.so program */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static long long times, began[2]; /* of the day, and the one that never jumps */

static long long now(int clock) {
    struct timespec t;
    syscall(SYS_clock_gettime, clock, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

__attribute__((constructor)) static void begin(void) {
    if (times) return;
    const char *told = getenv("SLOW_CLOCK");
    began[0] = now(CLOCK_REALTIME), began[1] = now(CLOCK_MONOTONIC);
    times = told && atoll(told) > 0 ? atoll(told) : 1;
}

static int base_of(int clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE ? 0 : 1; }

static struct timespec span(long long ns) { return (struct timespec){ns / SECOND, ns % SECOND}; }

/* a moment on the slow clock as the system knows it; which clock is seen by how large the moment is */
static struct timespec moment(const struct timespec *t) {
    long long at = t->tv_sec * SECOND + t->tv_nsec;
    int base = at > began[0] / 2 ? 0 : 1;
    return span(began[base] + (at - began[base]) * times);
}

static struct timespec longer(const struct timespec *t) { return span((t->tv_sec * SECOND + t->tv_nsec) * times); }

int clock_gettime(clockid_t clock, struct timespec *t) {
    begin();
    if (clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC) return syscall(SYS_clock_gettime, clock, t);
    int base = base_of(clock);
    *t = span(began[base] + (now(clock) - began[base]) / times);
    return 0;
}

int gettimeofday(struct timeval *t, void *zone) {
    struct timespec s;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &s);
    *t = (struct timeval){s.tv_sec, s.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *t) {
    struct timespec s;
    clock_gettime(CLOCK_REALTIME, &s);
    if (t) *t = s.tv_sec;
    return s.tv_sec;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *t, struct timespec *left) {
    struct timespec real = flags & TIMER_ABSTIME ? moment(t) : longer(t);
    return syscall(SYS_clock_nanosleep, clock, flags, &real, left) ? errno : 0;
}

int nanosleep(const struct timespec *t, struct timespec *left) {
    struct timespec real = longer(t);
    return syscall(SYS_nanosleep, &real, left);
}

int usleep(useconds_t us) {
    struct timespec t = span(us * 1000LL);
    return nanosleep(&t, NULL);
}

int select(int n, fd_set *in, fd_set *out, fd_set *odd, struct timeval *limit) {
    if (!limit) return syscall(SYS_select, n, in, out, odd, NULL);
    struct timespec t = span((limit->tv_sec * 1000000LL + limit->tv_usec) * 1000 * times);
    struct timeval real = {t.tv_sec, t.tv_nsec / 1000};
    return syscall(SYS_select, n, in, out, odd, &real);
}

int poll(struct pollfd *fds, nfds_t n, int ms) { return syscall(SYS_poll, fds, n, ms > 0 ? (int)(ms * times) : ms); }

int epoll_wait(int fd, struct epoll_event *events, int n, int ms) {
    return syscall(SYS_epoll_wait, fd, events, n, ms > 0 ? (int)(ms * times) : ms);
}

int sem_timedwait(sem_t *of, const struct timespec *until) {
    static int (*next)(sem_t *, const struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec real = moment(until);
    return next(of, &real);
}

int sem_clockwait(sem_t *of, clockid_t clock, const struct timespec *until) {
    static int (*next)(sem_t *, clockid_t, const struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "sem_clockwait");
    struct timespec real = moment(until);
    return next(of, clock, &real);
}

int pthread_cond_timedwait(pthread_cond_t *of, pthread_mutex_t *held, const struct timespec *until) {
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec real = moment(until);
    return next(of, held, &real);
}
