#include "measures/measures.h"

#include "base/json.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void adli_measures_fini(adli_measures *report)
{
    for (int i = 0; i < report->name_count; i++)
        free(report->names[i]);
    free(report->points);
    *report = (adli_measures){0};
}

/* Printable UTF-8 of some length. */
static adl_status check_name(const char *name)
{
    size_t length = strnlen(name, ADLI_MEASURES_NAME_MAX + 1);
    if (length == 0)
        return adli_fail(ADL_EINVAL, "a metric needs a name");
    if (length > ADLI_MEASURES_NAME_MAX)
        return adli_fail(ADL_EINVAL, "metric \"%.40s...\": a name has at most %d bytes", name,
                         ADLI_MEASURES_NAME_MAX);
    for (size_t i = 0, step; i < length; i += step) {
        uint32_t code = 0;
        step = adli_utf8_decode(name + i, length - i, &code);
        if (step == 0 || code < ' ' || (code >= 0x7f && code < 0xa0))
            return adli_fail(ADL_EINVAL, "metric %zu bytes long: its name is not printable UTF-8",
                             length);
    }
    return ADL_OK;
}

adl_status adli_measures_name(adli_measures *report, const char *name, int *out)
{
    for (*out = 0; *out < report->name_count; ++*out)
        if (strcmp(report->names[*out], name) == 0)
            return ADL_OK;
    adl_status status = check_name(name);
    if (status != ADL_OK)
        return status;
    if (*out == ADLI_MEASURES_NAMES)
        return adli_fail(ADL_EINVAL, "metric %s: a job has at most %d metrics", name,
                         ADLI_MEASURES_NAMES);
    report->names[*out] = adli_strdup(name);
    if (!report->names[*out])
        return adli_fail_memory("metrics");
    report->last[*out] = -1;
    report->name_count++;
    return ADL_OK;
}

/* Keeps the first so many points as they are, and of the others those that keep says. */
static void sift(adli_measures *report, bool (*keep)(void *user, const adli_measures_point *point),
                 void *user)
{
    size_t to = report->held;
    for (size_t i = report->held; i < report->count; i++)
        if (keep(user, &report->points[i]))
            report->points[to++] = report->points[i];
    report->count = to;
}

static bool is_earlier(void *user, const adli_measures_point *point)
{
    const adli_measures_point *taken_back = user;
    return point->name != taken_back->name || point->step < taken_back->step;
}

static bool every_second(void *user, const adli_measures_point *point)
{
    bool *kept = user;
    kept[point->name] = !kept[point->name];
    return kept[point->name];
}

adl_status adli_measures_add(adli_measures *report, int name, int64_t step, double time_s,
                             double value)
{
    adli_measures_point point = {name, step, time_s, isfinite(value) ? value : NAN};
    if (step <= report->last[name])
        sift(report, is_earlier, &point);
    if (report->count - report->held >= ADLI_MEASURES_POINTS) {
        bool kept[ADLI_MEASURES_NAMES] = {false}; /* the first of each name is */
        sift(report, every_second, kept);
    }
    if (adli_grow(&report->points, &report->capacity, report->count + 1, sizeof point) != 0)
        return adli_fail_memory("metrics");
    report->points[report->count++] = point;
    report->last[name] = step;
    return ADL_OK;
}

void adli_measures_sent(adli_measures *report)
{
    report->count -= report->held;
    if (report->count > 0)
        memmove(report->points, report->points + report->held,
                report->count * sizeof *report->points);
    report->held = 0;
}

void adli_measures_last(const adli_measures *report, adli_buf *out)
{
    adli_buf_puts(out, "{");
    for (int i = 0; i < report->name_count; i++)
        if (report->last[i] >= 0)
            adli_jw_int(out, report->names[i], report->last[i]);
    adli_buf_puts(out, "}");
}

