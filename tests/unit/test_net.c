/* How a network behaves: names, initial values, batch sizes, modes, dropout, accumulation, hooks,
 * saving, errors, threads, and what happens when memory runs out. */
#include "harness.h"

#include "adaptdl/nn.h"
#include "base/mem.h"
#include "base/rng.h"
#include "nn/net.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>

static float *random_floats(size_t count, uint64_t seed)
{
    adli_rng rng;
    adli_rng_init(&rng, seed);
    float *x = malloc(count * sizeof *x);
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(2 * adli_rng_unit(&rng) - 1);
    return x;
}

/* conv - relu - pool - dropout - flatten - linear - log_softmax, with a batch norm if asked. */
static adl_net *small_net(bool norm, double dropout)
{
    adl_net *net;
    CHECK_OK(adl_net_new(ADL_SHAPE(2, 10, 10), &net));
    adl_net_conv2d(net, "conv", &(adl_conv2d){.out = 18, .kernel = 3});
    if (norm)
        adl_net_batch_norm2d(net, "norm", NULL);
    adl_net_relu(net);
    adl_net_conv2d(net, "conv2", &(adl_conv2d){.out = 16, .kernel = 3, .padding = 1});
    adl_net_relu(net);
    adl_net_max_pool2d(net, 2, 0);
    adl_net_dropout(net, dropout);
    adl_net_flatten(net);
    adl_net_linear(net, "fc", &(adl_linear){.out = 5});
    adl_net_log_softmax(net);
    CHECK_OK(adl_net_build(net, 3));
    return net;
}

static double difference(const float *a, const float *b, size_t count)
{
    double worst = 0;
    for (size_t i = 0; i < count; i++)
        worst = fabs(a[i] - b[i]) > worst ? fabs(a[i] - b[i]) : worst;
    return worst;
}

TEST(names_and_shapes)
{
    adl_net *net;
    CHECK_OK(adl_net_new(ADL_SHAPE(3, 32, 32), &net));
    adl_net_resnet9(net, 10, 0);
    CHECK_OK(adl_net_build(net, 1));
    size_t count, flat;
    const adl_param *params = adl_net_params(net, &count);
    CHECK_INT(count, 8 * 4 + 2);
    CHECK_STR(params[0].name, "0.0.weight");
    CHECK_STR(params[8].name, "2.0.0.weight");
    CHECK_STR(params[count - 1].name, "6.3.bias");
    int size[4];
    CHECK_INT(adl_net_param_shape(net, 8, size), 4);
    CHECK(size[0] == 32 && size[1] == 32 && size[2] == 3 && size[3] == 3);
    CHECK_INT(adl_net_param_shape(net, count - 2, size), 2);
    CHECK(size[0] == 10 && size[1] == 128);
    CHECK_INT(adl_net_output_shape(net).size[0], 10);
    const adl_param *buffers = adl_net_buffers(net, &count);
    CHECK_INT(count, 8 * 3);
    CHECK_STR(buffers[1].name, "0.1.running_var");
    CHECK(buffers[1].value[0] == 1 && buffers[0].value[0] == 0 && buffers[0].grad == NULL);

    float *values, *grads;
    adl_net_flat(net, &values, &grads, &flat);
    params = adl_net_params(net, &count);
    CHECK(params[0].value == values && params[0].grad == grads);
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        CHECK((uintptr_t)params[i].value % 64 == 0);
        CHECK(params[i].value == values + used);
        for (size_t k = params[i].count; k % 16 != 0; k++)
            CHECK(params[i].value[k] == 0);
        used += (params[i].count + 15) / 16 * 16;
    }
    CHECK_INT(used, flat);
    adl_net_free(net);
}

