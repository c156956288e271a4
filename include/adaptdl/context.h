/* The training context: what one replica knows of its job. It is made once, at the start of main,
 * and everything else of the training runtime (epochs, loaders, accumulators, data parallel) hangs
 * on it:
 *
 *     adl_context *ctx;
 *     adl_status status = adl_init(NULL, &ctx);       reads ADAPTDL_*, meets the other replicas,
 *     if (status != ADL_OK) ...                       opens the checkpoint
 *     ... loaders, data parallel ...
 *     ADL_EPOCHS (ctx, epoch, 14) {
 *         ADL_BATCHES (train, batch) { ... }
 *     }
 *     return adl_finish(ctx);                         0, 143 when interrupted, 1 on failure
 *
 * Stopping. SIGTERM, SIGINT, a dead replica, a full disk at the wrong moment: all of them stop the
 * context. From then on loops over epochs and batches yield nothing, scopes of accumulators are not
 * entered, and adl_finish gives the exit code. A training program therefore needs no checks of its
 * own inside the loops. When it was interrupted, the checkpoint was taken BEFORE the loop ended, at a
 * step boundary that all replicas agreed on: what the program does after the loop is not in it.
 *
 * Threads: a context, and everything made from it, belongs to one thread at a time, except where
 * stated. Several contexts in one process are fine; the flag set by signals is the only thing they
 * share. */
#ifndef ADAPTDL_CONTEXT_H
#define ADAPTDL_CONTEXT_H

#include "adaptdl/checkpoint.h"
#include "adaptdl/group.h"
#include "adaptdl/log.h"
#include "adaptdl/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_context adl_context;

/* ---- the environment --------------------------------------------------------------------------- */

/* The variables that a launcher or scheduler sets. A NULL string stands for a variable that is not
 * set (or empty). */
typedef struct adl_env {
    const char *checkpoint_path;    /* ADAPTDL_CHECKPOINT_PATH: directory; NULL: no checkpoints */
    const char *share_path;         /* ADAPTDL_SHARE_PATH: directory shared by all replicas */
    const char *job_id;             /* ADAPTDL_JOB_ID: "namespace/name" */
    const char *master_addr;        /* ADAPTDL_MASTER_ADDR: rank 0; default "0.0.0.0" */
    int master_port;                /* ADAPTDL_MASTER_PORT; 0: none (one replica only) */
    int rank, replicas;             /* ADAPTDL_REPLICA_RANK, ADAPTDL_NUM_REPLICAS; 0 of 1 */
    int nodes;                      /* ADAPTDL_NUM_NODES; default: one per replica */
    int restarts;                   /* ADAPTDL_NUM_RESTARTS; default 0 */
    const char *supervisor_url;     /* ADAPTDL_SUPERVISOR_URL: "http://host:port" */
    const char *sched_version;      /* ADAPTDL_SCHED_VERSION: "major.minor.patch" */
    const char *tensorboard_logdir; /* ADAPTDL_TENSORBOARD_LOGDIR */
    const char *job_secret;         /* ADAPTDL_JOB_SECRET: replicas prove to each other that they
                                     * know it; NULL: connections are not authenticated */
    int hints_interval_s;           /* ADAPTDL_HINTS_INTERVAL: seconds; 0: as adl_options says */
    int connect_timeout_s;          /* ADAPTDL_CONNECT_TIMEOUT: seconds; 0: as adl_options says */
    int checkpoint_interval_s; /* ADAPTDL_CHECKPOINT_INTERVAL: seconds (0 there: -1 here); 0: as
                                     * adl_options says; negative: no saves in the background */
    const char *prior;         /* ADAPTDL_PRIOR: what jobs of this kind have measured, as JSON:
                                     * initBatchSize, gradParams, perfParams as in a report */
    int peer_timeout_s;        /* ADAPTDL_PEER_TIMEOUT: seconds; 0: as adl_options says */
    int local_rank;            /* ADAPTDL_LOCAL_RANK: number among the replicas of this machine, for
                                     * programs that choose a device by it; default 0 */
    const char *world_socket;  /* ADAPTDL_WORLD_SOCKET: where a launcher that changes the number of
                                     * replicas while they run listens; NULL: nobody does */
    int member; /* ADAPTDL_MEMBER: this process among all of the job's; with world_socket */
    bool joins; /* ADAPTDL_JOIN=1: it joins replicas that are training already */
    const char
        *device_type; /* ADAPTDL_DEVICE_TYPE: what the replicas run on, by the scheduler's name
                                     * for it; measurements are kept apart by it; NULL: not told */
    int batch_steps;  /* ADAPTDL_BATCH_STEPS: optimizer steps after which an adaptive batch size is
                      * reconsidered (0 there: -1 here); 0: 200; negative: at starts of passes only */
    bool
        original_rule; /* ADAPTDL_BATCH_RULE=original: a single replica keeps its batch size, every choice
                           * counts at once, what does not divide is rounded up, as in the original package */
    bool
        keep_moments; /* ADAPTDL_MOMENTS=keep: Adam's are not restarted when the batch size changes */
} adl_env;

