#include "comm/conn.h"

#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
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

adl_status adli_conn_send(adli_conn *conn, adli_frame_type type, const adli_part *parts,
                          size_t count)
{
    uint8_t header[ADLI_FRAME_HEADER], mac[ADLI_MAC_BYTES];
    adli_part all[PARTS_MAX + 2] = {{header, sizeof header}};
    size_t length = 0, total, skip = 0;
    assert(count <= PARTS_MAX);
    for (size_t i = 0; i < count; i++) {
        all[i + 1] = parts[i];
        length += parts[i].length;
    }
    if (length > conn->max_payload)
        return adli_fail(ADL_EINVAL, "a frame of %zu bytes, the limit is %zu", length,
                         conn->max_payload);
    adli_frame_header(header, type, conn->generation, conn->sent, length, conn->tx != NULL);
    total = sizeof header + length;
    adl_status status = ADL_OK;
    count++;
    if (conn->tx) {
        status = adli_mac_of(conn->tx, all, count, mac);
        all[count++] = (adli_part){mac, sizeof mac};
        total += sizeof mac;
    }
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

adl_status adli_conn_flush(adli_conn *conn)
{
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

static adl_status check(adli_conn *conn, const adli_frame *frame)
{
    if (frame->generation != conn->generation)
        return adli_fail(ADL_ENET, "a frame of generation %" PRIu64 ", ours is %" PRIu64,
                         frame->generation, conn->generation);
    if (frame->sequence != conn->received)
        return adli_fail(ADL_ENET, "frame number %" PRIu64 ", expected %" PRIu64, frame->sequence,
                         conn->received);
    if ((frame->mac_length != 0) != (conn->rx != NULL))
        return adli_fail(ADL_ENET, "a frame %s a MAC", conn->rx ? "without" : "with");
    if (!conn->rx)
        return ADL_OK;
    uint8_t mac[ADLI_KEY_BYTES];
    adli_part whole = {frame->payload - ADLI_FRAME_HEADER, ADLI_FRAME_HEADER + frame->length};
    adl_status status = adli_mac_of(conn->rx, &whole, 1, mac);
    if (status == ADL_OK && !adli_mac_equal(mac, frame->payload + frame->length))
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
        status = check(conn, frame);
    if (status != ADL_OK)
        return status;
    conn->received++;
    conn->consumed = need;
    *have = true;
    return ADL_OK;
}
