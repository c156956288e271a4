/* What layers write tapes with: tensors in the arena, primitives, reorders, and the delivery of
 * gradients. */
#include "nn/plan.h"

#include "nn/kernels.h"
#include "base/mem.h"

#include <string.h>

adl_status adli_dnn(const adli_net_plan *plan, size_t node, dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return ADL_OK;
    const adli_node *at = &plan->net->nodes[node];
    char shape[ADLI_SHAPE_TEXT];
    const char *why = status == dnnl_out_of_memory       ? "out of memory"
                      : status == dnnl_invalid_arguments ? "invalid arguments"
                      : status == dnnl_unimplemented     ? "not implemented"
                                                         : "runtime error";
    return adli_fail(status == dnnl_out_of_memory ? ADL_ENOMEM : ADL_EINVAL,
                     "%s (%s) on %s, batch %d: oneDNN %s: %s", at->label, adli_kind_name(at->kind),
                     adli_shape_text(at->in, shape), plan->batch, what, why);
}

dnnl_memory_desc_t adli_dims_md(int dims, const int *size)
{
    static const dnnl_format_tag_t tags[] = {dnnl_a, dnnl_ab, dnnl_abc, dnnl_abcd};
    dnnl_memory_desc_t md;
    dnnl_dims_t at = {0};
    for (int i = 0; i < dims; i++)
        at[i] = size[i];
    memset(&md, 0, sizeof md);
    dnnl_memory_desc_init_by_tag(&md, dims, at, dnnl_f32, tags[dims - 1]); /* valid by build */
    return md;
}

dnnl_memory_desc_t adli_plain_md(const adli_net_plan *plan, adl_nn_shape shape)
{
    int size[4] = {plan->batch, shape.size[0], shape.size[1], shape.size[2]};
    return adli_dims_md(1 + shape.dims, size);
}

dnnl_memory_desc_t adli_any_md(const dnnl_memory_desc_t *md)
{
    dnnl_memory_desc_t any;
    memset(&any, 0, sizeof any);
    dnnl_memory_desc_init_by_tag(&any, md->ndims, md->dims, dnnl_f32, dnnl_format_tag_any);
    return any;
}

float *adli_data(const adli_tensor *tensor)
{
    void *data = NULL;
    dnnl_memory_get_data_handle(tensor->memory, &data);
    return data;
}

/* A memory object in a slot (or outside), owned by the plan. */
static adl_status bind(adli_net_plan *plan, const dnnl_memory_desc_t *md, int slot, void *data,
                       adli_tensor *out)
{
    *out = (adli_tensor){.md = *md, .slot = slot};
    if (adli_grow(&plan->bindings, &plan->binding_capacity, plan->binding_count + 1,
                  sizeof *plan->bindings) != 0 ||
        dnnl_memory_create(&out->memory, md, plan->net->engine, data) != dnnl_success)
        return adli_fail_memory("tensor");
    plan->bindings[plan->binding_count++] = (adli_binding){out->memory, slot};
    return ADL_OK;
}

adl_status adli_tensor_new(adli_net_plan *plan, const dnnl_memory_desc_t *md, adli_tensor *out)
{
    if (adli_grow(&plan->slots, &plan->slot_capacity, plan->slot_count + 1, sizeof *plan->slots) !=
        0)
        return adli_fail_memory("tensor");
    size_t bytes = (dnnl_memory_desc_get_size(md) + 63) & ~(size_t)63;
    plan->slots[plan->slot_count] = (adli_slot){.bytes = bytes, .from = plan->now, .to = plan->now};
    return bind(plan, md, (int)plan->slot_count++, DNNL_MEMORY_NONE, out);
}

adl_status adli_tensor_alias(adli_net_plan *plan, const dnnl_memory_desc_t *md,
                             const adli_tensor *of, adli_tensor *out)
{
    return bind(plan, md, of->slot, DNNL_MEMORY_NONE, out); /* pointed before each run */
}

adl_status adli_tensor_at(adli_net_plan *plan, const dnnl_memory_desc_t *md, int place,
                          adli_tensor *out)
{
    return bind(plan, md, place, DNNL_MEMORY_NONE, out);
}

