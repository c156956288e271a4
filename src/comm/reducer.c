/* The public face of a reducer: options, the queue and its thread. */
#include "comm/reducer_impl.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/bytes.h"
#include "base/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what the transports use ---- */

adl_status adli_reducer_watch(adl_reducer *reducer)
{
    if (atomic_load(&reducer->stopping))
        return adli_fail(ADL_ESTATE, "the reducer is being freed");
    return adl_group_check(reducer->group);
}

/* A power of two is divided by exactly; for others x / R is rounded once, x * (1 / R) would be twice. */
void adli_reducer_average(const adl_reducer *reducer, float *data, size_t n)
{
    int replicas = reducer->replicas;
    if (!reducer->options.average || replicas == 1)
        return;
    if ((replicas & (replicas - 1)) == 0)
        reducer->kernels->scale(data, 1.0f / (float)replicas, n);
    else
        reducer->kernels->divide(data, (float)replicas, n);
}

adl_status adli_reducer_mismatch(int a, const adli_bucket_head *head_a, int b,
                                 const adli_bucket_head *head_b)
{
    return adli_fail(ADL_EINVAL,
                     "replicas disagree: rank %d reduces bucket %" PRIu64 " of %" PRIu64
                     " floats and %" PRIu32 " doubles, rank %d bucket %" PRIu64 " of %" PRIu64
                     " and %" PRIu32,
                     a, head_a->number, head_a->elements, head_a->extra_count, b, head_b->number,
                     head_b->elements, head_b->extra_count);
}

adl_status adli_reducer_gather(adl_reducer *reducer, const void *data, size_t length, uint8_t **all,
                               size_t **offsets)
{
    void *gathered = NULL;
    *all = NULL;
    *offsets = adli_calloc((size_t)reducer->replicas + 1, sizeof **offsets);
    adl_status status = *offsets
                            ? adl_group_allgather(reducer->group, data, length, &gathered, *offsets)
                            : adli_fail_memory("a reducer");
    if (status == ADL_ENOMEM) /* the others would wait for us */
        adl_group_abort(reducer->group, adl_error());
    if (status != ADL_OK) {
        free(*offsets);
        *offsets = NULL;
    }
    *all = gathered;
    return status;
}

adl_status adli_reducer_agree(adl_reducer *reducer, adl_status mine)
{
    adli_failure failure = {.code = mine, .rank = reducer->rank};
    uint8_t encoded[ADLI_FAILURE_MAX], *all;
    size_t *offsets;
    if (mine != ADL_OK)
        adli_text_clean(failure.text, sizeof failure.text, adl_error(), strlen(adl_error()));
    adl_status status = adli_reducer_gather(reducer, encoded,
                                            adli_failure_encode(&failure, encoded), &all, &offsets);
    for (int rank = 0; status == ADL_OK && rank < reducer->replicas; rank++) {
        status =
            adli_failure_parse(all + offsets[rank], offsets[rank + 1] - offsets[rank], &failure);
        if (status == ADL_OK && failure.code != ADL_OK)
            status = adli_fail((adl_status)failure.code, "rank %d: %s", rank, failure.text);
    }
    free(all);
    free(offsets);
    return status;
}

/* ---- the queue ---- */

static adli_bucket *slot(adl_reducer *reducer, uint64_t number)
{
    return &reducer->queue[(number - 1) % reducer->options.max_pending];
}

/* Reduces the next bucket; locked, and unlocked while it works. */
static void reduce_next(adl_reducer *reducer)
{
    adli_bucket bucket = *slot(reducer, reducer->finished + 1);
    reducer->busy = true;
    pthread_mutex_unlock(&reducer->lock);
    adl_status status = reducer->transport->reduce(reducer->transport, &bucket);
    pthread_mutex_lock(&reducer->lock);
    reducer->busy = false;
    if (status == ADL_OK) {
        reducer->finished++;
    } else {
        reducer->failed = status;
        snprintf(reducer->failure, sizeof reducer->failure, "%s", adl_error());
    }
    pthread_cond_broadcast(&reducer->done);
}

static bool has_work(const adl_reducer *reducer)
{
    return reducer->failed == ADL_OK && !reducer->busy && reducer->finished < reducer->started;
}

static void *work(void *argument)
{
    adl_reducer *reducer = argument;
    pthread_mutex_lock(&reducer->lock);
    while (!atomic_load(&reducer->stopping)) {
        if (has_work(reducer))
            reduce_next(reducer);
        else
            pthread_cond_wait(&reducer->work, &reducer->lock);
    }
    pthread_mutex_unlock(&reducer->lock);
    return NULL;
}

static adl_status refuse(const adl_reducer *reducer)
{
    if (reducer->failed != ADL_OK)
        return adli_fail(reducer->failed, "%s", reducer->failure);
    uint64_t pending = reducer->started - reducer->finished;
    if (pending >= reducer->options.max_pending)
        return adli_fail(ADL_ESTATE, "reducer: %" PRIu64 " buckets are pending", pending);
    return ADL_OK;
}

