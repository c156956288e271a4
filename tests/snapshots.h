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
    bool borrowed;             /* the models belong to another world */
    int *job_from, *node_from; /* of a selection: indices in the world it was taken from */
} adlt_world;

static const char *const adlt_resource_names[ADL_MAX_RESOURCES] = {
    "gpu", "cpu", "memory", "pods", "disk", "net", "fpga", "licence"};

static inline double adlt_between(adli_rng *rng, double low, double high)
{
    return low * pow(high / low, adli_rng_unit(rng));
}

/* A model like those of the published applications: a step of 0.05 to 1 s, a network that costs a
 * few to a hundred percent of it, a noise scale between useless and enormous. */
static inline adl_speedup *adlt_random_model_types(adli_rng *rng, int max_replicas, int types)
{
    double batch = adlt_between(rng, 16, 512), step_s = adlt_between(rng, 0.05, 1);
    double within_s = adlt_between(rng, 0.01, 0.3) * step_s;
    double between_s = within_s * adlt_between(rng, 1, 5);
    double within_slope = adlt_between(rng, 1e-3, 0.1),
           between_slope = adlt_between(rng, 1e-3, 0.1);
    double gamma = adlt_between(rng, 1, 10), var = adlt_between(rng, 0.1, 100);
    adl_goodput model = {.perf = {.alpha_c = 0.2 * step_s,
                                  .beta_c = 0.8 * step_s / batch,
                                  .alpha_n = between_s,
                                  .beta_n = between_s * between_slope,
                                  .alpha_r = within_s,
                                  .beta_r = within_s * within_slope,
                                  .gamma = gamma},
                         .grad = {.sqr = 1, .var = var},
                         .init_batch_size = floor(batch)};
    adl_batch_limits limits = {.max_batch_size = floor(batch) * 64,
                               .min_local_bsz = fmax(1, floor(batch / 4)),
                               .max_local_bsz = floor(batch) * 2,
                               .accumulation = true};
    adl_goodput of_type[ADL_MAX_TYPES];
    adl_type_model known[ADL_MAX_TYPES] = {{0}};
    for (int t = 0; t < types; t++) {
        double speed = 1 + t;
        of_type[t] = model;
        of_type[t].perf.alpha_c /= speed;
        of_type[t].perf.beta_c /= speed;
        known[t] = (adl_type_model){t == 1 ? NULL : &of_type[t], &limits, NULL, 0, speed};
    }
    adl_speedup *out;
    if (adl_speedup_new_types(known, (size_t)types, max_replicas, &out) != ADL_OK) {
        printf("not ok - random model: %s\n", adl_error());
        abort();
    }
    return out;
}

static inline adl_speedup *adlt_random_model(adli_rng *rng, int max_replicas)
{
    return adlt_random_model_types(rng, max_replicas, 1);
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
        if (!world->borrowed)
            adl_speedup_free(world->jobs[i].model);
        free(world->allocations[i]);
    }
    free(world->node_from);
    free(world->job_from);
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

/* A copy with some of the jobs, nodes and resources, borrowing the models. A NULL mask means all. A job
 * that had replicas on a node that is left out has none. */
