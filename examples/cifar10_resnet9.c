/* ResNet9 on CIFAR-10 as an elastic C program: Adam, MultiStepLR, batch 32, 10 epochs. Batch
 * normalisation, residuals and a schedule with milestones, where examples/mnist.c has none.
 *
 *     cifar10_resnet9                              one process, generated colour images
 *     cifar10_resnet9 --data DIR                   data_batch_1.bin .. data_batch_5.bin, test_batch.bin
 *     cifar10_resnet9 --logdir LOGS                CSV, TensorBoard and the three best models in LOGS
 *     adaptdl run -n 4 --checkpoint CKPT -- cifar10_resnet9 --autoscale */
#include "images.h"

static adl_status make_model(images *run, const settings *set)
{
    static const int milestones[] = {5, 8};
    adl_optim_options optim = ADL_ADAM_INIT;
    adl_schedule_options schedule = {.size = sizeof(adl_schedule_options),
                                     .kind = ADL_MULTI_STEP_LR,
                                     .gamma = set->gamma,
                                     .milestones = milestones,
                                     .milestone_count = 2};
    TRY(adl_net_new(ADL_SHAPE(3, 32, 32), &run->net));
    adl_net_resnet9(run->net, CLASSES, 16);
    return finish_model(run, set, &optim, &schedule);
}

static adl_status train(images *run, const settings *set)
{
    static const double half[3] = {0.5, 0.5, 0.5};
    adl_runner_options options = ADL_RUNNER_OPTIONS_INIT;
    TRY(set->data ? adl_dataset_cifar10(set->data, ADL_TRAIN, &run->train_set)
                  : adl_dataset_shapes((size_t)set->examples, 1, &run->train_set));
    TRY(set->data ? adl_dataset_cifar10(set->data, ADL_TEST, &run->test_set)
                  : adl_dataset_shapes((size_t)set->examples / 5 + 1, 2, &run->test_set));
    TRY(make_model(run, set));
    TRY(image_loaders(run, set, half, half, 32 * set->batch_size, &options));
    options.loss = adl_runner_cross_entropy;
    options.topk[1] = 3;
    options.valid_metric = "accuracy01";
    options.maximize = true;
    options.keep_best = 3;
    return adl_runner_train(run->ctx, &options);
}

int main(int argc, char **argv)
{
    settings set = {.epochs = 10, .batch_size = 32, .examples = 5000, .lr = 1e-3, .gamma = 0.3};
    return image_program(argc, argv, "cifar10_resnet9", "CIFAR-10's binary files", &set, train);
}
