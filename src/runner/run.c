/* The loops: epochs, loaders, batches, and who is called when. Everything elastic about them is in
 * ADL_EPOCHS, ADL_BATCHES and ADL_SYNCHRONIZED. */
#include "runner/runner.h"

#include "base/mem.h"

#include <stddef.h>
#include <stdlib.h>

typedef adl_status (*event_fn)(void *user, adl_runner *runner);

/* Calls the function at this offset in every callback. */
static adl_status call(adl_runner *runner, size_t event)
{
    adl_status status = ADL_OK;
    for (size_t i = 0; i < runner->options.callback_count && status == ADL_OK; i++) {
        const adl_runner_callback *callback = &runner->callbacks[i];
        event_fn function = *(const event_fn *)((const char *)callback + event);
        if (function)
            status = function(callback->user, runner);
        if (status != ADL_OK)
            adli_wrap(status, "callback %s", callback->name);
    }
    return status;
}
#define CALL(runner, event) call((runner), offsetof(adl_runner_callback, event))

/* ---- a batch ----------------------------------------------------------------------------------- */

static adl_status compute_loss(adl_runner *runner, bool train)
{
    const adl_runner_options *options = &runner->options;
    const void *target = runner->batch->part[options->target_part];
    size_t need = (size_t)runner->size * (size_t)options->model.width;
    if (!target)
        return adli_fail(ADL_EINVAL,
                         "%s: its batches have no part %d, which is the target of the loss",
                         runner->loader->key, options->target_part);
    if (train && adli_grow(&runner->dout, &runner->dout_capacity, need, sizeof *runner->dout) != 0)
        return adli_fail_memory("gradient of the loss");
    adl_status status =
        options->loss(options->loss_user, runner->out, target, runner->size, options->model.width,
                      &runner->loss, train ? runner->dout : NULL);
    return status == ADL_OK ? ADL_OK : adli_wrap(status, "%s: loss", runner->loader->key);
}

static adl_status train_step(adl_runner *runner)
{
    const adl_runner_options *options = &runner->options;
    adl_status status = options->model.backward(options->model.self, runner->dout);
    if (status == ADL_OK)
        status = adl_dp_step(runner->dp);
    if (status != ADL_OK || runner->ctx->lost) /* a replica died: the batch comes again */
        return status;
    runner->state.steps++;
    if (options->schedule.self && runner->batch->optim_step) {
        if (options->schedule_by == ADL_BY_STEP)
            options->schedule_step(options->schedule.self);
        else if (options->schedule_by == ADL_BY_PROGRESS)
            options->schedule_at(options->schedule.self, adl_dp_progress(runner->dp));
    }
    return ADL_OK;
}

static adl_status run_batch(adl_runner *runner, const adl_batch *batch)
{
    const adl_model *model = &runner->options.model;
    adli_runner_loader *loader = runner->loader;
    /* Examples that another replica has too are left out of what is reported exactly. */
    runner->size = loader->train ? batch->size : batch->size - batch->extra;
    runner->batch = batch;
    runner->out = NULL;
    if (runner->size == 0)
        return ADL_OK;
    adl_status status = CALL(runner, batch_begin);
    if (status == ADL_OK)
        status = model->forward(model->self, batch, runner->size, loader->train, &runner->out);
    if (status == ADL_OK && !loader->infer)
        status = compute_loss(runner, loader->train);
    /* Before the step, which carries the sums to the others. */
    if (status == ADL_OK && !loader->infer)
        status = adli_runner_count(runner);
    if (status == ADL_OK && loader->train)
        status = train_step(runner);
    if (status != ADL_OK || runner->ctx->lost)
        return status;
    status = CALL(runner, batch_end);
    if (status == ADL_OK)
        adli_bar_batch(runner);
    return status;
}

/* ---- a loader ---------------------------------------------------------------------------------- */

static adl_status run_batches(adl_runner *runner, bool *ran)
{
    ADL_BATCHES (runner->loader->loader, batch) {
        runner->batch = batch;
        adl_status status = ADL_OK;
        if (!*ran) {
            *ran = true;
            adli_bar_begin(runner);
            status = CALL(runner, loader_begin);
        }
        if (status == ADL_OK)
            status = run_batch(runner, batch);
        if (status != ADL_OK)
            return adl_context_fail(runner->ctx, status);
    }
    return adl_context_status(runner->ctx);
}

/* ran stays false when the loader had finished before a restart: its metrics are there all the same. */
static adl_status run_loader(adl_runner *runner, size_t l)
{
    bool ran = false;
    runner->loader = &runner->loaders[l];
    adl_status status = run_batches(runner, &ran);
    adli_bar_end(runner);
    runner->batch = NULL;
    if (status == ADL_OK)
        status = adli_runner_collect(runner, l);
    if (status == ADL_OK && ran)
        status = CALL(runner, loader_end);
    if (status == ADL_OK && ran)
        adli_console_line(runner, l);
    runner->loader = NULL;
    return status;
}

/* ---- an epoch ---------------------------------------------------------------------------------- */

/* Has any replica asked to stop? Collective. */
static adl_status count_votes(adl_runner *runner)
{
    ADL_SYNCHRONIZED (runner->votes) {
        runner->state.stopped |= adl_accumulator_get(runner->votes, "stop") > 0;
        adl_accumulator_clear(runner->votes);
    }
    return adl_context_status(runner->ctx);
}

static adl_status end_epoch(adl_runner *runner)
{
    const adl_runner_options *options = &runner->options;
    if (options->schedule.self && options->schedule_by == ADL_BY_EPOCH)
        options->schedule_step(options->schedule.self);
    runner->ending = true;
    adl_status status = adli_runner_epoch_rates(runner);
    if (status == ADL_OK)
        status = CALL(runner, epoch_end);
    runner->ending = false;
    if (status == ADL_OK)
        status = adli_log_epoch(runner);
    if (status == ADL_OK)
        status = adli_keep_epoch(runner);
    return status == ADL_OK ? count_votes(runner) : status;
}

static adl_status run_epoch(adl_runner *runner, int epoch)
{
    runner->epoch = epoch + 1;
    for (size_t t = 0; t < ADLI_RUNNER_TABLES; t++)
        adli_table_clear(&runner->current[t]);
    adl_status status = CALL(runner, epoch_begin);
    for (size_t l = 0; l < runner->loader_count && status == ADL_OK; l++)
        status = run_loader(runner, l);
    return status == ADL_OK ? end_epoch(runner) : status;
}

adl_status adl_runner_run(adl_runner *runner)
{
    adl_context *ctx = runner->ctx;
    adl_status status = adl_context_status(ctx);
    runner->epoch = adl_finished_epochs(ctx);
    if (!runner->state.stopped)
        ADL_EPOCHS (ctx, epoch, runner->options.epochs) {
            status = adl_context_fail(ctx, run_epoch(runner, epoch));
            if (status != ADL_OK || runner->state.stopped)
                break;
        }
    if (status == ADL_OK)
        status = adl_context_status(ctx);
    if (status == ADL_OK)
        status = adl_context_fail(ctx, adli_keep_finish(runner));
    if (status == ADL_OK)
        adli_console_top(runner);
    adli_log_close(runner);
    return status;
}

void adl_runner_stop(adl_runner *runner)
{
    /* At once, so that a checkpoint before the end of the epoch has it. A failure stops the context. */
    (void)adl_accumulator_add(runner->votes, "stop", 1);
}
