/* All-reduce between replicas of one machine, through one segment of shared memory
 * (shm_segment.c).
 *
 * A bucket is cut into chunks of at most C elements, a chunk into R slices; rank r owns slice r. For
 * chunk number k (counted over all buckets), every rank r goes through three stages:
 *   A  copy the slices that others own into r's inbox;               in[r] = k
 *   B  wait until in[s] >= k for all s; add the R contributions to slice r in rank order, its own taken
 *      from the bucket; the result goes into the bucket and r's outbox;  out[r] = k
 *   C  wait until out[s] >= k for all s; copy their slices from their outboxes into the bucket.
 * Every element is summed by one rank and copied by the others, so all have the same bits. The stages
 * of three chunks overlap: A(k), B(k - 1), C(k - 2), so that a rank rarely waits for another.
 *
 * In- and outboxes have four places, chunk k using place k mod 4. Why no place is written while it is
 * still read: (inbox) before A(k) a rank waits for out[s] >= k - 4, and out[s] is set when s has read;
 * (outbox) B(k) waits for in[s] >= k, s does A(k) after C(k - 3), and C(k - 4) was the last to read
 * place k mod 4.
 *
 * A small bucket (at most DIRECT elements) takes one exchange instead of two: every rank puts its whole
 * contribution into its inbox and sums all of them itself, in the same order, with the same code. */
#include "comm/shm_impl.h"

#include <string.h>

enum {
    STAGES = 3,
    DIRECT = 8 << 10,
};

/* ---- the arithmetic ---- */

/* tile[n] = sum over ranks of element offset .. offset + n of their inboxes; rank `self` contributes
 * mine[n] where that is given. */
static void sum_tile(adli_shared *self, uint32_t number, size_t offset, const float *mine, size_t n)
{
    const adl_reducer *reducer = self->reducer;
    const adli_kernels *kernels = reducer->kernels;
    float *tile = self->tile;
    for (int rank = 0; rank < reducer->replicas; rank++) {
        const float *inbox = adli_inbox_at(self, rank, number);
        bool own = mine && rank == reducer->rank;
        if (own || reducer->options.wire == ADL_WIRE_F32) {
            const float *source = own ? mine : inbox + offset;
            if (rank == 0)
                memcpy(tile, source, n * sizeof *tile);
            else
                kernels->add(tile, source, n);
        } else {
            const uint16_t *source = (const uint16_t *)(const void *)inbox + offset;
            if (rank == 0)
                kernels->from_bf16(tile, source, n);
            else
                kernels->add_bf16(tile, source, n);
        }
    }
    adli_reducer_average(reducer, tile, n);
    if (reducer->options.wire == ADL_WIRE_BF16)
        kernels->round_bf16(tile, n);
}

/* ---- one exchange: small buckets ---- */

static adl_status reduce_direct(adli_shared *self, const adli_bucket *bucket)
{
    uint32_t number = self->next;
    adl_status status = adli_wait_out(self, number - ADLI_PLACES);
    if (status != ADL_OK)
        return status;
    adli_heading_write(self, bucket, number);
    adli_pack(self, adli_inbox_at(self, self->place, number), 0, bucket->data, bucket->n);
    adli_publish(&self->lanes[self->place].in, number);
    status = adli_wait_in(self, number);
    if (status == ADL_OK)
        status = adli_headings_read(self, bucket, number);
    if (status != ADL_OK)
        return status;
    for (size_t at = 0; at < bucket->n; at += ADLI_TILE) {
        size_t n = bucket->n - at < ADLI_TILE ? bucket->n - at : ADLI_TILE;
        sum_tile(self, number, at, NULL, n);
        memcpy(bucket->data + at, self->tile, n * sizeof *self->tile);
    }
    adli_publish(&self->lanes[self->place].out, number);
    self->next = number + 1;
    return ADL_OK;
}

/* ---- three stages: large buckets ---- */

/* The part of a chunk that a rank owns. */
typedef struct span {
    size_t begin, length; /* in elements of the chunk */
} span;

static span span_of(const adli_shared *self, size_t length, int rank)
{
    size_t slice = adli_slice_of(length, (size_t)self->size);
    size_t begin = slice * (size_t)rank;
    if (begin > length)
        begin = length;
    return (span){begin, length - begin < slice ? length - begin : slice};
}

