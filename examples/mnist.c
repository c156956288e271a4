/* The MNIST tutorial as an elastic C program: Adadelta, StepLR, batch 64, 14 epochs.
 *
 *     mnist                                        one process, generated digits
 *     mnist --data DIR                             the real files (tools/get-mnist fetches them)
 *     adaptdl run -n 4 --checkpoint CKPT -- mnist --autoscale
 *
 * Interrupt it, kill it, start it again on another number of replicas with the same
 * ADAPTDL_CHECKPOINT_PATH: it goes on where it was. */
#include "adaptdl/dataset.h"
#include "adaptdl/train.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

enum { CLASSES = 10 };

typedef struct settings {
    const char *data; /* directory of the MNIST files; NULL: generated digits */
    int epochs, batch_size, examples, threads;
    double lr, gamma;
    bool autoscale;
} settings;

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
    size_t dlogp_count;
} mnist;

/* A failure stops the context: the loops end and adl_finish says why. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        adl_status try_status = (call);                                                            \
        if (try_status != ADL_OK)                                                                  \
            return adl_fail(run->ctx, try_status);                                                 \
    } while (0)

static adl_status train(mnist *run, int epoch)
{
    size_t total = adl_loader_examples(run->train_loader);
    ADL_BATCHES(run->train_loader, batch)
    {
        const float *x = batch->part[0], *logp;
        const int32_t *label = batch->part[1];
        double loss;
        TRY(adl_net_forward(run->net, x, batch->size, &(adl_pass){true, batch->seed}, &logp));
        TRY(adl_loss_nll(logp, label, batch->size, CLASSES, ADL_MEAN, &loss, run->dlogp));
        TRY(adl_net_backward(run->net, run->dlogp, NULL, ADL_GRAD_SET));
        TRY(adl_dp_step(run->dp));
        if (batch->number % 10 == 0 && adl_rank(run->ctx) == 0)
            printf("Train Epoch: %d [%llu/%zu (%.0f%%)]\tLoss: %.6f\n", epoch,
                   (unsigned long long)batch->done, total, 100.0 * batch->done / total, loss);
    }
    return ADL_OK;
}

static adl_status test(mnist *run)
{
    ADL_BATCHES(run->test_loader, batch)
    {
        const float *x = batch->part[0], *logp;
        const int32_t *label = batch->part[1];
        int size = batch->size - batch->extra; /* count every example once */
        double loss = 0;
        if (size == 0)
            continue;
        TRY(adl_net_forward(run->net, x, size, &(adl_pass){.train = false}, &logp));
        TRY(adl_loss_nll(logp, label, size, CLASSES, ADL_SUM, &loss, NULL));
        adl_accumulator_add(run->stats, "loss", loss);
        adl_accumulator_add(run->stats, "correct", adl_count_correct(logp, label, size, CLASSES));
    }
    ADL_SYNCHRONIZED(run->stats)
    {
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
