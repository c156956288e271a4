/* Scheduling policies: a snapshot of the cluster in, an allocation for every job out. A policy
 * computes and nothing else: it reads no clock, file or socket, and draws its random numbers from
 * the snapshot's seed, so the same snapshot always gives the same decision. The scheduler daemon, the
 * simulator and the tests call the same policies through this header. */
#ifndef ADAPTDL_POLICY_H
#define ADAPTDL_POLICY_H

#include "adaptdl/speedup.h"
#include "adaptdl/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ADL_MAX_RESOURCES = 8 };
/* The most of one resource that a node can have or a replica can ask for: a PiB, were it memory.
 * Sums over a cluster then fit in 64 bits. */
#define ADL_MAX_AMOUNT ((int64_t)1 << 50)

/* Amounts by resource, in the order of adl_snapshot.resource_names. */
typedef struct adl_resources {
    int64_t amount[ADL_MAX_RESOURCES];
} adl_resources;

typedef struct adl_node {
    const char *name;
    const char *device_type; /* "" when there is only one kind */
    adl_resources capacity;  /* what our jobs may use of it; nothing while it is drained or lost */
    bool preemptible;        /* a spot node: may be taken away */
    adl_resources drained;   /* what was withheld by draining it: capacity when it is used again */
} adl_node;

/* May a job that runs be left without replicas for the sake of others? For policies that ask. */
typedef enum adl_suspend {
    ADL_SUSPEND_WHEN_BETTER, /* whenever they are worth more elsewhere */
    ADL_SUSPEND_LAST_RESORT, /* so that others can start, not so that they grow */
    ADL_SUSPEND_NEVER,
} adl_suspend;
/* "when-better", "last-resort", "never"; NULL past the end. */
ADL_API const char *adl_suspend_name(int suspend);

typedef struct adl_job {
    const char *name;
    adl_resources request; /* of one replica */
    int min_replicas;      /* has none or at least this many */
    int max_replicas;      /* has at most this many; >= 1 */
    bool preemptible;      /* false: once allocated, it is not moved */
    const int *allocation; /* [replicas] node of each replica, ascending; NULL when 0 */
    int replicas;

    double submit_s;       /* when it was submitted, on the clock of adl_snapshot.now_s */
    double last_change_s;  /* when its allocation last changed */
    double attained_s;     /* device-seconds it has had */
    double run_s;          /* seconds during which it had an allocation */
    double mean_active;    /* mean number of unfinished jobs during its life; 0: unknown */
    double restart_cost_s; /* what one restart costs it; 0: the policy's default */
    double
        resize_cost_s; /* what another number of replicas costs it where some stay; 0: a restart */
    int restarts;

    adl_speedup *model; /* its goodput memo; NULL: nothing reported yet */
    int max_profiled;   /* most replicas it was ever measured on */
    double progress;    /* initial-batch steps' worth of training done */
    double total_work;  /* the same when it will be finished; 0: not declared */
    double epoch_work;  /* the same for one epoch; 0: not declared */

    double priority;     /* its weight against other jobs, for policies that weigh them; 0: 1 */
    adl_suspend suspend; /* once it runs */

    int fixed_replicas; /* for policies that do not adapt: what the user asked for; 0: none */
    /* Seconds per step on that many replicas and steps left, for policies that work at a fixed batch
     * size (optimus). NULL: taken from the model. */
    double (*step_time_s)(void *context, int replicas);
    void *step_context;
    double remaining_steps;
} adl_job;

typedef struct adl_snapshot {
    const char *const *resource_names;
    int resource_count; /* 1 .. ADL_MAX_RESOURCES */
    const adl_node *nodes;
    int node_count;
    const adl_job *jobs; /* in order of submission */
    int job_count;
    const adl_node *template_node; /* what auto-scaling would add; NULL: no auto-scaling */
    /* Kinds of devices, by adl_shape.type; jobs' models tell them apart. NULL, 0: there is one. */
    const char *const *type_names;
    int type_count;
    bool shared_models; /* jobs of one application share what they measured */
    double now_s;
    uint64_t seed;
} adl_snapshot;

