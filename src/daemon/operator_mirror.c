/* Everything that the core is about to commit, written to the API server first: the status of each job by
 * server-side apply, all at once; then events for what people should see in `kubectl describe`. */
#include "daemon/operator_impl.h"

#include "adaptdl/life.h"
#include "base/clock.h"
#include "base/json_write.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utc.h"
#include "daemon/core_impl.h"
#include "jobspec/jobspec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STATUS_MAX = 1 << 20, POOL_MAX = 900 << 10, NOTE_SIZE = 1000 };

#define MANAGER "fieldManager=adaptdl-sched&force=true"

static void status_path(const char *ns, const char *name, char out[ADLI_OPERATOR_PATH])
{
    snprintf(out, ADLI_OPERATOR_PATH, ADLI_JOBS_PATH "namespaces/%s/adaptdljobs/%s/status?" MANAGER,
             ns, name);
}

/* Takes the body. */
static void add_call(adli_operator *op, const char *method, const char *path, char *body,
                     const char *type)
{
    char *copy = body ? adli_strdup(path) : NULL;
    if (!copy ||
        adli_grow(&op->calls, &op->call_capacity, op->call_count + 1, sizeof *op->calls) != 0) {
        free(copy);
        free(body);
        return;
    }
    op->calls[op->call_count++] =
        (adli_kube_call){.method = method, .path = copy, .body = body, .type = type};
}

static void clear_calls(adli_operator *op)
{
    for (size_t i = 0; i < op->call_count; i++) {
        free((char *)op->calls[i].path);
        free((char *)op->calls[i].body);
        adli_kube_call_fini(&op->calls[i]);
    }
    op->call_count = 0;
}

/* ---- events ---- */

static void post_event(adli_operator *op, const char *uid, const char *ns, const char *name,
                       const char *reason, char *note, bool bad)
{
    char now[ADLI_UTC_SIZE], own[160], path[ADLI_OPERATOR_PATH];
    struct timespec when;
    clock_gettime(CLOCK_REALTIME, &when);
    adli_utc_text(&when, 6, now);
    snprintf(own, sizeof own, "%.63s.%llx%09lx", name, (long long)when.tv_sec, when.tv_nsec);
    adli_status_clean(note);
    json_t *event = json_pack(
        "{s:s,s:s,s:{s:s,s:s},s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:{s:s,s:s,s:s,s:s,s:s}}", "apiVersion",
        "events.k8s.io/v1", "kind", "Event", "metadata", "name", own, "namespace", ns, "eventTime",
        now, "reportingController", "adaptdl.petuum.com/sched", "reportingInstance",
        "adaptdl-sched", "action", "Schedule", "reason", reason, "note", note, "type",
        bad ? "Warning" : "Normal", "regarding", "apiVersion", ADLI_JOB_API_VERSION, "kind",
        ADLI_JOB_KIND, "name", name, "namespace", ns, "uid", uid);
    snprintf(path, sizeof path, "/apis/events.k8s.io/v1/namespaces/%s/events", ns);
    if (event)
        add_call(op, "POST", path, json_dumps(event, JSON_COMPACT), NULL);
    json_decref(event);
}

static void tell(void *user, const char *uid, const char *ns, const char *name, const char *reason,
                 const char *note, bool bad)
{
    char text[NOTE_SIZE];
    snprintf(text, sizeof text, "%s", note);
    post_event(user, uid, ns, name, reason, text, bad);
}

