/* All-reduce around a ring of TCP connections (Patarasuk and Yuan, 2009): each replica sends to the
 * next and receives from the one before; every replica sends and receives 2 (R - 1) / R of a bucket.
 *
 * The bucket is cut into R slices. In step t = 0 .. 2 (R - 1) - 1, rank r sends slice r - t and receives
 * slice r - t - 1 (mod R). In the first R - 1 steps what is received is added to what is there, and
 * the last of them completes the sum; in the others it replaces what is there. So what is sent in step
 * t + 1 is what was received in step t, and an element can be passed on as soon as it has come: the
 * steps are pipelined frame by frame, by nothing more than the rule that no more is sent of a slice
 * than has been received of it.
 *
 * Each slice is summed in one order, along the ring, and the finished sum travels unchanged (as
 * bfloat16 it is rounded once more by who finished it), so all replicas end with the same bits. The
 * doubles that travel with a bucket go around whole, and everyone sums them in rank order.
 *
 * Both directions run from one poll loop, so two replicas that send to each other cannot block. When
 * something fails, the replica tells the next one why and closes its connections; so does that one, until
 * it has gone around. */
#include "comm/ring.h"

#include "base/mem.h"
#include "base/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    POLL_MS = 10, /* between looks at the group's health */
    FAREWELL_MS = 100,
    TILE = 2048,    /* floats that are added and divided at a time, within the first-level cache */
    LOOKS_MAX = 64, /* about 30 microseconds */
    LOOKS_MIN = 2,
    LOOKS_PROBE = 32, /* every so many naps the most is tried again */
};

/* ---- slices ---- */

static int slice_of_step(const adli_ring *ring, int step)
{
    return ((ring->place - step) % ring->size + ring->size) % ring->size;
}

static size_t slice_begin(const adli_ring *ring, int slice)
{
    size_t size = (size_t)ring->size, n = ring->bucket->n;
    return n / size * (size_t)slice + n % size * (size_t)slice / size;
}

static size_t slice_length(const adli_ring *ring, int slice)
{
    size_t end = slice + 1 == ring->size ? ring->bucket->n : slice_begin(ring, slice + 1);
    return end - slice_begin(ring, slice);
}

static int steps(const adli_ring *ring)
{
    return 2 * (ring->size - 1);
}

/* Past the steps whose slice is done (empty ones are done at once). */
static void advance(const adli_ring *ring, int *step, size_t *done, int shift)
{
    while (*step < steps(ring) && *done == slice_length(ring, slice_of_step(ring, *step + shift))) {
        ++*step;
        *done = 0;
    }
}

/* ---- sending ---- */

/* A neighbour that is gone shows in what we receive, with a better reason than "broken pipe". */
static adl_status unless_broken(const adli_ring *ring, adl_status status)
{
    return status != ADL_OK && ring->next->broken ? ADL_OK : status;
}

static adl_status send_frame(adli_ring *ring, adli_frame_type type, const adli_part *parts,
                             size_t count)
{
    return unless_broken(ring, adli_conn_send(ring->next, type, parts, count));
}

static adl_status send_head(adli_ring *ring)
{
    const adli_bucket *bucket = ring->bucket;
    uint8_t encoded[ADLI_BUCKET_BYTES], origin[4];
    adli_bucket_encode(&ring->head, encoded);
    adli_part part = {encoded, sizeof encoded};
    adl_status status = send_frame(ring, ADLI_BUCKET, &part, 1);
    if (status != ADL_OK || bucket->extra_count == 0)
        return status;
    adli_put(origin, (uint64_t)ring->place, 4);
    adli_part parts[] = {{origin, 4}, {bucket->extra, bucket->extra_count * sizeof(double)}};
    return send_frame(ring, ADLI_EXTRA, parts, 2);
}

/* How much of the present step's slice may go out. */
static size_t sendable(const adli_ring *ring)
{
    size_t length = slice_length(ring, slice_of_step(ring, ring->send_step));
    if (ring->send_step == 0 || ring->recv_step >= ring->send_step)
        return length;
    return ring->recv_step == ring->send_step - 1 ? ring->recv_done : 0;
}

