#include "train/prefetch.h"

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };
enum { SLOT_EMPTY, SLOT_BUSY, SLOT_FULL };

typedef struct worker {
    adli_prefetch *prefetch;
    int number;
    pthread_t thread;
} worker;

struct adli_prefetch {
    const adl_loader_options *options;
    adli_slot *slots;
    int slot_count, slot_examples;
    worker *workers;
    int started; /* threads */

    pthread_mutex_t lock;
    pthread_cond_t work, ready;
    /* Under the lock: the pass. */
    const adl_sampler *sampler;
    int local_bsz;
    uint64_t seed;
    int64_t next, end; /* tickets not yet begun */
    int busy;
    bool ending;

    int64_t taken; /* by the training thread */
    adli_slot *held;
};

uint64_t adli_mix(uint64_t a, uint64_t b)
{
    uint64_t state = a;
    state = adli_splitmix64(&state) ^ b;
    return adli_splitmix64(&state);
}

adl_status adli_prefetch_new(const adl_loader_options *options, adli_prefetch **out)
{
    *out = NULL;
    adli_prefetch *prefetch = adli_calloc(1, sizeof *prefetch);
    if (!prefetch)
        return adli_fail_memory("loader");
    pthread_mutex_init(&prefetch->lock, NULL);
    pthread_cond_init(&prefetch->work, NULL);
    pthread_cond_init(&prefetch->ready, NULL);
    prefetch->options = options;
    prefetch->slot_count = options->workers > 0 ? options->prefetch + 1 : 1;
    prefetch->slots = adli_calloc((size_t)prefetch->slot_count, sizeof *prefetch->slots);
    prefetch->workers = adli_calloc((size_t)options->workers, sizeof *prefetch->workers);
    if (!prefetch->slots || !prefetch->workers) {
        adli_prefetch_free(prefetch);
        return adli_fail_memory("loader");
    }
    *out = prefetch;
    return ADL_OK;
}

static void free_slot(adli_slot *slot)
{
    free(slot->index);
    for (int p = 0; p < ADL_PARTS_MAX; p++)
        free(slot->part[p]);
    *slot = (adli_slot){0};
}

void adli_prefetch_free(adli_prefetch *prefetch)
{
    if (!prefetch)
        return;
    pthread_mutex_lock(&prefetch->lock);
    prefetch->ending = true;
    pthread_cond_broadcast(&prefetch->work);
    pthread_mutex_unlock(&prefetch->lock);
    for (int i = 0; i < prefetch->started; i++)
        pthread_join(prefetch->workers[i].thread, NULL);
    for (int i = 0; prefetch->slots && i < prefetch->slot_count; i++)
        free_slot(&prefetch->slots[i]);
    free(prefetch->slots);
    free(prefetch->workers);
    pthread_cond_destroy(&prefetch->ready);
    pthread_cond_destroy(&prefetch->work);
    pthread_mutex_destroy(&prefetch->lock);
    free(prefetch);
}

static adl_status allocate_slot(adli_slot *slot, const size_t *part_bytes, int examples)
{
    free_slot(slot);
    slot->index = adli_calloc((size_t)examples, sizeof *slot->index);
    bool complete = slot->index != NULL;
    for (int p = 0; complete && p < ADL_PARTS_MAX && part_bytes[p]; p++) {
        size_t bytes;
        if (__builtin_mul_overflow(part_bytes[p], (size_t)examples, &bytes) ||
            bytes > SIZE_MAX - ALIGNMENT)
            return adli_fail_memory("a batch");
        bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        slot->part[p] = aligned_alloc(ALIGNMENT, bytes);
        complete = slot->part[p] != NULL;
    }
    return complete ? ADL_OK : adli_fail_memory("a batch");
}

/* Fills the slot of a ticket. Without the lock: a slot that is busy belongs to its worker. */
static void fill(adli_prefetch *prefetch, adli_slot *slot, int64_t ticket, int number)
{
    const adl_loader_options *options = prefetch->options;
    size_t length = adl_sampler_length(prefetch->sampler);
    size_t first = (size_t)ticket * (size_t)prefetch->local_bsz;
    size_t left = length - first, full = (size_t)prefetch->local_bsz;
    slot->count = (int)(left < full ? left : full);
    for (int i = 0; i < slot->count; i++)
        slot->index[i] = adl_sampler_get(prefetch->sampler, first + (size_t)i);
    uint64_t seed = adli_mix(adli_mix(prefetch->seed, (uint64_t)number), (uint64_t)ticket);
    adl_fill job = {slot->index, slot->count, slot->part, number, seed};
    slot->status = options->fill ? options->fill(options->user, &job) : ADL_OK;
    if (slot->status != ADL_OK)
        snprintf(slot->error, sizeof slot->error, "%s", adl_error());
}

