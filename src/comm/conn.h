/* One connection that carries frames, without ever blocking: what is to be sent waits in a buffer,
 * what has arrived is handed out frame by frame after its sequence, generation and MAC were checked.
 * Belongs to one thread at a time. */
#ifndef ADLI_COMM_CONN_H
#define ADLI_COMM_CONN_H

#include "comm/auth.h"
#include "comm/frame.h"
#include "comm/sock.h"

#include <sys/uio.h>

/* A frame whose payload is sent from where it lies. */
typedef struct adli_lent {
    uint8_t header[ADLI_FRAME_HEADER], mac[ADLI_MAC_BYTES];
    struct iovec rest[3]; /* [count]: what the socket has not taken yet */
    int count;
} adli_lent;

/* A frame whose payload is received to where it belongs. */
typedef struct adli_arrival {
    uint8_t header[ADLI_FRAME_HEADER];
    adli_frame frame;
    size_t have; /* bytes of the payload that have come */
    bool open;   /* the header was seen, the end was not */
} adli_arrival;

typedef struct adli_conn {
    int fd;
    char peer[ADLI_ADDRESS_TEXT];
    uint64_t generation;
    size_t max_payload;
    uint64_t sent, received; /* frames: the next sequence of each direction */
    adli_mac *tx, *rx;       /* NULL: no MACs */
    uint8_t *in; /* [in_capacity]; in_start .. in_end has arrived and was not consumed */
    size_t in_start, in_end, in_capacity;
    size_t consumed; /* bytes of the frame that was handed out last */
    uint8_t *out;    /* [out_capacity]; out_start .. out_end is to be sent */
    size_t out_start, out_end, out_capacity;
    adli_lent lent; /* goes out before what is in the buffer */
    adli_arrival arrival;
    int64_t last_rx_ms, last_tx_ms;
    bool eof;    /* the peer has finished sending */
    bool broken; /* the socket failed, as opposed to what came through it */
} adli_conn;

/* Takes fd over, also when it fails. */
ADL_MUST adl_status adli_conn_new(int fd, uint64_t generation, size_t max_payload, adli_conn **out);
void adli_conn_free(adli_conn *conn);

/* Every later frame carries a MAC; the keys are copied. */
ADL_MUST adl_status adli_conn_protect(adli_conn *conn, const uint8_t tx[ADLI_KEY_BYTES],
                                      const uint8_t rx[ADLI_KEY_BYTES]);

/* Queues a frame whose payload is the concatenated parts (at most 2) and sends what the socket takes
 * now. */
ADL_MUST adl_status adli_conn_send(adli_conn *conn, adli_frame_type type, const adli_part *parts,
                                   size_t count);
/* The same for a payload that stays where it is, and unchanged, until adli_conn_unsent is false; which
 * it must be now. */
ADL_MUST adl_status adli_conn_lend(adli_conn *conn, adli_frame_type type, const void *data,
                                   size_t length);
/* Sends what the socket takes now. ADL_ENET when the connection is gone. */
ADL_MUST adl_status adli_conn_flush(adli_conn *conn);
static inline bool adli_conn_unsent(const adli_conn *conn)
{
    return conn->out_end > conn->out_start || conn->lent.count > 0;
}
/* Flushes for at most timeout_ms, for last words. Failures are of no interest then. */
void adli_conn_drain(adli_conn *conn, int timeout_ms);

/* Reads what has arrived, up to a bound. ADL_ENET when the connection is gone; an orderly end sets
 * eof instead. */
ADL_MUST adl_status adli_conn_receive(adli_conn *conn);
/* The next whole frame, valid until the next call, or *have == false. */
ADL_MUST adl_status adli_conn_next(adli_conn *conn, adli_frame *frame, bool *have);

/* The same two without a copy, for large frames; a connection is read in one of the two ways at a time,
 * and changes over between frames. First the header of the next frame, payload NULL; then, when the
 * caller has looked where it belongs, its payload, again and again until *done. Both read no further
 * than the header of the frame after it. A payload is not to be believed before *done. */
ADL_MUST adl_status adli_conn_open(adli_conn *conn, adli_frame *frame, bool *have);
ADL_MUST adl_status adli_conn_fill(adli_conn *conn, void *to, bool *done);

#endif
