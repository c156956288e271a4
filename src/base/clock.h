/* The two clocks, in seconds. Only programs and I/O code ask; what computes takes time as an
 * argument. */
#ifndef ADLI_CLOCK_H
#define ADLI_CLOCK_H

#include <time.h>

static inline double adli_clock_of(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline double adli_monotonic_s(void)
{
    return adli_clock_of(CLOCK_MONOTONIC);
}

static inline double adli_thread_cpu_s(void)
{
    return adli_clock_of(CLOCK_THREAD_CPUTIME_ID);
}

#endif
