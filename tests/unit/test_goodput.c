/* Goodput: the equations by hand, optimize against a plain search, and every refusal. */
#include "harness.h"

#include "adaptdl/goodput.h"
#include "base/mem.h"
#include "base/rng.h"

#include <limits.h>

static const adl_goodput sample = {
    .perf = {0.1, 0.01, 0.2, 0.03, 0.05, 0.02, 2}, .grad = {0.01, 0.5}, .init_batch_size = 128};

TEST(step_times_follow_the_equations)
{
    const adl_perf_params *p = &sample.perf;
    CHECK_NEAR(adl_accum_time(p, 64), 0.1 + 0.01 * 64, 1e-15);
    CHECK_NEAR(adl_network_time(p, adl_shape_of(1, 1)), 1e-8, 1e-6);
    CHECK_NEAR(adl_network_time(p, adl_shape_of(1, 2)), 0.05, 1e-8);
    CHECK_NEAR(adl_network_time(p, adl_shape_of(1, 6)), 0.05 + 0.02 * 4, 1e-15);
    CHECK_NEAR(adl_network_time(p, adl_shape_of(2, 2)), 0.2, 1e-8);
    CHECK_NEAR(adl_network_time(p, adl_shape_of(3, 6)), 0.2 + 0.03 * 4, 1e-15);
    CHECK_NEAR(adl_optim_time(p, adl_shape_of(3, 6), 64), sqrt(0.74 * 0.74 + 0.32 * 0.32), 1e-15);
}

TEST(step_time_is_between_perfect_and_no_overlap_at_any_magnitude)
{
    for (double accum = 1e-90; accum < 1e100; accum *= 1e10) {
        for (double gamma = 1; gamma <= 10; gamma += 0.5) {
            adl_perf_params p = {accum, 0, 1e-3, 0, 1e-3, 0, gamma};
            double time = adl_optim_time(&p, adl_shape_of(2, 2), 1);
            CHECK(time >= fmax(accum, 1e-3) * (1 - 1e-12));
            CHECK(time <= (accum + 1e-3) * (1 + 1e-12));
        }
    }
}

TEST(gain_is_one_at_scale_one_and_at_most_the_scale)
{
    CHECK_NEAR(adl_gain((adl_grad_params){0.01, 0.5}, 1), 1, 1e-15);
    CHECK_NEAR(adl_gain((adl_grad_params){0.01, 0.5}, 4), 0.51 / (0.125 + 0.01), 1e-15);
    CHECK_NEAR(adl_gain((adl_grad_params){0, 0.5}, 4), 4, 1e-15);
    CHECK_NEAR(adl_gain((adl_grad_params){0.5, 0}, 4), 1, 1e-15);
    CHECK_NEAR(adl_gain((adl_grad_params){0, 0}, 4), 1, 1e-15);
    CHECK_NEAR(adl_gain((adl_grad_params){-2, 1}, 4), 1, 1e-15);
    CHECK_NEAR(adl_gain((adl_grad_params){NAN, 1}, 4), 1, 1e-15);
    CHECK_NEAR(adl_gain((adl_grad_params){1e308, 1.5e308}, 4), 1, 1e-15);
}

TEST(goodput_is_throughput_times_efficiency)
{
    double rate, efficiency, goodput;
    REQUIRE_OK(adl_throughput(&sample, adl_shape_of(2, 4), 64, 1, &rate));
    CHECK_NEAR(rate, 512 / (0.74 + sqrt(0.74 * 0.74 + 0.26 * 0.26)), 1e-14);
    REQUIRE_OK(adl_efficiency(&sample, 512, &efficiency));
    CHECK_NEAR(efficiency, 0.51 / (0.125 + 0.01) / 4, 1e-14);
    REQUIRE_OK(adl_goodput_evaluate(&sample, adl_shape_of(2, 4), 64, 1, &goodput));
    CHECK_NEAR(goodput, rate * efficiency, 1e-14);
    REQUIRE_OK(adl_efficiency(&sample, 128, &efficiency));
    CHECK_NEAR(efficiency, 1, 1e-15);
}

