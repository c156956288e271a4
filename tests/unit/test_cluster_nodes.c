/* What a running scheduler needs of its cluster: nodes that come and go, jobs that start without a round,
 * groups that wait for room, jobs that are taken over, forgotten and deleted. */
#include "harness.h"

#include "base/rng.h"
#include "sched/cluster_impl.h"

enum { JOBS_MAX = 16 };

typedef struct world {
    adl_cluster *cluster;
    adl_policy *policy;
    adl_node nodes[3];
    int starts[JOBS_MAX], stops[JOBS_MAX], cleans[JOBS_MAX], at[JOBS_MAX];
    double now_s;
} world;

static const char *const resources[] = {"pods", "gpu"};

/* Replicas are ready at once; the test says how they end. */
static void carry_out(world *w, adl_orders orders)
{
    while (orders.count > 0) {
        for (size_t i = 0; i < orders.count; i++) {
            const adl_order *order = &orders.items[i];
            int job = order->job;
            w->stops[job] += order->action == ADL_TERMINATE || order->action == ADL_KILL;
            w->cleans[job] += order->action == ADL_CLEAN;
            if (order->action != ADL_START)
                continue;
            w->starts[job]++;
            w->at[job] = order->nodes[0];
            adl_observed seen = {
                .started = order->replicas, .alive = order->replicas, .ready = order->replicas};
            adl_cluster_observe(w->cluster, job, &seen, w->now_s);
        }
        CHECK_OK(adl_cluster_advance(w->cluster, w->now_s, &orders));
    }
}

static void advance(world *w)
{
    adl_orders orders = {0};
    CHECK_OK(adl_cluster_advance(w->cluster, w->now_s, &orders));
    carry_out(w, orders);
}

static adl_status run_round(world *w)
{
    adl_orders orders = {0};
    adl_status status = adl_cluster_round(w->cluster, w->now_s, &orders);
    carry_out(w, orders);
    return status;
}

/* Two nodes of two pods; a third place is empty. */
static adl_status open_world(world *w)
{
    *w = (world){.nodes = {{.name = "a", .device_type = "", .capacity = {{2, 0}}},
                           {.name = "b", .device_type = "", .capacity = {{2, 1}}},
                           {.name = "c", .device_type = ""}}};
    adl_status status = adl_policy_new("rank", &w->policy);
    if (status != ADL_OK)
        return status;
    adl_cluster_options options = {.size = sizeof options,
                                   .resource_names = resources,
                                   .resource_count = 2,
                                   .nodes = w->nodes,
                                   .node_count = 2,
                                   .policy = w->policy,
                                   .rules = {.grace_s = 30, .max_retries = 1, .retry_pause_s = 5},
                                   .wait_for_room = true};
    return adl_cluster_new(&options, &w->cluster);
}

static void close_world(world *w)
{
    adl_cluster_free(w->cluster);
    adl_policy_free(w->policy);
}

static int submit(world *w, const char *name, int min, bool preemptible)
{
    int number = -1;
    adl_job_spec spec = {.size = sizeof spec,
                         .name = name,
                         .request = {{1}},
                         .min_replicas = min,
                         .preemptible = preemptible,
                         .submit_s = w->now_s};
    CHECK_OK(adl_cluster_submit(w->cluster, &spec, &number));
    return number;
}

static bool place(world *w, int job)
{
    bool placed = false;
    CHECK_OK(adl_cluster_place(w->cluster, job, w->now_s, &placed));
    advance(w);
    return placed;
}

static void see(world *w, int job, adl_observed seen)
{
    adl_cluster_observe(w->cluster, job, &seen, w->now_s);
    advance(w);
}

static adl_phase phase(world *w, int job)
{
    return adl_cluster_job(w->cluster, job)->life->phase;
}

static adl_status set_nodes(world *w, int count, int *withdrawn)
{
    return adl_cluster_set_nodes(w->cluster, resources, 2, w->nodes, count, w->now_s, withdrawn);
}

