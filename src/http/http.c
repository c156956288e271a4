#include "http/http.h"

#include "base/clock.h"
#include "base/mem.h"
#include "http/parse.h"
#include "http/tls.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECT_TIMEOUT_MS = 10000, POLL_MS = 100, REQUEST_MAX = 64 << 20 };

struct adli_http {
    atomic_bool cancelled;
    int wake;          /* eventfd: readable once cancelled */
    adli_trust *trust; /* NULL until an https:// URL is asked for */
};

/* One exchange under way. */
typedef struct exchange {
    adli_http *http;
    const adli_http_request *request;
    double until_s;
    int fd;
    adli_tls *tls; /* NULL: plain */
} exchange;

adl_status adli_http_new(adli_http **out)
{
    *out = NULL;
    adli_http *http = adli_calloc(1, sizeof *http);
    if (!http)
        return adli_fail_memory("HTTP client");
    http->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (http->wake < 0) {
        free(http);
        return adli_fail(ADL_ENET, "HTTP client: eventfd: %s", strerror(errno));
    }
    *out = http;
    return ADL_OK;
}

void adli_http_free(adli_http *http)
{
    if (!http)
        return;
    adli_trust_free(http->trust);
    close(http->wake);
    free(http);
}

void adli_http_cancel(adli_http *http)
{
    uint64_t one = 1;
    atomic_store(&http->cancelled, true);
    if (write(http->wake, &one, sizeof one) < 0) {
        /* Its counter is full: then it is readable, which is all that matters. */
    }
}

/* "GET URL: why", with the status that says what kind of failure it was. The URL is shown without its
 * password. */
static adl_status fail(const exchange *x, adl_status status, const char *why)
{
    char shown[512];
    adli_url_show(x->request->url, shown, sizeof shown);
    return adli_fail(status, "%s %s: %s", x->request->method, shown, why);
}

/* The same with the present error text as the reason. */
static adl_status fail_again(const exchange *x, adl_status status)
{
    char why[512];
    snprintf(why, sizeof why, "%s", adl_error());
    return fail(x, status, why);
}

/* Waits until the socket is ready for events, the time is up, or somebody cancels. */
static adl_status wait_for(const exchange *x, short events, double until_s)
{
    for (;;) {
        const adli_http_request *request = x->request;
        if (atomic_load(&x->http->cancelled) ||
            (request->cancelled && request->cancelled(request->cancel_context)))
            return fail(x, ADL_EINTR, "cancelled");
        double left_s = until_s - adli_monotonic_s();
        if (left_s <= 0)
            return fail(x, ADL_ETIMEOUT, "no complete answer in time");
        int slice_ms = left_s * 1000 < POLL_MS ? (int)(left_s * 1000) + 1 : POLL_MS;
        struct pollfd fds[2] = {{x->fd, events, 0}, {x->http->wake, POLLIN, 0}};
        int ready = poll(fds, 2, slice_ms);
        if (ready < 0 && errno != EINTR)
            return fail(x, ADL_ENET, strerror(errno));
        if (ready > 0 && fds[0].revents)
            return ADL_OK;
    }
}

static adl_status connect_one(exchange *x, const struct addrinfo *to, double until_s)
{
    x->fd = socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, to->ai_protocol);
    if (x->fd < 0)
        return fail(x, ADL_ENET, strerror(errno));
    int one = 1, error = 0;
    socklen_t length = sizeof error;
    setsockopt(x->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(x->fd, to->ai_addr, to->ai_addrlen) == 0)
        return ADL_OK;
    adl_status status = ADL_OK;
    if (errno != EINPROGRESS)
        error = errno;
    else
        status = wait_for(x, POLLOUT, until_s);
    if (status == ADL_OK && error == 0)
        getsockopt(x->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (status == ADL_OK && error != 0)
        status = fail(x, ADL_ENET, strerror(error));
    if (status != ADL_OK) {
        close(x->fd);
        x->fd = -1;
    }
    return status;
}

/* A host's name being looked up, which may take as long as the resolver likes. Whoever is the second to let go of it,
 * the thread that asks or the one that waits, frees it. */
typedef struct lookup {
    atomic_int holders;
    int done; /* eventfd: readable once error and list are there */
    int error;
    struct addrinfo *list;
    char host[ADLI_HOST_MAX + 1], port[6];
} lookup;

static void let_go(lookup *l)
{
    if (atomic_fetch_sub(&l->holders, 1) > 1)
        return;
    if (l->list)
        freeaddrinfo(l->list);
    close(l->done);
    free(l);
}

static void *look_up(void *opaque)
{
    lookup *l = opaque;
    uint64_t one = 1;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    l->error = getaddrinfo(l->host, l->port, &hints, &l->list);
    if (write(l->done, &one, sizeof one) < 0) {
        /* It never was written before: it cannot be full. */
    }
    let_go(l);
    return NULL;
}

static lookup *lookup_new(const adli_url *url)
{
    lookup *l = adli_calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->done = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    atomic_init(&l->holders, 1);
    snprintf(l->host, sizeof l->host, "%s", url->host);
    snprintf(l->port, sizeof l->port, "%s", url->port);
    if (l->done >= 0)
        return l;
    free(l);
    return NULL;
}

