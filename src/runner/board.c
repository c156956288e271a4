/* LOGDIR/tensorboard/KEY: event files. One process writes one file; when it begins it writes the whole
 * history into it and removes the files of processes before it, so that every epoch is there once. A
 * TensorBoard that is looking on is told to forget what it has read. */
#include "runner/runner.h"

#include "base/clock.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static adl_status put_row(adl_tensorboard *board, const adli_row *row)
{
    adl_status status = ADL_OK;
    for (size_t i = 0; i < row->metrics.count && status == ADL_OK; i++) {
        char tag[ADL_ACCUMULATOR_KEY_MAX + 8];
        snprintf(tag, sizeof tag, "%s/epoch", row->metrics.entries[i].key);
        status = adl_tensorboard_scalar(board, tag, row->metrics.entries[i].value, row->epoch,
                                        row->wall_s);
    }
    return status;
}

/* Event files other than the one that is being written. */
static void remove_older(const char *directory, const char *present)
{
    DIR *dir = opendir(directory);
    const char *slash = strrchr(present, '/');
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0 &&
            strcmp(entry->d_name, slash ? slash + 1 : present) != 0)
            unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        closedir(dir);
}

static adl_status begin(adl_runner *runner, size_t table)
{
    const adli_history *history = &runner->state.tables[table];
    double now_s = adli_clock_of(CLOCK_REALTIME);
    adl_tensorboard *board;
    adli_buf path;
    adl_status status = adli_runner_path(runner, &path, "tensorboard", history->key);
    if (status != ADL_OK)
        return status;
    status = adl_tensorboard_open(path.data, now_s, NULL, &board);
    if (status == ADL_OK) {
        runner->boards[table] = board;
        status = adl_tensorboard_restart(board, 0, now_s);
    }
    for (size_t r = 0; r < history->count && status == ADL_OK; r++)
        status = put_row(board, &history->rows[r]);
    if (status == ADL_OK)
        status = adl_tensorboard_flush(board);
    if (status == ADL_OK)
        remove_older(path.data, adl_tensorboard_path(board));
    adli_buf_fini(&path);
    return status;
}

adl_status adli_board_log(adl_runner *runner, size_t table)
{
    const adli_history *history = &runner->state.tables[table];
    adl_tensorboard *board = runner->boards[table];
    if (!board)
        return begin(runner, table);
    adl_status status = put_row(board, &history->rows[history->count - 1]);
    return status == ADL_OK ? adl_tensorboard_flush(board) : status;
}

void adli_board_close(adl_runner *runner, size_t table)
{
    if (adl_tensorboard_close(runner->boards[table]) != ADL_OK)
        adli_log(runner->ctx, ADL_LOG_WARNING, "events not written: %s", adl_error());
    runner->boards[table] = NULL;
}
