/* A training program whose model is its ledger: one parameter for each example of each epoch, which goes up by one when
 * a step with that example is applied. What the parameters are at the end is what was applied, whatever happened to the
 * replicas meanwhile.
 *
 *     helper_elastic NAME=NUMBER...   epochs, examples, batch (over all replicas), step_us, example_us (the time
 *                                     that a step and each of its examples take), calls (1: collective calls
 *                                     of the program's own outside the loops), load_us (before the first epoch), join_us
 *                                     (likewise, of those that join), sums (1: examples
 *                                     are counted by an accumulator, in training and in a loop after it; 2: after the step)
 *
 * Rank 0 writes SHARE/ledger at the end: "replicas N steps S loss L", then a line of counts for each epoch; and before it
 * SHARE/weights, to the last bit. Each process appends "RESTARTS MEMBER PID JOINS" to SHARE/starts, and "MEMBER JOINED" to it when it is in its first epoch. */
#include "words.h"

#include "adaptdl/accumulator.h"
#include "adaptdl/context.h"
#include "adaptdl/dp.h"
#include "adaptdl/epoch.h"
#include "adaptdl/loader.h"
#include "adaptdl/steps.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WEIGHTS = 32 };

typedef struct plan {
    int epochs, examples, batch, step_us, example_us, calls, load_us, join_us, sums;
} plan;

typedef struct model {
    float *value, *grad; /* [cells + WEIGHTS]: the ledger, then what learns something */
    size_t cells;
    adl_param param[2];
    adl_optim *optim;
    adl_dp *dp;
    adl_loader *loader, *test;
    adl_accumulator *sums;
} model;

static bool read_plan(int argc, char **argv, plan *out)
{
    const adlt_word words[] = {
        {"epochs", &out->epochs},   {"examples", &out->examples},     {"batch", &out->batch},
        {"step_us", &out->step_us}, {"example_us", &out->example_us}, {"calls", &out->calls},
        {"load_us", &out->load_us}, {"join_us", &out->join_us},       {"sums", &out->sums}};
    *out = (plan){.epochs = 3, .examples = 120, .batch = 12};
    return adlt_read_words(argc, argv, words, sizeof words / sizeof words[0]) && out->epochs > 0 &&
           out->examples > 0 && out->batch > 0;
}

static void note(const adl_env *env, const char *text)
{
    char path[512], line[128];
    snprintf(path, sizeof path, "%s/starts", env->share_path);
    int length = snprintf(line, sizeof line, "%d %s\n", env->member, text);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, line, (size_t)length) != length)
        abort();
    close(fd);
}

static adl_status prepare(adl_context *ctx, const plan *job, model *one)
{
    adl_loader_options load = ADL_LOADER_OPTIONS_INIT;
    adl_optim_options sgd = ADL_SGD_INIT(1);
    adl_dp_options parallel = ADL_DP_OPTIONS_INIT;
    one->cells = (size_t)job->epochs * (size_t)job->examples;
    one->value = calloc(one->cells + WEIGHTS, sizeof(float));
    one->grad = calloc(one->cells + WEIGHTS, sizeof(float));
    if (!one->value || !one->grad)
        return ADL_ENOMEM;
    one->param[0] = (adl_param){"ledger", one->value, one->grad, one->cells};
    one->param[1] =
        (adl_param){"weights", one->value + one->cells, one->grad + one->cells, WEIGHTS};
    load.examples = (size_t)job->examples;
    load.batch_size = job->batch;
    load.shuffle = true;
    parallel.rule = &(adl_scaling_rule){.kind = ADL_SCALING_LINEAR};
    adl_status status = adl_optim_new(one->param, 2, &sgd, &one->optim);
    if (status == ADL_OK) {
        parallel.optim = adl_optim_get_ops(one->optim);
        status = adl_dp_new(ctx, &parallel, &one->dp);
    }
    if (status == ADL_OK)
        status = adl_loader_new(ctx, &load, &one->loader);
    if (status == ADL_OK && job->sums)
        status = adl_loader_new(ctx, &load, &one->test);
    if (status == ADL_OK && job->sums)
        status = adl_accumulator_new(ctx, "sums", &one->sums);
    return status;
}

/* Gradients are averaged over replicas of equal weight, and the rule multiplies the rate by the scale: both are taken
 * out, so that each example of the step counts one. */
static void fill_gradient(adl_context *ctx, const plan *job, model *one, const adl_batch *batch,
                          int epoch)
{
    float scale = (float)adl_loop_batch_size(adl_loader_loop(one->loader)) / (float)job->batch;
    float each = -(float)adl_replicas(ctx) / scale;
    float *weights = one->value + one->cells, *slope = one->grad + one->cells;
    memset(one->grad, 0, (one->cells + WEIGHTS) * sizeof(float));
    for (int i = 0; i < batch->size - batch->extra; i++) {
        size_t example = batch->index[i];
        one->grad[(size_t)epoch * (size_t)job->examples + example] += each;
        for (int k = 0; k < WEIGHTS; k++) /* towards a target of the example's own */
            slope[k] +=
                each * 0.001f * ((float)((example * 7 + (size_t)k * 13) % 31) / 31.0f - weights[k]);
    }
}

