#include "train/norms.h"

#include <string.h>

enum { WIDTH = 4, SUMS = 4, LANES = WIDTH * SUMS, BLOCK = 1024 };

/* Four floats, the vectors that every 64-bit processor has; four sums of them keep the adders busy.
 * Loaded by memcpy, because foreign gradients need not be aligned. */
typedef float vector __attribute__((vector_size(WIDTH * sizeof(float))));

static inline vector load(const float *at)
{
    vector value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline double total(const vector sums[SUMS])
{
    double sum = 0;
    for (int k = 0; k < SUMS; k++)
        for (int i = 0; i < WIDTH; i++)
            sum += (double)sums[k][i];
    return sum;
}

/* One block of at most BLOCK values: float sums per lane, short enough to lose nothing that matters
 * beside the noise. What does not fill all lanes goes into the first one. */
static double block_sqr(const float *g, const float *pre, size_t n)
{
    vector sums[SUMS] = {{0}};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < SUMS; k++) {
            vector value = load(g + i + WIDTH * k);
            if (pre)
                value /= load(pre + i + WIDTH * k);
            sums[k] += value * value;
        }
    for (; i < n; i++) {
        float value = pre ? g[i] / pre[i] : g[i];
        sums[0][0] += value * value;
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
    vector now_sums[SUMS] = {{0}}, then_sums[SUMS] = {{0}}, mean_sums[SUMS] = {{0}};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < SUMS; k++) {
            size_t at = i + (size_t)(WIDTH * k);
            vector now = load(g + at), then = load(before + at);
            memcpy(before + at, &now, sizeof now);
            if (pre) {
                now /= load(pre + at);
                then /= load(pre + at);
            }
            vector mean = (now + then) * 0.5f;
            now_sums[k] += now * now;
            then_sums[k] += then * then;
            mean_sums[k] += mean * mean;
        }
    for (; i < n; i++) {
        float now = g[i], then = before[i], by = pre ? pre[i] : 1.0f;
        before[i] = now;
        now /= by;
        then /= by;
        float mean = (now + then) * 0.5f;
        now_sums[0][0] += now * now;
        then_sums[0][0] += then * then;
        mean_sums[0][0] += mean * mean;
    }
    sqr[0] += total(now_sums);
    sqr[1] += total(then_sums);
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
