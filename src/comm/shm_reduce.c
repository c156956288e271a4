/* All-reduce between replicas of one machine, through one segment of shared memory.
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
 * contribution into its inbox and sums all of them itself, in the same order, with the same code.
 *
 * Waiting spins for a moment, if there is a core for each replica, and then sleeps in a futex. There
 * are no locks: a replica that is killed leaves nothing behind that another would wait for, except its
 * progress, and the group's heartbeats tell about that. */
#include "comm/reducer_impl.h"

#include "base/mem.h"
#include "comm/shm.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    STAGES = 3,
    PLACES = 4, /* a power of two, so that the places stay in turn when the counters wrap around */
    LINE = 64,  /* bytes of a cache line; floats of a slice are aligned to it */
    LINE_FLOATS = LINE / 4,
    CHUNK_FLOATS = 128 << 10, /* C, unless the limit on the segment makes it smaller */
    DIRECT = 8 << 10,
    TILE = 2048,     /* floats that are summed at a time, within the first-level cache */
    SPINS_MAX = 500, /* looks at a counter before sleeping: about 10 microseconds */
    SPINS_MIN = 8,
    SPINS_PROBE = 128, /* every so many waits the most is tried again */
    SLEEP_MS = 10,     /* between looks at the group's health */
    CAUSE_MAX = 248,
};
static const size_t default_bytes = (size_t)16 << 20;
/* The number of the first chunk: wrapping around is not a rare event that nobody has seen. */
static const uint32_t first_number = UINT32_MAX - 15;

/* A counter that others wait for. */
typedef struct counter {
    _Atomic uint32_t value, waiters;
    uint8_t pad[LINE - 8];
} counter;

enum { OPEN, FREED, FAILED };

typedef struct lane {
    counter in, out;
    _Atomic uint32_t closed; /* OPEN, FREED or FAILED; then status and text say why */
    int32_t status;
    char text[CAUSE_MAX];
    uint8_t pad[LINE - (8 + CAUSE_MAX) % LINE];
} lane;

/* What travels with the first chunk of a bucket. */
typedef struct heading {
    adli_bucket_head head;
    uint8_t pad[LINE - sizeof(adli_bucket_head)];
    double extra[ADL_REDUCER_EXTRA_MAX];
} heading;

typedef struct shared {
    adli_transport base;
    adl_reducer *reducer;
    adli_shm shm;
    size_t chunk;      /* C, in elements */
    size_t slice;      /* the longest slice: C / R rounded up to lines */
    lane *lanes;       /* [R] */
    heading *headings; /* [R][PLACES] */
    float *inboxes;    /* [R][PLACES][C] */
    float *outboxes;   /* [R][PLACES][slice] */
    uint32_t next;     /* number of the next chunk; wraps around */
    bool may_spin;     /* every replica can have a core of its own */
    int spins;         /* what has paid lately */
    uint32_t waits;
    float *tile; /* [TILE] */
} shared;

/* ---- the layout ---- */

static size_t round_up(size_t value, size_t to)
{
    return (value + to - 1) / to * to;
}

static size_t slice_of(size_t chunk, size_t replicas)
{
    return round_up((chunk + replicas - 1) / replicas, LINE_FLOATS);
}

static size_t segment_bytes(size_t chunk, size_t replicas)
{
    return replicas *
           (sizeof(lane) + PLACES * (sizeof(heading) + 4 * chunk + 4 * slice_of(chunk, replicas)));
}

/* The largest chunk that fits the limit. */
static adl_status choose_chunk(adl_reducer *reducer, size_t *out)
{
    size_t limit = reducer->options.shm_bytes ? reducer->options.shm_bytes : default_bytes;
    size_t replicas = (size_t)reducer->replicas, chunk = CHUNK_FLOATS;
    while (chunk > LINE_FLOATS && segment_bytes(chunk, replicas) > limit)
        chunk = round_up(chunk / 2, LINE_FLOATS);
    if (segment_bytes(chunk, replicas) > limit)
        return adli_fail(ADL_EINVAL,
                         "reducer: %zu bytes of shared memory for %zu replicas, at least %zu",
                         limit, replicas, segment_bytes(LINE_FLOATS, replicas));
    *out = chunk;
    return ADL_OK;
}

