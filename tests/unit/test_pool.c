/* The pool of models: what a newcomer knows, what a slower job makes of it, who is put out, and that it
 * stays within its bounds. Points are made from known parameters, so the right answer is known too. */
#include "harness.h"

#include "base/mem.h"
#include "base/rng.h"
#include "sched/pool_impl.h"

static const adl_perf_params truth = {0.02, 0.001, 0.08, 0.002, 0.02, 0.0005, 1.6};
static const adl_batch_limits limits = {4096, 16, 256, true, false};

/* What a job with these parameters measures, slower than they say by a factor. */
static adl_profile_point measured(const adl_perf_params *perf, int nodes, int replicas, double m,
                                  double factor)
{
    adl_shape shape = adl_shape_of(nodes, replicas);
    return (adl_profile_point){.nodes = nodes,
                               .replicas = replicas,
                               .local_bsz = m,
                               .accum_time_s = factor * adl_accum_time(perf, m),
                               .optim_time_s = factor * adl_optim_time(perf, shape, m)};
}

static adl_status tell(adli_pool *pool, adli_pool_member *member, const adl_profile_point *points,
                       size_t count)
{
    adl_fit_result fit;
    adl_status status = adl_fit(points, count, &fit);
    if (status != ADL_OK)
        return status;
    adli_pool_news news = {.model = {fit.perf, {0.01, 1}, 128},
                           .limits = limits,
                           .profile = points,
                           .profile_count = count};
    return adli_pool_tell(pool, member, &news);
}

enum { TAUGHT = 8 };

/* Eight configurations on one to four nodes. */
static void teach(adl_profile_point points[TAUGHT], const adl_perf_params *perf, double factor)
{
    static const struct {
        int nodes, replicas;
        double m;
    } shapes[TAUGHT] = {{1, 1, 128}, {1, 1, 64},  {1, 2, 128},  {1, 4, 128},
                        {2, 8, 64},  {3, 12, 64}, {4, 16, 128}, {4, 16, 32}};
    for (int i = 0; i < TAUGHT; i++)
        points[i] = measured(perf, shapes[i].nodes, shapes[i].replicas, shapes[i].m, factor);
}

static double rate_of(adli_pool *pool, adli_pool_member *member, int nodes, int replicas)
{
    adl_speedup *model;
    if (adli_pool_model(pool, member, 1, 32, &model) != ADL_OK)
        return NAN;
    double rate = adl_speedup_rate(model, adl_shape_of(nodes, replicas));
    adl_speedup_free(model);
    return rate;
}

/* The rate that parameters and statistics give, without any measurement. */
static double true_rate(const adl_perf_params *perf, double factor, int nodes, int replicas)
{
    adl_goodput model = {*perf, {0.01, 1}, 128};
    adl_batch_choice choice;
    if (adl_goodput_optimize(&model, &limits, adl_shape_of(nodes, replicas), &choice) != ADL_OK)
        return NAN;
    return choice.goodput / 128 / factor;
}

TEST(a_newcomer_knows_what_others_measured)
{
    adli_pool *pool;
    adli_pool_member *old, *new, *other;
    adl_profile_point points[TAUGHT];
    adl_goodput prior;
    adl_batch_limits known;
    teach(points, &truth, 1);
    REQUIRE_OK(adli_pool_new(true, &pool));
    REQUIRE_OK(adli_pool_join(pool, "resnet", &old));
    CHECK(adli_pool_version(pool, old) == 0);
    REQUIRE_OK(tell(pool, old, points, TAUGHT));
    REQUIRE_OK(adli_pool_join(pool, "resnet", &new));
    REQUIRE_OK(adli_pool_join(pool, "bert", &other));
    CHECK(adli_pool_version(pool, new) > 0);
    CHECK_INT(adli_pool_max_profiled(pool, new), 16);
    CHECK_NEAR(rate_of(pool, new, 4, 16), true_rate(&truth, 1, 4, 16), 0.02);
    CHECK_NEAR(rate_of(pool, new, 1, 1), true_rate(&truth, 1, 1, 1), 0.02);
    REQUIRE(adli_pool_prior(pool, new, 0, &prior));
    CHECK_NEAR(prior.grad.var, 1, 1e-12);
    CHECK_NEAR(prior.init_batch_size, 128, 1e-12);
    REQUIRE(adli_pool_limits(pool, new, &known));
    CHECK_NEAR(known.max_batch_size, 4096, 1e-12);
    CHECK(adli_pool_version(pool, other) == 0 && !adli_pool_prior(pool, other, 0, &prior));
    adl_speedup *model;
    CHECK_FAILS(adli_pool_model(pool, other, 1, 8, &model), ADL_ESTATE, "nothing is known");
    adli_pool_leave(pool, other);
    adli_pool_leave(pool, new);
    adli_pool_leave(pool, old);
    adli_pool_free(pool);
}

