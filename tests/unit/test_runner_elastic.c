/* The runner over restarts and on several replicas: the same metrics, and logs without gap or
 * repetition, however often it was interrupted and wherever a killed job's checkpoint stood. */
#include "runner_model.h"
#include "train/checkpoint_store.h"
#include "train/context.h"
#include "worlds.h"

#include <unistd.h>

enum { EPOCHS = 4 };

/* Where a run is to be interrupted: at a batch of a loader in an epoch. */
typedef struct plan {
    const char *logdir;
    int epochs;
    int stop_epoch, stop_batch; /* 0: never */
    const char *stop_key;
    bool best_on_end;
    bool first_is_best;  /* the one of the largest loss; and only that is kept */
    int stop_vote_rank;  /* this rank asks to end the training in epoch 2; -1: none */
    int stop_vote_batch; /* at this batch of training; 0: at the end of the epoch */
    int victim;          /* dies where the run would be interrupted; on three replicas */
    bool by_step;        /* the schedule */
    float w[ADLT_REPLICAS_MAX][TINY_WIDTH];
    int epochs_run;
} plan;

static bool votes(const plan *to, adl_runner *runner)
{
    return adl_runner_epoch(runner) == 2 &&
           adl_rank(adl_runner_context(runner)) == to->stop_vote_rank;
}

static adl_status interrupt(void *user, adl_runner *runner)
{
    const plan *to = user;
    if (votes(to, runner) && to->stop_vote_batch && strcmp(adl_runner_key(runner), "train") == 0 &&
        adl_runner_batch(runner)->number == to->stop_vote_batch)
        adl_runner_stop(runner);
    if (adl_runner_epoch(runner) == to->stop_epoch &&
        strcmp(adl_runner_key(runner), to->stop_key) == 0 &&
        adl_runner_batch(runner)->number == to->stop_batch)
        adl_stop(adl_runner_context(runner));
    return ADL_OK;
}

static adl_status die(void *user, adl_runner *runner)
{
    const plan *to = user;
    adl_context *ctx = adl_runner_context(runner);
    if (adl_replicas(ctx) < 3 || adl_rank(ctx) != to->victim ||
        adl_runner_epoch(runner) != to->stop_epoch ||
        strcmp(adl_runner_key(runner), to->stop_key) != 0 ||
        adl_runner_batch(runner)->number != to->stop_batch)
        return ADL_OK;
    return adl_context_failf(ctx, ADL_EIO, "dies on purpose");
}

static adl_status vote(void *user, adl_runner *runner)
{
    plan *to = user;
    if (adl_rank(adl_runner_context(runner)) == 0)
        to->epochs_run++;
    if (votes(to, runner) && !to->stop_vote_batch)
        adl_runner_stop(runner);
    return ADL_OK;
}

static tiny models[ADLT_REPLICAS_MAX]; /* they must live until adl_finish */

static void train(adlt_replica *replica)
{
    plan *to = replica->job->user;
    adl_runner_callback callback = {
        .name = "plan", .user = to, .batch_end = interrupt, .epoch_end = vote};
    tiny *model = &models[replica->rank];
    adl_runner_options options = tiny_options(replica->ctx, model);
    options.epochs = to->epochs;
    options.topk[0] = 1;
    options.logdir = to->logdir;
    options.callbacks = &callback;
    options.callback_count = 1;
    options.load_best_on_end = to->best_on_end;
    options.keep_best = to->first_is_best ? 0 : 2;
    options.maximize = to->first_is_best;
    adl_status status = adl_runner_train(replica->ctx, &options);
    if (status != ADL_OK && status != ADL_EINTR)
        ADLT_FAIL("rank %d: %s", replica->rank, adl_error());
    memcpy(to->w[replica->rank], model->w, sizeof model->w);
}

static void run(const adlt_job *job, int replicas, int code)
{
    for (int r = 0; r < replicas; r++)
        CHECK(tiny_init(&models[r]));
    adlt_replicas_expect(job, replicas, train, code);
    for (int r = 0; r < replicas; r++)
        tiny_fini(&models[r]);
}

/* Column `name` of row `epoch` in a CSV file. */
static double cell(const char *logdir, const char *key, const char *name, int epoch)
{
    char text[1 << 14], *lines = text, *line, header[1024];
    int row = 0;
    snprintf(text, sizeof text, "%s", file_text("%s/csv_logger/%s.csv", logdir, key));
    snprintf(header, sizeof header, "%s", strsep(&lines, "\n"));
    while ((line = strsep(&lines, "\n")) && ++row < epoch)
        ;
    char *names = header, *values = line, *column;
    while ((column = strsep(&names, ","))) {
        char *value = values ? strsep(&values, ",") : NULL;
        if (value && strcmp(column, name) == 0)
            return strtod(value, NULL);
    }
    return NAN;
}

