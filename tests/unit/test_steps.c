/* The loop by steps: it ends at the number of steps, over restarts and on any number of replicas, and
 * every pass has each example once. */
#include "train_replicas.h"

enum { EXAMPLES = 10, BATCH = 2, UNTIL = 13 }; /* five steps a pass: two passes and three steps */

typedef struct count {
    int until;
    int stop_at;   /* interrupt at this step; -1: never */
    int leave_at;  /* break at this step; -1: never */
    bool no_steps; /* the body takes none */
    int first, last, batches;
    int seen[3][EXAMPLES]; /* how often, in each pass, by rank 0 and all others together */
    bool stopped;
} count;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void see(count *to, int pass, const adl_batch *batch)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; pass < 3 && i < batch->size; i++)
        to->seen[pass][batch->index[i]]++;
    pthread_mutex_unlock(&lock);
}

static float values[ADLT_REPLICAS_MAX], grads[ADLT_REPLICAS_MAX];
static adl_param params[ADLT_REPLICAS_MAX];
static adl_optim *optims[ADLT_REPLICAS_MAX];

static void body(adlt_replica *replica)
{
    count *to = replica->job->user;
    adl_context *ctx = replica->ctx;
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    adl_loader *loader;
    adl_dp *dp;
    data.examples = EXAMPLES;
    data.batch_size = BATCH;
    data.shuffle = true;
    options.optim = adl_optim_get_ops(optims[replica->rank]);
    REQUIRE_OK(adl_loader_new(ctx, &data, &loader));
    REQUIRE_OK(adl_dp_new(ctx, &options, &dp));
    if (replica->rank == 0)
        to->first = (int)adl_global_step(ctx);
    ADL_STEPS(loader, batch, to->until)
    {
        int step = (int)adl_global_step(ctx);
        if (step == to->leave_at)
            break;
        if (replica->rank == 0)
            to->batches++;
        see(to, adl_current_epoch(ctx), batch);
        grads[replica->rank] = 1;
        if (!to->no_steps)
            adl_dp_step(dp);
        if (step == to->stop_at)
            adl_stop(ctx);
    }
    if (replica->rank == 0)
        to->last = (int)adl_global_step(ctx);
    to->stopped = adl_stopped(ctx);
    if (to->no_steps)
        CHECK(strstr(adl_context_error(ctx), "no training step was taken") != NULL);
    CHECK_INT(adl_current_epoch(ctx), -1); /* outside */
}

static void run(count *to, const char *checkpoint, int restarts, int replicas, int code)
{
    adlt_job job = {.checkpoint = checkpoint, .restarts = restarts, .user = to};
    adl_optim_options sgd = ADL_SGD_INIT(0.5);
    for (int r = 0; r < replicas; r++) {
        values[r] = 0;
        params[r] = (adl_param){"w", &values[r], &grads[r], 1};
        REQUIRE_OK(adl_optim_new(&params[r], 1, &sgd, &optims[r]));
    }
    adlt_replicas_expect(&job, replicas, body, code);
    for (int r = 0; r < replicas; r++)
        adl_optim_free(optims[r]);
}

TEST(it_ends_at_the_number_of_steps)
{
    count to = {.until = UNTIL, .stop_at = -1, .leave_at = -1};
    run(&to, NULL, 0, 1, 0);
    CHECK_INT(to.last, UNTIL);
    CHECK_INT(to.batches, UNTIL);
    CHECK_NEAR(values[0], -0.5 * UNTIL, 1e-6); /* the model has seen every step */
    for (int i = 0; i < EXAMPLES; i++)
        CHECK(to.seen[0][i] == 1 && to.seen[1][i] == 1 && to.seen[2][i] <= 1);
}

TEST(interrupted_it_goes_on_at_the_very_step)
{
    char *directory = adlt_tempdir();
    count to = {.until = UNTIL, .stop_at = 6, .leave_at = -1};
    run(&to, directory, 0, 2, 143);
    CHECK(to.last == 7 || to.last == 8); /* replicas agree a step later */
    int before = to.last;
    to.stop_at = -1;
    run(&to, directory, 1, 1, 0);
    CHECK_INT(to.first, before);
    CHECK_INT(to.last, UNTIL);
    for (int i = 0; i < EXAMPLES; i++)
        CHECK(to.seen[0][i] == 1 && to.seen[1][i] == 1);
    CHECK_NEAR(values[0], -0.5 * UNTIL, 1e-6);
    run(&to, directory, 2, 2, 0); /* nothing is left to do */
    CHECK_INT(to.first, UNTIL);
    CHECK_INT(to.last, UNTIL);
    to.until = UNTIL + 4;
    run(&to, directory, 3, 1, 0);
    CHECK_INT(to.last, UNTIL + 4);
    adlt_tempdir_remove(directory);
}

TEST(it_may_be_left_early_and_must_take_steps)
{
    count to = {.until = UNTIL, .stop_at = -1, .leave_at = 3};
    run(&to, NULL, 0, 1, 0);
    CHECK_INT(to.last, 3);
    count none = {.until = UNTIL, .stop_at = -1, .leave_at = -1, .no_steps = true};
    run(&none, NULL, 0, 1, 1);
    CHECK_INT(none.batches, EXAMPLES / BATCH); /* one pass, not for ever */
    count zero = {.until = 0, .stop_at = -1, .leave_at = -1};
    run(&zero, NULL, 0, 1, 0);
    CHECK_INT(zero.batches, 0);
}

/* Asked to stop in the last step: all steps are taken, and the pass is over like one that was not asked to. */
TEST(asked_to_stop_in_the_last_step_it_leaves_no_pass_open)
{
    for (int replicas = 1; replicas <= 2; replicas++) {
        char *directory = adlt_tempdir();
        count to = {.until = UNTIL, .stop_at = UNTIL - 1, .leave_at = -1};
        run(&to, directory, 0, replicas, 0);
        CHECK_INT(to.last, UNTIL);
        to = (count){.until = UNTIL + 5, .stop_at = -1, .leave_at = -1};
        run(&to, directory, 1, replicas, 0); /* one pass more, the fourth */
        CHECK_INT(to.batches, 5);
        for (int i = 0; i < EXAMPLES; i++)
            CHECK(to.seen[2][i] == 0);
        adlt_tempdir_remove(directory);
    }
}
