/* The meter: all that becomes of the norms of gradients, for adl_dp and for those who average gradients
 * elsewhere. Steps are queued in the order they were taken; each waits for its norms, then (with several
 * replicas that were not asked on the way) for their sum over replicas, then enters the averages. */
#include "train/meter.h"

#include "base/mem.h"
#include "train/context.h"
#include "train/loop.h"
#include "train/regroup.h"
#include "train/sums.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, SUMS = 2 };

/* A step whose norms are not in the averages yet. */
typedef struct late {
    int count; /* R (s + 1) */
    double scale, accum_scale, loss_scale;
    double weight; /* of this replica's norms, see adl_loop */
} late;

struct adl_meter {
    adl_context *ctx;
    char name[ADL_CHECKPOINT_NAME_MAX + 1];
    size_t groups;
    adl_noise *noise;
    bool known; /* there is an estimate; saved, like the noise, last_scale and steps */
    double last_scale;
    int64_t steps;

    uint64_t loop_serial, batch_serial; /* of the last pass */
    int micro;
    bool optim_step, whole, pending; /* of the step that is being made; pending: it has a pass */

    late queue[ADL_METER_LATE_MAX]; /* without norms, oldest first */
    size_t queued;
    size_t ignored;   /* norms that are still to come, of steps in a world that is over */
    adl_future *sums; /* [2][groups] of `summed`, on their way */
    late summed;
    double *values; /* [2][groups] */

    double scale, accum_scale, given_scale; /* given: by adl_meter_set_accum_scale, or 0 */
    int accum_count;
    int64_t skipped;
};

void adli_meter_free(adl_meter *meter)
{
    if (!meter)
        return;
    adl_future_free(meter->sums);
    adl_noise_free(meter->noise);
    free(meter->values);
    free(meter);
}

void adli_meter_publish(adl_meter *meter)
{
    adl_context *ctx = meter->ctx;
    if (!ctx->primary)
        ctx->primary = meter;
    if (ctx->primary == meter)
        adli_metrics_gradient(&ctx->metrics, adl_noise_params(meter->noise), meter->known,
                              adl_noise_progress(meter->noise));
}

static void count_skipped(adl_meter *meter, const char *what)
{
    if (meter->skipped++ == 0 && meter->ctx->world.rank == 0)
        adli_log(meter->ctx, ADL_LOG_WARNING, "%s: a gradient is not finite; %s (said once)",
                 meter->name, what);
}

/* values: mean |g_i|^2, then |g|^2. */
static adl_status update(adl_meter *meter, const late *step, const double *values)
{
    bool skipped = false;
    const double *local = values, *total = values + meter->groups;
    adl_status status = step->count > 1
                            ? adl_noise_update(meter->noise, local, total, step->count, step->scale,
                                               step->loss_scale, &skipped)
                            : adl_noise_update_pair(meter->noise, local, total, step->accum_scale,
                                                    step->loss_scale, &skipped);
    if (skipped)
        count_skipped(meter, "its statistics are left out");
    meter->known |= status == ADL_OK && !skipped;
    adli_meter_publish(meter);
    return status;
}

/* The sums that are on their way, into the averages. The same call on every replica. */
static adl_status collect(adl_meter *meter)
{
    const void *data;
    size_t length;
    if (!meter->sums)
        return ADL_OK;
    adl_status status = adl_future_wait(meter->sums, -1, &data, &length);
    if (status == ADL_OK) {
        memcpy(meter->values, data, SUMS * meter->groups * sizeof(double));
        for (size_t i = 0; i < SUMS * meter->groups; i++)
            meter->values[i] /= meter->ctx->world.replicas;
        status = update(meter, &meter->summed, meter->values);
    }
    adl_future_free(meter->sums);
    meter->sums = NULL;
    return status;
}

/* Steps whose norms are not known yet were taken by other replicas: their statistics are left out. */
void adli_meter_regroup(adl_meter *meter)
{
    adl_future_free(meter->sums);
    meter->sums = NULL;
    meter->ignored += meter->queued;
    meter->queued = 0;
}

/* A checkpoint holds what was measured so far. */
static adl_status sync_state(void *user)
{
    return collect(user);
}

