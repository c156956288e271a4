/* Conv2d on oneDNN. Weights are kept row-major (PyTorch's order) and reordered to oneDNN's blocked
 * layout on every pass: a few percent of the convolution itself, and parameters stay plain arrays.
 *
 * Winograd's F(4x4, 3x3) needs 36 multiplications where the direct algorithm needs 144. It is used
 * where oneDNN has it (AVX-512) and channels are many enough to pay for the transforms; its rounding
 * error is about ten times larger, still near 1e-6 of the largest output (tests/unit/test_nn.c). */
#include "nn/plan.h"

enum { WINOGRAD_CHANNELS_MIN = 16 };

static bool winograd_pays(const adli_node *node)
{
    return node->conv.kernel == 3 && node->conv.stride == 1 && !node->conv.direct &&
           node->in.size[0] >= WINOGRAD_CHANNELS_MIN && node->out.size[0] >= WINOGRAD_CHANNELS_MIN;
}

/* The four descriptors of a convolution with all layouts open, and its strides and paddings. */
typedef struct conv_shape {
    dnnl_memory_desc_t src, weights, bias, dst;
    const dnnl_memory_desc_t *bias_or_null;
    dnnl_dims_t stride, padding;
} conv_shape;

static void conv_shape_init(const adli_net_plan *plan, const adli_node *node, conv_shape *shape)
{
    dnnl_memory_desc_t src = adli_plain_md(plan, node->in), dst = adli_plain_md(plan, node->out);
    const adli_param_info *info = &plan->net->params.info[node->param];
    dnnl_memory_desc_t weights = adli_dims_md(info->dims, info->size);
    *shape = (conv_shape){.src = adli_any_md(&src),
                          .dst = adli_any_md(&dst),
                          .weights = adli_any_md(&weights),
                          .bias = adli_dims_md(1, info->size),
                          .stride = {node->conv.stride, node->conv.stride},
                          .padding = {node->conv.padding, node->conv.padding}};
    if (!node->conv.no_bias)
        shape->bias_or_null = &shape->bias;
}

/* Scratchpad as everywhere, and the ReLU that follows. */
static adl_status conv_attr(adli_net_plan *plan, size_t node, bool relu, dnnl_primitive_attr_t *out)
{
    dnnl_post_ops_t post = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(out);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && relu)
        status = dnnl_post_ops_create(&post);
    if (status == dnnl_success && relu)
        status = dnnl_post_ops_append_eltwise(post, 1, dnnl_eltwise_relu, 0, 0);
    if (status == dnnl_success && relu)
        status = dnnl_primitive_attr_set_post_ops(*out, post);
    dnnl_post_ops_destroy(post);
    return adli_dnn(plan, node, status, "attributes");
}

