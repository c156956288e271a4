/* All-reduce between replicas on several machines, some of which have more than one: through shared memory
 * within a machine, around rings of TCP connections between them, so that a bucket crosses the network
 * once for a machine and not once for a replica.
 *
 * With L the least number of replicas that a machine has, the first L of each machine are its carriers.
 * A bucket is cut into L parts; carrier l of every machine is in ring l, which carries part l:
 *   scatter  every carrier gets the sum of its part over the replicas of its machine
 *   ring     the carriers of a part reduce it among the machines (ring.c)
 *   gather   every replica copies the parts from the carriers of its machine
 * So no core has more to do than 1 / L of the network's work. Each element is summed along one path, and the
 * finished sum is copied, so all replicas have the same bits. The doubles of a bucket are summed within
 * each machine, go around ring 0, and come back with the first chunk of the gathering.
 *
 * Scattering and gathering go through the boxes of shm_segment.c in chunks, numbered on through both. A
 * chunk is one piece of each of the L parts.
 *   scatter  A(k)  wait until out[s] >= k - 4; pieces that others carry into the inbox; in[r] = k
 *            B(k)  a carrier: wait until in[s] >= k, add the pieces of all inboxes to its own; out[r] = k
 *   gather   A(k)  in[r] = k
 *            B(k)  a carrier: wait until in[s] >= k, its finished piece into its outbox; out[r] = k
 *            C(k)  wait until out[s] >= k of the carriers; copy their pieces
 * Why no place is written while it is still read: (inbox) A(k) waits until all have added chunk k - 4;
 * (outbox, and the doubles with it) in[s] >= k is said after C(k - 3), since the stages of three chunks
 * overlap, and C(k - 4) was the last to read place k mod 4; (headings) the first chunk of a bucket follows
 * one of gathering, whose B waited for everyone. */
#include "comm/ring.h"
#include "comm/shm_impl.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tiers {
    adli_transport base;
    adl_reducer *reducer;
    adli_shared *shared; /* NULL: alone on its machine */
    adli_ring *ring;     /* NULL: carries nothing */
    int parts, part;     /* L; which of them this replica carries, or -1 */
} tiers;

/* ---- parts and pieces ---- */

typedef struct span {
    size_t begin, length; /* elements of the bucket */
} span;

static span part_of(size_t n, int part, int parts)
{
    size_t begin =
        n / (size_t)parts * (size_t)part + n % (size_t)parts * (size_t)part / (size_t)parts;
    size_t next = (size_t)part + 1;
    size_t end = n / (size_t)parts * next + n % (size_t)parts * next / (size_t)parts;
    return (span){begin, end - begin};
}

/* What chunk k has of a part; may be empty. */
static span piece_of(const tiers *self, size_t n, int part, size_t k)
{
    span whole = part_of(n, part, self->parts);
    size_t at = k * self->shared->slice;
    if (at >= whole.length)
        return (span){whole.begin, 0};
    size_t left = whole.length - at;
    return (span){whole.begin + at, left < self->shared->slice ? left : self->shared->slice};
}

/* At least one, for the heading. */
static size_t chunks_of(const tiers *self, size_t n)
{
    size_t longest = (n + (size_t)self->parts - 1) / (size_t)self->parts;
    size_t chunks = (longest + self->shared->slice - 1) / self->shared->slice;
    return chunks ? chunks : 1;
}

static adli_lane *my_lane(const adli_shared *shared)
{
    return &shared->lanes[shared->place];
}

/* ---- scatter ---- */

static adl_status scatter_a(tiers *self, const adli_bucket *bucket, uint32_t number, size_t k)
{
    adli_shared *shared = self->shared;
    adl_status status = adli_wait_out(shared, number - ADLI_PLACES);
    if (status != ADL_OK)
        return status;
    if (k == 0)
        adli_heading_write(shared, bucket, number);
    float *inbox = adli_inbox_at(shared, shared->place, number);
    for (int part = 0; part < self->parts; part++) {
        span piece = piece_of(self, bucket->n, part, k);
        if (part != self->part)
            adli_pack(shared, inbox, (size_t)part * shared->slice, bucket->data + piece.begin,
                      piece.length);
    }
    adli_publish(&my_lane(shared)->in, number);
    return ADL_OK;
}

