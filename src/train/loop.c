/* The elastic loop. Everything that makes "nothing lost and nothing seen twice" true for data is in
 * this file: the index moves in commit, after a batch; the checkpoint is taken in step, before the
 * next one, and only between optimizer steps, so that no half-accumulated gradient is thrown away
 * with examples that count as consumed. */
#include "train/loop.h"

#include "base/clock.h"
#include "base/mem.h"
#include "train/context.h"
#include "train/opener.h"
#include "train/regroup.h"
#include "train/sums.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static adl_status save(void *user, adl_sink *sink)
{
    const adl_loop *loop = user;
    adl_sink_u64(sink, loop->index);
    adl_sink_u64(sink, loop->end_index);
    adl_sink_u64(sink, loop->examples);
    adl_sink_u32(sink, (uint32_t)(loop->done_epoch + 1));
    adl_sink_u32(sink, (uint32_t)loop->done_loops);
    adl_sink_u32(sink, (uint32_t)loop->local_bsz);
    adl_sink_u32(sink, (uint32_t)loop->accum_steps);
    adl_sink_u32(sink, (uint32_t)loop->decided_replicas);
    return adl_sink_u32(sink, (uint32_t)loop->done_outside);
}

static adl_status load(void *user, adl_source *source)
{
    adl_loop *loop = user;
    uint64_t index, end_index = 0, examples = 0;
    uint32_t numbers[6] = {0};
    adl_status status = adl_source_u64(source, &index);
    if (status == ADL_OK)
        status = adl_source_u64(source, &end_index);
    if (status == ADL_OK)
        status = adl_source_u64(source, &examples);
    for (int i = 0; i < 6 && status == ADL_OK; i++) {
        if (i == 5 && adl_source_remaining(source) == 0)
            break; /* written before there were loops outside the epochs */
        status = adl_source_u32(source, &numbers[i]);
        if (status == ADL_OK && numbers[i] > INT_MAX)
            status = adli_fail(ADL_ECORRUPT, "impossible position");
    }
    if (status != ADL_OK)
        return status;
    if (loop->examples > 0 && examples != loop->examples) /* the index would mean other examples */
        return adli_fail(ADL_EINVAL, "the checkpoint is of %llu examples, the data set has %zu",
                         (unsigned long long)examples, loop->examples);
    loop->index = index;
    loop->end_index = end_index;
    loop->saved_examples = (size_t)examples;
    loop->done_epoch = (int)numbers[0] - 1;
    loop->done_loops = (int)numbers[1];
    loop->local_bsz = (int)numbers[2];
    loop->deal = loop->ctx->world.replicas * loop->local_bsz;
    loop->accum_steps = (int)numbers[3];
    loop->decided_replicas = (int)numbers[4];
    loop->done_outside = (int)numbers[5];
    return ADL_OK;
}

/* A pass that is under way is planned anew: by other sizes, for other replicas. */
static adl_status regroup(void *object)
{
    adl_loop *loop = object;
    loop->stale = loop->entered;
    loop->late = false;
    adli_sums_mark(loop); /* what was not shared before is void */
    loop->warm_bsz = loop->warm_accum = 0;
    return ADL_OK;
}

static const adli_owned_ops owned = {.free = free, .regroup = regroup};

adl_status adl_loop_new(adl_context *ctx, const char *name, size_t examples, int batch_size,
                        adl_loop **out)
{
    *out = NULL;
    int ordinal = ctx->loops_made++;
    adl_loop *loop = adli_calloc(1, sizeof *loop);
    if (!loop)
        return adli_fail_memory("loop");
    *loop = (adl_loop){.ctx = ctx,
                       .examples = examples,
                       .batch_size = batch_size,
                       .done_epoch = -1,
                       .seen_epoch = -1};
    if (name)
        snprintf(loop->name, sizeof loop->name, "%s", name);
    else
        snprintf(loop->name, sizeof loop->name, "loader-%d", ordinal);
    adl_status status = adli_context_own(ctx, loop, &owned);
    if (status != ADL_OK)
        return status;
    if (batch_size < 1)
        status = adli_fail(ADL_EINVAL, "%s: batches of %d: it must be at least 1", loop->name,
                           batch_size);
    char state[ADL_CHECKPOINT_NAME_MAX + 32];
    snprintf(state, sizeof state, "adaptdl.loop.%s", name ? name : loop->name);
    adl_checkpoint_functions functions = {sizeof functions, save, load, NULL};
    if (status == ADL_OK)
        status = adl_checkpoint_register(ctx->store, state, &functions, loop, &loop->state);
    if (status == ADL_OK)
        status = adl_checkpoint_load_state(ctx->store, loop->state, NULL);
    if (status != ADL_OK) {
        adl_checkpoint_unregister(ctx->store, loop->state);
        adli_context_drop(ctx, loop);
        return status;
    }
    *out = loop;
    return ADL_OK;
}

