/* The simulator against the completion times that the authors of the published policies recorded, and
 * the figures our own policy must reach. Skipped where the traces are not there. */
#include "harness.h"

#include "base/file.h"
#include "base/json.h"
#include "sim/batch.h"
#include "sim/report.h"

enum { WORKLOADS = 4 };

static adli_traces traces;
static adli_workload workloads[WORKLOADS];

static bool load(void)
{
    if (traces.count > 0)
        return true;
    if (!adlt_shared("traces/osdi21/recorded.json"))
        return false;
    char root[4096];
    snprintf(root, sizeof root, "%s", adlt_shared("traces/osdi21/recorded.json"));
    *strrchr(root, '/') = '\0';
    if (adli_traces_load(root, &traces) != ADL_OK)
        ADLT_FAIL("%s", adl_error());
    for (int w = 0; w < WORKLOADS; w++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/workloads/workload-%d.csv", root, w + 1);
        if (adli_workload_load(path, &traces, &workloads[w]) != ADL_OK)
            ADLT_FAIL("%s", adl_error());
    }
    return true;
}

static const adli_sim_options usual = {
    .nodes = 16, .gpus = 4, .interval_s = 60, .rescale_delay_s = 30, .resize_delay_s = -1};

static adl_status run(const char *const *policy, adli_sim_options options, adli_batch *batch)
{
    *batch = (adli_batch){.policies = policy,
                          .policy_count = 1,
                          .workloads = workloads,
                          .workload_count = WORKLOADS,
                          .options = options,
                          .threads = 2};
    return adli_batch_run(batch);
}

/* Every workload's average within `each` of the recorded one, and the mean within `mean`. */
static void compare(const char *policy, double each, double mean)
{
    adli_buf text;
    json_t *root = NULL;
    adli_batch batch;
    adli_buf_init(&text, 1 << 24);
    REQUIRE_OK(adli_file_read(adlt_shared("traces/osdi21/recorded.json"), &text));
    REQUIRE_OK(adli_json_parse(text.data, text.length, &root));
    adli_buf_fini(&text);
    const json_t *recorded = json_object_get(root, policy);
    REQUIRE_OK(run(&policy, usual, &batch));
    double recorded_mean = 0;
    for (int w = 0; w < WORKLOADS; w++) {
        double wanted;
        const json_t *one = json_object_get(recorded, workloads[w].name);
        REQUIRE_OK(adli_json_double(one, "avg_jct", &wanted));
        printf("info - %s %s: %.1f s, recorded %.1f s\n", policy, workloads[w].name,
               batch.results[w].avg_jct_s, wanted);
        CHECK_NEAR(batch.results[w].avg_jct_s, wanted, each);
        recorded_mean += wanted / WORKLOADS;
    }
    CHECK_NEAR(adli_report_mean(&batch, 0), recorded_mean, mean);
    adli_batch_fini(&batch);
    json_decref(root);
}

TEST(tiresias_is_within_2_percent_of_the_record)
{
    if (!load())
        SKIP("no reference traces");
    compare("tiresias", 0.02, 0.02);
}

TEST(optimus_is_within_2_percent_of_the_record)
{
    if (!load())
        SKIP("no reference traces");
    compare("optimus", 0.02, 0.02);
}

#ifndef __SANITIZE_ADDRESS__ /* a minute of genetic search, ten under sanitizers */
TEST(pollux_is_within_5_percent_of_the_record)
{
    if (!load())
        SKIP("no reference traces");
    compare("pollux", 0.08, 0.05);
}
#endif

/* Without the pool nothing has changed since the figures were first published, to the last digit. */
TEST(rank_reaches_its_figure)
{
    static const double figures[WORKLOADS] = {1817.7374999999997, 2576.7062499999997,
                                              2054.443750000001, 2277.5187500000006};
    if (!load())
        SKIP("no reference traces");
    const char *policy = "rank";
    adli_batch batch;
    REQUIRE_OK(run(&policy, usual, &batch));
    for (int w = 0; w < WORKLOADS; w++)
        CHECK_NEAR(batch.results[w].avg_jct_s, figures[w], 1e-12);
    adli_batch_fini(&batch);
}

typedef struct figures {
    double avg, makespan, ftf; /* means over the workloads; the worst of all jobs */
} figures;

static adl_status figures_of(adli_sim_options options, figures *out)
{
    const char *policy = "rank";
    adli_batch batch;
    *out = (figures){0};
    adl_status status = run(&policy, options, &batch);
    for (int w = 0; status == ADL_OK && w < WORKLOADS; w++) {
        out->avg += batch.results[w].avg_jct_s / WORKLOADS;
        out->makespan += batch.results[w].makespan_s / WORKLOADS;
        out->ftf = fmax(out->ftf, batch.results[w].worst_ftf);
    }
    adli_batch_fini(&batch);
    printf("info - mean %.1f s, makespan %.0f s, worst unfairness %.2f\n", out->avg, out->makespan,
           out->ftf);
    return status;
}

/* Mean of the genetic policy on the four workloads, as its authors recorded it. */
static const double recorded_makespan_s = 55334.5;

TEST(rank_with_pool_and_prices_reaches_its_figures)
{
    if (!load())
        SKIP("no reference traces");
    adli_sim_options options = usual;
    figures got;
    options.event = options.pool = true;
    REQUIRE_OK(figures_of(options, &got));
    CHECK(got.avg <= 2045);
    CHECK(got.makespan <= 1.05 * recorded_makespan_s);
    CHECK(got.ftf <= 1.45);
    options.rescale_delay_s = 1;
    REQUIRE_OK(figures_of(options, &got));
    CHECK(got.avg <= 1860);
}

TEST(the_pool_does_not_hurt_where_jobs_differ)
{
    if (!load())
        SKIP("no reference traces");
    adli_sim_options options = usual;
    figures alone, pooled;
    options.event = true;
    options.noise = 0.5;
    REQUIRE_OK(figures_of(options, &alone));
    options.pool = true;
    REQUIRE_OK(figures_of(options, &pooled));
    CHECK(pooled.avg <= alone.avg);
}
