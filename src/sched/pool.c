#include "sched/pool_impl.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- applications ---- */

adl_status adli_pool_new(bool shares, adli_pool **out)
{
    *out = adli_calloc(1, sizeof **out);
    if (!*out)
        return adli_fail_memory("pool of models");
    (*out)->shares = shares;
    return ADL_OK;
}

bool adli_pool_shares(const adli_pool *pool)
{
    return pool->shares;
}

uint64_t adli_pool_clock(const adli_pool *pool)
{
    return pool->clock;
}

adl_status adli_pool_type_of(adli_pool *pool, const char *name, int *index)
{
    for (*index = 0; *index < pool->type_count; ++*index)
        if (strcmp(pool->types[*index], name) == 0)
            return ADL_OK;
    if (pool->type_count == ADL_MAX_TYPES) {
        *index = ADL_MAX_TYPES - 1;
        return ADL_OK;
    }
    pool->types[pool->type_count] = adli_strdup(name);
    if (!pool->types[pool->type_count])
        return adli_fail_memory("device types");
    pool->type_count++;
    return ADL_OK;
}

adl_status adli_pool_name_type(adli_pool *pool, const char *name)
{
    if (pool->type_count != 1 || pool->types[0][0] != '\0')
        return ADL_OK;
    char *copy = adli_strdup(name);
    if (!copy)
        return adli_fail_memory("device types");
    free(pool->types[0]);
    pool->types[0] = copy;
    pool->clock++;
    return ADL_OK;
}

int adli_pool_type_count(const adli_pool *pool)
{
    return pool->type_count;
}

const char *const *adli_pool_type_names(const adli_pool *pool)
{
    return (const char *const *)pool->types;
}

static void entry_free(adli_pool_entry *entry)
{
    for (int t = 0; t < ADL_MAX_TYPES; t++) {
        free(entry->types[t].points);
        free(entry->types[t].bins);
    }
    adl_speedup_free(entry->common);
    free(entry->application);
    free(entry);
}

void adli_pool_clear(adli_pool *pool)
{
    for (size_t i = 0; i < pool->count; i++)
        entry_free(pool->entries[i]);
    for (int t = 0; t < pool->type_count; t++)
        free(pool->types[t]);
    pool->count = 0;
    pool->type_count = 0;
}

void adli_pool_free(adli_pool *pool)
{
    if (!pool)
        return;
    adli_pool_clear(pool);
    free(pool->entries);
    free(pool);
}

static bool same_limits(const adl_batch_limits *a, const adl_batch_limits *b)
{
    return a->max_batch_size == b->max_batch_size && a->min_local_bsz == b->min_local_bsz &&
           a->max_local_bsz == b->max_local_bsz && a->accumulation == b->accumulation &&
           a->lone_grows == b->lone_grows;
}

/* The entry of an application; of several with other batch limits the one used last. */
static adli_pool_entry *find_by_name(const adli_pool *pool, const char *application)
{
    adli_pool_entry *found = NULL;
    for (size_t i = 0; i < pool->count; i++)
        if (strcmp(pool->entries[i]->application, application) == 0 &&
            (!found || pool->entries[i]->used > found->used))
            found = pool->entries[i];
    return found;
}

static adli_pool_entry *find(const adli_pool *pool, const char *application, double init,
                             const adl_batch_limits *limits)
{
    for (size_t i = 0; i < pool->count; i++)
        if (strcmp(pool->entries[i]->application, application) == 0 &&
            pool->entries[i]->init_batch_size == init &&
            pool->entries[i]->limits.max_batch_size == limits->max_batch_size &&
            pool->entries[i]->limits.accumulation == limits->accumulation &&
            pool->entries[i]->limits.lone_grows == limits->lone_grows)
            return pool->entries[i];
    return NULL;
}

/* Makes room for one more: the application that was not heard of for longest goes, of those without
 * members. False: all have some. */
static bool forget_one(adli_pool *pool)
{
    size_t oldest = pool->count;
    for (size_t i = 0; i < pool->count; i++)
        if (pool->entries[i]->members == 0 &&
            (oldest == pool->count || pool->entries[i]->used < pool->entries[oldest]->used))
            oldest = i;
    if (oldest == pool->count)
        return false;
    entry_free(pool->entries[oldest]);
    pool->entries[oldest] = pool->entries[--pool->count];
    return true;
}

