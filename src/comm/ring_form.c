/* Making a ring: every replica listens on a port of its own, all learn all addresses through the
 * group, and each dials the next one while it accepts the one before. */
#include "comm/ring.h"

#include "base/mem.h"
#include "base/bytes.h"

#include <stdio.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FORM_LIMIT_MS = 60000,
    NAP_MS = 20,
    PLACE_BYTES = 12 + ADLI_ADDRESS_TEXT,
    SEND_BYTES_PER_US = 8000,
    SEND_BYTES_MIN = 128 << 10, /* the kernel doubles it, and counts its own structures in */
    SEND_BYTES_MAX = 200 << 10, /* more than that is not granted everywhere */
};

/* Where a replica listens: token (8), port (4), address. */
static void encode_place(uint8_t out[PLACE_BYTES], uint64_t token, int port, const char *address)
{
    memset(out, 0, PLACE_BYTES);
    uint8_t *at = adli_put(adli_put(out, token, 8), (uint64_t)port, 4);
    snprintf((char *)at, ADLI_ADDRESS_TEXT, "%s", address);
}

/* Opens our port; tells everyone where it is; learns rank 0's token and the next one's place. */
static adl_status exchange(adl_reducer *reducer, const adli_ring *ring, int *listener,
                           uint64_t *token, char *host, int *port)
{
    const char *mine =
        reducer->options.advertise_addr ? reducer->options.advertise_addr : reducer->group->local;
    uint8_t place[PLACE_BYTES], *all;
    size_t *offsets;
    int my_port = 0;
    uint64_t random = 0;
    adl_status status = ADL_OK;
    if (ring)
        status = adli_sock_listen(adli_sock_loopback(mine) ? mine : NULL, 0, listener, &my_port);
    if (status == ADL_OK)
        status = adli_random(&random, sizeof random);
    if (status == ADL_OK && strlen(mine) >= ADLI_ADDRESS_TEXT)
        status = adli_fail(ADL_EINVAL, "reducer: the address %s is too long", mine);
    status = adli_reducer_agree(reducer, status);
    if (status != ADL_OK)
        return status;
    encode_place(place, random, my_port, mine);
    status = adli_reducer_gather(reducer, place, sizeof place, &all, &offsets);
    for (int rank = 0; status == ADL_OK && rank < reducer->replicas; rank++) {
        if (offsets[rank + 1] - offsets[rank] != PLACE_BYTES)
            status = adli_fail(ADL_EPEER, "reducer: rank %d is of another version", rank);
    }
    if (status == ADL_OK && ring) {
        adli_reader first = adli_reader_over(all, PLACE_BYTES);
        adli_reader next = adli_reader_over(all + offsets[ring->next_rank], PLACE_BYTES);
        *token = adli_get(&first, 8);
        adli_get(&next, 8);
        *port = (int)adli_get(&next, 4);
        adli_text_clean(host, ADLI_ADDRESS_TEXT, next.at,
                        strnlen((const char *)next.at, ADLI_ADDRESS_TEXT - 1));
    }
    free(all);
    free(offsets);
    return status;
}

/* Steps both sides until both are connected. */
static adl_status connect_both(adli_ring *ring, adli_acceptor *acceptor, adli_dialer *dialer,
                               struct pollfd *entries)
{
    int64_t now = adli_now_ms(), deadline = now + FORM_LIMIT_MS;
    bool welcomed = false;
    for (;;) {
        adl_status status = adli_acceptor_step(acceptor);
        if (status == ADL_OK && welcomed && acceptor->missing > 0)
            status = adli_fail(ADL_EPEER, "the ring broke as it formed: %s", acceptor->last);
        if (status == ADL_OK && acceptor->missing == 0 && !welcomed) {
            status = adli_acceptor_welcome(acceptor);
            welcomed = true;
        }
        if (status == ADL_OK)
            status = adli_dialer_step(dialer);
        if (status == ADL_OK)
            status = adli_reducer_watch(ring->reducer);
        if (status != ADL_OK || (welcomed && dialer->state == ADLI_DIAL_WELCOME))
            return status;
        now = adli_now_ms();
        if (now >= deadline)
            return welcomed ? adli_dialer_timeout(dialer, FORM_LIMIT_MS)
                            : adli_acceptor_timeout(acceptor, FORM_LIMIT_MS);
        int64_t wake = now + NAP_MS;
        entries[0] = adli_dialer_poll(dialer, &wake);
        size_t count = 1 + adli_acceptor_poll(acceptor, entries + 1);
        poll(entries, count, adli_until_ms(wake, now, NAP_MS));
    }
}

