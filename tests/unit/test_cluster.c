/* The scheduler's cluster: rounds, life-cycles and accounting, orders are noted and the test plays the
 * backend. */
#include "harness.h"

#include "base/mem.h"
#include "adaptdl/cluster.h"

enum { JOBS_MAX = 8 };

typedef struct world {
    adl_cluster *cluster;
    adl_policy *policy;
    adl_node nodes[2];
    int starts[JOBS_MAX], stops[JOBS_MAX], kills[JOBS_MAX], size[JOBS_MAX], group[JOBS_MAX];
} world;

static void note(world *w, adl_orders orders)
{
    for (size_t i = 0; i < orders.count; i++) {
        const adl_order *order = &orders.items[i];
        int job = order->job;
        CHECK(order->user == &w->nodes[0]);
        if (order->action == ADL_START) {
            w->starts[job]++;
            w->size[job] = order->replicas;
            w->group[job] = order->group;
        }
        w->stops[job] += order->action == ADL_TERMINATE;
        w->kills[job] += order->action == ADL_KILL;
    }
}

static void advance(world *w, double now_s)
{
    adl_orders orders = {0};
    CHECK_OK(adl_cluster_advance(w->cluster, now_s, &orders));
    note(w, orders);
}

static adl_status run_round(world *w, double now_s)
{
    adl_orders orders = {0};
    adl_status status = adl_cluster_round(w->cluster, now_s, &orders);
    note(w, orders);
    return status;
}

/* Two nodes of two GPUs, with the policy of that name. */
static adl_status open_world(world *w, const char *policy)
{
    static const char *const resources[] = {"gpu"};
    *w = (world){.nodes = {{.name = "a", .device_type = "", .capacity = {{2}}},
                           {.name = "b", .device_type = "", .capacity = {{2}}}}};
    adl_status status = adl_policy_new(policy, &w->policy);
    if (status != ADL_OK)
        return status;
    adl_cluster_options options = {.size = sizeof options,
                                   .resource_names = resources,
                                   .resource_count = 1,
                                   .nodes = w->nodes,
                                   .node_count = 2,
                                   .policy = w->policy,
                                   .rules = {.grace_s = 30, .max_retries = 1, .retry_pause_s = 5}};
    return adl_cluster_new(&options, &w->cluster);
}

static void close_world(world *w)
{
    adl_cluster_free(w->cluster);
    adl_policy_free(w->policy);
}

static int submit(world *w, const char *name, int fixed, double now_s)
{
    int number = -1;
    adl_job_spec spec = {.size = sizeof spec,
                         .name = name,
                         .request = {{1}},
                         .preemptible = true,
                         .fixed_replicas = fixed,
                         .submit_s = now_s,
                         .user = &w->nodes[0]};
    adl_job_report report = {.size = sizeof report, .max_profiled = fixed};
    CHECK_OK(adl_cluster_submit(w->cluster, &spec, &number));
    CHECK_OK(adl_cluster_report(w->cluster, number, &report));
    return number;
}

static void see(world *w, int job, adl_observed seen, double now_s)
{
    adl_cluster_observe(w->cluster, job, &seen, now_s);
    advance(w, now_s);
}

static adl_phase phase(const world *w, int job)
{
    return adl_cluster_job(w->cluster, job)->life->phase;
}

TEST(a_job_is_started_accounted_and_finished)
{
    world w;
    REQUIRE_OK(open_world(&w, "fifo"));
    int job = submit(&w, "one", 3, 10);
    REQUIRE_OK(run_round(&w, 60));
    CHECK_INT(w.starts[job], 1);
    CHECK_INT(w.size[job], 3);
    CHECK_INT(phase(&w, job), ADL_STARTING);
    see(&w, job, (adl_observed){.started = 3, .alive = 3, .ready = 3}, 60);
    CHECK_INT(phase(&w, job), ADL_RUNNING);
    REQUIRE_OK(run_round(&w, 120));
    CHECK_INT(w.stops[job], 0);
    CHECK_NEAR(adl_cluster_job(w.cluster, job)->account->attained_s, 180, 1e-12);
    see(&w, job, (adl_observed){.started = 3, .succeeded = 3}, 130);
    CHECK_INT(phase(&w, job), ADL_SUCCEEDED);
    const adl_job_info *info = adl_cluster_job(w.cluster, job);
    CHECK_NEAR(info->account->attained_s, 210, 1e-12);
    CHECK_INT(info->replicas, 0);
    REQUIRE_OK(run_round(&w, 180));
    CHECK_INT(adl_cluster_snapshot(w.cluster)->job_count, 0);
    close_world(&w);
}

