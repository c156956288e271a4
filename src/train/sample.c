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

size_t adli_sample_room(size_t count)
{
    walk chunks = walk_over(count, 0);
    for (size_t first; next_chunk(&chunks, &first);)
        continue;
    return chunks.seen;
}

/* Up to there, from where it was asked before. */
static void ask_finite(bool *finite, const float *g, size_t *from, size_t end)
{
    if (finite)
        *finite &= adli_finite(g + *from, end - *from);
    *from = end;
}

void adli_sample_keep(float *kept, const float *g, size_t count, size_t turn, bool *finite)
{
    walk chunks = walk_over(count, turn);
    size_t from = 0;
    if (finite)
        *finite = true;
    for (size_t first; next_chunk(&chunks, &first); kept += chunks.n) {
        ask_finite(finite, g, &from, first + chunks.n);
        memcpy(kept, g + first, chunks.n * sizeof *g);
    }
    ask_finite(finite, g, &from, count);
}

void adli_sample_pair(const float *g, const float *kept, size_t count, size_t turn,
                      adli_divisor_fn divisor, void *user, double sqr[3], bool *finite)
{
    walk chunks = walk_over(count, turn);
    float pre[CHUNK];
    double sums[3] = {0, 0, 0};
    size_t from = 0;
    if (finite)
        *finite = true;
    for (size_t first; next_chunk(&chunks, &first); kept += chunks.n) {
        ask_finite(finite, g, &from, first + chunks.n);
        if (divisor)
            divisor(user, first, chunks.n, pre);
        adli_norm_pair(g + first, kept, divisor ? pre : NULL, chunks.n, sums);
    }
    ask_finite(finite, g, &from, count);
    for (int k = 0; k < 3; k++)
        sqr[k] += sums[k] * weight(&chunks);
}
