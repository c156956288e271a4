/* The pool as text, so that what jobs have taught outlives the scheduler. */
#include "sched/pool_impl.h"

#include "base/json.h"
#include "base/json_write.h"
#include "base/mem.h"

#include <limits.h>
#include <string.h>

enum { VERSION = 1 };

/* One point: [type, N, R, m, accum_time, optim_time, teacher]. Teachers of an entry are numbered from 0, so that it is
 * known later whether one or several say a thing. Without, as it was once: nobody knows who. */
enum {
    POINT_FIELDS = 7,
    POINT_FIELDS_ONCE = 6,
    TEACHERS_MAX = ADL_MAX_TYPES * ADLI_POOL_POINTS_MAX
};

/* The number of a teacher among those of the entry's points; a new one for a new one. */
static int teacher_of(uint64_t by, uint64_t *teachers, int *count)
{
    int at = 0;
    while (at < *count && teachers[at] != by)
        at++;
    if (at == *count)
        teachers[(*count)++] = by;
    return at;
}

static void put_points(const adli_pool_entry *entry, adli_buf *out)
{
    uint64_t teachers[TEACHERS_MAX];
    int teacher_count = 0;
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
            adli_jw_int(out, NULL,
                        teacher_of(entry->types[t].points[i].by, teachers, &teacher_count));
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
        if (entry->limits.lone_grows)
            adli_jw_bool(out, "loneReplicaGrows", true);
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
                             adl_profile_point *out, int *teacher)
{
    double values[POINT_FIELDS] = {0};
    size_t count = json_array_size(list);
    if (count != POINT_FIELDS && count != POINT_FIELDS_ONCE)
        return adli_fail(ADL_EINVAL, "a point must be a list of %d numbers", POINT_FIELDS);
    for (size_t i = 0; i < count; i++) {
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
    if (!(values[6] >= 0 && values[6] < TEACHERS_MAX))
        return adli_fail(ADL_EINVAL, "a point is of teacher %g", values[6]);
    *teacher = count == POINT_FIELDS ? (int)values[6] : -1;
    if (!adli_pool_usable(out))
        return adli_fail(ADL_EINVAL, "a point is not one that could have been measured");
    return ADL_OK;
}

static adl_status read_points(adli_pool *pool, const json_t *item, const int *types, int type_count,
                              adli_pool_entry *entry)
{
    const json_t *list;
    uint64_t first = pool->clock + 1; /* numbers that no member will get */
    adl_status status =
        adli_json_array(item, "points", ADL_MAX_TYPES * ADLI_POOL_POINTS_MAX, &list);
    for (size_t i = 0; status == ADL_OK && i < json_array_size(list); i++) {
        adl_profile_point point;
        int teacher = -1;
        status = read_point(json_array_get(list, i), types, type_count, &point, &teacher);
        if (status != ADL_OK)
            return adli_wrap(status, "points[%zu]", i);
        adli_pool_type *on = &entry->types[point.type];
        if (on->count == ADLI_POOL_POINTS_MAX)
            continue;
        if (adli_grow(&on->points, &on->capacity, on->count + 1, sizeof *on->points) != 0)
            return adli_fail_memory("pool of models");
        uint64_t by = teacher < 0 ? ADLI_POOL_TEACHER_GONE : first + (uint64_t)teacher;
        if (by > pool->clock)
            pool->clock = by;
        /* gradients are the work of whoever taught the points, if that was one */
        entry->grad_by = i == 0 || by == entry->grad_by ? by : ADLI_POOL_TEACHER_GONE;
        on->points[on->count++] = (adli_pool_point){point, point.optim_time_s, by};
        on->stale = true;
    }
    return status;
}

static adl_status read_entry(adli_pool *pool, const json_t *item, const int *types, int type_count)
{
    const char *name = json_string_value(json_object_get(item, "application"));
    adl_batch_limits limits = {0};
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
    if (status == ADL_OK && json_object_get(item, "loneReplicaGrows"))
        status = adli_json_bool(item, "loneReplicaGrows", &limits.lone_grows);
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
    return read_points(pool, item, types, type_count, entry);
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
