/* A reducer from the inside: a queue of buckets, one thread that works it off, and below it a
 * transport that knows how one bucket is reduced. */
#ifndef ADLI_COMM_REDUCER_IMPL_H
#define ADLI_COMM_REDUCER_IMPL_H

#include "adaptdl/allreduce.h"
#include "comm/group_impl.h"
#include "comm/kernel.h"

typedef struct adli_bucket {
    uint64_t number; /* 1, 2, 3 ... */
    float *data;     /* [n], reduced in place */
    size_t n;
    double *extra; /* [extra_count], summed in place */
    size_t extra_count;
} adli_bucket;

typedef struct adli_transport adli_transport;

struct adl_reducer {
    adl_group *group;
    int rank, replicas;
    adl_reducer_options options;
    const adli_kernels *kernels;
    adl_transport kind;
    adli_transport *transport;

    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pthread_t thread;
    bool has_thread;
    adli_bucket *queue; /* locked: [max_pending], bucket number i at (i - 1) % max_pending */
    uint64_t started, finished;      /* locked */
    bool busy;                       /* locked: some thread is reducing */
    adl_status failed;               /* locked: sticky */
    char failure[ADLI_TEXT_MAX + 1]; /* locked */
    double wait_s;                   /* locked */
    _Atomic bool stopping;
};

/* What the transports have in common. */
struct adli_transport {
    adl_status (*reduce)(adli_transport *transport, const adli_bucket *bucket);
    void (*free)(adli_transport *transport);
};

/* ADL_OK as long as it makes sense to go on waiting for the other replicas. */
ADL_MUST adl_status adli_reducer_watch(adl_reducer *reducer);

/* Divides by the number of replicas when the reducer averages. */
void adli_reducer_average(const adl_reducer *reducer, float *data, size_t n);

/* Two replicas started different buckets: ADL_EINVAL with a text that names both. */
adl_status adli_reducer_mismatch(int a, const adli_bucket_head *head_a, int b,
                                 const adli_bucket_head *head_b);

/* Some of the replicas, in an order that all of them know. */
typedef struct adli_circle {
    int size,
        place; /* size 0: this replica is in none, and only takes part in what is collective */
    const int *ranks; /* [size]; ranks[place] is this replica */
} adli_circle;

/* transport.c: agrees with the others on how data travel, and makes that. Collective. */
ADL_MUST adl_status adli_reducer_choose(adl_reducer *reducer);

/* shm_reduce.c, tiers.c: collective; *out is NULL on failure. A failure is the same kind on every
 * replica: either all get a transport or none does. host_of[replicas]: 0, 1, 2 ... in the order in which
 * the hosts come up among the ranks. */
ADL_MUST adl_status adli_shm_new(adl_reducer *reducer, const adli_circle *all,
                                 adli_transport **out);
ADL_MUST adl_status adli_tiers_new(adl_reducer *reducer, const int *host_of, adli_transport **out);

/* allgather whose failure on this replica alone does not leave the others waiting. *all and *offsets
 * (see adl_group_allgather) are freed by the caller; NULL on failure. */
ADL_MUST adl_status adli_reducer_gather(adl_reducer *reducer, const void *data, size_t length,
                                        uint8_t **all, size_t **offsets);
/* Everyone tells everyone how a collective step went. ADL_OK when all are fine, else the failure of
 * the lowest rank that failed, with a text that names it. */
ADL_MUST adl_status adli_reducer_agree(adl_reducer *reducer, adl_status mine);

#endif
