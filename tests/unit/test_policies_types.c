/* What policies decide where nodes are of several device types, on problems that can be done by hand. */
#include "harness.h"
#include "snapshots.h"

/* Two nodes of four slow devices, one of four fast ones; job 0 is four times as fast there, job 1 no faster. */
TEST(a_device_type_goes_to_the_job_that_gains_by_it)
{
    static const char *const names[] = {"slow", "fast"};
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    adlt_world_init(&world, 3, 2, 1);
    for (int n = 0; n < 3; n++) {
        world.nodes[n].capacity.amount[0] = 4;
        world.nodes[n].device_type = names[n == 2];
    }
    adl_goodput slow = {{0.02, 0.001, 0.08, 0.002, 0.02, 0.0005, 1.6}, {0.01, 1}, 128}, fast = slow;
    fast.perf.alpha_c /= 4;
    fast.perf.beta_c /= 4;
    adl_batch_limits limits = {4096, 16, 256, true, false};
    for (int j = 0; j < 2; j++) {
        adl_job *job = &world.jobs[j];
        job->request.amount[0] = 1;
        job->max_replicas = job->max_profiled = 4;
        job->total_work = 1e5;
        adl_type_model types[] = {{.model = &slow, .limits = &limits},
                                  {.model = j == 0 ? &fast : &slow, .limits = &limits}};
        REQUIRE_OK(adl_speedup_new_types(types, 2, 4, &job->model));
    }
    world.snapshot.shared_models = true;
    world.snapshot.type_names = names;
    world.snapshot.type_count = 2;
    REQUIRE_OK(adl_policy_new("rank", &policy));
    REQUIRE_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    CHECK(decision.jobs[0].replicas > 0 && decision.jobs[1].replicas > 0);
    for (int i = 0; i < decision.jobs[0].replicas; i++)
        CHECK_INT(decision.jobs[0].nodes[i], 2);
    for (int i = 0; i < decision.jobs[1].replicas; i++)
        CHECK(decision.jobs[1].nodes[i] < 2);
    CHECK(decision.jobs[0].speedup > 2 * decision.jobs[1].speedup);
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
}

/* Two nodes of two slow devices each, one of four fast ones, and jobs that know both. */
static void two_types(adlt_world *world, int jobs, const adl_goodput *slow, const adl_goodput *fast)
{
    static const char *const names[] = {"slow", "fast"};
    static const adl_batch_limits limits = {4096, 16, 256, true, false};
    adlt_world_init(world, 3, jobs, 1);
    for (int n = 0; n < 3; n++) {
        world->nodes[n].capacity.amount[0] = n == 2 ? 4 : 2;
        world->nodes[n].device_type = names[n == 2];
    }
    for (int j = 0; j < jobs; j++) {
        adl_job *job = &world->jobs[j];
        job->request.amount[0] = 1;
        job->max_replicas = job->max_profiled = 8;
        job->total_work = 1e5;
        adl_type_model types[] = {{.model = slow, .limits = &limits},
                                  {.model = fast, .limits = &limits}};
        REQUIRE_OK(adl_speedup_new_types(types, 2, 8, &job->model));
    }
    world->snapshot.shared_models = true;
    world->snapshot.type_names = names;
    world->snapshot.type_count = 2;
}

static const adl_goodput slow_model = {
    {0.02, 0.001, 0.08, 0.002, 0.02, 0.0005, 1.6}, {0.01, 1}, 128};
static const adl_goodput fast_model = {
    {0.005, 0.00025, 0.08, 0.002, 0.02, 0.0005, 1.6}, {0.01, 1}, 128};

/* 3 is between the sizes of the grid. */
TEST(jobs_of_odd_sizes_run_where_there_are_types)
{
    static const char *const policies[] = {"rank", "sia", "fifo", "pollux"};
    for (size_t i = 0; i < ADLI_COUNT(policies); i++) {
        adlt_world world;
        adl_policy *policy;
        adl_decision decision = {0};
        two_types(&world, 1, &slow_model, &fast_model);
        world.jobs[0].min_replicas = world.jobs[0].max_replicas = 3;
        REQUIRE_OK(adl_policy_new(policies[i], &policy));
        REQUIRE_OK(adl_policy_decide(policy, &world.snapshot, &decision));
        CHECK_INT(decision.jobs[0].replicas, 3);
        adl_decision_fini(&decision);
        adl_policy_free(policy);
        adlt_world_fini(&world);
    }
}

/* Neither what one device of the first type would do for a job nor that it was never there may decide
 * whether it runs: its time left is what counts. */
TEST(a_job_that_was_never_on_the_first_type_is_ranked_by_its_work)
{
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    two_types(&world, 2, &slow_model, &fast_model);
    adl_speedup_free(world.jobs[1].model);
    static const adl_batch_limits limits = {4096, 16, 256, true, false};
    adl_type_model only_fast[] = {{0}, {.model = &fast_model, .limits = &limits}};
    REQUIRE_OK(adl_speedup_new_types(only_fast, 2, 8, &world.jobs[1].model));
    world.jobs[0].total_work = 1e6;
    world.jobs[1].total_work = 1e3; /* short: it is served first */
    world.nodes[2].capacity.amount[0] = 1;
    REQUIRE_OK(adl_policy_new("rank", &policy));
    REQUIRE_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    CHECK_INT(decision.jobs[1].replicas, 1);
    CHECK_INT(decision.jobs[1].nodes[0], 2);
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
}

