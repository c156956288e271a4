/* Exchanges with the scheduler that http.h is too small for: over Unix sockets, with answers
 * that come piece by piece (logs, events, files), several at a time in one thread, and bodies
 * from a file. */
#ifndef ADLI_CLIENT_STREAM_H
#define ADLI_CLIENT_STREAM_H

#include "base/buf.h"
#include "base/status.h"
#include "client/server.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct adli_streams adli_streams; /* belongs to one thread */
typedef struct adli_stream adli_stream;   /* one exchange of the set */

typedef struct adli_stream_request {
    const char *method; /* "GET", "POST", "DELETE" */
    const char *path;   /* "/api/v1/jobs?phase=Running", encoded */
    const void *body;   /* copied; NULL: none, or body_fd */
    size_t body_length;
    int body_fd; /* read from its start while the exchange lasts; used when body_bytes > 0 */
    int64_t body_bytes;
    const char *content_type;
    const char *accept;        /* NULL: anything */
    const char *last_event_id; /* NULL: none */
    int timeout_ms;            /* the whole exchange; 0: as long as it takes */
    /* Gets the body of an answer below 400, as it comes. A failure ends the exchange with it.
     * NULL: the body is kept (adli_stream_answer). Runs inside adli_streams_step. */
    adl_status (*data)(void *user, const char *data, size_t length);
    void *user;
} adli_stream_request;

/* The server is borrowed. */
ADL_MUST adl_status adli_streams_new(const adli_server *server, adli_streams **out);
/* Closes what is open. */
void adli_streams_free(adli_streams *set);

/* Begins an exchange; *out is closed with adli_stream_close. Does not wait. */
ADL_MUST adl_status adli_stream_open(adli_streams *set, const adli_stream_request *request,
                                     adli_stream **out);
/* Lets all exchanges go on, for at most timeout_ms when nothing moves. wake_fd (or -1): returns
 * when it is readable. A signal makes it return too, and so does, at once, a stream that is over
 * and not closed. */
ADL_MUST adl_status adli_streams_step(adli_streams *set, int timeout_ms, int wake_fd);

bool adli_stream_over(const adli_stream *stream);
/* Once over: as adli_http_exchange, plus what `data` returned. *code: 0 when there was none. */
ADL_MUST adl_status adli_stream_result(const adli_stream *stream, int *code);
/* The body so far: all of it without `data`, else that of an answer of 400 and more. Borrowed. */
const adli_buf *adli_stream_answer(const adli_stream *stream);
/* Did the answer carry "X-Adaptdl-Directory: 1"? Known before the first byte of the body. */
bool adli_stream_is_directory(const adli_stream *stream);
void adli_stream_close(adli_stream *stream);

/* One exchange from beginning to end; cancelled (may be NULL) is asked several times a second. The
 * answer replaces what is in `answer`; its max is the limit. */
ADL_MUST adl_status adli_stream_exchange(adli_streams *set, const adli_stream_request *request,
                                         bool (*cancelled)(void), adli_buf *answer, int *code);

#endif
