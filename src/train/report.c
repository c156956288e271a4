/* adl_report: values wait here, lie in checkpoints while they do, and are sent by rank 0 from a thread of its own.
 *
 * A checkpoint has the last step of each name and what was not sent yet. A process that goes on from it says so
 * ("last"), and the scheduler takes back what another process told after that checkpoint; then it sends what was
 * left over. So nothing is missing and nothing is there twice, wherever a process was killed. */
#include "adaptdl/report.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "http/http.h"
#include "measures/measures.h"
#include "train/context.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PAUSE_MS = 2000, PUT_TIMEOUT_MS = 20000, LAST_TIMEOUT_MS = 2000, ANSWER_MAX = 1 << 16 };

struct adli_reports {
    adl_context *ctx;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    adli_measures told; /* under lock */
    char *resumed;      /* under lock: "last" of the checkpoint until it was sent, else NULL */
    bool ending;        /* under lock */
    bool running;       /* there is a thread */
    bool warned;        /* the sender's */
    bool refused;       /* the sender's: warned about a document that was not taken */
    adli_http *http;    /* the sender's */
    adli_buf url;       /* while running */
    pthread_t thread;
};

/* ---- checkpoints ---- */

static adl_status save(void *user, adl_sink *sink)
{
    adli_reports *reports = user;
    adli_buf json;
    adli_buf_init(&json, ADLI_MEASURES_BYTES);
    pthread_mutex_lock(&reports->lock);
    adl_status status = adli_measures_json(&reports->told, NULL, reports->told.count, &json);
    pthread_mutex_unlock(&reports->lock);
    if (status == ADL_OK)
        status = adl_sink_write(sink, json.data, json.length);
    adli_buf_fini(&json);
    return status;
}

static adl_status load(void *user, adl_source *source)
{
    adli_reports *reports = user;
    size_t length = adl_source_remaining(source);
    const void *text;
    bool has_last;
    adli_measures told;
    adli_buf last;
    adl_status status = adl_source_view(source, length, &text);
    if (status == ADL_OK)
        status = adli_measures_parse(text, length, &told, &has_last);
    if (status != ADL_OK)
        return status == ADL_EINVAL ? adli_wrap(ADL_ECORRUPT, "metrics") : status;
    adli_buf_init(&last, ADLI_MEASURES_BYTES);
    adli_measures_last(&told, &last);
    told.restart = reports->ctx->env.restarts;
    pthread_mutex_lock(&reports->lock);
    adli_measures_fini(&reports->told);
    free(reports->resumed);
    reports->told = told;
    reports->resumed = last.data; /* taken */
    pthread_mutex_unlock(&reports->lock);
    return adli_buf_check(&last);
}

/* ---- sending ---- */

/* What waits, as a document; false: nothing does, or there is no memory to say it. */
static bool take(adli_reports *reports, adli_buf *json)
{
    pthread_mutex_lock(&reports->lock);
    adli_measures *told = &reports->told;
    bool some = told->count > 0 || reports->resumed;
    told->held = told->count < ADLI_MEASURES_POINTS ? told->count : ADLI_MEASURES_POINTS;
    if (some && adli_measures_json(told, reports->resumed ? reports->resumed : "", told->held,
                                   json) != ADL_OK)
        some = false;
    if (!some)
        told->held = 0;
    pthread_mutex_unlock(&reports->lock);
    return some;
}

/* done: it need not be sent again. */
static void put_back(adli_reports *reports, bool done)
{
    pthread_mutex_lock(&reports->lock);
    if (done) {
        adli_measures_sent(&reports->told);
        free(reports->resumed);
        reports->resumed = NULL;
    }
    reports->told.held = 0;
    pthread_mutex_unlock(&reports->lock);
}

/* Sends what waits. A scheduler that is away is worth one warning, a document that it refuses another: that one
 * would be refused again. */
static void send_all(adli_reports *reports, int timeout_ms)
{
    adli_buf json, answer;
    int code = 0;
    adli_buf_init(&json, ADLI_MEASURES_BYTES);
    adli_buf_init(&answer, ANSWER_MAX);
    if (take(reports, &json)) {
        adli_http_request request = {.method = "PUT",
                                     .url = reports->url.data,
                                     .body = json.data,
                                     .body_length = json.length,
                                     .timeout_ms = timeout_ms};
        adl_status status = adli_http_exchange(reports->http, &request, &answer, &code);
        bool taken = status == ADL_OK && code >= 200 && code <= 299;
        bool refused = status == ADL_OK && (code == 400 || code == 404 || code == 413);
        put_back(reports, taken || refused);
        bool *warned = refused ? &reports->refused : &reports->warned;
        if (!taken && status != ADL_EINTR && !*warned) {
            *warned = true;
            adli_log(reports->ctx, ADL_LOG_WARNING, "metrics not sent, training goes on: %.300s",
                     status == ADL_OK ? answer.data ? answer.data : "refused" : adl_error());
        }
    }
    adli_buf_fini(&answer);
    adli_buf_fini(&json);
}

static void *run(void *user)
{
    adli_reports *reports = user;
    pthread_mutex_lock(&reports->lock);
    while (!reports->ending) {
        pthread_mutex_unlock(&reports->lock);
        send_all(reports, PUT_TIMEOUT_MS);
        pthread_mutex_lock(&reports->lock);
        struct timespec until = adli_deadline(PAUSE_MS);
        int waited = 0;
        while (!reports->ending && waited != ETIMEDOUT)
            waited = pthread_cond_timedwait(&reports->wake, &reports->lock, &until);
    }
    pthread_mutex_unlock(&reports->lock);
    return NULL;
}