static void *run(void *user)
{
    worker *self = user;
    adli_prefetch *prefetch = self->prefetch;
    pthread_mutex_lock(&prefetch->lock);
    while (!prefetch->ending) {
        adli_slot *slot = &prefetch->slots[prefetch->next % prefetch->slot_count];
        if (prefetch->next >= prefetch->end || slot->state != SLOT_EMPTY) {
            pthread_cond_wait(&prefetch->work, &prefetch->lock);
            continue;
        }
        int64_t ticket = prefetch->next++;
        slot->state = SLOT_BUSY;
        prefetch->busy++;
        pthread_mutex_unlock(&prefetch->lock);
        fill(prefetch, slot, ticket, self->number);
        pthread_mutex_lock(&prefetch->lock);
        slot->state = SLOT_FULL;
        prefetch->busy--;
        pthread_cond_broadcast(&prefetch->ready);
    }
    pthread_mutex_unlock(&prefetch->lock);
    return NULL;
}

static adl_status start_workers(adli_prefetch *prefetch)
{
    while (prefetch->started < prefetch->options->workers) {
        worker *next = &prefetch->workers[prefetch->started];
        *next = (worker){.prefetch = prefetch, .number = prefetch->started};
        adl_status status = adli_thread_start(&next->thread, "adl-prefetch", run, next);
        if (status != ADL_OK)
            return status;
        prefetch->started++;
    }
    return ADL_OK;
}

adl_status adli_prefetch_begin(adli_prefetch *prefetch, const adl_sampler *sampler, int local_bsz,
                               int64_t batches, uint64_t seed)
{
    adli_prefetch_end(prefetch);
    adl_status status = ADL_OK;
    if (local_bsz > prefetch->slot_examples) {
        prefetch->slot_examples = 0;
        for (int i = 0; i < prefetch->slot_count && status == ADL_OK; i++)
            status = allocate_slot(&prefetch->slots[i], prefetch->options->part_bytes, local_bsz);
        if (status == ADL_OK)
            prefetch->slot_examples = local_bsz;
    }
    if (status == ADL_OK)
        status = start_workers(prefetch);
    if (status != ADL_OK)
        return status;
    pthread_mutex_lock(&prefetch->lock);
    prefetch->sampler = sampler;
    prefetch->local_bsz = local_bsz;
    prefetch->seed = seed;
    prefetch->taken = prefetch->next = 0;
    prefetch->end = batches;
    pthread_cond_broadcast(&prefetch->work);
    pthread_mutex_unlock(&prefetch->lock);
    return ADL_OK;
}

/* With the lock held. */
static void give_back(adli_prefetch *prefetch)
{
    if (prefetch->held) {
        prefetch->held->state = SLOT_EMPTY;
        pthread_cond_signal(&prefetch->work);
    }
    prefetch->held = NULL;
}

adl_status adli_prefetch_take(adli_prefetch *prefetch, adli_slot **out)
{
    int64_t ticket = prefetch->taken++;
    adli_slot *slot = &prefetch->slots[ticket % prefetch->slot_count];
    pthread_mutex_lock(&prefetch->lock);
    give_back(prefetch);
    while (prefetch->started > 0 && slot->state != SLOT_FULL)
        pthread_cond_wait(&prefetch->ready, &prefetch->lock);
    prefetch->held = slot;
    pthread_mutex_unlock(&prefetch->lock);
    if (prefetch->started == 0)
        fill(prefetch, slot, ticket, 0);
    *out = slot;
    return slot->status == ADL_OK ? ADL_OK : adli_fail(slot->status, "%s", slot->error);
}

void adli_prefetch_end(adli_prefetch *prefetch)
{
    pthread_mutex_lock(&prefetch->lock);
    prefetch->end = prefetch->next; /* nothing new is begun */
    while (prefetch->busy > 0)
        pthread_cond_wait(&prefetch->ready, &prefetch->lock);
    for (int i = 0; i < prefetch->slot_count; i++)
        prefetch->slots[i].state = SLOT_EMPTY;
    prefetch->held = NULL;
    pthread_mutex_unlock(&prefetch->lock);
}