TEST(a_slower_job_scales_what_it_did_not_measure_and_does_not_spoil_it)
{
    adli_pool *pool;
    adli_pool_member *old, *slow, *third;
    adl_profile_point points[TAUGHT], own[2];
    teach(points, &truth, 1);
    own[0] = measured(&truth, 1, 1, 128, 2.2);
    own[1] = measured(&truth, 2, 6, 100, 2.2); /* a configuration that is new to the pool */
    REQUIRE_OK(adli_pool_new(true, &pool));
    REQUIRE_OK(adli_pool_join(pool, "a", &old));
    REQUIRE_OK(tell(pool, old, points, TAUGHT));
    REQUIRE_OK(adli_pool_join(pool, "a", &slow));
    REQUIRE_OK(tell(pool, slow, own, 2));
    CHECK(!adli_pool_alone(slow));
    CHECK_NEAR(rate_of(pool, slow, 4, 16), true_rate(&truth, 2.2, 4, 16), 0.05);
    REQUIRE_OK(adli_pool_join(pool, "a", &third));
    CHECK_NEAR(rate_of(pool, third, 4, 16), true_rate(&truth, 1, 4, 16), 0.03);
    CHECK_NEAR(rate_of(pool, third, 2, 6), true_rate(&truth, 1, 2, 6), 0.05);
    adli_pool_leave(pool, third);
    adli_pool_leave(pool, slow);
    adli_pool_leave(pool, old);
    adli_pool_free(pool);
}

/* Something else under the same name: its network is a hundred times slower, its computation faster. */
static const adl_perf_params foreign = {0.001, 0.00002, 9, 0.4, 3, 0.1, 1};

TEST(wildly_wrong_members_leave_and_take_their_points_with_them)
{
    adli_pool *pool;
    adli_pool_member *members[4];
    adl_profile_point points[TAUGHT], wrong[TAUGHT];
    teach(points, &truth, 1);
    teach(wrong, &foreign, 1);
    REQUIRE_OK(adli_pool_new(true, &pool));
    for (int i = 0; i < 4; i++)
        REQUIRE_OK(adli_pool_join(pool, "same-name", &members[i]));
    REQUIRE_OK(tell(pool, members[0], points, 5));
    REQUIRE_OK(tell(pool, members[1], points, TAUGHT)); /* adds what the first did not measure */
    double before = rate_of(pool, members[0], 4, 16);
    REQUIRE_OK(tell(pool, members[2], wrong, TAUGHT));
    CHECK(adli_pool_alone(members[2]));
    CHECK(rate_of(pool, members[0], 4, 16) == before);
    CHECK_NEAR(rate_of(pool, members[2], 4, 16), true_rate(&foreign, 1, 4, 16), 0.05);
    REQUIRE_OK(tell(pool, members[2], wrong, 4)); /* it does not come back */
    CHECK(adli_pool_alone(members[2]) && rate_of(pool, members[0], 4, 16) == before);
    REQUIRE_OK(tell(pool, members[3], points, 3));
    CHECK(!adli_pool_alone(members[3]));
    for (int i = 0; i < 4; i++)
        adli_pool_leave(pool, members[i]);
    adli_pool_free(pool);
}

