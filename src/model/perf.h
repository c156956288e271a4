/* The step-time model's parameters as a list: whoever writes, reads or checks all of them goes through it. */
#ifndef ADLI_MODEL_PERF_H
#define ADLI_MODEL_PERF_H

#include "adaptdl/goodput.h"

enum { ADLI_PERF_COUNT = 7 };
_Static_assert(sizeof(adl_perf_params) == ADLI_PERF_COUNT * sizeof(double), "nothing but doubles");

/* In the order of the struct, which is that of every format too. */
extern const char *const adli_perf_names[ADLI_PERF_COUNT];

static inline double adli_perf_get(const adl_perf_params *perf, int index)
{
    return ((const double *)perf)[index];
}

static inline void adli_perf_set(adl_perf_params *perf, int index, double value)
{
    ((double *)perf)[index] = value;
}

/* Jobs of one program on one kind of device are slower or faster than each other, by less than exp(most_off); what is
 * not so is a ratio of measured to modelled times that differs from configuration to configuration (root mean square
 * of its logarithm). Beyond these it is another program. */
static const double adli_most_off = 2.5, adli_most_spread = 0.7;

#endif
