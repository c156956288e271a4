/* The runner on one process: who is called when, what metrics are, what is printed. Files are in
 * test_runner_files.c, restarts and replicas in test_runner_elastic.c. */
#include "runner_model.h"

#include "runner/runner.h"

#include <pty.h>
#include <unistd.h>

typedef struct seen {
    char text[4096]; /* one letter for each event, a number for each epoch */
    double loss_sum, weight_sum, accuracy;
    int fail_at; /* event letter that fails; 0: none */
    int stop_at; /* epoch that asks to stop */
} seen;

static adl_status note(seen *to, adl_runner *runner, char event)
{
    size_t length = strlen(to->text);
    snprintf(to->text + length, sizeof to->text - length, "%c", event);
    if (event == 'E')
        snprintf(to->text + length, sizeof to->text - length, "E%d", adl_runner_epoch(runner));
    return event == to->fail_at ? adli_fail(ADL_EIO, "it had to") : ADL_OK;
}

static adl_status epoch_begin(void *user, adl_runner *runner)
{
    CHECK(!adl_runner_key(runner) && !adl_runner_batch(runner));
    return note(user, runner, 'E');
}

static adl_status loader_begin(void *user, adl_runner *runner)
{
    CHECK(adl_runner_key(runner) != NULL);
    return note(user, runner, adl_runner_training(runner) ? 'T' : 'V');
}

static adl_status batch_begin(void *user, adl_runner *runner)
{
    CHECK(adl_runner_batch(runner) && !adl_runner_output(runner));
    return note(user, runner, '<');
}

static adl_status batch_end(void *user, adl_runner *runner)
{
    seen *to = user;
    CHECK(adl_runner_output(runner) != NULL);
    if (!adl_runner_training(runner)) {
        to->loss_sum += adl_runner_loss(runner) * adl_runner_batch_size(runner);
        to->weight_sum += adl_runner_batch_size(runner);
    }
    CHECK_OK(adl_runner_metric(runner, "size", adl_runner_batch_size(runner),
                               adl_runner_batch_size(runner)));
    return note(user, runner, '>');
}

static adl_status loader_end(void *user, adl_runner *runner)
{
    double loss;
    CHECK_OK(adl_runner_get(runner, adl_runner_key(runner), "loss", &loss));
    return note(user, runner, '.');
}

static adl_status epoch_end(void *user, adl_runner *runner)
{
    seen *to = user;
    double loss, std;
    CHECK_OK(adl_runner_get(runner, "valid", "loss", &loss));
    CHECK_NEAR(loss, to->loss_sum / to->weight_sum, 1e-12);
    CHECK_OK(adl_runner_get(runner, "valid", "loss/mean", &std));
    CHECK(std == loss);
    to->loss_sum = to->weight_sum = 0;
    CHECK_OK(adl_runner_metric(runner, "mine", 7, 0));
    if (adl_runner_epoch(runner) == to->stop_at)
        adl_runner_stop(runner);
    return note(user, runner, 'e');
}

static adl_runner_callback callback_of(seen *to)
{
    return (adl_runner_callback){"watcher",   to,        epoch_begin, loader_begin,
                                 batch_begin, batch_end, loader_end,  epoch_end};
}

/* One run without files; the runner is gone when it returns. */
static adl_status run_tiny(void (*change)(adl_runner_options *, void *), void *user, int *code)
{
    adl_env env = ADL_ENV_INIT;
    adl_options options = ADL_OPTIONS_INIT;
    adl_context *ctx;
    tiny model;
    options.env = &env;
    options.log = NULL;
    if (!tiny_init(&model) || adl_init(&options, &ctx) != ADL_OK) {
        ADLT_FAIL("set-up: %s", adl_error());
        return ADL_EIO;
    }
    adl_runner_options runner = tiny_options(ctx, &model);
    if (change)
        change(&runner, user);
    adl_status status = adl_runner_train(ctx, &runner);
    char why[512];
    snprintf(why, sizeof why, "%s", adl_error());
    *code = adl_finish(ctx);
    tiny_fini(&model);
    return status == ADL_OK ? ADL_OK : adli_fail(status, "%s", why);
}

