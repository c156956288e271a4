/* Snapshots from JSON, read with suspicion: whatever is in the file, the result is a snapshot that
 * adl_snapshot_check takes, or one line that says what is wrong and where. */
#include "adaptdl/snapshot.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/perf.h"
#include "model/speedup.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ITEMS_MAX = 1 << 20, REPLICAS_MAX = 1 << 20 };

typedef struct step_table {
    double *times_s; /* [count] on 1, 2 ... replicas */
    int count;
} step_table;

struct adl_record {
    json_t *root; /* texts are borrowed from it */
    adl_snapshot snapshot;
    const char *resources[ADL_MAX_RESOURCES];
    const char *types[ADL_MAX_TYPES];
    adl_node *nodes, template_node;
    adl_job *jobs;
    int **allocations;  /* [job_count] */
    step_table *tables; /* [job_count] */
    const json_t *decision, *parameters;
    const char *policy;
};

/* ---- fields ---- */

static bool known(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return strncmp(name, "x-", 2) == 0;
}

/* An object with none but these fields. */
static adl_status check_fields(const json_t *object, const char *const *names)
{
    const char *name;
    json_t *value;
    if (!json_is_object(object))
        return adli_fail(ADL_EINVAL, "expected an object");
    json_object_foreach((json_t *)object, name, value)
    {
        if (!known(name, names))
            return adli_fail(ADL_EINVAL,
                             "field \"%.60s\" is not known; a decision might depend on it", name);
    }
    return ADL_OK;
}

/* Absent leaves *out alone, here and below. */
static adl_status number(const json_t *object, const char *field, double *out)
{
    return json_object_get(object, field) ? adli_json_double(object, field, out) : ADL_OK;
}

static adl_status whole(const json_t *object, const char *field, int low, int high, int *out)
{
    return json_object_get(object, field) ? adli_json_int(object, field, low, high, out) : ADL_OK;
}

static adl_status truth(const json_t *object, const char *field, bool *out)
{
    return json_object_get(object, field) ? adli_json_bool(object, field, out) : ADL_OK;
}

static adl_status text(const json_t *object, const char *field, bool needed, const char **out)
{
    const json_t *value = json_object_get(object, field);
    if (!value && !needed)
        return ADL_OK;
    if (!json_is_string(value))
        return adli_fail(ADL_EINVAL, "field \"%s\" %s", field,
                         value ? "must be a text" : "is missing");
    *out = json_string_value(value);
    return ADL_OK;
}

static adl_status list(const json_t *object, const char *field, const json_t **out, int *count)
{
    *out = NULL;
    *count = 0;
    if (!json_object_get(object, field))
        return ADL_OK;
    adl_status status = adli_json_array(object, field, ITEMS_MAX, out);
    *count = status == ADL_OK ? (int)json_array_size(*out) : 0;
    return status;
}

static adl_status amounts(const json_t *object, const char *field, int kinds, adl_resources *out)
{
    const json_t *items;
    int count;
    adl_status status = list(object, field, &items, &count);
    if (status == ADL_OK && count > kinds)
        return adli_fail(ADL_EINVAL, "field \"%s\" has %d amounts, but there are %d resources",
                         field, count, kinds);
    for (int i = 0; status == ADL_OK && i < count; i++) {
        const json_t *item = json_array_get(items, (size_t)i);
        if (!json_is_integer(item))
            return adli_fail(ADL_EINVAL, "field \"%s\": [%d] must be a whole number", field, i);
        out->amount[i] = json_integer_value(item);
    }
    return status;
}

/* ---- nodes ---- */

static adl_status read_node(const json_t *object, int kinds, adl_node *out)
{
    static const char *const names[] = {"name",    "deviceType",  "capacity",
                                        "drained", "preemptible", NULL};
    *out = (adl_node){.device_type = ""};
    adl_status status = check_fields(object, names);
    if (status == ADL_OK)
        status = text(object, "name", true, &out->name);
    if (status == ADL_OK)
        status = text(object, "deviceType", false, &out->device_type);
    if (status == ADL_OK)
        status = amounts(object, "capacity", kinds, &out->capacity);
    if (status == ADL_OK)
        status = amounts(object, "drained", kinds, &out->drained);
    if (status == ADL_OK)
        status = truth(object, "preemptible", &out->preemptible);
    return status;
}

