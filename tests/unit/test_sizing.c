/* How large a cluster should be: by what its nodes are used for, and by what they cost. */
#include "adaptdl/cluster.h"
#include "adaptdl/sizing.h"
#include "harness.h"

#include <math.h>

static const char *const resources[] = {"gpu"};

/* Jobs that speed up as they get replicas, up to a point: the network costs `network` of a step, and batches that are
 * larger help as far as the noise lets them. */
static adl_speedup *model(double network, double noise, int most)
{
    adl_goodput goodput = {.perf = {.alpha_c = 0.1,
                                    .beta_c = 0.01,
                                    .alpha_n = network,
                                    .beta_n = 0.001,
                                    .alpha_r = network,
                                    .beta_r = 0.001,
                                    .gamma = 1},
                           .grad = {.sqr = 1, .var = noise},
                           .init_batch_size = 64};
    adl_batch_limits limits = {.max_batch_size = 64 * 64, .min_local_bsz = 2, .max_local_bsz = 64};
    adl_speedup *out = NULL;
    if (adl_speedup_new(&goodput, &limits, NULL, 0, most, &out) != ADL_OK)
        ADLT_FAIL("model: %s", adl_error());
    return out;
}

typedef struct scene {
    adl_node nodes[16], template;
    adl_job jobs[8];
    int allocations[8][16];
    adl_snapshot snapshot;
    adl_sizing sizing;
    adl_sized sized;
    adl_decision decision;
    adl_policy *policy;
} scene;

static void open_scene(scene *s, int nodes, int jobs, int most)
{
    static const char *const names[] = {"n0", "n1", "n2",  "n3",  "n4",  "n5",  "n6",  "n7",
                                        "n8", "n9", "n10", "n11", "n12", "n13", "n14", "n15"};
    *s = (scene){.sizing = ADL_SIZING_INIT};
    s->template = (adl_node){.name = "new", .device_type = "", .capacity = {{2}}};
    for (int i = 0; i < nodes; i++) {
        s->nodes[i] = s->template;
        s->nodes[i].name = names[i];
    }
    for (int j = 0; j < jobs; j++)
        s->jobs[j] = (adl_job){.name = names[j],
                               .request = {{1}},
                               .min_replicas = 1,
                               .max_replicas = most,
                               .preemptible = true,
                               .max_profiled = most};
    s->snapshot = (adl_snapshot){.resource_names = resources,
                                 .resource_count = 1,
                                 .nodes = s->nodes,
                                 .node_count = nodes,
                                 .jobs = s->jobs,
                                 .job_count = jobs,
                                 .template_node = &s->template,
                                 .now_s = 1000,
                                 .seed = 1};
    s->sizing.max_nodes = 12;
    REQUIRE_OK(adl_policy_new("rank", &s->policy));
}

static int size(scene *s)
{
    CHECK_OK(adl_snapshot_check(&s->snapshot));
    CHECK_OK(adl_sizing_decide(s->policy, &s->snapshot, &s->sizing, &s->decision, &s->sized));
    CHECK_INT(s->decision.desired_nodes, s->sized.desired);
    return s->sized.desired;
}

static void close_scene(scene *s)
{
    for (int j = 0; j < s->snapshot.job_count; j++)
        adl_speedup_free(s->jobs[j].model);
    adl_decision_fini(&s->decision);
    adl_policy_free(s->policy);
}

/* A job has `replicas` of two on each node from `first` on. */
static void give(scene *s, int job, int first, int replicas)
{
    for (int i = 0; i < replicas; i++)
        s->allocations[job][i] = first + i / 2;
    s->jobs[job].allocation = s->allocations[job];
    s->jobs[job].replicas = replicas;
}

TEST(without_jobs_there_is_nothing_to_have_nodes_for)
{
    scene s;
    open_scene(&s, 3, 0, 1);
    CHECK_INT(size(&s), 0);
    s.sizing.min_nodes = 2;
    CHECK_INT(size(&s), 2);
    close_scene(&s);
}

TEST(from_none_it_becomes_one_or_what_is_known_to_be_needed)
{
    scene s;
    open_scene(&s, 0, 2, 1);
    s.snapshot.template_node = NULL; /* nobody has seen a node yet */
    CHECK_INT(size(&s), 1);
    s.snapshot.template_node = &s.template;
    CHECK_INT(size(&s), 2); /* two replicas on one node of two: utility 1; on two: 0.5 */
    s.jobs[1].min_replicas = s.jobs[1].max_replicas = 7;
    CHECK(size(&s) >= 4); /* or it would never run */
    close_scene(&s);
}

TEST(a_job_that_fits_on_no_node_gets_one_of_a_kind_that_nobody_knows)
{
    scene s;
    open_scene(&s, 2, 1, 1);
    s.snapshot.template_node = NULL;
    CHECK_INT(size(&s), 1);
    s.jobs[0].request.amount[0] = 5;
    CHECK_INT(size(&s), 3);
    s.sizing.max_nodes = 2;
    CHECK(size(&s) <= 2);
    close_scene(&s);
}

TEST(linear_jobs_get_what_they_can_use)
{
    scene s;
    open_scene(&s, 2, 1, 16);
    give(&s, 0, 0, 4);
    CHECK_INT(size(&s), 12); /* all are used, as well as can be: to the limit */
    CHECK_NEAR(s.sized.utility, 1, 1e-9);
    s.jobs[0].max_replicas = 4;
    CHECK_INT(size(&s), 4); /* half of them is nearest to the middle of the range */
    close_scene(&s);
}