static inline void adlt_world_select(adlt_world *out, const adlt_world *from, const bool *jobs,
                                     const bool *nodes, const bool *resources)
{
    const adl_snapshot *old = &from->snapshot;
    int job_count = 0, node_count = 0, resource_count = 0, kept[ADL_MAX_RESOURCES];
    int *node_to = calloc((size_t)old->node_count + 1, sizeof *node_to);
    int *spread = NULL;
    for (int i = 0; i < old->job_count; i++)
        job_count += !jobs || jobs[i];
    for (int i = 0; i < old->node_count; i++)
        node_to[i] = !nodes || nodes[i] ? node_count++ : -1;
    for (int r = 0; r < old->resource_count; r++)
        if (!resources || resources[r])
            kept[resource_count++] = r;
    adlt_world_init(out, node_count, job_count, resource_count);
    out->borrowed = true;
    out->job_from = calloc((size_t)job_count + 1, sizeof *out->job_from);
    out->node_from = calloc((size_t)node_count + 1, sizeof *out->node_from);
    for (int i = 0; i < old->node_count; i++) {
        if (node_to[i] < 0)
            continue;
        adl_node *node = &out->nodes[node_to[i]];
        out->node_from[node_to[i]] = i;
        strcpy(out->node_names[node_to[i]], from->node_names[i]);
        node->preemptible = from->nodes[i].preemptible;
        node->device_type = from->nodes[i].device_type;
        for (int r = 0; r < resource_count; r++)
            node->capacity.amount[r] = from->nodes[i].capacity.amount[kept[r]];
    }
    for (int i = 0, next = 0; i < old->job_count; i++) {
        if (jobs && !jobs[i])
            continue;
        adl_job *job = &out->jobs[next];
        out->job_from[next] = i;
        strcpy(out->job_names[next], from->job_names[i]);
        *job = from->jobs[i];
        job->name = out->job_names[next];
        job->allocation = NULL;
        job->replicas = 0;
        int replicas = 0;
        spread = realloc(spread, ((size_t)from->jobs[i].replicas + 1) * sizeof *spread);
        for (int k = 0; k < from->jobs[i].replicas; k++)
            if (node_to[from->jobs[i].allocation[k]] >= 0)
                spread[replicas++] = node_to[from->jobs[i].allocation[k]];
        if (replicas == from->jobs[i].replicas)
            adlt_world_allocate(out, next, spread, replicas);
        for (int r = 0; r < resource_count; r++)
            job->request.amount[r] = from->jobs[i].request.amount[kept[r]];
        next++;
    }
    for (int r = 0; r < resource_count; r++)
        out->template_node.capacity.amount[r] = from->template_node.capacity.amount[kept[r]];
    out->snapshot.template_node = old->template_node ? &out->template_node : NULL;
    out->snapshot.type_names = old->type_names;
    out->snapshot.type_count = old->type_count;
    out->snapshot.now_s = old->now_s;
    out->snapshot.seed = old->seed;
    free(spread);
    free(node_to);
}

/* ---- anything goes ---- */

/* Seconds per step for policies with fixed batch sizes; the context is the serial part. */
static inline double adlt_step_time(void *context, int replicas)
{
    return *(const double *)context + 1.0 / replicas;
}

static inline adl_resources adlt_random_amounts(adli_rng *rng, int resources, bool request)
{
    /* gpu, cpu in milli, memory in bytes, pods: what nodes have, and what replicas ask for */
    static const int64_t most[2][4] = {{8, 96000, (int64_t)1 << 39, 110},
                                       {4, 24000, (int64_t)1 << 37, 4}};
    adl_resources out = {{0}};
    for (int r = 0; r < resources; r++) {
        double unit = adli_rng_unit(rng);
        out.amount[r] = (int64_t)((double)most[request][r] * unit * unit + 0.5);
    }
    return out;
}

/* A legal allocation on what is left: within the bounds, and without a second distributed job on a
 * node. */
static inline void adlt_random_allocation(adlt_world *world, adli_rng *rng, int index,
                                          adl_resources *left, bool *distributed)
{
    adl_job *job = &world->jobs[index];
    int nodes = world->snapshot.node_count, low = job->min_replicas > 1 ? job->min_replicas : 1;
    int high = job->max_replicas < low + 12 ? job->max_replicas : low + 12;
    int target = adli_rng_range(rng, low, high), got = 0, used = 0, first = -1, spread[256];
    int start = (int)adli_rng_below(rng, (uint32_t)nodes),
        *count = calloc((size_t)nodes, sizeof(int));
    for (int k = 0; k < nodes && got < target; k++) {
        int node = (start + k) % nodes;
        while (got < target &&
               !(used > 0 && count[node] == 0 && (distributed[node] || distributed[first]))) {
            bool fits = true;
            for (int r = 0; r < world->snapshot.resource_count; r++)
                fits &= left[node].amount[r] >= job->request.amount[r] * (count[node] + 1);
            if (!fits)
                break;
            used += count[node] == 0;
            first = first < 0 ? node : first;
            count[node]++;
            got++;
        }
    }
    got = got >= low && got < 256 ? got : 0;
    for (int node = 0, at = 0; got > 0 && node < nodes; node++) {
        distributed[node] |= used > 1 && count[node] > 0;
        for (int k = 0; k < count[node]; k++)
            spread[at++] = node;
        for (int r = 0; r < world->snapshot.resource_count; r++)
            left[node].amount[r] -= job->request.amount[r] * count[node];
    }
    adlt_world_allocate(world, index, spread, got);
    free(count);
}

