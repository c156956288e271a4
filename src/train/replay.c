/* Layout, little-endian: u32 count, then for each i32 epoch, u32 length of the call, call (comm/frame.h), u64 length of
 * the result, result. */
#include "train/replay.h"

#include "base/bytes.h"
#include "base/mem.h"
#include "base/status.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES_MAX = 4096, BYTES_MAX = 8 << 20, HEAD_BYTES = 16 };

typedef struct entry {
    int epoch;
    adli_call call;
    uint8_t *data; /* [length] */
    size_t length;
} entry;

struct adli_replay {
    pthread_mutex_t lock; /* of all that follows */
    entry *entries;
    size_t count, capacity, bytes;
    size_t next; /* to be replayed */
    bool full;
};

adl_status adli_replay_new(adli_replay **out)
{
    *out = adli_calloc(1, sizeof **out);
    if (!*out)
        return adli_fail_memory("the log of calls");
    pthread_mutex_init(&(*out)->lock, NULL);
    return ADL_OK;
}

static void clear(adli_replay *log)
{
    for (size_t i = 0; i < log->count; i++)
        free(log->entries[i].data);
    log->count = log->bytes = log->next = 0;
}

void adli_replay_free(adli_replay *log)
{
    if (!log)
        return;
    clear(log);
    free(log->entries);
    pthread_mutex_destroy(&log->lock);
    free(log);
}

/* Locked. false: out of memory or of room. */
static bool add(adli_replay *log, int epoch, const adli_call *call, const void *data, size_t length)
{
    if (log->full || log->count >= ENTRIES_MAX || length > BYTES_MAX - log->bytes ||
        adli_grow(&log->entries, &log->capacity, log->count + 1, sizeof *log->entries) != 0)
        return false;
    uint8_t *copy = adli_memdup(data, length, 1);
    if (!copy)
        return false;
    log->entries[log->count++] = (entry){epoch, *call, copy, length};
    log->bytes += length;
    return true;
}

void adli_replay_add(adli_replay *log, int epoch, const adli_call *call, const void *data,
                     size_t length)
{
    pthread_mutex_lock(&log->lock);
    bool caught_up = log->next == log->count;
    if (!add(log, epoch, call, data, length))
        log->full = true;
    if (caught_up)
        log->next = log->count;
    pthread_mutex_unlock(&log->lock);
}

void adli_replay_forget(adli_replay *log, int epoch)
{
    pthread_mutex_lock(&log->lock);
    size_t kept = 0, next = 0;
    for (size_t i = 0; i < log->count; i++) {
        entry *at = &log->entries[i];
        if (at->epoch != ADLI_REPLAY_OUTSIDE && at->epoch < epoch) {
            log->bytes -= at->length;
            free(at->data);
            continue;
        }
        next += i < log->next;
        log->entries[kept++] = *at;
    }
    log->count = kept;
    log->next = next;
    pthread_mutex_unlock(&log->lock);
}

size_t adli_replay_mark(adli_replay *log)
{
    pthread_mutex_lock(&log->lock);
    size_t mark = log->next;
    pthread_mutex_unlock(&log->lock);
    return mark;
}

void adli_replay_cut(adli_replay *log, size_t mark)
{
    pthread_mutex_lock(&log->lock);
    while (log->count > mark) {
        entry *last = &log->entries[--log->count];
        log->bytes -= last->length;
        free(last->data);
    }
    if (log->next > log->count)
        log->next = log->count;
    pthread_mutex_unlock(&log->lock);
}

bool adli_replay_full(adli_replay *log)
{
    pthread_mutex_lock(&log->lock);
    bool full = log->full;
    pthread_mutex_unlock(&log->lock);
    return full;
}

uint8_t *adli_replay_encode(adli_replay *log, size_t *length)
{
    pthread_mutex_lock(&log->lock);
    *length = 4 + log->bytes + log->count * (HEAD_BYTES + ADLI_CALL_MAX);
    uint8_t *bytes = log->full ? NULL : adli_calloc(*length, 1), *at = bytes;
    if (bytes)
        at = adli_put(at, log->count, 4);
    for (size_t i = 0; bytes && i < log->count; i++) {
        const entry *one = &log->entries[i];
        uint8_t call[ADLI_CALL_MAX];
        size_t call_length = adli_call_encode(&one->call, call);
        at = adli_put(at, (uint32_t)one->epoch, 4);
        at = adli_put(at, call_length, 4);
        at = adli_put_bytes(at, call, call_length);
        at = adli_put(at, one->length, 8);
        at = adli_put_bytes(at, one->data, one->length);
    }
    pthread_mutex_unlock(&log->lock);
    *length = bytes ? (size_t)(at - bytes) : 0;
    return bytes;
}

/* A call without its value: parsing wants one of the right size for an allreduce, and there is the result. */
static bool read_entry(adli_reader *reader, adli_replay *log)
{
    int epoch = (int)(int32_t)adli_get(reader, 4);
    uint64_t call_length = adli_get(reader, 4);
    const uint8_t *head = call_length <= ADLI_CALL_MAX ? adli_get_bytes(reader, call_length) : NULL;
    uint64_t length = adli_get(reader, 8);
    const uint8_t *data = adli_get_bytes(reader, length), *value;
    size_t value_length;
    adli_call call;
    if (!head || !data || epoch < ADLI_REPLAY_OUTSIDE)
        return false;
    bool typed = call_length > 8 && head[8] == ADLI_CALL_ALLREDUCE;
    size_t whole = call_length + (typed ? length : 0);
    uint8_t *payload = adli_calloc(whole, 1);
    if (!payload)
        return false;
    adli_put_bytes(adli_put_bytes(payload, head, call_length), data, typed ? length : 0);
    bool fine = adli_call_parse(payload, whole, &call, &value, &value_length) == ADL_OK &&
                value_length == whole - call_length;
    free(payload);
    return fine && add(log, epoch, &call, data, length);
}

adl_status adli_replay_take(adli_replay *log, const void *data, size_t length)
{
    adli_reader reader = adli_reader_over(data, length);
    pthread_mutex_lock(&log->lock);
    clear(log);
    uint64_t count = adli_get(&reader, 4);
    bool fine = !reader.bad && count <= ENTRIES_MAX;
    for (uint64_t i = 0; fine && i < count; i++)
        fine = read_entry(&reader, log);
    fine = fine && adli_reader_left(&reader) == 0;
    log->next = 0;
    if (!fine)
        clear(log);
    pthread_mutex_unlock(&log->lock);
    return fine ? ADL_OK
                : adli_fail(ADL_ECORRUPT, "a log of calls of %zu bytes that make no sense", length);
}

bool adli_replay_left(adli_replay *log)
{
    pthread_mutex_lock(&log->lock);
    bool left = log->next < log->count;
    pthread_mutex_unlock(&log->lock);
    return left;
}

adl_status adli_replay_next(adli_replay *log, const adli_call *call, uint8_t **data, size_t *length)
{
    adl_status status = ADL_OK;
    pthread_mutex_lock(&log->lock);
    const entry *one = &log->entries[log->next];
    if (!adli_call_same(&one->call, call)) {
        char here[ADLI_CALL_TEXT], there[ADLI_CALL_TEXT];
        adli_call_text(call, here);
        adli_call_text(&one->call, there);
        status =
            adli_fail(ADL_EINVAL, "this replica calls %s where the others called %s", here, there);
    } else if (!(*data = adli_memdup(one->data, one->length, 1))) {
        status = adli_fail_memory("the log of calls");
    } else {
        *length = one->length;
        log->next++;
    }
    pthread_mutex_unlock(&log->lock);
    return status;
}
