#include "train/norms.h"

#include <stdint.h>
#include <string.h>

enum { WIDTH = 8, SUMS = 2, LANES = WIDTH * SUMS, BLOCK = 1024 };

/* Eight floats: one register of a processor with AVX2, two of any other. Loaded by memcpy, because
 * foreign gradients need not be aligned. */
typedef float vector __attribute__((vector_size(WIDTH * sizeof(float))));

#define INLINE static inline __attribute__((always_inline))

/* Functions for AVX2, and the same for every processor; chosen at each call, which covers a whole
 * parameter. They do the same operations in the same order (no fused ones: see CMakeLists.txt). */
#if defined(__x86_64__)
#define WITH_AVX2 __attribute__((target("avx2")))
#define HAVE_AVX2 __builtin_cpu_supports("avx2")
#else
#define WITH_AVX2
#define HAVE_AVX2 0
#endif

/* 2^64, whose square is not finite, nor is that of any value whose bits without the sign are more. Added to those of
 * a finite square they leave the highest bit as it is. */
INLINE bool all_finite(const float *g, size_t n)
{
    typedef uint32_t bits __attribute__((vector_size(WIDTH * sizeof(uint32_t))));
    const uint32_t magnitude = 0x7fffffff, missing = 0x80000000 - 0x5f800000;
    bits found[SUMS] = {{0}};
    uint32_t any = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < SUMS; k++) {
            bits value;
            memcpy(&value, g + i + WIDTH * k, sizeof value);
            found[k] |= (value & magnitude) + missing;
        }
    for (; i < n; i++) {
        uint32_t value;
        memcpy(&value, g + i, sizeof value);
        any |= (value & magnitude) + missing;
    }
    for (int k = 0; k < SUMS; k++)
        for (int lane = 0; lane < WIDTH; lane++)
            any |= found[k][lane];
    return any >> 31 == 0;
}

WITH_AVX2 static bool finite_avx2(const float *g, size_t n)
{
    return all_finite(g, n);
}

static bool finite_any(const float *g, size_t n)
{
    return all_finite(g, n);
}

bool adli_finite(const float *g, size_t n)
{
    return HAVE_AVX2 ? finite_avx2(g, n) : finite_any(g, n);
}

INLINE double total(const vector sums[SUMS])
{
    double sum = 0;
    for (int k = 0; k < SUMS; k++)
        for (int i = 0; i < WIDTH; i++)
            sum += (double)sums[k][i];
    return sum;
}

/* One block of at most BLOCK values: float sums per lane, short enough to lose nothing that matters
 * beside the noise. What does not fill all lanes goes into the first one. */
INLINE double block_sqr(const float *g, const float *pre, size_t n)
{
    vector sums[SUMS] = {{0}};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < SUMS; k++) {
            vector value, by;
            memcpy(&value, g + i + WIDTH * k, sizeof value);
            if (pre) {
                memcpy(&by, pre + i + WIDTH * k, sizeof by);
                value /= by;
            }
            sums[k] += value * value;
        }
    for (; i < n; i++) {
        float value = pre ? g[i] / pre[i] : g[i];
        sums[0][0] += value * value;
    }
    return total(sums);
}

INLINE double all_sqr(const float *g, const float *pre, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i += BLOCK)
        sum += block_sqr(g + i, pre ? pre + i : NULL, n - i < BLOCK ? n - i : BLOCK);
    return sum;
}

WITH_AVX2 static double sqr_avx2(const float *g, const float *pre, size_t n)
{
    return pre ? all_sqr(g, pre, n) : all_sqr(g, NULL, n);
}

static double sqr_any(const float *g, const float *pre, size_t n)
{
    return pre ? all_sqr(g, pre, n) : all_sqr(g, NULL, n);
}

double adli_norm_sqr(const float *g, const float *pre, size_t n)
{
    return HAVE_AVX2 ? sqr_avx2(g, pre, n) : sqr_any(g, pre, n);
}

INLINE void block_pair(const float *g, const float *h, const float *pre, size_t n, double sqr[3])
{
    vector g_sums[SUMS] = {{0}}, h_sums[SUMS] = {{0}}, change_sums[SUMS] = {{0}};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < SUMS; k++) {
            vector a, b, by;
            memcpy(&a, g + i + WIDTH * k, sizeof a);
            memcpy(&b, h + i + WIDTH * k, sizeof b);
            if (pre) {
                memcpy(&by, pre + i + WIDTH * k, sizeof by);
                a /= by;
                b /= by;
            }
            g_sums[k] += a * a;
            h_sums[k] += b * b;
            change_sums[k] += (a - b) * (a - b);
        }
    for (; i < n; i++) {
        float by = pre ? pre[i] : 1.0f, a = g[i] / by, b = h[i] / by;
        g_sums[0][0] += a * a;
        h_sums[0][0] += b * b;
        change_sums[0][0] += (a - b) * (a - b);
    }
    sqr[0] += total(g_sums);
    sqr[1] += total(h_sums);
    sqr[2] += total(change_sums);
}

INLINE void all_pair(const float *g, const float *h, const float *pre, size_t n, double sqr[3])
{
    for (size_t i = 0; i < n; i += BLOCK)
        block_pair(g + i, h + i, pre ? pre + i : NULL, n - i < BLOCK ? n - i : BLOCK, sqr);
}

WITH_AVX2 static void pair_avx2(const float *g, const float *h, const float *pre, size_t n,
                                double sqr[3])
{
    all_pair(g, h, pre, n, sqr);
}

static void pair_any(const float *g, const float *h, const float *pre, size_t n, double sqr[3])
{
    all_pair(g, h, pre, n, sqr);
}

void adli_norm_pair(const float *g, const float *h, const float *pre, size_t n, double sqr[3])
{
    if (HAVE_AVX2)
        pair_avx2(g, h, pre, n, sqr);
    else
        pair_any(g, h, pre, n, sqr);
}

void adli_add(float *restrict sum, const float *restrict g, size_t n, int first)
{
    if (first) {
        memcpy(sum, g, n * sizeof *g);
        return;
    }
    for (size_t i = 0; i < n; i++)
        sum[i] += g[i];
}

void adli_add_scaled(float *restrict g, const float *restrict sum, float factor, size_t n)
{
    for (size_t i = 0; i < n; i++)
        g[i] = (g[i] + sum[i]) * factor;
}

void adli_scale(float *g, float factor, size_t n)
{
    for (size_t i = 0; i < n; i++)
        g[i] *= factor;
}
