/* The fit: that it finds minima, keeps to its priors, and stays calm about bad data. */
#include "harness.h"

#include "adaptdl/fit.h"
#include "base/mem.h"
#include "base/rng.h"
#include "model/boxmin.h"

enum { MOST = 128 };

static double log_uniform(adli_rng *rng, double low, double high)
{
    return low * pow(high / low, adli_rng_unit(rng));
}

static double gaussian(adli_rng *rng)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += adli_rng_unit(rng);
    return sum;
}

/* Measurements that the model itself made, with log-normal noise. */
typedef struct fit_case {
    adl_perf_params truth;
    adl_profile_point points[MOST];
    size_t count;
} fit_case;

static void make_problem(uint64_t seed, fit_case *out)
{
    adli_rng rng;
    adli_rng_init(&rng, seed);
    double unit = log_uniform(&rng, 1e-2, 10);
    double noise = adli_rng_unit(&rng) < 0.3 ? 0 : log_uniform(&rng, 1e-3, 0.2);
    int max_nodes = adli_rng_range(&rng, 1, 6), gpus = adli_rng_range(&rng, 1, 8);
    bool one_bsz = adli_rng_below(&rng, 5) == 0;
    double *x = &out->truth.alpha_c;
    for (int i = 0; i < 6; i++)
        x[i] = unit * (i % 2 ? log_uniform(&rng, 1e-5, 1e-2) : log_uniform(&rng, 1e-2, 1));
    out->truth.gamma = log_uniform(&rng, 1, 10);
    out->count = (size_t)adli_rng_range(&rng, 1, adli_rng_below(&rng, 2) ? 6 : MOST);
    for (size_t i = 0; i < out->count; i++) {
        int nodes = adli_rng_range(&rng, 1, max_nodes);
        int replicas = adli_rng_range(&rng, nodes, nodes * gpus);
        double bsz = one_bsz ? 64 : adli_rng_range(&rng, 8, 512);
        out->points[i] =
            (adl_profile_point){nodes,
                                replicas,
                                bsz,
                                adl_accum_time(&out->truth, bsz) * exp(noise * gaussian(&rng)),
                                adl_optim_time(&out->truth, adl_shape_of(nodes, replicas), bsz) *
                                    exp(noise * gaussian(&rng)),
                                0};
    }
}

/* The truth where it was seen; what was not seen is where the priors put it. */
static adl_perf_params seen_truth(const fit_case *problem)
{
    adl_perf_params truth = problem->truth;
    bool between = false, within = false;
    for (size_t i = 0; i < problem->count; i++) {
        between |= problem->points[i].nodes > 1;
        within |= problem->points[i].nodes == 1 && problem->points[i].replicas > 1;
    }
    if (!between)
        truth.alpha_n = truth.beta_n = 1e-8;
    if (!within)
        truth.alpha_r = truth.beta_r = 1e-8;
    return truth;
}

static bool in_box(const adl_perf_params *p)
{
    const double *x = &p->alpha_c;
    for (int i = 0; i < 6; i++)
        if (!(x[i] >= 1e-8) || !isfinite(x[i]))
            return false;
    return p->gamma >= 1 && p->gamma <= 10;
}

TEST(data_of_the_model_itself_are_explained)
{
    enum { PROBLEMS = 1500 };
    static fit_case problem;
    double worst = 0;
    for (int seed = 1; seed <= PROBLEMS; seed++) {
        adl_fit_result fit;
        make_problem((uint64_t)seed, &problem);
        adl_perf_params truth = seen_truth(&problem);
        double wanted = adl_fit_objective(&truth, problem.points, problem.count);
        REQUIRE_OK(adl_fit(problem.points, problem.count, &fit));
        CHECK(in_box(&fit.perf));
        CHECK_INT(fit.used, problem.count);
        worst = fmax(worst, fit.objective / (wanted + 1e-6));
        if (!(fit.objective <= 1.1 * wanted + 1e-7))
            ADLT_FAIL("seed %d: objective %g, the truth has %g", seed, fit.objective, wanted);
    }
    printf("info - %d fits, worst objective %.4f of the truth's\n", PROBLEMS, worst);
}

