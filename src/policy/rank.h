/* What the two halves of the rank policy share: rank.c decides how many replicas each job gets,
 * rank_pack.c on which nodes; rank_types.c does both where there are several device types. */
#ifndef ADLI_RANK_H
#define ADLI_RANK_H

#include "policy/policy.h"

/* Places of the constants in adli_policy_rank.params. */
enum {
    ADLI_RANK_PRICE,
    ADLI_RANK_KMIX,
    ADLI_RANK_PFUT,
    ADLI_RANK_HEP,
    ADLI_RANK_ALPHA,
    ADLI_RANK_P,
    ADLI_RANK_RS,
    ADLI_RANK_HY,
    ADLI_RANK_SHY,
    ADLI_RANK_DW,
    ADLI_RANK_TPRIOR,
    ADLI_RANK_GTH,
    ADLI_RANK_GEX,
    ADLI_RANK_RESTART
};

/* What is left to do, in initial-batch steps; without a model in seconds, at a rate of 1. */
double adli_rank_work(const adl_job *job, double rate1, double tprior_s);

/* price=0: the weight of a job at a place in the ranking, k^hep * (T1 / 1000 s)^-alpha. */
double adli_rank_weight(const double *values, double position, double t1_s);

/* The whole decision where there are several device types: rank_types.c. */
ADL_MUST adl_status adli_rank_types(adli_plan *plan, double price);

typedef struct adli_rank_job {
    double weight;
    int node_size; /* replicas that fit on an empty node: the size of "a node" for this job */
    int replicas;  /* decided by rank.c; lowered by packing when there is no room */
} adli_rank_job;

/* Places every job's replicas. Jobs whose number did not change stay where they are, unless a larger
 * job needs the place. */
ADL_MUST adl_status adli_rank_pack(adli_plan *plan, adli_rank_job *jobs);

#endif
