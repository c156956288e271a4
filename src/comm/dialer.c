/* The connecting side. What may pass (nobody listens yet, a name that does not resolve yet, a
 * connection that breaks, a rank 0 of the generation before) is retried after 5 ms, then twice that,
 * up to a second; what cannot pass ends the attempt with one clear error. */
#include "comm/handshake.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    FIRST_BACKOFF_MS = 5,
    MAX_BACKOFF_MS = 1000,
    CONNECT_LIMIT_MS = 5000,  /* for one attempt: packets may go nowhere */
    GREETING_LIMIT_MS = 10000 /* connected, but nobody accepts */
};

void adli_dialer_init(adli_dialer *dialer, const adli_identity *self, int to_rank, const char *host,
                      int port)
{
    *dialer = (adli_dialer){
        .self = self,
        .to_rank = to_rank,
        .host = host,
        .port = port,
        .fd = -1,
        .backoff_ms = FIRST_BACKOFF_MS,
    };
}

static void hang_up(adli_dialer *dialer)
{
    adli_conn_free(dialer->conn);
    dialer->conn = NULL;
    if (dialer->fd >= 0)
        close(dialer->fd);
    dialer->fd = -1;
}

void adli_dialer_fini(adli_dialer *dialer)
{
    hang_up(dialer);
    if (dialer->addresses)
        freeaddrinfo(dialer->addresses);
    dialer->addresses = NULL;
}

/* Remembers adl_error() and goes to sleep, unless another address of the name is left to try. */
static void retry(adli_dialer *dialer)
{
    hang_up(dialer);
    snprintf(dialer->last, sizeof dialer->last, "%s", adl_error());
    dialer->state = ADLI_DIAL_WAITING;
    dialer->retry_at_ms = adli_now_ms();
    if (dialer->next)
        return;
    dialer->retry_at_ms += dialer->backoff_ms;
    dialer->backoff_ms =
        dialer->backoff_ms * 2 < MAX_BACKOFF_MS ? dialer->backoff_ms * 2 : MAX_BACKOFF_MS;
}

static adl_status start_connect(adli_dialer *dialer, int64_t now)
{
    if (!dialer->next) {
        if (dialer->addresses)
            freeaddrinfo(dialer->addresses);
        dialer->addresses = NULL;
        if (adli_sock_resolve(dialer->host, dialer->port, &dialer->addresses) != ADL_OK) {
            retry(dialer);
            return ADL_OK;
        }
        dialer->next = dialer->addresses;
    }
    const struct addrinfo *to = dialer->next;
    dialer->next = to->ai_next;
    if (adli_sock_connect(to, &dialer->fd) != ADL_OK) {
        retry(dialer);
        return ADL_OK;
    }
    dialer->state = ADLI_DIAL_CONNECTING;
    dialer->attempt_ends_ms = now + CONNECT_LIMIT_MS;
    return ADL_OK;
}

static adl_status greet(adli_dialer *dialer, int64_t now)
{
    struct pollfd entry = {.fd = dialer->fd, .events = POLLOUT};
    if (poll(&entry, 1, 0) <= 0) {
        if (now >= dialer->attempt_ends_ms) {
            (void)adli_fail(ADL_ENET, "%s", strerror(ETIMEDOUT));
            retry(dialer);
        }
        return ADL_OK;
    }
    adl_status status = adli_sock_connected(dialer->fd);
    if (status != ADL_OK) {
        retry(dialer);
        return ADL_OK;
    }
    int fd = dialer->fd;
    dialer->fd = -1;
    status = adli_conn_new(fd, 0, ADLI_HANDSHAKE_MAX, &dialer->conn);
    if (status != ADL_OK)
        return status;
    dialer->state = ADLI_DIAL_GREETING;
    dialer->attempt_ends_ms = now + GREETING_LIMIT_MS;
    status = adli_handshake_hello(&dialer->handshake, dialer->self, dialer->conn);
    if (status == ADL_ENET) {
        retry(dialer);
        return ADL_OK;
    }
    return status;
}

static adl_status refused(adli_dialer *dialer, const adli_frame *frame)
{
    adli_failure failure;
    adl_status status = adli_failure_parse(frame->payload, frame->length, &failure);
    if (status != ADL_OK)
        return status;
    status = adli_fail(ADL_EPEER, "refused: %s", failure.text);
    if (failure.code != ADLI_REFUSED_OLD)
        return status;
    retry(dialer);
    return ADL_OK;
}

