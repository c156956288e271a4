/* One replica of a run: its process and its output. */
#ifndef ADLI_LAUNCH_REPLICA_H
#define ADLI_LAUNCH_REPLICA_H

#include "base/buf.h"
#include "base/status.h"
#include "launch/hosts.h"
#include "proc/ward.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct adli_stream {
    int fd; /* -1: at its end */
    adli_buf line;
} adli_stream;

/* What a replica is to the present world. */
typedef enum adli_role {
    ADLI_ROLE_IN,
    ADLI_ROLE_NEW,  /* not in it yet */
    ADLI_ROLE_OUT,  /* not in it any more: it leaves */
    ADLI_ROLE_DEAD, /* it died, and the others go on */
} adli_role;

typedef struct adli_replica {
    int rank;         /* in the world; of a new one: that it will have */
    int member;       /* among all processes of the run */
    const char *host; /* where it is; NULL: on this machine. Borrowed. */
    adli_ward ward;
    bool over; /* the program and what it had started */
    adli_stream out, err;
    adli_role role;
    adli_stream link; /* to the replica's runtime; fd -1: none */
    bool able;        /* it goes on when the world changes */
    bool ready;       /* a new one: it waits to join */
    bool lost;        /* it waits for a world without one that was lost */
    uint64_t applied; /* steps, when it lost the world */
    uint32_t lost_in; /* that world */
    uint32_t entered; /* the last world it was in */
    bool named;       /* as the one that was lost, by others */
    bool told;        /* its end was reported */
    bool unwanted;    /* a new one that was ended before it had joined */
} adli_replica;

/* What the environment of a replica says. */
typedef struct adli_replica_env {
    int replicas, restarts, port;
    const char *checkpoint; /* NULL: leave the variable as it is */
    const char *secret;
    const adli_hosts *hosts;
    const char *socket; /* where the launcher listens; NULL: on another machine */
    int member;
    bool joins;
} adli_replica_env;

/* Starts the program in a process group of its own, without standard input, that dies when the
 * launcher does. ENOENT, EIO: the program cannot be executed; says why. */
ADL_MUST adl_status adli_replica_start(adli_replica *replica, int rank, char *const *argv,
                                       const adli_replica_env *env);
/* Sets OMP_NUM_THREADS, unless it is set: so many replicas share this machine's processors. */
void adli_replica_share_processors(int replicas);
/* Closes the pipes. */
void adli_replica_fini(adli_replica *replica);

/* "exited with 3", "on b was killed by signal 9 (Killed)": in a buffer of the caller's. */
const char *adli_replica_fate(const adli_replica *replica, char *text, size_t capacity);

#endif
