/* The public face of a group: options, calls, life and death. What happens to a call is in
 * progress.c and root.c. */
#include "comm/group_impl.h"

#include "base/mem.h"
#include "base/bytes.h"
#include "base/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { REPLICAS_MAX = 65535, PEER_TIMEOUT_MIN_MS = 100 };
static const size_t frame_min = 4096, frame_max = (size_t)1 << 30;

static adl_status check_options(const adl_group_options *o)
{
    if (o->replicas < 1 || o->replicas > REPLICAS_MAX)
        return adli_fail(ADL_EINVAL, "group: %d replicas, not within 1..%d", o->replicas,
                         REPLICAS_MAX);
    if (o->rank < 0 || o->rank >= o->replicas)
        return adli_fail(ADL_EINVAL, "group: rank %d of %d replicas", o->rank, o->replicas);
    bool needs_port = o->replicas > 1 && !(o->rank == 0 && o->listen_fd >= 0);
    if (o->master_port < 0 || o->master_port > 65535 || (needs_port && o->master_port == 0))
        return adli_fail(ADL_EINVAL, "group: port %d with %d replicas", o->master_port,
                         o->replicas);
    if (o->listen_fd >= 0 && o->rank != 0)
        return adli_fail(ADL_EINVAL, "group: rank %d does not listen (listen_fd)", o->rank);
    if (o->secret && o->secret_length == 0)
        return adli_fail(ADL_EINVAL, "group: an empty secret");
    if (o->connect_timeout_ms <= 0)
        return adli_fail(ADL_EINVAL, "group: connect_timeout_ms %d", o->connect_timeout_ms);
    if (o->peer_timeout_ms < PEER_TIMEOUT_MIN_MS)
        return adli_fail(ADL_EINVAL, "group: peer_timeout_ms %d, at least %d", o->peer_timeout_ms,
                         PEER_TIMEOUT_MIN_MS);
    if (o->max_frame_bytes < frame_min || o->max_frame_bytes > frame_max)
        return adli_fail(ADL_EINVAL, "group: max_frame_bytes %zu, not within %zu..%zu",
                         o->max_frame_bytes, frame_min, frame_max);
    if (o->max_pending == 0)
        return adli_fail(ADL_EINVAL, "group: max_pending 0");
    return ADL_OK;
}

/* Everything but connections and threads. What fails is cleaned up by adl_group_free. */
static adl_status allocate(adl_group *group, const adl_group_options *o)
{
    size_t replicas = (size_t)o->replicas;
    group->rank = o->rank;
    group->replicas = o->replicas;
    group->generation = o->generation;
    group->peer_timeout_ms = o->peer_timeout_ms;
    group->max_frame_bytes = o->max_frame_bytes;
    group->max_pending = o->max_pending;
    group->failed_rank = -1;
    group->last = &group->first;
    group->states = adli_calloc(replicas, sizeof *group->states);
    group->peers = adli_calloc(replicas, sizeof *group->peers);
    group->entries = adli_calloc(replicas + 1, sizeof *group->entries);
    group->entry_ranks = adli_calloc(replicas + 1, sizeof *group->entry_ranks);
    if (!group->states || !group->peers || !group->entries || !group->entry_ranks)
        return adli_fail_memory("a group");
    for (size_t rank = 0; rank < replicas; rank++)
        group->peers[rank].last = &group->peers[rank].first;
    if (!o->secret)
        return ADL_OK;
    group->secret = adli_memdup(o->secret, o->secret_length, 1);
    group->secret_length = o->secret_length;
    return group->secret ? ADL_OK : adli_fail_memory("a group's secret");
}

static adl_status start_threads(adl_group *group)
{
    adl_status status = ADL_OK;
    group->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (group->wake_fd < 0)
        return adli_fail(ADL_ENET, "group: eventfd: %s", strerror(errno));
    if (group->rank == 0) {
        status = adli_thread_start(&group->worker, "adl-reduce", adli_root_worker, group);
        group->has_worker = status == ADL_OK;
    }
    if (status == ADL_OK) {
        status = adli_thread_start(&group->progress, "adl-group", adli_group_progress, group);
        group->has_progress = status == ADL_OK;
    }
    return status;
}

static adl_status new_object(adl_group **out)
{
    adl_group *group = adli_calloc(1, sizeof *group);
    *out = NULL;
    if (!group)
        return adli_fail_memory("a group");
    group->wake_fd = -1;
    adl_status status = adli_cond_init(&group->changed);
    if (status != ADL_OK) {
        free(group);
        return status;
    }
    status = adli_cond_init(&group->job_ready);
    if (status != ADL_OK) {
        pthread_cond_destroy(&group->changed);
        free(group);
        return status;
    }
    pthread_mutex_init(&group->lock, NULL);
    *out = group;
    return ADL_OK;
}

