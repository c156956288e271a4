/* The cache of plans, and how one is made: every layer writes its part of the tapes, then the arena is
 * laid out. */
#include "nn/plan.h"

#include "nn/threads.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static const adli_op ops[ADLI_KINDS] = {
    [ADLI_CONV] = {adli_conv_forward, adli_conv_backward},
    [ADLI_LINEAR] = {adli_linear_forward, adli_linear_backward},
    [ADLI_NORM] = {adli_norm_forward, adli_norm_backward},
    [ADLI_RELU] = {adli_relu_forward, adli_relu_backward},
    [ADLI_POOL] = {adli_pool_forward, adli_pool_backward},
    [ADLI_DROPOUT] = {adli_dropout_forward, adli_dropout_backward},
    [ADLI_FLATTEN] = {adli_flatten_forward, adli_flatten_backward},
    [ADLI_LOG_SOFTMAX] = {adli_softmax_forward, adli_softmax_backward},
    [ADLI_FORK] = {adli_fork_forward, adli_fork_backward},
    [ADLI_JOIN] = {adli_join_forward, adli_join_backward},
};

adl_status adli_engine_open(adl_net *net)
{
    if (dnnl_engine_create(&net->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&net->stream, net->engine, dnnl_stream_default_flags) != dnnl_success)
        return adli_fail(ADL_ENOMEM, "oneDNN cannot make an engine for the processor");
    return ADL_OK;
}

static void free_descs(adli_net_plan *plan)
{
    for (size_t i = 0; i < plan->desc_count; i++)
        dnnl_primitive_desc_destroy(plan->descs[i]);
    plan->desc_count = 0;
}

static void plan_free(adli_net_plan *plan)
{
    if (!plan)
        return;
    for (size_t i = 0; i < plan->primitive_count; i++)
        dnnl_primitive_destroy(plan->primitives[i]);
    for (size_t i = 0; i < plan->binding_count; i++)
        dnnl_memory_destroy(plan->bindings[i].memory);
    free_descs(plan);
    if (plan->attr)
        dnnl_primitive_attr_destroy(plan->attr);
    free(plan->value);
    free(plan->grad);
    free(plan->steps);
    free(plan->forward.actions);
    free(plan->backward.actions);
    free(plan->slots);
    free(plan->bindings);
    free(plan->primitives);
    free(plan->descs);
    free(plan);
}

void adli_net_plans_free(adl_net *net)
{
    for (int i = 0; i < ADL_NET_PLANS; i++)
        plan_free(net->plans[i]);
    free(net->arena_block);
    if (net->stream)
        dnnl_stream_destroy(net->stream);
    if (net->engine)
        dnnl_engine_destroy(net->engine);
}

bool adli_needs_grad(const adli_net_plan *plan, size_t node)
{
    return plan->input_grad || plan->net->nodes[node].param > 0;
}

static adl_status write_forward(adli_net_plan *plan)
{
    const adl_net *net = plan->net;
    dnnl_memory_desc_t input = adli_plain_md(plan, net->input);
    adl_status status = adli_tensor_at(plan, &input, ADLI_AT_X, &plan->value[0]);
    for (size_t i = 0; i < net->node_count && status == ADL_OK; i++) {
        plan->now = (int)i;
        adli_use(plan, &plan->value[i]);
        status = ops[net->nodes[i].kind].forward(plan, i);
    }
    if (status != ADL_OK)
        return status;
    size_t last = net->node_count;
    plan->now = (int)last;
    adli_use(plan, &plan->value[last]);
    dnnl_memory_desc_t plain = adli_plain_md(plan, net->shape);
    return adli_adapt(plan, &plan->forward, last - 1, &plan->value[last], &plain, &plan->output);
}

/* grad[n] is the caller's dout, in the layout of value[n]. */
static adl_status write_backward(adli_net_plan *plan)
{
    const adl_net *net = plan->net;
    size_t n = net->node_count;
    adl_status status = adli_tensor_at(plan, &plan->output.md, ADLI_AT_DOUT, &plan->dout);
    if (status == ADL_OK)
        status = adli_adapt(plan, &plan->backward, n - 1, &plan->dout, &plan->value[n].md,
                            &plan->grad[n]);
    for (size_t i = n; i-- > 0 && status == ADL_OK;) {
        if (!adli_needs_grad(plan, i) && net->nodes[i].param_count == 0)
            break;
        plan->now = (int)(2 * n - i);
        adli_use(plan, &plan->grad[i + 1]);
        status = ops[net->nodes[i].kind].backward(plan, i);
    }
    if (status != ADL_OK || !plan->input_grad)
        return status;
    plan->now = (int)(2 * n + 1);
    adli_use(plan, &plan->grad[0]);
    status = adli_tensor_at(plan, &plan->value[0].md, ADLI_AT_DX, &plan->dx);
    return status == ADL_OK ? adli_reorder(plan, &plan->backward, 0, &plan->grad[0], &plan->dx)
                            : status;
}

static bool overlap(const adli_slot *a, const adli_slot *b)
{
    return a->from <= b->to && b->from <= a->to;
}

