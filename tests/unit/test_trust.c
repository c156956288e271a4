/* One job that lies among jobs that do not: whatever it reports, the others keep what an honest job beside them would
 * have left them. */
#include "harness.h"

#include "base/rng.h"
#include "adaptdl/cluster.h"
#include "model/speedup.h"
#include "sched/trust.h"

enum { NODES = 4, GPUS = 4, HONEST = 4, ODD = HONEST, JOBS = HONEST + 1 };
enum { LATE = JOBS, EVER = JOBS + 1 }; /* LATE: comes later, in one test */

/* Scales as real ones do. */
static const adl_goodput usual = {{0.01, 0.01, 0.4, 0.01, 0.2, 0.01, 1.2}, {1, 1000}, 64};
static const adl_batch_limits limits = {4096, 16, 256, true, false};

typedef struct world {
    adl_cluster *cluster;
    adl_policy *policy;
    adl_node nodes[NODES];
    char names[NODES][8];
    double now_s, progress[EVER], work[EVER];
    adl_profile_point points[EVER][64];
    size_t point_count[EVER];
    int idle_rounds[JOBS]; /* in a row, after it had run */
    int most_idle[JOBS];
    bool ran[JOBS];
} world;

static void open_world(world *w, adl_suspend suspend, int least)
{
    static const char *const resources[] = {"gpu"};
    *w = (world){0};
    for (int n = 0; n < NODES; n++) {
        snprintf(w->names[n], sizeof w->names[n], "n%d", n);
        w->nodes[n] = (adl_node){.name = w->names[n], .device_type = "", .capacity = {{GPUS}}};
    }
    REQUIRE_OK(adl_policy_new("rank", &w->policy));
    adl_cluster_options options = {.size = sizeof options,
                                   .resource_names = resources,
                                   .resource_count = 1,
                                   .nodes = w->nodes,
                                   .node_count = NODES,
                                   .policy = w->policy,
                                   .shared_models = true,
                                   .rules = {.grace_s = 30, .max_retries = 1, .retry_pause_s = 5}};
    REQUIRE_OK(adl_cluster_new(&options, &w->cluster));
    for (int j = 0; j < JOBS; j++) {
        char name[16];
        int number;
        snprintf(name, sizeof name, "job-%d", j);
        adl_job_spec spec = {.size = sizeof spec,
                             .name = name,
                             .application = name,
                             .request = {{1}},
                             .min_replicas = j == ODD ? 0 : least,
                             .suspend = j == ODD ? ADL_SUSPEND_WHEN_BETTER : suspend,
                             .preemptible = true};
        REQUIRE_OK(adl_cluster_submit(w->cluster, &spec, &number));
        CHECK_INT(number, j);
        w->work[j] = 1e6 + 1e5 * j;
    }
}

static void close_world(world *w)
{
    adl_cluster_free(w->cluster);
    adl_policy_free(w->policy);
}

/* Does what it is told, at once. */
static void obey(world *w, adl_orders orders)
{
    while (orders.count > 0) {
        adl_order todo[2 * EVER];
        size_t count = orders.count < 2 * EVER ? orders.count : 2 * EVER;
        memcpy(todo, orders.items, count * sizeof *todo);
        for (size_t i = 0; i < count; i++) {
            int n = adl_cluster_job(w->cluster, todo[i].job)->placed_count;
            adl_observed seen = {.started = n, .alive = n, .ready = n};
            if (todo[i].action == ADL_TERMINATE || todo[i].action == ADL_KILL)
                seen = (adl_observed){.started = n, .interrupted = n};
            if (todo[i].action != ADL_CLEAN)
                adl_cluster_observe(w->cluster, todo[i].job, &seen, w->now_s);
        }
        REQUIRE_OK(adl_cluster_advance(w->cluster, w->now_s, &orders));
    }
}

static int shape_of(const world *w, int job, adl_shape *out)
{
    const adl_job_info *info = adl_cluster_job(w->cluster, job);
    int nodes = info->placed_count > 0;
    for (int i = 1; i < info->placed_count; i++)
        nodes += info->placed[i] != info->placed[i - 1];
    *out = adl_shape_of(nodes, info->placed_count);
    return info->placed_count;
}

