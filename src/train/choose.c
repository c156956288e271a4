/* The batch size of a pass: rank 0 asks the goodput model for the best (m, s) and tells the others; after a number of
 * steps it asks again. A change costs (new buffers, a new learning rate, workers that start anew), and what is measured
 * is noisy. So a choice is replaced only by one that is at least 5 % better, twice in a row in the same direction; it
 * shrinks by half at most, and a single replica, which can compare nothing else with what it is measured at, at most
 * doubles. */
#include "train/loop.h"

#include "base/clock.h"
#include "train/context.h"
#include "train/regroup.h"

#include <stdlib.h>

enum { STEPS = 200 }; /* unless ADAPTDL_BATCH_STEPS says otherwise */
static const double better_by = 1.05, pause_s = 1;

static int ceil_div(int a, int b)
{
    return a / b + (a % b != 0);
}

static bool original(const adl_loop *loop)
{
    return loop->ctx->env.original_rule;
}

/* Without a model: the initial batch size, divided (unevenly if it must be, where the data is dealt out by us;
 * the original rounds it up instead); with the user's lower bound for every replica where it fits. */
static void choose_initial(adl_loop *loop, int replicas)
{
    int local = ceil_div(loop->batch_size, replicas);
    bool bounded = loop->autoscale && (int64_t)loop->min_local * replicas <= loop->max_batch_size;
    bool uneven = !original(loop) && loop->examples > 0 && loop->batch_size > replicas &&
                  loop->batch_size % replicas != 0 &&
                  (!bounded || loop->batch_size / replicas >= loop->min_local);
    if (bounded && loop->min_local > local)
        local = loop->min_local;
    loop->deal = uneven ? loop->batch_size : local * replicas;
    loop->accum_steps = 0;
}

static void take_share(adl_loop *loop)
{
    const adli_world *world = &loop->ctx->world;
    loop->local_bsz = loop->deal / world->replicas + (world->rank < loop->deal % world->replicas);
}

/* Is there a present choice to be compared with? A single replica has one from the start: the initial size. */
static bool has_present(const adl_loop *loop, int replicas)
{
    bool first = replicas == 1 && !original(loop) && loop->decided_replicas == 0;
    return (loop->decided_replicas == replicas || (first && loop->local_bsz > 0)) &&
           (int64_t)replicas * loop->local_bsz * (loop->accum_steps + 1) <= loop->max_batch_size;
}

static int64_t total_of(const adl_loop *loop, int replicas)
{
    return (int64_t)replicas * loop->local_bsz * (loop->accum_steps + 1);
}

/* May the present choice stay, for want of one that is better by enough? */
static bool keep_present(adl_loop *loop, const adl_goodput *model, int nodes, int replicas,
                         const adl_batch_choice *best)
{
    double present;
    if (!has_present(loop, replicas) ||
        adl_goodput_evaluate(model, adl_shape_of(nodes, replicas), loop->local_bsz,
                             loop->accum_steps, &present) != ADL_OK)
        return false;
    int64_t now = total_of(loop, replicas);
    int64_t then = (int64_t)replicas * best->local_bsz * (best->accum_steps + 1);
    int direction = (then > now) - (then < now), before = loop->leaning;
    loop->leaning = best->goodput < better_by * present ? 0 : direction;
    if (best->goodput < better_by * present)
        return true;
    return !original(loop) && direction != 0 && before != direction;
}

/* What may be chosen from; not too far from the present choice. */
static adl_batch_limits limits_of(const adl_loop *loop, int replicas)
{
    adl_batch_limits limits = {.max_batch_size = loop->max_batch_size,
                               .min_local_bsz = loop->min_local,
                               .max_local_bsz = loop->max_local,
                               .accumulation = loop->accumulation,
                               .lone_grows = !original(loop)};
    if (original(loop) || !has_present(loop, replicas))
        return limits;
    int64_t now = total_of(loop, replicas), low = now / 2 / replicas;
    int64_t high = 2 * now > loop->batch_size ? 2 * now : loop->batch_size;
    if (replicas == 1 && high < loop->max_batch_size)
        limits.max_batch_size = (double)high;
    if (!loop->accumulation && low > loop->min_local)
        limits.min_local_bsz = (double)low;
    return limits;
}