/* Frames go out from the bucket itself: what was sent of a slice is not changed before the finished sum
 * comes back, and that has our part in it. */
static adl_status send_data(adli_ring *ring)
{
    adl_status status = ADL_OK;
    while (status == ADL_OK && ring->send_step < steps(ring) && !ring->next->broken &&
           !adli_conn_unsent(ring->next)) {
        size_t ready = sendable(ring) - ring->send_done;
        if (ready == 0)
            return ADL_OK;
        size_t n = ready < ADLI_RING_FLOATS ? ready : ADLI_RING_FLOATS;
        const float *data = ring->bucket->data + ring->send_done +
                            slice_begin(ring, slice_of_step(ring, ring->send_step));
        const void *payload = data;
        if (ring->reducer->options.wire == ADL_WIRE_BF16) {
            ring->reducer->kernels->to_bf16(ring->half, data, n);
            payload = ring->half;
        }
        status =
            unless_broken(ring, adli_conn_lend(ring->next, ADLI_DATA, payload, n * ring->element));
        ring->send_done += n;
        advance(ring, &ring->send_step, &ring->send_done, 0);
    }
    return status;
}

/* ---- receiving ---- */

static adl_status unexpected(const adli_ring *ring, const char *what)
{
    return adli_fail(ADL_EPEER, "rank %d broke the protocol of the ring: %s", ring->prev_rank,
                     what);
}

static adl_status take_head(adli_ring *ring)
{
    const adli_bucket_head *mine = &ring->head;
    adli_bucket_head head;
    if (ring->got_head || adli_bucket_parse(ring->arrival, ring->frame.length, &head) != ADL_OK)
        return unexpected(ring, "a heading");
    if (head.number != mine->number || head.elements != mine->elements ||
        head.extra_count != mine->extra_count)
        return adli_reducer_mismatch(ring->prev_rank, &head, ring->reducer->rank, mine);
    ring->got_head = true;
    return ADL_OK;
}

static adl_status take_extra(adli_ring *ring)
{
    size_t bytes = ring->bucket->extra_count * sizeof(double);
    adli_reader reader = adli_reader_over(ring->arrival, ring->frame.length);
    uint64_t origin = adli_get(&reader, 4);
    if (reader.bad || origin >= (uint64_t)ring->size || bytes == 0 ||
        adli_reader_left(&reader) != bytes)
        return unexpected(ring, "doubles");
    memcpy(ring->extra + origin * ADL_REDUCER_EXTRA_MAX, reader.at, bytes);
    ring->extras++;
    if ((int)origin == (ring->place + 1) % ring->size)
        return ADL_OK;
    adli_part part = {ring->arrival, ring->frame.length};
    return send_frame(ring, ADLI_EXTRA, &part, 1);
}

/* Finished sums as float32 go straight to their place; what has to be added or widened does not. */
static bool goes_straight(const adli_ring *ring)
{
    return ring->recv_step >= ring->size - 1 && ring->reducer->options.wire == ADL_WIRE_F32;
}

/* Where the slice that is being received goes on. */
static float *arriving_at(const adli_ring *ring)
{
    int slice = slice_of_step(ring, ring->recv_step + 1);
    return ring->bucket->data + slice_begin(ring, slice) + ring->recv_done;
}

/* A frame of data begins: is it what we wait for, and where does it belong? */
static adl_status expect_data(adli_ring *ring)
{
    size_t length = ring->frame.length, n = length / ring->element;
    if (!ring->got_head || ring->recv_step >= steps(ring) || length % ring->element != 0)
        return unexpected(ring, "data");
    int slice = slice_of_step(ring, ring->recv_step + 1);
    if (n == 0 || n > slice_length(ring, slice) - ring->recv_done)
        return unexpected(ring, "data beyond a slice");
    if (goes_straight(ring))
        ring->arrival = (uint8_t *)(void *)arriving_at(ring);
    return ADL_OK;
}