/* One process, no checkpoints. */
#define ADL_ENV_INIT                                                                               \
    {                                                                                              \
        .master_addr = "0.0.0.0", .replicas = 1, .nodes = 1                                        \
    }

/* Reads and checks the variables. The strings are the process's environment: valid until it is
 * changed, or this thread calls again. EINVAL names the variable and its value; a scheduler of another
 * major version is refused here too. Does not block.
 *
 * Where neither ADAPTDL_NUM_REPLICAS nor ADAPTDL_REPLICA_RANK nor ADAPTDL_SUPERVISOR_URL is set, the
 * variables of other launchers are read in their place:
 *   torchrun (RANK and WORLD_SIZE are set)    also LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_WORLD_SIZE,
 *       MASTER_ADDR, MASTER_PORT (the port after it when torchrun itself listens there),
 *       TORCHELASTIC_RESTART_COUNT
 *   Slurm (SLURM_PROCID and SLURM_STEP_NUM_TASKS are set, as by srun)    also SLURM_LOCALID,
 *       SLURM_STEP_NUM_NODES, SLURM_RESTART_COUNT; rank 0 is on the first of SLURM_STEP_NODELIST, at a
 *       port made from SLURM_JOB_ID and SLURM_STEP_ID, unless MASTER_ADDR and MASTER_PORT say it. */
ADL_API ADL_MUST adl_status adl_env_read(adl_env *out);

/* ---- life -------------------------------------------------------------------------------------- */

typedef struct adl_options {
    size_t size;                  /* sizeof(adl_options), set by the _INIT macro */
    const adl_env *env;           /* NULL: adl_env_read. Copied. */
    const char *program;          /* identity of the program in its checkpoints: one that was saved
                                   * under another identity is refused. NULL: not checked. Copied. */
    bool handle_signals;          /* install handlers for SIGTERM and SIGINT (see adl_init) */
    double checkpoint_interval_s; /* background saves; 0: only when interrupted and at the end */
    int checkpoint_keep;          /* complete checkpoints kept, at least 1 */
    double hints_interval_s;      /* reports to the scheduler */
    int connect_timeout_ms;       /* until all replicas have arrived */
    int peer_timeout_ms;          /* a replica that is silent for so long has died */
    int listen_fd;                /* rank 0: socket of adl_group_listen, taken over; -1: none */
    adl_log_fn log;               /* NULL: silent */
    void *log_user;
    bool reads_only; /* checkpoints are read, and none is written */
} adl_options;

#define ADL_OPTIONS_INIT                                                                           \
    {                                                                                              \
        .size = sizeof(adl_options), .handle_signals = true, .checkpoint_interval_s = 60,          \
        .checkpoint_keep = 2, .hints_interval_s = 30, .connect_timeout_ms = 300000,                \
        .peer_timeout_ms = 5000, .listen_fd = -1, .log = adl_log_stderr                            \
    }