typedef enum adl_reason {
    ADL_REASON_KEPT,    /* as before */
    ADL_REASON_STARTED, /* had none */
    ADL_REASON_GREW,
    ADL_REASON_SHRANK,
    ADL_REASON_MOVED,      /* same number, other nodes */
    ADL_REASON_SUSPENDED,  /* lost what it had */
    ADL_REASON_WAITING,    /* has none and gets none */
    ADL_REASON_PINNED,     /* not preemptible, left alone */
    ADL_REASON_IMPOSSIBLE, /* no node could ever hold one replica */
} adl_reason;

/* What one job gets, and why. */
typedef struct adl_job_decision {
    const int *nodes; /* [replicas] node of each replica, ascending */
    int replicas;
    adl_reason reason;
    double speedup;      /* predicted, against one replica */
    double restart_cost; /* share of its value lost to the restart, 0 when kept */
    int next_replicas;   /* the next size it would use; 0: it wants no more */
    double next_gain;    /* speedup there / speedup here (speedup there when it has none) */
    int rival;           /* job that got the devices instead; -1: none */
    double rival_gain;   /* what the rival's last devices multiply its speedup by */
    /* What was compared, for policies that hand out devices by their worth: a job's weight, and what its next
     * devices would be worth to it, or its last ones are, per share of the cluster. 0: not told. */
    double weight, next_worth, rival_weight, rival_worth;
    int type;           /* device type of the first of the nodes; 0 where there is one type */
    int other_type;     /* the best of the others for as many replicas; -1: none, or not known */
    double other_gain;  /* speedup there / speedup here */
    double other_price; /* price of a device there / here, as the policy sees it; 0: it has none */
} adl_job_decision;

/* Filled by adl_policy_decide; reuse one for many rounds. Start with {0}. */
typedef struct adl_decision {
    adl_job_decision *jobs; /* [job_count] in the snapshot's order */
    int job_count;
    int desired_nodes; /* how large the cluster should be */
    int *storage;      /* behind jobs[].nodes; not for callers */
    size_t jobs_capacity, storage_capacity;
} adl_decision;

ADL_API void adl_decision_fini(adl_decision *decision);

/* A policy with its parameters and whatever it remembers to start the next search from (forgetting
 * it changes no rule). One thread at a time. */
typedef struct adl_policy adl_policy;

/* EINVAL lists the known names. */
ADL_API ADL_MUST adl_status adl_policy_new(const char *name, adl_policy **out);
ADL_API void adl_policy_free(adl_policy *policy);
ADL_API const char *adl_policy_name(const adl_policy *policy);
/* Does it expect jobs to adapt their batch size? The others were published for fixed ones. */
ADL_API bool adl_policy_adapts(const adl_policy *policy);

/* The policies: index 0 is the default; NULL past the end. */
ADL_API const char *adl_policy_list(int index, const char **summary);

/* One of the policy's constants by name; EINVAL names the ones there are, or the range. */
ADL_API ADL_MUST adl_status adl_policy_set(adl_policy *policy, const char *parameter, double value);
typedef struct adl_policy_parameter {
    const char *name;
    double value, low, high;
    const char *meaning;
} adl_policy_parameter;
/* The index-th constant with its present value; false past the end. */
ADL_API bool adl_policy_get(const adl_policy *policy, int index, adl_policy_parameter *out);

/* Is the snapshot well-formed (indices, bounds, finite numbers, allocations within capacity)? The
 * error names the job or node. adl_policy_decide takes a checked snapshot. */
ADL_API ADL_MUST adl_status adl_snapshot_check(const adl_snapshot *snapshot);

/* Decides for every job. On failure (no memory) the decision is empty. The pointers in it are valid
 * until the next call with the same adl_decision. */
ADL_API ADL_MUST adl_status adl_policy_decide(adl_policy *policy, const adl_snapshot *snapshot,
                                              adl_decision *decision);

/* One sentence on one job, for people; cut to size. Returns text. */
ADL_API const char *adl_decision_explain(const adl_snapshot *snapshot, const adl_decision *decision,
                                         int job, char *text, size_t size);

#ifdef __cplusplus
}
#endif
#endif
