/* The loops over gradients. Arrays do not overlap. Every function gives the same bits on every
 * machine: sums are in float32, element by element, never contracted or reordered. */
#ifndef ADLI_COMM_KERNEL_H
#define ADLI_COMM_KERNEL_H

#include <stddef.h>
#include <stdint.h>

/* bfloat16 is the upper half of a float32. Rounds to nearest, ties to even; NaN stays NaN. */
static inline uint16_t adli_bf16_of(float value)
{
    union {
        float f;
        uint32_t u;
    } bits = {value};
    uint32_t rounded = bits.u + 0x7fffu + (bits.u >> 16 & 1);
    uint32_t quiet = bits.u | 0x400000u;
    return (uint16_t)(((bits.u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >> 16);
}

static inline float adli_bf16_to(uint16_t half)
{
    union {
        uint32_t u;
        float f;
    } bits = {(uint32_t)half << 16};
    return bits.f;
}

typedef struct adli_kernels {
    /* sum[n] += x[n] */
    void (*add)(float *sum, const float *x, size_t n);
    void (*add_bf16)(float *sum, const uint16_t *x, size_t n);
    /* x[n] = (x[n] + other[n]) * scale, and a copy of that: the last step for two replicas. */
    void (*sum2)(float *x, float *copy, const float *other, float scale, size_t n);
    /* x[n] *= scale; x[n] /= divisor */
    void (*scale)(float *x, float scale, size_t n);
    void (*divide)(float *x, float divisor, size_t n);
    void (*to_bf16)(uint16_t *out, const float *x, size_t n);
    void (*from_bf16)(float *out, const uint16_t *x, size_t n);
    /* x[n] = x rounded to bfloat16 */
    void (*round_bf16)(float *x, size_t n);
} adli_kernels;

/* The fastest that this CPU runs. */
const adli_kernels *adli_kernels_get(void);
/* The ones that every CPU runs, for comparison. */
const adli_kernels *adli_kernels_plain(void);

#endif