TEST(of_two_that_disagree_neither_is_believed)
{
    adli_pool *pool;
    adli_pool_member *first, *second, *third;
    adl_profile_point points[TAUGHT], wrong[TAUGHT];
    adl_goodput prior;
    teach(points, &truth, 1);
    teach(wrong, &foreign, 1);
    REQUIRE_OK(adli_pool_new(true, &pool));
    REQUIRE_OK(adli_pool_join(pool, "x", &first));
    REQUIRE_OK(adli_pool_join(pool, "x", &second));
    REQUIRE_OK(tell(pool, first, wrong, TAUGHT));
    REQUIRE_OK(tell(pool, second, points, TAUGHT));
    CHECK(adli_pool_alone(second));
    REQUIRE_OK(adli_pool_join(pool, "x", &third));
    CHECK(!adli_pool_prior(pool, third, 0, &prior));
    REQUIRE_OK(tell(pool, third, points, TAUGHT));
    CHECK(!adli_pool_alone(third));
    CHECK_NEAR(rate_of(pool, third, 4, 16), true_rate(&truth, 1, 4, 16), 0.02);
    adli_pool_leave(pool, third);
    adli_pool_leave(pool, second);
    adli_pool_leave(pool, first);
    adli_pool_free(pool);
}

static adl_status tell_more(adli_pool *pool, adli_pool_member *member,
                            const adl_profile_point *points, adl_grad_params grad, double max_local)
{
    adli_pool_news news = {.model = {truth, grad, 128},
                           .limits = {4096, 16, max_local, true, false},
                           .profile = points,
                           .profile_count = TAUGHT};
    return adli_pool_tell(pool, member, &news);
}

TEST(who_leaves_takes_gradients_and_limits_along)
{
    adli_pool *pool;
    adli_pool_member *first, *second, *third, *fourth;
    adl_profile_point points[TAUGHT], wrong[TAUGHT];
    adl_goodput prior;
    teach(points, &truth, 1);
    teach(wrong, &foreign, 1);
    REQUIRE_OK(adli_pool_new(true, &pool));
    REQUIRE_OK(adli_pool_join(pool, "x", &first));
    REQUIRE_OK(adli_pool_join(pool, "x", &second));
    REQUIRE_OK(adli_pool_join(pool, "x", &third));
    REQUIRE_OK(tell_more(pool, first, wrong, (adl_grad_params){5, 7}, 256));
    REQUIRE_OK(tell_more(pool, second, points, (adl_grad_params){5, 9}, 17)); /* both go */
    CHECK(adli_pool_alone(second));
    REQUIRE_OK(adli_pool_join(pool, "x", &fourth));
    CHECK(adli_pool_version(pool, fourth) == 0);
    REQUIRE_OK(tell_more(pool, third, points, (adl_grad_params){0.01, 1}, 256));
    REQUIRE(adli_pool_prior(pool, fourth, 0, &prior));
    CHECK_NEAR(prior.grad.var, 1, 1e-12);
    adli_pool_leave(pool, second);
    REQUIRE_OK(adli_pool_join(pool, "x", &second));
    adl_profile_point more = measured(&truth, 2, 6, 100, 1);
    REQUIRE_OK(tell(pool, second, &more, 1)); /* two have taught it now */
    double before = rate_of(pool, fourth, 4, 16);
    CHECK_NEAR(before, true_rate(&truth, 1, 4, 16), 0.02);
    REQUIRE_OK(tell_more(pool, first, wrong, (adl_grad_params){5, 8}, 17)); /* it goes alone */
    CHECK(adli_pool_alone(first));
    CHECK(rate_of(pool, fourth, 4, 16) == before);
    adli_pool_leave(pool, fourth);
    adli_pool_leave(pool, third);
    adli_pool_leave(pool, second);
    adli_pool_leave(pool, first);
    adli_pool_free(pool);
}

