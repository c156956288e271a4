/* Model files: LOGDIR/checkpoints/model.NNNN.adl of the best epochs, model.best.adl, model.last.adl and
 * model.storage.json, which lists the best. The job itself goes on from its checkpoint; these are what is
 * wanted of it.
 *
 * A file that is no longer among the best is removed only when a checkpoint knows that: a job that is
 * killed goes on from the checkpoint before, and may come to another result for the epoch that
 * displaced it. For the same reason model.best is made again from its epoch's file by a process that
 * takes over, which also removes the files of epochs that are yet to come. */
#include "runner/runner.h"

#include "base/file.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/values.h"
#include "train/dp.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_NAME_BYTES = 32, JSON_MAX = 1 << 20 };
static const uint64_t model_bytes_max = UINT64_C(1) << 40;

bool adli_runner_better(const adl_runner *runner, double a, double b)
{
    if (isnan(a) || isnan(b))
        return !isnan(a);
    return runner->options.maximize ? a > b : a < b;
}

static adl_status path_of(const adl_runner *runner, int epoch, adli_buf *path)
{
    char name[FILE_NAME_BYTES];
    snprintf(name, sizeof name, "model.%04d.adl", epoch);
    return adli_runner_path(runner, path, "checkpoints", name);
}

/* ---- which epochs are the best ----------------------------------------------------------------- */

static bool is_kept(const adl_runner *runner, int epoch)
{
    for (size_t i = 0; i < runner->state.kept.count; i++)
        if (runner->state.kept.items[i].epoch == epoch)
            return true;
    return false;
}

/* The list with this epoch in its place, the earlier one first among equals; the last one goes. */
static adl_status rank_epoch(adl_runner *runner, double metric)
{
    adli_kept_list *kept = &runner->state.kept;
    size_t at = 0, most = (size_t)runner->options.keep_best;
    while (at < kept->count && !adli_runner_better(runner, metric, kept->items[at].metric))
        at++;
    if (at >= most)
        return ADL_OK;
    adl_status status = adli_kept_add(kept, at, (adli_kept){runner->epoch, metric});
    while (status == ADL_OK && kept->count > most) {
        adli_kept gone = kept->items[--kept->count];
        status = adli_kept_add(&runner->state.dropped, runner->state.dropped.count, gone);
    }
    return status;
}

static void note_early(adl_runner *runner, double metric, bool first)
{
    adli_runner_state *state = &runner->state;
    double delta =
        runner->options.maximize ? -runner->options.min_delta : runner->options.min_delta;
    if (first || adli_runner_better(runner, metric + delta, state->early_metric)) {
        state->early_metric = metric;
        state->bad_epochs = 0;
    } else {
        state->bad_epochs++;
    }
    if (runner->options.patience > 0 && state->bad_epochs >= runner->options.patience)
        state->stopped = true;
}

static adl_status judge(adl_runner *runner)
{
    adli_runner_state *state = &runner->state;
    double metric;
    adl_status status = adl_runner_get(runner, runner->valid_loader, runner->valid_metric, &metric);
    if (status != ADL_OK)
        return adli_wrap(ADL_EINVAL, "valid_metric");
    bool first = state->best_epoch == 0;
    if (first || adli_runner_better(runner, metric, state->best_metric)) {
        state->best_epoch = runner->epoch;
        state->best_metric = metric;
    }
    note_early(runner, metric, first);
    return rank_epoch(runner, metric);
}

/* ---- files ------------------------------------------------------------------------------------- */

static adl_status write_named(const adl_runner *runner, const char *name, const void *data,
                              size_t length)
{
    adli_buf path;
    adl_status status = adli_runner_path(runner, &path, "checkpoints", name);
    if (status != ADL_OK)
        return status;
    status = adli_write_safely(path.data, data, length);
    adli_buf_fini(&path);
    return status;
}

