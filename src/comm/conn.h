/* One connection that carries frames, without ever blocking: what is to be sent waits in a buffer,
 * what has arrived is handed out frame by frame after its sequence, generation and MAC were checked.
 * Belongs to one thread at a time. */
#ifndef ADLI_COMM_CONN_H
#define ADLI_COMM_CONN_H

#include "comm/auth.h"
#include "comm/frame.h"
#include "comm/sock.h"

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
/* Sends what the socket takes now. ADL_ENET when the connection is gone. */
ADL_MUST adl_status adli_conn_flush(adli_conn *conn);
static inline bool adli_conn_unsent(const adli_conn *conn)
{
    return conn->out_end > conn->out_start;
}
/* Flushes for at most timeout_ms, for last words. Failures are of no interest then. */
void adli_conn_drain(adli_conn *conn, int timeout_ms);

/* Reads what has arrived, up to a bound. ADL_ENET when the connection is gone; an orderly end sets
 * eof instead. */
ADL_MUST adl_status adli_conn_receive(adli_conn *conn);
/* The next whole frame, valid until the next call, or *have == false. */
ADL_MUST adl_status adli_conn_next(adli_conn *conn, adli_frame *frame, bool *have);

#endif
