/* One simulated training job: what really happens inside it (from the traces), and what it can know
 * and report of that. */
#ifndef ADLI_SIM_JOB_H
#define ADLI_SIM_JOB_H

#include "adaptdl/fit.h"
#include "adaptdl/goodput.h"
#include "sim/trace.h"

#include <stdbool.h>

typedef struct adli_sim_job {
    const adli_app *app; /* on the device type that it is on, or was on last */
    int type;
    int fixed_batch;                    /* > 0: trains at this total batch size; 0: adapts */
    int gpus;                           /* on each node, to predict other sizes */
    double compute_factor, sync_factor; /* by which it is slower than the recorded ones */
    bool declares;                      /* says how much work it has */
    bool lone_grows;                    /* see adl_batch_limits */
    bool reports; /* fits a model of itself; off where no policy would read it */

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
    int new_sizes; /* numbers of replicas that it measured for the first time */
    bool has_perf[ADL_MAX_TYPES];
    adl_perf_params perf[ADL_MAX_TYPES];
    bool has_prior; /* what it was told when it was started */
    adl_goodput prior;
    adl_grad_params grad;
    struct {
        adl_goodput model;
        int nodes, replicas, type, local_bsz, accum_steps;
    } chosen; /* for what (m, s) was last chosen */
    struct {
        int local_bsz; /* 0: not asked since it was placed */
        double step_s, sync_s;
    } timed; /* its true times where it is */
} adli_sim_job;

ADL_MUST adl_status adli_sim_job_init(adli_sim_job *job, const adli_app *app, int fixed_batch,
                                      bool reports, int max_nodes);
void adli_sim_job_fini(adli_sim_job *job);

/* A new allocation ([replicas] nodes of one type, ascending), which costs delay_s without progress; 0
 * replicas suspend it. prior (may be NULL): what is known of jobs of its kind. */
ADL_MUST adl_status adli_sim_job_place(adli_sim_job *job, const int *nodes, int replicas, int type,
                                       double delay_s, const adl_goodput *prior);

/* Lets `seconds` pass at a speed of (1 - interference). */
ADL_MUST adl_status adli_sim_job_run(adli_sim_job *job, double seconds, double interference);

static inline bool adli_sim_job_finished(const adli_sim_job *job)
{
    return job->finish_s >= 0;
}

/* What it can tell about its own batch bounds. */
adl_batch_limits adli_sim_job_limits(const adli_sim_job *job);
/* Has it measured anything on the type that it is on? */
static inline bool adli_sim_job_measured(const adli_sim_job *job)
{
    return job->has_perf[job->type];
}
/* Its goodput model of that type; valid when it has. */
adl_goodput adli_sim_job_model(const adli_sim_job *job);

#endif
