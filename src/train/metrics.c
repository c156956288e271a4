#include "train/metrics.h"

#include "base/mem.h"
#include "base/status.h"
#include "model/perf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES_MAX = 100000 }; /* of a checkpoint; a job meets far fewer */

void adli_metrics_init(adli_metrics *metrics, double now_s)
{
    *metrics = (adli_metrics){.started_s = now_s};
    pthread_mutex_init(&metrics->lock, NULL);
}

void adli_metrics_fini(adli_metrics *metrics)
{
    free(metrics->entries);
    pthread_mutex_destroy(&metrics->lock);
}

static int type_named(adli_types_met *types, const char *name)
{
    for (int t = 0; t < types->count; t++)
        if (strncmp(types->names[t], name, sizeof types->names[t] - 1) == 0)
            return t;
    if (types->count == ADL_MAX_TYPES)
        return ADL_MAX_TYPES - 1;
    snprintf(types->names[types->count], sizeof types->names[0], "%s", name);
    return types->count++;
}

void adli_metrics_on(adli_metrics *metrics, const char *device_type)
{
    pthread_mutex_lock(&metrics->lock);
    metrics->type = type_named(&metrics->types, device_type);
    pthread_mutex_unlock(&metrics->lock);
}

/* The entry of a configuration, new if need be; NULL without memory. */
static adli_profile_entry *find(adli_metrics *metrics, int nodes, int replicas, int local_bsz,
                                int type)
{
    for (size_t i = 0; i < metrics->count; i++) {
        adli_profile_entry *entry = &metrics->entries[i];
        if (entry->nodes == nodes && entry->replicas == replicas && entry->local_bsz == local_bsz &&
            entry->type == type)
            return entry;
    }
    if (adli_grow(&metrics->entries, &metrics->capacity, metrics->count + 1,
                  sizeof *metrics->entries) != 0)
        return NULL;
    adli_profile_entry *entry = &metrics->entries[metrics->count++];
    *entry = (adli_profile_entry){
        .nodes = nodes, .replicas = replicas, .local_bsz = local_bsz, .type = type};
    return entry;
}

adl_status adli_metrics_step(adli_metrics *metrics, int nodes, int replicas, int local_bsz,
                             bool optim, double step_s, double sync_s)
{
    pthread_mutex_lock(&metrics->lock);
    adli_profile_entry *entry = find(metrics, nodes, replicas, local_bsz, metrics->type);
    if (entry && optim) {
        entry->optim_s += step_s;
        entry->sync_s += fmin(sync_s, step_s);
        entry->optim_count++;
    } else if (entry) {
        entry->accum_s += step_s;
        entry->accum_count++;
    }
    metrics->changed = true;
    pthread_mutex_unlock(&metrics->lock);
    return entry ? ADL_OK : adli_fail_memory("profile");
}

void adli_metrics_gradient(adli_metrics *metrics, adl_grad_params grad, bool known, double progress)
{
    pthread_mutex_lock(&metrics->lock);
    metrics->grad = grad;
    metrics->have_grad = known;
    metrics->progress = progress;
    pthread_mutex_unlock(&metrics->lock);
}

void adli_metrics_facts(adli_metrics *metrics, const adli_job_facts *facts)
{
    pthread_mutex_lock(&metrics->lock);
    metrics->facts = *facts;
    pthread_mutex_unlock(&metrics->lock);
}

double adli_metrics_progress(adli_metrics *metrics)
{
    pthread_mutex_lock(&metrics->lock);
    double progress = metrics->progress;
    pthread_mutex_unlock(&metrics->lock);
    return progress;
}

/* With the lock held: the configurations that have an optimizer step, as points for the fit, of one device
 * type (-1: of all). The part
 * of an optimizer step that is not waiting is as good a measurement of a pass as an accumulation
 * step, so both are averaged. *points is new. */
static adl_status make_points(const adli_metrics *metrics, int type, adl_profile_point **points,
                              size_t *count)
{
    *count = 0;
    *points = adli_calloc(metrics->count, sizeof **points);
    if (!*points)
        return adli_fail_memory("profile");
    for (size_t i = 0; i < metrics->count; i++) {
        const adli_profile_entry *entry = &metrics->entries[i];
        if (entry->optim_count == 0 || (type >= 0 && entry->type != type))
            continue;
        (*points)[(*count)++] = (adl_profile_point){
            .nodes = entry->nodes,
            .replicas = entry->replicas,
            .local_bsz = entry->local_bsz,
            .accum_time_s = (entry->accum_s + entry->optim_s - entry->sync_s) /
                            (double)(entry->accum_count + entry->optim_count),
            .optim_time_s = entry->optim_s / (double)entry->optim_count,
            .type = entry->type,
        };
    }
    return ADL_OK;
}

