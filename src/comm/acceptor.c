/* The accepting side: anyone may connect, and until someone has proven to be a replica that is
 * missing, nothing it sends can do more than end its own connection. */
#include "comm/handshake.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    GUEST_LIMIT_MS = 5000, /* for a handshake */
    GUESTS_MAX = 64,       /* beyond one for each replica; then the one that waits longest goes */
};

struct adli_guest {
    adli_conn *conn;
    adli_handshake handshake;
    bool challenged;
    int64_t since_ms;
};

adl_status adli_acceptor_init(adli_acceptor *acceptor, const adli_identity *self, int listener,
                              adli_conn **peers)
{
    *acceptor = (adli_acceptor){.self = self, .listener = listener, .peers = peers};
    acceptor->guest_capacity = GUESTS_MAX + (size_t)self->replicas;
    acceptor->expected = adli_calloc((size_t)self->replicas, sizeof *acceptor->expected);
    acceptor->guests = adli_calloc(acceptor->guest_capacity, sizeof *acceptor->guests);
    if (acceptor->expected && acceptor->guests)
        return ADL_OK;
    adli_acceptor_fini(acceptor);
    return adli_fail_memory("accepting connections");
}

void adli_acceptor_expect(adli_acceptor *acceptor, int rank)
{
    acceptor->missing += !acceptor->expected[rank];
    acceptor->expected[rank] = true;
}

void adli_acceptor_fini(adli_acceptor *acceptor)
{
    for (size_t i = 0; i < acceptor->guest_count; i++)
        adli_conn_free(acceptor->guests[i].conn);
    free(acceptor->guests);
    free(acceptor->expected);
    if (acceptor->listener >= 0)
        close(acceptor->listener);
    *acceptor = (adli_acceptor){.listener = -1};
}

static void drop_guest(adli_acceptor *acceptor, size_t i)
{
    adli_conn_free(acceptor->guests[i].conn);
    acceptor->guests[i] = acceptor->guests[--acceptor->guest_count];
}

static void drop_oldest(adli_acceptor *acceptor)
{
    size_t oldest = 0;
    for (size_t i = 1; i < acceptor->guest_count; i++) {
        if (acceptor->guests[i].since_ms < acceptor->guests[oldest].since_ms)
            oldest = i;
    }
    drop_guest(acceptor, oldest);
}

static void note(adli_acceptor *acceptor, const char *peer, const char *why)
{
    snprintf(acceptor->last, sizeof acceptor->last, "%s: %s", peer, why);
}

/* Tells the peer, remembers it for our own message; the caller then hangs up. */
static void refuse(adli_acceptor *acceptor, adli_conn *conn, adli_refusal code, const char *why)
{
    adli_failure failure = {.code = code, .rank = acceptor->self->rank};
    adli_text_clean(failure.text, sizeof failure.text, why, strlen(why));
    uint8_t encoded[ADLI_FAILURE_MAX];
    adli_part part = {encoded, adli_failure_encode(&failure, encoded)};
    note(acceptor, conn->peer, why);
    if (adli_conn_send(conn, ADLI_REFUSE, &part, 1) != ADL_OK)
        return; /* gone already: nobody to tell */
}

/* The peer is who it says. Is it one that we wait for? The text says why not. */
static adl_status admissible(const adli_acceptor *acceptor, const adli_hello *hello)
{
    const adli_identity *self = acceptor->self;
    if (hello->purpose != self->purpose || hello->token != self->token)
        return adli_fail(ADL_EPEER, "another group listens at this address");
    if (hello->generation < self->generation)
        return adli_fail(ADL_EPEER, "generation %" PRIu64 " is over, this is %" PRIu64,
                         hello->generation, self->generation);
    if (hello->generation > self->generation)
        return adli_fail(ADL_ESTATE, "this is still generation %" PRIu64 ", not %" PRIu64,
                         self->generation, hello->generation);
    if (hello->replicas != (uint32_t)self->replicas)
        return adli_fail(ADL_EPEER, "the group has %d replicas, rank %" PRIu32 " says %" PRIu32,
                         self->replicas, hello->rank, hello->replicas);
    if (hello->rank >= (uint32_t)self->replicas || !acceptor->expected[hello->rank])
        return adli_fail(ADL_EPEER, "rank %" PRIu32 " has no place here", hello->rank);
    if (acceptor->peers[hello->rank])
        return adli_fail(ADL_EPEER, "rank %" PRIu32 " is taken by %s", hello->rank,
                         acceptor->peers[hello->rank]->peer);
    return ADL_OK;
}

