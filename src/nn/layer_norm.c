/* BatchNorm2d on oneDNN, together with the ReLU that follows it (a bit mask is kept for backward).
 *   train: y = (x - mean) / sqrt(var + eps) * weight + bias over batch, height and width
 *   running = (1 - momentum) * running + momentum * batch's, var unbiased (n / (n - 1)), as PyTorch
 *   evaluation: the same with the running statistics. */
#include "nn/plan.h"

static unsigned norm_flags(const adli_net_plan *plan, size_t i)
{
    unsigned flags = dnnl_use_scale | dnnl_use_shift;
    if (!plan->train)
        flags |= dnnl_use_global_stats;
    if (adli_relu_follows(plan, i))
        flags |= dnnl_fuse_norm_relu;
    return flags;
}

static double values_per_channel(const adli_node *node, int batch)
{
    return (double)batch * node->in.size[1] * node->in.size[2];
}

/* tensor: batch mean, batch variance. */
static adl_status run_statistics(const adli_action *action, const adli_run *run)
{
    const adl_param *buffers = &run->net->buffers.list[action->node->buffer];
    const float *mean = adli_data(&action->tensor[0]), *var = adli_data(&action->tensor[1]);
    double n = values_per_channel(action->node, action->batch);
    float momentum = (float)action->node->norm.momentum, keep = 1 - momentum;
    float unbiased = (float)(n / (n - 1));
    for (size_t c = 0; c < buffers[0].count; c++) {
        buffers[0].value[c] = keep * buffers[0].value[c] + momentum * mean[c];
        buffers[1].value[c] = keep * buffers[1].value[c] + momentum * (var[c] * unbiased);
    }
    buffers[2].value[0] += 1;
    return ADL_OK;
}

static adl_status forward_desc(adli_net_plan *plan, size_t i, dnnl_primitive_desc_t *out)
{
    const adli_node *node = &plan->net->nodes[i];
    dnnl_batch_normalization_desc_t desc;
    dnnl_prop_kind_t kind = plan->train ? dnnl_forward_training : dnnl_forward_inference;
    adl_status status =
        adli_dnn(plan, i,
                 dnnl_batch_normalization_forward_desc_init(
                     &desc, kind, &plan->value[i].md, (float)node->norm.eps, norm_flags(plan, i)),
                 "batch normalization");
    return status == ADL_OK ? adli_desc(plan, i, &desc, NULL, NULL, out) : status;
}

/* Batch statistics to be computed, or the running ones to be used. */
static adl_status statistics(adli_net_plan *plan, size_t i)
{
    const adli_node *node = &plan->net->nodes[i];
    adli_step *step = &plan->steps[i];
    dnnl_memory_desc_t md = adli_dims_md(1, node->in.size);
    const adl_param *running = &plan->net->buffers.list[node->buffer];
    adl_status status;
    if (plan->train) {
        status = adli_tensor_new(plan, &md, &step->mean);
        return status == ADL_OK ? adli_tensor_new(plan, &md, &step->var) : status;
    }
    status = adli_array_tensor(plan, &md, running[0].value, &step->mean);
    return status == ADL_OK ? adli_array_tensor(plan, &md, running[1].value, &step->var) : status;
}

/* The running statistics follow the batch's. */
static adl_status track(adli_net_plan *plan, size_t i)
{
    adli_action *action;
    adl_status status = adli_act(plan, &plan->forward, i, run_statistics, &action);
    if (status != ADL_OK)
        return status;
    action->tensor[0] = plan->steps[i].mean;
    action->tensor[1] = plan->steps[i].var;
    return ADL_OK;
}

