/* ResNet9 on CIFAR-10 as an elastic C program: Adam, MultiStepLR, batch 32, 10 epochs. Batch
 * normalisation, residuals and a schedule with milestones, where examples/mnist.c has none.
 *
 *     cifar10_resnet9                              one process, generated colour images
 *     cifar10_resnet9 --data DIR                   data_batch_1.bin .. data_batch_5.bin, test_batch.bin
 *     adaptdl run -n 4 --checkpoint CKPT -- cifar10_resnet9 --autoscale */
#include "images.h"

#include "adaptdl/train.h"

enum { TEST_BATCH = 250 };

typedef struct resnet {
    adl_context *ctx;
    adl_dataset *train_set, *test_set;
    adl_loader *train_loader, *test_loader;
    adl_net *net;
    adl_optim *optim;
    adl_schedule *schedule;
    adl_dp *dp;
    adl_accumulator *train_stats, *test_stats;
    float *dlogits; /* [batch][CLASSES]: gradient of the loss */
} resnet;

static adl_status train(resnet *run, int epoch)
{
    ADL_BATCHES (run->train_loader, batch) {
        const float *x = batch->part[0], *logits;
        const int32_t *label = batch->part[1];
        double loss;
        TRY(adl_net_forward(run->net, x, batch->size,
                            &(adl_pass){.train = true, .seed = batch->seed}, &logits));
        TRY(adl_loss_cross_entropy(logits, label, batch->size, CLASSES, ADL_MEAN, &loss,
                                   run->dlogits));
        TRY(adl_net_backward(run->net, run->dlogits, NULL, ADL_GRAD_SET));
        TRY(adl_dp_step(run->dp));
        adl_accumulator_add(run->train_stats, "loss", loss * batch->size);
        adl_accumulator_add(run->train_stats, "examples", batch->size);
    }
    ADL_SYNCHRONIZED (run->train_stats) {
        if (adl_rank(run->ctx) == 0)
            printf("epoch %d: train loss %.4f, learning rate %g\n", epoch + 1,
                   adl_accumulator_get(run->train_stats, "loss") /
                       adl_accumulator_get(run->train_stats, "examples"),
                   adl_optim_lr(run->optim, 0));
        adl_accumulator_clear(run->train_stats);
    }
    return ADL_OK;
}

static adl_status test(resnet *run, int epoch)
{
    ADL_BATCHES (run->test_loader, batch) {
        const float *x = batch->part[0], *logits;
        const int32_t *label = batch->part[1];
        int size = batch->size - batch->extra; /* count every example once */
        double loss = 0;
        if (size == 0)
            continue;
        TRY(adl_net_forward(run->net, x, size, NULL, &logits));
        TRY(adl_loss_cross_entropy(logits, label, size, CLASSES, ADL_SUM, &loss, NULL));
        adl_accumulator_add(run->test_stats, "loss", loss);
        adl_accumulator_add(run->test_stats, "correct",
                            adl_count_correct(logits, label, size, CLASSES));
    }
    ADL_SYNCHRONIZED (run->test_stats) {
        size_t total = adl_loader_examples(run->test_loader);
        double correct = adl_accumulator_get(run->test_stats, "correct");
        if (adl_rank(run->ctx) == 0)
            printf("epoch %d: test loss %.4f, accuracy %d/%zu (%.1f%%)\n", epoch + 1,
                   adl_accumulator_get(run->test_stats, "loss") / total, (int)correct, total,
                   100 * correct / total);
        adl_accumulator_clear(run->test_stats);
    }
    return ADL_OK;
}

static adl_status load_data(resnet *run, const settings *set)
{
    static const double half[3] = {0.5, 0.5, 0.5};
    if (set->data) {
        TRY(adl_dataset_cifar10(set->data, ADL_TRAIN, &run->train_set));
        TRY(adl_dataset_cifar10(set->data, ADL_TEST, &run->test_set));
    } else {
        TRY(adl_dataset_shapes((size_t)set->examples, 1, &run->train_set));
        TRY(adl_dataset_shapes((size_t)set->examples / 5 + 1, 2, &run->test_set));
    }
    TRY(adl_dataset_normalize(run->train_set, half, half));
    TRY(adl_dataset_normalize(run->test_set, half, half));
    TRY(image_loader(run->ctx, "train", run->train_set, set->batch_size, true, &run->train_loader));
    TRY(image_loader(run->ctx, "test", run->test_set, TEST_BATCH, false, &run->test_loader));
    if (set->autoscale)
        TRY(adl_loader_autoscale(run->train_loader, 32 * set->batch_size, 16, MAX_LOCAL, false));
    return ADL_OK;
}

static adl_status make_model(resnet *run, const settings *set)
{
    static const int milestones[] = {5, 8};
    adl_optim_options optim = ADL_ADAM_INIT;
    adl_schedule_options schedule = {.kind = ADL_MULTI_STEP_LR,
                                     .gamma = set->gamma,
                                     .milestones = milestones,
                                     .milestone_count = 2};
    size_t count;
    TRY(adl_net_new(ADL_SHAPE(3, 32, 32), &run->net));
    adl_net_resnet9(run->net, CLASSES, 16);
    TRY(adl_net_build(run->net, 1));

    const adl_param *params = adl_net_params(run->net, &count);
    optim.lr = set->lr;
    TRY(adl_optim_new(params, count, &optim, &run->optim));
    TRY(adl_schedule_new(adl_optim_get_ops(run->optim), &schedule, &run->schedule));
    TRY(adl_dp_net(run->ctx, run->net, run->optim, run->schedule, NULL, &run->dp));
    TRY(adl_accumulator_new(run->ctx, "train", &run->train_stats));
    return adl_accumulator_new(run->ctx, "test", &run->test_stats);
}

static adl_status run_all(resnet *run, const settings *set)
{
    if (set->threads)
        TRY(adl_nn_set_threads(set->threads));
    TRY(load_data(run, set));
    TRY(make_model(run, set));
    ADL_EPOCHS (run->ctx, epoch, set->epochs) {
        TRY(train(run, epoch));
        TRY(test(run, epoch));
        adl_schedule_step(run->schedule);
    }
    return ADL_OK;
}

int main(int argc, char **argv)
{
    settings set = {.epochs = 10, .batch_size = 32, .examples = 5000, .lr = 1e-3, .gamma = 0.3};
    adl_options options = ADL_OPTIONS_INIT;
    resnet run = {0};
    int done = parse_options(argc, argv, "cifar10_resnet9", "CIFAR-10's binary files", &set);
    if (done >= 0)
        return done;
    setvbuf(stdout, NULL, _IOLBF, 0); /* lines at once, also into a pipe */
    options.program = "cifar10_resnet9";
    run.dlogits = new_loss_grad(&set);
    if (!run.dlogits) {
        fprintf(stderr, "cifar10_resnet9: no memory for a batch of %d\n", set.batch_size);
        return 1;
    }
    adl_status status = adl_init(&options, &run.ctx);
    if (status != ADL_OK) {
        fprintf(stderr, "cifar10_resnet9: %s\n", adl_error());
        free(run.dlogits);
        return adl_exit_code(status);
    }
    adl_context_fail(run.ctx, run_all(&run, &set));
    int code = adl_finish(run.ctx);
    adl_schedule_free(run.schedule);
    adl_optim_free(run.optim);
    adl_net_free(run.net);
    adl_dataset_free(run.test_set);
    adl_dataset_free(run.train_set);
    free(run.dlogits);
    return code;
}