static adl_status check_bucket(const float *data, size_t n, const double *extra, size_t extra_count)
{
    if (extra_count > ADL_REDUCER_EXTRA_MAX)
        return adli_fail(ADL_EINVAL, "reducer: %zu doubles with a bucket, the limit is %d",
                         extra_count, ADL_REDUCER_EXTRA_MAX);
    if (n > SIZE_MAX / 64 || (n > 0 && !data) || (extra_count > 0 && !extra))
        return adli_fail(ADL_EINVAL, "reducer: a bucket of %zu floats without data", n);
    return ADL_OK;
}

/* Adds a bucket; locked. */
static adl_status enqueue(adl_reducer *reducer, float *data, size_t n, double *extra,
                          size_t extra_count)
{
    adl_status status = check_bucket(data, n, extra, extra_count);
    if (status == ADL_OK)
        status = refuse(reducer);
    if (status != ADL_OK)
        return status;
    uint64_t number = ++reducer->started;
    if (reducer->replicas == 1) /* the sum is what is there */
        reducer->finished = number;
    else
        *slot(reducer, number) = (adli_bucket){number, data, n, extra, extra_count};
    return ADL_OK;
}

adl_status adl_reducer_start(adl_reducer *reducer, float *data, size_t n, double *extra,
                             size_t extra_count, uint64_t *ticket)
{
    pthread_mutex_lock(&reducer->lock);
    adl_status status = enqueue(reducer, data, n, extra, extra_count);
    if (ticket)
        *ticket = status == ADL_OK ? reducer->started : 0;
    if (status == ADL_OK && !reducer->busy)
        pthread_cond_signal(&reducer->work);
    pthread_mutex_unlock(&reducer->lock);
    return status;
}

/* Locked. */
static adl_status wait_locked(adl_reducer *reducer, uint64_t ticket, int timeout_ms)
{
    struct timespec deadline = adli_deadline(timeout_ms < 0 ? 0 : timeout_ms);
    int waited = 0;
    double start_s = adli_monotonic_s();
    while (reducer->finished < ticket && waited != ETIMEDOUT &&
           (reducer->failed == ADL_OK || reducer->busy)) {
        if (timeout_ms < 0)
            pthread_cond_wait(&reducer->done, &reducer->lock);
        else
            waited = pthread_cond_timedwait(&reducer->done, &reducer->lock, &deadline);
    }
    reducer->wait_s += adli_monotonic_s() - start_s;
    if (reducer->finished >= ticket)
        return ADL_OK;
    if (reducer->failed != ADL_OK)
        return adli_fail(reducer->failed, "%s", reducer->failure);
    return adli_fail(ADL_ETIMEOUT, "bucket %" PRIu64 " is not reduced within %d ms", ticket,
                     timeout_ms);
}

adl_status adl_reducer_wait(adl_reducer *reducer, uint64_t ticket, int timeout_ms)
{
    pthread_mutex_lock(&reducer->lock);
    adl_status status =
        ticket <= reducer->started
            ? wait_locked(reducer, ticket, timeout_ms)
            : adli_fail(ADL_EINVAL, "reducer: bucket %" PRIu64 " was never started", ticket);
    pthread_mutex_unlock(&reducer->lock);
    return status;
}

adl_status adl_reducer_wait_all(adl_reducer *reducer, int timeout_ms)
{
    pthread_mutex_lock(&reducer->lock);
    adl_status status = wait_locked(reducer, reducer->started, timeout_ms);
    if (status == ADL_OK && reducer->failed != ADL_OK)
        status = adli_fail(reducer->failed, "%s", reducer->failure);
    pthread_mutex_unlock(&reducer->lock);
    return status;
}

bool adl_reducer_done(adl_reducer *reducer, uint64_t ticket)
{
    pthread_mutex_lock(&reducer->lock);
    bool done = reducer->finished >= ticket || (reducer->failed != ADL_OK && !reducer->busy);
    pthread_mutex_unlock(&reducer->lock);
    return done;
}

/* With nothing pending the caller's own thread does the work. */
static adl_status reduce_now(adl_reducer *reducer, float *data, size_t n, double *extra,
                             size_t extra_count)
{
    pthread_mutex_lock(&reducer->lock);
    adl_status status = enqueue(reducer, data, n, extra, extra_count);
    if (status == ADL_OK) {
        uint64_t ticket = reducer->started;
        double start_s = adli_monotonic_s();
        if (has_work(reducer) && reducer->finished + 1 == ticket) {
            reduce_next(reducer);
            reducer->wait_s += adli_monotonic_s() - start_s;
        } else {
            pthread_cond_signal(&reducer->work);
        }
        status = wait_locked(reducer, ticket, -1);
    }
    pthread_mutex_unlock(&reducer->lock);
    return status;
}