/* Nothing near the result is better: steps of many sizes in random directions within the box. */
TEST(the_result_is_a_minimum)
{
    static fit_case problem;
    adli_rng rng;
    adli_rng_init(&rng, 3);
    double deepest = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        adl_fit_result fit;
        make_problem(seed, &problem);
        REQUIRE_OK(adl_fit(problem.points, problem.count, &fit));
        adl_perf_params from = fit.perf;
        adl_perf_params seen = seen_truth(&problem);
        bool one_bsz = true;
        for (size_t i = 1; i < problem.count; i++)
            one_bsz &= problem.points[i].local_bsz == problem.points[0].local_bsz;
        if (seen.alpha_n == 1e-8) /* undo the raise: it is not part of the minimum */
            from.alpha_n = from.beta_n = 1e-8;
        for (int trial = 0; trial < 400; trial++) {
            adl_perf_params at = from;
            double *x = &at.alpha_c, size = log_uniform(&rng, 1e-6, 0.5);
            for (int i = one_bsz; i < 7; i++)
                if (x[i] > 1e-8 && adli_rng_below(&rng, 2))
                    x[i] *= exp(size * gaussian(&rng));
            at.gamma = fmin(fmax(at.gamma, 1), 10);
            if (!in_box(&at))
                continue;
            double value = adl_fit_objective(&at, problem.points, problem.count);
            deepest = fmax(deepest, 1 - value / fit.objective);
            if (value < fit.objective * 0.999 - 1e-7)
                ADLT_FAIL("seed %d: %g lies beside %g", (int)seed, value, fit.objective);
        }
    }
    printf("info - 24000 neighbours, the best is %.2g lower\n", deepest);
}

TEST(nearby_data_give_nearby_models)
{
    static fit_case problem;
    int fits = 0;
    double widest = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        adl_fit_result fit, moved;
        adli_rng rng;
        make_problem(seed, &problem);
        if (problem.count < 20)
            continue;
        REQUIRE_OK(adl_fit(problem.points, problem.count, &fit));
        adli_rng_init(&rng, seed);
        for (size_t i = 0; i < problem.count; i++)
            problem.points[i].optim_time_s *= 1 + 1e-4 * gaussian(&rng);
        REQUIRE_OK(adl_fit(problem.points, problem.count, &moved));
        for (size_t i = 0; i < problem.count; i++) {
            const adl_profile_point *p = &problem.points[i];
            double before =
                adl_optim_time(&fit.perf, adl_shape_of(p->nodes, p->replicas), p->local_bsz);
            double after =
                adl_optim_time(&moved.perf, adl_shape_of(p->nodes, p->replicas), p->local_bsz);
            widest = fmax(widest, fabs(log(after / before)));
        }
        fits++;
    }
    printf("info - %d fits, times moved by 1e-4, predictions by %.2g at most\n", fits, widest);
    CHECK(fits > 100);
    CHECK(widest < 2e-3);
}

TEST(the_order_and_the_grouping_of_points_do_not_matter)
{
    static fit_case problem;
    make_problem(12, &problem);
    REQUIRE(problem.count > 6);
    adl_fit_result fit, again;
    REQUIRE_OK(adl_fit(problem.points, problem.count, &fit));
    for (size_t i = 0; i < problem.count / 2; i++) {
        adl_profile_point swap = problem.points[i];
        problem.points[i] = problem.points[problem.count - 1 - i];
        problem.points[problem.count - 1 - i] = swap;
    }
    REQUIRE_OK(adl_fit(problem.points, problem.count, &again));
    CHECK(memcmp(&fit, &again, sizeof fit) == 0);
    /* N matters only as N > 1 */
    for (size_t i = 0; i < problem.count; i++)
        if (problem.points[i].nodes > 1)
            problem.points[i].nodes = 2;
    REQUIRE_OK(adl_fit(problem.points, problem.count, &again));
    CHECK(memcmp(&fit, &again, sizeof fit) == 0);
}

TEST(the_reported_objective_is_that_of_the_parameters)
{
    static fit_case problem;
    int checked = 0;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        adl_fit_result fit;
        make_problem(seed, &problem);
        adl_perf_params seen = seen_truth(&problem);
        REQUIRE_OK(adl_fit(problem.points, problem.count, &fit));
        if (seen.alpha_n == 1e-8)
            continue; /* raised after the fit */
        CHECK_NEAR(adl_fit_objective(&fit.perf, problem.points, problem.count), fit.objective,
                   1e-9);
        checked++;
    }
    CHECK(checked > 20);
}

/* ---- priors ---- */

TEST(one_batch_size_splits_the_time_in_half)
{
    const adl_profile_point points[] = {{1, 1, 64, 0.1, 0.1, 0}, {1, 1, 64, 0.3, 0.3, 0}};
    adl_fit_result fit;
    REQUIRE_OK(adl_fit(points, 2, &fit));
    CHECK_NEAR(fit.perf.alpha_c, 0.1, 1e-12); /* half of the mean */
    CHECK_NEAR(adl_accum_time(&fit.perf, 64), sqrt(0.1 * 0.3), 1e-4);
}

