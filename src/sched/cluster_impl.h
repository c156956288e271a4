/* What the files of the cluster share. */
#ifndef ADLI_CLUSTER_IMPL_H
#define ADLI_CLUSTER_IMPL_H

#include "adaptdl/cluster.h"
#include "base/status.h"
#include "sched/cluster.h"
#include "sched/lifecycle.h"
#include "sched/trust.h"

#include <sys/queue.h>

typedef struct adli_sched_job {
    int number;
    int64_t seq; /* by submission */
    char *name;
    TAILQ_ENTRY(adli_sched_job) live, busy;
    bool is_busy;
    adl_job_spec spec;
    adl_life life;
    adl_observed seen;
    int *nodes; /* [replicas] wanted allocation, ascending */
    int replicas;
    size_t nodes_capacity;
    int *placed; /* [placed_count] where the present group was started */
    int placed_count;
    size_t placed_capacity;
    bool moved; /* the wanted allocation changed since the group was started */
    bool
        in_place; /* whoever carries out orders resizes it while it runs: moved is no reason to stop */
    bool deleted, held;
    int pin; /* replicas that its user wants, no more and no less; 0: none in particular */

    adl_speedup *model;
    adli_pool_member *known; /* what it and its like have measured */
    uint64_t model_version;  /* of known, and for how many replicas, model was made */
    int model_most;
    int max_profiled, batch_cap; /* batch_cap: most replicas that the batch limits allow */
    double progress, total_work, epoch_work, restart_cost_s, remaining_steps;
    double resize_cost_s; /* in place; 0: unknown */
    double resize_told_s; /* what it reported, in place or not; 0: nothing */
    double (*step_time_s)(void *context, int replicas);
    void *step_context;
    adli_trust trust;

    adl_account account;
    adl_job_info info; /* as adl_cluster_job told it last */
} adli_sched_job;

TAILQ_HEAD(adli_sched_jobs, adli_sched_job);

struct adl_cluster {
    adl_cluster_options options;
    adli_sched_job **jobs; /* by number; NULL: a free one */
    size_t job_count, job_capacity;
    int *free_numbers; /* [free_count] */
    size_t free_count, free_capacity;
    /* Unfinished jobs in order of submission, and among them those whose life-cycle may have something to
     * say: they want replicas, have some, or are to go. */
    struct adli_sched_jobs live, busy;
    int live_count;
    int64_t next_seq;
    adl_order *orders;
    size_t order_count, order_capacity;
    int64_t visits; /* of jobs in loops over them, for tests */
    int64_t misses; /* of trust.missed: how often any was counted */
    double last_round_s, last_submit_s;

    adl_job *views; /* the round's snapshot */
    int *view_job;  /* their numbers */
    size_t view_capacity, view_job_capacity;
    bool prepared; /* the snapshot is that of the round to come */
    adl_snapshot snapshot;
    adl_decision decision;
    adl_sizing sizing; /* max_nodes 0: none */
    adl_sized sized;

    adli_pool *pool, *own_pool; /* own: when it was given none */

    /* [node_count] sums over unfinished jobs: what their wanted allocations take, what groups that are
     * there take. Kept by cluster_room.c, which alone changes nodes and placed of a job. */
    adl_resources *claimed, *occupied;
    size_t claimed_capacity, occupied_capacity;
    int table_count;
};

/* Is a group of the job on its nodes, or about to be? */
static inline bool adli_cluster_occupies(const adli_sched_job *j)
{
    return j->life.phase == ADL_STARTING || j->life.phase == ADL_RUNNING ||
           j->life.phase == ADL_STOPPING;
}

/* Makes the device types of these nodes known. */
ADL_MUST adl_status adli_cluster_find_types(adl_cluster *cluster, const adl_node *nodes, int count);
/* Makes a job's model anew if more is known than when it was made. */
ADL_MUST adl_status adli_cluster_learn(adl_cluster *cluster, adli_sched_job *j);
/* Most replicas that it may have now. */
int adli_cluster_cap(const adl_cluster *cluster, const adli_sched_job *j);
double adli_cluster_total_work(const adl_cluster *cluster, const adli_sched_job *j);

/* Its life-cycle is looked at by the next advance. */
void adli_cluster_stir(adl_cluster *cluster, adli_sched_job *j);

/* Room for so many nodes in the tables. */
ADL_MUST adl_status adli_cluster_size_tables(adl_cluster *cluster, int node_count);
/* The wanted allocation, with room for where it will be started: a start cannot fail. nodes may be the
 * job's own. */
ADL_MUST adl_status adli_cluster_want(adl_cluster *cluster, adli_sched_job *j, const int *nodes,
                                      int count);
/* Its group is there now; count 0: nowhere. placed has room for as many as were ever wanted. */
void adli_cluster_settle(adl_cluster *cluster, adli_sched_job *j, const int *nodes, int count);

/* The rules that the job lives by. */
const adl_rules *adli_cluster_rules(const adl_cluster *cluster, const adli_sched_job *j);
/* How many replicas fit in what is left of a node. */
int64_t adli_cluster_fit(const adl_resources *capacity, const adl_resources *used,
                         const adl_resources *request, int kinds);

/* Could the wanted replicas start now, next to all groups that are still there? */
bool adli_cluster_has_room(adl_cluster *cluster, const adli_sched_job *j);

#endif