/* Every file has epochs 1 .. epochs, each once. */
static void check_files(const char *logdir, int epochs)
{
    static const char *const keys[] = {"train", "valid", "_epoch_"};
    for (size_t k = 0; k < 3; k++) {
        int files;
        for (int epoch = 1; epoch <= epochs; epoch++)
            CHECK_INT(cell(logdir, keys[k], "step", epoch), epoch);
        CHECK_INT(occurrences(file_text("%s/csv_logger/%s.csv", logdir, keys[k]), "\n"),
                  epochs + 1);
        CHECK_INT(events_with(logdir, keys[k], "lr/epoch", &files), epochs);
        CHECK_INT(files, 1);
    }
}

/* Metrics of two directories are the same, but for the order of sums. */
static void check_same(const char *a, const char *b, int epochs)
{
    static const char *const names[] = {"loss", "loss/std", "accuracy01", "lr"};
    for (int epoch = 1; epoch <= epochs; epoch++)
        for (size_t i = 0; i < 4; i++) {
            double wanted = cell(a, "valid", names[i], epoch);
            if (strcmp(names[i], "loss/std") != 0) /* of batches: they are others */
                CHECK_NEAR(cell(b, "valid", names[i], epoch), wanted, 1e-4);
            CHECK_NEAR(cell(b, "train", names[i], epoch), cell(a, "train", names[i], epoch),
                       strcmp(names[i], "loss/std") == 0 ? HUGE_VAL : 1e-4);
        }
}

static const char *in_dir(const char *directory, const char *name)
{
    static char paths[64][256];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, 256, "%s/%s", directory, name);
    return path;
}

TEST(interrupted_anywhere_on_any_number_of_replicas)
{
    static const struct {
        int epoch, batch, replicas;
        const char *key;
    } stops[] = {{1, 0, 1, "train"}, {1, 2, 2, "train"}, {1, 1, 1, "valid"},
                 {2, 3, 2, "train"}, {3, 0, 2, "valid"}, {4, 1, 1, "train"}};
    char *directory = adlt_tempdir();
    plan whole = {.logdir = in_dir(directory, "whole"), .epochs = EPOCHS, .stop_vote_rank = -1};
    run(&(adlt_job){.user = &whole}, 1, 0);
    check_files(whole.logdir, EPOCHS);
    const char *logs = in_dir(directory, "parts");
    for (size_t i = 0; i <= sizeof stops / sizeof stops[0]; i++) {
        plan part = {.logdir = logs, .epochs = EPOCHS, .stop_vote_rank = -1};
        adlt_job job = {.checkpoint = in_dir(directory, "ck"), .restarts = (int)i, .user = &part};
        bool last = i == sizeof stops / sizeof stops[0];
        if (!last) {
            part.stop_epoch = stops[i].epoch;
            part.stop_batch = stops[i].batch;
            part.stop_key = stops[i].key;
        }
        run(&job, last ? 2 : stops[i].replicas, last ? 0 : 143);
    }
    check_files(logs, EPOCHS);
    check_same(whole.logdir, logs, EPOCHS);
    adlt_tempdir_remove(directory);
}

static void copy_tree(const char *from, const char *to)
{
    char command[1024];
    snprintf(command, sizeof command, "rm -rf %s && cp -a %s %s", to, from, to);
    CHECK_INT(system(command), 0);
}

/* A kill is a run that goes on from an older checkpoint than its files know. */
TEST(a_killed_run_repeats_nothing_in_its_files)
{
    char *directory = adlt_tempdir();
    const char *logs = in_dir(directory, "logs"), *ck = in_dir(directory, "ck"),
               *old = in_dir(directory, "old");
    plan part = {.logdir = logs,
                 .epochs = EPOCHS,
                 .stop_epoch = 2,
                 .stop_batch = 3,
                 .stop_key = "train",
                 .stop_vote_rank = -1};
    adlt_job job = {.checkpoint = ck, .user = &part};
    float best[TINY_WIDTH], again[TINY_WIDTH];
    run(&job, 1, 143);
    copy_tree(ck, old);
    part.stop_epoch = 4; /* epochs 2 and 3 are done and logged, and will be forgotten */
    job.restarts = 1;
    run(&job, 1, 143);
    check_files(logs, 3);
    CHECK(model_file(logs, "model.0003.adl", best));
    copy_tree(old, ck);
    part.stop_epoch = 3;
    job.restarts = 2;
    run(&job, 2, 143);
    check_files(logs, 2);
    part.stop_epoch = 0;
    job.restarts = 3;
    run(&job, 1, 0);
    check_files(logs, EPOCHS);
    CHECK(model_file(logs, "model.0003.adl", best) && model_file(logs, "model.0004.adl", again));
    CHECK(!model_file(logs, "model.0001.adl", again) && !model_file(logs, "model.0002.adl", again));
    CHECK(model_file(logs, "model.best.adl", best) && model_file(logs, "model.0004.adl", again));
    CHECK(memcmp(best, again, sizeof best) == 0);
    adlt_tempdir_remove(directory);
}

