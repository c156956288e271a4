#include "model_json/model_json.h"

#include "adaptdl/fit.h"
#include "adaptdl/speedup.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "model/perf.h"

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

/* ---- fields ---- */

static bool absent(const json_t *object, const char *field)
{
    const json_t *value = json_object_get(object, field);
    return !value || json_is_null(value);
}

adl_status adli_model_read(const json_t *object, adl_goodput *out)
{
    double perf[ADLI_PERF_COUNT], grad[2];
    adl_status status = adli_json_doubles(object, "perf", ADLI_PERF_COUNT, perf);
    if (status == ADL_OK)
        status = adli_json_doubles(object, "grad", 2, grad);
    if (status == ADL_OK)
        status = adli_json_double(object, "init", &out->init_batch_size);
    if (status != ADL_OK)
        return status;
    for (int i = 0; i < ADLI_PERF_COUNT; i++)
        adli_perf_set(&out->perf, i, perf[i]);
    out->grad = (adl_grad_params){.sqr = grad[0], .var = grad[1]};
    return adl_goodput_check(out);
}

/* Absent is 0, "open"; a 0 that was written is a mistake. */
static adl_status read_bound(const json_t *object, const char *field, double *out)
{
    *out = 0;
    if (absent(object, field))
        return ADL_OK;
    adl_status status = adli_json_double(object, field, out);
    if (status == ADL_OK && !(*out >= 1))
        return adli_fail(ADL_EINVAL, "field \"%s\" must be at least 1, not %g", field, *out);
    return status;
}

adl_status adli_model_read_limits(const json_t *object, adl_batch_limits *out)
{
    *out = (adl_batch_limits){0};
    adl_status status = read_bound(object, "max_batch_size", &out->max_batch_size);
    if (status == ADL_OK)
        status = read_bound(object, "min_m", &out->min_local_bsz);
    if (status == ADL_OK)
        status = read_bound(object, "max_m", &out->max_local_bsz);
    if (status == ADL_OK && !absent(object, "accumulation"))
        status = adli_json_bool(object, "accumulation", &out->accumulation);
    if (status == ADL_OK && !absent(object, "lone_grows"))
        status = adli_json_bool(object, "lone_grows", &out->lone_grows);
    return status;
}

static adl_status read_placement(const json_t *object, int *nodes, int *replicas)
{
    adl_status status = adli_json_int(object, "N", 1, INT_MAX, nodes);
    if (status == ADL_OK)
        status = adli_json_int(object, "R", 1, INT_MAX, replicas);
    if (status == ADL_OK && *replicas < *nodes)
        return adli_fail(ADL_EINVAL, "field \"R\" must be at least N: R = %d, N = %d", *replicas,
                         *nodes);
    return status;
}

/* Closes an answer that began at before. One that passed the limit is taken back. */
static adl_status finish(adli_buf *out, size_t before)
{
    adli_jw_close(out, '}');
    adl_status status = adli_buf_check(out);
    if (status != ADL_OK)
        out->length = before;
    return status;
}

static size_t begin(adli_buf *out)
{
    size_t before = out->length;
    adli_jw_spaced(out);
    adli_jw_open(out, NULL, '{');
    return before;
}

/* ---- questions ---- */

static adl_status evaluate(const json_t *root, adli_buf *out)
{
    adl_goodput model;
    int nodes, replicas, s;
    double m, answer[3];
    adl_status status = adli_model_read(root, &model);
    if (status == ADL_OK)
        status = read_placement(root, &nodes, &replicas);
    if (status == ADL_OK)
        status = adli_json_double(root, "m", &m);
    if (status == ADL_OK)
        status = adli_json_int(root, "s", 0, INT_MAX, &s);
    if (status == ADL_OK)
        status = adl_throughput(&model, adl_shape_of(nodes, replicas), m, s, &answer[0]);
    if (status == ADL_OK)
        status = adl_efficiency(&model, replicas * m * (s + 1.0), &answer[1]);
    if (status == ADL_OK)
        status = adl_goodput_evaluate(&model, adl_shape_of(nodes, replicas), m, s, &answer[2]);
    if (status != ADL_OK)
        return status;
    size_t before = begin(out);
    adli_jw_number(out, "throughput", answer[0]);
    adli_jw_number(out, "efficiency", answer[1]);
    adli_jw_number(out, "goodput", answer[2]);
    return finish(out, before);
}

static adl_status optimize(const json_t *root, adli_buf *out)
{
    adl_goodput model;
    adl_batch_limits limits;
    adl_batch_choice choice;
    int nodes, replicas;
    adl_status status = adli_model_read(root, &model);
    if (status == ADL_OK)
        status = read_placement(root, &nodes, &replicas);
    if (status == ADL_OK)
        status = adli_model_read_limits(root, &limits);
    if (status == ADL_OK)
        status = adl_goodput_optimize(&model, &limits, adl_shape_of(nodes, replicas), &choice);
    if (status != ADL_OK)
        return status;
    size_t before = begin(out);
    adli_jw_number(out, "goodput", choice.goodput);
    adli_jw_number(out, "m", choice.local_bsz);
    adli_jw_number(out, "s", choice.accum_steps);
    return finish(out, before);
}

