/* Hints to the scheduler: rank 0, every 30 s, from a thread of its own, so that neither a slow
 * supervisor nor the fitting of the step-time model is ever on the path of a step. */
#include "train/hints.h"

#include "base/clock.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "http/http.h"
#include "model/perf.h"
#include "train/context.h"
#include "base/thread.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PUT_TIMEOUT_MS = 20000, LAST_TIMEOUT_MS = 1000, JSON_MAX = 4 << 20, ANSWER_MAX = 1 << 20 };

struct adli_hints {
    adl_context *ctx;
    adli_http *http;
    adli_buf url;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool ending; /* under lock */
    bool warned;
};

static void put_bounds(adli_buf *out, const adli_job_facts *facts)
{
    if (!facts->min_local && !facts->max_local) {
        adli_jw_text(out, "localBszBounds", NULL);
        return;
    }
    adli_jw_open(out, "localBszBounds", '[');
    adli_jw_int(out, NULL, facts->min_local ? facts->min_local : 1);
    adli_jw_int(out, NULL, facts->max_local ? facts->max_local : facts->max_batch_size);
    adli_jw_close(out, ']');
}

static void put_models(adli_buf *out, const adli_metrics_view *view)
{
    if (view->have_grad) {
        adli_jw_open(out, "gradParams", '{');
        adli_jw_number(out, "norm", view->grad.sqr);
        adli_jw_number(out, "var", view->grad.var);
        adli_jw_close(out, '}');
    }
    if (view->fitted) {
        adli_jw_open(out, "perfParams", '{');
        for (int i = 0; i < ADLI_PERF_COUNT; i++)
            adli_jw_number(out, adli_perf_names[i], adli_perf_get(&view->perf, i));
        adli_jw_close(out, '}');
    }
}

static void put_profile(adli_buf *out, const adli_metrics_view *view)
{
    adli_jw_open(out, "profile", '[');
    for (size_t i = 0; i < view->count; i++) {
        const adl_profile_point *point = &view->points[i];
        adli_jw_open(out, NULL, '{');
        adli_jw_int(out, "nodes", point->nodes);
        adli_jw_int(out, "replicas", point->replicas);
        adli_jw_int(out, "localBsz", (int)point->local_bsz);
        adli_jw_number(out, "accumTime", point->accum_time_s);
        adli_jw_number(out, "optimTime", point->optim_time_s);
        if (view->types.count > 0 && view->types.names[point->type][0])
            adli_jw_text(out, "deviceType", view->types.names[point->type]);
        adli_jw_close(out, '}');
    }
    adli_jw_close(out, ']');
}

adl_status adli_hints_json(const adli_metrics_view *view, adli_buf *out)
{
    const adli_job_facts *facts = &view->facts;
    adli_jw_open(out, NULL, '{');
    adli_jw_int(out, "initBatchSize", facts->init_batch_size);
    put_bounds(out, facts);
    adli_jw_int(out, "globalBatchSize", facts->batch_size);
    adli_jw_number(out, "maxBatchSize", facts->max_batch_size > 0 ? facts->max_batch_size : NAN);
    adli_jw_int(out, "maxProfiledReplicas", view->max_profiled_replicas);
    adli_jw_bool(out, "gradientAccumulation", facts->accumulation);
    adli_jw_bool(out, "loneReplicaGrows", facts->lone_grows);
    put_models(out, view);
    adli_jw_number(out, "progress", view->progress);
    adli_jw_int(out, "epoch", facts->epoch);
    adli_jw_int(out, "targetEpochs", facts->target_epochs);
    adli_jw_number(out, "iterationsPerEpoch", (double)facts->examples / facts->init_batch_size);
    adli_jw_number(out, "elapsed", view->elapsed_s);
    put_profile(out, view);
    adli_jw_close(out, '}');
    return adli_buf_check(out);
}