static void lay_out(shared *self)
{
    size_t replicas = (size_t)self->reducer->replicas;
    self->slice = slice_of(self->chunk, replicas);
    self->lanes = (lane *)(void *)self->shm.base;
    self->headings = (heading *)(self->lanes + replicas);
    self->inboxes = (float *)(self->headings + replicas * PLACES);
    self->outboxes = self->inboxes + replicas * PLACES * self->chunk;
}

static heading *heading_at(const shared *self, int rank, uint32_t number)
{
    return &self->headings[(size_t)rank * PLACES + number % PLACES];
}

static float *inbox_at(const shared *self, int rank, uint32_t number)
{
    return self->inboxes + ((size_t)rank * PLACES + number % PLACES) * self->chunk;
}

static float *outbox_at(const shared *self, int rank, uint32_t number)
{
    return self->outboxes + ((size_t)rank * PLACES + number % PLACES) * self->slice;
}

/* ---- waiting ---- */

static bool reached(counter *word, uint32_t wanted)
{
    uint32_t value = atomic_load_explicit(&word->value, memory_order_acquire);
    return (int32_t)(value - wanted) >= 0;
}

static void publish(counter *word, uint32_t value)
{
    atomic_store(&word->value, value);
    if (atomic_load(&word->waiters) > 0)
        syscall(SYS_futex, &word->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void relax(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Until the word changes, someone wakes us, or a while has passed. */
static void sleep_on(counter *word, uint32_t wanted)
{
    struct timespec limit = {.tv_nsec = SLEEP_MS * 1000000};
    atomic_fetch_add(&word->waiters, 1);
    uint32_t value = atomic_load(&word->value);
    if ((int32_t)(value - wanted) < 0)
        syscall(SYS_futex, &word->value, FUTEX_WAIT, value, &limit, NULL, 0);
    atomic_fetch_sub(&word->waiters, 1);
}

/* Looks at the counter for a while; true when it got there. On a busy machine the other replica may be
 * waiting for the very core that we spin on, so how long is learnt: as long as it helps. */
static bool spin(shared *self, counter *word, uint32_t wanted)
{
    if (!self->may_spin)
        return false;
    int limit = ++self->waits % SPINS_PROBE == 0 ? SPINS_MAX : self->spins;
    for (int i = 0; i < limit; i++) {
        relax();
        if (reached(word, wanted)) {
            self->spins = 2 * i + SPINS_MIN < SPINS_MAX ? 2 * i + SPINS_MIN : SPINS_MAX;
            return true;
        }
    }
    self->spins = self->spins / 2 > SPINS_MIN ? self->spins / 2 : SPINS_MIN;
    return false;
}

/* A replica that finished a bucket has seen all counters of that bucket: when it then leaves, nobody
 * waits any more for what it was part of. So whoever still waits and sees one leave will wait for
 * ever. */
static adl_status check_others(shared *self)
{
    adl_status status = adli_reducer_watch(self->reducer);
    for (int rank = 0; status == ADL_OK && rank < self->reducer->replicas; rank++) {
        const lane *its = &self->lanes[rank];
        uint32_t closed = atomic_load(&its->closed);
        if (closed == FREED)
            status = adli_fail(ADL_EPEER, "rank %d gave up its reducer", rank);
        if (closed == FAILED) {
            char cause[CAUSE_MAX];
            adli_text_clean(cause, sizeof cause, its->text, strnlen(its->text, CAUSE_MAX - 1));
            status = adli_fail(its->status == ADL_EINVAL ? ADL_EINVAL : ADL_EPEER, "%s", cause);
        }
    }
    return status == ADL_OK ? adli_group_check_left(self->reducer->group) : status;
}

static adl_status wait_for(shared *self, counter *word, uint32_t wanted)
{
    if (reached(word, wanted) || spin(self, word, wanted))
        return ADL_OK;
    while (!reached(word, wanted)) {
        /* What was published before the end still counts, hence the order of the checks. */
        adl_status status = check_others(self);
        if (status != ADL_OK && !reached(word, wanted))
            return status;
        sleep_on(word, wanted);
    }
    return ADL_OK;
}

static adl_status wait_in(shared *self, uint32_t number)
{
    adl_status status = ADL_OK;
    for (int rank = 0; status == ADL_OK && rank < self->reducer->replicas; rank++)
        status = wait_for(self, &self->lanes[rank].in, number);
    return status;
}

static adl_status wait_out(shared *self, uint32_t number)
{
    adl_status status = ADL_OK;
    for (int rank = 0; status == ADL_OK && rank < self->reducer->replicas; rank++)
        status = wait_for(self, &self->lanes[rank].out, number);
    return status;
}

/* ---- headings ---- */

static void write_heading(shared *self, const adli_bucket *bucket, uint32_t number)
{
    heading *mine = heading_at(self, self->reducer->rank, number);
    mine->head = (adli_bucket_head){bucket->number, bucket->n, (uint32_t)bucket->extra_count};
    if (bucket->extra_count)
        memcpy(mine->extra, bucket->extra, bucket->extra_count * sizeof(double));
}

/* Same bucket everywhere? Then its doubles are summed in rank order, by everyone. */
static adl_status read_headings(shared *self, const adli_bucket *bucket, uint32_t number)
{
    const adli_bucket_head *first = &heading_at(self, 0, number)->head;
    for (int rank = 1; rank < self->reducer->replicas; rank++) {
        const adli_bucket_head *head = &heading_at(self, rank, number)->head;
        if (head->number != first->number || head->elements != first->elements ||
            head->extra_count != first->extra_count)
            return adli_reducer_mismatch(0, first, rank, head);
    }
    for (size_t i = 0; i < bucket->extra_count; i++) {
        double sum = 0;
        for (int rank = 0; rank < self->reducer->replicas; rank++)
            sum += heading_at(self, rank, number)->extra[i];
        bucket->extra[i] = sum;
    }
    return ADL_OK;
}

/* ---- the arithmetic ---- */

/* tile[n] = sum over ranks of element offset .. offset + n of their inboxes; rank `self` contributes
 * mine[n] where that is given. */
static void sum_tile(shared *self, uint32_t number, size_t offset, const float *mine, size_t n)
{
    const adl_reducer *reducer = self->reducer;
    const adli_kernels *kernels = reducer->kernels;
    float *tile = self->tile;
    for (int rank = 0; rank < reducer->replicas; rank++) {
        const float *inbox = inbox_at(self, rank, number);
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

/* Elements into a box, in the type that travels. */
static void pack(const shared *self, float *box, size_t offset, const float *data, size_t n)
{
    if (n == 0)
        return; /* data may be NULL */
    if (self->reducer->options.wire == ADL_WIRE_F32)
        memcpy(box + offset, data, n * sizeof *data);
    else
        self->reducer->kernels->to_bf16((uint16_t *)(void *)box + offset, data, n);
}

static void unpack(const shared *self, float *data, const float *box, size_t n)
{
    if (self->reducer->options.wire == ADL_WIRE_F32)
        memcpy(data, box, n * sizeof *data);
    else
        self->reducer->kernels->from_bf16(data, (const uint16_t *)(const void *)box, n);
}

/* ---- one exchange: small buckets ---- */

static adl_status reduce_direct(shared *self, const adli_bucket *bucket)
{
    uint32_t number = self->next;
    adl_status status = wait_out(self, number - PLACES);
    if (status != ADL_OK)
        return status;
    write_heading(self, bucket, number);
    pack(self, inbox_at(self, self->reducer->rank, number), 0, bucket->data, bucket->n);
    publish(&self->lanes[self->reducer->rank].in, number);
    status = wait_in(self, number);
    if (status == ADL_OK)
        status = read_headings(self, bucket, number);
    if (status != ADL_OK)
        return status;
    for (size_t at = 0; at < bucket->n; at += TILE) {
        size_t n = bucket->n - at < TILE ? bucket->n - at : TILE;
        sum_tile(self, number, at, NULL, n);
        memcpy(bucket->data + at, self->tile, n * sizeof *self->tile);
    }
    publish(&self->lanes[self->reducer->rank].out, number);
    self->next = number + 1;
    return ADL_OK;
}

/* ---- three stages: large buckets ---- */

/* The part of a chunk that a rank owns. */
typedef struct span {
    size_t begin, length; /* in elements of the chunk */
} span;

static span span_of(const shared *self, size_t length, int rank)
{
    size_t slice = slice_of(length, (size_t)self->reducer->replicas);
    size_t begin = slice * (size_t)rank;
    if (begin > length)
        begin = length;
    return (span){begin, length - begin < slice ? length - begin : slice};
}

static adl_status stage_a(shared *self, const adli_bucket *bucket, uint32_t number, size_t at,
                          size_t length)
{
    int rank = self->reducer->rank;
    adl_status status = wait_out(self, number - PLACES);
    if (status != ADL_OK)
        return status;
    if (at == 0)
        write_heading(self, bucket, number);
    span own = span_of(self, length, rank);
    size_t after = own.begin + own.length;
    float *inbox = inbox_at(self, rank, number);
    const float *data = bucket->data + at;
    bool bf16 = self->reducer->options.wire == ADL_WIRE_BF16;
    pack(self, inbox, 0, data, own.begin);
    pack(self, inbox, after, data + after, length - after);
    if (bf16) /* one's own contribution is rounded like those of the others */
        self->reducer->kernels->round_bf16(bucket->data + at + own.begin, own.length);
    publish(&self->lanes[rank].in, number);
    return ADL_OK;
}

static void reduce_own(shared *self, float *data, uint32_t number, span own)
{
    const adl_reducer *reducer = self->reducer;
    float *outbox = outbox_at(self, reducer->rank, number);
    if (reducer->replicas == 2 && reducer->options.wire == ADL_WIRE_F32) {
        /* a + b is b + a to the bit, so the order of the two ranks does not matter. */
        const float *theirs = inbox_at(self, !reducer->rank, number) + own.begin;
        reducer->kernels->sum2(data, outbox, theirs, reducer->options.average ? 0.5f : 1.0f,
                               own.length);
        return;
    }
    for (size_t at = 0; at < own.length; at += TILE) {
        size_t n = own.length - at < TILE ? own.length - at : TILE;
        sum_tile(self, number, own.begin + at, data + at, n);
        memcpy(data + at, self->tile, n * sizeof *self->tile);
        pack(self, outbox, at, self->tile, n);
    }
}

static adl_status stage_b(shared *self, const adli_bucket *bucket, uint32_t number, size_t at,
                          size_t length)
{
    adl_status status = wait_in(self, number);
    if (status == ADL_OK && at == 0)
        status = read_headings(self, bucket, number);
    if (status != ADL_OK)
        return status;
    span own = span_of(self, length, self->reducer->rank);
    reduce_own(self, bucket->data + at + own.begin, number, own);
    publish(&self->lanes[self->reducer->rank].out, number);
    return ADL_OK;
}

static adl_status stage_c(shared *self, const adli_bucket *bucket, uint32_t number, size_t at,
                          size_t length)
{
    /* From the neighbour on, so that not everyone reads the same outbox at once. */
    for (int i = 1; i < self->reducer->replicas; i++) {
        int rank = (self->reducer->rank + i) % self->reducer->replicas;
        adl_status status = wait_for(self, &self->lanes[rank].out, number);
        if (status != ADL_OK)
            return status;
        span theirs = span_of(self, length, rank);
        unpack(self, bucket->data + at + theirs.begin, outbox_at(self, rank, number),
               theirs.length);
    }
    return ADL_OK;
}

static adl_status reduce_chunks(shared *self, const adli_bucket *bucket)
{
    typedef adl_status stage(shared *, const adli_bucket *, uint32_t, size_t, size_t);
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

/* Nobody is to wait for this replica any more. Others may learn of a death by its consequences, so the
 * cause goes along. */
static void close_lane(shared *self, adl_status status)
{
    lane *mine = &self->lanes[self->reducer->rank];
    if (atomic_load(&mine->closed) != OPEN)
        return;
    if (status != ADL_OK && status != ADL_ESTATE) {
        mine->status = status;
        snprintf(mine->text, sizeof mine->text, "%s", adl_error());
        atomic_store(&mine->closed, FAILED);
    } else {
        atomic_store(&mine->closed, FREED);
    }
    syscall(SYS_futex, &mine->in.value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    syscall(SYS_futex, &mine->out.value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static adl_status reduce(adli_transport *transport, const adli_bucket *bucket)
{
    shared *self = (shared *)(void *)transport;
    bool small = bucket->n <= DIRECT && bucket->n <= self->chunk;
    adl_status status = small ? reduce_direct(self, bucket) : reduce_chunks(self, bucket);
    if (status != ADL_OK)
        close_lane(self, status);
    return status;
}

/* ---- life ---- */

static void free_shared(adli_transport *transport)
{
    shared *self = (shared *)(void *)transport;
    if (self->lanes)
        close_lane(self, adl_group_check(self->reducer->group));
    adli_shm_fini(&self->shm);
    free(self->tile);
    free(self);
}

static bool enough_cores(int replicas)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 && replicas <= CPU_COUNT(&set);
}

static adl_status new_shared(adl_reducer *reducer, shared **out)
{
    shared *self = adli_calloc(1, sizeof *self);
    *out = self;
    if (!self)
        return adli_fail_memory("a reducer");
    self->base = (adli_transport){reduce, free_shared};
    self->reducer = reducer;
    self->shm.fd = -1;
    self->next = first_number;
    self->may_spin = enough_cores(reducer->replicas);
    self->spins = SPINS_MAX;
    self->tile = adli_calloc(TILE, sizeof *self->tile);
    return self->tile ? choose_chunk(reducer, &self->chunk) : adli_fail_memory("a reducer");
}

/* Rank 0 creates, everyone learns the name ("" when it failed) and opens. The name goes as soon as all
 * have tried. */
static adl_status share(shared *self)
{
    adl_reducer *reducer = self->reducer;
    size_t bytes = segment_bytes(self->chunk, (size_t)reducer->replicas);
    adl_status status = ADL_OK, told;
    if (reducer->rank == 0)
        status = adli_shm_create(bytes, &self->shm);
    for (int rank = 0; self->shm.base && rank < reducer->replicas; rank++) {
        lane *its = (lane *)(void *)self->shm.base + rank;
        its->in.value = its->out.value = first_number - 1;
    }
    char name[ADLI_SHM_NAME] = "", reason[ADLI_TEXT_MAX + 1];
    snprintf(reason, sizeof reason, "%s", status == ADL_OK ? "" : adl_error());
    void *told_name = NULL;
    size_t length = 0;
    told = adl_group_broadcast(reducer->group, self->shm.name, strlen(self->shm.name), &told_name,
                               &length);
    if (told == ADL_ENOMEM)
        adl_group_abort(reducer->group, adl_error());
    if (told != ADL_OK)
        return told;
    adli_text_clean(name, sizeof name, told_name, length);
    free(told_name);
    if (reducer->rank == 0 && status != ADL_OK)
        status = adli_fail(status, "%s", reason);
    else if (reducer->rank != 0 && name[0])
        status = adli_shm_open(name, bytes, &self->shm);
    status = adli_reducer_agree(reducer, status);
    adli_shm_unlink(&self->shm);
    return status;
}

adl_status adli_shm_new(adl_reducer *reducer, adli_transport **out)
{
    *out = NULL;
    shared *self;
    adl_status status = adli_reducer_agree(reducer, new_shared(reducer, &self));
    if (status == ADL_OK)
        status = share(self);
    if (status == ADL_OK) {
        lay_out(self);
        *out = &self->base;
        return ADL_OK;
    }
    if (self) {
        char text[ADLI_TEXT_MAX + 1];
        snprintf(text, sizeof text, "%s", adl_error());
        free_shared(&self->base);
        status = adli_fail(status, "%s", text);
    }
    return status;
}