TEST(a_new_job_starts_on_the_first_node_with_room)
{
    world w;
    REQUIRE_OK(open_world(&w));
    int one = submit(&w, "one", 0, true), two = submit(&w, "two", 2, true);
    int three = submit(&w, "three", 0, true), four = submit(&w, "four", 0, true);
    int fixed = submit(&w, "fixed", 0, false);
    CHECK(place(&w, one));
    CHECK(!place(&w, one)); /* has an allocation */
    CHECK(place(&w, two));
    CHECK(place(&w, three));
    CHECK(!place(&w, four));  /* full */
    CHECK(!place(&w, fixed)); /* where it starts it stays: a round decides */
    CHECK_INT(w.at[one], 0);
    CHECK_INT(w.at[two], 1);
    CHECK_INT(w.at[three], 0);
    CHECK_INT(phase(&w, two), ADL_RUNNING);
    CHECK_INT(phase(&w, four), ADL_PENDING);
    close_world(&w);
}

/* A node of which only the name is known: its type is not another type. */
TEST(a_node_without_anything_is_of_no_type)
{
    world w;
    int withdrawn;
    REQUIRE_OK(open_world(&w));
    close_world(&w);
    w.nodes[0].device_type = w.nodes[1].device_type = "t4";
    REQUIRE_OK(adl_policy_new("rank", &w.policy));
    adl_cluster_options options = {.size = sizeof options,
                                   .resource_names = resources,
                                   .resource_count = 2,
                                   .nodes = w.nodes,
                                   .node_count = 3,
                                   .policy = w.policy};
    REQUIRE_OK(adl_cluster_new(&options, &w.cluster));
    REQUIRE_OK(run_round(&w));
    CHECK_INT(adl_cluster_snapshot(w.cluster)->type_count, 1);
    CHECK_INT(adl_cluster_type(w.cluster, 2), 0); /* asking makes none either */
    REQUIRE_OK(run_round(&w));
    CHECK_INT(adl_cluster_snapshot(w.cluster)->type_count, 1);
    w.nodes[2].drained.amount[0] = 2; /* now it is there */
    REQUIRE_OK(adl_cluster_set_nodes(w.cluster, resources, 2, w.nodes, 3, w.now_s, &withdrawn));
    CHECK_INT(adl_cluster_type(w.cluster, 2), 1);
    close_world(&w);
}

/* The first job of a kind may begin with 2 replicas where there are several types and it measures for others, too. */
TEST(where_there_are_types_the_first_of_a_kind_begins_larger)
{
    world w;
    for (int types = 1; types <= 2; types++)
        for (int shared = 0; shared <= 1; shared++) {
            REQUIRE_OK(open_world(&w));
            close_world(&w);
            w.nodes[0].device_type = "t4";
            w.nodes[1].device_type = types == 2 ? "a100" : "t4";
            w.nodes[1].capacity.amount[0] = 8;
            REQUIRE_OK(adl_policy_new("rank", &w.policy));
            adl_cluster_options options = {.size = sizeof options,
                                           .resource_names = resources,
                                           .resource_count = 2,
                                           .nodes = w.nodes,
                                           .node_count = 2,
                                           .policy = w.policy,
                                           .shared_models = shared};
            REQUIRE_OK(adl_cluster_new(&options, &w.cluster));
            bool larger = types == 2 && shared;
            int job = submit(&w, "first", 0, true), limited = -1;
            adl_job_spec spec = {.size = sizeof spec,
                                 .name = "limited",
                                 .request = {{1}},
                                 .max_replicas = 1,
                                 .preemptible = true};
            CHECK_OK(adl_cluster_submit(w.cluster, &spec, &limited));
            CHECK_INT(adl_cluster_most_replicas(w.cluster, job), larger ? 2 : 1);
            CHECK_INT(adl_cluster_most_replicas(w.cluster, limited), 1);
            adl_job_report report = {.size = sizeof report,
                                     .limits = {.max_batch_size = 24, .min_local_bsz = 16}};
            CHECK_OK(adl_cluster_report(w.cluster, job,
                                        &report)); /* less than two of its least batches */
            CHECK_INT(adl_cluster_most_replicas(w.cluster, job), 1);
            close_world(&w);
        }
}

