/* The pool as text, so that what jobs have taught outlives the scheduler. */
#include "sched/pool_impl.h"

#include "base/json.h"
#include "base/json_write.h"
#include "base/mem.h"

#include <limits.h>
#include <string.h>

enum { VERSION = 1 };

/* One point: [type, N, R, m, accum_time, optim_time]. */
enum { POINT_FIELDS = 6 };

static void put_points(const adli_pool_entry *entry, adli_buf *out)
{
    adli_jw_open(out, "points", '[');
    for (int t = 0; t < ADL_MAX_TYPES; t++)
        for (size_t i = 0; i < entry->types[t].count; i++) {
            const adl_profile_point *point = &entry->types[t].points[i].at;
            adli_jw_open(out, NULL, '[');
            adli_jw_int(out, NULL, t);
            adli_jw_int(out, NULL, point->nodes);
            adli_jw_int(out, NULL, point->replicas);
            adli_jw_number(out, NULL, point->local_bsz);
            adli_jw_number(out, NULL, point->accum_time_s);
            adli_jw_number(out, NULL, point->optim_time_s);
            adli_jw_close(out, ']');
        }
    adli_jw_close(out, ']');
}

adl_status adli_pool_save(const adli_pool *pool, adli_buf *out)
{
    adli_jw_open(out, NULL, '{');
    adli_jw_int(out, "version", VERSION);
    adli_jw_open(out, "types", '[');
    for (int t = 0; t < pool->type_count; t++)
        adli_jw_text(out, NULL, pool->types[t]);
    adli_jw_close(out, ']');
    adli_jw_open(out, "applications", '[');
    for (size_t i = 0; i < pool->count; i++) {
        const adli_pool_entry *entry = pool->entries[i];
        if (!entry->has_grad)
            continue;
        adli_jw_open(out, NULL, '{');
        adli_jw_text(out, "application", entry->application);
        adli_jw_number(out, "initBatchSize", entry->init_batch_size);
        adli_jw_number(out, "maxBatchSize", entry->limits.max_batch_size);
        adli_jw_number(out, "minLocalBsz", entry->limits.min_local_bsz);
        adli_jw_number(out, "maxLocalBsz", entry->limits.max_local_bsz);
        adli_jw_bool(out, "accumulation", entry->limits.accumulation);
        adli_jw_number(out, "gradSqr", entry->grad.sqr);
        adli_jw_number(out, "gradVar", entry->grad.var);
        adli_jw_number(out, "work", entry->work_sum);
        adli_jw_int(out, "finished", entry->finished);
        put_points(entry, out);
        adli_jw_close(out, '}');
    }
    adli_jw_close(out, ']');
    adli_jw_close(out, '}');
    return adli_buf_check(out);
}

static adl_status read_point(const json_t *list, const int *types, int type_count,
                             adl_profile_point *out)
{
    double values[POINT_FIELDS];
    if (json_array_size(list) != POINT_FIELDS)
        return adli_fail(ADL_EINVAL, "a point must be a list of %d numbers", POINT_FIELDS);
    for (size_t i = 0; i < POINT_FIELDS; i++) {
        adl_status status = adli_json_number(json_array_get(list, i), "point", &values[i]);
        if (status != ADL_OK)
            return status;
    }
    for (int i = 0; i < 3; i++)
        if (!(values[i] >= 0 && values[i] <= ADLI_POOL_REPLICAS_MAX))
            return adli_fail(ADL_EINVAL, "a point has %g where a count should be", values[i]);
    if (values[0] >= type_count)
        return adli_fail(ADL_EINVAL, "a point is of device type %g of %d", values[0], type_count);
    *out = (adl_profile_point){.type = types[(int)values[0]],
                               .nodes = (int)values[1],
                               .replicas = (int)values[2],
                               .local_bsz = values[3],
                               .accum_time_s = values[4],
                               .optim_time_s = values[5]};
    if (!adli_pool_usable(out))
        return adli_fail(ADL_EINVAL, "a point is not one that could have been measured");
    return ADL_OK;
}