adl_status adli_array_tensor(adli_net_plan *plan, const dnnl_memory_desc_t *md, float *data,
                             adli_tensor *out)
{
    return bind(plan, md, ADLI_AT_PARAM, data, out);
}

void adli_point(adli_net_plan *plan, int place, const void *data)
{
    for (size_t i = 0; i < plan->binding_count; i++)
        if (plan->bindings[i].slot == place)
            dnnl_memory_set_data_handle(plan->bindings[i].memory, (void *)data);
}

void adli_use(adli_net_plan *plan, const adli_tensor *tensor)
{
    if (tensor->memory && tensor->slot >= 0 && plan->slots[tensor->slot].to < plan->now)
        plan->slots[tensor->slot].to = plan->now;
}

adl_status adli_param_tensor(adli_net_plan *plan, const adli_node *node, int k, bool grad,
                             adli_tensor *out)
{
    const adl_param *param = &plan->net->params.list[node->param + (size_t)k];
    const adli_param_info *info = &plan->net->params.info[node->param + (size_t)k];
    dnnl_memory_desc_t md = adli_dims_md(info->dims, info->size);
    return adli_array_tensor(plan, &md, grad ? param->grad : param->value, out);
}

adl_status adli_act(adli_net_plan *plan, adli_tape *tape, size_t node,
                    adl_status (*run)(const adli_action *, const adli_run *), adli_action **out)
{
    *out = NULL;
    if (adli_grow(&tape->actions, &tape->capacity, tape->count + 1, sizeof *tape->actions) != 0)
        return adli_fail_memory("plan");
    adli_action *action = &tape->actions[tape->count++];
    memset(action, 0, sizeof *action);
    action->run = run;
    action->node = &plan->net->nodes[node];
    action->batch = plan->batch;
    *out = action;
    return ADL_OK;
}

static adl_status run_primitive(const adli_action *action, const adli_run *run)
{
    dnnl_status_t status = dnnl_primitive_execute(action->primitive, run->net->stream,
                                                  action->arg_count, action->args);
    if (status == dnnl_success)
        status = dnnl_stream_wait(run->net->stream);
    if (status == dnnl_success)
        return ADL_OK;
    return adli_fail(status == dnnl_out_of_memory ? ADL_ENOMEM : ADL_EINVAL,
                     "%s (%s), batch %d: oneDNN failed with status %d", action->node->label,
                     adli_kind_name(action->node->kind), action->batch, (int)status);
}

adl_status adli_desc(adli_net_plan *plan, size_t node, const_dnnl_op_desc_t desc,
                     const_dnnl_primitive_attr_t attr, const_dnnl_primitive_desc_t hint,
                     dnnl_primitive_desc_t *out)
{
    *out = NULL;
    if (adli_grow(&plan->descs, &plan->desc_capacity, plan->desc_count + 1, sizeof *plan->descs) !=
        0)
        return adli_fail_memory("plan");
    dnnl_status_t status =
        dnnl_primitive_desc_create(out, desc, attr ? attr : plan->attr, plan->net->engine, hint);
    if (status == dnnl_success)
        plan->descs[plan->desc_count++] = *out;
    return adli_dnn(plan, node, status, "primitive");
}

/* Gives the action a primitive, and its scratchpad when it needs one. */
static adl_status set_primitive(adli_net_plan *plan, adli_action *action, size_t node,
                                dnnl_primitive_desc_t pd)
{
    if (adli_grow(&plan->primitives, &plan->primitive_capacity, plan->primitive_count + 1,
                  sizeof *plan->primitives) != 0)
        return adli_fail_memory("plan");
    dnnl_status_t made = dnnl_primitive_create(&action->primitive, pd);
    if (made != dnnl_success)
        return adli_dnn(plan, node, made, "primitive");
    plan->primitives[plan->primitive_count++] = action->primitive;
    const dnnl_memory_desc_t *md = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    if (!md || dnnl_memory_desc_get_size(md) == 0)
        return ADL_OK;
    adli_tensor scratch;
    adl_status status = adli_tensor_new(plan, md, &scratch);
    if (status == ADL_OK)
        adli_arg(plan, action, DNNL_ARG_SCRATCHPAD, &scratch);
    return status;
}

