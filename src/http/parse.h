/* The texts of HTTP/1.1, apart from the sockets so that they can be fuzzed: a URL taken apart, the head
 * of a request, and an answer read piece by piece. */
#ifndef ADLI_HTTP_PARSE_H
#define ADLI_HTTP_PARSE_H

#include "http/http.h"

#include <stdint.h>

enum {
    ADLI_HOST_MAX = 255,
    ADLI_USER_MAX = 511,  /* "user:password", decoded */
    ADLI_LINE_MAX = 8192, /* of an answer's head */
    ADLI_HEAD_MAX = 65536,
};

typedef struct adli_url {
    char host[ADLI_HOST_MAX + 1]; /* without the brackets of an IPv6 address */
    char port[6];
    bool tls;                     /* https:// */
    char user[ADLI_USER_MAX + 1]; /* "" when there is none */
    const char *path;             /* in the URL: "" or from '/' or '?' on, up to a '#' */
    size_t path_length;
} adli_url;

/* http[s]://[user[:password]@]host[:port][/path][?query]. EINVAL names the URL and what is wrong with it. */
ADL_MUST adl_status adli_url_parse(const char *text, adli_url *out);

/* The URL without user and password, for messages; cut when it is too long. */
void adli_url_show(const char *text, char *out, size_t capacity);

/* The request line and the headers, up to the empty line. EINVAL when the method or a header has a
 * line break in it. */
ADL_MUST adl_status adli_request_head(const adli_url *url, const adli_http_request *request,
                                      adli_buf *out);

typedef enum adli_answer_phase {
    ADLI_ANSWER_STATUS_LINE,
    ADLI_ANSWER_HEADERS,
    ADLI_ANSWER_LENGTH, /* a body of known length */
    ADLI_ANSWER_REST,   /* a body up to the end of the connection */
    ADLI_ANSWER_CHUNK_SIZE,
    ADLI_ANSWER_CHUNK_DATA,
    ADLI_ANSWER_CHUNK_END,
    ADLI_ANSWER_TRAILERS,
    ADLI_ANSWER_DONE,
} adli_answer_phase;

typedef struct adli_answer {
    adli_answer_phase phase;
    adli_buf *body;
    int *code;
    bool no_body; /* the answer to a HEAD */
    bool chunked, has_length;
    uint64_t left; /* of the body or of the chunk */
    size_t head_bytes;
    char line[ADLI_LINE_MAX];
    size_t line_length;
} adli_answer;

/* The body goes into `body`, whose max is the limit; the status code into *code. */
void adli_answer_init(adli_answer *answer, adli_buf *body, int *code, bool no_body);
/* More bytes. EINVAL: the body passes its limit; ENET: this is not HTTP. What follows the end of the
 * answer is ignored. */
ADL_MUST adl_status adli_answer_feed(adli_answer *answer, const char *data, size_t length);
/* The connection has ended. ENET when the answer had not. */
ADL_MUST adl_status adli_answer_end(adli_answer *answer);
bool adli_answer_done(const adli_answer *answer);

#endif
