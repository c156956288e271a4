/* The genetic policy on the published cluster, 16 nodes of 4 GPUs, minute by minute: the time of a
 * decision, and how far its objective is from a bound that no decision can pass, and from the result
 * of a search twenty times as long. bench_pollux [ROUNDS]; the long searches take most of the time. */
#include "base/clock.h"
#include "optimum.h"

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void must(adl_status status)
{
    if (status != ADL_OK) {
        fprintf(stderr, "bench_pollux: %s\n", adl_error());
        exit(1);
    }
}

static double search_long(const adl_snapshot *snapshot)
{
    adl_policy *policy;
    adl_decision decision = {0};
    must(adl_policy_new("pollux", &policy));
    must(adl_policy_set(policy, "generations", 2000));
    must(adl_policy_set(policy, "local", 0.3));
    must(adl_policy_decide(policy, snapshot, &decision));
    double objective = adlt_objective(snapshot, &decision);
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    return objective;
}

typedef struct gap {
    double sum, worst;
    int count;
} gap;

static void gap_add(gap *to, double objective, double best)
{
    double part = best > objective ? 1 - objective / best : 0;
    to->sum += part;
    to->worst = fmax(to->worst, part);
    to->count++;
}

static void measure(int jobs, int rounds, int long_every)
{
    adli_rng rng;
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    gap to_bound = {0}, to_long = {0};
    double *times_ms = calloc((size_t)rounds, sizeof *times_ms);
    if (!times_ms)
        abort();
    adli_rng_init(&rng, (uint64_t)jobs);
    adlt_world_uniform(&world, &rng, 16, 4, jobs);
    must(adl_policy_new("pollux", &policy));
    for (int round = 0; round < rounds; round++) {
        double before_s = adli_thread_cpu_s();
        must(adl_policy_decide(policy, &world.snapshot, &decision));
        times_ms[round] = 1e3 * (adli_thread_cpu_s() - before_s);
        double objective = adlt_objective(&world.snapshot, &decision);
        gap_add(&to_bound, objective, adlt_bound(&world.snapshot));
        if (round % long_every == 0)
            gap_add(&to_long, objective, search_long(&world.snapshot));
        adlt_world_apply(&world, &decision);
        adlt_world_tick(&world, &rng, round);
    }
    qsort(times_ms, (size_t)rounds, sizeof *times_ms, by_value);
    printf("pollux 64 GPUs %4d jobs   median %7.2f ms   p95 %7.2f ms   gap to the bound: mean "
           "%.3f %%, worst %.3f %%; to a long search: mean %.3f %%, worst %.3f %% (of %d)\n",
           jobs, times_ms[rounds / 2], times_ms[rounds * 95 / 100],
           100 * to_bound.sum / to_bound.count, 100 * to_bound.worst,
           100 * to_long.sum / to_long.count, 100 * to_long.worst, to_long.count);
    free(times_ms);
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 100;
    if (rounds < 1) {
        fprintf(stderr, "usage: bench_pollux [ROUNDS]\n");
        return 2;
    }
    measure(10, rounds, 20);
    measure(20, rounds, 20);
    measure(40, rounds, 20);
    measure(160, rounds, 20);
    return 0;
}
