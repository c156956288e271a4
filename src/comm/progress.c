/* The progress thread: the only one that touches a group's connections. It sleeps in poll, moves
 * frames, sends heartbeats, and decides that a peer is dead.
 *
 * A peer is dead when its connection ends or fails without a goodbye, when it breaks the protocol, or
 * when nothing has come from it for 4/5 of peer_timeout_ms although it should send something every
 * 1/5; the rest of the time is for the root to tell the others. */
#include "comm/group_impl.h"

#include "base/mem.h"
#include "base/bytes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    LAST_WORDS_MS = 200,         /* at the end, for what is still to be sent */
    QUEUED_MAX = 4096,           /* calls of one replica that wait at the root; then it is not */
    QUEUED_BYTES_MAX = 64 << 20, /* read from until the others have caught up */
};

void adli_group_wake(adl_group *group)
{
    uint64_t one = 1;
    if (group->wake_fd >= 0 && write(group->wake_fd, &one, sizeof one) < 0)
        return; /* the counter is full: it is awake */
}

void adli_group_mark(adl_group *group, int rank, adl_peer_state state)
{
    pthread_mutex_lock(&group->lock);
    if (group->states[rank] == ADL_PEER_ALIVE) {
        group->states[rank] = (uint8_t)state;
        if (state == ADL_PEER_LEFT)
            group->left++;
        pthread_cond_broadcast(&group->changed);
    }
    pthread_mutex_unlock(&group->lock);
}

void adli_group_fail(adl_group *group, adl_status status, int rank, const char *text)
{
    pthread_mutex_lock(&group->lock);
    if (group->failed == ADL_OK) {
        group->failed = status;
        group->failed_rank = rank;
        adli_text_clean(group->failure, sizeof group->failure, text, strlen(text));
        group->tell_failure = true;
        atomic_store(&group->broken, true);
        pthread_cond_broadcast(&group->changed);
    }
    pthread_mutex_unlock(&group->lock);
    adli_group_wake(group);
}

void adli_group_fail_pending(adl_group *group)
{
    char text[ADLI_TEXT_MAX + 1];
    pthread_mutex_lock(&group->lock);
    adl_status status = group->failed;
    adl_future *pending = status == ADL_OK ? NULL : group->first;
    memcpy(text, group->failure, sizeof text);
    if (pending) {
        group->first = group->unsent = NULL;
        group->last = &group->first;
        group->pending = group->job_state != 0;
        pthread_cond_broadcast(&group->changed);
    }
    pthread_mutex_unlock(&group->lock);
    while (pending) {
        adl_future *next = pending->next;
        adli_future_finish(pending, status, text, NULL, 0);
        pending = next;
    }
}

/* ---- connections ---- */

static void drop_conn(adl_group *group, int rank)
{
    adli_conn_free(group->peers[rank].conn);
    group->peers[rank].conn = NULL;
    if (rank != 0)
        return;
    pthread_mutex_lock(&group->lock);
    group->root_gone = true;
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
}

void adli_peer_died(adl_group *group, int rank, const char *why)
{
    char text[ADLI_TEXT_MAX + 1];
    snprintf(text, sizeof text, "rank %d died: %s", rank, why);
    drop_conn(group, rank);
    adli_group_mark(group, rank, ADL_PEER_DEAD);
    adli_group_fail(group, ADL_EPEER, rank, text);
}

/* Something that is nobody else's fault: no memory for a frame. */
static void fail_here(adl_group *group, adl_status status)
{
    char text[ADLI_TEXT_MAX + 1];
    snprintf(text, sizeof text, "rank %d: %s", group->rank, adl_error());
    adli_group_fail(group, status, group->rank, text);
}

void adli_peer_send(adl_group *group, int rank, adli_frame_type type, const adli_part *parts,
                    size_t count)
{
    adli_conn *conn = group->peers[rank].conn;
    if (!conn)
        return;
    adl_status status = adli_conn_send(conn, type, parts, count);
    /* What a lost peer said before its end may be a goodbye: the next read tells. */
    if (status == ADL_ENOMEM || (status != ADL_OK && !conn->broken))
        fail_here(group, status);
}

/* ---- frames ---- */

