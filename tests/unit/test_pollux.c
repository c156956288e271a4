/* The genetic policy: its sorting against a naive one, its answers against all answers there are,
 * what it remembers, and how large it wants the cluster to be. */
#include "harness.h"
#include "optimum.h"

#include "policy/pollux.h"

static adl_policy *new_policy(double form, double population, double generations, double local)
{
    adl_policy *policy;
    if (adl_policy_new("pollux", &policy) != ADL_OK ||
        adl_policy_set(policy, "form", form) != ADL_OK ||
        adl_policy_set(policy, "population", population) != ADL_OK ||
        adl_policy_set(policy, "generations", generations) != ADL_OK ||
        adl_policy_set(policy, "local", local) != ADL_OK)
        abort();
    return policy;
}

static bool same(const adl_decision *a, const adl_decision *b)
{
    bool equal = a->job_count == b->job_count && a->desired_nodes == b->desired_nodes;
    for (int j = 0; equal && j < a->job_count; j++)
        equal =
            a->jobs[j].replicas == b->jobs[j].replicas &&
            (a->jobs[j].replicas == 0 || memcmp(a->jobs[j].nodes, b->jobs[j].nodes,
                                                (size_t)a->jobs[j].replicas * sizeof(int)) == 0);
    return equal;
}

/* ---- NSGA-II ---- */

static bool dominates(const adli_nsga2_point *a, const adli_nsga2_point *b)
{
    return a->first >= b->first && a->second >= b->second &&
           (a->first > b->first || a->second > b->second);
}

/* Fronts by the definition: those that nobody left dominates, again and again. */
static void naive_fronts(const adli_nsga2_point *points, int count, int *fronts)
{
    for (int i = 0; i < count; i++)
        fronts[i] = -1;
    for (int front = 0, left = count; left > 0; front++) {
        int next[64], found = 0;
        for (int i = 0; i < count; i++) {
            bool free = fronts[i] < 0;
            for (int k = 0; k < count && free; k++)
                free = !(fronts[k] < 0 && dominates(&points[k], &points[i]));
            if (free)
                next[found++] = i;
        }
        for (int i = 0; i < found; i++)
            fronts[next[i]] = front;
        left -= found;
    }
}

TEST(fronts_are_those_of_the_definition)
{
    adli_rng rng;
    adli_rng_init(&rng, 1);
    for (int round = 0; round < 2000; round++) {
        adli_nsga2_point points[64];
        adli_nsga2_rank ranks[128];
        int fronts[64], survivors[64], count = adli_rng_range(&rng, 1, 64);
        uint32_t grid = adli_rng_below(&rng, 2) ? 6 : 1000; /* coarse: many equal points */
        for (int i = 0; i < count; i++)
            points[i] = (adli_nsga2_point){.first = adli_rng_below(&rng, grid),
                                           .second = adli_rng_below(&rng, grid)};
        naive_fronts(points, count, fronts);
        int keep = adli_rng_range(&rng, 1, count), last = 0;
        adli_nsga2_survive(points, count, ranks, keep, survivors);
        bool alive[64] = {false};
        for (int i = 0; i < keep; i++) {
            int index = survivors[i];
            CHECK(!alive[index]);
            alive[index] = true;
            CHECK_INT(points[index].front, fronts[index]);
            CHECK(points[index].front >= last);
            last = points[index].front;
        }
        for (int i = 0; i < count; i++)
            CHECK(alive[i] || fronts[i] >= last);
    }
}

TEST(the_lonely_survive)
{
    /* One front: ends, a crowd around (4, 6), and one alone at (8, 2). */
    adli_nsga2_point points[] = {{.first = 0, .second = 10}, {.first = 3.9, .second = 6.1},
                                 {.first = 4, .second = 6},  {.first = 4.1, .second = 5.9},
                                 {.first = 8, .second = 2},  {.first = 10, .second = 0}};
    adli_nsga2_rank ranks[12];
    int survivors[3];
    adli_nsga2_survive(points, 6, ranks, 3, survivors);
    CHECK(isinf(points[0].crowding) && isinf(points[5].crowding));
    CHECK_NEAR(points[2].crowding, 0.02 + 0.02, 1e-9);
    CHECK_NEAR(points[4].crowding, 0.59 + 0.59, 1e-9);
    int sum = 0;
    for (int i = 0; i < 3; i++)
        sum += 1 << survivors[i];
    CHECK_INT(sum, 1 << 0 | 1 << 4 | 1 << 5);
}