/* Moves a proven guest to its place, or refuses it; either way it is no guest any more. */
static void admit(adli_acceptor *acceptor, adli_guest *guest)
{
    adli_hello hello;
    adl_status status = adli_hello_parse(guest->handshake.hello, ADLI_HELLO_BYTES, &hello);
    if (status == ADL_OK)
        status = admissible(acceptor, &hello);
    if (status != ADL_OK) {
        refuse(acceptor, guest->conn, status == ADL_ESTATE ? ADLI_REFUSED_OLD : ADLI_REFUSED,
               adl_error());
        return;
    }
    acceptor->peers[hello.rank] = guest->conn;
    acceptor->missing--;
    guest->conn = NULL;
}

/* One frame of a guest. Returns false when the guest is to go. */
static bool serve(adli_acceptor *acceptor, adli_guest *guest, const adli_frame *frame)
{
    adl_status status;
    if (frame->type == ADLI_HELLO && !guest->challenged) {
        guest->challenged = true;
        status = adli_handshake_challenge(&guest->handshake, acceptor->self, guest->conn, frame);
    } else if (frame->type == ADLI_PROOF && guest->challenged) {
        status = adli_handshake_check(&guest->handshake, acceptor->self, guest->conn, frame);
        if (status == ADL_OK) {
            admit(acceptor, guest);
            return false;
        }
    } else {
        status =
            adli_fail(ADL_ENET, "a frame of type %d in the middle of the handshake", frame->type);
    }
    if (status != ADL_OK)
        refuse(acceptor, guest->conn, ADLI_REFUSED, adl_error());
    return status == ADL_OK;
}

/* Returns false when the guest is to go. */
static bool step_guest(adli_acceptor *acceptor, adli_guest *guest, int64_t now)
{
    bool alive = adli_conn_receive(guest->conn) == ADL_OK;
    for (;;) {
        adli_frame frame;
        bool have;
        if (adli_conn_next(guest->conn, &frame, &have) != ADL_OK) {
            refuse(acceptor, guest->conn, ADLI_REFUSED, adl_error());
            return false;
        }
        if (!have)
            break;
        if (!serve(acceptor, guest, &frame))
            return false;
    }
    if (!alive || guest->conn->eof) {
        note(acceptor, guest->conn->peer,
             guest->challenged ? "hung up when challenged (another secret?)" : "hung up");
        return false;
    }
    if (now - guest->since_ms < GUEST_LIMIT_MS)
        return true;
    note(acceptor, guest->conn->peer, "connected and said nothing");
    return false;
}

static adl_status accept_all(adli_acceptor *acceptor, int64_t now)
{
    for (;;) {
        if (acceptor->guest_count == acceptor->guest_capacity)
            drop_oldest(acceptor);
        int fd;
        adl_status status = adli_sock_accept(acceptor->listener, &fd);
        if (status != ADL_OK && acceptor->guest_count > 0) { /* out of descriptors */
            drop_oldest(acceptor);
            continue;
        }
        if (status != ADL_OK || fd < 0)
            return status;
        adli_guest *guest = &acceptor->guests[acceptor->guest_count];
        *guest = (adli_guest){.since_ms = now};
        status = adli_conn_new(fd, 0, ADLI_HANDSHAKE_MAX, &guest->conn);
        if (status != ADL_OK)
            return status;
        acceptor->guest_count++;
    }
}

