/* Making a runner: the options checked, each mistake named with what was there instead, and what is put
 * together out of them. */
#include "runner/runner.h"

#include "base/dirs.h"
#include "base/mem.h"
#include "base/options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void free_runner(void *object)
{
    adl_runner *runner = object;
    for (size_t t = 0; t < ADLI_RUNNER_TABLES; t++) {
        adl_tensorboard_close(runner->boards[t]);
        adli_table_fini(&runner->current[t]);
    }
    adli_runner_state_fini(&runner->state);
    for (size_t i = 0; runner->callbacks && i < runner->options.callback_count; i++)
        free((char *)runner->callbacks[i].name);
    free(runner->callbacks);
    free(runner->values);
    free(runner->dout);
    free(runner->logdir);
    free(runner->hparams);
    free(runner->resume);
    free(runner->valid_loader);
    free(runner->valid_metric);
    free(runner);
}

/* ---- checks ------------------------------------------------------------------------------------ */

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static adl_status check_loader(const adl_runner_options *options, size_t l)
{
    const adl_runner_loader *loader = &options->loaders[l];
    if (!starts(loader->key, "train") && !starts(loader->key, "valid") &&
        !starts(loader->key, "infer"))
        return adli_fail(ADL_EINVAL, "loader \"%s\": its key must start with train, valid or infer",
                         loader->key);
    adl_status status = adli_check_metric_name(loader->key);
    if (status != ADL_OK || strchr(loader->key, '/') || strchr(loader->key, ':'))
        return adli_fail(ADL_EINVAL, "loader \"%.60s\": its key is no name for a file",
                         loader->key);
    if (!loader->loader)
        return adli_fail(ADL_EINVAL, "loader \"%s\" is NULL", loader->key);
    if (adl_loader_examples(loader->loader) == 0)
        return adli_fail(ADL_EINVAL, "loader \"%s\" is empty", loader->key);
    for (size_t i = 0; i < l; i++) {
        if (strcmp(options->loaders[i].key, loader->key) == 0)
            return adli_fail(ADL_EINVAL, "two loaders have the key \"%s\"", loader->key);
        if (options->loaders[i].loader == loader->loader)
            return adli_fail(ADL_EINVAL, "loaders \"%s\" and \"%s\" are the same",
                             options->loaders[i].key, loader->key);
        if (starts(loader->key, "train") && starts(options->loaders[i].key, "train"))
            return adli_fail(ADL_EINVAL,
                             "two training loaders, \"%s\" and \"%s\"; there can be one",
                             options->loaders[i].key, loader->key);
    }
    return ADL_OK;
}

static adl_status check_loaders(const adl_runner_options *options, size_t *count, bool *losses)
{
    bool train = false;
    adl_status status = ADL_OK;
    *count = 0;
    while (*count < ADL_RUNNER_LOADERS_MAX && options->loaders[*count].key && status == ADL_OK) {
        status = check_loader(options, *count);
        train |= starts(options->loaders[*count].key, "train");
        *losses |= !starts(options->loaders[*count].key, "infer");
        ++*count;
    }
    if (status == ADL_OK && *count == 0)
        status = adli_fail(ADL_EINVAL, "runner: there are no loaders");
    if (status == ADL_OK && !train)
        status = adli_fail(ADL_EINVAL,
                           "runner: no loader's key starts with \"train\" (the first is "
                           "\"%s\")",
                           options->loaders[0].key);
    return status;
}

static adl_status check_model(const adl_runner_options *options, bool losses)
{
    const adl_model *model = &options->model;
    if (!model->forward || !model->backward)
        return adli_fail(ADL_EINVAL, "runner: model.%s is NULL",
                         model->forward ? "backward" : "forward");
    if (model->width < 1)
        return adli_fail(ADL_EINVAL, "runner: model.width is %d, must be at least 1", model->width);
    if (model->buffer_count > 0 && !model->buffers)
        return adli_fail(ADL_EINVAL, "runner: model.buffers is NULL, but there are %zu",
                         model->buffer_count);
    if (!options->optim)
        return adli_fail(ADL_EINVAL, "runner: there is no optimizer");
    if (losses && !options->loss)
        return adli_fail(ADL_EINVAL, "runner: there is no loss");
    bool progress = options->schedule_by == ADL_BY_PROGRESS;
    if ((unsigned)options->schedule_by > ADL_BY_PROGRESS)
        return adli_fail(ADL_EINVAL, "runner: schedule_by is %d", (int)options->schedule_by);
    if (options->schedule.self &&
        !(progress ? options->schedule_at != NULL : options->schedule_step != NULL))
        return adli_fail(ADL_EINVAL, "runner: a schedule without schedule_%s",
                         progress ? "at" : "step");
    return ADL_OK;
}