adl_status adl_group_new(const adl_group_options *given, adl_group **out)
{
    *out = NULL;
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    adl_group *group = NULL;
    adl_status status = adli_options_take("adl_group_options", &options, sizeof options, given);
    if (status != ADL_OK)
        return status;
    status = check_options(&options);
    if (status == ADL_OK)
        status = new_object(&group);
    if (status == ADL_OK)
        status = allocate(group, &options);
    if (options.listen_fd >= 0 && (status != ADL_OK || options.replicas == 1)) {
        close(options.listen_fd);
        options.listen_fd = -1;
    }
    if (status == ADL_OK && options.replicas > 1) {
        status = adli_group_form(group, &options);
        if (status == ADL_OK)
            status = start_threads(group);
    }
    if (status != ADL_OK) {
        char text[ADLI_TEXT_MAX + 1];
        snprintf(text, sizeof text, "%s", adl_error());
        adl_group_free(group);
        return adli_fail(status, "%s", text);
    }
    *out = group;
    return ADL_OK;
}

static void stop_threads(adl_group *group)
{
    pthread_mutex_lock(&group->lock);
    group->stopping = group->closing = true;
    pthread_cond_broadcast(&group->job_ready);
    pthread_mutex_unlock(&group->lock);
    adli_group_wake(group);
    if (group->has_progress)
        pthread_join(group->progress, NULL);
    if (group->has_worker)
        pthread_join(group->worker, NULL);
}

void adl_group_free(adl_group *group)
{
    if (!group)
        return;
    stop_threads(group);
    adli_group_fail(group, ADL_ESTATE, -1, "the group was freed");
    adli_group_fail_pending(group);
    if (group->peers) {
        adli_root_fini(group);
        for (int rank = 0; rank < group->replicas; rank++)
            adli_conn_free(group->peers[rank].conn);
    }
    if (group->wake_fd >= 0)
        close(group->wake_fd);
    if (group->secret) {
        adli_wipe(group->secret, group->secret_length);
        free(group->secret);
    }
    pthread_cond_destroy(&group->job_ready);
    pthread_cond_destroy(&group->changed);
    pthread_mutex_destroy(&group->lock);
    free(group->entry_ranks);
    free(group->entries);
    free(group->peers);
    free((void *)group->states);
    free(group);
}

static adl_status close_timeout(adl_group *group, int timeout_ms)
{
    if (group->pending > 0)
        return adli_fail(ADL_ETIMEOUT, "close: %zu calls not finished within %d ms", group->pending,
                         timeout_ms);
    int rank = 0;
    while (rank < group->replicas - 1 && group->states[rank] != ADL_PEER_ALIVE)
        rank++;
    return adli_fail(ADL_ETIMEOUT, "close: rank %d did not leave within %d ms", rank, timeout_ms);
}

adl_status adl_group_close(adl_group *group, int timeout_ms)
{
    struct timespec deadline = adli_deadline(timeout_ms > 0 ? timeout_ms : 0);
    int waited = 0;
    adl_status status = ADL_OK;
    pthread_mutex_lock(&group->lock);
    group->closing = true;
    adli_group_wake(group);
    while (group->replicas > 1 && group->failed == ADL_OK && group->left < group->replicas &&
           !group->root_gone && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&group->changed, &group->lock, &deadline);
    if (group->failed != ADL_OK)
        status = adli_fail(group->failed, "%s", group->failure);
    else if (group->replicas > 1 && group->left < group->replicas && group->root_gone)
        status = adli_fail(ADL_EPEER, "close: rank 0 left before all others had");
    else if (group->replicas > 1 && group->left < group->replicas)
        status = close_timeout(group, timeout_ms);
    pthread_mutex_unlock(&group->lock);
    return status;
}

void adl_group_abort(adl_group *group, const char *why)
{
    char text[ADLI_TEXT_MAX + 1];
    snprintf(text, sizeof text, "rank %d gave up: %s", group->rank, why ? why : "");
    adli_group_fail(group, ADL_ESTATE, group->rank, text);
}

int adl_group_rank(const adl_group *group)
{
    return group->rank;
}

int adl_group_replicas(const adl_group *group)
{
    return group->replicas;
}

uint64_t adl_group_generation(const adl_group *group)
{
    return group->generation;
}

adl_status adl_group_check(adl_group *group)
{
    if (!atomic_load(&group->broken))
        return ADL_OK;
    pthread_mutex_lock(&group->lock);
    adl_status status = adli_fail(group->failed, "%s", group->failure);
    pthread_mutex_unlock(&group->lock);
    return status;
}

