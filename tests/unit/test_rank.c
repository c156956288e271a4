/* rank: prices, priorities, floors for jobs that run, and what its explanations say about what it compared. */
#include "harness.h"
#include "snapshots.h"

/* ---- prices ---- */

/* Eight equal jobs on two nodes of eight, of which every second declares its work. */
static void half_hinted(adlt_world *world)
{
    adli_rng rng;
    adlt_world_init(world, 2, 8, 1);
    for (int n = 0; n < 2; n++)
        world->nodes[n].capacity.amount[0] = 8;
    for (int j = 0; j < 8; j++) {
        adl_job *job = &world->jobs[j];
        adli_rng_init(&rng, 5);
        job->request.amount[0] = 1;
        job->max_replicas = 16;
        job->max_profiled = 16;
        job->model = adlt_random_model(&rng, 16);
        job->progress = 100;
        job->total_work = j % 2 ? 0 : 3000 + 100 * j;
    }
    world->snapshot.shared_models = true;
}

/* Weights on two scales would give everything to one half of them. */
TEST(jobs_that_declare_work_and_jobs_that_do_not_are_weighed_alike)
{
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    half_hinted(&world);
    REQUIRE_OK(adl_policy_new("rank", &policy));
    REQUIRE_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    int got[2] = {0};
    for (int j = 0; j < 8; j++)
        got[j % 2] += decision.jobs[j].replicas;
    printf("info - %d devices for those that declare, %d for those that do not\n", got[0], got[1]);
    CHECK(got[0] >= 5 && got[1] >= 5);
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
}

/* A job that never ran loses nothing by being started: no penalty may keep it waiting. */
TEST(a_short_job_that_never_ran_is_not_kept_waiting)
{
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    half_hinted(&world);
    for (int j = 0; j < 8; j++)
        world.jobs[j].total_work = 1e6;
    world.jobs[7].total_work = 101; /* a second of work, of which the restart would be most */
    world.jobs[7].restart_cost_s = 30;
    REQUIRE_OK(adl_policy_new("rank", &policy));
    REQUIRE_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    CHECK(decision.jobs[7].replicas >= 1);
    CHECK_NEAR(decision.jobs[7].restart_cost, 0, 1e-9);
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
}

/* Of what a job that grows is thought to lose, the part that does not depend on the time it has left grows with the
 * square root of what it measured a restart to cost. */
TEST(hysteresis_grows_with_the_measured_restart_cost)
{
    static const double costs_s[] = {0, 1, 30, 120};
    for (size_t i = 0; i < ADLI_COUNT(costs_s); i++) {
        adlt_world world;
        adl_policy *policy;
        adl_decision decision = {0};
        half_hinted(&world);
        adlt_world_allocate(&world, 7, (const int[]){0}, 1);
        world.jobs[7].attained_s = 1000;
        world.jobs[7].restart_cost_s = costs_s[i]; /* 0: the usual 30 s */
        world.jobs[7].priority = 1000;
        REQUIRE_OK(adl_policy_new("rank", &policy));
        REQUIRE_OK(adl_policy_set(policy, "rs", 0));
        REQUIRE_OK(adl_policy_set(policy, "dw", 0));
        REQUIRE_OK(adl_policy_decide(policy, &world.snapshot, &decision));
        CHECK(decision.jobs[7].replicas > 1);
        double scale = sqrt((costs_s[i] > 0 ? costs_s[i] : 30) / 30);
        CHECK_NEAR(decision.jobs[7].restart_cost, 0.06 * scale, 1e-4); /* kept as a float */
        adl_decision_fini(&decision);
        adl_policy_free(policy);
        adlt_world_fini(&world);
    }
}

/* What the growth of a job that has one device is thought to cost, as seconds of a change: others have so many on its
 * node and on the other one. */
static double growth_costs_s(int beside, int elsewhere)
{
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    half_hinted(&world);
    adlt_world_allocate(&world, 7, (const int[]){0}, 1);
    if (beside > 0)
        adlt_world_allocate(&world, 0, (const int[]){0, 0, 0, 0, 0, 0, 0}, beside);
    if (elsewhere > 0)
        adlt_world_allocate(&world, 1, (const int[]){1, 1, 1, 1, 1, 1, 1, 1}, elsewhere);
    world.jobs[7].attained_s = 1000;
    world.jobs[7].restart_cost_s = 30;
    world.jobs[7].resize_cost_s = 1;
    world.jobs[7].max_replicas = 8;
    world.jobs[7].priority = 1000;
    CHECK_OK(adl_policy_new("rank", &policy));
    CHECK_OK(adl_policy_set(policy, "rs", 0));
    CHECK_OK(adl_policy_set(policy, "dw", 0));
    CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    CHECK(decision.jobs[7].replicas > 1);
    double scale = decision.jobs[7].restart_cost / 0.06;
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
    return 30 * scale * scale;
}