void adl_loop_free(adl_loop *loop)
{
    if (!loop || loop->entered)
        return;
    if (loop->ctx->training == loop)
        loop->ctx->training = NULL;
    adl_checkpoint_unregister(loop->ctx->store, loop->state);
    adli_context_drop(loop->ctx, loop);
}

void adl_loop_anywhere(adl_loop *loop)
{
    loop->anywhere = true;
}

void adl_loop_set_examples(adl_loop *loop, size_t examples)
{
    if (loop->index > 0 && loop->saved_examples > 0 && loop->saved_examples != examples)
        adli_log(loop->ctx, ADL_LOG_WARNING,
                 "%s: interrupted at example %llu of %zu, there are %zu now", loop->name,
                 (unsigned long long)loop->index, loop->saved_examples, examples);
    loop->saved_examples = 0;
    loop->examples = examples;
}

void adli_loop_restore(adl_loop *loop, const adli_loop_place *place)
{
    loop->index = place->index;
    loop->end_index = place->end_index;
    loop->done_epoch = place->done_epoch;
    loop->done_loops = place->done_loops;
    loop->done_outside = place->done_outside;
}

adl_status adl_loop_check_bounds(const char *name, int batch_size, int max_batch_size,
                                 int min_local, int max_local)
{
    if (max_batch_size < batch_size)
        return adli_fail(ADL_EINVAL, "%s: max_batch_size %d is below the batch size %d", name,
                         max_batch_size, batch_size);
    if (min_local < 0 || min_local > batch_size)
        return adli_fail(ADL_EINVAL, "%s: min_local %d is not between 0 and the batch size %d",
                         name, min_local, batch_size);
    if (max_local < 0 || (max_local > 0 && max_local < batch_size))
        return adli_fail(ADL_EINVAL, "%s: max_local %d is below the batch size %d", name, max_local,
                         batch_size);
    return ADL_OK;
}

adl_status adl_loop_autoscale(adl_loop *loop, int max_batch_size, int min_local, int max_local,
                              bool accumulation)
{
    if (loop->entered)
        return adli_fail(ADL_ESTATE, "%s: autoscaling must be asked for before the loop",
                         loop->name);
    adl_status status =
        adl_loop_check_bounds(loop->name, loop->batch_size, max_batch_size, min_local, max_local);
    if (status != ADL_OK)
        return status;
    loop->autoscale = true;
    loop->max_batch_size = max_batch_size;
    loop->min_local = min_local;
    loop->max_local = max_local;
    loop->accumulation = accumulation;
    return ADL_OK;
}

/* Counts the loop that begins: had it finished before a restart? */
static bool was_done(adl_loop *loop)
{
    const adl_context *ctx = loop->ctx;
    if (!ctx->in_epoch)
        return loop->seen_outside++ < loop->done_outside;
    if (loop->seen_epoch != ctx->finished_epochs) {
        loop->seen_epoch = ctx->finished_epochs;
        loop->seen_loops = 0;
    }
    int ordinal = loop->seen_loops++;
    return loop->done_epoch == ctx->finished_epochs && ordinal < loop->done_loops;
}

/* Whoever goes over it calls adl_loop_ready. */
static void note_regroups(adl_loop *loop)
{
    loop->regroups = true;
    adli_regroup_able(loop->ctx);
}