/* What it measured in the last minute is added to what it knows. */
static void measure(world *w, int job, const adl_goodput *truth, adl_shape shape)
{
    adl_batch_choice choice;
    REQUIRE_OK(adl_goodput_optimize(truth, &limits, shape, &choice));
    w->progress[job] += 60 * choice.goodput / truth->init_batch_size;
    for (size_t i = 0; i < w->point_count[job]; i++)
        if (w->points[job][i].replicas == shape.replicas && w->points[job][i].nodes == shape.nodes)
            return;
    if (w->point_count[job] < 64)
        w->points[job][w->point_count[job]++] = (adl_profile_point){
            .nodes = shape.nodes,
            .replicas = shape.replicas,
            .local_bsz = choice.local_bsz,
            .accum_time_s = 0.5,
            .optim_time_s = adl_optim_time(&truth->perf, shape, choice.local_bsz)};
}

static void report_truth(world *w, int job, const adl_goodput *truth)
{
    adl_shape shape;
    if (shape_of(w, job, &shape) == 0)
        return;
    measure(w, job, truth, shape);
    int most = 0;
    for (size_t i = 0; i < w->point_count[job]; i++)
        most = w->points[job][i].replicas > most ? w->points[job][i].replicas : most;
    adl_job_report report = {.size = sizeof report,
                             .has_model = true,
                             .model = *truth,
                             .limits = limits,
                             .profile = w->points[job],
                             .profile_count = w->point_count[job],
                             .max_profiled = most,
                             .progress = w->progress[job],
                             .total_work = fmax(w->work[job], w->progress[job] + 1)};
    REQUIRE_OK(adl_cluster_report(w->cluster, job, &report));
}

static double wild(adli_rng *rng, double low, double high)
{
    return low * pow(high / low, adli_rng_unit(rng));
}

/* Anything that the API would let through, each kind of lie often. */
static void report_lies(world *w, adli_rng *rng)
{
    adl_profile_point points[8];
    size_t count = adli_rng_below(rng, 9);
    for (size_t i = 0; i < count; i++) {
        int replicas = 1 << adli_rng_below(rng, 8);
        points[i] = (adl_profile_point){.nodes = adli_rng_below(rng, 2) && replicas > 1 ? 2 : 1,
                                        .replicas = replicas,
                                        .local_bsz = wild(rng, 1, 1e4),
                                        .accum_time_s = wild(rng, 1e-9, 1e3),
                                        .optim_time_s = wild(rng, 1e-9, 1e3)};
    }
    adl_job_report report = {
        .size = sizeof report,
        .has_model = adli_rng_below(rng, 8) > 0,
        .model = {{wild(rng, 1e-9, 1e3), wild(rng, 1e-9, 1), wild(rng, 1e-9, 1e3),
                   wild(rng, 1e-9, 1), wild(rng, 1e-9, 1e3), wild(rng, 1e-9, 1),
                   1 + 9 * adli_rng_unit(rng)},
                  {wild(rng, 1e-6, 1e6), wild(rng, 1e-6, 1e9)},
                  floor(wild(rng, 1, 1e4))},
        .profile = points,
        .profile_count = count,
        .max_profiled = (int)wild(rng, 1, 1e6),
        .progress = wild(rng, 1e-3, 1e15),
        .restart_cost_s = adli_rng_below(rng, 2) ? wild(rng, 1e-3, 3600) : 0};
    report.limits =
        (adl_batch_limits){report.model.init_batch_size * wild(rng, 1, 1e3), 0, wild(rng, 1, 1e4),
                           adli_rng_below(rng, 2), adli_rng_below(rng, 2)};
    double left[] = {0, 1e-9, 1, report.progress, wild(rng, 1e-9, 1e9)};
    report.total_work = adli_rng_below(rng, 5) ? report.progress + left[adli_rng_below(rng, 5)] : 0;
    report.epoch_work = adli_rng_below(rng, 2) ? wild(rng, 1e-9, 1e9) : 0;
    (void)!adl_cluster_report(w->cluster, ODD, &report); /* what is no model is refused, too */
}