static void watch(adl_runner_options *options, void *user)
{
    static adl_runner_callback callback;
    callback = callback_of(user);
    options->callbacks = &callback;
    options->callback_count = 1;
}

#define TRAIN "T<><><><><><>."
#define VALID "V<><><>."

TEST(callbacks_are_called_in_order)
{
    seen to = {0};
    int code;
    CHECK_OK(run_tiny(watch, &to, &code));
    CHECK_INT(code, 0);
    CHECK_STR(to.text, "E1" TRAIN VALID "eE2" TRAIN VALID "eE3" TRAIN VALID "e");
}

TEST(a_callback_that_fails_stops_the_job_by_name)
{
    static const char events[] = "ETV<>.e";
    for (const char *event = events; *event; event++) {
        seen to = {.fail_at = *event};
        int code;
        CHECK_FAILS(run_tiny(watch, &to, &code), ADL_EIO, "callback watcher: it had to");
        CHECK_INT(code, 1);
        CHECK(strchr(to.text, *event) && !strchr(to.text, *event)[1 + (*event == 'E')]);
    }
}

TEST(a_callback_may_end_the_training)
{
    seen to = {.stop_at = 2};
    int code;
    CHECK_OK(run_tiny(watch, &to, &code));
    CHECK_INT(code, 0);
    CHECK_STR(to.text, "E1" TRAIN VALID "eE2" TRAIN VALID "e");
}

/* ---- metrics ----------------------------------------------------------------------------------- */

TEST(topk_counts_as_it_should)
{
    const float out[] = {1, 2, 3, 3, 3, 1, 0, 0, 0, NAN, 1, 2};
    const int32_t label[] = {0, 1, 2, 0};
    CHECK_INT(adli_count_topk(out, label, 1, 3, 1), 0);
    CHECK_INT(adli_count_topk(out, label, 1, 3, 2), 0);
    CHECK_INT(adli_count_topk(out, label, 1, 3, 3), 1);
    CHECK_INT(adli_count_topk(out + 3, label + 1, 1, 3, 1), 0); /* the first of equals wins */
    CHECK_INT(adli_count_topk(out + 3, label + 1, 1, 3, 2), 1);
    CHECK_INT(adli_count_topk(out, label, 3, 3, 3), 3);
    CHECK_INT(adli_count_topk(out + 9, label + 3, 1, 3, 3), 0); /* not a number is never right */
}

static adl_status check_metrics(void *user, adl_runner *runner)
{
    double mean, std, value;
    int *checked = user;
    /* valid: batches of 3, 3 and 1 */
    CHECK_OK(adl_runner_get(runner, "valid", "size", &mean));
    CHECK_NEAR(mean, (3 * 3 + 3 * 3 + 1) / 7.0, 1e-12);
    CHECK_OK(adl_runner_get(runner, "valid", "size/std", &std));
    CHECK_NEAR(std, sqrt((6 * (3 - mean) * (3 - mean) + (1 - mean) * (1 - mean)) / 6), 1e-9);
    CHECK_OK(adl_runner_get(runner, "valid", "accuracy01", &value));
    CHECK_OK(adl_runner_get(runner, "valid", "accuracy", &mean));
    CHECK(value == mean && value >= 0 && value <= 1);
    CHECK_OK(adl_runner_get(runner, "valid", "accuracy03", &value));
    CHECK(value == 1); /* of three */
    CHECK_OK(adl_runner_get(runner, "train", "momentum", &value));
    CHECK(value == 0.5);
    CHECK_OK(adl_runner_get(runner, "_epoch_", "lr", &value));
    CHECK_NEAR(value, 0.01 * pow(0.5, adl_runner_epoch(runner)), 1e-12);
    CHECK_FAILS(adl_runner_get(runner, "valid", "f1", &value), ADL_ENOENT,
                "nobody computes the metric \"f1\" of loader valid; there are: accuracy01, "
                "accuracy01/std, accuracy03");
    CHECK_FAILS(adl_runner_get(runner, "test", "loss", &value), ADL_ENOENT,
                "there is no loader \"test\"");
    CHECK_FAILS(adl_runner_metric(runner, "a b", 1, 1), ADL_EINVAL,
                "metric \"a b\": the character ' ' is not allowed");
    CHECK_FAILS(adl_runner_metric(runner, "", 1, 1), ADL_EINVAL, "a name of 0 bytes");
    CHECK_INT(adl_runner_steps(runner), 6 * adl_runner_epoch(runner));
    ++*checked;
    return ADL_OK;
}