/* The lowest offset where slot fits among those already placed. */
static size_t place(const adli_net_plan *plan, const adli_slot *slot, const size_t *order,
                    size_t placed)
{
    size_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 0; i < placed; i++) {
            const adli_slot *other = &plan->slots[order[i]];
            if (overlap(slot, other) && offset < other->offset + other->bytes &&
                other->offset < offset + slot->bytes) {
                offset = other->offset + other->bytes;
                moved = true;
            }
        }
    }
    return offset;
}

/* First fit, largest first: tensors whose lifetimes overlap get different places. */
static adl_status lay_out(adli_net_plan *plan)
{
    size_t *order = adli_calloc(plan->slot_count, sizeof *order);
    if (!order)
        return adli_fail_memory("plan of the arena");
    for (size_t i = 0; i < plan->slot_count; i++) {
        size_t at = i;
        while (at > 0 && plan->slots[order[at - 1]].bytes < plan->slots[i].bytes) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
    for (size_t i = 0; i < plan->slot_count; i++) {
        adli_slot *slot = &plan->slots[order[i]];
        slot->offset = place(plan, slot, order, i);
        if (slot->offset + slot->bytes > plan->arena_bytes)
            plan->arena_bytes = slot->offset + slot->bytes;
    }
    free(order);
    return ADL_OK;
}

static adl_status plan_new(adl_net *net, int batch, const adl_pass *pass, adli_net_plan **out)
{
    *out = NULL;
    adli_net_plan *plan = adli_calloc(1, sizeof *plan);
    if (!plan)
        return adli_fail_memory("plan");
    plan->net = net;
    plan->batch = batch;
    plan->threads = adl_nn_threads();
    plan->train = pass->train;
    plan->input_grad = pass->train && pass->input_grad;
    plan->value = adli_calloc(net->node_count + 1, sizeof *plan->value);
    plan->grad = adli_calloc(net->node_count + 1, sizeof *plan->grad);
    plan->steps = adli_calloc(net->node_count, sizeof *plan->steps);
    adl_status status = ADL_OK;
    if (!plan->value || !plan->grad || !plan->steps ||
        dnnl_primitive_attr_create(&plan->attr) != dnnl_success ||
        dnnl_primitive_attr_set_scratchpad_mode(plan->attr, dnnl_scratchpad_mode_user) !=
            dnnl_success)
        status = adli_fail_memory("plan");
    if (status == ADL_OK)
        status = write_forward(plan);
    if (status == ADL_OK && plan->train)
        status = write_backward(plan);
    plan->now = (int)(2 * net->node_count + 1);
    adli_use(plan, &plan->output); /* the caller may read it until the next forward */
    if (status == ADL_OK)
        status = lay_out(plan);
    free_descs(plan);
    if (status != ADL_OK) {
        plan_free(plan);
        return status;
    }
    *out = plan;
    return ADL_OK;
}

/* Makes the arena large enough for the plan and points its tensors there. */
static adl_status settle(adl_net *net, adli_net_plan *plan)
{
    if (plan->arena_bytes > net->arena_bytes) {
        free(net->arena_block);
        net->arena_block = adli_calloc(plan->arena_bytes + 64, 1);
        net->arena_bytes = net->arena_block ? plan->arena_bytes : 0;
        net->arena = (char *)(((uintptr_t)net->arena_block + 63) & ~(uintptr_t)63);
        net->arena_version++;
        if (!net->arena_block)
            return adli_fail(ADL_ENOMEM,
                             "out of memory: %zu bytes of activations for a batch of %d",
                             plan->arena_bytes, plan->batch);
    }
    if (plan->arena_version == net->arena_version)
        return ADL_OK;
    for (size_t i = 0; i < plan->binding_count; i++) {
        const adli_binding *binding = &plan->bindings[i];
        if (binding->slot >= 0)
            dnnl_memory_set_data_handle(binding->memory,
                                        net->arena + plan->slots[binding->slot].offset);
    }
    plan->arena_version = net->arena_version;
    return ADL_OK;
}

adl_status adli_net_plan_get(adl_net *net, int batch, const adl_pass *pass, adli_net_plan **out)
{
    int threads = adl_nn_threads(), at = 0;
    bool input_grad = pass->train && pass->input_grad;
    adli_net_plan *plan = NULL;
    for (; at < ADL_NET_PLANS && net->plans[at]; at++) {
        adli_net_plan *have = net->plans[at];
        if (have->batch == batch && have->threads == threads && have->train == pass->train &&
            have->input_grad == input_grad) {
            plan = have;
            break;
        }
    }
    if (!plan) {
        adl_status status = plan_new(net, batch, pass, &plan);
        if (status != ADL_OK)
            return status;
        if (at == ADL_NET_PLANS)
            plan_free(net->plans[--at]);
    }
    memmove(net->plans + 1, net->plans, (size_t)at * sizeof *net->plans);
    net->plans[0] = plan;
    *out = plan;
    return settle(net, plan);
}