TEST(a_lost_node_loses_its_jobs_the_newest_first)
{
    world w;
    int withdrawn;
    REQUIRE_OK(open_world(&w));
    int old = submit(&w, "old", 0, true), young = submit(&w, "young", 0, true);
    CHECK(place(&w, old) && place(&w, young));
    w.nodes[0].capacity.amount[0] = 1; /* one of two places */
    REQUIRE_OK(set_nodes(&w, 2, &withdrawn));
    CHECK_INT(withdrawn, 1);
    advance(&w);
    CHECK_INT(phase(&w, old), ADL_RUNNING);
    CHECK_INT(phase(&w, young), ADL_STOPPING);
    w.nodes[0].capacity.amount[0] = 0; /* lost */
    REQUIRE_OK(set_nodes(&w, 2, &withdrawn));
    CHECK_INT(withdrawn, 1);
    advance(&w);
    CHECK_INT(phase(&w, old), ADL_STOPPING);
    see(&w, old, (adl_observed){.started = 1, .interrupted = 1});
    see(&w, young, (adl_observed){.started = 1, .interrupted = 1});
    CHECK_INT(adl_cluster_job(w.cluster, old)->life->failures, 0);
    w.now_s += 60;
    REQUIRE_OK(run_round(&w));
    CHECK_INT(w.at[old], 1);
    CHECK_INT(w.at[young], 1);
    /* another one comes */
    w.nodes[2].capacity.amount[0] = 1;
    REQUIRE_OK(set_nodes(&w, 3, &withdrawn));
    CHECK_INT(withdrawn, 0);
    int third = submit(&w, "third", 0, true);
    CHECK(place(&w, third));
    CHECK_INT(w.at[third], 2);
    close_world(&w);
}

/* Not preemptible is a promise to the user, not to the node. */
TEST(a_pinned_job_moves_when_its_node_goes)
{
    world w;
    int withdrawn;
    REQUIRE_OK(open_world(&w));
    int job = submit(&w, "pinned", 0, false);
    REQUIRE_OK(run_round(&w));
    int from = w.at[job];
    w.nodes[from].capacity = (adl_resources){{0}};
    REQUIRE_OK(set_nodes(&w, 2, &withdrawn));
    CHECK_INT(withdrawn, 1);
    advance(&w);
    see(&w, job, (adl_observed){.started = 1, .interrupted = 1});
    REQUIRE_OK(run_round(&w));
    CHECK_INT(w.at[job], 1 - from);
    CHECK_INT(w.starts[job], 2);
    close_world(&w);
}

/* What is being freed is not free: the next group starts when the last one is gone. */
TEST(a_group_waits_for_the_room_it_needs)
{
    world w;
    int withdrawn;
    REQUIRE_OK(open_world(&w));
    w.nodes[0].capacity.amount[0] = 1;
    w.nodes[1].capacity.amount[0] = 0;
    REQUIRE_OK(set_nodes(&w, 2, &withdrawn));
    int first = submit(&w, "first", 0, true), second = submit(&w, "second", 0, true);
    CHECK(place(&w, first));
    adl_cluster_delete(w.cluster, first);
    advance(&w);
    CHECK_INT(phase(&w, first), ADL_STOPPING);
    w.nodes[0].capacity.amount[0] = 0; /* takes the wanted allocation away, not the group */
    REQUIRE_OK(set_nodes(&w, 2, &withdrawn));
    w.nodes[0].capacity.amount[0] = 1;
    REQUIRE_OK(set_nodes(&w, 2, &withdrawn));
    CHECK(place(&w, second));
    CHECK_INT(w.starts[second], 0);
    see(&w, first, (adl_observed){.started = 1, .interrupted = 1});
    CHECK_INT(phase(&w, first), ADL_FAILED);
    CHECK_INT(w.starts[second], 1);
    CHECK_INT(w.cleans[first], 2); /* the group, then the job */
    close_world(&w);
}