/* The state says that epoch 1 is the best; the file on disk is of a later, forgotten epoch. */
TEST(the_best_model_is_made_again_after_a_kill)
{
    char *directory = adlt_tempdir();
    const char *logs = in_dir(directory, "logs"), *ck = in_dir(directory, "ck");
    plan part = {.logdir = logs,
                 .epochs = EPOCHS,
                 .stop_epoch = 2,
                 .stop_batch = 3,
                 .stop_key = "train",
                 .stop_vote_rank = -1};
    adlt_job job = {.checkpoint = ck, .user = &part};
    float w[TINY_WIDTH], first[TINY_WIDTH];
    run(&job, 1, 143);
    CHECK(model_file(logs, "model.0001.adl", first));
    CHECK_OK(adli_file_write(in_dir(directory, "logs/checkpoints/model.best.adl"), "x", 1));
    part.stop_epoch = 0;
    part.epochs = 2;
    job.restarts = 1;
    run(&job, 1, 0); /* epoch 2 is better: model.best is its */
    CHECK(model_file(logs, "model.best.adl", w) && memcmp(w, first, sizeof w) != 0);
    adlt_tempdir_remove(directory);
}

/* What a run wrote that was killed after the checkpoint: epochs that were better, and other files of them. */
TEST(nothing_of_a_lost_run_is_left)
{
    static const char *const lost[] = {"model.0002.adl", "model.0003.adl", "model.12345.adl"};
    char *directory = adlt_tempdir();
    const char *logs = in_dir(directory, "logs");
    plan part = {.logdir = logs,
                 .epochs = 3,
                 .first_is_best = true,
                 .stop_epoch = 2,
                 .stop_batch = 3,
                 .stop_key = "train",
                 .stop_vote_rank = -1};
    adlt_job job = {.checkpoint = in_dir(directory, "ck"), .user = &part};
    float w[TINY_WIDTH], first[TINY_WIDTH];
    char path[512];
    run(&job, 1, 143);
    CHECK(model_file(logs, "model.best.adl", first));
    CHECK_OK(adli_file_write(in_dir(directory, "logs/checkpoints/model.best.adl"), "x", 1));
    for (size_t i = 0; i < sizeof lost / sizeof lost[0]; i++) {
        snprintf(path, sizeof path, "%s/checkpoints/%s", logs, lost[i]);
        CHECK_OK(adli_file_write(path, "x", 1));
    }
    snprintf(path, sizeof path, "%s/checkpoints/model.0009.adl.mine", logs);
    CHECK_OK(adli_file_write(path, "x", 1));
    part.stop_epoch = 0;
    job.restarts = 1;
    run(&job, 1, 0);
    CHECK(model_file(logs, "model.best.adl", w) && memcmp(w, first, sizeof w) == 0);
    CHECK_INT(access(path, F_OK), 0); /* not a name of ours */
    for (size_t i = 0; i < sizeof lost / sizeof lost[0]; i++) {
        snprintf(path, sizeof path, "%s/checkpoints/%s", logs, lost[i]);
        CHECK_INT(access(path, F_OK), -1);
    }
    adlt_tempdir_remove(directory);
}

TEST(a_finished_job_has_nothing_left_to_do)
{
    char *directory = adlt_tempdir();
    plan part = {.logdir = in_dir(directory, "logs"),
                 .epochs = EPOCHS,
                 .stop_vote_rank = -1,
                 .best_on_end = true};
    adlt_job job = {.checkpoint = in_dir(directory, "ck"), .user = &part};
    run(&job, 2, 0);
    CHECK_INT(part.epochs_run, EPOCHS);
    CHECK(memcmp(part.w[0], part.w[1], sizeof part.w[0]) == 0);
    job.restarts = 1;
    part.epochs_run = 0;
    run(&job, 2, 0);
    CHECK_INT(part.epochs_run, 0);
    part.epochs = EPOCHS + 2; /* more epochs: it goes on */
    job.restarts = 2;
    run(&job, 1, 0);
    CHECK_INT(part.epochs_run, 2);
    check_files(part.logdir, EPOCHS + 2);
    adlt_tempdir_remove(directory);
}

