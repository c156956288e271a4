/* Recorded applications and workloads: what the simulator knows to be true. The format is documented
 * in docs/simulator.md. Immutable once loaded. */
#ifndef ADLI_TRACE_H
#define ADLI_TRACE_H

#include "base/status.h"
#include "sim/mesh.h"

#include <stdbool.h>
#include <stddef.h>

/* One recorded training run at a fixed batch size; arrays are [epochs]. */
typedef struct adli_validation {
    int batch_size;
    double *progress;  /* at the end of the epoch, in initial-batch steps */
    double *iteration; /* optimizer steps at the end of the epoch */
    double *sqr, *var; /* gradient statistics during the epoch */
} adli_validation;

/* Step and synchronisation time of one placement over local batch sizes, ascending. */
typedef struct adli_curve {
    char placement[16]; /* digits: replicas per node, the smallest rotation */
    int count;
    double *local_bsz, *step_s, *sync_s;
} adli_curve;

typedef struct adli_app {
    char *name;
    int init_batch, max_batch; /* smallest and largest validated */
    int min_local, max_local;
    int epochs;
    int fixed_replicas, fixed_batch; /* > 0: adaptive policies leave this one alone */
    adli_validation *validations;    /* ascending by batch size */
    int validation_count;
    double *needed; /* [epochs + 1] progress at which epoch e begins: least over batch sizes */
    adli_curve *curves;
    int curve_count;
    adli_mesh *mesh;            /* (nodes, replicas, local_bsz) -> (step, sync) */
    double restart_s, resize_s; /* what a restart and a resize in place cost; 0: not recorded */
    double slowdown;            /* the whole job is slower than its steps by this factor; 1: not */
    double speed;               /* examples per second of one device at its best; 0: not recorded */
    struct adli_limit {
        int replicas, max_local;
    } * limits; /* by ascending replicas */
    int limit_count;
    const struct adli_app *const *on; /* the application on each device type; NULL: there is one */
} adli_app;

typedef struct adli_traces {
    adli_app *apps; /* [count] */
    int count;
    struct adli_traces *others; /* [other_count] on the device types but the first */
    int other_count;
    const adli_app **on; /* behind apps[].on */
} adli_traces;

typedef struct adli_work {
    char *name;
    double submit_s;
    const adli_app *app;
    int order;                /* row of the file */
    int replicas, batch_size; /* what the user asked for, for policies that do not adapt */
} adli_work;

typedef struct adli_workload {
    char *name; /* file name without folder and ending */
    adli_work *jobs;
    int count;
} adli_workload;

/* Every folder of `directory` that holds a placements.csv. */
ADL_MUST adl_status adli_traces_load(const char *directory, adli_traces *traces);
/* The same for several device types, directory/TYPE each; all must have the same applications. */
ADL_MUST adl_status adli_traces_load_types(const char *directory, const char *const *types,
                                           int type_count, adli_traces *traces);
void adli_traces_fini(adli_traces *traces);

/* The applications are looked up in traces; a missing one is an error that names it. */
ADL_MUST adl_status adli_workload_load(const char *path, const adli_traces *traces,
                                       adli_workload *workload);
/* The same from memory. */
ADL_MUST adl_status adli_workload_parse(const char *name, const char *text, size_t length,
                                        const adli_traces *traces, adli_workload *workload);
void adli_workload_fini(adli_workload *workload);

/* The application on a device type. */
static inline const adli_app *adli_app_on(const adli_app *app, int type)
{
    return app->on ? app->on[type] : app;
}

/* The largest local batch size on that many replicas. */
int adli_app_max_local(const adli_app *app, int replicas);

/* True seconds of an accumulation-free step and of the synchronisation in it. shape: replicas on each
 * of `nodes` nodes, in node order, all > 0. */
void adli_app_step_time(const adli_app *app, const int *shape, int nodes, int local_bsz,
                        double *step_s, double *sync_s);
/* True gradient statistics in an epoch, linear between the recorded batch sizes. */
void adli_app_grad(const adli_app *app, double batch_size, int epoch, double *sqr, double *var);
/* Optimizer steps at the end of epoch - 1 when training at this batch size throughout. */
double adli_app_iterations(const adli_app *app, double batch_size, int epoch);

/* The (m, s) that a fixed total batch size gives on that many replicas, within the local bounds. */
void adli_app_split(const adli_app *app, int batch_size, int replicas, int *local_bsz,
                    int *accum_steps);

#endif
