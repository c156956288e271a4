/* Layers, networks and losses against numbers that PyTorch computed (tools/dump-pytorch-golden.py).
 * Tolerance: the largest difference is below 2e-6 of the largest value for single layers (float has
 * 1.2e-7; sums of up to a few hundred terms are added in another order), 2e-5 where Winograd's
 * algorithm is used and for whole networks. */
#include "pytorch.h"

#include "adaptdl/nn.h"

#define LAYER_TOLERANCE 2e-6
#define DEEP_TOLERANCE  2e-5

static double largest_error; /* over all comparisons, for the info line */
static int compared;

static void compare(const char *name, const char *what, const float *got, size_t count,
                    double tolerance)
{
    char full[100];
    snprintf(full, sizeof full, "%s.%s", name, what);
    double error = golden_error(full, got, count);
    if (!(error <= tolerance))
        ADLT_FAIL("%s differs by %g of its largest value, allowed %g", full, error, tolerance);
    largest_error = error > largest_error ? error : largest_error;
    compared++;
}

static void set_params(adl_net *net, uint32_t seed, float scale)
{
    size_t count;
    const adl_param *params = adl_net_params(net, &count);
    for (size_t i = 0; i < count; i++)
        golden_fill(params[i].value, params[i].count, seed + (uint32_t)i, scale);
}

static float *filled(size_t count, uint32_t seed, float scale)
{
    float *x = malloc(count * sizeof *x);
    golden_fill(x, count, seed, scale);
    return x;
}

/* Output, input gradient and parameter gradients of a training pass over fill(1, x_scale). */
static void run(const char *name, adl_net *net, int batch, float x_scale, double tolerance)
{
    size_t in = (size_t)batch * adl_nn_shape_count(adl_net_input_shape(net));
    size_t out = (size_t)batch * adl_nn_shape_count(adl_net_output_shape(net)), count;
    float *x = filled(in, 1, x_scale), *dy = filled(out, 2, 1), *dx = malloc(in * sizeof *dx);
    const float *y;
    const adl_pass pass = {.train = true, .input_grad = true};
    CHECK_OK(adl_net_forward(net, x, batch, &pass, &y));
    if (y)
        compare(name, "y", y, out, tolerance);
    CHECK_OK(adl_net_backward(net, dy, dx, ADL_GRAD_SET));
    compare(name, "dx", dx, in, tolerance);
    const adl_param *params = adl_net_params(net, &count);
    for (size_t i = 0; i < count; i++) {
        char what[32];
        snprintf(what, sizeof what, "grad%zu", i);
        compare(name, what, params[i].grad, params[i].count, tolerance);
    }
    free(x);
    free(dy);
    free(dx);
}

static adl_net *begin(adl_nn_shape shape)
{
    adl_net *net;
    CHECK_OK(adl_net_new(shape, &net));
    return net;
}

static void conv_case(const char *name, int batch, adl_nn_shape in, adl_conv2d conv,
                      double tolerance)
{
    adl_net *net = begin(in);
    adl_net_conv2d(net, "conv", &conv);
    CHECK_OK(adl_net_build(net, 1));
    set_params(net, 10, 0.3f);
    run(name, net, batch, 1, tolerance);
    adl_net_free(net);
}

TEST(conv2d)
{
    conv_case("conv_first", 3, ADL_SHAPE(1, 9, 10), (adl_conv2d){.out = 8, .kernel = 3},
              LAYER_TOLERANCE);
    conv_case("conv_wino", 2, ADL_SHAPE(16, 10, 10),
              (adl_conv2d){.out = 32, .kernel = 3, .padding = 1, .direct = true}, LAYER_TOLERANCE);
    conv_case("conv_stride", 2, ADL_SHAPE(5, 11, 9),
              (adl_conv2d){.out = 7, .kernel = 5, .stride = 2, .padding = 2}, LAYER_TOLERANCE);
    conv_case("conv_1x1", 4, ADL_SHAPE(6, 4, 5),
              (adl_conv2d){.out = 3, .kernel = 1, .no_bias = true}, LAYER_TOLERANCE);
}

TEST(conv2d_winograd)
{
    conv_case("conv_wino", 2, ADL_SHAPE(16, 10, 10),
              (adl_conv2d){.out = 32, .kernel = 3, .padding = 1}, DEEP_TOLERANCE);
}

TEST(linear)
{
    adl_net *net = begin(ADL_SHAPE_FLAT(37));
    adl_net_linear(net, "fc", &(adl_linear){.out = 11});
    CHECK_OK(adl_net_build(net, 1));
    set_params(net, 10, 0.3f);
    run("linear", net, 5, 1, LAYER_TOLERANCE);
    adl_net_free(net);
}