TEST(one_replica_that_wants_to_stop_is_enough_and_it_stays_stopped)
{
    char *directory = adlt_tempdir();
    plan part = {.logdir = in_dir(directory, "logs"), .epochs = EPOCHS, .stop_vote_rank = 1};
    adlt_job job = {.checkpoint = in_dir(directory, "ck"), .user = &part};
    run(&job, 2, 0);
    CHECK_INT(part.epochs_run, 2);
    part.stop_vote_rank = -1;
    job.restarts = 1;
    run(&job, 1, 0);
    CHECK_INT(part.epochs_run, 2);
    check_files(part.logdir, 2);
    adlt_tempdir_remove(directory);
}

/* A wish of the middle of an epoch, and a restart before its end. */
TEST(a_wish_to_stop_outlives_a_restart)
{
    char *directory = adlt_tempdir();
    plan part = {.logdir = in_dir(directory, "logs"),
                 .epochs = EPOCHS,
                 .stop_epoch = 2,
                 .stop_batch = 2,
                 .stop_key = "train",
                 .stop_vote_rank = 1,
                 .stop_vote_batch = 1};
    adlt_job job = {.checkpoint = in_dir(directory, "ck"), .user = &part};
    run(&job, 2, 143);
    CHECK_INT(part.epochs_run, 1);
    part.stop_epoch = 0;
    part.stop_vote_rank = -1;
    job.restarts = 1;
    run(&job, 1, 0);
    CHECK_INT(part.epochs_run, 2);
    check_files(part.logdir, 2);
    adlt_tempdir_remove(directory);
}

/* Three examples on two replicas: the second one has one of the first's as well. */
typedef struct first_epoch {
    double loss, accuracy;
} first_epoch;

static adl_status note_first(void *user, adl_runner *runner)
{
    first_epoch *to = user;
    if (adl_runner_epoch(runner) != 1 || adl_rank(adl_runner_context(runner)) != 0)
        return ADL_OK;
    CHECK_OK(adl_runner_get(runner, "train", "accuracy", &to->accuracy));
    return adl_runner_get(runner, "train", "loss", &to->loss);
}

static void train_on_three(adlt_replica *replica)
{
    adl_runner_callback callback = {
        .name = "first", .user = replica->job->user, .epoch_end = note_first};
    adl_runner_options options = tiny_options(replica->ctx, &models[replica->rank]);
    options.epochs = 1;
    options.topk[0] = 1;
    options.loaders[0].loader = tiny_loader(replica->ctx, "three", 3, 4);
    options.callbacks = &callback;
    options.callback_count = 1;
    CHECK_OK(adl_runner_train(replica->ctx, &options));
}

static void train_dying(adlt_replica *replica)
{
    plan *to = replica->job->user;
    adl_runner_callback callback = {.name = "death", .user = to, .batch_begin = die};
    adl_runner_options options = tiny_options(replica->ctx, &models[replica->rank]);
    options.epochs = EPOCHS;
    options.topk[0] = 1;
    options.logdir = to->logdir;
    options.schedule_by = to->by_step ? ADL_BY_STEP : ADL_BY_EPOCH;
    options.callbacks = &callback;
    options.callback_count = 1;
    if (adl_runner_train(replica->ctx, &options) != ADL_OK && replica->rank != to->victim)
        ADLT_FAIL("rank %d: %s", replica->rank, adl_error());
}

/* Nobody is restarted, and there are no checkpoints to go back to. */
static void check_death(plan *to, const char *whole)
{
    adlt_worlds worlds;
    adlt_replica all[ADLT_REPLICAS_MAX];
    for (int r = 0; r < 3; r++)
        CHECK(tiny_init(&models[r]));
    adlt_worlds_start(&worlds, 3, to->victim);
    adlt_job job = {.user = to, .world_socket = worlds.path};
    adlt_replicas_run(&job, 3, train_dying, all);
    adlt_worlds_stop(&worlds);
    for (int r = 0; r < 3; r++) {
        CHECK_INT(all[r].code, r == to->victim ? 1 : 0);
        tiny_fini(&models[r]);
    }
    check_files(to->logdir, EPOCHS);
    check_same(whole, to->logdir, EPOCHS);
}

