/* What replicas report (spec: hints): read with suspicion, kept, and turned into what the scheduler
 * computes with. */
#include "daemon/core_impl.h"

#include "base/json.h"
#include "base/mem.h"
#include "model/perf.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROFILE_MAX = 10000 };

void adli_hints_fini(adli_hints_data *hints)
{
    free(hints->profile);
    *hints = (adli_hints_data){0};
}

/* The member if it is there and not null. */
static const json_t *given(const json_t *object, const char *field)
{
    const json_t *value = json_object_get(object, field);
    return json_is_null(value) ? NULL : value;
}

/* Absent leaves *out alone. */
static adl_status number(const json_t *object, const char *field, double low, double high,
                         double *out)
{
    if (!given(object, field))
        return ADL_OK;
    double value;
    adl_status status = adli_json_double(object, field, &value);
    if (status == ADL_OK && !(value >= low && value <= high))
        return adli_fail(ADL_EINVAL, "field \"%s\" must be within %g .. %g, not %g", field, low,
                         high, value);
    if (status == ADL_OK)
        *out = value;
    return status;
}

static adl_status whole(const json_t *object, const char *field, int high, int *out)
{
    return given(object, field) ? adli_json_int(object, field, 0, high, out) : ADL_OK;
}

static adl_status numbers_of(const json_t *root, const char *field, const char *const *names,
                             double *values, size_t count, bool *has)
{
    const json_t *object = given(root, field);
    *has = object != NULL;
    if (!object)
        return ADL_OK;
    adl_status status = ADL_OK;
    for (size_t i = 0; status == ADL_OK && i < count; i++)
        status = adli_json_double(object, names[i], &values[i]);
    return status == ADL_OK ? ADL_OK : adli_wrap(status, "%s", field);
}

static adl_status read_models(const json_t *root, adli_hints_data *out)
{
    static const char *const grad[] = {"norm", "var"};
    double perf[ADLI_PERF_COUNT] = {0}, of_grad[2] = {0};
    adl_status status =
        numbers_of(root, "perfParams", adli_perf_names, perf, ADLI_PERF_COUNT, &out->has_perf);
    if (status == ADL_OK)
        status = numbers_of(root, "gradParams", grad, of_grad, ADLI_COUNT(grad), &out->has_grad);
    for (int i = 0; i < ADLI_PERF_COUNT && out->has_perf; i++)
        adli_perf_set(&out->model.perf, i, perf[i]);
    if (out->has_grad)
        out->model.grad = (adl_grad_params){.sqr = of_grad[0], .var = of_grad[1]};
    return status;
}

static adl_status read_bounds(const json_t *root, adl_batch_limits *limits)
{
    if (!given(root, "localBszBounds"))
        return ADL_OK;
    double bounds[2];
    adl_status status = adli_json_doubles(root, "localBszBounds", 2, bounds);
    if (status == ADL_OK && !(bounds[0] >= 1 && bounds[1] >= bounds[0] && bounds[1] <= INT_MAX))
        status = adli_fail(ADL_EINVAL, "field \"localBszBounds\" must be [low, high], 1 <= low");
    if (status == ADL_OK) {
        limits->min_local_bsz = bounds[0];
        limits->max_local_bsz = bounds[1];
    }
    return status;
}

/* The index of the device type that a point names. */
static adl_status read_type(const json_t *entry, adli_hints_data *hints, int *out)
{
    const json_t *value = given(entry, "deviceType");
    const char *name = value ? json_string_value(value) : "";
    if (!name || strlen(name) >= ADLI_TYPE_SIZE)
        return adli_fail(ADL_EINVAL, "field \"deviceType\" must be a text of at most %d bytes",
                         ADLI_TYPE_SIZE - 1);
    hints->type_count = hints->type_count > 0 ? hints->type_count : 1; /* types[0] is "" */
    for (int t = 0; t < hints->type_count; t++)
        if (strcmp(hints->types[t], name) == 0) {
            *out = t;
            return ADL_OK;
        }
    if (hints->type_count == ADL_MAX_TYPES)
        return adli_fail(ADL_EINVAL, "field \"deviceType\": more than %d device types",
                         ADL_MAX_TYPES - 1);
    *out = hints->type_count++;
    memcpy(hints->types[*out], name, strlen(name) + 1);
    return ADL_OK;
}

