/* A cluster as its scheduler sees it: nodes, jobs, what the jobs report, and the allocation rounds.
 * No clock, no I/O: time comes in as an argument, and what is to be done comes out as a list of orders. The
 * daemon carries them out with real processes, the simulator with pretended ones; then they tell what they
 * see.
 *
 *     adl_job_spec spec = ADL_JOB_SPEC_INIT;            then its fields
 *     adl_cluster_submit(cluster, &spec, &job);         a job's number is what the calls below take
 *     adl_cluster_report(cluster, job, &report);        whenever it says how fast it is
 *     adl_cluster_round(cluster, now_s, &orders);       every minute: who has what from now on
 *     while (orders.count > 0) {
 *         ... start, stop and forget replicas as the orders say ...
 *         adl_cluster_observe(cluster, job, &seen, now_s);
 *         adl_cluster_advance(cluster, now_s, &orders);
 *     }
 *
 * One thread at a time. Numbers of jobs must be ones that submit gave and remove has not taken back.
 *
 * What a call costs depends on the jobs that have replicas, or get some, not on those that wait; only a round
 * looks at every unfinished job, once. */
#ifndef ADAPTDL_CLUSTER_H
#define ADAPTDL_CLUSTER_H

#include "adaptdl/account.h"
#include "adaptdl/life.h"
#include "adaptdl/policy.h"
#include "adaptdl/sizing.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_cluster adl_cluster;

/* What a user submits. Text and numbers are copied. */
typedef struct adl_job_spec {
    size_t size; /* sizeof(adl_job_spec), set by the _INIT macro */
    const char *name;
    adl_resources request; /* of one replica */
    int min_replicas;
    int max_replicas; /* 0: no limit of its own */
    bool preemptible;
    double priority; /* 0: 1 */
    adl_suspend suspend;
    int fixed_replicas; /* for policies that do not adapt */
    double submit_s;
    const char *application;   /* whose measurements it shares, with shared_models; may be NULL */
    const double *type_speeds; /* [ADL_MAX_TYPES] see adl_type_model; borrowed; may be NULL */
    bool own_rules;            /* rules are the job's own, not the cluster's */
    adl_rules rules;
    void *user; /* the caller's: in orders and in adl_cluster_job */
} adl_job_spec;
#define ADL_JOB_SPEC_INIT                                                                          \
    {                                                                                              \
        .size = sizeof(adl_job_spec)                                                               \
    }

/* What a running job reports. profile is copied. */
typedef struct adl_job_report {
    size_t size; /* sizeof(adl_job_report), set by the _INIT macro */
    bool has_model;
    adl_goodput model;
    adl_batch_limits limits;
    const adl_profile_point *profile;
    size_t profile_count;
    int max_profiled;
    double progress, total_work, epoch_work; /* see adl_job; the last two 0: not declared */
    double restart_cost_s;                   /* measured; 0: unknown */
    double (*step_time_s)(void *context, int replicas); /* see adl_job */
    void *step_context;
    double remaining_steps;
    int type;             /* the device type that model and limits are of, see adl_cluster_type */
    double resize_cost_s; /* what another size costs where some replicas stay; 0: a restart */
} adl_job_report;
#define ADL_JOB_REPORT_INIT                                                                        \
    {                                                                                              \
        .size = sizeof(adl_job_report)                                                             \
    }

/* Something to be done with the replicas of a job. */
typedef struct adl_order {
    adl_action action; /* start, terminate, kill or clean */
    int job;
    void *user;
    int group;
    const int *nodes; /* start: [replicas], ascending */
    int replicas;
} adl_order;

/* In the order in which they are to be carried out; valid until the next call that changes the cluster. */
typedef struct adl_orders {
    const adl_order *items;
    size_t count;
} adl_orders;

typedef struct adl_cluster_options {
    size_t size;                       /* sizeof(adl_cluster_options), set by the _INIT macro */
    const char *const *resource_names; /* borrowed */
    int resource_count;
    const adl_node *nodes; /* borrowed, with their texts, until adl_cluster_set_nodes */
    int node_count;
    const adl_node *template_node; /* may be NULL */
    adl_policy *policy;            /* borrowed */
    bool shared_models;            /* jobs of one application learn from each other */
    uint64_t seed;
    adl_rules rules;
    bool wait_for_room; /* start a group only when what it needs is free, not merely being freed */
} adl_cluster_options;
#define ADL_CLUSTER_OPTIONS_INIT                                                                   \
    {                                                                                              \
        .size = sizeof(adl_cluster_options)                                                        \
    }

ADL_API ADL_MUST adl_status adl_cluster_new(const adl_cluster_options *options, adl_cluster **out);
ADL_API void adl_cluster_free(adl_cluster *cluster);

/* *job becomes the job's number: one that no other job has, 0, 1, 2 ... while none was removed. Submission times must not go back. */
ADL_API ADL_MUST adl_status adl_cluster_submit(adl_cluster *cluster, const adl_job_spec *spec,
                                               int *job);

/* A job as it was when its scheduler stopped: everything that adl_cluster_job told. Borrowed. */
typedef struct adl_job_saved {
    size_t size; /* sizeof(adl_job_saved), set by the _INIT macro */
    adl_life life;
    const int *nodes; /* [replicas] wanted allocation, ascending */
    int replicas;
    const int *placed; /* [placed_count] where its present group was started */
    int placed_count;
    bool deleted;
    adl_account account;
} adl_job_saved;
#define ADL_JOB_SAVED_INIT                                                                         \
    {                                                                                              \
        .size = sizeof(adl_job_saved)                                                              \
    }