static inline void adlt_random_job(adlt_world *world, adli_rng *rng, adl_job *job)
{
    static double serial[4] = {0, 0.01, 0.1, 1};
    double age_s = adli_rng_below(rng, 8) ? adlt_between(rng, 1, 1e5) : 0;
    do
        job->request = adlt_random_amounts(rng, world->snapshot.resource_count, true);
    while (memcmp(&job->request, &(adl_resources){{0}}, sizeof job->request) == 0);
    job->min_replicas = adli_rng_below(rng, 3) ? 0 : adli_rng_range(rng, 1, 4);
    job->max_replicas = adli_rng_range(rng, job->min_replicas > 1 ? job->min_replicas : 1,
                                       adli_rng_below(rng, 8) ? 24 : 2000);
    job->preemptible = adli_rng_below(rng, 6) > 0;
    job->submit_s = world->snapshot.now_s - age_s;
    job->last_change_s = job->submit_s + age_s * adli_rng_unit(rng);
    job->restarts = (int)adli_rng_below(rng, 5);
    job->run_s = age_s * adli_rng_unit(rng);
    job->attained_s = job->run_s * adli_rng_range(rng, 1, 8);
    job->mean_active = adli_rng_below(rng, 2) ? adlt_between(rng, 1, 50) : 0;
    job->restart_cost_s = adli_rng_below(rng, 2) ? adlt_between(rng, 1, 100) : 0;
    job->max_profiled = (int)adli_rng_below(rng, 9);
    if (adli_rng_below(rng, 4) > 0)
        job->model = adlt_random_model(rng, job->max_replicas);
    job->progress = adlt_between(rng, 1, 1e5);
    if (adli_rng_below(rng, 2) == 0) {
        job->total_work = adlt_between(rng, 1, 1e6);
        job->epoch_work = job->total_work / 10;
    }
    job->fixed_replicas = (int)adli_rng_below(rng, 9);
    if (adli_rng_below(rng, 3) == 0) {
        job->step_time_s = adlt_step_time;
        job->step_context = &serial[adli_rng_below(rng, 4)];
        job->remaining_steps = adlt_between(rng, 1, 1e6);
    }
}

static inline int adlt_by_submission(const void *a, const void *b)
{
    double x = ((const adl_job *)a)->submit_s, y = ((const adl_job *)b)->submit_s;
    return (x > y) - (x < y);
}

/* Up to so many nodes and jobs of every kind, with allocations that are legal. */
static inline void adlt_world_random(adlt_world *world, uint64_t seed, int max_nodes, int max_jobs)
{
    adli_rng rng;
    adli_rng_init(&rng, seed);
    int nodes = adli_rng_range(&rng, 0, max_nodes), jobs = adli_rng_range(&rng, 0, max_jobs);
    adlt_world_init(world, nodes, jobs, adli_rng_range(&rng, 1, 4));
    adl_snapshot *snapshot = &world->snapshot;
    snapshot->now_s = 2e5;
    snapshot->seed = adli_rng_u64(&rng);
    bool alike = adli_rng_below(&rng, 3) == 0;
    for (int i = 0; i < nodes; i++) {
        world->nodes[i].capacity = alike && i > 0
                                       ? world->nodes[0].capacity
                                       : adlt_random_amounts(&rng, snapshot->resource_count, false);
        world->nodes[i].preemptible = adli_rng_below(&rng, 4) == 0;
    }
    world->template_node.capacity = adlt_random_amounts(&rng, snapshot->resource_count, false);
    if (adli_rng_below(&rng, 2) == 0)
        snapshot->template_node = &world->template_node;
    for (int i = 0; i < jobs; i++) {
        adlt_random_job(world, &rng, &world->jobs[i]);
        if (i > 0 && adli_rng_below(&rng, 2) == 0)
            world->jobs[i].request = world->jobs[i - 1].request;
    }
    qsort(world->jobs, (size_t)jobs, sizeof *world->jobs, adlt_by_submission);
    for (int i = 0; i < jobs; i++)
        world->jobs[i].name = world->job_names[i];

    adl_resources *left = calloc((size_t)nodes + 1, sizeof *left);
    bool *distributed = calloc((size_t)nodes + 1, sizeof *distributed);
    for (int i = 0; i < nodes; i++)
        left[i] = world->nodes[i].capacity;
    for (int i = 0; i < jobs && nodes > 0; i++)
        if (adli_rng_below(&rng, 3) > 0)
            adlt_random_allocation(world, &rng, i, left, distributed);
    free(distributed);
    free(left);
}

