/* Jobs as the API server has them: the status that people read, with what the scheduler must not forget beside
 * it, and the job file that the core takes. */
#include "daemon/operator_impl.h"

#include "adaptdl/life.h"
#include "backend/k8s/view.h"
#include "base/json.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/utc.h"
#include "base/utf8.h"
#include "jobspec/jobspec.h"
#include "jobspec/quantity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reports larger than this are not kept over a restart of the operator: the job reports again. */
enum { HINTS_MAX = 64 << 10, MESSAGE_MAX = 4096 };

static void put_time(adli_buf *out, const char *key, double time_s)
{
    char text[ADLI_UTC_SIZE] = "";
    if (time_s > 0)
        adli_utc_text(&(struct timespec){.tv_sec = (time_t)time_s}, 0, text);
    if (*text)
        adli_jw_text(out, key, text);
}

static void put_number(adli_buf *out, const char *key, double value)
{
    if (isfinite(value))
        adli_jw_number(out, key, value);
}

static void put_condition(adli_buf *out, const char *type, bool holds, double since_s,
                          const adli_store_job *row, const adli_status_more *more)
{
    adli_jw_open(out, NULL, '{');
    adli_jw_text(out, "type", type);
    adli_jw_text(out, "status", holds ? "True" : "False");
    adli_jw_text(out, "reason",
                 row->reason && *row->reason ? row->reason
                 : holds                     ? type
                                             : adl_phase_name((adl_phase)row->phase));
    adli_jw_text(out, "message", "");
    adli_jw_int(out, "observedGeneration", more->generation);
    put_time(out, "lastTransitionTime", since_s > 0 ? since_s : row->created_s);
    adli_jw_close(out, '}');
}

static void put_conditions(adli_buf *out, const adli_store_job *row, const adli_status_more *more)
{
    bool invalid = row->phase == ADL_FAILED && row->reason && !strcmp(row->reason, "InvalidSpec");
    adli_jw_open(out, "conditions", '[');
    put_condition(out, "Admitted", !invalid, row->created_s, row, more);
    put_condition(out, "Running", row->phase == ADL_RUNNING, row->group_started_s, row, more);
    put_condition(out, "Complete", row->phase == ADL_SUCCEEDED, row->completed_s, row, more);
    put_condition(out, "Failed", row->phase == ADL_FAILED, row->completed_s, row, more);
    adli_jw_close(out, ']');
}

/* Exactly what the store has, so that a restarted operator goes on as if it had never ended. */
static void put_scheduler(adli_buf *out, const adli_store_job *row)
{
    const adl_account *account = &row->account;
    adli_jw_open(out, "scheduler", '{');
    adli_jw_number(out, "created", row->created_s);
    adli_jw_int(out, "failures", row->failures);
    adli_jw_bool(out, "killed", row->killed);
    adli_jw_number(out, "groupStarted", row->group_started_s);
    adli_jw_number(out, "stopSince", row->stop_since_s);
    adli_jw_number(out, "retryAt", row->retry_at_s);
    adli_jw_number(out, "started", row->started_s);
    adli_jw_number(out, "completed", row->completed_s);
    adli_jw_raw(out, "wanted", row->wanted && *row->wanted ? row->wanted : "[]");
    adli_jw_open(out, "account", '{');
    adli_jw_number(out, "lastChange", account->last_change_s);
    adli_jw_number(out, "accounted", account->accounted_s);
    adli_jw_number(out, "attained", account->attained_s);
    adli_jw_number(out, "run", account->run_s);
    adli_jw_number(out, "activeSum", account->active_sum);
    adli_jw_number(out, "activeWeight", account->active_weight);
    adli_jw_close(out, '}');
    adli_jw_number(out, "restartCost", row->restart_cost_s);
    if (row->world && *row->world)
        adli_jw_raw(out, "world", row->world);
    if (row->resized && *row->resized)
        adli_jw_text(out, "resized", row->resized);
    if (row->resize_cost_s > 0)
        adli_jw_number(out, "resizeCost", row->resize_cost_s);
    if (row->hints && *row->hints && strlen(row->hints) <= HINTS_MAX)
        adli_jw_raw(out, "report", row->hints);
    adli_jw_close(out, '}');
}

