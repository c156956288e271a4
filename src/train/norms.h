/* The arithmetic on gradients that data parallel needs, in one pass over memory each: squared norms
 * on the way of what has to be done anyway. The order of summation is fixed (16 lanes, blocks of
 * 1024), so that every replica gets the same bits from the same gradient, whatever its processor:
 * decisions are taken on these numbers. A value that is not finite makes its norm not finite. */
#ifndef ADLI_TRAIN_NORMS_H
#define ADLI_TRAIN_NORMS_H

#include <stdbool.h>
#include <stddef.h>

/* Is each g[i]^2 finite? */
bool adli_finite(const float *g, size_t n);

/* sum g[i]^2; with pre (may be NULL) of g[i] / pre[i]. */
double adli_norm_sqr(const float *g, const float *pre, size_t n);

/* For the difference of two gradients: sqr[0] += sum g^2, sqr[1] += sum h^2, sqr[2] += sum (g - h)^2,
 * of values divided by pre (may be NULL). */
void adli_norm_pair(const float *g, const float *h, const float *pre, size_t n, double sqr[3]);

/* sum += g; or sum = g when first. */
void adli_add(float *sum, const float *g, size_t n, int first);
/* g = (g + sum) * factor. */
void adli_add_scaled(float *g, const float *sum, float factor, size_t n);
/* g *= factor. */
void adli_scale(float *g, float factor, size_t n);

#endif
