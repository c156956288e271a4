/* Replays a workload through a policy: the scheduler's own cluster code (src/sched) drives simulated
 * jobs. One call runs in one thread; several may run at the same time on the same traces. */
#ifndef ADLI_SIMULATE_H
#define ADLI_SIMULATE_H

#include "adaptdl/policy.h"
#include "base/buf.h"
#include "sim/trace.h"

#include <stdatomic.h>

typedef struct adli_sim_setting {
    const char *parameter;
    double value;
} adli_sim_setting;

/* Nodes of one device type. */
typedef struct adli_sim_kind {
    char type[32];
    int nodes, gpus; /* gpus: on each node */
} adli_sim_kind;

/* From a CSV file with the columns device_type, nodes, gpus. */
ADL_MUST adl_status adli_sim_kinds_load(const char *path, adli_sim_kind kinds[ADL_MAX_TYPES],
                                        int *count);

typedef struct adli_sim_options {
    const char *policy;
    const adli_sim_setting *settings; /* constants of the policy to change */
    int setting_count;
    int nodes, gpus;            /* gpus: on each node */
    const adli_sim_kind *kinds; /* several device types instead; NULL: one */
    int kind_count;
    double interval_s;      /* between allocation rounds */
    bool event;             /* also when a job came, ended, or measured a new size */
    double rescale_delay_s; /* what a changed allocation costs */
    double resize_delay_s;  /* of a change in place; a move takes two; < 0: all are restarts */
    bool recorded_delays;   /* for applications that have recorded ones these two do not count */
    bool free_moves;        /* other nodes of the same type and in the same shape cost nothing */
    bool hold;              /* a job that starts is left alone until it runs */
    bool pool;              /* jobs of one application learn from each other */
    bool learned;           /* and know all that a replay before this one taught */
    bool lone_grows;        /* a job on one replica may grow its batch without accumulation */
    double undeclared;      /* share of the jobs that do not say how much work they have */
    double noise;        /* sigma of the log-normal factors by which jobs differ from the traces */
    double interference; /* slowdown of distributed jobs that share a node, 0 .. 1 */
    uint64_t seed;
    bool log;      /* fill adli_sim_result.log */
    bool timeline; /* fill adli_sim_result.spans */
} adli_sim_options;

typedef struct adli_sim_job_result {
    double jct_s; /* from submission to completion */
    int restarts;
    double rho; /* finish-time fairness */
} adli_sim_job_result;

/* Some devices of a node that a job had for a while. */
typedef struct adli_sim_span {
    int job, node, count;
    double start_s, end_s;
} adli_sim_span;

typedef struct adli_sim_result {
    adli_sim_job_result *jobs; /* [workload->count] */
    double avg_jct_s, p50_s, p99_s, makespan_s, restarts_per_job, worst_ftf, gpu_util;
    double decision_median_ms, decision_p95_ms, decision_max_ms;
    int rounds;
    adli_buf log; /* one JSON object per round and line */
    adli_sim_span *spans;
    size_t span_count, span_capacity;
} adli_sim_result;

/* How a job gets another allocation. */
typedef enum adli_sim_change {
    ADLI_SIM_RESTARTS,
    ADLI_SIM_RESIZES, /* in place: some of its nodes stay */
    ADLI_SIM_MOVES,   /* all of it goes elsewhere, in two changes in place */
} adli_sim_change;

/* What it costs the application. */
static inline double adli_sim_delay_s(const adli_sim_options *o, const adli_app *app,
                                      adli_sim_change change)
{
    double restart_s =
        o->recorded_delays && app->restart_s > 0 ? app->restart_s : o->rescale_delay_s;
    double resize_s = o->recorded_delays && app->resize_s > 0 ? app->resize_s : o->resize_delay_s;
    if (change == ADLI_SIM_RESTARTS || resize_s < 0)
        return restart_s;
    if (change == ADLI_SIM_MOVES)
        return 2 * resize_s < restart_s ? 2 * resize_s : restart_s;
    return resize_s;
}

/* done (may be NULL) counts finished jobs while the simulation runs, for a progress display. */
ADL_MUST adl_status adli_simulate(const adli_workload *workload, const adli_sim_options *options,
                                  _Atomic int *done, adli_sim_result *result);
void adli_sim_result_fini(adli_sim_result *result);

/* The p-quantile (0 .. 1) of ascending values, linear between neighbours; 0 of none. */
double adli_quantile(const double *sorted, size_t count, double p);
/* qsort order of doubles. */
int adli_by_double(const void *a, const void *b);

#endif
