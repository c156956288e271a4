/* What the files of the core share.
 *
 * Who touches what:
 *   - the controller's own: cluster, policy, backend, its lists of jobs, outbox, and the fields of a job so
 *     marked;
 *   - `lock`: everything that readers see: the list of jobs, their rows, views and hints, the node table's
 *     flags, counters. Held for copies only;
 *   - `changes`: one API call that changes something at a time; taken before `lock`, held over a commit.
 *     The controller takes it to remove jobs, so that what a changing call has found stays there.
 *
 * The controller moves the cluster first, then commits what became different, then publishes it as rows
 * and only then acts on the backend. What readers see is therefore always on disk, and what runs was
 * written down before.
 *
 * A turn costs what happened and what runs, however many jobs wait or are over: those are on lists where
 * nobody looks until something changes. Only a round and a change of the nodes look at every unfinished job. */
#ifndef ADLI_CORE_IMPL_H
#define ADLI_CORE_IMPL_H

#include "config/config.h"
#include "base/log.h"
#include "daemon/core.h"
#include "daemon/index.h"
#include "jobspec/jobspec.h"
#include "sched/cluster.h"
#include "sched/lifecycle.h"
#include "sched/worlds.h"
#include "store/store.h"

#include <pthread.h>
#include <sys/queue.h>

enum {
    ADLI_UID_SIZE = 37,
    ADLI_SECRET_SIZE = 33,
    ADLI_JOB_ID_SIZE = 2 * ADLI_NAME_MAX + 2, /* "namespace/name" */
    ADLI_MESSAGE_MAX = 4096,
    ADLI_APPLICATION_SIZE = 512,
    ADLI_PHASES = ADL_FAILED + 1,
    ADLI_SAVED_JOBS_MAX =
        1000,              /* the snapshot of a round of more is written down only when asked for */
    ADLI_FORGIVE_S = 3600, /* a group that ran this long wipes out earlier failures */
    ADLI_GONE_KEPT_S = 60, /* a node that is gone is shown as lost for so long */
};

#define ADLI_DRAINING "the cluster is being stopped; adaptdl up lets it go on"

/* A job's last report, checked. */
enum { ADLI_TYPE_SIZE = 64 }; /* of a device type's name, with its NUL */

typedef struct adli_hints_data {
    bool known;
    double time_s; /* when it came; 0 after a restart of the daemon */
    int group;     /* of the replicas that sent it */
    adl_goodput model;
    bool has_perf, has_grad;
    adl_batch_limits limits;
    double init_batch_size, max_batch_size, batch_size; /* 0: not told */
    int max_profiled;
    double progress, iterations_per_epoch, elapsed_s; /* NAN: not told */
    int epoch, target_epochs;                         /* -1: not told */
    adl_profile_point *profile;                       /* [].type: of types below */
    size_t profile_count;
    char types[ADL_MAX_TYPES]
              [ADLI_TYPE_SIZE]; /* device types named by the report; [0] is "": those of
                                                  points that name none */
    int type_count;
} adli_hints_data;

/* The life of a job as it is on disk. */
typedef struct adli_row {
    adl_life life;
    int *wanted, *placed; /* node numbers, ascending */
    int wanted_count, placed_count;
    double started_s, completed_s;
    char reason[32];
    char *message; /* may be NULL */
    adl_account account;
    char *world;          /* adli_worlds as JSON; NULL, "": as it was started */
    char resized[200];    /* how its size was last changed */
    double resize_cost_s; /* measured; 0: never */
} adli_row;

typedef struct adli_said adli_said;

/* The newest world of a job, as its replicas are told. */
typedef struct adli_offer {
    int group; /* 0: none yet */
    uint32_t generation, dropped;
    bool open; /* it is on offer: not all have entered it */
    int nodes, port;
    char address[64];
    int *members; /* [count] by rank */
    int count;
    int members_ever; /* of the group */
} adli_offer;

typedef struct adli_train_info {
    double throughput, efficiency, goodput, speedup; /* NAN: not known */
} adli_train_info;

/* One metric of a job: its newest value, and how many points its curve has (end.count). */
typedef struct adli_series {
    char *name;
    adli_store_value end;
} adli_series;