/* price=0 means weights by rank on every cluster. With them a short job's weight grows with its rank only,
 * so its share is another than with prices. */
TEST(price_zero_holds_with_types_too)
{
    int got[2] = {0};
    for (int priced = 0; priced < 2; priced++) {
        adlt_world world;
        adl_policy *policy;
        adl_decision decision = {0};
        two_types(&world, 6, &slow_model, &fast_model);
        for (int j = 0; j < 6; j++) {
            world.jobs[j].total_work = 1e3 * pow(4, j);
            world.jobs[j].restart_cost_s = 1e-3;
        }
        REQUIRE_OK(adl_policy_new("rank", &policy));
        REQUIRE_OK(adl_policy_set(policy, "price", priced ? 4 : 0));
        REQUIRE_OK(adl_policy_set(policy, "p", 1));
        REQUIRE_OK(adl_policy_set(policy, "hep", 10)); /* all for the shortest */
        REQUIRE_OK(adl_policy_decide(policy, &world.snapshot, &decision));
        got[priced] = decision.jobs[0].replicas;
        adl_decision_fini(&decision);
        adl_policy_free(policy);
        adlt_world_fini(&world);
    }
    CHECK_INT(got[0], 4);
    CHECK(got[1] < 4);
}

TEST(a_decision_says_why_this_type)
{
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    char text[256];
    two_types(&world, 1, &slow_model, &fast_model);
    REQUIRE_OK(adl_policy_new("rank", &policy));
    REQUIRE_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    CHECK_INT(decision.jobs[0].type, 1);
    CHECK_INT(decision.jobs[0].other_type, 0);
    adl_decision_explain(&world.snapshot, &decision, 0, text, sizeof text);
    printf("info - %s\n", text);
    CHECK(strstr(text, "on fast, "));
    CHECK(strstr(text, "x as fast as on slow and a device there counts 0."));
    char cut[20];
    CHECK_INT(strlen(adl_decision_explain(&world.snapshot, &decision, 0, cut, sizeof cut)), 19);
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
}

/* Eight devices in all, of which no type has more than four: it used to be given eight, for which there was no room. */
TEST(optimus_grows_a_job_to_what_one_type_has)
{
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    two_types(&world, 1, &slow_model, &fast_model);
    REQUIRE_OK(adl_policy_new("optimus", &policy));
    REQUIRE_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    CHECK_INT(decision.jobs[0].replicas, 4);
    CHECK_INT(decision.jobs[0].nodes[0], 2);
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
}

/* A job with a minute or two left on slow devices: where does it go on, if it can change in place or not, the fast ones
 * being free or another's? */
static int type_of_a_late_job(double resize_cost_s, bool taken)
{
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    two_types(&world, 2, &slow_model, &fast_model);
    adlt_world_allocate(&world, 0, (const int[]){0, 0}, 2);
    if (taken)
        adlt_world_allocate(&world, 1, (const int[]){2, 2, 2, 2}, 4);
    world.jobs[1].priority = 1e-6;
    for (int j = 0; j < 2; j++) {
        world.jobs[j].total_work = 2000;
        world.jobs[j].max_replicas = world.jobs[j].max_profiled = 4;
        world.jobs[j].attained_s = 1000;
        world.jobs[j].restart_cost_s = 600;
        world.jobs[j].resize_cost_s = resize_cost_s;
    }
    world.snapshot.now_s = 1e5;
    CHECK_OK(adl_policy_new("rank", &policy));
    CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    CHECK(decision.jobs[0].replicas > 0);
    int type = decision.jobs[0].type;
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
    return type;
}

/* To be led to free devices of another type costs two changes in place; it used to be priced as a restart. Where
 * others have to leave first it is one. */
TEST(a_job_is_led_to_another_type_where_there_is_room)
{
    CHECK_INT(type_of_a_late_job(0, false), 0);
    CHECK_INT(type_of_a_late_job(1, false), 1);
    CHECK_INT(type_of_a_late_job(1, true), 0);
}

/* A job on the second slow node that is to grow goes on there when that is cheaper than a restart, whatever order the
 * nodes are in. */
TEST(a_job_that_changes_in_place_keeps_a_node)
{
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    two_types(&world, 1, &slow_model, &slow_model);
    world.nodes[2].capacity.amount[0] = 1; /* no room for two on the other type */
    adlt_world_allocate(&world, 0, (const int[]){1}, 1);
    world.jobs[0].max_replicas = world.jobs[0].max_profiled = 2;
    world.jobs[0].restart_cost_s = 600;
    world.jobs[0].resize_cost_s = 1;
    world.jobs[0].attained_s = 1000;
    world.snapshot.now_s = 1e5;
    REQUIRE_OK(adl_policy_new("sia", &policy));
    REQUIRE_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    CHECK_INT(decision.jobs[0].replicas, 2);
    for (int i = 0; i < decision.jobs[0].replicas; i++)
        CHECK_INT(decision.jobs[0].nodes[i], 1);
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
}

