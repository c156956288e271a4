/* What the runner costs: a step of adl_runner beside the same step in a loop by hand (ADL_BATCHES, forward,
 * loss, backward, adl_dp_step, an accumulator for the mean loss). The two take turns, step by step: the
 * runner's own callback takes a step of the other loop between two of the runner's. CPU time of the
 * training thread is compared, since the machine may be busy with other things. They train one network with one
 * optimizer: of two, one is faster by a percent or so, as they happen to lie in memory.
 *
 * First the MNIST tutorial's network (batch 64), then a network that does nothing, which shows the
 * difference itself in microseconds.
 *
 *     bench_runner [STEPS]                     default: 300 of each
 *     bench_runner --count SIDE NET STEPS      steps of one side ("hand", "runner"), with the network ("mnist")
 *                                              or without ("none"), for tools/bench-instructions */
#include "adaptdl/dataset.h"
#include "adaptdl/runner.h"
#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BATCH = 64,
    CLASSES = 10,
    EXAMPLES = 2048,
    COUNTED = 512, /* examples for --count: an epoch is 8 steps */
    STEPS_MAX = 100000,
    WARM_UP = 20
};

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != ADL_OK) {                                                                    \
            fprintf(stderr, "bench_runner: %s: %s\n", #call, adl_error());                         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* One of the two loops: a context, a network, data. */
typedef struct side {
    adl_context *ctx;
    adl_net *net; /* NULL: the network that does nothing */
    bool shares;  /* it is the other side's */
    float value[1], grad[1];
    adl_param param;
    adl_optim *optim;
    adl_model model;
    adl_loader *loader;
    adl_dp *dp; /* by hand */
    adl_accumulator *stats;
    float dout[BATCH * CLASSES];
    double took_s[STEPS_MAX];
    int count;
} side;

static side by_hand, runner_side;
static adl_epochs epochs;
static adl_batch *batch;
static double began_s;
static int wanted;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Mean of the fastest quarter: what others do on the machine only makes steps slower. */
static double quiet(double *values, int count)
{
    double sum = 0;
    int most = count / 4 + 1;
    qsort(values, (size_t)count, sizeof *values, by_value);
    for (int i = 0; i < most; i++)
        sum += values[i];
    return sum / most;
}

/* How much more than the other's the runner's step takes, in percent: the median over pairs of neighbours, which have
 * the same of what others do on the machine, and its standard error (1.25 sigma / sqrt(n); in a normal distribution the
 * quartiles are 1.35 sigma apart). */
static double pairs(const side *hand, const side *ours, double *error)
{
    static double more[STEPS_MAX];
    int count = hand->count;
    for (int i = 0; i < count; i++)
        more[i] = 100 * (ours->took_s[i] / hand->took_s[i] - 1);
    qsort(more, (size_t)count, sizeof *more, by_value);
    *error = 0.93 * (more[3 * count / 4] - more[count / 4]) / sqrt(count);
    return more[count / 2];
}

static adl_status fill_images(void *user, const adl_fill *fill)
{
    return adl_dataset_batch(user, fill->index, (size_t)fill->count, fill->part[0], fill->part[1]);
}

static adl_status no_forward(void *self, const adl_batch *given, int size, bool train,
                             const float **out)
{
    static float zeros[BATCH * CLASSES];
    (void)self, (void)given, (void)size, (void)train;
    *out = zeros;
    return ADL_OK;
}

static adl_status no_backward(void *self, const float *dout)
{
    ((side *)self)->grad[0] = dout[0];
    return ADL_OK;
}

static adl_net *make_net(void)
{
    adl_net *net;
    MUST(adl_net_new(ADL_SHAPE(1, 28, 28), &net));
    adl_net_conv2d(net, "conv1", &(adl_conv2d){.out = 32, .kernel = 3});
    adl_net_relu(net);
    adl_net_conv2d(net, "conv2", &(adl_conv2d){.out = 64, .kernel = 3});
    adl_net_relu(net);
    adl_net_max_pool2d(net, 2, 0);
    adl_net_dropout(net, 0.25);
    adl_net_flatten(net);
    adl_net_linear(net, "fc1", &(adl_linear){.out = 128});
    adl_net_relu(net);
    adl_net_dropout(net, 0.5);
    adl_net_linear(net, "fc2", &(adl_linear){.out = CLASSES});
    adl_net_log_softmax(net);
    MUST(adl_net_build(net, 1));
    return net;
}

/* with: the side whose network and optimizer this one trains too; NULL: it has its own. */
static void make_side(side *to, adl_dataset *set, bool real, const side *with,
                      adl_runner_options *options)
{
    static const adl_env env = ADL_ENV_INIT;
    adl_options start = ADL_OPTIONS_INIT;
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    adl_optim_options rates = ADL_ADADELTA_INIT;
    size_t count = 1;
    *to = (side){.param = {"w", to->value, to->grad, 1}};
    start.env = &env;
    start.log = NULL;
    start.handle_signals = false;
    MUST(adl_init(&start, &to->ctx));
    data.examples = adl_dataset_get_info(set).count;
    data.batch_size = BATCH;
    data.part_bytes[0] = adl_dataset_example_size(set) * sizeof(float);
    data.part_bytes[1] = sizeof(int32_t);
    data.fill = fill_images;
    data.user = set;
    MUST(adl_loader_new(to->ctx, &data, &to->loader));
    to->shares = with != NULL;
    to->net = with ? with->net : real ? make_net() : NULL;
    to->optim = with ? with->optim : NULL;
    const adl_param *params = real ? adl_net_params(to->net, &count) : &to->param;
    if (!with)
        MUST(adl_optim_new(params, count, &rates, &to->optim));
    if (real) {
        adl_runner_net(options, to->net, to->optim, NULL);
        return;
    }
    options->model =
        (adl_model){.self = to, .width = CLASSES, .forward = no_forward, .backward = no_backward};
    options->optim = adl_optim_get_ops(to->optim);
}

static void free_side(side *of)
{
    adl_finish(of->ctx);
    if (of->shares)
        return;
    adl_optim_free(of->optim);
    adl_net_free(of->net);
}

static void next_epoch(side *of)
{
    if (!adl_epochs_next(&epochs) || !adl_epochs_enter(&epochs)) {
        fprintf(stderr, "bench_runner: no epoch: %s\n", adl_context_error(of->ctx));
        exit(1);
    }
}

static void begin_hand(side *to, const adl_runner_options *options)
{
    adl_dp_options parallel = ADL_DP_OPTIONS_INIT;
    to->model = options->model;
    parallel.optim = options->optim;
    parallel.flat_grads = options->model.flat_grads;
    parallel.flat_count = options->model.flat_count;
    MUST(adl_dp_new(to->ctx, &parallel, &to->dp));
    if (to->net)
        adl_net_set_hook(to->net, adl_dp_hook, to->dp);
    MUST(adl_accumulator_new(to->ctx, "train", &to->stats));
    epochs = adl_epochs_begin(to->ctx, STEPS_MAX);
    next_epoch(to);
    batch = NULL;
}

/* One turn of
 *     ADL_EPOCHS (ctx, epoch, ...)
 *         ADL_BATCHES (loader, batch) { ... }
 * from where it was left. */
static void step_by_hand(side *of)
{
    const float *out;
    double loss;
    while (!adl_loader_next(of->loader, &batch)) {
        ADL_SYNCHRONIZED (of->stats)
            adl_accumulator_clear(of->stats);
        adl_epochs_leave(&epochs);
        next_epoch(of);
    }
    MUST(of->model.forward(of->model.self, batch, batch->size, true, &out));
    MUST(adl_loss_nll(out, batch->part[1], batch->size, CLASSES, ADL_MEAN, &loss, of->dout));
    MUST(of->model.backward(of->model.self, of->dout));
    MUST(adl_dp_step(of->dp));
    adl_accumulator_add(of->stats, "loss", loss * batch->size);
    adl_accumulator_add(of->stats, "examples", batch->size);
}

static void add(side *to, double took_s)
{
    if (to->count < STEPS_MAX)
        to->took_s[to->count++] = took_s;
}

/* Between two steps of the runner. */
static adl_status turn(void *user, adl_runner *runner)
{
    double now_s = adli_thread_cpu_s();
    (void)user;
    if (adl_runner_steps(runner) > WARM_UP)
        add(&runner_side, now_s - began_s);
    if (by_hand.net)
        adl_net_set_hook(by_hand.net, adl_dp_hook, by_hand.dp);
    double start_s = adli_thread_cpu_s();
    step_by_hand(&by_hand);
    if (adl_runner_steps(runner) > WARM_UP)
        add(&by_hand, adli_thread_cpu_s() - start_s);
    if (by_hand.net)
        adl_net_set_hook(by_hand.net, adl_dp_hook, adl_runner_dp(runner));
    if (runner_side.count >= wanted)
        adl_stop(adl_runner_context(runner));
    began_s = adli_thread_cpu_s();
    return ADL_OK;
}

/* Trains until the callback stops it. */
static void run_runner(adl_runner_options *options, const adl_runner_callback *callback)
{
    options->loaders[0] = (adl_runner_loader){"train", runner_side.loader};
    options->loss = adl_runner_nll;
    options->topk[0] = 1;
    options->epochs = STEPS_MAX;
    options->callbacks = callback;
    options->callback_count = 1;
    options->console = fopen("/dev/null", "w"); /* lines are written, nobody reads them */
    adl_status status = adl_runner_train(runner_side.ctx, options);
    if (status != ADL_EINTR)
        MUST(status);
    fclose(options->console);
}

static void end_hand(void)
{
    adl_loader_leave(&batch);
    adl_epochs_end(&epochs);
    free_side(&by_hand);
}

static double compare(adl_dataset *set, bool real, double ms[2], double *error)
{
    adl_runner_options hand = ADL_RUNNER_OPTIONS_INIT, options = ADL_RUNNER_OPTIONS_INIT;
    adl_runner_callback callback = {.name = "turn", .batch_begin = turn};
    make_side(&by_hand, set, real, NULL, &hand);
    make_side(&runner_side, set, real, real ? &by_hand : NULL, &options);
    begin_hand(&by_hand, &hand);
    run_runner(&options, &callback);
    double more = pairs(&by_hand, &runner_side, error);
    ms[0] = 1e3 * quiet(by_hand.took_s, by_hand.count);
    ms[1] = 1e3 * quiet(runner_side.took_s, runner_side.count);
    free_side(&runner_side);
    end_hand();
    return more;
}

static adl_status stop_in_time(void *user, adl_runner *runner)
{
    (void)user;
    if (adl_runner_steps(runner) >= (uint64_t)wanted)
        adl_stop(adl_runner_context(runner));
    return ADL_OK;
}

/* Steps of one side alone. */
static int count_steps(const char *which, const char *net)
{
    adl_runner_options options = ADL_RUNNER_OPTIONS_INIT;
    adl_runner_callback callback = {.name = "stop", .batch_begin = stop_in_time};
    adl_dataset *set;
    bool runs = strcmp(which, "runner") == 0, real = strcmp(net, "mnist") == 0;
    if (wanted < 0 || wanted > STEPS_MAX || (!runs && strcmp(which, "hand") != 0) ||
        (!real && strcmp(net, "none") != 0))
        return 2;
    MUST(adl_nn_set_threads(1));
    MUST(adl_dataset_digits(COUNTED, 1, &set));
    make_side(runs ? &runner_side : &by_hand, set, real, NULL, &options);
    if (runs) {
        run_runner(&options, &callback);
        free_side(&runner_side);
    } else {
        begin_hand(&by_hand, &options);
        for (int i = 0; i < wanted; i++)
            step_by_hand(&by_hand);
        end_hand();
    }
    adl_dataset_free(set);
    return 0;
}

int main(int argc, char **argv)
{
    adl_dataset *set;
    double real_ms[2], empty_ms[2], error, unused;
    bool counts = argc == 5 && strcmp(argv[1], "--count") == 0;
    wanted = counts ? atoi(argv[4]) : argc > 1 ? atoi(argv[1]) : 300;
    if (counts)
        return count_steps(argv[2], argv[3]);
    if (wanted < 1 || wanted > STEPS_MAX)
        return 2;
    MUST(adl_nn_set_threads(1));
    MUST(adl_dataset_digits(EXAMPLES, 1, &set));
    double more = compare(set, true, real_ms, &error);
    int steps = wanted;
    wanted = 20 * wanted < STEPS_MAX ? 20 * wanted : STEPS_MAX;
    compare(set, false, empty_ms, &unused);
    printf("MNIST step, 1 thread, by hand %.2f ms of CPU time; the runner's takes %+.2f %% +- %.2f "
           "%% more "
           "(median of %d pairs; goal: at most 1 %%)\n",
           real_ms[0], more, error, steps);
    printf("without a network the runner takes %.1f us more in a step: %.3f %% of the one above\n",
           1e3 * (empty_ms[1] - empty_ms[0]), 100 * (empty_ms[1] - empty_ms[0]) / real_ms[0]);
    adl_dataset_free(set);
    return 0;
}
