/* Describing a network: the functions that append layers. They check a layer against its input shape
 * as soon as it is named and keep the first mistake, so that a description reads as a list of layers
 * without an `if` after each. */
#include "nn/net.h"
#include "nn/plan.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *adli_kind_name(adli_node_kind kind)
{
    static const char *const names[ADLI_KINDS] = {
        "Conv2d",  "Linear",  "BatchNorm2d", "ReLU",     "MaxPool2d",
        "Dropout", "Flatten", "LogSoftmax",  "Residual", "end of Residual",
    };
    return names[kind];
}

const char *adli_shape_text(adl_nn_shape shape, char text[ADLI_SHAPE_TEXT])
{
    if (shape.dims == 1)
        snprintf(text, ADLI_SHAPE_TEXT, "[%d]", shape.size[0]);
    else
        snprintf(text, ADLI_SHAPE_TEXT, "[%d, %d, %d]", shape.size[0], shape.size[1],
                 shape.size[2]);
    return text;
}

size_t adl_nn_shape_count(adl_nn_shape shape)
{
    size_t count = (size_t)shape.size[0];
    for (int i = 1; i < shape.dims; i++)
        count *= (size_t)shape.size[i];
    return count;
}

adl_status adl_net_new(adl_nn_shape input, adl_net **out)
{
    *out = NULL;
    if (input.dims != 1 && input.dims != 3)
        return adli_fail(ADL_EINVAL, "network input: %d dimensions, must be 1 or 3", input.dims);
    for (int i = 0; i < input.dims; i++)
        if (input.size[i] < 1 || input.size[i] > ADLI_SIZE_MAX)
            return adli_fail(ADL_EINVAL, "network input: size %d of dimension %d is not in 1 .. %d",
                             input.size[i], i, ADLI_SIZE_MAX);
    adl_net *net = adli_calloc(1, sizeof *net);
    if (!net)
        return adli_fail_memory("network");
    net->input = net->shape = input;
    net->scopes[0].fork = ADLI_NO_FORK;
    *out = net;
    return ADL_OK;
}

void adl_net_free(adl_net *net)
{
    if (!net)
        return;
    adli_net_plans_free(net);
    for (size_t i = 0; i < net->node_count; i++)
        free(net->nodes[i].label);
    free(net->nodes);
    adli_params_free(&net->params);
    adli_params_free(&net->buffers);
    free(net->failure);
    free(net);
}

/* Keeps the first failure, whose text is the present error text. */
static void keep_failure(adl_net *net, adl_status status)
{
    if (net->failed != ADL_OK)
        return;
    net->failed = status;
    net->failure = adli_strdup(adl_error());
}