/* Elements of the slice that is being received, into the bucket. */
static void place(adli_ring *ring, float *data, size_t n)
{
    const adl_reducer *reducer = ring->reducer;
    bool bf16 = reducer->options.wire == ADL_WIRE_BF16;
    const uint16_t *halves = (const uint16_t *)(const void *)ring->scratch;
    if (goes_straight(ring))
        return;
    if (ring->recv_step >= ring->size - 1) { /* finished sums */
        reducer->kernels->from_bf16(data, halves, n);
        return;
    }
    bool complete = ring->recv_step == ring->size - 2;
    for (size_t at = 0; at < n; at += TILE) {
        size_t count = n - at < TILE ? n - at : TILE;
        if (bf16)
            reducer->kernels->add_bf16(data + at, halves + at, count);
        else
            reducer->kernels->add(data + at, ring->scratch + at, count);
        if (complete)
            adli_reducer_average(reducer, data + at, count);
        if (complete && bf16)
            reducer->kernels->round_bf16(data + at, count);
    }
}

static adl_status take_data(adli_ring *ring)
{
    size_t n = ring->frame.length / ring->element;
    place(ring, arriving_at(ring), n);
    ring->recv_done += n;
    advance(ring, &ring->recv_step, &ring->recv_done, 1);
    return ADL_OK;
}

static adl_status take(adli_ring *ring)
{
    adli_failure failure;
    switch (ring->frame.type) {
    case ADLI_BUCKET:
        return take_head(ring);
    case ADLI_EXTRA:
        return take_extra(ring);
    case ADLI_DATA:
        return take_data(ring);
    case ADLI_GOODBYE:
        return adli_fail(ADL_EPEER, "rank %d gave up its reducer", ring->prev_rank);
    case ADLI_FAILED:
        if (adli_failure_parse(ring->arrival, ring->frame.length, &failure) == ADL_OK)
            return adli_fail(failure.code == ADL_EINVAL ? ADL_EINVAL : ADL_EPEER, "%s",
                             failure.text);
        /* fall through */
    default:
        return unexpected(ring, "a frame of another kind");
    }
}

static bool received_all(const adli_ring *ring)
{
    return ring->got_head && ring->recv_step == steps(ring) &&
           (ring->bucket->extra_count == 0 || ring->extras == ring->size - 1);
}

/* A little more of what has arrived. */
static adl_status receive_some(adli_ring *ring, bool *whole)
{
    bool have = ring->prev->arrival.open;
    adl_status status = ADL_OK;
    *whole = false;
    if (!have) {
        status = adli_conn_open(ring->prev, &ring->frame, &have);
        if (status != ADL_OK || !have)
            return status;
        ring->arrival = (uint8_t *)(void *)ring->scratch;
        if (ring->frame.type == ADLI_DATA)
            status = expect_data(ring);
    }
    return status == ADL_OK ? adli_conn_fill(ring->prev, ring->arrival, whole) : status;
}

/* What has arrived, up to the end of this bucket; nothing of the next one is read but a header. */
static adl_status receive(adli_ring *ring)
{
    while (!received_all(ring)) {
        bool whole;
        adl_status status = receive_some(ring, &whole);
        if (status == ADL_ENET && ring->prev->broken)
            return ADL_OK; /* the loop finds the reason */
        if (status == ADL_ENET)
            return adli_wrap(ADL_EPEER, "rank %d broke the protocol of the ring", ring->prev_rank);
        if (status != ADL_OK || !whole)
            return status;
        status = take(ring);
        if (status == ADL_OK)
            status = send_data(ring); /* what has come may go on */
        if (status != ADL_OK)
            return status;
    }
    return ADL_OK;
}

/* ---- the loop ---- */