static adl_status read_point(const json_t *entry, adli_hints_data *hints, adl_profile_point *out)
{
    adl_status status = adli_json_int(entry, "nodes", 1, ADLI_POOL_REPLICAS_MAX, &out->nodes);
    if (status == ADL_OK)
        status = adli_json_int(entry, "replicas", 1, ADLI_POOL_REPLICAS_MAX, &out->replicas);
    if (status == ADL_OK)
        status = adli_json_double(entry, "localBsz", &out->local_bsz);
    if (status == ADL_OK)
        status = adli_json_double(entry, "accumTime", &out->accum_time_s);
    if (status == ADL_OK)
        status = adli_json_double(entry, "optimTime", &out->optim_time_s);
    if (status == ADL_OK)
        status = read_type(entry, hints, &out->type);
    return status;
}

static adl_status read_profile(const json_t *root, adli_hints_data *out)
{
    const json_t *list;
    if (!given(root, "profile"))
        return ADL_OK;
    adl_status status = adli_json_array(root, "profile", PROFILE_MAX, &list);
    if (status != ADL_OK)
        return status;
    size_t count = json_array_size(list);
    out->profile = adli_calloc(count ? count : 1, sizeof *out->profile);
    if (!out->profile)
        return adli_fail_memory("profile");
    for (size_t i = 0; status == ADL_OK && i < count; i++) {
        status = read_point(json_array_get(list, i), out, &out->profile[i]);
        if (status != ADL_OK)
            status = adli_wrap(status, "profile[%zu]", i);
    }
    out->profile_count = count;
    return status;
}

/* All known fields, in the order of the spec. */
static const char *const known[] = {"initBatchSize",
                                    "localBszBounds",
                                    "globalBatchSize",
                                    "maxBatchSize",
                                    "maxProfiledReplicas",
                                    "gradientAccumulation",
                                    "loneReplicaGrows",
                                    "gradParams",
                                    "perfParams",
                                    "progress",
                                    "epoch",
                                    "targetEpochs",
                                    "iterationsPerEpoch",
                                    "elapsed",
                                    "profile"};

static adl_status read_numbers(const json_t *root, adli_hints_data *out)
{
    adl_status status = number(root, "initBatchSize", 1, INT_MAX, &out->init_batch_size);
    if (status == ADL_OK)
        status = number(root, "maxBatchSize", 1, INT_MAX, &out->max_batch_size);
    if (status == ADL_OK)
        status = number(root, "globalBatchSize", 0, INT_MAX, &out->batch_size);
    if (status == ADL_OK)
        status = whole(root, "maxProfiledReplicas", ADLI_POOL_REPLICAS_MAX, &out->max_profiled);
    if (status == ADL_OK && given(root, "gradientAccumulation"))
        status = adli_json_bool(root, "gradientAccumulation", &out->limits.accumulation);
    if (status == ADL_OK && given(root, "loneReplicaGrows"))
        status = adli_json_bool(root, "loneReplicaGrows", &out->limits.lone_grows);
    if (status == ADL_OK)
        status = number(root, "progress", 0, 1e15, &out->progress);
    if (status == ADL_OK)
        status = number(root, "iterationsPerEpoch", 0, 1e15, &out->iterations_per_epoch);
    if (status == ADL_OK)
        status = number(root, "elapsed", 0, 1e12, &out->elapsed_s);
    if (status == ADL_OK)
        status = whole(root, "epoch", INT_MAX, &out->epoch);
    if (status == ADL_OK)
        status = whole(root, "targetEpochs", INT_MAX, &out->target_epochs);
    return status;
}

/* Can a memo be made of it? Then the controller cannot fail on it later. */
static adl_status check_model(const adli_hints_data *hints)
{
    adl_speedup *memo;
    adl_status status = adl_speedup_new(&hints->model, &hints->limits, hints->profile,
                                        hints->profile_count, 1, &memo);
    if (status == ADL_OK)
        adl_speedup_free(memo);
    return status;
}

static bool has_model(const adli_hints_data *hints)
{
    return hints->has_perf && hints->has_grad && hints->init_batch_size > 0;
}

static adl_status read_hints(const json_t *root, adli_hints_data *out)
{
    if (!json_is_object(root))
        return adli_fail(ADL_EINVAL, "expected a JSON object");
    adl_status status = read_numbers(root, out);
    if (status == ADL_OK)
        status = read_bounds(root, &out->limits);
    if (status == ADL_OK)
        status = read_models(root, out);
    if (status == ADL_OK)
        status = read_profile(root, out);
    out->model.init_batch_size = out->init_batch_size;
    out->limits.max_batch_size =
        out->max_batch_size > 0 ? out->max_batch_size : out->init_batch_size;
    if (status == ADL_OK && has_model(out))
        status = check_model(out);
    return status;
}