TEST(unseen_networks_stay_optimistic)
{
    adl_fit_result fit;
    const adl_profile_point single[] = {{1, 1, 64, 0.1, 0.1, 0}, {1, 1, 128, 0.18, 0.18, 0}};
    REQUIRE_OK(adl_fit(single, 2, &fit));
    CHECK_NEAR(fit.perf.alpha_r, 1e-8, 1e-12);
    CHECK_NEAR(fit.perf.beta_r, 1e-8, 1e-12);
    CHECK_NEAR(fit.perf.alpha_n, 1.1e-8, 1e-12);
    CHECK_NEAR(fit.perf.beta_n, 1.1e-8, 1e-12);

    const adl_profile_point two[] = {{1, 1, 64, 0.1, 0.1, 0}, {1, 2, 128, 0.18, 0.22, 0}};
    REQUIRE_OK(adl_fit(two, 2, &fit));
    CHECK(fit.perf.alpha_r > 0.01);
    CHECK_NEAR(fit.perf.beta_r, 1e-8, 1e-12); /* no R > 2 */
    CHECK_NEAR(fit.perf.alpha_n, 1.1 * fit.perf.alpha_r, 1e-12);

    const adl_profile_point across[] = {{2, 2, 64, 0.1, 0.15, 0}, {2, 4, 128, 0.18, 0.3, 0}};
    REQUIRE_OK(adl_fit(across, 2, &fit));
    CHECK(fit.perf.alpha_n > 0.01);
    CHECK_NEAR(fit.perf.alpha_r, 1e-8, 1e-12);
    CHECK_NEAR(fit.perf.beta_r, 1e-8, 1e-12);
}

/* ---- bad data ---- */

TEST(points_that_cannot_be_are_left_out_and_counted)
{
    const adl_profile_point good = {1, 2, 64, 0.1, 0.12, 0};
    const adl_profile_point points[] = {
        good,
        {0, 2, 64, 0.1, 0.12, 0},
        {3, 2, 64, 0.1, 0.12, 0},
        {-1, -1, 64, 0.1, 0.12, 0},
        {1, 2, 0, 0.1, 0.12, 0},
        {1, 2, NAN, 0.1, 0.12, 0},
        {1, 2, INFINITY, 0.1, 0.12, 0},
        {1, 2, 64, 0, 0.12, 0},
        {1, 2, 64, -1, 0.12, 0},
        {1, 2, 64, NAN, 0.12, 0},
        {1, 2, 64, 0.1, INFINITY, 0},
        {1, 2, 64, 0.1, 0, 0},
        {1, 2, 64, 1e-300, 0.12, 0},
        {1, 2, 64, 0.1, 1e300, 0},
    };
    adl_fit_result fit, alone;
    REQUIRE_OK(adl_fit(points, ADLI_COUNT(points), &fit));
    CHECK_INT(fit.used, 1);
    CHECK_INT(fit.rejected, ADLI_COUNT(points) - 1);
    REQUIRE_OK(adl_fit(&good, 1, &alone));
    CHECK(memcmp(&fit.perf, &alone.perf, sizeof fit.perf) == 0);
    CHECK_FAILS(adl_fit(points + 1, ADLI_COUNT(points) - 1, &fit), ADL_EINVAL,
                "no usable point among 13");
    CHECK_FAILS(adl_fit(NULL, 0, &fit), ADL_EINVAL, "no usable point among 0");
}

TEST(any_numbers_give_finite_parameters)
{
    static const double wild[] = {1e-300, 1e-12, 1e-9, 1e-8, 1e-3, 1,       1e3,
                                  1e9,    1e300, 0,    -1,   NAN,  INFINITY};
    adli_rng rng;
    size_t used = 0, refused = 0;
    adli_rng_init(&rng, 5);
    for (int round = 0; round < 1500; round++) {
        adl_profile_point points[20];
        size_t count = (size_t)adli_rng_range(&rng, 1, 20);
        uint32_t kinds = round % 2 ? ADLI_COUNT(wild) : 8; /* every other round only positive */
        for (size_t i = 0; i < count; i++)
            points[i] = (adl_profile_point){
                adli_rng_range(&rng, round % 2 - 1, 4), adli_rng_range(&rng, -1, 64),
                wild[adli_rng_below(&rng, kinds)],      wild[adli_rng_below(&rng, kinds)],
                wild[adli_rng_below(&rng, kinds)],      0};
        adl_fit_result fit;
        if (adl_fit(points, count, &fit) != ADL_OK) {
            CHECK_INT(fit.used, 0);
            refused++;
            continue;
        }
        CHECK_INT(fit.used + fit.rejected, count);
        CHECK(in_box(&fit.perf));
        CHECK(isfinite(fit.objective) && fit.objective >= 0);
        used += fit.used;
    }
    printf("info - %zu wild points fitted, %zu fits refused\n", used, refused);
    CHECK(used > 1000 && refused > 10);
}