/* Uniform in +-1/sqrt(fan_in): the bound is respected and nearly reached, mean and variance fit. */
TEST(initial_values)
{
    adl_net *net, *same, *other;
    size_t count;
    for (int i = 0; i < 3; i++) {
        adl_net **at = i == 0 ? &net : i == 1 ? &same : &other;
        CHECK_OK(adl_net_new(ADL_SHAPE(8, 9, 9), at));
        adl_net_conv2d(*at, "conv", &(adl_conv2d){.out = 40, .kernel = 5});
        CHECK_OK(adl_net_build(*at, i == 2 ? 8 : 7));
    }
    const adl_param *a = adl_net_params(net, &count), *b = adl_net_params(same, &count),
                    *c = adl_net_params(other, &count);
    double bound = 1 / sqrt(8 * 25), largest = 0, sum = 0, squares = 0;
    for (size_t i = 0; i < a[0].count; i++) {
        double x = a[0].value[i];
        largest = fabs(x) > largest ? fabs(x) : largest;
        sum += x;
        squares += x * x;
    }
    CHECK(largest <= bound && largest > 0.99 * bound);
    CHECK(fabs(sum / (double)a[0].count) < 0.03 * bound);
    CHECK_NEAR(squares / (double)a[0].count, bound * bound / 3, 0.05);
    for (size_t i = 0; i < a[1].count; i++)
        CHECK(fabsf(a[1].value[i]) <= bound && a[1].value[i] != 0);
    CHECK(memcmp(a[0].value, b[0].value, a[0].count * sizeof(float)) == 0);
    CHECK(memcmp(a[0].value, c[0].value, a[0].count * sizeof(float)) != 0);
    adl_net_free(net);
    adl_net_free(same);
    adl_net_free(other);
}

/* A row's result does not depend on which batch it is in; plans are bounded; coming back to a batch
 * size gives the same bytes. */
TEST(batch_sizes)
{
    enum { MOST = 24 };
    adl_net *net = small_net(false, 0);
    float *x = random_floats(MOST * 200, 1), all[MOST * 5], first[5];
    const float *y;
    REQUIRE_OK(adl_net_forward(net, x, MOST, NULL, &y));
    memcpy(all, y, sizeof all);
    for (int batch = 1; batch <= MOST; batch++) {
        REQUIRE_OK(adl_net_forward(net, x, batch, &(adl_pass){.train = batch % 2}, &y));
        CHECK(difference(y, all, (size_t)batch * 5) < 1e-5);
        if (batch == 1)
            memcpy(first, y, sizeof first);
    }
    CHECK(net->plans[ADL_NET_PLANS - 1] != NULL);
    REQUIRE_OK(adl_net_forward(net, x, 1, &(adl_pass){.train = true}, &y));
    CHECK(memcmp(first, y, sizeof first) == 0);
    free(x);
    adl_net_free(net);
}

TEST(dropout_statistics)
{
    enum { N = 200000 };
    adl_net *net;
    CHECK_OK(adl_net_new(ADL_SHAPE_FLAT(N / 4), &net));
    adl_net_dropout(net, 0.3);
    CHECK_OK(adl_net_build(net, 1));
    float *x = malloc(N * sizeof *x), *before = malloc(N * sizeof *x);
    const float *y;
    for (size_t i = 0; i < N; i++)
        x[i] = 1;
    int same = 0, kept_rows[4] = {0};
    for (uint64_t seed = 1; seed <= 2; seed++) {
        REQUIRE_OK(adl_net_forward(net, x, 4, &(adl_pass){.train = true, .seed = seed}, &y));
        int kept = 0;
        for (size_t i = 0; i < N; i++) {
            CHECK(y[i] == 0 || y[i] == (float)(1 / 0.7));
            kept += y[i] != 0;
            kept_rows[i / (N / 4)] += y[i] != 0;
            same += seed == 2 && (y[i] != 0) == (before[i] != 0);
        }
        CHECK(abs(kept - 140000) < 5 * 205); /* five standard deviations */
        memcpy(before, y, N * sizeof *x);
    }
    CHECK(abs(same - (int)(N * (0.49 + 0.09))) < 5 * 221); /* two seeds are independent */
    for (int r = 0; r < 4; r++)
        CHECK(abs(kept_rows[r] - 70000) < 5 * 145);
    REQUIRE_OK(adl_net_forward(net, x, 4, NULL, &y));
    CHECK(memcmp(x, y, N * sizeof *x) == 0);
    free(x);
    free(before);
    adl_net_free(net);
}