static adl_status check_numbers(const adl_runner_options *options)
{
    if (options->epochs < 0)
        return adli_fail(ADL_EINVAL, "runner: epochs is %d", options->epochs);
    if (options->target_part < 0 || options->target_part >= ADL_PARTS_MAX)
        return adli_fail(ADL_EINVAL, "runner: target_part is %d, must be from 0 to %d",
                         options->target_part, ADL_PARTS_MAX - 1);
    for (int i = 0; i < ADL_RUNNER_TOPK_MAX && options->topk[i]; i++)
        if (options->topk[i] < 1 || options->topk[i] > options->model.width)
            return adli_fail(ADL_EINVAL, "runner: topk[%d] is %d, the model has %d outputs", i,
                             options->topk[i], options->model.width);
    if (options->keep_best < 0 || options->keep_best > ADLI_RUNNER_KEEP_MAX)
        return adli_fail(ADL_EINVAL, "runner: keep_best is %d, must be from 0 to %d",
                         options->keep_best, ADLI_RUNNER_KEEP_MAX);
    if (options->patience < 0)
        return adli_fail(ADL_EINVAL, "runner: patience is %d", options->patience);
    if (!(options->min_delta >= 0 && options->min_delta < HUGE_VAL))
        return adli_fail(ADL_EINVAL, "runner: min_delta is %g", options->min_delta);
    if (options->load_best_on_end && (!options->logdir || !options->save_best))
        return adli_fail(ADL_EINVAL, "runner: load_best_on_end needs logdir and save_best");
    return ADL_OK;
}

static adl_status check_callbacks(const adl_runner_options *options)
{
    if (options->callback_count > 0 && !options->callbacks)
        return adli_fail(ADL_EINVAL, "runner: callbacks is NULL, but there are %zu",
                         options->callback_count);
    for (size_t i = 0; i < options->callback_count; i++) {
        const adl_runner_callback *callback = &options->callbacks[i];
        if (!callback->name || !*callback->name)
            return adli_fail(ADL_EINVAL, "runner: callback %zu has no name", i);
        if (!callback->epoch_begin && !callback->loader_begin && !callback->batch_begin &&
            !callback->batch_end && !callback->loader_end && !callback->epoch_end)
            return adli_fail(ADL_EINVAL, "callback %s has no function", callback->name);
    }
    return ADL_OK;
}

static adl_status check(const adl_runner_options *options, size_t *loaders)
{
    bool losses = false;
    adl_status status = check_loaders(options, loaders, &losses);
    if (status == ADL_OK)
        status = check_model(options, losses);
    if (status == ADL_OK)
        status = check_numbers(options);
    if (status == ADL_OK)
        status = check_callbacks(options);
    if (status == ADL_OK && !options->valid_metric)
        status = adli_fail(ADL_EINVAL, "runner: valid_metric is NULL");
    return status == ADL_OK ? adli_check_metric_name(options->valid_metric) : status;
}

/* ---- putting it together ----------------------------------------------------------------------- */

static adl_status copy_text(char **to, const char *from)
{
    *to = from ? adli_strdup(from) : NULL;
    return from && !*to ? adli_fail_memory("runner") : ADL_OK;
}

static const char *default_loader(const adl_runner_options *options, size_t count)
{
    const char *train = NULL;
    for (size_t l = 0; l < count; l++) {
        if (strcmp(options->loaders[l].key, "valid") == 0)
            return "valid";
        if (starts(options->loaders[l].key, "train"))
            train = options->loaders[l].key;
    }
    return train;
}

static adl_status copy_texts(adl_runner *runner, const adl_runner_options *options)
{
    const char *valid = options->valid_loader;
    if (!valid)
        valid = default_loader(options, runner->loader_count);
    adl_status status = copy_text(&runner->valid_loader, valid);
    if (status == ADL_OK)
        status = copy_text(&runner->valid_metric, options->valid_metric);
    if (status == ADL_OK)
        status = copy_text(&runner->logdir, options->logdir);
    if (status == ADL_OK)
        status = copy_text(&runner->hparams, options->hparams);
    return status == ADL_OK ? copy_text(&runner->resume, options->resume) : status;
}

static adl_status copy_callbacks(adl_runner *runner)
{
    size_t count = runner->options.callback_count;
    runner->callbacks = adli_calloc(count, sizeof *runner->callbacks);
    if (!runner->callbacks)
        return adli_fail_memory("callbacks");
    for (size_t i = 0; i < count; i++) {
        runner->callbacks[i] = runner->options.callbacks[i];
        runner->callbacks[i].name = adli_strdup(runner->options.callbacks[i].name);
        if (!runner->callbacks[i].name) {
            runner->options.callback_count = i;
            return adli_fail_memory("callbacks");
        }
    }
    runner->options.callbacks = runner->callbacks;
    return ADL_OK;
}

