/* The job of the published simulator (spec: simulator semantics): within an epoch everything is
 * constant, so time is stepped from epoch boundary to epoch boundary. */
#include "sim/job.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

adl_status adli_sim_job_init(adli_sim_job *job, const adli_app *app, int fixed_batch, bool reports,
                             int max_nodes)
{
    *job =
        (adli_sim_job){.app = app, .fixed_batch = fixed_batch, .reports = reports, .finish_s = -1};
    job->shape = adli_calloc((size_t)max_nodes, sizeof *job->shape);
    return job->shape ? ADL_OK : adli_fail_memory("simulated job");
}

void adli_sim_job_fini(adli_sim_job *job)
{
    free(job->shape);
    free(job->profile);
    *job = (adli_sim_job){0};
}

adl_batch_limits adli_sim_job_limits(const adli_sim_job *job)
{
    return (adl_batch_limits){.max_batch_size = job->app->max_batch,
                              .min_local_bsz = job->app->min_local,
                              .max_local_bsz = job->app->max_local,
                              .accumulation = true};
}

adl_goodput adli_sim_job_model(const adli_sim_job *job)
{
    return (adl_goodput){job->perf, job->grad, job->app->init_batch};
}

/* Chooses (m, s) for the present allocation. */
static adl_status choose_batch(adli_sim_job *job)
{
    const adli_app *app = job->app;
    int batch = job->fixed_batch;
    if (batch == 0 && !job->has_perf) {
        batch = app->min_local * job->replicas;
        batch = batch > app->init_batch ? batch : app->init_batch;
    }
    if (batch > 0) {
        adli_app_split(app, batch, job->replicas, &job->local_bsz, &job->accum_steps);
        return ADL_OK;
    }
    adl_goodput model = adli_sim_job_model(job);
    adl_batch_limits limits = adli_sim_job_limits(job);
    adl_batch_choice choice;
    adl_status status =
        adl_goodput_optimize(&model, &limits, adl_shape_of(job->nodes, job->replicas), &choice);
    if (status != ADL_OK)
        return status;
    int most = app->max_batch / (job->replicas * (choice.accum_steps + 1));
    job->local_bsz = choice.local_bsz < most ? choice.local_bsz : most > 1 ? most : 1;
    job->accum_steps = choice.accum_steps;
    return ADL_OK;
}

adl_status adli_sim_job_place(adli_sim_job *job, const int *nodes, int replicas, double delay_s)
{
    job->nodes = 0;
    job->replicas = replicas;
    for (int i = 0; i < replicas; i++) {
        if (i == 0 || nodes[i] != nodes[i - 1])
            job->shape[job->nodes++] = 0;
        job->shape[job->nodes - 1]++;
    }
    if (replicas == 0)
        return ADL_OK;
    job->delay_s = delay_s;
    return choose_batch(job);
}

/* Remembers the first measurement of each (N, R, m) and fits the model again. */
static adl_status measure(adli_sim_job *job, double step_s, double sync_s)
{
    if (!job->reports)
        return ADL_OK;
    for (size_t i = 0; i < job->profile_count; i++) {
        const adl_profile_point *p = &job->profile[i];
        if (p->local_bsz == job->local_bsz && p->replicas == job->replicas &&
            p->nodes == job->nodes)
            return ADL_OK;
    }
    if (adli_grow(&job->profile, &job->profile_capacity, job->profile_count + 1,
                  sizeof *job->profile) != 0)
        return adli_fail_memory("profile");
    job->profile[job->profile_count++] =
        (adl_profile_point){job->nodes, job->replicas, job->local_bsz, step_s - sync_s, step_s};
    if (job->replicas > job->max_profiled)
        job->max_profiled = job->replicas;
    adl_fit_result fit;
    adl_status status = adl_fit(job->profile, job->profile_count, &fit);
    if (status != ADL_OK)
        return status;
    job->perf = fit.perf;
    job->has_perf = true;
    return ADL_OK;
}

/* One stretch of constant speed: to the end of the epoch or of *seconds. */
static adl_status run_stretch(adli_sim_job *job, double *seconds, double interference)
{
    const adli_app *app = job->app;
    double batch = (double)job->replicas * job->local_bsz * (job->accum_steps + 1);
    double step_s, sync_s;
    adli_app_step_time(app, job->shape, job->nodes, job->local_bsz, &step_s, &sync_s);
    adli_app_grad(app, batch, job->epoch, &job->grad.sqr, &job->grad.var);
    adl_status status = measure(job, step_s, sync_s);
    if (status != ADL_OK)
        return status;
    double gain = adl_gain(job->grad, batch / app->init_batch);
    double rate = gain / (step_s + (step_s - sync_s) * job->accum_steps) * (1 - interference);
    double needed = app->needed[job->epoch + 1];
    if (job->progress + rate * *seconds < needed) {
        job->progress += rate * *seconds;
        job->now_s += *seconds;
        *seconds = 0;
    } else {
        /* Whole seconds, halves to even: the published results were made that way. */
        double taken = nearbyint((needed - job->progress) / rate);
        job->progress = needed;
        job->epoch++;
        job->now_s += taken;
        *seconds -= taken;
        if (job->epoch >= app->epochs) {
            job->finish_s = job->now_s;
            return ADL_OK;
        }
    }
    return choose_batch(job);
}

adl_status adli_sim_job_run(adli_sim_job *job, double seconds, double interference)
{
    adl_status status = ADL_OK;
    if (job->replicas > 0) {
        double pause = fmin(job->delay_s, seconds);
        job->delay_s -= pause;
        job->now_s += pause;
        seconds -= pause;
        while (seconds > 0 && !adli_sim_job_finished(job) && status == ADL_OK)
            status = run_stretch(job, &seconds, interference);
    }
    job->now_s += seconds;
    return status;
}