TEST(a_death_changes_no_metric)
{
    static const struct {
        const char *key;
        int batch;
    } places[] = {{"train", 0}, {"train", 4}, {"valid", 0}, {"valid", 1}};
    for (int by_step = 0; by_step < 2; by_step++) {
        char directory[64];
        strcpy(directory, adlt_tempdir());
        plan part = {.by_step = by_step, .victim = 9, .logdir = in_dir(directory, "whole")};
        adlt_job job = {.user = &part};
        CHECK(tiny_init(&models[0]));
        adlt_replicas_expect(&job, 1, train_dying, 0);
        tiny_fini(&models[0]);
        const char *whole = part.logdir;
        for (int i = 0; i < 8; i++) {
            char name[16];
            snprintf(name, sizeof name, "death-%d", i);
            part.logdir = in_dir(directory, name);
            part.victim = i % 3;
            part.stop_epoch = 2;
            part.stop_key = places[i % 4].key;
            part.stop_batch = places[i % 4].batch;
            check_death(&part, whole);
        }
        adlt_tempdir_remove(directory);
    }
}

TEST(training_metrics_count_every_example_once)
{
    first_epoch seen[2];
    for (int replicas = 1; replicas <= 2; replicas++) {
        adlt_job job = {.user = &seen[replicas - 1]};
        for (int r = 0; r < replicas; r++)
            CHECK(tiny_init(&models[r]));
        adlt_replicas_expect(&job, replicas, train_on_three, 0);
        for (int r = 0; r < replicas; r++)
            tiny_fini(&models[r]);
    }
    CHECK_NEAR(seen[1].loss, seen[0].loss, 1e-6);
    CHECK_NEAR(seen[1].accuracy, seen[0].accuracy, 1e-9);
}

/* ---- states that are sent to another replica ---------------------------------------------------- */

typedef struct sending {
    const char *logdir;
    bool there[8][8]; /* [epoch][e]: was model.000e there when the epoch began? */
    bool takes;       /* what it has sent: another was ahead */
} sending;

/* As transfer.c does it, into memory and out of it. */
static void send_state(adl_runner *runner, bool takes)
{
    adl_context *ctx = adl_runner_context(runner);
    const adl_checkpoint_state *state = adli_checkpoint_find(ctx->store, "adaptdl.runner");
    adl_sink sink;
    adli_sink_init(&sink, TINY_TEXT_MAX);
    sink.sent = true;
    CHECK_OK(state->functions.save(state->user, &sink));
    adl_source source = {.at = sink.data, .remaining = sink.length, .buffered = sink.length};
    if (takes)
        CHECK_OK(state->functions.load(state->user, &source));
    adli_sink_fini(&sink);
}

static adl_status send_or_save(void *user, adl_runner *runner)
{
    sending *to = user;
    int epoch = adl_runner_epoch(runner);
    for (int e = 1; e < epoch; e++) {
        char path[512];
        snprintf(path, sizeof path, "%s/checkpoints/model.%04d.adl", to->logdir, e);
        to->there[epoch][e] = access(path, F_OK) == 0;
    }
    if (epoch == 3)
        send_state(runner, to->takes);
    return epoch == 4 ? adl_checkpoint_save_all(adl_runner_context(runner)->store) : ADL_OK;
}

static void train_sending(adlt_replica *replica)
{
    sending *to = replica->job->user;
    adl_runner_callback callback = {.name = "send", .user = to, .epoch_begin = send_or_save};
    adl_runner_options options = tiny_options(replica->ctx, &models[0]);
    options.epochs = 6;
    options.logdir = to->logdir;
    options.keep_best = 2;
    options.callbacks = &callback;
    options.callback_count = 1;
    CHECK_OK(adl_runner_train(replica->ctx, &options));
}

static void run_sending(const adlt_job *job)
{
    CHECK(tiny_init(&models[0]));
    adlt_replicas_expect(job, 1, train_sending, 0);
    tiny_fini(&models[0]);
}

/* Each epoch is better than those before, and displaces the last but one. No checkpoint knows of that until epoch 4 saves one, though
 * epoch 3 sends the state to somebody who joins. */
TEST(a_model_is_removed_when_a_checkpoint_knows_and_not_when_a_replica_does)
{
    for (int takes = 0; takes < 2; takes++) {
        char *directory = adlt_tempdir();
        sending to = {.logdir = in_dir(directory, "logs"), .takes = takes};
        run_sending(&(adlt_job){.checkpoint = in_dir(directory, "ck"), .user = &to});
        for (int e = 1; e <= 3; e++)
            CHECK(to.there[4][e]);
        CHECK(!to.there[5][1]);
        for (int e = 2; e <= 4; e++)
            CHECK(to.there[5][e] && to.there[6][e]);
        CHECK_INT(
            occurrences(file_text("%s/checkpoints/model.storage.json", to.logdir), "model.00"), 2);
        check_files(to.logdir, 6);
        adlt_tempdir_remove(directory);
    }
}