static adl_status take_failure(adl_group *group, int from, const adli_frame *frame)
{
    adli_failure failure;
    adl_status status = adli_failure_parse(frame->payload, frame->length, &failure);
    if (status != ADL_OK)
        return status;
    /* A leaf speaks for itself, the root for everyone. */
    int rank = group->rank == 0 ? from : failure.rank;
    bool known = failure.code < 0 && failure.code >= ADL_EINTR;
    if (rank >= 0 && rank < group->replicas && rank != group->rank && failure.code == ADL_EPEER)
        adli_group_mark(group, rank, ADL_PEER_DEAD);
    adli_group_fail(group, known ? (adl_status)failure.code : ADL_EPEER, rank, failure.text);
    if (group->rank != 0) { /* the root knows */
        pthread_mutex_lock(&group->lock);
        group->tell_failure = false;
        pthread_mutex_unlock(&group->lock);
    }
    return ADL_OK;
}

static adl_status take_result(adl_group *group, const adli_frame *frame)
{
    adli_result result;
    adl_status status = adli_result_parse(frame->payload, frame->length, &result);
    if (status != ADL_OK)
        return status;
    uint8_t *copy = adli_memdup(result.value, result.length, 1);
    if (!copy)
        return adli_fail_memory("a result");
    pthread_mutex_lock(&group->lock);
    adl_future *future = group->first;
    if (group->failed == ADL_OK && future && future != group->unsent &&
        future->call.number == result.number) {
        group->first = future->next;
        if (!group->first)
            group->last = &group->first;
        group->pending--;
        pthread_cond_broadcast(&group->changed);
    } else {
        future = NULL;
    }
    bool failed = group->failed != ADL_OK;
    pthread_mutex_unlock(&group->lock);
    if (!future) {
        free(copy);
        return failed ? ADL_OK
                      : adli_fail(ADL_ENET, "a result for call %" PRIu64 ", which is not the next",
                                  result.number);
    }
    if (result.status == ADL_OK) {
        adli_future_finish(future, ADL_OK, "", copy, result.length);
        return ADL_OK;
    }
    char text[ADLI_TEXT_MAX + 1];
    adli_text_clean(text, sizeof text, copy, result.length);
    free(copy);
    adli_future_finish(future, (adl_status)result.status, text, NULL, 0);
    return ADL_OK;
}

static adl_status take_left(adl_group *group, const adli_frame *frame)
{
    adli_reader reader = adli_reader_over(frame->payload, frame->length);
    uint64_t rank = adli_get(&reader, 4);
    if (reader.bad || rank >= (uint64_t)group->replicas)
        return adli_fail(ADL_ENET, "a malformed farewell");
    adli_group_mark(group, (int)rank, ADL_PEER_LEFT);
    return ADL_OK;
}

static void take_goodbye(adl_group *group, int from)
{
    adli_group_mark(group, from, ADL_PEER_LEFT);
    if (group->rank != 0)
        return;
    uint8_t rank[4];
    adli_put(rank, (uint64_t)from, 4);
    adli_part part = {rank, sizeof rank};
    for (int to = 1; to < group->replicas; to++) {
        if (to != from)
            adli_peer_send(group, to, ADLI_LEFT, &part, 1);
    }
}

static adl_status take(adl_group *group, int from, const adli_frame *frame)
{
    bool root = group->rank == 0;
    if (group->states[from] != ADL_PEER_ALIVE && frame->type != ADLI_LEFT &&
        frame->type != ADLI_FAILED && frame->type != ADLI_HEARTBEAT)
        return adli_fail(ADL_ENET, "a frame of type %d after its goodbye", frame->type);
    switch (frame->type) {
    case ADLI_HEARTBEAT:
        return ADL_OK;
    case ADLI_FAILED:
        return take_failure(group, from, frame);
    case ADLI_GOODBYE:
        take_goodbye(group, from);
        return ADL_OK;
    case ADLI_CALL:
        if (root)
            return adli_root_take(group, from, frame);
        break;
    case ADLI_RESULT:
        if (!root)
            return take_result(group, frame);
        break;
    case ADLI_LEFT:
        if (!root)
            return take_left(group, frame);
        break;
    default:
        break;
    }
    return adli_fail(ADL_ENET, "an unexpected frame of type %d", frame->type);
}

/* Everything that has arrived from one peer, then its end if it has come. */
static void read_peer(adl_group *group, int rank)
{
    adli_conn *conn = group->peers[rank].conn;
    adl_status received = adli_conn_receive(conn), status = ADL_OK;
    char why[256];
    snprintf(why, sizeof why, "%s", received == ADL_OK ? "" : adl_error());
    bool have = true;
    while (status == ADL_OK && have && group->peers[rank].conn == conn) {
        adli_frame frame;
        status = adli_conn_next(conn, &frame, &have);
        if (status == ADL_OK && have)
            status = take(group, rank, &frame);
    }
    if (group->peers[rank].conn != conn)
        return;
    if (status == ADL_ENOMEM || received == ADL_ENOMEM) {
        fail_here(group, ADL_ENOMEM);
        drop_conn(group, rank); /* the stream has a hole now */
    } else if (status != ADL_OK) {
        snprintf(why, sizeof why, "it sent %s", adl_error());
        adli_peer_died(group, rank, why);
    } else if (received != ADL_OK || conn->eof) {
        if (conn->eof)
            snprintf(why, sizeof why, "%s closed the connection without a goodbye", conn->peer);
        if (group->states[rank] == ADL_PEER_LEFT)
            drop_conn(group, rank);
        else
            adli_peer_died(group, rank, why);
    }
}