ADL_API ADL_MUST adl_status adl_cluster_restore(adl_cluster *cluster, const adl_job_spec *spec,
                                                const adl_job_saved *saved, int *job);
/* What a replica takes, when resources are numbered anew. */
ADL_API void adl_cluster_set_request(adl_cluster *cluster, int job, adl_resources request);
ADL_API void adl_cluster_set_preemptible(adl_cluster *cluster, int job, bool preemptible);
/* The user wants it gone: the life-cycle ends it. */
ADL_API void adl_cluster_delete(adl_cluster *cluster, int job);
/* The user wants it to wait (on), or to go on: a job that is held gets no replicas, and loses those that it has. */
ADL_API void adl_cluster_hold(adl_cluster *cluster, int job, bool on);
/* Forgets a job that is over. Its number will be another's. */
ADL_API void adl_cluster_remove(adl_cluster *cluster, int job);

ADL_API ADL_MUST adl_status adl_cluster_report(adl_cluster *cluster, int job,
                                               const adl_job_report *report);

/* What a job that is started on this device type should know already; false: nothing. */
ADL_API bool adl_cluster_prior(const adl_cluster *cluster, int job, int type, adl_goodput *out);
/* Index of a node's device type. */
ADL_API int adl_cluster_type(const adl_cluster *cluster, int node);

/* The replicas of the job's present group, as the backend sees them now. Only started, alive, ready,
 * succeeded, interrupted, failed, hopeless are read. Until told otherwise, a group that was ordered is alive and not
 * ready. Device time is accounted up to now_s. */
ADL_API void adl_cluster_observe(adl_cluster *cluster, int job, const adl_observed *seen,
                                 double now_s);

/* Runs the jobs' life-cycles until nothing changes. Call it again after the orders were carried out and what
 * they did was observed. ENOMEM: the orders that there are hold, the rest follows with the next call. */
ADL_API ADL_MUST adl_status adl_cluster_advance(adl_cluster *cluster, double now_s,
                                                adl_orders *orders);

/* The nodes and resources are these from now on (borrowed as in the options). A node keeps its place;
 * one that is lost or drained has capacity 0. Jobs that no longer fit where they are, the newest first,
 * lose their allocation; the next advance stops them and the next round places them. ENOMEM: nothing
 * changed. *withdrawn: how many jobs. */
ADL_API ADL_MUST adl_status adl_cluster_set_nodes(adl_cluster *cluster,
                                                  const char *const *resource_names,
                                                  int resource_count, const adl_node *nodes,
                                                  int node_count, double now_s, int *withdrawn);

/* The cluster can grow and shrink: rounds choose its size, too. template_node: what a new node has (borrowed, with its
 * texts and the sizing's prices, until the next call); NULL: not known. max_nodes 0: its size is nobody's business. */
ADL_API ADL_MUST adl_status adl_cluster_set_sizing(adl_cluster *cluster, const adl_sizing *sizing,
                                                   const adl_node *template_node);
/* What the last round made of it; NULL: it was not asked. */
ADL_API const adl_sized *adl_cluster_sized(const adl_cluster *cluster);

/* A new job need not wait for a round: a preemptible one without an allocation gets the first node where
 * max(min_replicas, 1) replicas fit beside what all others want. *placed: it got one (advance
 * starts it). */
ADL_API ADL_MUST adl_status adl_cluster_place(adl_cluster *cluster, int job, double now_s,
                                              bool *placed);

/* Could the nodes, all empty, hold max(min_replicas, 1) replicas of the request? If not, says why in one
 * line: which resource, and the most that a node has of it. */
ADL_API bool adl_fits_ever(const char *const *resource_names, int resource_count,
                           const adl_node *nodes, int node_count, const adl_resources *request,
                           int min_replicas, char *why, size_t size);

/* Makes the snapshot of the round that follows at once with the same time, for whoever wants to write it
 * down: the round changes what it points to. */
ADL_API ADL_MUST adl_status adl_cluster_prepare(adl_cluster *cluster, double now_s);

/* One allocation round: asks the policy for all unfinished jobs, then advances. */
ADL_API ADL_MUST adl_status adl_cluster_round(adl_cluster *cluster, double now_s,
                                              adl_orders *orders);

/* The jobs that want replicas, have some or are to go, in order of submission: the first (job -1), the one
 * after a job; -1: no more. */
ADL_API int adl_cluster_busy(const adl_cluster *cluster, int after);

/* The snapshot and decision of the last round, for logs and explanations; jobs there are numbered
 * within the round, adl_cluster_round_job gives the cluster's number. */
ADL_API const adl_snapshot *adl_cluster_snapshot(const adl_cluster *cluster);
ADL_API const adl_decision *adl_cluster_decision(const adl_cluster *cluster);
ADL_API int adl_cluster_round_job(const adl_cluster *cluster, int index);

/* What is known of a job; the cluster's own, and true until the next call that changes it. Later versions add
 * fields at the end. */
typedef struct adl_job_info {
    void *user;
    const adl_life *life;
    const int *nodes; /* [replicas] wanted allocation */
    int replicas;
    const int *placed; /* [placed_count] where the present group was started */
    int placed_count;
    const adl_account *account;
    double mean_active; /* number of unfinished jobs during its life; 0: unknown */
    adl_speedup *model; /* NULL: nothing reported yet */
    const char *doubt;  /* what of its reports was not believed in the last round; NULL: nothing */
} adl_job_info;
ADL_API const adl_job_info *adl_cluster_job(const adl_cluster *cluster, int job);
/* What it may have now: its limits, and twice what it was measured on. */
ADL_API int adl_cluster_most_replicas(const adl_cluster *cluster, int job);

#ifdef __cplusplus
}
#endif
#endif