/* ---- models ---- */

/* One type's part of a model, with storage for what it points to. */
typedef struct type_storage {
    adl_goodput model;
    adl_batch_limits limits;
    adl_profile_point *profile;
} type_storage;

static adl_status read_point(const json_t *object, adl_profile_point *out)
{
    static const char *const names[] = {"nodes",     "replicas", "localBsz", "accumTime",
                                        "optimTime", "type",     NULL};
    adl_status status = check_fields(object, names);
    if (status == ADL_OK)
        status = adli_json_int(object, "nodes", INT_MIN, INT_MAX, &out->nodes);
    if (status == ADL_OK)
        status = adli_json_int(object, "replicas", INT_MIN, INT_MAX, &out->replicas);
    if (status == ADL_OK)
        status = adli_json_double(object, "localBsz", &out->local_bsz);
    if (status == ADL_OK)
        status = adli_json_double(object, "accumTime", &out->accum_time_s);
    if (status == ADL_OK)
        status = adli_json_double(object, "optimTime", &out->optim_time_s);
    if (status == ADL_OK)
        status = whole(object, "type", 0, ADL_MAX_TYPES - 1, &out->type);
    return status;
}

static adl_status read_profile(const json_t *object, type_storage *to, adl_type_model *out)
{
    const json_t *items;
    int count;
    adl_status status = list(object, "profile", &items, &count);
    if (status != ADL_OK || count == 0)
        return status;
    to->profile = adli_calloc((size_t)count, sizeof *to->profile);
    if (!to->profile)
        return adli_fail_memory("profile");
    for (int i = 0; status == ADL_OK && i < count; i++) {
        status = read_point(json_array_get(items, (size_t)i), &to->profile[i]);
        if (status != ADL_OK)
            status = adli_wrap(status, "profile[%d]", i);
    }
    out->profile = to->profile;
    out->profile_count = (size_t)count;
    return status;
}

static adl_status read_parameters(const json_t *object, adl_goodput *out)
{
    const json_t *perf = json_object_get(object, "perfParams");
    const json_t *grad = json_object_get(object, "gradParams");
    static const char *const grad_names[] = {"norm", "var", NULL};
    const char *names[ADLI_PERF_COUNT + 1] = {NULL};
    for (int i = 0; i < ADLI_PERF_COUNT; i++)
        names[i] = adli_perf_names[i];
    adl_status status = check_fields(perf, names);
    for (int i = 0; status == ADL_OK && i < ADLI_PERF_COUNT; i++) {
        double value;
        status = adli_json_double(perf, names[i], &value);
        if (status == ADL_OK)
            adli_perf_set(&out->perf, i, value);
    }
    if (status != ADL_OK)
        return adli_wrap(status, "perfParams");
    status = check_fields(grad, grad_names);
    if (status == ADL_OK)
        status = adli_json_double(grad, "norm", &out->grad.sqr);
    if (status == ADL_OK)
        status = adli_json_double(grad, "var", &out->grad.var);
    return status == ADL_OK ? adli_json_double(object, "initBatchSize", &out->init_batch_size)
                            : adli_wrap(status, "gradParams");
}

static adl_status read_type(const json_t *object, type_storage *to, adl_type_model *out)
{
    static const char *const names[] = {
        "speed",       "perfParams",  "gradParams",           "initBatchSize",    "maxBatchSize",
        "minLocalBsz", "maxLocalBsz", "gradientAccumulation", "loneReplicaGrows", "profile",
        NULL};
    adl_status status = check_fields(object, names);
    if (status == ADL_OK)
        status = number(object, "speed", &out->speed);
    if (status != ADL_OK || !json_object_get(object, "perfParams"))
        return status;
    out->model = &to->model;
    out->limits = &to->limits;
    status = read_parameters(object, &to->model);
    if (status == ADL_OK)
        status = number(object, "maxBatchSize", &to->limits.max_batch_size);
    if (status == ADL_OK)
        status = number(object, "minLocalBsz", &to->limits.min_local_bsz);
    if (status == ADL_OK)
        status = number(object, "maxLocalBsz", &to->limits.max_local_bsz);
    if (status == ADL_OK)
        status = truth(object, "gradientAccumulation", &to->limits.accumulation);
    if (status == ADL_OK)
        status = truth(object, "loneReplicaGrows", &to->limits.lone_grows);
    return status == ADL_OK ? read_profile(object, to, out) : status;
}