static bool paused(const adli_peer *peer)
{
    return peer->queued >= QUEUED_MAX || peer->queued_bytes >= QUEUED_BYTES_MAX;
}

/* ---- time ---- */

static int beat_ms(const adl_group *group)
{
    return group->peer_timeout_ms / 5;
}

/* Nothing has come for too long, and nothing is there now: our own late awakening (a busy machine, a
 * stopped process) must not pass for another's silence. */
static bool is_silent(const adl_group *group, const adli_conn *conn, int64_t now)
{
    if (now - conn->last_rx_ms < group->peer_timeout_ms - beat_ms(group))
        return false;
    struct pollfd entry = {.fd = conn->fd, .events = POLLIN};
    return poll(&entry, 1, 0) == 0;
}

static void check_time(adl_group *group, int64_t now)
{
    for (int rank = 0; rank < group->replicas; rank++) {
        adli_conn *conn = group->peers[rank].conn;
        if (!conn)
            continue;
        if (paused(&group->peers[rank]))
            conn->last_rx_ms = now;
        if (group->states[rank] == ADL_PEER_ALIVE && is_silent(group, conn, now)) {
            char why[128];
            snprintf(why, sizeof why, "%s is silent for %d ms", conn->peer,
                     (int)(now - conn->last_rx_ms));
            adli_peer_died(group, rank, why);
            continue;
        }
        bool beats = !group->said_goodbye || group->rank == 0; /* a goodbye is a leaf's last word */
        if (beats && now - conn->last_tx_ms >= beat_ms(group) && !adli_conn_unsent(conn))
            adli_peer_send(group, rank, ADLI_HEARTBEAT, NULL, 0);
    }
}

static int sleep_ms(const adl_group *group, int64_t now)
{
    int64_t wake = now + beat_ms(group);
    for (int rank = 0; rank < group->replicas; rank++) {
        const adli_conn *conn = group->peers[rank].conn;
        if (!conn)
            continue;
        int64_t beat = conn->last_tx_ms + beat_ms(group);
        int64_t limit = conn->last_rx_ms + group->peer_timeout_ms - beat_ms(group);
        if (beat > now && beat < wake)
            wake = beat;
        if (limit > now && limit < wake)
            wake = limit;
    }
    return adli_until_ms(wake, now, beat_ms(group));
}

/* ---- what callers asked for ---- */

static void leaf_send(adl_group *group)
{
    for (;;) {
        pthread_mutex_lock(&group->lock);
        adl_future *future = group->unsent;
        if (future)
            group->unsent = future->next;
        pthread_mutex_unlock(&group->lock);
        if (!future)
            return;
        if (!group->peers[0].conn || group->states[0] == ADL_PEER_LEFT) {
            adli_group_fail(group, ADL_EPEER, 0, "rank 0 left the group");
            return;
        }
        /* Only this thread finishes futures, so this one stays. */
        uint8_t head[ADLI_CALL_MAX];
        adli_part parts[] = {
            {head, adli_call_encode(&future->call, head)},
            {future->value, future->value_length},
        };
        adli_peer_send(group, 0, ADLI_CALL, parts, 2);
    }
}

/* A root that has left, with calls that wait for its answer. */
static void leaf_check_root(adl_group *group)
{
    if (group->states[0] != ADL_PEER_LEFT)
        return;
    pthread_mutex_lock(&group->lock);
    bool waiting = group->first != NULL;
    pthread_mutex_unlock(&group->lock);
    if (waiting)
        adli_group_fail(group, ADL_EPEER, 0, "rank 0 left the group");
}

