#include "train/sums.h"

#include "base/clock.h"
#include "train/accumulator.h"
#include "train/bundle.h"
#include "train/vote.h"

#include <string.h>

static const double mark_interval_s = 1;

static bool travels(const adl_context *ctx)
{
    return ctx->sums && ctx->recovers && ctx->world.replicas > 1;
}

/* The next accumulator from there on; NULL: none. */
static adl_accumulator *next_accumulator(const adli_owned **at)
{
    while (*at && (*at)->ops != &adli_accumulator_ops)
        *at = (*at)->next;
    adl_accumulator *found = *at ? (*at)->object : NULL;
    if (found)
        *at = (*at)->next;
    return found;
}

#define EACH_ACCUMULATOR(ctx, one)                                                                 \
    const adli_owned *owned_ = (ctx)->first_owned;                                                 \
    for (adl_accumulator * one; (one = next_accumulator(&owned_));)

static bool in_use(const adl_context *ctx)
{
    const adli_owned *at = ctx->first_owned;
    return next_accumulator(&at) != NULL;
}

bool adli_sums_pending(const adl_context *ctx)
{
    EACH_ACCUMULATOR(ctx, one)
    if (one->pending.count > 0)
        return true;
    return false;
}

/* ---- on their way ------------------------------------------------------------------------------ */

static adl_status post(adl_context *ctx, bool late)
{
    adli_buf packed;
    adli_bundle_begin(&packed, late);
    EACH_ACCUMULATOR(ctx, one)
    if (one->pending.count > 0)
        adli_bundle_put(&packed, one->name, &one->pending);
    adl_status status = adli_buf_check(&packed);
    adli_sums_drop(ctx);
    ctx->quiet++;
    if (status == ADL_OK)
        status = adl_group_reduce_async(ctx->group, "sums", packed.data, packed.length,
                                        adli_bundle_merge, NULL, &ctx->sums_on_way);
    ctx->quiet--;
    adli_buf_fini(&packed);
    return status;
}

static adl_status give(adl_context *ctx, const adli_bundle_item *from)
{
    EACH_ACCUMULATOR(ctx, one)
    if (strcmp(one->name, from->name) == 0)
        return adli_table_add(&one->results, &from->table);
    return adli_fail(ADL_ESTATE, "another replica has added to accumulator %s, which is not here",
                     from->name);
}

/* Everybody's become results. *late: some of it was added after a step. */
static adl_status take(adl_context *ctx, bool *late)
{
    const void *data;
    size_t length;
    adli_bundle sum = {0};
    adl_status status = adl_future_wait(ctx->sums_on_way, -1, &data, &length);
    if (status == ADL_OK)
        status = adli_bundle_add(&sum, data, length);
    for (size_t i = 0; status == ADL_OK && i < sum.count; i++)
        status = give(ctx, &sum.items[i]);
    *late = sum.late;
    adli_bundle_fini(&sum);
    adli_sums_drop(ctx);
    if (status != ADL_OK)
        return status;
    EACH_ACCUMULATOR(ctx, one)
    adli_table_clear(&one->pending);
    return ADL_OK;
}

void adli_sums_drop(adl_context *ctx)
{
    adl_future_free(ctx->sums_on_way);
    ctx->sums_on_way = NULL;
}

adl_status adli_sums_post(adl_context *ctx)
{
    const adl_loop *loop = ctx->current;
    return travels(ctx) ? post(ctx, loop->carried || loop->brought) : ADL_OK;
}

adl_status adli_sums_take(adl_context *ctx)
{
    adl_loop *loop = ctx->current;
    bool late;
    if (!ctx->sums_on_way)
        return ADL_OK;
    adl_status status = take(ctx, &late);
    if (status == ADL_OK) {
        loop->late |= late;
        loop->carried = loop->brought = false;
    }
    return status;
}

/* ---- boundaries -------------------------------------------------------------------------------- */

void adli_sums_mark(adl_loop *loop)
{
    loop->mark_index = loop->index;
    loop->mark_applied = loop->ctx->applied;
    loop->mark_s = adli_monotonic_s();
    loop->brought = loop->carried = loop->torn = loop->mark_due = false;
}

/* Waits for all. It counts as a step, so that one that has got it is ahead of one that has not. */
static adl_status share(adl_loop *loop)
{
    adl_context *ctx = loop->ctx;
    bool late;
    adl_status status = post(ctx, false);
    if (status == ADL_OK)
        status = take(ctx, &late);
    if (status != ADL_OK)
        return status;
    ctx->applied++;
    adli_sums_mark(loop);
    return ADL_OK;
}

void adli_sums_begin(adl_loop *loop)
{
    bool due = !loop->ctx->joined;
    adli_sums_mark(loop);
    loop->brought = adli_sums_pending(loop->ctx);
    loop->late = false;
    loop->mark_due = due;
    loop->ctx->joined = false;
}

adl_status adli_sums_boundary(adl_loop *loop)
{
    bool wanted = loop->mark_due || (loop->late && loop->trained);
    return wanted ? adli_sums_share(loop->ctx) : ADL_OK;
}

adl_status adli_sums_share(adl_context *ctx)
{
    return travels(ctx) && ctx->current ? share(ctx->current) : ADL_OK;
}

uint32_t adli_sums_wishes(adl_context *ctx)
{
    const adl_loop *loop = ctx->current;
    uint32_t wishes = ctx->recovers && in_use(ctx) ? ADLI_WISH_SUMS : 0;
    if (ctx->world.rank == 0 && travels(ctx) && loop && !loop->trained && loop->rewinds &&
        adli_monotonic_s() - loop->mark_s > mark_interval_s)
        wishes |= ADLI_WISH_MARK;
    return wishes;
}

adl_status adli_sums_act(adl_context *ctx, uint32_t wishes)
{
    ctx->sums = wishes & ADLI_WISH_SUMS;
    return wishes & (ADLI_WISH_MARK | ADLI_WISH_SAVE) ? adli_sums_share(ctx) : ADL_OK;
}

/* ---- after a death ----------------------------------------------------------------------------- */

static bool goes_back(const adl_loop *loop)
{
    return !loop->trained && loop->rewinds && in_use(loop->ctx);
}

bool adli_sums_known(const adl_loop *loop)
{
    if (loop->trained)
        return !loop->carried && !loop->brought && !loop->torn;
    return goes_back(loop) ? !loop->brought && !loop->torn : !adli_sums_pending(loop->ctx);
}

void adli_sums_void(adl_loop *loop)
{
    adl_context *ctx = loop->ctx;
    adli_sums_drop(ctx);
    EACH_ACCUMULATOR(ctx, one)
    adli_table_clear(&one->pending);
    if (!goes_back(loop))
        return;
    loop->index = loop->mark_index;
    ctx->applied = loop->mark_applied;
    loop->at_end = loop->finished = false;
}