/* Nobody can say which of two is the odd one, also when one of them taught before a restart. */
TEST(what_was_loaded_can_be_disowned)
{
    adli_pool *pool;
    adli_pool_member *member, *next;
    adl_profile_point points[TAUGHT], wrong[TAUGHT];
    adli_buf text;
    adli_buf_init(&text, 1 << 20);
    teach(points, &truth, 1);
    teach(wrong, &foreign, 1);
    REQUIRE_OK(adli_pool_new(true, &pool));
    int type;
    REQUIRE_OK(adli_pool_type_of(pool, "", &type));
    REQUIRE_OK(adli_pool_join(pool, "x", &member));
    REQUIRE_OK(tell(pool, member, wrong, TAUGHT));
    REQUIRE_OK(adli_pool_save(pool, &text));
    adli_pool_leave(pool, member);
    adli_pool_free(pool);
    REQUIRE_OK(adli_pool_new(true, &pool));
    REQUIRE_OK(adli_pool_load(pool, text.data, text.length));
    REQUIRE_OK(adli_pool_join(pool, "x", &member));
    REQUIRE_OK(tell(pool, member, points, TAUGHT));
    CHECK(adli_pool_alone(member));
    REQUIRE_OK(adli_pool_join(pool, "x", &next));
    CHECK(adli_pool_version(pool, next) == 0);
    REQUIRE_OK(tell(pool, next, points, TAUGHT));
    CHECK(!adli_pool_alone(next));
    adli_pool_leave(pool, next);
    adli_pool_leave(pool, member);
    adli_pool_free(pool);
    adli_buf_fini(&text);
}

/* What several have taught is not lost for one that disagrees, before a restart or after it. */
TEST(one_that_disagrees_does_not_cost_what_several_taught)
{
    adli_pool *pool;
    adli_pool_member *members[2], *odd, *next;
    adl_profile_point points[TAUGHT], wrong[TAUGHT];
    adli_buf text;
    adli_buf_init(&text, 1 << 20);
    teach(points, &truth, 1);
    teach(wrong, &foreign, 1);
    REQUIRE_OK(adli_pool_new(true, &pool));
    int type;
    REQUIRE_OK(adli_pool_type_of(pool, "", &type));
    for (int i = 0; i < 2; i++) { /* each brings something that the other did not measure */
        REQUIRE_OK(adli_pool_join(pool, "x", &members[i]));
        REQUIRE_OK(tell(pool, members[i], points + 2 * i, TAUGHT - 2));
    }
    REQUIRE_OK(adli_pool_save(pool, &text));
    for (int i = 0; i < 2; i++)
        adli_pool_leave(pool, members[i]);
    adli_pool_free(pool);
    REQUIRE_OK(adli_pool_new(true, &pool));
    REQUIRE_OK(adli_pool_load(pool, text.data, text.length));
    REQUIRE_OK(adli_pool_join(pool, "x", &odd));
    CHECK(odd->id > 2); /* nobody's number is a teacher's */
    REQUIRE_OK(tell(pool, odd, wrong, TAUGHT));
    CHECK(adli_pool_alone(odd));
    REQUIRE_OK(adli_pool_join(pool, "x", &next));
    CHECK(adli_pool_version(pool, next) != 0);
    adl_goodput prior;
    CHECK(adli_pool_prior(pool, next, 0, &prior));
    adli_pool_leave(pool, next);
    adli_pool_leave(pool, odd);
    adli_pool_free(pool);
    adli_buf_fini(&text);
}

/* Jobs that wait know what others measured, and nothing else: ten thousand of them need no model each. */
TEST(those_that_have_not_reported_share_a_model)
{
    adli_pool *pool;
    adli_pool_member *member, *waits[2];
    adl_profile_point points[TAUGHT];
    adl_speedup *models[3];
    teach(points, &truth, 1);
    REQUIRE_OK(adli_pool_new(true, &pool));
    REQUIRE_OK(adli_pool_join(pool, "x", &member));
    REQUIRE_OK(tell(pool, member, points, TAUGHT / 2));
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(adli_pool_join(pool, "x", &waits[i]));
        REQUIRE_OK(adli_pool_model(pool, waits[i], 1, 8, &models[i]));
    }
    CHECK(models[0] == models[1]);
    REQUIRE_OK(adli_pool_model(pool, waits[0], 1, 16, &models[2])); /* for more replicas */
    CHECK(models[2] != models[0]);
    adl_speedup_free(models[2]);
    REQUIRE_OK(tell(pool, member, points, TAUGHT)); /* more is known */
    REQUIRE_OK(adli_pool_model(pool, waits[0], 1, 16, &models[2]));
    adl_speedup_free(models[1]);
    CHECK(adl_speedup_get(models[0], adl_shape_of(1, 2)) > 1); /* still another's */
    adl_speedup_free(models[0]);
    for (int i = 0; i < 2; i++)
        adli_pool_leave(pool, waits[i]);
    adli_pool_leave(pool, member);
    adli_pool_free(pool);
    CHECK(adl_speedup_get(models[2], adl_shape_of(1, 2)) > 1);
    adl_speedup_free(models[2]);
}

