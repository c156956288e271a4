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
 * checkpoint, max_retries times; then it is Failed. What replicas die of because a peer has just left or was
 * taken from them is a consequence, and no try. */
#ifndef ADLI_LIFECYCLE_H
#define ADLI_LIFECYCLE_H

#include <stdbool.h>

typedef enum adli_phase {
    ADLI_PENDING,
    ADLI_STARTING,
    ADLI_RUNNING,
    ADLI_STOPPING,
    ADLI_SUCCEEDED,
    ADLI_FAILED,
} adli_phase;

/* What is remembered about a job. Start with {0}. */
typedef struct adli_life {
    adli_phase phase;
    int group;           /* how often it was started; the replicas' restart count is group - 1 */
    int failures;        /* of its own making */
    double started_s;    /* when the present group was started */
    double stop_since_s; /* when it was asked to stop */
    double retry_at_s;   /* not started again before this */
    bool killed;         /* asked to stop a second time, without mercy */
} adli_life;

/* What the backend sees of the present group, and what the scheduler wants. */
typedef struct adli_observed {
    int wanted;  /* replicas of the wanted allocation; 0: none */
    bool moved;  /* the wanted allocation is not the one the group was started on */
    int started; /* replicas of the group; 0 when there is no group */
    int alive, ready;
    int succeeded;   /* exited 0 */
    int interrupted; /* exited 143, evicted, lost with their node, killed by us, refused for lack of
                        resources: nobody's fault */
    int failed;      /* anything else */
    bool deleted;    /* the user wants it gone */
} adli_observed;

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
 * taken, or when one has left within the seconds before; and when all were asked to stop, if one has left within
 * seconds before or after: between the first that goes and the last there is no order. */
bool adli_end_failed(const adli_life *life, const adli_end *ends, int count, int which);
/* Counts: everything of adli_observed but what the scheduler wants. */
adli_observed adli_observe_ends(const adli_life *life, const adli_end *ends, int count);

typedef struct adli_rules {
    double grace_s;             /* from SIGTERM to SIGKILL */
    int max_retries;            /* after failures of the job's own */
    double retry_pause_s;       /* doubled with every failure, up to five minutes */
    double interrupted_pause_s; /* before a group is started anew that was interrupted unasked */
    double forgive_s; /* a group that ran this long wipes out earlier failures; 0: never */
} adli_rules;

typedef enum adli_action {
    ADLI_NOTHING,
    ADLI_START,     /* start the wanted replicas as life.group */
    ADLI_TERMINATE, /* SIGTERM all that are alive */
    ADLI_KILL,      /* SIGKILL all that are alive */
    ADLI_CLEAN,     /* the group is over: forget its replicas */
} adli_action;

/* Applies one transition to *life and says what to do. Call again with fresh observations until it
 * answers ADLI_NOTHING without a change of phase. */
adli_action adli_lifecycle(adli_life *life, const adli_observed *seen, const adli_rules *rules,
                           double now_s);

/* Succeeded or Failed: nothing will happen any more. */
static inline bool adli_life_over(const adli_life *life)
{
    return life->phase == ADLI_SUCCEEDED || life->phase == ADLI_FAILED;
}

const char *adli_phase_name(adli_phase phase);

#endif
