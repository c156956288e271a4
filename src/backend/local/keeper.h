/* The keeper: one small process for each replica, which outlives the scheduler. It claims the replica,
 * starts it, passes signals on, keeps its memory limit where no control group does and that of its log, and when the
 * replica ends it ends all its descendants and writes down what happened. If the keeper is killed the kernel
 * kills the replica. */
#ifndef ADLI_LOCAL_KEEPER_H
#define ADLI_LOCAL_KEEPER_H

#include "backend/local/cgroup.h"

typedef struct adli_keeper {
    const char *dir; /* of the group */
    int rank;
    const char *log, *workdir;
    adli_cgroup cgroup; /* the replica's own; kind NONE: without */
    int64_t cpu_milli, memory_bytes;
    int64_t log_bytes; /* of its log that are kept; 0: all */
    const char *user;  /* "UID:GID,GID...": as whom it runs; "-": as we do */
    char *const *argv; /* the replica's; its environment is the keeper's own */
} adli_keeper;

/* The keeper's command line, both ways. Positions: DIR RANK LOG WORKDIR CPU MEMORY CGROUP0 CGROUP1 LOGBYTES USER -- ARGV;
 * "-" for a cgroup that is not there, with a CGROUP1 it is version 1. */
enum { ADLI_KEEPER_ARGS = 12 };
ADL_MUST adl_status adli_keeper_parse(int argc, char **argv, adli_keeper *out);

/* What the keeper says on descriptor 3, if that is open, once it is clear who runs the replica: one of
 * these words, or why it cannot. */
enum { ADLI_KEEPER_REPORT_FD = 3 };
#define ADLI_KEEPER_CLAIMED "claimed"
#define ADLI_KEEPER_TAKEN   "taken"
#define ADLI_KEEPER_FULL    "out of resources" /* and which, after a colon */

/* Leaves its parent, does all of the above and returns the exit status of the process that was started
 * (at once) and that of the keeper (in the end). */
int adli_keeper_run(const adli_keeper *keeper);

#endif
