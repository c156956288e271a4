/* The element-wise loops. All arrays may be of any layout as long as those of one call have the same
 * one; in and out may be the same array. Each runs on several threads when it is worth it. */
#ifndef ADLI_NN_KERNELS_H
#define ADLI_NN_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* out = a + b */
void adli_kernel_add(const float *a, const float *b, float *out, size_t count);
/* out = max(in, 0) */
void adli_kernel_relu(const float *in, float *out, size_t count);
/* out = y <= 0 ? 0 : scale * in */
void adli_kernel_gate(const float *in, const float *y, float scale, float *out, size_t count);

/* Where the elements of [n][c][h][w] lie: element (n, c, h, w) is at
 * n * stride[0] + (c / block) * stride[1] + h * stride[2] + w * stride[3] + c % block. Channels up to a
 * multiple of block exist and are zero. */
typedef struct adli_layout {
    size_t n, c, h, w;
    size_t stride[4], block;
} adli_layout;
/* out = kept ? scale * in : 0. Element (n, place), place counted in row-major order within the
 * example, is kept when a hash of (key, n, place) is at least threshold. */
void adli_kernel_dropout(const adli_layout *layout, const float *in, uint64_t key,
                         uint32_t threshold, float scale, float *out);

/* y[b][i] += bias[i], then max(0) when relu; y: [batch][features]. bias may be NULL. */
void adli_kernel_bias(float *y, const float *bias, size_t batch, size_t features, int relu);
/* db[i] (+)= sum over b of dy[b][i]. */
void adli_kernel_bias_grad(const float *dy, size_t batch, size_t features, int add, float *db);
/* out[b][i] = x[b][i] - log(sum over i of exp(x[b][i])). */
void adli_kernel_log_softmax(const float *x, size_t batch, size_t features, float *out);
/* dx = dy - exp(y) * sum(dy) along each row. */
void adli_kernel_log_softmax_grad(const float *dy, const float *y, size_t batch, size_t features,
                                  float *dx);

#endif
