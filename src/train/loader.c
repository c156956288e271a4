/* The loader: an elastic loop that says how far, a sampler that says which, and a prefetcher that has
 * them ready. */
#include "adaptdl/loader.h"

#include "adaptdl/epoch.h"
#include "adaptdl/sampler.h"
#include "base/mem.h"
#include "base/options.h"
#include "train/context.h"
#include "train/loop.h"
#include "train/prefetch.h"

#include <stdlib.h>
#include <string.h>

struct adl_loader {
    adl_context *ctx;
    adl_loader_options options;
    adl_loop *loop;
    adl_sampler *sampler;
    adli_prefetch *prefetch;
    adl_batch batch;
    int64_t ticket, batches; /* next one, and how many the pass has */
    int local_bsz;
    uint64_t seed; /* of this epoch */
};

static void free_loader(void *object)
{
    adl_loader *loader = object;
    adli_prefetch_free(loader->prefetch);
    adl_sampler_free(loader->sampler);
    free(loader);
}

/* The loop says when its pass is to be planned anew. */
static const adli_owned_ops owned = {.free = free_loader};

static adl_status check(const adl_loader_options *options)
{
    const char *name = options->name ? options->name : "loader";
    if (options->workers < 0 || options->workers > 1024)
        return adli_fail(ADL_EINVAL, "%s: workers is %d, must be from 0 to 1024", name,
                         options->workers);
    if (options->prefetch < 1 || options->prefetch > 65536)
        return adli_fail(ADL_EINVAL, "%s: prefetch is %d, must be from 1 to 65536", name,
                         options->prefetch);
    if (options->part_bytes[0] && !options->fill)
        return adli_fail(ADL_EINVAL, "%s: part_bytes is set, but there is no fill function", name);
    return ADL_OK;
}

adl_status adl_loader_new(adl_context *ctx, const adl_loader_options *given, adl_loader **out)
{
    adl_loader_options own = ADL_LOADER_OPTIONS_INIT;
    const adl_loader_options *options = &own;
    *out = NULL;
    adl_status status = adli_options_take("adl_loader_options", &own, sizeof own, given);
    if (status == ADL_OK)
        status = check(options);
    if (status != ADL_OK)
        return status;
    adl_loader *loader = adli_calloc(1, sizeof *loader);
    if (!loader)
        return adli_fail_memory("loader");
    loader->ctx = ctx;
    loader->options = *options;
    loader->options.name = NULL;
    adl_loop *loop = NULL;
    status = adl_loop_new(ctx, options->name, options->examples, options->batch_size, &loop);
    if (status == ADL_OK)
        status =
            adl_sampler_new(options->examples, options->shuffle, options->seed, &loader->sampler);
    if (status == ADL_OK)
        status = adli_prefetch_new(&loader->options, &loader->prefetch);
    if (status != ADL_OK) {
        free_loader(loader);
        return status;
    }
    loader->loop = loop;
    loop->rewinds = true;
    status = adli_context_own(ctx, loader, &owned);
    if (status == ADL_OK)
        *out = loader;
    return status;
}

adl_status adl_loader_autoscale(adl_loader *loader, int max_batch_size, int min_local,
                                int max_local, bool accumulation)
{
    return adl_loop_autoscale(loader->loop, max_batch_size, min_local, max_local, accumulation);
}

adl_loop *adl_loader_loop(adl_loader *loader)
{
    return loader->loop;
}

size_t adl_loader_examples(const adl_loader *loader)
{
    return loader->options.examples;
}