/* ---- quality ---- */

/* A few small nodes and jobs, in one or two resources, some with an allocation. */
static void small_world(adlt_world *world, uint64_t seed)
{
    adli_rng rng;
    adli_rng_init(&rng, seed);
    int nodes = adli_rng_range(&rng, 1, 3), jobs = adli_rng_range(&rng, 1, 5);
    int resources = adli_rng_range(&rng, 1, 2);
    adlt_world_init(world, nodes, jobs, resources);
    world->snapshot.now_s = 10000;
    world->snapshot.seed = seed;
    for (int n = 0; n < nodes; n++) {
        world->nodes[n].capacity.amount[0] = adli_rng_range(&rng, 1, 4);
        world->nodes[n].capacity.amount[1] = adli_rng_range(&rng, 2, 8);
    }
    adl_resources left[4];
    bool distributed[4] = {false};
    for (int n = 0; n < nodes; n++)
        left[n] = world->nodes[n].capacity;
    for (int j = 0; j < jobs; j++) {
        adl_job *job = &world->jobs[j];
        job->request = (adl_resources){{1, adli_rng_range(&rng, 0, 3)}};
        job->min_replicas = adli_rng_below(&rng, 4) ? 0 : 2;
        job->max_replicas = adli_rng_range(&rng, 2, 6);
        job->preemptible = adli_rng_below(&rng, 5) > 0;
        job->submit_s = 10000 - adlt_between(&rng, 10, 5000);
        job->restarts = adli_rng_range(&rng, 0, 3);
        job->attained_s = adlt_between(&rng, 1, 1000);
        job->restart_cost_s = adli_rng_below(&rng, 3) ? 0 : 10;
        job->model = adli_rng_below(&rng, 4) ? adlt_random_model(&rng, 64) : NULL;
        if (adli_rng_below(&rng, 2) == 0)
            adlt_random_allocation(world, &rng, j, left, distributed);
    }
}

TEST(small_clusters_get_the_best_allocation_there_is)
{
    int worlds = 0, exact = 0;
    double worst = 0;
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        adlt_world world;
        adl_decision decision = {0};
        small_world(&world, seed);
        REQUIRE_OK(adl_snapshot_check(&world.snapshot));
        adl_policy *policy = new_policy(0, 40, 40, 0.1);
        CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
        double best = adlt_best(&world.snapshot), got = adlt_objective(&world.snapshot, &decision);
        CHECK(got <= best * (1 + 1e-9));
        worlds++;
        exact += got >= best * (1 - 1e-9);
        worst = fmax(worst, 1 - got / best);
        if (got < best * 0.98) {
            ADLT_FAIL("seed %llu: %g of %g", (unsigned long long)seed, got, best);
            adlt_world_print(&world);
        }
        adl_policy_free(policy);
        adl_decision_fini(&decision);
        adlt_world_fini(&world);
    }
    CHECK(exact >= worlds * 98 / 100);
    printf("info - %d clusters against brute force: %d exact, worst gap %.3g %%\n", worlds, exact,
           100 * worst);
}

TEST(the_published_cluster_is_used_close_to_the_bound)
{
    static const int sizes[] = {8, 24, 60};
    for (size_t i = 0; i < ADLI_COUNT(sizes); i++) {
        adli_rng rng;
        adlt_world world;
        adl_decision decision = {0};
        double sum = 0, worst = 0;
        int rounds = 8;
        adli_rng_init(&rng, 11 + i);
        adlt_world_uniform(&world, &rng, 16, 4, sizes[i]);
        adl_policy *policy = new_policy(0, 100, 100, 0.1);
        for (int round = 0; round < rounds; round++) {
            CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
            double gap =
                1 - adlt_objective(&world.snapshot, &decision) / adlt_bound(&world.snapshot);
            CHECK(gap > -1e-9);
            sum += gap;
            worst = fmax(worst, gap);
            adlt_world_apply(&world, &decision);
            adlt_world_tick(&world, &rng, round);
        }
        CHECK(worst < 0.03);
        CHECK(sum / rounds < 0.01);
        printf("info - 64 GPUs, %d jobs: gap to the bound %.3f %% on average, worst %.3f %%\n",
               sizes[i], 100 * sum / rounds, 100 * worst);
        adl_policy_free(policy);
        adl_decision_fini(&decision);
        adlt_world_fini(&world);
    }
}

