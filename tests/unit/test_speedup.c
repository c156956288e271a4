/* The memo says what optimize says, corrects by what was measured, and never more. */
#include "harness.h"

#include "adaptdl/speedup.h"
#include "base/mem.h"
#include "base/rng.h"

static const adl_goodput model = {
    .perf = {0.1, 0.01, 0.2, 0.03, 0.05, 0.02, 2}, .grad = {0.01, 0.5}, .init_batch_size = 128};
static const adl_batch_limits limits = {.max_batch_size = 4096, .max_local_bsz = 256};

TEST(speedup_is_the_ratio_of_the_best_goodputs)
{
    adl_speedup *speedup;
    REQUIRE_OK(adl_speedup_new(&model, &limits, NULL, 0, 64, &speedup));
    CHECK(adl_speedup_known(speedup));
    adl_batch_choice base;
    REQUIRE_OK(adl_goodput_optimize(&model, &limits, adl_shape_of(1, 1), &base));
    for (int round = 0; round < 2; round++) { /* the second is answered from the memo */
        for (int replicas = 1; replicas <= 64; replicas++) {
            for (int nodes = 1; nodes <= replicas && nodes <= 5; nodes++) {
                adl_batch_choice best,
                    got = adl_speedup_choice(speedup, adl_shape_of(nodes, replicas));
                REQUIRE_OK(
                    adl_goodput_optimize(&model, &limits, adl_shape_of(nodes, replicas), &best));
                CHECK(got.goodput == best.goodput && got.local_bsz == best.local_bsz &&
                      got.accum_steps == best.accum_steps);
                CHECK_NEAR(adl_speedup_get(speedup, adl_shape_of(nodes, replicas)),
                           best.goodput / base.goodput, 1e-14);
                CHECK_NEAR(adl_speedup_rate(speedup, adl_shape_of(nodes, replicas)),
                           best.goodput / 128, 1e-14);
            }
        }
    }
    CHECK_NEAR(adl_speedup_get(speedup, adl_shape_of(1, 1)), 1, 1e-15);
    adl_speedup_free(speedup);
}

TEST(impossible_placements_are_worth_nothing)
{
    adl_speedup *speedup;
    for (int known = 0; known < 2; known++) {
        REQUIRE_OK(adl_speedup_new(known ? &model : NULL, &limits, NULL, 0, 16, &speedup));
        const int placements[][2] = {{0, 0},  {1, 0},  {0, 1},  {2, 1},
                                     {1, 17}, {-1, 4}, {1, -1}, {5, 4}};
        for (size_t i = 0; i < ADLI_COUNT(placements); i++) {
            int nodes = placements[i][0], replicas = placements[i][1];
            CHECK(adl_speedup_get(speedup, adl_shape_of(nodes, replicas)) == 0);
            CHECK(adl_speedup_rate(speedup, adl_shape_of(nodes, replicas)) == 0);
            CHECK(adl_speedup_choice(speedup, adl_shape_of(nodes, replicas)).goodput == 0);
        }
        CHECK(adl_speedup_get(speedup, adl_shape_of(1, 16)) > 0);
        adl_speedup_free(speedup);
    }
}

TEST(without_a_model_speedup_is_linear)
{
    adl_speedup *speedup;
    REQUIRE_OK(adl_speedup_new(NULL, NULL, NULL, 0, 8, &speedup));
    CHECK(!adl_speedup_known(speedup));
    for (int replicas = 1; replicas <= 8; replicas++) {
        CHECK(adl_speedup_get(speedup, adl_shape_of(1, replicas)) == replicas);
        CHECK(adl_speedup_rate(speedup, adl_shape_of(1, replicas)) == replicas);
        CHECK_INT(adl_speedup_choice(speedup, adl_shape_of(1, replicas)).local_bsz, 0);
    }
    adl_speedup_free(speedup);
    adl_speedup_free(NULL);
}

