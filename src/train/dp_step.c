/* One step of data parallel training. The mathematics is told in adaptdl/dp.h; here is its order: each
 * gradient is seen to once, when it is final (hook) or at the latest in adl_dp_step, and its norm is
 * taken then, while it is in the cache; a step's only gradient before the optimizer's pass. */
#include "train/dp.h"

#include "base/clock.h"
#include "base/mem.h"
#include "train/context.h"
#include "train/loop.h"
#include "train/meter.h"
#include "train/norms.h"
#include "train/regroup.h"
#include "train/sample.h"
#include "train/sums.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SKIPPED_MAX = 200 };

/* Does this batch end the optimizer step, and is its gradient the only one of it? */
static bool ends_step(const adl_dp *dp)
{
    return adl_loop_optim_step(dp->ctx->current);
}

static bool single(const adl_dp *dp)
{
    return dp->ctx->world.replicas == 1 && dp->accumulated == 0 && ends_step(dp);
}

/* The optimizer's preconditioner of one parameter, as a divisor. */
typedef struct divided {
    const adl_dp *dp;
    const adli_place *place;
} divided;

static void divisor(void *user, size_t first, size_t n, float *pre)
{
    const divided *by = user;
    const adl_optim_ops *optim = by->dp->optim;
    optim->precondition(optim->self, by->place->group, by->place->index, first, n, pre);
}

/* Squared norm of a gradient of the place's size, divided by the preconditioner if that is on. */
static double norm_sqr(const adl_dp *dp, const adli_place *place, const float *g)
{
    divided by = {dp, place};
    return adli_sample_sqr(g, place->param->count, ADLI_SAMPLE_ALL,
                           dp->precondition ? divisor : NULL, &by);
}

/* A step's only gradient: kept if it is the first of a pair, compared if it is the second. The difference of two
 * consecutive ones is the noise. False: something is not finite. Right before the optimizer,
 * whose own pass is then faster; a large one seen to in the midst of backward makes the rest of that slower. */
static bool see_single(adl_dp *dp)
{
    bool all_finite = true, finite;
    for (size_t i = 0; i < dp->params; i++) {
        const adli_place *place = &dp->places[i];
        const float *g = place->param->grad;
        float *kept = dp->before + place->kept;
        divided by = {dp, place};
        if (!dp->have_before)
            adli_sample_keep(kept, g, place->param->count, dp->pairs, &finite);
        else
            adli_sample_pair(g, kept, place->param->count, dp->pairs,
                             dp->precondition ? divisor : NULL, &by, dp->pair + 3 * place->group,
                             &finite);
        all_finite &= finite;
    }
    return all_finite;
}

/* Was the first gradient of the present batch seen to already? */
static bool in_batch(const adl_dp *dp)
{
    return dp->in_batch && dp->batch_serial == dp->ctx->batch_serial;
}

/* Before the first gradient of a batch. */
static adl_status begin_batch(adl_dp *dp)
{
    adl_context *ctx = dp->ctx;
    adl_loop *loop = ctx->current;
    if (!loop || !loop->in_step)
        return adli_fail(ADL_ESTATE, "data parallel %s: a training step outside a loop over data",
                         dp->name);
    adl_status status = adli_loop_trains(loop);
    if (status != ADL_OK)
        return status;
    if (dp->in_batch && dp->buckets_started > 0) { /* backward, but no step: left by the program */
        status = adl_reducer_wait_all(dp->reducer, -1);
        if (status != ADL_OK)
            return status;
    }
    if (dp->loop_serial != ctx->loop_serial) /* a loop that was left while accumulating */
        dp->accumulated = 0;
    dp->loop_serial = ctx->loop_serial;
    dp->batch_serial = ctx->batch_serial;
    if (dp->accumulated == 0) {
        const adl_optim_ops *optim = dp->optim;
        dp->whole = true;
        dp->precondition = optim->precondition && optim->steps &&
                           optim->steps(optim->self) >= ADLI_PRECONDITION_AFTER;
        memset(dp->bucket_norms, 0, dp->bucket_count * dp->groups * sizeof(double));
        memset(dp->total, 0, dp->groups * sizeof(double));
        memset(dp->pair, 0, 3 * dp->groups * sizeof(double));
        dp->pairs += !dp->have_before;
    }
    bool wants_sum = !ends_step(dp) && !dp->sum;
    bool wants_before = single(dp) && !dp->before && !ctx->metrics.off;
    if (wants_sum)
        dp->sum = adli_calloc(dp->flat_count, sizeof(float));
    if (wants_before)
        dp->before = adli_calloc(dp->kept, sizeof(float));
    if ((wants_sum && !dp->sum) || (wants_before && !dp->before))
        return adli_fail_memory("gradients");
    for (size_t i = 0; i < dp->params; i++)
        dp->places[i].ready = false;
    for (size_t b = 0; b < dp->bucket_count; b++)
        dp->buckets[b].waiting = dp->buckets[b].params;
    dp->buckets_started = 0;
    dp->in_batch = true;
    return ADL_OK;
}

