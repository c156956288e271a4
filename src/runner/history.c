/* What the runner remembers in the job's checkpoint. The metrics of every epoch are in it: that is what
 * makes the logs whole after any restart, on any machine. Layout of the state:
 *   u32 version, u64 steps, u32 stopped, u32 best epoch, f64 best metric, u32 bad epochs, f64 early metric
 *   kept, then dropped: u32 count, then for each u32 epoch, f64 metric
 *   u32 tables, then for each: text key, u32 rows, then for each row:
 *     u32 epoch, f64 time, u64 length, table (train/table.h) */
#include "runner/runner.h"

#include "base/mem.h"
#include "train/checkpoint_format.h"

#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, ROWS_MAX = 1 << 24, PACKED_MAX = 16 << 20 };

void adli_history_fini(adli_history *history)
{
    for (size_t i = 0; i < history->count; i++)
        adli_table_fini(&history->rows[i].metrics);
    free(history->rows);
    history->rows = NULL;
    history->count = history->capacity = 0;
}

adl_status adli_history_add(adli_history *history, int epoch, double wall_s,
                            const adli_table *metrics)
{
    while (history->count > 0 && history->rows[history->count - 1].epoch >= epoch)
        adli_table_fini(&history->rows[--history->count].metrics); /* that epoch is run again */
    if (adli_grow(&history->rows, &history->capacity, history->count + 1, sizeof *history->rows) !=
        0)
        return adli_fail_memory("metrics of an epoch");
    adli_row *row = &history->rows[history->count];
    *row = (adli_row){.epoch = epoch, .wall_s = wall_s};
    adl_status status = adli_table_copy(&row->metrics, metrics);
    if (status == ADL_OK)
        history->count++;
    else
        adli_table_fini(&row->metrics);
    return status;
}

adl_status adli_kept_add(adli_kept_list *list, size_t at, adli_kept item)
{
    if (adli_grow(&list->items, &list->capacity, list->count + 1, sizeof *list->items) != 0)
        return adli_fail_memory("list of models");
    memmove(list->items + at + 1, list->items + at, (list->count - at) * sizeof *list->items);
    list->items[at] = item;
    list->count++;
    return ADL_OK;
}

void adli_runner_state_fini(adli_runner_state *state)
{
    for (size_t i = 0; i < ADLI_RUNNER_TABLES; i++)
        adli_history_fini(&state->tables[i]);
    free(state->kept.items);
    free(state->dropped.items);
    state->kept = state->dropped = (adli_kept_list){0};
}

static void sink_kept(adl_sink *sink, const adli_kept_list *list)
{
    adl_sink_u32(sink, (uint32_t)list->count);
    for (size_t i = 0; i < list->count; i++) {
        adl_sink_u32(sink, (uint32_t)list->items[i].epoch);
        adl_sink_f64(sink, list->items[i].metric);
    }
}

static adl_status sink_row(adl_sink *sink, const adli_row *row)
{
    adli_buf packed;
    adli_buf_init(&packed, PACKED_MAX);
    adli_table_pack(&row->metrics, &packed);
    adl_status status = adli_buf_check(&packed);
    adl_sink_u32(sink, (uint32_t)row->epoch);
    adl_sink_f64(sink, row->wall_s);
    adl_sink_u64(sink, packed.length);
    if (status == ADL_OK)
        status = adl_sink_write(sink, packed.data, packed.length);
    adli_buf_fini(&packed);
    return status;
}

static adl_status save(void *user, adl_sink *sink)
{
    adl_runner *runner = user;
    const adli_runner_state *state = &runner->state;
    adl_sink_u32(sink, VERSION);
    adl_sink_u64(sink, state->steps);
    adl_sink_u32(sink, state->stopped);
    adl_sink_u32(sink, (uint32_t)state->best_epoch);
    adl_sink_f64(sink, state->best_metric);
    adl_sink_u32(sink, (uint32_t)state->bad_epochs);
    adl_sink_f64(sink, state->early_metric);
    sink_kept(sink, &state->kept);
    sink_kept(sink, &state->dropped);
    adl_status status = adl_sink_u32(sink, (uint32_t)state->table_count);
    for (size_t t = 0; t < state->table_count && status == ADL_OK; t++) {
        adl_sink_text(sink, state->tables[t].key);
        status = adl_sink_u32(sink, (uint32_t)state->tables[t].count);
        for (size_t i = 0; i < state->tables[t].count && status == ADL_OK; i++)
            status = sink_row(sink, &state->tables[t].rows[i]);
    }
    if (!sink->sent) /* once this is on disk nobody needs them (keep.c) */
        runner->dropped_saved = state->dropped.count;
    return status;
}

