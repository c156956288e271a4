/* The states that the training runtime reads back from a checkpoint. Checksums keep accidents away from
 * these parsers, not malice: whatever the bytes are, loading them succeeds or is refused. The first
 * byte chooses the state. */
#include "adaptdl/accumulator.h"
#include "adaptdl/meter.h"
#include "adaptdl/runner.h"
#include "adaptdl/train.h"
#include "train/context.h"

#include <stdlib.h>

enum { VALUES = 3 };

static adl_status load_metrics(void *user, adl_source *source)
{
    return adli_metrics_load(user, source);
}

static adl_status save_nothing(void *user, adl_sink *sink)
{
    (void)user;
    return adl_sink_u32(sink, 0);
}

/* Each makes an object whose state is waiting under its name. */
static adl_status make_loop(adl_context *ctx)
{
    adl_loop *loop;
    return adl_loop_new(ctx, "fuzz", 100, 10, &loop);
}

static adl_status make_accumulator(adl_context *ctx)
{
    adl_accumulator *accumulator;
    return adl_accumulator_new(ctx, "fuzz", &accumulator);
}

static adl_status make_metrics(adl_context *ctx)
{
    adl_checkpoint_functions functions = {sizeof functions, save_nothing, load_metrics, NULL};
    return adli_state(ctx, "adaptdl.fuzz", &functions, &ctx->metrics, NULL);
}

static adl_status make_dp(adl_context *ctx)
{
    static float value[VALUES], grad[VALUES];
    static adl_param param = {"w", value, grad, VALUES};
    static adl_optim *optim;
    adl_optim_options sgd = ADL_SGD_INIT(0.1);
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    adl_dp *dp;
    if (!optim && adl_optim_new(&param, 1, &sgd, &optim) != ADL_OK)
        abort();
    options.name = "fuzz";
    options.optim = adl_optim_get_ops(optim);
    return adl_dp_new(ctx, &options, &dp);
}

static adl_status make_meter(adl_context *ctx)
{
    adl_meter *meter;
    return adl_meter_new(ctx, "fuzz", 2, &meter);
}

static adl_status forward(void *self, const adl_batch *batch, int size, bool train,
                          const float **out)
{
    (void)self, (void)batch, (void)size, (void)train, (void)out;
    return ADL_OK;
}

static adl_status backward(void *self, const float *dout)
{
    (void)self, (void)dout;
    return ADL_OK;
}

static adl_status make_runner(adl_context *ctx)
{
    static float value[VALUES], grad[VALUES];
    static adl_param param = {"w", value, grad, VALUES};
    static adl_optim *optim;
    adl_optim_options sgd = ADL_SGD_INIT(0.1);
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    adl_runner_options options = ADL_RUNNER_OPTIONS_INIT;
    adl_runner *runner;
    if (!optim && adl_optim_new(&param, 1, &sgd, &optim) != ADL_OK)
        abort();
    data.examples = 100;
    data.batch_size = 10;
    if (adl_loader_new(ctx, &data, &options.loaders[0].loader) != ADL_OK)
        abort();
    options.loaders[0].key = "train";
    options.model = (adl_model){.width = 1, .forward = forward, .backward = backward};
    options.optim = adl_optim_get_ops(optim);
    options.loss = adl_runner_mse;
    return adl_runner_new(ctx, &options, &runner);
}

static const struct {
    const char *state;
    adl_status (*make)(adl_context *ctx);
} kinds[] = {{"adaptdl.loop.fuzz", make_loop},   {"adaptdl.accumulator.fuzz", make_accumulator},
             {"adaptdl.fuzz", make_metrics},     {"adaptdl.dp.fuzz", make_dp},
             {"adaptdl.meter.fuzz", make_meter}, {"adaptdl.runner", make_runner}};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adl_env env = ADL_ENV_INIT;
    adl_options options = ADL_OPTIONS_INIT;
    adl_context *ctx;
    if (size < 1)
        return 0;
    size_t kind = data[0] % (sizeof kinds / sizeof kinds[0]);
    options.env = &env;
    options.handle_signals = false;
    options.log = NULL;
    if (adl_init(&options, &ctx) != ADL_OK)
        abort();
    if (adl_checkpoint_offer(ctx->store, kinds[kind].state, data + 1, size - 1) != ADL_OK)
        abort();
    adl_status status = kinds[kind].make(ctx);
    if (status != ADL_OK && status != ADL_ECORRUPT && status != ADL_EINVAL)
        abort();
    adl_finish(ctx);
    return 0;
}
