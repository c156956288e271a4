/* A group of replicas and the control collectives between them: small values (exit flags, batch sizes,
 * statistics), not gradients (those go through allreduce.h).
 *
 *     adl_group_options options = ADL_GROUP_OPTIONS_INIT;
 *     options.rank = rank;
 *     options.replicas = replicas;
 *     options.master_addr = "10.0.0.7";
 *     options.master_port = 47000;
 *     adl_group *group;
 *     if (adl_group_new(&options, &group) != ADL_OK) ... adl_error() says why
 *     int64_t stop = asked_to_stop;
 *     if (adl_group_allreduce(group, &stop, 1, ADL_TYPE_I64, ADL_REDUCE_OR) != ADL_OK) ...
 *     adl_group_close(group, 10000);
 *     adl_group_free(group);
 *
 * The rules, for every collective:
 * - All replicas make the same calls in the same order. A call that differs in kind, type, size or
 *   reduction fails on every replica with ADL_EINVAL and a text that names both calls.
 * - The result is the same bytes on every replica. Reductions are applied in rank order by rank 0.
 * - A replica that dies, or is silent for peer_timeout_ms, makes every pending and every later call
 *   of every other replica fail with ADL_EPEER and a text that names the rank. So does one that
 *   leaves while others still need it. A group that failed stays failed: free it and form another.
 * - Calls on one group may come from several threads, but the order above is then the callers'
 *   business. Different groups are independent; nothing is process-wide.
 * - With one replica there are no sockets and no threads; every call completes at once.
 * - Forking: a group belongs to the process that made it. */
#ifndef ADAPTDL_GROUP_H
#define ADAPTDL_GROUP_H

#include "adaptdl/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_group adl_group;
typedef struct adl_future adl_future;

typedef struct adl_group_options {
    size_t size; /* sizeof(adl_group_options), set by the _INIT macro */
    int rank, replicas;
    const char *master_addr; /* rank 0's name or address; NULL: 127.0.0.1 */
    int master_port;         /* 1..65535; 0 only with one replica or with listen_fd */
    uint64_t generation;     /* replicas of another generation are refused (number of restarts) */
    const void *secret;      /* NULL: no authentication, only for networks that are trusted */
    size_t secret_length;
    int connect_timeout_ms; /* until all replicas have arrived */
    int peer_timeout_ms;    /* a peer that is silent for so long has died; at least 100 */
    size_t max_frame_bytes; /* largest value of one call, all replicas together for allgather */
    size_t max_pending;     /* operations that may be started and not finished */
    int listen_fd;          /* rank 0: a listening socket of adl_group_listen, taken over by
                             * adl_group_new whether it succeeds or not; -1: listen on master_port */
    bool (*cancelled)(void *context); /* may be NULL; asked several times a second while forming,
                                       * true ends adl_group_new with ADL_EINTR */
    void *cancel_context;
} adl_group_options;

#define ADL_GROUP_OPTIONS_INIT                                                                     \
    {                                                                                              \
        .size = sizeof(adl_group_options), .replicas = 1, .connect_timeout_ms = 300000,            \
        .peer_timeout_ms = 5000, .max_frame_bytes = (size_t)64 << 20, .max_pending = 1024,         \
        .listen_fd = -1                                                                            \
    }

/* A listening socket for rank 0 on addr (NULL: every address) and port (0: any free one, told in
 * *bound_port, which may be NULL), so that the port is known before the group forms. */
ADL_API ADL_MUST adl_status adl_group_listen(const char *addr, int port, int *fd, int *bound_port);

/* Forms a group. Blocks until all replicas have arrived, at most connect_timeout_ms (resolving a
 * host name may add the resolver's own time-out). Rank 0 listens; the others retry within
 * milliseconds, backing off to a second. Rank 0 ignores strangers: garbage, wrong secrets and wrong
 * generations are refused and the waiting goes on. Copies what it needs of the options.
 *   ADL_ETIMEOUT  the text names the address, or the ranks that did not arrive
 *   ADL_EPEER     rank 0 refused: wrong number of replicas, generation, secret, version; rank taken
 *   ADL_ENET      the port cannot be bound; what answers at the address is something else
 *   ADL_EINTR     cancelled */
ADL_API ADL_MUST adl_status adl_group_new(const adl_group_options *options, adl_group **out);

/* The same in the background, so that training goes on while a group forms: begin, look now and then, and
 * finish when it has formed (or failed). cancelled() is asked on another thread. The options are copied;
 * listen_fd is taken over in any case. */
typedef struct adl_forming adl_forming;
ADL_API ADL_MUST adl_status adl_group_begin(const adl_group_options *options, adl_forming **out);
/* Has it formed, or failed? Does not block. */
ADL_API bool adl_group_test(const adl_forming *forming);
/* Blocks until it has, as adl_group_new would, and with its results; frees the forming. */
ADL_API ADL_MUST adl_status adl_group_finish(adl_forming *forming, adl_group **out);
/* Gives up a group that is forming, or has just formed: the others see a replica that went away. Blocks
 * for a twentieth of a second at most. NULL is fine. */
ADL_API void adl_group_cancel(adl_forming *forming);

/* Leaves in order: waits for this replica's pending operations, says goodbye, waits until every
 * other replica has said so too. Blocks at most timeout_ms (ADL_ETIMEOUT: some replica is still at
 * work; the goodbye stands). Afterwards only free is allowed. */
ADL_API ADL_MUST adl_status adl_group_close(adl_group *group, int timeout_ms);

/* Gives up: every pending and later call here fails with ADL_ESTATE, on the other replicas with
 * ADL_EPEER and "rank R gave up: why". Any thread; does not block. */