/* A connection ended without a word. The group knows who died, or will within its time-out. */
static adl_status find_reason(adli_ring *ring, int rank)
{
    int64_t deadline = adli_now_ms() + ring->reducer->group->peer_timeout_ms;
    while (adli_now_ms() < deadline) {
        adl_status status = adli_reducer_watch(ring->reducer);
        if (status == ADL_OK)
            status = adli_group_check_left(ring->reducer->group);
        if (status != ADL_OK)
            return status;
        poll(NULL, 0, POLL_MS);
    }
    return adli_fail(ADL_EPEER, "rank %d closed its connection of the ring", rank);
}

/* Looks for a while before sleeping: being woken takes as long as the neighbour takes for a frame. Where
 * it does not help, because the neighbour is far or waits for this very core, it is soon given up. */
static bool spin(adli_ring *ring, struct pollfd *entries)
{
    int limit = ++ring->naps % LOOKS_PROBE == 0 ? LOOKS_MAX : ring->looks;
    for (int i = 0; i < limit; i++) {
        if (poll(entries, 2, 0) != 0) {
            ring->looks = 2 * i + LOOKS_MIN < LOOKS_MAX ? 2 * i + LOOKS_MIN : LOOKS_MAX;
            return true;
        }
    }
    ring->looks = ring->looks / 2 > LOOKS_MIN ? ring->looks / 2 : LOOKS_MIN;
    return false;
}

/* Sleeps until either side can go on. */
static void nap(adli_ring *ring)
{
    struct pollfd entries[2] = {{.fd = ring->prev->fd}, {.fd = -1}};
    if (!received_all(ring))
        entries[0].events = POLLIN;
    else
        entries[0].fd = -1;
    if (adli_conn_unsent(ring->next) && !ring->next->broken)
        entries[1] = (struct pollfd){.fd = ring->next->fd, .events = POLLOUT};
    if (!spin(ring, entries))
        poll(entries, 2, POLL_MS);
}

static adl_status run(adli_ring *ring)
{
    int64_t quiet_since = adli_now_ms();
    uint64_t moved = UINT64_MAX;
    adl_status status = ADL_OK;
    while (status == ADL_OK) {
        if (adli_conn_flush(ring->next) != ADL_OK)
            ring->next->broken = true; /* see unless_broken */
        status = send_data(ring);
        bool sent_all = ring->send_step == steps(ring) && !adli_conn_unsent(ring->next);
        if (status != ADL_OK || (received_all(ring) && sent_all))
            return status;
        if (ring->prev->eof || ring->prev->broken)
            return find_reason(ring, ring->prev_rank);
        if (ring->next->broken && received_all(ring))
            return find_reason(ring, ring->next_rank);
        nap(ring);
        status = receive(ring);
        if (status == ADL_OK)
            status = adli_reducer_watch(ring->reducer);
        /* Data of a replica that has left may still be on their way, but not for ever. */
        uint64_t now_moved = ring->prev->received + ring->next->sent;
        int64_t now = adli_now_ms();
        if (now_moved != moved)
            quiet_since = now;
        moved = now_moved;
        if (status == ADL_OK && now - quiet_since >= ring->reducer->group->peer_timeout_ms)
            status = adli_group_check_left(ring->reducer->group);
    }
    return status;
}

static void sum_extras(adli_ring *ring)
{
    const adli_bucket *bucket = ring->bucket;
    if (bucket->extra_count == 0)
        return;
    memcpy(ring->extra + (size_t)ring->place * ADL_REDUCER_EXTRA_MAX, bucket->extra,
           bucket->extra_count * sizeof(double));
    for (size_t i = 0; i < bucket->extra_count; i++) {
        double sum = 0;
        for (int origin = 0; origin < ring->size; origin++)
            sum += ring->extra[(size_t)origin * ADL_REDUCER_EXTRA_MAX + i];
        bucket->extra[i] = sum;
    }
}

