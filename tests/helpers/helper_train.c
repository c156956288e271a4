/* A small training job for tests of a whole cluster, which proves afterwards that no sample was lost or
 * seen twice:
 *
 *     helper_train NAME=NUMBER...   epochs, examples, batch (over all replicas), step_us, example_us (the
 *                                   time that a step and each of its examples take), crash (that step of the
 *                                   first run ends in a crash), children (processes that rank 0 starts and
 *                                   leaves behind)
 *
 * A ledger, itself a state of the checkpoint, counts how often the surviving history has seen every
 * example of every epoch. When training is over rank 0 writes it to SHARE/ledger: a line "steps N value V"
 * (optimizer steps, and what a parameter that goes up by one with each has become), then a line of
 * counts for each epoch. Each replica appends "RESTARTS RANK REPLICAS" to SHARE/starts. */
#include "words.h"

#include "adaptdl/context.h"
#include "adaptdl/dp.h"
#include "adaptdl/epoch.h"
#include "adaptdl/loader.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

typedef struct plan {
    int epochs, examples, batch, step_us, example_us, crash, children;
} plan;

typedef struct ledger {
    adl_context *ctx;
    int64_t *seen, *pending; /* [epochs][examples] */
    size_t cells;
    uint64_t steps; /* optimizer steps */
    float value, grad;
    adl_param param;
    adl_optim *optim;
    adl_dp *dp;
} ledger;

static bool read_plan(int argc, char **argv, plan *out)
{
    const adlt_word words[] = {{"epochs", &out->epochs},         {"examples", &out->examples},
                               {"batch", &out->batch},           {"step_us", &out->step_us},
                               {"example_us", &out->example_us}, {"crash", &out->crash},
                               {"children", &out->children}};
    *out = (plan){.epochs = 2, .examples = 40, .batch = 4, .crash = -1};
    return adlt_read_words(argc, argv, words, sizeof words / sizeof words[0]) && out->epochs > 0 &&
           out->examples > 0 && out->batch > 0;
}

/* ---- files of the job ---- */

static void share_path(const adl_env *env, const char *name, char *out, size_t size)
{
    snprintf(out, size, "%s/%s", env->share_path, name);
}

static void note_start(const adl_env *env)
{
    char path[512], line[64];
    share_path(env, "starts", path, sizeof path);
    int who = getenv("ADAPTDL_MEMBER") ? env->member : env->rank;
    int length = snprintf(line, sizeof line, "%d %d %d\n", env->restarts, who, env->replicas);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, line, (size_t)length) != length)
        abort();
    close(fd);
}

/* Whole or not at all: this process may be killed in the middle. */
static int write_ledger(const ledger *book, const plan *job, const char *path)
{
    char partial[544];
    snprintf(partial, sizeof partial, "%s.%ld", path, (long)getpid());
    FILE *file = fopen(partial, "w");
    if (!file)
        return 1;
    fprintf(file, "steps %llu value %.1f\n", (unsigned long long)book->steps, book->value);
    for (size_t i = 0; i < book->cells; i++)
        fprintf(file, "%lld%c", (long long)book->seen[i],
                (i + 1) % (size_t)job->examples ? ' ' : '\n');
    return fclose(file) != 0 || rename(partial, path) != 0;
}

