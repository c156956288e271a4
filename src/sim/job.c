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
    *job = (adli_sim_job){.app = app,
                          .fixed_batch = fixed_batch,
                          .reports = reports,
                          .compute_factor = 1,
                          .sync_factor = 1,
                          .finish_s = -1};
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
                              .accumulation = true,
                              .lone_grows = job->lone_grows};
}

adl_goodput adli_sim_job_model(const adli_sim_job *job)
{
    return (adl_goodput){job->perf[job->type], job->grad, job->app->init_batch};
}

/* Chooses (m, s) for the present allocation. */
static adl_status choose_batch(adli_sim_job *job)
{
    const adli_app *app = job->app;
    int batch = job->fixed_batch;
    bool measured = adli_sim_job_measured(job);
    if (batch == 0 && !measured && !job->has_prior) {
        batch = app->min_local * job->replicas;
        batch = batch > app->init_batch ? batch : app->init_batch;
    }
    if (batch > 0) {
        adli_app_split(app, batch, job->replicas, &job->local_bsz, &job->accum_steps);
        return ADL_OK;
    }
    adl_goodput model = measured ? adli_sim_job_model(job) : job->prior;
    if (measured && job->has_prior) /* others measured more than it did */
        model.perf = job->prior.perf;
    if (memcmp(&model, &job->chosen.model, sizeof model) == 0 && job->chosen.nodes == job->nodes &&
        job->chosen.replicas == job->replicas && job->chosen.type == job->type) {
        job->local_bsz = job->chosen.local_bsz;
        job->accum_steps = job->chosen.accum_steps;
        return ADL_OK;
    }
    adl_batch_limits limits = adli_sim_job_limits(job);
    limits.max_local_bsz = adli_app_max_local(app, job->replicas);
    adl_batch_choice choice;
    adl_status status =
        adl_goodput_optimize(&model, &limits, adl_shape_of(job->nodes, job->replicas), &choice);
    if (status != ADL_OK)
        return status;
    int most = app->max_batch / (job->replicas * (choice.accum_steps + 1));
    job->local_bsz = choice.local_bsz < most ? choice.local_bsz : most > 1 ? most : 1;
    job->accum_steps = choice.accum_steps;
    job->chosen.model = model;
    job->chosen.nodes = job->nodes;
    job->chosen.replicas = job->replicas;
    job->chosen.type = job->type;
    job->chosen.local_bsz = job->local_bsz;
    job->chosen.accum_steps = job->accum_steps;
    return ADL_OK;
}

adl_status adli_sim_job_place(adli_sim_job *job, const int *nodes, int replicas, int type,
                              double delay_s, const adl_goodput *prior)
{
    job->nodes = 0;
    job->timed.local_bsz = 0;
    job->replicas = replicas;
    for (int i = 0; i < replicas; i++) {
        if (i == 0 || nodes[i] != nodes[i - 1])
            job->shape[job->nodes++] = 0;
        job->shape[job->nodes - 1]++;
    }
    if (replicas == 0)
        return ADL_OK;
    job->type = type;
    job->app = adli_app_on(job->app, type);
    job->delay_s = delay_s;
    job->has_prior = prior != NULL;
    if (prior)
        job->prior = *prior;
    return choose_batch(job);
}

/* Its model of the type that it is on, from what it measured there. */
static adl_status fit(adli_sim_job *job)
{
    size_t count = 0;
    adl_fit_result result;
    adl_profile_point *points = adli_calloc(job->profile_count, sizeof *points);
    if (!points)
        return adli_fail_memory("profile");
    for (size_t i = 0; i < job->profile_count; i++)
        if (job->profile[i].type == job->type)
            points[count++] = job->profile[i];
    adl_status status = adl_fit(points, count, &result);
    free(points);
    if (status != ADL_OK)
        return status;
    job->perf[job->type] = result.perf;
    job->has_perf[job->type] = true;
    return ADL_OK;
}

/* Remembers the first measurement of each (N, R, m) and fits the model again. */
static adl_status measure(adli_sim_job *job, double step_s, double sync_s)
{
    bool same_size = false;
    if (!job->reports)
        return ADL_OK;
    for (size_t i = 0; i < job->profile_count; i++) {
        const adl_profile_point *p = &job->profile[i];
        same_size |= p->replicas == job->replicas;
        if (p->local_bsz == job->local_bsz && p->replicas == job->replicas &&
            p->nodes == job->nodes && p->type == job->type)
            return ADL_OK;
    }
    job->new_sizes += !same_size;
    if (adli_grow(&job->profile, &job->profile_capacity, job->profile_count + 1,
                  sizeof *job->profile) != 0)
        return adli_fail_memory("profile");
    job->profile[job->profile_count++] = (adl_profile_point){
        job->nodes, job->replicas, job->local_bsz, step_s - sync_s, step_s, job->type};
    if (job->replicas > job->max_profiled)
        job->max_profiled = job->replicas;
    return fit(job);
}

/* One stretch of constant speed: to the end of the epoch or of *seconds. */
static adl_status run_stretch(adli_sim_job *job, double *seconds, double interference)
{
    const adli_app *app = job->app;
    double batch = (double)job->replicas * job->local_bsz * (job->accum_steps + 1);
    double step_s, sync_s;
    if (job->timed.local_bsz != job->local_bsz) {
        adli_app_step_time(app, job->shape, job->nodes, job->local_bsz, &job->timed.step_s,
                           &job->timed.sync_s);
        job->timed.local_bsz = job->local_bsz;
    }
    step_s = job->timed.step_s;
    sync_s = job->timed.sync_s;
    if (job->compute_factor != 1 || job->sync_factor != 1) {
        double compute_s = (step_s - sync_s) * job->compute_factor;
        sync_s *= job->sync_factor;
        step_s = compute_s + sync_s;
    }
    adli_app_grad(app, batch, job->epoch, &job->grad.sqr, &job->grad.var);
    adl_status status = measure(job, step_s, sync_s);
    if (status != ADL_OK)
        return status;
    double gain = adl_gain(job->grad, batch / app->init_batch);
    double rate = gain / (step_s + (step_s - sync_s) * job->accum_steps) * (1 - interference);
    if (app->slowdown > 0 && app->slowdown != 1)
        rate /= app->slowdown;
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
