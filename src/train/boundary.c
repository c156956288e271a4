/* Step boundaries: where replicas agree, without waiting for the network, to stop or to save.
 *
 * At the boundary before step k every replica posts its vote (asked to stop? time to save? and where in
 * the program it is), and the votes are merged in the background while the step computes. At the
 * boundary before step k + 1 all of them read the same answer, and so act at the same step: the
 * checkpoint holds a state that all replicas were in. One step later than possible is the price for
 * never stopping to ask. The votes tell where all were a step ago: whoever is about to act on them, which
 * is seldom, asks where all are now and waits for the answer. Replicas that have run apart learn it here,
 * and save nothing. */
#include "train/context.h"

#include "adaptdl/epoch.h"
#include "base/clock.h"
#include "train/loop.h"
#include "train/regroup.h"
#include "train/sums.h"
#include "train/vote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of both kinds of votes: one that a replica waits for is compared with one that another has posted. */
static const char vote_name[] = "step boundary";

/* ---- votes ------------------------------------------------------------------------------------- */

static adl_status read_vote(const void *data, size_t length, uint32_t *wishes)
{
    adli_vote vote;
    adl_status status = adli_vote_parse(data, length, &vote);
    if (status == ADL_OK)
        status = adli_vote_check(&vote);
    if (status == ADL_OK)
        *wishes = vote.wishes;
    return status;
}

/* The answer to the last votes, if there were any; it can be asked for again. */
static adl_status wait_votes(adl_context *ctx, uint32_t *wishes)
{
    const void *data;
    size_t length;
    if (!ctx->agreed)
        return ADL_OK;
    adl_status status = adl_future_wait(ctx->agreed, -1, &data, &length);
    return status == ADL_OK ? read_vote(data, length, wishes) : status;
}

static adl_status take_votes(adl_context *ctx, uint32_t *wishes)
{
    adl_status status = wait_votes(ctx, wishes);
    adl_future_free(ctx->agreed);
    ctx->agreed = NULL;
    return status;
}

static adli_step_place place_of(const adl_context *ctx)
{
    const adl_loop *loop = ctx->current;
    adli_step_place place = {.rank = ctx->world.rank, .epoch = adl_current_epoch(ctx)};
    if (!loop) {
        place.loops = ctx->finished_epochs;
        return place;
    }
    place.loops = loop->seen_loops;
    place.index = loop->index;
    snprintf(place.loop, sizeof place.loop, "%.*s", ADLI_VOTE_LOOP_MAX - 1, loop->name);
    return place;
}

static adl_status post_vote(adl_context *ctx)
{
    uint8_t bytes[ADLI_VOTE_MAX];
    adli_vote vote = {.first = place_of(ctx)};
    if (adli_stop_wanted(ctx))
        vote.wishes |= ADLI_WISH_STOP;
    bool asked = atomic_exchange(&ctx->save_asked, false); /* all were: one of them is enough */
    if (atomic_exchange(&ctx->save_wanted, false) ||
        (ctx->world.rank == 0 && (asked || adl_checkpoint_due(ctx->store, adli_monotonic_s()))))
        vote.wishes |= ADLI_WISH_SAVE;
    vote.wishes |= adli_regroup_wishes(ctx) | adli_sums_wishes(ctx);
    return adl_group_reduce_async(ctx->group, vote_name, bytes, adli_vote_encode(&vote, bytes),
                                  adli_vote_merge, NULL, &ctx->agreed);
}

adl_status adli_boundary_together(adl_context *ctx)
{
    uint8_t bytes[ADLI_VOTE_MAX];
    adli_vote vote = {.first = place_of(ctx)};
    uint32_t wishes; /* the next boundary's */
    void *merged;
    size_t length;
    if (ctx->world.replicas == 1)
        return ADL_OK;
    adl_status status = wait_votes(ctx, &wishes);
    if (status == ADL_OK)
        status = adl_group_reduce(ctx->group, vote_name, bytes, adli_vote_encode(&vote, bytes),
                                  adli_vote_merge, NULL, &merged, &length);
    if (status != ADL_OK)
        return status;
    status = read_vote(merged, length, &wishes);
    free(merged);
    return status;
}

/* ---- saving ------------------------------------------------------------------------------------ */

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

static adl_status save_together(adl_context *ctx)
{
    return agree_status(ctx, adl_checkpoint_save_all(ctx->store));
}

