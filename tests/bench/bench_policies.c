/* How long one decision takes: each policy on the published cluster (16 nodes of 4 GPUs, 160 jobs) and
 * the fast ones on a large one (512 nodes of 4 GPUs, 5000 jobs). The cluster is taken through rounds in
 * which a tenth of the jobs report anew, as jobs do, so that a decision pays for the models it asks. Where
 * models are shared, rank weighs by prices; with device types a job has a model for each but the second, which
 * is projected.
 * Prints the median and 95th percentile of CPU time. */
#include "base/clock.h"
#include "sim/simulate.h"
#include "snapshots.h"

enum { NODE_DEVICES = 4 };

static int types_of(const adlt_world *world)
{
    return world->snapshot.type_count > 1 ? world->snapshot.type_count : 1;
}

/* New models for some of the jobs: their memos are empty again. */
static void refresh(adlt_world *world, adli_rng *rng, int part)
{
    for (int i = 0; i < world->snapshot.job_count; i++) {
        adl_job *job = &world->jobs[i];
        if (!job->model || adli_rng_below(rng, (uint32_t)part) != 0)
            continue;
        adl_speedup_free(job->model);
        job->model = adlt_random_model_types(rng, job->max_replicas, types_of(world));
        job->progress += adli_rng_unit(rng) * 1000;
    }
}

static const char *only; /* the policy named on the command line */

/* Thirds of the nodes have other devices, and all jobs know them. */
static void give_types(adlt_world *world, adli_rng *rng)
{
    static const char *const names[] = {"slow", "middle", "fast"};
    adl_snapshot *snapshot = &world->snapshot;
    snapshot->type_names = names;
    snapshot->type_count = 3;
    for (int i = 0; i < snapshot->node_count; i++)
        world->nodes[i].device_type = names[i % 3];
    refresh(world, rng, 1);
}

enum { PLAIN, SHARED, TYPES };

static void measure(const char *name, int kind, int nodes, int jobs, int rounds)
{
    static const char *const kinds[] = {"", "shared", "types"};
    adli_rng rng;
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    if (only && strcmp(only, name) != 0)
        return;
    double *times_ms = calloc((size_t)rounds, sizeof *times_ms);
    adli_rng_init(&rng, 7);
    adlt_world_uniform(&world, &rng, nodes, NODE_DEVICES, jobs);
    world.snapshot.shared_models = kind != PLAIN;
    if (kind == TYPES)
        give_types(&world, &rng);
    if (!times_ms || adl_policy_new(name, &policy) != ADL_OK)
        abort();
    for (int round = 0; round < rounds; round++) {
        world.snapshot.now_s += 60;
        refresh(&world, &rng, 10);
        double before_s = adli_thread_cpu_s();
        if (adl_policy_decide(policy, &world.snapshot, &decision) != ADL_OK)
            abort();
        times_ms[round] = 1e3 * (adli_thread_cpu_s() - before_s);
        adlt_world_apply(&world, &decision);
    }
    qsort(times_ms, (size_t)rounds, sizeof *times_ms, adli_by_double);
    printf("%-10s %-6s %6d GPUs %6d jobs   median %9.3f ms   p95 %9.3f ms\n", name, kinds[kind],
           nodes * NODE_DEVICES, jobs, adli_quantile(times_ms, (size_t)rounds, 0.5),
           adli_quantile(times_ms, (size_t)rounds, 0.95));
    free(times_ms);
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
}

int main(int argc, char **argv)
{
    only = argc > 1 ? argv[1] : NULL;
    printf("One decision (CPU time), a tenth of the jobs with new models each round\n");
    measure("rank", PLAIN, 16, 160, 300);
    measure("rank", SHARED, 16, 160, 300);
    measure("rank", TYPES, 16, 160, 300);
    measure("pollux", PLAIN, 16, 160, 20);
    measure("pollux", PLAIN, 16, 40, 20);
    measure("tiresias", PLAIN, 16, 160, 300);
    measure("optimus", PLAIN, 16, 160, 300);
    measure("fifo", PLAIN, 16, 160, 300);
    measure("rank", PLAIN, 512, 5000, 20);
    measure("rank", SHARED, 512, 5000, 20);
    measure("rank", TYPES, 512, 5000, 20);
    measure("tiresias", PLAIN, 512, 5000, 20);
    measure("fifo", PLAIN, 512, 5000, 20);
    return 0;
}
