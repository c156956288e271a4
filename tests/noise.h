/* Made-up data of tests. */
#ifndef ADLT_NOISE_H
#define ADLT_NOISE_H

#include "base/rng.h"

/* Bell-shaped enough for statistics: mean 0, variance 1 (sum of 12 uniform numbers). */
static inline float adlt_noise(adli_rng *rng)
{
    float sum = -6;
    uint64_t bits = 0;
    for (int i = 0; i < 12; i++) {
        if (i % 4 == 0)
            bits = adli_rng_u64(rng);
        sum += (float)(bits & 0xffff) * (1.0f / 65536);
        bits >>= 16;
    }
    return sum;
}

#endif
