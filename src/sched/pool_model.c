/* From what the pool and a job know together to the job's model. */
#include "sched/pool_impl.h"

#include "base/mem.h"
#include "model/speedup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t adli_pool_version(adli_pool *pool, adli_pool_member *member)
{
    (void)pool;
    const adli_pool_entry *entry = member->entry;
    uint64_t shared = entry && entry->has_grad ? entry->version : 0;
    return shared > member->version ? shared : member->version;
}

int adli_pool_max_profiled(adli_pool *pool, const adli_pool_member *member)
{
    (void)pool;
    int most = 0;
    for (size_t i = 0; i < member->count; i++)
        if (member->points[i].replicas > most)
            most = member->points[i].replicas;
    for (int t = 0; member->entry && t < ADL_MAX_TYPES; t++) {
        adli_pool_type *on = &member->entry->types[t];
        if (adli_pool_fit(on) == ADL_OK && on->max_profiled > most)
            most = on->max_profiled;
    }
    return most;
}

bool adli_pool_prior(adli_pool *pool, const adli_pool_member *member, int type, adl_goodput *out)
{
    (void)pool;
    adli_pool_entry *entry = member->entry;
    if (!entry || !entry->has_grad || type < 0 || type >= ADL_MAX_TYPES)
        return false;
    adli_pool_type *on = &entry->types[type];
    if (adli_pool_fit(on) != ADL_OK || !on->fitted)
        return false;
    *out = (adl_goodput){on->fit, member->heard ? member->model.grad : entry->grad,
                         entry->init_batch_size};
    return true;
}

bool adli_pool_limits(const adli_pool *pool, const adli_pool_member *member, adl_batch_limits *out)
{
    (void)pool;
    if (!member->heard && !member->entry)
        return false;
    *out = member->heard ? member->limits : member->entry->limits;
    return true;
}

/* The job's own points of a type, then the pool's for what it did not measure. */
static size_t list_points(const adli_pool_member *member, const adli_pool_type *on, int type,
                          adl_profile_point *out)
{
    size_t count = 0, own;
    for (size_t i = 0; i < member->count; i++)
        if (member->points[i].type == type)
            out[count++] = member->points[i];
    own = count;
    double delta = on ? adli_pool_delta(on, member, type) : 0;
    for (size_t g = 0; on && g < on->bin_count; g++) {
        adl_profile_point point = on->bins[g].at;
        bool measured = false;
        for (size_t i = 0; i < own && !measured; i++)
            measured = out[i].replicas == point.replicas && (out[i].nodes > 1) == (point.nodes > 1);
        if (measured)
            continue;
        adl_shape shape = adl_shape_of(point.nodes, point.replicas);
        point.optim_time_s =
            adl_optim_time(&on->fit, shape, point.local_bsz) * exp(on->bins[g].residual + delta);
        point.type = type;
        out[count++] = point;
    }
    return count;
}

/* The job's own fit of a type. With one type that is what it reported. */
static adl_status own_fit(const adli_pool_member *member, int type, int type_count,
                          adl_profile_point *scratch, adl_perf_params *out, bool *known)
{
    *known = false;
    if (type_count == 1) {
        *known = member->heard;
        *out = member->model.perf;
        return ADL_OK;
    }
    size_t count = list_points(member, NULL, type, scratch);
    if (count == 0)
        return ADL_OK;
    adl_fit_result result;
    adl_status status = adl_fit(scratch, count, &result);
    *known = status == ADL_OK;
    *out = result.perf;
    return status;
}

typedef struct type_view {
    adl_goodput model;
    adl_profile_point *points;
} type_view;

/* The batch limits on a type: the job's own there, those of others there, else what is known. */
static const adl_batch_limits *limits_on(const adli_pool_member *member, int type)
{
    const adli_pool_entry *entry = member->entry;
    if (member->has_limits[type])
        return &member->limits_on[type];
    if (entry && entry->types[type].has_limits)
        return &entry->types[type].limits;
    return member->heard ? &member->limits : &entry->limits;
}