/* Mean distance from the best allocation on small clusters. */
static double mean_gap(double population, double generations, double local)
{
    double sum = 0;
    int count = 0;
    for (uint64_t seed = 1; seed <= 100; seed++, count++) {
        adlt_world world;
        adl_decision decision = {0};
        small_world(&world, seed);
        adl_policy *policy = new_policy(0, population, generations, local);
        CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
        sum += 1 - adlt_objective(&world.snapshot, &decision) / adlt_best(&world.snapshot);
        adl_policy_free(policy);
        adl_decision_fini(&decision);
        adlt_world_fini(&world);
    }
    return sum / count;
}

/* The algorithm as published, without local improvement, gets there too, with more work. */
TEST(plain_genetic_search_works)
{
    double none = mean_gap(20, 0, 0), little = mean_gap(20, 5, 0), much = mean_gap(60, 60, 0);
    CHECK(none > 0.05);
    CHECK(little < 0.5 * none);
    CHECK(much < 0.01);
    printf("info - without local improvement: %.3g %% below the best after 0 generations, %.3g %% "
           "after 5 of 20, %.3g %% after 60 of 60\n",
           100 * none, 100 * little, 100 * much);
}

/* ---- rules ---- */

static void uniform(adlt_world *world, int nodes, int devices, int jobs, int max_replicas)
{
    adlt_world_init(world, nodes, jobs, 1);
    world->snapshot.now_s = 100000;
    for (int n = 0; n < nodes; n++)
        world->nodes[n].capacity.amount[0] = devices;
    world->template_node.capacity.amount[0] = devices;
    for (int j = 0; j < jobs; j++) {
        world->jobs[j].request.amount[0] = 1;
        world->jobs[j].max_replicas = max_replicas;
    }
}

TEST(the_seed_decides_and_nothing_else)
{
    adli_rng rng;
    adlt_world world;
    adli_rng_init(&rng, 5);
    adlt_world_uniform(&world, &rng, 8, 4, 20);
    for (int form = 0; form < 2; form++) {
        adl_decision a = {0}, b = {0};
        int differ = 0;
        for (uint64_t seed = 0; seed < 6; seed++) {
            world.snapshot.seed = seed;
            adl_policy *one = new_policy(form, 20, 5, 0), *two = new_policy(form, 20, 5, 0);
            CHECK_OK(adl_policy_decide(one, &world.snapshot, &a));
            CHECK_OK(adl_policy_decide(two, &world.snapshot, &b));
            CHECK(same(&a, &b));
            world.snapshot.seed = seed + 1;
            adl_policy_free(two);
            two = new_policy(form, 20, 5, 0);
            CHECK_OK(adl_policy_decide(two, &world.snapshot, &b));
            differ += !same(&a, &b);
            adl_policy_free(two);
            adl_policy_free(one);
        }
        CHECK(differ > 0);
        adl_decision_fini(&a);
        adl_decision_fini(&b);
    }
    adlt_world_fini(&world);
}

TEST(pinned_jobs_stay_and_keep_others_off_their_nodes)
{
    static const int across[] = {0, 1, 1}, alone[] = {2};
    for (int form = 0; form < 2; form++) {
        adlt_world world;
        adl_decision decision = {0};
        uniform(&world, 4, 4, 4, 16);
        world.jobs[1].preemptible = world.jobs[2].preemptible = false;
        adlt_world_allocate(&world, 1, across, 3);
        adlt_world_allocate(&world, 2, alone, 1);
        world.jobs[1].max_replicas = 2; /* less than it has: still not touched */
        adl_policy *policy = new_policy(form, 40, 40, 0.2);
        CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
        CHECK_INT(decision.jobs[1].replicas, 3);
        CHECK(memcmp(decision.jobs[1].nodes, across, sizeof across) == 0);
        CHECK_INT(decision.jobs[2].replicas, 1);
        CHECK_INT(decision.jobs[2].nodes[0], 2);
        CHECK_INT(decision.jobs[1].reason, ADL_REASON_PINNED);
        for (int j = 0; j < 4; j += 3) {
            const adl_job_decision *now = &decision.jobs[j];
            bool shares = false;
            for (int i = 0; i < now->replicas; i++)
                shares |= now->nodes[i] < 2;
            CHECK(now->replicas > 0);
            CHECK(!(shares && adlt_distinct(now->nodes, now->replicas) > 1));
        }
        adl_policy_free(policy);
        adl_decision_fini(&decision);
        adlt_world_fini(&world);
    }
}