static void choose_best(adl_loop *loop)
{
    adl_context *ctx = loop->ctx;
    int nodes = ctx->world.nodes, replicas = ctx->world.replicas;
    adl_goodput model;
    if (adli_metrics_fit(&ctx->metrics) != ADL_OK)
        adli_log(ctx, ADL_LOG_WARNING, "step times: %s", adl_error());
    if (!adli_metrics_goodput(&ctx->metrics, loop->batch_size, &model)) {
        if (loop->decided_replicas != replicas)
            choose_initial(loop, replicas);
        return;
    }
    adl_batch_limits limits = limits_of(loop, replicas);
    adl_batch_choice choice;
    if (adl_goodput_optimize(&model, &limits, adl_shape_of(nodes, replicas), &choice) != ADL_OK) {
        if (!loop->choice_warned)
            adli_log(ctx, ADL_LOG_WARNING, "%s: the batch size stays as it is: %s", loop->name,
                     adl_error());
        loop->choice_warned = true;
        if (loop->decided_replicas != replicas)
            choose_initial(loop, replicas);
        return;
    }
    if (keep_present(loop, &model, nodes, replicas, &choice))
        return;
    loop->leaning = 0;
    if (choice.local_bsz != loop->local_bsz || choice.accum_steps != loop->accum_steps)
        adli_log(ctx, ADL_LOG_INFO, "%s: batch size %d (%d replicas of %d, %d accumulation steps)",
                 loop->name, replicas * choice.local_bsz * (choice.accum_steps + 1), replicas,
                 choice.local_bsz, choice.accum_steps);
    loop->deal = replicas * choice.local_bsz;
    loop->accum_steps = choice.accum_steps;
    loop->decided_replicas = replicas;
}

/* look: at what was measured. Otherwise what is chosen stays, and is only told. */
static adl_status choose(adl_loop *loop, bool look)
{
    adl_context *ctx = loop->ctx;
    if (loop->decided_replicas == ctx->world.replicas) /* of the last pass, or of the checkpoint */
        loop->deal = ctx->world.replicas * loop->local_bsz;
    if (ctx->world.rank == 0 && look) {
        choose_best(loop);
        loop->considered_s = adli_monotonic_s();
    }
    loop->since = 0;
    int64_t choice[3] = {loop->deal, loop->accum_steps, loop->decided_replicas};
    adl_status status =
        ctx->lost ? ADL_OK
                  : adl_group_allreduce(ctx->group, choice, 3, ADL_TYPE_I64, ADL_REDUCE_FIRST);
    if (status != ADL_OK && adli_lost(ctx, status)) /* chosen again in the next world */
        status = ADL_OK;
    loop->deal = (int)choice[0];
    loop->accum_steps = (int)choice[1];
    loop->decided_replicas = (int)choice[2];
    take_share(loop);
    return status;
}

adl_status adli_loop_choose(adl_loop *loop)
{
    if (loop->autoscale)
        return choose(loop, true);
    choose_initial(loop, loop->ctx->world.replicas);
    take_share(loop);
    loop->decided_replicas = 0;
    return ADL_OK;
}

adl_status adli_loop_reconsider(adl_loop *loop)
{
    const adl_context *ctx = loop->ctx;
    int steps = ctx->env.batch_steps ? ctx->env.batch_steps : STEPS;
    int deal = loop->deal, accum_steps = loop->accum_steps;
    if (!loop->autoscale || steps < 0 || loop->since < steps || ctx->training != loop)
        return ADL_OK;
    /* Steps may be shorter than the milliseconds that a look takes. */
    adl_status status = choose(loop, adli_monotonic_s() - loop->considered_s >= pause_s);
    loop->chosen = loop->stale = loop->deal != deal || loop->accum_steps != accum_steps;
    return status;
}