/* A replica that was admitted and went away again (it crashed, it gave up) may come back. */
static void check_peer(adli_acceptor *acceptor, int rank)
{
    adli_conn *conn = acceptor->peers[rank];
    adli_frame frame;
    bool have = false;
    adl_status status = adli_conn_receive(conn);
    if (status == ADL_OK && !conn->eof)
        status = adli_conn_next(conn, &frame, &have);
    if (status == ADL_OK && !conn->eof && !have)
        return;
    char why[64];
    snprintf(why, sizeof why, "rank %d arrived and %s", rank,
             have ? "spoke out of turn" : "went away again");
    note(acceptor, conn->peer, why);
    adli_conn_free(conn);
    acceptor->peers[rank] = NULL;
    acceptor->missing++;
}

adl_status adli_acceptor_step(adli_acceptor *acceptor)
{
    int64_t now = adli_now_ms();
    for (int rank = 0; rank < acceptor->self->replicas; rank++) {
        if (acceptor->expected[rank] && acceptor->peers[rank])
            check_peer(acceptor, rank);
    }
    adl_status status = accept_all(acceptor, now);
    for (size_t i = acceptor->guest_count; i-- > 0;) {
        if (!step_guest(acceptor, &acceptor->guests[i], now))
            drop_guest(acceptor, i);
    }
    return status;
}

size_t adli_acceptor_poll_max(const adli_acceptor *acceptor)
{
    return 1 + acceptor->guest_capacity + (size_t)acceptor->self->replicas;
}

size_t adli_acceptor_poll(const adli_acceptor *acceptor, struct pollfd *out)
{
    size_t count = 0;
    out[count++] = (struct pollfd){.fd = acceptor->listener, .events = POLLIN};
    for (size_t i = 0; i < acceptor->guest_count; i++)
        out[count++] = (struct pollfd){.fd = acceptor->guests[i].conn->fd, .events = POLLIN};
    for (int rank = 0; rank < acceptor->self->replicas; rank++) {
        if (acceptor->expected[rank] && acceptor->peers[rank])
            out[count++] = (struct pollfd){.fd = acceptor->peers[rank]->fd, .events = POLLIN};
    }
    return count;
}

adl_status adli_acceptor_welcome(adli_acceptor *acceptor)
{
    for (int rank = 0; rank < acceptor->self->replicas; rank++) {
        if (!acceptor->expected[rank])
            continue;
        adl_status status = adli_conn_send(acceptor->peers[rank], ADLI_WELCOME, NULL, 0);
        if (status != ADL_OK)
            return adli_wrap(ADL_EPEER, "rank %d went away as the group formed", rank);
        acceptor->peers[rank]->generation = acceptor->self->generation;
    }
    return ADL_OK;
}

void adli_acceptor_refuse_all(adli_acceptor *acceptor, const char *why)
{
    for (int rank = 0; rank < acceptor->self->replicas; rank++) {
        if (acceptor->expected[rank] && acceptor->peers[rank])
            refuse(acceptor, acceptor->peers[rank], ADLI_REFUSED, why);
    }
}

adl_status adli_acceptor_timeout(const adli_acceptor *acceptor, int waited_ms)
{
    char ranks[256] = "";
    size_t used = 0;
    for (int rank = 0; rank < acceptor->self->replicas && used < sizeof ranks - 24; rank++) {
        if (acceptor->expected[rank] && !acceptor->peers[rank])
            used +=
                (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%d", used ? ", " : "", rank);
    }
    if (used >= sizeof ranks - 24)
        snprintf(ranks + used, sizeof ranks - used, " ...");
    return adli_fail(
        ADL_ETIMEOUT, "rank %d: %d of %d replicas did not arrive within %d ms: %s%s%s%s",
        acceptor->self->rank, acceptor->missing, acceptor->self->replicas, waited_ms, ranks,
        acceptor->last[0] ? " (refused last: " : "", acceptor->last, acceptor->last[0] ? ")" : "");
}