adl_status adli_pool_entry_new(adli_pool *pool, const char *application, double init,
                               const adl_batch_limits *limits, adli_pool_entry **out)
{
    *out = NULL;
    if (pool->count >= ADLI_POOL_APPLICATIONS_MAX && !forget_one(pool))
        return ADL_OK; /* full: the job stays on its own */
    adli_pool_entry *entry = adli_calloc(1, sizeof *entry);
    char *name = adli_strdup(application);
    if (!entry || !name ||
        adli_grow(&pool->entries, &pool->capacity, pool->count + 1, sizeof *pool->entries) != 0) {
        free(name);
        free(entry);
        return adli_fail_memory("pool of models");
    }
    *entry = (adli_pool_entry){.application = name,
                               .init_batch_size = init,
                               .limits = *limits,
                               .version = ++pool->clock,
                               .used = pool->clock};
    pool->entries[pool->count++] = entry;
    *out = entry;
    return ADL_OK;
}

/* ---- members ---- */

void adli_pool_attach(adli_pool *pool, adli_pool_member *member, adli_pool_entry *entry)
{
    if (member->entry == entry)
        return;
    if (member->entry)
        member->entry->members--;
    member->entry = entry;
    if (entry) {
        entry->members++;
        entry->used = ++pool->clock;
    }
}

adl_status adli_pool_join(adli_pool *pool, const char *application, adli_pool_member **out)
{
    adli_pool_member *member = adli_calloc(1, sizeof *member);
    char *name = adli_strdup(application ? application : "");
    *out = member;
    if (!member || !name) {
        free(name);
        free(member);
        *out = NULL;
        return adli_fail_memory("member of a pool");
    }
    member->application = name;
    member->id = ++pool->clock;
    if (pool->shares && name[0])
        adli_pool_attach(pool, member, find_by_name(pool, name));
    return ADL_OK;
}

void adli_pool_leave(adli_pool *pool, adli_pool_member *member)
{
    if (!member)
        return;
    adli_pool_attach(pool, member, NULL);
    free(member->points);
    free(member->application);
    free(member);
}

void adli_pool_finished(adli_pool *pool, adli_pool_member *member, double progress)
{
    adli_pool_entry *entry = member->entry;
    if (!entry || !(progress > 0) || !isfinite(progress))
        return;
    entry->work_sum += progress;
    entry->finished++;
    entry->used = ++pool->clock;
}

double adli_pool_total_work(const adli_pool *pool, const adli_pool_member *member)
{
    (void)pool;
    const adli_pool_entry *entry = member->entry;
    return entry && entry->finished > 0 ? entry->work_sum / entry->finished : 0;
}

bool adli_pool_alone(const adli_pool_member *member)
{
    return member->alone;
}

/* ---- learning ---- */

static bool same_point(const adl_profile_point *a, const adl_profile_point *b)
{
    return a->nodes == b->nodes && a->replicas == b->replicas && a->local_bsz == b->local_bsz;
}

/* Stores a point as a job with delta 0 would have measured it. A job measures a configuration for hours,
 * and its mean gets better: its point follows. */
static adl_status add_point(adli_pool *pool, const adli_pool_member *member,
                            const adl_profile_point *own, double delta)
{
    adli_pool_type *on = &member->entry->types[own->type];
    size_t at = 0;
    while (at < on->count && !same_point(&on->points[at].at, own))
        at++;
    if (at < on->count && (on->points[at].by != member->id ||
                           fabs(log(own->optim_time_s / on->points[at].measured_s)) < 0.05))
        return ADL_OK;
    if (at == on->count && on->count == ADLI_POOL_POINTS_MAX) {
        at = on->oldest++ % ADLI_POOL_POINTS_MAX;
    } else if (at == on->count) {
        if (adli_grow(&on->points, &on->capacity, on->count + 1, sizeof *on->points) != 0)
            return adli_fail_memory("pool of models");
        on->count++;
    }
    adl_profile_point point = *own;
    point.accum_time_s *= exp(-delta);
    point.optim_time_s *= exp(-delta);
    on->points[at] = (adli_pool_point){point, own->optim_time_s, member->id};
    adli_pool_touch(pool, member->entry, own->type);
    return ADL_OK;
}