/* What a replica used when it was last looked at (core_use.c). */
typedef struct adli_replica_use {
    int member;
    double sampled_s; /* monotonic */
    double cpu_s;     /* since its start */
    double cpus;      /* processors in use since the sample before; NAN: this is the first */
    int64_t memory_bytes, gpu_memory_bytes; /* -1: not known */
    double gpus;                            /* NAN: not known */
} adli_replica_use;

typedef struct adli_kept_job {
    /* set once */
    char uid[ADLI_UID_SIZE], token[ADLI_SECRET_SIZE], secret[ADLI_SECRET_SIZE];
    char id[ADLI_JOB_ID_SIZE];
    const char *ns, *name; /* of spec */
    adli_jobfile spec;     /* without json */
    double created_s;

    /* under lock */
    TAILQ_ENTRY(adli_kept_job) all, changed, placed;
    adli_index_link by_id, by_uid;
    bool is_changed; /* on core->changed */
    int64_t order;   /* in core->jobs, ascending from 1 */
    char *
        listed; /* as core_list.c wrote it when listed_print was what it is now; NULL: it did not */
    uint64_t listed_print;
    size_t listed_length;
    adli_row row;
    bool deleted;
    adli_asked asked; /* cancel or suspend, or nothing of the kind */
    adli_hints_data hints;
    char *hints_json; /* NULL: none */
    double restart_cost_s;
    double told_s;       /* when its last report became an event */
    adli_series *series; /* NULL: none yet */
    int series_count, reports_restart;
    adli_train_info train;
    adli_member_view *views; /* [view_count] of group view_group */
    int view_count, view_group, ready;
    adli_replica_use *uses; /* [use_count] of group use_group, those that ran */
    int use_count, use_group;
    int last_replicas;                                       /* of the newest group */
    bool is_new, hints_new, deleted_new, asked_new, pin_new; /* for the controller */
    int pin; /* replicas that its user wants; 0: as the policy likes */
    adli_offer offer;
    adli_said *said; /* what replicas have said, for the controller */
    int said_count;

    /* the controller's */
    TAILQ_ENTRY(adli_kept_job) stage, touched, todo;
    enum { STAGE_NONE, STAGE_ACTIVE, STAGE_OVER, STAGE_DOOMED } where; /* the list of `stage` */
    bool is_touched, is_todo;
    int number; /* in the cluster; -1: not active */
    bool do_start, do_terminate, do_kill;
    int cleaned, forgotten; /* groups up to these are over; are forgotten by the backend */
    bool failure_seen;      /* the present group's failure was noted */
    char failure_reason[32];
    char *failure_message; /* may be NULL */
    const char *hopeless;  /* why it is not tried again; NULL: it is */
    uint64_t traceback,
        traceback_before; /* adli_traceback_print of the last failure, the one before */
    int traceback_group;  /* of the last */
    bool lost_start;      /* backend->start failed: failure_* says why */
    /* backend->start could not start all for want of room: when it is asked again (0: need not be), and how long
     * after the last time that is */
    double start_again_s, start_pause_s;
    double sampled_s, mirrored_s;
    bool was_placed; /* start-at-once was tried */
    adli_core *core; /* with worlds */
    adli_worlds worlds;
    bool has_worlds, world_told; /* told: they are not as they were started */
    bool could;                  /* be changed in place, when last looked at */
    char resized[200];
    double resize_cost_s;
    bool *taken; /* [taken_count] of the members of group taken_group: it was told */
    size_t taken_count, taken_capacity;
    int taken_group;
    int *before; /* [before_count] wanted allocation before the last round */
    int before_count;
    size_t before_capacity;
} adli_kept_job;

TAILQ_HEAD(adli_kept_jobs, adli_kept_job);

typedef struct adli_core_node {
    char *name, *device_type;
    adl_resources declared;                 /* all that it has when it is there */
    bool known_resource[ADL_MAX_RESOURCES]; /* was declared; others are not limited, or not there */
    bool ready, drained, preemptible;
    double price;  /* per hour; 0: not known */
    bool addable;  /* new ones are of its kind */
    bool there;    /* in the backend's last answer */
    double gone_s; /* since when it is not */
    bool unused;   /* the place of a node that is gone, for the next that comes */
} adli_core_node;