static adl_status source_kept(adl_source *source, adli_kept_list *list)
{
    uint32_t count = 0, epoch;
    adl_status status = adl_source_u32(source, &count);
    for (uint32_t i = 0; i < count && status == ADL_OK; i++) {
        adli_kept item = {0};
        status = adl_source_u32(source, &epoch);
        if (status == ADL_OK)
            status = adl_source_f64(source, &item.metric);
        if (status == ADL_OK && (epoch < 1 || epoch > INT32_MAX))
            status = adli_fail(ADL_ECORRUPT, "a model of epoch %u", epoch);
        item.epoch = (int)epoch;
        if (status == ADL_OK)
            status = adli_kept_add(list, list->count, item);
    }
    return status;
}

static adl_status source_row(adl_source *source, adli_history *history)
{
    uint32_t epoch;
    uint64_t length = 0;
    double wall_s = 0;
    const void *data;
    adli_table metrics = {0};
    adl_status status = adl_source_u32(source, &epoch);
    if (status == ADL_OK)
        status = adl_source_f64(source, &wall_s);
    if (status == ADL_OK)
        status = adl_source_u64(source, &length);
    if (status == ADL_OK)
        status = adl_source_view(source, length, &data);
    if (status == ADL_OK && (epoch < 1 || epoch > INT32_MAX || !(wall_s >= 0 && wall_s < 1e11)))
        status = adli_fail(ADL_ECORRUPT, "metrics of epoch %u at %g", epoch, wall_s);
    if (status == ADL_OK)
        status = adli_table_unpack(&metrics, data, length);
    if (status == ADL_OK)
        status = adli_history_add(history, (int)epoch, wall_s, &metrics);
    adli_table_fini(&metrics);
    return status;
}

/* A table's rows go to the table of that key; a loader that is gone is forgotten. */
static adl_status source_table(adl_runner *runner, adl_source *source)
{
    char key[ADL_RUNNER_NAME_MAX + 1];
    uint32_t rows = 0;
    adli_history unused = {0}, *history = &unused;
    adl_status status = adl_source_text(source, key, sizeof key);
    if (status == ADL_OK)
        status = adl_source_u32(source, &rows);
    if (status == ADL_OK && rows > ROWS_MAX)
        status = adli_fail(ADL_ECORRUPT, "%u rows of metrics", rows);
    for (size_t t = 0; t < runner->state.table_count && status == ADL_OK; t++)
        if (strcmp(runner->state.tables[t].key, key) == 0 && runner->state.tables[t].count == 0)
            history = &runner->state.tables[t];
    for (uint32_t i = 0; i < rows && status == ADL_OK; i++)
        status = source_row(source, history);
    adli_history_fini(&unused);
    return status;
}

/* From a checkpoint, or from a replica that is ahead: then there is something already. */
static void clear(adl_runner *runner)
{
    adli_runner_state *state = &runner->state;
    for (size_t t = 0; t < state->table_count; t++)
        adli_history_fini(&state->tables[t]);
    state->kept.count = state->dropped.count = 0;
    runner->dropped_saved = 0; /* whether a checkpoint knows them is not said */
}

static adl_status load(void *user, adl_source *source)
{
    adl_runner *runner = user;
    adli_runner_state *state = &runner->state;
    uint32_t version = 0, stopped = 0, best = 0, bad = 0, tables = 0;
    clear(runner);
    adl_status status = adl_source_u32(source, &version);
    if (status == ADL_OK && version != VERSION)
        status = adli_fail(ADL_ECORRUPT, "state of version %u, expected %d", version, VERSION);
    if (status == ADL_OK)
        status = adl_source_u64(source, &state->steps);
    if (status == ADL_OK)
        status = adl_source_u32(source, &stopped);
    if (status == ADL_OK)
        status = adl_source_u32(source, &best);
    if (status == ADL_OK)
        status = adl_source_f64(source, &state->best_metric);
    if (status == ADL_OK)
        status = adl_source_u32(source, &bad);
    if (status == ADL_OK)
        status = adl_source_f64(source, &state->early_metric);
    if (status == ADL_OK && (best > INT32_MAX || bad > INT32_MAX))
        status = adli_fail(ADL_ECORRUPT, "best epoch %u, %u without a better one", best, bad);
    if (status == ADL_OK)
        status = source_kept(source, &state->kept);
    if (status == ADL_OK)
        status = source_kept(source, &state->dropped);
    if (status == ADL_OK)
        status = adl_source_u32(source, &tables);
    if (status == ADL_OK && tables > ADLI_RUNNER_TABLES)
        status = adli_fail(ADL_ECORRUPT, "%u tables of metrics", tables);
    for (uint32_t t = 0; t < tables && status == ADL_OK; t++)
        status = source_table(runner, source);
    state->stopped = stopped != 0;
    state->best_epoch = (int)best;
    state->bad_epochs = (int)bad;
    return status;
}

adl_status adli_runner_state_register(adl_runner *runner)
{
    adl_checkpoint_functions functions = {sizeof functions, save, load, NULL};
    return adli_state(runner->ctx, "adaptdl.runner", &functions, runner, &runner->restored);
}