TEST(jobs_are_taken_over)
{
    world w;
    REQUIRE_OK(open_world(&w));
    static const int there[] = {0, 1}, elsewhere[] = {1};
    adl_job_spec spec = {
        .size = sizeof spec, .name = "runs", .request = {{1}}, .preemptible = true};
    adl_job_saved saved = {.size = sizeof saved,
                           .life = {.phase = ADL_RUNNING, .group = 3, .failures = 1},
                           .nodes = there,
                           .replicas = 2,
                           .placed = there,
                           .placed_count = 2,
                           .account = {.attained_s = 50, .accounted_s = 100}};
    int runs, moves, waits;
    REQUIRE_OK(adl_cluster_restore(w.cluster, &spec, &saved, &runs));
    spec.name = "moves";
    saved.placed = elsewhere;
    saved.placed_count = saved.replicas = 1;
    saved.life = (adl_life){.phase = ADL_RUNNING, .group = 1};
    REQUIRE_OK(adl_cluster_restore(w.cluster, &spec, &saved, &moves));
    spec.name = "waits";
    saved = (adl_job_saved){.size = sizeof(adl_job_saved), .life = {.retry_at_s = 200, .group = 2}};
    REQUIRE_OK(adl_cluster_restore(w.cluster, &spec, &saved, &waits));
    w.now_s = 110;
    see(&w, runs, (adl_observed){.started = 2, .alive = 2, .ready = 2});
    CHECK_INT(phase(&w, runs), ADL_RUNNING);
    CHECK_INT(w.starts[runs], 0);
    CHECK_INT(adl_cluster_job(w.cluster, runs)->life->failures, 1);
    w.now_s = 120;
    see(&w, runs, (adl_observed){.started = 2, .alive = 2, .ready = 2});
    CHECK_NEAR(adl_cluster_job(w.cluster, runs)->account->attained_s, 50 + 2 * 20, 1e-12);
    see(&w, moves, (adl_observed){.started = 1, .alive = 1, .ready = 1});
    CHECK_INT(phase(&w, moves), ADL_STOPPING); /* it runs where it is not wanted */
    CHECK(!place(&w, waits) || w.starts[waits] == 0);
    w.now_s = 200;
    advance(&w);
    CHECK_INT(adl_cluster_job(w.cluster, waits)->life->group, w.starts[waits] ? 3 : 2);
    close_world(&w);
}

/* Numbers stay what they are while finished jobs go; those of jobs that went are given again. */
TEST(finished_jobs_are_forgotten)
{
    world w;
    REQUIRE_OK(open_world(&w));
    int jobs[JOBS_MAX];
    for (int i = 0; i < JOBS_MAX; i++) {
        char name[8];
        snprintf(name, sizeof name, "job-%d", i);
        w.now_s += 1;
        jobs[i] = submit(&w, name, 0, true);
        CHECK_INT(jobs[i], i <= 5 ? 0 : 1);
        if (i == 5)
            continue; /* waits */
        CHECK(place(&w, jobs[i]));
        see(&w, jobs[i], (adl_observed){.started = 1, .succeeded = 1});
        CHECK_INT(phase(&w, jobs[i]), ADL_SUCCEEDED);
        adl_cluster_remove(w.cluster, jobs[i]);
        if (i > 5)
            CHECK_INT(phase(&w, jobs[5]), ADL_PENDING);
    }
    REQUIRE_OK(run_round(&w));
    CHECK_INT(adl_cluster_snapshot(w.cluster)->job_count, 1);
    CHECK_INT(adl_cluster_round_job(w.cluster, 0), jobs[5]);
    CHECK_INT(w.at[jobs[5]], 0);
    int early;
    adl_job_spec spec = {.size = sizeof spec, .name = "early", .request = {{1}}, .submit_s = 1};
    CHECK_FAILS(adl_cluster_submit(w.cluster, &spec, &early), ADL_EINVAL, "early");
    close_world(&w);
}

