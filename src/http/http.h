/* A small HTTP client for short exchanges of JSON: the training runtime's hints and discovery. One request
 * at a time, answers with a limit, and a way to end a request from another thread at once, so that a
 * program never waits for a server in order to exit. It speaks HTTP/1.1 on http:// and https://, and knows
 * neither redirects nor proxies (docs/adr/0130). */
#ifndef ADLI_HTTP_H
#define ADLI_HTTP_H

#include "base/buf.h"
#include "base/status.h"

#include <stdbool.h>

typedef struct adli_http adli_http;

typedef struct adli_http_request {
    const char *method; /* "GET", "PUT", "POST", "DELETE" */
    const char *url;
    const void *body; /* NULL: none */
    size_t body_length;
    const char *content_type;         /* of the body; NULL: application/json */
    const char *const *headers;       /* "Name: value" ..., NULL at the end; NULL: none */
    int timeout_ms;                   /* the whole exchange */
    bool (*cancelled)(void *context); /* may be NULL; asked several times a second: true ends it */
    void *cancel_context;
} adli_http_request;

/* A client belongs to one thread at a time, except for adli_http_cancel. Each exchange has a connection
 * of its own: they are half a minute apart. *out is freed with adli_http_free, or NULL on failure. */
ADL_MUST adl_status adli_http_new(adli_http **out);
void adli_http_free(adli_http *http);

/* One exchange. The answer's body goes into answer (cleared first; its max is the limit), the status
 * code into *code; a code of 400 and more is no failure here.
 *   ADL_ENET      no connection, a certificate that is not trusted, or the connection broke; the text names the URL and the reason
 *   ADL_ETIMEOUT  no complete answer within timeout_ms
 *   ADL_EINVAL    a bad URL, or an answer beyond the limit
 *   ADL_EINTR     cancelled */
ADL_MUST adl_status adli_http_exchange(adli_http *http, const adli_http_request *request,
                                       adli_buf *answer, int *code);

/* Ends the request under way, and every later one, with ADL_EINTR. Any thread; does not block. */
void adli_http_cancel(adli_http *http);

#endif