static adl_status view_type(const adli_pool_member *member, int type, int type_count,
                            type_view *view, adl_type_model *out)
{
    adli_pool_entry *entry = member->entry;
    adli_pool_type *on = entry && entry->has_grad ? &entry->types[type] : NULL;
    bool known = false;
    adl_status status = on ? adli_pool_fit(on) : ADL_OK;
    if (status != ADL_OK)
        return status;
    on = on && on->fitted ? on : NULL;
    view->points = adli_calloc(member->count + (on ? on->bin_count : 0), sizeof *view->points);
    if (!view->points)
        return adli_fail_memory("points of a job");
    view->model = (adl_goodput){.grad = member->heard ? member->model.grad : entry->grad,
                                .init_batch_size = member->heard ? member->model.init_batch_size
                                                                 : entry->init_batch_size};
    if (on) {
        view->model.perf = on->fit;
        known = true;
    } else {
        status = own_fit(member, type, type_count, view->points, &view->model.perf, &known);
    }
    *out = (adl_type_model){.model = known ? &view->model : NULL,
                            .limits = limits_on(member, type),
                            .profile = view->points,
                            .profile_count = list_points(member, on, type, view->points),
                            .speed = member->speeds[type]};
    return status;
}

/* How many times as fast one device of a type is as one of another, by the applications that were measured
 * on both: the geometric mean. 1 where there is none. */
static double speed_ratio(adli_pool *pool, int type, int other)
{
    double sum = 0;
    int count = 0;
    for (size_t i = 0; i < pool->count; i++) {
        adli_pool_type *a = &pool->entries[i]->types[type], *b = &pool->entries[i]->types[other];
        if (adli_pool_fit(a) != ADL_OK || adli_pool_fit(b) != ADL_OK || !a->fitted || !b->fitted)
            continue;
        double local_bsz = b->points[0].at.local_bsz;
        sum += log(adl_optim_time(&b->fit, adl_shape_of(1, 1), local_bsz)) -
               log(adl_optim_time(&a->fit, adl_shape_of(1, 1), local_bsz));
        count++;
    }
    return count > 0 ? exp(sum / count) : 1;
}

/* A job that does not know how fast the types are must not be kept from those that it was never on. */
static void guess_speeds(adli_pool *pool, adl_type_model *types, int count)
{
    int first = count;
    for (int t = count; t-- > 0;) {
        if (types[t].speed > 0)
            return;
        first = types[t].model ? t : first;
    }
    for (int t = 0; t < count && first < count; t++)
        types[t].speed = types[t].model ? 1 : speed_ratio(pool, t, first);
}

static adl_status make_model(adli_pool *pool, const adli_pool_member *member, int type_count,
                             int max_replicas, adl_speedup **out)
{
    type_view views[ADL_MAX_TYPES] = {0};
    adl_type_model types[ADL_MAX_TYPES] = {0};
    adl_status status = ADL_OK;
    for (int t = 0; t < type_count && status == ADL_OK; t++)
        status = view_type(member, t, type_count, &views[t], &types[t]);
    if (status == ADL_OK && type_count > 1)
        guess_speeds(pool, types, type_count);
    if (status == ADL_OK)
        status = adl_speedup_new_types(types, (size_t)type_count, max_replicas, out);
    if (status == ADL_OK)
        adli_speedup_bound(*out);
    for (int t = 0; t < type_count; t++)
        free(views[t].points);
    return status;
}

adl_status adli_pool_model(adli_pool *pool, adli_pool_member *member, int type_count,
                           int max_replicas, adl_speedup **out)
{
    *out = NULL;
    if (adli_pool_version(pool, member) == 0)
        return adli_fail(ADL_ESTATE, "nothing is known of the job");
    adli_pool_entry *entry = member->entry;
    /* on several types it depends on other applications too */
    if (member->heard || !entry || type_count > 1)
        return make_model(pool, member, type_count, max_replicas, out);
    bool same = entry->common && entry->common_version == entry->version &&
                entry->common_most == max_replicas;
    if (!same) {
        adl_status status = make_model(pool, member, type_count, max_replicas, out);
        if (status != ADL_OK)
            return status;
        adl_speedup_free(entry->common);
        entry->common = *out;
        entry->common_version = entry->version;
        entry->common_most = max_replicas;
    }
    *out = adli_speedup_share(entry->common);
    return ADL_OK;
}