TEST(a_job_submitted_this_moment_gets_idle_devices)
{
    adlt_world world;
    adl_decision decision = {0};
    uniform(&world, 2, 2, 2, 2);
    world.jobs[0].submit_s = world.jobs[1].submit_s = world.snapshot.now_s; /* factor 0 */
    adl_policy *policy = new_policy(0, 40, 20, 0.1);
    CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    CHECK_INT(decision.jobs[0].replicas, 2);
    CHECK_INT(decision.jobs[1].replicas, 2);
    adl_policy_free(policy);
    adl_decision_fini(&decision);
    adlt_world_fini(&world);
}

TEST(young_jobs_are_not_moved_for_little)
{
    /* Two running jobs fill the cluster; a swap of nodes would gain nothing and lose a restart. */
    static const int first[] = {0, 0}, second[] = {1, 1};
    adlt_world world;
    adl_decision decision = {0};
    uniform(&world, 2, 2, 2, 2);
    for (int j = 0; j < 2; j++) {
        world.jobs[j].submit_s = world.snapshot.now_s - 120;
        adlt_world_allocate(&world, j, j ? second : first, 2);
    }
    adl_policy *policy = new_policy(0, 40, 40, 0.1);
    for (uint64_t seed = 0; seed < 5; seed++) {
        world.snapshot.seed = seed;
        CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
        for (int j = 0; j < 2; j++) {
            CHECK_INT(decision.jobs[j].reason, ADL_REASON_KEPT);
            CHECK_NEAR(decision.jobs[j].restart_cost, 0, 0);
        }
    }
    adl_policy_free(policy);
    adl_decision_fini(&decision);
    adlt_world_fini(&world);
}

TEST(decisions_are_explained)
{
    /* Job 0 runs on one of four devices and may have all; job 1 waits and may have one. */
    static const int one[] = {0};
    adlt_world world;
    adl_decision decision = {0};
    char text[200];
    uniform(&world, 1, 4, 2, 8);
    world.jobs[0].submit_s = world.snapshot.now_s - 1000;
    world.jobs[0].restarts = 1;
    adlt_world_allocate(&world, 0, one, 1);
    world.jobs[1].max_replicas = 1;
    adl_policy *policy = new_policy(0, 40, 20, 0.1);
    CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    CHECK_INT(decision.jobs[0].replicas, 3);
    CHECK_INT(decision.jobs[0].reason, ADL_REASON_GREW);
    CHECK_NEAR(decision.jobs[0].restart_cost, 1 - (1000.0 - 30) / (1000 + 30), 1e-12);
    CHECK_INT(decision.jobs[0].next_replicas, 4);
    CHECK_NEAR(decision.jobs[0].next_gain, 4.0 / 3, 1e-12);
    CHECK_INT(decision.jobs[1].replicas, 1);
    CHECK_NEAR(decision.jobs[1].restart_cost, 0, 0); /* a first start is no restart */
    CHECK_INT(decision.jobs[1].next_replicas, 0);
    CHECK_STR(adl_decision_explain(&world.snapshot, &decision, 0, text, sizeof text),
              "grows to 3 (3.00x), restart costs 6 %; +1 would give 1.33x");
    adl_policy_free(policy);
    adl_decision_fini(&decision);
    adlt_world_fini(&world);
}

TEST(only_resources_that_can_be_short_are_counted)
{
    adli_pollux_options options = {.population = 10};
    adli_pollux_problem problem;
    adlt_world world;
    adlt_world_init(&world, 2, 2, 3);
    for (int i = 0; i < 2; i++) {
        world.nodes[i].capacity = (adl_resources){{4, 64000, (int64_t)1 << 38}};
        world.jobs[i].request = (adl_resources){{1 + i, 1000 * (1 + i), (int64_t)8 << 30}};
        world.jobs[i].max_replicas = 8;
    }
    REQUIRE_OK(adli_pollux_problem_init(&problem, &world.snapshot, &options));
    CHECK_INT(problem.resource_count, 1); /* the GPUs are gone before CPUs and memory are */
    adli_pollux_problem_fini(&problem);
    world.jobs[1].request.amount[2] = (int64_t)200 << 30; /* one of these is all a node holds */
    REQUIRE_OK(adli_pollux_problem_init(&problem, &world.snapshot, &options));
    CHECK_INT(problem.resource_count, 2);
    CHECK_INT(problem.capacity[problem.jobs[1].kind * 2], 1);
    adli_pollux_problem_fini(&problem);
    world.jobs[1].request.amount[0] = 0; /* and it needs no GPU: capacity of one does not bind */
    REQUIRE_OK(adli_pollux_problem_init(&problem, &world.snapshot, &options));
    CHECK_INT(problem.resource_count, 2);
    adli_pollux_problem_fini(&problem);
    adlt_world_fini(&world);
}