static adl_status write_storage(const adl_runner *runner)
{
    const adli_kept_list *kept = &runner->state.kept;
    adli_buf text;
    adli_buf_init(&text, JSON_MAX);
    adli_jw_spaced(&text);
    adli_jw_open(&text, NULL, '{');
    adli_jw_text(&text, "logdir", runner->logdir);
    adli_jw_int(&text, "topk", runner->options.keep_best);
    adli_jw_text(&text, "loader_key", runner->valid_loader);
    adli_jw_text(&text, "metric_key", runner->valid_metric);
    adli_jw_bool(&text, "minimize", !runner->options.maximize);
    adli_jw_open(&text, "storage", '[');
    for (size_t i = 0; i < kept->count; i++) {
        adli_buf path;
        if (path_of(runner, kept->items[i].epoch, &path) != ADL_OK)
            continue;
        adli_jw_open(&text, NULL, '{');
        adli_jw_text(&text, "logpath", path.data);
        adli_jw_number(&text, "metric", kept->items[i].metric);
        adli_jw_close(&text, '}');
        adli_buf_fini(&path);
    }
    adli_jw_close(&text, ']');
    adli_jw_close(&text, '}');
    adli_buf_puts(&text, "\n");
    adl_status status = adli_buf_check(&text);
    if (status == ADL_OK)
        status = write_named(runner, "model.storage.json", text.data, text.length);
    adli_buf_fini(&text);
    return status;
}

static adl_status write_model(adl_runner *runner)
{
    const adl_runner_options *options = &runner->options;
    char name[FILE_NAME_BYTES];
    bool best = runner->state.best_epoch == runner->epoch && options->save_best;
    bool kept = is_kept(runner, runner->epoch);
    if (!best && !kept && !options->save_last)
        return ADL_OK;
    size_t length = adli_values_size(runner->values, runner->value_lists);
    void *bytes = adli_calloc(1, length);
    if (!bytes)
        return adli_fail_memory("model file");
    adli_values_save(runner->values, runner->value_lists, bytes);
    if (best)
        runner->best_synced = false;
    snprintf(name, sizeof name, "model.%04d.adl", runner->epoch);
    adl_status status = kept ? write_named(runner, name, bytes, length) : ADL_OK;
    if (status == ADL_OK && best) {
        status = write_named(runner, "model.best.adl", bytes, length);
        runner->best_synced = status == ADL_OK;
    }
    if (status == ADL_OK && options->save_last)
        status = write_named(runner, "model.last.adl", bytes, length);
    free(bytes);
    return status;
}

/* model.best from the file of its epoch, if that is kept. */
static adl_status restore_best(adl_runner *runner)
{
    adli_buf from, to;
    if (runner->best_synced || !runner->options.save_best ||
        !is_kept(runner, runner->state.best_epoch))
        return ADL_OK;
    adl_status status = path_of(runner, runner->state.best_epoch, &from);
    if (status != ADL_OK)
        return status;
    status = adli_runner_path(runner, &to, "checkpoints", "model.best.adl");
    if (status == ADL_OK) {
        status = adli_copy_safely(from.data, to.data);
        adli_buf_fini(&to);
    }
    adli_buf_fini(&from);
    if (status ==
        ADL_ENOENT) { /* it was never written: no reason to keep the others from their files */
        adli_log(runner->ctx, ADL_LOG_WARNING, "model.best.adl stays as it is: %s", adl_error());
        status = ADL_OK;
    }
    runner->best_synced = status == ADL_OK;
    return status;
}

/* Removes the first `count` files of those displaced. */
static void remove_dropped(adl_runner *runner, size_t count)
{
    adli_kept_list *dropped = &runner->state.dropped;
    for (size_t i = 0; i < count; i++) {
        adli_buf path;
        if (path_of(runner, dropped->items[i].epoch, &path) != ADL_OK)
            continue;
        unlink(path.data);
        adli_buf_fini(&path);
    }
    dropped->count -= count;
    if (dropped->count > 0)
        memmove(dropped->items, dropped->items + count, dropped->count * sizeof *dropped->items);
    runner->dropped_saved = 0;
}

