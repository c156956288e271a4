#include "comm/conn.h"

#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    READ_BYTES = 64 << 10, /* asked of the socket at a time */
    READ_ROUNDS = 16,      /* then the other connections have their turn */
    KEEP_BYTES = 1 << 20,  /* larger buffers are given back when they are empty */
    PARTS_MAX = 2,         /* of a frame's payload */
};

adl_status adli_conn_new(int fd, uint64_t generation, size_t max_payload, adli_conn **out)
{
    *out = NULL;
    adli_conn *conn = adli_calloc(1, sizeof *conn);
    if (!conn) {
        close(fd);
        return adli_fail_memory("a connection");
    }
    conn->fd = fd;
    conn->generation = generation;
    conn->max_payload = max_payload;
    conn->last_rx_ms = conn->last_tx_ms = adli_now_ms();
    adli_sock_peer(fd, conn->peer);
    *out = conn;
    return ADL_OK;
}

void adli_conn_free(adli_conn *conn)
{
    if (!conn)
        return;
    close(conn->fd);
    adli_mac_free(conn->tx);
    adli_mac_free(conn->rx);
    free(conn->in);
    free(conn->out);
    free(conn);
}

adl_status adli_conn_protect(adli_conn *conn, const uint8_t tx[ADLI_KEY_BYTES],
                             const uint8_t rx[ADLI_KEY_BYTES])
{
    adl_status status = adli_mac_new(tx, ADLI_KEY_BYTES, &conn->tx);
    return status == ADL_OK ? adli_mac_new(rx, ADLI_KEY_BYTES, &conn->rx) : status;
}

static adl_status fail_socket(adli_conn *conn)
{
    conn->broken = true;
    return adli_fail(ADL_ENET, "%s: %s", conn->peer, strerror(errno));
}

/* Makes room for `more` bytes behind *end, moving what is there to the front. */
static adl_status make_room(uint8_t **data, size_t *start, size_t *end, size_t *capacity,
                            size_t more)
{
    if (*start == *end)
        *start = *end = 0;
    if (*capacity - *end >= more)
        return ADL_OK;
    if (*start > 0) {
        memmove(*data, *data + *start, *end - *start);
        *end -= *start;
        *start = 0;
    }
    if (adli_grow(data, capacity, *end + more, 1) != 0)
        return adli_fail_memory("a connection's buffer");
    return ADL_OK;
}

static void give_back(uint8_t **data, size_t *start, size_t *end, size_t *capacity)
{
    if (*start != *end || *capacity <= KEEP_BYTES)
        return;
    free(*data);
    *data = NULL;
    *start = *end = *capacity = 0;
}