/* What waits to be committed besides rows. */
typedef struct adli_pending {
    enum { PENDING_EVENT, PENDING_DECISION, PENDING_SAMPLE, PENDING_ROUND } kind;
    double time_s;
    char type[16];       /* event */
    char *job;           /* id (event), uid (others) */
    char *text, *fields; /* message, JSON */
    int64_t round;
    double duration_s;
    int jobs, changed;
    adli_store_sample sample;
} adli_pending;

typedef struct adli_counters {
    int64_t submitted, deleted, completed[2]; /* Succeeded, Failed */
    double completed_s[2];                    /* their times from submission to the end, summed */
    int64_t completion_buckets[2][9];         /* adli_completion_bounds */
    int64_t restarts, failures, hints, rounds;
    double rounds_s;
} adli_counters;

/* The disk of the state directory (core_room.c). */
typedef enum adli_room_state { ADLI_ROOM_OK, ADLI_ROOM_LOW, ADLI_ROOM_FULL } adli_room_state;
typedef struct adli_room {
    pthread_mutex_t lock;
    int fd;                         /* STATE/reserve; -1: none */
    int64_t wanted, held;           /* bytes of it */
    int64_t free_bytes, size_bytes; /* of the disk, for us */
    adli_room_state state;
} adli_room;

struct adli_core {
    char *state_dir;
    adli_room room;
    adli_backend *backend;
    adli_config config;
    adli_store *store;
    adli_core_mirror mirror;     /* without functions: none */
    double (*clock)(void *user); /* wall time; tests replace it */
    void *clock_user;
    double now_s, now_mono_s; /* under lock: the last answer of adli_core_now */

    pthread_mutex_t changes, lock;
    struct adli_kept_jobs jobs;    /* by submission */
    int64_t last_order, drops;     /* the newest job's; how many were removed */
    struct adli_kept_jobs changed; /* that came, or with news for the controller, as it happened */
    struct adli_kept_jobs placed;  /* by submission: those whose row has placed replicas */
    int phases[ADLI_PHASES];       /* how many rows are in each */
    adli_index by_id, by_uid;
    int64_t looks; /* at jobs one by one, by readers; for tests */
    /* Grows with every change of a job that a list shows and that does not go on by itself. */
    int64_t news;
    /* What adli_core_all_jobs wrote when news was whole_news, good until then; NULL: nothing. */
    adli_shared *whole;
    int64_t whole_news;
    double whole_until_s;
    adli_core_node *nodes;
    int node_count;
    size_t node_capacity;
    char *supervisor, *dashboard;
    bool no_job_tokens; /* replicas are given none */
    adli_counters counters;
    double opened_s, last_round_s, next_round_s;
    double last_created_s;
    char *saved;   /* the last round's snapshot and decision as JSON; may be NULL */
    bool save;     /* the next round's is wanted, however large */
    bool draining; /* adli_core_drain_all: nothing is started anywhere */
    void (*wake)(void *user);
    void *wake_user;
    pthread_mutex_t wake_lock; /* while wake is called */

    pthread_t thread;
    bool running;
    int wake_fd;
    char instance[17];        /* of this run of the scheduler */
    bool stopping, gone;      /* under lock: the controller should end; takes no more calls */
    bool urgent;              /* under lock: more than a report has come */
    void (*call)(void *user); /* under lock: to be run by the controller */
    void *call_user;
    pthread_cond_t called;
    pthread_t use_thread; /* core_use.c */
    bool use_running;
    pthread_cond_t use_stop; /* with lock: stopping was set */