/* The mask belongs to the element's place, whatever layout the layer before left it in. */
TEST(dropout_ignores_layout_and_threads)
{
    int before = adl_nn_threads();
    enum { C = 18, BATCH = 3, COUNT = BATCH * C * 6 * 5 };
    adl_net *plain, *blocked;
    float out[3][COUNT];
    float *x = random_floats(COUNT, 2);
    const float *y;
    CHECK_OK(adl_net_new(ADL_SHAPE(C, 6, 5), &blocked));
    adl_net_conv2d(blocked, "same", &(adl_conv2d){.out = C, .kernel = 1, .no_bias = true});
    adl_net_dropout(blocked, 0.5);
    CHECK_OK(adl_net_build(blocked, 1));
    size_t count;
    const adl_param *weight = adl_net_params(blocked, &count);
    for (size_t i = 0; i < C * C; i++)
        weight->value[i] = i % (C + 1) == 0;
    CHECK_OK(adl_net_new(ADL_SHAPE(C, 6, 5), &plain));
    adl_net_sequence(plain, NULL); /* the dropout is node 1 of the other: make it so here */
    adl_net_dropout(plain, 0);
    adl_net_end(plain);
    adl_net_dropout(plain, 0.5);
    CHECK_OK(adl_net_build(plain, 1));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(adl_nn_set_threads(i == 2 ? 3 : 1));
        REQUIRE_OK(adl_net_forward(i == 0 ? plain : blocked, x, BATCH,
                                   &(adl_pass){.train = true, .seed = 9}, &y));
        memcpy(out[i], y, sizeof out[i]);
    }
    CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0);
    CHECK(memcmp(out[0], out[2], sizeof out[0]) == 0);
    CHECK_OK(adl_nn_set_threads(before));
    free(x);
    adl_net_free(plain);
    adl_net_free(blocked);
}

TEST(gradient_modes)
{
    adl_net *net = small_net(true, 0);
    float *x = random_floats(4 * 200, 1), *dy = random_floats(4 * 5, 2);
    const float *y;
    const adl_pass pass = {.train = true};
    size_t count;
    float *grads, *once;
    adl_net_flat(net, NULL, &grads, &count);
    once = malloc(count * sizeof *once);
    REQUIRE_OK(adl_net_forward(net, x, 4, &pass, &y));
    REQUIRE_OK(adl_net_backward(net, dy, NULL, ADL_GRAD_SET));
    memcpy(once, grads, count * sizeof *once);
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(adl_net_forward(net, x, 4, &pass, &y));
        REQUIRE_OK(adl_net_backward(net, dy, NULL, ADL_GRAD_ADD));
    }
    for (size_t i = 0; i < count; i++)
        CHECK(fabsf(grads[i] - 3 * once[i]) <= 1e-5f * (1 + fabsf(once[i])));
    adl_net_zero_grad(net);
    for (size_t i = 0; i < count; i++)
        CHECK(grads[i] == 0);
    REQUIRE_OK(adl_net_forward(net, x, 4, &pass, &y));
    REQUIRE_OK(adl_net_backward(net, dy, NULL, ADL_GRAD_ADD));
    CHECK(difference(grads, once, count) < 1e-5);
    free(x);
    free(dy);
    free(once);
    adl_net_free(net);
}

/* The output stays readable after backward, whatever the last layer. */
TEST(output_outlives_backward)
{
    for (int last = 0; last < 3; last++) {
        adl_net *net;
        CHECK_OK(adl_net_new(ADL_SHAPE(2, 10, 10), &net));
        adl_net_conv2d(net, "conv", &(adl_conv2d){.out = 18, .kernel = 3});
        adl_net_relu(net);
        if (last > 0)
            adl_net_flatten(net);
        if (last > 0)
            adl_net_linear(net, "fc", &(adl_linear){.out = 5});
        if (last > 1)
            adl_net_log_softmax(net);
        CHECK_OK(adl_net_build(net, 1));
        size_t count = 4 * adl_nn_shape_count(adl_net_output_shape(net));
        float *x = random_floats(4 * 200, 1), *dy = random_floats(count, 2);
        const float *y;
        REQUIRE_OK(adl_net_forward(net, x, 4, &(adl_pass){.train = true}, &y));
        float *before = malloc(count * sizeof *before);
        memcpy(before, y, count * sizeof *before);
        REQUIRE_OK(adl_net_backward(net, dy, NULL, ADL_GRAD_SET));
        CHECK(memcmp(before, y, count * sizeof *before) == 0);
        free(x);
        free(dy);
        free(before);
        adl_net_free(net);
    }
}