static adl_status add_loaders(adl_runner *runner)
{
    adli_runner_state *state = &runner->state;
    adl_status status = ADL_OK;
    for (size_t l = 0; l < runner->loader_count && status == ADL_OK; l++) {
        adli_runner_loader *loader = &runner->loaders[l];
        char name[ADL_RUNNER_NAME_MAX + 16];
        strcpy(loader->key, runner->options.loaders[l].key); /* its length was checked */
        strcpy(state->tables[l].key, loader->key);
        loader->loader = runner->options.loaders[l].loader;
        loader->train = starts(loader->key, "train");
        loader->infer = starts(loader->key, "infer");
        snprintf(name, sizeof name, "runner.%s", loader->key);
        status = adl_accumulator_new(runner->ctx, name, &loader->sums);
    }
    strcpy(state->tables[runner->loader_count].key, ADLI_EPOCH_KEY);
    state->table_count = runner->loader_count + 1;
    if (status == ADL_OK && adli_runner_table(runner, runner->valid_loader) == state->table_count)
        status =
            adli_fail(ADL_EINVAL, "valid_loader: there is no loader \"%s\" (the first is \"%s\")",
                      runner->valid_loader, runner->loaders[0].key);
    if (status == ADL_OK)
        status = adl_accumulator_new(runner->ctx, "runner", &runner->votes);
    return status;
}

/* What a model file holds: every group of the optimizer, and the buffers. */
static adl_status list_values(adl_runner *runner)
{
    const adl_runner_options *options = &runner->options;
    size_t groups = options->optim->group_count;
    runner->values = adli_calloc(groups + 1, sizeof *runner->values);
    if (!runner->values)
        return adli_fail_memory("runner");
    for (size_t g = 0; g < groups; g++)
        runner->values[g] = options->optim->groups[g];
    runner->values[groups] = (adl_param_group){options->model.buffers, options->model.buffer_count};
    runner->value_lists = groups + 1;
    return ADL_OK;
}

static adl_status make_dp(adl_runner *runner)
{
    const adl_runner_options *options = &runner->options;
    adl_dp_options parallel = ADL_DP_OPTIONS_INIT;
    if (options->dp)
        parallel = *options->dp;
    parallel.optim = options->optim;
    parallel.buffers = options->model.buffers;
    parallel.buffer_count = options->model.buffer_count;
    parallel.flat_grads = options->model.flat_grads;
    parallel.flat_count = options->model.flat_count;
    if (options->schedule.self)
        parallel.saved[0] = options->schedule;
    adl_status status = adl_dp_new(runner->ctx, &parallel, &runner->dp);
    runner->options.dp = NULL; /* the caller's may go away */
    if (status == ADL_OK && options->model.set_hook)
        options->model.set_hook(options->model.self, adl_dp_hook, runner->dp);
    return status;
}

static adl_status make_folders(adl_runner *runner)
{
    static const char *const folders[] = {"checkpoints", "csv_logger"};
    adl_status status = ADL_OK;
    if (!runner->logdir || adl_rank(runner->ctx) != 0)
        return ADL_OK;
    for (size_t i = 0; i < ADLI_COUNT(folders) && status == ADL_OK; i++) {
        adli_buf path;
        status = adli_runner_path(runner, &path, folders[i], NULL);
        if (status == ADL_OK) {
            status = adli_dirs_make(path.data, 0777);
            adli_buf_fini(&path);
        }
    }
    return status == ADL_OK && runner->options.csv ? adli_csv_hparams(runner) : status;
}

static adl_status put_together(adl_runner *runner, const adl_runner_options *options)
{
    adl_status status = copy_texts(runner, options);
    if (status == ADL_OK)
        status = copy_callbacks(runner);
    if (status == ADL_OK)
        status = add_loaders(runner);
    if (status == ADL_OK)
        status = make_dp(runner); /* checks the optimizer's functions and groups */
    if (status == ADL_OK)
        status = list_values(runner);
    if (status == ADL_OK)
        status = make_folders(runner);
    if (status == ADL_OK)
        status = adli_runner_state_register(runner);
    return status == ADL_OK ? adli_keep_resume(runner) : status;
}

/* It asks the context who the replicas are, whenever that matters. */
static const adli_owned_ops owned = {.free = free_runner};

adl_status adl_runner_new(adl_context *ctx, const adl_runner_options *given, adl_runner **out)
{
    adl_runner_options own = ADL_RUNNER_OPTIONS_INIT;
    const adl_runner_options *options = &own;
    size_t loaders = 0;
    *out = NULL;
    adl_status status = adli_options_take("adl_runner_options", &own, sizeof own, given);
    if (status == ADL_OK)
        status = check(options, &loaders);
    if (status != ADL_OK)
        return status;
    adl_runner *runner = adli_calloc(1, sizeof *runner);
    if (!runner)
        return adli_fail_memory("runner");
    runner->ctx = ctx;
    runner->options = *options;
    if (options->save_best && options->keep_best == 0)
        runner->options.keep_best = 1; /* what model.best is made of again after a kill */
    runner->loader_count = loaders;
    status = adli_context_own(ctx, runner, &owned);
    if (status != ADL_OK)
        return status;
    status = put_together(runner, options);
    if (status == ADL_OK)
        *out = runner;
    return status;
}

adl_status adl_runner_train(adl_context *ctx, const adl_runner_options *options)
{
    adl_runner *runner;
    adl_status status = adl_runner_new(ctx, options, &runner);
    if (status != ADL_OK)
        return adl_context_fail(ctx, status);
    return adl_runner_run(runner);
}