TEST(running_out_of_memory_is_reported)
{
    static fit_case problem;
    make_problem(12, &problem);
    adl_fit_result fit;
    int64_t before = adli_mem_count();
    REQUIRE_OK(adl_fit(problem.points, problem.count, &fit));
    int64_t needed = adli_mem_count() - before;
    CHECK(needed > 0);
    for (int64_t nth = 1; nth <= needed; nth++) {
        adli_mem_fail_at(nth);
        CHECK_FAILS(adl_fit(problem.points, problem.count, &fit), ADL_ENOMEM, "out of memory");
        adli_mem_fail_at(0);
    }
    CHECK_OK(adl_fit(problem.points, problem.count, &fit));
}

/* ---- the minimiser on its own ---- */

/* sum i (x_i - c_i)^2 + coupling (x_0 + x_1 - 4)^2, c_i = i - 3 */
static void bowl(void *context, const double *x, adli_quadratic *out)
{
    int *calls = context;
    ++*calls;
    *out = (adli_quadratic){0};
    for (int i = 0; i < ADLI_BOX_VARS; i++) {
        double weight = i + 1, apart = x[i] - (i - 3);
        out->value += weight * apart * apart;
        out->gradient[i] += 2 * weight * apart;
        out->hessian[i][i] += 2 * weight;
    }
    double sum = x[0] + x[1] - 4;
    out->value += 10 * sum * sum;
    for (int i = 0; i < 2; i++) {
        out->gradient[i] += 20 * sum;
        for (int j = 0; j <= i; j++)
            out->hessian[i][j] += 20;
    }
    for (int i = 0; i < ADLI_BOX_VARS; i++)
        out->diagonal[i] = out->hessian[i][i];
}

TEST(the_minimiser_stops_on_the_bounds)
{
    adli_box box;
    int calls = 0;
    double x[ADLI_BOX_VARS] = {9, 9, 9, 9, 9, 0.5, -9};
    for (int i = 0; i < ADLI_BOX_VARS; i++) {
        box.lower[i] = -1.5;
        box.upper[i] = 2.5;
        box.fixed[i] = i == 5;
    }
    double value = adli_box_minimise(&box, bowl, &calls, 1e-14, 200, x);
    /* x_0 sits on its upper bound, then d/dx_1: 4 (x_1 + 2) + 20 (x_1 - 1.5) = 0 */
    CHECK_NEAR(x[0], 2.5, 1e-12);
    CHECK_NEAR(x[1], 22.0 / 24, 1e-6);
    CHECK_NEAR(x[2], -1, 1e-6);
    CHECK(fabs(x[3]) < 1e-6);
    CHECK_NEAR(x[4], 1, 1e-6);
    CHECK(x[5] == 0.5); /* fixed */
    CHECK_NEAR(x[6], 2.5, 1e-12);
    CHECK(calls < 60);
    adli_quadratic at;
    bowl(&calls, x, &at);
    CHECK(at.value == value);
}

/* Rosenbrock's valley in x_0, x_1 as least squares: (1 - x_0)^2 + 100 (x_1 - x_0^2)^2 */
static void valley(void *context, const double *x, adli_quadratic *out)
{
    (void)context;
    double a = 1 - x[0], b = 10 * (x[1] - x[0] * x[0]), by_b = -20 * x[0];
    *out = (adli_quadratic){.value = a * a + b * b,
                            .gradient = {2 * (-a + b * by_b), 20 * b},
                            .hessian = {{2 * (1 + by_b * by_b)}, {20 * by_b, 200}},
                            .diagonal = {2 * (1 + by_b * by_b), 200}};
}

TEST(the_minimiser_follows_a_curved_valley)
{
    adli_box box = {.lower = {-5, -5}, .upper = {5, 5}, .fixed = {0, 0, 1, 1, 1, 1, 1}};
    double x[ADLI_BOX_VARS] = {-1.2, 1};
    adli_box_minimise(&box, valley, NULL, 1e-12, 500, x);
    CHECK_NEAR(x[0], 1, 1e-4);
    CHECK_NEAR(x[1], 1, 1e-4);
    box.upper[0] = 0.5;
    adli_box_minimise(&box, valley, NULL, 1e-12, 500, x);
    CHECK_NEAR(x[0], 0.5, 1e-9);
    CHECK_NEAR(x[1], 0.25, 1e-6);
}