static adl_status read_model(const json_t *object, adl_speedup **out)
{
    static const char *const names[] = {"maxReplicas", "bounded", "types", NULL};
    type_storage storage[ADL_MAX_TYPES] = {0};
    adl_type_model types[ADL_MAX_TYPES] = {0};
    const json_t *items = NULL;
    int count = 0, most = 0;
    bool bounded = false;
    adl_status status = check_fields(object, names);
    if (status == ADL_OK)
        status = adli_json_int(object, "maxReplicas", 1, REPLICAS_MAX, &most);
    if (status == ADL_OK)
        status = truth(object, "bounded", &bounded);
    if (status == ADL_OK)
        status = list(object, "types", &items, &count);
    if (status == ADL_OK && (count < 1 || count > ADL_MAX_TYPES))
        status = adli_fail(ADL_EINVAL, "types: 1 to %d are possible", ADL_MAX_TYPES);
    for (int t = 0; status == ADL_OK && t < count; t++) {
        status = read_type(json_array_get(items, (size_t)t), &storage[t], &types[t]);
        if (status != ADL_OK)
            status = adli_wrap(status, "types[%d]", t);
    }
    if (status == ADL_OK)
        status = adl_speedup_new_types(types, (size_t)count, most, out);
    if (status == ADL_OK && bounded)
        adli_speedup_bound(*out);
    for (int t = 0; t < ADL_MAX_TYPES; t++)
        free(storage[t].profile);
    return status == ADL_OK ? ADL_OK : adli_wrap(status, "model");
}

/* ---- jobs ---- */

static double table_time(void *context, int replicas)
{
    const step_table *table = context;
    int at = replicas < table->count ? replicas : table->count;
    return table->times_s[at > 0 ? at - 1 : 0];
}

static adl_status read_table(const json_t *object, step_table *to, adl_job *out)
{
    const json_t *items;
    int count;
    adl_status status = list(object, "stepTimes", &items, &count);
    if (status != ADL_OK || count == 0)
        return status;
    to->times_s = adli_calloc((size_t)count, sizeof *to->times_s);
    if (!to->times_s)
        return adli_fail_memory("step times");
    for (int i = 0; status == ADL_OK && i < count; i++)
        status = adli_json_number(json_array_get(items, (size_t)i), "stepTimes", &to->times_s[i]);
    to->count = count;
    out->step_time_s = table_time;
    out->step_context = to;
    return status;
}

static adl_status read_nodes(const json_t *object, const char *field, int node_count, int **out,
                             int *count)
{
    const json_t *items;
    adl_status status = list(object, field, &items, count);
    if (status != ADL_OK || *count == 0)
        return status;
    *out = adli_calloc((size_t)*count, sizeof **out);
    if (!*out)
        return adli_fail_memory("allocation");
    for (int i = 0; i < *count; i++) {
        const json_t *item = json_array_get(items, (size_t)i);
        json_int_t node = json_is_integer(item) ? json_integer_value(item) : -1;
        if (node < 0 || node >= node_count)
            return adli_fail(ADL_EINVAL, "field \"%s\": [%d] is no index of a node", field, i);
        (*out)[i] = (int)node;
    }
    return ADL_OK;
}