static adl_status put_known(const json_t *root, adli_buf *kept)
{
    json_t *copy = json_object();
    for (size_t i = 0; copy && i < ADLI_COUNT(known); i++) {
        json_t *value = json_object_get(root, known[i]);
        if (value && json_object_set(copy, known[i], value) != 0) {
            json_decref(copy);
            copy = NULL;
        }
    }
    char *text = copy ? json_dumps(copy, JSON_COMPACT) : NULL;
    if (text)
        adli_buf_puts(kept, text);
    free(text);
    json_decref(copy);
    return text ? adli_buf_check(kept) : adli_fail_memory("hints");
}

adl_status adli_hints_parse(const char *text, size_t length, adli_hints_data *out, adli_buf *kept)
{
    *out = (adli_hints_data){.known = true,
                             .progress = NAN,
                             .iterations_per_epoch = NAN,
                             .elapsed_s = NAN,
                             .epoch = -1,
                             .target_epochs = -1};
    json_t *root = NULL;
    adl_status status = adli_json_parse(text, length, &root);
    if (status == ADL_OK)
        status = read_hints(root, out);
    if (status == ADL_OK && kept)
        status = put_known(root, kept);
    json_decref(root);
    if (status != ADL_OK)
        adli_hints_fini(out);
    return status;
}

/* Between two reports of consecutive groups, time that passed but was not trained is what the restart
 * cost: stopping, waiting, starting, and work that was lost. Averaged over restarts. */
static double restart_cost(const adli_kept_job *job, const adli_hints_data *now)
{
    const adli_hints_data *then = &job->hints;
    if (!then->known || then->time_s <= 0 || now->group != then->group + 1 ||
        !isfinite(then->elapsed_s) || !isfinite(now->elapsed_s))
        return job->restart_cost_s;
    double cost_s = (now->time_s - now->elapsed_s) - (then->time_s - then->elapsed_s);
    cost_s = fmin(fmax(cost_s, 1e-3), 3600);
    return job->restart_cost_s > 0 ? (job->restart_cost_s + cost_s) / 2 : cost_s;
}

static adl_status keep(adli_core *core, adli_kept_job *job, adli_hints_data *hints, adli_buf *kept)
{
    double cost_s = restart_cost(job, hints);
    adli_store_begin(core->store);
    adli_store_hints(core->store, job->uid, kept->data, cost_s);
    bool tell = hints->time_s - job->told_s >= core->config.history_s;
    if (tell) {
        char message[128];
        snprintf(message, sizeof message, "batch size %g, progress %.1f", hints->batch_size,
                 isfinite(hints->progress) ? hints->progress : 0);
        adli_store_event(core->store, hints->time_s, "JobTrain", job->id, message, "");
    }
    adl_status status = adli_store_commit(core->store);
    if (status != ADL_OK)
        return status;
    pthread_mutex_lock(&core->lock);
    adli_hints_fini(&job->hints);
    free(job->hints_json);
    job->hints = *hints;
    *hints = (adli_hints_data){0};
    job->hints_json = kept->data; /* taken */
    *kept = (adli_buf){0};
    job->restart_cost_s = cost_s;
    job->told_s = tell ? job->hints.time_s : job->told_s;
    job->hints_new = true;
    adli_core_changed(core, job);
    core->counters.hints++;
    adli_core_train(job);
    pthread_mutex_unlock(&core->lock);
    return ADL_OK;
}

adl_status adli_core_hints(adli_core *core, const char *ns, const char *name, const char *body,
                           size_t length)
{
    adli_hints_data hints = {0};
    adli_buf kept;
    adli_buf_init(&kept, 8 << 20);
    adl_status status = adli_hints_parse(body, length, &hints, &kept);
    if (status == ADL_OK) {
        hints.time_s = adli_core_now(core);
        pthread_mutex_lock(&core->changes);
        pthread_mutex_lock(&core->lock);
        adli_kept_job *job = adli_core_find(core, ns, name);
        hints.group = job ? job->row.life.group : 0;
        pthread_mutex_unlock(&core->lock);
        status = job ? keep(core, job, &hints, &kept) : adli_core_no_job(ns, name);
        pthread_mutex_unlock(&core->changes);
        if (status == ADL_OK)
            adli_core_wake_for_report(core);
    }
    adli_hints_fini(&hints);
    adli_buf_fini(&kept);
    return status;
}

/* The type that the replicas which reported are on; 0: they are nowhere any more. */
static int present_type(const adli_core *core, const adli_kept_job *job)
{
    const adl_job_info *info = adl_cluster_job(core->cluster, job->number);
    return info->placed_count > 0 ? adl_cluster_type(core->cluster, info->placed[0]) : 0;
}

