/* The layers that need no primitives of their own: ReLU, Dropout, Flatten, LogSoftmax, and the two ends
 * of a residual. */
#include "nn/plan.h"

#include "nn/kernels.h"
#include "base/rng.h"

static adli_node_kind kind_at(const adli_net_plan *plan, size_t node)
{
    return plan->net->nodes[node].kind;
}

/* ---- ReLU ------------------------------------------------------------------------------------ */

bool adli_relu_follows(const adli_net_plan *plan, size_t node)
{
    return node + 1 < plan->net->node_count && kind_at(plan, node + 1) == ADLI_RELU;
}

bool adli_gate_passed_on(const adli_net_plan *plan, size_t node)
{
    if (node + 1 >= plan->net->node_count)
        return false;
    adli_node_kind next = kind_at(plan, node + 1);
    return next == ADLI_POOL || next == ADLI_DROPOUT;
}

bool adli_gates(const adli_net_plan *plan, size_t node)
{
    adli_node_kind kind = kind_at(plan, node);
    if (node == 0 || (kind != ADLI_POOL && kind != ADLI_DROPOUT))
        return false;
    if (kind_at(plan, node - 1) == ADLI_RELU)
        return !plan->steps[node - 1].back_folded;
    return kind_at(plan, node - 1) == ADLI_POOL && adli_gates(plan, node - 1);
}

/* tensor: in, y, out. */
static adl_status run_gate(const adli_action *action, const adli_run *run)
{
    (void)run;
    adli_kernel_gate(adli_data(&action->tensor[0]), adli_data(&action->tensor[1]), action->scale,
                     adli_data(&action->tensor[2]), action->count);
    return ADL_OK;
}

adl_status adli_gate(adli_net_plan *plan, size_t i, const adli_tensor *y, float scale,
                     const adli_tensor *in, adli_tensor *out)
{
    adli_action *action;
    adl_status status = ADL_OK;
    if (in->slot >= 0 && !plan->slots[in->slot].shared)
        *out = *in;
    else
        status = adli_tensor_new(plan, &in->md, out);
    if (status == ADL_OK)
        status = adli_act(plan, &plan->backward, i, run_gate, &action);
    if (status != ADL_OK)
        return status;
    adli_use(plan, y);
    action->tensor[0] = *in;
    action->tensor[1] = *y;
    action->tensor[2] = *out;
    action->scale = scale;
    action->count = adli_floats(in);
    return ADL_OK;
}

/* tensor: in, out. */
static adl_status run_relu(const adli_action *action, const adli_run *run)
{
    (void)run;
    adli_kernel_relu(adli_data(&action->tensor[0]), adli_data(&action->tensor[1]), action->count);
    return ADL_OK;
}

adl_status adli_relu_forward(adli_net_plan *plan, size_t i)
{
    adli_action *action;
    plan->value[i + 1] = plan->value[i];
    if (plan->steps[i].folded)
        return ADL_OK;
    adl_status status = adli_tensor_new(plan, &plan->value[i].md, &plan->value[i + 1]);
    if (status == ADL_OK)
        status = adli_act(plan, &plan->forward, i, run_relu, &action);
    if (status != ADL_OK)
        return status;
    action->tensor[0] = plan->value[i];
    action->tensor[1] = plan->value[i + 1];
    action->count = adli_floats(&plan->value[i]);
    return ADL_OK;
}

adl_status adli_relu_backward(adli_net_plan *plan, size_t i)
{
    plan->grad[i] = plan->grad[i + 1];
    if (plan->steps[i].back_folded || adli_gate_passed_on(plan, i))
        return ADL_OK;
    return adli_gate(plan, i, &plan->value[i + 1], 1, &plan->grad[i + 1], &plan->grad[i]);
}

/* ---- Dropout --------------------------------------------------------------------------------- */