/* True once in the life of the job. */
static bool first_time(const adl_env *env)
{
    char path[512];
    share_path(env, "crashed", path, sizeof path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static void crash(void)
{
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    signal(SIGABRT, SIG_DFL);
    fprintf(stderr, "helper_train: crashes on purpose\n");
    abort();
}

/* As workers of a data loader that nobody ends: in sessions of their own, deaf to SIGTERM. */
static void start_children(int count)
{
    for (int i = 0; i < count; i++) {
        if (fork() != 0)
            continue;
        setsid();
        signal(SIGTERM, SIG_IGN);
        signal(SIGINT, SIG_IGN);
        for (;;)
            pause();
    }
}

/* ---- the ledger in the checkpoint ---- */

static adl_status sync_ledger(void *user)
{
    ledger *book = user;
    adl_status status = adl_group_allreduce(adl_context_group(book->ctx), book->pending,
                                            book->cells, ADL_TYPE_I64, ADL_REDUCE_SUM);
    for (size_t i = 0; status == ADL_OK && i < book->cells; i++) {
        book->seen[i] += book->pending[i];
        book->pending[i] = 0;
    }
    return status;
}

static adl_status save_ledger(void *user, adl_sink *sink)
{
    ledger *book = user;
    adl_sink_u64(sink, book->steps);
    return adl_sink_write(sink, book->seen, book->cells * sizeof *book->seen);
}

static adl_status load_ledger(void *user, adl_source *source)
{
    ledger *book = user;
    adl_status status = adl_source_u64(source, &book->steps);
    if (status == ADL_OK)
        status = adl_source_read(source, book->seen, book->cells * sizeof *book->seen);
    return status;
}

static const adl_checkpoint_functions ledger_functions = {sizeof ledger_functions, save_ledger,
                                                          load_ledger, sync_ledger};

/* ---- training ---- */

static adl_status prepare(adl_context *ctx, const plan *job, ledger *book, adl_loader **loader)
{
    adl_loader_options load = ADL_LOADER_OPTIONS_INIT;
    adl_optim_options sgd = ADL_SGD_INIT(1);
    adl_dp_options parallel = ADL_DP_OPTIONS_INIT;
    book->ctx = ctx;
    book->cells = (size_t)job->epochs * (size_t)job->examples;
    book->seen = calloc(book->cells, sizeof *book->seen);
    book->pending = calloc(book->cells, sizeof *book->pending);
    book->param = (adl_param){"steps", &book->value, &book->grad, 1};
    load.examples = (size_t)job->examples;
    load.batch_size = job->batch;
    load.shuffle = true;
    parallel.rule = &(adl_scaling_rule){.kind = ADL_SCALING_LINEAR};
    adl_status status = book->seen && book->pending ? ADL_OK : ADL_ENOMEM;
    if (status == ADL_OK)
        status = adl_state(ctx, "ledger", &ledger_functions, book, NULL);
    if (status == ADL_OK)
        status = adl_optim_new(&book->param, 1, &sgd, &book->optim);
    if (status == ADL_OK) {
        parallel.optim = adl_optim_get_ops(book->optim);
        status = adl_dp_new(ctx, &parallel, &book->dp);
    }
    if (status == ADL_OK)
        status = adl_loader_new(ctx, &load, loader);
    return status;
}

static void train(adl_context *ctx, const plan *job, ledger *book, adl_loader *loader)
{
    int step = 0;
    ADL_EPOCHS (ctx, epoch, job->epochs)
        ADL_BATCHES (loader, batch) {
            if (step++ == job->crash && adl_rank(ctx) == 0 && first_time(adl_context_env(ctx)))
                crash();
            usleep((useconds_t)(job->step_us + job->example_us * batch->size));
            int64_t *row = book->pending + (size_t)epoch * (size_t)job->examples;
            for (int i = 0; i < batch->size - batch->extra; i++)
                row[batch->index[i]]++;
            /* The rule multiplies the rate by the scale, so the gradient is divided by it. */
            book->grad = -(float)job->batch / (float)adl_loop_batch_size(adl_loader_loop(loader));
            if (adl_dp_step(book->dp) == ADL_OK)
                book->steps++;
        }
    if (!adl_stopped(ctx))
        adl_context_fail(ctx, sync_ledger(book));
}

int main(int argc, char **argv)
{
    plan job;
    adl_env env;
    ledger book = {0};
    adl_context *ctx;
    adl_loader *loader;
    char result[512];
    if (!read_plan(argc, argv, &job) || adl_env_read(&env) != ADL_OK || !env.share_path)
        return 2;
    share_path(&env, "ledger", result, sizeof result);
    bool first = env.rank == 0 && !env.joins;
    note_start(&env);
    if (first)
        start_children(job.children);
    adl_options options = ADL_OPTIONS_INIT;
    options.checkpoint_interval_s = 0.2;
    options.hints_interval_s = 0.3;
    adl_status status = adl_init(&options, &ctx);
    if (status == ADL_OK) {
        adl_context_fail(ctx, prepare(ctx, &job, &book, &loader));
        if (!adl_stopped(ctx))
            train(ctx, &job, &book, loader);
        first = adl_rank(ctx) == 0; /* others may have come and gone */
    } else
        fprintf(stderr, "helper_train: %s\n", adl_error());
    int code = status == ADL_OK ? adl_finish(ctx) : adl_exit_code(status);
    if (code == 0 && first)
        code = write_ledger(&book, &job, result);
    adl_optim_free(book.optim);
    free(book.seen);
    free(book.pending);
    return code;
}