typedef struct hook_log {
    const adl_param *params;
    size_t seen[32];
    size_t count, stop_at;
    double sums[32]; /* of the gradient when the hook saw it */
} hook_log;

static double sum_of(const adl_param *param)
{
    double sum = 0;
    for (size_t i = 0; i < param->count; i++)
        sum += fabsf(param->grad[i]);
    return sum;
}

static adl_status on_grad(void *context, size_t param)
{
    hook_log *log = context;
    log->seen[log->count] = param;
    log->sums[log->count++] = sum_of(&log->params[param]);
    return log->count == log->stop_at ? ADL_EPEER : ADL_OK;
}

/* Each parameter once, last first, and its gradient is final then. */
TEST(hooks)
{
    adl_net *net = small_net(true, 0.2);
    float *x = random_floats(4 * 200, 1), *dy = random_floats(4 * 5, 2);
    const float *y;
    const adl_pass pass = {.train = true};
    size_t count;
    hook_log log = {.params = adl_net_params(net, &count)};
    adl_net_set_hook(net, on_grad, &log);
    REQUIRE_OK(adl_net_forward(net, x, 4, &pass, &y));
    REQUIRE_OK(adl_net_backward(net, dy, NULL, ADL_GRAD_SET));
    CHECK_INT(log.count, count);
    for (size_t i = 0; i < log.count; i++) {
        CHECK_INT(log.seen[i], count - 1 - i);
        CHECK(log.sums[i] == sum_of(&log.params[log.seen[i]]) && log.sums[i] > 0);
    }
    log.count = 0;
    log.stop_at = 2;
    REQUIRE_OK(adl_net_forward(net, x, 4, &pass, &y));
    CHECK_INT(adl_net_backward(net, dy, NULL, ADL_GRAD_SET), ADL_EPEER);
    CHECK_INT(log.count, 2);
    adl_net_set_hook(net, NULL, NULL);
    REQUIRE_OK(adl_net_forward(net, x, 4, &pass, &y));
    REQUIRE_OK(adl_net_backward(net, dy, NULL, ADL_GRAD_SET));
    CHECK_INT(log.count, 2);
    free(x);
    free(dy);
    adl_net_free(net);
}

TEST(order_of_calls)
{
    adl_net *net;
    const float *y;
    float x[200] = {0}, dy[5] = {0}, dx[200];
    CHECK_OK(adl_net_new(ADL_SHAPE_FLAT(3), &net));
    adl_net_relu(net);
    CHECK_FAILS(adl_net_forward(net, x, 1, NULL, &y), ADL_ESTATE, "not built");
    CHECK_FAILS(adl_net_load(net, x, 4), ADL_ESTATE, "not built");
    CHECK_OK(adl_net_build(net, 1));
    CHECK_FAILS(adl_net_build(net, 1), ADL_ESTATE, "already");
    adl_net_free(net);

    net = small_net(false, 0);
    CHECK_FAILS(adl_net_backward(net, dy, NULL, ADL_GRAD_SET), ADL_ESTATE, "without a training");
    CHECK_FAILS(adl_net_forward(net, x, 0, NULL, &y), ADL_EINVAL, "batch of 0");
    CHECK(y == NULL);
    CHECK_OK(adl_net_forward(net, x, 1, NULL, &y));
    CHECK_FAILS(adl_net_backward(net, dy, NULL, ADL_GRAD_SET), ADL_ESTATE, "without a training");
    CHECK_OK(adl_net_forward(net, x, 1, &(adl_pass){.train = true}, &y));
    CHECK_FAILS(adl_net_backward(net, dy, dx, ADL_GRAD_SET), ADL_ESTATE, "input_grad");
    CHECK_OK(adl_net_backward(net, dy, NULL, ADL_GRAD_SET));
    CHECK_FAILS(adl_net_backward(net, dy, NULL, ADL_GRAD_SET), ADL_ESTATE, "without a training");
    adl_net_free(net);
}