/* What an attacker did: superlinear beyond anything, and a minute from its end for ever. */
static void report_greed(world *w)
{
    adl_profile_point points[2] = {
        {.nodes = 1, .replicas = 1, .local_bsz = 64, .accum_time_s = 1, .optim_time_s = 1},
        {.nodes = 1, .replicas = 2, .local_bsz = 64, .accum_time_s = 1e-6, .optim_time_s = 1e-6}};
    adl_job_report report = {.size = sizeof report,
                             .has_model = true,
                             .model = {{1e-9, 1e-9, 1e-9, 1e-9, 1e-9, 1e-9, 1}, {1, 1e9}, 64},
                             .limits = {65536, 64, 256, false, false},
                             .profile = points,
                             .profile_count = 2,
                             .max_profiled = 1000000,
                             .progress = 1e6,
                             .total_work = 1e6 + 1};
    REQUIRE_OK(adl_cluster_report(w->cluster, ODD, &report));
}

static void check_view(const world *w, int least, adl_suspend suspend)
{
    const adl_snapshot *snapshot = adl_cluster_snapshot(w->cluster);
    const adl_job *odd = &snapshot->jobs[ODD];
    if (odd->model) {
        double one = adli_speedup_one(odd->model);
        for (int n = 1; n <= odd->max_replicas && n <= 64; n++)
            CHECK(adl_speedup_rate(odd->model, adl_shape_of(1, n)) <=
                  ADLI_LEEWAY * ADLI_LEEWAY * n * one * (1 + 1e-9));
    }
    for (int j = 0; j < HONEST; j++) {
        int replicas = adl_cluster_job(w->cluster, j)->replicas;
        CHECK(replicas == 0 || replicas >= least);
        if (suspend == ADL_SUSPEND_NEVER && w->ran[j])
            CHECK(replicas >= (least > 1 ? least : 1));
    }
}

typedef enum odd_kind { LINEAR_AND_HONEST, GREEDY, LYING, SILENT } odd_kind;

static void go_on(world *w, odd_kind kind, adli_rng *rng, int minutes, adl_suspend suspend,
                  int least)
{
    static const adl_goodput linear = {{1e-9, 0.01, 1e-9, 1e-9, 1e-9, 1e-9, 1}, {1, 1e6}, 64};
    int from = (int)(w->now_s / 60);
    for (int minute = from; minute < from + minutes && !adlt_failed; minute++) {
        adl_orders orders;
        for (int j = 0; j < HONEST; j++)
            report_truth(w, j, &usual);
        /* the longer it runs, the longer it will */
        w->work[ODD] = 2 * w->progress[ODD] + 1000;
        if (kind == LINEAR_AND_HONEST)
            report_truth(w, ODD, &linear);
        else if (kind == GREEDY)
            report_greed(w);
        else if (kind == LYING && adli_rng_below(rng, 3) == 0)
            report_lies(w, rng);
        w->now_s = 60.0 * (minute + 1);
        REQUIRE_OK(adl_cluster_round(w->cluster, w->now_s, &orders));
        obey(w, orders);
        check_view(w, least, suspend);
        for (int j = 0; j < HONEST; j++) {
            bool has = adl_cluster_job(w->cluster, j)->replicas > 0;
            w->ran[j] |= has;
            w->idle_rounds[j] = has || !w->ran[j] ? 0 : w->idle_rounds[j] + 1;
            if (w->idle_rounds[j] > w->most_idle[j])
                w->most_idle[j] = w->idle_rounds[j];
        }
    }
}

static void run(world *w, odd_kind kind, uint64_t seed, int minutes, adl_suspend suspend, int least)
{
    adli_rng rng;
    adli_rng_init(&rng, seed);
    open_world(w, suspend, least);
    go_on(w, kind, &rng, minutes, suspend, least);
}

static double served(const world *w, int job)
{
    return adl_cluster_job(w->cluster, job)->account->attained_s;
}

/* Each of the honest ones has nearly what it had beside an honest job; what one device does in the time that it takes to
 * catch the odd one three times is the difference allowed. */
static double compare(const world *w, const world *beside)
{
    double allowed = 3 * 10 * 60, worst = 1;
    for (int j = 0; j < HONEST; j++) {
        worst = fmin(worst, served(w, j) / served(beside, j));
        CHECK(served(w, j) >= 0.8 * served(beside, j) - allowed);
        CHECK(w->most_idle[j] <= beside->most_idle[j] + 30);
    }
    return worst;
}

