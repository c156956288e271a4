/* The models against numbers made by the reference implementation (golden/goodput.json). */
#include "harness.h"

#include "adaptdl/fit.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "model_json/model_json.h"

#include <limits.h>

/* The cases under a name, or NULL after a skip or a failure. Free *root. */
static const json_t *cases(const char *name, json_t **root)
{
    adli_buf text;
    const char *path = adlt_shared("golden/goodput.json");
    const json_t *found = NULL;
    *root = NULL;
    if (!path)
        return NULL;
    adli_buf_init(&text, 64 << 20);
    if (adli_file_read(path, &text) == ADL_OK &&
        adli_json_parse(text.data, text.length, root) == ADL_OK)
        found = json_object_get(*root, name);
    adli_buf_fini(&text);
    return found;
}

static double number(const json_t *item, const char *field)
{
    double value = NAN;
    return adli_json_double(item, field, &value) == ADL_OK ? value : NAN;
}

static int integer(const json_t *item, const char *field)
{
    int value = -1;
    return adli_json_int(item, field, 0, INT_MAX, &value) == ADL_OK ? value : -1;
}

static double apart(double got, double wanted)
{
    double relative = fabs(got - wanted) / fabs(wanted);
    return relative >= 0 ? relative : INFINITY; /* NaN is far apart */
}

TEST(evaluate_agrees_to_1e_9)
{
    json_t *root, *item;
    const json_t *list = cases("evaluate", &root);
    if (!list)
        SKIP("no golden/goodput.json");
    size_t i;
    double worst = 0;
    json_array_foreach((json_t *)list, i, item)
    {
        adl_goodput model;
        int nodes = integer(item, "N"), replicas = integer(item, "R"), s = integer(item, "s");
        double m = number(item, "m"), rate = 0, efficiency = 0, goodput = 0;
        CHECK_OK(adli_model_read(item, &model));
        CHECK_OK(adl_throughput(&model, adl_shape_of(nodes, replicas), m, s, &rate));
        CHECK_OK(adl_efficiency(&model, replicas * m * (s + 1), &efficiency));
        CHECK_OK(adl_goodput_evaluate(&model, adl_shape_of(nodes, replicas), m, s, &goodput));
        worst = fmax(worst, apart(rate, number(item, "throughput")));
        worst = fmax(worst, apart(efficiency, number(item, "efficiency")));
        worst = fmax(worst, apart(goodput, number(item, "goodput")));
    }
    printf("info - %zu evaluations, largest difference %.1e\n", i, worst);
    CHECK(i >= 100);
    CHECK(worst <= 1e-9);
    json_decref(root);
}

TEST(optimize_chooses_the_same)
{
    json_t *root, *item;
    const json_t *list = cases("optimize", &root);
    if (!list)
        SKIP("no golden/goodput.json");
    size_t i, same = 0;
    json_array_foreach((json_t *)list, i, item)
    {
        adl_goodput model;
        adl_batch_limits limits;
        adl_batch_choice choice = {0};
        CHECK_OK(adli_model_read(item, &model));
        CHECK_OK(adli_model_read_limits(item, &limits));
        CHECK_OK(adl_goodput_optimize(
            &model, &limits, adl_shape_of(integer(item, "N"), integer(item, "R")), &choice));
        bool equal =
            choice.local_bsz == integer(item, "m") && choice.accum_steps == integer(item, "s");
        same += equal;
        if (!equal && !(apart(choice.goodput, number(item, "goodput")) <= 1e-9))
            ADLT_FAIL("case %zu: m %d s %d goodput %.17g", i, choice.local_bsz, choice.accum_steps,
                      choice.goodput);
        CHECK_NEAR(choice.goodput, number(item, "goodput"), 1e-9);
    }
    printf("info - %zu of %zu choices are the same, the others equally good\n", same, i);
    CHECK(i >= 100);
    json_decref(root);
}

static size_t read_points(const json_t *item, adl_profile_point *points, size_t most)
{
    static const char *const fields[] = {"N", "R", "m", "accum_time", "optim_time"};
    size_t count = json_array_size(json_object_get(item, "N"));
    for (size_t i = 0; i < count && count <= most; i++) {
        double v[5];
        for (size_t j = 0; j < ADLI_COUNT(fields); j++)
            v[j] = json_number_value(json_array_get(json_object_get(item, fields[j]), i));
        points[i] = (adl_profile_point){(int)v[0], (int)v[1], v[2], v[3], v[4], 0};
    }
    return count <= most ? count : 0;
}

TEST(fits_are_as_good_as_the_reference)
{
    json_t *root, *item;
    const json_t *list = cases("fit", &root);
    if (!list)
        SKIP("no golden/goodput.json");
    size_t i, better = 0;
    double worst = 0;
    static adl_profile_point points[1000];
    json_array_foreach((json_t *)list, i, item)
    {
        adl_fit_result fit = {0};
        double reference = number(item, "reference_objective"), ref[7];
        size_t count = read_points(item, points, ADLI_COUNT(points));
        CHECK_OK(adl_fit(points, count, &fit));
        CHECK_INT(fit.rejected, 0);
        if (!(fit.objective <= 1.01 * reference))
            ADLT_FAIL("case %zu: objective %.9g, reference %.9g", i, fit.objective, reference);
        worst = fmax(worst, fit.objective / reference);
        better += fit.objective < 0.99 * reference;
        /* our objective is theirs: where it was last evaluated at the parameters they kept */
        CHECK_OK(adli_json_doubles(item, "reference_params", 7, ref));
        adl_perf_params perf = {ref[0], ref[1], ref[2], ref[3], ref[4], ref[5], ref[6]};
        CHECK_NEAR(adl_fit_objective(&perf, points, count), reference, 5e-3);
    }
    printf("info - %zu fits, worst objective %.5f of the reference, %zu more than 1 %% better\n", i,
           worst, better);
    CHECK(i >= 10);
    json_decref(root);
}