/* A measurement that is `factor` times what the model says. */
static adl_profile_point measured(int nodes, int replicas, double bsz, double factor)
{
    return (adl_profile_point){
        nodes,
        replicas,
        bsz,
        0.1,
        factor * adl_optim_time(&model.perf, adl_shape_of(nodes, replicas), bsz),
        0};
}

static double correction(adl_speedup *speedup, int nodes, int replicas)
{
    return adl_speedup_rate(speedup, adl_shape_of(nodes, replicas)) * model.init_batch_size /
           adl_speedup_choice(speedup, adl_shape_of(nodes, replicas)).goodput;
}

TEST(measured_times_correct_the_rate)
{
    const adl_profile_point profile[] = {
        measured(1, 8, 64, 4),  measured(1, 2, 64, 2),   measured(1, 2, 128, 0.5),
        measured(2, 16, 64, 3), measured(4, 16, 64, 12), {1, 4, 64, 0.1, NAN, 0},
        {1, 4, 64, 0.1, -1, 0}, {9, 4, 64, 0.1, 100, 0}, {1, 4, NAN, 0.1, 100, 0},
    };
    adl_speedup *speedup;
    REQUIRE_OK(adl_speedup_new(&model, &limits, profile, ADLI_COUNT(profile), 64, &speedup));
    CHECK_NEAR(correction(speedup, 1, 8), 1.0 / 4, 1e-12);
    CHECK_NEAR(correction(speedup, 1, 2), 1, 1e-12);       /* mean of log 2 and log 1/2 */
    CHECK_NEAR(correction(speedup, 1, 4), 1.0 / 2, 1e-12); /* half way in log R */
    CHECK_NEAR(correction(speedup, 1, 1), 1, 1e-12);       /* constant outside */
    CHECK_NEAR(correction(speedup, 1, 64), 1.0 / 4, 1e-12);
    CHECK_NEAR(correction(speedup, 2, 16), 1.0 / 6, 1e-12); /* multi-node apart */
    CHECK_NEAR(correction(speedup, 3, 3), 1.0 / 6, 1e-12);
    CHECK_NEAR(adl_speedup_get(speedup, adl_shape_of(1, 1)), 1,
               1e-15); /* the speedup is the model's */
    adl_speedup_free(speedup);
}

TEST(what_was_measured_on_one_node_counts_for_two)
{
    const adl_profile_point profile[] = {measured(1, 1, 64, 4), measured(1, 2, 64, 2)};
    adl_speedup *speedup;
    REQUIRE_OK(adl_speedup_new(&model, &limits, profile, ADLI_COUNT(profile), 64, &speedup));
    CHECK_NEAR(correction(speedup, 2, 2), 1.0 / 2, 1e-12);
    CHECK_NEAR(correction(speedup, 2, 16), 1.0 / 2, 1e-12);
    adl_speedup_free(speedup);
}

TEST(wild_measurements_leave_the_rate_finite)
{
    const adl_profile_point profile[] = {{1, 2, 64, 1, 1e-300, 0}, {2, 2, 64, 1, 1e300, 0}};
    adl_speedup *speedup;
    REQUIRE_OK(adl_speedup_new(&model, &limits, profile, 2, 4, &speedup));
    CHECK(isfinite(adl_speedup_rate(speedup, adl_shape_of(1, 2))));
    CHECK(adl_speedup_rate(speedup, adl_shape_of(2, 2)) > 0);
    adl_speedup_free(speedup);
}

TEST(a_batch_too_large_for_one_replica_counts_from_the_fewest)
{
    adl_speedup *speedup;
    adl_batch_limits small = {.max_batch_size = 4096, .max_local_bsz = 40};
    REQUIRE_OK(adl_speedup_new(&model, &small, NULL, 0, 64, &speedup));
    CHECK(adl_speedup_get(speedup, adl_shape_of(1, 3)) == 0); /* 3 * 40 < 128 */
    CHECK(adl_speedup_choice(speedup, adl_shape_of(1, 3)).local_bsz == 0);
    CHECK_NEAR(adl_speedup_get(speedup, adl_shape_of(1, 4)), 4, 1e-12);
    CHECK(adl_speedup_get(speedup, adl_shape_of(2, 8)) > 4);
    adl_speedup_free(speedup);
    CHECK_FAILS(adl_speedup_new(&model, &small, NULL, 0, 3, &speedup), ADL_EINVAL, "cannot hold");
    CHECK(speedup == NULL);
}