TEST(bad_arguments_are_named)
{
    double out = 7;
    CHECK_FAILS(adl_throughput(&sample, adl_shape_of(0, 1), 64, 0, &out), ADL_EINVAL,
                "N must be at least 1");
    CHECK_FAILS(adl_throughput(&sample, adl_shape_of(3, 2), 64, 0, &out), ADL_EINVAL,
                "R = 2, N = 3");
    CHECK_FAILS(adl_throughput(&sample, adl_shape_of(1, 1), 0.5, 0, &out), ADL_EINVAL, "m must be");
    CHECK_FAILS(adl_throughput(&sample, adl_shape_of(1, 1), NAN, 0, &out), ADL_EINVAL, "m must be");
    CHECK_FAILS(adl_throughput(&sample, adl_shape_of(1, 1), 64, -1, &out), ADL_EINVAL, "s must be");
    CHECK_FAILS(adl_goodput_evaluate(&sample, adl_shape_of(1, 1), 64, 0, &out), ADL_EINVAL,
                "batch size 64");
    CHECK_FAILS(adl_efficiency(&sample, 127.9, &out), ADL_EINVAL, "127.9");
    CHECK_FAILS(adl_efficiency(&sample, NAN, &out), ADL_EINVAL, "nan");
    CHECK(out == 0);
}

TEST(every_parameter_is_checked)
{
    const struct {
        size_t offset;
        double value;
        const char *name;
    } cases[] = {
        {offsetof(adl_goodput, perf.alpha_c), NAN, "alpha_c"},
        {offsetof(adl_goodput, perf.beta_c), -1, "beta_c"},
        {offsetof(adl_goodput, perf.alpha_n), INFINITY, "alpha_n"},
        {offsetof(adl_goodput, perf.beta_n), -1e-9, "beta_n"},
        {offsetof(adl_goodput, perf.alpha_r), NAN, "alpha_r"},
        {offsetof(adl_goodput, perf.beta_r), 1e300, "beta_r"},
        {offsetof(adl_goodput, perf.gamma), 0.99, "gamma"},
        {offsetof(adl_goodput, perf.gamma), 10.01, "gamma"},
        {offsetof(adl_goodput, grad.sqr), -1, "grad sqr"},
        {offsetof(adl_goodput, grad.var), NAN, "grad var"},
        {offsetof(adl_goodput, init_batch_size), 0, "init batch size"},
        {offsetof(adl_goodput, init_batch_size), 1e10, "init batch size"},
    };
    CHECK_OK(adl_goodput_check(&sample));
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        adl_goodput model = sample;
        memcpy((char *)&model + cases[i].offset, &cases[i].value, sizeof(double));
        CHECK_FAILS(adl_goodput_check(&model), ADL_EINVAL, cases[i].name);
    }
    adl_goodput model = sample;
    model.perf.alpha_c = model.perf.beta_c = 0;
    CHECK_FAILS(adl_goodput_check(&model), ADL_EINVAL, "alpha_c + beta_c");
}

TEST(bad_bounds_are_refused_with_their_numbers)
{
    adl_batch_choice out;
    adl_batch_limits limits = {.max_batch_size = 127};
    CHECK_FAILS(adl_goodput_optimize(&sample, &limits, adl_shape_of(1, 1), &out), ADL_EINVAL,
                "128 is more than max_batch_size 127");
    limits = (adl_batch_limits){.max_batch_size = 1280, .min_local_bsz = 65, .max_local_bsz = 64};
    CHECK_FAILS(adl_goodput_optimize(&sample, &limits, adl_shape_of(1, 1), &out), ADL_EINVAL,
                "from 65 to 64");
    limits =
        (adl_batch_limits){.max_batch_size = 1280, .min_local_bsz = 64.2, .max_local_bsz = 64.9};
    CHECK_FAILS(adl_goodput_optimize(&sample, &limits, adl_shape_of(1, 1), &out), ADL_EINVAL,
                "64.2 to 64.9");
    limits = (adl_batch_limits){.max_batch_size = NAN};
    CHECK_FAILS(adl_goodput_optimize(&sample, &limits, adl_shape_of(1, 1), &out), ADL_EINVAL,
                "max_batch_size");
    limits = (adl_batch_limits){.max_batch_size = 1280, .max_local_bsz = -3};
    CHECK_FAILS(adl_goodput_optimize(&sample, &limits, adl_shape_of(1, 1), &out), ADL_EINVAL,
                "max local");
    limits = (adl_batch_limits){.max_batch_size = 1280, .max_local_bsz = 32};
    CHECK_FAILS(adl_goodput_optimize(&sample, &limits, adl_shape_of(1, 3), &out), ADL_EINVAL,
                "cannot hold");
    CHECK_OK(adl_goodput_optimize(&sample, &limits, adl_shape_of(1, 4), &out));
    CHECK_FAILS(adl_goodput_optimize(&sample, &limits, adl_shape_of(2, 1), &out), ADL_EINVAL,
                "R = 1, N = 2");
    CHECK_INT(out.local_bsz, 0);
}