static bool call_others(adl_context *ctx, int64_t expected)
{
    int64_t value = adl_rank(ctx) == 0 ? expected : 0;
    if (adl_stopped(ctx))
        return true;
    adl_status status =
        adl_group_allreduce(adl_context_group(ctx), &value, 1, ADL_TYPE_I64, ADL_REDUCE_MAX);
    adl_context_fail(ctx, status);
    return status != ADL_OK || value == expected;
}

/* Whole or not at all: this process may be killed in the middle. */
static FILE *begin_file(adl_context *ctx, const char *name, char path[static 512],
                        char partial[static 544])
{
    snprintf(path, 512, "%s/%s", adl_context_env(ctx)->share_path, name);
    snprintf(partial, 544, "%s.%ld", path, (long)getpid());
    return fopen(partial, "w");
}

static int write_weights(adl_context *ctx, const model *one)
{
    char path[512], partial[544];
    FILE *file = begin_file(ctx, "weights", path, partial);
    if (!file)
        return 1;
    for (int k = 0; k < WEIGHTS; k++)
        fprintf(file, "%a\n", (double)one->value[one->cells + (size_t)k]);
    return fclose(file) != 0 || rename(partial, path) != 0;
}

static int write_ledger(adl_context *ctx, const model *one, const plan *job)
{
    char path[512], partial[544];
    double loss = 0;
    FILE *file = write_weights(ctx, one) == 0 ? begin_file(ctx, "ledger", path, partial) : NULL;
    if (!file)
        return 1;
    for (int k = 0; k < WEIGHTS; k++)
        loss += one->value[one->cells + (size_t)k];
    fprintf(file, "replicas %d steps %lld loss %.6f\n", adl_replicas(ctx),
            (long long)adl_global_step(ctx), loss);
    for (size_t i = 0; i < one->cells; i++)
        fprintf(file, "%g%c", (double)one->value[i], (i + 1) % (size_t)job->examples ? ' ' : '\n');
    return fclose(file) != 0 || rename(partial, path) != 0;
}

/* A loop that does not train, then what all replicas have counted in both: each example once. */
static bool count(adl_context *ctx, const plan *job, const model *one)
{
    bool right = true;
    ADL_BATCHES (one->test, batch) {
        usleep((useconds_t)job->step_us / 4);
        adl_accumulator_add(one->sums, "counted", batch->size - batch->extra);
    }
    ADL_SYNCHRONIZED (one->sums) {
        double trained = adl_accumulator_get(one->sums, "trained");
        double counted = adl_accumulator_get(one->sums, "counted");
        right = trained == job->examples && counted == job->examples;
        if (!right)
            fprintf(stderr, "helper_elastic: epoch %d: %g of %d were trained on, %g counted\n",
                    adl_current_epoch(ctx), trained, job->examples, counted);
        adl_accumulator_clear(one->sums);
    }
    return right;
}

static void step(adl_context *ctx, const plan *job, model *one, const adl_batch *batch, int epoch)
{
    fill_gradient(ctx, job, one, batch, epoch);
    if (job->sums == 1)
        adl_accumulator_add(one->sums, "trained", batch->size - batch->extra);
    adl_dp_step(one->dp);
    /* The ledger tells whether the step was applied: a void one comes again. */
    if (job->sums == 2 &&
        one->value[(size_t)epoch * (size_t)job->examples + batch->index[0]] > 0.5f)
        adl_accumulator_add(one->sums, "trained", batch->size - batch->extra);
}

static int train(adl_context *ctx, const plan *job, model *one)
{
    bool joined = false, right = true;
    if (job->calls)
        right &= call_others(ctx, 1000);
    ADL_EPOCHS (ctx, epoch, job->epochs) {
        if (!joined)
            note(adl_context_env(ctx), "joined");
        joined = true;
        if (job->calls)
            right &= call_others(ctx, 2000 + epoch);
        ADL_BATCHES (one->loader, batch) {
            usleep((useconds_t)(job->step_us + job->example_us * batch->size));
            step(ctx, job, one, batch, epoch);
        }
        right &= !job->sums || count(ctx, job, one);
    }
    if (!right)
        return 70;
    return adl_rank(ctx) == 0 && !adl_stopped(ctx) ? write_ledger(ctx, one, job) : 0;
}

int main(int argc, char **argv)
{
    plan job;
    adl_env env;
    model one = {0};
    adl_context *ctx;
    char line[64];
    if (!read_plan(argc, argv, &job) || adl_env_read(&env) != ADL_OK || !env.share_path)
        return 2;
    snprintf(line, sizeof line, "%d %ld %d", env.restarts, (long)getpid(), env.joins);
    note(&env, line);
    usleep((useconds_t)(env.joins ? job.load_us + job.join_us : job.load_us));
    adl_options options = ADL_OPTIONS_INIT;
    options.checkpoint_interval_s = 0.2;
    adl_status status = adl_init(&options, &ctx);
    if (status != ADL_OK) {
        fprintf(stderr, "helper_elastic: %s\n", adl_error());
        return adl_exit_code(status);
    }
    adl_context_fail(ctx, prepare(ctx, &job, &one));
    int wrong = adl_stopped(ctx) ? 0 : train(ctx, &job, &one);
    int code = adl_finish(ctx);
    adl_optim_free(one.optim);
    free(one.value);
    free(one.grad);
    return wrong ? wrong : code;
}
