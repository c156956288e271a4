/* A segment of shared memory between replicas of one machine: how it is laid out, made and left, and how
 * its counters are waited for. There are no locks: a replica that is killed leaves nothing behind that
 * another would wait for, except its progress, and the group's heartbeats tell about that. Waiting spins
 * for a moment, if there is a core for each replica, and then sleeps in a futex. */
#include "comm/shm_impl.h"

#include "base/mem.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    CHUNK_FLOATS = 128 << 10, /* unless the limit on the segment makes it smaller */
    SPINS_MAX = 500,          /* looks at a counter before sleeping: about 10 microseconds */
    SPINS_MIN = 8,
    SPINS_PROBE = 128, /* every so many waits the most is tried again */
    SLEEP_MS = 10,     /* between looks at the group's health */
};
enum { OPEN, FREED, FAILED };
static const size_t default_bytes = (size_t)16 << 20;
/* The number of the first chunk: wrapping around is not a rare event that nobody has seen. */
static const uint32_t first_number = UINT32_MAX - 15;

/* ---- the layout ---- */

static size_t segment_bytes(size_t chunk, size_t size, size_t owners)
{
    size_t slice = adli_slice_of(chunk, owners);
    return size * (sizeof(adli_lane) +
                   ADLI_PLACES * (sizeof(adli_heading) + 4 * owners * slice + 4 * slice));
}

/* The largest chunk that fits the limit. */
static adl_status choose_chunk(adli_shared *self)
{
    size_t limit = self->reducer->options.shm_bytes;
    size_t size = (size_t)self->size, owners = (size_t)self->owners, chunk = CHUNK_FLOATS;
    limit = limit ? limit : default_bytes;
    while (chunk > ADLI_LINE_FLOATS && segment_bytes(chunk, size, owners) > limit)
        chunk = chunk / 2;
    if (segment_bytes(chunk, size, owners) > limit)
        return adli_fail(ADL_EINVAL,
                         "reducer: %zu bytes of shared memory for %zu replicas, at least %zu",
                         limit, size, segment_bytes(ADLI_LINE_FLOATS, size, owners));
    self->chunk = chunk;
    self->slice = adli_slice_of(chunk, owners);
    return ADL_OK;
}

static void lay_out(adli_shared *self)
{
    size_t size = (size_t)self->size;
    self->lanes = (adli_lane *)(void *)self->shm.base;
    self->headings = (adli_heading *)(self->lanes + size);
    self->inboxes = (float *)(self->headings + size * ADLI_PLACES);
    self->outboxes = self->inboxes + size * ADLI_PLACES * (size_t)self->owners * self->slice;
}

/* ---- waiting ---- */

static bool reached(adli_counter *word, uint32_t wanted)
{
    uint32_t value = atomic_load_explicit(&word->value, memory_order_acquire);
    return (int32_t)(value - wanted) >= 0;
}

void adli_publish(adli_counter *word, uint32_t value)
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
static void sleep_on(adli_counter *word, uint32_t wanted)
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
static bool spin(adli_shared *self, adli_counter *word, uint32_t wanted)
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
static adl_status check_others(adli_shared *self)
{
    adl_status status = adli_reducer_watch(self->reducer);
    for (int place = 0; status == ADL_OK && place < self->size; place++) {
        const adli_lane *its = &self->lanes[place];
        uint32_t closed = atomic_load(&its->closed);
        int rank = self->ranks[place];
        if (place != self->place && adl_group_peer(self->reducer->group, rank) == ADL_PEER_LEFT)
            status = adli_fail(ADL_EPEER, "rank %d left the group", rank);
        if (closed == FREED)
            status = adli_fail(ADL_EPEER, "rank %d gave up its reducer", rank);
        if (closed == FAILED) {
            char cause[ADLI_CAUSE_MAX];
            adli_text_clean(cause, sizeof cause, its->text, strnlen(its->text, ADLI_CAUSE_MAX - 1));
            status = adli_fail(its->status == ADL_EINVAL ? ADL_EINVAL : ADL_EPEER, "%s", cause);
        }
    }
    return status;
}

adl_status adli_wait_for(adli_shared *self, adli_counter *word, uint32_t wanted)
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

adl_status adli_wait_in(adli_shared *self, uint32_t number)
{
    adl_status status = ADL_OK;
    for (int rank = 0; status == ADL_OK && rank < self->size; rank++)
        status = adli_wait_for(self, &self->lanes[rank].in, number);
    return status;
}

adl_status adli_wait_out(adli_shared *self, uint32_t number)
{
    adl_status status = ADL_OK;
    for (int rank = 0; status == ADL_OK && rank < self->size; rank++)
        status = adli_wait_for(self, &self->lanes[rank].out, number);
    return status;
}

/* ---- headings and boxes ---- */

void adli_heading_write(adli_shared *self, const adli_bucket *bucket, uint32_t number)
{
    adli_heading *mine = adli_heading_at(self, self->place, number);
    mine->head = (adli_bucket_head){bucket->number, bucket->n, (uint32_t)bucket->extra_count};
    if (bucket->extra_count)
        memcpy(mine->extra, bucket->extra, bucket->extra_count * sizeof(double));
}

