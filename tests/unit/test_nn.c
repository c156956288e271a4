/* Gradients of every layer and loss against central finite differences of the forward pass.
 *
 * The scalar is L = sum(r * y) with fixed random r. For layers that are linear in what is moved (conv,
 * linear, pooling and ReLU away from their kinks) a difference over a wide step has no truncation
 * error. Tolerance: 1e-3 of the largest gradient of the array where the layer is linear in what is
 * moved, 1e-2 where it is curved (batch norm, log softmax). Compositions with ReLU and pooling may
 * cross a kink: there the step is small, the tolerance 1e-2, and up to 2 % of the elements may differ
 * (ResNet9, where every parameter moves every kink: 3e-2 and 10 %). */
#include "harness.h"

#include "adaptdl/nn.h"
#include "base/rng.h"

#define LINEAR 1e-3
#define CURVED 1e-2

typedef struct problem {
    adl_net *net;
    int batch;
    size_t in, out; /* floats in x and y */
    float *x, *r, *dx;
    adl_pass pass;
    double step, tolerance, kinks; /* kinks: share of elements that may differ */
} problem;

static adli_rng rng;

static float *random_floats(size_t count, double low, double high)
{
    float *x = malloc(count * sizeof *x);
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(low + (high - low) * adli_rng_unit(&rng));
    return x;
}

static double objective(problem *p)
{
    const float *y;
    double sum = 0;
    CHECK_OK(adl_net_forward(p->net, p->x, p->batch, &p->pass, &y));
    for (size_t i = 0; y && i < p->out; i++)
        sum += (double)p->r[i] * y[i];
    return sum;
}

/* Moves elements of `value` and compares with `grad`; at most 60 of them, spread. */
static void check_array(problem *p, const char *name, float *value, const float *grad, size_t count)
{
    double largest = 0.1; /* a bias before a batch norm has gradient 0, and rounding makes noise */
    for (size_t i = 0; i < count; i++)
        largest = fabsf(grad[i]) > largest ? fabsf(grad[i]) : largest;
    size_t stride = count > 60 ? count / 60 : 1, wrong = 0, tried = 0, first_wrong = 0;
    double got = 0, wanted = 0;
    for (size_t i = 0; i < count; i += stride, tried++) {
        float before = value[i];
        value[i] = (float)(before + p->step);
        double up = objective(p), width = value[i];
        value[i] = (float)(before - p->step);
        width -= value[i];
        double difference = (up - objective(p)) / width;
        value[i] = before;
        if (!(fabs(difference - grad[i]) <= p->tolerance * largest)) {
            if (wrong++ == 0) {
                first_wrong = i;
                got = grad[i];
                wanted = difference;
            }
        }
    }
    if ((double)wrong > p->kinks * (double)tried)
        ADLT_FAIL("%s: %zu of %zu gradients wrong, [%zu] is %g, difference quotient %g", name,
                  wrong, tried, first_wrong, got, wanted);
}

static void check_gradients(problem *p)
{
    REQUIRE_OK(adl_net_build(p->net, 7));
    size_t count;
    p->in = (size_t)p->batch * adl_nn_shape_count(adl_net_input_shape(p->net));
    p->out = (size_t)p->batch * adl_nn_shape_count(adl_net_output_shape(p->net));
    if (!p->x)
        p->x = random_floats(p->in, -1, 1);
    p->r = random_floats(p->out, -1, 1);
    p->dx = malloc(p->in * sizeof(float));
    p->pass = (adl_pass){.train = true, .input_grad = true, .seed = 5};
    const adl_param *params = adl_net_params(p->net, &count);
    for (size_t i = 0; i < count; i++) /* batch norm's 1 and 0 would hide mistakes */
        for (size_t k = 0; k < params[i].count; k++)
            params[i].value[k] += (float)(0.2 * adli_rng_unit(&rng));
    objective(p);
    CHECK_OK(adl_net_backward(p->net, p->r, p->dx, ADL_GRAD_SET));
    float **grads = malloc((count + 1) * sizeof *grads);
    for (size_t i = 0; i < count; i++) {
        grads[i] = malloc(params[i].count * sizeof(float));
        memcpy(grads[i], params[i].grad, params[i].count * sizeof(float));
    }
    check_array(p, "x", p->x, p->dx, p->in);
    for (size_t i = 0; i < count; i++) {
        check_array(p, params[i].name, params[i].value, grads[i], params[i].count);
        free(grads[i]);
    }
    free(grads);
    free(p->x);
    free(p->r);
    free(p->dx);
    adl_net_free(p->net);
}