static adl_status read_figures(const json_t *object, adl_job *out)
{
    const struct {
        const char *field;
        double *to;
    } numbers[] = {{"submitted", &out->submit_s},       {"lastChange", &out->last_change_s},
                   {"deviceSeconds", &out->attained_s}, {"runSeconds", &out->run_s},
                   {"meanActive", &out->mean_active},   {"restartCost", &out->restart_cost_s},
                   {"progress", &out->progress},        {"totalWork", &out->total_work},
                   {"epochWork", &out->epoch_work},     {"remainingSteps", &out->remaining_steps},
                   {"priority", &out->priority},        {"resizeCost", &out->resize_cost_s}};
    const struct {
        const char *field;
        int *to;
    } counts[] = {{"minReplicas", &out->min_replicas},
                  {"restarts", &out->restarts},
                  {"maxProfiledReplicas", &out->max_profiled},
                  {"fixedReplicas", &out->fixed_replicas}};
    adl_status status = ADL_OK;
    for (size_t i = 0; status == ADL_OK && i < ADLI_COUNT(numbers); i++)
        status = number(object, numbers[i].field, numbers[i].to);
    for (size_t i = 0; status == ADL_OK && i < ADLI_COUNT(counts); i++)
        status = whole(object, counts[i].field, 0, INT_MAX, counts[i].to);
    if (status == ADL_OK)
        status = adli_json_int(object, "maxReplicas", 1, REPLICAS_MAX, &out->max_replicas);
    return status;
}

static adl_status read_suspend(const json_t *object, adl_suspend *out)
{
    const char *word = NULL, *name;
    adl_status status = text(object, "suspend", false, &word);
    if (status != ADL_OK || !word || !*word)
        return status;
    for (int i = 0; (name = adl_suspend_name(i)); i++)
        if (strcmp(name, word) == 0) {
            *out = (adl_suspend)i;
            return ADL_OK;
        }
    return adli_fail(ADL_EINVAL, "field \"suspend\": \"%.40s\" is not known", word);
}

static adl_status read_job(adl_record *record, const json_t *object, int index)
{
    static const char *const names[] = {
        "name",       "request",     "minReplicas",   "maxReplicas",         "preemptible",
        "allocation", "submitted",   "lastChange",    "deviceSeconds",       "runSeconds",
        "meanActive", "restartCost", "restarts",      "maxProfiledReplicas", "progress",
        "totalWork",  "epochWork",   "fixedReplicas", "remainingSteps",      "stepTimes",
        "model",      "priority",    "suspend",       "resizeCost",          NULL};
    adl_job *out = &record->jobs[index];
    const adl_snapshot *s = &record->snapshot;
    *out = (adl_job){.preemptible = true};
    adl_status status = check_fields(object, names);
    if (status == ADL_OK)
        status = text(object, "name", true, &out->name);
    if (status == ADL_OK)
        status = amounts(object, "request", s->resource_count, &out->request);
    if (status == ADL_OK)
        status = read_figures(object, out);
    if (status == ADL_OK)
        status = truth(object, "preemptible", &out->preemptible);
    if (status == ADL_OK)
        status = read_suspend(object, &out->suspend);
    if (status == ADL_OK)
        status = read_nodes(object, "allocation", s->node_count, &record->allocations[index],
                            &out->replicas);
    out->allocation = record->allocations[index];
    if (status == ADL_OK)
        status = read_table(object, &record->tables[index], out);
    if (status == ADL_OK && json_object_get(object, "model"))
        status = read_model(json_object_get(object, "model"), &out->model);
    return status;
}

/* ---- the whole ---- */

static adl_status read_head(adl_record *record, const json_t *root)
{
    static const char *const names[] = {
        "version",      "policy", "parameters", "now",          "seed",        "resources", "nodes",
        "templateNode", "jobs",   "decision",   "sharedModels", "deviceTypes", NULL};
    adl_snapshot *s = &record->snapshot;
    int version = 0;
    const char *seed = "0";
    if (!json_is_object(root))
        return adli_fail(ADL_EINVAL, "expected a JSON object");
    adl_status status = adli_json_int(root, "version", 1, INT_MAX, &version);
    if (status == ADL_OK && version > ADL_SNAPSHOT_VERSION)
        return adli_fail(ADL_EINVAL, "of version %d, this program knows versions up to %d", version,
                         ADL_SNAPSHOT_VERSION);
    if (status == ADL_OK)
        status = check_fields(root, names);
    if (status == ADL_OK)
        status = text(root, "policy", false, &record->policy);
    record->parameters = json_object_get(root, "parameters");
    record->decision = json_object_get(root, "decision");
    if (status == ADL_OK)
        status = number(root, "now", &s->now_s);
    if (status == ADL_OK)
        status = truth(root, "sharedModels", &s->shared_models);
    if (status == ADL_OK)
        status = text(root, "seed", false, &seed);
    char *end = NULL;
    errno = 0;
    s->seed = status == ADL_OK ? strtoull(seed, &end, 10) : 0;
    if (status == ADL_OK && (errno || *end || *seed < '0' || *seed > '9'))
        status = adli_fail(ADL_EINVAL, "field \"seed\" must be a whole number as text");
    return status;
}

