/* Worlds of a scheduler. Two threads, so that what a replica has to say never waits for a poll: one tells, one asks.
 * The scheduler may be away, or be another one than before: then all that still holds is told again. */
#include "train/opener.h"

#include "base/buf.h"
#include "base/json.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/thread.h"
#include "http/http.h"
#include "train/context.h"
#include "train/regroup.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    POLL_TIMEOUT_MS = 60000,
    TELL_TIMEOUT_MS = 10000,
    RETRY_FIRST_MS = 20,
    RETRY_MAX_MS = 1000,
    LINE_SIZE = 512,
    MEMBERS_MAX = 65535,
};

/* The lines, by their first word, in the order in which they are told. The last of each kind is what holds. */
static const char *const kinds[] = {"able",    "ready", "entered", "paused",
                                    "refused", "lost",  "unformed"};
enum { ABLE, READY, ENTERED, PAUSED, REFUSED, LOST, UNFORMED, KINDS };

typedef struct scheduler {
    adli_opener base;
    adl_context *ctx;
    adli_http *asks, *tells;
    pthread_t asking, telling;
    bool asking_runs;
    pthread_mutex_t lock;
    pthread_cond_t changed;

    /* under lock */
    bool ending;
    char lines[KINDS][LINE_SIZE]; /* "": nothing of the kind holds */
    bool fresh[KINDS];            /* not told yet */

    /* the asking thread's */
    uint32_t generation, dropped; /* known already */
    uint32_t saves;               /* that were asked for, as far as it was heard of */
    char instance[64];            /* of the scheduler that answered last */
} scheduler;

/* ---- telling ----------------------------------------------------------------------------------- */