/* Describes one layer on [3, 8, 8] after one good layer and expects build to say `text`. */
#define CHECK_REFUSED(text, ...)                                                                   \
    do {                                                                                           \
        adl_net *net;                                                                              \
        CHECK_OK(adl_net_new(ADL_SHAPE(3, 8, 8), &net));                                           \
        adl_net_relu(net);                                                                         \
        __VA_ARGS__;                                                                               \
        adl_net_relu(net);                                                                         \
        CHECK_FAILS(adl_net_build(net, 1), ADL_EINVAL, text);                                      \
        adl_net_free(net);                                                                         \
    } while (0)

TEST(wrong_descriptions)
{
    adl_net *none;
    CHECK_FAILS(adl_net_new((adl_nn_shape){2, {3, 4, 0}}, &none), ADL_EINVAL, "2 dimensions");
    CHECK_FAILS(adl_net_new(ADL_SHAPE(3, 0, 4), &none), ADL_EINVAL, "size 0 of dimension 1");
    CHECK(none == NULL);
    CHECK_REFUSED("c (Conv2d) on [3, 8, 8]: kernel 9 is larger than the padded image 8 x 8",
                  adl_net_conv2d(net, "c", &(adl_conv2d){.out = 4, .kernel = 9}));
    CHECK_REFUSED("1 (Conv2d) on [3, 8, 8]: 0 output channels",
                  adl_net_conv2d(net, NULL, &(adl_conv2d){.kernel = 3}));
    CHECK_REFUSED("kernel 0", adl_net_conv2d(net, NULL, &(adl_conv2d){.out = 4}));
    CHECK_REFUSED("stride -1",
                  adl_net_conv2d(net, NULL, &(adl_conv2d){.out = 4, .kernel = 1, .stride = -1}));
    CHECK_REFUSED("padding 3",
                  adl_net_conv2d(net, NULL, &(adl_conv2d){.out = 4, .kernel = 3, .padding = 3}));
    CHECK_REFUSED("fc (Linear) on [3, 8, 8]: needs vectors",
                  adl_net_linear(net, "fc", &(adl_linear){.out = 4}));
    CHECK_REFUSED("(Linear) on [192]: 0 output features", adl_net_flatten(net);
                  adl_net_linear(net, NULL, &(adl_linear){.out = 0}));
    CHECK_REFUSED("(Conv2d) on [192]: needs images", adl_net_flatten(net);
                  adl_net_conv2d(net, NULL, &(adl_conv2d){.out = 4, .kernel = 1}));
    CHECK_REFUSED("(MaxPool2d) on [3, 8, 8]: kernel 9", adl_net_max_pool2d(net, 9, 0));
    CHECK_REFUSED("(MaxPool2d) on [192]: needs images", adl_net_flatten(net);
                  adl_net_max_pool2d(net, 2, 0));
    CHECK_REFUSED("block.0 (Dropout) on [3, 8, 8]: p = 1 is not", adl_net_sequence(net, "block");
                  adl_net_dropout(net, 1); adl_net_end(net));
    CHECK_REFUSED("(BatchNorm2d) on [192]", adl_net_flatten(net);
                  adl_net_batch_norm2d(net, NULL, NULL));
    CHECK_REFUSED("eps -1",
                  adl_net_batch_norm2d(net, NULL, &(adl_batch_norm2d){.eps = -1, .momentum = 0.1}));
    CHECK_REFUSED("momentum 2",
                  adl_net_batch_norm2d(net, NULL, &(adl_batch_norm2d){.momentum = 2}));
    CHECK_REFUSED("(LogSoftmax) on [3, 8, 8]", adl_net_log_softmax(net));
    CHECK_REFUSED(
        "res (end of Residual) on [4, 8, 8]: its input was [3, 8, 8]", adl_net_residual(net, "res");
        adl_net_conv2d(net, NULL, &(adl_conv2d){.out = 4, .kernel = 1}); adl_net_end(net));
    CHECK_REFUSED("no open sequence", adl_net_end(net));
    CHECK_REFUSED("two layers have the name c",
                  adl_net_conv2d(net, "c", &(adl_conv2d){.out = 3, .kernel = 1});
                  adl_net_conv2d(net, "c", &(adl_conv2d){.out = 3, .kernel = 1}));
    CHECK_REFUSED("is not closed", adl_net_sequence(net, "open"));
    CHECK_REFUSED("empty or too long", adl_net_sequence(net, ""));
    CHECK_REFUSED("nested more than 15", for (int i = 0; i < 20; i++) adl_net_sequence(net, "s"));
    adl_net *empty;
    CHECK_OK(adl_net_new(ADL_SHAPE_FLAT(3), &empty));
    CHECK_FAILS(adl_net_build(empty, 1), ADL_EINVAL, "no layers");
    adl_net_free(empty);
    adl_net_free(NULL);
    const float *y;
    float x[3] = {0};
    CHECK_OK(adl_net_new(ADL_SHAPE(3, 1, 1), &empty));
    adl_net_batch_norm2d(empty, "norm", NULL);
    CHECK_OK(adl_net_build(empty, 1));
    CHECK_FAILS(adl_net_forward(empty, x, 1, &(adl_pass){.train = true}, &y), ADL_EINVAL,
                "norm (BatchNorm2d)");
    CHECK_OK(adl_net_forward(empty, x, 1, NULL, &y));
    adl_net_free(empty);
}

