/* A small HTTP/1.1 server layer on libmicrohttpd, for an API that strangers may reach. What it adds:
 * routes, limits (connections, header and body size, requests a second, time), long polls and streams
 * without a thread each, slow work off the event threads, and a graceful end.
 *
 * Handlers see an adli_httpd_request and fill in an answer; libmicrohttpd appears in no header. A
 * client that sends or reads slowly costs a connection and some memory, never a thread, and not for
 * long; when all connections are taken, or all that one address may have, the one that has waited longest
 * gives way: one whose client has not shown a valid token, if there is any, else one without a request.
 *
 * All errors are JSON, those of requests that libmicrohttpd itself refuses (not HTTP, headers beyond the limit: 400,
 * 413, 414, 431, 501 or 505) too. */
#ifndef ADLI_HTTPD_H
#define ADLI_HTTPD_H

#include "base/buf.h"
#include "base/shared.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct adli_httpd adli_httpd;
typedef struct adli_httpd_request adli_httpd_request;

typedef struct adli_httpd_limits {
    int header_bytes;       /* request line and headers, about */
    int connections;        /* open at a time */
    int connections_per_ip; /* TCP only; 0: no limit of its own */
    double requests_per_s;  /* of one address (TCP only); 0: no limit */
    double burst;           /* how many at once */
    double idle_s;          /* a connection without a request */
    double header_s;        /* from the request line to the end of the headers */
    double body_s;     /* a body may take this long, and 1 s more per 16 KiB; answers likewise */
    double catch_up_s; /* a live stream that is behind for longer is ended */
    double stop_s;     /* how long requests may take to end at adli_httpd_free */
} adli_httpd_limits;

#define ADLI_HTTPD_LIMITS                                                                          \
    {                                                                                              \
        .header_bytes = 16384, .connections = 1024, .connections_per_ip = 256,                     \
        .requests_per_s = 1000, .burst = 2000, .idle_s = 30, .header_s = 10, .body_s = 30,         \
        .catch_up_s = 60, .stop_s = 3                                                              \
    }

/* ---- requests, as handlers see them; all texts live until the answer is sent ---- */

/* "GET", "PUT" ...; HEAD is shown as GET. */
const char *adli_httpd_method(const adli_httpd_request *request);
/* What the route's nth {} (0, 1 ...) or its final * matched, decoded; "" beyond the last. */
const char *adli_httpd_part(const adli_httpd_request *request, int index);
/* A parameter of the query, decoded; NULL when absent. The first counts. */
const char *adli_httpd_query(const adli_httpd_request *request, const char *name);
/* A header's value; NULL when absent. */
const char *adli_httpd_header(const adli_httpd_request *request, const char *name);
/* The body, NUL-terminated; "" when there was none. */
const char *adli_httpd_body(const adli_httpd_request *request, size_t *length);
/* The path of the file the body went to; NULL unless adli_httpd_body_to_file was called. */
const char *adli_httpd_body_file(const adli_httpd_request *request);
/* Bearer token, or password of Basic authorization; NULL: none was sent. */
const char *adli_httpd_token(const adli_httpd_request *request);
/* Came through a Unix socket. */
bool adli_httpd_local(const adli_httpd_request *request);
/* The listener's number, as in adli_httpd_listener.id. */
int adli_httpd_door(const adli_httpd_request *request);
/* When the request arrived (monotonic seconds), for deadlines of long polls. */
double adli_httpd_arrived_s(const adli_httpd_request *request);
/* Handlers may keep a number between calls of the same request. Starts as 0. */
int64_t *adli_httpd_memo(adli_httpd_request *request);

/* ---- answers: one per request ---- */

/* The bytes are copied; take: the buffer's storage is taken over and *body is empty afterwards. */
void adli_httpd_answer(adli_httpd_request *request, int code, const char *content_type,
                       const void *data, size_t length);
void adli_httpd_answer_take(adli_httpd_request *request, int code, const char *content_type,
                            adli_buf *body);
/* The text is held until the answer is sent, or dropped. */
void adli_httpd_answer_shared(adli_httpd_request *request, int code, const char *content_type,
                              adli_shared *text);
/* Constant bytes that outlive the server. */
void adli_httpd_answer_static(adli_httpd_request *request, int code, const char *content_type,
                              const void *data, size_t length);
/* size bytes of fd from offset on; fd is closed by the server. */
void adli_httpd_answer_file(adli_httpd_request *request, const char *content_type, int fd,
                            int64_t offset, int64_t size);
