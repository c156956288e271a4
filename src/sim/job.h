/* One simulated training job: what really happens inside it (from the traces), and what it can know
 * and report of that. */
#ifndef ADLI_SIM_JOB_H
#define ADLI_SIM_JOB_H

#include "adaptdl/fit.h"
#include "adaptdl/goodput.h"
#include "sim/trace.h"

#include <stdbool.h>

typedef struct adli_sim_job {
    const adli_app *app;
    int fixed_batch; /* > 0: trains at this total batch size; 0: adapts */
    int gpus;        /* on each node, to predict other sizes */
    bool reports;    /* fits a model of itself; off where no policy would read it */

    int *shape; /* [nodes] replicas on each node it uses, in node order */
    int nodes, replicas;
    int local_bsz, accum_steps; /* m and s */
    double delay_s;             /* rest of the pause after a change of allocation */

    double progress; /* initial-batch steps' worth */
    int epoch;
    double now_s;    /* its clock */
    double finish_s; /* < 0: not finished */

    adl_profile_point *profile; /* what it measured, each (N, R, m) once */
    size_t profile_count, profile_capacity;
    int max_profiled;
    bool has_perf;
    adl_perf_params perf;
    adl_grad_params grad;
} adli_sim_job;

ADL_MUST adl_status adli_sim_job_init(adli_sim_job *job, const adli_app *app, int fixed_batch,
                                      bool reports, int max_nodes);
void adli_sim_job_fini(adli_sim_job *job);

/* A new allocation ([replicas] nodes, ascending), which costs delay_s without progress; 0 replicas
 * suspend it. */
ADL_MUST adl_status adli_sim_job_place(adli_sim_job *job, const int *nodes, int replicas,
                                       double delay_s);

/* Lets `seconds` pass at a speed of (1 - interference). */
ADL_MUST adl_status adli_sim_job_run(adli_sim_job *job, double seconds, double interference);

static inline bool adli_sim_job_finished(const adli_sim_job *job)
{
    return job->finish_s >= 0;
}

/* What it can tell about its own batch bounds. */
adl_batch_limits adli_sim_job_limits(const adli_sim_job *job);
/* Its goodput model; valid when has_perf. */
adl_goodput adli_sim_job_model(const adli_sim_job *job);

#endif
