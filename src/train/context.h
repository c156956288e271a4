/* The inside of a training context, shared by the files of this module. One struct on purpose: loops,
 * data parallel, profile and hints all meet in it, and nothing of it is global. */
#ifndef ADLI_TRAIN_CONTEXT_H
#define ADLI_TRAIN_CONTEXT_H

#include "adaptdl/context.h"
#include "adaptdl/dp.h"
#include "adaptdl/loop.h"
#include "base/status.h"
#include "comm/tap.h"
#include "train/metrics.h"
#include "train/world.h"

#include <stdatomic.h>

enum { ADLI_ERROR_MAX = 512 };

/* What becomes of something that is made from the context. */
typedef struct adli_owned_ops {
    void (*free)(void *object);
    /* The context is in another world, between two optimizer steps; what was on its way in the world before
     * can still be waited for. NULL: it does not matter to the object. */
    adl_status (*regroup)(void *object);
    /* Does this replica know something that the others do not, and would be missed if it died? NULL: no. */
    bool (*unshared)(const void *object);
} adli_owned_ops;

/* In the order in which they were made: told of a new world first to last, freed last to first. */
typedef struct adli_owned {
    void *object;
    const adli_owned_ops *ops;
    struct adli_owned *before, *next;
} adli_owned;

typedef struct adli_hints adli_hints;
typedef struct adli_reports adli_reports;
typedef struct adli_regrouping adli_regrouping;
typedef struct adli_env_copy adli_env_copy;
typedef struct adli_opener adli_opener;
typedef struct adli_replay adli_replay;

struct adl_context {
    adl_options options;
    adl_env env; /* as at the start: for what does not change; strings owned by env_copy */
    adli_env_copy *env_copy;
    adli_world world; /* rank, replicas, nodes and addresses as they are now */
    bool signals;     /* our handlers are installed for this context */
    adl_group *group;
    adli_regrouping *regrouping; /* what there is of the next world */
    adli_opener *opener;         /* who offers worlds; NULL: nobody */
    int member;                  /* this process among all of the job's */
    adli_replay *replay;         /* results of the program's calls, for those who join later */
    adli_tap tap;                /* of the group, for the replay */
    int quiet;                   /* calls of the library's own are not in the replay */
    bool joining;                /* not in a world yet */
    bool loading;                /* some states are another replica's already, some are not */
    adl_group *
        former; /* of a world that was left for one that failed: what was made on it knows it still */
    adl_group *alone;   /* the group of one that stood in until this replica had joined */
    bool recovers;      /* a death can be survived: the loops regroup, and there is an opener */
    bool left;          /* the others go on without this replica */
    bool unlogged;      /* see adli_regroup_unlogged: before the epochs */
    int unlogged_epoch; /* in the epoch of this number less 1; 0: in none */
    bool lost;          /* the world has lost a member; the step is void, adli_recover comes */
    bool joined;        /* and has begun no loop since */
    bool sums;          /* some replica has accumulators, all have heard */
    adl_future *sums_on_way; /* of the present step (sums.h) */
    uint64_t applied;     /* steps of all loops, and sharing of sums: who is ahead after a death? */
    double pause_since_s; /* no step is under way because of the world; 0: one is */
    adl_checkpoint *store;
    bool saves; /* rank 0 has a place for checkpoints */
    adli_owned *first_owned, *last_owned;

    adl_status status; /* first failure, ADL_EINTR when interrupted */
    char error[ADLI_ERROR_MAX];
    bool save_failed; /* interrupted, but the checkpoint could not be written */

    atomic_bool stop_wanted, save_wanted; /* adl_stop, adl_save: any thread */
    atomic_bool save_asked;               /* by whoever opens worlds, of all replicas at once */
    atomic_bool several;                  /* world.replicas > 1, for the thread of signal.c */
    adl_future *agreed;                   /* the votes of the last step boundary, on their way */
    double stop_seen_s;                   /* by adli_give_up; 0: not yet */

    int finished_epochs;
    int64_t steps; /* optimizer steps of the training loop */
    bool in_epoch;
    double progress_due; /* by the training loops that are over; -1: not known */
    int loops_made;
    uint64_t loop_serial, batch_serial; /* loops and batches begun: tell old gradients from new */
    adl_loop *current, *training;
    struct adl_meter *primary; /* the first one made: its statistics choose batch sizes */