    /* the controller's */
    adl_policy *policy;
    adli_pool *pool;
    uint64_t pool_saved; /* adli_pool_clock when it was last written down */
    double pool_saved_s;
    int64_t misses_saved; /* adli_cluster_misses when they were last written down */
    double misses_retry_s;
    adl_cluster *cluster;
    struct adli_kept_jobs active, over,
        doomed; /* in the cluster; at their end, oldest first; to be removed */
    int active_count, over_count;
    struct adli_kept_jobs touched; /* whose row may have to be written besides those that run */
    struct adli_kept_jobs todo;    /* with something for the backend once that is committed */
    int64_t visits;                /* of jobs in the controller's loops, for tests */
    adli_member_view *scratch;
    size_t scratch_capacity;
    adli_end *ends;
    size_t ends_capacity;
    const char *resource_names[ADL_MAX_RESOURCES];
    char *resource_storage[ADL_MAX_RESOURCES];
    int resource_count;
    adl_node *sched_nodes; /* [node_count] as the cluster sees them */
    double *prices;        /* [node_count] of nodes per hour, for autoscale */
    size_t price_capacity;
    adl_node usual_node; /* what a new node would have; without a name: not known */
    size_t sched_capacity;
    int sched_count;
    bool held;             /* draining, as handed to the cluster: rounds would decide nothing */
    bool placeless;        /* a job waits for a round; a node or a job went */
    double round_wanted_s; /* when an event asked for a round; HUGE_VAL: none did */
    int64_t round;
    adli_pending *outbox;
    size_t outbox_count, outbox_capacity;
    bool commit_failed;
    double retry_commit_s, pruned_s;
    int desired_nodes,
        told_nodes;     /* of the last decision; what the backend was told; -1: nothing */
    int64_t told_event; /* the last event the listener was told about */
    bool tell;          /* a replica's state changed */
};

/* ---- core.c ---- */
/* Seconds since 1970 that never go back, stand still or jump. Any thread. */
double adli_core_now(adli_core *core);
/* What others wrote down by the wall clock, not before first_s: the same where that clock is right; 0 stays 0. */
double adli_core_from_wall(adli_core *core, double wall_s, double first_s);
void adli_core_wake(adli_core *core);
/* Wakes the controller for no more than job->hints_new. */
void adli_core_wake_for_report(adli_core *core);
/* Under lock: a job that is the core's from now on, and one that is so no longer. */
void adli_core_add_job(adli_core *core, adli_kept_job *job);
void adli_core_drop_job(adli_core *core, adli_kept_job *job);
/* Under lock: counts the job's row in or out, before and after it changes. */
void adli_core_count_row(adli_core *core, adli_kept_job *job, bool in);
/* Under lock: the controller looks at what is new about the job. */
void adli_core_changed(adli_core *core, adli_kept_job *job);
/* Under lock. NULL: no such job. */
adli_kept_job *adli_core_find(adli_core *core, const char *ns, const char *name);
adl_status adli_core_no_job(const char *ns, const char *name);
void adli_core_job_free(adli_kept_job *job);
void adli_row_fini(adli_row *row);
/* size - 1 characters of hex. EIO when there is no randomness. */
ADL_MUST adl_status adli_random_hex(char *out, size_t size);
/* Tests: another clock, before start. */
void adli_core_set_clock(adli_core *core, double (*clock)(void *user), void *user);

/* ---- core_load.c ---- */
ADL_MUST adl_status adli_core_load(adli_core *core);
/* The spec for the cluster, its resources by the core's numbers. */
adl_job_spec adli_core_sched_spec(const adli_core *core, const adli_kept_job *job);

/* ---- core_submit.c ---- */
/* Files of jobs that were committed go where they belong; those of others go away. */
ADL_MUST adl_status adli_core_finish_submissions(adli_core *core);

/* ---- core_nodes.c ---- */
/* Reads the backend's nodes into the table and hands them to the cluster (when there is one) if they say
 * something new, or anyway. */
ADL_MUST adl_status adli_core_refresh_nodes(adli_core *core, bool anyway);
/* The node's number; made, as a lost one, when there is none. -1: no memory. */
int adli_core_node_number(adli_core *core, const char *name);
/* What the last round would like, and telling the backend when that is something new. */
void adli_core_want_nodes(adli_core *core, double now_s);
/* Why the last round wants so many, in a sentence; false: nobody asked it. */
bool adli_core_sized_text(const adli_core *core, char *text, size_t size);
/* Under lock: would it fit on nodes that could be added? */
bool adli_core_fits_more(const adli_core *core, const adli_kept_job *job);
/* Is their number the scheduler's to choose? */
bool adli_core_autoscales(const adli_core *core);
void adli_core_scale(adli_core *core);
/* What one replica takes, by the core's numbers of resources. */
adl_resources adli_core_request(const adli_core *core, const adli_kept_job *job);
/* Could it run on the nodes there are, drained ones or not, were they empty? If not, why. Under lock. */
bool adli_core_fits(const adli_core *core, const adli_kept_job *job, bool drained, char *why,
                    size_t size);