adl_status adli_save_now(adl_context *ctx)
{
    adl_status status = adli_boundary_together(ctx);
    return status == ADL_OK ? save_together(ctx) : status;
}

static void save_and_stop(adl_context *ctx)
{
    adl_status saved = save_together(ctx);
    if (saved != ADL_OK) {
        ctx->save_failed = true;
        adli_log(ctx, ADL_LOG_ERROR, "interrupted, and the checkpoint could not be saved: %s",
                 adl_error());
    } else if (ctx->world.rank == 0 && ctx->env.checkpoint_path) {
        adl_checkpoint_info info = ADL_CHECKPOINT_INFO_INIT;
        adl_checkpoint_get_info(ctx->store, &info);
        adli_log(ctx, ADL_LOG_INFO, "saved %s in %s (epoch %d)", info.saved,
                 ctx->env.checkpoint_path, ctx->finished_epochs);
    }
    adli_fail(ADL_EINTR, "interrupted");
    adl_context_fail(ctx, ADL_EINTR);
}

/* A save that fails for reasons of storage is reported and training goes on. A failure: the replicas
 * lost each other. */
static adl_status save_in_background(adl_context *ctx)
{
    adl_status status = adl_checkpoint_save_async(ctx->store);
    if (status == ADL_OK)
        return ADL_OK;
    adl_status group = adl_group_check(ctx->group);
    if (group == ADL_OK)
        adli_log(ctx, ADL_LOG_WARNING, "checkpoint not saved, training goes on: %s", adl_error());
    return group;
}

/* ---- the boundary ------------------------------------------------------------------------------ */

/* Reads the votes and acts on them; then posts the next ones, unless the world is another one now: then the pass
 * is planned anew first, on all replicas. */
static adl_status act_on_votes(adl_context *ctx, bool may_regroup)
{
    uint32_t wishes = 0, generation = ctx->world.generation;
    adl_status status = ADL_OK;
    if (ctx->world.replicas == 1) /* nobody to wait for: act at once */
        status = post_vote(ctx);
    if (status == ADL_OK)
        status = take_votes(ctx, &wishes);
    if (status == ADL_OK && wishes & (ADLI_WISH_STOP | ADLI_WISH_SAVE))
        status = adli_boundary_together(ctx);
    if (status != ADL_OK)
        return status;
    if (wishes & ADLI_WISH_STOP) {
        save_and_stop(ctx);
        return ADL_OK;
    }
    status = adli_sums_act(ctx, wishes);
    if (status == ADL_OK && wishes & ADLI_WISH_SAVE)
        status = save_in_background(ctx);
    if (status == ADL_OK)
        status = adli_regroup_act(ctx, wishes, may_regroup);
    if (status != ADL_OK || ctx->world.generation != generation || ctx->world.replicas == 1)
        return status;
    status = adli_sums_boundary(ctx->current);
    return status == ADL_OK ? post_vote(ctx) : status;
}

void adli_boundary(adl_context *ctx, bool may_regroup)
{
    if (ctx->status != ADL_OK)
        return;
    adl_status status = ctx->lost ? ADL_OK : act_on_votes(ctx, may_regroup);
    if (status != ADL_OK && may_regroup && adli_lost(ctx, status))
        status = ADL_OK;
    if (status == ADL_OK && ctx->lost)
        status = adli_recover(ctx);
    adl_context_fail(ctx, status);
}

void adli_boundary_end(adl_context *ctx)
{
    if (ctx->status != ADL_OK || !ctx->recovers)
        return;
    adl_status status = ctx->lost ? ADL_OK : adli_boundary_together(ctx);
    if (status != ADL_OK && adli_lost(ctx, status))
        status = ADL_OK;
    if (status == ADL_OK && ctx->lost)
        status = adli_recover(ctx);
    adl_context_fail(ctx, status);
}

adl_status adli_boundary_last(adl_context *ctx)
{
    uint32_t wishes = 0; /* too late for them: the program is at its end */
    return take_votes(ctx, &wishes);
}

bool adli_boundary_apart(adl_context *ctx)
{
    const void *data;
    size_t length;
    adli_vote vote;
    return ctx->agreed && adl_future_done(ctx->agreed) &&
           adl_future_wait(ctx->agreed, 0, &data, &length) == ADL_OK &&
           adli_vote_parse(data, length, &vote) == ADL_OK && adli_vote_check(&vote) != ADL_OK;
}
