/* Making a data-parallel wrapper: where gradients lie, which of them travel together. */
#include "train/dp.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/options.h"
#include "train/context.h"
#include "train/meter.h"
#include "train/sample.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void free_dp(void *object)
{
    adl_dp *dp = object;
    adl_reducer_free(dp->reducer);
    adli_meter_free(dp->meter);
    free(dp->places);
    free(dp->buckets);
    free(dp->bucket_norms);
    free(dp->sum);
    free(dp->before);
    free(dp->local);
    free(dp->total);
    free(dp->factors);
    free(dp->pair);
    if (dp->own_flat)
        free(dp->flat);
    free(dp);
}

/* What every optimizer must have; the rest is optional (optim.h). */
static adl_status check_optim(const char *name, const adl_optim_ops *optim)
{
    if (!optim)
        return adli_fail(ADL_EINVAL, "data parallel %s: there is no optimizer", name);
    const char *missing = !optim->step          ? "step"
                          : !optim->lr          ? "lr"
                          : !optim->save_size   ? "save_size"
                          : !optim->save        ? "save"
                          : !optim->load        ? "load"
                          : !optim->groups      ? "groups"
                          : !optim->group_count ? "group_count"
                                                : NULL;
    if (missing)
        return adli_fail(ADL_EINVAL, "data parallel %s: the optimizer has no %s", name, missing);
    if (optim->precondition && !optim->steps)
        return adli_fail(ADL_EINVAL,
                         "data parallel %s: the optimizer has precondition, but not steps", name);
    return ADL_OK;
}

static adl_status check(const adl_dp_options *options)
{
    const adl_optim_ops *optim = options->optim;
    if (!options->name || !*options->name)
        return adli_fail(ADL_EINVAL, "data parallel: it needs a name");
    adl_status status = check_optim(options->name, optim);
    if (status != ADL_OK)
        return status;
    if (optim->group_count > ADL_REDUCER_EXTRA_MAX)
        return adli_fail(ADL_EINVAL, "data parallel %s: %zu parameter groups, at most %d",
                         options->name, optim->group_count, ADL_REDUCER_EXTRA_MAX);
    if (!(options->clip_norm >= 0))
        return adli_fail(ADL_EINVAL, "data parallel %s: clip_norm must not be negative",
                         options->name);
    return options->rule ? adl_scaling_check(options->rule) : ADL_OK;
}

/* Lists the parameters of all groups; their places are in the given block if they fit there. */
static adl_status list_params(adl_dp *dp)
{
    const adl_optim_ops *optim = dp->optim;
    size_t values = 0, at = 0;
    for (size_t g = 0; g < dp->groups; g++)
        dp->params += optim->groups[g].count;
    dp->places = adli_calloc(dp->params, sizeof *dp->places);
    if (!dp->places)
        return adli_fail_memory("data parallel");
    for (size_t g = 0; g < dp->groups; g++)
        for (size_t i = 0; i < optim->groups[g].count; i++) {
            const adl_param *param = &optim->groups[g].params[i];
            if (!param->value || !param->grad || !param->name)
                return adli_fail(ADL_EINVAL,
                                 "data parallel %s: parameter %zu of group %zu has no "
                                 "name, value or gradient",
                                 dp->name, i, g);
            dp->places[at++] = (adli_place){
                .param = param, .group = g, .index = i, .offset = values, .kept = dp->kept};
            values += param->count;
            dp->kept += adli_sample_room(param->count);
        }
    if (values == 0)
        return adli_fail(ADL_EINVAL, "data parallel %s: there are no parameters", dp->name);
    dp->flat_count = values;
    return ADL_OK;
}

/* Uses the block that the options name, if every gradient lies in it. */
static void adopt_flat(adl_dp *dp)
{
    uintptr_t start = (uintptr_t)dp->options.flat_grads;
    for (size_t i = 0; i < dp->params && start; i++) {
        uintptr_t grad = (uintptr_t)dp->places[i].param->grad;
        size_t offset = (grad - start) / sizeof(float);
        if (grad < start || offset > dp->options.flat_count ||
            dp->places[i].param->count > dp->options.flat_count - offset)
            start = 0;
    }
    if (!start)
        return;
    for (size_t i = 0; i < dp->params; i++)
        dp->places[i].offset = ((uintptr_t)dp->places[i].param->grad - start) / sizeof(float);
    dp->flat = dp->options.flat_grads;
    dp->flat_count = dp->options.flat_count;
}