static adl_status read_resources(adl_record *record, const json_t *root)
{
    const json_t *items;
    int count;
    adl_status status = list(root, "resources", &items, &count);
    if (status == ADL_OK && (count < 1 || count > ADL_MAX_RESOURCES))
        status = adli_fail(ADL_EINVAL, "resources: 1 to %d are possible", ADL_MAX_RESOURCES);
    for (int i = 0; status == ADL_OK && i < count; i++) {
        record->resources[i] = json_string_value(json_array_get(items, (size_t)i));
        if (!record->resources[i])
            status = adli_fail(ADL_EINVAL, "resources[%d] must be a text", i);
    }
    record->snapshot.resource_names = record->resources;
    record->snapshot.resource_count = count;
    return status;
}

/* The names behind the indices of models; none: there is one type. */
static adl_status read_types(adl_record *record, const json_t *root)
{
    const json_t *items;
    int count;
    adl_status status = list(root, "deviceTypes", &items, &count);
    if (status == ADL_OK && count > ADL_MAX_TYPES)
        status = adli_fail(ADL_EINVAL, "deviceTypes: at most %d are possible", ADL_MAX_TYPES);
    for (int i = 0; status == ADL_OK && i < count; i++) {
        record->types[i] = json_string_value(json_array_get(items, (size_t)i));
        if (!record->types[i])
            status = adli_fail(ADL_EINVAL, "deviceTypes[%d] must be a text", i);
    }
    record->snapshot.type_names = count > 0 ? record->types : NULL;
    record->snapshot.type_count = count;
    return status;
}

static adl_status read_all_nodes(adl_record *record, const json_t *root)
{
    const json_t *items, *template_node = json_object_get(root, "templateNode");
    adl_snapshot *s = &record->snapshot;
    int count;
    adl_status status = list(root, "nodes", &items, &count);
    record->nodes = adli_calloc((size_t)count + 1, sizeof *record->nodes);
    if (status == ADL_OK && !record->nodes)
        status = adli_fail_memory("nodes");
    for (int n = 0; status == ADL_OK && n < count; n++) {
        status = read_node(json_array_get(items, (size_t)n), s->resource_count, &record->nodes[n]);
        if (status != ADL_OK)
            status = adli_wrap(status, "nodes[%d]", n);
    }
    s->nodes = record->nodes;
    s->node_count = count;
    if (status == ADL_OK && template_node) {
        status = read_node(template_node, s->resource_count, &record->template_node);
        s->template_node = &record->template_node;
    }
    return status;
}

static adl_status read_jobs(adl_record *record, const json_t *root)
{
    const json_t *items;
    int count;
    adl_status status = list(root, "jobs", &items, &count);
    size_t room = (size_t)count + 1;
    record->jobs = adli_calloc(room, sizeof *record->jobs);
    record->allocations = adli_calloc(room, sizeof *record->allocations);
    record->tables = adli_calloc(room, sizeof *record->tables);
    if (status == ADL_OK && (!record->jobs || !record->allocations || !record->tables))
        return adli_fail_memory("jobs");
    record->snapshot.jobs = record->jobs;
    for (int j = 0; status == ADL_OK && j < count; j++) {
        record->snapshot.job_count = j + 1;
        status = read_job(record, json_array_get(items, (size_t)j), j);
        if (status != ADL_OK)
            status = adli_wrap(status, "jobs[%d]", j);
    }
    return status;
}

