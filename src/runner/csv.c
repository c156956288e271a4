/* LOGDIR/csv_logger/KEY.csv: "step" and the metrics in alphabetical order, one row for each epoch. The
 * first time a process writes it, and whenever a column is new, the whole file is made from the history;
 * otherwise a row is appended. So there is one header, and no epoch is missing or there twice. */
#include "runner/runner.h"

#include <stdio.h>
#include <string.h>

enum { FILE_MAX = 1 << 30, FILE_NAME_BYTES = ADL_RUNNER_NAME_MAX + 8 };

/* The names of all rows as a table. */
static adl_status find_columns(const adli_history *history, adli_table *columns)
{
    adl_status status = ADL_OK;
    adli_table_entry *entry;
    for (size_t r = 0; r < history->count; r++)
        for (size_t i = 0; i < history->rows[r].metrics.count && status == ADL_OK; i++)
            status = adli_table_entry_of(columns, history->rows[r].metrics.entries[i].key, &entry);
    return status;
}

static void put_row(adli_buf *buf, const adli_row *row, const adli_table *columns)
{
    adli_buf_printf(buf, "%d", row->epoch);
    for (size_t i = 0; i < columns->count; i++) {
        const adli_table_entry *entry = adli_table_find(&row->metrics, columns->entries[i].key);
        adli_buf_puts(buf, ",");
        if (entry)
            adli_put_number(buf, entry->value);
    }
    adli_buf_puts(buf, "\n");
}

static void put_all(adli_buf *buf, const adli_history *history, const adli_table *columns)
{
    adli_buf_puts(buf, "step");
    for (size_t i = 0; i < columns->count; i++)
        adli_buf_printf(buf, ",%s", columns->entries[i].key);
    adli_buf_puts(buf, "\n");
    for (size_t r = 0; r < history->count; r++)
        put_row(buf, &history->rows[r], columns);
}

adl_status adli_csv_log(adl_runner *runner, size_t table)
{
    const adli_history *history = &runner->state.tables[table];
    char name[FILE_NAME_BYTES];
    adli_table columns = {0};
    adli_buf path, text;
    snprintf(name, sizeof name, "%s.csv", history->key);
    adl_status status = adli_runner_path(runner, &path, "csv_logger", name);
    if (status != ADL_OK)
        return status;
    adli_buf_init(&text, FILE_MAX);
    status = find_columns(history, &columns);
    bool append = runner->csv_synced[table] && runner->csv_columns[table] == columns.count;
    if (status == ADL_OK && append)
        put_row(&text, &history->rows[history->count - 1], &columns);
    else if (status == ADL_OK)
        put_all(&text, history, &columns);
    if (status == ADL_OK)
        status = adli_buf_check(&text);
    if (status == ADL_OK)
        status = append ? adli_append_safely(path.data, text.data, text.length)
                        : adli_write_safely(path.data, text.data, text.length);
    runner->csv_columns[table] = columns.count;
    adli_buf_fini(&text);
    adli_buf_fini(&path);
    adli_table_fini(&columns);
    return status;
}

adl_status adli_csv_hparams(adl_runner *runner)
{
    adli_buf path;
    if (!runner->hparams)
        return ADL_OK;
    adl_status status = adli_runner_path(runner, &path, "csv_logger", "hparams.json");
    if (status != ADL_OK)
        return status;
    status = adli_write_safely(path.data, runner->hparams, strlen(runner->hparams));
    adli_buf_fini(&path);
    return status;
}
