/* How long the models take: bench_model prints a table of medians; bench_model --count WHAT N only
 * calls WHAT N times, for tools/bench-instructions to count instructions, which do not depend on
 * the machine's mood. */
#include "adaptdl/fit.h"
#include "adaptdl/speedup.h"
#include "base/clock.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS = 100, BATCHES = 201 };

static const adl_goodput model = {
    .perf = {0.1, 0.01, 0.2, 0.03, 0.05, 0.02, 2}, .grad = {0.01, 0.5}, .init_batch_size = 128};
static const adl_batch_limits limits = {
    .max_batch_size = 8192, .max_local_bsz = 512, .accumulation = true};

static adl_profile_point points[POINTS];
static adl_speedup *memo;
static volatile double sink; /* keeps the compiler from dropping the work */

/* Distinct configurations with 5 % noise, on one node and across nodes. */
static void make_points(void)
{
    adli_rng rng;
    adli_rng_init(&rng, 1);
    for (int i = 0; i < POINTS; i++) {
        int nodes = adli_rng_range(&rng, 1, 4);
        int replicas = adli_rng_range(&rng, nodes, 4 * nodes);
        double bsz = 16 + 4 * i;
        double noise = exp(0.1 * (adli_rng_unit(&rng) - 0.5));
        points[i] = (adl_profile_point){
            nodes,
            replicas,
            bsz,
            adl_accum_time(&model.perf, bsz) * noise,
            adl_optim_time(&model.perf, adl_shape_of(nodes, replicas), bsz) / noise,
            0};
    }
}

static void run_fit(int times)
{
    adl_fit_result result;
    for (int i = 0; i < times; i++) {
        if (adl_fit(points, POINTS, &result) != ADL_OK)
            abort();
        sink = result.objective;
    }
}

static void run_optimize(int times)
{
    adl_batch_choice choice;
    for (int i = 0; i < times; i++) {
        if (adl_goodput_optimize(&model, &limits, adl_shape_of(2, 2 + i % 30), &choice) != ADL_OK)
            abort();
        sink = choice.goodput;
    }
}

static void run_memo(int times)
{
    for (int i = 0; i < times; i++)
        sink = adl_speedup_get(memo, adl_shape_of(2, 2 + i % 30));
}

static const struct work {
    const char *name, *title;
    void (*run)(int times);
    int batch; /* calls per measurement */
    double unit;
    const char *unit_name;
} works[] = {
    {"fit", "fit of 100 distinct points", run_fit, 1, 1e6, "us"},
    {"optimize", "optimize", run_optimize, 100, 1e9, "ns"},
    {"memo", "speedup from the memo", run_memo, 10000, 1e9, "ns"},
};

enum { WORKS = sizeof works / sizeof works[0] };

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const struct work *work)
{
    static double times[BATCHES];
    for (int i = 0; i < BATCHES; i++) {
        double start = adli_thread_cpu_s();
        work->run(work->batch);
        times[i] = (adli_thread_cpu_s() - start) / work->batch * work->unit;
    }
    qsort(times, BATCHES, sizeof times[0], ascending);
    printf("%-34s %10.1f %10.1f %s\n", work->title, times[BATCHES / 2], times[BATCHES * 9 / 10],
           work->unit_name);
}

static int count(const char *name, int times)
{
    for (int i = 0; i < WORKS; i++) {
        if (strcmp(works[i].name, name) != 0)
            continue;
        works[i].run(times);
        return 0;
    }
    fprintf(stderr, "bench_model: unknown work \"%s\": fit, optimize or memo\n", name);
    return 2;
}

int main(int argc, char **argv)
{
    int status = 0;
    make_points();
    if (adl_speedup_new(&model, &limits, NULL, 0, 64, &memo) != ADL_OK)
        abort();
    run_memo(30); /* fill it */
    if (argc == 4 && strcmp(argv[1], "--count") == 0) {
        status = count(argv[2], atoi(argv[3]));
    } else {
        printf("%-34s %10s %10s\n", "model (CPU time)", "median", "90 %");
        for (int i = 0; i < WORKS; i++)
            measure(&works[i]);
    }
    adl_speedup_free(memo);
    return status;
}
