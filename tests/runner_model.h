/* A network that is none of ours, for tests of the runner: three outputs w[c] * x of one number x, with a
 * label, trained towards 1 at the label. Small enough to know every number in advance. */
#ifndef ADLT_RUNNER_MODEL_H
#define ADLT_RUNNER_MODEL_H

#include "train_replicas.h"

#include "adaptdl/runner.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/values.h"

#include <dirent.h>
#include <sys/stat.h>

enum { TINY_WIDTH = 3, TINY_BATCH_MAX = 64, TINY_TEXT_MAX = 1 << 20 };

typedef struct tiny {
    float w[TINY_WIDTH], grad[TINY_WIDTH];
    float out[TINY_BATCH_MAX * TINY_WIDTH];
    float x[TINY_BATCH_MAX];
    int size;
    adl_param param;
    adl_optim *optim;
    adl_schedule *schedule;
} tiny;

/* Example i: x = 1 + i % 3, label i % 3. */
static inline adl_status tiny_fill(void *user, const adl_fill *fill)
{
    (void)user;
    for (int i = 0; i < fill->count; i++) {
        ((float *)fill->part[0])[i] = (float)(1 + fill->index[i] % TINY_WIDTH);
        ((int32_t *)fill->part[1])[i] = (int32_t)(fill->index[i] % TINY_WIDTH);
    }
    return ADL_OK;
}

static inline adl_status tiny_forward(void *self, const adl_batch *batch, int size, bool train,
                                      const float **out)
{
    tiny *model = self;
    (void)train;
    model->size = size;
    memcpy(model->x, batch->part[0], (size_t)size * sizeof(float));
    for (int b = 0; b < size; b++)
        for (int c = 0; c < TINY_WIDTH; c++)
            model->out[b * TINY_WIDTH + c] = model->w[c] * model->x[b];
    *out = model->out;
    return ADL_OK;
}

static inline adl_status tiny_backward(void *self, const float *dout)
{
    tiny *model = self;
    memset(model->grad, 0, sizeof model->grad);
    for (int b = 0; b < model->size; b++)
        for (int c = 0; c < TINY_WIDTH; c++)
            model->grad[c] += dout[b * TINY_WIDTH + c] * model->x[b];
    return ADL_OK;
}

/* Mean of (out[label] - 1)^2. */
static inline adl_status tiny_loss(void *user, const float *out, const void *target, int size,
                                   int width, double *loss, float *dout)
{
    const int32_t *label = target;
    (void)user;
    *loss = 0;
    if (dout)
        memset(dout, 0, (size_t)(size * width) * sizeof(float));
    for (int b = 0; b < size; b++) {
        double error = (double)out[b * width + label[b]] - 1;
        *loss += error * error / size;
        if (dout)
            dout[b * width + label[b]] = (float)(2 * error / size);
    }
    return ADL_OK;
}

static inline adl_loader *tiny_loader(adl_context *ctx, const char *name, size_t examples,
                                      int batch)
{
    adl_loader_options options = ADL_LOADER_OPTIONS_INIT;
    adl_loader *loader = NULL;
    options.name = name;
    options.examples = examples;
    options.batch_size = batch;
    options.part_bytes[0] = sizeof(float);
    options.part_bytes[1] = sizeof(int32_t);
    options.fill = tiny_fill;
    if (adl_loader_new(ctx, &options, &loader) != ADL_OK)
        return NULL;
    return loader;
}

/* The model with SGD of rate 0.01, halved after each epoch; valid until tiny_fini. */
static inline bool tiny_init(tiny *model)
{
    adl_optim_options sgd = ADL_SGD_INIT(0.01);
    adl_schedule_options half = {
        .size = sizeof(adl_schedule_options), .kind = ADL_EXPONENTIAL_LR, .gamma = 0.5};
    *model = (tiny){.w = {0.1f, 0.2f, 0.3f}};
    model->param = (adl_param){"w", model->w, model->grad, TINY_WIDTH};
    sgd.momentum = 0.5;
    return adl_optim_new(&model->param, 1, &sgd, &model->optim) == ADL_OK &&
           adl_schedule_new(adl_optim_get_ops(model->optim), &half, &model->schedule) == ADL_OK;
}

static inline void tiny_fini(tiny *model)
{
    adl_schedule_free(model->schedule);
    adl_optim_free(model->optim);
}

/* Options that train it for three epochs on 24 examples in batches of 4 and validate on 7 in 3s. */
static inline adl_runner_options tiny_options(adl_context *ctx, tiny *model)
{
    adl_runner_options options = ADL_RUNNER_OPTIONS_INIT;
    options.epochs = 3;
    options.model = (adl_model){
        .self = model, .width = TINY_WIDTH, .forward = tiny_forward, .backward = tiny_backward};
    options.optim = adl_optim_get_ops(model->optim);
    options.momentum = 0.5;
    options.schedule = adl_saved_schedule(model->schedule);
    options.schedule_step = adl_runner_net_schedule;
    options.schedule_at = adl_runner_net_schedule_at;
    options.loss = tiny_loss;
    options.loaders[0] = (adl_runner_loader){"train", tiny_loader(ctx, "train", 24, 4)};
    options.loaders[1] = (adl_runner_loader){"valid", tiny_loader(ctx, "valid", 7, 3)};
    options.console = NULL;
    return options;
}

/* A file's text; "" when there is none. Static storage. */
static inline const char *file_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline const char *file_text(const char *format, ...)
{
    static adli_buf text;
    char path[512];
    va_list args;
    va_start(args, format);
    vsnprintf(path, sizeof path, format, args);
    va_end(args);
    adli_buf_fini(&text);
    adli_buf_init(&text, TINY_TEXT_MAX);
    return adli_file_read(path, &text) == ADL_OK ? text.data : "";
}

/* How often `what` is in the text. */
static inline int occurrences(const char *text, const char *what)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
        count++;
    return count;
}

/* How many event files of LOGDIR/tensorboard/KEY there are, and how often the bytes are in them. */
static inline int events_with(const char *logdir, const char *key, const char *what, int *files)
{
    char path[512];
    int count = 0;
    snprintf(path, sizeof path, "%s/tensorboard/%s", logdir, key);
    DIR *dir = opendir(path);
    *files = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        adli_buf bytes;
        char file[1024];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        adli_buf_init(&bytes, TINY_TEXT_MAX);
        ++*files;
        if (adli_file_read(file, &bytes) == ADL_OK)
            for (const char *at = bytes.data, *end = at + bytes.length;
                 (at = memmem(at, (size_t)(end - at), what, strlen(what))); at++)
                count++;
        adli_buf_fini(&bytes);
    }
    if (dir)
        closedir(dir);
    return count;
}

/* The values in LOGDIR/checkpoints/NAME; false when it is not there or not of this model. */
static inline bool model_file(const char *logdir, const char *name, float w[TINY_WIDTH])
{
    adl_param param = {"w", w, NULL, TINY_WIDTH};
    adl_param_group lists[2] = {{&param, 1}, {NULL, 0}};
    char path[512];
    adli_buf bytes;
    snprintf(path, sizeof path, "%s/checkpoints/%s", logdir, name);
    adli_buf_init(&bytes, TINY_TEXT_MAX);
    bool good = adli_file_read(path, &bytes) == ADL_OK &&
                adli_values_load(lists, 2, bytes.data, bytes.length) == ADL_OK;
    adli_buf_fini(&bytes);
    return good;
}

#endif