TEST(batch_norm2d)
{
    adl_net *net = begin(ADL_SHAPE(6, 4, 5));
    adl_net_batch_norm2d(net, "norm", NULL);
    CHECK_OK(adl_net_build(net, 1));
    set_params(net, 10, 1);
    run("norm", net, 3, 1, LAYER_TOLERANCE);

    const float *y;
    size_t count = 3 * 6 * 4 * 5;
    float *again = filled(count, 3, 2), *x = filled(count, 1, 1);
    CHECK_OK(adl_net_forward(net, again, 3, &(adl_pass){.train = true}, &y));
    const adl_param *buffers = adl_net_buffers(net, &count);
    CHECK_INT(count, 3);
    CHECK_STR(buffers[0].name, "norm.running_mean");
    compare("norm", "mean", buffers[0].value, 6, LAYER_TOLERANCE);
    compare("norm", "var", buffers[1].value, 6, LAYER_TOLERANCE);
    CHECK(buffers[2].value[0] == 2);
    CHECK_OK(adl_net_forward(net, x, 3, NULL, &y));
    compare("norm", "eval", y, 3 * 6 * 4 * 5, LAYER_TOLERANCE);
    free(again);
    free(x);
    adl_net_free(net);
}

TEST(plain_layers)
{
    adl_net *net = begin(ADL_SHAPE(4, 5, 5));
    adl_net_relu(net);
    CHECK_OK(adl_net_build(net, 1));
    run("relu", net, 3, 1, 0);
    adl_net_free(net);

    net = begin(ADL_SHAPE(4, 7, 6));
    adl_net_max_pool2d(net, 2, 0);
    CHECK_OK(adl_net_build(net, 1));
    run("pool2", net, 3, 1, 0);
    adl_net_free(net);

    net = begin(ADL_SHAPE(4, 7, 6));
    adl_net_max_pool2d(net, 3, 2);
    CHECK_OK(adl_net_build(net, 1));
    run("pool3", net, 3, 1, LAYER_TOLERANCE);
    adl_net_free(net);

    net = begin(ADL_SHAPE_FLAT(10));
    adl_net_log_softmax(net);
    CHECK_OK(adl_net_build(net, 1));
    run("log_softmax", net, 4, 5, LAYER_TOLERANCE);
    adl_net_free(net);
}

TEST(tutorial_network)
{
    adl_net *net = begin(ADL_SHAPE(1, 12, 12));
    adl_net_conv2d(net, "conv1", &(adl_conv2d){.out = 4, .kernel = 3});
    adl_net_relu(net);
    adl_net_conv2d(net, "conv2", &(adl_conv2d){.out = 8, .kernel = 3});
    adl_net_relu(net);
    adl_net_max_pool2d(net, 2, 0);
    adl_net_flatten(net);
    adl_net_linear(net, "fc1", &(adl_linear){.out = 16});
    adl_net_relu(net);
    adl_net_linear(net, "fc2", &(adl_linear){.out = 10});
    adl_net_log_softmax(net);
    CHECK_OK(adl_net_build(net, 1));
    set_params(net, 30, 0.2f);
    run("mnist", net, 6, 1, DEEP_TOLERANCE);
    adl_net_free(net);
}

static void conv_block_pair(adl_net *net, int channels)
{
    adl_net_residual(net, NULL);
    adl_net_conv_block(net, NULL, channels, false);
    adl_net_conv_block(net, NULL, channels, false);
    adl_net_end(net);
}

TEST(resnet9)
{
    adl_net *net = begin(ADL_SHAPE(3, 32, 32));
    int s = 2;
    adl_net_conv_block(net, NULL, s, false);
    adl_net_conv_block(net, NULL, 2 * s, true);
    conv_block_pair(net, 2 * s);
    adl_net_conv_block(net, NULL, 4 * s, true);
    adl_net_conv_block(net, NULL, 8 * s, true);
    conv_block_pair(net, 8 * s);
    adl_net_max_pool2d(net, 4, 0);
    adl_net_flatten(net);
    adl_net_linear(net, NULL, &(adl_linear){.out = 10});
    CHECK_OK(adl_net_build(net, 1));
    set_params(net, 50, 0.5f);
    run("resnet9", net, 4, 1, DEEP_TOLERANCE);
    adl_net_free(net);
}

static void loss_case(const char *name, const char *reduction, adl_status status, double loss,
                      const float *grad)
{
    char full[64];
    CHECK(status == ADL_OK);
    snprintf(full, sizeof full, "loss.%s", name);
    float single = (float)loss;
    compare(full, reduction, &single, 1, LAYER_TOLERANCE);
    snprintf(full, sizeof full, "loss.%s.%s", name, reduction);
    compare(full, "grad", grad, 35, LAYER_TOLERANCE);
}

TEST(losses)
{
    static const int32_t labels[] = {0, 4, 2, 2, 1, 3, 0};
    float *x = filled(35, 1, 4), *target = filled(35, 2, 1), grad[35];
    double loss;
    for (int r = 0; r < 2; r++) {
        adl_reduction reduction = r == 0 ? ADL_MEAN : ADL_SUM;
        const char *name = r == 0 ? "mean" : "sum";
        adl_status status = adl_loss_nll(x, labels, 7, 5, reduction, &loss, grad);
        loss_case("nll", name, status, loss, grad);
        status = adl_loss_cross_entropy(x, labels, 7, 5, reduction, &loss, grad);
        loss_case("ce", name, status, loss, grad);
        status = adl_loss_mse(x, target, 7, 5, reduction, &loss, grad);
        loss_case("mse", name, status, loss, grad);
    }
    free(x);
    free(target);
}

TEST(summary)
{
    CHECK(compared > 80);
    printf("info - %d arrays compared with PyTorch's, largest difference %.1e\n", compared,
           largest_error);
}
