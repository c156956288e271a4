/* The accumulator. Three tables: `pending`, what this replica has added; `results`, the sums that all
 * replicas agree on; and, while a scope is replayed after a restart, a copy of what it saw the first
 * time. A checkpoint first moves everybody's pending sums into the results, so that it needs only
 * those, on any number of replicas. Where a death can be survived sums travel with each step (sums.h). */
#include "train/accumulator.h"

#include "adaptdl/epoch.h"
#include "base/mem.h"
#include "train/loop.h"
#include "train/regroup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PACKED_MAX = 16 << 20, OUTSIDE_EPOCHS = -1, HISTORY_MAX = 1 << 20 };

/* What a scope outside data loops saw on entry. */
struct adli_moment {
    int epoch;
    adli_table table;
};

static adl_status merge(void *unused, const void *a, size_t a_length, const void *b,
                        size_t b_length, adl_reduced *out)
{
    (void)unused;
    adli_table sum = {0}, more = {0};
    adli_buf packed;
    adli_buf_init(&packed, PACKED_MAX);
    adl_status status = adli_table_unpack(&sum, a, a_length);
    if (status == ADL_OK)
        status = adli_table_unpack(&more, b, b_length);
    if (status == ADL_OK)
        status = adli_table_add(&sum, &more);
    if (status == ADL_OK) {
        adli_table_pack(&sum, &packed);
        status = adli_buf_check(&packed);
    }
    if (status == ADL_OK)
        status = adl_reduced_set(out, packed.data, packed.length);
    adli_buf_fini(&packed);
    adli_table_fini(&more);
    adli_table_fini(&sum);
    return status;
}

/* Everybody's pending sums into the results. Collective. */
static adl_status synchronize(adl_accumulator *accumulator)
{
    adli_buf packed;
    void *reduced = NULL;
    size_t length = 0;
    adli_table sum = {0};
    char name[64];
    snprintf(name, sizeof name, "accumulator %.40s", accumulator->name);
    adli_buf_init(&packed, PACKED_MAX);
    adli_table_pack(&accumulator->pending, &packed);
    adl_status status = adli_buf_check(&packed);
    accumulator->ctx->quiet++;
    if (status == ADL_OK)
        status = adl_group_reduce(accumulator->ctx->group, name, packed.data, packed.length, merge,
                                  NULL, &reduced, &length);
    accumulator->ctx->quiet--;
    if (status == ADL_OK)
        status = adli_table_unpack(&sum, reduced, length);
    if (status == ADL_OK)
        status = adli_table_add(&accumulator->results, &sum);
    if (status == ADL_OK)
        adli_table_clear(&accumulator->pending);
    if (accumulator->ctx->current && sum.count > 0)
        accumulator->ctx->current->torn = true;
    adli_table_fini(&sum);
    free(reduced);
    adli_buf_fini(&packed);
    return status;
}

static adl_status sync_state(void *user)
{
    return synchronize(user);
}

static adl_status sink_table(adl_sink *sink, const adli_table *table)
{
    adli_buf packed;
    adli_buf_init(&packed, PACKED_MAX);
    adli_table_pack(table, &packed);
    adl_status status = adli_buf_check(&packed);
    if (status == ADL_OK)
        status = adl_sink_u64(sink, packed.length);
    if (status == ADL_OK)
        status = adl_sink_write(sink, packed.data, packed.length);
    adli_buf_fini(&packed);
    return status;
}

static adl_status source_table(adl_source *source, adli_table *table)
{
    uint64_t length;
    const void *data;
    adl_status status = adl_source_u64(source, &length);
    if (status == ADL_OK)
        status = adl_source_view(source, length, &data);
    return status == ADL_OK ? adli_table_unpack(table, data, length) : status;
}

static adl_status save(void *user, adl_sink *sink)
{
    const adl_accumulator *accumulator = user;
    adl_status status = sink_table(sink, &accumulator->results);
    if (status == ADL_OK)
        status = adl_sink_u32(sink, (uint32_t)accumulator->history_count);
    for (size_t i = 0; status == ADL_OK && i < accumulator->history_count; i++) {
        adl_sink_u32(sink, (uint32_t)(accumulator->history[i].epoch - OUTSIDE_EPOCHS));
        status = sink_table(sink, &accumulator->history[i].table);
    }
    return status;
}

/* A new moment at the end of the history, with an empty table. */
static adl_status add_moment(adl_accumulator *accumulator, int epoch, adli_moment **out)
{
    if (adli_grow(&accumulator->history, &accumulator->history_capacity,
                  accumulator->history_count + 1, sizeof *accumulator->history) != 0)
        return adli_fail_memory("accumulator");
    *out = &accumulator->history[accumulator->history_count++];
    **out = (adli_moment){.epoch = epoch};
    return ADL_OK;
}

