/* ResNet9 on CIFAR-10, elastic: Adam 1e-3, MultiStepLR [5, 8] gamma 0.3, batch 32, 10 epochs.
 *
 *     cifar10_resnet9                       generated images
 *     cifar10_resnet9 --data DIR            the binary batches data_batch_1.bin ... test_batch.bin
 *     adaptdl run -n 4 --checkpoint CKPT -- cifar10_resnet9 --autoscale
 *
 * With ADAPTDL_TENSORBOARD_LOGDIR set, rank 0 writes losses, accuracy, batch sizes and the gradient's
 * statistics there. */
#include "adaptdl/dataset.h"
#include "adaptdl/tensorboard.h"
#include "adaptdl/train.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CLASSES = 10, MAX_LOCAL = 128 };

typedef struct settings {
    const char *data; /* directory of the CIFAR-10 files; NULL: generated images */
    int epochs, batch_size, examples, size, threads;
    bool autoscale;
} settings;

typedef struct cifar {
    adl_context *ctx;
    adl_dataset *train_set, *valid_set;
    adl_loader *train_loader, *valid_loader;
    adl_net *net;
    adl_optim *optim;
    adl_schedule *schedule;
    adl_dp *dp;
    adl_accumulator *stats;
    adl_tensorboard *board; /* rank 0, when asked for */
    float *dlogits;         /* [batch][CLASSES] */
} cifar;

/* A failure stops the context: the loops end and adl_finish says why. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        adl_status try_status = (call);                                                            \
        if (try_status != ADL_OK)                                                                  \
            return adl_fail(run->ctx, try_status);                                                 \
    } while (0)

static adl_status train(cifar *run)
{
    ADL_BATCHES (run->train_loader, batch) {
        const float *logits;
        const int32_t *label = batch->part[1];
        double loss;
        TRY(adl_net_forward(run->net, batch->part[0], batch->size,
                            &(adl_pass){.train = true, .seed = batch->seed}, &logits));
        TRY(adl_loss_cross_entropy(logits, label, batch->size, CLASSES, ADL_MEAN, &loss,
                                   run->dlogits));
        TRY(adl_net_backward(run->net, run->dlogits, NULL, ADL_GRAD_SET));
        TRY(adl_dp_step(run->dp));
        adl_accumulator_add(run->stats, "train loss", loss * batch->size);
        adl_accumulator_add(run->stats, "train count", batch->size);
    }
    return ADL_OK;
}

static adl_status validate(cifar *run)
{
    ADL_BATCHES (run->valid_loader, batch) {
        const float *logits;
        const int32_t *label = batch->part[1];
        int size = batch->size - batch->extra; /* count every example once */
        double loss = 0;
        if (size == 0)
            continue;
        TRY(adl_net_forward(run->net, batch->part[0], size, NULL, &logits));
        TRY(adl_loss_cross_entropy(logits, label, size, CLASSES, ADL_SUM, &loss, NULL));
        adl_accumulator_add(run->stats, "valid loss", loss);
        adl_accumulator_add(run->stats, "correct", adl_count_correct(logits, label, size, CLASSES));
    }
    return ADL_OK;
}

/* One line, and the same for TensorBoard. */
static void report(cifar *run, int epoch)
{
    double trained = adl_accumulator_get(run->stats, "train count");
    double count = (double)adl_loader_examples(run->valid_loader);
    double train_loss = adl_accumulator_get(run->stats, "train loss") / (trained ? trained : 1);
    double valid_loss = adl_accumulator_get(run->stats, "valid loss") / count;
    double accuracy = adl_accumulator_get(run->stats, "correct") / count,
           now_s = (double)time(NULL);
    printf("epoch %d: train loss %.4f, valid loss %.4f, accuracy %.4f, batch %d, gain %.2f\n",
           epoch + 1, train_loss, valid_loss, accuracy,
           adl_loop_batch_size(adl_loader_loop(run->train_loader)), adl_dp_gain(run->dp));
    if (!run->board)
        return;
    adl_tensorboard_scalar(run->board, "Loss/train", train_loss, epoch, now_s);
    adl_tensorboard_scalar(run->board, "Loss/valid", valid_loss, epoch, now_s);
    adl_tensorboard_scalar(run->board, "Accuracy/valid", accuracy, epoch, now_s);
    adl_dp_to_tensorboard(run->dp, run->board, epoch, "AdaptDL/Model/");
    adl_loop_to_tensorboard(adl_loader_loop(run->train_loader), run->board, epoch, "AdaptDL/Data/");
    if (adl_tensorboard_flush(run->board) != ADL_OK)
        fprintf(stderr, "cifar10_resnet9: %s\n", adl_error());
}

static adl_status fill_images(void *user, const adl_fill *fill)
{
    return adl_dataset_batch(user, fill->index, (size_t)fill->count, fill->part[0], fill->part[1]);
}

static adl_status make_loader(cifar *run, const char *name, adl_dataset *set, int batch_size,
                              adl_loader **out)
{
    adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
    options.name = name;
    options.examples = adl_dataset_get_info(set).count;
    options.batch_size = batch_size;
    options.shuffle = set == run->train_set;
    options.part_bytes[0] = adl_dataset_example_size(set) * sizeof(float);
    options.part_bytes[1] = sizeof(int32_t);
    options.fill = fill_images;
    options.user = set;
    return adl_loader_new(run->ctx, &options, out);
}

