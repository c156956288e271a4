/* The loop by steps: passes over the data are epochs, and one counter, which moves where a loop commits
 * a batch, says when enough of them were taken. */
#include "adaptdl/steps.h"

#include "train/context.h"
#include "train/loop.h"

#include <limits.h>

static adl_status save(void *user, adl_sink *sink)
{
    const adl_context *ctx = user;
    return adl_sink_u64(sink, (uint64_t)ctx->steps);
}

static adl_status load(void *user, adl_source *source)
{
    adl_context *ctx = user;
    uint64_t steps;
    adl_status status = adl_source_u64(source, &steps);
    if (status == ADL_OK && steps > INT64_MAX)
        status = adli_fail(ADL_ECORRUPT, "impossible number of steps");
    if (status == ADL_OK)
        ctx->steps = (int64_t)steps;
    return status;
}

adl_status adli_steps_register(adl_context *ctx)
{
    adl_checkpoint_functions functions = {sizeof functions, save, load, NULL};
    return adli_state(ctx, "adaptdl.steps", &functions, ctx, NULL);
}

int64_t adl_global_step(const adl_context *ctx)
{
    return ctx->steps;
}

/* Passes that so many steps make at the loader's batch size: what the scheduler is told. */
static int passes_for(const adl_loop *loop, int64_t steps)
{
    double passes = loop->examples ? (double)steps * loop->batch_size / (double)loop->examples : 1;
    return passes < INT_MAX - 1 ? (int)passes + 1 : INT_MAX;
}

adl_steps adl_steps_begin(adl_loader *loader, int64_t until)
{
    adl_loop *loop = adl_loader_loop(loader);
    adl_steps steps = {.loader = loader, .until = until};
    steps.epochs = adl_epochs_begin(loop->ctx, INT_MAX);
    steps.epochs.target = passes_for(loop, until);
    return steps;
}

/* Enters the next pass; false: the context was stopped. */
static bool begin_pass(adl_steps *steps, const adl_context *ctx)
{
    steps->in_pass = adl_epochs_next(&steps->epochs) && adl_epochs_enter(&steps->epochs);
    steps->before = ctx->steps;
    steps->ran = false;
    return steps->in_pass;
}

static void end_pass(adl_steps *steps, adl_context *ctx)
{
    if (steps->ran && ctx->steps == steps->before)
        adl_context_fail(ctx, adli_fail(ADL_ESTATE,
                                        "%s: a loop by steps went over the data and no training "
                                        "step was taken",
                                        adl_loop_name(adl_loader_loop(steps->loader))));
    adl_epochs_leave(&steps->epochs);
    steps->in_pass = false;
}

/* The next batch of the pass. After the last step there is none: nothing may be saved between that step and
 * the end of its pass, or the pass would be open for ever. */
static bool next_batch(adl_steps *steps, const adl_context *ctx)
{
    adl_loop *loop = adl_loader_loop(steps->loader);
    bool again;
    if (steps->batch && ctx->training == loop && loop->optim_step &&
        ctx->steps + 1 >= steps->until) {
        adl_loop_commit(loop, adli_loop_consumed(loop));
        if (!adli_loop_passed(loop, &again) || ctx->steps >= steps->until)
            return false;
    }
    return adl_loader_next(steps->loader, &steps->batch);
}

bool adl_steps_next(adl_steps *steps, adl_batch **batch)
{
    adl_context *ctx = adl_loader_loop(steps->loader)->ctx;
    while (!steps->over && ctx->status == ADL_OK) {
        if (!steps->in_pass && (ctx->steps >= steps->until || !begin_pass(steps, ctx)))
            break;
        if (next_batch(steps, ctx)) {
            steps->ran = true;
            *batch = steps->batch;
            return true;
        }
        adl_loader_leave(&steps->batch);
        end_pass(steps, ctx);
    }
    adl_steps_end(steps);
    *batch = NULL;
    return false;
}

void adl_steps_end(adl_steps *steps)
{
    adl_loader_leave(&steps->batch);
    if (!steps->over)
        adl_epochs_end(&steps->epochs);
    steps->over = true;
}