/* {"error":{"code":...,"message":...}} */
void adli_httpd_answer_error(adli_httpd_request *request, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* One more header for the answer, before or after it is given. At most 8; both texts are copied. */
void adli_httpd_set_header(adli_httpd_request *request, const char *name, const char *value);

/* A body that comes piece by piece. */
typedef enum adli_httpd_flow {
    ADLI_FLOW_DATA, /* something was appended to out */
    ADLI_FLOW_WAIT, /* nothing now: ask again at *again_s, or after adli_httpd_wake */
    ADLI_FLOW_END,
} adli_httpd_flow;
typedef struct adli_httpd_stream {
    void *self;
    /* Called from an event thread; must not block. About 32 KiB at a time is plenty. */
    adli_httpd_flow (*fill)(void *self, adli_buf *out, double now_s, double *again_s);
    void (*free)(void *self); /* called once, whatever happens to the request */
    bool live;                /* must keep up: limits.catch_up_s */
} adli_httpd_stream;
void adli_httpd_answer_stream(adli_httpd_request *request, const char *content_type,
                              const adli_httpd_stream *stream);

/* ---- routes ---- */

typedef enum adli_httpd_verdict {
    ADLI_HTTPD_DONE, /* an answer was given */
    ADLI_HTTPD_WAIT, /* call again after adli_httpd_wake, or at the time given to wait_until */
} adli_httpd_verdict;
void adli_httpd_wait_until(adli_httpd_request *request, double monotonic_s);
/* True once the server is ending: what waits should answer now. */
bool adli_httpd_ending(const adli_httpd_request *request);

enum { ADLI_HTTPD_CLASSES = 3 };

typedef struct adli_httpd_route {
    const char *method; /* "GET" also serves HEAD */
    const char *path;   /* "/jobs/{}/x": {} is one segment; a final asterisk, any rest */
    unsigned doors;     /* bits 1 << listener id: where it exists */
    int access;         /* for the check */
    size_t body_max;    /* 0: no body is wanted (one that comes is dropped, up to 64 KiB) */
    int slow; /* 0: at once; 1 .. ADLI_HTTPD_CLASSES: by a worker thread of that class, because it may wait for a disk.
               * One class never waits for another's */
    adli_httpd_verdict (*handle)(void *user, adli_httpd_request *request);
} adli_httpd_route;

/* For the check: this client has shown who it is. When connections run out, those of clients that have
 * not give way first. Clients of Unix sockets need not. */
void adli_httpd_set_known(adli_httpd_request *request);
/* For the check: another limit than the route's. */
void adli_httpd_body_max(adli_httpd_request *request, int64_t max);
/* For the check: receive the body into a file without a name below dir, up to max bytes. */
void adli_httpd_body_to_file(adli_httpd_request *request, const char *dir, int64_t max);

typedef struct adli_httpd_options {
    const adli_httpd_route *routes; /* borrowed */
    size_t route_count;
    /* Called when the headers are there, before the body. Answers (401, 403 ...) to refuse; may be
     * NULL. Must not block. */
    void (*check)(void *user, adli_httpd_request *request, const adli_httpd_route *route);
    void *user;
    int workers;              /* threads for each class of slow routes; 0: 2 */
    const char *const *extra; /* headers of every answer that does not set them itself: name, value,
                                 name, value ..., NULL; may be NULL */
} adli_httpd_options;

typedef struct adli_httpd_listener {
    int id;                  /* 0 .. 7 */
    const char *socket_path; /* a Unix socket, or ... */
    const char *address;     /* ... "ADDR:PORT", "[ADDR6]:PORT" */
    const char *tls_cert, *tls_key;
    const char *const *hosts; /* names that the Host header may carry besides IP addresses and
                                 localhost ("*": any), NULL at the end; NULL: none */
    int threads;              /* 0: 2 */
    adli_httpd_limits limits;
} adli_httpd_listener;

/* ---- the server ---- */

ADL_MUST adl_status adli_httpd_new(const adli_httpd_options *options, adli_httpd **out);
/* Opens one door and serves there. EINVAL: an address or a certificate; ESTATE: taken; EIO. *port: the
 * TCP port in use; may be NULL. */
ADL_MUST adl_status adli_httpd_listen(adli_httpd *httpd, const adli_httpd_listener *listener,
                                      int *port);
/* Everything that waits looks again. Any thread; does not block. */
void adli_httpd_wake(adli_httpd *httpd);
/* Stops listening, lets requests finish (limits.stop_s), ends streams, frees. */
void adli_httpd_free(adli_httpd *httpd);
/* Prometheus text of the server's own counters. Any thread. */
void adli_httpd_metrics(adli_httpd *httpd, adli_buf *out);

/* Equal? In a time that depends on the lengths only. */
bool adli_httpd_secret_equal(const char *given, const char *secret);

#endif
