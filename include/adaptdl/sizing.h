/* How large a cluster should be that can grow and shrink: whatever the policy, it is asked what it would do with fewer
 * or more nodes, and the size is chosen by what that is worth. Pure, as policies are. */
#ifndef ADAPTDL_SIZING_H
#define ADAPTDL_SIZING_H

#include "adaptdl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_sizing {
    size_t size;              /* sizeof(adl_sizing), set by the _INIT macro */
    int min_nodes, max_nodes; /* max_nodes 0: the size is nobody's business */
    /* Without a budget: the size is kept while the utility is in this range, else it is the one whose utility is
     * nearest to the middle. utility: sum over jobs of speedup / replicas x their share of the nodes. */
    double low_utility, high_utility;
    /* With a budget per hour: as many nodes as it pays for, but no node that brings less for its price than
     * low_utility of what the first ones bring for theirs. */
    double budget;
    double node_price;    /* per hour, of a new node and of those that prices does not name */
    const double *prices; /* [node_count] of the snapshot's; <= 0: node_price. NULL: all of them */
} adl_sizing;
#define ADL_SIZING_INIT                                                                            \
    {                                                                                              \
        .size = sizeof(adl_sizing), .low_utility = 0.35, .high_utility = 0.65                      \
    }

/* What became of it. What nodes bring is in speedups of jobs, summed: 1 is a job's speed on one replica. */
typedef struct adl_sized {
    int present, desired; /* nodes that can be used now, that there should be */
    double utility;       /* of those present; 0: none, or no job */
    double brings;        /* what the desired ones bring together */
    double last, next;    /* of it by the last of them; by one more */
    double cost;          /* of the desired ones per hour; 0: no prices */
} adl_sized;

/* As adl_policy_decide. Where the cluster is to shrink, nothing is placed on the nodes that are to go: those that jobs
 * use least, of these the dearer ones; never those of jobs that cannot be moved. decision->desired_nodes is
 * sized->desired. The snapshot's template_node is what a new node has; without one it cannot be told, and one is wanted
 * where there are none. EINVAL: the sizing. */
ADL_API ADL_MUST adl_status adl_sizing_decide(adl_policy *policy, const adl_snapshot *snapshot,
                                              const adl_sizing *sizing, adl_decision *decision,
                                              adl_sized *sized);

/* One sentence, for people; cut to size. Returns text. */
ADL_API const char *adl_sized_explain(const adl_sizing *sizing, const adl_sized *sized, char *text,
                                      size_t size);

#ifdef __cplusplus
}
#endif
#endif