/* Reads adli_core_drain_all's mark from the store. */
ADL_MUST adl_status adli_core_load_draining(adli_core *core);
/* The scheduler ends in order. A drain of all nodes that left nothing running has done its work, and whoever starts
 * the next scheduler wants jobs to run. */
void adli_core_end_drain(adli_core *core);
/* Before there was a drain of all nodes, `down` drained them one by one and wrote down which, for the next `up` to
 * undo: the file drained-by-down. */
ADL_MUST adl_status adli_core_take_old_drain(adli_core *core);

/* ---- core_control.c ---- */
/* One turn of the controller; returns when it wants the next at the latest. Tests call it directly. */
double adli_core_step(adli_core *core);
void *adli_core_controller(void *core);
/* Runs what adli_core_call wants. */
void adli_core_answer_call(adli_core *core);
/* Its row is compared at the next commit. */
void adli_core_touch(adli_core *core, adli_kept_job *job);
/* It has something for the backend. */
void adli_core_plan(adli_core *core, adli_kept_job *job);
/* All that are active. */
void adli_core_touch_active(adli_core *core);
/* Moves it from one of the controller's lists to another. */
void adli_core_stage(adli_core *core, adli_kept_job *job, int stage);
/* The jobs that have replicas or are about to, as adl_cluster_busy: NULL: the first, no more. */
adli_kept_job *adli_core_busy(adli_core *core, const adli_kept_job *after);

/* ---- core_pool.c ---- */
void adli_core_application(const adli_kept_job *job, char out[ADLI_APPLICATION_SIZE]);
/* Makes the pool, with what the store has of it. */
ADL_MUST adl_status adli_core_load_pool(adli_core *core);
/* Writes it down when it has changed and that is due, or at once. */
void adli_core_save_pool(adli_core *core, double now_s, bool at_once);
/* What a job that starts on the node should know, as JSON; false: nothing. */
bool adli_core_prior(const adli_core *core, const adli_kept_job *job, int node, adli_buf *out);
/* Is enough known of jobs of its application to choose its size, on some device type? */
bool adli_core_knows(const adli_core *core, const adli_kept_job *job);

/* ---- core_missed.c ---- */
/* Writes down what changed of it. */
void adli_core_save_missed(adli_core *core, double now_s);
/* After adli_core_load. */
ADL_MUST adl_status adli_core_load_missed(adli_core *core);

/* ---- core_observe.c ---- */
void adli_core_observe(adli_core *core, double now_s);
/* Remembers why the present group of the job failed; detail may be "". */
void adli_core_failure(adli_kept_job *job, const char *reason, const char *message,
                       const char *detail);

/* ---- core_room.c ---- */
const char *adli_room_name(adli_room_state state);
/* Before a commit that leads to more room: on a full disk a piece of the reserve is given back. Any thread. */
void adli_core_make_room(adli_core *core);
/* Any thread. Without a reserve: OK, with 0 bytes. */
adli_room_state adli_core_room(adli_core *core, int64_t *free_bytes, int64_t *size_bytes);

/* ---- core_remove.c ---- */
/* Lets go of jobs that are over and deleted, or too many. */
void adli_core_remove_jobs(adli_core *core, double now_s);

