#include "train/regroup.h"

#include "base/mem.h"
#include "train/checkpoint_store.h"
#include "train/context.h"
#include "train/vote.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* What of the next world there is so far. */
struct adli_regrouping {
    pthread_mutex_t lock;
    uint8_t *offered; /* under lock; rank 0: an offer that nobody else knows yet, as bytes */
    size_t offered_length;

    /* The owner's thread. */
    bool pending; /* everybody knows of `next` */
    bool leaves;  /* this replica is not in it */
    adli_world next;
    adl_forming *forming;
    adl_group *formed; /* and not entered yet */
};

adl_status adli_regrouping_new(adli_regrouping **out)
{
    *out = adli_calloc(1, sizeof **out);
    if (!*out)
        return adli_fail_memory("context");
    pthread_mutex_init(&(*out)->lock, NULL);
    return ADL_OK;
}

void adli_regrouping_free(adli_regrouping *self)
{
    if (!self)
        return;
    adl_group_cancel(self->forming);
    adl_group_free(self->formed);
    adli_world_fini(&self->next);
    pthread_mutex_destroy(&self->lock);
    free(self->offered);
    free(self);
}

adl_status adli_regroup_offer(adl_context *ctx, const adli_offer *offer)
{
    adli_regrouping *self = ctx->regrouping;
    size_t length;
    uint8_t *bytes = adli_offer_encode(offer, &length);
    if (!bytes)
        return adli_fail_memory("an offer");
    pthread_mutex_lock(&self->lock);
    bool taken = !self->offered;
    if (taken) {
        self->offered = bytes;
        self->offered_length = length;
    }
    pthread_mutex_unlock(&self->lock);
    if (taken)
        return ADL_OK;
    free(bytes);
    return adli_fail(ADL_ESTATE, "another world has been offered already");
}

static uint8_t *take_offered(adli_regrouping *self, size_t *length)
{
    pthread_mutex_lock(&self->lock);
    uint8_t *bytes = self->offered;
    *length = self->offered_length;
    self->offered = NULL;
    pthread_mutex_unlock(&self->lock);
    return bytes;
}

/* How far the group of the next world is. One that formed and lost a member is as good as none. */
static uint32_t look(adl_context *ctx)
{
    adli_regrouping *self = ctx->regrouping;
    adl_status status = ADL_OK;
    if (self->forming && !adl_group_test(self->forming))
        return ADLI_WISH_WAIT;
    if (self->forming)
        status = adl_group_finish(self->forming, &self->formed);
    self->forming = NULL;
    if (status == ADL_OK && self->formed)
        status = adl_group_check(self->formed);
    if (status == ADL_OK && self->formed)
        return 0;
    if (status != ADL_OK)
        adli_log(ctx, ADL_LOG_WARNING, "world %u: %s", self->next.generation, adl_error());
    adl_group_free(self->formed);
    self->formed = NULL;
    return ADLI_WISH_DROP;
}

uint32_t adli_regroup_wishes(adl_context *ctx)
{
    adli_regrouping *self = ctx->regrouping;
    if (!self->pending) {
        pthread_mutex_lock(&self->lock);
        bool news = self->offered != NULL;
        pthread_mutex_unlock(&self->lock);
        return news ? ADLI_WISH_NEWS : 0;
    }
    return self->leaves ? 0 : look(ctx);
}

void adli_regroup_drop(adl_context *ctx)
{
    adli_regrouping *self = ctx->regrouping;
    adl_group_cancel(self->forming);
    adl_group_free(self->formed);
    adli_world_fini(&self->next);
    self->forming = NULL;
    self->formed = NULL;
    self->pending = self->leaves = false;
}

/* Begins what this replica has to do for the next world. A failure is said with the next vote. */
static void begin(adl_context *ctx, adli_offer *offer)
{
    adli_regrouping *self = ctx->regrouping;
    self->pending = true;
    self->next = offer->world;
    offer->world.master_addr = NULL;
    self->next.rank = offer->ranks[ctx->world.rank];
    self->leaves = self->next.rank < 0;
    if (self->leaves)
        return;
    adl_group_options options = adli_world_group(ctx, &self->next);
    if (adl_group_begin(&options, &self->forming) != ADL_OK)
        adli_log(ctx, ADL_LOG_WARNING, "world %u: %s", self->next.generation, adl_error());
}