TEST(a_greedy_report_does_not_take_the_cluster)
{
    world w, beside;
    run(&beside, LINEAR_AND_HONEST, 0, 240, ADL_SUSPEND_WHEN_BETTER, 0);
    run(&w, GREEDY, 1, 240, ADL_SUSPEND_WHEN_BETTER, 0);
    for (int j = 0; j < JOBS; j++)
        printf("info - job %d: %.0f device-s, at most %d minutes without; beside an honest one "
               "%.0f, %d\n",
               j, served(&w, j), w.most_idle[j], served(&beside, j), beside.most_idle[j]);
    compare(&w, &beside);
    const char *doubt = adl_cluster_job(w.cluster, ODD)->doubt;
    CHECK(doubt && strstr(doubt, "times and was not"));
    for (int j = 0; j < HONEST; j++)
        if (adl_cluster_job(w.cluster, j)->doubt)
            ADLT_FAIL("job %d %s", j, adl_cluster_job(w.cluster, j)->doubt);
    close_world(&beside);
    close_world(&w);
}

/* Fuzzed reports, beside what an honest job would have cost that scales without loss and of which nobody knows the end:
 * as long as it has run, so long it will run on. */
TEST(no_report_costs_the_others_more_than_an_honest_job)
{
    enum { MINUTES = 240, SEEDS = 40 };
    world w, beside;
    run(&beside, LINEAR_AND_HONEST, 0, MINUTES, ADL_SUSPEND_WHEN_BETTER, 0);
    double worst = 1;
    for (uint64_t seed = 1; seed <= SEEDS && !adlt_failed; seed++) {
        run(&w, LYING, seed, MINUTES, ADL_SUSPEND_WHEN_BETTER, 0);
        worst = fmin(worst, compare(&w, &beside));
        close_world(&w);
    }
    printf("info - the least that one of them got: %.2f of what it had beside an honest job\n",
           worst);
    close_world(&beside);
}

/* Floors are rules, not offers: no report moves them. check_view looks at every round. */
TEST(floors_of_running_jobs_hold_against_any_report)
{
    for (uint64_t seed = 100; seed < 110 && !adlt_failed; seed++) {
        world w;
        run(&w, seed % 2 ? LYING : GREEDY, seed, 60, ADL_SUSPEND_NEVER, 2);
        for (int j = 0; j < HONEST; j++)
            CHECK_INT(w.most_idle[j], 0);
        close_world(&w);
    }
}

/* Seconds on one device that the last round took to be left of the odd job. */
static double left_s(const world *w)
{
    const adl_job *odd = &adl_cluster_snapshot(w->cluster)->jobs[ODD];
    if (!odd->model)
        return 0;
    return (odd->total_work - odd->progress) / adli_speedup_one(odd->model);
}

/* Nothing was promised before, so no promise was broken: what was observed is held against it. */
TEST(a_first_claim_counts_no_less_than_a_quarter_of_what_was_had_before_it)
{
    world w;
    run(&w, SILENT, 1, 60, ADL_SUSPEND_WHEN_BETTER, 0);
    double had_s = served(&w, ODD);
    CHECK(had_s >= 1800);
    go_on(&w, GREEDY, NULL, 1, ADL_SUSPEND_WHEN_BETTER, 0);
    CHECK(left_s(&w) >= had_s / 4);
    const char *doubt = adl_cluster_job(w.cluster, ODD)->doubt;
    CHECK(doubt && strstr(doubt, "before it said anything like this"));
    close_world(&w);
}

/* How many device-seconds an honest job has within an hour that comes when the odd one was there for so many minutes. */
static double served_late(odd_kind kind, int before, int *waited)
{
    world w;
    int number;
    run(&w, kind, 1, before, ADL_SUSPEND_WHEN_BETTER, 0);
    adl_job_spec spec = {.size = sizeof spec,
                         .name = "late",
                         .application = "late",
                         .request = {{1}},
                         .preemptible = true,
                         .submit_s = w.now_s};
    CHECK_OK(adl_cluster_submit(w.cluster, &spec, &number));
    CHECK_INT(number, LATE);
    w.work[LATE] = 1e5;
    *waited = 0;
    for (int minute = 0; minute < 60 && !adlt_failed; minute++) {
        report_truth(&w, LATE, &usual);
        go_on(&w, kind, NULL, 1, ADL_SUSPEND_WHEN_BETTER, 0);
        *waited += served(&w, LATE) == 0;
    }
    double had_s = served(&w, LATE);
    close_world(&w);
    return had_s;
}