TEST(save_and_load)
{
    adl_net *net = small_net(true, 0.1), *other = small_net(true, 0.1),
            *wrong = small_net(false, 0);
    float *x = random_floats(4 * 200, 1), out[20];
    const float *y;
    REQUIRE_OK(adl_net_forward(net, x, 4, &(adl_pass){.train = true}, &y)); /* running statistics */
    size_t count, size = adl_net_save_size(net);
    const adl_param *params = adl_net_params(net, &count);
    params[0].value[0] = 0.5f;
    char *bytes = malloc(size + 1), *before = malloc(size), *after = malloc(size);
    adl_net_save(net, bytes);
    adl_net_save(other, before);
    for (size_t cut = 0; cut < size; cut = cut < 200 ? cut + 1 : cut + 97)
        CHECK(adl_net_load(other, bytes, cut) == ADL_ECORRUPT);
    bytes[size] = 0;
    CHECK_FAILS(adl_net_load(other, bytes, size + 1), ADL_ECORRUPT, "1 bytes too many");
    for (size_t at = 0; at < 16 + 8 + 11 + 8; at++) { /* header, first name, first count */
        bytes[at] ^= 1;
        CHECK(adl_net_load(other, bytes, size) == ADL_ECORRUPT);
        bytes[at] ^= 1;
    }
    CHECK_FAILS(adl_net_load(wrong, bytes, size), ADL_ECORRUPT, "11 entries");
    adl_net_save(other, after);
    CHECK(memcmp(before, after, size) == 0);
    CHECK_OK(adl_net_load(other, bytes, size));
    adl_net_save(other, after);
    CHECK(memcmp(bytes, after, size) == 0);
    REQUIRE_OK(adl_net_forward(net, x, 4, NULL, &y));
    memcpy(out, y, sizeof out);
    REQUIRE_OK(adl_net_forward(other, x, 4, NULL, &y));
    CHECK(memcmp(out, y, sizeof out) == 0);
    free(x);
    free(bytes);
    free(before);
    free(after);
    adl_net_free(net);
    adl_net_free(other);
    adl_net_free(wrong);
}