adl_status adli_meter_save(const adl_meter *meter, adl_sink *sink)
{
    void *room;
    size_t size = adl_noise_save_size(meter->noise);
    adl_sink_u32(sink, VERSION);
    adl_sink_f64(sink, meter->last_scale);
    adl_sink_u64(sink, (uint64_t)meter->steps);
    adl_sink_u32(sink, meter->known);
    adl_sink_u64(sink, size);
    adl_status status = adl_sink_reserve(sink, size, &room);
    if (status == ADL_OK)
        adl_noise_save(meter->noise, room);
    return status;
}

adl_status adli_meter_load(adl_meter *meter, adl_source *source)
{
    uint32_t version = 0, known = 0;
    uint64_t steps = 0, size = 0;
    double last_scale = 0;
    const void *data = NULL;
    adl_status status = adl_source_u32(source, &version);
    if (status == ADL_OK && version != VERSION)
        status = adli_fail(ADL_ECORRUPT, "state of version %u, expected %d", version, VERSION);
    if (status == ADL_OK)
        status = adl_source_f64(source, &last_scale);
    if (status == ADL_OK)
        status = adl_source_u64(source, &steps);
    if (status == ADL_OK)
        status = adl_source_u32(source, &known);
    if (status == ADL_OK)
        status = adl_source_u64(source, &size);
    if (status == ADL_OK)
        status = adl_source_view(source, size, &data);
    if (status != ADL_OK)
        return status;
    if (!isfinite(last_scale) || last_scale < 0 || steps > INT64_MAX)
        return adli_fail(ADL_ECORRUPT, "impossible numbers");
    void *copy = adli_memdup(data, size, 1); /* the loader reads numbers in place: aligned */
    if (!copy)
        return adli_fail_memory("noise statistics");
    status = adl_noise_load(meter->noise, copy, size);
    free(copy);
    if (status != ADL_OK)
        return status;
    meter->last_scale = last_scale;
    meter->steps = (int64_t)steps;
    meter->known = known != 0;
    return ADL_OK;
}

static adl_status save(void *user, adl_sink *sink)
{
    return adli_meter_save(user, sink);
}

static adl_status load(void *user, adl_source *source)
{
    return adli_meter_load(user, source);
}

adl_status adli_meter_make(adl_context *ctx, const char *name, size_t groups, adl_meter **out)
{
    *out = NULL;
    if (!name || !*name || strlen(name) > ADL_CHECKPOINT_NAME_MAX)
        return adli_fail(ADL_EINVAL, "meter: it needs a name of at most %d bytes",
                         ADL_CHECKPOINT_NAME_MAX);
    if (groups < 1 || groups > ADL_METER_GROUPS_MAX)
        return adli_fail(ADL_EINVAL, "%s: %zu parameter groups, must be 1 to %d", name, groups,
                         ADL_METER_GROUPS_MAX);
    adl_meter *meter = adli_calloc(1, sizeof *meter);
    if (!meter)
        return adli_fail_memory("meter");
    *meter =
        (adl_meter){.ctx = ctx, .groups = groups, .scale = 1, .accum_scale = 1, .accum_count = 1};
    snprintf(meter->name, sizeof meter->name, "%s", name);
    meter->values = adli_calloc(SUMS * groups, sizeof(double));
    adl_status status =
        meter->values ? adl_noise_new(groups, &meter->noise) : adli_fail_memory("meter");
    if (status != ADL_OK) {
        adli_meter_free(meter);
        return status;
    }
    *out = meter;
    return ADL_OK;
}

static void free_owned(void *object)
{
    adli_meter_free(object);
}

static adl_status regroup_owned(void *object)
{
    adli_meter_regroup(object);
    return ADL_OK;
}

static const adli_owned_ops owned = {.free = free_owned, .regroup = regroup_owned};

adl_status adl_meter_new(adl_context *ctx, const char *name, size_t groups, adl_meter **out)
{
    adl_meter *meter;
    char state[ADL_CHECKPOINT_NAME_MAX + 32];
    *out = NULL;
    adl_status status = adli_meter_make(ctx, name, groups, &meter);
    if (status == ADL_OK)
        status = adli_context_own(ctx, meter, &owned);
    if (status != ADL_OK)
        return status;
    snprintf(state, sizeof state, "adaptdl.meter.%s", meter->name);
    adl_checkpoint_functions functions = {sizeof functions, save, load, sync_state};
    status = adli_state(ctx, state, &functions, meter, NULL);
    if (status != ADL_OK) {
        adli_context_drop(ctx, meter);
        return status;
    }
    adli_meter_publish(meter);
    *out = meter;
    return ADL_OK;
}

