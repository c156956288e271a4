/* What happens to the metrics of an epoch that is over. They join the history on every replica, so that
 * whichever is rank 0 can write the logs, and go to the loggers on rank 0. A log that cannot be written
 * (a full disk) is warned about and written anew at the next chance: it is not worth a job. */
#include "runner/runner.h"

#include "adaptdl/report.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

static void warn(adl_runner *runner, adl_status status)
{
    if (status != ADL_OK)
        adli_log(runner->ctx, ADL_LOG_WARNING, "not logged, training goes on: %s", adl_error());
}

static void log_table(adl_runner *runner, size_t table)
{
    const adl_runner_options *options = &runner->options;
    if (runner->logdir && options->csv) {
        adl_status status = adli_csv_log(runner, table);
        runner->csv_synced[table] = status == ADL_OK;
        warn(runner, status);
    }
    if (runner->logdir && options->tensorboard) {
        adl_status status = adli_board_log(runner, table);
        if (status != ADL_OK)
            adli_board_close(runner, table);
        warn(runner, status);
    }
}

/* All metrics of the epoch for the scheduler, "train/loss" ... and those of no loader by their own names. */
static adl_status report_epoch(adl_runner *runner)
{
    adl_status status = ADL_OK;
    for (size_t t = 0; t < runner->state.table_count; t++) {
        const adli_table *table = &runner->current[t];
        const char *key = runner->state.tables[t].key;
        bool own = strcmp(key, ADLI_EPOCH_KEY) == 0;
        for (size_t i = 0; i < table->count && status == ADL_OK; i++) {
            char name[ADL_RUNNER_NAME_MAX + ADL_ACCUMULATOR_KEY_MAX + 2];
            snprintf(name, sizeof name, "%s%s%s", own ? "" : key, own ? "" : "/",
                     table->entries[i].key);
            adl_metric metric = {name, table->entries[i].value};
            status = adl_report(runner->ctx, runner->epoch, &metric, 1);
        }
    }
    return status;
}

adl_status adli_log_epoch(adl_runner *runner)
{
    double now_s = adli_clock_of(CLOCK_REALTIME);
    adl_status status = ADL_OK;
    for (size_t t = 0; t < runner->state.table_count && status == ADL_OK; t++)
        if (runner->current[t].count > 0)
            status = adli_history_add(&runner->state.tables[t], runner->epoch, now_s,
                                      &runner->current[t]);
    if (status != ADL_OK)
        return status;
    warn(runner, report_epoch(runner));
    if (adl_rank(runner->ctx) != 0) {
        adli_log_close(runner); /* another replica writes from now on */
        return ADL_OK;
    }
    for (size_t t = 0; t < runner->state.table_count; t++)
        if (runner->current[t].count > 0)
            log_table(runner, t);
    adli_console_line(runner, runner->loader_count);
    return ADL_OK;
}

void adli_log_close(adl_runner *runner)
{
    for (size_t t = 0; t < ADLI_RUNNER_TABLES; t++) {
        adli_board_close(runner, t);
        runner->csv_synced[t] = false;
    }
    runner->best_synced = false;
}