static void put_status(adli_buf *out, const adli_store_job *row, const adli_status_more *more,
                       int replicas)
{
    char message[MESSAGE_MAX];
    snprintf(message, sizeof message, "%s", row->message ? row->message : "");
    adli_jw_open(out, "status", '{');
    adli_jw_int(out, "observedGeneration", more->generation);
    adli_jw_text(out, "phase", adl_phase_name((adl_phase)row->phase));
    adli_jw_text(out, "reason", row->reason ? row->reason : "");
    adli_jw_text(out, "message", message);
    adli_jw_int(out, "group", row->group);
    adli_jw_int(out, "replicas", replicas);
    adli_jw_int(out, "readyReplicas", more->ready);
    adli_jw_raw(out, "allocation", row->placed && *row->placed ? row->placed : "[]");
    put_time(out, "startTime", row->started_s);
    put_time(out, "completionTimestamp", row->completed_s);
    if (isfinite(more->batch_size) || isfinite(more->goodput) || isfinite(more->speedup)) {
        adli_jw_open(out, "train",
                     '{'); /* never empty: applied over one that was not, it becomes null */
        put_number(out, "batchSize", more->batch_size);
        put_number(out, "goodput", more->goodput);
        put_number(out, "speedup", more->speedup);
        adli_jw_close(out, '}');
    }
    put_conditions(out, row, more);
    put_scheduler(out, row);
    adli_jw_close(out, '}');
}

/* The server reads what is applied as YAML, which knows no character but those that can be seen. */
static bool printable(uint32_t code)
{
    return code >= 0x20 && !(code >= 0x7f && code < 0xa0) && code != 0xfeff && code != 0xfffe &&
           code != 0xffff;
}

void adli_status_clean(char *text)
{
    uint32_t code;
    for (size_t left = strlen(text), size; left > 0; text += size, left -= size) {
        size = adli_utf8_decode(text, left, &code);
        if (size > 0 && printable(code))
            continue;
        size = size > 0 ? size : 1; /* cut in the middle, or never one */
        memset(text, '?', size);
    }
}

void adli_status_write(const adli_store_job *row, const adli_status_more *more, adli_buf *out)
{
    json_t *placed = NULL;
    int replicas = 0;
    if (row->placed && adli_json_parse(row->placed, strlen(row->placed), &placed) == ADL_OK)
        replicas = (int)json_array_size(placed);
    json_decref(placed);
    adli_jw_open(out, NULL, '{');
    adli_jw_text(out, "apiVersion", ADLI_JOB_API_VERSION);
    adli_jw_text(out, "kind", ADLI_JOB_KIND);
    adli_jw_open(out, "metadata", '{');
    adli_jw_text(out, "name", row->name);
    adli_jw_text(out, "namespace", row->ns);
    adli_jw_text(out, "uid", row->uid); /* of another job by this name: 409 */
    adli_jw_close(out, '}');
    put_status(out, row, more, replicas);
    adli_jw_close(out, '}');
    if (out->data)
        adli_status_clean(out->data);
}

/* ---- back again ---- */

static double number(const json_t *object, const char *key)
{
    double value = json_number_value(json_object_get(object, key));
    return isfinite(value) && value >= 0 ? value : 0;
}

static int count(const json_t *object, const char *key)
{
    double value = number(object, key);
    return value < 1e9 ? (int)value : 0;
}

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

/* Phases by name; -1: none. */
static int phase_named(const char *name)
{
    for (int i = ADL_PENDING; i <= ADL_FAILED; i++)
        if (strcmp(adl_phase_name((adl_phase)i), name) == 0)
            return i;
    return -1;
}

/* Keeps the value as compact JSON in `keep`; fallback when there is none. */
static const char *keep_json(json_t *keep, const char *key, const json_t *value,
                             const char *fallback)
{
    char *dump = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_object_set_new(keep, key, json_string(dump ? dump : fallback));
    free(dump);
    return text(keep, key);
}

double adli_status_created(const json_t *object)
{
    const json_t *saved = json_object_get(json_object_get(object, "status"), "scheduler");
    return json_is_object(saved) ? number(saved, "created") : INFINITY;
}

bool adli_status_read(const json_t *object, adli_store_job *row, json_t **keep)
{
    const json_t *metadata = json_object_get(object, "metadata"),
                 *status = json_object_get(object, "status"),
                 *saved = json_object_get(status, "scheduler"),
                 *account = json_object_get(saved, "account"),
                 *report = json_object_get(saved, "report"),
                 *world = json_object_get(saved, "world"),
                 *placed = json_object_get(status, "allocation"),
                 *wanted = json_object_get(saved, "wanted");
    int phase = phase_named(text(status, "phase"));
    *keep = NULL;
    if (phase < 0 || !json_is_object(saved) || !(*keep = json_object()))
        return false;
    *row = (adli_store_job){
        .uid = text(metadata, "uid"),
        .ns = text(metadata, "namespace"),
        .name = text(metadata, "name"),
        .created_s = number(saved, "created"),
        .phase = phase,
        .group = count(status, "group"),
        .failures = count(saved, "failures"),
        .killed = json_is_true(json_object_get(saved, "killed")),
        .group_started_s = number(saved, "groupStarted"),
        .stop_since_s = number(saved, "stopSince"),
        .retry_at_s = number(saved, "retryAt"),
        .wanted = keep_json(*keep, "wanted", json_is_array(wanted) ? wanted : NULL, "[]"),
        .placed = keep_json(*keep, "placed", json_is_array(placed) ? placed : NULL, "[]"),
        .started_s = number(saved, "started"),
        .completed_s = number(saved, "completed"),
        .reason = text(status, "reason"),
        .message = text(status, "message"),
        .account = {number(account, "lastChange"), number(account, "accounted"),
                    number(account, "attained"), number(account, "run"),
                    number(account, "activeSum"), number(account, "activeWeight")},
        .hints = keep_json(*keep, "report", json_is_object(report) ? report : NULL, ""),
        .restart_cost_s = number(saved, "restartCost"),
        .world = keep_json(*keep, "world", json_is_object(world) ? world : NULL, ""),
        .resized = text(saved, "resized"),
        .resize_cost_s = number(saved, "resizeCost")};
    return true;
}