adl_status adl_meter_begin(adl_meter *meter, adl_meter_pass *pass)
{
    adl_context *ctx = meter->ctx;
    adl_loop *loop = ctx->current;
    if (!loop || !loop->in_step)
        return adli_fail(ADL_ESTATE,
                         "%s: a backward pass outside a loop over data from an elastic loader",
                         meter->name);
    adl_status status = adli_loop_trains(loop);
    if (status != ADL_OK)
        return status;
    bool new_batch = !meter->pending || meter->batch_serial != ctx->batch_serial;
    if (new_batch) {
        /* Gradients of a loop that was left while accumulating do not count. */
        bool goes_on = meter->pending && !meter->optim_step && loop->accumulated > 0 &&
                       meter->loop_serial == ctx->loop_serial;
        meter->micro = goes_on ? meter->micro + 1 : 0;
        meter->whole = (meter->whole || !goes_on) && loop->whole;
    }
    meter->pending = true;
    meter->loop_serial = ctx->loop_serial;
    meter->batch_serial = ctx->batch_serial;
    meter->optim_step = loop->optim_step;
    *pass = (adl_meter_pass){.optim_step = loop->optim_step,
                             .micro = meter->micro,
                             .single =
                                 loop->optim_step && meter->micro == 0 && ctx->world.replicas == 1,
                             .new_batch = new_batch,
                             .weight = loop->weight};
    return ADL_OK;
}

adl_status adli_meter_shape(adl_meter *meter, int micro, bool measured, adl_meter_shape *shape)
{
    adl_context *ctx = meter->ctx;
    const adl_loop *loop = ctx->current;
    if (measured && meter->queued == ADL_METER_LATE_MAX)
        return adli_fail(ADL_ESTATE, "%s: %d steps are without their norms", meter->name,
                         ADL_METER_LATE_MAX);
    meter->accum_scale = (double)loop->deal / loop->batch_size;
    if (meter->given_scale > 0)
        meter->accum_scale = meter->given_scale;
    meter->accum_count = micro;
    meter->scale = meter->accum_scale * micro;
    double nominal = meter->accum_scale * (loop->accum_steps + 1);
    bool restart = !ctx->env.keep_moments && meter->last_scale > 0 && meter->last_scale != nominal;
    meter->last_scale = nominal;
    if (restart)
        meter->steps = 0;
    if (measured)
        meter->queue[meter->queued++] = (late){.count = ctx->world.replicas * micro,
                                               .scale = meter->scale,
                                               .accum_scale = meter->accum_scale,
                                               .weight = loop->weight};
    *shape = (adl_meter_shape){meter->scale, meter->accum_scale, micro, measured, restart};
    return ADL_OK;
}

adl_status adl_meter_step(adl_meter *meter, adl_meter_shape *shape)
{
    adl_context *ctx = meter->ctx;
    if (!ctx->current || !ctx->current->in_step)
        return adli_fail(ADL_ESTATE, "%s: an optimizer step outside a loop over data", meter->name);
    adl_status status = ctx->lost ? ADL_EPEER : adli_sums_post(ctx);
    if (status == ADL_OK)
        status = collect(meter);
    if (status == ADL_OK)
        status = adli_sums_take(ctx);
    bool pending = meter->pending;
    meter->pending = false;
    if (adli_lost(ctx, status))
        return adli_fail(ADL_EPEER, "%s: a replica was lost, the step is void", meter->name);
    if (status == ADL_OK)
        status =
            adli_meter_shape(meter, pending ? meter->micro + 1 : 1, pending && meter->whole, shape);
    ctx->current->step_applied = status == ADL_OK; /* from here on it is everybody's */
    return adl_context_fail(ctx, status);
}

/* The oldest step without norms; false: there is none, or it is of a world before. */
static bool take_oldest(adl_meter *meter, double loss_scale, late *out)
{
    if (meter->ignored > 0) {
        meter->ignored--;
        return false;
    }
    if (meter->queued == 0)
        return false;
    *out = meter->queue[0];
    out->loss_scale = loss_scale;
    memmove(meter->queue, meter->queue + 1, --meter->queued * sizeof meter->queue[0]);
    return true;
}