TEST(an_honest_job_that_comes_after_the_liar_starts_and_goes_on)
{
    for (int before = 0; before <= 60; before += 30) {
        int waited, waited_beside;
        double had_s = served_late(GREEDY, before, &waited);
        double beside_s = served_late(LINEAR_AND_HONEST, before, &waited_beside);
        printf("info - %d minutes after the liar: started after %d minutes, %.0f device-s; after "
               "an honest one %d, %.0f\n",
               before, waited, had_s, waited_beside, beside_s);
        CHECK(waited <= waited_beside + 15);
        CHECK(had_s >= 0.8 * beside_s - 900);
    }
}

/* ---- one job's trust alone ---- */

typedef struct single {
    adli_trust trust;
    adl_job view;
    adl_speedup *model;
    double rate1;
    int nodes[4];
} single;

static void open_single(single *s)
{
    *s = (single){.view = {.name = "single", .preemptible = true, .max_replicas = 4}};
    REQUIRE_OK(adl_speedup_new(&usual, &limits, NULL, 0, 4, &s->model));
    adli_speedup_bound(s->model);
    s->rate1 = adli_speedup_one(s->model);
    REQUIRE(s->rate1 > 0);
}

/* It runs for so long on one replica and then makes this claim; what counts of it is in s->view. */
static void claim_after(single *s, double passed_s, double progress_s, double left)
{
    s->view.attained_s += passed_s;
    adli_trust_serve(&s->trust, passed_s, 1);
    s->view.allocation = s->nodes;
    s->view.replicas = 1;
    s->view.model = s->model;
    s->view.progress = progress_s * s->rate1;
    s->view.total_work = s->view.progress + left * s->rate1;
    adli_trust_weigh(&s->trust, &s->view, true, 0);
}

static double counted_s(const single *s)
{
    return (s->view.total_work - s->view.progress) / s->rate1;
}

TEST(a_job_whose_claims_come_true_notices_nothing)
{
    single s;
    open_single(&s);
    for (int done = 60; done <= 36000 && !adlt_failed; done += 60) {
        /* it is half as fast as it thinks for an hour, and then twice as fast */
        double progress_s = done <= 3600 ? done / 2.0 : 1800 + 2.0 * (done - 3600);
        claim_after(&s, 60, progress_s, fmax(66600 - progress_s, 0));
        CHECK_STR(s.trust.doubt, "");
        CHECK(s.view.progress == progress_s * s.rate1);
        CHECK_NEAR(s.view.total_work, 66600 * s.rate1, 1e-12);
    }
    adl_speedup_free(s.model);
}

TEST(a_claim_unlike_all_before_is_a_first_one_again)
{
    single s;
    open_single(&s);
    for (int i = 1; i <= 60; i++)
        claim_after(&s, 60, 60 * i, 1e6);
    CHECK_NEAR(counted_s(&s), 1e6, 1e-9);
    claim_after(&s, 60, 3660, 1);
    CHECK_INT(s.trust.missed, 0);
    CHECK_NEAR(counted_s(&s), 3660 / 4.0, 1e-9);
    CHECK(strstr(s.trust.doubt, "before it said anything like this"));
    adl_speedup_free(s.model);
}

/* Ten minutes are for starting, importing and measuring. */
TEST(a_first_claim_within_ten_minutes_counts_as_it_is)
{
    single s;
    open_single(&s);
    claim_after(&s, 599, 599, 1);
    CHECK_NEAR(counted_s(&s), 1, 1e-9);
    CHECK_STR(s.trust.doubt, "");
    adl_speedup_free(s.model);
}

/* A job that says that all its service was for nothing would be the one that the guard pities most. */
TEST(a_tenth_of_the_service_counts_as_progress_whatever_is_claimed)
{
    single s;
    open_single(&s);
    for (int i = 1; i <= 60; i++) {
        claim_after(&s, 60, 0, 1e6);
        CHECK_NEAR(s.view.progress, 0.1 * s.view.attained_s * s.rate1, 1e-12);
        CHECK_NEAR(counted_s(&s), 1e6, 1e-9); /* that makes it no nearer to its end */
        CHECK_INT(s.trust.missed, 0);
    }
    claim_after(&s, 60, 367, 1e6); /* more than a tenth of 3660 s: as it says */
    CHECK_NEAR(s.view.progress, 367 * s.rate1, 1e-12);
    adl_speedup_free(s.model);
}