adl_status adli_metrics_fit(adli_metrics *metrics)
{
    adl_profile_point *points = NULL;
    size_t count = 0;
    pthread_mutex_lock(&metrics->lock);
    bool wanted = metrics->changed;
    adl_status status = wanted ? make_points(metrics, metrics->type, &points, &count) : ADL_OK;
    metrics->changed = false;
    pthread_mutex_unlock(&metrics->lock);
    if (status == ADL_OK && count > 0) {
        adl_fit_result result;
        status = adl_fit(points, count, &result);
        if (status == ADL_OK) {
            pthread_mutex_lock(&metrics->lock);
            metrics->perf = result.perf;
            metrics->fitted = true;
            if (metrics->has_prior)
                metrics->has_prior = adli_prior_holds(&metrics->prior.perf, points, count);
            pthread_mutex_unlock(&metrics->lock);
        }
    }
    free(points);
    return status;
}

bool adli_metrics_goodput(adli_metrics *metrics, double init_batch_size, adl_goodput *out)
{
    pthread_mutex_lock(&metrics->lock);
    bool told = metrics->has_prior && metrics->prior.init_batch_size == init_batch_size;
    bool known = told || (metrics->fitted && metrics->have_grad);
    *out = (adl_goodput){told ? metrics->prior.perf : metrics->perf,
                         metrics->have_grad || !told ? metrics->grad : metrics->prior.grad,
                         init_batch_size};
    pthread_mutex_unlock(&metrics->lock);
    return known;
}

adl_status adli_metrics_look(adli_metrics *metrics, double now_s, adli_metrics_view *view)
{
    pthread_mutex_lock(&metrics->lock);
    *view = (adli_metrics_view){
        .facts = metrics->facts,
        .fitted = metrics->fitted,
        .have_grad = metrics->have_grad,
        .perf = metrics->perf,
        .grad = metrics->grad,
        .progress = metrics->progress,
        .elapsed_s = metrics->elapsed_before_s + now_s - metrics->started_s,
        .types = metrics->types,
    };
    adl_status status = make_points(metrics, -1, &view->points, &view->count);
    pthread_mutex_unlock(&metrics->lock);
    for (size_t i = 0; status == ADL_OK && i < view->count; i++)
        if (view->points[i].replicas > view->max_profiled_replicas)
            view->max_profiled_replicas = view->points[i].replicas;
    return status;
}

enum { FITTED = 1, TYPED = 2 };

/* Was it ever told what it runs on? */
static bool typed(const adli_metrics *metrics)
{
    return metrics->types.count > 1 || (metrics->types.count == 1 && metrics->types.names[0][0]);
}

/* Layout: f64 elapsed, u32 FITTED | TYPED, 7 f64 perf, u32 entries, then for each u32 N, R, m, f64 and u64 of
 * accumulation, f64, f64 and u64 of optimizer steps; if TYPED u32 types, their names, u32 the type that perf
 * is of, and a u32 type for each entry. */
adl_status adli_metrics_save(adli_metrics *metrics, adl_sink *sink, double now_s)
{
    pthread_mutex_lock(&metrics->lock);
    /* The sink remembers its first failure, and the save as a whole then fails. */
    adl_sink_f64(sink, metrics->elapsed_before_s + now_s - metrics->started_s);
    adl_sink_u32(sink, (metrics->fitted ? FITTED : 0) | (typed(metrics) ? TYPED : 0));
    for (int i = 0; i < ADLI_PERF_COUNT; i++)
        adl_sink_f64(sink, adli_perf_get(&metrics->perf, i));
    adl_status status = adl_sink_u32(sink, (uint32_t)metrics->count);
    for (size_t i = 0; status == ADL_OK && i < metrics->count; i++) {
        const adli_profile_entry *entry = &metrics->entries[i];
        adl_sink_u32(sink, (uint32_t)entry->nodes);
        adl_sink_u32(sink, (uint32_t)entry->replicas);
        adl_sink_u32(sink, (uint32_t)entry->local_bsz);
        adl_sink_f64(sink, entry->accum_s);
        adl_sink_u64(sink, (uint64_t)entry->accum_count);
        adl_sink_f64(sink, entry->optim_s);
        adl_sink_f64(sink, entry->sync_s);
        status = adl_sink_u64(sink, (uint64_t)entry->optim_count);
    }
    if (status == ADL_OK && typed(metrics)) {
        adl_sink_u32(sink, (uint32_t)metrics->types.count);
        for (int t = 0; t < metrics->types.count; t++)
            adl_sink_text(sink, metrics->types.names[t]);
        status = adl_sink_u32(sink, (uint32_t)metrics->type);
        for (size_t i = 0; i < metrics->count; i++)
            status = adl_sink_u32(sink, (uint32_t)metrics->entries[i].type);
    }
    pthread_mutex_unlock(&metrics->lock);
    return status;
}

static bool plausible(const adli_profile_entry *entry)
{
    return entry->nodes >= 1 && entry->replicas >= entry->nodes && entry->local_bsz >= 1 &&
           isfinite(entry->accum_s) && isfinite(entry->optim_s) && isfinite(entry->sync_s) &&
           entry->accum_s >= 0 && entry->optim_s >= entry->sync_s && entry->sync_s >= 0 &&
           entry->accum_count >= 0 && entry->optim_count >= 0;
}

