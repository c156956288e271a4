/* As much of WebSockets (RFC 6455) as the API server's exec needs: the handshake's texts, frames to send, and
 * messages out of the bytes that come. Pure: no sockets, and the random numbers are arguments. */
#ifndef ADLI_KUBE_WEBSOCKET_H
#define ADLI_KUBE_WEBSOCKET_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    ADLI_WS_TEXT = 1,
    ADLI_WS_BINARY = 2,
    ADLI_WS_CLOSE = 8,
    ADLI_WS_PING = 9,
    ADLI_WS_PONG = 10,
    ADLI_WS_MESSAGE_MAX = 16 << 20,
    ADLI_WS_KEY = 25,    /* bytes of a key's text with its end */
    ADLI_WS_ACCEPT = 29, /* of the answer to it */
};

/* What a client asks with, and what it must hear. */
void adli_ws_key(const unsigned char random[16], char out[ADLI_WS_KEY]);
void adli_ws_accept(const char key[ADLI_WS_KEY], char out[ADLI_WS_ACCEPT]);

/* Appends one whole frame as clients send them, masked. */
void adli_ws_put(adli_buf *out, int opcode, const void *data, size_t length,
                 const unsigned char mask[4]);

/* Messages out of bytes; start with adli_ws_init. */
typedef struct adli_ws_reader {
    adli_buf bytes;   /* that are no whole frame yet */
    adli_buf message; /* its frames so far, or the whole one */
    int opcode;       /* of the message; 0: none has begun */
    size_t used;      /* of bytes: taken */
    adli_buf control; /* the last control frame's */
} adli_ws_reader;

void adli_ws_init(adli_ws_reader *reader);
void adli_ws_fini(adli_ws_reader *reader);
ADL_MUST adl_status adli_ws_feed(adli_ws_reader *reader, const char *bytes, size_t count);
/* *opcode: of the next message or control frame, 0: more bytes are needed. *data is the reader's until the next
 * call. EINVAL: that is no WebSocket. */
ADL_MUST adl_status adli_ws_next(adli_ws_reader *reader, int *opcode, const char **data,
                                 size_t *length);

#endif
