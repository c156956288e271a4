/* MaxPool2d on oneDNN, and the ReLU gate that commutes with it (adli_gates). */
#include "nn/plan.h"

#include "nn/kernels.h"

typedef struct pool_shape {
    dnnl_dims_t kernel, stride, zero;
} pool_shape;

static pool_shape shape_of(const adli_node *node)
{
    return (pool_shape){.kernel = {node->pool.kernel, node->pool.kernel},
                        .stride = {node->pool.stride, node->pool.stride}};
}

adl_status adli_pool_forward(adli_net_plan *plan, size_t i)
{
    const adli_node *node = &plan->net->nodes[i];
    adli_step *step = &plan->steps[i];
    pool_shape pool = shape_of(node);
    dnnl_memory_desc_t plain = adli_plain_md(plan, node->out), dst = adli_any_md(&plain);
    dnnl_pooling_v2_desc_t desc;
    adli_action *action;
    adl_status status = adli_dnn(
        plan, i,
        dnnl_pooling_v2_forward_desc_init(
            &desc, plan->train ? dnnl_forward_training : dnnl_forward_inference, dnnl_pooling_max,
            &plan->value[i].md, &dst, pool.stride, pool.kernel, pool.zero, pool.zero, pool.zero),
        "pooling");
    if (status == ADL_OK)
        status = adli_desc(plan, i, &desc, NULL, NULL, &step->hint);
    if (status == ADL_OK)
        status =
            adli_tensor_new(plan, dnnl_primitive_desc_query_md(step->hint, dnnl_query_dst_md, 0),
                            &plan->value[i + 1]);
    if (status == ADL_OK && plan->train)
        status = adli_tensor_new(
            plan, dnnl_primitive_desc_query_md(step->hint, dnnl_query_workspace_md, 0),
            &step->workspace);
    if (status == ADL_OK)
        status = adli_act_primitive(plan, &plan->forward, i, step->hint, &action);
    if (status != ADL_OK)
        return status;
    adli_arg(plan, action, DNNL_ARG_SRC, &plan->value[i]);
    adli_arg(plan, action, DNNL_ARG_DST, &plan->value[i + 1]);
    if (plan->train)
        adli_arg(plan, action, DNNL_ARG_WORKSPACE, &step->workspace);
    return ADL_OK;
}

adl_status adli_pool_backward(adli_net_plan *plan, size_t i)
{
    const adli_node *node = &plan->net->nodes[i];
    adli_step *step = &plan->steps[i];
    pool_shape pool = shape_of(node);
    dnnl_pooling_v2_desc_t desc;
    dnnl_primitive_desc_t pd;
    adli_action *action;
    adli_tensor ddst = plan->grad[i + 1];
    adl_status status = ADL_OK;
    if (adli_gates(plan, i) && !adli_gate_passed_on(plan, i))
        status = adli_gate(plan, i, &plan->value[i + 1], 1, &plan->grad[i + 1], &ddst);
    if (status == ADL_OK)
        status = adli_dnn(plan, i,
                          dnnl_pooling_v2_backward_desc_init(
                              &desc, dnnl_pooling_max, &plan->value[i].md, &plan->value[i + 1].md,
                              pool.stride, pool.kernel, pool.zero, pool.zero, pool.zero),
                          "pooling backward");
    if (status == ADL_OK)
        status = adli_desc(plan, i, &desc, NULL, step->hint, &pd);
    if (status == ADL_OK)
        status = adli_tensor_new(plan, &plan->value[i].md, &plan->grad[i]);
    if (status == ADL_OK)
        status = adli_act_primitive(plan, &plan->backward, i, pd, &action);
    if (status != ADL_OK)
        return status;
    adli_arg(plan, action, DNNL_ARG_DIFF_DST, &ddst);
    adli_arg(plan, action, DNNL_ARG_DIFF_SRC, &plan->grad[i]);
    adli_arg(plan, action, DNNL_ARG_WORKSPACE, &step->workspace);
    return ADL_OK;
}
