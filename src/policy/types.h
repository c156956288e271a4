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
} adli_types;

/* What a job is to have: n replicas on one type; n == 0: none. */
typedef struct adli_typed_size {
    int type, replicas;
} adli_typed_size;

ADL_MUST adl_status adli_types_init(adli_types *types, const adl_snapshot *snapshot);
void adli_types_fini(adli_types *types);
/* The most replicas of the job on one empty node of the type. */
int adli_types_node_size(const adli_types *types, const adl_job *job, int type);
/* The type that the job is on; -1: it has no replica. */
int adli_types_present(const adli_types *types, const adl_job *job);
/* 1, 2, 4 ... up to a node, then whole nodes. */
int adli_types_next(int node_size, int n);
/* The job's rate on n replicas of a type, packed on as few nodes as can be; n without a model. */
double adli_types_rate(const adl_job *job, int node_size, int type, int n);

/* Places every job; those whose size did not change stay where they are if that leaves room for the
 * others. Sizes must be of the grid above and within the total of each type. */
ADL_MUST adl_status adli_types_pack(adli_plan *plan, const adli_types *types,
                                    adli_typed_size *sizes);

#endif
