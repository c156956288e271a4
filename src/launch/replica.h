/* One replica of a run: its process and its output. */
#ifndef ADLI_LAUNCH_REPLICA_H
#define ADLI_LAUNCH_REPLICA_H

#include "base/buf.h"
#include "base/status.h"
#include "launch/hosts.h"
#include "proc/ward.h"
#include "sched/worlds.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct adli_stream {
    int fd; /* -1: at its end */
    adli_buf line;
} adli_stream;

typedef struct adli_replica {
    int rank;         /* in the world; of a new one: that it will have */
    adli_member *as;  /* what it is to the others; borrowed */
    const char *host; /* where it is; NULL: on this machine. Borrowed. */
    adli_ward ward;
    bool over; /* the program and what it had started */
    adli_stream out, err;
    adli_stream link; /* to the replica's runtime; fd -1: none */
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
