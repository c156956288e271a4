/* Clusters of several device types: which node has which, and placing jobs that keep to one of them. */
#ifndef ADLI_TYPES_H
#define ADLI_TYPES_H

#include "policy/policy.h"
#include "policy/room.h"

typedef struct adli_types {
    const adl_snapshot *snapshot;
    int count;
    int *of_node;                       /* [node_count] */
    adl_resources total[ADL_MAX_TYPES]; /* of all nodes of the type */
    adl_resources asked;                /* the request that node_size was found for */
    int node_size[ADL_MAX_TYPES];       /* replicas of it on an empty node; [0] < 0: none yet */
} adli_types;

/* What a job is to have: n replicas on one type; n == 0: none. */
typedef struct adli_typed_size {
    int type, replicas;
    bool first; /* placed before all others: there is to be room for this one */
} adli_typed_size;

ADL_MUST adl_status adli_types_init(adli_types *types, const adl_snapshot *snapshot);
void adli_types_fini(adli_types *types);
/* The most replicas of the job on one empty node of the type. */
int adli_types_node_size(adli_types *types, const adl_job *job, int type);
/* The type that the job is on; -1: it has no replica. */
int adli_types_present(const adli_types *types, const adl_job *job);
/* The job's rate on n replicas of a type, packed on as few nodes as can be; n without a model. */
double adli_types_rate(const adl_job *job, int node_size, int type, int n);
/* Takes what a job has now from free[types->count]. */
void adli_types_take(const adli_types *types, const adl_job *job, adl_resources *free);

/* The sizes that a job may have on a type, ascending: 1, 2, 4 ... up to a node, then whole nodes, beyond
 * 16 of them in steps of an eighth; the least that it accepts; and, with `present`, what it has now. */
typedef struct adli_sizes {
    int node, least, most;
    int extra[2], grid, last;
} adli_sizes;
adli_sizes adli_types_sizes(adli_types *types, const adl_job *job, int type, bool present);
/* The next one; 0: there are no more. */
int adli_sizes_next(adli_sizes *sizes);

/* Places every job; those whose size did not change stay where they are if that leaves room for the
 * others. One for which there is no room, although its type has enough in all, gets what there is room for, its
 * minimum at least, or none. */
ADL_MUST adl_status adli_types_pack(adli_plan *plan, adli_types *types, adli_typed_size *sizes);

#endif