/* ---- how large a cluster ---- */

static int desired(adlt_world *world, adl_decision *decision)
{
    adl_policy *policy = new_policy(1, 60, 60, 0.2);
    world->snapshot.template_node = &world->template_node;
    CHECK_OK(adl_policy_decide(policy, &world->snapshot, decision));
    adl_policy_free(policy);
    return decision->desired_nodes;
}

TEST(the_cluster_grows_while_jobs_use_it_well)
{
    adlt_world world;
    adl_decision decision = {0};
    uniform(&world, 2, 4, 4, 16); /* without models: linear */
    CHECK_INT(desired(&world, &decision), 4);
    adlt_world_fini(&world);

    uniform(&world, 0, 4, 1, 16);
    CHECK_INT(desired(&world, &decision), 1);
    CHECK_INT(decision.jobs[0].replicas, 0);
    adlt_world_fini(&world);
    adl_decision_fini(&decision);
}

TEST(the_cluster_shrinks_when_they_do_not)
{
    adlt_world world;
    adl_decision decision = {0};
    uniform(&world, 8, 4, 2, 1); /* two replicas in all: 2 / 4 of one node is the middle */
    world.nodes[0].preemptible = true;
    CHECK_INT(desired(&world, &decision), 1);
    for (int j = 0; j < 2; j++) { /* on the first node that may not be taken away */
        CHECK_INT(decision.jobs[j].replicas, 1);
        CHECK_INT(decision.jobs[j].nodes[0], 1);
    }
    adlt_world_fini(&world);

    uniform(&world, 3, 4, 1, 6); /* 6 of 12: within the range */
    CHECK_INT(desired(&world, &decision), 3);
    adlt_world_fini(&world);

    uniform(&world, 3, 4, 0, 1);
    CHECK_INT(desired(&world, &decision), 0);
    adlt_world_fini(&world);

    static const int last[] = {2};
    uniform(&world, 3, 4, 1, 1);
    world.jobs[0].preemptible = false; /* pinned to the last node: none before it can go */
    adlt_world_allocate(&world, 0, last, 1);
    CHECK_INT(desired(&world, &decision), 3);
    adlt_world_fini(&world);
    adl_decision_fini(&decision);
}

TEST(without_a_template_the_size_is_not_our_business)
{
    adlt_world world;
    adl_decision decision = {0};
    uniform(&world, 5, 4, 1, 1);
    for (int form = 0; form < 2; form++) {
        adl_policy *policy = new_policy(form, 20, 10, 0.1);
        CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
        CHECK_INT(decision.desired_nodes, 5);
        CHECK_INT(decision.jobs[0].replicas, 1);
        adl_policy_free(policy);
    }
    adlt_world_fini(&world);
    adl_decision_fini(&decision);
}

/* ---- memory ---- */

/* A search that does not search: no generations, no local improvement. What it returns is what it
 * remembers, or the present. */
static double recall_only(adl_policy *policy, const adl_snapshot *snapshot)
{
    adl_decision decision = {0};
    CHECK_OK(adl_policy_set(policy, "generations", 0));
    CHECK_OK(adl_policy_set(policy, "local", 0));
    CHECK_OK(adl_policy_decide(policy, snapshot, &decision));
    double objective = adlt_objective(snapshot, &decision);
    adl_decision_fini(&decision);
    return objective;
}

