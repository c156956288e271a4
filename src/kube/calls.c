/* Calls: an exchange, tried again while that may help and time is left. */
#include "kube/impl.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER_MAX = 32 << 20, USUAL_S = 10, CONFLICTS_MAX = 3 };
/* Thousands at once a busy server would answer so late that none was in time, and who leads would have to wait for them. */
enum { AT_ONCE = 64 };

typedef struct pending {
    adli_kube *kube;
    adli_kube_call *call;
    adli_transfer transfer;
    double until_s;
    int failures, conflicts;
    bool over;
    int *going; /* of those that were begun with it, how many are not over */
} pending;

static bool on_data(adli_transfer *transfer, const char *bytes, size_t count)
{
    const pending *p = transfer->user;
    adli_buf_append(&p->call->answer, bytes, count);
    return p->call->answer.status == ADL_OK;
}

static bool may_help(int code)
{
    return code == 0 || code == 408 || code == 429 || code >= 500;
}

static bool conflicts(const adli_buf *answer)
{
    json_t *root = NULL;
    if (answer->length == 0 || adli_json_parse(answer->data, answer->length, &root) != ADL_OK)
        return false;
    const char *reason = json_string_value(json_object_get(root, "reason"));
    bool so = reason && strcmp(reason, "Conflict") == 0;
    json_decref(root);
    return so;
}

bool adli_kube_conflicts(const adli_kube_call *call)
{
    return call->code == 409 && conflicts(&call->answer);
}

/* What names no version has met somebody else's change of the same moment. PUT names one: that is its caller's to see. */
static bool met_a_change(pending *p, int code)
{
    bool blind = strcmp(p->call->method, "PATCH") == 0 || strcmp(p->call->method, "POST") == 0;
    return code == 409 && blind && conflicts(&p->call->answer) && p->conflicts++ < CONFLICTS_MAX;
}

static void set_limit(pending *p)
{
    double left_s = ceil(p->until_s - adli_monotonic_s());
    p->transfer.limit_s = left_s > 1 ? (long)left_s : 1;
}

static void on_done(adli_transfer *transfer, int code, const char *failure, double retry_s)
{
    pending *p = transfer->user;
    double pause_s = adli_kube_pause_s(p->kube, p->failures++, retry_s);
    bool whole = p->call->answer.status == ADL_OK;
    if (whole && (may_help(code) || met_a_change(p, code)) &&
        adli_monotonic_s() + pause_s < p->until_s) {
        adli_buf_clear(&p->call->answer);
        set_limit(p);
        adli_kube_begin(p->kube, transfer, pause_s);
        return;
    }
    p->call->code = whole ? code : 0;
    snprintf(p->call->failure, sizeof p->call->failure, "%s",
             whole ? failure : "the answer is too long");
    p->over = true;
    --*p->going;
    pthread_cond_broadcast(&p->kube->news);
}

static adl_status prepare(adli_kube *kube, adli_kube_call *call, pending *p)
{
    adli_buf_init(&call->answer, call->max_bytes ? call->max_bytes : ANSWER_MAX);
    call->code = 0;
    call->failure[0] = 0;
    *p = (pending){.kube = kube, .call = call};
    p->transfer = (adli_transfer){.method = call->method,
                                  .body = call->body,
                                  .type = call->type,
                                  .data = on_data,
                                  .done = on_done,
                                  .user = p};
    adl_status status = adli_kube_url(kube, call->path, &p->transfer.url);
    if (status != ADL_OK) {
        snprintf(call->failure, sizeof call->failure, "%s", adl_error());
        p->over = true;
    }
    return status;
}

/* Under lock. Its time begins now. */
static void begin(pending *p, int *going)
{
    p->until_s = adli_monotonic_s() + (p->call->time_s > 0 ? p->call->time_s : USUAL_S);
    p->going = going;
    set_limit(p);
    ++*going;
    adli_kube_begin(p->kube, &p->transfer, 0);
}

void adli_kube_do(adli_kube *kube, adli_kube_call *calls, int count)
{
    pending *all = adli_calloc((size_t)count, sizeof *all);
    for (int i = 0; i < count; i++) {
        if (all && prepare(kube, &calls[i], &all[i]) == ADL_OK)
            continue;
        if (!all) {
            calls[i].code = 0;
            snprintf(calls[i].failure, sizeof calls[i].failure, "no memory");
        }
    }
    if (!all)
        return;
    pthread_mutex_lock(&kube->lock);
    int next = 0, going = 0;
    while (next < count || going > 0) {
        for (; next < count && going < AT_ONCE; next++)
            if (!all[next].over)
                begin(&all[next], &going);
        if (going > 0)
            pthread_cond_wait(&kube->news, &kube->lock);
    }
    pthread_mutex_unlock(&kube->lock);
    for (int i = 0; i < count; i++)
        free(all[i].transfer.url);
    free(all);
}

static adl_status meaning(int code)
{
    switch (code) {
    case 404:
    case 410:
        return ADL_ENOENT;
    case 409:
        return ADL_ESTATE;
    case 0:
        return ADL_EIO;
    case 408:
    case 429:
        return ADL_ETIMEOUT;
    default:
        return code >= 500 ? ADL_EIO : code >= 200 && code < 300 ? ADL_OK : ADL_EINVAL;
    }
}

adl_status adli_kube_check(const adli_kube_call *call, const char *what)
{
    adl_status status = meaning(call->code);
    json_t *root = NULL;
    if (status == ADL_OK)
        return ADL_OK;
    if (call->code == 0)
        return adli_fail(status, "%s: %s", what, call->failure);
    const char *message = NULL;
    if (call->answer.length > 0 &&
        adli_json_parse(call->answer.data, call->answer.length, &root) == ADL_OK)
        message = json_string_value(json_object_get(root, "message"));
    status = message ? adli_fail(status, "%s: %.600s", what, message)
                     : adli_fail(status, "%s: HTTP %d", what, call->code);
    json_decref(root);
    return status;
}

void adli_kube_call_fini(adli_kube_call *call)
{
    if (call->answer.data)
        explicit_bzero(call->answer.data, call->answer.length); /* some are secrets */
    adli_buf_fini(&call->answer);
}

adl_status adli_kube_one(adli_kube *kube, const char *method, const char *path, const char *body,
                         const char *type, int fine, json_t **out)
{
    adli_kube_call call = {.method = method, .path = path, .body = body, .type = type};
    char what[300];
    if (out)
        *out = NULL;
    adli_kube_do(kube, &call, 1);
    snprintf(what, sizeof what, "%s %.*s", method, (int)strcspn(path, "?"), path);
    adl_status status = fine && call.code == fine ? ADL_OK : adli_kube_check(&call, what);
    if (status == ADL_OK && out && call.code != fine) {
        status = adli_json_parse(call.answer.data ? call.answer.data : "", call.answer.length, out);
        if (status != ADL_OK)
            status = adli_wrap(ADL_EIO, "%s", what);
    }
    adli_kube_call_fini(&call);
    return status;
}
