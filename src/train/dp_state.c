/* The saved state of a data-parallel wrapper: parameters and buffers by name, the optimizer, what was
 * given to be saved with it, and the noise statistics. Every replica has the same, so there is nothing
 * to synchronize. Layout:
 *   u32 version
 *   parameters, then buffers: u32 count, then for each text name, u64 count, floats
 *   optimizer, saved[0..3]: each u64 length, bytes
 *   the meter, as it saves itself */
#include "train/dp.h"

#include "base/mem.h"
#include "train/checkpoint_store.h"
#include "train/context.h"
#include "train/meter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 2, PIECE_BYTES = 16 << 20 };

static adl_status sink_array(adl_sink *sink, const adl_param *param)
{
    adl_sink_text(sink, param->name);
    adl_sink_u64(sink, param->count);
    return adl_sink_write(sink, param->value, param->count * sizeof(float));
}

static adl_status sink_saved(adl_sink *sink, const adl_saved *saved)
{
    void *room;
    size_t size = saved->self ? saved->save_size(saved->self) : 0;
    adl_status status = adl_sink_u64(sink, size);
    if (status == ADL_OK && adli_sink_skip(sink, size))
        return ADL_OK;
    status = adl_sink_reserve(sink, size, &room);
    if (status == ADL_OK && saved->self)
        saved->save(saved->self, room);
    return status;
}

static adl_saved optim_saved(const adl_dp *dp)
{
    const adl_optim_ops *optim = dp->optim;
    return (adl_saved){optim->self, optim->save_size, optim->save, optim->load};
}

static adl_status save(void *user, adl_sink *sink)
{
    adl_dp *dp = user;
    adl_status status = adl_sink_u32(sink, VERSION);
    adl_sink_u32(sink, (uint32_t)dp->params);
    for (size_t i = 0; i < dp->params && status == ADL_OK; i++)
        status = sink_array(sink, dp->places[i].param);
    adl_sink_u32(sink, (uint32_t)dp->options.buffer_count);
    for (size_t i = 0; i < dp->options.buffer_count && status == ADL_OK; i++)
        status = sink_array(sink, &dp->options.buffers[i]);
    adl_saved optim = optim_saved(dp);
    if (status == ADL_OK)
        status = sink_saved(sink, &optim);
    for (int i = 0; i < ADL_DP_SAVED_MAX && status == ADL_OK; i++)
        status = sink_saved(sink, &dp->options.saved[i]);
    return status == ADL_OK ? adli_meter_save(dp->meter, sink) : status;
}

static adl_status source_array(adl_source *source, const adl_param *param)
{
    char name[256];
    uint64_t count = 0;
    adl_status status = adl_source_text(source, name, sizeof name);
    if (status == ADL_OK)
        status = adl_source_u64(source, &count);
    if (status != ADL_OK)
        return status;
    if (strcmp(name, param->name) != 0 || count != param->count)
        return adli_fail(ADL_ECORRUPT,
                         "the checkpoint has %s of %llu values where this model has %s of %zu",
                         name, (unsigned long long)count, param->name, param->count);
    return adl_source_read(source, param->value, param->count * sizeof(float));
}

static adl_status source_arrays(adl_source *source, uint32_t expected, const char *what)
{
    uint32_t count;
    adl_status status = adl_source_u32(source, &count);
    if (status == ADL_OK && count != expected)
        status = adli_fail(ADL_ECORRUPT, "the checkpoint has %u %s, this model has %u", count, what,
                           expected);
    return status;
}

static adl_status source_saved(adl_source *source, const adl_saved *saved, const char *what)
{
    uint64_t length;
    const void *data = NULL;
    adl_status status = adl_source_u64(source, &length);
    if (status == ADL_OK)
        status = adl_source_view(source, length, &data);
    if (status != ADL_OK)
        return status;
    if (!saved->self && length > 0)
        return adli_fail(ADL_ECORRUPT, "the checkpoint has a %s, this program has none", what);
    if (!saved->self)
        return ADL_OK;
    /* Loaders read numbers in place: they get aligned memory. */
    void *copy = adli_memdup(data, length, 1);
    if (!copy)
        return adli_fail_memory(what);
    status = saved->load(saved->self, copy, length);
    free(copy);
    return status == ADL_OK ? ADL_OK : adli_wrap(status, "%s", what);
}