/* ---- the job file ---- */

/* What a replica takes is what its whole pod takes. */
static void put_resources(adli_buf *out, const json_t *pod)
{
    adli_k8s_amounts requests;
    char amount[32];
    adli_k8s_pod_requests(pod, &requests);
    adli_jw_open(out, "resources", '{');
    adli_jw_open(out, "requests", '{');
    for (int i = 0; i < requests.count; i++)
        adli_jw_text(
            out, requests.names[i],
            adli_resource_print(requests.names[i], requests.amounts[i], amount, sizeof amount));
    adli_jw_close(out, '}');
    adli_jw_close(out, '}');
}

static void put_any(adli_buf *out, const char *key, const json_t *value)
{
    char *dump = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (dump)
        adli_jw_raw(out, key, dump);
    free(dump);
}

static void put_command(adli_buf *out, const json_t *container)
{
    static const char *const keys[] = {"command", "args"};
    size_t i;
    const json_t *word;
    bool any = false;
    adli_jw_open(out, "command", '[');
    for (int k = 0; k < 2; k++)
        json_array_foreach(json_object_get(container, keys[k]), i, word)
        {
            if (json_is_string(word))
                adli_jw_text(out, NULL, json_string_value(word));
            any |= json_is_string(word);
        }
    if (!any) /* its image says what to run */
        adli_jw_text(out, NULL, *text(container, "image") ? text(container, "image") : "image");
    adli_jw_close(out, ']');
}

static void put_template(adli_buf *out, const json_t *pod, const json_t *container)
{
    adli_jw_open(out, "template", '{');
    adli_jw_open(out, "spec", '{');
    put_any(out, "terminationGracePeriodSeconds",
            json_object_get(pod, "terminationGracePeriodSeconds"));
    adli_jw_open(out, "containers", '[');
    adli_jw_open(out, NULL, '{');
    adli_jw_text(out, "name", text(container, "name"));
    put_any(out, "image", json_object_get(container, "image"));
    put_command(out, container);
    put_resources(out, pod);
    adli_jw_close(out, '}');
    adli_jw_close(out, ']');
    adli_jw_close(out, '}');
    adli_jw_close(out, '}');
}

adl_status adli_job_file(const json_t *object, adli_buf *out)
{
    static const char *const kept[] = {"name", "namespace", "uid", "labels"};
    static const char *const settings[] = {"minReplicas", "maxReplicas", "preemptible",
                                           "maxRetries",  "priority",    "suspend"};
    const json_t *metadata = json_object_get(object, "metadata"),
                 *spec = json_object_get(object, "spec"),
                 *pod = json_object_get(json_object_get(spec, "template"), "spec"),
                 *container = json_array_get(json_object_get(pod, "containers"), 0);
    if (!json_is_object(metadata) || !json_is_object(container))
        return adli_fail(ADL_EINVAL, "spec.template.spec.containers is missing or empty");
    adli_jw_open(out, NULL, '{');
    adli_jw_text(out, "apiVersion", ADLI_JOB_API_VERSION);
    adli_jw_text(out, "kind", ADLI_JOB_KIND);
    adli_jw_open(out, "metadata", '{');
    for (size_t i = 0; i < ADLI_COUNT(kept); i++)
        put_any(out, kept[i], json_object_get(metadata, kept[i]));
    adli_jw_close(out, '}');
    adli_jw_open(out, "spec", '{');
    for (size_t i = 0; i < ADLI_COUNT(settings); i++)
        put_any(out, settings[i], json_object_get(spec, settings[i]));
    put_template(out, pod, container);
    adli_jw_close(out, '}');
    adli_jw_close(out, '}');
    return adli_buf_check(out);
}
