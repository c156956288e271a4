/* Linear: y = x W^T + b with oneDNN's sgemm, which shares the thread pool of everything else here
 * (docs/adr/0040). x: [batch][in], W: [out][in], y: [batch][out]. */
#include "nn/plan.h"

#include "nn/kernels.h"
#include "nn/threads.h"

#include <string.h>

static adl_status gemm_status(const adli_action *action, dnnl_status_t status)
{
    if (status == dnnl_success)
        return ADL_OK;
    return adli_fail(status == dnnl_out_of_memory ? ADL_ENOMEM : ADL_EINVAL,
                     "%s (Linear), batch %d: oneDNN sgemm failed with status %d",
                     action->node->label, action->batch, (int)status);
}

/* A small output with a long sum (9216 -> 128 at batch 64) leaves sgemm nothing to share out, so the
 * sum is cut into parts, one a thread. */
static int parts_of_sum(const adli_net_plan *plan, const adli_node *node)
{
    enum { PART_MIN = 512, OUTPUT_MAX = 65536 };
    int in = node->in.size[0];
    if ((size_t)plan->batch * (size_t)node->out.size[0] > OUTPUT_MAX)
        return 1;
    int most = in / PART_MIN;
    return most < 1 ? 1 : most < plan->threads ? most : plan->threads;
}

/* tensor: x, W, b (memory NULL: none), y, and parts - 1 more outputs when the sum is cut in `count`
 * parts. flag: ReLU as well. */
static adl_status run_forward(const adli_action *action, const adli_run *run)
{
    (void)run;
    int in = action->node->in.size[0], out = action->node->out.size[0], batch = action->batch;
    size_t parts = action->count, size = (size_t)batch * (size_t)out;
    const float *x = adli_data(&action->tensor[0]), *w = adli_data(&action->tensor[1]);
    float *y = adli_data(&action->tensor[3]);
    float *more = parts > 1 ? adli_data(&action->tensor[4]) : NULL;
    _Atomic int failed = dnnl_success;
#pragma omp parallel for schedule(static) if (parts > 1)
    for (size_t i = 0; i < parts; i++) {
        size_t first, end;
        adli_part((size_t)in, parts, i, &first, &end);
        dnnl_status_t status =
            dnnl_sgemm('N', 'T', batch, out, (dnnl_dim_t)(end - first), 1, x + first, in, w + first,
                       in, 0, i == 0 ? y : more + (i - 1) * size, out);
        if (status != dnnl_success)
            failed = status;
    }
    for (size_t i = 1; i < parts; i++)
        adli_kernel_add(y, more + (i - 1) * size, y, size);
    const float *bias = action->tensor[2].memory ? adli_data(&action->tensor[2]) : NULL;
    adli_kernel_bias(y, bias, (size_t)batch, (size_t)out, action->flag);
    return gemm_status(action, (dnnl_status_t)failed);
}

adl_status adli_linear_forward(adli_net_plan *plan, size_t i)
{
    const adli_node *node = &plan->net->nodes[i];
    int parts = parts_of_sum(plan, node);
    adli_tensor weights, bias = {.memory = NULL}, more = {.memory = NULL};
    dnnl_memory_desc_t md = adli_plain_md(plan, node->out);
    adli_action *action;
    adl_status status = adli_tensor_new(plan, &md, &plan->value[i + 1]);
    if (status == ADL_OK)
        status = adli_param_tensor(plan, node, 0, false, &weights);
    if (status == ADL_OK && !node->linear.no_bias)
        status = adli_param_tensor(plan, node, 1, false, &bias);
    if (status == ADL_OK && parts > 1) {
        int size[3] = {parts - 1, plan->batch, node->out.size[0]};
        md = adli_dims_md(3, size);
        status = adli_tensor_new(plan, &md, &more);
    }
    if (status == ADL_OK)
        status = adli_act(plan, &plan->forward, i, run_forward, &action);
    if (status != ADL_OK)
        return status;
    action->tensor[0] = plan->value[i];
    action->tensor[1] = weights;
    action->tensor[2] = bias;
    action->tensor[3] = plan->value[i + 1];
    action->tensor[4] = more;
    action->count = (size_t)parts;
    action->flag = adli_relu_follows(plan, i);
    if (action->flag)
        plan->steps[i + 1].folded = true;
    return ADL_OK;
}

/* tensor: x, dy, dW, db (memory NULL: none). dW (+)= dy^T x, straight into the parameter's gradient. */
static adl_status run_weights(const adli_action *action, const adli_run *run)
{
    int in = action->node->in.size[0], out = action->node->out.size[0], batch = action->batch;
    const float *x = adli_data(&action->tensor[0]), *dy = adli_data(&action->tensor[1]);
    bool add = run->mode == ADL_GRAD_ADD;
    if (action->tensor[3].memory)
        adli_kernel_bias_grad(dy, (size_t)batch, (size_t)out, add, adli_data(&action->tensor[3]));
    return gemm_status(action, dnnl_sgemm('T', 'N', out, in, batch, 1, dy, out, x, in, add ? 1 : 0,
                                          adli_data(&action->tensor[2]), in));
}

/* tensor: dy, W, dx. dx = dy W. */
static adl_status run_data(const adli_action *action, const adli_run *run)
{
    (void)run;
    int in = action->node->in.size[0], out = action->node->out.size[0];
    return gemm_status(action,
                       dnnl_sgemm('N', 'N', action->batch, in, out, 1,
                                  adli_data(&action->tensor[0]), out, adli_data(&action->tensor[1]),
                                  in, 0, adli_data(&action->tensor[2]), in));
}

adl_status adli_linear_backward(adli_net_plan *plan, size_t i)
{
    const adli_node *node = &plan->net->nodes[i];
    adli_tensor dweights, dbias = {.memory = NULL}, weights;
    adli_action *action;
    adl_status status = adli_param_tensor(plan, node, 0, true, &dweights);
    if (status == ADL_OK && !node->linear.no_bias)
        status = adli_param_tensor(plan, node, 1, true, &dbias);
    if (status == ADL_OK)
        status = adli_act(plan, &plan->backward, i, run_weights, &action);
    if (status != ADL_OK)
        return status;
    adli_use(plan, &plan->value[i]);
    action->tensor[0] = plan->value[i];
    action->tensor[1] = plan->grad[i + 1];
    action->tensor[2] = dweights;
    action->tensor[3] = dbias;
    status = adli_announce(plan, i);
    if (status != ADL_OK || !adli_needs_grad(plan, i))
        return status;
    status = adli_tensor_new(plan, &plan->value[i].md, &plan->grad[i]);
    if (status == ADL_OK)
        status = adli_param_tensor(plan, node, 0, false, &weights);
    if (status == ADL_OK)
        status = adli_act(plan, &plan->backward, i, run_data, &action);
    if (status != ADL_OK)
        return status;
    action->tensor[0] = plan->grad[i + 1];
    action->tensor[1] = weights;
    action->tensor[2] = plan->grad[i];
    return ADL_OK;
}