TEST(no_limits_are_open_limits)
{
    adl_speedup *speedup;
    REQUIRE_OK(adl_speedup_new(&model, NULL, NULL, 0, 4, &speedup));
    CHECK_INT(adl_speedup_choice(speedup, adl_shape_of(1, 2)).local_bsz, 64);
    adl_speedup_free(speedup);
}

TEST(bad_models_are_refused)
{
    adl_speedup *speedup = (adl_speedup *)1;
    adl_goodput bad = model;
    bad.perf.gamma = NAN;
    CHECK_FAILS(adl_speedup_new(&bad, &limits, NULL, 0, 8, &speedup), ADL_EINVAL, "gamma");
    CHECK(speedup == NULL);
    adl_batch_limits narrow = {.max_batch_size = 64};
    CHECK_FAILS(adl_speedup_new(&model, &narrow, NULL, 0, 8, &speedup), ADL_EINVAL,
                "max_batch_size");
    CHECK_FAILS(adl_speedup_new(&model, &limits, NULL, 0, 0, &speedup), ADL_EINVAL, "max_replicas");
}

TEST(every_allocation_may_fail)
{
    const adl_profile_point profile[] = {measured(1, 2, 64, 2), measured(2, 4, 64, 3)};
    adl_speedup *speedup;
    int64_t before = adli_mem_count();
    REQUIRE_OK(adl_speedup_new(&model, &limits, profile, 2, 8, &speedup));
    int64_t needed = adli_mem_count() - before;
    adl_speedup_free(speedup);
    CHECK(needed >= 3);
    for (int64_t nth = 1; nth <= needed; nth++) {
        adli_mem_fail_at(nth);
        CHECK_FAILS(adl_speedup_new(&model, &limits, profile, 2, 8, &speedup), ADL_ENOMEM,
                    "out of memory");
        adli_mem_fail_at(0);
        CHECK(speedup == NULL);
    }
}

TEST(types_have_models_of_their_own_or_are_projected)
{
    adl_goodput fast = model;
    fast.perf.alpha_c /= 4;
    fast.perf.beta_c /= 4;
    const adl_type_model types[] = {{.model = &model, .limits = &limits, .speed = 10},
                                    {.limits = &limits, .speed = 25},
                                    {.model = &fast, .limits = &limits, .speed = 35},
                                    {.limits = &limits}};
    adl_speedup *speedup, *slow, *quick;
    REQUIRE_OK(adl_speedup_new_types(types, 4, 64, &speedup));
    REQUIRE_OK(adl_speedup_new(&model, &limits, NULL, 0, 64, &slow));
    REQUIRE_OK(adl_speedup_new(&fast, &limits, NULL, 0, 64, &quick));
    for (int r = 1; r <= 64; r++) {
        adl_shape shape = adl_shape_of(r > 4 ? 2 : 1, r), on = shape;
        CHECK(adl_speedup_rate(speedup, shape) == adl_speedup_rate(slow, shape));
        CHECK(adl_speedup_get(speedup, shape) == adl_speedup_get(slow, shape));
        on.type = 1;
        CHECK_NEAR(adl_speedup_rate(speedup, on), 2.5 * adl_speedup_rate(slow, shape), 1e-15);
        CHECK_NEAR(adl_speedup_get(speedup, on), 2.5 * adl_speedup_get(slow, shape), 1e-15);
        on.type = 2; /* its own model, against one replica of the first type */
        CHECK(adl_speedup_rate(speedup, on) == adl_speedup_rate(quick, shape));
        CHECK_NEAR(adl_speedup_get(speedup, on),
                   adl_speedup_choice(quick, shape).goodput /
                       adl_speedup_choice(slow, adl_shape_of(1, 1)).goodput,
                   1e-15);
        on.type = 3; /* nobody knows how fast it is */
        CHECK(adl_speedup_rate(speedup, on) == 0 && adl_speedup_choice(speedup, on).goodput == 0);
        on.type = 4;
        CHECK(adl_speedup_rate(speedup, on) == 0);
        on.type = 7; /* one type: its answers hold for all */
        CHECK(adl_speedup_rate(slow, on) == adl_speedup_rate(slow, shape));
    }
    adl_speedup_free(quick);
    adl_speedup_free(slow);
    adl_speedup_free(speedup);
    CHECK_FAILS(adl_speedup_new_types(types, 0, 64, &speedup), ADL_EINVAL, "0 device types");
    CHECK_FAILS(adl_speedup_new_types(types, 17, 64, &speedup), ADL_EINVAL, "17 device types");
}