static void add_piece(const tiers *self, float *data, int place, uint32_t number, size_t n)
{
    const adl_reducer *reducer = self->reducer;
    const float *inbox = adli_inbox_at(self->shared, place, number);
    size_t offset = (size_t)self->part * self->shared->slice;
    if (reducer->options.wire == ADL_WIRE_F32)
        reducer->kernels->add(data, inbox + offset, n);
    else
        reducer->kernels->add_bf16(data, (const uint16_t *)(const void *)inbox + offset, n);
}

static adl_status scatter_b(tiers *self, const adli_bucket *bucket, uint32_t number, size_t k)
{
    adli_shared *shared = self->shared;
    adl_status status = ADL_OK;
    if (self->part >= 0 || k == 0)
        status = adli_wait_in(shared, number);
    if (status == ADL_OK && k == 0)
        status = adli_headings_read(shared, bucket, number);
    if (status != ADL_OK)
        return status;
    if (self->part >= 0) {
        span piece = piece_of(self, bucket->n, self->part, k);
        for (int place = 0; piece.length && place < shared->size; place++) {
            if (place != shared->place)
                add_piece(self, bucket->data + piece.begin, place, number, piece.length);
        }
    }
    adli_publish(&my_lane(shared)->out, number);
    return ADL_OK;
}

static adl_status scatter(tiers *self, const adli_bucket *bucket)
{
    size_t chunks = chunks_of(self, bucket->n);
    uint32_t first = self->shared->next;
    adl_status status = ADL_OK;
    for (size_t k = 0; status == ADL_OK && k <= chunks; k++) {
        if (k < chunks)
            status = scatter_a(self, bucket, first + (uint32_t)k, k);
        if (status == ADL_OK && k > 0)
            status = scatter_b(self, bucket, first + (uint32_t)k - 1, k - 1);
    }
    self->shared->next = first + (uint32_t)chunks;
    return status;
}

/* ---- gather ---- */

static adl_status gather_b(tiers *self, const adli_bucket *bucket, uint32_t number, size_t k)
{
    adli_shared *shared = self->shared;
    if (self->part >= 0) {
        adl_status status = adli_wait_in(shared, number);
        if (status != ADL_OK)
            return status;
        span piece = piece_of(self, bucket->n, self->part, k);
        adli_pack(shared, adli_outbox_at(shared, shared->place, number), 0,
                  bucket->data + piece.begin, piece.length);
        if (k == 0 && self->part == 0)
            adli_heading_write(shared, bucket, number);
    }
    adli_publish(&my_lane(shared)->out, number);
    return ADL_OK;
}

static adl_status gather_c(tiers *self, const adli_bucket *bucket, uint32_t number, size_t k)
{
    adli_shared *shared = self->shared;
    for (int part = 0; part < self->parts; part++) {
        if (part == self->part)
            continue;
        adl_status status = adli_wait_for(shared, &shared->lanes[part].out, number);
        if (status != ADL_OK)
            return status;
        span piece = piece_of(self, bucket->n, part, k);
        adli_unpack(shared, bucket->data + piece.begin, adli_outbox_at(shared, part, number),
                    piece.length);
        if (k == 0 && part == 0 && bucket->extra_count)
            memcpy(bucket->extra, adli_heading_at(shared, 0, number)->extra,
                   bucket->extra_count * sizeof(double));
    }
    return ADL_OK;
}

static adl_status gather(tiers *self, const adli_bucket *bucket)
{
    enum { B = 1, C = 2 }; /* how many chunks a stage is behind the first */
    size_t chunks = chunks_of(self, bucket->n);
    uint32_t first = self->shared->next;
    adl_status status = ADL_OK;
    for (size_t k = 0; status == ADL_OK && k < chunks + C; k++) {
        uint32_t number = first + (uint32_t)k;
        if (k < chunks)
            adli_publish(&my_lane(self->shared)->in, number);
        if (k >= B && k - B < chunks)
            status = gather_b(self, bucket, number - B, k - B);
        if (status == ADL_OK && k >= C)
            status = gather_c(self, bucket, number - C, k - C);
    }
    self->shared->next = first + (uint32_t)chunks;
    return status;
}