TEST(open_bounds_mean_the_initial_batch)
{
    adl_batch_choice out;
    adl_batch_limits open = {0};
    REQUIRE_OK(adl_goodput_optimize(&sample, &open, adl_shape_of(1, 1), &out));
    CHECK_INT(out.local_bsz, 128);
    REQUIRE_OK(adl_goodput_optimize(&sample, &open, adl_shape_of(1, 3), &out));
    CHECK_INT(out.local_bsz, 43); /* ceil(128 / 3) */
    CHECK_INT(out.accum_steps, 0);
}

TEST(one_replica_accumulates_beyond_the_initial_batch)
{
    adl_batch_choice out;
    adl_goodput noisy = sample;
    noisy.grad = (adl_grad_params){0, 1}; /* larger is always better */
    noisy.perf.alpha_c = 10;
    adl_batch_limits limits = {.max_batch_size = 1000, .max_local_bsz = 2000, .accumulation = true};
    REQUIRE_OK(adl_goodput_optimize(&noisy, &limits, adl_shape_of(1, 1), &out));
    CHECK_INT(out.local_bsz, 500);
    CHECK_INT(out.accum_steps, 1);
    REQUIRE_OK(adl_goodput_optimize(&noisy, &limits, adl_shape_of(1, 2), &out));
    CHECK_INT(out.local_bsz, 500);
    CHECK_INT(out.accum_steps, 0);
    limits.max_local_bsz = 100;
    REQUIRE_OK(adl_goodput_optimize(&noisy, &limits, adl_shape_of(1, 2), &out));
    CHECK_INT(out.local_bsz, 100);
    CHECK_INT(out.accum_steps, 4);
    limits.accumulation = false;
    REQUIRE_OK(adl_goodput_optimize(&noisy, &limits, adl_shape_of(1, 2), &out));
    CHECK_INT(out.local_bsz, 100);
    CHECK_INT(out.accum_steps, 0);
}

TEST(one_replica_may_grow_where_that_is_said)
{
    adl_batch_choice out;
    adl_goodput noisy = sample;
    noisy.grad = (adl_grad_params){0, 1}; /* larger is always better */
    noisy.perf.alpha_c = 10;
    adl_batch_limits limits = {.max_batch_size = 1000, .lone_grows = true};
    for (int accumulates = 0; accumulates < 2; accumulates++) {
        limits.accumulation = accumulates;
        REQUIRE_OK(adl_goodput_optimize(&noisy, &limits, adl_shape_of(1, 1), &out));
        CHECK_INT(out.local_bsz, 1000);
        CHECK_INT(out.accum_steps, 0);
    }
    limits.max_local_bsz = 500; /* the bounds are the same for all */
    REQUIRE_OK(adl_goodput_optimize(&noisy, &limits, adl_shape_of(1, 1), &out));
    CHECK_INT(out.local_bsz, 500);
    CHECK_INT(out.accum_steps, 1);
    limits.accumulation = limits.lone_grows = false;
    REQUIRE_OK(adl_goodput_optimize(&noisy, &limits, adl_shape_of(1, 1), &out));
    CHECK_INT(out.local_bsz, 128);
}

/* What programs were compiled with before the flag came. */
TEST(the_limits_have_not_grown)
{
    CHECK(sizeof(adl_batch_limits) == 4 * sizeof(double));
}

TEST(the_smallest_local_batch_wins_over_the_largest_total)
{
    adl_batch_choice out;
    adl_batch_limits limits = {.max_batch_size = 256, .min_local_bsz = 64, .max_local_bsz = 128};
    REQUIRE_OK(adl_goodput_optimize(&sample, &limits, adl_shape_of(2, 8), &out));
    CHECK_INT(out.local_bsz, 64);
    CHECK_INT(out.accum_steps, 0);
}

/* The definition again, candidate by candidate, without any of the shortcuts. */
static adl_batch_choice search(const adl_goodput *model, const adl_batch_limits *limits, int nodes,
                               int replicas)
{
    adl_batch_choice best = {0};
    double low = fmax(model->init_batch_size, limits->min_local_bsz * replicas);
    for (int i = 0; i < 50; i++) {
        double batch = low * pow(limits->max_batch_size / low, i / 49.0), goodput;
        double local = batch / replicas, s = 0, m;
        if (limits->accumulation) {
            s = ceil(local / limits->max_local_bsz - 1e-8) - 1;
            if (replicas == 1 && !limits->lone_grows && local > model->init_batch_size + 1e-8)
                s = fmax(s, 1);
            m = ceil(local / (fmax(s, 0) + 1) - 1e-8);
        } else {
            m = replicas == 1 && !limits->lone_grows ? model->init_batch_size : ceil(local - 1e-8);
        }
        m = fmin(fmax(m, limits->min_local_bsz), limits->max_local_bsz);
        if (adl_goodput_evaluate(model, adl_shape_of(nodes, replicas), m, (int)fmax(s, 0),
                                 &goodput) == ADL_OK &&
            goodput > best.goodput)
            best = (adl_batch_choice){goodput, (int)m, (int)fmax(s, 0)};
    }
    return best;
}

