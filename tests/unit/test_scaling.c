/* Learning-rate factors by hand. */
#include "harness.h"

#include "adaptdl/scaling.h"
#include "base/mem.h"

static double factor(const char *name, double scale)
{
    adl_scaling_rule rule;
    const adl_scaling_input input = {
        .grad = {0.1, 0.5}, .scale = scale, .progress = 50, .init_batch_size = 100};
    if (adl_scaling_parse(name, &rule) != ADL_OK)
        return -1;
    rule.base_warmup_epochs = 2;
    rule.data_size = 10000;
    return adl_scaling_factor(&rule, &input);
}

TEST(each_rule_follows_its_formula)
{
    double gain = 0.6 / (0.5 / 4 + 0.1);
    CHECK_NEAR(factor("adascale", 4), gain, 1e-14);
    CHECK_NEAR(factor("adamscale", 4), sqrt(gain), 1e-14);
    CHECK_NEAR(factor("linear", 4), 4, 1e-15);
    CHECK_NEAR(factor("sqrt", 4), 2, 1e-15);
    CHECK_NEAR(factor("legw", 4), 2 * 50 / (2 * 4 * 10000 / 100.0), 1e-14);
}

TEST(at_the_initial_batch_nothing_changes)
{
    const char *const names[] = {"adascale", "adamscale", "linear", "sqrt"};
    for (size_t i = 0; i < ADLI_COUNT(names); i++)
        CHECK_NEAR(factor(names[i], 1), 1, 1e-14);
}

TEST(warm_up_ends_at_the_square_root)
{
    adl_scaling_rule rule = {.kind = ADL_SCALING_LEGW, .base_warmup_epochs = 1, .data_size = 1000};
    adl_scaling_input input = {.scale = 9, .progress = 0, .init_batch_size = 100};
    CHECK(adl_scaling_factor(&rule, &input) == 0);
    input.progress = 45; /* of 90 */
    CHECK_NEAR(adl_scaling_factor(&rule, &input), 1.5, 1e-14);
    input.progress = 1e9;
    CHECK_NEAR(adl_scaling_factor(&rule, &input), 3, 1e-14);
    rule.base_warmup_epochs = 0;
    input.progress = 0;
    CHECK_NEAR(adl_scaling_factor(&rule, &input), 3, 1e-14);
}

TEST(statistics_are_floored)
{
    adl_scaling_rule rule = {.kind = ADL_SCALING_ADASCALE};
    adl_scaling_input input = {.grad = {-5, -5}, .scale = 8};
    CHECK_NEAR(adl_scaling_factor(&rule, &input), 8, 1e-12); /* sqr 0, var 1e-6 */
    input.grad = (adl_grad_params){1, 0};
    CHECK_NEAR(adl_scaling_factor(&rule, &input), 1, 1e-5);
}

TEST(the_power_can_be_chosen)
{
    adl_scaling_rule rule = {.kind = ADL_SCALING_ADAMSCALE, .power = 0.25};
    adl_scaling_input input = {.grad = {0, 1}, .scale = 16};
    CHECK_NEAR(adl_scaling_factor(&rule, &input), 2, 1e-12);
    rule.power = 0;
    CHECK_NEAR(adl_scaling_factor(&rule, &input), 4, 1e-12);
}

TEST(factors_are_always_finite)
{
    const double wild[] = {0, -1, NAN, INFINITY, 1e308, 1e-308};
    for (int kind = ADL_SCALING_ADASCALE; kind <= ADL_SCALING_LEGW + 1; kind++) {
        for (size_t i = 0; i < ADLI_COUNT(wild); i++) {
            for (size_t j = 0; j < ADLI_COUNT(wild); j++) {
                adl_scaling_rule rule = {
                    .kind = (adl_scaling_kind)kind, .base_warmup_epochs = 1, .data_size = 1};
                adl_scaling_input input = {.grad = {wild[j], wild[i]},
                                           .scale = wild[i],
                                           .progress = wild[j],
                                           .init_batch_size = wild[j]};
                double got = adl_scaling_factor(&rule, &input);
                CHECK(isfinite(got) && got >= 0);
            }
        }
    }
}

TEST(rules_are_checked_and_named)
{
    adl_scaling_rule rule;
    CHECK_OK(adl_scaling_parse("adamscale", &rule));
    CHECK_OK(adl_scaling_check(&rule));
    CHECK_NEAR(rule.power, 0.5, 1e-15);
    CHECK_FAILS(adl_scaling_parse("warp", &rule), ADL_EINVAL,
                "\"warp\": use adascale, adamscale, linear, sqrt or legw");
    CHECK_OK(adl_scaling_parse("legw", &rule));
    CHECK_FAILS(adl_scaling_check(&rule), ADL_EINVAL, "data_size");
    rule.data_size = 10;
    CHECK_OK(adl_scaling_check(&rule));
    rule.base_warmup_epochs = -1;
    CHECK_FAILS(adl_scaling_check(&rule), ADL_EINVAL, "base_warmup_epochs");
    rule = (adl_scaling_rule){.kind = ADL_SCALING_ADAMSCALE, .power = 2};
    CHECK_FAILS(adl_scaling_check(&rule), ADL_EINVAL, "power");
    rule.kind = (adl_scaling_kind)99;
    CHECK_FAILS(adl_scaling_check(&rule), ADL_EINVAL, "99");
}
