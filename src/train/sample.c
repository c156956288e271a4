#include "train/sample.h"

#include "train/norms.h"

#include <string.h>

enum { CHUNK = ADLI_SAMPLE_CHUNK };

/* A walk over the chunks that a turn looks at. */
typedef struct walk {
    size_t count, stride, at, n; /* at: the next chunk; n: values in the present one */
    size_t seen;
} walk;

static walk walk_over(size_t count, size_t turn)
{
    size_t every = turn == ADLI_SAMPLE_ALL || count < ADLI_SAMPLE_FROM ? 1 : ADLI_SAMPLE_EVERY;
    return (walk){.count = count, .stride = every * CHUNK, .at = turn % every * CHUNK};
}

/* *first: of the next chunk, of walk->n values. */
static int next_chunk(walk *self, size_t *first)
{
    if (self->at >= self->count)
        return 0;
    *first = self->at;
    self->n = self->count - self->at < CHUNK ? self->count - self->at : CHUNK;
    self->seen += self->n;
    self->at += self->stride;
    return 1;
}

/* How many values each that was seen stands for. */
static double weight(const walk *self)
{
    return self->seen > 0 ? (double)self->count / (double)self->seen : 0;
}

double adli_sample_sqr(const float *g, size_t count, size_t turn, adli_divisor_fn divisor,
                       void *user)
{
    walk chunks = walk_over(count, turn);
    float pre[CHUNK];
    double sum = 0;
    if (!divisor && chunks.stride == CHUNK)
        return adli_norm_sqr(g, NULL, count);
    for (size_t first; next_chunk(&chunks, &first);) {
        if (divisor)
            divisor(user, first, chunks.n, pre);
        sum += adli_norm_sqr(g + first, divisor ? pre : NULL, chunks.n);
    }
    return sum * weight(&chunks);
}

void adli_sample_keep(float *before, const float *g, size_t count, size_t turn)
{
    walk chunks = walk_over(count, turn);
    for (size_t first; next_chunk(&chunks, &first);)
        memcpy(before + first, g + first, chunks.n * sizeof *g);
}

void adli_sample_pair(const float *g, const float *h, size_t count, size_t turn,
                      adli_divisor_fn divisor, void *user, double sqr[3])
{
    walk chunks = walk_over(count, turn);
    float pre[CHUNK];
    double sums[3] = {0, 0, 0};
    for (size_t first; next_chunk(&chunks, &first);) {
        if (divisor)
            divisor(user, first, chunks.n, pre);
        adli_norm_pair(g + first, h + first, divisor ? pre : NULL, chunks.n, sums);
    }
    for (int k = 0; k < 3; k++)
        sqr[k] += sums[k] * weight(&chunks);
}