adl_status adli_act_primitive(adli_net_plan *plan, adli_tape *tape, size_t node,
                              dnnl_primitive_desc_t pd, adli_action **out)
{
    adl_status status = adli_act(plan, tape, node, run_primitive, out);
    return status == ADL_OK ? set_primitive(plan, *out, node, pd) : status;
}

void adli_arg(adli_net_plan *plan, adli_action *action, int arg, const adli_tensor *tensor)
{
    adli_use(plan, tensor);
    action->args[action->arg_count++] = (dnnl_exec_arg_t){arg, tensor->memory};
}

static adl_status reorder_desc(adli_net_plan *plan, size_t node, const dnnl_memory_desc_t *from,
                               const dnnl_memory_desc_t *to, dnnl_primitive_desc_t *out)
{
    *out = NULL;
    if (adli_grow(&plan->descs, &plan->desc_capacity, plan->desc_count + 1, sizeof *plan->descs) !=
        0)
        return adli_fail_memory("plan");
    dnnl_status_t status = dnnl_reorder_primitive_desc_create(out, from, plan->net->engine, to,
                                                              plan->net->engine, plan->attr);
    if (status == dnnl_success)
        plan->descs[plan->desc_count++] = *out;
    return adli_dnn(plan, node, status, "reorder");
}

adl_status adli_reorder(adli_net_plan *plan, adli_tape *tape, size_t node, const adli_tensor *from,
                        const adli_tensor *to)
{
    dnnl_primitive_desc_t pd;
    adli_action *action;
    adl_status status = reorder_desc(plan, node, &from->md, &to->md, &pd);
    if (status == ADL_OK)
        status = adli_act_primitive(plan, tape, node, pd, &action);
    if (status != ADL_OK)
        return status;
    adli_arg(plan, action, DNNL_ARG_FROM, from);
    adli_arg(plan, action, DNNL_ARG_TO, to);
    return ADL_OK;
}

adl_status adli_adapt(adli_net_plan *plan, adli_tape *tape, size_t node, const adli_tensor *have,
                      const dnnl_memory_desc_t *want, adli_tensor *out)
{
    adli_use(plan, have);
    *out = *have;
    if (dnnl_memory_desc_equal(&have->md, want))
        return ADL_OK;
    adl_status status = adli_tensor_new(plan, want, out);
    return status == ADL_OK ? adli_reorder(plan, tape, node, have, out) : status;
}

/* tensor[0]: the fresh gradient, row-major; tensor[1]: the parameter's. */
static adl_status run_deliver(const adli_action *action, const adli_run *run)
{
    float *to = adli_data(&action->tensor[1]);
    const float *from = adli_data(&action->tensor[0]);
    if (run->mode == ADL_GRAD_ADD)
        adli_kernel_add(to, from, to, action->count);
    else
        memcpy(to, from, action->count * sizeof *to);
    return ADL_OK;
}

adl_status adli_deliver(adli_net_plan *plan, size_t node, int k, const adli_tensor *from)
{
    const adli_node *at = &plan->net->nodes[node];
    adli_tensor grad, plain;
    adl_status status = adli_param_tensor(plan, at, k, true, &grad);
    if (status == ADL_OK)
        status = adli_adapt(plan, &plan->backward, node, from, &grad.md, &plain);
    adli_action *action;
    if (status == ADL_OK)
        status = adli_act(plan, &plan->backward, node, run_deliver, &action);
    if (status != ADL_OK)
        return status;
    adli_use(plan, &plain);
    action->tensor[0] = plain;
    action->tensor[1] = grad;
    action->count = plan->net->params.list[at->param + (size_t)k].count;
    return ADL_OK;
}

static adl_status run_announce(const adli_action *action, const adli_run *run)
{
    const adl_net *net = run->net;
    for (int k = action->node->param_count; net->hook && k-- > 0;) {
        adl_status status = net->hook(net->hook_context, action->node->param + (size_t)k);
        if (status != ADL_OK)
            return status;
    }
    return ADL_OK;
}

adl_status adli_announce(adli_net_plan *plan, size_t node)
{
    adli_action *action;
    return adli_act(plan, &plan->backward, node, run_announce, &action);
}