TEST(nonsense_is_left_out)
{
    adli_pool *pool;
    adli_pool_member *member;
    adl_profile_point points[TAUGHT + 6];
    teach(points, &truth, 1);
    for (int i = 0; i < 6; i++)
        points[TAUGHT + i] = measured(&truth, 1, 2, 64, 1);
    points[TAUGHT].optim_time_s = NAN;
    points[TAUGHT + 1].accum_time_s = -1;
    points[TAUGHT + 2].replicas = 0;
    points[TAUGHT + 3].type = ADL_MAX_TYPES;
    points[TAUGHT + 4].local_bsz = INFINITY;
    points[TAUGHT + 5].replicas = 1 << 30;
    REQUIRE_OK(adli_pool_new(true, &pool));
    REQUIRE_OK(adli_pool_join(pool, "a", &member));
    REQUIRE_OK(tell(pool, member, points, TAUGHT + 6));
    CHECK_NEAR(rate_of(pool, member, 4, 16), true_rate(&truth, 1, 4, 16), 0.02);
    CHECK_INT(adli_pool_max_profiled(pool, member), 16);
    adli_pool_leave(pool, member);
    adli_pool_free(pool);
}

TEST(history_stands_in_for_work_that_nobody_declared)
{
    adli_pool *pool;
    adli_pool_member *done, *new;
    adl_profile_point points[TAUGHT];
    teach(points, &truth, 1);
    REQUIRE_OK(adli_pool_new(true, &pool));
    REQUIRE_OK(adli_pool_join(pool, "a", &done));
    REQUIRE_OK(tell(pool, done, points, TAUGHT));
    CHECK(adli_pool_total_work(pool, done) == 0);
    adli_pool_finished(pool, done, 1000);
    adli_pool_finished(pool, done, 3000);
    adli_pool_finished(pool, done, NAN); /* not counted */
    REQUIRE_OK(adli_pool_join(pool, "a", &new));
    CHECK_NEAR(adli_pool_total_work(pool, new), 2000, 1e-12);
    adli_pool_leave(pool, new);
    adli_pool_leave(pool, done);
    adli_pool_free(pool);
}

TEST(switched_off_nobody_learns_from_others)
{
    adli_pool *pool;
    adli_pool_member *old, *new;
    adl_profile_point points[TAUGHT];
    teach(points, &truth, 1);
    REQUIRE_OK(adli_pool_new(false, &pool));
    CHECK(!adli_pool_shares(pool));
    REQUIRE_OK(adli_pool_join(pool, "a", &old));
    REQUIRE_OK(tell(pool, old, points, TAUGHT));
    adli_pool_finished(pool, old, 1000);
    CHECK_NEAR(rate_of(pool, old, 4, 16), true_rate(&truth, 1, 4, 16), 0.02);
    REQUIRE_OK(adli_pool_join(pool, "a", &new));
    CHECK(adli_pool_version(pool, new) == 0 && adli_pool_total_work(pool, new) == 0);
    adli_pool_leave(pool, new);
    adli_pool_leave(pool, old);
    adli_pool_free(pool);
}

TEST(other_batch_limits_are_another_application)
{
    adli_pool *pool;
    adli_pool_member *old, *new;
    adl_profile_point points[TAUGHT];
    teach(points, &truth, 1);
    REQUIRE_OK(adli_pool_new(true, &pool));
    REQUIRE_OK(adli_pool_join(pool, "a", &old));
    REQUIRE_OK(tell(pool, old, points, TAUGHT));
    REQUIRE_OK(adli_pool_join(pool, "a", &new));
    adli_pool_news news = {
        .model = {truth, {0.01, 1}, 64}, .limits = limits, .profile = points, .profile_count = 1};
    REQUIRE_OK(adli_pool_tell(pool, new, &news));
    CHECK_INT(adli_pool_max_profiled(pool, new), 1);
    adli_pool_leave(pool, new);
    adli_pool_leave(pool, old);
    adli_pool_free(pool);
}