static adl_status forward_desc(adli_net_plan *plan, size_t i, const conv_shape *shape,
                               dnnl_alg_kind_t alg, dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_prop_kind_t kind = plan->train ? dnnl_forward_training : dnnl_forward_inference;
    adl_status status = conv_attr(plan, i, adli_relu_follows(plan, i), &attr);
    if (status == ADL_OK)
        status = adli_dnn(plan, i,
                          dnnl_convolution_forward_desc_init(
                              &desc, kind, alg, &shape->src, &shape->weights, shape->bias_or_null,
                              &shape->dst, shape->stride, shape->padding, shape->padding),
                          "convolution");
    if (status == ADL_OK)
        status = adli_desc(plan, i, &desc, attr, NULL, out);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

/* Winograd where it pays and exists, else direct. */
static adl_status choose(adli_net_plan *plan, size_t i, const conv_shape *shape)
{
    adli_step *step = &plan->steps[i];
    step->alg = dnnl_convolution_winograd;
    if (winograd_pays(&plan->net->nodes[i]) &&
        forward_desc(plan, i, shape, step->alg, &step->hint) == ADL_OK)
        return ADL_OK;
    step->alg = dnnl_convolution_direct;
    return forward_desc(plan, i, shape, step->alg, &step->hint);
}

adl_status adli_conv_forward(adli_net_plan *plan, size_t i)
{
    const adli_node *node = &plan->net->nodes[i];
    adli_step *step = &plan->steps[i];
    conv_shape shape;
    adli_tensor weights, bias;
    adli_action *action;
    conv_shape_init(plan, node, &shape);
    adl_status status = choose(plan, i, &shape);
    if (status == ADL_OK)
        status =
            adli_adapt(plan, &plan->forward, i, &plan->value[i],
                       dnnl_primitive_desc_query_md(step->hint, dnnl_query_src_md, 0), &step->src);
    if (status == ADL_OK)
        status = adli_param_tensor(plan, node, 0, false, &weights);
    if (status == ADL_OK)
        status = adli_adapt(plan, &plan->forward, i, &weights,
                            dnnl_primitive_desc_query_md(step->hint, dnnl_query_weights_md, 0),
                            &step->weights);
    if (status == ADL_OK)
        status =
            adli_tensor_new(plan, dnnl_primitive_desc_query_md(step->hint, dnnl_query_dst_md, 0),
                            &plan->value[i + 1]);
    if (status == ADL_OK && !node->conv.no_bias)
        status = adli_param_tensor(plan, node, 1, false, &bias);
    if (status == ADL_OK)
        status = adli_act_primitive(plan, &plan->forward, i, step->hint, &action);
    if (status != ADL_OK)
        return status;
    adli_arg(plan, action, DNNL_ARG_SRC, &step->src);
    adli_arg(plan, action, DNNL_ARG_WEIGHTS, &step->weights);
    if (!node->conv.no_bias)
        adli_arg(plan, action, DNNL_ARG_BIAS, &bias);
    adli_arg(plan, action, DNNL_ARG_DST, &plan->value[i + 1]);
    if (adli_relu_follows(plan, i))
        plan->steps[i + 1].folded = true;
    return ADL_OK;
}

static adl_status weights_desc(adli_net_plan *plan, size_t i, const conv_shape *shape,
                               dnnl_alg_kind_t alg, dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t desc;
    adl_status status = adli_dnn(plan, i,
                                 dnnl_convolution_backward_weights_desc_init(
                                     &desc, alg, &shape->src, &shape->weights, shape->bias_or_null,
                                     &shape->dst, shape->stride, shape->padding, shape->padding),
                                 "convolution backward");
    return status == ADL_OK ? adli_desc(plan, i, &desc, NULL, plan->steps[i].hint, out) : status;
}

static adl_status data_desc(adli_net_plan *plan, size_t i, const conv_shape *shape,
                            dnnl_alg_kind_t alg, dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t desc;
    adl_status status = adli_dnn(plan, i,
                                 dnnl_convolution_backward_data_desc_init(
                                     &desc, alg, &shape->src, &shape->weights, &shape->dst,
                                     shape->stride, shape->padding, shape->padding),
                                 "convolution backward");
    return status == ADL_OK ? adli_desc(plan, i, &desc, NULL, plan->steps[i].hint, out) : status;
}

/* d loss / d weights and d loss / d bias. */
static adl_status backward_weights(adli_net_plan *plan, size_t i, const conv_shape *shape)
{
    adli_step *step = &plan->steps[i];
    bool with_bias = shape->bias_or_null != NULL;
    dnnl_primitive_desc_t pd;
    adli_tensor src, ddst, dweights, dbias;
    adli_action *action;
    adl_status status = weights_desc(plan, i, shape, step->alg, &pd);
    if (status != ADL_OK)
        status = weights_desc(plan, i, shape, dnnl_convolution_direct, &pd);
    if (status == ADL_OK)
        status = adli_adapt(plan, &plan->backward, i, &step->src,
                            dnnl_primitive_desc_query_md(pd, dnnl_query_src_md, 0), &src);
    if (status == ADL_OK)
        status = adli_adapt(plan, &plan->backward, i, &plan->grad[i + 1],
                            dnnl_primitive_desc_query_md(pd, dnnl_query_diff_dst_md, 0), &ddst);
    if (status == ADL_OK)
        status = adli_tensor_new(
            plan, dnnl_primitive_desc_query_md(pd, dnnl_query_diff_weights_md, 0), &dweights);
    if (status == ADL_OK && with_bias)
        status = adli_tensor_new(plan, &shape->bias, &dbias);
    if (status == ADL_OK)
        status = adli_act_primitive(plan, &plan->backward, i, pd, &action);
    if (status != ADL_OK)
        return status;
    adli_arg(plan, action, DNNL_ARG_SRC, &src);
    adli_arg(plan, action, DNNL_ARG_DIFF_DST, &ddst);
    adli_arg(plan, action, DNNL_ARG_DIFF_WEIGHTS, &dweights);
    if (with_bias)
        adli_arg(plan, action, DNNL_ARG_DIFF_BIAS, &dbias);
    status = adli_deliver(plan, i, 0, &dweights);
    return status == ADL_OK && with_bias ? adli_deliver(plan, i, 1, &dbias) : status;
}

/* d loss / d input. */
static adl_status backward_data(adli_net_plan *plan, size_t i, const conv_shape *shape)
{
    adli_step *step = &plan->steps[i];
    dnnl_primitive_desc_t pd;
    adli_tensor plain, weights, ddst, dsrc;
    adli_action *action;
    adl_status status = data_desc(plan, i, shape, step->alg, &pd);
    if (status != ADL_OK)
        status = data_desc(plan, i, shape, dnnl_convolution_direct, &pd);
    if (status != ADL_OK)
        return status;
    const dnnl_memory_desc_t *want = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    if (dnnl_memory_desc_equal(want, &step->weights.md))
        weights = step->weights;
    else {
        status = adli_param_tensor(plan, &plan->net->nodes[i], 0, false, &plain);
        if (status == ADL_OK)
            status = adli_adapt(plan, &plan->backward, i, &plain, want, &weights);
    }
    if (status == ADL_OK)
        status = adli_adapt(plan, &plan->backward, i, &plan->grad[i + 1],
                            dnnl_primitive_desc_query_md(pd, dnnl_query_diff_dst_md, 0), &ddst);
    if (status == ADL_OK)
        status = adli_tensor_new(plan, dnnl_primitive_desc_query_md(pd, dnnl_query_diff_src_md, 0),
                                 &dsrc);
    if (status == ADL_OK)
        status = adli_act_primitive(plan, &plan->backward, i, pd, &action);
    if (status != ADL_OK)
        return status;
    adli_arg(plan, action, DNNL_ARG_DIFF_DST, &ddst);
    adli_arg(plan, action, DNNL_ARG_WEIGHTS, &weights);
    adli_arg(plan, action, DNNL_ARG_DIFF_SRC, &dsrc);
    return adli_adapt(plan, &plan->backward, i, &dsrc, &plan->value[i].md, &plan->grad[i]);
}

adl_status adli_conv_backward(adli_net_plan *plan, size_t i)
{
    conv_shape shape;
    conv_shape_init(plan, &plan->net->nodes[i], &shape);
    adl_status status = backward_weights(plan, i, &shape);
    if (status == ADL_OK)
        status = adli_announce(plan, i);
    if (status == ADL_OK && adli_needs_grad(plan, i))
        status = backward_data(plan, i, &shape);
    return status;
}