/* ---- core_commit.c ---- */
/* fields: see adli_store_event; at most FIELDS_MAX bytes of the daemon's own. */
enum { FIELDS_MAX = 1024 };
void adli_core_event(adli_core *core, double now_s, const char *type, const char *job,
                     const char *fields, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
void adli_core_decisions_of_round(adli_core *core, double now_s, double duration_s);
/* Writes and publishes what changed. */
ADL_MUST adl_status adli_core_commit(adli_core *core, double now_s);
void adli_pending_fini(adli_pending *pending);
enum { ADLI_COMPLETION_BOUNDS = 9 };
extern const double adli_completion_bounds[ADLI_COMPLETION_BOUNDS]; /* seconds */

/* ---- core_start.c ---- */
ADL_MUST adl_status adli_core_start_group(adli_core *core, adli_kept_job *job, int group,
                                          const int *nodes, int replicas);
/* Members that join a group that is there, on one node, for a world of so many replicas. */
ADL_MUST adl_status adli_core_start_members(adli_core *core, adli_kept_job *job, int group,
                                            const adli_member_start *members, int count,
                                            int replicas, int node);

/* ---- core_worlds.c ---- */
/* A group that is started on these nodes; one that is over; one that an earlier scheduler had. */
void adli_core_begin_worlds(adli_core *core, adli_kept_job *job, const int *nodes, int count);
void adli_core_end_worlds(adli_kept_job *job);
void adli_core_load_worlds(adli_core *core, adli_kept_job *job);
void adli_core_free_worlds(adli_kept_job *job);
/* What the job's replicas have said. Without lock. */
void adli_core_hear(adli_core *core, adli_kept_job *job, double now_s);
/* Leaves those of the views whose ends the life-cycle is to know, by rank; how many. */
int adli_core_see_worlds(adli_kept_job *job, const adl_life *life, adli_member_view *views,
                         int count);
/* Moves the worlds of all that run. */
void adli_core_step_worlds(adli_core *core, double now_s);
/* As it is written down; nothing: as it was started. */
void adli_core_write_world(adli_core *core, const adli_kept_job *job, adli_buf *out);
/* After the commit. */
void adli_core_do_worlds(adli_core *core, adli_kept_job *job, double now_s);

/* ---- core_hints.c ---- */
/* kept: the known fields, as JSON; may be NULL. EINVAL names the field. */
ADL_MUST adl_status adli_hints_parse(const char *text, size_t length, adli_hints_data *out,
                                     adli_buf *kept);
void adli_hints_fini(adli_hints_data *hints);
/* Tells the cluster what is known of the job. The controller's, without lock. */
void adli_core_report(adli_core *core, adli_kept_job *job);
/* Recomputes job->train for its present replicas. Under lock. */
void adli_core_train(adli_kept_job *job);

/* ---- core_reports.c ---- */
void adli_series_free(adli_series *series, int count);
/* Gives the jobs the newest values of their metrics. */
ADL_MUST adl_status adli_core_load_reports(adli_core *core);
/* The member "metrics" of a Job. Under lock. */
void adli_job_metrics_json(const adli_kept_job *job, adli_buf *out);

/* ---- core_use.c ---- */
/* The thread that samples, if the backend can tell; a core without is as good. */
void adli_core_start_use(adli_core *core);
/* After core->stopping was set. */
void adli_core_stop_use(adli_core *core);
/* One sample. The thread's; tests without it call it directly. now_s: monotonic. */
void adli_core_sample_use(adli_core *core, double now_s);
/* The member "use" of a Job. Under lock. */
void adli_job_use_json(const adli_kept_job *job, adli_buf *out);
typedef enum adli_use_kind {
    ADLI_USE_CPU, /* seconds since its start */
    ADLI_USE_MEMORY,
    ADLI_USE_GPU,
    ADLI_USE_GPU_MEMORY,
} adli_use_kind;
/* Of one replica; NAN: not known. Under lock. */
double adli_job_use(const adli_kept_job *job, int rank, adli_use_kind kind);

/* ---- core_jobs.c ---- */
/* The job's uid; ENOENT. */
ADL_MUST adl_status adli_core_uid(adli_core *core, const char *ns, const char *name,
                                  char uid[ADLI_UID_SIZE]);

/* ---- core_json.c ---- */
void adli_job_json(const adli_core *core, const adli_kept_job *job, const char *spec, double now_s,
                   adli_buf *out);
/* Some nodes, as values of a list that is open; node -1: all. */
ADL_MUST adl_status adli_nodes_json(adli_core *core, int node, adli_buf *out);
void adli_nodes_list_json(const adli_core *core, const char *key, const int *nodes, int count,
                          adli_buf *out);

#endif