/* One training step; the gradients into `grads`, the output into out. */
static void one_step(adl_net *net, const float *x, const float *dy, int batch, float *grads,
                     float *out)
{
    const float *y;
    float *all;
    size_t count;
    CHECK_OK(adl_net_forward(net, x, batch, &(adl_pass){.train = true, .seed = 4}, &y));
    if (y)
        memcpy(out, y, (size_t)batch * 5 * sizeof *out);
    CHECK_OK(adl_net_backward(net, dy, NULL, ADL_GRAD_SET));
    adl_net_flat(net, NULL, &all, &count);
    memcpy(grads, all, count * sizeof *grads);
}

TEST(threads)
{
    CHECK_FAILS(adl_nn_set_threads(-1), ADL_EINVAL, "-1");
    CHECK_FAILS(adl_nn_set_threads(2000), ADL_EINVAL, "2000");
    int before = adl_nn_threads();
    CHECK_OK(adl_nn_set_threads(0));
    CHECK(adl_nn_threads() >= 1);
#ifdef __SANITIZE_THREAD__
    SKIP("ThreadSanitizer builds compute on one thread");
#endif
    adl_net *net = small_net(true, 0.2);
    float *x = random_floats(32 * 200, 1), *dy = random_floats(32 * 5, 2), *values, out[2][160];
    size_t count;
    adl_net_flat(net, &values, NULL, &count);
    float *grads[2] = {malloc(count * sizeof(float)), malloc(count * sizeof(float))};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(adl_nn_set_threads(i == 0 ? 1 : 3));
        CHECK_INT(adl_nn_threads(), i == 0 ? 1 : 3);
        one_step(net, x, dy, 32, grads[i], out[i]);
    }
    CHECK(difference(out[0], out[1], 160) < 1e-5);
    CHECK(difference(grads[0], grads[1], count) < 1e-4);
    CHECK_OK(adl_nn_set_threads(before));
    free(grads[0]);
    free(grads[1]);
    free(x);
    free(dy);
    adl_net_free(net);
}

static atomic_int alarms;

static void on_alarm(int number)
{
    volatile char frame[2048];
    memset((void *)frame, number, sizeof frame);
    alarms++;
}

/* Handlers that run while a network computes must not find oneDNN's stack pointer in the midst of the heap. */
TEST(signals_come_between_steps)
{
    adl_net *net;
    CHECK_OK(adl_net_new(ADL_SHAPE(1, 96, 96), &net));
    adl_net_flatten(net);
    adl_net_linear(net, "fc1", &(adl_linear){.out = 128});
    adl_net_linear(net, "fc2", &(adl_linear){.out = 10});
    CHECK_OK(adl_net_build(net, 3));
    enum { BATCH = 16 };
    float *x = random_floats(BATCH * 96 * 96, 1), *dy = random_floats(BATCH * 10, 2);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART}, before;
    struct itimerval every = {{0, 400}, {0, 400}}, never = {0};
    int threads = adl_nn_threads();
    alarms = 0;
    sigaction(SIGALRM, &action, &before);
    setitimer(ITIMER_REAL, &every, NULL);
    for (int i = 0; i < 300 || (alarms < 30 && i < 100000); i++) {
        const float *out;
        CHECK_OK(adl_nn_set_threads(1 + i / 20 % 2));
        CHECK_OK(adl_net_forward(net, x, BATCH, &(adl_pass){.train = true, .seed = 1}, &out));
        CHECK_OK(adl_net_backward(net, dy, NULL, ADL_GRAD_SET));
    }
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &before, NULL);
    CHECK(alarms >= 30);
    CHECK_OK(adl_nn_set_threads(threads));
    free(x);
    free(dy);
    adl_net_free(net);
}

/* The same network made here, used on another thread: networks share nothing. */
static void *work(void *argument)
{
    adl_net *net = argument;
    float *x = random_floats(8 * 200, 1), *dy = random_floats(8 * 5, 2), out[40];
    size_t count;
    adl_net_flat(net, NULL, NULL, &count);
    float *grads = malloc(count * sizeof *grads);
    CHECK_OK(adl_nn_set_threads(1));
    for (int i = 0; i < 20; i++)
        one_step(net, x, dy, 8 - i % 2, grads, out);
    free(x);
    free(dy);
    return grads;
}