static void with_accuracy(adl_runner_options *options, void *user)
{
    static adl_runner_callback callbacks[2];
    static seen ignored;
    ignored = (seen){0};
    callbacks[0] = (adl_runner_callback){.name = "size", .user = &ignored, .batch_end = batch_end};
    callbacks[1] = (adl_runner_callback){.name = "check", .user = user, .epoch_end = check_metrics};
    options->callbacks = callbacks;
    options->callback_count = 2;
    options->topk[0] = 1;
    options->topk[1] = 3;
}

TEST(metrics_are_weighted_by_examples)
{
    int code, checked = 0;
    CHECK_OK(run_tiny(with_accuracy, &checked, &code));
    CHECK_INT(checked, 3);
}

static adl_status check_rate(void *user, adl_runner *runner)
{
    double *rates = user;
    rates[adl_runner_epoch(runner) - 1] = adl_runner_lr(runner);
    return ADL_OK;
}

static void by_step(adl_runner_options *options, void *user)
{
    static adl_runner_callback callback;
    callback = (adl_runner_callback){.name = "rate", .user = user, .epoch_begin = check_rate};
    options->callbacks = &callback;
    options->callback_count = 1;
    options->schedule_by = ADL_BY_STEP;
}

static void by_progress(adl_runner_options *options, void *user)
{
    by_step(options, user);
    options->schedule_by = ADL_BY_PROGRESS;
}

TEST(a_schedule_may_go_by_steps_or_progress)
{
    double rates[3] = {0};
    int code;
    CHECK_OK(run_tiny(by_step, rates, &code));
    for (int epoch = 0; epoch < 3; epoch++) /* 6 steps each */
        CHECK_NEAR(rates[epoch], 0.01 * pow(0.5, 6 * epoch), 1e-12);
    CHECK_OK(run_tiny(by_progress, rates, &code));
    for (int epoch = 0; epoch < 3; epoch++) /* the same at the initial batch size */
        CHECK_NEAR(rates[epoch], 0.01 * pow(0.5, 6 * epoch), 1e-9);
}

static adl_status infer_end(void *user, adl_runner *runner)
{
    int *examples = user;
    if (strcmp(adl_runner_key(runner), "infer") == 0 && adl_runner_output(runner))
        *examples += adl_runner_batch_size(runner);
    return ADL_OK;
}

static void with_infer(adl_runner_options *options, void *user)
{
    static adl_runner_callback callback;
    callback = (adl_runner_callback){.name = "infer", .user = user, .batch_end = infer_end};
    options->callbacks = &callback;
    options->callback_count = 1;
    options->loaders[1].key = "infer";
}

TEST(an_infer_loader_has_outputs_and_no_loss)
{
    int code, examples = 0;
    CHECK_OK(run_tiny(with_infer, &examples, &code));
    CHECK_INT(examples, 3 * 7);
}

/* ---- what is printed --------------------------------------------------------------------------- */

static void with_console(adl_runner_options *options, void *user)
{
    options->console = user;
    options->epochs = 1;
}

TEST(a_file_gets_plain_lines)
{
    char *text = NULL;
    size_t length = 0;
    int code;
    FILE *to = open_memstream(&text, &length);
    CHECK_OK(run_tiny(with_console, to, &code));
    fclose(to);
    CHECK(strstr(text, "train (1/1) 16% 4/24 "));
    CHECK_INT(occurrences(text, "train (1/1) "), 6 + 1);
    CHECK(strstr(text, "train (1/1) 100% 24/24 "));
    CHECK(strstr(text, "\nvalid (1/1) loss: ") && strstr(text, " | lr: 0.01 | momentum: 0.5\n"));
    CHECK(strstr(text, "\n* Epoch (1/1) lr: 0.005 | momentum: 0.5\n"));
    CHECK(!strchr(text, '\r') && !strchr(text, '\033'));
    free(text);
}

