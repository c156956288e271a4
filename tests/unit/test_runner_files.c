/* What the runner writes: CSV, event files, models. */
#include "runner_model.h"

#include <unistd.h>

/* Changes the options of the next run; the directory of its logs. */
typedef struct change {
    adl_runner_options *options;
    const char *logdir;
    const double *metric;   /* [epochs]: what "score" is, in place of a real one */
    float w[8][TINY_WIDTH]; /* parameters at the end of each epoch */
    int epochs;
    int break_at, mend_at; /* epochs in which a folder is taken away, given back */
    const char *folder;    /* NULL: that of CSV files */
    int block_at;          /* in this epoch a folder is where model.best should be */
} change;

static adl_status each_epoch(void *user, adl_runner *runner)
{
    change *test = user;
    int epoch = adl_runner_epoch(runner);
    char path[512], away[512];
    test->epochs = epoch;
    memcpy(test->w[epoch - 1], ((tiny *)test->options->model.self)->w, sizeof test->w[0]);
    snprintf(path, sizeof path, "%s/checkpoints/model.best.adl", test->logdir);
    if (test->block_at && epoch == test->block_at)
        CHECK(unlink(path) == 0 && mkdir(path, 0777) == 0);
    if (test->block_at && epoch == test->block_at + 1)
        CHECK_INT(rmdir(path), 0);
    snprintf(path, sizeof path, "%s/%s", test->logdir, test->folder ? test->folder : "csv_logger");
    snprintf(away, sizeof away, "%s/away", test->logdir);
    if (epoch == test->break_at)
        CHECK_INT(rename(path, away), 0);
    if (epoch == test->mend_at)
        CHECK_INT(rename(away, path), 0);
    return ADL_OK;
}

static adl_status each_batch(void *user, adl_runner *runner)
{
    const change *test = user;
    double value = test->metric ? test->metric[adl_runner_epoch(runner) - 1] : 1;
    return adl_runner_metric(runner, "score", value, adl_runner_batch_size(runner));
}

/* Trains with these options. */
static adl_status run(change *test, void (*adapt)(adl_runner_options *), tiny *model)
{
    adl_env env = ADL_ENV_INIT;
    adl_options options = ADL_OPTIONS_INIT;
    adl_runner_callback callback = {
        .name = "test", .user = test, .batch_end = each_batch, .epoch_end = each_epoch};
    adl_context *ctx;
    options.env = &env;
    options.log = NULL;
    if (!tiny_init(model) || adl_init(&options, &ctx) != ADL_OK)
        return ADL_EIO;
    adl_runner_options runner = tiny_options(ctx, model);
    runner.logdir = test->logdir;
    runner.callbacks = &callback;
    runner.callback_count = 1;
    test->options = &runner;
    if (adapt)
        adapt(&runner);
    adl_status status = adl_runner_train(ctx, &runner);
    char why[512];
    snprintf(why, sizeof why, "%s", adl_error());
    adl_finish(ctx);
    tiny_fini(model);
    return status == ADL_OK ? ADL_OK : adli_fail(status, "%s", why);
}

TEST(csv_files_look_like_those_of_python)
{
    char *logs = adlt_tempdir();
    change test = {.logdir = logs};
    tiny model;
    CHECK_OK(run(&test, NULL, &model));
    CHECK_STR(file_text("%s/csv_logger/_epoch_.csv", logs),
              "step,lr,momentum\n1,0.005,0.5\n2,0.0025,0.5\n3,0.00125,0.5\n");
    const char *train = file_text("%s/csv_logger/train.csv", logs);
    CHECK_INT(strncmp(train, "step,loss,loss/mean,loss/std,lr,momentum,score,score/std\n1,0.", 61),
              0);
    CHECK(strstr(train, ",0.01,0.5,1.0,0.0\n2,0.") && strstr(train, ",0.005,0.5,1.0,0.0\n3,0."));
    CHECK_INT(occurrences(file_text("%s/csv_logger/valid.csv", logs), "\n"), 4);
    CHECK_OK(run(&test, NULL, &model)); /* from the beginning: the files are begun anew */
    CHECK_INT(occurrences(file_text("%s/csv_logger/train.csv", logs), "step"), 1);
    CHECK_INT(occurrences(file_text("%s/csv_logger/train.csv", logs), "\n"), 4);
    adlt_tempdir_remove(logs);
}

