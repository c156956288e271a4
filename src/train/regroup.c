#include "train/regroup.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "train/checkpoint_store.h"
#include "train/context.h"
#include "train/loop.h"
#include "train/opener.h"
#include "train/replay.h"
#include "train/sums.h"
#include "train/transfer.h"
#include "train/vote.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_MS = 2, WAIT_MS = 50 };

/* What of the next world there is so far. */
struct adli_regrouping {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    adli_world offered; /* under lock: the newest; members NULL: none, or taken */
    uint32_t newest;    /* under lock: generation of the newest offer */
    uint32_t stale;     /* under lock: it, when this replica said that it had lost its world */
    uint32_t cancelled; /* under lock: nothing comes of worlds up to this one */
    bool orphan;        /* under lock */

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
    adl_status status = adli_cond_init(&(*out)->changed);
    if (status != ADL_OK) {
        free(*out);
        *out = NULL;
        return status;
    }
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
    adli_world_fini(&self->offered);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

/* ---- offers ------------------------------------------------------------------------------------ */

static adl_status copy_world(const adli_world *from, adli_world *to)
{
    *to = *from;
    to->master_addr = adli_strdup(from->master_addr);
    to->members = adli_memdup(from->members, (size_t)from->replicas, sizeof *to->members);
    if (to->master_addr && to->members)
        return ADL_OK;
    adli_world_fini(to);
    return adli_fail_memory("world");
}

adl_status adli_regroup_offer(adl_context *ctx, const adli_world *world)
{
    adli_regrouping *self = ctx->regrouping;
    adli_world copy;
    adl_status status = copy_world(world, &copy);
    if (status != ADL_OK)
        return status;
    pthread_mutex_lock(&self->lock);
    if (copy.generation > self->newest) {
        adli_world before = self->offered;
        self->offered = copy;
        self->newest = copy.generation;
        copy = before;
    }
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
    adli_world_fini(&copy);
    return ADL_OK;
}

void adli_regroup_cancel(adl_context *ctx, uint32_t generation)
{
    adli_regrouping *self = ctx->regrouping;
    pthread_mutex_lock(&self->lock);
    if (generation > self->cancelled)
        self->cancelled = generation;
    if (self->offered.members && self->offered.generation <= generation)
        adli_world_fini(&self->offered);
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

void adli_regroup_orphan(adl_context *ctx)
{
    adli_regrouping *self = ctx->regrouping;
    pthread_mutex_lock(&self->lock);
    self->orphan = true;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

/* Takes what was offered, if it is newer than the present world. */
static bool take_offered(adl_context *ctx, adli_world *out)
{
    adli_regrouping *self = ctx->regrouping;
    pthread_mutex_lock(&self->lock);
    bool taken = self->offered.members != NULL;
    *out = self->offered;
    self->offered = (adli_world){0};
    pthread_mutex_unlock(&self->lock);
    if (taken && out->generation > ctx->world.generation)
        return true;
    adli_world_fini(out);
    return false;
}

/* Is there something newer than this world, or will nothing come of it? */
static bool outdated(adli_regrouping *self, uint32_t generation)
{
    pthread_mutex_lock(&self->lock);
    bool old = self->newest > generation || self->cancelled >= generation;
    pthread_mutex_unlock(&self->lock);
    return old;
}

/* ---- in order ---------------------------------------------------------------------------------- */

/* How far the group of the next world is. One that formed and lost a member is as good as none. */
static uint32_t look(adl_context *ctx)
{
    adli_regrouping *self = ctx->regrouping;
    adl_status status = ADL_OK;
    pthread_mutex_lock(&self->lock);
    bool cancelled = self->cancelled >= self->next.generation;
    pthread_mutex_unlock(&self->lock);
    if (cancelled) {
        adl_group_cancel(self->forming);
        self->forming = NULL;
        status = adli_fail(ADL_ESTATE, "it was taken back");
    }
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
        bool news = self->offered.members != NULL && ctx->world.rank == 0;
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

/* Begins what this replica has to do for the next world (taken). A failure is said with the next vote. */
static void begin(adl_context *ctx, const adli_world *next)
{
    adli_regrouping *self = ctx->regrouping;
    self->pending = true;
    self->next = *next;
    self->next.rank = adli_world_rank(next, ctx->member);
    self->leaves = self->next.rank < 0;
    if (self->leaves)
        return;
    adl_group_options options = adli_world_group(ctx, &self->next);
    if (adl_group_begin(&options, &self->forming) != ADL_OK)
        adli_log(ctx, ADL_LOG_WARNING, "world %u: %s", self->next.generation, adl_error());
}

/* Its first member must have the state, and whoever joins must be able to catch up. */
static adl_status check_next(adl_context *ctx, const adli_world *next)
{
    bool joined = false;
    if (next->generation <= ctx->world.generation)
        return adli_fail(ADL_ESTATE, "world %u was offered to world %u", next->generation,
                         ctx->world.generation);
    if (adli_world_rank(&ctx->world, next->members[0]) < 0)
        return adli_fail(ADL_ESTATE, "world %u begins with a member that does not have the state",
                         next->generation);
    for (int i = 0; i < next->replicas; i++)
        joined |= adli_world_rank(&ctx->world, next->members[i]) < 0;
    if (joined && ctx->unlogged)
        return adli_fail(ADL_ESTATE, "the program called torch.distributed before its epochs, "
                                     "nobody can join");
    if (joined && adli_replay_full(ctx->replay))
        return adli_fail(ADL_ESTATE, "the log of collective calls ran over, nobody can join");
    return ADL_OK;
}

/* What rank 0 has to tell: the offer as bytes (free), or nothing when it is not for this world. */
static uint8_t *offer_to_tell(adl_context *ctx, size_t *length)
{
    adli_world next = {0};
    uint8_t *bytes = NULL;
    *length = 0;
    if (ctx->world.rank != 0 || !take_offered(ctx, &next))
        return NULL;
    if (check_next(ctx, &next) == ADL_OK) {
        bytes = adli_offer_encode(&next, length);
    } else {
        adli_log(ctx, ADL_LOG_WARNING, "not regrouped: %s", adl_error());
        adli_opener_say(ctx, "refused %u %s", next.generation, adl_error());
    }
    adli_world_fini(&next);
    return bytes;
}

/* Rank 0 tells everyone what it was offered. */
static adl_status hear(adl_context *ctx)
{
    adli_world next;
    size_t length, got_length;
    void *got = NULL;
    uint8_t *bytes = offer_to_tell(ctx, &length);
    adl_status status = adl_group_broadcast(ctx->group, bytes ? bytes : (const uint8_t *)"", length,
                                            &got, &got_length);
    free(bytes);
    if (status == ADL_OK && got_length > 0)
        status = adli_offer_parse(got, got_length, &next);
    if (status == ADL_OK && got_length > 0)
        begin(ctx, &next);
    free(got);
    return status;
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
    bool writes = first && ctx->saves && !ctx->options.reads_only;
    if (adli_checkpoint_set_writer(ctx->store, writes, ctx->env.checkpoint_path) != ADL_OK)
        adli_log(ctx, ADL_LOG_WARNING, "no checkpoints from here on: %s", adl_error());
    adli_reports_regroup(ctx);
    if (!first)
        adli_hints_stop(ctx);
    else if (!ctx->hints && ctx->env.supervisor_url)
        return adli_hints_start(ctx);
    return ADL_OK;
}

/* The group of a world of which this replica is a part has formed (both are taken). Nobody is told anything
 * through the group before from here on. */
static adl_status enter(adl_context *ctx, const adli_world *next, adl_group *formed)
{
    adl_group *before = ctx->group;
    bool joins = ctx->joining && !ctx->alone;
    adli_world_fini(&ctx->world);
    ctx->world = *next;
    atomic_store(&ctx->several, ctx->world.replicas > 1);
    ctx->group = formed;
    adli_group_set_tap(formed, &ctx->tap);
    ctx->quiet++;
    adl_status status = adli_transfer(ctx);
    ctx->joined |= ctx->joining && status == ADL_OK;
    ctx->joining = ctx->joining && status != ADL_OK; /* it has the state, like everyone */
    if (status == ADL_OK)
        status = tell_owned(ctx);
    if (status == ADL_OK)
        status = move_offices(ctx);
    ctx->quiet--;
    adl_future_free(ctx->agreed);
    ctx->agreed = NULL;
    ctx->sums = false; /* until all of this world have heard */
    if (joins) {
        ctx->alone = before; /* the program may be in a call on it */
    } else if (status != ADL_OK && !ctx->former) {
        ctx->former = before; /* not everybody was told of the new one */
    } else {
        adl_group_free(before);
    }
    if (status != ADL_OK)
        return status;
    adl_group_free(ctx->former);
    ctx->former = NULL;
    adli_opener_say(ctx, "entered %u", ctx->world.generation);
    if (ctx->world.rank == 0)
        adli_log(ctx, ADL_LOG_INFO, "world %u: going on as %d replica%s", ctx->world.generation,
                 ctx->world.replicas, ctx->world.replicas == 1 ? "" : "s");
    return ADL_OK;
}

/* Everybody is at the same boundary, and everybody's part of the next group has formed. */
static adl_status cross(adl_context *ctx)
{
    adli_regrouping *self = ctx->regrouping;
    ctx->pause_since_s = adli_monotonic_s();
    adl_status status = adli_boundary_together(ctx);
    if (status == ADL_OK)
        status = adli_sums_share(ctx);
    if (status == ADL_OK)
        status = adli_checkpoint_sync(ctx->store);
    if (status != ADL_OK)
        return adli_wrap(status, "world %u", self->next.generation);
    /* The writer changes: what it began is on disk. Storage that fails is no reason to stop. */
    if (ctx->world.rank == 0 && self->next.rank != 0 && adl_checkpoint_flush(ctx->store) != ADL_OK)
        adli_log(ctx, ADL_LOG_WARNING, "checkpoint not saved, training goes on: %s", adl_error());
    if (!self->leaves) {
        adli_world next = self->next;
        adl_group *formed = self->formed;
        self->next = (adli_world){0};
        self->formed = NULL;
        self->pending = false;
        return enter(ctx, &next, formed);
    }
    adli_regroup_drop(ctx);
    adli_log(ctx, ADL_LOG_INFO, "not in the next world: leaving");
    ctx->left = true;
    return adli_fail(ADL_EINTR, "left: the job goes on without this replica");
}

void adli_regroup_unlogged(adl_context *ctx)
{
    if (ctx->in_epoch)
        ctx->unlogged_epoch = ctx->finished_epochs + 1;
    else
        ctx->unlogged = true;
}

adl_status adli_regroup_act(adl_context *ctx, uint32_t wishes, bool may_regroup)
{
    adli_regrouping *self = ctx->regrouping;
    if (ctx->in_epoch && ctx->unlogged_epoch == ctx->finished_epochs + 1)
        may_regroup = false; /* nobody could join in this epoch */
    if (!self->pending)
        return wishes & ADLI_WISH_NEWS && may_regroup ? hear(ctx) : ADL_OK;
    if (wishes & ADLI_WISH_DROP) {
        if (ctx->world.rank == 0) {
            adli_log(ctx, ADL_LOG_WARNING, "world %u did not come to be: going on as we are",
                     self->next.generation);
            adli_opener_say(ctx, "refused %u its group did not form", self->next.generation);
        }
        adli_regroup_drop(ctx);
        return ADL_OK;
    }
    return wishes & ADLI_WISH_WAIT || !may_regroup ? ADL_OK : cross(ctx);
}

/* ---- joining, and going on after a death ------------------------------------------------------- */

void adli_regroup_able(adl_context *ctx)
{
    if (ctx->recovers || !ctx->opener)
        return;
    ctx->recovers = true;
    adli_opener_say(ctx, "able");
}

/* Waits for an offer. */
static adl_status wait_offer(adl_context *ctx, adli_world *out)
{
    adli_regrouping *self = ctx->regrouping;
    while (!take_offered(ctx, out)) {
        struct timespec until = adli_deadline(WAIT_MS);
        pthread_mutex_lock(&self->lock);
        if (!self->offered.members && !self->orphan)
            pthread_cond_timedwait(&self->changed, &self->lock, &until);
        bool orphan = self->orphan;
        pthread_mutex_unlock(&self->lock);
        if (adli_stop_wanted(ctx))
            return adli_fail(ctx->joining ? ADL_EINTR : ADL_EPEER,
                             "asked to stop while waiting for another world");
        if (orphan)
            return adli_fail(ADL_EPEER, "nobody is left who could say how to go on");
    }
    return ADL_OK;
}

/* Forms the group of that world, unless it is outdated before. */
static adl_status form(adl_context *ctx, const adli_world *next, adl_group **out)
{
    adli_regrouping *self = ctx->regrouping;
    adl_forming *forming;
    adl_group_options options = adli_world_group(ctx, next);
    adl_status status = adl_group_begin(&options, &forming);
    *out = NULL;
    if (status != ADL_OK)
        return status;
    while (!adl_group_test(forming)) {
        struct timespec pause = {0, LOOK_MS * 1000000L};
        if (outdated(self, next->generation)) {
            adl_group_cancel(forming);
            return adli_fail(ADL_ESTATE, "world %u was taken back", next->generation);
        }
        nanosleep(&pause, NULL);
    }
    return adl_group_finish(forming, out);
}

/* Whoever opens worlds is told that this one has lost a member (-1: not known which). */
static void say_lost(adl_context *ctx, int member)
{
    adli_regrouping *self = ctx->regrouping;
    pthread_mutex_lock(&self->lock);
    self->stale = self->newest;
    pthread_mutex_unlock(&self->lock);
    adli_opener_say(ctx, "lost %u %llu %d", ctx->world.generation, (unsigned long long)ctx->applied,
                    member);
}

/* An offer without this replica tells it to leave, unless it is from before the loss: what was to be a smaller world
 * then is not what comes now. */
static bool sends_away(adl_context *ctx, const adli_world *next)
{
    adli_regrouping *self = ctx->regrouping;
    pthread_mutex_lock(&self->lock);
    bool fresh = next->generation > self->stale;
    pthread_mutex_unlock(&self->lock);
    return fresh && !ctx->joining;
}

/* Until this replica is in another world. */
static adl_status await_world(adl_context *ctx)
{
    for (;;) {
        adli_world next;
        adl_group *formed;
        adl_status status = wait_offer(ctx, &next);
        if (status != ADL_OK)
            return status;
        next.rank = adli_world_rank(&next, ctx->member);
        if (next.rank < 0) {
            bool leaves = sends_away(ctx, &next);
            adli_world_fini(&next);
            if (!leaves)
                continue;
            return adli_fail(ADL_EINTR, "left: the job goes on without this replica");
        }
        status = form(ctx, &next, &formed);
        if (status != ADL_OK) {
            adli_log(ctx, ADL_LOG_WARNING, "world %u: %s", next.generation, adl_error());
            if (!ctx->joining && !outdated(ctx->regrouping, next.generation))
                adli_opener_say(ctx, "unformed %u", next.generation);
            adli_world_fini(&next);
            continue;
        }
        status = enter(ctx, &next, formed);
        if (status != ADL_EPEER || ctx->loading) /* half a state is nothing to go on from */
            return status;
        adli_log(ctx, ADL_LOG_WARNING, "world %u: %s", ctx->world.generation, adl_error());
        if (!ctx->joining)
            say_lost(ctx, -1);
    }
}

adl_status adli_join(adl_context *ctx)
{
    adli_log(ctx, ADL_LOG_INFO, "ready to join");
    adli_opener_say(ctx, "ready");
    adl_status status = await_world(ctx);
    return status == ADL_OK ? ADL_OK : adli_wrap(status, "joining");
}

bool adli_lost(adl_context *ctx, adl_status status)
{
    const adl_loop *loop = ctx->current;
    if (ctx->lost)
        return true;
    if (!ctx->recovers || status != ADL_EPEER || ctx->status != ADL_OK || !loop ||
        !loop->regroups || (loop->in_step && loop->step_applied) || adli_boundary_apart(ctx))
        return false;
    adli_log(ctx, ADL_LOG_WARNING, "%s; waiting for a world without it", adl_error());
    ctx->pause_since_s = adli_monotonic_s();
    ctx->lost = true;
    return true;
}

/* What the dead replica knew alone is lost with it: sums of accumulators, and states that are put together before they
 * are saved. */
static adl_status check_shared(adl_context *ctx)
{
    const adl_checkpoint *store = ctx->store;
    bool alone = !adli_sums_known(ctx->current);
    for (adli_owned *at = ctx->first_owned; at; at = at->next)
        alone |= at->ops->unshared && at->ops->unshared(at->object);
    if (alone)
        return adli_fail(ADL_EPEER, "what the lost replica has added to an accumulator is lost "
                                    "with it: the job has to go back to a checkpoint");
    for (size_t i = 0; i < store->states_count; i++)
        if (store->states[i]->functions.sync && !store->states[i]->idle_sync &&
            strncmp(store->states[i]->name, "adaptdl.", 8) != 0)
            return adli_fail(ADL_EPEER,
                             "the lost replica's part of state \"%s\" is lost with it: the job has "
                             "to go back to a checkpoint",
                             store->states[i]->name);
    return ADL_OK;
}

static int lost_member(adl_context *ctx)
{
    int failed = adl_group_failed_rank(ctx->group);
    return failed >= 0 && failed < ctx->world.replicas ? ctx->world.members[failed] : -1;
}

bool adli_regroup_hurry(adl_context *ctx)
{
    if (ctx->lost || !adli_lost(ctx, adl_group_check(ctx->group)))
        return false;
    say_lost(ctx, lost_member(ctx));
    return true;
}

adl_status adli_recover(adl_context *ctx)
{
    adl_loop *loop = ctx->current;
    adl_status status = check_shared(ctx);
    if (status != ADL_OK)
        return status;
    adli_loop_void(loop);
    adli_sums_void(loop);
    adli_regroup_drop(ctx);
    say_lost(ctx, lost_member(ctx));
    status = await_world(ctx);
    ctx->lost = status != ADL_OK;
    return status;
}
