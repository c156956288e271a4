/* Many simulations at once: every policy on every workload, on all cores. Results do not depend on
 * how many run at the same time. */
#ifndef ADLI_BATCH_H
#define ADLI_BATCH_H

#include "sim/simulate.h"

typedef struct adli_batch {
    /* set by the caller */
    const char *const *policies;
    int policy_count;
    const adli_workload *workloads;
    int workload_count;
    adli_sim_options options; /* its policy field is not used */
    int threads;
    /* called about ten times a second while simulations run, with jobs finished and all; may be
     * NULL */
    void (*progress)(int finished, int all);
    /* filled by adli_batch_run: [policy_count][workload_count] */
    adli_sim_result *results;
} adli_batch;

/* On failure there are no results. */
ADL_MUST adl_status adli_batch_run(adli_batch *batch);
void adli_batch_fini(adli_batch *batch);

static inline const adli_sim_result *adli_batch_result(const adli_batch *batch, int policy,
                                                       int workload)
{
    return &batch->results[policy * batch->workload_count + workload];
}

#endif