adl_status adl_reducer_allreduce(adl_reducer *reducer, float *data, size_t n)
{
    return reduce_now(reducer, data, n, NULL, 0);
}

adl_status adl_reducer_allreduce_f64(adl_reducer *reducer, double *data, size_t n)
{
    return reduce_now(reducer, NULL, 0, data, n);
}

adl_transport adl_reducer_transport(const adl_reducer *reducer)
{
    return reducer->kind;
}

double adl_reducer_wait_seconds(const adl_reducer *reducer)
{
    adl_reducer *self = (adl_reducer *)reducer;
    pthread_mutex_lock(&self->lock);
    double wait_s = self->wait_s;
    pthread_mutex_unlock(&self->lock);
    return wait_s;
}

/* ---- life ---- */

static adl_status check_options(const adl_reducer_options *o)
{
    if ((unsigned)o->transport > ADL_TRANSPORT_TCP)
        return adli_fail(ADL_EINVAL, "reducer: unknown transport %d", (int)o->transport);
    if ((unsigned)o->wire > ADL_WIRE_BF16)
        return adli_fail(ADL_EINVAL, "reducer: unknown wire type %d", (int)o->wire);
    if (o->host && (o->host[0] == '\0' || strlen(o->host) > ADL_HOST_MAX))
        return adli_fail(ADL_EINVAL, "reducer: a host's name has 1 to %d bytes", ADL_HOST_MAX);
    if (o->max_pending == 0 || o->max_pending > 1 << 20)
        return adli_fail(ADL_EINVAL, "reducer: max_pending %zu, not within 1..%d", o->max_pending,
                         1 << 20);
    return ADL_OK;
}

static adl_status allocate(adl_group *group, adl_reducer **out)
{
    adl_reducer *reducer = adli_calloc(1, sizeof *reducer);
    *out = NULL;
    if (!reducer)
        return adli_fail_memory("a reducer");
    adl_status status = adli_cond_init(&reducer->work);
    if (status != ADL_OK) {
        free(reducer);
        return status;
    }
    status = adli_cond_init(&reducer->done);
    if (status != ADL_OK) {
        pthread_cond_destroy(&reducer->work);
        free(reducer);
        return status;
    }
    pthread_mutex_init(&reducer->lock, NULL);
    reducer->group = group;
    reducer->rank = adl_group_rank(group);
    reducer->replicas = adl_group_replicas(group);
    reducer->kernels = adli_kernels_get();
    reducer->kind = ADL_TRANSPORT_NONE;
    *out = reducer;
    return ADL_OK;
}

/* What can go wrong on this replica alone, before the others are involved. */
static adl_status prepare(adl_group *group, const adl_reducer_options *given, adl_reducer **out)
{
    adl_reducer_options options = ADL_REDUCER_OPTIONS_INIT;
    adl_status status = adli_options_take("adl_reducer_options", &options, sizeof options, given);
    if (status == ADL_OK)
        status = check_options(&options);
    if (status == ADL_OK)
        status = allocate(group, out);
    if (status != ADL_OK)
        return status;
    (*out)->options = options;
    (*out)->queue = adli_calloc(options.max_pending, sizeof *(*out)->queue);
    return (*out)->queue ? ADL_OK : adli_fail_memory("a reducer's queue");
}

adl_status adl_reducer_new(adl_group *group, const adl_reducer_options *given, adl_reducer **out)
{
    *out = NULL;
    adl_reducer *reducer = NULL;
    adl_status status = prepare(group, given, &reducer);
    if (group->replicas > 1) {
        /* A replica that cannot take part says so, instead of leaving the others to wait. */
        adl_reducer stand_in = {.group = group, .rank = group->rank, .replicas = group->replicas};
        status = adli_reducer_agree(reducer ? reducer : &stand_in, status);
        if (status == ADL_OK)
            status = adli_reducer_choose(reducer);
        if (status == ADL_OK) {
            status = adli_thread_start(&reducer->thread, "adl-allreduce", work, reducer);
            reducer->has_thread = status == ADL_OK;
        }
    }
    if (status != ADL_OK) {
        char text[ADLI_TEXT_MAX + 1];
        snprintf(text, sizeof text, "%s", adl_error());
        adl_reducer_free(reducer);
        return adli_fail(status, "%s", text);
    }
    *out = reducer;
    return ADL_OK;
}

void adl_reducer_free(adl_reducer *reducer)
{
    if (!reducer)
        return;
    pthread_mutex_lock(&reducer->lock);
    atomic_store(&reducer->stopping, true);
    pthread_cond_broadcast(&reducer->work);
    pthread_mutex_unlock(&reducer->lock);
    if (reducer->has_thread)
        pthread_join(reducer->thread, NULL);
    if (reducer->transport)
        reducer->transport->free(reducer->transport);
    pthread_cond_destroy(&reducer->done);
    pthread_cond_destroy(&reducer->work);
    pthread_mutex_destroy(&reducer->lock);
    free(reducer->queue);
    free(reducer);
}
