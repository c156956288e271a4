/* Rank 0's part: collect every replica's part of the call that is next, make sure that they are parts
 * of the same call, reduce them in rank order, and send everyone the result. */
#include "comm/group_impl.h"

#include "base/mem.h"
#include "base/bytes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

adl_status adli_root_take(adl_group *group, int rank, const adli_frame *frame)
{
    adli_peer *peer = &group->peers[rank];
    adli_call call;
    const uint8_t *value;
    size_t length;
    adl_status status = adli_call_parse(frame->payload, frame->length, &call, &value, &length);
    if (status != ADL_OK)
        return status;
    if (call.number != peer->calls)
        return adli_fail(ADL_ENET, "call %" PRIu64 " where %" PRIu64 " is next", call.number,
                         peer->calls);
    peer->calls++;
    if (atomic_load(&group->broken))
        return ADL_OK;
    adli_part_of_call *part = adli_calloc(1, sizeof *part + length);
    if (!part)
        return adli_fail_memory("a replica's part of a call");
    part->call = call;
    part->length = length;
    if (length)
        memcpy(part->value, value, length);
    peer->queued++;
    peer->queued_bytes += length;
    *peer->last = part;
    peer->last = &part->next;
    return ADL_OK;
}

static adli_part_of_call *pop(adli_peer *peer)
{
    adli_part_of_call *part = peer->first;
    peer->first = part->next;
    if (!peer->first)
        peer->last = &peer->first;
    peer->queued--;
    peer->queued_bytes -= part->length;
    return part;
}

static void drop_parts(adl_group *group)
{
    for (int rank = 1; rank < group->replicas; rank++) {
        while (group->peers[rank].first)
            free(pop(&group->peers[rank]));
    }
}

/* The part of rank in the call that is next, NULL when it has not come. `own` is the root's. */
static const adli_call *part_call(const adl_group *group, const adl_future *own, int rank)
{
    if (rank == 0)
        return own ? &own->call : NULL;
    return group->peers[rank].first ? &group->peers[rank].first->call : NULL;
}

static void fail_mismatch(adl_group *group, int a, const adli_call *call_a, int b,
                          const adli_call *call_b)
{
    char text_a[ADLI_CALL_TEXT], text_b[ADLI_CALL_TEXT], text[ADLI_TEXT_MAX + 1];
    adli_call_text(call_a, text_a);
    adli_call_text(call_b, text_b);
    snprintf(text, sizeof text,
             "replicas disagree on call %" PRIu64 ": rank %d calls %s, rank %d calls %s",
             call_a->number, a, text_a, b, text_b);
    adli_group_fail(group, ADL_EINVAL, -1, text);
}

/* Have all parts come? Parts that differ, and ones that will never come, break the group. */
static bool complete(adl_group *group, const adl_future *own)
{
    int first = -1, absent = -1;
    const adli_call *wanted = NULL;
    for (int rank = 0; rank < group->replicas; rank++) {
        const adli_call *call = part_call(group, own, rank);
        if (!call) {
            if (absent < 0 || group->states[rank] == ADL_PEER_LEFT)
                absent = rank;
        } else if (!wanted) {
            first = rank;
            wanted = call;
        } else if (!adli_call_same(wanted, call)) {
            fail_mismatch(group, first, wanted, rank, call);
            return false;
        }
    }
    if (wanted && absent >= 0 && group->states[absent] == ADL_PEER_LEFT) {
        char call[ADLI_CALL_TEXT], text[ADLI_TEXT_MAX + 1];
        adli_call_text(wanted, call);
        snprintf(text, sizeof text, "rank %d left the group, rank %d calls %s", absent, first,
                 call);
        adli_group_fail(group, ADL_EPEER, absent, text);
        return false;
    }
    return wanted && absent < 0;
}