/* On a short way a socket that holds little is faster: what the next one reads is still in the cache. It
 * holds what 64 Gbit/s need for the time that the way takes; where that is much, the kernel knows
 * better. */
static void set_send_buffer(const adli_conn *conn)
{
    struct tcp_info info;
    socklen_t length = sizeof info;
    memset(&info, 0, sizeof info);
    if (getsockopt(conn->fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
        return;
    uint64_t needed = (uint64_t)info.tcpi_rtt * SEND_BYTES_PER_US;
    int bytes = needed > SEND_BYTES_MIN ? (int)needed : SEND_BYTES_MIN;
    if (needed <= SEND_BYTES_MAX)
        setsockopt(conn->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

static void set_limits(adli_ring *ring)
{
    adli_conn *conns[] = {ring->next, ring->prev};
    set_send_buffer(ring->next);
    for (int i = 0; i < 2; i++) {
        conns[i]->max_payload = ADLI_RING_FLOATS * sizeof(float);
        if (ring->reducer->options.unprotected_data) {
            adli_mac_free(conns[i]->tx);
            adli_mac_free(conns[i]->rx);
            conns[i]->tx = conns[i]->rx = NULL;
        }
    }
}

/* What the neighbours do; takes the listener over. */
static adl_status meet(adli_ring *ring, int listener, const adli_identity *self, const char *host,
                       int port)
{
    adli_acceptor acceptor;
    adli_dialer dialer;
    adli_conn **peers = adli_calloc((size_t)self->replicas, sizeof(adli_conn *));
    struct pollfd *entries = NULL;
    if (!peers) {
        close(listener);
        return adli_fail_memory("a ring");
    }
    adl_status status = adli_acceptor_init(&acceptor, self, listener, peers);
    if (status != ADL_OK) {
        free(peers);
        return status;
    }
    adli_acceptor_expect(&acceptor, ring->prev_rank);
    adli_dialer_init(&dialer, self, ring->next_rank, host, port);
    entries = adli_calloc(1 + adli_acceptor_poll_max(&acceptor), sizeof *entries);
    status = entries ? connect_both(ring, &acceptor, &dialer, entries) : adli_fail_memory("a ring");
    ring->prev = peers[ring->prev_rank];
    ring->next = dialer.conn;
    dialer.conn = NULL;
    free(entries);
    adli_dialer_fini(&dialer);
    adli_acceptor_fini(&acceptor);
    free(peers);
    return status;
}

adl_status adli_ring_form(adl_reducer *reducer, adli_ring *ring)
{
    adl_group *group = reducer->group;
    adli_identity self = {
        .purpose = ADLI_PURPOSE_RING,
        .rank = reducer->rank,
        .replicas = reducer->replicas,
        .generation = group->generation,
        .secret = group->secret,
        .secret_length = group->secret_length,
    };
    int listener = -1, port = 0;
    char host[ADLI_ADDRESS_TEXT] = "";
    adl_status status = exchange(reducer, ring, &listener, &self.token, host, &port);
    if (status != ADL_OK) {
        if (listener >= 0)
            close(listener);
        return status;
    }
    if (ring)
        status = meet(ring, listener, &self, host, port);
    if (status != ADL_OK) { /* the neighbours try for a minute unless they are told */
        char text[ADLI_TEXT_MAX + 1];
        snprintf(text, sizeof text, "%s", adl_error());
        adl_group_abort(group, text);
        return adli_fail(status, "%s", text);
    }
    status = adli_reducer_agree(reducer, ADL_OK);
    if (status == ADL_OK && ring)
        set_limits(ring);
    return status;
}