static adl_status load(void *user, adl_source *source)
{
    adl_accumulator *accumulator = user;
    uint32_t count = 0, epoch = 0;
    for (size_t i = 0; i < accumulator->history_count; i++)
        adli_table_fini(&accumulator->history[i].table);
    accumulator->history_count = 0;
    adl_status status = source_table(source, &accumulator->results);
    if (status == ADL_OK)
        status = adl_source_u32(source, &count);
    if (status == ADL_OK && count > HISTORY_MAX)
        status = adli_fail(ADL_ECORRUPT, "a history of %u entries", count);
    for (uint32_t i = 0; status == ADL_OK && i < count; i++) {
        adli_moment *added;
        status = adl_source_u32(source, &epoch);
        if (status == ADL_OK && epoch > INT32_MAX)
            status = adli_fail(ADL_ECORRUPT, "impossible epoch");
        if (status == ADL_OK)
            status = add_moment(accumulator, (int)epoch + OUTSIDE_EPOCHS, &added);
        if (status == ADL_OK)
            status = source_table(source, &added->table);
    }
    return status;
}

static void free_accumulator(void *object)
{
    adl_accumulator *accumulator = object;
    for (size_t i = 0; i < accumulator->history_count; i++)
        adli_table_fini(&accumulator->history[i].table);
    free(accumulator->history);
    adli_table_fini(&accumulator->replayed);
    adli_table_fini(&accumulator->results);
    adli_table_fini(&accumulator->pending);
    free(accumulator);
}

/* What a replica has not told yet is told before it leaves a world, as before a checkpoint. */
const adli_owned_ops adli_accumulator_ops = {.free = free_accumulator};

adl_status adl_accumulator_new(adl_context *ctx, const char *name, adl_accumulator **out)
{
    *out = NULL;
    adl_accumulator *accumulator = adli_calloc(1, sizeof *accumulator);
    if (!accumulator)
        return adli_fail_memory("accumulator");
    accumulator->ctx = ctx;
    accumulator->seen_epoch = OUTSIDE_EPOCHS;
    snprintf(accumulator->name, sizeof accumulator->name, "%s", name);
    adl_status status = adli_context_own(ctx, accumulator, &adli_accumulator_ops);
    if (status != ADL_OK)
        return status;
    char state[ADL_CHECKPOINT_NAME_MAX + 32];
    snprintf(state, sizeof state, "adaptdl.accumulator.%s", name);
    adl_checkpoint_functions functions = {sizeof functions, save, load, sync_state};
    status =
        adl_checkpoint_register(ctx->store, state, &functions, accumulator, &accumulator->state);
    if (status == ADL_OK)
        status = adl_checkpoint_load_state(ctx->store, accumulator->state, &accumulator->restored);
    if (status != ADL_OK) {
        adl_checkpoint_unregister(ctx->store, accumulator->state);
        adli_context_drop(ctx, accumulator);
        return status;
    }
    *out = accumulator;
    return ADL_OK;
}

bool adl_accumulator_restored(const adl_accumulator *accumulator)
{
    return accumulator->restored;
}

void adl_accumulator_free(adl_accumulator *accumulator)
{
    if (!accumulator)
        return;
    adl_checkpoint_unregister(accumulator->ctx->store, accumulator->state);
    adli_context_drop(accumulator->ctx, accumulator);
}

/* What reads and writes are about at present; NULL outside a scope. */
static adli_table *visible(const adl_accumulator *accumulator)
{
    if (accumulator->depth == 0)
        return NULL;
    adl_accumulator *own = (adl_accumulator *)accumulator;
    return accumulator->replaying ? &own->replayed : &own->results;
}

adl_status adl_accumulator_add(adl_accumulator *accumulator, const char *key, double amount)
{
    adli_table *table = visible(accumulator);
    adli_table_entry *entry;
    adl_status status = adli_table_entry_of(table ? table : &accumulator->pending, key, &entry);
    if (status != ADL_OK)
        return adl_context_fail(accumulator->ctx,
                                adli_wrap(status, "accumulator %s", accumulator->name));
    entry->value += amount;
    return ADL_OK;
}

adl_status adl_accumulator_subtract(adl_accumulator *accumulator, const char *key, double amount)
{
    return adl_accumulator_add(accumulator, key, -amount);
}

/* Finished epochs are never run again: what they saw is not needed any more. */
static void forget_finished(adl_accumulator *accumulator)
{
    size_t kept = 0;
    for (size_t i = 0; i < accumulator->history_count; i++) {
        adli_moment *at = &accumulator->history[i];
        if (at->epoch != OUTSIDE_EPOCHS && at->epoch < accumulator->ctx->finished_epochs)
            adli_table_fini(&at->table);
        else
            accumulator->history[kept++] = *at;
    }
    accumulator->history_count = kept;
}

