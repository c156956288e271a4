/* What the files of the cluster share. */
#ifndef ADLI_CLUSTER_IMPL_H
#define ADLI_CLUSTER_IMPL_H

#include "sched/cluster.h"

typedef struct adli_sched_job {
    char *name; /* NULL: removed */
    adli_job_spec spec;
    adli_life life;
    adli_observed seen;
    int *nodes; /* [replicas] wanted allocation, ascending */
    int replicas;
    size_t nodes_capacity;
    int *placed; /* [placed_count] where the present group was started */
    int placed_count;
    size_t placed_capacity;
    bool moved; /* the wanted allocation changed since the group was started */
    bool deleted;

    adl_speedup *model;
    adli_pool_member *known; /* what it and its like have measured */
    uint64_t model_version;  /* of known, and for how many replicas, model was made */
    int model_most;
    int max_profiled, batch_cap; /* batch_cap: most replicas that the batch limits allow */
    double progress, total_work, epoch_work, restart_cost_s, remaining_steps;
    double (*step_time_s)(void *context, int replicas);
    void *step_context;

    double last_change_s;
    double accounted_s; /* device time is counted up to here */
    double attained_s, run_s;
    double active_sum, active_weight; /* mean number of unfinished jobs */
} adli_sched_job;

struct adli_cluster {
    adli_cluster_options options;
    adli_sched_job *jobs; /* job number n is jobs[n - base] */
    size_t job_count, job_capacity;
    int base;             /* jobs removed from the front */
    int first_unfinished; /* index: all before it are over */
    double last_round_s, last_submit_s;

    adl_job *views; /* the round's snapshot */
    int *view_job;  /* their numbers */
    size_t view_capacity, view_job_capacity;
    adl_snapshot snapshot;
    adl_decision decision;

    adli_pool *own_pool;              /* when the options have none */
    const char *types[ADL_MAX_TYPES]; /* distinct device types of the nodes; borrowed from them */
    int type_count;

    adl_resources *used; /* [node_count] scratch of cluster_room.c */
    size_t used_capacity;
};

/* Is a group of the job on its nodes, or about to be? */
static inline bool adli_cluster_occupies(const adli_sched_job *j)
{
    return j->life.phase == ADLI_STARTING || j->life.phase == ADLI_RUNNING ||
           j->life.phase == ADLI_STOPPING;
}

/* Collects the device types of the nodes. */
void adli_cluster_find_types(adli_cluster *cluster);
/* Makes a job's model anew if more is known than when it was made. */
ADL_MUST adl_status adli_cluster_learn(adli_cluster *cluster, adli_sched_job *j);
/* Most replicas that it may have now. */
int adli_cluster_cap(const adli_cluster *cluster, const adli_sched_job *j);
double adli_cluster_total_work(const adli_cluster *cluster, const adli_sched_job *j);

/* Could the wanted replicas start now, next to all groups that are still there? */
bool adli_cluster_has_room(adli_cluster *cluster, const adli_sched_job *j);

#endif
