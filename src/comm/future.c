/* Futures: what a caller holds of an operation. They live on their own, so that freeing a group
 * before its futures, or a future before its operation has finished, is fine. */
#include "comm/group_impl.h"

#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

adl_status adli_future_new(const adli_call *call, const void *value, size_t length,
                           adl_future **out)
{
    *out = NULL;
    adl_future *future = adli_calloc(1, sizeof *future);
    uint8_t *copy = adli_memdup(value, length, 1);
    if (!future || !copy) {
        free(future);
        free(copy);
        return adli_fail_memory("a collective call");
    }
    adl_status status = adli_cond_init(&future->finished);
    if (status != ADL_OK) {
        free(future);
        free(copy);
        return status;
    }
    pthread_mutex_init(&future->lock, NULL);
    future->references = 2;
    future->call = *call;
    future->value = copy;
    future->value_length = length;
    *out = future;
    return ADL_OK;
}

static void unref(adl_future *future)
{
    if (atomic_fetch_sub(&future->references, 1) > 1)
        return;
    pthread_cond_destroy(&future->finished);
    pthread_mutex_destroy(&future->lock);
    free(future->value);
    free(future->data);
    free(future);
}

void adli_future_finish(adl_future *future, adl_status status, const char *text, uint8_t *data,
                        size_t length)
{
    if (future->tap && status == ADL_OK)
        future->tap->record(future->tap->user, future->mark, &future->call, data, length);
    pthread_mutex_lock(&future->lock);
    future->status = status;
    snprintf(future->text, sizeof future->text, "%s", text);
    future->data = data;
    future->length = length;
    atomic_store(&future->done, true);
    pthread_cond_broadcast(&future->finished);
    pthread_mutex_unlock(&future->lock);
    unref(future);
}

bool adl_future_done(const adl_future *future)
{
    return atomic_load(&future->done);
}

adl_status adl_future_wait(adl_future *future, int timeout_ms, const void **data, size_t *length)
{
    if (data)
        *data = NULL;
    if (length)
        *length = 0;
    struct timespec deadline = adli_deadline(timeout_ms < 0 ? 0 : timeout_ms);
    int waited = 0;
    pthread_mutex_lock(&future->lock);
    while (!atomic_load(&future->done) && waited != ETIMEDOUT) {
        if (timeout_ms < 0)
            pthread_cond_wait(&future->finished, &future->lock);
        else
            waited = pthread_cond_timedwait(&future->finished, &future->lock, &deadline);
    }
    bool done = atomic_load(&future->done);
    pthread_mutex_unlock(&future->lock);
    if (!done) {
        char text[ADLI_CALL_TEXT];
        adli_call_text(&future->call, text);
        return adli_fail(ADL_ETIMEOUT, "%s: not finished within %d ms", text, timeout_ms);
    }
    if (future->status != ADL_OK)
        return adli_fail(future->status, "%s", future->text);
    if (data)
        *data = future->data;
    if (length)
        *length = future->length;
    return ADL_OK;
}

void adl_future_free(adl_future *future)
{
    if (future)
        unref(future);
}

adl_status adl_reduced_set(adl_reduced *reduced, const void *data, size_t length)
{
    if (length > reduced->max)
        return adli_fail(ADL_ENOMEM, "a result of %zu bytes, the limit is %zu", length,
                         reduced->max);
    if (adli_grow(&reduced->data, &reduced->capacity, length + 1, 1) != 0)
        return adli_fail_memory("the result of a reduction");
    if (length)
        memmove(reduced->data, data, length);
    reduced->length = length;
    return ADL_OK;
}