/* "conv1 (Conv2d) on [1, 28, 28]: what is wrong". */
static void refuse(adl_net *net, adli_node_kind kind, const char *label, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void refuse(adl_net *net, adli_node_kind kind, const char *label, const char *format, ...)
{
    char why[256], shape[ADLI_SHAPE_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    keep_failure(net, adli_fail(ADL_EINVAL, "%s%s (%s) on %s: %s", net->prefix, label,
                                adli_kind_name(kind), adli_shape_text(net->shape, shape), why));
}

/* Whether layers may still be added; a mistake that was made already stays the only one. */
static bool open_for(adl_net *net, adli_node_kind kind)
{
    if (net->failed != ADL_OK)
        return false;
    if (net->built)
        keep_failure(net, adli_fail(ADL_ESTATE, "%s added after the network was built",
                                    adli_kind_name(kind)));
    return !net->built;
}

/* The layer's label: the name given, or its ordinal. */
static const char *label_of(adl_net *net, const char *name, char ordinal[16])
{
    int number = net->scopes[net->depth].ordinal++;
    snprintf(ordinal, 16, "%d", number);
    return name ? name : ordinal;
}

static bool label_fits(adl_net *net, adli_node_kind kind, const char *label)
{
    if (label[0] == '\0' || strlen(net->prefix) + strlen(label) + 2 > ADLI_NAME_MAX) {
        refuse(net, kind, label[0] ? "" : label, "name is empty or too long");
        return false;
    }
    return true;
}

/* Appends a node whose output shape is net->shape, unless there is no memory. */
static adli_node *append(adl_net *net, adli_node_kind kind, const char *label)
{
    if (adli_grow(&net->nodes, &net->node_capacity, net->node_count + 1, sizeof *net->nodes) != 0) {
        keep_failure(net, adli_fail_memory("network layer"));
        return NULL;
    }
    char full[2 * ADLI_NAME_MAX];
    snprintf(full, sizeof full, "%s%s", net->prefix, label);
    char *copy = adli_strdup(full);
    if (!copy) {
        keep_failure(net, adli_fail_memory("network layer"));
        return NULL;
    }
    adli_node *node = &net->nodes[net->node_count++];
    *node = (adli_node){.kind = kind,
                        .label = copy,
                        .in = net->shape,
                        .out = net->shape,
                        .param = net->params.count,
                        .buffer = net->buffers.count};
    return node;
}

static void add_param(adl_net *net, adli_node *node, const char *what, adli_param_info info)
{
    adl_status status = adli_params_add(&net->params, node->label, what, &info);
    if (status != ADL_OK)
        keep_failure(net, status);
    else
        node->param_count++;
}

static void add_buffer(adl_net *net, adli_node *node, const char *what, int size, float fill)
{
    adli_param_info info = {.dims = 1, .size = {size, 1, 1, 1}, .fill = fill};
    adl_status status = adli_params_add(&net->buffers, node->label, what, &info);
    if (status != ADL_OK)
        keep_failure(net, status);
}

/* Weight and bias as PyTorch initialises them: kaiming_uniform with a = sqrt(5), which is
 * +-1 / sqrt(fan_in), and the same bound for the bias. */
static void add_weight_and_bias(adl_net *net, adli_node *node, adli_param_info weight, bool bias)
{
    double fan_in = 1;
    for (int i = 1; i < weight.dims; i++)
        fan_in *= weight.size[i];
    weight.bound = 1 / __builtin_sqrt(fan_in);
    add_param(net, node, "weight", weight);
    if (bias)
        add_param(
            net, node, "bias",
            (adli_param_info){.dims = 1, .size = {weight.size[0], 1, 1, 1}, .bound = weight.bound});
}

void adl_net_conv2d(adl_net *net, const char *name, const adl_conv2d *options)
{
    if (!open_for(net, ADLI_CONV))
        return;
    char ordinal[16];
    const char *label = label_of(net, name, ordinal);
    adl_conv2d conv = *options;
    if (conv.stride == 0)
        conv.stride = 1;
    const int *in = net->shape.size;
    if (!label_fits(net, ADLI_CONV, label))
        return;
    if (net->shape.dims != 3)
        return refuse(net, ADLI_CONV, label, "needs images [channels, height, width]");
    if (conv.out < 1 || conv.out > ADLI_SIZE_MAX)
        return refuse(net, ADLI_CONV, label, "%d output channels", conv.out);
    if (conv.stride < 1 || conv.stride > ADLI_SIZE_MAX)
        return refuse(net, ADLI_CONV, label, "stride %d is not in 1 .. %d", conv.stride,
                      ADLI_SIZE_MAX);
    if (conv.kernel < 1 || conv.kernel > ADLI_SIZE_MAX)
        return refuse(net, ADLI_CONV, label, "kernel %d is not in 1 .. %d", conv.kernel,
                      ADLI_SIZE_MAX);
    if (conv.padding < 0 || conv.padding >= conv.kernel)
        return refuse(net, ADLI_CONV, label, "padding %d is not in 0 .. kernel - 1 = %d",
                      conv.padding, conv.kernel - 1);
    if (conv.kernel > in[1] + 2 * conv.padding || conv.kernel > in[2] + 2 * conv.padding)
        return refuse(net, ADLI_CONV, label, "kernel %d is larger than the padded image %d x %d",
                      conv.kernel, in[1] + 2 * conv.padding, in[2] + 2 * conv.padding);
    adli_node *node = append(net, ADLI_CONV, label);
    if (!node)
        return;
    node->conv = conv;
    node->out = ADL_SHAPE(conv.out, (in[1] + 2 * conv.padding - conv.kernel) / conv.stride + 1,
                          (in[2] + 2 * conv.padding - conv.kernel) / conv.stride + 1);
    adli_param_info weight = {.dims = 4, .size = {conv.out, in[0], conv.kernel, conv.kernel}};
    add_weight_and_bias(net, node, weight, !conv.no_bias);
    net->shape = node->out;
}

void adl_net_linear(adl_net *net, const char *name, const adl_linear *options)
{
    if (!open_for(net, ADLI_LINEAR))
        return;
    char ordinal[16];
    const char *label = label_of(net, name, ordinal);
    if (!label_fits(net, ADLI_LINEAR, label))
        return;
    if (net->shape.dims != 1)
        return refuse(net, ADLI_LINEAR, label, "needs vectors (a Flatten before it)");
    if (options->out < 1 || options->out > ADLI_SIZE_MAX)
        return refuse(net, ADLI_LINEAR, label, "%d output features", options->out);
    adli_node *node = append(net, ADLI_LINEAR, label);
    if (!node)
        return;
    node->linear = *options;
    node->out = ADL_SHAPE_FLAT(options->out);
    adli_param_info weight = {.dims = 2, .size = {options->out, net->shape.size[0], 1, 1}};
    add_weight_and_bias(net, node, weight, !options->no_bias);
    net->shape = node->out;
}

void adl_net_batch_norm2d(adl_net *net, const char *name, const adl_batch_norm2d *options)
{
    if (!open_for(net, ADLI_NORM))
        return;
    char ordinal[16];
    const char *label = label_of(net, name, ordinal);
    adl_batch_norm2d norm = options ? *options : (adl_batch_norm2d){0};
    if (norm.eps == 0)
        norm.eps = 1e-5;
    if (norm.momentum == 0)
        norm.momentum = 0.1;
    if (!label_fits(net, ADLI_NORM, label))
        return;
    if (net->shape.dims != 3)
        return refuse(net, ADLI_NORM, label, "needs images [channels, height, width]");
    if (!(norm.eps > 0 && norm.eps < 1))
        return refuse(net, ADLI_NORM, label, "eps %g is not in (0, 1)", norm.eps);
    if (!(norm.momentum > 0 && norm.momentum <= 1))
        return refuse(net, ADLI_NORM, label, "momentum %g is not in (0, 1]", norm.momentum);
    adli_node *node = append(net, ADLI_NORM, label);
    if (!node)
        return;
    node->norm = norm;
    int channels = net->shape.size[0];
    adli_param_info info = {.dims = 1, .size = {channels, 1, 1, 1}, .fill = 1};
    add_param(net, node, "weight", info);
    info.fill = 0;
    add_param(net, node, "bias", info);
    add_buffer(net, node, "running_mean", channels, 0);
    add_buffer(net, node, "running_var", channels, 1);
    add_buffer(net, node, "num_batches", 1, 0);
}

/* A layer without parameters or name. */
static adli_node *append_plain(adl_net *net, adli_node_kind kind)
{
    char ordinal[16];
    return open_for(net, kind) ? append(net, kind, label_of(net, NULL, ordinal)) : NULL;
}

void adl_net_relu(adl_net *net)
{
    append_plain(net, ADLI_RELU);
}

void adl_net_max_pool2d(adl_net *net, int kernel, int stride)
{
    if (!open_for(net, ADLI_POOL))
        return;
    char ordinal[16];
    const char *label = label_of(net, NULL, ordinal);
    if (stride == 0)
        stride = kernel;
    const int *in = net->shape.size;
    if (net->shape.dims != 3)
        return refuse(net, ADLI_POOL, label, "needs images [channels, height, width]");
    if (kernel < 1 || kernel > in[1] || kernel > in[2])
        return refuse(net, ADLI_POOL, label, "kernel %d does not fit the image", kernel);
    if (stride < 1 || stride > ADLI_SIZE_MAX)
        return refuse(net, ADLI_POOL, label, "stride %d is not in 1 .. %d", stride, ADLI_SIZE_MAX);
    adli_node *node = append(net, ADLI_POOL, label);
    if (!node)
        return;
    node->pool.kernel = kernel;
    node->pool.stride = stride;
    node->out = ADL_SHAPE(in[0], (in[1] - kernel) / stride + 1, (in[2] - kernel) / stride + 1);
    net->shape = node->out;
}

void adl_net_dropout(adl_net *net, double p)
{
    adli_node *node = append_plain(net, ADLI_DROPOUT);
    if (!node)
        return;
    node->p = p;
    if (!(p >= 0 && p < 1)) {
        const char *dot = strrchr(node->label, '.');
        refuse(net, ADLI_DROPOUT, dot ? dot + 1 : node->label, "p = %g is not in [0, 1)", p);
    }
}

void adl_net_flatten(adl_net *net)
{
    adli_node *node = append_plain(net, ADLI_FLATTEN);
    if (!node)
        return;
    size_t features = adl_nn_shape_count(net->shape);
    if (features > INT32_MAX) {
        refuse(net, ADLI_FLATTEN, "flatten", "%zu features are too many", features);
        return;
    }
    node->out = ADL_SHAPE_FLAT((int)features);
    net->shape = node->out;
}

void adl_net_log_softmax(adl_net *net)
{
    adli_node *node = append_plain(net, ADLI_LOG_SOFTMAX);
    if (node && net->shape.dims != 1)
        refuse(net, ADLI_LOG_SOFTMAX, "log_softmax", "needs vectors (a Flatten before it)");
}

/* Opens a scope; label becomes part of the names in it. */
static void open_scope(adl_net *net, adli_node_kind kind, const char *label, size_t fork)
{
    if (net->depth + 1 == ADLI_SCOPES_MAX)
        return refuse(net, kind, label, "nested more than %d deep", ADLI_SCOPES_MAX - 1);
    size_t length = strlen(net->prefix);
    net->scopes[++net->depth] = (adli_scope){.prefix_length = length, .fork = fork};
    snprintf(net->prefix + length, sizeof net->prefix - length, "%s.", label);
}

void adl_net_sequence(adl_net *net, const char *name)
{
    if (!open_for(net, ADLI_FORK))
        return;
    char ordinal[16];
    const char *label = label_of(net, name, ordinal);
    if (label_fits(net, ADLI_FORK, label))
        open_scope(net, ADLI_FORK, label, ADLI_NO_FORK);
}

void adl_net_residual(adl_net *net, const char *name)
{
    if (!open_for(net, ADLI_FORK))
        return;
    char ordinal[16];
    const char *label = label_of(net, name, ordinal);
    if (label_fits(net, ADLI_FORK, label) && append(net, ADLI_FORK, label))
        open_scope(net, ADLI_FORK, label, net->node_count - 1);
}

void adl_net_end(adl_net *net)
{
    if (!open_for(net, ADLI_JOIN))
        return;
    if (net->depth == 0)
        return refuse(net, ADLI_JOIN, "", "there is no open sequence or residual");
    adli_scope scope = net->scopes[net->depth--];
    net->prefix[scope.prefix_length] = '\0';
    if (scope.fork == ADLI_NO_FORK)
        return;
    char label[ADLI_NAME_MAX], was[ADLI_SHAPE_TEXT];
    adl_nn_shape in = net->nodes[scope.fork].in;
    snprintf(label, sizeof label, "%s", net->nodes[scope.fork].label + scope.prefix_length);
    if (in.dims != net->shape.dims || memcmp(in.size, net->shape.size, sizeof in.size) != 0)
        return refuse(net, ADLI_JOIN, label, "its input was %s, the sum needs equal shapes",
                      adli_shape_text(in, was));
    adli_node *node = append(net, ADLI_JOIN, label);
    if (!node)
        return;
    node->fork = scope.fork;
    net->nodes[scope.fork].join = net->node_count - 1;
}

void adl_net_conv_block(adl_net *net, const char *name, int out, bool pool)
{
    adl_net_sequence(net, name);
    adl_net_conv2d(net, NULL, &(adl_conv2d){.out = out, .kernel = 3, .padding = 1});
    adl_net_batch_norm2d(net, NULL, NULL);
    adl_net_relu(net);
    if (pool)
        adl_net_max_pool2d(net, 2, 2);
    adl_net_end(net);
}

static void residual_pair(adl_net *net, int channels)
{
    adl_net_residual(net, NULL);
    adl_net_conv_block(net, NULL, channels, false);
    adl_net_conv_block(net, NULL, channels, false);
    adl_net_end(net);
}

void adl_net_resnet9(adl_net *net, int classes, int size)
{
    if (size == 0)
        size = 16;
    adl_net_conv_block(net, NULL, size, false);
    adl_net_conv_block(net, NULL, 2 * size, true);
    residual_pair(net, 2 * size);
    adl_net_conv_block(net, NULL, 4 * size, true);
    adl_net_conv_block(net, NULL, 8 * size, true);
    residual_pair(net, 8 * size);
    adl_net_sequence(net, NULL);
    adl_net_max_pool2d(net, 4, 0);
    adl_net_flatten(net);
    adl_net_dropout(net, 0.2);
    adl_net_linear(net, NULL, &(adl_linear){.out = classes});
    adl_net_end(net);
}
