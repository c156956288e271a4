/* Gradient all-reduce: sums or averages large float32 buffers over the replicas of a group, in the
 * background, bucket by bucket, so that it overlaps with the backward pass.
 *
 *     adl_reducer_options options = ADL_REDUCER_OPTIONS_INIT;
 *     adl_reducer *reducer;
 *     if (adl_reducer_new(group, &options, &reducer) != ADL_OK) ...
 *     for each bucket as its gradients become ready:
 *         norms[b] = squared norm of the local gradient;
 *         adl_reducer_start(reducer, bucket, n, &norms[b], 1, &ticket);
 *     adl_reducer_wait_all(reducer, -1);       now every bucket holds the average
 *
 * Replicas of one host exchange data through its shared memory; hosts form rings of TCP connections. The
 * result is bit-identical on every replica. All replicas start the same buckets
 * in the same order; one that differs in size fails on every replica with a text that names both.
 * A replica that dies turns every wait into ADL_EPEER within the group's peer_timeout_ms.
 *
 * A reducer is used by one thread at a time (start may be called by one thread and wait by another
 * as long as the caller orders them). Several reducers on one group are fine. */
#ifndef ADAPTDL_ALLREDUCE_H
#define ADAPTDL_ALLREDUCE_H

#include "adaptdl/group.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_reducer adl_reducer;

typedef enum adl_transport {
    ADL_TRANSPORT_AUTO,  /* shared memory within a host, TCP between hosts */
    ADL_TRANSPORT_SHM,   /* shared memory or an error that says why not */
    ADL_TRANSPORT_TCP,   /* one ring of all replicas */
    ADL_TRANSPORT_NONE,  /* only as an answer: there is one replica */
    ADL_TRANSPORT_TIERS, /* only as an answer: both, because some hosts have several replicas */
} adl_transport;

/* How values travel. Sums are formed in float32 in either case. */
typedef enum adl_wire {
    ADL_WIRE_F32,
    ADL_WIRE_BF16, /* rounded to nearest even; half the traffic, 8 bits of precision */
} adl_wire;

typedef struct adl_reducer_options {
    size_t size; /* sizeof(adl_reducer_options), set by the _INIT macro */
    adl_transport transport;
    adl_wire wire;
    bool average;          /* true: divide the sums of the buckets by the number of replicas */
    bool unprotected_data; /* TCP, group with a secret: connections are authenticated, but leave
                                 * out the MAC of each data frame (faster, trusts the network) */
    size_t shm_bytes;      /* limit of the segment; 0: 16 MiB */
    const char *advertise_addr; /* TCP: this replica's address for its neighbour; NULL: the one that
                                 * its connection to rank 0 uses */
    size_t max_pending;         /* buckets that may be started and not finished */
    const char
        *host; /* which machine this replica is on, in at most ADL_HOST_MAX bytes: those that say
                       * the same share memory if they can; NULL: the kernel's boot id */
} adl_reducer_options;

#define ADL_HOST_MAX 63

#define ADL_REDUCER_OPTIONS_INIT                                                                   \
    {                                                                                              \
        .size = sizeof(adl_reducer_options), .average = true, .max_pending = 1024                  \
    }

/* Most doubles that may travel with one bucket. */
#define ADL_REDUCER_EXTRA_MAX 512

/* Collective over the group: all replicas call it with the same options (advertise_addr and host apart).
 * Blocks until all have. The group must outlive the reducer and stays usable for other calls. */
ADL_API ADL_MUST adl_status adl_reducer_new(adl_group *group, const adl_reducer_options *options,
                                            adl_reducer **out);

/* Ends the communication thread; buckets that are still pending are given up and the library does
 * not touch them any more. The peers' pending buckets, if any, fail with ADL_EPEER. Blocks for
 * milliseconds (0.1 s when a peer does not read). NULL is fine. */
ADL_API void adl_reducer_free(adl_reducer *reducer);

/* What is in use: SHM, TCP, TIERS or NONE. */
ADL_API adl_transport adl_reducer_transport(const adl_reducer *reducer);

/* Queues a bucket; does not wait for the network. data[n] is reduced in place (summed or averaged),
 * extra[extra_count] (may be NULL with 0) is always summed, in float64, in the same exchange. Both
 * belong to the reducer until the ticket was waited for. n may be 0. *ticket may be NULL.
 * ADL_ESTATE when max_pending buckets are under way. */
ADL_API ADL_MUST adl_status adl_reducer_start(adl_reducer *reducer, float *data, size_t n,
                                              double *extra, size_t extra_count, uint64_t *ticket);

/* Blocks until this bucket and all before it are reduced, at most timeout_ms (negative: no limit,
 * which is still no hang when a peer dies). ADL_ETIMEOUT: still under way, the buffers are still the
 * reducer's. Any other failure: contents of the pending buckets are unspecified, the library does not
 * touch them any more, and every later call fails alike. */
ADL_API ADL_MUST adl_status adl_reducer_wait(adl_reducer *reducer, uint64_t ticket, int timeout_ms);
/* The same for everything started so far. */
ADL_API ADL_MUST adl_status adl_reducer_wait_all(adl_reducer *reducer, int timeout_ms);
/* Is this bucket finished, well or badly? Does not block. */
ADL_API bool adl_reducer_done(adl_reducer *reducer, uint64_t ticket);

/* start and wait in one; when nothing is pending the calling thread does the work itself, which saves
 * two switches of thread on small buckets. */
ADL_API ADL_MUST adl_status adl_reducer_allreduce(adl_reducer *reducer, float *data, size_t n);
/* A few doubles alone (at most ADL_REDUCER_EXTRA_MAX), always summed. */
ADL_API ADL_MUST adl_status adl_reducer_allreduce_f64(adl_reducer *reducer, double *data, size_t n);

/* Seconds that waits have blocked so far: the part of communication that was not overlapped. */
ADL_API double adl_reducer_wait_seconds(const adl_reducer *reducer);

#ifdef __cplusplus
}
#endif
#endif
