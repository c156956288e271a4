/* Random numbers as an argument: xoshiro256** (Blackman and Vigna, 2018), seeded by splitmix64.
 * The same seed gives the same numbers on every machine; nothing here is for secrets. */
#ifndef ADLI_RNG_H
#define ADLI_RNG_H

#include <stdint.h>

typedef struct adli_rng {
    uint64_t s[4];
} adli_rng;

static inline uint64_t adli_splitmix64(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline void adli_rng_init(adli_rng *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        rng->s[i] = adli_splitmix64(&seed);
}

static inline uint64_t adli_rng_u64(adli_rng *rng)
{
    uint64_t *s = rng->s;
    uint64_t fives = s[1] * 5, result = ((fives << 7) | (fives >> 57)) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = (s[3] << 45) | (s[3] >> 19);
    return result;
}

/* Uniform in [0, 1). */
static inline double adli_rng_unit(adli_rng *rng)
{
    return (double)(adli_rng_u64(rng) >> 11) * 0x1p-53;
}

/* Uniform in 0 .. bound-1; bound > 0. The bias of the multiply-shift is below 2^-32 for 32-bit
 * bounds. */
static inline uint32_t adli_rng_below(adli_rng *rng, uint32_t bound)
{
    return (uint32_t)(((adli_rng_u64(rng) >> 32) * (uint64_t)bound) >> 32);
}

/* Uniform in low .. high, both included. */
static inline int adli_rng_range(adli_rng *rng, int low, int high)
{
    return low + (int)adli_rng_below(rng, (uint32_t)(high - low + 1));
}

#endif
