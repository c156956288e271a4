/* Data parallel: replicas end at the model that one process with the same global batch ends at, also when they are
 * interrupted and resumed. */
#include "noise.h"
#include "train_replicas.h"

#include "base/mem.h"
#include "base/rng.h"
#include "train/context.h"
#include "train/dp.h"
#include "train/loop.h"

enum { EXAMPLES = 48, FEATURES = 6, HIDDEN = 8, OUTPUTS = 3 };

/* Regression on made-up data with a small network; everything the optimizer can do. */
typedef struct regression {
    adl_optim_options optim;
    double clip_norm;
    int micro; /* batch of 8 in so many accumulated parts on each replica */
    int examples, epochs, stop_epoch;
    bool schedule;
    float result[FEATURES * HIDDEN + HIDDEN + HIDDEN * OUTPUTS + OUTPUTS];
    double lr;
} regression;

static adl_status fill_regression(void *user, const adl_fill *fill)
{
    (void)user;
    float *x = fill->part[0], *y = fill->part[1];
    for (int b = 0; b < fill->count; b++) {
        adli_rng rng;
        adli_rng_init(&rng, fill->index[b]);
        for (int i = 0; i < FEATURES; i++)
            x[b * FEATURES + i] = adlt_noise(&rng);
        for (int i = 0; i < OUTPUTS; i++)
            y[b * OUTPUTS + i] = sinf(x[b * FEATURES + i] + x[b * FEATURES + i + 1]);
    }
    return ADL_OK;
}

static adl_status run_batches(adlt_replica *replica, adl_net *net, adl_loader *loader, adl_dp *dp)
{
    const regression *task = replica->job->user;
    float dout[EXAMPLES * OUTPUTS];
    ADL_BATCHES (loader, batch) {
        const float *out;
        double loss;
        adl_pass pass = {.train = true};
        adl_status status = adl_net_forward(net, batch->part[0], batch->size, &pass, &out);
        if (status == ADL_OK)
            status = adl_loss_mse(out, batch->part[1], batch->size, OUTPUTS, ADL_MEAN, &loss, dout);
        if (status == ADL_OK)
            status = adl_net_backward(net, dout, NULL, ADL_GRAD_SET);
        if (status == ADL_OK)
            status = adl_dp_step(dp);
        if (status != ADL_OK)
            return status;
        if (adl_current_epoch(replica->ctx) == task->stop_epoch && batch->done >= 16)
            adl_stop(replica->ctx);
    }
    return ADL_OK;
}

static void run_regression(adlt_replica *replica)
{
    regression *task = replica->job->user;
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    adl_net *net;
    adl_optim *optim;
    adl_schedule *schedule;
    adl_loader *loader;
    adl_dp *dp;
    size_t count;
    REQUIRE_OK(adl_nn_set_threads(1)); /* replicas are threads here already */
    REQUIRE_OK(adl_net_new(ADL_SHAPE_FLAT(FEATURES), &net));
    adl_net_linear(net, "one", &(adl_linear){.out = HIDDEN});
    adl_net_relu(net);
    adl_net_linear(net, "two", &(adl_linear){.out = OUTPUTS});
    /* Replicas start from different weights: rank 0's must win. */
    REQUIRE_OK(adl_net_build(net, (uint64_t)replica->rank));
    const adl_param *params = adl_net_params(net, &count);
    REQUIRE_OK(adl_optim_new(params, count, &task->optim, &optim));
    adl_schedule_options halve = {
        .size = sizeof(adl_schedule_options), .kind = ADL_STEP_LR, .gamma = 0.5, .step_size = 1};
    REQUIRE_OK(adl_schedule_new(adl_optim_get_ops(optim), &halve, &schedule));
    data.examples = (size_t)(task->examples ? task->examples : EXAMPLES + 2);
    data.batch_size = 8;
    data.shuffle = true;
    data.part_bytes[0] = FEATURES * sizeof(float);
    data.part_bytes[1] = OUTPUTS * sizeof(float);
    data.fill = fill_regression;
    REQUIRE_OK(adl_loader_new(replica->ctx, &data, &loader));
    options.clip_norm = task->clip_norm;
    options.bucket_bytes = 64;
    REQUIRE_OK(adl_dp_net(replica->ctx, net, optim, schedule, &options, &dp));
    if (task->micro > 1) {
        adl_loop *loop = adl_loader_loop(loader);
        REQUIRE_OK(adl_loader_autoscale(loader, 8, 0, 0, true));
        loop->local_bsz = 8 / task->micro;
        loop->accum_steps = task->micro - 1;
        loop->decided_replicas = 1;
    }
    ADL_EPOCHS (replica->ctx, epoch, task->epochs) {
        CHECK_OK(run_batches(replica, net, loader, dp));
        if (task->schedule)
            adl_schedule_step(schedule);
    }
    float *values;
    adl_net_flat(net, &values, NULL, &count);
    if (replica->rank == replica->replicas - 1) { /* they are all the same */
        float *to = task->result;
        for (size_t i = 0; i < 4; i++) {
            memcpy(to, params[i].value, params[i].count * sizeof(float));
            to += params[i].count;
        }
        task->lr = adl_optim_lr(optim, 0);
    }
    replica->code = adl_finish(replica->ctx);
    adl_schedule_free(schedule);
    adl_optim_free(optim);
    adl_net_free(net);
    pthread_exit(NULL);
}