TEST(what_can_never_fit_is_explained)
{
    world w;
    char why[160] = "";
    REQUIRE_OK(open_world(&w));
    const adl_resources small = {{1, 1}}, many = {{1, 2}}, big = {{3, 0}};
    CHECK(adl_fits_ever(resources, 2, w.nodes, 2, &small, 1, why, sizeof why));
    CHECK(!adl_fits_ever(resources, 2, w.nodes, 2, &many, 0, why, sizeof why));
    CHECK_STR(why, "a replica asks for gpu 2; the largest node, b, has 1");
    CHECK(!adl_fits_ever(resources, 2, w.nodes, 2, &big, 0, why, sizeof why));
    CHECK_STR(why, "a replica asks for pods 3; the largest node, a, has 2");
    CHECK(!adl_fits_ever(resources, 2, w.nodes, 2, &small, 2, why, sizeof why));
    CHECK_STR(why, "needs 2 replicas at once; the whole cluster holds 1");
    CHECK(!adl_fits_ever(resources, 2, w.nodes, 0, &small, 2, why, sizeof why));
    CHECK_STR(why, "there is no node");
    w.nodes[0].capacity = (adl_resources){{4, 0}};
    const adl_resources both = {{3, 1}};
    CHECK(!adl_fits_ever(resources, 2, w.nodes, 2, &both, 1, why, sizeof why));
    CHECK_STR(why, "no single node has all that a replica asks for");
    close_world(&w);
}

TEST(interruptions_pause_and_long_runs_forgive)
{
    adl_rules rules = {.grace_s = 30,
                       .max_retries = 1,
                       .retry_pause_s = 5,
                       .interrupted_pause_s = 2,
                       .forgive_s = 100};
    adl_life life = {.phase = ADL_RUNNING, .group = 1, .failures = 1, .started_s = 0};
    adl_observed lost = {.wanted = 1, .started = 1, .interrupted = 1};
    CHECK_INT(adli_lifecycle(&life, &lost, &rules, 10), ADL_CLEAN);
    CHECK_NEAR(life.retry_at_s, 12, 0);
    life = (adl_life){.phase = ADL_RUNNING, .group = 1, .failures = 1, .started_s = 0};
    adl_observed failed = {.wanted = 1, .started = 1, .failed = 1};
    CHECK_INT(adli_lifecycle(&life, &failed, &rules, 99), ADL_CLEAN);
    CHECK_INT(life.phase, ADL_FAILED);
    life = (adl_life){.phase = ADL_RUNNING, .group = 1, .failures = 1, .started_s = 0};
    CHECK_INT(adli_lifecycle(&life, &failed, &rules, 100), ADL_CLEAN);
    CHECK_INT(life.phase, ADL_PENDING);
    CHECK_INT(life.failures, 1);
}

/* ---- what it costs ---- */

/* The tables of what nodes hold, counted anew. */
static bool tables_hold(const adl_cluster *cluster)
{
    adl_resources claimed[3] = {0}, occupied[3] = {0};
    for (size_t i = 0; i < cluster->job_count; i++) {
        const adli_sched_job *j = cluster->jobs[i];
        for (int k = 0; j && k < j->replicas; k++)
            for (int r = 0; r < ADL_MAX_RESOURCES; r++)
                claimed[j->nodes[k]].amount[r] += j->spec.request.amount[r];
        for (int k = 0; j && k < j->placed_count; k++)
            for (int r = 0; r < ADL_MAX_RESOURCES; r++)
                occupied[j->placed[k]].amount[r] += j->spec.request.amount[r];
    }
    size_t bytes = (size_t)cluster->options.node_count * sizeof *claimed;
    return memcmp(claimed, cluster->claimed, bytes) == 0 &&
           memcmp(occupied, cluster->occupied, bytes) == 0;
}

/* Is every job that has or wants something among those that advance looks at, in order? */
static bool busy_hold(const adl_cluster *cluster)
{
    int64_t last = -1;
    const adli_sched_job *j;
    TAILQ_FOREACH(j, &cluster->live, live)
    {
        bool has = j->replicas > 0 || j->placed_count > 0 || j->life.phase != ADL_PENDING;
        if (adl_life_over(&j->life) || (has && !j->is_busy) || j->seq <= last)
            return false;
        last = j->seq;
    }
    return true;
}