static adl_status read_points(const json_t *item, const int *types, int type_count,
                              adli_pool_entry *entry)
{
    const json_t *list;
    adl_status status =
        adli_json_array(item, "points", ADL_MAX_TYPES * ADLI_POOL_POINTS_MAX, &list);
    for (size_t i = 0; status == ADL_OK && i < json_array_size(list); i++) {
        adl_profile_point point;
        status = read_point(json_array_get(list, i), types, type_count, &point);
        if (status != ADL_OK)
            return adli_wrap(status, "points[%zu]", i);
        adli_pool_type *on = &entry->types[point.type];
        if (on->count == ADLI_POOL_POINTS_MAX)
            continue;
        if (adli_grow(&on->points, &on->capacity, on->count + 1, sizeof *on->points) != 0)
            return adli_fail_memory("pool of models");
        on->points[on->count++] =
            (adli_pool_point){point, point.optim_time_s, ADLI_POOL_TEACHER_GONE};
        on->stale = true;
    }
    return status;
}

static adl_status read_entry(adli_pool *pool, const json_t *item, const int *types, int type_count)
{
    const char *name = json_string_value(json_object_get(item, "application"));
    adl_batch_limits limits;
    adl_grad_params grad;
    double init = 0, work = 0;
    int finished = 0;
    if (!name)
        return adli_fail(ADL_EINVAL, "\"application\" must be a text");
    const struct {
        const char *name;
        double *to;
        double high;
    } fields[] = {{"initBatchSize", &init, INT_MAX},
                  {"maxBatchSize", &limits.max_batch_size, INT_MAX},
                  {"minLocalBsz", &limits.min_local_bsz, INT_MAX},
                  {"maxLocalBsz", &limits.max_local_bsz, INT_MAX},
                  {"gradSqr", &grad.sqr, 1e100},
                  {"gradVar", &grad.var, 1e100},
                  {"work", &work, 1e300}};
    adl_status status = adli_json_bool(item, "accumulation", &limits.accumulation);
    for (size_t i = 0; status == ADL_OK && i < ADLI_COUNT(fields); i++) {
        status = adli_json_double(item, fields[i].name, fields[i].to);
        if (status == ADL_OK && !(*fields[i].to >= 0 && *fields[i].to <= fields[i].high))
            status = adli_fail(ADL_EINVAL, "\"%s\" is out of range", fields[i].name);
    }
    if (status == ADL_OK)
        status = adli_json_int(item, "finished", 0, INT_MAX, &finished);
    if (status != ADL_OK)
        return status;
    adli_pool_entry *entry;
    status = adli_pool_entry_new(pool, name, init < 1 ? 1 : init, &limits, &entry);
    if (status != ADL_OK || !entry)
        return status;
    entry->grad = grad;
    entry->has_grad = true;
    entry->grad_by = ADLI_POOL_TEACHER_GONE;
    entry->work_sum = work;
    entry->finished = finished;
    return read_points(item, types, type_count, entry);
}

static adl_status read_all(adli_pool *pool, const json_t *root)
{
    const json_t *types, *list;
    int version, index[ADL_MAX_TYPES];
    adl_status status = adli_json_int(root, "version", VERSION, VERSION, &version);
    if (status == ADL_OK)
        status = adli_json_array(root, "types", ADL_MAX_TYPES, &types);
    if (status == ADL_OK)
        status = adli_json_array(root, "applications", ADLI_POOL_APPLICATIONS_MAX, &list);
    for (size_t t = 0; status == ADL_OK && t < json_array_size(types); t++) {
        const char *name = json_string_value(json_array_get(types, t));
        status = name ? adli_pool_type_of(pool, name, &index[t])
                      : adli_fail(ADL_EINVAL, "types[%zu] must be a text", t);
    }
    for (size_t i = 0; status == ADL_OK && i < json_array_size(list); i++) {
        status = read_entry(pool, json_array_get(list, i), index, (int)json_array_size(types));
        if (status != ADL_OK)
            adli_wrap(status, "applications[%zu]", i);
    }
    return status;
}

adl_status adli_pool_load(adli_pool *pool, const char *text, size_t length)
{
    json_t *root = NULL;
    adl_status status = adli_json_parse(text, length, &root);
    if (status == ADL_OK)
        status = read_all(pool, root);
    if (status != ADL_OK)
        adli_pool_clear(pool);
    json_decref(root);
    return status;
}
