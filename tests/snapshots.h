/* Random clusters for the tests and benchmarks of the policies. A world owns everything that its
 * snapshot points to. */
#ifndef ADLI_SNAPSHOTS_H
#define ADLI_SNAPSHOTS_H

#include "adaptdl/policy.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADLT_NAME = 32 };

typedef struct adlt_world {
    adl_snapshot snapshot;
    adl_node *nodes;
    adl_job *jobs;
    int **allocations; /* [job_count] behind jobs[].allocation */
    char (*node_names)[ADLT_NAME];
    char (*job_names)[ADLT_NAME];
    adl_node template_node;
} adlt_world;

static const char *const adlt_resource_names[ADL_MAX_RESOURCES] = {
    "gpu", "cpu", "memory", "pods", "disk", "net", "fpga", "licence"};

static inline double adlt_between(adli_rng *rng, double low, double high)
{
    return low * pow(high / low, adli_rng_unit(rng));
}

/* A model like those of the published applications: a step of 0.05 to 1 s, a network that costs a
 * few to a hundred percent of it, a noise scale between useless and enormous. */
static inline adl_speedup *adlt_random_model(adli_rng *rng, int max_replicas)
{
    double batch = adlt_between(rng, 16, 512), step_s = adlt_between(rng, 0.05, 1);
    double within = adlt_between(rng, 0.01, 0.3) * step_s,
           between = within * adlt_between(rng, 1, 5);
    adl_goodput model = {.perf = {.alpha_c = 0.2 * step_s,
                                  .beta_c = 0.8 * step_s / batch,
                                  .alpha_n = between,
                                  .beta_n = between * adlt_between(rng, 1e-3, 0.1),
                                  .alpha_r = within,
                                  .beta_r = within * adlt_between(rng, 1e-3, 0.1),
                                  .gamma = adlt_between(rng, 1, 10)},
                         .grad = {.sqr = 1, .var = adlt_between(rng, 0.1, 100)},
                         .init_batch_size = floor(batch)};
    adl_batch_limits limits = {.max_batch_size = floor(batch) * 64,
                               .min_local_bsz = fmax(1, floor(batch / 4)),
                               .max_local_bsz = floor(batch) * 2,
                               .accumulation = true};
    adl_speedup *out;
    if (adl_speedup_new(&model, &limits, NULL, 0, max_replicas, &out) != ADL_OK) {
        printf("not ok - random model: %s\n", adl_error());
        abort();
    }
    return out;
}

/* Storage for so many nodes and jobs, all zero but for their names. */
static inline void adlt_world_init(adlt_world *world, int nodes, int jobs, int resources)
{
    *world = (adlt_world){
        .nodes = calloc((size_t)nodes + 1, sizeof *world->nodes),
        .jobs = calloc((size_t)jobs + 1, sizeof *world->jobs),
        .allocations = calloc((size_t)jobs + 1, sizeof *world->allocations),
        .node_names = calloc((size_t)nodes + 1, sizeof *world->node_names),
        .job_names = calloc((size_t)jobs + 1, sizeof *world->job_names),
    };
    for (int i = 0; i < nodes; i++) {
        snprintf(world->node_names[i], ADLT_NAME, "node-%d", i);
        world->nodes[i] = (adl_node){.name = world->node_names[i], .device_type = ""};
    }
    for (int i = 0; i < jobs; i++) {
        snprintf(world->job_names[i], ADLT_NAME, "job-%d", i);
        world->jobs[i] = (adl_job){.name = world->job_names[i], .preemptible = true};
    }
    world->template_node = (adl_node){.name = "template", .device_type = ""};
    world->snapshot = (adl_snapshot){.resource_names = adlt_resource_names,
                                     .resource_count = resources,
                                     .nodes = world->nodes,
                                     .node_count = nodes,
                                     .jobs = world->jobs,
                                     .job_count = jobs};
}

static inline void adlt_world_fini(adlt_world *world)
{
    for (int i = 0; i < world->snapshot.job_count; i++) {
        adl_speedup_free(world->jobs[i].model);
        free(world->allocations[i]);
    }
    free(world->job_names);
    free(world->node_names);
    free(world->allocations);
    free(world->jobs);
    free(world->nodes);
    *world = (adlt_world){0};
}

/* Replaces the job's allocation by a copy. */
static inline void adlt_world_allocate(adlt_world *world, int job, const int *nodes, int replicas)
{
    int *copy = NULL;
    if (replicas > 0) {
        copy = calloc((size_t)replicas, sizeof *copy);
        memcpy(copy, nodes, (size_t)replicas * sizeof *copy);
    }
    free(world->allocations[job]);
    world->allocations[job] = copy;
    world->jobs[job].allocation = copy;
    world->jobs[job].replicas = replicas;
}

/* Takes over a decision as the new present, with the bookkeeping that a scheduler does. */
static inline void adlt_world_apply(adlt_world *world, const adl_decision *decision)
{
    for (int i = 0; i < world->snapshot.job_count; i++) {
        adl_job *job = &world->jobs[i];
        const adl_job_decision *now = &decision->jobs[i];
        bool changed = job->replicas != now->replicas ||
                       (now->replicas > 0 && memcmp(job->allocation, now->nodes,
                                                    (size_t)now->replicas * sizeof(int)) != 0);
        if (!changed)
            continue;
        job->restarts += now->replicas > 0;
        job->last_change_s = world->snapshot.now_s;
        if (now->replicas > job->max_profiled)
            job->max_profiled = now->replicas;
        adlt_world_allocate(world, i, now->nodes, now->replicas);
    }
}

/* The cluster of the published experiments: nodes x devices, jobs of one device per replica, at
 * random points of their lives (none has an allocation yet). */
static inline void adlt_world_uniform(adlt_world *world, adli_rng *rng, int nodes, int devices,
                                      int jobs)
{
    adlt_world_init(world, nodes, jobs, 1);
    for (int i = 0; i < nodes; i++)
        world->nodes[i].capacity.amount[0] = devices;
    world->template_node.capacity.amount[0] = devices;
    world->snapshot.now_s = 36000;
    for (int i = 0; i < jobs; i++) {
        adl_job *job = &world->jobs[i];
        double age =
            adli_rng_below(rng, 4) == 0 ? 60 * adli_rng_unit(rng) : adlt_between(rng, 60, 20000);
        job->request.amount[0] = 1;
        job->max_profiled = age < 60 ? 0 : 1 << adli_rng_below(rng, 6);
        job->max_replicas = job->max_profiled ? 2 * job->max_profiled : 1;
        if (job->max_replicas > nodes * devices)
            job->max_replicas = nodes * devices;
        job->submit_s = world->snapshot.now_s - age;
        job->attained_s = age < 60 ? 0 : age * job->max_profiled * 0.4;
        job->restarts = age < 60 ? 0 : adli_rng_range(rng, 1, 1 + (int)(age / 600));
        job->model = job->max_profiled ? adlt_random_model(rng, nodes * devices) : NULL;
    }
}

#endif