adl_status adl_loop_begin(adl_loop *loop, bool *run)
{
    adl_context *ctx = loop->ctx;
    *run = false;
    if (ctx->status != ADL_OK)
        return ctx->status;
    if (ctx->joining && adl_context_fail(ctx, adli_join(ctx)) != ADL_OK)
        return ctx->status;
    if (!ctx->in_epoch && !loop->anywhere)
        return adl_context_fail(
            ctx, adli_fail(ADL_ESTATE, "%s: a loop over data outside an epoch loop", loop->name));
    if (ctx->current)
        return adl_context_fail(ctx, adli_fail(ADL_ESTATE,
                                               "%s: a loop over data inside the loop over %s",
                                               loop->name, ctx->current->name));
    if (was_done(loop))
        return ADL_OK;
    ctx->current = loop;
    loop->entered = *run = true;
    loop->finished = loop->in_step = loop->trained = false;
    loop->ready = loop->stale = loop->at_end = loop->voided = loop->step_applied = false;
    loop->accumulated = 0;
    if (ctx->joined) /* the others were at adl_loop_ready in this loop when they let it in */
        note_regroups(loop);
    adli_sums_begin(loop);
    loop->chosen = false;
    ctx->loop_serial++;
    if (ctx->progress_due <
        0) /* a checkpoint without it: as if all epochs had been like this one */
        ctx->progress_due = (double)loop->examples * ctx->finished_epochs / loop->batch_size;
    loop->wanted = ctx->progress_due + (double)loop->examples / loop->batch_size;
    return ADL_OK;
}

/* What the scheduler should know of the training loop. */
static void note_facts(adl_loop *loop)
{
    adl_context *ctx = loop->ctx;
    adli_job_facts facts = ctx->metrics.facts; /* only this thread writes them */
    facts.init_batch_size = loop->batch_size;
    facts.batch_size = adl_loop_batch_size(loop);
    facts.max_batch_size = loop->autoscale ? loop->max_batch_size : 0;
    facts.min_local = loop->min_local;
    facts.max_local = loop->max_local;
    facts.accumulation = loop->accumulation;
    facts.lone_grows = loop->autoscale && !ctx->env.original_rule;
    facts.examples = loop->examples;
    adli_metrics_facts(&ctx->metrics, &facts);
}

adl_status adl_loop_pass(adl_loop *loop, int *local_bsz, int *accum_steps)
{
    adl_status status = ADL_OK;
    if (!loop->chosen)
        status = adl_context_fail(loop->ctx, adli_loop_choose(loop));
    loop->chosen = false;
    *local_bsz = loop->local_bsz;
    *accum_steps = loop->accum_steps;
    loop->dp_stepped &= loop->stale; /* a pass that goes on elsewhere is not another pass */
    loop->stale = false;
    if (loop->ctx->training == loop)
        note_facts(loop);
    return status;
}

adl_status adli_loop_trains(adl_loop *loop)
{
    adl_context *ctx = loop->ctx;
    loop->dp_stepped = loop->trained = true;
    if (ctx->training != loop) {
        ctx->training = loop;
        note_facts(loop);
    }
    return ADL_OK;
}

bool adl_loop_ready(adl_loop *loop, bool *again)
{
    note_regroups(loop);
    if (loop->accumulated == 0 || loop->ctx->lost)
        adli_boundary(loop->ctx, true);
    if (loop->accumulated == 0 && !loop->stale && loop->ctx->status == ADL_OK)
        adl_context_fail(loop->ctx, adli_loop_reconsider(loop));
    loop->ready = !loop->stale;
    *again = loop->stale;
    return loop->ctx->status == ADL_OK;
}

bool adli_loop_passed(adl_loop *loop, bool *again)
{
    adl_context *ctx = loop->ctx;
    bool known = loop->at_end; /* by the state of one that was here first */
    loop->at_end = !loop->voided;
    if (!known)
        adli_boundary_end(ctx);
    *again = !loop->at_end && ctx->status == ADL_OK;
    loop->at_end = false;
    return ctx->status == ADL_OK;
}

void adli_loop_void(adl_loop *loop)
{
    if (loop->voided || loop->accumulated > 0)
        loop->index = loop->step_index;
    loop->voided = loop->in_step = false;
    loop->accumulated = 0;
}

void adli_loop_overtaken(adl_loop *loop, bool ended)
{
    loop->at_end = ended;
    loop->finished = loop->autoscale && loop->ctx->in_epoch && loop->examples > 0 &&
                     adli_metrics_progress(&loop->ctx->metrics) >= loop->wanted;
}

static size_t left_in_pass(const adl_loop *loop)
{
    return loop->examples - (size_t)(loop->index % loop->examples);
}

/* What the batch is among those of all replicas. Where all have as many, each counts the same; otherwise as
 * much as it has examples of its own (an extra one is none). */
static void weigh(adl_loop *loop, int size)
{
    int replicas = loop->ctx->world.replicas, rank = loop->ctx->world.rank;
    loop->size = size;
    loop->weight = 1;
    loop->whole = size == loop->local_bsz;
    loop->step_deal = 0;
    if (loop->deal % replicas == 0)
        return;
    size_t left = left_in_pass(loop);
    loop->step_deal = left < (size_t)loop->deal ? (int)left : loop->deal;
    loop->whole = loop->step_deal == loop->deal;
    int own = loop->step_deal / replicas + (rank < loop->step_deal % replicas);
    loop->weight = (double)own * replicas / loop->step_deal;
}