TEST(a_terminal_gets_a_bar)
{
    int master, slave, code;
    char text[1 << 14] = "";
    size_t length = 0;
    if (openpty(&master, &slave, NULL, NULL, NULL) != 0)
        SKIP("there are no pseudo-terminals");
    FILE *to = fdopen(slave, "w");
    REQUIRE(to);
    CHECK_OK(run_tiny(with_console, to, &code));
    fclose(to);
    for (ssize_t got; length < sizeof text - 1 &&
                      (got = read(master, text + length, sizeof text - 1 - length)) > 0;)
        length += (size_t)got;
    close(master);
    CHECK(strstr(text, "\rtrain (1/1)  16%|###") && strstr(text, "4/24 ["));
    CHECK(strstr(text, "loss 0.") != NULL);
    CHECK(strstr(text, "\r\033[Ktrain (1/1) loss: ")); /* the bar is gone before the line */
    CHECK_INT(occurrences(text, "\n"), 3);
}

TEST(without_progress_there_are_lines_for_loaders_only)
{
    char *text = NULL;
    size_t length = 0;
    adl_env env = ADL_ENV_INIT;
    adl_options options = ADL_OPTIONS_INIT;
    adl_context *ctx;
    tiny model;
    options.env = &env;
    options.log = NULL;
    REQUIRE(tiny_init(&model));
    REQUIRE_OK(adl_init(&options, &ctx));
    adl_runner_options runner = tiny_options(ctx, &model);
    runner.console = open_memstream(&text, &length);
    runner.progress = false;
    CHECK_OK(adl_runner_train(ctx, &runner));
    fclose(runner.console);
    CHECK_INT(occurrences(text, "\n"), 3 * 3);
    CHECK_INT(adl_finish(ctx), 0);
    tiny_fini(&model);
    free(text);
}

/* ---- bad input --------------------------------------------------------------------------------- */

typedef struct mistake {
    void (*make)(adl_runner_options *options);
    const char *text;
} mistake;

static void bad_key(adl_runner_options *o)
{
    o->loaders[1].key = "test";
}
static void bad_key_path(adl_runner_options *o)
{
    o->loaders[1].key = "valid/../x";
}
static void same_key(adl_runner_options *o)
{
    o->loaders[1].key = "train";
}
static void two_trains(adl_runner_options *o)
{
    o->loaders[1].key = "train2";
}
static void same_loader(adl_runner_options *o)
{
    o->loaders[1].loader = o->loaders[0].loader;
}
static void no_loader(adl_runner_options *o)
{
    o->loaders[1].loader = NULL;
}
static void no_loaders(adl_runner_options *o)
{
    o->loaders[0].key = NULL;
}
static void no_train(adl_runner_options *o)
{
    o->loaders[0] = o->loaders[1];
    o->loaders[1].key = NULL;
}
static void no_forward(adl_runner_options *o)
{
    o->model.forward = NULL;
}
static void no_backward(adl_runner_options *o)
{
    o->model.backward = NULL;
}
static void no_width(adl_runner_options *o)
{
    o->model.width = 0;
}
static void no_buffers(adl_runner_options *o)
{
    o->model.buffer_count = 2;
}
static void no_optim(adl_runner_options *o)
{
    o->optim = NULL;
}
static void no_loss(adl_runner_options *o)
{
    o->loss = NULL;
}
static void no_schedule_step(adl_runner_options *o)
{
    o->schedule_step = NULL;
}
static void no_schedule_at(adl_runner_options *o)
{
    o->schedule_by = ADL_BY_PROGRESS;
    o->schedule_at = NULL;
}
static void bad_clock(adl_runner_options *o)
{
    o->schedule_by = (adl_schedule_clock)7;
}
static void bad_size(adl_runner_options *o)
{
    o->size = 7;
}
static void bad_epochs(adl_runner_options *o)
{
    o->epochs = -1;
}
static void bad_part(adl_runner_options *o)
{
    o->target_part = 4;
}
static void bad_topk(adl_runner_options *o)
{
    o->topk[0] = 5;
}
static void bad_keep(adl_runner_options *o)
{
    o->keep_best = -1;
}
static void bad_patience(adl_runner_options *o)
{
    o->patience = -2;
}
static void bad_delta(adl_runner_options *o)
{
    o->min_delta = -1;
}
static void best_without_files(adl_runner_options *o)
{
    o->load_best_on_end = true;
}
static void bad_valid(adl_runner_options *o)
{
    o->valid_loader = "valid2";
}
static void bad_metric_name(adl_runner_options *o)
{
    o->valid_metric = "a,b";
}
static void nobodys_metric(adl_runner_options *o)
{
    o->valid_metric = "accuracy01";
}
static void no_target(adl_runner_options *o)
{
    o->target_part = 2;
}
static void no_callbacks(adl_runner_options *o)
{
    o->callback_count = 1;
}
static void empty_callback(adl_runner_options *o)
{
    static const adl_runner_callback nothing = {.name = "nothing"};
    o->callbacks = &nothing;
    o->callback_count = 1;
}
static void nameless_callback(adl_runner_options *o)
{
    static const adl_runner_callback nameless = {.epoch_end = check_rate};
    o->callbacks = &nameless;
    o->callback_count = 1;
}
static void bad_resume(adl_runner_options *o)
{
    o->resume = "/nonexistent/model.best.adl";
}
static void bad_logdir(adl_runner_options *o)
{
    o->logdir = "/dev/null/logs";
}

