#include "train/norms.h"

#include <string.h>

enum { LANES = 16, BLOCK = 1024 };

/* Vectors of 16 floats: the compiler makes 4, 2 or 1 registers of them. Loaded by memcpy, because
 * foreign gradients need not be aligned. */
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

static inline lanes load(const float *at)
{
    lanes value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* The last n < LANES values, zeros behind them. */
static inline lanes load_some(const float *at, size_t n)
{
    lanes value = {0};
    memcpy(&value, at, n * sizeof *at);
    return value;
}

static inline double total(lanes sums)
{
    double sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += (double)sums[i];
    return sum;
}

/* One block of at most BLOCK values: float sums per lane, short enough to lose nothing that matters
 * beside the noise. */
static double block_sqr(const float *g, const float *pre, size_t n)
{
    lanes sums = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes value = load(g + i);
        if (pre)
            value /= load(pre + i);
        sums += value * value;
    }
    if (i < n) {
        lanes value = load_some(g + i, n - i);
        for (size_t k = 0; pre && k < n - i; k++)
            value[k] /= pre[i + k];
        sums += value * value;
    }
    return total(sums);
}

double adli_norm_sqr(const float *g, const float *pre, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i += BLOCK)
        sum += block_sqr(g + i, pre ? pre + i : NULL, n - i < BLOCK ? n - i : BLOCK);
    return sum;
}

static void block_pair(const float *g, float *before, const float *pre, size_t n, double sqr[3])
{
    lanes now_sums = {0}, before_sums = {0}, mean_sums = {0};
    for (size_t i = 0; i < n; i += LANES) {
        size_t some = n - i < LANES ? n - i : LANES;
        lanes now = some == LANES ? load(g + i) : load_some(g + i, some);
        lanes then = some == LANES ? load(before + i) : load_some(before + i, some);
        memcpy(before + i, &now, some * sizeof *before);
        if (pre && some == LANES) {
            lanes by = load(pre + i);
            now /= by;
            then /= by;
        } else if (pre) {
            for (size_t k = 0; k < some; k++) {
                now[k] /= pre[i + k];
                then[k] /= pre[i + k];
            }
        }
        lanes mean = (now + then) * 0.5f;
        now_sums += now * now;
        before_sums += then * then;
        mean_sums += mean * mean;
    }
    sqr[0] += total(now_sums);
    sqr[1] += total(before_sums);
    sqr[2] += total(mean_sums);
}

void adli_norm_pair(const float *g, float *before, const float *pre, size_t n, double sqr[3])
{
    for (size_t i = 0; i < n; i += BLOCK)
        block_pair(g + i, before + i, pre ? pre + i : NULL, n - i < BLOCK ? n - i : BLOCK, sqr);
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