TEST(a_size_that_is_right_is_kept)
{
    scene s;
    open_scene(&s, 4, 1, 4);
    give(&s, 0, 0, 4);
    CHECK_INT(size(&s), 4);
    CHECK_NEAR(s.sized.utility, 0.5, 1e-9);
    s.sizing.low_utility = 0.55; /* that is too little now */
    CHECK_INT(size(&s), 3);
    s.sizing.low_utility = 0.2;
    s.sizing.high_utility = 0.3;
    CHECK_INT(size(&s), 8);
    close_scene(&s);
}

TEST(jobs_that_gain_little_do_not_make_it_grow)
{
    scene s;
    open_scene(&s, 1, 1, 16);
    s.sizing.max_nodes = 6;
    s.jobs[0].model = model(2, 1e6, 16);
    int slow = size(&s);
    adl_speedup_free(s.jobs[0].model);
    s.jobs[0].model = model(0.001, 1e6, 16);
    int fast = size(&s);
    if (slow >= fast)
        ADLT_FAIL("%d nodes for one that hardly scales, %d for one that does", slow, fast);
    CHECK(s.sized.brings > s.sized.last && s.sized.last > 0);
    close_scene(&s);
}

/* Nodes that go are those that jobs use least, and jobs are off them. */
TEST(what_is_released_has_no_job)
{
    scene s;
    open_scene(&s, 6, 2, 2);
    give(&s, 0, 4, 2);
    give(&s, 1, 2, 2);
    CHECK_INT(size(&s), 4); /* four replicas, eight places */
    CHECK_INT(s.decision.jobs[0].nodes[0], 4);
    CHECK_INT(s.decision.jobs[1].nodes[0], 2);
    CHECK_INT(s.decision.jobs[0].reason, ADL_REASON_KEPT);
    /* pinned ones are never moved, however many nodes that takes */
    s.sizing.max_nodes = 1;
    s.jobs[0].preemptible = s.jobs[1].preemptible = false;
    CHECK_INT(size(&s), 2);
    CHECK_INT(s.decision.jobs[1].reason, ADL_REASON_PINNED);
    /* else they make room */
    s.jobs[0].preemptible = true;
    CHECK_INT(size(&s), 1);
    CHECK_INT(s.decision.jobs[0].replicas, 0);
    CHECK_INT(s.decision.jobs[0].reason, ADL_REASON_SUSPENDED);
    close_scene(&s);
}

TEST(a_budget_buys_nodes_that_bring_enough)
{
    scene s;
    char text[300];
    double prices[16] = {0};
    open_scene(&s, 2, 1, 24);
    s.sizing.node_price = 2;
    s.sizing.budget = 11;
    CHECK_INT(size(&s), 5); /* linear: as many as it pays for */
    CHECK_NEAR(s.sized.cost, 10, 1e-9);
    CHECK_NEAR(s.sized.last, 2, 1e-9);
    adl_sized_explain(&s.sizing, &s.sized, text, sizeof text);
    CHECK_STR(text, "5 nodes wanted, 2 there: they cost 10 of 11 per hour; the last brings 2.00, 1 "
                    "for 1 per hour, one more would bring 2.00");
    s.sizing.budget = 1;
    CHECK_INT(size(&s), 0);
    s.sizing.budget = 11;
    s.jobs[0].max_replicas = 4; /* the third node would bring nothing */
    CHECK_INT(size(&s), 2);
    s.jobs[0].max_replicas = 24;
    s.jobs[0].model = model(0.01, 1, 24);
    s.sizing.budget = 24;
    int dear = size(&s);
    s.sizing.low_utility = 0.01; /* content with little */
    int cheap = size(&s);
    if (cheap <= dear)
        ADLT_FAIL("%d nodes, %d where little is enough: they bring %g, the last %g", dear, cheap,
                  s.sized.brings, s.sized.last);
    adl_speedup_free(s.jobs[0].model);
    s.jobs[0].model = NULL;
    /* the dear one goes first, though it is not the last */
    s.sizing.low_utility = 0.35;
    s.sizing.prices = prices;
    s.sizing.budget = 2;
    prices[0] = 100;
    CHECK_INT(size(&s), 1);
    CHECK_INT(s.decision.jobs[0].nodes[0], 1);
    close_scene(&s);
}

TEST(wrong_sizes_are_refused)
{
    scene s;
    open_scene(&s, 1, 1, 1);
    s.sizing.min_nodes = 13;
    CHECK_FAILS(adl_sizing_decide(s.policy, &s.snapshot, &s.sizing, &s.decision, &s.sized),
                ADL_EINVAL, "from 13 to 12 nodes");
    s.sizing.min_nodes = 0;
    s.sizing.low_utility = 0.9;
    CHECK_FAILS(adl_sizing_decide(s.policy, &s.snapshot, &s.sizing, &s.decision, &s.sized),
                ADL_EINVAL, "utility from 0.9 to 0.65");
    s.sizing = (adl_sizing)ADL_SIZING_INIT;
    s.sizing.budget = NAN;
    CHECK_FAILS(adl_sizing_decide(s.policy, &s.snapshot, &s.sizing, &s.decision, &s.sized),
                ADL_EINVAL, "budget");
    close_scene(&s);
}

/* Every policy can be asked. */
TEST(all_policies_have_a_size)
{
    const char *name;
    for (int p = 0; (name = adl_policy_list(p, NULL)); p++) {
        scene s;
        open_scene(&s, 3, 3, 2);
        adl_policy_free(s.policy);
        REQUIRE_OK(adl_policy_new(name, &s.policy));
        for (int j = 0; j < 3; j++)
            s.jobs[j].fixed_replicas = 1;
        int nodes = size(&s);
        if (nodes < 1 || nodes > 12)
            ADLT_FAIL("%s: %d nodes", name, nodes);
        close_scene(&s);
    }
}