/* Two replicas are at most twice as fast as one that may grow, whatever the model: with twice its batch on each of
 * its steps one replica learns as much. Batch sizes are tried in steps, so it is about twice. One that is held at the
 * initial size promises more. */
TEST(two_replicas_are_not_more_than_twice_one_that_grows)
{
    adli_rng rng;
    double most[2] = {0};
    adli_rng_init(&rng, 1);
    for (int i = 0; i < 2000; i++) {
        adl_goodput job = model;
        job.perf.alpha_c = exp(-6 * adli_rng_unit(&rng));
        job.perf.alpha_n = exp(-6 * adli_rng_unit(&rng));
        job.perf.alpha_r = exp(-6 * adli_rng_unit(&rng));
        job.perf.gamma = 1 + 9 * adli_rng_unit(&rng);
        job.grad.sqr = exp(-8 * adli_rng_unit(&rng));
        job.init_batch_size = adli_rng_range(&rng, 16, 256);
        double largest = job.init_batch_size * adli_rng_range(&rng, 1, 40);
        adl_batch_limits bounds = {.max_batch_size = largest,
                                   .max_local_bsz =
                                       job.init_batch_size * adli_rng_range(&rng, 1, 8),
                                   .accumulation = i % 2};
        for (int grows = 0; grows < 2; grows++) {
            adl_speedup *speedup;
            bounds.lone_grows = grows;
            REQUIRE_OK(adl_speedup_new(&job, &bounds, NULL, 0, 4, &speedup));
            CHECK_NEAR(adl_speedup_get(speedup, adl_shape_of(1, 1)), 1, 1e-15);
            double two = fmax(adl_speedup_get(speedup, adl_shape_of(1, 2)),
                              adl_speedup_get(speedup, adl_shape_of(2, 2)));
            most[grows] = fmax(most[grows], two);
            adl_speedup_free(speedup);
        }
    }
    printf("# two for one that grows: up to %.4g, for one that is held: %.4g\n", most[1], most[0]);
    CHECK(most[1] < 2.05);
    CHECK(most[0] > 2.6);
}

/* More shapes than the memo has entries: some are computed again, and come out the same. */
TEST(large_clusters_are_answered_from_a_small_memo)
{
    adl_batch_limits wide = {.max_batch_size = 1 << 20, .max_local_bsz = 512};
    adl_speedup *speedup;
    REQUIRE_OK(adl_speedup_new(&model, &wide, NULL, 0, 4096, &speedup));
    for (int turn = 0; turn < 2; turn++)
        for (int r = 1; r <= 4096; r += 7)
            for (int nodes = 1; nodes <= (r > 1 ? 2 : 1); nodes++) {
                adl_batch_choice best;
                REQUIRE_OK(adl_goodput_optimize(&model, &wide, adl_shape_of(nodes, r), &best));
                CHECK(adl_speedup_choice(speedup, adl_shape_of(nodes, r)).goodput == best.goodput);
            }
    adl_speedup_free(speedup);
}
