/* The life of a job on a cluster: its phases, what is observed of its replicas, what is to be done about them.
 *
 *   Pending --allocation--> Starting --all ready--> Running --all exited 0--> Succeeded
 *      ^                       |                       |
 *      |                       +---- allocation changed or withdrawn, a replica interrupted ---+
 *      +------------------------------ all gone -- Stopping <----------------------------------+
 *
 * A job that failed more often than it may, or hopelessly, is Failed. */
#ifndef ADAPTDL_LIFE_H
#define ADAPTDL_LIFE_H

#include "adaptdl/status.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum adl_phase {
    ADL_PENDING,
    ADL_STARTING,
    ADL_RUNNING,
    ADL_STOPPING,
    ADL_SUCCEEDED,
    ADL_FAILED,
} adl_phase;

/* "Pending" ... */
ADL_API const char *adl_phase_name(adl_phase phase);

/* What is remembered about a job. Start with {0}. */
typedef struct adl_life {
    adl_phase phase;
    int group;           /* how often it was started; the replicas' restart count is group - 1 */
    int failures;        /* of its own making */
    double started_s;    /* when the present group was started */
    double stop_since_s; /* when it was asked to stop */
    double retry_at_s;   /* not started again before this */
    bool killed;         /* asked to stop a second time, without mercy */
} adl_life;

/* Succeeded or Failed: nothing will happen any more. */
static inline bool adl_life_over(const adl_life *life)
{
    return life->phase == ADL_SUCCEEDED || life->phase == ADL_FAILED;
}

/* What the backend sees of the present group, and what the scheduler wants. */
typedef struct adl_observed {
    int wanted;  /* replicas of the wanted allocation; 0: none */
    bool moved;  /* the wanted allocation is not the one the group was started on */
    int started; /* replicas of the group; 0 when there is no group */
    int alive, ready;
    int succeeded;   /* exited 0 */
    int interrupted; /* exited 143, evicted, lost with their node, killed by us, refused for lack of
                        resources: nobody's fault */
    int failed;      /* anything else */
    bool hopeless;   /* trying again what failed would fail again */
    bool deleted;    /* the user wants it gone */
} adl_observed;

typedef struct adl_rules {
    double grace_s;             /* from SIGTERM to SIGKILL */
    int max_retries;            /* after failures of the job's own */
    double retry_pause_s;       /* doubled with every failure, up to five minutes */
    double interrupted_pause_s; /* before a group is started anew that was interrupted unasked */
    double forgive_s; /* a group that ran this long wipes out earlier failures; 0: never */
} adl_rules;

typedef enum adl_action {
    ADL_NOTHING,
    ADL_START,     /* start the wanted replicas as life.group */
    ADL_TERMINATE, /* SIGTERM all that are alive */
    ADL_KILL,      /* SIGKILL all that are alive */
    ADL_CLEAN,     /* the group is over: forget its replicas */
} adl_action;

#ifdef __cplusplus
}
#endif
#endif