ADL_API void adl_group_abort(adl_group *group, const char *why);

/* Ends the threads, closes the sockets, fails what is still pending with ADL_ESTATE. The goodbye is
 * sent when there was no close. Blocks for milliseconds (0.2 s when a peer does not read), and for as
 * long as a reduction callback that is running. NULL is fine. Futures stay valid until they are freed
 * themselves. */
ADL_API void adl_group_free(adl_group *group);

ADL_API int adl_group_rank(const adl_group *group);
ADL_API int adl_group_replicas(const adl_group *group);
ADL_API uint64_t adl_group_generation(const adl_group *group);

/* ADL_OK while the group works, else the failure that every call would report. Does not block. */
ADL_API ADL_MUST adl_status adl_group_check(adl_group *group);

typedef enum adl_peer_state {
    ADL_PEER_ALIVE,
    ADL_PEER_LEFT, /* said goodbye */
    ADL_PEER_DEAD, /* connection lost, silent, gave up or broke the protocol */
} adl_peer_state;

/* What is known here of a replica. Does not block. */
ADL_API adl_peer_state adl_group_peer(adl_group *group, int rank);
/* The rank whose failure broke the group; -1 when none did. */
ADL_API int adl_group_failed_rank(adl_group *group);

typedef enum adl_type {
    ADL_TYPE_F64,
    ADL_TYPE_I64,
    ADL_TYPE_BYTES,
} adl_type;

typedef enum adl_reduce {
    ADL_REDUCE_SUM,   /* f64 in rank order; i64 wraps around */
    ADL_REDUCE_MIN,   /* f64, i64; a NaN of any replica gives NaN */
    ADL_REDUCE_MAX,   /* likewise */
    ADL_REDUCE_OR,    /* i64 and bytes, bitwise */
    ADL_REDUCE_FIRST, /* rank 0's value; any type */
} adl_reduce;

/* data[count] becomes the reduction over all replicas. Blocks until every replica has called. */
ADL_API ADL_MUST adl_status adl_group_allreduce(adl_group *group, void *data, size_t count,
                                                adl_type type, adl_reduce reduce);

/* The same in the background: data is copied, *out is a future for the reduced count values. Never
 * waits for the network. ADL_ESTATE when max_pending operations are under way (wait for one, then
 * start again). */
ADL_API ADL_MUST adl_status adl_group_allreduce_async(adl_group *group, const void *data,
                                                      size_t count, adl_type type,
                                                      adl_reduce reduce, adl_future **out);

/* Where a reduction callback puts its result. */
typedef struct adl_reduced adl_reduced;
/* Copies the result, replacing an earlier one. */
ADL_API ADL_MUST adl_status adl_reduced_set(adl_reduced *out, const void *data, size_t length);

/* c = reduce(a, b), a being the reduction of the lower ranks. Runs on rank 0 only, on a thread of the
 * group; it must not call the group. A failure (with its adl_error text) is reported by every
 * replica. Values come from peers: check them. */
typedef adl_status (*adl_reduce_fn)(void *context, const void *a, size_t a_length, const void *b,
                                    size_t b_length, adl_reduced *out);

/* Reduces opaque values of any length: fn(fn(v0, v1), v2) ... `name` (at most 63 bytes) is compared
 * between replicas like the other properties of a call. fn and context are used until the operation
 * has finished. *out is new memory (free), the same bytes on every replica; never NULL on success.
 * With one replica the value comes back as it is. */
ADL_API ADL_MUST adl_status adl_group_reduce(adl_group *group, const char *name, const void *data,
                                             size_t length, adl_reduce_fn fn, void *context,
                                             void **out, size_t *out_length);
ADL_API ADL_MUST adl_status adl_group_reduce_async(adl_group *group, const char *name,
                                                   const void *data, size_t length,
                                                   adl_reduce_fn fn, void *context,
                                                   adl_future **out);

/* Rank 0's bytes for everyone; data and length of other ranks are ignored. *out is new memory (free),
 * on rank 0 too; never NULL on success. */
ADL_API ADL_MUST adl_status adl_group_broadcast(adl_group *group, const void *data, size_t length,
                                                void **out, size_t *out_length);
ADL_API ADL_MUST adl_status adl_group_broadcast_async(adl_group *group, const void *data,
                                                      size_t length, adl_future **out);

/* Everyone's bytes for everyone: *out is new memory (free), rank r's value lies at
 * offsets[r] .. offsets[r + 1]. offsets: [replicas + 1]. */
ADL_API ADL_MUST adl_status adl_group_allgather(adl_group *group, const void *data, size_t length,
                                                void **out, size_t *offsets);

/* Returns when every replica has called. */
ADL_API ADL_MUST adl_status adl_group_barrier(adl_group *group);

/* Futures. A future belongs to one thread at a time. Operations finish in the order in which they
 * were started. */

/* Has it finished, well or badly? Does not block. */
ADL_API bool adl_future_done(const adl_future *future);

/* Blocks until the operation has finished, at most timeout_ms (negative: no limit, which is still no
 * hang when a peer dies). On success *data (may be NULL) is the result, owned by the future. On
 * ADL_ETIMEOUT it is still under way and may be waited for again. Otherwise the operation's failure;
 * asking again gives the same answer. */
ADL_API ADL_MUST adl_status adl_future_wait(adl_future *future, int timeout_ms, const void **data,
                                            size_t *length);

/* May be called before the operation has finished; it then finishes unseen, so that the order on
 * all replicas stays the same. NULL is fine. */
ADL_API void adl_future_free(adl_future *future);

#ifdef __cplusplus
}
#endif
#endif