/* Sends the result and ends the root's own future with it. data is taken over. */
static void deliver(adl_group *group, adl_future *own, adl_status status, const char *text,
                    uint8_t *data, size_t length)
{
    adli_result result = {.number = own->call.number, .status = status};
    uint8_t head[ADLI_RESULT_HEAD];
    adli_result_encode(&result, head);
    adli_part parts[] = {{head, sizeof head}, {data, length}};
    if (status != ADL_OK)
        parts[1] = (adli_part){text, strlen(text)};
    for (int rank = 1; rank < group->replicas; rank++)
        adli_peer_send(group, rank, ADLI_RESULT, parts, 2);
    if (status != ADL_OK) {
        free(data);
        data = NULL;
        length = 0;
    }
    adli_future_finish(own, status, text, data, length);
}

static adl_status reduce_typed(adl_group *group, const adl_future *own, uint8_t **out,
                               size_t *length)
{
    *length = own->value_length;
    *out = adli_memdup(own->value, own->value_length, 1);
    if (!*out)
        return adli_fail_memory("the result of a call");
    for (int rank = 1; rank < group->replicas; rank++)
        adli_call_reduce((adl_type)own->call.type, (adl_reduce)own->call.reduce, *out,
                         group->peers[rank].first->value, own->call.count);
    return ADL_OK;
}

/* R lengths of 8 bytes, then the values. */
static adl_status gather(adl_group *group, const adl_future *own, uint8_t **out, size_t *length)
{
    size_t total = 8 * (size_t)group->replicas + own->value_length;
    for (int rank = 1; rank < group->replicas; rank++)
        total += group->peers[rank].first->length;
    if (total > group->max_frame_bytes)
        return adli_fail(ADL_ENOMEM, "allgather: %zu bytes together, the limit is %zu", total,
                         group->max_frame_bytes);
    uint8_t *data = adli_calloc(total, 1);
    if (!data)
        return adli_fail_memory("the result of allgather");
    uint8_t *at = adli_put(data, own->value_length, 8);
    for (int rank = 1; rank < group->replicas; rank++)
        at = adli_put(at, group->peers[rank].first->length, 8);
    at = adli_put_bytes(at, own->value, own->value_length);
    for (int rank = 1; rank < group->replicas; rank++)
        at = adli_put_bytes(at, group->peers[rank].first->value, group->peers[rank].first->length);
    *out = data;
    *length = total;
    return ADL_OK;
}

static adl_status compute(adl_group *group, const adl_future *own, uint8_t **out, size_t *length)
{
    switch (own->call.kind) {
    case ADLI_CALL_ALLREDUCE:
        return reduce_typed(group, own, out, length);
    case ADLI_CALL_ALLGATHER:
        return gather(group, own, out, length);
    case ADLI_CALL_BROADCAST:
        *length = own->value_length;
        *out = adli_memdup(own->value, own->value_length, 1);
        return *out ? ADL_OK : adli_fail_memory("the result of broadcast");
    default:
        *length = 0;
        *out = NULL;
        return ADL_OK;
    }
}

/* ---- reductions by callback ---- */

static void free_job(adl_group *group, adli_job *job)
{
    for (int i = 0; job->parts && i < group->replicas - 1; i++)
        free(job->parts[i]);
    free(job->parts);
    free(job->result.data);
    free(job);
}

static void hand_to_worker(adl_group *group, adl_future *own)
{
    adli_job *job = adli_calloc(1, sizeof *job);
    if (job)
        job->parts = adli_calloc((size_t)group->replicas - 1, sizeof *job->parts);
    if (!job || !job->parts) {
        free(job);
        for (int rank = 1; rank < group->replicas; rank++)
            free(pop(&group->peers[rank]));
        pthread_mutex_lock(&group->lock);
        group->pending--;
        pthread_mutex_unlock(&group->lock);
        deliver(group, own, ADL_ENOMEM, "out of memory: a reduction on rank 0", NULL, 0);
        return;
    }
    job->future = own;
    job->result.max = group->max_frame_bytes;
    for (int rank = 1; rank < group->replicas; rank++)
        job->parts[rank - 1] = pop(&group->peers[rank]);
    pthread_mutex_lock(&group->lock);
    group->job = job;
    group->job_state = 1;
    pthread_cond_broadcast(&group->job_ready);
    pthread_mutex_unlock(&group->lock);
}