TEST(optimize_agrees_with_a_plain_search)
{
    adli_rng rng;
    int found = 0, refused = 0;
    adli_rng_init(&rng, 1);
    for (int i = 0; i < 3000; i++) {
        adl_goodput model = sample;
        model.perf.gamma = 1 + 9 * adli_rng_unit(&rng);
        model.perf.alpha_n = exp(-6 * adli_rng_unit(&rng));
        model.grad.sqr = exp(-8 * adli_rng_unit(&rng));
        model.init_batch_size = adli_rng_range(&rng, 1, 256);
        adl_batch_limits limits = {.max_batch_size =
                                       model.init_batch_size * (1 + adli_rng_range(&rng, 0, 40)),
                                   .min_local_bsz = adli_rng_range(&rng, 1, 16),
                                   .max_local_bsz = adli_rng_range(&rng, 16, 512),
                                   .accumulation = adli_rng_below(&rng, 2) == 0,
                                   .lone_grows = i % 3 == 0};
        int nodes = adli_rng_range(&rng, 1, 4), replicas = nodes * adli_rng_range(&rng, 1, 4);
        adl_batch_choice out, wanted = search(&model, &limits, nodes, replicas);
        if (adl_goodput_optimize(&model, &limits, adl_shape_of(nodes, replicas), &out) != ADL_OK) {
            CHECK(wanted.goodput == 0);
            refused++;
            continue;
        }
        found++;
        CHECK_NEAR(out.goodput, wanted.goodput, 1e-9);
        double again;
        REQUIRE_OK(adl_goodput_evaluate(&model, adl_shape_of(nodes, replicas), out.local_bsz,
                                        out.accum_steps, &again));
        CHECK_NEAR(out.goodput, again, 1e-12);
    }
    printf("info - %d choices, %d refusals\n", found, refused);
    CHECK(found > 2000 && refused > 20);
}

TEST(extreme_models_give_finite_answers)
{
    const double times[] = {0, 1e-99, 1, 1e100};
    for (size_t i = 0; i < ADLI_COUNT(times); i++) {
        for (size_t j = 0; j < ADLI_COUNT(times); j++) {
            adl_goodput model = {
                .perf = {1e-99, times[i], times[j], times[i], times[i], times[j], 10},
                .grad = {times[j], times[i]},
                .init_batch_size = 1};
            adl_batch_limits limits = {.max_batch_size = INT_MAX, .accumulation = j % 2};
            adl_batch_choice out;
            REQUIRE_OK(adl_goodput_optimize(&model, &limits, adl_shape_of(2, INT_MAX), &out));
            CHECK(isfinite(out.goodput) && out.goodput >= 0 && out.local_bsz >= 1);
            REQUIRE_OK(adl_goodput_optimize(&model, &limits, adl_shape_of(1, 1), &out));
            CHECK(isfinite(out.goodput) && out.local_bsz >= 1);
        }
    }
}

TEST(optimize_answers_for_several_shapes)
{
    const adl_goodput model = {{0.1, 0.01, 0.2, 0.02, 0.05, 0.01, 1.5}, {0.01, 0.5}, 128};
    const adl_batch_limits limits = {.max_batch_size = 4096, .max_local_bsz = 512};
    const adl_shape good[] = {{1, 1, 0}, {1, 4, 0}, {2, 8, 0}},
                    bad[] = {{2, 4, 0}, {2, 1, 0}, {2, 8, 0}};
    adl_batch_choice got[3], one;
    REQUIRE_OK(adl_goodput_optimize_array(&model, &limits, good, 3, got));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(adl_goodput_optimize(&model, &limits, good[i], &one));
        CHECK(got[i].goodput == one.goodput && got[i].local_bsz == one.local_bsz);
    }
    CHECK_FAILS(adl_goodput_optimize_array(&model, &limits, bad, 3, got), ADL_EINVAL,
                "element 1: R must be at least N");
    CHECK(got[0].goodput > 0 && got[1].goodput == 0 && got[2].goodput > got[0].goodput);
    CHECK_OK(adl_goodput_optimize_array(&model, &limits, NULL, 0, NULL));
}