static void with_hparams(adl_runner_options *options)
{
    options->hparams = "{\"lr\": 0.01}";
    options->tensorboard = false;
}

static void without_csv(adl_runner_options *options)
{
    options->csv = false;
}

TEST(loggers_can_be_left_out_and_hparams_put_in)
{
    char *logs = adlt_tempdir();
    change test = {.logdir = logs};
    tiny model;
    int files;
    CHECK_OK(run(&test, without_csv, &model));
    CHECK_STR(file_text("%s/csv_logger/train.csv", logs), "");
    CHECK_INT(events_with(logs, "train", "loss/epoch", &files), 3);
    CHECK_OK(run(&test, with_hparams, &model));
    CHECK_STR(file_text("%s/csv_logger/hparams.json", logs), "{\"lr\": 0.01}");
    CHECK_INT(occurrences(file_text("%s/csv_logger/train.csv", logs), "\n"), 4);
    adlt_tempdir_remove(logs);
}

TEST(a_log_that_fails_is_made_up_for)
{
    char *logs = adlt_tempdir();
    change test = {.logdir = logs, .break_at = 2, .mend_at = 3};
    tiny model;
    CHECK_OK(run(&test, NULL, &model));
    CHECK_INT(test.epochs, 3);
    CHECK_STR(file_text("%s/csv_logger/_epoch_.csv", logs),
              "step,lr,momentum\n1,0.005,0.5\n2,0.0025,0.5\n3,0.00125,0.5\n");
    adlt_tempdir_remove(logs);
}

TEST(event_files_have_every_epoch_once)
{
    char *logs = adlt_tempdir();
    change test = {.logdir = logs};
    tiny model;
    int files;
    for (int again = 0; again < 2; again++) {
        CHECK_OK(run(&test, NULL, &model));
        CHECK_INT(events_with(logs, "train", "score/std/epoch", &files), 3);
        CHECK_INT(files, 1);
        CHECK_INT(events_with(logs, "valid", "loss/mean/epoch", &files), 3);
        CHECK_INT(files, 1);
        CHECK_INT(events_with(logs, "_epoch_", "lr/epoch", &files), 3);
    }
    adlt_tempdir_remove(logs);
}

/* ---- models ------------------------------------------------------------------------------------ */

static void keep_two(adl_runner_options *options)
{
    options->epochs = 5;
    options->keep_best = 2;
    options->valid_metric = "score";
    options->maximize = true;
}

static bool same(const float *a, const float *b)
{
    return memcmp(a, b, TINY_WIDTH * sizeof(float)) == 0;
}

TEST(the_best_the_last_and_no_others_are_kept)
{
    static const double scores[] = {0.2, 0.5, 0.1, 0.5, 0.3};
    char *logs = adlt_tempdir(), text[256];
    change test = {.logdir = logs, .metric = scores};
    float w[TINY_WIDTH];
    tiny model;
    CHECK_OK(run(&test, keep_two, &model));
    CHECK(model_file(logs, "model.best.adl", w) && same(w, test.w[1])); /* the first of equals */
    CHECK(model_file(logs, "model.last.adl", w) && same(w, test.w[4]));
    CHECK(model_file(logs, "model.0002.adl", w) && same(w, test.w[1]));
    CHECK(model_file(logs, "model.0004.adl", w) && same(w, test.w[3]));
    CHECK(!model_file(logs, "model.0001.adl", w) && !model_file(logs, "model.0003.adl", w) &&
          !model_file(logs, "model.0005.adl", w));
    CHECK(!same(test.w[1], test.w[4]));
    const char *json = file_text("%s/checkpoints/model.storage.json", logs);
    snprintf(text, sizeof text, "\"storage\": [{\"logpath\": \"%s/checkpoints/model.0002.adl\"",
             logs);
    CHECK(strstr(json, text) && strstr(json, "model.0004.adl\", \"metric\": 0.5}]"));
    CHECK(strstr(json, "\"topk\": 2") && strstr(json, "\"minimize\": false"));
    CHECK(strstr(json, "\"loader_key\": \"valid\"") && strstr(json, "\"metric_key\": \"score\""));
    adlt_tempdir_remove(logs);
}