/* Rank 0 of a job that has a scheduler, once there is something to say. */
static adl_status start_sender(adli_reports *reports)
{
    const adl_context *ctx = reports->ctx;
    if (reports->running || ctx->world.rank != 0 || !ctx->env.supervisor_url || !ctx->env.job_id)
        return ADL_OK;
    const char *base = ctx->env.supervisor_url;
    size_t length = strlen(base);
    while (length > 0 && base[length - 1] == '/')
        length--;
    adli_buf_init(&reports->url, 4096);
    adli_buf_printf(&reports->url, "%.*s/reports/%s", (int)length, base, ctx->env.job_id);
    adl_status status = adli_buf_check(&reports->url);
    if (status == ADL_OK)
        status = adli_http_new(&reports->http);
    if (status == ADL_OK)
        status = adli_thread_start(&reports->thread, "adl-reports", run, reports);
    reports->running = status == ADL_OK;
    if (status != ADL_OK) {
        adli_http_free(reports->http);
        reports->http = NULL;
        adli_buf_fini(&reports->url);
    }
    return status;
}

/* A request that takes long is ended, and what it held is sent once more, briefly: the client was cancelled
 * for good, this needs another. */
static void stop_sender(adli_reports *reports)
{
    if (!reports->running)
        return;
    pthread_mutex_lock(&reports->lock);
    reports->ending = true;
    pthread_cond_signal(&reports->wake);
    pthread_mutex_unlock(&reports->lock);
    adli_http_cancel(reports->http);
    pthread_join(reports->thread, NULL);
    adli_http_free(reports->http);
    reports->http = NULL;
    if (adli_http_new(&reports->http) == ADL_OK)
        send_all(reports, LAST_TIMEOUT_MS);
    adli_http_free(reports->http);
    reports->http = NULL;
    adli_buf_fini(&reports->url);
    reports->running = reports->ending = false;
}

/* ---- life ---- */

adl_status adli_reports_start(adl_context *ctx)
{
    adli_reports *reports = adli_calloc(1, sizeof *reports);
    if (!reports)
        return adli_fail_memory("metrics");
    adl_status status = adli_cond_init(&reports->wake);
    if (status != ADL_OK) {
        free(reports);
        return status;
    }
    pthread_mutex_init(&reports->lock, NULL);
    reports->ctx = ctx;
    reports->told.whole = true;
    reports->told.restart = ctx->env.restarts;
    ctx->reports = reports;
    adl_checkpoint_functions functions = {sizeof functions, save, load, NULL};
    status = adli_state(ctx, "adaptdl.reports", &functions, reports, NULL);
    return status == ADL_OK && reports->resumed ? start_sender(reports) : status;
}

void adli_reports_stop(adl_context *ctx)
{
    adli_reports *reports = ctx->reports;
    if (!reports)
        return;
    stop_sender(reports);
    adli_measures_fini(&reports->told);
    free(reports->resumed);
    pthread_cond_destroy(&reports->wake);
    pthread_mutex_destroy(&reports->lock);
    free(reports);
    ctx->reports = NULL;
}

void adli_reports_regroup(adl_context *ctx)
{
    adli_reports *reports = ctx->reports;
    if (ctx->world.rank != 0) {
        stop_sender(reports);
    } else if (
        !reports
             ->running) { /* another was rank 0: it has sent what it had, and told of names of its own */
        pthread_mutex_lock(&reports->lock);
        reports->told.whole = false;
        reports->told.count = 0;
        free(reports->resumed);
        reports->resumed = NULL;
        pthread_mutex_unlock(&reports->lock);
    }
}

/* The step of a value that comes without one. Under lock. */
static int64_t next_step(const adli_reports *reports, int name)
{
    int64_t last = reports->told.last[name], steps = reports->ctx->steps;
    return steps == 0 ? last + 1 : steps > last ? steps : last;
}

adl_status adl_report(adl_context *ctx, int64_t step, const adl_metric *metrics, size_t count)
{
    adli_reports *reports = ctx->reports;
    double now_s = adli_clock_of(CLOCK_REALTIME);
    int names[ADLI_MEASURES_NAMES];
    if (step > ADLI_MEASURES_STEP_MAX)
        return adli_fail(ADL_EINVAL, "metrics: step %lld is beyond 2^53", (long long)step);
    if (count > ADLI_MEASURES_NAMES)
        return adli_fail(ADL_EINVAL, "%zu metrics: a job has at most %d", count,
                         ADLI_MEASURES_NAMES);
    adl_status status = ADL_OK;
    pthread_mutex_lock(&reports->lock);
    adli_measures *told = &reports->told;
    for (size_t i = 0; i < count && status == ADL_OK; i++)
        status = metrics[i].name ? adli_measures_name(told, metrics[i].name, &names[i])
                                 : adli_fail(ADL_EINVAL, "a metric needs a name");
    bool sends = reports->running || (ctx->world.rank == 0 && ctx->env.supervisor_url);
    for (size_t i = 0; i < count && status == ADL_OK && !adl_stopped(ctx); i++) {
        int64_t at = step >= 0 ? step : next_step(reports, names[i]);
        if (sends)
            status = adli_measures_add(told, names[i], at, now_s, metrics[i].value);
        told->last[names[i]] = at;
    }
    pthread_mutex_unlock(&reports->lock);
    return status == ADL_OK && count > 0 && !adl_stopped(ctx) ? start_sender(reports) : status;
}
