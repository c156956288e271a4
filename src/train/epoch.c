/* The loop over epochs. Its state is the number of finished epochs (and the progress that was due in them); what
 * makes it work is the
 * order of things: the number goes up when the body is left, and a checkpoint taken inside the body
 * has the number from before. */
#include "adaptdl/epoch.h"

#include "train/context.h"
#include "train/regroup.h"
#include "train/replay.h"

enum { PHASE_OUTSIDE, PHASE_ENTER, PHASE_BODY, PHASE_LEFT };

static adl_status save(void *user, adl_sink *sink)
{
    const adl_context *ctx = user;
    adl_sink_u32(sink, (uint32_t)ctx->finished_epochs);
    return adl_sink_f64(sink, ctx->progress_due);
}

static adl_status load(void *user, adl_source *source)
{
    adl_context *ctx = user;
    uint32_t finished;
    adl_status status = adl_source_u32(source, &finished);
    if (status != ADL_OK)
        return status;
    if (finished > INT32_MAX)
        return adli_fail(ADL_ECORRUPT, "%u finished epochs", finished);
    ctx->finished_epochs = (int)finished;
    ctx->progress_due = -1;
    return adl_source_remaining(source) ? adl_source_f64(source, &ctx->progress_due) : ADL_OK;
}

adl_status adli_epoch_register(adl_context *ctx)
{
    adl_checkpoint_functions functions = {sizeof functions, save, load, NULL};
    return adli_state(ctx, "adaptdl.epoch", &functions, ctx, NULL);
}

int adl_current_epoch(const adl_context *ctx)
{
    return ctx->in_epoch ? ctx->finished_epochs : -1;
}

int adl_finished_epochs(const adl_context *ctx)
{
    return ctx->finished_epochs;
}

static void note_epochs(adl_context *ctx, int target)
{
    adli_job_facts facts = ctx->metrics.facts; /* only this thread writes them */
    facts.epoch = ctx->finished_epochs;
    facts.target_epochs = target;
    adli_metrics_facts(&ctx->metrics, &facts);
}

adl_epochs adl_epochs_begin(adl_context *ctx, int until)
{
    adl_epochs loop = {
        .ctx = ctx, .until = until, .target = until, .number = -1, .phase = PHASE_OUTSIDE};
    if (ctx->in_epoch && ctx->status == ADL_OK) {
        adli_fail(ADL_ESTATE, "a loop over epochs inside another one (in epoch %d)",
                  ctx->finished_epochs);
        adl_context_fail(ctx, ADL_ESTATE);
    }
    return loop;
}

/* The body was left, by whatever way. */
static void left(adl_epochs *loop)
{
    adl_context *ctx = loop->ctx;
    loop->phase = PHASE_OUTSIDE;
    ctx->in_epoch = false;
    if (ctx->status == ADL_OK) {
        ctx->finished_epochs++;
        adli_replay_forget(ctx->replay, ctx->finished_epochs);
        note_epochs(ctx, loop->target);
    }
}

bool adl_epochs_next(adl_epochs *loop)
{
    adl_context *ctx = loop->ctx;
    bool broken = loop->phase == PHASE_BODY; /* the body was left by break */
    if (broken)
        left(loop);
    if (ctx->joining && ctx->status == ADL_OK) /* here a new process meets the others */
        adl_context_fail(ctx, adli_join(ctx));
    if (broken || ctx->status != ADL_OK || ctx->finished_epochs >= loop->until)
        return false;
    loop->number = ctx->finished_epochs;
    loop->phase = PHASE_ENTER;
    return true;
}

bool adl_epochs_enter(adl_epochs *loop)
{
    if (loop->phase != PHASE_ENTER)
        return false;
    loop->phase = PHASE_BODY;
    loop->ctx->in_epoch = true;
    note_epochs(loop->ctx, loop->target);
    return true;
}

void adl_epochs_leave(adl_epochs *loop)
{
    if (loop->phase == PHASE_BODY)
        left(loop);
    loop->phase = PHASE_LEFT;
}

void adl_epochs_end(adl_epochs *loop)
{
    if (loop->phase == PHASE_BODY) /* return or goto */
        left(loop);
    loop->phase = PHASE_OUTSIDE;
}
