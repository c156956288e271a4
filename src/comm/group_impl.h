/* A group from the inside. Rank 0 is the root of a star, the others are its leaves: a leaf sends its
 * part of each call to the root, the root reduces the parts of all and sends everyone the result.
 *
 * Threads. Callers append futures to a list. One thread of the group, the progress thread, owns the
 * connections and does everything that has to do with the network, in order. At the root a second
 * one, the worker, runs reduction callbacks, so that a slow callback cannot stop the heartbeats.
 * What is marked "locked" below belongs to `lock`; the rest is constant after adl_group_new or
 * belongs to the progress thread. */
#ifndef ADLI_COMM_GROUP_IMPL_H
#define ADLI_COMM_GROUP_IMPL_H

#include "adaptdl/group.h"
#include "comm/call.h"
#include "comm/conn.h"
#include "comm/handshake.h"
#include "comm/tap.h"
#include "base/thread.h"

#include <stdatomic.h>

/* Two references: the caller's and the group's. */
struct adl_future {
    pthread_mutex_t lock;
    pthread_cond_t finished;
    _Atomic int references;
    _Atomic bool done;
    adl_status status; /* written once, before done */
    char text[ADLI_TEXT_MAX + 1];
    uint8_t *data; /* the result, [length] */
    size_t length;
    /* The call; the group's until it is done. */
    adli_call call;
    uint8_t *value; /* [value_length] */
    size_t value_length;
    adl_reduce_fn fn;
    void *context;
    const adli_tap *tap; /* who records the result; NULL: nobody */
    int mark;
    adl_future *next;
};

struct adl_reduced {
    uint8_t *data; /* [length] */
    size_t length, capacity, max;
};

/* One replica's part of a call, at the root. */
typedef struct adli_part_of_call {
    struct adli_part_of_call *next;
    adli_call call;
    size_t length;
    uint8_t value[];
} adli_part_of_call;

typedef struct adli_peer {
    adli_conn *conn; /* NULL: none, or gone */
    adli_part_of_call *first, **last;
    size_t queued, queued_bytes;
    uint64_t calls; /* that have arrived */
} adli_peer;

/* A reduction by callback: the root's future and the parts of ranks 1, 2 ... */
typedef struct adli_job {
    adl_future *future;
    adli_part_of_call **parts; /* [replicas - 1] */
    adl_status status;
    char text[ADLI_TEXT_MAX + 1];
    struct adl_reduced result;
} adli_job;

struct adl_group {
    int rank, replicas;
    const adli_tap *tap; /* NULL: nobody listens */
    uint64_t generation;
    int peer_timeout_ms;
    size_t max_frame_bytes, max_pending;
    void *secret; /* a copy; NULL: none */
    size_t secret_length;
    char local[ADLI_ADDRESS_TEXT]; /* this end of the connection to rank 0; at the root, to the last
                                    * rank */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* locked: something that close waits for */
    int wake_fd;            /* an eventfd that the progress thread sleeps on */
    pthread_t progress, worker;
    bool has_progress, has_worker;

    adl_future *first, **last;       /* locked: not finished, in order */
    adl_future *unsent;              /* locked: the first of them that a leaf has not sent */
    size_t pending;                  /* locked: how many, the worker's included */
    uint64_t calls;                  /* locked: started so far */
    bool closing;                    /* locked: no more calls; say goodbye when none is pending */
    bool stopping;                   /* locked: the progress thread is to end */
    bool root_gone;                  /* locked: rank 0 has left and closed its connection */
    adl_status failed;               /* locked: sticky; ADL_OK while the group works */
    int failed_rank;                 /* locked */
    char failure[ADLI_TEXT_MAX + 1]; /* locked */
    bool tell_failure;               /* locked: the peers are to be told of it */
    _Atomic bool broken;             /* failed != ADL_OK, to look at without the lock */
    _Atomic uint8_t *states;         /* [replicas]: adl_peer_state */
    _Atomic int left;                /* how many of them are ADL_PEER_LEFT */

    adli_peer *peers;       /* [replicas]; at a leaf only peers[0] has a connection */
    struct pollfd *entries; /* [replicas + 1] */
    int *entry_ranks;       /* [replicas + 1] */
    bool said_goodbye;
    adli_job *job;            /* root: with the worker, or back from it */
    pthread_cond_t job_ready; /* locked: job_state changed to 1, or stopping */
    int job_state;            /* locked: 0 none, 1 for the worker, 2 done */
};

/* future.c */
ADL_MUST adl_status adli_future_new(const adli_call *call, const void *value, size_t length,
                                    adl_future **out);
/* Ends the operation and gives up the group's reference. data is taken over. */
void adli_future_finish(adl_future *future, adl_status status, const char *text, uint8_t *data,
                        size_t length);

/* form.c: fills peers[].conn. */
ADL_MUST adl_status adli_group_form(adl_group *group, const adl_group_options *options);

/* progress.c */
void *adli_group_progress(void *group);
void adli_group_wake(adl_group *group);
/* The first failure counts: every pending call ends with it, later ones too. Any thread. */
void adli_group_fail(adl_group *group, adl_status status, int rank, const char *text);
/* Ends the pending calls of a group that has failed. Progress thread only. */
void adli_group_fail_pending(adl_group *group);
/* Marks a peer as left or dead; wakes who waits for that. */
void adli_group_mark(adl_group *group, int rank, adl_peer_state state);
/* Sends to a peer of the progress thread; a connection that fails is the peer's death. */
void adli_peer_send(adl_group *group, int rank, adli_frame_type type, const adli_part *parts,
                    size_t count);
/* The peer is dead for this reason; what is known of its connection ends. */
void adli_peer_died(adl_group *group, int rank, const char *why);

/* root.c */
ADL_MUST adl_status adli_root_take(adl_group *group, int rank, const adli_frame *frame);
void adli_root_advance(adl_group *group);
void *adli_root_worker(void *group);
void adli_root_fini(adl_group *group);

/* group.c, for the reducers built on a group: ADL_EPEER when some other replica has left. */
ADL_MUST adl_status adli_group_check_left(adl_group *group);

#endif