/* False when md is not one of the layouts that adli_layout can say. */
static bool layout_of(const dnnl_memory_desc_t *md, adli_layout *layout)
{
    const dnnl_blocking_desc_t *blocking = &md->format_desc.blocking;
    if (md->format_kind != dnnl_blocked || blocking->inner_nblks > 1 ||
        (blocking->inner_nblks == 1 && blocking->inner_idxs[0] != 1))
        return false;
    *layout = (adli_layout){.n = (size_t)md->dims[0],
                            .c = (size_t)md->dims[1],
                            .h = md->ndims == 4 ? (size_t)md->dims[2] : 1,
                            .w = md->ndims == 4 ? (size_t)md->dims[3] : 1,
                            .block = blocking->inner_nblks ? (size_t)blocking->inner_blks[0] : 1,
                            .stride = {0, 0, 1, 1}};
    for (int i = 0; i < md->ndims; i++)
        layout->stride[i] = (size_t)blocking->strides[i];
    return true;
}

static uint64_t dropout_key(const adli_action *action, const adli_run *run)
{
    uint64_t state = run->seed, ordinal = (uint64_t)(action->node - run->net->nodes);
    return adli_splitmix64(&state) ^ (ordinal * 0xd1342543de82ef95u);
}

static float keep_scale(const adli_node *node)
{
    return (float)(1 / (1 - node->p));
}

/* tensor: in, out. */
static adl_status run_dropout(const adli_action *action, const adli_run *run)
{
    adli_layout layout;
    layout_of(&action->tensor[0].md, &layout);
    adli_kernel_dropout(&layout, adli_data(&action->tensor[0]), dropout_key(action, run),
                        (uint32_t)(action->node->p * 0x1p32), keep_scale(action->node),
                        adli_data(&action->tensor[1]));
    return ADL_OK;
}

static adl_status dropout(adli_net_plan *plan, adli_tape *tape, size_t i, const adli_tensor *in,
                          adli_tensor *out)
{
    adli_action *action;
    adl_status status = adli_tensor_new(plan, &in->md, out);
    if (status == ADL_OK)
        status = adli_act(plan, tape, i, run_dropout, &action);
    if (status != ADL_OK)
        return status;
    action->tensor[0] = *in;
    action->tensor[1] = *out;
    return ADL_OK;
}

adl_status adli_dropout_forward(adli_net_plan *plan, size_t i)
{
    const adli_node *node = &plan->net->nodes[i];
    adli_tensor in = plan->value[i];
    adli_layout layout;
    adl_status status = ADL_OK;
    plan->value[i + 1] = plan->value[i];
    if (!plan->train || node->p == 0)
        return ADL_OK;
    if (!layout_of(&in.md, &layout)) {
        dnnl_memory_desc_t plain = adli_plain_md(plan, node->in);
        status = adli_adapt(plan, &plan->forward, i, &plan->value[i], &plain, &in);
    }
    return status == ADL_OK ? dropout(plan, &plan->forward, i, &in, &plan->value[i + 1]) : status;
}

/* After a ReLU the output says by itself what was kept: where it is zero no gradient passes. */
adl_status adli_dropout_backward(adli_net_plan *plan, size_t i)
{
    const adli_node *node = &plan->net->nodes[i];
    adli_tensor out;
    adl_status status;
    if (adli_gates(plan, i))
        status =
            adli_gate(plan, i, &plan->value[i + 1], keep_scale(node), &plan->grad[i + 1], &out);
    else if (node->p == 0) {
        plan->grad[i] = plan->grad[i + 1];
        return ADL_OK;
    } else
        status = dropout(plan, &plan->backward, i, &plan->grad[i + 1], &out);
    return status == ADL_OK
               ? adli_adapt(plan, &plan->backward, i, &out, &plan->value[i].md, &plan->grad[i])
               : status;
}

/* ---- Flatten --------------------------------------------------------------------------------- */

adl_status adli_flatten_forward(adli_net_plan *plan, size_t i)
{
    const adli_node *node = &plan->net->nodes[i];
    dnnl_memory_desc_t plain = adli_plain_md(plan, node->in), flat = adli_plain_md(plan, node->out);
    adli_tensor in;
    adl_status status = adli_adapt(plan, &plan->forward, i, &plan->value[i], &plain, &in);
    return status == ADL_OK ? adli_tensor_alias(plan, &flat, &in, &plan->value[i + 1]) : status;
}

adl_status adli_flatten_backward(adli_net_plan *plan, size_t i)
{
    dnnl_memory_desc_t plain = adli_plain_md(plan, plan->net->nodes[i].in);
    adli_tensor in;
    adl_status status = adli_tensor_alias(plan, &plain, &plan->grad[i + 1], &in);
    return status == ADL_OK
               ? adli_adapt(plan, &plan->backward, i, &in, &plan->value[i].md, &plan->grad[i])
               : status;
}

