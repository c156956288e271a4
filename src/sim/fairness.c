#include "sim/fairness.h"

#include "base/mem.h"
#include "sim/job.h"

#include <math.h>
#include <stdlib.h>

typedef struct row {
    const adli_app *app;
    double *best_s; /* [devices + 1] least time on at most n devices; 0: not computed */
    int known;      /* best_s is filled up to here */
} row;

struct adli_alone {
    const adli_sim_options *options;
    int gpus; /* on a node */
    int devices;
    row *rows;
    size_t count, capacity;
};

adl_status adli_alone_new(const adli_sim_options *options, int devices, adli_alone **out)
{
    *out = adli_calloc(1, sizeof **out);
    if (!*out)
        return adli_fail_memory("fairness");
    int gpus = options->kind_count ? options->kinds[0].gpus : options->gpus;
    **out = (adli_alone){.options = options, .gpus = gpus, .devices = devices};
    return ADL_OK;
}

void adli_alone_free(adli_alone *alone)
{
    if (!alone)
        return;
    for (size_t i = 0; i < alone->count; i++)
        free(alone->rows[i].best_s);
    free(alone->rows);
    free(alone);
}

/* Seconds that the application takes alone on n devices, packed on as few nodes as possible. */
static adl_status time_alone(const adli_alone *alone, const adli_app *app, int n, double *out)
{
    adli_sim_job job;
    int *nodes = adli_calloc((size_t)n, sizeof *nodes);
    adl_status status = adli_sim_job_init(&job, app, app->fixed_batch, true, n);
    job.lone_grows = alone->options->lone_grows;
    if (!nodes)
        status = adli_fail_memory("fairness");
    if (status == ADL_OK) {
        for (int i = 0; i < n; i++)
            nodes[i] = i / alone->gpus;
        double delay_s = adli_sim_delay_s(alone->options, app, ADLI_SIM_RESTARTS);
        status = adli_sim_job_place(&job, nodes, n, job.type, delay_s, NULL);
    }
    while (status == ADL_OK && !adli_sim_job_finished(&job))
        status = adli_sim_job_run(&job, 1e6, 0);
    *out = job.finish_s;
    adli_sim_job_fini(&job);
    free(nodes);
    return status;
}

static adl_status row_of(adli_alone *alone, const adli_app *app, row **out)
{
    for (size_t i = 0; i < alone->count; i++)
        if (alone->rows[i].app == app) {
            *out = &alone->rows[i];
            return ADL_OK;
        }
    if (adli_grow(&alone->rows, &alone->capacity, alone->count + 1, sizeof *alone->rows) != 0)
        return adli_fail_memory("fairness");
    double *best = adli_calloc((size_t)alone->devices + 1, sizeof *best);
    if (!best)
        return adli_fail_memory("fairness");
    *out = &alone->rows[alone->count++];
    **out = (row){.app = app, .best_s = best};
    return ADL_OK;
}

adl_status adli_fairness(adli_alone *alone, const adli_app *app, double active, double wait_s,
                         double jct_s, double *rho)
{
    row *times = NULL;
    adl_status status = row_of(alone, app, &times);
    double share = alone->devices / fmax(active, 1);
    int most = app->max_batch / app->min_local;
    if (app->fixed_replicas > 0 && most > app->fixed_replicas)
        most = app->fixed_replicas;
    int n = share < 1 ? 1 : share < most ? (int)share : most;
    while (status == ADL_OK && times->known < n) {
        double time_s;
        status = time_alone(alone, app, times->known + 1, &time_s);
        if (times->known > 0)
            time_s = fmin(time_s, times->best_s[times->known]);
        times->best_s[++times->known] = time_s;
    }
    if (status == ADL_OK)
        *rho = jct_s / (wait_s + times->best_s[n] / fmin(share, 1));
    return status;
}