static void tell_failure(adl_group *group)
{
    adli_failure failure;
    pthread_mutex_lock(&group->lock);
    bool tell = group->tell_failure;
    group->tell_failure = false;
    failure.code = group->failed;
    failure.rank = group->failed_rank;
    memcpy(failure.text, group->failure, sizeof failure.text);
    pthread_mutex_unlock(&group->lock);
    if (!tell)
        return;
    if (failure.rank == group->rank)
        failure.code = ADL_EPEER; /* what fails here is a failure of a peer there */
    uint8_t encoded[ADLI_FAILURE_MAX];
    adli_part part = {encoded, adli_failure_encode(&failure, encoded)};
    for (int rank = 0; rank < group->replicas; rank++) {
        if (rank != failure.rank || failure.code != ADL_EPEER)
            adli_peer_send(group, rank, ADLI_FAILED, &part, 1);
    }
}

static void say_goodbye(adl_group *group)
{
    pthread_mutex_lock(&group->lock);
    bool now =
        group->failed == ADL_OK && (group->stopping || (group->closing && group->pending == 0));
    pthread_mutex_unlock(&group->lock);
    if (!now || group->said_goodbye)
        return;
    group->said_goodbye = true;
    for (int rank = 0; rank < group->replicas; rank++)
        adli_peer_send(group, rank, ADLI_GOODBYE, NULL, 0);
    adli_group_mark(group, group->rank, ADL_PEER_LEFT);
}

static void act(adl_group *group)
{
    if (group->rank == 0)
        adli_root_advance(group);
    else
        leaf_send(group);
    if (group->rank != 0)
        leaf_check_root(group);
    tell_failure(group);
    adli_group_fail_pending(group);
    say_goodbye(group);
}

/* ---- the loop ---- */

static void poll_once(adl_group *group)
{
    struct pollfd *entries = group->entries;
    int *ranks = group->entry_ranks;
    size_t count = 0;
    entries[count] = (struct pollfd){.fd = group->wake_fd, .events = POLLIN};
    ranks[count++] = -1;
    for (int rank = 0; rank < group->replicas; rank++) {
        const adli_conn *conn = group->peers[rank].conn;
        if (!conn)
            continue;
        short events = paused(&group->peers[rank]) ? 0 : POLLIN;
        if (adli_conn_unsent(conn) && !conn->broken)
            events |= POLLOUT;
        entries[count] = (struct pollfd){.fd = conn->fd, .events = events};
        ranks[count++] = rank;
    }
    int ready;
    do { /* no signals come here, but a process that was stopped and goes on sees EINTR too */
        ready = poll(entries, count, sleep_ms(group, adli_now_ms()));
    } while (ready < 0 && errno == EINTR);
    if (ready < 0)
        return;
    uint64_t ignored;
    if (entries[0].revents && read(group->wake_fd, &ignored, sizeof ignored) < 0)
        return;
    for (size_t i = 1; i < count; i++) {
        adli_conn *conn = group->peers[ranks[i]].conn;
        if (!conn || !entries[i].revents)
            continue;
        if (entries[i].revents & POLLOUT && adli_conn_flush(conn) != ADL_OK)
            entries[i].revents |= POLLIN; /* its last words, then its end */
        if (entries[i].revents & (POLLIN | POLLHUP | POLLERR))
            read_peer(group, ranks[i]);
    }
}

/* Sends what is unsent, then waits until the peers have read it: closing a socket that has unread
 * input would throw away what the peer has not received yet. */
static void last_words(adl_group *group)
{
    int64_t deadline = adli_now_ms() + LAST_WORDS_MS;
    for (int rank = 0; rank < group->replicas; rank++) {
        adli_conn *conn = group->peers[rank].conn;
        if (!conn || conn->broken)
            continue;
        adli_conn_drain(conn, adli_until_ms(deadline, adli_now_ms(), LAST_WORDS_MS));
        shutdown(conn->fd, SHUT_WR);
    }
    for (int rank = 0; rank < group->replicas; rank++) {
        adli_conn *conn = group->peers[rank].conn;
        int64_t now;
        while (conn && !conn->eof && !conn->broken && (now = adli_now_ms()) < deadline) {
            struct pollfd entry = {.fd = conn->fd, .events = POLLIN};
            poll(&entry, 1, adli_until_ms(deadline, now, LAST_WORDS_MS));
            conn->in_start = conn->in_end = conn->consumed = 0;
            if (adli_conn_receive(conn) != ADL_OK)
                break;
        }
        adli_conn_free(conn);
        group->peers[rank].conn = NULL;
    }
}

void *adli_group_progress(void *argument)
{
    adl_group *group = argument;
    for (bool stopping = false; !stopping;) {
        poll_once(group);
        act(group);
        check_time(group, adli_now_ms());
        act(group);
        pthread_mutex_lock(&group->lock);
        stopping = group->stopping;
        pthread_mutex_unlock(&group->lock);
    }
    tell_failure(group);
    say_goodbye(group);
    last_words(group);
    return NULL;
}