static adl_status load_data(cifar *run, const settings *set)
{
    static const double half[] = {0.5, 0.5, 0.5};
    if (set->data) {
        TRY(adl_dataset_cifar10(set->data, ADL_TRAIN, &run->train_set));
        TRY(adl_dataset_cifar10(set->data, ADL_TEST, &run->valid_set));
    } else {
        TRY(adl_dataset_shapes((size_t)set->examples, 1, &run->train_set));
        TRY(adl_dataset_shapes((size_t)set->examples / 5 + 1, 2, &run->valid_set));
    }
    TRY(adl_dataset_normalize(run->train_set, half, half));
    TRY(adl_dataset_normalize(run->valid_set, half, half));
    TRY(make_loader(run, "train", run->train_set, set->batch_size, &run->train_loader));
    TRY(make_loader(run, "valid", run->valid_set, set->batch_size, &run->valid_loader));
    if (set->autoscale)
        TRY(adl_loader_autoscale(run->train_loader, 32 * set->batch_size, 0, MAX_LOCAL, true));
    return ADL_OK;
}

static adl_status make_model(cifar *run, const settings *set)
{
    static const int milestones[] = {5, 8};
    adl_optim_options optim = ADL_ADAM_INIT;
    adl_schedule_options schedule = {
        .kind = ADL_MULTI_STEP_LR, .gamma = 0.3, .milestones = milestones, .milestone_count = 2};
    size_t count;
    TRY(adl_net_new(ADL_SHAPE(3, 32, 32), &run->net));
    adl_net_resnet9(run->net, CLASSES, set->size);
    TRY(adl_net_build(run->net, 1));
    const adl_param *params = adl_net_params(run->net, &count);
    TRY(adl_optim_new(params, count, &optim, &run->optim));
    TRY(adl_schedule_new(adl_optim_get_ops(run->optim), &schedule, &run->schedule));
    TRY(adl_dp_net(run->ctx, run->net, run->optim, run->schedule, NULL, &run->dp));
    return adl_accumulator_new(run->ctx, "stats", &run->stats);
}

static adl_status run_all(cifar *run, const settings *set)
{
    const char *logdir = adl_context_env(run->ctx)->tensorboard_logdir;
    int most = set->batch_size > MAX_LOCAL ? set->batch_size : MAX_LOCAL;
    run->dlogits = calloc((size_t)most, CLASSES * sizeof *run->dlogits);
    if (!run->dlogits)
        return adl_failf(run->ctx, ADL_ENOMEM, "no memory for gradients");
    if (set->threads)
        TRY(adl_nn_set_threads(set->threads));
    TRY(load_data(run, set));
    TRY(make_model(run, set));
    if (logdir && adl_rank(run->ctx) == 0)
        TRY(adl_tensorboard_open(logdir, (double)time(NULL), NULL, &run->board));
    ADL_EPOCHS (run->ctx, epoch, set->epochs) {
        TRY(train(run));
        TRY(validate(run));
        ADL_SYNCHRONIZED (run->stats) {
            if (adl_rank(run->ctx) == 0)
                report(run, epoch);
            adl_accumulator_clear(run->stats);
        }
        adl_schedule_step(run->schedule);
    }
    return ADL_OK;
}

/* A number above 0 into *out. */
static bool parse_int(const char *text, int *out)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < 1 || value > 10000000)
        return false;
    *out = (int)value;
    return true;
}

static bool parse(int argc, char **argv, settings *set)
{
    static const struct option options[] = {
        {"data", required_argument, NULL, 'd'},       {"epochs", required_argument, NULL, 'e'},
        {"batch-size", required_argument, NULL, 'b'}, {"size", required_argument, NULL, 's'},
        {"examples", required_argument, NULL, 'n'},   {"threads", required_argument, NULL, 't'},
        {"autoscale", no_argument, NULL, 'a'},        {0}};
    int option;
    bool good = true;
    while (good && (option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        int *number = option == 'e'   ? &set->epochs
                      : option == 'b' ? &set->batch_size
                      : option == 's' ? &set->size
                      : option == 'n' ? &set->examples
                      : option == 't' ? &set->threads
                                      : NULL;
        if (option == 'd')
            set->data = optarg;
        else if (option == 'a')
            set->autoscale = true;
        else
            good = number && parse_int(optarg, number);
    }
    return good && optind == argc;
}

int main(int argc, char **argv)
{
    settings set = {.epochs = 10, .batch_size = 32, .examples = 5000, .size = 16};
    adl_options options = ADL_OPTIONS_INIT;
    cifar run = {0};
    if (!parse(argc, argv, &set)) {
        fprintf(stderr, "Usage: cifar10_resnet9 [--data DIR] [--epochs N] [--batch-size N] "
                        "[--size N]\n                       [--examples N] [--threads N] "
                        "[--autoscale]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* lines at once, also into a pipe */
    options.program = "cifar10_resnet9";
    adl_status status = adl_init(&options, &run.ctx);
    if (status != ADL_OK) {
        fprintf(stderr, "cifar10_resnet9: %s\n", adl_error());
        return adl_exit_code(status);
    }
    adl_fail(run.ctx, run_all(&run, &set));
    int code = adl_finish(run.ctx);
    adl_tensorboard_close(run.board);
    adl_schedule_free(run.schedule);
    adl_optim_free(run.optim);
    adl_net_free(run.net);
    adl_dataset_free(run.valid_set);
    adl_dataset_free(run.train_set);
    free(run.dlogits);
    return code;
}
