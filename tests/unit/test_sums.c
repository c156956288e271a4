/* Sums of accumulators when a replica dies: the others go on without a restart, and every example has been added once, in
 * training, where the step carries them, and in a loop that only counts, which goes back to where they were shared. */
#include "worlds.h"

#include "train/context.h"
#include "train/loop.h"

#include <stdatomic.h>

enum { EXAMPLES = 480, BATCH = 12, EPOCHS = 3, D = 4, REPLICAS = 3 };

typedef struct task {
    const char *loop; /* in which one dies */
    int batch;        /* at that one of epoch 1 */
    int victim;       /* member */
    bool late;        /* what is counted is added after the step */
    bool marks;       /* sums are shared in the middle of the loop that counts */
    bool scopes;      /* a scope is entered in the middle of a batch */
    atomic_int wrong, epochs, deaths;
} task;

static bool dies(adlt_replica *replica, const char *loop, int epoch, const adl_batch *batch)
{
    task *work = replica->job->user;
    adl_context *ctx = replica->ctx;
    if (!work->loop || strcmp(work->loop, loop) != 0 || epoch != 1 || ctx->world.generation > 0 ||
        ctx->member != work->victim || (int)batch->number != work->batch)
        return false;
    work->deaths++;
    adl_context_failf(ctx, ADL_EIO, "dies on purpose");
    return true;
}

static void count(adlt_replica *replica, adl_accumulator *sums, adl_loader *loader, int epoch)
{
    task *work = replica->job->user;
    adl_context *ctx = replica->ctx;
    ADL_BATCHES (loader, batch) {
        if (work->marks && batch->number == 5)
            ctx->current->mark_s = -10; /* rank 0 will find that it is time */
        adl_accumulator_add(sums, "counted", batch->size - batch->extra);
        if (work->scopes && batch->number == 3)
            ADL_SYNCHRONIZED (sums)
                work->wrong += adl_accumulator_get(sums, "counted") < BATCH;
        if (dies(replica, "count", epoch, batch))
            break;
        usleep(500u * (unsigned)(1 + adl_rank(ctx))); /* they are not all at the same batch */
    }
}

static void step(adlt_replica *replica, adl_accumulator *sums, adl_dp *dp, const adl_batch *batch)
{
    const task *work = replica->job->user;
    if (!work->late)
        adl_accumulator_add(sums, "trained", batch->size - batch->extra);
    CHECK_OK(adl_dp_step(dp));
    if (work->late && !replica->ctx->lost)
        adl_accumulator_add(sums, "trained", batch->size - batch->extra);
}

static void train(adlt_replica *replica)
{
    task *work = replica->job->user;
    adl_context *ctx = replica->ctx;
    float value[2 * D] = {0}, *grad = value + D;
    adl_param param = {"w", value, grad, D};
    adl_optim_options sgd = ADL_SGD_INIT(0.01);
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    adl_optim *optim = NULL;
    adl_dp *dp = NULL;
    adl_loader *loader = NULL, *test = NULL;
    adl_accumulator *sums = NULL, *others = NULL;
    data.examples = EXAMPLES;
    data.batch_size = BATCH;
    CHECK_OK(adl_optim_new(&param, 1, &sgd, &optim));
    options.optim = adl_optim_get_ops(optim);
    CHECK_OK(adl_loader_new(ctx, &data, &loader));
    data.examples = EXAMPLES + 1; /* on three and on two replicas some have it twice */
    CHECK_OK(adl_loader_new(ctx, &data, &test));
    CHECK_OK(adl_dp_new(ctx, &options, &dp));
    CHECK_OK(adl_accumulator_new(ctx, "sums", &sums));
    CHECK_OK(adl_accumulator_new(ctx, "others", &others));
    ADL_EPOCHS (ctx, epoch, EPOCHS) {
        ADL_BATCHES (loader, batch) {
            adl_accumulator_add(others, "batches", adl_rank(ctx) == 0);
            for (int k = 0; k < D; k++)
                grad[k] = 1;
            if (dies(replica, "train", epoch, batch))
                break;
            step(replica, sums, dp, batch);
            usleep(200);
        }
        if (!adl_stopped(ctx))
            count(replica, sums, test, epoch);
        ADL_SYNCHRONIZED (sums) {
            if (adl_accumulator_get(sums, "trained") != EXAMPLES ||
                adl_accumulator_get(sums, "counted") != EXAMPLES + 1)
                ADLT_FAIL("epoch %d: %g were trained on, %g counted", epoch,
                          adl_accumulator_get(sums, "trained"),
                          adl_accumulator_get(sums, "counted"));
            work->epochs++;
            adl_accumulator_clear(sums);
        }
        ADL_SYNCHRONIZED (others) {
            CHECK_INT((int)adl_accumulator_get(others, "batches"), EXAMPLES / BATCH);
            adl_accumulator_clear(others);
        }
    }
    replica->code = adl_finish(ctx); /* before what it uses is gone */
    adl_optim_free(optim);
    pthread_exit(NULL);
}

static void run(task *work, const int *exits)
{
    adlt_worlds worlds;
    adlt_replica all[ADLT_REPLICAS_MAX];
    adlt_worlds_start(&worlds, REPLICAS, work->victim);
    adlt_job job = {.user = work, .world_socket = worlds.path};
    adlt_replicas_run(&job, REPLICAS, train, all);
    adlt_worlds_stop(&worlds);
    for (int r = 0; r < REPLICAS; r++)
        if (all[r].code != exits[r])
            ADLT_FAIL("victim %d in %s at %d: replica %d ended with %d, wanted %d: %s",
                      work->victim, work->loop, work->batch, r, all[r].code, exits[r],
                      all[r].error);
    CHECK_INT(work->wrong, 0);
}

static void survive(task work)
{
    int exits[REPLICAS] = {0};
    exits[work.victim] = 1;
    run(&work, exits);
    CHECK_INT(work.deaths, 1);
    CHECK_INT(work.epochs, EPOCHS * (REPLICAS - 1) + 1); /* the victim's first */
}

TEST(nobody_dies)
{
    task work = {.victim = -1};
    run(&work, (int[]){0, 0, 0});
    CHECK_INT(work.epochs, EPOCHS * REPLICAS);
}

TEST(sums_of_training_outlive_a_replica)
{
    for (int victim = 0; victim < REPLICAS; victim++)
        for (int batch = 0; batch < EXAMPLES / BATCH; batch += 13)
            survive((task){.loop = "train", .batch = batch, .victim = victim});
}

TEST(a_loop_that_counts_goes_back)
{
    for (int victim = 0; victim < REPLICAS; victim++)
        for (int marks = 0; marks < 2; marks++)
            for (int batch = 0; batch < EXAMPLES / BATCH; batch += 19)
                survive((task){.loop = "count", .batch = batch, .victim = victim, .marks = marks});
}

TEST(what_is_added_after_the_step_is_shared_before_the_next)
{
    survive((task){.loop = "train", .batch = 20, .victim = 1, .late = true});
    survive((task){.loop = "train", .batch = 20, .victim = 0, .late = true});
}

/* What was looked at in the middle of a batch can't be taken back: they stop, to be restarted from a checkpoint. */
TEST(a_scope_in_the_middle_is_not_gone_back_over)
{
    task work = {.loop = "count", .batch = 10, .victim = 1, .scopes = true};
    run(&work, (int[]){1, 1, 1});
}