/* ---- LogSoftmax ------------------------------------------------------------------------------ */

/* tensor: x, y. */
static adl_status run_softmax(const adli_action *action, const adli_run *run)
{
    (void)run;
    adli_kernel_log_softmax(adli_data(&action->tensor[0]), (size_t)action->batch,
                            (size_t)action->node->in.size[0], adli_data(&action->tensor[1]));
    return ADL_OK;
}

adl_status adli_softmax_forward(adli_net_plan *plan, size_t i)
{
    adli_action *action;
    adl_status status = adli_tensor_new(plan, &plan->value[i].md, &plan->value[i + 1]);
    if (status == ADL_OK)
        status = adli_act(plan, &plan->forward, i, run_softmax, &action);
    if (status != ADL_OK)
        return status;
    action->tensor[0] = plan->value[i];
    action->tensor[1] = plan->value[i + 1];
    return ADL_OK;
}

/* tensor: dy, y, dx. */
static adl_status run_softmax_grad(const adli_action *action, const adli_run *run)
{
    (void)run;
    adli_kernel_log_softmax_grad(adli_data(&action->tensor[0]), adli_data(&action->tensor[1]),
                                 (size_t)action->batch, (size_t)action->node->in.size[0],
                                 adli_data(&action->tensor[2]));
    return ADL_OK;
}

adl_status adli_softmax_backward(adli_net_plan *plan, size_t i)
{
    adli_action *action;
    adl_status status = adli_tensor_new(plan, &plan->value[i].md, &plan->grad[i]);
    if (status == ADL_OK)
        status = adli_act(plan, &plan->backward, i, run_softmax_grad, &action);
    if (status != ADL_OK)
        return status;
    adli_use(plan, &plan->value[i + 1]);
    action->tensor[0] = plan->grad[i + 1];
    action->tensor[1] = plan->value[i + 1];
    action->tensor[2] = plan->grad[i];
    return ADL_OK;
}

/* ---- Residual: out = x + f(x) ---------------------------------------------------------------- */

/* tensor: a, b, out. */
static adl_status run_add(const adli_action *action, const adli_run *run)
{
    (void)run;
    adli_kernel_add(adli_data(&action->tensor[0]), adli_data(&action->tensor[1]),
                    adli_data(&action->tensor[2]), action->count);
    return ADL_OK;
}

static adl_status add(adli_net_plan *plan, adli_tape *tape, size_t i, const adli_tensor *a,
                      const adli_tensor *b, adli_tensor *out)
{
    adli_tensor same;
    adli_action *action;
    adl_status status = adli_adapt(plan, tape, i, b, &a->md, &same);
    if (status == ADL_OK)
        status = adli_tensor_new(plan, &a->md, out);
    if (status == ADL_OK)
        status = adli_act(plan, tape, i, run_add, &action);
    if (status != ADL_OK)
        return status;
    action->tensor[0] = *a;
    action->tensor[1] = same;
    action->tensor[2] = *out;
    action->count = adli_floats(a);
    return ADL_OK;
}

adl_status adli_fork_forward(adli_net_plan *plan, size_t i)
{
    plan->value[i + 1] = plan->value[i];
    return ADL_OK;
}

adl_status adli_join_forward(adli_net_plan *plan, size_t i)
{
    const adli_tensor *x = &plan->value[plan->net->nodes[i].fork];
    return add(plan, &plan->forward, i, &plan->value[i], x, &plan->value[i + 1]);
}

/* The sum's gradient goes to both sides; the fork reads it once more. */
adl_status adli_join_backward(adli_net_plan *plan, size_t i)
{
    plan->grad[i] = plan->grad[i + 1];
    if (plan->grad[i].slot >= 0)
        plan->slots[plan->grad[i].slot].shared = true;
    return ADL_OK;
}

adl_status adli_fork_backward(adli_net_plan *plan, size_t i)
{
    const adli_tensor *sum = &plan->grad[plan->net->nodes[i].join + 1];
    return add(plan, &plan->backward, i, &plan->grad[i + 1], sum, &plan->grad[i]);
}
