/* The life of a job as one pure function: what it is now and what was observed -> what it becomes and
 * what to do about it. The daemon and the simulator call the same function; nothing else decides
 * phases.
 *
 *   Pending --allocation--> Starting --all ready--> Running --all exited 0--> Succeeded
 *      ^                       |                       |
 *      |                       +---- allocation changed or withdrawn, a replica interrupted ---+
 *      +------------------------------ all gone -- Stopping <----------------------------------+
 *
 * A replica that failed for its own reason makes the job try again after a pause, from its last
 * checkpoint, max_retries times, unless that is hopeless; then it is Failed. What replicas die of because a peer has just left or was
 * taken from them is a consequence, and no try. */
#ifndef ADLI_LIFECYCLE_H
#define ADLI_LIFECYCLE_H

#include "adaptdl/life.h"

#include <stdbool.h>

/* What became of one replica. */
typedef enum adli_fate {
    ADLI_FATE_WAITING,   /* asked for, not running yet */
    ADLI_FATE_READY,     /* running */
    ADLI_FATE_SUCCEEDED, /* exited 0 */
    ADLI_FATE_LEFT,      /* exited 143, stopped by a signal that asks for it, or killed by us */
    ADLI_FATE_TAKEN,     /* lost with its node or keeper, refused for lack of resources, silent */
    ADLI_FATE_DIED,   /* any other exit or signal: for a reason of its own, or for want of a peer */
    ADLI_FATE_BROKEN, /* of its own making whatever the others do: too little memory, cannot run */
} adli_fate;

/* A program that was asked to stop exits with this, which is also what a shell says of one that SIGTERM
 * ended. */
enum { ADLI_EXIT_LEFT = 143 };

/* What an exit code (128 + N for signal N) means as long as nothing else is known. */
adli_fate adli_fate_of(int exit_code);

typedef struct adli_end {
    adli_fate fate;
    double ended_s; /* by the clock of adli_lifecycle's now_s; 0: unknown */
} adli_end;

/* Has this replica of the group failed? No when it only died for want of a peer, which is so when one was
 * taken, at most seconds before (or noticed since, unless the group was being stopped by then), or when one has left
 * within the seconds before; and when all were asked to stop, if one has left within
 * seconds before or after: between the first that goes and the last there is no order. */
bool adli_end_failed(const adl_life *life, const adli_end *ends, int count, int which);
/* Counts: everything of adl_observed but what the scheduler wants. */
adl_observed adli_observe_ends(const adl_life *life, const adli_end *ends, int count);

/* Applies one transition to *life and says what to do. Call again with fresh observations until it
 * answers ADL_NOTHING without a change of phase. */
adl_action adli_lifecycle(adl_life *life, const adl_observed *seen, const adl_rules *rules,
                          double now_s);

#endif
