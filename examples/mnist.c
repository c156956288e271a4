/* The MNIST tutorial as an elastic C program: Adadelta, StepLR, batch 64, 14 epochs.
 *
 *     mnist                                        one process, generated digits
 *     mnist --data DIR                             the real files (tools/get-mnist fetches them)
 *     adaptdl run -n 4 --checkpoint CKPT -- mnist --autoscale
 *
 * Interrupt it, kill it, start it again on another number of replicas with the same
 * ADAPTDL_CHECKPOINT_PATH: it goes on where it was. */
#include "images.h"

/* The tutorial's lines, in place of the runner's own. */
static adl_status say_batch(void *user, adl_runner *runner)
{
    const adl_batch *batch = adl_runner_batch(runner);
    size_t total = adl_loader_examples(batch->loader);
    (void)user;
    if (adl_runner_training(runner) && batch->number % 10 == 0 &&
        adl_rank(adl_runner_context(runner)) == 0)
        printf("Train Epoch: %d [%llu/%zu (%.0f%%)]\tLoss: %.6f\n", adl_runner_epoch(runner),
               (unsigned long long)batch->done, total, 100.0 * batch->done / total,
               adl_runner_loss(runner));
    return ADL_OK;
}

static adl_status say_epoch(void *user, adl_runner *runner)
{
    size_t total = adl_loader_examples(adl_runner_loader_of(runner, "valid"));
    double loss, accuracy;
    (void)user;
    TRY(adl_runner_get(runner, "valid", "loss", &loss));
    TRY(adl_runner_get(runner, "valid", "accuracy", &accuracy));
    if (adl_rank(adl_runner_context(runner)) == 0)
        printf("\nTest set: Average loss: %.4f, Accuracy: %.0f/%zu (%.0f%%)\n\n", loss,
               accuracy * total, total, 100 * accuracy);
    return ADL_OK;
}

/* The tutorial's network: two convolutions, two dropouts, two linear layers. */
static adl_status make_model(images *run, const settings *set)
{
    adl_optim_options optim = ADL_ADADELTA_INIT;
    adl_schedule_options schedule = {.size = sizeof(adl_schedule_options),
                                     .kind = ADL_STEP_LR,
                                     .gamma = set->gamma,
                                     .step_size = 1};
    TRY(adl_net_new(ADL_SHAPE(1, 28, 28), &run->net));
    adl_net_conv2d(run->net, "conv1", &(adl_conv2d){.out = 32, .kernel = 3});
    adl_net_relu(run->net);
    adl_net_conv2d(run->net, "conv2", &(adl_conv2d){.out = 64, .kernel = 3});
    adl_net_relu(run->net);
    adl_net_max_pool2d(run->net, 2, 0);
    adl_net_dropout(run->net, 0.25);
    adl_net_flatten(run->net);
    adl_net_linear(run->net, "fc1", &(adl_linear){.out = 128});
    adl_net_relu(run->net);
    adl_net_dropout(run->net, 0.5);
    adl_net_linear(run->net, "fc2", &(adl_linear){.out = CLASSES});
    adl_net_log_softmax(run->net);
    return finish_model(run, set, &optim, &schedule);
}

static adl_status train(images *run, const settings *set)
{
    static const adl_runner_callback say = {
        .name = "say", .batch_end = say_batch, .epoch_end = say_epoch};
    adl_runner_options options = ADL_RUNNER_OPTIONS_INIT;
    TRY(set->data ? adl_dataset_mnist(set->data, ADL_TRAIN, &run->train_set)
                  : adl_dataset_digits((size_t)set->examples, 1, &run->train_set));
    TRY(set->data ? adl_dataset_mnist(set->data, ADL_TEST, &run->test_set)
                  : adl_dataset_digits((size_t)set->examples / 6 + 1, 2, &run->test_set));
    TRY(make_model(run, set));
    TRY(image_loaders(run, set, (double[]){0.1307}, (double[]){0.3081}, 1028, &options));
    options.loss = adl_runner_nll;
    options.callbacks = &say;
    options.callback_count = 1;
    options.console = NULL;
    return adl_runner_train(run->ctx, &options);
}

int main(int argc, char **argv)
{
    settings set = {.epochs = 14, .batch_size = 64, .examples = 6000, .lr = 1.0, .gamma = 0.7};
    return image_program(argc, argv, "mnist", "MNIST's four files, plain or .gz", &set, train);
}