static void make_mistake(adl_runner_options *options, void *user)
{
    ((const mistake *)user)->make(options);
}

TEST(each_mistake_is_named)
{
    static const mistake mistakes[] = {
        {bad_key, "loader \"test\": its key must start with train, valid or infer"},
        {bad_key_path, "loader \"valid/../x\": its key is no name for a file"},
        {same_key, "two loaders have the key \"train\""},
        {two_trains, "two training loaders, \"train\" and \"train2\""},
        {same_loader, "loaders \"train\" and \"valid\" are the same"},
        {no_loader, "loader \"valid\" is NULL"},
        {no_loaders, "there are no loaders"},
        {no_train, "no loader's key starts with \"train\" (the first is \"valid\")"},
        {no_forward, "model.forward is NULL"},
        {no_backward, "model.backward is NULL"},
        {no_width, "model.width is 0"},
        {no_buffers, "model.buffers is NULL, but there are 2"},
        {no_optim, "there is no optimizer"},
        {no_loss, "there is no loss"},
        {no_schedule_step, "a schedule without schedule_step"},
        {no_schedule_at, "a schedule without schedule_at"},
        {bad_clock, "schedule_by is 7"},
        {bad_size, "adl_runner_options: size is 7"},
        {bad_epochs, "epochs is -1"},
        {bad_part, "target_part is 4, must be from 0 to 3"},
        {bad_topk, "topk[0] is 5, the model has 3 outputs"},
        {bad_keep, "keep_best is -1"},
        {bad_patience, "patience is -2"},
        {bad_delta, "min_delta is -1"},
        {best_without_files, "load_best_on_end needs logdir and save_best"},
        {bad_valid, "valid_loader: there is no loader \"valid2\" (the first is \"train\")"},
        {bad_metric_name, "metric \"a,b\": the character ','"},
        {nobodys_metric, "valid_metric: nobody computes the metric \"accuracy01\" of loader valid; "
                         "there are: loss, loss/mean, loss/std, lr, momentum"},
        {no_target, "train: its batches have no part 2, which is the target of the loss"},
        {no_callbacks, "callbacks is NULL, but there are 1"},
        {empty_callback, "callback nothing has no function"},
        {nameless_callback, "callback 0 has no name"},
        {bad_resume, "resume: /nonexistent/model.best.adl: No such file"},
        {bad_logdir, "/dev/null"},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        int code = 0;
        adl_status status = run_tiny(make_mistake, (void *)&mistakes[i], &code);
        if (status == ADL_OK || code != 1 || !strstr(adl_error(), mistakes[i].text))
            ADLT_FAIL("wanted \"%s\", got \"%s\" and exit code %d", mistakes[i].text,
                      status == ADL_OK ? "ok" : adl_error(), code);
    }
}
