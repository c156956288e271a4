/* Which values of a gradient are looked at, and norms of those. Norms that need more than one pass over memory
 * (pairs of single gradients, gradients divided by Adam's preconditioner) would cost more than 1 % of a step on a
 * large gradient. So such a norm is about an eighth of its chunks, another eighth at each turn, and counts for the
 * whole: averages over many turns are the same. adl_dp and the Python extension both measure so. */
#ifndef ADLI_TRAIN_SAMPLE_H
#define ADLI_TRAIN_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>

enum {
    ADLI_SAMPLE_CHUNK = 1024,
    ADLI_SAMPLE_EVERY = 8,                     /* one chunk in so many, */
    ADLI_SAMPLE_FROM = 16 * ADLI_SAMPLE_CHUNK, /* of gradients of at least so many values */
    ADLI_PRECONDITION_AFTER = 5, /* steps of Adam until its preconditioner is worth dividing by */
};

/* Which part is looked at: turn 0, 1, 2 ... of a large gradient; ADLI_SAMPLE_ALL: every value. */
#define ADLI_SAMPLE_ALL ((size_t)-1)

/* pre[i] = what value first + i is divided by, 0 <= i < n <= ADLI_SAMPLE_CHUNK. */
typedef void (*adli_divisor_fn)(void *user, size_t first, size_t n, float *pre);

/* |g|^2, divided by the divisor (may be NULL). g: [count]. */
double adli_sample_sqr(const float *g, size_t count, size_t turn, adli_divisor_fn divisor,
                       void *user);

/* Pairs: what the turn looks at is kept, and compared with the next gradient at the same turn. kept: [room], g: [count].
 * finite (may be NULL) is whether g is, all of it: in the same pass over memory. */
size_t adli_sample_room(size_t count);
void adli_sample_keep(float *kept, const float *g, size_t count, size_t turn, bool *finite);
/* sqr[0] += |g|^2, sqr[1] += |kept|^2, sqr[2] += |g - kept|^2. */
void adli_sample_pair(const float *g, const float *kept, size_t count, size_t turn,
                      adli_divisor_fn divisor, void *user, double sqr[3], bool *finite);

#endif