/* The published objective on a problem that can be done by hand: 4 devices, a job that scales and one
 * that does not. */
TEST(sia_gives_devices_to_those_that_scale)
{
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    adlt_world_init(&world, 1, 3, 1);
    world.nodes[0].capacity.amount[0] = 4;
    world.snapshot.now_s = 1000;
    adl_goodput scales = {{0.001, 0.01, 0.001, 0.0001, 0.001, 0.0001, 2}, {1, 1e6}, 128};
    adl_goodput does_not = {{1, 0.0001, 10, 1, 10, 1, 2}, {1, 1e-6}, 128};
    adl_batch_limits limits = {4096, 16, 256, true, false};
    for (int j = 0; j < 3; j++) {
        adl_job *job = &world.jobs[j];
        job->request.amount[0] = 1;
        job->max_replicas = 4;
        if (j < 2)
            REQUIRE_OK(
                adl_speedup_new(j == 0 ? &scales : &does_not, &limits, NULL, 0, 4, &job->model));
    }
    REQUIRE_OK(adl_policy_new("sia", &policy));
    REQUIRE_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    CHECK_INT(decision.jobs[0].replicas, 2);
    CHECK_INT(decision.jobs[1].replicas, 1);
    CHECK_INT(decision.jobs[2].replicas, 1); /* no report: one */
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
}

/* A long job runs on the node of two fast devices, another one may not leave the slow one; a short one comes that would
 * use both fast ones. What is left to the first? */
static int left_to_the_first(adl_suspend suspend, int newcomer_min, int first_min)
{
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    two_types(&world, 3, &slow_model, &fast_model);
    world.snapshot.node_count = 3;
    for (int n = 0; n < 3; n++)
        world.nodes[n].capacity.amount[0] = n;
    for (int j = 0; j < 3; j++) {
        adl_job *job = &world.jobs[j];
        job->max_replicas = job->max_profiled = 2;
        job->total_work = j == 1 ? 200 : 1e7;
        job->progress = 1;
        job->priority = j == 1 ? 100 : 0.01;
    }
    world.jobs[0].min_replicas = first_min;
    world.jobs[0].suspend = suspend;
    world.jobs[1].min_replicas = newcomer_min;
    world.jobs[2].preemptible = false;
    adlt_world_allocate(&world, 0, (const int[]){2, 2}, first_min);
    adlt_world_allocate(&world, 2, (const int[]){1}, 1);
    CHECK_OK(adl_policy_new("rank", &policy));
    CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    int left = decision.jobs[0].replicas;
    CHECK_INT(decision.jobs[2].replicas, 1);
    for (int i = 0; i < left; i++)
        CHECK_INT(decision.jobs[0].nodes[i], 2);
    CHECK_INT(decision.jobs[1].replicas, left == 0 ? 2 : 2 - left);
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
    return left;
}

/* The same as in test_rank.c, where there is one type. */
TEST(jobs_are_not_suspended_against_their_will_where_there_are_types)
{
    CHECK_INT(left_to_the_first(ADL_SUSPEND_WHEN_BETTER, 1, 1), 0);
    CHECK_INT(left_to_the_first(ADL_SUSPEND_LAST_RESORT, 1, 1), 1);
    CHECK_INT(left_to_the_first(ADL_SUSPEND_NEVER, 1, 1), 1);
    CHECK_INT(left_to_the_first(ADL_SUSPEND_LAST_RESORT, 2, 1), 0);
    CHECK(left_to_the_first(ADL_SUSPEND_NEVER, 2, 1) >
          0); /* and what the newcomer cannot start on */
    CHECK_INT(left_to_the_first(ADL_SUSPEND_NEVER, 1, 2), 2);
}

/* One that never is keeps its devices though they are fragments that a larger job needs whole. */
TEST(a_job_that_must_stay_is_placed_before_larger_ones)
{
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    two_types(&world, 3, &slow_model, &fast_model);
    for (int j = 0; j < 3; j++) {
        world.jobs[j].max_replicas = world.jobs[j].max_profiled = j == 2 ? 4 : 1;
        world.jobs[j].min_replicas = j == 2 ? 4 : 1;
        world.jobs[j].priority = j == 2 ? 100 : 0.01;
    }
    world.nodes[2].capacity.amount[0] = 1;
    world.jobs[0].suspend = ADL_SUSPEND_NEVER;
    world.jobs[1].preemptible = false;
    adlt_world_allocate(&world, 0, (const int[]){0}, 1);
    adlt_world_allocate(&world, 1, (const int[]){2}, 1);
    CHECK_OK(adl_policy_new("rank", &policy));
    CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    CHECK_INT(decision.jobs[0].replicas, 1);
    CHECK_INT(decision.jobs[1].replicas, 1);
    CHECK_INT(decision.jobs[2].replicas, 0);
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
}