bool adli_pool_usable(const adl_profile_point *p)
{
    return p->nodes >= 1 && p->replicas >= p->nodes && p->replicas <= ADLI_POOL_REPLICAS_MAX &&
           p->local_bsz >= 1 && p->local_bsz < 1e9 && p->accum_time_s >= 1e-9 &&
           p->accum_time_s <= 1e9 && p->optim_time_s >= 1e-9 && p->optim_time_s <= 1e9 &&
           p->type >= 0 && p->type < ADL_MAX_TYPES;
}

/* Replaces what is known of the member's own measurements. Points that no fit could use are left out:
 * one job's nonsense must not cost the others their model. */
static adl_status copy_points(adli_pool_member *member, const adli_pool_news *news)
{
    if (adli_grow(&member->points, &member->capacity, news->profile_count,
                  sizeof *member->points) != 0)
        return adli_fail_memory("member of a pool");
    member->count = 0;
    for (size_t i = 0; i < news->profile_count; i++) {
        if (adli_pool_usable(&news->profile[i]))
            member->points[member->count++] = news->profile[i];
    }
    return ADL_OK;
}

static adl_status find_entry(adli_pool *pool, adli_pool_member *member)
{
    if (!pool->shares || !member->application[0] || member->alone)
        return ADL_OK;
    double init = member->model.init_batch_size;
    adli_pool_entry *entry = find(pool, member->application, init, &member->limits);
    adl_status status = ADL_OK;
    if (!entry)
        status = adli_pool_entry_new(pool, member->application, init, &member->limits, &entry);
    adli_pool_attach(pool, member, entry);
    return status;
}

static bool changed(const adli_pool_member *member, const adli_pool_news *news)
{
    return !member->heard || memcmp(&member->model, &news->model, sizeof news->model) != 0 ||
           !same_limits(&member->limits, &news->limits) ||
           member->reported != news->profile_count ||
           memcmp(member->speeds, news->speeds, sizeof news->speeds) != 0;
}

/* Once it is clear that it belongs: what a newcomer is told before its first report. */
static void share_facts(const adli_pool_member *member, int type)
{
    adli_pool_entry *entry = member->entry;
    entry->types[type].limits = member->limits;
    entry->types[type].has_limits = true;
    entry->types[type].limits_by = member->id;
    if (entry->has_grad)
        return;
    entry->grad = member->model.grad;
    entry->has_grad = true;
    entry->grad_by = member->id;
}

adl_status adli_pool_tell(adli_pool *pool, adli_pool_member *member, const adli_pool_news *news)
{
    if (!changed(member, news))
        return ADL_OK;
    adl_status status = copy_points(member, news);
    if (status != ADL_OK)
        return status;
    member->heard = true;
    member->model = news->model;
    member->limits = news->limits;
    member->reported = news->profile_count;
    memcpy(member->speeds, news->speeds, sizeof member->speeds);
    member->version = ++pool->clock;
    int type = news->type >= 0 && news->type < ADL_MAX_TYPES ? news->type : 0;
    member->limits_on[type] = news->limits;
    member->has_limits[type] = true;
    status = find_entry(pool, member);
    if (status != ADL_OK || !member->entry)
        return status;
    for (int t = 0; t < ADL_MAX_TYPES && status == ADL_OK; t++)
        status = adli_pool_fit(&member->entry->types[t]);
    if (status == ADL_OK && adli_pool_contradicts(member)) {
        adli_pool_part(pool, member);
        return ADL_OK;
    }
    share_facts(member, type);
    double deltas[ADL_MAX_TYPES];
    for (int t = 0; t < ADL_MAX_TYPES; t++)
        deltas[t] = adli_pool_delta(&member->entry->types[t], member, t);
    for (size_t i = 0; i < member->count && status == ADL_OK; i++)
        status = add_point(pool, member, &member->points[i], deltas[member->points[i].type]);
    return status;
}