TEST(networks_on_their_own_threads)
{
    enum { N = 3 };
    adl_net *nets[N];
    pthread_t threads[N];
    void *grads[N];
    size_t count;
    for (int i = 0; i < N; i++) {
        nets[i] = small_net(false, 0.2);
        REQUIRE(pthread_create(&threads[i], NULL, work, nets[i]) == 0);
    }
    for (int i = 0; i < N; i++)
        pthread_join(threads[i], &grads[i]);
    adl_net_flat(nets[0], NULL, NULL, &count);
    for (int i = 1; i < N; i++)
        CHECK(memcmp(grads[0], grads[i], count * sizeof(float)) == 0);
    for (int i = 0; i < N; i++) {
        free(grads[i]);
        adl_net_free(nets[i]);
    }
}

/* The nth allocation fails for every n: always ENOMEM, never a crash or a leak, and a network that was
 * built works when there is memory again. */
TEST(memory_runs_out)
{
    float *x = random_floats(2 * 200, 1), dy[10] = {1};
    int failures = 0, survived = 0;
    for (int nth = 1;; nth++) {
        adl_net *net = NULL;
        const float *y;
        bool built = false;
        adli_mem_fail_at(nth);
        adl_status status = adl_net_new(ADL_SHAPE(2, 10, 10), &net);
        if (status == ADL_OK) {
            adl_net_conv_block(net, "block", 17, true);
            adl_net_residual(net, "res");
            adl_net_conv_block(net, NULL, 17, false);
            adl_net_dropout(net, 0.1);
            adl_net_end(net);
            adl_net_relu(net);
            adl_net_flatten(net);
            adl_net_linear(net, "fc", &(adl_linear){.out = 5});
            adl_net_log_softmax(net);
            status = adl_net_build(net, 1);
            built = status == ADL_OK;
        }
        const adl_pass pass = {.train = true};
        if (status == ADL_OK)
            status = adl_net_forward(net, x, 2, &pass, &y);
        if (status == ADL_OK)
            status = adl_net_backward(net, dy, NULL, ADL_GRAD_SET);
        adli_mem_fail_at(0);
        if (status != ADL_OK && built) {
            CHECK_OK(adl_net_forward(net, x, 2, &pass, &y));
            CHECK_OK(adl_net_backward(net, dy, NULL, ADL_GRAD_SET));
            survived++;
        }
        adl_net_free(net);
        if (status == ADL_OK)
            break;
        CHECK_INT(status, ADL_ENOMEM);
        failures++;
    }
    CHECK(failures > 30 && survived > 5);
    printf("info - %d allocations failed in turn, %d of them after the network was built\n",
           failures, survived);
    free(x);
}

/* What Winograd's algorithm costs in precision, against the direct one, on a layer of the size that
 * is used in practice. */
TEST(winograd_error)
{
    float *x = random_floats(4 * 32 * 26 * 26, 1);
    adl_net *nets[2];
    const float *y[2];
    for (int i = 0; i < 2; i++) {
        CHECK_OK(adl_net_new(ADL_SHAPE(32, 26, 26), &nets[i]));
        adl_net_conv2d(nets[i], "c", &(adl_conv2d){.out = 64, .kernel = 3, .direct = i == 0});
        CHECK_OK(adl_net_build(nets[i], 1));
        REQUIRE_OK(adl_net_forward(nets[i], x, 4, NULL, &y[i]));
    }
    size_t count = 4 * 64 * 24 * 24;
    double largest = 0, error = difference(y[0], y[1], count);
    for (size_t i = 0; i < count; i++)
        largest = fabsf(y[0][i]) > largest ? fabsf(y[0][i]) : largest;
    CHECK(error <= 1e-5 * largest);
    printf("info - Winograd and direct convolution differ by at most %.1e of the largest output\n",
           error / largest);
    adl_net_free(nets[0]);
    adl_net_free(nets[1]);
    free(x);
}