/* ---- one bucket ---- */

static adl_status carry(tiers *self, const adli_bucket *bucket)
{
    adli_bucket_head head = {bucket->number, bucket->n, (uint32_t)bucket->extra_count};
    span mine = part_of(bucket->n, self->part, self->parts);
    adli_bucket part = {
        .number = bucket->number,
        .data = bucket->data + mine.begin,
        .n = mine.length,
        .extra = bucket->extra,
        .extra_count = self->part == 0 ? bucket->extra_count : 0,
    };
    return adli_ring_reduce(self->ring, &part, &head);
}

static adl_status reduce(adli_transport *transport, const adli_bucket *bucket)
{
    tiers *self = (tiers *)(void *)transport;
    adl_status status = self->shared ? scatter(self, bucket) : ADL_OK;
    if (status == ADL_OK && self->ring)
        status = carry(self, bucket);
    if (status == ADL_OK && self->shared)
        status = gather(self, bucket);
    if (status != ADL_OK && self->shared)
        adli_shared_close(self->shared, status);
    if (status != ADL_OK && self->ring)
        adli_ring_hang_up(self->ring, status);
    return status;
}

/* ---- life ---- */

static void free_tiers(adli_transport *transport)
{
    tiers *self = (tiers *)(void *)transport;
    adli_shared_free(self->shared);
    adli_ring_free(self->ring);
    free(self);
}

/* What follows from who is where. */
typedef struct plan {
    int *ranks; /* [replicas]: first those of this machine, then those of this replica's ring */
    adli_circle machine, ring;
    int parts;
} plan;

static adl_status plan_tiers(const adl_reducer *reducer, const int *host_of, plan *out)
{
    int replicas = reducer->replicas, hosts = 0;
    int *counts = adli_calloc((size_t)replicas, sizeof *counts);
    out->ranks = adli_calloc(2 * (size_t)replicas, sizeof *out->ranks);
    if (!counts || !out->ranks) {
        free(counts);
        return adli_fail_memory("a reducer");
    }
    int *here = out->ranks, *around = here + replicas, mine = host_of[reducer->rank];
    out->machine = (adli_circle){.ranks = here};
    for (int rank = 0; rank < replicas; rank++) {
        if (rank == reducer->rank)
            out->machine.place = out->machine.size;
        if (host_of[rank] == mine)
            here[out->machine.size++] = rank;
        counts[host_of[rank]]++;
        hosts = host_of[rank] + 1 > hosts ? host_of[rank] + 1 : hosts;
    }
    out->parts = replicas;
    for (int host = 0; host < hosts; host++)
        out->parts = counts[host] < out->parts ? counts[host] : out->parts;
    bool carries = out->machine.place < out->parts;
    out->ring = (adli_circle){carries ? hosts : 0, mine, around};
    memset(counts, 0, (size_t)replicas * sizeof *counts);
    for (int rank = 0; rank < replicas;
         rank++) { /* the one of each host at this one's place in it */
        if (counts[host_of[rank]]++ == out->machine.place)
            around[host_of[rank]] = rank;
    }
    free(counts);
    return ADL_OK;
}

adl_status adli_tiers_new(adl_reducer *reducer, const int *host_of, adli_transport **out)
{
    plan it = {0};
    *out = NULL;
    tiers *self = adli_calloc(1, sizeof *self);
    adl_status status = self ? plan_tiers(reducer, host_of, &it) : adli_fail_memory("a reducer");
    status = adli_reducer_agree(reducer, status);
    if (status == ADL_OK) {
        self->base = (adli_transport){reduce, free_tiers};
        self->reducer = reducer;
        self->parts = it.parts;
        self->part = it.ring.size ? it.machine.place : -1;
        status = adli_shared_new(reducer, &it.machine, it.parts, &self->shared);
    }
    if (status == ADL_OK)
        status = adli_ring_new(reducer, &it.ring, &self->ring);
    free(it.ranks);
    if (status == ADL_OK) {
        *out = &self->base;
        return ADL_OK;
    }
    char text[ADLI_TEXT_MAX + 1];
    snprintf(text, sizeof text, "%s", adl_error());
    if (self)
        free_tiers(&self->base);
    return adli_fail(status, "%s", text);
}