adl_status adl_record_parse(const char *content, size_t length, adl_record **out)
{
    *out = NULL;
    adl_record *record = adli_calloc(1, sizeof *record);
    if (!record)
        return adli_fail_memory("snapshot");
    adl_status status = adli_json_parse(content, length, &record->root);
    if (status == ADL_OK)
        status = read_head(record, record->root);
    if (status == ADL_OK)
        status = read_resources(record, record->root);
    if (status == ADL_OK)
        status = read_types(record, record->root);
    if (status == ADL_OK)
        status = read_all_nodes(record, record->root);
    if (status == ADL_OK)
        status = read_jobs(record, record->root);
    if (status == ADL_OK)
        status = adl_snapshot_check(&record->snapshot);
    if (status != ADL_OK) {
        adl_record_free(record);
        return adli_wrap(status, "snapshot");
    }
    *out = record;
    return ADL_OK;
}

void adl_record_free(adl_record *record)
{
    if (!record)
        return;
    for (int j = 0; record->jobs && j < record->snapshot.job_count; j++) {
        adl_speedup_free(record->jobs[j].model);
        free(record->allocations[j]);
        free(record->tables[j].times_s);
    }
    free(record->tables);
    free(record->allocations);
    free(record->jobs);
    free(record->nodes);
    json_decref(record->root);
    free(record);
}

const adl_snapshot *adl_record_snapshot(const adl_record *record)
{
    return &record->snapshot;
}

bool adl_record_decided(const adl_record *record)
{
    return json_is_array(json_object_get(record->decision, "jobs"));
}

adl_status adl_record_policy(const adl_record *record, const char *name, adl_policy **out)
{
    const char *then = record->policy ? record->policy : adl_policy_list(0, NULL), *parameter;
    bool same = !name || strcmp(name, then) == 0;
    json_t *value;
    adl_status status = adl_policy_new(name ? name : then, out);
    if (status != ADL_OK || !same || !record->parameters)
        return status;
    if (!json_is_object(record->parameters))
        status = adli_fail(ADL_EINVAL, "snapshot: field \"parameters\" must be an object");
    json_object_foreach((json_t *)record->parameters, parameter, value)
    {
        double number_value;
        if (status == ADL_OK)
            status = adli_json_number(value, parameter, &number_value);
        if (status == ADL_OK)
            status = adl_policy_set(*out, parameter, number_value);
    }
    if (status != ADL_OK) {
        adl_policy_free(*out);
        *out = NULL;
    }
    return status;
}

static bool same_nodes(const json_t *nodes, const adl_job_decision *now)
{
    if ((int)json_array_size(nodes) != now->replicas)
        return false;
    for (int i = 0; i < now->replicas; i++)
        if (json_integer_value(json_array_get(nodes, (size_t)i)) != now->nodes[i])
            return false;
    return true;
}

int adl_record_difference(const adl_record *record, const adl_decision *decision)
{
    const json_t *jobs = json_object_get(record->decision, "jobs");
    for (int j = 0; json_is_array(jobs) && j < decision->job_count; j++) {
        const json_t *then = json_array_get(jobs, (size_t)j);
        const char *reason = json_string_value(json_object_get(then, "reason"));
        if (!same_nodes(json_object_get(then, "nodes"), &decision->jobs[j]) || !reason ||
            strcmp(reason, adl_reason_name(decision->jobs[j].reason)) != 0)
            return j;
    }
    return -1;
}

adl_status adl_decide_text(adl_policy *policy, const char *content, size_t length, char **answer)
{
    adl_record *record;
    adl_policy *own = NULL;
    adl_decision decision = {0};
    *answer = NULL;
    adl_status status = adl_record_parse(content, length, &record);
    if (status != ADL_OK)
        return status;
    if (!policy)
        status = adl_record_policy(record, NULL, &own);
    if (status == ADL_OK)
        status = adl_policy_decide(policy ? policy : own, &record->snapshot, &decision);
    if (status == ADL_OK)
        status = adl_decision_write(&record->snapshot, &decision, answer);
    adl_decision_fini(&decision);
    adl_policy_free(own);
    adl_record_free(record);
    return status;
}
