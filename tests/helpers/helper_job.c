/* A short elastic training job for tests of the scheduler: helper_job LEDGER EPOCHS STEP_MS. Every replica
 * appends "start JOB RESTARTS MEMBER" to the ledger when it starts (members are never numbered twice, ranks come again
 * when a job is moved in place), and rank 0 "done JOB RESTARTS" when the job is finished; appends of one line each do
 * not mix. What it trains is noise, but it goes through loaders, all-reduce and checkpoints as training does, and its
 * reports make the scheduler give it more. */
#include "adaptdl/context.h"
#include "adaptdl/dp.h"
#include "adaptdl/epoch.h"
#include "adaptdl/loader.h"
#include "adaptdl/optim.h"
#include "base/rng.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 16 };

static void note(const char *path, const char *line)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, line, strlen(line)) != (ssize_t)strlen(line))
        abort();
    close(fd);
}

static float values[SIZE], grads[SIZE];
static adl_param param = {"noise", values, grads, SIZE};
static adl_optim *optim;
static adl_dp *dp;
static adli_rng rng;

static bool make_model(adl_context *ctx)
{
    adl_optim_options sgd = ADL_SGD_INIT(0.001);
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    adli_rng_init(&rng, (uint64_t)getpid());
    if (adl_optim_new(&param, 1, &sgd, &optim) != ADL_OK)
        return false;
    options.optim = adl_optim_get_ops(optim);
    return adl_dp_new(ctx, &options, &dp) == ADL_OK;
}

/* A small gradient in much noise: large batches pay. */
static void train_step(void)
{
    for (int i = 0; i < SIZE; i++)
        grads[i] = 0.1f + (float)(adli_rng_unit(&rng) - 0.5);
    if (adl_dp_step(dp) != ADL_OK) /* the context knows, and the loop ends */
        return;
}

/* Outside of the runtime's care a SIGTERM ends the replica, until it finishes: then it would turn a job that is done, and
 * that rank 0 has called done, into one that was interrupted. adl_finish looks at the stops that came before it itself. */
static volatile sig_atomic_t finishing;

static void stop(int number)
{
    (void)number;
    if (!finishing)
        _exit(143);
}

int main(int argc, char **argv)
{
    signal(SIGTERM, stop);
    if (argc != 4)
        return 2;
    adl_env env;
    char line[256], done[256];
    if (adl_env_read(&env) != ADL_OK)
        return 3;
    snprintf(line, sizeof line, "start %s %d %d\n", env.job_id, env.restarts, env.member);
    snprintf(done, sizeof done, "done %s %d\n", env.job_id, env.restarts);
    note(argv[1], line);

    adl_context *ctx;
    adl_options options = ADL_OPTIONS_INIT;
    options.checkpoint_interval_s = 0.2;
    options.hints_interval_s = 0.3;
    adl_status status = adl_init(&options, &ctx);
    if (status != ADL_OK) {
        fprintf(stderr, "helper_job: %s\n", adl_error());
        return adl_exit_code(status);
    }
    adl_loader *loader;
    adl_loader_options load = ADL_LOADER_OPTIONS_INIT;
    load.examples = 40;
    load.batch_size = 4;
    load.shuffle = true;
    if (adl_loader_new(ctx, &load, &loader) != ADL_OK)
        return 4;
    if (adl_loader_autoscale(loader, 64, 1, 16, true) != ADL_OK || !make_model(ctx))
        return 5;
    useconds_t step_us = (useconds_t)(1000 * atoi(argv[3]));
    ADL_EPOCHS (ctx, epoch, atoi(argv[2]))
        ADL_BATCHES (loader, batch) {
            (void)batch;
            usleep(step_us);
            train_step();
        }
    bool first = adl_rank(ctx) == 0;
    finishing = 1;
    int code = adl_finish(ctx);
    adl_optim_free(optim);
    if (code == 0 && first)
        note(argv[1], done);
    return code;
}