adl_status adli_group_check_left(adl_group *group)
{
    for (int rank = 0; atomic_load(&group->left) > 0 && rank < group->replicas; rank++) {
        if (rank != group->rank && group->states[rank] == ADL_PEER_LEFT)
            return adli_fail(ADL_EPEER, "rank %d left the group", rank);
    }
    return ADL_OK;
}

adl_peer_state adl_group_peer(adl_group *group, int rank)
{
    if (rank < 0 || rank >= group->replicas)
        return ADL_PEER_DEAD;
    return (adl_peer_state)atomic_load(&group->states[rank]);
}

int adl_group_failed_rank(adl_group *group)
{
    pthread_mutex_lock(&group->lock);
    int rank = group->failed_rank;
    pthread_mutex_unlock(&group->lock);
    return rank;
}

void adli_group_set_tap(adl_group *group, const adli_tap *tap)
{
    group->tap = tap;
}

/* ---- calls ---- */

static adl_status refuse_call(const adl_group *group, const adli_call *call)
{
    char text[ADLI_CALL_TEXT];
    adli_call_text(call, text);
    if (group->failed != ADL_OK)
        return adli_fail(group->failed, "%s", group->failure);
    if (group->closing)
        return adli_fail(ADL_ESTATE, "%s: the group was closed", text);
    if (group->pending >= group->max_pending)
        return adli_fail(ADL_ESTATE, "%s: %zu calls are pending", text, group->pending);
    return ADL_OK;
}

/* One replica: the value is the result, whatever the reduction. */
static adl_status complete_alone(adl_future *future)
{
    uint8_t *data = future->value;
    size_t length = future->value_length;
    future->value = NULL;
    if (future->call.kind == ADLI_CALL_ALLGATHER) {
        uint8_t *gathered = adli_calloc(8 + length, 1);
        if (!gathered) {
            free(data);
            return adli_fail_memory("the result of allgather");
        }
        adli_put_bytes(adli_put(gathered, length, 8), data, length);
        free(data);
        data = gathered;
        length += 8;
    }
    adli_future_finish(future, ADL_OK, "", data, length);
    return ADL_OK;
}

/* A call that was made before, by replicas that are ahead, is over at once. */
static adl_status consult_tap(adl_group *group, adl_future *future, bool *answered)
{
    const adli_tap *tap = group->tap;
    uint8_t *data = NULL;
    size_t length = 0;
    if (!tap)
        return ADL_OK;
    adl_status status = tap->answer(tap->user, group, &future->call, answered, &data, &length);
    if (status != ADL_OK)
        return status;
    if (*answered)
        adli_future_finish(future, ADL_OK, "", data, length);
    else if (tap->wants(tap->user, &future->mark))
        future->tap = tap;
    return ADL_OK;
}

static adl_status start(adl_group *group, adli_call call, const void *value, size_t length,
                        adl_reduce_fn fn, void *context, adl_future **out)
{
    *out = NULL;
    if (length > group->max_frame_bytes) {
        char text[ADLI_CALL_TEXT];
        adli_call_text(&call, text);
        return adli_fail(ADL_EINVAL, "%s: %zu bytes, the limit is %zu", text, length,
                         group->max_frame_bytes);
    }
    adl_future *future;
    adl_status status = adli_future_new(&call, value, length, &future);
    if (status != ADL_OK)
        return status;
    future->fn = fn;
    future->context = context;
    bool answered = false;
    status = consult_tap(group, future, &answered);
    if (answered) {
        *out = future;
        return ADL_OK;
    }
    pthread_mutex_lock(&group->lock);
    if (status == ADL_OK)
        status = refuse_call(group, &call);
    if (status == ADL_OK && group->replicas > 1) {
        future->call.number = group->calls++;
        *group->last = future;
        group->last = &future->next;
        if (group->rank != 0 && !group->unsent)
            group->unsent = future;
        group->pending++;
    }
    pthread_mutex_unlock(&group->lock);
    if (status == ADL_OK && group->replicas == 1)
        status = complete_alone(future);
    else if (status == ADL_OK)
        adli_group_wake(group);
    if (status != ADL_OK) {
        future->references = 1;
        adl_future_free(future);
        return status;
    }
    *out = future;
    return ADL_OK;
}

/* Waits and takes the result out of the future. */
static adl_status finish(adl_future *future, void **out, size_t *length)
{
    adl_status status = adl_future_wait(future, -1, NULL, length);
    if (status == ADL_OK && out) {
        *out = future->data;
        future->data = NULL;
    }
    adl_future_free(future);
    return status;
}