static double difference(const regression *a, const regression *b)
{
    double most = 0;
    for (size_t i = 0; i < ADLI_COUNT(a->result); i++)
        most = fmax(most, fabs((double)a->result[i] - b->result[i]));
    return most;
}

static regression regress(regression task, int replicas, const char *directory, int code)
{
    adlt_job job = {.user = &task, .checkpoint = directory};
    if (!directory)
        task.stop_epoch = -1;
    adlt_replicas_expect(&job, replicas, run_regression, code);
    return task;
}

static const adl_optim_options sgd = {
    .size = sizeof sgd, .kind = ADL_SGD, .lr = 0.05, .momentum = 0.9};
static const adl_optim_options adam = ADL_ADAM_INIT;
static const adl_optim_options adadelta = ADL_ADADELTA_INIT;

TEST(replicas_equal_one_process_with_the_same_global_batch)
{
    const adl_optim_options *optims[] = {&sgd, &adam, &adadelta};
    for (size_t i = 0; i < ADLI_COUNT(optims); i++) {
        /* 50 examples in batches of 8: the last one is smaller. */
        regression task = {.optim = *optims[i], .epochs = 4, .schedule = true};
        for (int clip = 0; clip < 2; clip++) {
            task.clip_norm = clip ? 0.2 : 0;
            regression one = regress(task, 1, NULL, 0), two = regress(task, 2, NULL, 0);
            regression again = regress(task, 1, NULL, 0);
            CHECK(difference(&one, &again) == 0);
            for (int replicas = 3; replicas <= 5;
                 replicas += 2) { /* 3 + 3 + 2; 2 + 2 + 2 + 1 + 1 */
                regression uneven = regress(task, replicas, NULL, 0);
                if (!(difference(&one, &uneven) < 2e-5))
                    ADLT_FAIL("optimizer %zu, clip %g: %d replicas are off by %g", i,
                              task.clip_norm, replicas, difference(&one, &uneven));
            }
            double off = difference(&one, &two);
            if (!(off < 2e-5))
                ADLT_FAIL("optimizer %zu, clip %g: 2 replicas are off by %g", i, task.clip_norm,
                          off);
            regression plain = task;
            plain.epochs = 1;
            plain = regress(plain, 1, NULL, 0);
            CHECK(difference(&one, &plain) > 1e-3); /* it does learn */
        }
    }
}

TEST(accumulation_equals_one_batch)
{
    regression task = {.optim = sgd, .epochs = 1, .examples = EXAMPLES};
    regression whole = regress(task, 1, NULL, 0);
    task.micro = 2;
    regression parts = regress(task, 1, NULL, 0);
    CHECK(difference(&whole, &parts) < 1e-5);
}

TEST(an_interrupted_training_ends_at_the_same_model)
{
    const adl_optim_options *optims[] = {&sgd, &adam, &adadelta};
    for (size_t i = 0; i < ADLI_COUNT(optims); i++) {
        char *directory = adlt_tempdir();
        regression task = {.optim = *optims[i], .epochs = 4, .stop_epoch = 2, .schedule = true};
        regression straight = regress(task, 1, NULL, 0);
        regress(task, 1, directory, 143);
        task.stop_epoch = -1;
        regression resumed = regress(task, 1, directory, 0);
        CHECK(difference(&straight, &resumed) == 0); /* to the bit */
        CHECK(straight.lr == resumed.lr);
        regression elsewhere = regress(task, 2, directory, 0); /* nothing left to do */
        CHECK(difference(&straight, &elsewhere) == 0);
        adlt_tempdir_remove(directory);
    }
}

TEST(a_training_resumed_on_more_replicas_ends_at_nearly_the_same_model)
{
    char *directory = adlt_tempdir();
    regression task = {.optim = sgd, .epochs = 4, .stop_epoch = 1, .schedule = true};
    regression straight = regress(task, 1, NULL, 0);
    regress(task, 1, directory, 143);
    task.stop_epoch = 2;
    regress(task, 2, directory, 143);
    task.stop_epoch = -1;
    regression resumed = regress(task, 1, directory, 0);
    CHECK(difference(&straight, &resumed) < 2e-5);
    adlt_tempdir_remove(directory);
}