/* Buckets start in order, so that replicas whose gradients become ready in another order agree. */
static adl_status start_buckets(adl_dp *dp)
{
    while (dp->buckets_started < dp->bucket_count) {
        adli_dp_bucket *bucket = &dp->buckets[dp->buckets_started];
        if (bucket->waiting > 0)
            break;
        adl_status status = adl_reducer_start(dp->reducer, dp->flat + bucket->offset, bucket->count,
                                              bucket->norms, dp->groups, NULL);
        if (status != ADL_OK)
            return status;
        dp->buckets_started++;
    }
    return ADL_OK;
}

/* A gradient that ends its step: brings in what was accumulated and hands it to its bucket. */
static adl_status see_last(adl_dp *dp, adli_place *place)
{
    adli_dp_bucket *bucket = &dp->buckets[place->bucket];
    float *grad = place->param->grad;
    size_t n = place->param->count;
    bool measured = !dp->ctx->metrics.off;
    if (single(dp)) /* in finish_step */
        return ADL_OK;
    double weight = dp->ctx->current->weight;
    if (measured)
        bucket->norms[place->group] += weight * norm_sqr(dp, place, grad);
    if (weight != 1) /* the mean over replicas becomes that over examples */
        adli_scale(grad, (float)weight, n);
    if (dp->accumulated > 0)
        adli_add_scaled(grad, dp->sum + place->offset, 1.0f / (float)(dp->accumulated + 1), n);
    if (!dp->reducer)
        return ADL_OK;
    if (dp->own_flat)
        memcpy(dp->flat + place->offset, grad, n * sizeof *grad);
    bucket->waiting--;
    return start_buckets(dp);
}

static adl_status see_gradient(adl_dp *dp, adli_place *place)
{
    if (place->ready)
        return ADL_OK;
    place->ready = true;
    if (ends_step(dp))
        return see_last(dp, place);
    const float *grad = place->param->grad;
    if (!dp->ctx->metrics.off)
        dp->buckets[place->bucket].norms[place->group] += norm_sqr(dp, place, grad);
    adli_add(dp->sum + place->offset, grad, place->param->count, dp->accumulated == 0);
    return ADL_OK;
}

adl_status adl_dp_grad_ready(adl_dp *dp, size_t param)
{
    adl_context *ctx = dp->ctx;
    if (ctx->status != ADL_OK)
        return ctx->status;
    if (param >= dp->params)
        return adl_context_fail(ctx, adli_fail(ADL_EINVAL, "data parallel %s: parameter %zu of %zu",
                                               dp->name, param, dp->params));
    if (ctx->lost) /* the step is void */
        return ADL_OK;
    adl_status status = in_batch(dp) ? ADL_OK : begin_batch(dp);
    if (status == ADL_OK)
        status = see_gradient(dp, &dp->places[param]);
    return adli_lost(ctx, status) ? ADL_OK : adl_context_fail(ctx, status);
}

adl_status adl_dp_hook(void *dp, size_t param)
{
    return adl_dp_grad_ready(dp, param);
}

/* Waits for the averages. */
static adl_status reduce(adl_dp *dp)
{
    double start_s = adli_monotonic_s();
    adl_status status = adl_reducer_wait_all(dp->reducer, -1);
    dp->ctx->current->sync_s += adli_monotonic_s() - start_s;
    for (size_t i = 0; dp->own_flat && i < dp->params && status == ADL_OK; i++)
        memcpy(dp->places[i].param->grad, dp->flat + dp->places[i].offset,
               dp->places[i].param->count * sizeof(float));
    return status;
}

/* local: mean |g_i|^2, total: |g|^2, per group. False: something is not finite. */
static bool measure(adl_dp *dp, int count)
{
    bool finite = true;
    memset(dp->local, 0, dp->groups * sizeof(double));
    for (size_t b = 0; b < dp->bucket_count; b++)
        for (size_t g = 0; g < dp->groups; g++)
            dp->local[g] += dp->buckets[b].norms[g] / count;
    for (size_t i = 0; i < dp->params; i++)
        dp->total[dp->places[i].group] += norm_sqr(dp, &dp->places[i], dp->places[i].param->grad);
    for (size_t g = 0; g < dp->groups; g++)
        finite &= isfinite(dp->local[g]) && isfinite(dp->total[g]);
    return finite;
}