    adli_metrics metrics;
    adli_hints *hints; /* rank 0 with a supervisor, else NULL */
    adli_reports *reports;
};

void adli_log(adl_context *ctx, adl_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Reads the variables, each checked on its own only; nodes is 0 when nothing says how many. For
 * callers that put arguments in the place of some variables before adli_env_check. */
ADL_MUST adl_status adli_env_load(adl_env *out);
/* Sets *copy and copies the strings, so that the environment is read once. */
ADL_MUST adl_status adli_env_copy_new(const adl_env *env, adl_env *out, adli_env_copy **copy);
void adli_env_copy_free(adli_env_copy *copy);
/* The checks that do not need the text of a variable: rank < replicas, ... */
ADL_MUST adl_status adli_env_check(const adl_env *env);

/* Hands an object to the context. On failure the object is freed. */
ADL_MUST adl_status adli_context_own(adl_context *ctx, void *object, const adli_owned_ops *ops);
/* Frees an object that was handed over, before the context would. */
void adli_context_drop(adl_context *ctx, void *object);

/* adl_state with any name. */
ADL_MUST adl_status adli_state(adl_context *ctx, const char *name,
                               const adl_checkpoint_functions *functions, void *user, bool *found);

/* A step boundary: everyone is between two optimizer steps. Agrees on stopping and saving; when the
 * answer is to stop, the checkpoint is written before this returns and the context is stopped.
 * may_regroup: whoever calls would notice that the world has changed. */
void adli_boundary(adl_context *ctx, bool may_regroup);
/* At the end of a pass over the data: nobody goes on in the program before all have applied the last step. Only where
 * the death of one in the middle of it could be survived. */
void adli_boundary_end(adl_context *ctx);
/* At the program's end: waits for what the others said at the last boundary. A failure: they are
 * elsewhere, or gone. */
ADL_MUST adl_status adli_boundary_last(adl_context *ctx);
/* Are all replicas at the same place of the program now? Waits for them; ESTATE says who is where. What
 * writes checkpoints or leaves the world asks this first. Collective. */
ADL_MUST adl_status adli_boundary_together(adl_context *ctx);
/* Is it known already that the replicas were apart at the last boundary? adl_error then says how. Does
 * not block. */
bool adli_boundary_apart(adl_context *ctx);
/* Saves now, on all replicas, and returns when it is on disk; the same result on each. */
ADL_MUST adl_status adli_save_now(adl_context *ctx);

/* Opens the store: rank 0 chooses the checkpoint, the others follow it or are sent its contents. */
ADL_MUST adl_status adli_resume(adl_context *ctx);

/* regroup.c */
ADL_MUST adl_status adli_regrouping_new(adli_regrouping **out);
void adli_regrouping_free(adli_regrouping *self);

/* The epoch counter's state. */
ADL_MUST adl_status adli_epoch_register(adl_context *ctx);
/* The state of the counter of steps. */
ADL_MUST adl_status adli_steps_register(adl_context *ctx);

/* signal.c: the process-wide flag. A context is told (by its log) of the first signal. */
ADL_MUST adl_status adli_signals_install(adl_context *ctx);
void adli_signals_remove(adl_context *ctx);
bool adli_signals_received(void);

/* hints.c */
ADL_MUST adl_status adli_hints_start(adl_context *ctx);
void adli_hints_stop(adl_context *ctx);
/* report.c; _regroup: the context is in another world. */
ADL_MUST adl_status adli_reports_start(adl_context *ctx);
void adli_reports_stop(adl_context *ctx);
void adli_reports_regroup(adl_context *ctx);
/* discover.c: rank 0's address (free) from the supervisor. */
ADL_MUST adl_status adli_discover(adl_context *ctx, char **address);

/* Does the context want to stop: a signal, or adl_stop? */
static inline bool adli_stop_wanted(adl_context *ctx)
{
    return atomic_load_explicit(&ctx->stop_wanted, memory_order_relaxed) ||
           (ctx->signals && adli_signals_received());
}

/* While the replicas come together: has a stop been wanted for a while? For a callback. Not at once,
 * because replicas that are all on their way can still meet and then stop in order, together; one
 * that leaves early looks like a failure to the others. */
bool adli_give_up(void *ctx);

#endif