/* Epoch 2 is the best; only the file of its own could be written. */
TEST(a_best_model_that_could_not_be_written_is_made_up_for)
{
    static const double scores[] = {0.2, 0.5, 0.1, 0.4, 0.3};
    char *logs = adlt_tempdir();
    change test = {.logdir = logs, .metric = scores, .block_at = 2};
    float w[TINY_WIDTH];
    tiny model;
    CHECK_OK(run(&test, keep_two, &model));
    CHECK(model_file(logs, "model.best.adl", w) && same(w, test.w[1]));
    adlt_tempdir_remove(logs);
}

/* Epoch 1 is the best, and nothing of it could be written: the others' files are kept all the same. */
TEST(a_best_model_that_is_lost_keeps_no_other_from_its_file)
{
    static const double scores[] = {0.9, 0.2, 0.5, 0.1, 0.3};
    char *logs = adlt_tempdir();
    change test = {.logdir = logs, .metric = scores, .folder = "checkpoints"};
    float w[TINY_WIDTH];
    tiny model;
    test.break_at = 1, test.mend_at = 2;
    CHECK_OK(run(&test, keep_two, &model));
    const char *json = file_text("%s/checkpoints/model.storage.json", logs);
    CHECK(strstr(json, "model.0003.adl\", \"metric\": 0.5}]") != NULL);
    CHECK(model_file(logs, "model.0003.adl", w) && same(w, test.w[2]));
    CHECK(!model_file(logs, "model.0002.adl", w)); /* displaced by epoch 3 */
    adlt_tempdir_remove(logs);
}

static void keep_none(adl_runner_options *options)
{
    options->keep_best = 0;
    options->save_best = options->save_last = false;
}

TEST(models_are_not_saved_when_nobody_wants_them)
{
    char *logs = adlt_tempdir();
    change test = {.logdir = logs};
    float w[TINY_WIDTH];
    tiny model;
    CHECK_OK(run(&test, keep_none, &model));
    CHECK(!model_file(logs, "model.best.adl", w) && !model_file(logs, "model.last.adl", w) &&
          !model_file(logs, "model.0001.adl", w));
    adlt_tempdir_remove(logs);
}

static void best_at_the_end(adl_runner_options *options)
{
    keep_two(options);
    options->load_best_on_end = true;
}

TEST(the_best_model_may_be_loaded_at_the_end)
{
    static const double scores[] = {0.2, 0.5, 0.1, NAN, 0.3};
    char *logs = adlt_tempdir();
    change test = {.logdir = logs, .metric = scores};
    tiny model;
    CHECK_OK(run(&test, best_at_the_end, &model));
    CHECK(same(model.w, test.w[1]));
    adlt_tempdir_remove(logs);
}

static char resume_path[512];

static void resume(adl_runner_options *options)
{
    options->epochs = 0;
    options->resume = resume_path;
}

TEST(a_model_file_may_be_the_start)
{
    char *logs = adlt_tempdir();
    change test = {.logdir = logs};
    tiny model, other;
    CHECK_OK(run(&test, NULL, &model));
    snprintf(resume_path, sizeof resume_path, "%s/checkpoints/model.last.adl", logs);
    CHECK_OK(run(&test, resume, &other));
    CHECK(same(other.w, model.w));
    CHECK_OK(adli_file_write(resume_path, "something", 9));
    CHECK_FAILS(run(&test, resume, &other), ADL_ECORRUPT, "model.last.adl: saved network: not one");
    adlt_tempdir_remove(logs);
}

static void patient(adl_runner_options *options)
{
    keep_two(options);
    options->epochs = 8;
    options->patience = 2;
    options->min_delta = 0.05;
}

TEST(training_stops_early_when_nothing_gets_better)
{
    /* 0.22 and 0.21 are not better than 0.2 by more than 0.05, 0.3 is */
    static const double scores[] = {0.2, 0.22, 0.3, 0.31, 0.32, 9, 9, 9};
    char *logs = adlt_tempdir();
    change test = {.logdir = logs, .metric = scores};
    tiny model;
    CHECK_OK(run(&test, patient, &model));
    CHECK_INT(test.epochs, 5);
    CHECK_INT(occurrences(file_text("%s/csv_logger/valid.csv", logs), "\n"), 6);
    adlt_tempdir_remove(logs);
}