static adl_status stage_a(adli_shared *self, const adli_bucket *bucket, uint32_t number, size_t at,
                          size_t length)
{
    int rank = self->place;
    adl_status status = adli_wait_out(self, number - ADLI_PLACES);
    if (status != ADL_OK)
        return status;
    if (at == 0)
        adli_heading_write(self, bucket, number);
    span own = span_of(self, length, rank);
    size_t after = own.begin + own.length;
    float *inbox = adli_inbox_at(self, rank, number);
    const float *data = bucket->data + at;
    bool bf16 = self->reducer->options.wire == ADL_WIRE_BF16;
    adli_pack(self, inbox, 0, data, own.begin);
    adli_pack(self, inbox, after, data + after, length - after);
    if (bf16) /* one's own contribution is rounded like those of the others */
        self->reducer->kernels->round_bf16(bucket->data + at + own.begin, own.length);
    adli_publish(&self->lanes[rank].in, number);
    return ADL_OK;
}

static void reduce_own(adli_shared *self, float *data, uint32_t number, span own)
{
    const adl_reducer *reducer = self->reducer;
    float *outbox = adli_outbox_at(self, reducer->rank, number);
    if (reducer->replicas == 2 && reducer->options.wire == ADL_WIRE_F32) {
        /* a + b is b + a to the bit, so the order of the two ranks does not matter. */
        const float *theirs = adli_inbox_at(self, !reducer->rank, number) + own.begin;
        reducer->kernels->sum2(data, outbox, theirs, reducer->options.average ? 0.5f : 1.0f,
                               own.length);
        return;
    }
    for (size_t at = 0; at < own.length; at += ADLI_TILE) {
        size_t n = own.length - at < ADLI_TILE ? own.length - at : ADLI_TILE;
        sum_tile(self, number, own.begin + at, data + at, n);
        memcpy(data + at, self->tile, n * sizeof *self->tile);
        adli_pack(self, outbox, at, self->tile, n);
    }
}

static adl_status stage_b(adli_shared *self, const adli_bucket *bucket, uint32_t number, size_t at,
                          size_t length)
{
    adl_status status = adli_wait_in(self, number);
    if (status == ADL_OK && at == 0)
        status = adli_headings_read(self, bucket, number);
    if (status != ADL_OK)
        return status;
    span own = span_of(self, length, self->place);
    reduce_own(self, bucket->data + at + own.begin, number, own);
    adli_publish(&self->lanes[self->place].out, number);
    return ADL_OK;
}

static adl_status stage_c(adli_shared *self, const adli_bucket *bucket, uint32_t number, size_t at,
                          size_t length)
{
    /* From the neighbour on, so that not everyone reads the same outbox at once. */
    for (int i = 1; i < self->size; i++) {
        int rank = (self->place + i) % self->size;
        adl_status status = adli_wait_for(self, &self->lanes[rank].out, number);
        if (status != ADL_OK)
            return status;
        span theirs = span_of(self, length, rank);
        adli_unpack(self, bucket->data + at + theirs.begin, adli_outbox_at(self, rank, number),
                    theirs.length);
    }
    return ADL_OK;
}

static adl_status reduce_chunks(adli_shared *self, const adli_bucket *bucket)
{
    typedef adl_status stage(adli_shared *, const adli_bucket *, uint32_t, size_t, size_t);
    static stage *const stages[STAGES] = {stage_a, stage_b, stage_c};
    size_t chunks = (bucket->n + self->chunk - 1) / self->chunk;
    for (size_t step = 0; step < chunks + STAGES - 1; step++) {
        for (size_t s = 0; s < STAGES && s <= step; s++) {
            size_t k = step - s, at = k * self->chunk;
            if (k >= chunks)
                continue;
            size_t length = bucket->n - at < self->chunk ? bucket->n - at : self->chunk;
            adl_status status = stages[s](self, bucket, self->next + (uint32_t)k, at, length);
            if (status != ADL_OK)
                return status;
        }
    }
    self->next += (uint32_t)chunks;
    return ADL_OK;
}

static adl_status reduce(adli_transport *transport, const adli_bucket *bucket)
{
    adli_shared *self = (adli_shared *)(void *)transport;
    bool small = bucket->n <= DIRECT && bucket->n <= self->chunk;
    adl_status status = small ? reduce_direct(self, bucket) : reduce_chunks(self, bucket);
    if (status != ADL_OK)
        adli_shared_close(self, status);
    return status;
}

/* ---- life ---- */

static void free_transport(adli_transport *transport)
{
    adli_shared_free((adli_shared *)(void *)transport);
}

adl_status adli_shm_new(adl_reducer *reducer, const adli_circle *all, adli_transport **out)
{
    adli_shared *self;
    adl_status status = adli_shared_new(reducer, all, all->size, &self);
    *out = NULL;
    if (status == ADL_OK) {
        self->base = (adli_transport){reduce, free_transport};
        *out = &self->base;
    }
    return status;
}