/* Once for each phase and reason, in order. */
static void add_event(adli_operator *op, const adli_store_job *row)
{
    char told[40], note[NOTE_SIZE];
    snprintf(told, sizeof told, "%d %d %.24s", row->phase, row->group,
             row->reason ? row->reason : "");
    pthread_mutex_lock(&op->lock);
    adli_operator_job *job = adli_operator_find(op, row->uid);
    bool news = job && strcmp(job->told, told) != 0;
    if (news)
        memcpy(job->told, told, sizeof told);
    pthread_mutex_unlock(&op->lock);
    if (!news)
        return;
    bool bad = row->phase == ADL_FAILED || (row->reason && *row->reason);
    const char *phase = adl_phase_name((adl_phase)row->phase),
               *reason = row->reason && *row->reason ? row->reason : phase;
    snprintf(note, sizeof note, "%s (group %d)%s%.800s", phase, row->group,
             row->message && *row->message ? ": " : "", row->message ? row->message : "");
    post_event(op, row->uid, row->ns, row->name, reason, note, bad);
}

/* ---- rows ---- */

static void put(void *user, const adli_store_job *row, const adli_mirrored *mirrored)
{
    adli_operator *op = user;
    char path[ADLI_OPERATOR_PATH];
    adli_status_more more = {.ready = mirrored->ready,
                             .batch_size = mirrored->batch_size,
                             .goodput = mirrored->goodput,
                             .speedup = mirrored->speedup};
    pthread_mutex_lock(&op->lock);
    const adli_operator_job *job = adli_operator_find(op, row->uid);
    bool there = job && !job->gone;
    more.generation = there ? job->generation : 0;
    pthread_mutex_unlock(&op->lock);
    if (!there)
        return; /* nobody will ask */
    adli_buf body;
    adli_buf_init(&body, STATUS_MAX);
    adli_status_write(row, &more, &body);
    status_path(row->ns, row->name, path);
    if (adli_buf_check(&body) != ADL_OK) {
        adli_say(ADL_LOG_ERROR, "status of job %s/%s: %s", row->ns, row->name, adl_error());
        adli_buf_fini(&body);
        return;
    }
    add_call(op, "PATCH", path, body.data, ADLI_KUBE_APPLY);
    add_event(op, row);
}

static const char *uid_of(const json_t *object)
{
    const char *uid =
        json_string_value(json_object_get(json_object_get(object, "metadata"), "uid"));
    return uid ? uid : "";
}

/* Whether the job of this status is gone, though there may be another by its name. It is listed: jobs may be listed,
 * but not be got, by our rights. */
static adl_status look_for(const adli_operator *op, const adli_kube_call *call, bool *gone)
{
    char path[ADLI_OPERATOR_PATH];
    size_t i;
    json_t *list = NULL, *ours = json_loads(call->body, 0, NULL);
    const json_t *there;
    const char *end = strstr(call->path, "/status?"), *name = end;
    while (name > call->path && name[-1] != '/')
        name--;
    snprintf(path, sizeof path, "%.*s?fieldSelector=metadata.name%%3D%.*s",
             (int)(name - call->path) - 1, call->path, (int)(end - name), name);
    adl_status status = ours ? adli_kube_one(op->kube, "GET", path, NULL, NULL, 0, &list)
                             : adli_fail_memory("status");
    *gone = status == ADL_OK;
    json_array_foreach(json_object_get(list, "items"), i, there)
    {
        *gone = *gone && strcmp(uid_of(there), uid_of(ours)) != 0;
    }
    json_decref(list);
    json_decref(ours);
    return status;
}

/* A job that is gone has nothing to be told; 409 may also be somebody else's change, again and again: then nothing was
 * written. Events are for people, and may be lost. */
static adl_status check(const adli_operator *op, const adli_kube_call *call)
{
    bool gone = call->code == 404;
    if (strcmp(call->method, "PATCH") != 0 || gone)
        return ADL_OK;
    adl_status status = call->code == 409 ? look_for(op, call, &gone) : ADL_OK;
    return status != ADL_OK || gone ? status : adli_kube_check(call, "status");
}

/* The server does not take what this one status says, however often it is asked: that must not hold up all others. */
static bool hopeless(const adli_kube_call *call)
{
    return call->code == 400 || call->code == 413 || call->code == 422;
}

