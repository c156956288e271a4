/* The runner: one call trains a network with metrics, progress, checkpoints of the best models and
 * logs; on one replica or on many, interrupted or resized as it may be, because it stands on the loops
 * of epoch.h and loader.h. docs/runner.md shows it beside the same in Python.
 *
 *     adl_runner_options options = ADL_RUNNER_OPTIONS_INIT;
 *     options.epochs = 14;
 *     options.loaders[0] = (adl_runner_loader){"train", train};
 *     options.loaders[1] = (adl_runner_loader){"valid", valid};
 *     adl_runner_net(&options, net, optim, schedule);      or a network of your own: adl_model
 *     options.loss = adl_runner_cross_entropy;
 *     options.topk[0] = 1;                                 accuracy01
 *     options.logdir = "logs";
 *     adl_context_fail(ctx, adl_runner_train(ctx, &options));
 *     return adl_finish(ctx);
 *
 * Names of metrics, columns of CSV files and places of files are those of the Python runner:
 *     LOGDIR/csv_logger/KEY.csv, _epoch_.csv     a row for each epoch; step is the epoch, from 1
 *     LOGDIR/tensorboard/KEY/, _epoch_/          event files, tag METRIC/epoch
 *     LOGDIR/checkpoints/model.0007.adl, model.best.adl, model.last.adl, model.storage.json
 * They have every epoch once, whatever happened in between: what was logged is part of the job's
 * checkpoint, and a process that takes over writes the files anew from it. A run that starts from the
 * beginning therefore starts them anew too.
 *
 * Threads and failures: as everywhere on a context. Only rank 0 prints and writes. */
#ifndef ADAPTDL_RUNNER_H
#define ADAPTDL_RUNNER_H

#include "adaptdl/train.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_runner adl_runner;

#define ADL_RUNNER_LOADERS_MAX 8
#define ADL_RUNNER_TOPK_MAX    8
#define ADL_RUNNER_NAME_MAX    40 /* bytes of a metric's or loader's name, without the NUL */

/* ---- what is trained --------------------------------------------------------------------------- */

/* A network as the runner sees it; adl_runner_net fills it for one of ours. All functions are called
 * from the thread that trains. */
typedef struct adl_model {
    void *self; /* first argument; borrowed until adl_finish */
    int width;  /* floats in the output for one example */
    /* Runs the first `size` examples of the batch. train: backward follows, and batch->seed is for
     * dropout. *out: [size][width], valid until the next call. */
    adl_status (*forward)(void *self, const adl_batch *batch, int size, bool train,
                          const float **out);
    /* Sets (does not add to) the gradient of every parameter; dout: d loss / d out, [size][width]. */
    adl_status (*backward)(void *self, const float *dout);
    /* Optional: backward is to call hook(context, i) once gradient i is final. */
    void (*set_hook)(void *self, adl_grad_hook hook, void *context);
    const adl_param *buffers; /* [buffer_count] saved beside the parameters; may be NULL */
    size_t buffer_count;
    float *flat_grads; /* optional: as in adl_dp_options */
    size_t flat_count;
} adl_model;

/* The mean loss of `size` examples; dout, unless it is NULL, becomes d loss / d out. target is the
 * batch's part that the options name. */
typedef adl_status (*adl_loss_fn)(void *user, const float *out, const void *target, int size,
                                  int width, double *loss, float *dout);

/* ---- callbacks --------------------------------------------------------------------------------- */

/* Any of the functions may be NULL. They run on every replica, in the order of the list; ask adl_rank
 * before acting on the outside world. A status other than ADL_OK stops the job with the callback's
 * name before the reason. After a restart epoch_begin runs again for the interrupted epoch, and
 * loader_begin for the interrupted loader; what had finished before is not repeated. When a replica
 * died and the others go on, batch_begin runs again for the batch in flight, and in loaders that do not
 * train for the last ones before it (docs/elastic.md). */
typedef struct adl_runner_callback {
    const char *name; /* for messages; copied */
    void *user;       /* first argument */
    adl_status (*epoch_begin)(void *user, adl_runner *runner);
    adl_status (*loader_begin)(void *user, adl_runner *runner);
    adl_status (*batch_begin)(void *user, adl_runner *runner);
    adl_status (*batch_end)(void *user, adl_runner *runner);  /* output, loss; may add metrics */
    adl_status (*loader_end)(void *user, adl_runner *runner); /* metrics of this loader are there */
    adl_status (*epoch_end)(void *user, adl_runner *runner);  /* all are; before they are logged */
} adl_runner_callback;

/* ---- options ----------------------------------------------------------------------------------- */

/* What moves the schedule: finished epochs, optimizer steps, or progress, which counts steps of the
 * initial batch size however large batches are (adl_dp_progress): then n epochs of e examples in
 * batches of b are n e / b for any number of replicas. */
