/* Step boundaries: where replicas agree, without waiting for the network, to stop or to save.
 *
 * At the boundary before step k every replica posts its flags (asked to stop? time to save?), which
 * are OR-ed in the background while the step computes. At the boundary before step k + 1 all of them
 * read the same answer, and so act at the same step: the checkpoint holds a state that all replicas
 * were in. One step later than possible is the price for never stopping to ask. */
#include "train/context.h"

#include "base/clock.h"

#include <string.h>

enum { FLAG_STOP = 1, FLAG_SAVE = 2 };

/* The least status of all replicas: failures are negative, so any failure is everybody's. */
static adl_status agree_status(adl_context *ctx, adl_status status)
{
    int64_t worst = status;
    char text[ADLI_ERROR_MAX];
    strncpy(text, adl_error(), sizeof text - 1)[sizeof text - 1] = '\0';
    adl_status reduced = adl_group_allreduce(ctx->group, &worst, 1, ADL_TYPE_I64, ADL_REDUCE_MIN);
    if (reduced != ADL_OK)
        return reduced;
    if (status != ADL_OK)
        return adli_fail(status, "%s", text);
    if (worst != ADL_OK)
        return adli_fail((adl_status)worst, "another replica could not save the checkpoint");
    return ADL_OK;
}

adl_status adli_save_now(adl_context *ctx)
{
    return agree_status(ctx, adl_checkpoint_save_all(ctx->store));
}

static void save_and_stop(adl_context *ctx)
{
    adl_status saved = adli_save_now(ctx);
    if (saved != ADL_OK) {
        ctx->save_failed = true;
        adli_log(ctx, ADL_LOG_ERROR, "interrupted, and the checkpoint could not be saved: %s",
                 adl_error());
    } else if (ctx->env.rank == 0 && ctx->env.checkpoint_path) {
        adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
        adl_checkpoint_get_info(ctx->store, &info);
        adli_log(ctx, ADL_LOG_INFO, "saved %s in %s (epoch %d)", info.saved,
                 ctx->env.checkpoint_path, ctx->finished_epochs);
    }
    adli_fail(ADL_EINTR, "interrupted");
    adl_fail(ctx, ADL_EINTR);
}

/* A save that fails for reasons of storage is reported and training goes on; one that fails because
 * the replicas lost each other stops it. */
static void save_in_background(adl_context *ctx)
{
    adl_status status = adl_checkpoint_save_async(ctx->store);
    if (status == ADL_OK)
        return;
    adl_status group = adl_group_check(ctx->group);
    if (group != ADL_OK)
        adl_fail(ctx, group);
    else
        adli_log(ctx, ADL_LOG_WARNING, "checkpoint not saved, training goes on: %s", adl_error());
}

static adl_status read_flags(adl_context *ctx, int64_t *flags)
{
    const void *data;
    size_t length;
    if (!ctx->agreed)
        return ADL_OK;
    adl_status status = adl_future_wait(ctx->agreed, -1, &data, &length);
    if (status == ADL_OK)
        memcpy(flags, data, sizeof *flags);
    adl_future_free(ctx->agreed);
    ctx->agreed = NULL;
    return status;
}

static adl_status post_flags(adl_context *ctx)
{
    int64_t flags = adli_stop_wanted(ctx) ? FLAG_STOP : 0;
    if (atomic_exchange(&ctx->save_wanted, false) ||
        (ctx->env.rank == 0 && adl_checkpoint_due(ctx->store, adli_monotonic_s())))
        flags |= FLAG_SAVE;
    return adl_group_allreduce_async(ctx->group, &flags, 1, ADL_TYPE_I64, ADL_REDUCE_OR,
                                     &ctx->agreed);
}

void adli_boundary(adl_context *ctx)
{
    int64_t flags = 0;
    if (ctx->status != ADL_OK)
        return;
    adl_status status = ADL_OK;
    if (ctx->env.replicas == 1) /* nobody to wait for: act at once */
        status = post_flags(ctx);
    if (status == ADL_OK)
        status = read_flags(ctx, &flags);
    if (status != ADL_OK) {
        adl_fail(ctx, status);
        return;
    }
    if (flags & FLAG_STOP) {
        save_and_stop(ctx);
        return;
    }
    if (flags & FLAG_SAVE)
        save_in_background(ctx);
    if (ctx->status == ADL_OK && ctx->env.replicas > 1)
        adl_fail(ctx, post_flags(ctx));
}
