/* What a replica measures of itself: step times by (N, R, m), the model fitted to them, gradient
 * statistics and progress. The training thread writes, the hints thread reads: hence the lock. */
#ifndef ADLI_TRAIN_METRICS_H
#define ADLI_TRAIN_METRICS_H

#include "adaptdl/checkpoint.h"
#include "adaptdl/fit.h"
#include "adaptdl/goodput.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* The device types that a job has been on, by name. Those beyond the last are taken for the last. */
typedef struct adli_types_met {
    char names[ADL_MAX_TYPES][64];
    int count;
} adli_types_met;

/* Sums over the steps of one configuration. */
typedef struct adli_profile_entry {
    int nodes, replicas, local_bsz;
    int type;       /* of adli_types_met */
    double accum_s; /* steps that only accumulate */
    int64_t accum_count;
    double optim_s; /* steps that end in an optimizer step ... */
    double sync_s;  /* ... and the part of them spent waiting for gradients */
    int64_t optim_count;
} adli_profile_entry;

/* What is told to the scheduler besides the measurements. */
typedef struct adli_job_facts {
    int init_batch_size, batch_size, max_batch_size; /* max 0: no autoscaling */
    int min_local, max_local;                        /* 0: open */
    bool accumulation, lone_grows;
    size_t examples;
    int epoch, target_epochs;
} adli_job_facts;

typedef struct adli_metrics {
    pthread_mutex_t lock;
    adli_profile_entry *entries;
    size_t count, capacity;
    adli_types_met types;
    int type;     /* that it is on now */
    bool changed; /* since the last fit */
    bool fitted;
    adl_perf_params perf;
    bool have_grad;
    adl_grad_params grad;
    double progress;
    adli_job_facts facts;
    bool has_prior; /* was told a model at the start, and nothing measured contradicts it */
    adl_goodput prior;
    double elapsed_before_s; /* by earlier starts of the job */
    double started_s;        /* monotonic */
    bool off;                /* benchmarks: measure nothing */
} adli_metrics;

/* A consistent copy for a report. */
typedef struct adli_metrics_view {
    adli_job_facts facts;
    bool fitted, have_grad;
    adl_perf_params perf;
    adl_grad_params grad;
    double progress, elapsed_s;
    int max_profiled_replicas;
    adl_profile_point *points; /* free */
    size_t count;
    adli_types_met types; /* what points[].type means */
} adli_metrics_view;

void adli_metrics_init(adli_metrics *metrics, double now_s);
void adli_metrics_fini(adli_metrics *metrics);
/* The job runs on devices of this type ("" unless it was told). Before anything is measured or loaded. */
void adli_metrics_on(adli_metrics *metrics, const char *device_type);

/* One step took step_s, of which sync_s were spent waiting for gradients (0 for accumulation). */
ADL_MUST adl_status adli_metrics_step(adli_metrics *metrics, int nodes, int replicas, int local_bsz,
                                      bool optim, double step_s, double sync_s);
void adli_metrics_gradient(adli_metrics *metrics, adl_grad_params grad, bool known,
                           double progress);
void adli_metrics_facts(adli_metrics *metrics, const adli_job_facts *facts);
double adli_metrics_progress(adli_metrics *metrics);

/* Fits the step-time model if there is something new. Milliseconds; not on the path of a step. */
ADL_MUST adl_status adli_metrics_fit(adli_metrics *metrics);
/* ---- prior.c ---- */
/* What the scheduler tells of jobs of this kind (ADAPTDL_PRIOR). EINVAL names what is wrong with it. */
ADL_MUST adl_status adli_metrics_prior(adli_metrics *metrics, const char *text);
/* Could these measurements be of a job of that kind? */
bool adli_prior_holds(const adl_perf_params *perf, const adl_profile_point *points, size_t count);

/* ---- metrics.c ---- */
/* The job's model as far as known; false: not yet. */
bool adli_metrics_goodput(adli_metrics *metrics, double init_batch_size, adl_goodput *out);
/* Fills view; its points are freed by the caller. */
ADL_MUST adl_status adli_metrics_look(adli_metrics *metrics, double now_s, adli_metrics_view *view);

ADL_MUST adl_status adli_metrics_save(adli_metrics *metrics, adl_sink *sink, double now_s);
ADL_MUST adl_status adli_metrics_load(adli_metrics *metrics, adl_source *source);

#endif