/* The pool's number of a type; -1: no node has been of it. */
static int known_type(const adli_core *core, const char *name)
{
    const char *const *names = adli_pool_type_names(core->pool);
    for (int t = adli_pool_type_count(core->pool); t-- > 0;)
        if (strcmp(names[t], name) == 0)
            return t;
    return -1;
}

/* The points with the pool's numbers of device types. A point that names none was measured where the job is
 * now, as far as anybody knows. Types that no node has had are left out: a report is only a claim, and must
 * not make the cluster one of several types. NULL: no memory. */
static adl_profile_point *typed_points(const adli_core *core, const adli_hints_data *hints,
                                       int present, size_t *count)
{
    int index[ADL_MAX_TYPES] = {present};
    adl_profile_point *points =
        adli_memdup(hints->profile, hints->profile_count, sizeof *hints->profile);
    for (int t = 1; t < hints->type_count; t++)
        index[t] = known_type(core, hints->types[t]);
    *count = 0;
    for (size_t i = 0; points && i < hints->profile_count; i++) {
        int type = index[points[i].type];
        if (type < 0)
            continue;
        points[*count] = points[i];
        points[(*count)++].type = type;
    }
    return points;
}

/* What the cluster is told; the profile is copied, to be freed. Under lock. */
static adl_job_report make_report(const adli_core *core, const adli_kept_job *job,
                                  adl_profile_point **profile)
{
    const adli_hints_data *hints = &job->hints;
    adl_job_report report = {.size = sizeof report,
                             .restart_cost_s = job->restart_cost_s,
                             .type = present_type(core, job)};
    size_t count;
    *profile = typed_points(core, hints, report.type, &count);
    if (!*profile)
        adli_say(ADL_LOG_WARNING, "job %s: no memory for its measurements", job->id);
    if (hints->known) {
        report.has_model = has_model(hints);
        report.model = hints->model;
        report.limits = hints->limits;
        report.profile = *profile;
        report.profile_count = count;
        report.max_profiled = hints->max_profiled;
        report.progress = isfinite(hints->progress) ? hints->progress : 0;
        if (hints->iterations_per_epoch > 0) {
            report.epoch_work = hints->iterations_per_epoch;
            if (hints->target_epochs > 0)
                report.total_work = hints->iterations_per_epoch * hints->target_epochs;
        }
    }
    if (!adl_policy_adapts(core->policy)) { /* does not explore: has what was asked for */
        adl_job_spec spec = adli_core_sched_spec(core, job);
        report.max_profiled = spec.fixed_replicas;
    }
    return report;
}

/* The cluster is the controller's own: nobody has to wait while it fits a model. */
void adli_core_report(adli_core *core, adli_kept_job *job)
{
    adl_profile_point *profile = NULL;
    pthread_mutex_lock(&core->lock);
    adl_job_report report = make_report(core, job, &profile);
    pthread_mutex_unlock(&core->lock);
    if (adl_cluster_report(core->cluster, job->number, &report) != ADL_OK)
        adli_say(ADL_LOG_WARNING, "%s", adl_error());
    free(profile);
}

void adli_core_train(adli_kept_job *job)
{
    adli_train_info *train = &job->train;
    const adli_hints_data *hints = &job->hints;
    *train = (adli_train_info){NAN, NAN, NAN, NAN};
    int replicas = job->row.placed_count, nodes = replicas > 0;
    for (int i = 1; i < replicas; i++)
        nodes += job->row.placed[i] != job->row.placed[i - 1];
    if (!hints->known || !has_model(hints) || replicas == 0)
        return;
    /* the batch size as reported; how it is split is ours to guess: the least accumulation that fits */
    double batch = fmax(hints->batch_size, hints->init_batch_size), share = batch / replicas;
    double most = hints->limits.max_local_bsz > 0 ? hints->limits.max_local_bsz : share;
    int steps = hints->limits.accumulation && share > most ? (int)fmin(ceil(share / most), 1e6) : 1;
    double local = fmax(share / steps, 1);
    if (adl_throughput(&hints->model, adl_shape_of(nodes, replicas), local, steps - 1,
                       &train->throughput) != ADL_OK ||
        adl_efficiency(&hints->model, batch, &train->efficiency) != ADL_OK)
        *train = (adli_train_info){NAN, NAN, NAN, NAN};
    train->goodput = train->throughput * train->efficiency;
    adl_speedup *memo;
    if (adl_speedup_new(&hints->model, &hints->limits, hints->profile, hints->profile_count,
                        replicas, &memo) != ADL_OK)
        return;
    train->speedup = adl_speedup_get(memo, adl_shape_of(nodes, replicas));
    adl_speedup_free(memo);
}
