/* A cluster as its scheduler sees it: nodes, jobs, what the jobs report, and the allocation rounds.
 * No clock, no I/O: time comes in as an argument, and starting and stopping replicas goes out through
 * an executor. The daemon puts real processes behind it, the simulator pretended ones. */
#ifndef ADLI_CLUSTER_H
#define ADLI_CLUSTER_H

#include "adaptdl/policy.h"
#include "base/status.h"
#include "sched/lifecycle.h"
#include "sched/pool.h"

typedef struct adli_cluster adli_cluster;

/* What a user submits. Text and numbers are copied. */
typedef struct adli_job_spec {
    const char *name;
    adl_resources request; /* of one replica */
    int min_replicas;
    int max_replicas; /* 0: no limit of its own */
    bool preemptible;
    int fixed_replicas; /* for policies that do not adapt */
    double submit_s;
    const char *application;   /* whose measurements it shares, see pool.h; may be NULL */
    const double *type_speeds; /* [ADL_MAX_TYPES] see adl_type_model; borrowed; may be NULL */
    bool own_rules;            /* rules are the job's own, not the cluster's */
    adli_rules rules;
} adli_job_spec;

/* What a running job reports. profile is copied. */
typedef struct adli_report {
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
} adli_report;

/* How replicas are started and stopped. Each function may at once tell the cluster what it observes
 * (adli_cluster_observe), or later. nodes: [replicas], ascending. */
typedef struct adli_executor {
    void *self;
    void (*start)(void *self, int job, const int *nodes, int replicas, int group);
    void (*terminate)(void *self, int job, bool kill);
    void (*clean)(void *self, int job); /* the group life->group is over; may be NULL */
} adli_executor;

typedef struct adli_cluster_options {
    const char *const *resource_names; /* borrowed */
    int resource_count;
    const adl_node *nodes; /* borrowed, with their texts, until adli_cluster_set_nodes */
    int node_count;
    const adl_node *template_node; /* may be NULL */
    adl_policy *policy;            /* borrowed */
    adli_pool *pool;               /* borrowed; NULL: jobs learn nothing from each other */
    uint64_t seed;
    adli_rules rules;
    bool wait_for_room; /* start a group only when what it needs is free, not merely being freed */
    adli_executor executor;
} adli_cluster_options;

ADL_MUST adl_status adli_cluster_new(const adli_cluster_options *options, adli_cluster **out);
void adli_cluster_free(adli_cluster *cluster);

/* *job becomes the job's number: 0, 1, 2 ... in order of submission. Submission times must not go
 * back. */
ADL_MUST adl_status adli_cluster_submit(adli_cluster *cluster, const adli_job_spec *spec, int *job);

/* A job as it was when its scheduler stopped: everything that adli_cluster_job told. Borrowed. */
typedef struct adli_job_saved {
    adli_life life;
    const int *nodes; /* [replicas] wanted allocation, ascending */
    int replicas;
    const int *placed; /* [placed_count] where its present group was started */
    int placed_count;
    bool deleted;
    double last_change_s, accounted_s, attained_s, run_s, active_sum, active_weight;
} adli_job_saved;
ADL_MUST adl_status adli_cluster_restore(adli_cluster *cluster, const adli_job_spec *spec,
                                         const adli_job_saved *saved, int *job);
/* What a replica takes, when resources are numbered anew. */
void adli_cluster_set_request(adli_cluster *cluster, int job, adl_resources request);
void adli_cluster_set_preemptible(adli_cluster *cluster, int job, bool preemptible);
/* The user wants it gone: the life-cycle ends it. */
void adli_cluster_delete(adli_cluster *cluster, int job);
/* Forgets a job that is over, and its number. */
void adli_cluster_remove(adli_cluster *cluster, int job);

ADL_MUST adl_status adli_cluster_report(adli_cluster *cluster, int job, const adli_report *report);

/* What a job that is started on this device type should know already; false: nothing. */
bool adli_cluster_prior(const adli_cluster *cluster, int job, int type, adl_goodput *out);
/* Index of a node's device type. */
int adli_cluster_type(const adli_cluster *cluster, int node);

/* The replicas of the job's present group, as the backend sees them now. Only started, alive, ready,
 * succeeded, interrupted, failed are read. Device time is accounted up to now_s. */
void adli_cluster_observe(adli_cluster *cluster, int job, const adli_observed *seen, double now_s);

/* Runs every job's life-cycle until nothing changes, calling the executor. */
void adli_cluster_advance(adli_cluster *cluster, double now_s);

/* The nodes and resources are these from now on (borrowed as in the options). A node keeps its place;
 * one that is lost or drained has capacity 0. Jobs that no longer fit where they are, the newest first,
 * lose their allocation; the next advance stops them and the next round places them. ENOMEM: nothing
 * changed. *withdrawn: how many jobs. */
ADL_MUST adl_status adli_cluster_set_nodes(adli_cluster *cluster, const char *const *resource_names,
                                           int resource_count, const adl_node *nodes,
                                           int node_count, double now_s, int *withdrawn);

/* A new job need not wait for a round: a preemptible one without an allocation gets the first node where
 * max(min_replicas, 1) replicas fit beside what all others want. *placed: it got one (advance
 * starts it). */
ADL_MUST adl_status adli_cluster_place(adli_cluster *cluster, int job, double now_s, bool *placed);

/* Could the nodes, all empty, hold max(min_replicas, 1) replicas of the request? If not, says why in one
 * line: which resource, and the most that a node has of it. */
bool adli_fits_ever(const char *const *resource_names, int resource_count, const adl_node *nodes,
                    int node_count, const adl_resources *request, int min_replicas, char *why,
                    size_t size);

/* One allocation round: asks the policy for all unfinished jobs, then advances. */
ADL_MUST adl_status adli_cluster_round(adli_cluster *cluster, double now_s);

/* The snapshot and decision of the last round, for logs and explanations; jobs there are numbered
 * within the round, adli_cluster_round_job gives the cluster's number. */
const adl_snapshot *adli_cluster_snapshot(const adli_cluster *cluster);
const adl_decision *adli_cluster_decision(const adli_cluster *cluster);
int adli_cluster_round_job(const adli_cluster *cluster, int index);

/* What is known of a job; borrowed, valid until the next call. */
typedef struct adli_job_info {
    const adli_life *life;
    const int *nodes; /* [replicas] wanted allocation */
    int replicas;
    const int *placed; /* [placed_count] where the present group was started */
    int placed_count;
    double attained_s, run_s, last_change_s, accounted_s;
    double active_sum, active_weight, mean_active;
    int most_replicas;  /* what it may have now: limits, and twice what it was measured on */
    adl_speedup *model; /* NULL: nothing reported yet */
} adli_job_info;
adli_job_info adli_cluster_job(const adli_cluster *cluster, int job);

#endif