size_t adli_loop_consumed(const adl_loop *loop)
{
    if (loop->examples == 0)
        return 0; /* the program moves the index */
    if (loop->step_deal > 0)
        return (size_t)loop->step_deal;
    size_t left = left_in_pass(loop);
    size_t all = (size_t)loop->size * (size_t)loop->ctx->world.replicas;
    return all < left ? all : left;
}

int64_t adl_loop_batches(const adl_loop *loop, bool drop_last)
{
    size_t replicas = (size_t)loop->ctx->world.replicas;
    bool even = (size_t)loop->deal % replicas == 0;
    if (loop->examples == 0 || loop->deal == 0)
        return 0;
    /* When all have as many, a rest that is a whole batch thanks to the extra examples is one. */
    size_t left = left_in_pass(loop);
    size_t mine = even ? left / replicas + (left % replicas != 0) : left;
    size_t each = even ? (size_t)loop->local_bsz : (size_t)loop->deal;
    bool rest = mine % each != 0 && (!drop_last || mine < each);
    return (int64_t)(mine / each) + rest;
}

/* The first step in another world. */
static void end_pause(adl_context *ctx)
{
    double pause_s = adli_monotonic_s() - ctx->pause_since_s;
    ctx->pause_since_s = 0;
    if (ctx->world.rank == 0)
        adli_opener_say(ctx, "paused %u %.6f", ctx->world.generation, pause_s);
}

bool adl_loop_step(adl_loop *loop, int size, bool last_of_pass)
{
    if (loop->accumulated == 0 && !loop->ready)
        adli_boundary(loop->ctx, false);
    loop->ready = false;
    if (loop->ctx->status != ADL_OK)
        return false;
    if (loop->ctx->pause_since_s > 0)
        end_pause(loop->ctx);
    if (loop->accumulated == 0)
        loop->step_index = loop->index;
    loop->torn &= !loop->trained;
    loop->step_applied = loop->voided = false;
    loop->optim_step = last_of_pass || loop->accumulated >= loop->accum_steps;
    weigh(loop, size);
    loop->in_step = true;
    loop->unprofiled = false;
    loop->ctx->batch_serial++;
    loop->sync_s = 0;
    loop->step_start_s = adli_monotonic_s();
    return true;
}

/* The first step after a start or with other sizes pays for buffers and primitives; a batch that is
 * smaller than the others is not what the model is about. */
static void profile(adl_loop *loop)
{
    adl_context *ctx = loop->ctx;
    if (ctx->training != loop || ctx->metrics.off || loop->unprofiled)
        return;
    bool warm = loop->warm_bsz == loop->local_bsz && loop->warm_accum == loop->accum_steps + 1;
    loop->warm_bsz = loop->local_bsz;
    loop->warm_accum = loop->accum_steps + 1;
    if (warm && loop->whole &&
        adli_metrics_step(&ctx->metrics, ctx->world.nodes, ctx->world.replicas, loop->local_bsz,
                          loop->optim_step, adli_monotonic_s() - loop->step_start_s,
                          loop->sync_s) != ADL_OK)
        adli_log(ctx, ADL_LOG_WARNING, "%s", adl_error());
}

bool adl_loop_commit(adl_loop *loop, size_t examples)
{
    adl_context *ctx = loop->ctx;
    if (!loop->in_step)
        return true;
    loop->in_step = false;
    if (ctx->status != ADL_OK)
        return false;
    if (ctx->lost && !loop->step_applied) { /* the batch comes again */
        loop->voided = true;
        return true;
    }
    profile(loop);
    loop->index += examples;
    ctx->steps += loop->optim_step && ctx->training == loop;
    ctx->applied += loop->optim_step;
    loop->since += loop->optim_step;
    loop->accumulated = loop->optim_step ? 0 : loop->accumulated + 1;
    loop->carried = loop->accumulated == 0 && adli_sums_pending(ctx);
    if (loop->autoscale && loop->optim_step && loop->examples > 0 && ctx->in_epoch) {
        loop->finished = adli_metrics_progress(&ctx->metrics) >= loop->wanted;
    }
    return !loop->finished;
}