/* Sends header, parts and MAC straight from where they are; *sent is how many bytes the socket took. */
static adl_status send_now(adli_conn *conn, const adli_part *parts, size_t count, size_t *sent)
{
    struct iovec vector[PARTS_MAX + 2];
    for (size_t i = 0; i < count; i++)
        vector[i] = (struct iovec){(void *)(uintptr_t)parts[i].data, parts[i].length};
    struct msghdr message = {.msg_iov = vector, .msg_iovlen = count};
    *sent = 0;
    ssize_t took;
    do {
        took = sendmsg(conn->fd, &message, MSG_NOSIGNAL);
    } while (took < 0 && errno == EINTR);
    if (took < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? ADL_OK : fail_socket(conn);
    conn->last_tx_ms = adli_now_ms();
    *sent = (size_t)took;
    return ADL_OK;
}

/* Queues the parts but for the first `skip` bytes. */
static adl_status queue(adli_conn *conn, const adli_part *parts, size_t count, size_t total,
                        size_t skip)
{
    adl_status status =
        make_room(&conn->out, &conn->out_start, &conn->out_end, &conn->out_capacity, total - skip);
    for (size_t i = 0; status == ADL_OK && i < count; i++) {
        size_t gone = skip < parts[i].length ? skip : parts[i].length;
        size_t left = parts[i].length - gone;
        skip -= gone;
        if (left)
            memcpy(conn->out + conn->out_end, (const uint8_t *)parts[i].data + gone, left);
        conn->out_end += left;
    }
    return status;
}

/* Writes header and MAC around the parts all[1] .. all[*count]; *count and *total include them. */
static adl_status enclose(adli_conn *conn, adli_frame_type type, adli_part *all, size_t *count,
                          uint8_t header[ADLI_FRAME_HEADER], uint8_t mac[ADLI_MAC_BYTES],
                          size_t *total)
{
    size_t length = 0;
    for (size_t i = 1; i <= *count; i++)
        length += all[i].length;
    if (length > conn->max_payload)
        return adli_fail(ADL_EINVAL, "a frame of %zu bytes, the limit is %zu", length,
                         conn->max_payload);
    adli_frame_header(header, type, conn->generation, conn->sent, length, conn->tx != NULL);
    all[0] = (adli_part){header, ADLI_FRAME_HEADER};
    *total = ADLI_FRAME_HEADER + length;
    ++*count;
    if (!conn->tx)
        return ADL_OK;
    adl_status status = adli_mac_of(conn->tx, all, *count, mac);
    all[(*count)++] = (adli_part){mac, ADLI_MAC_BYTES};
    *total += ADLI_MAC_BYTES;
    return status;
}

adl_status adli_conn_send(adli_conn *conn, adli_frame_type type, const adli_part *parts,
                          size_t count)
{
    uint8_t header[ADLI_FRAME_HEADER], mac[ADLI_MAC_BYTES];
    adli_part all[PARTS_MAX + 2];
    size_t total, skip = 0;
    assert(count <= PARTS_MAX);
    for (size_t i = 0; i < count; i++)
        all[i + 1] = parts[i];
    adl_status status = enclose(conn, type, all, &count, header, mac, &total);
    if (status == ADL_OK && !adli_conn_unsent(conn))
        status = send_now(conn, all, count, &skip);
    if (status != ADL_OK)
        return status;
    conn->sent++;
    if (skip == total)
        return ADL_OK;
    status = queue(conn, all, count, total, skip);
    if (status != ADL_OK && skip > 0) { /* half a frame is out: nothing sensible can follow */
        conn->broken = true;
        shutdown(conn->fd, SHUT_RDWR);
    }
    return status;
}

adl_status adli_conn_lend(adli_conn *conn, adli_frame_type type, const void *data, size_t length)
{
    adli_lent *lent = &conn->lent;
    adli_part all[3] = {[1] = {data, length}};
    size_t count = 1, total;
    assert(!adli_conn_unsent(conn));
    adl_status status = enclose(conn, type, all, &count, lent->header, lent->mac, &total);
    if (status != ADL_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        lent->rest[i] = (struct iovec){(void *)(uintptr_t)all[i].data, all[i].length};
    lent->count = (int)count;
    conn->sent++;
    return adli_conn_flush(conn);
}

/* What is left of a lent frame, as far as the socket takes it. */
static adl_status flush_lent(adli_conn *conn)
{
    adli_lent *lent = &conn->lent;
    while (lent->count > 0) {
        struct msghdr message = {.msg_iov = lent->rest, .msg_iovlen = (size_t)lent->count};
        ssize_t took = sendmsg(conn->fd, &message, MSG_NOSIGNAL);
        if (took < 0 && errno == EINTR)
            continue;
        if (took < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? ADL_OK : fail_socket(conn);
        conn->last_tx_ms = adli_now_ms();
        int gone = 0;
        while (gone < lent->count && (size_t)took >= lent->rest[gone].iov_len)
            took -= (ssize_t)lent->rest[gone++].iov_len;
        lent->count -= gone;
        memmove(lent->rest, lent->rest + gone, (size_t)lent->count * sizeof lent->rest[0]);
        if (lent->count > 0) {
            lent->rest[0].iov_base = (uint8_t *)lent->rest[0].iov_base + took;
            lent->rest[0].iov_len -= (size_t)took;
        }
    }
    return ADL_OK;
}

adl_status adli_conn_flush(adli_conn *conn)
{
    adl_status status = flush_lent(conn);
    if (status != ADL_OK || conn->lent.count > 0)
        return status;
    while (adli_conn_unsent(conn)) {
        ssize_t sent = send(conn->fd, conn->out + conn->out_start, conn->out_end - conn->out_start,
                            MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return ADL_OK;
        if (sent < 0)
            return fail_socket(conn);
        conn->out_start += (size_t)sent;
        conn->last_tx_ms = adli_now_ms();
    }
    give_back(&conn->out, &conn->out_start, &conn->out_end, &conn->out_capacity);
    return ADL_OK;
}

void adli_conn_drain(adli_conn *conn, int timeout_ms)
{
    int64_t now = adli_now_ms(), deadline = now + timeout_ms;
    while (adli_conn_flush(conn) == ADL_OK && adli_conn_unsent(conn) && now < deadline) {
        struct pollfd entry = {.fd = conn->fd, .events = POLLOUT};
        poll(&entry, 1, adli_until_ms(deadline, now, timeout_ms));
        now = adli_now_ms();
    }
}

adl_status adli_conn_receive(adli_conn *conn)
{
    for (int round = 0; round < READ_ROUNDS && !conn->eof; round++) {
        adl_status status =
            make_room(&conn->in, &conn->in_start, &conn->in_end, &conn->in_capacity, READ_BYTES);
        if (status != ADL_OK)
            return status;
        size_t room = conn->in_capacity - conn->in_end;
        ssize_t got = recv(conn->fd, conn->in + conn->in_end, room, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return ADL_OK;
        if (got < 0)
            return fail_socket(conn);
        if (got == 0)
            conn->eof = true;
        conn->in_end += (size_t)got;
        conn->last_rx_ms = adli_now_ms();
        if ((size_t)got < room)
            return ADL_OK;
    }
    return ADL_OK;
}

/* Is this the frame that comes next? */
static adl_status check_header(const adli_conn *conn, const adli_frame *frame)
{
    if (frame->generation != conn->generation)
        return adli_fail(ADL_ENET, "a frame of generation %" PRIu64 ", ours is %" PRIu64,
                         frame->generation, conn->generation);
    if (frame->sequence != conn->received)
        return adli_fail(ADL_ENET, "frame number %" PRIu64 ", expected %" PRIu64, frame->sequence,
                         conn->received);
    if ((frame->mac_length != 0) != (conn->rx != NULL))
        return adli_fail(ADL_ENET, "a frame %s a MAC", conn->rx ? "without" : "with");
    return ADL_OK;
}

static adl_status check_mac(const adli_conn *conn, const adli_part *parts, size_t count,
                            const uint8_t *its)
{
    if (!conn->rx)
        return ADL_OK;
    uint8_t mac[ADLI_KEY_BYTES];
    adl_status status = adli_mac_of(conn->rx, parts, count, mac);
    if (status == ADL_OK && !adli_mac_equal(mac, its))
        status = adli_fail(ADL_ENET, "a frame whose MAC is wrong");
    return status;
}

adl_status adli_conn_next(adli_conn *conn, adli_frame *frame, bool *have)
{
    *have = false;
    conn->in_start += conn->consumed;
    conn->consumed = 0;
    if (conn->in_start == conn->in_end) {
        give_back(&conn->in, &conn->in_start, &conn->in_end, &conn->in_capacity);
        return ADL_OK;
    }
    size_t need, arrived = conn->in_end - conn->in_start;
    adl_status status =
        adli_frame_parse(conn->in + conn->in_start, arrived, conn->max_payload, frame, &need);
    if (status == ADL_OK && need > arrived)
        return make_room(&conn->in, &conn->in_start, &conn->in_end, &conn->in_capacity,
                         need - arrived);
    if (status == ADL_OK)
        status = check_header(conn, frame);
    if (status == ADL_OK) {
        adli_part whole = {frame->payload - ADLI_FRAME_HEADER, ADLI_FRAME_HEADER + frame->length};
        status = check_mac(conn, &whole, 1, frame->payload + frame->length);
    }
    if (status != ADL_OK)
        return status;
    conn->received++;
    conn->consumed = need;
    *have = true;
    return ADL_OK;
}

/* Reads into to[length], and behind it at most `more` bytes into the buffer. *got is 0
 * when nothing is there. */
static adl_status read_to(adli_conn *conn, void *to, size_t length, size_t more, size_t *got)
{
    *got = 0;
    adl_status status =
        make_room(&conn->in, &conn->in_start, &conn->in_end, &conn->in_capacity, more);
    if (status != ADL_OK || conn->eof)
        return status;
    struct iovec places[2] = {{to, length}, {conn->in + conn->in_end, more}};
    struct msghdr message = {.msg_iov = length ? places : places + 1, .msg_iovlen = length ? 2 : 1};
    ssize_t took;
    do {
        took = recvmsg(conn->fd, &message, 0);
    } while (took < 0 && errno == EINTR);
    if (took < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? ADL_OK : fail_socket(conn);
    if (took == 0)
        conn->eof = true;
    else
        conn->last_rx_ms = adli_now_ms();
    *got = (size_t)took;
    conn->in_end += *got > length ? *got - length : 0;
    return ADL_OK;
}

/* How many bytes of the buffer are there, after reading to have `wanted` if there are fewer. */
static adl_status buffer_up_to(adli_conn *conn, size_t wanted, size_t *have)
{
    adl_status status = ADL_OK;
    size_t got = 1;
    while (status == ADL_OK && got > 0 && conn->in_end - conn->in_start < wanted)
        status = read_to(conn, NULL, 0, wanted - (conn->in_end - conn->in_start), &got);
    *have = conn->in_end - conn->in_start;
    return status;
}

adl_status adli_conn_open(adli_conn *conn, adli_frame *frame, bool *have)
{
    adli_arrival *arrival = &conn->arrival;
    size_t arrived, need;
    assert(!arrival->open);
    *have = false;
    conn->in_start += conn->consumed;
    conn->consumed = 0;
    adl_status status = buffer_up_to(conn, ADLI_FRAME_HEADER, &arrived);
    if (status != ADL_OK)
        return status;
    status = adli_frame_parse(conn->in + conn->in_start, arrived, conn->max_payload,
                              &arrival->frame, &need);
    if (status != ADL_OK || arrived < ADLI_FRAME_HEADER)
        return status;
    status = check_header(conn, &arrival->frame);
    if (status != ADL_OK)
        return status;
    memcpy(arrival->header, conn->in + conn->in_start, ADLI_FRAME_HEADER);
    conn->in_start += ADLI_FRAME_HEADER;
    arrival->frame.payload = NULL;
    arrival->have = 0;
    arrival->open = true;
    *frame = arrival->frame;
    *have = true;
    return ADL_OK;
}

/* The payload, as far as it is there: from the buffer first, then from the socket. */
static adl_status fill_payload(adli_conn *conn, uint8_t *to)
{
    adli_arrival *arrival = &conn->arrival;
    size_t left = arrival->frame.length - arrival->have, buffered = conn->in_end - conn->in_start;
    size_t taken = buffered < left ? buffered : left, got = 1;
    if (taken)
        memcpy(to + arrival->have, conn->in + conn->in_start, taken);
    conn->in_start += taken;
    arrival->have += taken;
    adl_status status = ADL_OK;
    while (status == ADL_OK && got > 0 && arrival->have < arrival->frame.length) {
        left = arrival->frame.length - arrival->have;
        status = read_to(conn, to + arrival->have, left,
                         arrival->frame.mac_length + ADLI_FRAME_HEADER, &got);
        arrival->have += got < left ? got : left;
    }
    return status;
}

adl_status adli_conn_fill(adli_conn *conn, void *to, bool *done)
{
    adli_arrival *arrival = &conn->arrival;
    size_t mac_length = arrival->frame.mac_length, arrived;
    assert(arrival->open);
    *done = false;
    adl_status status = fill_payload(conn, to);
    if (status != ADL_OK || arrival->have < arrival->frame.length)
        return status;
    status = buffer_up_to(conn, mac_length, &arrived);
    if (status != ADL_OK || arrived < mac_length)
        return status;
    adli_part parts[2] = {{arrival->header, sizeof arrival->header}, {to, arrival->frame.length}};
    status = check_mac(conn, parts, 2, conn->in + conn->in_start);
    if (status != ADL_OK)
        return status;
    conn->in_start += mac_length;
    conn->received++;
    arrival->open = false;
    *done = true;
    return ADL_OK;
}
