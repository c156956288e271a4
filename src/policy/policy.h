/* What a policy is made of. To add one: write a file with a `decide` function and an
 * adli_policy_class, and name the class in policy.c. fifo.c is the one to imitate. */
#ifndef ADLI_POLICY_H
#define ADLI_POLICY_H

#include "adaptdl/policy.h"
#include "base/status.h"

/* A constant that users may change: adl_policy_set("rank", "hep", 1.5). */
typedef struct adli_policy_param {
    const char *name;
    double initial, low, high;
    const char *meaning;
} adli_policy_param;

enum { ADLI_POLICY_PARAMS_MAX = 24 };

/* Some replicas of a job on a node. */
typedef struct adli_placement {
    int job, node, count;
} adli_placement;

/* The answer under construction. Policies place replicas and may fill in the explanation; policy.c
 * turns it into the public decision. */
typedef struct adli_plan {
    const adl_snapshot *snapshot;
    const double *params;   /* in the order of the class's table */
    void *state;            /* the policy's memory, see state_size */
    adl_job_decision *jobs; /* [job_count]; policies may set next_replicas, next_gain, rival,
                               rival_gain, restart_cost; the rest is derived */
    int desired_nodes;      /* node_count at the start */
    double type_price
        [ADL_MAX_TYPES];    /* what a device of each type is worth; 0: the policy does not say */
    adli_placement *placed; /* in any order; a (job, node) may come more than once */
    size_t placed_count, placed_capacity;
    adl_status status; /* no memory for a placement */
} adli_plan;

typedef struct adli_policy_class {
    const char *name, *summary;
    const adli_policy_param *params; /* ends with a NULL name */
    bool adapts;                     /* expects jobs that follow with their batch size */
    size_t state_size;               /* zeroed storage kept between decisions; may be 0 */
    void (*fini)(void *state);       /* frees what the state points to; may be NULL */
    adl_status (*decide)(adli_plan *plan);
} adli_policy_class;

extern const adli_policy_class adli_policy_rank, adli_policy_pollux, adli_policy_tiresias,
    adli_policy_optimus, adli_policy_sia, adli_policy_fifo;

/* Gives the job count more replicas on the node. */
void adli_plan_place(adli_plan *plan, int job, int node, int count);

/* Not preemptible and already placed: must stay as it is. */
static inline bool adli_job_pinned(const adl_job *job)
{
    return !job->preemptible && job->replicas > 0;
}

/* Could one replica run on some node, were it empty? Drained nodes may count. */
bool adli_could_hold(const adl_snapshot *snapshot, const adl_job *job, bool drained);

/* The index of a node's device type among the snapshot's; 0 where there is one, or it is not among them. */
int adli_node_type(const adl_snapshot *snapshot, const adl_node *node);

/* job->model's speedup, or the linear one when nothing was reported. */
double adli_job_speedup(const adl_job *job, adl_shape shape);
/* How a job that runs gets another allocation. A job that cannot change in place is restarted in any case. */
typedef enum adli_change {
    ADLI_RESTARTS,
    ADLI_RESIZES, /* some replicas are where they are now: it changes in place */
    ADLI_MOVES, /* none is, but there is room for all beside those that it has: two changes in place */
} adli_change;

/* Seconds that this costs the job. usual_s: of jobs that do not say. */
static inline double adli_job_change_cost(const adl_job *job, adli_change change, double usual_s)
{
    double restart_s = job->restart_cost_s > 0 ? job->restart_cost_s : usual_s;
    if (change == ADLI_RESTARTS || !(job->resize_cost_s > 0))
        return restart_s;
    if (change == ADLI_RESIZES)
        return job->resize_cost_s;
    return 2 * job->resize_cost_s < restart_s ? 2 * job->resize_cost_s : restart_s;
}

static inline double adli_job_priority(const adl_job *job)
{
    return job->priority > 0 ? job->priority : 1;
}

#endif
