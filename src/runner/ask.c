/* What callbacks ask a runner about the present. */
#include "runner/runner.h"

#include <string.h>

adl_context *adl_runner_context(adl_runner *runner)
{
    return runner->ctx;
}

int adl_runner_epoch(const adl_runner *runner)
{
    return runner->epoch;
}

int adl_runner_epochs(const adl_runner *runner)
{
    return runner->options.epochs;
}

const char *adl_runner_key(const adl_runner *runner)
{
    return runner->loader ? runner->loader->key : NULL;
}

bool adl_runner_training(const adl_runner *runner)
{
    return runner->loader && runner->loader->train;
}

adl_loader *adl_runner_loader_of(const adl_runner *runner, const char *key)
{
    for (size_t l = 0; l < runner->loader_count; l++)
        if (strcmp(runner->loaders[l].key, key) == 0)
            return runner->loaders[l].loader;
    return NULL;
}

const adl_batch *adl_runner_batch(const adl_runner *runner)
{
    return runner->batch;
}

int adl_runner_batch_size(const adl_runner *runner)
{
    return runner->batch ? runner->size : 0;
}

const float *adl_runner_output(const adl_runner *runner)
{
    return runner->batch ? runner->out : NULL;
}

double adl_runner_loss(const adl_runner *runner)
{
    return runner->loss;
}

uint64_t adl_runner_steps(const adl_runner *runner)
{
    return runner->state.steps;
}

double adl_runner_lr(const adl_runner *runner)
{
    return runner->options.optim->lr(runner->options.optim->self, 0);
}

adl_dp *adl_runner_dp(const adl_runner *runner)
{
    return runner->dp;
}

int adl_runner_best(const adl_runner *runner, double *value)
{
    if (value && runner->state.best_epoch > 0)
        *value = runner->state.best_metric;
    return runner->state.best_epoch;
}