adl_status adli_norm_forward(adli_net_plan *plan, size_t i)
{
    const adli_node *node = &plan->net->nodes[i];
    adli_step *step = &plan->steps[i];
    adli_tensor scale, shift;
    adli_action *action;
    if (plan->train && values_per_channel(node, plan->batch) < 2)
        return adli_fail(ADL_EINVAL,
                         "%s (BatchNorm2d): a batch of one 1 x 1 image has no variance to train on",
                         node->label);
    adl_status status = forward_desc(plan, i, &step->hint);
    if (status == ADL_OK)
        status = statistics(plan, i);
    if (status == ADL_OK)
        status = adli_param_tensor(plan, node, 0, false, &scale);
    if (status == ADL_OK)
        status = adli_param_tensor(plan, node, 1, false, &shift);
    if (status == ADL_OK)
        status = adli_tensor_new(plan, &plan->value[i].md, &plan->value[i + 1]);
    const dnnl_memory_desc_t *mask =
        status == ADL_OK ? dnnl_primitive_desc_query_md(step->hint, dnnl_query_workspace_md, 0)
                         : NULL;
    bool has_mask = mask && dnnl_memory_desc_get_size(mask) > 0;
    if (has_mask)
        status = adli_tensor_new(plan, mask, &step->workspace);
    if (status == ADL_OK)
        status = adli_act_primitive(plan, &plan->forward, i, step->hint, &action);
    if (status != ADL_OK)
        return status;
    adli_arg(plan, action, DNNL_ARG_SRC, &plan->value[i]);
    adli_arg(plan, action, DNNL_ARG_MEAN, &step->mean);
    adli_arg(plan, action, DNNL_ARG_VARIANCE, &step->var);
    adli_arg(plan, action, DNNL_ARG_SCALE, &scale);
    adli_arg(plan, action, DNNL_ARG_SHIFT, &shift);
    adli_arg(plan, action, DNNL_ARG_DST, &plan->value[i + 1]);
    if (has_mask)
        adli_arg(plan, action, DNNL_ARG_WORKSPACE, &step->workspace);
    if (adli_relu_follows(plan, i))
        plan->steps[i + 1].folded = plan->steps[i + 1].back_folded = true;
    return plan->train ? track(plan, i) : ADL_OK;
}

/* The gradients' layout is that of the values: both came from the same primitives. */
static adl_status backward_desc(adli_net_plan *plan, size_t i, dnnl_primitive_desc_t *out)
{
    const adli_node *node = &plan->net->nodes[i];
    dnnl_batch_normalization_desc_t desc;
    adl_status status = adli_dnn(plan, i,
                                 dnnl_batch_normalization_backward_desc_init(
                                     &desc, dnnl_backward, &plan->value[i].md, &plan->value[i].md,
                                     (float)node->norm.eps, norm_flags(plan, i)),
                                 "batch normalization backward");
    return status == ADL_OK ? adli_desc(plan, i, &desc, NULL, plan->steps[i].hint, out) : status;
}

adl_status adli_norm_backward(adli_net_plan *plan, size_t i)
{
    const adli_node *node = &plan->net->nodes[i];
    adli_step *step = &plan->steps[i];
    dnnl_primitive_desc_t pd;
    adli_tensor scale, shift, dscale, dshift;
    adli_action *action;
    dnnl_memory_desc_t channels = adli_dims_md(1, node->in.size);
    adl_status status = backward_desc(plan, i, &pd);
    if (status == ADL_OK)
        status = adli_param_tensor(plan, node, 0, false, &scale);
    if (status == ADL_OK)
        status = adli_param_tensor(plan, node, 1, false, &shift);
    if (status == ADL_OK)
        status = adli_tensor_new(plan, &channels, &dscale);
    if (status == ADL_OK)
        status = adli_tensor_new(plan, &channels, &dshift);
    if (status == ADL_OK)
        status = adli_tensor_new(plan, &plan->value[i].md, &plan->grad[i]);
    if (status == ADL_OK)
        status = adli_act_primitive(plan, &plan->backward, i, pd, &action);
    if (status != ADL_OK)
        return status;
    adli_arg(plan, action, DNNL_ARG_SRC, &plan->value[i]);
    adli_arg(plan, action, DNNL_ARG_MEAN, &step->mean);
    adli_arg(plan, action, DNNL_ARG_VARIANCE, &step->var);
    adli_arg(plan, action, DNNL_ARG_DIFF_DST, &plan->grad[i + 1]);
    adli_arg(plan, action, DNNL_ARG_SCALE, &scale);
    adli_arg(plan, action, DNNL_ARG_SHIFT, &shift); /* not read, but refused without */
    adli_arg(plan, action, DNNL_ARG_DIFF_SRC, &plan->grad[i]);
    adli_arg(plan, action, DNNL_ARG_DIFF_SCALE, &dscale);
    adli_arg(plan, action, DNNL_ARG_DIFF_SHIFT, &dshift);
    if (step->workspace.memory)
        adli_arg(plan, action, DNNL_ARG_WORKSPACE, &step->workspace);
    status = adli_deliver(plan, i, 0, &dscale);
    if (status == ADL_OK)
        status = adli_deliver(plan, i, 1, &dshift);
    return status == ADL_OK ? adli_announce(plan, i) : status;
}
