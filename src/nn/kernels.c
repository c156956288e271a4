#include "nn/kernels.h"

#include "nn/threads.h"
#include "base/rng.h"

#include <math.h>

ADLI_CLONES static void add(const float *a, const float *b, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = a[i] + b[i];
}

ADLI_CLONES static void relu(const float *in, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = in[i] < 0 ? 0 : in[i]; /* lets NaN through, as the other way round would not */
}

ADLI_CLONES static void gate(const float *in, const float *y, float scale, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float scaled = scale * in[i];
        out[i] = y[i] <= 0 ? 0 : scaled;
    }
}

void adli_kernel_add(const float *a, const float *b, float *out, size_t count)
{
    size_t parts = adli_parts(count);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < parts; i++) {
        size_t first, end;
        adli_part(count, parts, i, &first, &end);
        add(a + first, b + first, out + first, end - first);
    }
}

void adli_kernel_relu(const float *in, float *out, size_t count)
{
    size_t parts = adli_parts(count);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < parts; i++) {
        size_t first, end;
        adli_part(count, parts, i, &first, &end);
        relu(in + first, out + first, end - first);
    }
}

void adli_kernel_gate(const float *in, const float *y, float scale, float *out, size_t count)
{
    size_t parts = adli_parts(count);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < parts; i++) {
        size_t first, end;
        adli_part(count, parts, i, &first, &end);
        gate(in + first, y + first, scale, out + first, end - first);
    }
}

/* A 32-bit mixer with low bias (two multiplications, C. Wellons, "lowbias32"). */
static inline uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

/* `count` elements whose row-major places are first, first + step, ... */
ADLI_CLONES static void drop(const float *in, uint32_t first, uint32_t step, uint32_t key,
                             uint32_t key2, uint32_t threshold, float scale, float *out,
                             size_t count)
{
    for (uint32_t i = 0; i < (uint32_t)count; i++) {
        uint32_t hash = mix(mix(first + step * i + key) ^ key2);
        float scaled = scale * in[i];
        out[i] = hash >= threshold ? scaled : 0;
    }
}

/* One example. Rows along w when channels are not blocked, else along the channels of a block. */
static void drop_example(const adli_layout *l, const float *in, uint32_t key, uint32_t key2,
                         uint32_t threshold, float scale, float *out)
{
    size_t plane = l->h * l->w;
    if (l->block == 1 && l->stride[3] == 1 && l->stride[2] == l->w && l->stride[1] == plane) {
        drop(in, 0, 1, key, key2, threshold, scale, out, l->c * plane);
        return;
    }
    size_t blocks = (l->c + l->block - 1) / l->block;
    for (size_t b = 0; b < blocks; b++)
        for (size_t y = 0; y < l->h; y++)
            for (size_t x = 0; x < l->w; x++) {
                size_t at = b * l->stride[1] + y * l->stride[2] + x * l->stride[3];
                drop(in + at, (uint32_t)(b * l->block * plane + y * l->w + x), (uint32_t)plane, key,
                     key2, threshold, scale, out + at, l->block);
            }
}

void adli_kernel_dropout(const adli_layout *layout, const float *in, uint64_t key,
                         uint32_t threshold, float scale, float *out)
{
#pragma omp parallel for schedule(static) if (layout->n * layout->stride[0] >= ADLI_GRAIN)
    for (size_t n = 0; n < layout->n; n++) {
        uint64_t state = key + n, keys = adli_splitmix64(&state);
        drop_example(layout, in + n * layout->stride[0], (uint32_t)keys, (uint32_t)(keys >> 32),
                     threshold, scale, out + n * layout->stride[0]);
    }
}

ADLI_CLONES static void bias_row(float *y, const float *bias, size_t features, int relu_too)
{
    if (bias)
        for (size_t i = 0; i < features; i++)
            y[i] += bias[i];
    if (relu_too)
        for (size_t i = 0; i < features; i++)
            y[i] = y[i] < 0 ? 0 : y[i];
}

void adli_kernel_bias(float *y, const float *bias, size_t batch, size_t features, int relu_too)
{
    if (!bias && !relu_too)
        return;
#pragma omp parallel for schedule(static) if (batch * features >= ADLI_GRAIN)
    for (size_t b = 0; b < batch; b++)
        bias_row(y + b * features, bias, features, relu_too);
}

ADLI_CLONES static void sum_columns(const float *dy, size_t batch, size_t features, size_t first,
                                    size_t end, int accumulate, float *db)
{
    if (!accumulate)
        for (size_t i = first; i < end; i++)
            db[i] = 0;
    for (size_t b = 0; b < batch; b++)
        for (size_t i = first; i < end; i++)
            db[i] += dy[b * features + i];
}

void adli_kernel_bias_grad(const float *dy, size_t batch, size_t features, int accumulate,
                           float *db)
{
    size_t parts = adli_parts(batch * features);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < parts; i++) {
        size_t first, end;
        adli_part(features, parts, i, &first, &end);
        sum_columns(dy, batch, features, first, end, accumulate, db);
    }
}

void adli_kernel_log_softmax(const float *x, size_t batch, size_t features, float *out)
{
#pragma omp parallel for schedule(static) if (batch * features >= ADLI_GRAIN)
    for (size_t b = 0; b < batch; b++) {
        const float *row = x + b * features;
        float most = row[0];
        for (size_t i = 1; i < features; i++)
            most = row[i] > most ? row[i] : most;
        float sum = expf(row[0] - most);
        for (size_t i = 1; i < features; i++)
            sum += expf(row[i] - most);
        float log_sum = logf(sum);
        for (size_t i = 0; i < features; i++)
            out[b * features + i] = row[i] - most - log_sum;
    }
}

void adli_kernel_log_softmax_grad(const float *dy, const float *y, size_t batch, size_t features,
                                  float *dx)
{
#pragma omp parallel for schedule(static) if (batch * features >= ADLI_GRAIN)
    for (size_t b = 0; b < batch; b++) {
        const float *d = dy + b * features, *row = y + b * features;
        float sum = 0;
        for (size_t i = 0; i < features; i++)
            sum += d[i];
        for (size_t i = 0; i < features; i++)
            dx[b * features + i] = d[i] - expf(row[i]) * sum;
    }
}
