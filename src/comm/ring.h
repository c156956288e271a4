/* The ring from the inside, shared by its two files: ring_form.c makes the connections, ring.c sends
 * buckets around. */
#ifndef ADLI_COMM_RING_H
#define ADLI_COMM_RING_H

#include "comm/reducer_impl.h"

typedef struct adli_ring {
    adli_transport base;
    adl_reducer *reducer;
    adli_conn *next, *prev; /* we send to next and receive from prev */
    int next_rank, prev_rank;
    /* The bucket under way. */
    const adli_bucket *bucket;
    size_t element;              /* bytes that an element takes on the wire */
    int send_step, recv_step;    /* 0 .. 2 (R - 1) */
    size_t send_done, recv_done; /* elements of that step's slice */
    bool got_head;
    int extras;     /* replicas whose doubles have come */
    double *extra;  /* [R][ADL_REDUCER_EXTRA_MAX] */
    uint16_t *half; /* [DATA_FLOATS]: elements on their way out */
    float *wide;    /* [DATA_FLOATS]: elements that came in */
} adli_ring;

enum { ADLI_RING_FLOATS = 64 << 10 /* elements of a frame */ };

/* Connects this replica to its two neighbours. Collective. */
ADL_MUST adl_status adli_ring_form(adli_ring *ring);

#endif