typedef enum adl_schedule_clock {
    ADL_BY_EPOCH,
    ADL_BY_STEP,
    ADL_BY_PROGRESS,
} adl_schedule_clock;

typedef struct adl_runner_loader {
    const char *key;    /* starts with "train", "valid" or "infer"; copied */
    adl_loader *loader; /* its order in the list is the order in an epoch */
} adl_runner_loader;

typedef struct adl_runner_options {
    size_t size; /* sizeof(adl_runner_options), set by the _INIT macro */
    int epochs;  /* in all, those of earlier runs included */
    adl_model model;
    const adl_optim_ops *optim; /* borrowed until adl_finish */
    double momentum;            /* of the optimizer: a column in the logs */
    adl_saved schedule;         /* a learning-rate schedule; self NULL: none */
    adl_schedule_clock schedule_by;
    void (*schedule_step)(void *self);         /* by epoch, by step */
    void (*schedule_at)(void *self, double t); /* by progress */
    adl_loss_fn loss;                          /* NULL: only with loaders "infer..." */
    void *loss_user;
    int target_part;               /* of the batches: the loss's target; default 1 */
    int topk[ADL_RUNNER_TOPK_MAX]; /* accuracy@k for these k, from int32 labels in target_part:
                                    * metrics accuracy01, accuracy05 ...; 0 ends the list */
    adl_runner_loader loaders[ADL_RUNNER_LOADERS_MAX]; /* key NULL ends the list; one "train..." */
    const adl_runner_callback *callbacks;              /* [callback_count]; copied */
    size_t callback_count;
    const adl_dp_options *dp; /* name, rule, clip_norm, bucket_bytes ...; NULL: the defaults */

    FILE
        *console; /* a line for each loader and epoch, and progress: a bar on a terminal, a line for
                    * each tenth in a file. NULL: silent. Borrowed */
    bool progress;
    const char
        *logdir; /* where the files below go, on a disk that all replicas share or that rank 0
                         * stays on; NULL: none. Copied */
    bool csv, tensorboard;
    const char *hparams; /* a JSON text for LOGDIR/csv_logger/hparams.json; NULL: none. Copied */

    /* The metric that models are compared by, for checkpoints and early stopping. */
    const char *valid_loader; /* key; NULL: "valid" if there is one, else the training loader */
    const char *valid_metric; /* "loss", "accuracy01", one of a callback's ... */
    bool maximize;            /* larger is better */
    int keep_best; /* models kept as model.NNNN.adl; 0: none, or with save_best the best */
    bool save_best, save_last;
    bool load_best_on_end; /* parameters and buffers of the best epoch when training is over */
    const char *resume;    /* a model file whose values are taken at the start of a job (not when it
                            * goes on from a checkpoint); NULL: none. Copied */
    int patience;          /* stop after so many epochs without a better metric; 0: never */
    double min_delta;      /* better by more than this */
} adl_runner_options;

#define ADL_RUNNER_OPTIONS_INIT                                                                    \
    {                                                                                              \
        .size = sizeof(adl_runner_options), .epochs = 1, .target_part = 1, .console = stdout,      \
        .progress = true, .csv = true, .tensorboard = true, .valid_metric = "loss",                \
        .keep_best = 1, .save_best = true, .save_last = true                                       \
    }

/* ---- training ---------------------------------------------------------------------------------- */

/* Makes a runner and the data-parallel wrapper inside it; takes saved state over. Belongs to the
 * context. Collective. EINVAL names what is wrong: a loader's key, a loader that is empty or not
 * there, no or two training loaders, a valid_loader that is none of them, an option out of range. */
ADL_API ADL_MUST adl_status adl_runner_new(adl_context *ctx, const adl_runner_options *options,
                                           adl_runner **out);
/* Trains the epochs that are left. Blocks. ADL_OK: finished, or stopped early; ADL_EINTR:
 * interrupted; else the failure, which the context has been told. */
ADL_API ADL_MUST adl_status adl_runner_run(adl_runner *runner);
/* Both. */
ADL_API ADL_MUST adl_status adl_runner_train(adl_context *ctx, const adl_runner_options *options);

/* ---- for callbacks ----------------------------------------------------------------------------- */

ADL_API adl_context *adl_runner_context(adl_runner *runner);
/* The present epoch, from 1, of how many. */
ADL_API int adl_runner_epoch(const adl_runner *runner);
ADL_API int adl_runner_epochs(const adl_runner *runner);
/* The loader in hand, NULL between loaders; is it the training loader? */
ADL_API const char *adl_runner_key(const adl_runner *runner);
ADL_API bool adl_runner_training(const adl_runner *runner);
ADL_API adl_loader *adl_runner_loader_of(const adl_runner *runner, const char *key);
/* The batch in hand, how many of its examples count, the output [size][width] and the mean loss, both
 * in batch_end only. */