adl_status adli_headings_read(adli_shared *self, const adli_bucket *bucket, uint32_t number)
{
    const adli_bucket_head *first = &adli_heading_at(self, 0, number)->head;
    for (int place = 1; place < self->size; place++) {
        const adli_bucket_head *head = &adli_heading_at(self, place, number)->head;
        if (head->number != first->number || head->elements != first->elements ||
            head->extra_count != first->extra_count)
            return adli_reducer_mismatch(self->ranks[0], first, self->ranks[place], head);
    }
    for (size_t i = 0; i < bucket->extra_count; i++) {
        double sum = 0;
        for (int place = 0; place < self->size; place++)
            sum += adli_heading_at(self, place, number)->extra[i];
        bucket->extra[i] = sum;
    }
    return ADL_OK;
}

void adli_pack(const adli_shared *self, float *box, size_t offset, const float *data, size_t n)
{
    if (n == 0)
        return; /* data may be NULL */
    if (self->reducer->options.wire == ADL_WIRE_F32)
        memcpy(box + offset, data, n * sizeof *data);
    else
        self->reducer->kernels->to_bf16((uint16_t *)(void *)box + offset, data, n);
}

void adli_unpack(const adli_shared *self, float *data, const float *box, size_t n)
{
    if (n == 0)
        return;
    if (self->reducer->options.wire == ADL_WIRE_F32)
        memcpy(data, box, n * sizeof *data);
    else
        self->reducer->kernels->from_bf16(data, (const uint16_t *)(const void *)box, n);
}

/* ---- life ---- */

void adli_shared_close(adli_shared *self, adl_status status)
{
    adli_lane *mine = &self->lanes[self->place];
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

void adli_shared_free(adli_shared *self)
{
    if (!self)
        return;
    if (self->lanes)
        adli_shared_close(self, adl_group_check(self->reducer->group));
    adli_shm_fini(&self->shm);
    free(self->tile);
    free(self->ranks);
    free(self);
}

static bool enough_cores(int replicas)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 && replicas <= CPU_COUNT(&set);
}

static adl_status new_shared(adl_reducer *reducer, const adli_circle *circle, int owners,
                             adli_shared **out)
{
    *out = NULL;
    if (circle->size == 1)
        return ADL_OK;
    adli_shared *self = adli_calloc(1, sizeof *self);
    *out = self;
    if (!self)
        return adli_fail_memory("a reducer");
    self->reducer = reducer;
    self->shm.fd = -1;
    self->size = circle->size;
    self->place = circle->place;
    self->owners = owners;
    self->next = first_number;
    self->may_spin = enough_cores(circle->size);
    self->spins = SPINS_MAX;
    self->ranks = adli_calloc((size_t)circle->size, sizeof *self->ranks);
    self->tile = adli_calloc(ADLI_TILE, sizeof *self->tile);
    if (!self->ranks || !self->tile)
        return adli_fail_memory("a reducer");
    memcpy(self->ranks, circle->ranks, (size_t)circle->size * sizeof *self->ranks);
    return choose_chunk(self);
}

/* The segment's name, from the machine's first replica; "" when it has none. */
static adl_status tell_name(adl_reducer *reducer, const adli_shared *self, const char *mine,
                            char name[ADLI_SHM_NAME])
{
    uint8_t *all;
    size_t *offsets;
    adl_status status = adli_reducer_gather(reducer, mine, strlen(mine), &all, &offsets);
    name[0] = '\0';
    if (status == ADL_OK && self) {
        size_t at = offsets[self->ranks[0]], end = offsets[self->ranks[0] + 1];
        adli_text_clean(name, ADLI_SHM_NAME, all + at, end - at);
    }
    free(all);
    free(offsets);
    return status;
}

/* The first of each machine creates, everyone learns the names and opens. A name goes as soon as all have
 * tried. */
static adl_status share(adl_reducer *reducer, adli_shared *self)
{
    bool creates = self && self->place == 0;
    size_t bytes = self ? segment_bytes(self->chunk, (size_t)self->size, (size_t)self->owners) : 0;
    adl_status status = creates ? adli_shm_create(bytes, &self->shm) : ADL_OK;
    for (int place = 0; creates && self->shm.base && place < self->size; place++) {
        adli_lane *its = (adli_lane *)(void *)self->shm.base + place;
        its->in.value = its->out.value = first_number - 1;
    }
    char name[ADLI_SHM_NAME], reason[ADLI_TEXT_MAX + 1];
    snprintf(reason, sizeof reason, "%s", status == ADL_OK ? "" : adl_error());
    adl_status told = tell_name(reducer, self, self && creates ? self->shm.name : "", name);
    if (told != ADL_OK)
        return told;
    if (status != ADL_OK)
        status = adli_fail(status, "%s", reason);
    else if (self && !creates && name[0])
        status = adli_shm_open(name, bytes, &self->shm);
    status = adli_reducer_agree(reducer, status);
    if (self)
        adli_shm_unlink(&self->shm);
    return status;
}

adl_status adli_shared_new(adl_reducer *reducer, const adli_circle *circle, int owners,
                           adli_shared **out)
{
    *out = NULL;
    adli_shared *self;
    adl_status status = adli_reducer_agree(reducer, new_shared(reducer, circle, owners, &self));
    if (status == ADL_OK)
        status = share(reducer, self);
    if (status == ADL_OK) {
        if (self)
            lay_out(self);
        *out = self;
        return ADL_OK;
    }
    char text[ADLI_TEXT_MAX + 1];
    snprintf(text, sizeof text, "%s", adl_error());
    adli_shared_free(self);
    return adli_fail(status, "%s", text);
}