/* fn(fn(v0, v1), v2) ... with two buffers in turn, since fn reads one while it sets the other. */
static void run_job(const adl_group *group, adli_job *job)
{
    adl_reduced results[2] = {{.max = job->result.max}, {.max = job->result.max}};
    const adl_future *future = job->future;
    int now = 0;
    job->status = adl_reduced_set(&results[0], future->value, future->value_length);
    for (int i = 0; i < group->replicas - 1 && job->status == ADL_OK; i++) {
        adl_reduced *a = &results[now], *b = &results[!now];
        b->length = 0;
        (void)adli_fail(ADL_OK, "no reason given");
        job->status = future->fn(future->context, a->data, a->length, job->parts[i]->value,
                                 job->parts[i]->length, b);
        now = !now;
    }
    if (job->status != ADL_OK)
        snprintf(job->text, sizeof job->text, "reduce \"%s\" on rank 0: %s", future->call.name,
                 adl_error());
    job->result = results[now];
    free(results[!now].data);
}

void *adli_root_worker(void *argument)
{
    adl_group *group = argument;
    pthread_mutex_lock(&group->lock);
    for (;;) {
        while (group->job_state != 1 && !group->stopping)
            pthread_cond_wait(&group->job_ready, &group->lock);
        if (group->job_state != 1)
            break;
        adli_job *job = group->job;
        pthread_mutex_unlock(&group->lock);
        run_job(group, job);
        pthread_mutex_lock(&group->lock);
        group->job_state = 2;
        adli_group_wake(group);
    }
    pthread_mutex_unlock(&group->lock);
    return NULL;
}

static void finish_job(adl_group *group)
{
    adli_job *job = group->job;
    char failure[ADLI_TEXT_MAX + 1];
    pthread_mutex_lock(&group->lock);
    adl_status failed = group->failed;
    memcpy(failure, group->failure, sizeof failure);
    group->job = NULL;
    group->job_state = 0;
    group->pending--;
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
    if (failed != ADL_OK) {
        adli_future_finish(job->future, failed, failure, NULL, 0);
    } else {
        uint8_t *data = job->result.data;
        job->result.data = NULL;
        adl_status known = job->status <= 0 && job->status >= ADL_EINTR ? job->status : ADL_EINVAL;
        deliver(group, job->future, known, job->text, data, job->result.length);
    }
    free_job(group, job);
}

/* ---- */

/* Takes the root's future off the list and computes, or hands over, its result. */
static void execute(adl_group *group)
{
    pthread_mutex_lock(&group->lock);
    adl_future *own = group->failed == ADL_OK ? group->first : NULL;
    if (own) {
        group->first = own->next;
        if (!group->first)
            group->last = &group->first;
        if (own->call.kind != ADLI_CALL_REDUCE)
            group->pending--;
        pthread_cond_broadcast(&group->changed);
    }
    pthread_mutex_unlock(&group->lock);
    if (!own)
        return; /* another thread gave up in the meantime */
    if (own->call.kind == ADLI_CALL_REDUCE) {
        hand_to_worker(group, own);
        return;
    }
    uint8_t *data = NULL;
    size_t length = 0;
    adl_status status = compute(group, own, &data, &length);
    for (int rank = 1; rank < group->replicas; rank++)
        free(pop(&group->peers[rank]));
    char text[ADLI_TEXT_MAX + 1];
    snprintf(text, sizeof text, "%s", status == ADL_OK ? "" : adl_error());
    deliver(group, own, status, text, data, length);
}

void adli_root_advance(adl_group *group)
{
    for (;;) {
        pthread_mutex_lock(&group->lock);
        int job_state = group->job_state;
        const adl_future *own = group->first;
        pthread_mutex_unlock(&group->lock);
        if (job_state == 2) {
            finish_job(group);
            continue;
        }
        if (atomic_load(&group->broken)) {
            drop_parts(group);
            return;
        }
        if (job_state != 0 || !complete(group, own))
            return;
        execute(group);
    }
}

void adli_root_fini(adl_group *group)
{
    if (group->job_state != 0)
        finish_job(group);
    drop_parts(group);
}