adl_status adl_group_allreduce_async(adl_group *group, const void *data, size_t count,
                                     adl_type type, adl_reduce reduce, adl_future **out)
{
    *out = NULL;
    adl_status status = adli_call_check(type, reduce);
    if (status != ADL_OK)
        return status;
    adli_call call = {
        .kind = ADLI_CALL_ALLREDUCE,
        .type = (uint8_t)type,
        .reduce = (uint8_t)reduce,
        .count = count,
    };
    size_t bytes;
    if (__builtin_mul_overflow(count, adli_type_bytes(type), &bytes))
        bytes = SIZE_MAX;
    return start(group, call, data, bytes, NULL, NULL, out);
}

adl_status adl_group_allreduce(adl_group *group, void *data, size_t count, adl_type type,
                               adl_reduce reduce)
{
    adl_future *future;
    adl_status status = adl_group_allreduce_async(group, data, count, type, reduce, &future);
    if (status != ADL_OK)
        return status;
    const void *result;
    size_t length;
    status = adl_future_wait(future, -1, &result, &length);
    size_t wanted = count * adli_type_bytes(type);
    if (status == ADL_OK && length != wanted)
        status = adli_fail(ADL_EPEER, "allreduce: a result of %zu bytes, not %zu", length, wanted);
    if (status == ADL_OK && length)
        memcpy(data, result, length);
    adl_future_free(future);
    return status;
}

adl_status adl_group_reduce_async(adl_group *group, const char *name, const void *data,
                                  size_t length, adl_reduce_fn fn, void *context, adl_future **out)
{
    *out = NULL;
    adli_call call = {.kind = ADLI_CALL_REDUCE};
    if (!fn || !name || strlen(name) > ADLI_NAME_MAX)
        return adli_fail(ADL_EINVAL, "reduce: %s",
                         !fn ? "no callback" : "no name, or one of more than 63 bytes");
    adli_text_clean(call.name, sizeof call.name, name, strlen(name));
    return start(group, call, data, length, fn, context, out);
}

adl_status adl_group_reduce(adl_group *group, const char *name, const void *data, size_t length,
                            adl_reduce_fn fn, void *context, void **out, size_t *out_length)
{
    adl_future *future;
    *out = NULL;
    adl_status status = adl_group_reduce_async(group, name, data, length, fn, context, &future);
    return status == ADL_OK ? finish(future, out, out_length) : status;
}

adl_status adl_group_broadcast_async(adl_group *group, const void *data, size_t length,
                                     adl_future **out)
{
    adli_call call = {.kind = ADLI_CALL_BROADCAST};
    return start(group, call, data, group->rank == 0 ? length : 0, NULL, NULL, out);
}

adl_status adl_group_broadcast(adl_group *group, const void *data, size_t length, void **out,
                               size_t *out_length)
{
    adl_future *future;
    *out = NULL;
    adl_status status = adl_group_broadcast_async(group, data, length, &future);
    return status == ADL_OK ? finish(future, out, out_length) : status;
}

/* The result is R lengths, then the values; the caller gets the values at the front. */
static adl_status split(uint8_t *data, size_t length, size_t replicas, size_t *offsets)
{
    adli_reader reader = adli_reader_over(data, length);
    size_t total = 0;
    offsets[0] = 0;
    for (size_t rank = 0; rank < replicas; rank++) {
        size_t part = adli_get(&reader, 8);
        if (__builtin_add_overflow(total, part, &total))
            reader.bad = true;
        offsets[rank + 1] = total;
    }
    if (reader.bad || adli_reader_left(&reader) != total)
        return adli_fail(ADL_EPEER, "allgather: a malformed result of %zu bytes", length);
    memmove(data, reader.at, total);
    return ADL_OK;
}

adl_status adl_group_allgather(adl_group *group, const void *data, size_t length, void **out,
                               size_t *offsets)
{
    adl_future *future;
    adli_call call = {.kind = ADLI_CALL_ALLGATHER};
    size_t total;
    *out = NULL;
    adl_status status = start(group, call, data, length, NULL, NULL, &future);
    if (status == ADL_OK)
        status = finish(future, out, &total);
    if (status == ADL_OK)
        status = split(*out, total, (size_t)group->replicas, offsets);
    if (status != ADL_OK) {
        free(*out);
        *out = NULL;
    }
    return status;
}

adl_status adl_group_barrier(adl_group *group)
{
    adl_future *future;
    adli_call call = {.kind = ADLI_CALL_BARRIER};
    adl_status status = start(group, call, NULL, 0, NULL, NULL, &future);
    return status == ADL_OK ? finish(future, NULL, NULL) : status;
}