/* How many of the displaced are known to the last checkpoint on disk. */
static size_t removable(adl_runner *runner)
{
    adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
    if (!runner->ctx->saves)
        return runner->state.dropped.count;
    adl_checkpoint_get_info(adl_context_store(runner->ctx), &info);
    return info.busy || info.last_status != ADL_OK ? 0 : runner->dropped_saved;
}

/* After a kill: files of this epoch and later ones that nobody has kept are those of the run that was lost. */
static void remove_lost(adl_runner *runner)
{
    adli_buf folder;
    if (runner->lost_removed ||
        (!runner->restored && adl_context_env(runner->ctx)->restarts == 0) ||
        adli_runner_path(runner, &folder, "checkpoints", NULL) != ADL_OK)
        return;
    DIR *dir = opendir(folder.data);
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        char name[FILE_NAME_BYTES];
        int epoch;
        if (sscanf(entry->d_name, "model.%9d.adl", &epoch) != 1 || epoch < runner->epoch ||
            is_kept(runner, epoch))
            continue;
        snprintf(name, sizeof name, "model.%04d.adl", epoch);
        if (strcmp(name, entry->d_name) == 0)
            unlinkat(dirfd(dir), name, 0);
    }
    runner->lost_removed = dir != NULL;
    if (dir)
        closedir(dir);
    adli_buf_fini(&folder);
}

adl_status adli_keep_epoch(adl_runner *runner)
{
    adl_status status = judge(runner);
    if (status != ADL_OK || !runner->logdir || adl_rank(runner->ctx) != 0)
        return status;
    remove_lost(runner);
    status = write_model(runner);
    if (status == ADL_OK)
        status = restore_best(runner);
    if (status == ADL_OK)
        status = write_storage(runner);
    if (status != ADL_OK)
        adli_log(runner->ctx, ADL_LOG_WARNING, "model not saved, training goes on: %s",
                 adl_error());
    else
        remove_dropped(runner, removable(runner));
    return ADL_OK;
}

/* ---- reading ----------------------------------------------------------------------------------- */

/* Rank 0 reads the file, and all replicas get what it says. Collective. */
static adl_status take_values(adl_runner *runner, const char *path)
{
    adl_status status = ADL_OK;
    if (adl_rank(runner->ctx) == 0) {
        adli_buf bytes;
        adli_buf_init(&bytes, model_bytes_max);
        status = adli_file_read(path, &bytes);
        if (status == ADL_OK)
            status =
                adli_values_load(runner->values, runner->value_lists, bytes.data, bytes.length);
        if (status == ADL_ECORRUPT)
            adli_wrap(status, "%s", path);
        adli_buf_fini(&bytes);
    }
    return status == ADL_OK ? adli_dp_share(runner->dp) : status;
}

adl_status adli_keep_resume(adl_runner *runner)
{
    if (!runner->resume || runner->restored)
        return ADL_OK;
    adl_status status = take_values(runner, runner->resume);
    return status == ADL_OK ? ADL_OK : adli_wrap(status, "resume");
}

static adl_status load_best(adl_runner *runner)
{
    adli_buf path;
    adl_status status = adli_runner_path(runner, &path, "checkpoints", "model.best.adl");
    if (status != ADL_OK)
        return status;
    status = take_values(runner, path.data);
    adli_buf_fini(&path);
    return status == ADL_OK ? ADL_OK : adli_wrap(status, "load_best_on_end");
}

adl_status adli_keep_finish(adl_runner *runner)
{
    adl_context *ctx = runner->ctx;
    adl_status status = ADL_OK;
    if (!runner->logdir || runner->state.best_epoch == 0)
        return ADL_OK;
    /* Whether files are left to remove is known to rank 0 only; that there may be, to all. */
    bool displaced = runner->options.keep_best > 0 && runner->epoch > runner->options.keep_best;
    if (displaced && ctx->saves)
        status = adli_save_now(ctx);
    if (status != ADL_OK)
        return adli_wrap(status, "the last checkpoint could not be saved");
    if (adl_rank(ctx) == 0)
        remove_dropped(runner, runner->state.dropped.count);
    runner->state.dropped.count = 0;
    return runner->options.load_best_on_end ? load_best(runner) : ADL_OK;
}