static int by_offset_descending(const void *a, const void *b)
{
    size_t x = (*(adli_place *const *)a)->offset, y = (*(adli_place *const *)b)->offset;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Cuts the block from its end: a bucket is closed when it has reached bucket_bytes. */
static adl_status make_buckets(adl_dp *dp)
{
    adli_place **order = adli_calloc(dp->params, sizeof *order);
    dp->buckets = adli_calloc(dp->params, sizeof *dp->buckets);
    if (!order || !dp->buckets) {
        free(order);
        return adli_fail_memory("data parallel");
    }
    for (size_t i = 0; i < dp->params; i++)
        order[i] = &dp->places[i];
    qsort(order, dp->params, sizeof *order, by_offset_descending);
    adli_dp_bucket *bucket = NULL;
    for (size_t i = 0; i < dp->params; i++) {
        adli_place *place = order[i];
        size_t end = place->offset + place->param->count;
        if (!bucket || bucket->count * sizeof(float) >= dp->options.bucket_bytes) {
            bucket = &dp->buckets[dp->bucket_count++];
            bucket->offset = end;
        }
        bucket->count += bucket->offset - place->offset;
        bucket->offset = place->offset;
        bucket->params++;
        place->bucket = dp->bucket_count - 1;
    }
    free(order);
    dp->bucket_norms = adli_calloc(dp->bucket_count * dp->groups, sizeof(double));
    if (!dp->bucket_norms)
        return adli_fail_memory("data parallel");
    for (size_t b = 0; b < dp->bucket_count; b++)
        dp->buckets[b].norms = dp->bucket_norms + b * dp->groups;
    return ADL_OK;
}

/* What averaging over the replicas of the present world takes: nothing with one. */
static adl_status make_reducer(adl_dp *dp)
{
    adl_reducer_options options = ADL_REDUCER_OPTIONS_INIT;
    if (dp->ctx->world.replicas == 1 || dp->ctx->joining)
        return ADL_OK;
    if (!dp->flat) {
        dp->own_flat = true;
        dp->flat = adli_calloc(dp->flat_count, sizeof(float));
        if (!dp->flat)
            return adli_fail_memory("gradients");
    }
    options.transport = dp->options.transport;
    options.wire = dp->options.wire;
    if (options.max_pending < dp->bucket_count)
        options.max_pending = dp->bucket_count;
    return adl_reducer_new(dp->ctx->group, &options, &dp->reducer);
}

static adl_status allocate(adl_dp *dp)
{
    dp->local = adli_calloc(dp->groups, sizeof(double));
    dp->total = adli_calloc(dp->groups, sizeof(double));
    dp->factors = adli_calloc(dp->groups, sizeof(double));
    dp->pair = adli_calloc(3 * dp->groups, sizeof(double));
    if (!dp->local || !dp->total || !dp->factors || !dp->pair)
        return adli_fail_memory("data parallel");
    for (size_t g = 0; g < dp->groups; g++)
        dp->factors[g] = 1;
    adl_status status = list_params(dp);
    if (status == ADL_OK) {
        adopt_flat(dp);
        status = make_buckets(dp);
    }
    if (status == ADL_OK)
        status = adli_meter_make(dp->ctx, dp->name, dp->groups, &dp->meter);
    return status == ADL_OK ? make_reducer(dp) : status;
}

/* A gradient that was begun and not finished is none: its batch comes again, or was left by the program. */
static adl_status regroup(void *object)
{
    adl_dp *dp = object;
    adl_reducer_free(dp->reducer);
    dp->reducer = NULL;
    dp->have_before = dp->in_batch = false;
    dp->accumulated = 0;
    dp->buckets_started = 0;
    adli_meter_regroup(dp->meter);
    adl_status status = make_reducer(dp);
    return status == ADL_OK ? ADL_OK : adli_wrap(status, "data parallel %s", dp->name);
}

static const adli_owned_ops owned = {.free = free_dp, .regroup = regroup};

adl_status adl_dp_new(adl_context *ctx, const adl_dp_options *given, adl_dp **out)
{
    adl_dp_options own = ADL_DP_OPTIONS_INIT;
    const adl_dp_options *options = &own;
    adl_optim_ops ops = {.size = sizeof ops};
    *out = NULL;
    adl_status status = adli_options_take("adl_dp_options", &own, sizeof own, given);
    if (status == ADL_OK)
        status = adli_options_take("adl_optim_ops", &ops, sizeof ops, own.optim);
    if (status == ADL_OK && own.optim && own.optim->size < sizeof ops)
        own.optim = &ops; /* of an older version: ours has all members */
    if (status == ADL_OK)
        status = check(options);
    if (status != ADL_OK)
        return status;
    adl_dp *dp = adli_calloc(1, sizeof *dp);
    if (!dp)
        return adli_fail_memory("data parallel");
    dp->ctx = ctx;
    dp->options = *options;
    dp->ops = ops;
    dp->optim = options->optim == &ops ? &dp->ops : options->optim;
    dp->groups = options->optim->group_count;
    dp->loss_scale = dp->gain = 1;
    const char *kind = dp->optim->kind ? dp->optim->kind : "";
    bool adam = strcmp(kind, "adam") == 0 || strcmp(kind, "adamw") == 0;
    if (options->rule)
        dp->rule = *options->rule;
    else
        dp->rule.kind = adam ? ADL_SCALING_ADAMSCALE : ADL_SCALING_ADASCALE;
    snprintf(dp->name, sizeof dp->name, "%s", options->name);
    bool found = false;
    status = adli_context_own(ctx, dp, &owned);
    if (status != ADL_OK)
        return status;
    ctx->quiet++;
    status = allocate(dp);
    if (status == ADL_OK)
        status = adli_dp_register(dp, &found);
    if (status == ADL_OK && !found && !ctx->joining)
        status = adli_dp_share(dp);
    ctx->quiet--;
    if (status != ADL_OK) {
        adli_context_drop(ctx, dp);
        return status;
    }
    adli_meter_publish(dp->meter);
    *out = dp;
    return ADL_OK;
}

void adl_dp_set_loss_scale(adl_dp *dp, double loss_scale)
{
    dp->loss_scale = loss_scale;
}

double adl_dp_gain(const adl_dp *dp)
{
    return dp->gain;
}

double adl_dp_predict_gain(const adl_dp *dp, double scale)
{
    return adl_noise_gain(adl_meter_noise(dp->meter), scale);
}

adl_grad_params adl_dp_grad_params(const adl_dp *dp)
{
    return adl_noise_params(adl_meter_noise(dp->meter));
}

double adl_dp_progress(const adl_dp *dp)
{
    return adl_noise_progress(adl_meter_noise(dp->meter));
}

double adl_dp_lr_factor(const adl_dp *dp, size_t group)
{
    return group < dp->groups ? dp->factors[group] : 1;
}

int64_t adl_dp_skipped(const adl_dp *dp)
{
    return adl_meter_skipped(dp->meter);
}

adl_status adl_dp_to_tensorboard(const adl_dp *dp, adl_tensorboard *writer, int64_t step,
                                 const char *prefix)
{
    adl_grad_params grad = adl_noise_params(adl_meter_noise(dp->meter));
    const struct {
        const char *tag;
        double value;
    } scalars[] = {{"Gradient_Norm_Sqr", grad.sqr},
                   {"Gradient_Variance", grad.var},
                   {"Gain", dp->gain},
                   {"Learning_Rate_Factor", dp->factors[0]},
                   {"Accum_Scale", adl_meter_accum_scale(dp->meter)},
                   {"Accum_Count", adl_meter_accum_count(dp->meter)},
                   {"Progress", adl_noise_progress(adl_meter_noise(dp->meter))}};
    adl_status status = ADL_OK;
    for (size_t i = 0; writer && i < ADLI_COUNT(scalars) && status == ADL_OK; i++) {
        char tag[ADL_TENSORBOARD_TAG_MAX];
        snprintf(tag, sizeof tag, "%s%s", prefix ? prefix : "", scalars[i].tag);
        status = adl_tensorboard_scalar(writer, tag, scalars[i].value, step,
                                        adli_clock_of(CLOCK_REALTIME));
    }
    return status;
}
