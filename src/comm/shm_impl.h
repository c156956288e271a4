/* A segment of shared memory from the inside: boxes and counters of replicas of one machine, shared by
 * shm_reduce.c (all replicas are on one machine) and tiers.c (some are). shm_segment.c makes it, waits on
 * its counters and ends it. */
#ifndef ADLI_COMM_SHM_IMPL_H
#define ADLI_COMM_SHM_IMPL_H

#include "comm/reducer_impl.h"
#include "comm/shm.h"

enum {
    ADLI_PLACES = 4, /* a power of two: places stay in turn when the counters wrap around */
    ADLI_LINE = 64,  /* bytes of a cache line; floats of a slice are aligned to it */
    ADLI_LINE_FLOATS = ADLI_LINE / 4,
    ADLI_CAUSE_MAX = 248,
    ADLI_TILE = 2048, /* floats that are summed at a time, within the first-level cache */
};

/* A counter that others wait for. */
typedef struct adli_counter {
    _Atomic uint32_t value, waiters;
    uint8_t pad[ADLI_LINE - 8];
} adli_counter;

typedef struct adli_lane {
    adli_counter in, out;
    _Atomic uint32_t closed; /* how it ended; then status and text say why */
    int32_t status;
    char text[ADLI_CAUSE_MAX];
    uint8_t pad[ADLI_LINE - (8 + ADLI_CAUSE_MAX) % ADLI_LINE];
} adli_lane;

/* What travels with the first chunk of a bucket. */
typedef struct adli_heading {
    adli_bucket_head head;
    uint8_t pad[ADLI_LINE - sizeof(adli_bucket_head)];
    double extra[ADL_REDUCER_EXTRA_MAX];
} adli_heading;

typedef struct adli_shared {
    adli_transport base; /* shm_reduce.c's */
    adl_reducer *reducer;
    int size, place; /* replicas on this machine; which of them this is */
    int *ranks;      /* [size]: their ranks in the group */
    int owners;      /* the first so many own slices of a chunk */
    adli_shm shm;
    size_t chunk;           /* elements of a chunk at most */
    size_t slice;           /* the longest slice: chunk / owners rounded up to lines */
    adli_lane *lanes;       /* [size] */
    adli_heading *headings; /* [size][PLACES] */
    float *inboxes;         /* [size][PLACES][owners * slice] */
    float *outboxes;        /* [size][PLACES][slice] */
    uint32_t next;          /* number of the next chunk; wraps around */
    bool may_spin;          /* every replica can have a core of its own */
    int spins;              /* what has paid lately */
    uint32_t waits;
    float *tile; /* [ADLI_TILE] */
} adli_shared;

/* Collective over the group. The circle is this machine's replicas in the order of their ranks (size 1:
 * no memory is shared, *out is NULL); its first `owners` own slices. Either all replicas get their
 * segment or none does. */
ADL_MUST adl_status adli_shared_new(adl_reducer *reducer, const adli_circle *circle, int owners,
                                    adli_shared **out);
void adli_shared_free(adli_shared *self); /* NULL is fine */
/* Nobody is to wait for this replica any more. Others may learn of a death by its consequences, so the
 * cause, adl_error(), goes along. */
void adli_shared_close(adli_shared *self, adl_status status);

static inline adli_heading *adli_heading_at(const adli_shared *self, int place, uint32_t number)
{
    return &self->headings[(size_t)place * ADLI_PLACES + number % ADLI_PLACES];
}

static inline float *adli_inbox_at(const adli_shared *self, int place, uint32_t number)
{
    return self->inboxes + ((size_t)place * ADLI_PLACES + number % ADLI_PLACES) *
                               (size_t)self->owners * self->slice;
}

static inline float *adli_outbox_at(const adli_shared *self, int place, uint32_t number)
{
    return self->outboxes + ((size_t)place * ADLI_PLACES + number % ADLI_PLACES) * self->slice;
}

static inline size_t adli_slice_of(size_t chunk, size_t owners)
{
    return ((chunk + owners - 1) / owners + ADLI_LINE_FLOATS - 1) / ADLI_LINE_FLOATS *
           ADLI_LINE_FLOATS;
}

/* This replica's counters. */
void adli_publish(adli_counter *word, uint32_t value);
/* Until one counter, or those of all, have got there. */
ADL_MUST adl_status adli_wait_for(adli_shared *self, adli_counter *word, uint32_t wanted);
ADL_MUST adl_status adli_wait_in(adli_shared *self, uint32_t number);
ADL_MUST adl_status adli_wait_out(adli_shared *self, uint32_t number);

void adli_heading_write(adli_shared *self, const adli_bucket *bucket, uint32_t number);
/* Same bucket everywhere? Then its doubles are summed in the order of places, by everyone. */
ADL_MUST adl_status adli_headings_read(adli_shared *self, const adli_bucket *bucket,
                                       uint32_t number);

/* Elements into a box, and out of one, in the type that travels. */
void adli_pack(const adli_shared *self, float *box, size_t offset, const float *data, size_t n);
void adli_unpack(const adli_shared *self, float *data, const float *box, size_t n);

#endif