adl_status adli_meter_see(adl_meter *meter, const double *local_sqr, const double *total_sqr,
                          double loss_scale)
{
    late step;
    if (!take_oldest(meter, loss_scale, &step))
        return ADL_OK;
    memcpy(meter->values, local_sqr, meter->groups * sizeof(double));
    memcpy(meter->values + meter->groups, total_sqr, meter->groups * sizeof(double));
    return update(meter, &step, meter->values);
}

void adli_meter_skip(adl_meter *meter, const char *what)
{
    late step;
    take_oldest(meter, 1, &step);
    count_skipped(meter, what);
}

adl_status adl_meter_norms(adl_meter *meter, const double *local_sqr, const double *total_sqr,
                           const double *passes_sqr, double loss_scale)
{
    adl_context *ctx = meter->ctx;
    late step;
    if (!take_oldest(meter, loss_scale, &step))
        return ADL_OK;
    int own = step.count / ctx->world.replicas; /* of the micro-gradients */
    for (size_t g = 0; g < meter->groups; g++) {
        double earlier = passes_sqr ? passes_sqr[g] - total_sqr[g] : 0;
        meter->values[g] = fmax(step.weight * local_sqr[g] / own - earlier, 0);
        meter->values[meter->groups + g] = total_sqr[g];
        if (!isfinite(local_sqr[g])) /* fmax drops a NaN */
            meter->values[g] = local_sqr[g];
    }
    if (step.count == 1)
        return adl_context_fail(
            ctx, adli_fail(ADL_ESTATE, "%s: norms of a single gradient", meter->name));
    if (ctx->world.replicas == 1)
        return adl_context_fail(ctx, update(meter, &step, meter->values));
    adl_status status = collect(meter); /* one at a time */
    if (status == ADL_OK)
        status = adl_group_allreduce_async(ctx->group, meter->values, SUMS * meter->groups,
                                           ADL_TYPE_F64, ADL_REDUCE_SUM, &meter->sums);
    meter->summed = step;
    if (status == ADL_EPEER && ctx->recovers)
        return ADL_OK; /* the next boundary notices, and nobody's sums of this world count then */
    return adl_context_fail(ctx, status);
}

adl_status adl_meter_pair(adl_meter *meter, const double *pair_sqr, double loss_scale)
{
    late step;
    if (!take_oldest(meter, loss_scale, &step) || !pair_sqr)
        return ADL_OK;
    /* |(g + h) / 2|^2 = (|g|^2 + |h|^2) / 2 - |g - h|^2 / 4 */
    for (size_t g = 0; g < meter->groups; g++) {
        const double *pair = pair_sqr + 3 * g;
        double local = (pair[0] + pair[1]) / 2, total = local - pair[2] / 4;
        meter->values[g] = local;
        meter->values[meter->groups + g] = isfinite(total) ? fmax(total, 0) : total;
    }
    return adl_context_fail(meter->ctx, update(meter, &step, meter->values));
}

double adl_meter_factor(const adl_meter *meter, const adl_scaling_rule *rule, size_t group,
                        double scale)
{
    const adl_loop *loop = meter->ctx->current ? meter->ctx->current : meter->ctx->training;
    adl_scaling_input input = {.grad = adl_noise_group_params(meter->noise, group),
                               .scale = scale,
                               .progress = adl_noise_progress(meter->noise),
                               .init_batch_size = loop ? loop->batch_size : 1};
    return adl_scaling_factor(rule, &input);
}

void adl_meter_advance(adl_meter *meter)
{
    adl_noise_advance(meter->noise, meter->scale);
    meter->steps++;
    adli_meter_publish(meter);
}

int64_t adl_meter_steps(const adl_meter *meter)
{
    return meter->steps;
}

const adl_noise *adl_meter_noise(const adl_meter *meter)
{
    return meter->noise;
}

void adl_meter_set_progress(adl_meter *meter, double progress)
{
    adl_noise_set_progress(meter->noise, progress);
    adli_meter_publish(meter);
}

void adl_meter_set_accum_scale(adl_meter *meter, double accum_scale)
{
    meter->given_scale = accum_scale > 0 && isfinite(accum_scale) ? accum_scale : 0;
    if (meter->given_scale > 0)
        meter->accum_scale = accum_scale;
}

double adl_meter_accum_scale(const adl_meter *meter)
{
    return meter->accum_scale;
}

int adl_meter_accum_count(const adl_meter *meter)
{
    return meter->accum_count;
}

int64_t adl_meter_skipped(const adl_meter *meter)
{
    return meter->skipped;
}