adl_status adli_measures_json(const adli_measures *report, const char *last, size_t count,
                              adli_buf *out)
{
    adli_buf own;
    adli_buf_init(&own, ADLI_MEASURES_BYTES);
    if (!last)
        adli_measures_last(report, &own);
    adli_jw_open(out, NULL, '{');
    adli_jw_int(out, "restart", report->restart);
    adli_jw_bool(out, "whole", report->whole);
    if (!last || *last)
        adli_jw_raw(out, "last", last ? last : own.data ? own.data : "{}");
    adli_jw_open(out, "points", '[');
    for (size_t i = 0; i < count; i++) {
        const adli_measures_point *point = &report->points[i];
        adli_jw_open(out, NULL, '{');
        adli_jw_text(out, "name", report->names[point->name]);
        adli_jw_int(out, "step", point->step);
        adli_jw_number(out, "time", point->time_s);
        adli_jw_number(out, "value", point->value);
        adli_jw_close(out, '}');
    }
    adli_jw_close(out, ']');
    adli_jw_close(out, '}');
    adl_status status = adli_buf_check(&own);
    adli_buf_fini(&own);
    return status == ADL_OK ? adli_buf_check(out) : status;
}

/* ---- reading ---- */

static adl_status read_step(const json_t *value, const char *field, int64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > ADLI_MEASURES_STEP_MAX)
        return adli_fail(ADL_EINVAL, "field \"%s\" must be a whole number from 0 to 2^53", field);
    *out = json_integer_value(value);
    return ADL_OK;
}

static adl_status read_last(const json_t *last, adli_measures *out)
{
    const char *key;
    json_t *value;
    if (!json_is_object(last))
        return adli_fail(ADL_EINVAL, "field \"last\" must be an object");
    json_object_foreach((json_t *)last, key, value)
    {
        int name;
        int64_t step;
        adl_status status = adli_measures_name(out, key, &name);
        if (status == ADL_OK)
            status = read_step(value, key, &step);
        if (status != ADL_OK)
            return adli_wrap(status, "last");
        out->last[name] = step;
    }
    return ADL_OK;
}

static adl_status read_point(const json_t *entry, adli_measures *out)
{
    adli_measures_point point = {.value = NAN};
    const json_t *value = json_object_get(entry, "value");
    const char *name = json_string_value(json_object_get(entry, "name"));
    if (!name)
        return adli_fail(ADL_EINVAL, "field \"name\" must be a text");
    adl_status status = adli_measures_name(out, name, &point.name);
    if (status == ADL_OK)
        status = read_step(json_object_get(entry, "step"), "step", &point.step);
    if (status == ADL_OK)
        status = adli_json_double(entry, "time", &point.time_s);
    if (status == ADL_OK && !json_is_null(value))
        status = adli_json_double(entry, "value", &point.value);
    out->points[out->count] = point;
    out->count += status == ADL_OK;
    return status;
}

static adl_status read_points(const json_t *root, adli_measures *out)
{
    const json_t *list;
    /* what was held when more came, and those */
    adl_status status = adli_json_array(root, "points", 2 * (size_t)ADLI_MEASURES_POINTS, &list);
    if (status != ADL_OK)
        return status;
    size_t count = json_array_size(list);
    if (adli_grow(&out->points, &out->capacity, count + 1, sizeof *out->points) != 0)
        return adli_fail_memory("metrics");
    for (size_t i = 0; status == ADL_OK && i < count; i++) {
        status = read_point(json_array_get(list, i), out);
        if (status != ADL_OK)
            status = adli_wrap(status, "points[%zu]", i);
    }
    return status;
}

adl_status adli_measures_parse(const char *text, size_t length, adli_measures *out, bool *has_last)
{
    json_t *root = NULL;
    *out = (adli_measures){0};
    adl_status status = adli_json_parse(text, length, &root);
    if (status == ADL_OK)
        status = adli_json_int(root, "restart", 0, INT_MAX, &out->restart);
    if (status == ADL_OK && json_object_get(root, "whole"))
        status = adli_json_bool(root, "whole", &out->whole);
    const json_t *last = json_object_get(root, "last");
    *has_last = last != NULL;
    if (status == ADL_OK && last)
        status = read_last(last, out);
    if (status == ADL_OK)
        status = read_points(root, out);
    json_decref(root);
    if (status != ADL_OK)
        adli_measures_fini(out);
    return status;
}
