/* The inside of the runner. What must outlive a restart is in `state`; the rest is made anew. */
#ifndef ADLI_RUNNER_RUNNER_H
#define ADLI_RUNNER_RUNNER_H

#include "adaptdl/runner.h"
#include "train/context.h"
#include "train/table.h"

#define ADLI_EPOCH_KEY "_epoch_" /* the table of what belongs to no loader */

enum { ADLI_RUNNER_TABLES = ADL_RUNNER_LOADERS_MAX + 1, ADLI_RUNNER_KEEP_MAX = 1000 };

/* One epoch of one loader (or of _epoch_) as it was logged. */
typedef struct adli_row {
    int epoch;     /* from 1 */
    double wall_s; /* when */
    adli_table metrics;
} adli_row;

typedef struct adli_history {
    char key[ADL_RUNNER_NAME_MAX + 1];
    adli_row *rows; /* in the order of epochs */
    size_t count, capacity;
} adli_history;

/* A model file that is kept, or that is to be removed. */
typedef struct adli_kept {
    int epoch;
    double metric;
} adli_kept;

typedef struct adli_kept_list {
    adli_kept *items;
    size_t count, capacity;
} adli_kept_list;

/* Saved in the job's checkpoint; the same on all replicas. */
typedef struct adli_runner_state {
    uint64_t steps;
    bool stopped;               /* early: there is nothing left to do */
    int best_epoch, bad_epochs; /* 0: none yet; epochs since early_metric was reached */
    double best_metric, early_metric;
    adli_kept_list kept;    /* best first */
    adli_kept_list dropped; /* files that no checkpoint needs once this state is in one */
    adli_history tables[ADLI_RUNNER_TABLES];
    size_t table_count;
} adli_runner_state;

typedef struct adli_bar {
    bool shown;      /* there is something on the terminal's line */
    double drawn_s;  /* when */
    uint64_t tenths; /* of the data that a line was written for */
    double start_s;
    uint64_t start_done;
} adli_bar;

typedef struct adli_runner_loader {
    char key[ADL_RUNNER_NAME_MAX + 1];
    adl_loader *loader;
    adl_accumulator *sums;
    bool train, infer;
} adli_runner_loader;

struct adl_runner {
    adl_context *ctx;
    adl_runner_options options; /* strings are ours, below */
    char *logdir, *hparams, *resume, *valid_loader, *valid_metric;
    adl_runner_callback *callbacks; /* names are ours */
    adli_runner_loader loaders[ADL_RUNNER_LOADERS_MAX];
    size_t loader_count;
    adl_param_group *values; /* [value_lists]: the optimizer's groups, then the buffers */
    size_t value_lists;
    adl_accumulator *votes; /* what any replica may ask for at the end of an epoch */
    adl_dp *dp;
    adli_runner_state state;
    bool restored; /* from a checkpoint */

    /* The present epoch, loader and batch. */
    int epoch; /* from 1 */
    adli_runner_loader *loader;
    const adl_batch *batch;
    int size;
    const float *out;
    double loss;
    float *dout;
    size_t dout_capacity;
    bool ending; /* between the last loader and the log: metrics are those of _epoch_ */
    adli_table current[ADLI_RUNNER_TABLES]; /* metrics of this epoch, as state.tables */

    /* Loggers and files of this process. */
    adli_bar bar;
    bool terminal;
    bool csv_synced[ADLI_RUNNER_TABLES]; /* the file is what the history says, so far */
    size_t csv_columns[ADLI_RUNNER_TABLES];
    adl_tensorboard *boards[ADLI_RUNNER_TABLES];
    bool best_synced;     /* model.best is the state's best, or there is nothing to make it from */
    size_t dropped_saved; /* of state.dropped, how many the last save knew */
    bool lost_removed;    /* files of epochs that a kill has undone are gone */
};

/* history.c */
ADL_MUST adl_status adli_history_add(adli_history *history, int epoch, double wall_s,
                                     const adli_table *metrics);
void adli_history_fini(adli_history *history);
ADL_MUST adl_status adli_runner_state_register(adl_runner *runner);
void adli_runner_state_fini(adli_runner_state *state);
ADL_MUST adl_status adli_kept_add(adli_kept_list *list, size_t at, adli_kept item);

/* metrics.c */
ADL_MUST adl_status adli_check_metric_name(const char *name);
/* A batch's loss and accuracies into the sums of its loader. */
ADL_MUST adl_status adli_runner_count(adl_runner *runner);
/* The sums of all replicas become the loader's metrics of this epoch. Collective. */
ADL_MUST adl_status adli_runner_collect(adl_runner *runner, size_t loader);
/* How many of `size` rows have fewer than k values above the label's. */
int adli_count_topk(const float *out, const int32_t *label, int size, int width, int k);
/* Learning rate and momentum into the table of _epoch_. */
ADL_MUST adl_status adli_runner_epoch_rates(adl_runner *runner);
size_t adli_runner_table(const adl_runner *runner, const char *key);

/* log.c, csv.c, board.c, console.c: everything here does nothing on other ranks than 0. */
ADL_MUST adl_status adli_log_epoch(adl_runner *runner);
void adli_log_close(adl_runner *runner);
ADL_MUST adl_status adli_csv_log(adl_runner *runner, size_t table);
ADL_MUST adl_status adli_csv_hparams(adl_runner *runner);
ADL_MUST adl_status adli_board_log(adl_runner *runner, size_t table);
void adli_board_close(adl_runner *runner, size_t table);
void adli_console_line(adl_runner *runner, size_t table);
void adli_console_top(adl_runner *runner);
void adli_bar_begin(adl_runner *runner);
void adli_bar_batch(adl_runner *runner);
void adli_bar_end(adl_runner *runner);

/* keep.c: model files. */
ADL_MUST adl_status adli_keep_epoch(adl_runner *runner);
ADL_MUST adl_status adli_keep_finish(adl_runner *runner);
ADL_MUST adl_status adli_keep_resume(adl_runner *runner);
/* Is a better than b, by the options? */
bool adli_runner_better(const adl_runner *runner, double a, double b);

/* files.c */
/* The whole file, safe on disk under its name or not there at all. */
ADL_MUST adl_status adli_write_safely(const char *path, const void *data, size_t length);
ADL_MUST adl_status adli_append_safely(const char *path, const void *data, size_t length);
ADL_MUST adl_status adli_copy_safely(const char *from, const char *to);
/* LOGDIR/folder/name into buf. */
ADL_MUST adl_status adli_runner_path(const adl_runner *runner, adli_buf *buf, const char *folder,
                                     const char *name);
/* A number as Python prints it, so that the files of both runners look alike. */
void adli_put_number(adli_buf *buf, double value);

#endif