/* Nor is one whose single replica grows; what is saved of it says so, and what an older daemon saved does not. */
TEST(a_single_replica_that_grows_is_another_application)
{
    adli_pool *pool, *again;
    adli_pool_member *held, *grows, *new;
    adl_profile_point points[TAUGHT];
    adl_batch_limits known;
    adli_buf text;
    int type;
    adli_buf_init(&text, 1 << 20);
    teach(points, &truth, 1);
    REQUIRE_OK(adli_pool_new(true, &pool));
    REQUIRE_OK(adli_pool_type_of(pool, "", &type));
    REQUIRE_OK(adli_pool_join(pool, "a", &held));
    REQUIRE_OK(tell(pool, held, points, TAUGHT));
    REQUIRE_OK(adli_pool_join(pool, "a", &new)); /* the memo of a newcomer is shared */
    double promised = 1 / rate_of(pool, new, 1, 1) * rate_of(pool, new, 1, 2);
    adli_pool_leave(pool, new);
    REQUIRE_OK(adli_pool_save(pool, &text));
    CHECK(!strstr(text.data, "loneReplicaGrows"));
    REQUIRE_OK(adli_pool_join(pool, "a", &grows));
    adli_pool_news news = {
        .model = {truth, {0.01, 1}, 128}, .limits = limits, .profile = points, .profile_count = 2};
    news.limits.lone_grows = true;
    REQUIRE_OK(adli_pool_tell(pool, grows, &news));
    CHECK_INT(adli_pool_max_profiled(pool, grows), 1);
    CHECK(adli_pool_limits(pool, grows, &known) && known.lone_grows);
    CHECK(adli_pool_limits(pool, held, &known) && !known.lone_grows);
    adli_buf_clear(&text);
    REQUIRE_OK(adli_pool_save(pool, &text));
    CHECK(strstr(text.data, "\"loneReplicaGrows\":true"));
    REQUIRE_OK(adli_pool_new(true, &again));
    REQUIRE_OK(adli_pool_load(again, text.data, text.length));
    REQUIRE_OK(adli_pool_join(again, "a", &new)); /* like the last of the two */
    CHECK(adli_pool_limits(again, new, &known) && known.lone_grows);
    CHECK(1 / rate_of(again, new, 1, 1) * rate_of(again, new, 1, 2) < promised);
    adli_pool_leave(again, new);
    adli_pool_free(again);
    adli_pool_leave(pool, grows);
    adli_pool_leave(pool, held);
    adli_pool_free(pool);
    adli_buf_fini(&text);
}

TEST(it_is_bounded)
{
    adli_pool *pool;
    adli_pool_member *member, *keeper;
    adl_profile_point points[TAUGHT];
    char name[32];
    teach(points, &truth, 1);
    REQUIRE_OK(adli_pool_new(true, &pool));
    REQUIRE_OK(adli_pool_join(pool, "kept", &keeper));
    REQUIRE_OK(tell(pool, keeper, points, TAUGHT));
    for (int i = 0; i < 2 * ADLI_POOL_APPLICATIONS_MAX; i++) {
        snprintf(name, sizeof name, "application-%d", i);
        REQUIRE_OK(adli_pool_join(pool, name, &member));
        REQUIRE_OK(tell(pool, member, points, 2));
        adli_pool_leave(pool, member);
    }
    REQUIRE_OK(adli_pool_join(pool, "application-0", &member)); /* long forgotten */
    CHECK(adli_pool_version(pool, member) == 0);
    adli_pool_leave(pool, member);
    REQUIRE_OK(adli_pool_join(pool, name, &member)); /* the last */
    CHECK(adli_pool_version(pool, member) > 0);
    adli_pool_leave(pool, member);
    REQUIRE_OK(adli_pool_join(pool, "kept", &member)); /* one with members is not forgotten */
    CHECK(adli_pool_version(pool, member) > 0);
    adl_profile_point many[3 * ADLI_POOL_POINTS_MAX];
    for (int i = 0; i < 3 * ADLI_POOL_POINTS_MAX; i++)
        many[i] = measured(&truth, 1, 1 + i % 4, 16 + i, 1);
    REQUIRE_OK(tell(pool, member, many, ADLI_COUNT(many)));
    CHECK_NEAR(rate_of(pool, member, 1, 4), true_rate(&truth, 1, 1, 4), 0.02);
    adli_pool_leave(pool, member);
    adli_pool_leave(pool, keeper);
    adli_pool_free(pool);
}