static adl_status begin_pass(adl_loader *loader)
{
    adl_context *ctx = loader->ctx;
    int accum_steps;
    adl_status status = adl_loop_pass(loader->loop, &loader->local_bsz, &accum_steps);
    if (status != ADL_OK)
        return status;
    uint64_t index = adl_loop_index(loader->loop);
    int epoch = adl_current_epoch(ctx);
    adli_prefetch_end(loader->prefetch); /* the workers read the sampler */
    status = adl_sampler_seek(loader->sampler, epoch, index, ctx->world.rank, ctx->world.replicas);
    if (status != ADL_OK)
        return adl_context_fail(ctx, status);
    adl_sampler_deal(loader->sampler,
                     (size_t)adl_loop_batch_size(loader->loop) / (size_t)(accum_steps + 1));
    loader->batches = adl_loop_batches(loader->loop, loader->options.drop_last);
    loader->ticket = 0;
    loader->seed =
        adli_mix(adli_mix(loader->options.seed, (uint64_t)epoch), (uint64_t)ctx->world.rank);
    return adl_context_fail(ctx, adli_prefetch_begin(loader->prefetch, loader->sampler,
                                                     loader->local_bsz, loader->batches,
                                                     adli_mix(loader->seed, index)));
}

/* Everything about the slot that the program sees. */
static void present(adl_loader *loader, const adli_slot *slot, bool last)
{
    adl_batch *batch = &loader->batch;
    int64_t length = (int64_t)adl_sampler_length(loader->sampler);
    bool reaches_end = last && loader->ticket * loader->local_bsz >= length;
    batch->size = slot->count;
    batch->extra = reaches_end && adl_sampler_padded(loader->sampler);
    batch->index = slot->index;
    memcpy(batch->part, slot->part, sizeof batch->part);
    batch->done = adl_loop_index(loader->loop);
    batch->seed = adli_mix(loader->seed, batch->done);
    batch->optim_step = adl_loop_optim_step(loader->loop);
    batch->loader = loader;
}

/* Behind the boundary of the next batch, whatever has become of the world there; false: there is none. */
static bool stand_ready(adl_loader *loader)
{
    adl_loop *loop = loader->loop;
    bool again;
    do {
        if (loader->ticket == loader->batches || loop->finished || loop->at_end) {
            if (!adli_loop_passed(loop, &again) || (!again && !adl_loop_more(loop)) ||
                begin_pass(loader) != ADL_OK)
                return false;
        }
        if (!adl_loop_ready(loop, &again))
            return false;
        if (again && !loop->at_end && begin_pass(loader) != ADL_OK)
            return false;
    } while (again);
    return true;
}

/* Fetches the next batch of the loop, in this pass or another; false: there is none. */
static bool advance(adl_loader *loader)
{
    if (!stand_ready(loader))
        return false;
    bool last = loader->ticket + 1 == loader->batches;
    int64_t left =
        (int64_t)adl_sampler_length(loader->sampler) - loader->ticket * loader->local_bsz;
    int size = left < loader->local_bsz ? (int)left : loader->local_bsz;
    if (!adl_loop_step(loader->loop, size, last))
        return false;
    adli_slot *slot;
    adl_status status = adli_prefetch_take(loader->prefetch, &slot);
    if (status != ADL_OK) {
        adl_context_fail(loader->ctx,
                         adli_wrap(status, "%s: filling a batch", adl_loop_name(loader->loop)));
        return false;
    }
    loader->ticket++;
    present(loader, slot, last);
    return true;
}

static void end_loop(adl_loader *loader, adl_batch **batch)
{
    adli_prefetch_end(loader->prefetch);
    adl_loop_end(loader->loop);
    *batch = NULL;
}

bool adl_loader_next(adl_loader *loader, adl_batch **batch)
{
    bool run = true;
    if (!*batch) {
        if (adl_loop_begin(loader->loop, &run) != ADL_OK || !run)
            return false;
        loader->batch.number = 0;
        run = begin_pass(loader) == ADL_OK;
    } else {
        loader->batch.number++;
        run = adl_loop_commit(loader->loop, adli_loop_consumed(loader->loop)) ||
              loader->ctx->status == ADL_OK; /* enough progress: the others may be behind */
    }
    if (run && advance(loader)) {
        *batch = &loader->batch;
        return true;
    }
    end_loop(loader, batch);
    return false;
}

void adl_loader_leave(adl_batch **batch)
{
    if (*batch)
        end_loop((*batch)->loader, batch);
}