/* Starts the runtime. options == NULL means ADL_OPTIONS_INIT: signals are handled and messages go to
 * standard error. Blocks until all replicas have arrived (at most connect_timeout_ms) and rank 0 has
 * read the newest complete checkpoint. *out is NULL on failure and is ended with adl_finish.
 *
 * Signals, when asked for: the first SIGTERM or SIGINT says what is going to happen (to the log) and
 * stops the training at the next step boundary, on all replicas; a second SIGINT kills at once.
 * The handlers that were there before are put back by adl_finish of the last such context.
 *
 *   ADL_EINVAL    a variable or option is wrong; a checkpoint of another program
 *   ADL_EIO       the checkpoint directory cannot be made or written
 *   ADL_ECORRUPT  there are checkpoints, and all of them are damaged
 *   ADL_ETIMEOUT, ADL_EPEER, ADL_ENET   the replicas did not come together; the text says which
 *   ADL_EINTR     a signal arrived meanwhile */
ADL_API ADL_MUST adl_status adl_init(const adl_options *options, adl_context **out);

/* Ends the runtime and frees the context and everything made from it (so that the optimizers and
 * networks that were handed to it must live until here). After training that was not stopped, all
 * replicas save a last checkpoint: running the program again then finds nothing left to do, and with
 * more epochs goes on from there. Blocks for that, and a few seconds at most for replicas that are
 * still at work.
 *
 * The result is the program's exit code:
 *   0    finished, and saved if there is a place for checkpoints
 *   143  interrupted, and saved likewise
 *   1    failed, or the last checkpoint could not be written; the log said why */
ADL_API int adl_finish(adl_context *ctx);

/* The exit code for a failure of adl_init, or of anything before the loops: 0, 143 or 1 as above. */
ADL_API int adl_exit_code(adl_status status);

/* ---- asking and telling ------------------------------------------------------------------------ */

/* Both may change between two batches, when the job is resized in place (docs/elastic.md). */
ADL_API int adl_rank(const adl_context *ctx);
ADL_API int adl_replicas(const adl_context *ctx);
/* The environment the context was made with; adl_rank and adl_replicas are asked for the present. Borrowed. */
ADL_API const adl_env *adl_context_env(const adl_context *ctx);
/* The control collectives and the checkpoint store behind the context. Borrowed. Collectives must be
 * called in the same order on all replicas. Ask for the group each time: it is another one when the number of replicas
 * has changed (between two batches), or when a replica that joined has met the others (at its first loop over epochs). A
 * call outside loops over data is answered to a replica that joins later with the result that the others had. */
ADL_API adl_group *adl_context_group(adl_context *ctx);
ADL_API adl_checkpoint *adl_context_store(adl_context *ctx);

/* ADL_OK while training goes on; ADL_EINTR when it was interrupted; else the first failure, whose
 * text adl_context_error gives. */
ADL_API adl_status adl_context_status(const adl_context *ctx);
ADL_API const char *adl_context_error(const adl_context *ctx);
/* Has the context been stopped, by whatever? Code between loops that acts on the outside world (prints
 * a result, writes a file) asks this first; scopes of accumulators are not entered anyway. */
ADL_API bool adl_stopped(const adl_context *ctx);

/* Tells the context about a failure of the program's own: status != ADL_OK stops it, with the calling
 * thread's adl_error() as the reason, and the other replicas are told why. Returns status (ESTATE when that
 * is a consequence of replicas that have run apart). The first failure counts. */
ADL_API adl_status adl_context_fail(adl_context *ctx, adl_status status);
/* The same with a reason of the program's own. */
ADL_API adl_status adl_context_failf(adl_context *ctx, adl_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* As if SIGTERM had arrived. Any thread; does not block. */
ADL_API void adl_stop(adl_context *ctx);
/* A checkpoint at the next step boundary, in the background. Any thread; does not block. */
ADL_API void adl_save(adl_context *ctx);

/* Adds a state of the program's own to the checkpoints and gives it its saved value, if there is one
 * (*found, which may be NULL). See adl_checkpoint_register and adl_checkpoint_load_state; names
 * starting with "adaptdl." are the runtime's. */
ADL_API ADL_MUST adl_status adl_state(adl_context *ctx, const char *name,
                                      const adl_checkpoint_functions *functions, void *user,
                                      bool *found);

#ifdef __cplusplus
}
#endif
#endif