static adl_status commit(void *user)
{
    adli_operator *op = user;
    adl_status status = ADL_OK;
    if (op->call_count > 0)
        adli_kube_do(op->kube, op->calls, (int)op->call_count);
    for (size_t i = 0; status == ADL_OK && i < op->call_count; i++)
        if ((status = check(op, &op->calls[i])) != ADL_OK && hopeless(&op->calls[i])) {
            adli_say(ADL_LOG_ERROR, "%s: %s", op->calls[i].path, adl_error());
            status = ADL_OK;
        }
    clear_calls(op);
    return status;
}

adl_status adli_operator_say(adli_operator *op, const adli_operator_job *job, int phase,
                             const char *reason, const char *message)
{
    double now_s = adli_clock_of(CLOCK_REALTIME);
    bool over = phase == ADL_FAILED;
    adli_store_job row = {.uid = job->uid,
                          .ns = job->ns,
                          .name = job->name,
                          .created_s = now_s,
                          .completed_s = over ? now_s : 0,
                          .account = {.last_change_s = now_s, .accounted_s = now_s},
                          .phase = phase,
                          .reason = reason,
                          .message = message};
    adli_status_more more = {
        .generation = job->generation, .batch_size = NAN, .goodput = NAN, .speedup = NAN};
    char path[ADLI_OPERATOR_PATH];
    adli_buf body;
    adli_buf_init(&body, STATUS_MAX);
    adli_status_write(&row, &more, &body);
    adl_status status = adli_buf_check(&body);
    status_path(job->ns, job->name, path);
    if (status == ADL_OK) {
        adli_kube_call call = {
            .method = "PATCH", .path = path, .body = body.data, .type = ADLI_KUBE_APPLY};
        adli_kube_do(op->kube, &call, 1);
        status = check(op, &call);
        adli_kube_call_fini(&call);
    }
    adli_buf_fini(&body);
    return status;
}

/* ---- what jobs have learned ---- */

static void pool_path(const adli_operator *op, char out[ADLI_OPERATOR_PATH])
{
    snprintf(out, ADLI_OPERATOR_PATH, "/api/v1/namespaces/%s/configmaps/adaptdl-sched-pool",
             op->ns);
}

static adl_status keep_pool(void *user, const char *learned)
{
    adli_operator *op = user;
    char path[ADLI_OPERATOR_PATH], full[ADLI_OPERATOR_PATH + 64];
    if (strlen(learned) > POOL_MAX)
        return adli_fail(ADL_EINVAL, "it is larger than an object may be");
    pool_path(op, path);
    snprintf(full, sizeof full, "%s?" MANAGER, path);
    json_t *map = json_pack("{s:s,s:s,s:{s:s,s:s},s:{s:s}}", "apiVersion", "v1", "kind",
                            "ConfigMap", "metadata", "name", "adaptdl-sched-pool", "namespace",
                            op->ns, "data", "pool", learned);
    char *body = map ? json_dumps(map, JSON_COMPACT) : NULL;
    adl_status status = body
                            ? adli_kube_one(op->kube, "PATCH", full, body, ADLI_KUBE_APPLY, 0, NULL)
                            : adli_fail_memory("pool of models");
    free(body);
    json_decref(map);
    return status;
}

adl_status adli_operator_load_pool(adli_operator *op, adli_buf *out)
{
    char path[ADLI_OPERATOR_PATH];
    json_t *map;
    pool_path(op, path);
    adl_status status = adli_kube_one(op->kube, "GET", path, NULL, NULL, 404, &map);
    const char *learned =
        status == ADL_OK ? json_string_value(json_object_get(json_object_get(map, "data"), "pool"))
                         : NULL;
    if (learned)
        adli_buf_puts(out, learned);
    json_decref(map);
    return status == ADL_OK ? adli_buf_check(out) : status;
}

static int64_t requests(void *user)
{
    return adli_kube_requests(((adli_operator *)user)->kube);
}

void adli_operator_mirror_init(adli_operator *op)
{
    op->mirror =
        (adli_core_mirror){put, tell, commit, keep_pool, adli_operator_secret, requests, op};
}