/* One job's nonsense is its own trouble: the others are placed, and it keeps what was known of it. */
TEST(what_cannot_be_learned_from_a_job_does_not_stop_the_round)
{
    static const adl_goodput model = {{0.1, 0.01, 0.01, 0.001, 0.01, 0.001, 1.5}, {1, 100}, 64};
    world w;
    REQUIRE_OK(open_world(&w, "rank"));
    int odd = submit(&w, "odd", 0, 0), other = submit(&w, "other", 0, 0);
    adl_job_report report = {
        .size = sizeof report,
        .has_model = true,
        .model = model,
        .limits = {1024, 1e-9, 64, true, false}, /* bounds no number of replicas */
        .max_profiled = (1 << 30) + 1};
    CHECK_OK(adl_cluster_report(w.cluster, odd, &report));
    CHECK_INT(adl_cluster_most_replicas(w.cluster, odd), 1); /* it never had that many */
    report.limits.max_batch_size = 8;
    CHECK_FAILS(adl_cluster_report(w.cluster, odd, &report), ADL_EINVAL,
                "more than max_batch_size");
    const adl_speedup *before = adl_cluster_job(w.cluster, odd)->model;
    CHECK(before != NULL);
    REQUIRE_OK(run_round(&w, 60));
    CHECK(adl_cluster_job(w.cluster, odd)->model == before);
    CHECK_INT(w.starts[odd], 1);
    CHECK_INT(w.starts[other], 1);
    close_world(&w);
}

TEST(a_finished_job_makes_room_for_the_next)
{
    world w;
    REQUIRE_OK(open_world(&w, "fifo"));
    int first = submit(&w, "first", 4, 0), second = submit(&w, "second", 2, 0);
    REQUIRE_OK(run_round(&w, 60));
    CHECK_INT(w.starts[first], 1);
    CHECK_INT(w.starts[second], 0);
    char text[128];
    CHECK_STR(adl_decision_explain(adl_cluster_snapshot(w.cluster), adl_cluster_decision(w.cluster),
                                   1, text, sizeof text),
              "waits");
    see(&w, first, (adl_observed){.started = 4, .succeeded = 4}, 70);
    REQUIRE_OK(run_round(&w, 120));
    CHECK_INT(w.starts[second], 1);
    CHECK_INT(adl_cluster_round_job(w.cluster, 0), second);
    CHECK_NEAR(adl_cluster_job(w.cluster, second)->mean_active, (1 * 2 + 60 * 1) / 61.0, 1e-9);
    close_world(&w);
}

TEST(a_failed_replica_is_retried_then_final)
{
    world w;
    REQUIRE_OK(open_world(&w, "fifo"));
    int job = submit(&w, "bad", 2, 0);
    REQUIRE_OK(run_round(&w, 0));
    see(&w, job, (adl_observed){.started = 2, .alive = 1, .failed = 1}, 5);
    CHECK_INT(phase(&w, job), ADL_STOPPING);
    CHECK_INT(w.stops[job], 1);
    advance(&w, 36);
    CHECK_INT(w.kills[job], 1);
    see(&w, job, (adl_observed){.started = 2, .failed = 1, .interrupted = 1}, 37);
    CHECK_INT(phase(&w, job), ADL_PENDING);
    advance(&w, 41);
    CHECK_INT(w.starts[job], 1);
    advance(&w, 42);
    CHECK_INT(w.starts[job], 2);
    CHECK_INT(w.group[job], 2);
    see(&w, job, (adl_observed){.started = 2, .failed = 2}, 50);
    CHECK_INT(phase(&w, job), ADL_FAILED);
    close_world(&w);
}

