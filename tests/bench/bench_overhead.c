/* What being adaptive costs: noise scale, profile, step boundaries, background checkpoints and hints, as
 * a share of the training step of the MNIST tutorial's network (batch 64). Plain steps (forward,
 * backward, optimizer), elastic ones (the same in the runtime's loop) and adaptive ones (with
 * all measurements) alternate in one run, in random order. The machine may be busy with other things:
 * CPU time of the training thread is compared, wall time is told besides.
 *
 *     bench_overhead [STEPS [THREADS]]     default: 400 of each kind, 1 thread */
#include "adaptdl/dataset.h"
#include "adaptdl/train.h"
#include "base/clock.h"
#include "base/rng.h"
#include "train/context.h"

#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 64, CLASSES = 10, STEPS_MAX = 10000, WARM_UP = 9, KINDS = 3 };

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != ADL_OK) {                                                                    \
            fprintf(stderr, "bench_overhead: %s: %s\n", #call, adl_error());                       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

typedef struct series {
    double cpu_s[STEPS_MAX], wall_s[STEPS_MAX], inside_s[STEPS_MAX];
    int count;
} series;

static const char *const names[KINDS] = {"plain", "elastic", "adaptive"};

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

/* What the next batch took to make. A loop without the runtime makes it too, so it counts for no step. */
static double fill_cpu_s, fill_wall_s;

static adl_status fill_images(void *user, const adl_fill *fill)
{
    double cpu_s = adli_thread_cpu_s(), wall_s = adli_monotonic_s();
    adl_status status =
        adl_dataset_batch(user, fill->index, (size_t)fill->count, fill->part[0], fill->part[1]);
    fill_cpu_s = adli_thread_cpu_s() - cpu_s;
    fill_wall_s = adli_monotonic_s() - wall_s;
    return status;
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

static adl_loader *make_loader(adl_context *ctx, adl_dataset *set)
{
    adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
    adl_loader *loader;
    options.examples = adl_dataset_get_info(set).count;
    options.batch_size = BATCH;
    options.shuffle = options.drop_last = true;
    options.part_bytes[0] = adl_dataset_example_size(set) * sizeof(float);
    options.part_bytes[1] = sizeof(int32_t);
    options.fill = fill_images;
    options.user = set;
    MUST(adl_loader_new(ctx, &options, &loader));
    return loader;
}

/* CPU seconds inside the runtime during one adaptive step: hooks, the step less the optimizer's own
 * work, and what happens between two batches. */
static double inside_s;

static adl_status timed_hook(void *dp, size_t param)
{
    double start_s = adli_thread_cpu_s();
    adl_status status = adl_dp_hook(dp, param);
    inside_s += adli_thread_cpu_s() - start_s;
    return status;
}

static adl_optim *timed_optim;

static adl_status timed_step(void *self, const double *lr_factor)
{
    (void)self;
    double start_s = adli_thread_cpu_s();
    adl_status status = adl_optim_step(timed_optim, lr_factor);
    inside_s -= adli_thread_cpu_s() - start_s;
    return status;
}

/* One step of either kind. */
static void step(adl_net *net, adl_optim *optim, adl_dp *dp, const adl_batch *batch, int kind)
{
    static float dlogp[BATCH * CLASSES];
    const float *logp;
    double loss;
    adl_net_set_hook(net, kind ? timed_hook : NULL, dp);
    MUST(adl_net_forward(net, batch->part[0], batch->size,
                         &(adl_pass){.train = true, .seed = batch->seed}, &logp));
    MUST(adl_loss_nll(logp, batch->part[1], batch->size, CLASSES, ADL_MEAN, &loss, dlogp));
    MUST(adl_net_backward(net, dlogp, NULL, ADL_GRAD_SET));
    if (!kind) {
        MUST(adl_optim_step(optim, NULL));
        return;
    }
    double start_s = adli_thread_cpu_s();
    MUST(adl_dp_step(dp));
    inside_s += adli_thread_cpu_s() - start_s;
}

static void add(series *to, int most, double cpu_s, double wall_s)
{
    if (to->count >= most)
        return;
    to->cpu_s[to->count] = cpu_s;
    to->inside_s[to->count] = inside_s;
    to->wall_s[to->count++] = wall_s;
}

/* An adaptive step includes what the loop does between batches, except making the next one; a plain one does not. */
static void measure(adl_context *ctx, adl_net *net, adl_optim *optim, adl_dp *dp,
                    adl_loader *loader, int steps, series all[KINDS])
{
    adli_rng rng;
    int kind = 0, taken = 0;
    double cpu_s = 0, wall_s = 0, end_s = 0;
    adli_rng_init(&rng, 1);
    ADL_EPOCHS (ctx, epoch, 1000)
        ADL_BATCHES (loader, batch) {
            inside_s += adli_thread_cpu_s() - end_s - fill_cpu_s;
            if (kind && taken > WARM_UP)
                add(&all[kind], steps, adli_thread_cpu_s() - cpu_s - fill_cpu_s,
                    adli_monotonic_s() - wall_s - fill_wall_s);
            if (all[0].count >= steps && all[1].count >= steps && all[2].count >= steps)
                return;
            kind = (int)adli_rng_below(&rng, KINDS);
            ctx->metrics.off = kind != 2;
            inside_s = 0;
            cpu_s = adli_thread_cpu_s();
            wall_s = adli_monotonic_s();
            step(net, optim, dp, batch, kind);
            if (!kind && taken > WARM_UP)
                add(&all[0], steps, adli_thread_cpu_s() - cpu_s, adli_monotonic_s() - wall_s);
            taken++;
            end_s = adli_thread_cpu_s();
        }
}

int main(int argc, char **argv)
{
    static series all[KINDS];
    int steps = argc > 1 ? atoi(argv[1]) : 400, threads = argc > 2 ? atoi(argv[2]) : 1;
    adl_env env = ADL_ENV_INIT;
    adl_options options = ADL_OPTIONS_INIT;
    adl_optim_options rates = ADL_ADADELTA_INIT;
    adl_context *ctx;
    adl_dataset *set;
    adl_optim *optim;
    adl_dp *dp;
    size_t count;
    if (steps < 1 || steps > STEPS_MAX)
        return 2;
    env.supervisor_url = "http://127.0.0.1:9"; /* nobody there: a report is made and fails */
    env.job_id = "bench/overhead";
    options.env = &env;
    options.log = NULL;
    options.hints_interval_s = 1; /* thirty times as often as in earnest */
    MUST(adl_nn_set_threads(threads));
    MUST(adl_init(&options, &ctx));
    MUST(adl_dataset_digits(2000, 1, &set));
    adl_net *net = make_net();
    const adl_param *params = adl_net_params(net, &count);
    MUST(adl_optim_new(params, count, &rates, &optim));
    adl_optim_ops timed = *adl_optim_get_ops(optim);
    adl_dp_options parallel = ADL_DP_OPTIONS_INIT;
    timed.step = timed_step;
    timed_optim = optim;
    parallel.optim = &timed;
    adl_net_flat(net, NULL, &parallel.flat_grads, &parallel.flat_count);
    MUST(adl_dp_new(ctx, &parallel, &dp));
    measure(ctx, net, optim, dp, make_loader(ctx, set), steps, all);
    double cpu_ms[KINDS], wall_ms[KINDS];
    for (int kind = 0; kind < KINDS; kind++) {
        cpu_ms[kind] = 1e3 * quiet(all[kind].cpu_s, all[kind].count);
        wall_ms[kind] = 1e3 * quiet(all[kind].wall_s, all[kind].count);
        printf(
            "MNIST step, %d thread%s, %-8s  %8.3f ms of CPU time, %8.3f ms of wall time (fastest "
            "of %d)\n",
            threads, threads == 1 ? "" : "s", names[kind], cpu_ms[kind], wall_ms[kind],
            all[kind].count);
    }
    double inside_ms = 1e3 * quiet(all[2].inside_s, all[2].count);
    printf("spent in the runtime: %.3f ms of a step, %.2f %% (goal: at most 1 %%)\n", inside_ms,
           100 * inside_ms / cpu_ms[0]);
    printf("difference of the steps, with what it does to caches: %+.2f %%; wall %+.2f %%\n",
           100 * (cpu_ms[2] / cpu_ms[0] - 1), 100 * (wall_ms[2] / wall_ms[0] - 1));
    adl_finish(ctx);
    adl_optim_free(optim);
    adl_net_free(net);
    adl_dataset_free(set);
    return 0;
}
