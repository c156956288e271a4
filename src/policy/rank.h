/* What the two halves of the rank policy share: rank.c decides how many replicas each job gets,
 * rank_pack.c on which nodes. */
#ifndef ADLI_RANK_H
#define ADLI_RANK_H

#include "policy/policy.h"

typedef struct adli_rank_job {
    double weight;
    int node_size; /* replicas that fit on an empty node: the size of "a node" for this job */
    int replicas;  /* decided by rank.c; lowered by packing when there is no room */
} adli_rank_job;

/* Places every job's replicas. Jobs whose number did not change stay where they are, unless a larger
 * job needs the place. */
ADL_MUST adl_status adli_rank_pack(adli_plan *plan, adli_rank_job *jobs);

#endif