static adl_status load_entry(adl_source *source, adli_profile_entry *entry)
{
    uint32_t shape[3];
    uint64_t accum_count = 0, optim_count = 0;
    adl_status status = ADL_OK;
    for (int i = 0; i < 3 && status == ADL_OK; i++)
        status = adl_source_u32(source, &shape[i]);
    if (status == ADL_OK)
        status = adl_source_f64(source, &entry->accum_s);
    if (status == ADL_OK)
        status = adl_source_u64(source, &accum_count);
    if (status == ADL_OK)
        status = adl_source_f64(source, &entry->optim_s);
    if (status == ADL_OK)
        status = adl_source_f64(source, &entry->sync_s);
    if (status == ADL_OK)
        status = adl_source_u64(source, &optim_count);
    if (status != ADL_OK)
        return status;
    entry->nodes = (int)shape[0];
    entry->replicas = (int)shape[1];
    entry->local_bsz = (int)shape[2];
    entry->accum_count = (int64_t)accum_count;
    entry->optim_count = (int64_t)optim_count;
    return plausible(entry) ? ADL_OK : adli_fail(ADL_ECORRUPT, "profile: impossible entry");
}

/* The trailer of TYPED; *of: the type that the saved model is of. Types are numbered as they were met, now
 * and then, so the saved numbers are translated. */
static adl_status load_types(adli_metrics *metrics, adl_source *source, adli_profile_entry *entries,
                             uint32_t count, int *of)
{
    uint32_t known = 0, number = 0;
    int index[ADL_MAX_TYPES];
    char name[64];
    adl_status status = adl_source_u32(source, &known);
    if (status == ADL_OK && (known < 1 || known > ADL_MAX_TYPES))
        return adli_fail(ADL_ECORRUPT, "profile: %u device types", known);
    for (uint32_t t = 0; t < known && status == ADL_OK; t++) {
        status = adl_source_text(source, name, sizeof name);
        if (status == ADL_OK)
            index[t] = type_named(&metrics->types, name);
    }
    for (uint32_t i = 0; i <= count && status == ADL_OK; i++) {
        status = adl_source_u32(source, &number);
        if (status == ADL_OK && number >= known)
            return adli_fail(ADL_ECORRUPT, "profile: device type %u of %u", number, known);
        if (status == ADL_OK)
            *(i == 0 ? of : &entries[i - 1].type) = index[number];
    }
    return status;
}

/* Entries of a checkpoint without types were measured where nobody was told on what: "". */
static adl_status load_entries(adli_metrics *metrics, adl_source *source, uint32_t count,
                               bool types, int *of)
{
    adli_profile_entry *entries = adli_calloc(count, sizeof *entries);
    adl_status status = entries ? ADL_OK : adli_fail_memory("profile");
    for (uint32_t i = 0; i < count && status == ADL_OK; i++)
        status = load_entry(source, &entries[i]);
    if (status == ADL_OK && types)
        status = load_types(metrics, source, entries, count, of);
    else if (status == ADL_OK)
        *of = type_named(&metrics->types, "");
    for (uint32_t i = 0; i < count && status == ADL_OK; i++) {
        entries[i].type = types ? entries[i].type : *of;
        adli_profile_entry *to = find(metrics, entries[i].nodes, entries[i].replicas,
                                      entries[i].local_bsz, entries[i].type);
        if (to)
            *to = entries[i];
        else
            status = adli_fail_memory("profile");
    }
    free(entries);
    return status;
}

/* fitted: a model of these devices; one of others says nothing of them. Under lock. */
static void take_loaded(adli_metrics *metrics, double elapsed_s, const double *perf, bool fitted)
{
    metrics->elapsed_before_s = elapsed_s;
    for (int i = 0; i < ADLI_PERF_COUNT; i++)
        adli_perf_set(&metrics->perf, i, perf[i]);
    adl_goodput model = {metrics->perf, {0, 0}, 1};
    metrics->fitted = fitted && adl_goodput_check(&model) == ADL_OK;
    metrics->changed = true;
}

adl_status adli_metrics_load(adli_metrics *metrics, adl_source *source)
{
    uint32_t flags = 0, count = 0;
    double perf[ADLI_PERF_COUNT], elapsed_s = 0;
    int of = 0;
    adl_status status = adl_source_f64(source, &elapsed_s);
    if (status == ADL_OK)
        status = adl_source_u32(source, &flags);
    for (size_t i = 0; i < ADLI_COUNT(perf) && status == ADL_OK; i++)
        status = adl_source_f64(source, &perf[i]);
    if (status == ADL_OK)
        status = adl_source_u32(source, &count);
    if (status != ADL_OK)
        return status;
    if (count > ENTRIES_MAX || !isfinite(elapsed_s) || elapsed_s < 0)
        return adli_fail(ADL_ECORRUPT, "profile: impossible numbers");
    pthread_mutex_lock(
        &metrics->lock); /* another thread fits meanwhile, when a world has changed */
    status = load_entries(metrics, source, count, flags & TYPED, &of);
    if (status == ADL_OK)
        take_loaded(metrics, elapsed_s, perf, flags & FITTED && of == metrics->type);
    pthread_mutex_unlock(&metrics->lock);
    return status;
}
