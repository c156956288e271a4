/* Parameters and buffers: their storage, their initial values, and how callers get at them. */
#include "nn/net.h"
#include "nn/plan.h"

#include "base/mem.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN_FLOATS = 16 }; /* 64 bytes: a cache line and the widest vector */

static size_t padded(size_t count)
{
    return (count + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

adl_status adli_params_add(adli_params *params, const char *layer, const char *what,
                           const adli_param_info *info)
{
    if (adli_grow(&params->list, &params->capacity, params->count + 1, sizeof *params->list) != 0 ||
        adli_grow(&params->info, &params->info_capacity, params->count + 1, sizeof *params->info) !=
            0)
        return adli_fail_memory("list of parameters");
    char name[2 * ADLI_NAME_MAX];
    snprintf(name, sizeof name, "%s.%s", layer, what);
    size_t count = 1;
    for (int i = 0; i < info->dims; i++)
        if (__builtin_mul_overflow(count, (size_t)info->size[i], &count) || count > INT32_MAX)
            return adli_fail(ADL_EINVAL, "%s: more than %d elements", name, INT32_MAX);
    for (size_t i = 0; i < params->count; i++)
        if (strcmp(params->list[i].name, name) == 0)
            return adli_fail(ADL_EINVAL, "%s: two layers have the name %s", name, layer);
    char *copy = adli_strdup(name);
    if (!copy)
        return adli_fail_memory("name of a parameter");
    params->list[params->count] = (adl_param){.name = copy, .count = count};
    params->info[params->count] = *info;
    params->count++;
    return ADL_OK;
}

/* A zeroed block of floats on a 64-byte boundary; *block is what to free. */
static float *aligned_floats(size_t floats, void **block)
{
    *block = adli_calloc(floats + ALIGN_FLOATS, sizeof(float));
    return *block ? (float *)(((uintptr_t)*block + 63) & ~(uintptr_t)63) : NULL;
}

/* Every parameter draws from its own stream, so that adding a layer leaves the others as they were. */
static void fill(const adl_param *param, const adli_param_info *info, uint64_t seed, size_t index)
{
    if (info->bound == 0) {
        for (size_t i = 0; i < param->count; i++)
            param->value[i] = info->fill;
        return;
    }
    adli_rng rng;
    uint64_t state = seed;
    adli_rng_init(&rng, adli_splitmix64(&state) ^ (index * 0x9e3779b97f4a7c15u));
    for (size_t i = 0; i < param->count; i++)
        param->value[i] = (float)((2 * adli_rng_unit(&rng) - 1) * info->bound);
}

adl_status adli_params_build(adli_params *params, bool with_grads, uint64_t seed)
{
    params->floats = 0;
    for (size_t i = 0; i < params->count; i++)
        params->floats += padded(params->list[i].count);
    params->values = aligned_floats(params->floats, &params->value_block);
    if (with_grads)
        params->grads = aligned_floats(params->floats, &params->grad_block);
    if (!params->values || (with_grads && !params->grads))
        return adli_fail_memory("parameters");
    size_t at = 0;
    for (size_t i = 0; i < params->count; i++) {
        adl_param *param = &params->list[i];
        param->value = params->values + at;
        param->grad = with_grads ? params->grads + at : NULL;
        fill(param, &params->info[i], seed, i);
        at += padded(param->count);
    }
    return ADL_OK;
}

void adli_params_free(adli_params *params)
{
    for (size_t i = 0; i < params->count; i++)
        free((char *)params->list[i].name);
    free(params->list);
    free(params->info);
    free(params->value_block);
    free(params->grad_block);
    *params = (adli_params){0};
}

adl_status adl_net_build(adl_net *net, uint64_t seed)
{
    if (net->failed != ADL_OK)
        return adli_fail(net->failed, "%s", net->failure ? net->failure : "out of memory");
    if (net->built)
        return adli_fail(ADL_ESTATE, "network was built already");
    if (net->depth > 0)
        return adli_fail(ADL_EINVAL, "network: %s is not closed by adl_net_end", net->prefix);
    if (net->node_count == 0)
        return adli_fail(ADL_EINVAL, "network has no layers");
    adl_status status = adli_params_build(&net->params, true, seed);
    if (status == ADL_OK)
        status = adli_params_build(&net->buffers, false, 0);
    if (status == ADL_OK)
        status = adli_engine_open(net);
    net->failed = status; /* a network half built is of no use */
    net->built = status == ADL_OK;
    return status;
}

const adl_param *adl_net_params(const adl_net *net, size_t *count)
{
    *count = net->built ? net->params.count : 0;
    return net->params.list;
}

int adl_net_param_shape(const adl_net *net, size_t param, int size[4])
{
    if (param >= net->params.count)
        return 0;
    memcpy(size, net->params.info[param].size, 4 * sizeof *size);
    return net->params.info[param].dims;
}

void adl_net_flat(const adl_net *net, float **values, float **grads, size_t *count)
{
    if (values)
        *values = net->params.values;
    if (grads)
        *grads = net->params.grads;
    *count = net->params.floats;
}

const adl_param *adl_net_buffers(const adl_net *net, size_t *count)
{
    *count = net->built ? net->buffers.count : 0;
    return net->buffers.list;
}

void adl_net_zero_grad(adl_net *net)
{
    if (net->params.grads)
        memset(net->params.grads, 0, net->params.floats * sizeof(float));
}

adl_nn_shape adl_net_input_shape(const adl_net *net)
{
    return net->input;
}

adl_nn_shape adl_net_output_shape(const adl_net *net)
{
    return net->shape;
}

void adl_net_set_hook(adl_net *net, adl_grad_hook hook, void *context)
{
    net->hook = hook;
    net->hook_context = context;
}