static adl_status send_json(adli_hints *hints, const adli_buf *json, int timeout_ms)
{
    adli_http_request request = {.method = "PUT",
                                 .url = hints->url.data,
                                 .body = json->data,
                                 .body_length = json->length,
                                 .timeout_ms = timeout_ms};
    adli_buf answer;
    int code;
    adli_buf_init(&answer, ANSWER_MAX);
    adl_status status = adli_http_exchange(hints->http, &request, &answer, &code);
    if (status == ADL_OK && (code < 200 || code > 299))
        status = adli_fail(ADL_ENET, "PUT %s: the supervisor answered %d %.200s", hints->url.data,
                           code, answer.data);
    adli_buf_fini(&answer);
    return status;
}

/* Reports if there is something to report. A supervisor that is away is worth one warning. */
static void report(adli_hints *hints, int timeout_ms)
{
    adl_context *ctx = hints->ctx;
    adli_metrics_view view;
    adli_buf json;
    adli_buf_init(&json, JSON_MAX);
    adl_status status = adli_metrics_fit(&ctx->metrics);
    if (status == ADL_OK)
        status = adli_metrics_look(&ctx->metrics, adli_monotonic_s(), &view);
    if (status == ADL_OK) {
        if (view.facts.init_batch_size > 0 && view.count > 0) {
            status = adli_hints_json(&view, &json);
            if (status == ADL_OK)
                status = send_json(hints, &json, timeout_ms);
        }
        free(view.points);
    }
    adli_buf_fini(&json);
    if (status == ADL_OK)
        hints->warned = false;
    else if (status != ADL_EINTR && !hints->warned) {
        hints->warned = true;
        adli_log(ctx, ADL_LOG_WARNING, "hints not sent, training goes on: %s", adl_error());
    }
}

static struct timespec after(double seconds)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    double whole = floor(seconds);
    at.tv_sec += (time_t)whole;
    at.tv_nsec += (long)((seconds - whole) * 1e9);
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

static void *run(void *user)
{
    adli_hints *hints = user;
    pthread_mutex_lock(&hints->lock);
    while (!hints->ending) {
        struct timespec until = after(hints->ctx->options.hints_interval_s);
        int waited = 0;
        while (!hints->ending && waited != ETIMEDOUT)
            waited = pthread_cond_timedwait(&hints->wake, &hints->lock, &until);
        if (hints->ending)
            break;
        pthread_mutex_unlock(&hints->lock);
        report(hints, PUT_TIMEOUT_MS);
        pthread_mutex_lock(&hints->lock);
    }
    pthread_mutex_unlock(&hints->lock);
    return NULL;
}

static void free_hints(adli_hints *hints)
{
    adli_http_free(hints->http);
    adli_buf_fini(&hints->url);
    pthread_cond_destroy(&hints->wake);
    pthread_mutex_destroy(&hints->lock);
    free(hints);
}

adl_status adli_hints_start(adl_context *ctx)
{
    adli_hints *hints = adli_calloc(1, sizeof *hints);
    if (!hints)
        return adli_fail_memory("hints");
    hints->ctx = ctx;
    pthread_mutex_init(&hints->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&hints->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    adli_buf_init(&hints->url, 4096);
    const char *base = ctx->env.supervisor_url;
    size_t length = strlen(base);
    while (length > 0 && base[length - 1] == '/')
        length--;
    adli_buf_printf(&hints->url, "%.*s/hints/%s", (int)length, base, ctx->env.job_id);
    adl_status status = adli_buf_check(&hints->url);
    if (status == ADL_OK)
        status = adli_http_new(&hints->http);
    if (status == ADL_OK)
        status = adli_thread_start(&hints->thread, "adl-hints", run, hints);
    if (status == ADL_OK)
        ctx->hints = hints;
    else
        free_hints(hints);
    return status;
}

void adli_hints_stop(adl_context *ctx)
{
    adli_hints *hints = ctx->hints;
    if (!hints)
        return;
    pthread_mutex_lock(&hints->lock);
    hints->ending = true;
    pthread_cond_signal(&hints->wake);
    pthread_mutex_unlock(&hints->lock);
    adli_http_cancel(hints->http);
    pthread_join(hints->thread, NULL);
    /* A last word, so that the scheduler knows how far the job came; the client was cancelled for
     * good, this needs another. */
    adli_http_free(hints->http);
    if (adli_http_new(&hints->http) == ADL_OK)
        report(hints, LAST_TIMEOUT_MS);
    free_hints(hints);
    ctx->hints = NULL;
}