static void say(adli_opener *base, const char *line)
{
    scheduler *self = (scheduler *)base;
    size_t word = strcspn(line, " ");
    int kind = 0;
    while (kind < KINDS && (strlen(kinds[kind]) != word || strncmp(kinds[kind], line, word) != 0))
        kind++;
    if (kind == KINDS)
        return;
    pthread_mutex_lock(&self->lock);
    if (kind == ENTERED) { /* who is in a world waits for none */
        self->lines[LOST][0] = self->lines[UNFORMED][0] = '\0';
        self->fresh[LOST] = self->fresh[UNFORMED] = false;
    } else if (kind == LOST) {
        self->lines[UNFORMED][0] = '\0';
        self->fresh[UNFORMED] = false;
    }
    snprintf(self->lines[kind], LINE_SIZE, "%s", line);
    self->fresh[kind] = true;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

static void make_url(const scheduler *self, const char *query, adli_buf *out)
{
    const char *base = self->ctx->env.supervisor_url;
    size_t length = strlen(base);
    while (length > 0 && base[length - 1] == '/')
        length--;
    adli_buf_printf(out, "%.*s/world/%s%s", (int)length, base, self->ctx->env.job_id, query);
}

static bool anything_fresh(const scheduler *self)
{
    bool any = false;
    for (int i = 0; i < KINDS; i++)
        any |= self->fresh[i];
    return any;
}

/* What is not told yet, as JSON; which lines those are is kept in told. Under lock. */
static void put_fresh(scheduler *self, bool told[KINDS], adli_buf *out)
{
    adli_jw_open(out, NULL, '{');
    adli_jw_int(out, "restarts", self->ctx->env.restarts);
    adli_jw_int(out, "member", self->ctx->member);
    adli_jw_open(out, "says", '[');
    for (int i = 0; i < KINDS; i++) {
        told[i] = self->fresh[i];
        if (told[i])
            adli_jw_text(out, NULL, self->lines[i]);
        self->fresh[i] = false;
    }
    adli_jw_close(out, ']');
    adli_jw_close(out, '}');
}

static bool send_once(scheduler *self, const adli_buf *url, const adli_buf *body)
{
    adli_http_request request = {.method = "PUT",
                                 .url = url->data,
                                 .body = body->data,
                                 .body_length = body->length,
                                 .timeout_ms = TELL_TIMEOUT_MS};
    adli_buf answer;
    int code = 0;
    adli_buf_init(&answer, 1 << 16);
    adl_status status = adli_http_exchange(self->tells, &request, &answer, &code);
    if (status != ADL_OK)
        adli_log(self->ctx, ADL_LOG_DEBUG, "%s", adl_error());
    else if (code != 200)
        adli_log(self->ctx, ADL_LOG_DEBUG, "PUT %s: the scheduler answered %d %.200s", url->data,
                 code, answer.data ? answer.data : "");
    adli_buf_fini(&answer);
    /* 4xx: it will never take it; but it may have too many just now, or a time-out */
    return status == ADL_OK && code < 500 && code != 408 && code != 429;
}

static void *tell(void *user)
{
    scheduler *self = user;
    adli_buf url, body;
    adli_buf_init(&url, 4096);
    adli_buf_init(&body, 1 << 16);
    make_url(self, "", &url);
    int pause_ms = RETRY_FIRST_MS;
    bool told[KINDS];
    pthread_mutex_lock(&self->lock);
    while (!self->ending && url.status == ADL_OK) {
        if (!anything_fresh(self)) {
            pthread_cond_wait(&self->changed, &self->lock);
            continue;
        }
        adli_buf_clear(&body);
        put_fresh(self, told, &body);
        pthread_mutex_unlock(&self->lock);
        bool done = adli_buf_check(&body) == ADL_OK && send_once(self, &url, &body);
        pthread_mutex_lock(&self->lock);
        for (int i = 0; i < KINDS && !done; i++)
            self->fresh[i] |= told[i] && self->lines[i][0];
        if (!done && !self->ending) {
            struct timespec until = adli_deadline(pause_ms);
            pthread_cond_timedwait(&self->changed, &self->lock, &until);
        }
        pause_ms = done                          ? RETRY_FIRST_MS
                   : 2 * pause_ms < RETRY_MAX_MS ? 2 * pause_ms
                                                 : RETRY_MAX_MS;
    }
    pthread_mutex_unlock(&self->lock);
    adli_buf_fini(&body);
    adli_buf_fini(&url);
    return NULL;
}

/* ---- asking ------------------------------------------------------------------------------------ */

/* Another scheduler knows only what its predecessor wrote down. */
static void tell_again(scheduler *self)
{
    pthread_mutex_lock(&self->lock);
    for (int i = 0; i < KINDS; i++)
        self->fresh[i] |= self->lines[i][0] != '\0';
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

static bool whole(const json_t *from, const char *key, json_int_t most, json_int_t *out)
{
    const json_t *value = json_object_get(from, key);
    *out = json_is_integer(value) ? json_integer_value(value) : -1;
    return *out >= 0 && *out <= most;
}

/* The answer's world as a line, which is checked as one from a launcher would be. */
static adl_status take_world(scheduler *self, const json_t *from, uint32_t generation)
{
    json_int_t nodes, port;
    const char *address = json_string_value(json_object_get(from, "address"));
    const json_t *members = json_object_get(from, "members");
    if (!address || !json_is_array(members) || json_array_size(members) > MEMBERS_MAX ||
        !whole(from, "nodes", MEMBERS_MAX, &nodes) || !whole(from, "port", 65535, &port))
        return adli_fail(ADL_EPEER, "a world without nodes, address, port or members");
    adli_buf line;
    adli_world next;
    adli_buf_init(&line, ADLI_OFFER_LINE_MAX);
    adli_buf_printf(&line, "%u %d %s %d", generation, (int)nodes, address, (int)port);
    for (size_t i = 0; i < json_array_size(members); i++)
        adli_buf_printf(&line, " %lld", (long long)json_integer_value(json_array_get(members, i)));
    adl_status status = adli_buf_check(&line);
    if (status == ADL_OK)
        status = adli_offer_read(line.data, &next);
    if (status == ADL_OK) {
        status = adli_regroup_offer(self->ctx, &next);
        adli_world_fini(&next);
    }
    adli_buf_fini(&line);
    return status;
}

static adl_status take_answer(scheduler *self, const adli_buf *answer)
{
    json_t *root = NULL;
    json_int_t generation = 0, dropped = 0, saves = 0;
    adl_status status = adli_json_parse(answer->data, answer->length, &root);
    const char *instance = json_string_value(json_object_get(root, "scheduler"));
    if (status == ADL_OK && (!whole(root, "generation", UINT32_MAX, &generation) ||
                             !whole(root, "dropped", UINT32_MAX, &dropped) || !instance))
        status = adli_fail(ADL_EPEER, "a world without generation, dropped or scheduler");
    if (status == ADL_OK) {
        if (self->instance[0] && strcmp(self->instance, instance) != 0)
            tell_again(self);
        snprintf(self->instance, sizeof self->instance, "%s", instance);
        if (dropped > self->dropped)
            adli_regroup_cancel(self->ctx, (uint32_t)dropped);
        if (generation > self->generation && json_is_true(json_object_get(root, "open")))
            status = take_world(self, root, (uint32_t)generation);
        self->generation = (uint32_t)generation;
        self->dropped = (uint32_t)dropped;
        if (whole(root, "saves", UINT32_MAX, &saves) && saves > self->saves) {
            atomic_store(&self->ctx->save_asked, true);
            self->saves = (uint32_t)saves;
        }
    }
    json_decref(root);
    return status;
}

/* *over: there is nobody who opens worlds, and never will be. Returns whether to ask again at once. */
static bool ask_once(scheduler *self, adli_buf *answer, bool *over)
{
    adl_context *ctx = self->ctx;
    adli_buf url;
    char query[256];
    int code = 0;
    snprintf(query, sizeof query,
             "?after=%u&dropped=%u&saves=%u&restarts=%d&member=%d&scheduler=%s", self->generation,
             self->dropped, self->saves, ctx->env.restarts, ctx->member,
             self->instance[0] ? self->instance : "none");
    adli_buf_init(&url, 4096);
    make_url(self, query, &url);
    adl_status status = adli_buf_check(&url);
    adli_http_request request = {.method = "GET", .url = url.data, .timeout_ms = POLL_TIMEOUT_MS};
    if (status == ADL_OK)
        status = adli_http_exchange(self->asks, &request, answer, &code);
    if (status == ADL_OK && code == 200)
        status = take_answer(self, answer);
    else if (status == ADL_OK && code != 408)
        status = adli_fail(ADL_ENET, "GET %s: the scheduler answered %d %.200s", url.data, code,
                           answer->data ? answer->data : "");
    *over = status == ADL_EINTR || code == 403 || code == 404;
    if (status != ADL_OK)
        adli_log(ctx, ADL_LOG_DEBUG, "worlds: %s", adl_error());
    adli_buf_fini(&url);
    return status == ADL_OK;
}

static void *ask(void *user)
{
    scheduler *self = user;
    adli_buf answer;
    bool over = false;
    int pause_ms = RETRY_FIRST_MS;
    adli_buf_init(&answer, 2 * ADLI_OFFER_LINE_MAX);
    while (!over) {
        bool fine = ask_once(self, &answer, &over);
        pthread_mutex_lock(&self->lock);
        if (!fine && !over && !self->ending) {
            struct timespec until = adli_deadline(pause_ms);
            pthread_cond_timedwait(&self->changed, &self->lock, &until);
        }
        over |= self->ending;
        pthread_mutex_unlock(&self->lock);
        pause_ms = fine                          ? RETRY_FIRST_MS
                   : 2 * pause_ms < RETRY_MAX_MS ? 2 * pause_ms
                                                 : RETRY_MAX_MS;
    }
    adli_buf_fini(&answer);
    adli_regroup_orphan(self->ctx);
    return NULL;
}

/* ---- life -------------------------------------------------------------------------------------- */

static void stop(adli_opener *base)
{
    scheduler *self = (scheduler *)base;
    pthread_mutex_lock(&self->lock);
    self->ending = true;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
    if (self->asks)
        adli_http_cancel(self->asks);
    if (self->tells)
        adli_http_cancel(self->tells);
    if (self->asking_runs) {
        pthread_join(self->asking, NULL);
        pthread_join(self->telling, NULL);
    }
    adli_http_free(self->asks);
    adli_http_free(self->tells);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

adl_status adli_opener_over_http(adl_context *ctx, adli_opener **out)
{
    scheduler *self = adli_calloc(1, sizeof *self);
    if (!self)
        return adli_fail_memory("context");
    self->base = (adli_opener){say, stop};
    self->ctx = ctx;
    adl_status status = adli_cond_init(&self->changed);
    if (status != ADL_OK) {
        free(self);
        return status;
    }
    pthread_mutex_init(&self->lock, NULL);
    status = adli_http_new(&self->asks);
    if (status == ADL_OK)
        status = adli_http_new(&self->tells);
    if (status == ADL_OK)
        status = adli_thread_start(&self->telling, "adl-world-tell", tell, self);
    if (status == ADL_OK) {
        status = adli_thread_start(&self->asking, "adl-worlds", ask, self);
        self->asking_runs = status == ADL_OK;
        if (status != ADL_OK) {
            pthread_mutex_lock(&self->lock);
            self->ending = true;
            pthread_cond_broadcast(&self->changed);
            pthread_mutex_unlock(&self->lock);
            adli_http_cancel(self->tells);
            pthread_join(self->telling, NULL);
        }
    }
    if (status == ADL_OK)
        *out = &self->base;
    else
        stop(&self->base);
    return status;
}