/* A number is no question for a resolver; anything else is asked by a thread, so that it can be left alone. */
static adl_status resolve(exchange *x, lookup *l)
{
    const struct addrinfo number = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    adl_status status = ADL_OK;
    l->error = getaddrinfo(l->host, l->port, &number, &l->list);
    if (l->error == EAI_NONAME) {
        pthread_t thread;
        atomic_fetch_add(&l->holders, 1);
        if (pthread_create(&thread, NULL, look_up, l) != 0) {
            atomic_fetch_sub(&l->holders, 1);
            return fail(x, ADL_ENOMEM, "no thread to look its host up");
        }
        pthread_detach(thread);
        x->fd = l->done;
        status = wait_for(x, POLLIN, x->until_s);
        x->fd = -1;
        uint64_t one; /* not only seen but read: what was written before it is ours now */
        if (status == ADL_OK && read(l->done, &one, sizeof one) != sizeof one)
            status = fail(x, ADL_EIO, "its host cannot be looked up");
    }
    if (status == ADL_OK && l->error != 0)
        status = fail(x, ADL_ENET, gai_strerror(l->error));
    return status;
}

/* Every address in turn. The connecting has its own, shorter limit, of which one that does not answer takes no more
 * than its share. */
static adl_status connect_any(exchange *x, const struct addrinfo *list)
{
    int left = 0;
    for (const struct addrinfo *at = list; at; at = at->ai_next)
        left++;
    double until_s = fmin(adli_monotonic_s() + CONNECT_TIMEOUT_MS / 1000.0, x->until_s);
    adl_status status = fail(x, ADL_ENET, "the host has no address");
    for (const struct addrinfo *at = list; at; at = at->ai_next, left--) {
        double now_s = adli_monotonic_s();
        status = connect_one(x, at, now_s + (until_s - now_s) / left);
        if (status != ADL_ENET && status != ADL_ETIMEOUT)
            break;
    }
    return status;
}

static adl_status connect_to(exchange *x, const adli_url *url)
{
    lookup *l = lookup_new(url);
    if (!l)
        return fail(x, ADL_ENOMEM, "no memory to look its host up");
    adl_status status = resolve(x, l);
    if (status == ADL_OK)
        status = connect_any(x, l->list);
    let_go(l);
    return status;
}

static adl_status start_tls(exchange *x, const adli_url *url)
{
    adl_status status = x->http->trust ? ADL_OK : adli_trust_new(&x->http->trust);
    if (status == ADL_OK)
        status = adli_tls_new(x->http->trust, x->fd, url->host, &x->tls);
    return status == ADL_OK ? ADL_OK : fail_again(x, status);
}

/* After a send or receive that gave -1: waits where that helps. */
static adl_status after_failure(const exchange *x, short events)
{
    if (errno == EAGAIN)
        return wait_for(x, events, x->until_s);
    if (errno == EINTR)
        return ADL_OK;
    return x->tls ? fail_again(x, ADL_ENET) : fail(x, ADL_ENET, strerror(errno));
}

static adl_status send_all(const exchange *x, const char *data, size_t length)
{
    adl_status status = ADL_OK;
    while (length > 0 && status == ADL_OK) {
        short events = POLLOUT;
        ssize_t sent = x->tls ? adli_tls_send(x->tls, data, length, &events)
                              : send(x->fd, data, length, MSG_NOSIGNAL);
        if (sent < 0) {
            status = after_failure(x, events);
        } else {
            data += sent;
            length -= (size_t)sent;
        }
    }
    return status;
}

static adl_status receive(const exchange *x, adli_answer *parser)
{
    char piece[16384];
    adl_status status = ADL_OK;
    while (status == ADL_OK && !adli_answer_done(parser)) {
        short events = POLLIN;
        ssize_t got = x->tls ? adli_tls_receive(x->tls, piece, sizeof piece, &events)
                             : recv(x->fd, piece, sizeof piece, 0);
        if (got < 0) {
            status = after_failure(x, events);
        } else {
            status =
                got > 0 ? adli_answer_feed(parser, piece, (size_t)got) : adli_answer_end(parser);
            if (status != ADL_OK)
                status = fail_again(x, status);
        }
    }
    return status;
}

adl_status adli_http_exchange(adli_http *http, const adli_http_request *request, adli_buf *answer,
                              int *code)
{
    exchange x = {http, request, adli_monotonic_s() + request->timeout_ms / 1000.0, -1, NULL};
    adli_url url;
    adli_answer parser;
    adli_buf head;
    *code = 0;
    adli_buf_clear(answer);
    adli_buf_init(&head, REQUEST_MAX);
    adl_status status = adli_url_parse(request->url, &url);
    if (status == ADL_OK)
        status = adli_request_head(&url, request, &head);
    if (status == ADL_OK && atomic_load(&http->cancelled))
        status = fail(&x, ADL_EINTR, "cancelled");
    if (status == ADL_OK)
        status = connect_to(&x, &url);
    if (status == ADL_OK && url.tls)
        status = start_tls(&x, &url);
    if (status == ADL_OK)
        status = send_all(&x, head.data, head.length);
    if (status == ADL_OK && request->body)
        status = send_all(&x, request->body, request->body_length);
    if (status == ADL_OK) {
        adli_answer_init(&parser, answer, code, strcmp(request->method, "HEAD") == 0);
        status = receive(&x, &parser);
    }
    adli_tls_free(x.tls);
    if (x.fd >= 0)
        close(x.fd);
    adli_buf_fini(&head);
    return status;
}