ADL_API const adl_batch *adl_runner_batch(const adl_runner *runner);
ADL_API int adl_runner_batch_size(const adl_runner *runner);
ADL_API const float *adl_runner_output(const adl_runner *runner);
ADL_API double adl_runner_loss(const adl_runner *runner);
/* Training batches since the job began, over restarts; learning rate of the first group; the wrapper. */
ADL_API uint64_t adl_runner_steps(const adl_runner *runner);
ADL_API double adl_runner_lr(const adl_runner *runner);
ADL_API adl_dp *adl_runner_dp(const adl_runner *runner);

/* A metric of the callback's own, in batch_end: the mean over all batches and replicas, each value with
 * its weight (usually adl_runner_batch_size), and its standard deviation as NAME/std. In epoch_end: a
 * column of _epoch_, the same on all replicas; weight is not used. EINVAL: a name that is empty, too
 * long, or has other characters than letters, digits and _ - . / : @ */
ADL_API ADL_MUST adl_status adl_runner_metric(adl_runner *runner, const char *name, double value,
                                              double weight);
/* A metric of the present epoch, of a loader that is done; the name "accuracy" stands for accuracy01.
 * ENOENT says which there are. */
ADL_API ADL_MUST adl_status adl_runner_get(const adl_runner *runner, const char *key,
                                           const char *name, double *out);
/* The best metric so far and its epoch, 0 before there is one. */
ADL_API int adl_runner_best(const adl_runner *runner, double *value);
/* The present epoch is the last one, also after a restart. One replica that asks is enough. */
ADL_API void adl_runner_stop(adl_runner *runner);

/* ---- our networks ------------------------------------------------------------------------------ */

static inline adl_status adl_runner_net_forward(void *self, const adl_batch *batch, int size,
                                                bool train, const float **out)
{
    adl_pass pass = {.train = train, .seed = batch->seed};
    return adl_net_forward((adl_net *)self, (const float *)batch->part[0], size,
                           train ? &pass : NULL, out);
}
static inline adl_status adl_runner_net_backward(void *self, const float *dout)
{
    return adl_net_backward((adl_net *)self, dout, NULL, ADL_GRAD_SET);
}
static inline void adl_runner_net_hook(void *self, adl_grad_hook hook, void *context)
{
    adl_net_set_hook((adl_net *)self, hook, context);
}
static inline void adl_runner_net_schedule(void *self)
{
    adl_schedule_step((adl_schedule *)self);
}
static inline void adl_runner_net_schedule_at(void *self, double t)
{
    adl_schedule_at((adl_schedule *)self, t);
}
/* Fills in a network of ours (built; part 0 of a batch is its input), its optimizer and its schedule
 * (may be NULL). All are borrowed until adl_finish. */
static inline void adl_runner_net(adl_runner_options *options, adl_net *net, adl_optim *optim,
                                  adl_schedule *schedule)
{
    adl_model model = {.self = net,
                       .width = (int)adl_nn_shape_count(adl_net_output_shape(net)),
                       .forward = adl_runner_net_forward,
                       .backward = adl_runner_net_backward,
                       .set_hook = adl_runner_net_hook};
    model.buffers = adl_net_buffers(net, &model.buffer_count);
    adl_net_flat(net, NULL, &model.flat_grads, &model.flat_count);
    options->model = model;
    options->optim = adl_optim_get_ops(optim);
    options->momentum = adl_optim_momentum(optim, 0);
    if (!schedule)
        return;
    options->schedule = adl_saved_schedule(schedule);
    options->schedule_step = adl_runner_net_schedule;
    options->schedule_at = adl_runner_net_schedule_at;
}

/* Our losses as adl_loss_fn. */
static inline adl_status adl_runner_nll(void *user, const float *out, const void *target, int size,
                                        int width, double *loss, float *dout)
{
    (void)user;
    return adl_loss_nll(out, (const int32_t *)target, size, width, ADL_MEAN, loss, dout);
}
static inline adl_status adl_runner_cross_entropy(void *user, const float *out, const void *target,
                                                  int size, int width, double *loss, float *dout)
{
    (void)user;
    return adl_loss_cross_entropy(out, (const int32_t *)target, size, width, ADL_MEAN, loss, dout);
}
static inline adl_status adl_runner_mse(void *user, const float *out, const void *target, int size,
                                        int width, double *loss, float *dout)
{
    (void)user;
    return adl_loss_mse(out, (const float *)target, size, width, ADL_MEAN, loss, dout);
}

#ifdef __cplusplus
}
#endif
#endif