TEST(the_books_are_right_whatever_happens)
{
    world w;
    adli_rng rng;
    int jobs[JOBS_MAX], count = 0, withdrawn, rounds = 0;
    adli_rng_init(&rng, 42);
    REQUIRE_OK(open_world(&w));
    for (int turn = 0; turn < 3000; turn++) {
        w.now_s += 1;
        int what = (int)adli_rng_below(&rng, 8),
            pick = count ? (int)adli_rng_below(&rng, (uint32_t)count) : -1;
        if (what == 0 && count < JOBS_MAX) {
            jobs[count] =
                submit(&w, "x", (int)adli_rng_below(&rng, 3), adli_rng_below(&rng, 4) > 0);
            if (adli_rng_below(&rng, 2))
                place(&w, jobs[count]);
            count++;
        } else if (what == 1) {
            rounds++;
            REQUIRE_OK(run_round(&w));
        } else if (what == 2) {
            w.nodes[adli_rng_below(&rng, 2)].capacity.amount[0] = adli_rng_below(&rng, 4);
            REQUIRE_OK(set_nodes(&w, 2, &withdrawn));
        } else if (what == 3 && count && adli_rng_below(&rng, 3) == 0) {
            adl_cluster_delete(w.cluster, jobs[pick]);
        } else if (what == 4 && count) {
            adl_cluster_set_request(w.cluster, jobs[pick],
                                    (adl_resources){{1, adli_rng_below(&rng, 2)}});
            REQUIRE_OK(set_nodes(&w, 2, &withdrawn));
        } else if (what >= 5 && count) {
            int n = adl_cluster_job(w.cluster, jobs[pick])->placed_count;
            if (n > 0)
                see(&w, jobs[pick],
                    adli_rng_below(&rng, 2) ? (adl_observed){.started = n, .succeeded = n}
                                            : (adl_observed){.started = n, .interrupted = n});
        }
        advance(&w);
        if (count && adl_life_over(adl_cluster_job(w.cluster, jobs[pick >= 0 ? pick : 0])->life)) {
            int gone = pick >= 0 ? pick : 0;
            adl_cluster_remove(w.cluster, jobs[gone]);
            jobs[gone] = jobs[--count];
        }
        if (!tables_hold(w.cluster) || !busy_hold(w.cluster)) {
            CHECK_INT(turn, -1);
            break;
        }
    }
    CHECK(rounds > 100 && w.starts[0] > 10);
    close_world(&w);
}

/* Visits of jobs while `count` of them are submitted, two run, all others wait and all go again. */
static int64_t visits_with(int count, int64_t *idle)
{
    world w;
    char name[16];
    CHECK_OK(open_world(&w));
    int *jobs = calloc((size_t)count, sizeof *jobs);
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "job-%d", i);
        adl_job_spec spec = {.size = sizeof spec,
                             .name = name,
                             .request = {{2}},
                             .preemptible = true,
                             .submit_s = i};
        bool placed;
        adl_orders orders;
        CHECK_OK(adl_cluster_submit(w.cluster, &spec, &jobs[i]));
        CHECK_OK(adl_cluster_place(w.cluster, jobs[i], i, &placed));
        CHECK_OK(adl_cluster_advance(w.cluster, i, &orders));
    }
    adl_orders orders;
    int withdrawn;
    int64_t before = w.cluster->visits;
    CHECK_OK(adl_cluster_advance(w.cluster, count, &orders));
    CHECK_OK(set_nodes(&w, 2, &withdrawn));
    *idle = w.cluster->visits - before;
    for (int i = count; i-- > 0;) { /* the newest first */
        adl_cluster_delete(w.cluster, jobs[i]);
        CHECK_OK(adl_cluster_advance(w.cluster, count, &orders));
        adl_observed gone = {.started = 1, .interrupted = 1};
        adl_cluster_observe(w.cluster, jobs[i], &gone, count);
        CHECK_OK(adl_cluster_advance(w.cluster, count, &orders));
        CHECK(adl_life_over(adl_cluster_job(w.cluster, jobs[i])->life));
        adl_cluster_remove(w.cluster, jobs[i]);
    }
    int64_t visits = w.cluster->visits;
    free(jobs);
    close_world(&w);
    return visits;
}

TEST(jobs_that_wait_cost_nothing)
{
    int64_t idle_few, idle_many, few = visits_with(300, &idle_few),
                                 many = visits_with(3000, &idle_many);
    CHECK_INT(idle_few, idle_many);
    CHECK(idle_many <= 8);
    CHECK(many <= 11 * few);
    printf("# visits beside 300 jobs: %lld, beside 3000: %lld\n", (long long)few, (long long)many);
}
