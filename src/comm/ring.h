/* The ring from the inside, shared by its two files: ring_form.c makes the connections, ring.c sends
 * buckets around. */
#ifndef ADLI_COMM_RING_H
#define ADLI_COMM_RING_H

#include "comm/reducer_impl.h"

typedef struct adli_ring {
    adli_transport base;
    adl_reducer *reducer;
    int size, place;        /* replicas in the ring; where in it this one is */
    adli_conn *next, *prev; /* we send to next and receive from prev */
    int next_rank, prev_rank;
    /* The bucket under way. */
    const adli_bucket *bucket;   /* what goes around */
    adli_bucket_head head;       /* what it is, or is a part of */
    size_t element;              /* bytes that an element takes on the wire */
    int send_step, recv_step;    /* 0 .. 2 (size - 1) */
    size_t send_done, recv_done; /* elements of that step's slice */
    bool got_head;
    int extras;       /* replicas whose doubles have come */
    double *extra;    /* [size][ADL_REDUCER_EXTRA_MAX] */
    uint16_t *half;   /* [ADLI_RING_FLOATS]: elements on their way out */
    float *scratch;   /* [ADLI_RING_FLOATS]: what came in and has to be added */
    uint8_t *arrival; /* where the payload of the frame that is coming belongs */
    adli_frame frame; /* its header */
    int looks;        /* how often to look before sleeping: what has paid lately */
    uint32_t naps;
} adli_ring;

enum { ADLI_RING_FLOATS = 64 << 10 /* elements of a frame */ };

/* Connects this replica to its two neighbours. Collective over the group; `ring` is NULL on a replica that
 * is in no ring. */
ADL_MUST adl_status adli_ring_form(adl_reducer *reducer, adli_ring *ring);

/* Collective. Every replica is in one circle or in none, and all agree on them. *out is NULL on failure
 * and when the circle is empty. */
ADL_MUST adl_status adli_ring_new(adl_reducer *reducer, const adli_circle *circle, adli_ring **out);

/* Reduces `part` over the ring; `head` is what the replicas compare. */
ADL_MUST adl_status adli_ring_reduce(adli_ring *ring, const adli_bucket *part,
                                     const adli_bucket_head *head);

/* Tells the next one why (ADL_OK and ADL_ESTATE: because the reducer is freed), and is gone. Keeps
 * adl_error(). */
void adli_ring_hang_up(adli_ring *ring, adl_status status);
void adli_ring_free(adli_ring *ring); /* NULL is fine */

#endif