static problem start(adl_nn_shape shape, int batch, double step, double tolerance, double kinks)
{
    problem p = {.batch = batch, .step = step, .tolerance = tolerance, .kinks = kinks};
    adli_rng_init(&rng, 42);
    CHECK_OK(adl_nn_set_threads(1)); /* thousands of tiny passes */
    CHECK_OK(adl_net_new(shape, &p.net));
    return p;
}

TEST(conv2d_gradients)
{
    static const struct {
        int channels, height, width;
        adl_conv2d conv;
    } cases[] = {
        {1, 7, 6, {.out = 3, .kernel = 3}},
        {3, 8, 8, {.out = 16, .kernel = 3, .padding = 1}},
        {2, 9, 7, {.out = 5, .kernel = 5, .stride = 2, .padding = 2}},
        {5, 5, 5, {.out = 4, .kernel = 1, .no_bias = true}},
        {4, 6, 6, {.out = 6, .kernel = 2, .stride = 2}},
        {16, 6, 6, {.out = 16, .kernel = 3, .padding = 1}}, /* Winograd where the machine has it */
        {16, 6, 6, {.out = 16, .kernel = 3, .padding = 1, .direct = true}},
        {17, 5, 7, {.out = 33, .kernel = 3}}, /* channels that fill no block */
        {3, 4, 4, {.out = 2, .kernel = 4, .padding = 3}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        problem p = start(ADL_SHAPE(cases[i].channels, cases[i].height, cases[i].width), 3, 0.25,
                          LINEAR, 0);
        adl_net_conv2d(p.net, "conv", &cases[i].conv);
        check_gradients(&p);
    }
}

TEST(linear_gradients)
{
    problem p = start(ADL_SHAPE_FLAT(13), 4, 0.25, LINEAR, 0);
    adl_net_linear(p.net, "a", &(adl_linear){.out = 9});
    adl_net_linear(p.net, "b", &(adl_linear){.out = 3, .no_bias = true});
    check_gradients(&p);
}

/* Long enough that the sum is shared out among threads. */
TEST(linear_in_parts)
{
    problem p = start(ADL_SHAPE_FLAT(2000), 2, 0.25, LINEAR, 0);
    CHECK_OK(adl_nn_set_threads(3));
    adl_net_linear(p.net, "fc", &(adl_linear){.out = 5});
    check_gradients(&p);
}

TEST(batch_norm_gradients)
{
    problem p = start(ADL_SHAPE(5, 4, 3), 4, 1e-2, CURVED, 0);
    adl_net_batch_norm2d(p.net, "norm", NULL);
    check_gradients(&p);
    p = start(ADL_SHAPE(18, 3, 3), 3, 1e-2, CURVED, 0.02);
    adl_net_conv2d(p.net, "conv", &(adl_conv2d){.out = 17, .kernel = 3, .padding = 1});
    adl_net_batch_norm2d(p.net, "norm", &(adl_batch_norm2d){.eps = 1e-3, .momentum = 0.5});
    adl_net_relu(p.net);
    check_gradients(&p);
}

/* Values at least 0.05 from 0 and from each other, in random order: no kink within a step of 0.02. */
static float *well_apart(size_t count)
{
    float *x = malloc(count * sizeof *x);
    for (size_t i = 0; i < count; i++)
        x[i] = 0.05f * ((float)i - (float)count / 2 + 0.5f);
    for (size_t i = count; i > 1; i--) {
        size_t k = adli_rng_below(&rng, (uint32_t)i);
        float t = x[i - 1];
        x[i - 1] = x[k];
        x[k] = t;
    }
    return x;
}

TEST(relu_gradients)
{
    problem p = start(ADL_SHAPE(3, 4, 4), 2, 0.02, LINEAR, 0);
    p.x = well_apart(2 * 48);
    adl_net_relu(p.net);
    check_gradients(&p);
}

TEST(max_pool_gradients)
{
    static const int cases[][2] = {{2, 0}, {3, 2}, {2, 1}, {4, 4}};
    for (size_t i = 0; i < 4; i++) {
        problem p = start(ADL_SHAPE(3, 6, 5), 2, 0.02, LINEAR, 0);
        p.x = well_apart(2 * 90);
        adl_net_max_pool2d(p.net, cases[i][0], cases[i][1]);
        check_gradients(&p);
    }
}

TEST(dropout_gradients)
{
    problem p = start(ADL_SHAPE(3, 4, 4), 2, 0.25, LINEAR, 0);
    adl_net_dropout(p.net, 0.4);
    check_gradients(&p);
    p = start(ADL_SHAPE(2, 5, 5), 2, 0.02, LINEAR, 0.02); /* on a blocked layout */
    adl_net_conv2d(p.net, "conv", &(adl_conv2d){.out = 20, .kernel = 3});
    adl_net_dropout(p.net, 0.4);
    check_gradients(&p);
}

TEST(log_softmax_gradients)
{
    problem p = start(ADL_SHAPE_FLAT(7), 3, 1e-2, CURVED, 0);
    adl_net_log_softmax(p.net);
    check_gradients(&p);
}

TEST(flatten_gradients)
{
    problem p = start(ADL_SHAPE(2, 3, 4), 3, 0.25, LINEAR, 0);
    adl_net_flatten(p.net);
    adl_net_linear(p.net, "fc", &(adl_linear){.out = 4});
    check_gradients(&p);
}

TEST(residual_gradients)
{
    problem p = start(ADL_SHAPE(4, 5, 5), 2, 1e-3, CURVED, 0.02);
    adl_net_residual(p.net, NULL);
    adl_net_conv2d(p.net, NULL, &(adl_conv2d){.out = 4, .kernel = 3, .padding = 1});
    adl_net_relu(p.net);
    adl_net_residual(p.net, NULL);
    adl_net_conv2d(p.net, NULL, &(adl_conv2d){.out = 4, .kernel = 1});
    adl_net_end(p.net);
    adl_net_end(p.net);
    adl_net_relu(p.net);
    check_gradients(&p);
    p = start(ADL_SHAPE_FLAT(6), 3, 1e-3, CURVED, 0.02); /* a residual that ends in a ReLU */
    adl_net_linear(p.net, NULL, &(adl_linear){.out = 6});
    adl_net_residual(p.net, NULL);
    adl_net_linear(p.net, NULL, &(adl_linear){.out = 6});
    adl_net_relu(p.net);
    adl_net_end(p.net);
    check_gradients(&p);
    p = start(ADL_SHAPE_FLAT(6), 3, 0.02, LINEAR, 0); /* x + x */
    adl_net_residual(p.net, NULL);
    adl_net_end(p.net);
    check_gradients(&p);
}

/* The orders in which a ReLU's backward is handed on to pooling and dropout. */
TEST(relu_pool_dropout_gradients)
{
    for (int order = 0; order < 6; order++) {
        problem p = start(ADL_SHAPE(3, 10, 10), 2, 1e-3, CURVED, 0.02);
        adl_net_conv2d(p.net, "conv", &(adl_conv2d){.out = 5, .kernel = 3});
        adl_net_relu(p.net);
        if (order == 0 || order == 1 || order == 4)
            adl_net_max_pool2d(p.net, 2, 0);
        if (order == 1 || order == 2 || order == 3)
            adl_net_dropout(p.net, 0.3);
        if (order == 3)
            adl_net_max_pool2d(p.net, 2, 0);
        if (order == 4)
            adl_net_max_pool2d(p.net, 2, 0);
        if (order == 5)
            adl_net_dropout(p.net, 0);
        check_gradients(&p);
    }
    problem p = start(ADL_SHAPE_FLAT(12), 4, 1e-3, CURVED, 0.02);
    adl_net_linear(p.net, "a", &(adl_linear){.out = 20});
    adl_net_relu(p.net);
    adl_net_dropout(p.net, 0.5);
    adl_net_linear(p.net, "b", &(adl_linear){.out = 5});
    check_gradients(&p);
}

TEST(resnet9_gradients)
{
    problem p = start(ADL_SHAPE(3, 32, 32), 2, 2e-3, 3e-2, 0.1);
    adl_net_resnet9(p.net, 10, 2);
    check_gradients(&p);
}

/* ---- losses ---------------------------------------------------------------------------------- */

static double loss_of(int kind, const float *x, adl_reduction reduction, float *grad)
{
    static const int32_t labels[] = {3, 0, 1, 4};
    static const float target[20] = {0.5f, -0.5f, 1};
    double loss = NAN;
    if (kind == 0)
        CHECK_OK(adl_loss_nll(x, labels, 4, 5, reduction, &loss, grad));
    else if (kind == 1)
        CHECK_OK(adl_loss_cross_entropy(x, labels, 4, 5, reduction, &loss, grad));
    else
        CHECK_OK(adl_loss_mse(x, target, 4, 5, reduction, &loss, grad));
    return loss;
}

TEST(loss_gradients)
{
    adli_rng_init(&rng, 1);
    for (int kind = 0; kind < 3; kind++)
        for (int r = 0; r < 2; r++) {
            adl_reduction reduction = r == 0 ? ADL_MEAN : ADL_SUM;
            float *x = random_floats(20, -2, 2), grad[20];
            loss_of(kind, x, reduction, grad);
            for (int i = 0; i < 20; i++) {
                float before = x[i], step = 1e-2f;
                x[i] = before + step;
                double width = x[i], difference = loss_of(kind, x, reduction, NULL);
                x[i] = before - step;
                width -= x[i];
                difference = (difference - loss_of(kind, x, reduction, NULL)) / width;
                x[i] = before;
                if (fabs(difference - grad[i]) > 1e-4)
                    ADLT_FAIL("loss %d: gradient [%d] is %g, difference %g", kind, i, grad[i],
                              difference);
            }
            free(x);
        }
}

TEST(loss_in_place_and_errors)
{
    float x[6] = {1, 2, 3, 4, 5, 6}, apart[6];
    int32_t labels[2] = {2, 0};
    double a, b;
    CHECK_OK(adl_loss_cross_entropy(x, labels, 2, 3, ADL_SUM, &a, apart));
    CHECK_OK(adl_loss_cross_entropy(x, labels, 2, 3, ADL_SUM, &b, x));
    CHECK(a == b && memcmp(x, apart, sizeof x) == 0);
    labels[1] = 3;
    CHECK_FAILS(adl_loss_nll(x, labels, 2, 3, ADL_MEAN, &a, NULL), ADL_EINVAL,
                "label 3 of row 1 is not in 0 .. 2");
    labels[1] = -1;
    CHECK_FAILS(adl_loss_cross_entropy(x, labels, 2, 3, ADL_MEAN, &a, NULL), ADL_EINVAL,
                "label -1");
    CHECK_FAILS(adl_loss_mse(x, apart, 0, 3, ADL_MEAN, &a, NULL), ADL_EINVAL, "batch of 0");
    /* Large logits must not overflow. */
    float large[3] = {1000, -1000, 0};
    labels[0] = 1;
    CHECK_OK(adl_loss_cross_entropy(large, labels, 1, 3, ADL_MEAN, &a, apart));
    CHECK_NEAR(a, 2000, 1e-6);
    labels[0] = 0;
    labels[1] = 2;
    float scores[6] = {3, 1, 2, 5, 5, 5};
    CHECK_INT(adl_count_correct(scores, labels, 2, 3), 1);
}