TEST(what_it_has_learned_can_be_saved_and_read_again)
{
    adli_pool *pool, *again;
    adli_pool_member *member, *new;
    adl_profile_point points[TAUGHT];
    adli_buf text;
    int type;
    adli_buf_init(&text, 1 << 20);
    teach(points, &truth, 1);
    REQUIRE_OK(adli_pool_new(true, &pool));
    REQUIRE_OK(adli_pool_type_of(pool, "t4", &type));
    REQUIRE_OK(adli_pool_join(pool, "a", &member));
    REQUIRE_OK(tell(pool, member, points, TAUGHT));
    adli_pool_finished(pool, member, 500);
    REQUIRE_OK(adli_pool_save(pool, &text));
    REQUIRE_OK(adli_pool_new(true, &again));
    REQUIRE_OK(adli_pool_type_of(again, "a100", &type)); /* another order of device types */
    REQUIRE_OK(adli_pool_load(again, text.data, text.length));
    CHECK_INT(adli_pool_type_count(again), 2);
    REQUIRE_OK(adli_pool_join(again, "a", &new));
    adl_goodput was, now;
    REQUIRE(adli_pool_prior(pool, member, 0, &was));
    REQUIRE(adli_pool_prior(again, new, 1, &now));
    CHECK(memcmp(&was, &now, sizeof was) == 0);
    CHECK(!adli_pool_prior(again, new, 0, &now));
    CHECK_NEAR(adli_pool_total_work(again, new), 500, 1e-12);
    adli_pool_leave(again, new);
    adli_pool_free(again);
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"version\":2,\"types\":[],\"applications\":[]}",
        "{\"version\":1,\"types\":[3],\"applications\":[]}",
        "{\"version\":1,\"types\":[],\"applications\":[{}]}",
        "{\"version\":1,\"types\":[\"\"],\"applications\":[{\"application\":\"a\","
        "\"initBatchSize\":1,"
        "\"maxBatchSize\":1,\"minLocalBsz\":1,\"maxLocalBsz\":1,\"accumulation\":true,\"gradSqr\":"
        "1,"
        "\"gradVar\":1,\"work\":0,\"finished\":0,\"points\":[[1,1,1,1,1,1]]}]}"};
    REQUIRE_OK(adli_pool_new(true, &again));
    for (size_t i = 0; i < ADLI_COUNT(bad); i++)
        CHECK_INT(adli_pool_load(again, bad[i], strlen(bad[i])), ADL_EINVAL);
    CHECK_INT(adli_pool_type_count(again), 0);
    REQUIRE_OK(adli_pool_join(again, "a", &new));
    CHECK(adli_pool_version(again, new) == 0);
    adli_pool_leave(again, new);
    adli_pool_free(again);
    adli_pool_leave(pool, member);
    adli_pool_free(pool);
    adli_buf_fini(&text);
}

static adl_status whole_life(void)
{
    adli_pool *pool;
    adli_pool_member *one = NULL, *two = NULL;
    adl_speedup *model = NULL;
    adl_profile_point points[TAUGHT];
    teach(points, &truth, 1);
    adl_status status = adli_pool_new(true, &pool);
    if (status == ADL_OK)
        status = adli_pool_join(pool, "a", &one);
    if (status == ADL_OK)
        status = tell(pool, one, points, TAUGHT);
    if (status == ADL_OK)
        status = adli_pool_join(pool, "a", &two);
    if (status == ADL_OK)
        status = adli_pool_model(pool, two, 1, 16, &model);
    adl_speedup_free(model);
    adli_pool_leave(pool, two);
    adli_pool_leave(pool, one);
    adli_pool_free(pool);
    return status;
}

TEST(no_memory_is_an_error_and_nothing_more)
{
    int failed = 0;
    for (;; failed++) {
        adli_mem_fail_at(failed + 1);
        adl_status status = whole_life();
        adli_mem_fail_at(0);
        if (status == ADL_OK)
            break;
        CHECK_INT(status, ADL_ENOMEM);
    }
    printf("info - %d allocations failed in turn\n", failed);
    CHECK(failed > 5);
}