/* One change in place where the job is, two where all of it has to go elsewhere, and a restart where there is no room
 * beside it: it used to be one change whatever the job's node held. */
TEST(a_change_is_priced_as_what_it_will_be)
{
    CHECK_NEAR(growth_costs_s(0, 0), 1, 1e-3);
    CHECK_NEAR(growth_costs_s(0, 8), 1, 1e-3);
    CHECK_NEAR(growth_costs_s(7, 0), 2, 1e-3);
    CHECK_NEAR(growth_costs_s(7, 8), 30, 1e-3);
}

/* ---- what users say about their jobs ---- */

/* Two jobs on one node of four, the second of this priority; how many devices the second gets. */
static int with_priority(double priority, bool priced)
{
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    half_hinted(&world);
    world.snapshot.shared_models = priced;
    for (int j = 0; j < 8; j++)
        world.jobs[j].total_work = 5000;
    world.jobs[7].priority = priority;
    CHECK_OK(adl_policy_new("rank", &policy));
    CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    int got = decision.jobs[7].replicas;
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
    return got;
}

TEST(rank_respects_priorities)
{
    for (int priced = 0; priced < 2; priced++) {
        int less = with_priority(0.01, priced), usual = with_priority(0, priced),
            more = with_priority(100, priced);
        printf("info - %d, %d, %d devices with priority 0.01, 1, 100\n", less, usual, more);
        CHECK(less < usual || (less == usual && usual < more));
        CHECK(more > usual);
        CHECK_INT(with_priority(1, priced), usual);
    }
}

/* A long job runs on one node of two devices; a short one comes that would use both. */
static int left_to_the_first(adl_suspend suspend, int newcomer_min, int first_min)
{
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    adli_rng rng;
    adlt_world_init(&world, 1, 2, 1);
    world.nodes[0].capacity.amount[0] = 2;
    for (int j = 0; j < 2; j++) {
        adl_job *job = &world.jobs[j];
        adli_rng_init(&rng, 5);
        job->request.amount[0] = 1;
        job->max_replicas = job->max_profiled = 2;
        job->model = adlt_random_model(&rng, 2);
        job->total_work = j ? 200 : 1e7;
        job->progress = 1;
        job->priority = j ? 100 : 0.01;
    }
    world.jobs[1].min_replicas = newcomer_min;
    world.jobs[0].min_replicas = first_min;
    world.jobs[0].suspend = suspend;
    adlt_world_allocate(&world, 0, (const int[]){0, 0}, first_min);
    CHECK_OK(adl_policy_new("rank", &policy));
    CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    int left = decision.jobs[0].replicas;
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
    return left;
}

TEST(jobs_are_not_suspended_against_their_will)
{
    /* the newcomer would like both devices, and one would do */
    CHECK_INT(left_to_the_first(ADL_SUSPEND_WHEN_BETTER, 1, 1), 0);
    CHECK_INT(left_to_the_first(ADL_SUSPEND_LAST_RESORT, 1, 1), 1);
    CHECK_INT(left_to_the_first(ADL_SUSPEND_NEVER, 1, 1), 1);
    /* it cannot start but on both */
    CHECK_INT(left_to_the_first(ADL_SUSPEND_LAST_RESORT, 2, 1), 0);
    CHECK_INT(left_to_the_first(ADL_SUSPEND_NEVER, 2, 1), 1);
    CHECK_INT(left_to_the_first(ADL_SUSPEND_NEVER, 1, 2), 2);
}

/* Whoever is said to have got the devices instead has them for something that is worth more. */
TEST(explanations_do_not_contradict_what_was_compared)
{
    int told = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        adlt_world world;
        adl_policy *policy;
        adl_decision decision = {0};
        adlt_world_random(&world, seed, 8, 12);
        CHECK_OK(adl_policy_new("rank", &policy));
        CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
        for (int j = 0; j < decision.job_count; j++) {
            const adl_job_decision *now = &decision.jobs[j];
            char text[512];
            if (now->rival < 0 || now->next_replicas <= now->replicas || !(now->next_worth > 0))
                continue;
            told++;
            CHECK(now->rival_worth >= now->next_worth);
            CHECK(strstr(adl_decision_explain(&world.snapshot, &decision, j, text, sizeof text),
                         "weight"));
        }
        adl_decision_fini(&decision);
        adl_policy_free(policy);
        adlt_world_fini(&world);
    }
    printf("info - %d rivals\n", told);
    CHECK(told > 50);
}