static adl_status skip(adl_dp *dp)
{
    dp->have_before = false;
    adli_meter_skip(dp->meter, "such steps are skipped");
    if (++dp->skipped_in_a_row < SKIPPED_MAX)
        return ADL_OK;
    return adli_fail(ADL_EINVAL,
                     "data parallel %s: %d gradients in a row were not finite: training "
                     "has diverged",
                     dp->name, SKIPPED_MAX);
}

/* Two consecutive single gradients make a pair. */
static adl_status see_numbers(adl_dp *dp, int count)
{
    bool first_of_pair = count == 1 && !dp->have_before;
    dp->have_before = first_of_pair && dp->whole;
    if (count > 1)
        return adli_meter_see(dp->meter, dp->local, dp->total, dp->loss_scale);
    return adl_meter_pair(dp->meter, first_of_pair ? NULL : dp->pair, dp->loss_scale);
}

/* Shortens the gradient to c / sqrt(gain), see adaptdl/dp.h. */
static void clip(adl_dp *dp, double gain)
{
    double sqr = 0;
    for (size_t i = 0; i < dp->params; i++)
        sqr += adli_norm_sqr(dp->places[i].param->grad, NULL, dp->places[i].param->count);
    double norm = sqrt(sqr), most = dp->options.clip_norm * dp->loss_scale / sqrt(gain);
    if (norm <= most)
        return;
    for (size_t i = 0; i < dp->params; i++)
        adli_scale(dp->places[i].param->grad, (float)(most / norm), dp->places[i].param->count);
}

static adl_status step_optimizer(adl_dp *dp, double scale)
{
    dp->gain = adl_noise_gain(adl_meter_noise(dp->meter), scale);
    for (size_t g = 0; g < dp->groups; g++)
        dp->factors[g] = adl_meter_factor(dp->meter, &dp->rule, g, scale);
    if (dp->options.clip_norm > 0)
        clip(dp, dp->gain);
    adl_status status = dp->optim->step(dp->optim->self, dp->factors);
    if (status == ADL_OK)
        adl_meter_advance(dp->meter);
    return status;
}

static adl_status finish_step(adl_dp *dp)
{
    adl_context *ctx = dp->ctx;
    adl_meter_shape shape;
    int micro = dp->accumulated + 1, count = micro * ctx->world.replicas;
    dp->accumulated = 0;
    adl_status status = adli_sums_post(ctx);
    if (status == ADL_OK && dp->reducer)
        status = reduce(dp);
    if (status == ADL_OK)
        status = adli_sums_take(ctx);
    if (status != ADL_OK)
        return status;
    ctx->current->step_applied = true; /* from here on it is everybody's */
    if (ctx->metrics.off) {
        dp->have_before = false;
        return dp->optim->step(dp->optim->self, NULL);
    }
    bool finite = count > 1 ? measure(dp, count) : see_single(dp);
    status = adli_meter_shape(dp->meter, micro, dp->whole, &shape);
    if (status != ADL_OK)
        return status;
    if (shape.restart && dp->optim->restart)
        dp->optim->restart(dp->optim->self);
    if (!finite)
        return skip(dp);
    dp->skipped_in_a_row = 0;
    status = see_numbers(dp, count);
    return status == ADL_OK ? step_optimizer(dp, shape.scale) : status;
}

adl_status adl_dp_step(adl_dp *dp)
{
    adl_context *ctx = dp->ctx;
    if (ctx->status != ADL_OK)
        return ctx->status;
    if (ctx->lost)
        return ADL_OK;
    adl_status status = in_batch(dp) ? ADL_OK : begin_batch(dp);
    if (status != ADL_OK)
        return adli_lost(ctx, status) ? ADL_OK : adl_context_fail(ctx, status);
    dp->in_batch = false;
    dp->whole &= ctx->current->whole;
    for (size_t i = dp->params; i > 0 && status == ADL_OK;
         i--) /* last layer first, as a hook would */
        status = see_gradient(dp, &dp->places[i - 1]);
    if (status == ADL_OK && ends_step(dp))
        status = finish_step(dp);
    else
        dp->accumulated++;
    return adli_lost(ctx, status) ? ADL_OK : adl_context_fail(ctx, status);
}
