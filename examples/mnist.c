/* The MNIST tutorial as an elastic C program: Adadelta, StepLR, batch 64, 14 epochs.
 *
 *     mnist                                        one process, generated digits
 *     mnist --data DIR                             the real files (tools/get-mnist fetches them)
 *     adaptdl run -n 4 --checkpoint CKPT -- mnist --autoscale
 *
 * Interrupt it, kill it, start it again on another number of replicas with the same
 * ADAPTDL_CHECKPOINT_PATH: it goes on where it was. */
#include "images.h"

#include "adaptdl/train.h"

enum { TEST_BATCH = 250 };

typedef struct mnist {
    adl_context *ctx;
    adl_dataset *train_set, *test_set;
    adl_loader *train_loader, *test_loader;
    adl_net *net;
    adl_optim *optim;
    adl_schedule *schedule;
    adl_dp *dp;
    adl_accumulator *stats;
    float *dlogp; /* [batch][CLASSES]: gradient of the loss */
} mnist;

static adl_status train(mnist *run, int epoch)
{
    size_t total = adl_loader_examples(run->train_loader);
    ADL_BATCHES (run->train_loader, batch) {
        const float *x = batch->part[0], *logp;
        const int32_t *label = batch->part[1];
        double loss;
        TRY(adl_net_forward(run->net, x, batch->size,
                            &(adl_pass){.train = true, .seed = batch->seed}, &logp));
        TRY(adl_loss_nll(logp, label, batch->size, CLASSES, ADL_MEAN, &loss, run->dlogp));
        TRY(adl_net_backward(run->net, run->dlogp, NULL, ADL_GRAD_SET));
        TRY(adl_dp_step(run->dp));
        if (batch->number % 10 == 0 && adl_rank(run->ctx) == 0)
            printf("Train Epoch: %d [%llu/%zu (%.0f%%)]\tLoss: %.6f\n", epoch + 1,
                   (unsigned long long)batch->done, total, 100.0 * batch->done / total, loss);
    }
    return ADL_OK;
}

static adl_status test(mnist *run)
{
    ADL_BATCHES (run->test_loader, batch) {
        const float *x = batch->part[0], *logp;
        const int32_t *label = batch->part[1];
        int size = batch->size - batch->extra; /* count every example once */
        double loss = 0;
        if (size == 0)
            continue;
        TRY(adl_net_forward(run->net, x, size, NULL, &logp));
        TRY(adl_loss_nll(logp, label, size, CLASSES, ADL_SUM, &loss, NULL));
        adl_accumulator_add(run->stats, "loss", loss);
        adl_accumulator_add(run->stats, "correct", adl_count_correct(logp, label, size, CLASSES));
    }
    ADL_SYNCHRONIZED (run->stats) {
        size_t total = adl_loader_examples(run->test_loader);
        double correct = adl_accumulator_get(run->stats, "correct");
        if (adl_rank(run->ctx) == 0)
            printf("\nTest set: Average loss: %.4f, Accuracy: %d/%zu (%.0f%%)\n\n",
                   adl_accumulator_get(run->stats, "loss") / total, (int)correct, total,
                   100 * correct / total);
        adl_accumulator_clear(run->stats);
    }
    return ADL_OK;
}

static adl_status load_data(mnist *run, const settings *set)
{
    static const double mean = 0.1307, std = 0.3081;
    if (set->data) {
        TRY(adl_dataset_mnist(set->data, ADL_TRAIN, &run->train_set));
        TRY(adl_dataset_mnist(set->data, ADL_TEST, &run->test_set));
    } else {
        TRY(adl_dataset_digits((size_t)set->examples, 1, &run->train_set));
        TRY(adl_dataset_digits((size_t)set->examples / 6 + 1, 2, &run->test_set));
    }
    TRY(adl_dataset_normalize(run->train_set, &mean, &std));
    TRY(adl_dataset_normalize(run->test_set, &mean, &std));
    TRY(image_loader(run->ctx, "train", run->train_set, set->batch_size, true, &run->train_loader));
    TRY(image_loader(run->ctx, "test", run->test_set, TEST_BATCH, false, &run->test_loader));
    if (set->autoscale)
        TRY(adl_loader_autoscale(run->train_loader, 1028, 32, MAX_LOCAL, false));
    return ADL_OK;
}

/* The tutorial's network: two convolutions, two dropouts, two linear layers. */
static adl_status make_model(mnist *run, const settings *set)
{
    adl_net *net;
    TRY(adl_net_new(ADL_SHAPE(1, 28, 28), &run->net));
    net = run->net;
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
    TRY(adl_net_build(net, 1));

    adl_optim_options optim = ADL_ADADELTA_INIT;
    adl_schedule_options schedule = {.kind = ADL_STEP_LR, .gamma = set->gamma, .step_size = 1};
    size_t count;
    const adl_param *params = adl_net_params(net, &count);
    optim.lr = set->lr;
    TRY(adl_optim_new(params, count, &optim, &run->optim));
    TRY(adl_schedule_new(adl_optim_get_ops(run->optim), &schedule, &run->schedule));
    TRY(adl_dp_net(run->ctx, net, run->optim, run->schedule, NULL, &run->dp));
    return adl_accumulator_new(run->ctx, "test", &run->stats);
}

static adl_status run_all(mnist *run, const settings *set)
{
    if (set->threads)
        TRY(adl_nn_set_threads(set->threads));
    TRY(load_data(run, set));
    TRY(make_model(run, set));
    ADL_EPOCHS (run->ctx, epoch, set->epochs) {
        TRY(train(run, epoch));
        TRY(test(run));
        adl_schedule_step(run->schedule);
    }
    return ADL_OK;
}

int main(int argc, char **argv)
{
    settings set = {.epochs = 14, .batch_size = 64, .examples = 6000, .lr = 1.0, .gamma = 0.7};
    adl_options options = ADL_OPTIONS_INIT;
    mnist run = {0};
    int done = parse_options(argc, argv, "mnist", "MNIST's four files, plain or .gz", &set);
    if (done >= 0)
        return done;
    setvbuf(stdout, NULL, _IOLBF, 0); /* lines at once, also into a pipe */
    options.program = "mnist";
    run.dlogp = new_loss_grad(&set);
    if (!run.dlogp) {
        fprintf(stderr, "mnist: no memory for a batch of %d\n", set.batch_size);
        return 1;
    }
    adl_status status = adl_init(&options, &run.ctx);
    if (status != ADL_OK) {
        fprintf(stderr, "mnist: %s\n", adl_error());
        free(run.dlogp);
        return adl_exit_code(status);
    }
    adl_context_fail(run.ctx, run_all(&run, &set));
    int code = adl_finish(run.ctx);
    adl_schedule_free(run.schedule);
    adl_optim_free(run.optim);
    adl_net_free(run.net);
    adl_dataset_free(run.test_set);
    adl_dataset_free(run.train_set);
    free(run.dlogp);
    return code;
}