void adli_ring_hang_up(adli_ring *ring, adl_status status)
{
    if (!ring->next || !ring->prev)
        return;
    adli_failure failure = {.code = status, .rank = ring->reducer->rank};
    adli_text_clean(failure.text, sizeof failure.text, adl_error(), strlen(adl_error()));
    uint8_t encoded[ADLI_FAILURE_MAX];
    adli_part part = {encoded, adli_failure_encode(&failure, encoded)};
    adli_frame_type type = status == ADL_OK || status == ADL_ESTATE ? ADLI_GOODBYE : ADLI_FAILED;
    if (adli_conn_send(ring->next, type, &part, type == ADLI_FAILED) == ADL_OK)
        adli_conn_drain(ring->next, FAREWELL_MS);
    adli_conn_free(ring->next);
    adli_conn_free(ring->prev);
    ring->next = ring->prev = NULL;
    (void)adli_fail(status, "%s", failure.text);
}

adl_status adli_ring_reduce(adli_ring *ring, const adli_bucket *part, const adli_bucket_head *head)
{
    ring->bucket = part;
    ring->head = *head;
    ring->send_step = ring->recv_step = 0;
    ring->send_done = ring->recv_done = 0;
    ring->got_head = false;
    ring->extras = 0;
    advance(ring, &ring->send_step, &ring->send_done, 0);
    advance(ring, &ring->recv_step, &ring->recv_done, 1);
    adl_status status = send_head(ring);
    if (status == ADL_OK)
        status = run(ring);
    if (status == ADL_OK)
        sum_extras(ring);
    else
        adli_ring_hang_up(ring, status);
    return status;
}

static adl_status reduce(adli_transport *transport, const adli_bucket *bucket)
{
    adli_bucket_head head = {bucket->number, bucket->n, (uint32_t)bucket->extra_count};
    return adli_ring_reduce((adli_ring *)(void *)transport, bucket, &head);
}

/* ---- life ---- */

void adli_ring_free(adli_ring *ring)
{
    if (!ring)
        return;
    adli_ring_hang_up(ring, adl_group_check(ring->reducer->group));
    adli_conn_free(ring->next); /* one of them, when forming failed half-way */
    adli_conn_free(ring->prev);
    free(ring->extra);
    free(ring->half);
    free(ring->scratch);
    free(ring);
}

static void free_transport(adli_transport *transport)
{
    adli_ring_free((adli_ring *)(void *)transport);
}

static adl_status new_ring(adl_reducer *reducer, const adli_circle *circle, adli_ring **out)
{
    *out = NULL;
    if (circle->size == 0)
        return ADL_OK;
    adli_ring *ring = adli_calloc(1, sizeof *ring);
    *out = ring;
    if (!ring)
        return adli_fail_memory("a ring");
    ring->base = (adli_transport){reduce, free_transport};
    ring->reducer = reducer;
    ring->size = circle->size;
    ring->place = circle->place;
    ring->next_rank = circle->ranks[(circle->place + 1) % circle->size];
    ring->prev_rank = circle->ranks[(circle->place + circle->size - 1) % circle->size];
    ring->looks = LOOKS_MAX;
    ring->element = reducer->options.wire == ADL_WIRE_BF16 ? 2 : 4;
    ring->extra = adli_calloc((size_t)ring->size, ADL_REDUCER_EXTRA_MAX * sizeof *ring->extra);
    ring->half = adli_calloc(ADLI_RING_FLOATS, sizeof *ring->half);
    ring->scratch = adli_calloc(ADLI_RING_FLOATS, sizeof *ring->scratch);
    if (!ring->extra || !ring->half || !ring->scratch)
        return adli_fail_memory("a ring");
    return ADL_OK;
}

adl_status adli_ring_new(adl_reducer *reducer, const adli_circle *circle, adli_ring **out)
{
    *out = NULL;
    adli_ring *ring;
    adl_status status = adli_reducer_agree(reducer, new_ring(reducer, circle, &ring));
    if (status == ADL_OK)
        status = adli_ring_form(reducer, ring);
    if (status == ADL_OK) {
        *out = ring;
        return ADL_OK;
    }
    char text[ADLI_TEXT_MAX + 1];
    snprintf(text, sizeof text, "%s", adl_error());
    adli_ring_free(ring);
    return adli_fail(status, "%s", text);
}