static adl_status load(void *user, adl_source *source)
{
    adl_dp *dp = user;
    uint32_t version = 0;
    adl_status status = adl_source_u32(source, &version);
    if (status == ADL_OK && version != VERSION)
        status = adli_fail(ADL_ECORRUPT, "state of version %u, expected %d", version, VERSION);
    if (status == ADL_OK)
        status = source_arrays(source, (uint32_t)dp->params, "parameters");
    for (size_t i = 0; i < dp->params && status == ADL_OK; i++)
        status = source_array(source, dp->places[i].param);
    if (status == ADL_OK)
        status = source_arrays(source, (uint32_t)dp->options.buffer_count, "buffers");
    for (size_t i = 0; i < dp->options.buffer_count && status == ADL_OK; i++)
        status = source_array(source, &dp->options.buffers[i]);
    adl_saved optim = optim_saved(dp);
    if (status == ADL_OK)
        status = source_saved(source, &optim, "optimizer");
    for (int i = 0; i < ADL_DP_SAVED_MAX && status == ADL_OK; i++)
        status = source_saved(source, &dp->options.saved[i], "schedule or scaler");
    return status == ADL_OK ? adli_meter_load(dp->meter, source) : status;
}

/* About what save writes: the arrays and the optimizer are nearly all of it. */
static size_t saved_bytes(const adl_dp *dp)
{
    enum { ARRAY_BYTES = 256, OTHER_BYTES = 4096 }; /* a name and a length; the rest */
    size_t bytes = OTHER_BYTES + dp->optim->save_size(dp->optim->self);
    for (size_t i = 0; i < dp->params; i++)
        bytes += ARRAY_BYTES + dp->places[i].param->count * sizeof(float);
    for (size_t i = 0; i < dp->options.buffer_count; i++)
        bytes += ARRAY_BYTES + dp->options.buffers[i].count * sizeof(float);
    return bytes;
}

adl_status adli_dp_register(adl_dp *dp, bool *found)
{
    char state[ADL_CHECKPOINT_NAME_MAX + 32];
    snprintf(state, sizeof state, "adaptdl.dp.%s", dp->name);
    adl_checkpoint_functions functions = {sizeof functions, save, load, NULL};
    adl_status status = adli_state(dp->ctx, state, &functions, dp, found);
    adl_checkpoint_state *registered =
        status == ADL_OK ? adli_checkpoint_find(dp->ctx->store, state) : NULL;
    if (registered)
        adl_checkpoint_expect(dp->ctx->store, registered, saved_bytes(dp));
    return status;
}

static adl_status share_array(adl_group *group, const adl_param *param)
{
    char *bytes = (char *)param->value;
    size_t total = param->count * sizeof(float);
    for (size_t at = 0; at < total; at += PIECE_BYTES) {
        size_t piece = total - at < PIECE_BYTES ? total - at : PIECE_BYTES, length;
        void *got = NULL;
        adl_status status = adl_group_broadcast(group, bytes + at, piece, &got, &length);
        if (status == ADL_OK && length != piece)
            status = adli_fail(ADL_EPEER, "%s: rank 0 has another size", param->name);
        if (status == ADL_OK)
            memcpy(bytes + at, got, piece);
        free(got);
        if (status != ADL_OK)
            return status;
    }
    return ADL_OK;
}

adl_status adli_dp_share(adl_dp *dp)
{
    adl_group *group = dp->ctx->group;
    adl_status status = ADL_OK;
    if (adl_group_replicas(group) == 1)
        return ADL_OK;
    for (size_t i = 0; i < dp->params && status == ADL_OK; i++)
        status = share_array(group, dp->places[i].param);
    for (size_t i = 0; i < dp->options.buffer_count && status == ADL_OK; i++)
        status = share_array(group, &dp->options.buffers[i]);
    return status == ADL_OK ? ADL_OK : adli_wrap(status, "data parallel %s", dp->name);
}