TEST(the_next_search_starts_from_the_last_one)
{
    adli_rng rng;
    adlt_world world, turned;
    adl_decision decision = {0};
    adli_rng_init(&rng, 3);
    adlt_world_uniform(&world, &rng, 8, 4, 16);
    adl_policy *policy = new_policy(0, 40, 60, 0.2), *fresh = new_policy(0, 40, 60, 0.2);
    CHECK_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    double found = adlt_objective(&world.snapshot, &decision);
    CHECK_NEAR(recall_only(policy, &world.snapshot), found, 1e-12);
    CHECK(recall_only(fresh, &world.snapshot) < 0.9 * found);

    /* The same jobs and nodes in the opposite order, by name. */
    adlt_world_select(&turned, &world, NULL, NULL, NULL);
    for (int j = 0; j < 16; j++) {
        turned.jobs[j] = world.jobs[15 - j];
        turned.jobs[j].name = strcpy(turned.job_names[j], world.job_names[15 - j]);
    }
    for (int n = 0; n < 8; n++)
        strcpy(turned.node_names[n], world.node_names[7 - n]);
    CHECK_NEAR(recall_only(policy, &turned.snapshot), found, 1e-9);
    adlt_world_fini(&turned);
    adl_policy_free(fresh);
    adl_policy_free(policy);
    adl_decision_fini(&decision);
    adlt_world_fini(&world);
}

/* Job and node i are remembered with `before`, then the search is asked about `after`. */
static double recall_after(const adlt_world *world, const bool *jobs, const bool *nodes)
{
    adlt_world part;
    adl_decision decision = {0};
    adl_policy *policy = new_policy(0, 40, 60, 0.2);
    CHECK_OK(adl_policy_decide(policy, &world->snapshot, &decision));
    adlt_world_select(&part, world, jobs, nodes, NULL);
    double objective = recall_only(policy, &part.snapshot);
    CHECK_OK(adl_policy_set(policy, "generations", 30));
    for (int round = 0; round < 3; round++) { /* and back, and again */
        CHECK_OK(adl_policy_decide(policy, &world->snapshot, &decision));
        CHECK_INT(decision.job_count, world->snapshot.job_count);
        CHECK_OK(adl_policy_decide(policy, &part.snapshot, &decision));
        CHECK_INT(decision.job_count, part.snapshot.job_count);
    }
    adlt_world_fini(&part);
    adl_policy_free(policy);
    adl_decision_fini(&decision);
    return objective;
}

TEST(memory_survives_jobs_and_nodes_that_come_and_go)
{
    adli_rng rng;
    adlt_world world;
    bool jobs[16], nodes[8], none[16] = {false};
    adli_rng_init(&rng, 4);
    adlt_world_uniform(&world, &rng, 8, 4, 16);
    for (int i = 0; i < 16; i++)
        jobs[i] = i % 3 > 0;
    for (int i = 0; i < 8; i++)
        nodes[i] = i != 2 && i != 5;
    /* Of the jobs that are left, most are still placed; with nothing remembered none would be: every
     * job at 0 makes the objective 1e-3. */
    CHECK(recall_after(&world, jobs, NULL) > 0.1);
    CHECK(recall_after(&world, NULL, nodes) > 0.002);
    CHECK(recall_after(&world, jobs, nodes) > 0.002);
    recall_after(&world, none, NULL);
    recall_after(&world, NULL, none);
    adlt_world_fini(&world);
}

/* ---- faults ---- */

TEST(every_failed_allocation_is_a_clean_error)
{
    long points = 0;
    for (int form = 0; form < 2; form++) {
        adli_rng rng;
        adlt_world world;
        adl_decision decision = {0}, again = {0};
        adl_status status = ADL_ENOMEM;
        adli_rng_init(&rng, 6);
        adlt_world_uniform(&world, &rng, 4, 2, 6);
        world.snapshot.template_node = &world.template_node;
        for (int nth = 1; status != ADL_OK && nth < 500; nth++, points++) {
            adl_policy *policy = new_policy(form, 10, 3, 0.2);
            REQUIRE_OK(
                adl_policy_decide(policy, &world.snapshot, &decision)); /* has a memory now */
            adli_mem_fail_at(nth);
            status = adl_policy_decide(policy, &world.snapshot, &decision);
            adli_mem_fail_at(0);
            CHECK(status == ADL_OK || status == ADL_ENOMEM);
            CHECK(status == ADL_OK || decision.job_count == 0);
            CHECK(status == ADL_OK || strlen(adl_error()) > 0);
            CHECK_OK(adl_policy_decide(policy, &world.snapshot, &again));
            CHECK_INT(again.job_count, 6);
            adl_policy_free(policy);
        }
        CHECK_OK(status);
        adl_decision_fini(&again);
        adl_decision_fini(&decision);
        adlt_world_fini(&world);
    }
    CHECK(points > 60);
    printf("info - %ld allocations failed in turn\n", points);
}