/* Rank 0 tells everyone what it was offered. An offer that is not for this world is dropped by all. */
static adl_status hear(adl_context *ctx)
{
    adli_regrouping *self = ctx->regrouping;
    adli_offer offer;
    size_t length, got_length;
    void *got = NULL;
    uint8_t *bytes = take_offered(self, &length);
    adl_status status = adl_group_broadcast(ctx->group, bytes ? bytes : (const uint8_t *)"",
                                            bytes ? length : 0, &got, &got_length);
    free(bytes);
    if (status != ADL_OK)
        return status;
    status = adli_offer_parse(got, got_length, &offer);
    free(got);
    if (status == ADL_OK &&
        (offer.count != ctx->world.replicas || offer.world.generation != ctx->world.generation + 1))
        status = adli_fail(ADL_ESTATE, "world %u of %d replicas was offered to world %u of %d",
                           offer.world.generation, offer.count, ctx->world.generation,
                           ctx->world.replicas);
    if (status == ADL_OK)
        begin(ctx, &offer);
    else if (ctx->world.rank == 0)
        adli_log(ctx, ADL_LOG_WARNING, "not regrouped: %s", adl_error());
    adli_offer_fini(&offer);
    return ADL_OK;
}

static adl_status tell_owned(adl_context *ctx)
{
    for (adli_owned *at = ctx->first_owned; at; at = at->next) {
        adl_status status = at->ops->regroup ? at->ops->regroup(at->object) : ADL_OK;
        if (status != ADL_OK)
            return status;
    }
    return ADL_OK;
}

/* The writer of checkpoints and the one who reports to the scheduler is rank 0, whoever that is. */
static adl_status move_offices(adl_context *ctx)
{
    bool first = ctx->world.rank == 0;
    adli_checkpoint_set_writer(ctx->store, first);
    adli_reports_regroup(ctx);
    if (!first)
        adli_hints_stop(ctx);
    else if (!ctx->hints && ctx->env.supervisor_url)
        return adli_hints_start(ctx);
    return ADL_OK;
}

/* All who stay, and only they. Nobody is told anything through the group before from here on. */
static adl_status enter(adl_context *ctx)
{
    adli_regrouping *self = ctx->regrouping;
    adl_group *before = ctx->group;
    adli_world_fini(&ctx->world);
    ctx->world = self->next;
    self->next.master_addr = NULL;
    self->pending = false;
    atomic_store(&ctx->several, ctx->world.replicas > 1);
    ctx->group = self->formed;
    self->formed = NULL;
    adl_status status = tell_owned(ctx);
    if (status == ADL_OK)
        status = move_offices(ctx);
    adl_group_free(before);
    if (status == ADL_OK && ctx->world.rank == 0)
        adli_log(ctx, ADL_LOG_INFO, "world %u: going on as %d replica%s", ctx->world.generation,
                 ctx->world.replicas, ctx->world.replicas == 1 ? "" : "s");
    return status;
}

/* Everybody is at the same boundary, and everybody's part of the next group has formed. */
static adl_status cross(adl_context *ctx)
{
    adli_regrouping *self = ctx->regrouping;
    adl_status status = adli_boundary_together(ctx);
    if (status == ADL_OK)
        status = adli_checkpoint_sync(ctx->store);
    if (status == ADL_OK && ctx->world.rank == 0 && self->next.rank != 0)
        status =
            adl_checkpoint_flush(ctx->store); /* the writer changes: what it began is on disk */
    if (status != ADL_OK)
        return adli_wrap(status, "world %u", self->next.generation);
    if (!self->leaves)
        return enter(ctx);
    adli_regroup_drop(ctx);
    adli_log(ctx, ADL_LOG_INFO, "not in the next world: leaving");
    return adli_fail(ADL_EINTR, "left: the job goes on without this replica");
}

adl_status adli_regroup_act(adl_context *ctx, uint32_t wishes, bool may_regroup)
{
    adli_regrouping *self = ctx->regrouping;
    if (!self->pending)
        return wishes & ADLI_WISH_NEWS ? hear(ctx) : ADL_OK;
    if (wishes & ADLI_WISH_DROP) {
        if (ctx->world.rank == 0)
            adli_log(ctx, ADL_LOG_WARNING, "world %u did not come to be: going on as we are",
                     self->next.generation);
        adli_regroup_drop(ctx);
        return ADL_OK;
    }
    return wishes & ADLI_WISH_WAIT || !may_regroup ? ADL_OK : cross(ctx);
}