bool adl_loop_more(adl_loop *loop)
{
    adl_context *ctx = loop->ctx;
    if (ctx->status != ADL_OK || loop->finished || !loop->autoscale || !ctx->in_epoch)
        return false; /* outside the epochs there is no progress to be made: one pass */
    if (!loop->dp_stepped) {
        adl_context_fail(ctx, adli_fail(ADL_ESTATE,
                                        "%s: autoscaling ends an epoch by progress, but a pass "
                                        "over the data made none: no training step was taken",
                                        loop->name));
        return false;
    }
    uint64_t rest = loop->examples ? loop->index % loop->examples : 0;
    if (rest)
        loop->index += loop->examples - rest;
    return true;
}

void adl_loop_end(adl_loop *loop)
{
    adl_context *ctx = loop->ctx;
    if (!loop->entered)
        return;
    loop->entered = loop->in_step = false;
    ctx->current = NULL;
    if (ctx->status != ADL_OK)
        return;
    loop->index = loop->end_index = 0;
    if (loop->trained)
        ctx->progress_due = loop->wanted;
    if (!ctx->in_epoch) {
        loop->done_outside = loop->seen_outside;
        return;
    }
    loop->done_epoch = ctx->finished_epochs;
    loop->done_loops = loop->seen_loops;
}

int adl_loop_outside(const adl_loop *loop)
{
    return loop->seen_outside;
}

adl_status adl_loop_train(adl_loop *loop)
{
    return adli_loop_trains(loop);
}

void adl_loop_add_sync(adl_loop *loop, double seconds)
{
    loop->sync_s += seconds;
}

void adl_loop_no_profile(adl_loop *loop)
{
    loop->unprofiled = true;
}

adl_status adl_loop_set_sizes(adl_loop *loop, int local_bsz, int accum_steps)
{
    if (local_bsz < 1 || accum_steps < 0)
        return adli_fail(ADL_EINVAL, "%s: batches of %d, %d of them accumulated", loop->name,
                         local_bsz, accum_steps);
    loop->local_bsz = loop->size = local_bsz;
    loop->deal = loop->ctx->world.replicas * local_bsz;
    loop->step_deal = 0; /* each as many, also with the batch that is under way */
    loop->weight = 1;
    loop->whole = true;
    loop->accum_steps = accum_steps;
    return ADL_OK;
}

void adl_loop_set_index(adl_loop *loop, uint64_t index)
{
    loop->index = index;
}

uint64_t adl_loop_end_index(const adl_loop *loop)
{
    return loop->end_index;
}

void adl_loop_set_end(adl_loop *loop, uint64_t end)
{
    if (loop->end_index > 0 && loop->end_index != end)
        loop->index = (uint64_t)ceil((double)loop->index * (double)end / (double)loop->end_index);
    loop->end_index = end;
}

adl_loop *adl_current_loop(adl_context *ctx)
{
    return ctx->current;
}

const char *adl_loop_name(const adl_loop *loop)
{
    return loop->name;
}

uint64_t adl_loop_index(const adl_loop *loop)
{
    return loop->index;
}

int adl_loop_batch_size(const adl_loop *loop)
{
    return loop->deal * (loop->accum_steps + 1);
}

int adl_loop_local_bsz(const adl_loop *loop)
{
    return loop->local_bsz;
}

int adl_loop_accum_steps(const adl_loop *loop)
{
    return loop->accum_steps;
}

bool adl_loop_optim_step(const adl_loop *loop)
{
    return loop->optim_step;
}

bool adl_loop_training(const adl_loop *loop)
{
    return loop->ctx->training == loop;
}

adl_status adl_loop_to_tensorboard(const adl_loop *loop, adl_tensorboard *writer, int64_t step,
                                   const char *prefix)
{
    const struct {
        const char *tag;
        double value;
    } scalars[] = {{"Total_Batch_Size", adl_loop_batch_size(loop)},
                   {"Local_Batch_Size", loop->local_bsz},
                   {"Accumulation_Steps", loop->accum_steps}};
    adl_status status = ADL_OK;
    for (size_t i = 0; writer && i < ADLI_COUNT(scalars) && status == ADL_OK; i++) {
        char tag[ADL_TENSORBOARD_TAG_MAX];
        snprintf(tag, sizeof tag, "%s%s", prefix ? prefix : "", scalars[i].tag);
        status = adl_tensorboard_scalar(writer, tag, scalars[i].value, step,
                                        adli_clock_of(CLOCK_REALTIME));
    }
    return status;
}