/* The same, on nodes of several device types. Jobs may be on more than one of them. */
static inline void adlt_world_random_types(adlt_world *world, uint64_t seed, int max_nodes,
                                           int max_jobs)
{
    static const char *const names[] = {"t4", "rtx", "a100"};
    adlt_world_random(world, seed, max_nodes, max_jobs);
    world->snapshot.type_names = names;
    world->snapshot.type_count = 2 + (int)(seed % 2);
    for (int i = 0; i < world->snapshot.node_count; i++)
        world->nodes[i].device_type =
            names[(seed + (uint64_t)i * 7 / 3) % (uint64_t)world->snapshot.type_count];
    world->template_node.device_type = names[0];
}

/* Spreads every job over the nodes as far as they hold it, distributed jobs side by side, and lets all
 * be moved. */
static inline void adlt_world_crowd(adlt_world *world, uint64_t seed)
{
    int nodes = world->snapshot.node_count;
    adl_resources *left = calloc((size_t)nodes + 1, sizeof *left);
    int *spread = calloc((size_t)nodes + 1, sizeof *spread);
    for (int n = 0; n < nodes; n++)
        left[n] = world->nodes[n].capacity;
    for (int j = 0; j < world->snapshot.job_count; j++) {
        adl_job *job = &world->jobs[j];
        int got = 0;
        job->preemptible = true;
        for (int n = 0; n < nodes && got < job->max_replicas; n++) {
            bool fits = (seed + (uint64_t)(j + n)) % 3 > 0;
            for (int r = 0; r < world->snapshot.resource_count; r++)
                fits &= left[n].amount[r] >= job->request.amount[r];
            if (fits)
                spread[got++] = n;
        }
        if (got < job->min_replicas)
            got = 0;
        for (int i = 0; i < got; i++)
            for (int r = 0; r < world->snapshot.resource_count; r++)
                left[spread[i]].amount[r] -= job->request.amount[r];
        adlt_world_allocate(world, j, spread, got);
    }
    free(spread);
    free(left);
}

/* ---- for people ---- */

static inline void adlt_world_print(const adlt_world *world)
{
    const adl_snapshot *s = &world->snapshot;
    printf("# %d nodes, %d jobs, now %.9g, seed %llu, template %s\n", s->node_count, s->job_count,
           s->now_s, (unsigned long long)s->seed, s->template_node ? "yes" : "no");
    for (int i = -1; i < s->node_count; i++) {
        const adl_node *node = i < 0 ? s->template_node : &s->nodes[i];
        if (!node)
            continue;
        printf("# node %s:%s", node->name, node->preemptible ? " spot" : "");
        for (int r = 0; r < s->resource_count; r++)
            printf(" %s %lld", s->resource_names[r], (long long)node->capacity.amount[r]);
        printf("\n");
    }
    for (int i = 0; i < s->job_count; i++) {
        const adl_job *job = &s->jobs[i];
        printf("# job %s:", job->name);
        for (int r = 0; r < s->resource_count; r++)
            printf(" %s %lld", s->resource_names[r], (long long)job->request.amount[r]);
        printf("; %d..%d replicas%s%s; on [", job->min_replicas, job->max_replicas,
               job->preemptible ? "" : ", not preemptible", job->model ? ", model" : "");
        for (int k = 0; k < job->replicas; k++)
            printf("%s%d", k ? " " : "", job->allocation[k]);
        printf("]; age %.9g attained %.9g changed %.9g restarts %d cost %.9g profiled %d "
               "progress %.9g of %.9g fixed %d active %.9g steps %.9g%s\n",
               s->now_s - job->submit_s, job->attained_s, job->last_change_s, job->restarts,
               job->restart_cost_s, job->max_profiled, job->progress, job->total_work,
               job->fixed_replicas, job->mean_active, job->remaining_steps,
               job->step_time_s ? " timed" : "");
    }
}

#endif