/* rank grows a job only to twice what it was measured on, and moves it by stop and start. */
TEST(growth_follows_what_was_profiled)
{
    world w;
    REQUIRE_OK(open_world(&w, "rank"));
    int job = submit(&w, "grows", 0, 0);
    adl_job_report report = {.size = sizeof report,
                             .has_model = true,
                             .model = {{0.1, 0.01, 0.001, 1e-4, 0.001, 1e-4, 1.5}, {1, 100}, 64},
                             .limits = {.max_batch_size = 4096, .max_local_bsz = 64},
                             .total_work = 1e6,
                             .epoch_work = 1e4};
    REQUIRE_OK(run_round(&w, 60));
    CHECK_INT(w.size[job], 1);
    double now_s = 60;
    for (int profiled = 1; profiled <= 4; profiled *= 2) {
        see(&w, job, (adl_observed){.started = profiled, .alive = profiled, .ready = profiled},
            now_s);
        report.max_profiled = profiled;
        REQUIRE_OK(adl_cluster_report(w.cluster, job, &report));
        now_s += 600;
        REQUIRE_OK(run_round(&w, now_s));
        if (profiled == 4)
            break; /* the whole cluster */
        CHECK_INT(phase(&w, job), ADL_STOPPING);
        CHECK_INT(adl_cluster_snapshot(w.cluster)->jobs[0].max_replicas, 2 * profiled);
        see(&w, job, (adl_observed){.started = profiled, .interrupted = profiled}, now_s);
        CHECK_INT(w.size[job], 2 * profiled);
    }
    CHECK_INT(w.starts[job], 3);
    CHECK_INT(phase(&w, job), ADL_RUNNING);
    close_world(&w);
}

TEST(bad_models_and_times_are_refused)
{
    world w;
    REQUIRE_OK(open_world(&w, "rank"));
    int job = submit(&w, "bad", 0, 100), other;
    adl_job_report report = {.size = sizeof report,
                             .has_model = true,
                             .model = {{0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 99}, {1, 1}, 64}};
    CHECK_FAILS(adl_cluster_report(w.cluster, job, &report), ADL_EINVAL, "job bad: gamma");
    adl_job_spec early = {.size = sizeof early, .name = "early", .request = {{1}}, .submit_s = 50};
    CHECK_FAILS(adl_cluster_submit(w.cluster, &early, &other), ADL_EINVAL, "job early");
    close_world(&w);
}

/* Callers of an older library, and those that forgot the _INIT macro. */
TEST(structs_of_the_cluster_have_a_size)
{
    world w;
    REQUIRE_OK(open_world(&w, "rank"));
    int job;
    adl_job_spec spec = ADL_JOB_SPEC_INIT;
    CHECK_FAILS(adl_cluster_submit(w.cluster, &spec, &job), ADL_EINVAL, "adl_job_spec: no name");
    spec.name = "older";
    spec.user = &w;
    spec.size = offsetof(adl_job_spec, user); /* from before it had a user */
    REQUIRE_OK(adl_cluster_submit(w.cluster, &spec, &job));
    CHECK(adl_cluster_job(w.cluster, job)->user == NULL);
    spec.size = 0;
    CHECK_FAILS(adl_cluster_submit(w.cluster, &spec, &job), ADL_EINVAL, "adl_job_spec: size is 0");
    adl_job_report report = {.size = sizeof report + 8};
    CHECK_FAILS(adl_cluster_report(w.cluster, job, &report), ADL_EINVAL,
                "adl_job_report: size is ");
    adl_job_saved saved = {.replicas = 1};
    spec.size = sizeof spec;
    CHECK_FAILS(adl_cluster_restore(w.cluster, &spec, &saved, &job), ADL_EINVAL,
                "adl_job_saved: size is 0");
    adl_cluster *none = w.cluster;
    adl_cluster_options options = {0};
    CHECK_FAILS(adl_cluster_new(&options, &none), ADL_EINVAL, "adl_cluster_options: size is 0");
    CHECK(none == NULL);
    options = (adl_cluster_options)ADL_CLUSTER_OPTIONS_INIT;
    CHECK_FAILS(adl_cluster_new(&options, &none), ADL_EINVAL, "no policy");
    close_world(&w);
}