/* Enough for any cluster; a memo for more would only be memory. */
enum { MAX_REPLICAS = 1 << 20 };

static adl_status speedup(const json_t *root, adli_buf *out)
{
    adl_goodput model;
    adl_batch_limits limits;
    int nodes = 0, replicas;
    bool known = !json_is_null(json_object_get(root, "perf"));
    adl_status status = known ? adli_model_read(root, &model) : ADL_OK;
    if (status == ADL_OK)
        status = adli_json_int(root, "R", 0, MAX_REPLICAS, &replicas);
    if (status == ADL_OK && replicas > 0)
        status = read_placement(root, &nodes, &replicas);
    if (status == ADL_OK)
        status = adli_model_read_limits(root, &limits);
    if (status != ADL_OK)
        return status;
    adl_speedup *memo;
    status =
        adl_speedup_new(known ? &model : NULL, &limits, NULL, 0, replicas ? replicas : 1, &memo);
    if (status != ADL_OK)
        return status;
    double answer = adl_speedup_get(memo, adl_shape_of(nodes, replicas));
    adl_speedup_free(memo);
    size_t before = begin(out);
    adli_jw_number(out, "speedup", answer);
    return finish(out, before);
}

/* ---- fit ---- */

enum { FIT_N, FIT_R, FIT_M, FIT_ACCUM, FIT_OPTIM, FIT_FIELDS };

static const char *const fit_fields[FIT_FIELDS] = {"N", "R", "m", "accum_time", "optim_time"};

static adl_status read_arrays(const json_t *root, const json_t **arrays, size_t *count)
{
    for (int i = 0; i < FIT_FIELDS; i++) {
        adl_status status = adli_json_array(root, fit_fields[i], SIZE_MAX, &arrays[i]);
        if (status != ADL_OK)
            return status;
        size_t length = json_array_size(arrays[i]);
        if (i == 0)
            *count = length;
        else if (length != *count)
            return adli_fail(ADL_EINVAL, "field \"%s\" has %zu elements, but \"N\" has %zu",
                             fit_fields[i], length, *count);
    }
    if (*count == 0)
        return adli_fail(ADL_EINVAL, "field \"N\" is empty: a fit needs at least one point");
    return ADL_OK;
}

static adl_status read_point(const json_t *const *arrays, size_t at, adl_profile_point *out)
{
    double values[FIT_FIELDS];
    for (int i = 0; i < FIT_FIELDS; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s[%zu]", fit_fields[i], at);
        adl_status status = adli_json_number(json_array_get(arrays[i], at), name, &values[i]);
        if (status != ADL_OK)
            return status;
        bool whole = values[i] == floor(values[i]) && fabs(values[i]) <= INT_MAX;
        if (i <= FIT_R && !whole)
            return adli_fail(ADL_EINVAL, "field \"%s\" must be a whole number, not %g", name,
                             values[i]);
    }
    *out = (adl_profile_point){.nodes = (int)values[FIT_N],
                               .replicas = (int)values[FIT_R],
                               .local_bsz = values[FIT_M],
                               .accum_time_s = values[FIT_ACCUM],
                               .optim_time_s = values[FIT_OPTIM]};
    return ADL_OK;
}

static adl_status fit(const json_t *root, adli_buf *out)
{
    const json_t *arrays[FIT_FIELDS];
    adl_profile_point *points = NULL;
    adl_fit_result result;
    size_t count = 0;
    adl_status status = read_arrays(root, arrays, &count);
    if (status != ADL_OK)
        return status;
    points = adli_calloc(count, sizeof *points);
    if (!points)
        return adli_fail_memory("points of a fit");
    for (size_t i = 0; i < count && status == ADL_OK; i++)
        status = read_point(arrays, i, &points[i]);
    if (status == ADL_OK)
        status = adl_fit(points, count, &result);
    free(points);
    if (status != ADL_OK)
        return status;
    size_t before = begin(out);
    adli_jw_open(out, "params", '[');
    for (int i = 0; i < ADLI_PERF_COUNT; i++)
        adli_jw_number(out, NULL, adli_perf_get(&result.perf, i));
    adli_jw_close(out, ']');
    adli_jw_number(out, "objective", result.objective);
    adli_jw_number(out, "used", (double)result.used);
    adli_jw_number(out, "rejected", (double)result.rejected);
    return finish(out, before);
}

/* ---- lines ---- */

static adl_status ask(adl_status (*question)(const json_t *, adli_buf *), const char *line,
                      size_t length, adli_buf *out)
{
    json_t *root;
    adl_status status = adli_json_parse(line, length, &root);
    if (status != ADL_OK)
        return status;
    status = json_is_object(root) ? question(root, out)
                                  : adli_fail(ADL_EINVAL, "expected a JSON object");
    json_decref(root);
    return status;
}

adl_status adli_model_evaluate(const char *line, size_t length, adli_buf *out)
{
    return ask(evaluate, line, length, out);
}

adl_status adli_model_optimize(const char *line, size_t length, adli_buf *out)
{
    return ask(optimize, line, length, out);
}

adl_status adli_model_fit(const char *line, size_t length, adli_buf *out)
{
    return ask(fit, line, length, out);
}

adl_status adli_model_speedup(const char *line, size_t length, adli_buf *out)
{
    return ask(speedup, line, length, out);
}