static adl_status handle(adli_dialer *dialer, const adli_frame *frame)
{
    if (frame->type == ADLI_REFUSE)
        return refused(dialer, frame);
    if (frame->type == ADLI_CHALLENGE && dialer->state == ADLI_DIAL_GREETING) {
        dialer->state = ADLI_DIAL_PROVEN;
        return adli_handshake_prove(&dialer->handshake, dialer->self, dialer->conn, frame);
    }
    if (frame->type == ADLI_WELCOME && dialer->state == ADLI_DIAL_PROVEN) {
        dialer->state = ADLI_DIAL_WELCOME;
        dialer->conn->generation = dialer->self->generation;
        return ADL_OK;
    }
    return adli_fail(ADL_ENET, "a frame of type %d in the middle of the handshake", frame->type);
}

static bool talking(const adli_dialer *dialer)
{
    return dialer->state == ADLI_DIAL_GREETING || dialer->state == ADLI_DIAL_PROVEN;
}

static adl_status talk(adli_dialer *dialer, int64_t now)
{
    adl_status received = adli_conn_receive(dialer->conn);
    if (received == ADL_ENOMEM)
        return received;
    bool have = true;
    while (talking(dialer) && have) {
        adli_frame frame;
        adl_status status = adli_conn_next(dialer->conn, &frame, &have);
        if (status == ADL_OK && have)
            status = handle(dialer, &frame);
        if (status != ADL_OK && dialer->conn->broken)
            break;
        if (status != ADL_OK)
            return adli_wrap(status, "rank %d at %s:%d", dialer->to_rank, dialer->host,
                             dialer->port);
    }
    if (!talking(dialer))
        return ADL_OK;
    if (dialer->conn->broken) {
        retry(dialer);
        return ADL_OK;
    }
    bool silent = dialer->state == ADLI_DIAL_GREETING && now >= dialer->attempt_ends_ms;
    if (!dialer->conn->eof && !silent)
        return ADL_OK;
    (void)adli_fail(ADL_ENET, "it %s",
                    silent ? "accepts connections but does not answer" : "closed the connection");
    retry(dialer);
    return ADL_OK;
}

adl_status adli_dialer_step(adli_dialer *dialer)
{
    int64_t now = adli_now_ms();
    switch (dialer->state) {
    case ADLI_DIAL_WAITING:
        return now >= dialer->retry_at_ms ? start_connect(dialer, now) : ADL_OK;
    case ADLI_DIAL_CONNECTING:
        return greet(dialer, now);
    case ADLI_DIAL_GREETING:
    case ADLI_DIAL_PROVEN:
        return talk(dialer, now);
    case ADLI_DIAL_WELCOME:
        break;
    }
    return ADL_OK;
}

struct pollfd adli_dialer_poll(const adli_dialer *dialer, int64_t *wake_ms)
{
    struct pollfd entry = {.fd = -1};
    int64_t wake = INT64_MAX;
    switch (dialer->state) {
    case ADLI_DIAL_WAITING:
        wake = dialer->retry_at_ms;
        break;
    case ADLI_DIAL_CONNECTING:
        entry = (struct pollfd){.fd = dialer->fd, .events = POLLOUT};
        wake = dialer->attempt_ends_ms;
        break;
    case ADLI_DIAL_GREETING:
        wake = dialer->attempt_ends_ms;
        entry = (struct pollfd){.fd = dialer->conn->fd, .events = POLLIN};
        break;
    case ADLI_DIAL_PROVEN:
        entry = (struct pollfd){.fd = dialer->conn->fd, .events = POLLIN};
        break;
    case ADLI_DIAL_WELCOME:
        break;
    }
    if (wake < *wake_ms)
        *wake_ms = wake;
    return entry;
}

adl_status adli_dialer_timeout(const adli_dialer *dialer, int waited_ms)
{
    bool before = dialer->last[0];
    if (dialer->state == ADLI_DIAL_PROVEN)
        return adli_fail(
            ADL_ETIMEOUT,
            "rank %d at %s:%d: connected, but not all %d replicas arrived within %d ms%s%s%s",
            dialer->to_rank, dialer->host, dialer->port, dialer->self->replicas, waited_ms,
            before ? " (before that: " : "", dialer->last, before ? ")" : "");
    return adli_fail(ADL_ETIMEOUT, "rank %d at %s:%d: not reached within %d ms (%s)",
                     dialer->to_rank, dialer->host, dialer->port, waited_ms,
                     before ? dialer->last : "no answer");
}