/* The ordinal of this scope among those of its epoch outside data loops. */
static int next_ordinal(adl_accumulator *accumulator, int epoch)
{
    if (epoch == OUTSIDE_EPOCHS)
        return accumulator->seen_outside++;
    if (accumulator->seen_epoch != epoch) {
        accumulator->seen_epoch = epoch;
        accumulator->seen = 0;
    }
    return accumulator->seen++;
}

static const adli_moment *find_moment(const adl_accumulator *accumulator, int epoch, int ordinal)
{
    for (size_t i = 0; i < accumulator->history_count; i++)
        if (accumulator->history[i].epoch == epoch && ordinal-- == 0)
            return &accumulator->history[i];
    return NULL;
}

static adl_status enter_outside_loops(adl_accumulator *accumulator)
{
    int epoch = adl_current_epoch(accumulator->ctx); /* OUTSIDE_EPOCHS when there is none */
    forget_finished(accumulator);
    const adli_moment *then = find_moment(accumulator, epoch, next_ordinal(accumulator, epoch));
    if (then) {
        /* What was added on the way here was added, and counted, the first time already. */
        adli_table_clear(&accumulator->pending);
        accumulator->replaying = true;
        return adli_table_copy(&accumulator->replayed, &then->table);
    }
    adli_moment *added;
    adl_status status = synchronize(accumulator);
    if (status == ADL_OK)
        status = add_moment(accumulator, epoch, &added);
    return status == ADL_OK ? adli_table_copy(&added->table, &accumulator->results) : status;
}

adl_accumulator *adl_accumulator_enter(adl_accumulator *accumulator)
{
    adl_context *ctx = accumulator->ctx;
    if (ctx->joining && ctx->status == ADL_OK)
        adl_context_fail(ctx, adli_join(ctx));
    if (ctx->status != ADL_OK)
        return NULL;
    if (accumulator->depth == 0) {
        if (ctx->current)
            ctx->current->torn = true;
        adl_status status =
            ctx->current ? synchronize(accumulator) : enter_outside_loops(accumulator);
        if (status != ADL_OK) {
            adl_context_fail(ctx, adli_wrap(status, "accumulator %s", accumulator->name));
            return NULL;
        }
    }
    accumulator->depth++;
    return accumulator;
}

void adl_accumulator_leave(adl_accumulator **scope)
{
    adl_accumulator *accumulator = *scope;
    *scope = NULL;
    if (accumulator && --accumulator->depth == 0)
        accumulator->replaying = false;
}

double adl_accumulator_get(const adl_accumulator *accumulator, const char *key)
{
    const adli_table *table = visible(accumulator);
    const adli_table_entry *entry = table ? adli_table_find(table, key) : NULL;
    return entry ? entry->value : 0;
}

bool adl_accumulator_has(const adl_accumulator *accumulator, const char *key)
{
    const adli_table *table = visible(accumulator);
    return table && adli_table_find(table, key);
}

size_t adl_accumulator_count(const adl_accumulator *accumulator)
{
    const adli_table *table = visible(accumulator);
    return table ? table->count : 0;
}

const char *adl_accumulator_key(const adl_accumulator *accumulator, size_t i)
{
    return i < adl_accumulator_count(accumulator) ? visible(accumulator)->entries[i].key : NULL;
}

/* The table to write to; NULL (and the context is stopped) outside a scope. */
static adli_table *writable(adl_accumulator *accumulator, const char *what)
{
    adli_table *table = visible(accumulator);
    if (!table)
        adl_context_fail(
            accumulator->ctx,
            adli_fail(ADL_ESTATE, "accumulator %s: %s outside a scope", accumulator->name, what));
    return table;
}

adl_status adl_accumulator_set(adl_accumulator *accumulator, const char *key, double value)
{
    adli_table *table = writable(accumulator, "set");
    if (!table)
        return ADL_ESTATE;
    adli_table_entry *entry;
    adl_status status = adli_table_entry_of(table, key, &entry);
    if (status != ADL_OK)
        return adl_context_fail(accumulator->ctx,
                                adli_wrap(status, "accumulator %s", accumulator->name));
    entry->value = value;
    return ADL_OK;
}

adl_status adl_accumulator_remove(adl_accumulator *accumulator, const char *key)
{
    adli_table *table = writable(accumulator, "remove");
    if (!table)
        return ADL_ESTATE;
    adli_table_remove(table, key);
    return ADL_OK;
}

adl_status adl_accumulator_clear(adl_accumulator *accumulator)
{
    adli_table *table = writable(accumulator, "clear");
    if (!table)
        return ADL_ESTATE;
    adli_table_clear(table);
    return ADL_OK;
}
