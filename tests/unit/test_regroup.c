/* Worlds that change while a program trains: nobody who stays is stopped, every example is seen once, and what comes
 * out is what an undisturbed run has. */
#include "train_replicas.h"

#include "base/mem.h"
#include "train/context.h"
#include "train/loop.h"
#include "train/regroup.h"
#include "train/vote.h"

#include <math.h>
#include <stdatomic.h>

enum { EXAMPLES = 600, BATCH = 10, EPOCHS = 3, D = 64 };

/* One change: when a world is so many steps old, its rank 0 is offered another, with these ranks. */
typedef struct change {
    int step, replicas;
    int ranks[ADLT_REPLICAS_MAX];
} change;

typedef struct task {
    const change *changes;
    int change_count;
    atomic_int seen[EPOCHS][EXAMPLES];
    atomic_int world_steps[8]; /* steps taken in each world, by its rank 0 */
    float result[D];
    adl_grad_params grad;
    double sum; /* of an accumulator */
    int last_replicas;
} task;

/* A port that was free a moment ago. */
static int free_port(void)
{
    int fd, port = 0;
    CHECK_OK(adl_group_listen("127.0.0.1", 0, &fd, &port));
    close(fd);
    return port;
}

static void offer(adl_context *ctx, const change *next)
{
    adli_offer told = {.world = {.generation = ctx->world.generation + 1,
                                 .replicas = next->replicas,
                                 .nodes = 1,
                                 .master_addr = (char *)"127.0.0.1",
                                 .master_port = free_port()},
                       .count = ctx->world.replicas,
                       .ranks = (int *)next->ranks};
    CHECK_OK(adli_regroup_offer(ctx, &told));
}

/* The gradient of one example is its own, and the same wherever it is computed. */
static void add_gradient(float *grad, size_t example)
{
    for (int k = 0; k < D; k++)
        grad[k] += (float)((example * 7 + (size_t)k * 13) % 31) / 31.0f - 0.3f;
}

static void train(adlt_replica *replica)
{
    task *work = replica->job->user;
    adl_context *ctx = replica->ctx;
    float *value = calloc(2 * D, sizeof *value), *grad = value + D;
    adl_param param = {"w", value, grad, D};
    adl_optim_options sgd = ADL_SGD_INIT(0.01);
    adl_optim *optim = NULL;
    adl_dp *dp = NULL;
    adl_loader *loader = NULL;
    adl_accumulator *sums = NULL;
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    CHECK_OK(adl_optim_new(&param, 1, &sgd, &optim));
    options.optim = adl_optim_get_ops(optim);
    data.examples = EXAMPLES;
    data.batch_size = BATCH;
    data.shuffle = true;
    CHECK_OK(adl_loader_new(ctx, &data, &loader));
    CHECK_OK(adl_dp_new(ctx, &options, &dp));
    CHECK_OK(adl_accumulator_new(ctx, "sums", &sums));
    int step = 0, age = 0;
    uint32_t seen_world = 0;
    ADL_EPOCHS (ctx, epoch, EPOCHS) {
        ADL_BATCHES (loader, batch) {
            uint32_t world = ctx->world.generation;
            age = world == seen_world ? age + 1 : 0;
            seen_world = world;
            if (adl_rank(ctx) == 0 && (int)world < work->change_count &&
                age == work->changes[world].step)
                offer(ctx, &work->changes[world]);
            while (adl_rank(ctx) == 0 && adli_regroup_wishes(ctx) & ADLI_WISH_WAIT)
                usleep(200); /* steps take no time here, a group does */
            memset(grad, 0, D * sizeof *grad);
            for (int i = 0; i < batch->size; i++) {
                atomic_fetch_add(&work->seen[epoch][batch->index[i]], 1);
                add_gradient(grad, batch->index[i]);
            }
            for (int k = 0; k < D; k++)
                grad[k] = grad[k] / (float)batch->size + 0.1f * value[k];
            CHECK_OK(adl_dp_step(dp));
            if (adl_rank(ctx) == 0)
                atomic_fetch_add(&work->world_steps[world], 1);
            step++;
        }
    }
    if (adl_rank(ctx) == 0 && !adl_stopped(ctx)) {
        memcpy(work->result, value, sizeof work->result);
        work->grad = adl_dp_grad_params(dp);
        work->last_replicas = adl_replicas(ctx);
        CHECK_INT(step, EPOCHS * EXAMPLES / BATCH);
    }
    replica->code = adl_finish(ctx);
    adl_optim_free(optim);
    free(value);
    pthread_exit(NULL);
}

/* exits: codes by starting rank. */
static void run(task *work, int replicas, const int *exits)
{
    adlt_job job = {.user = work};
    adlt_replica all[ADLT_REPLICAS_MAX];
    adlt_replicas_run(&job, replicas, train, all);
    for (int r = 0; r < replicas; r++)
        if (all[r].code != exits[r])
            ADLT_FAIL("rank %d ended with %d, wanted %d: %s", r, all[r].code, exits[r],
                      all[r].error);
    for (int e = 0; e < EPOCHS; e++)
        for (int i = 0; i < EXAMPLES; i++)
            if (work->seen[e][i] != 1) {
                ADLT_FAIL("epoch %d: example %d was seen %d times", e, i, (int)work->seen[e][i]);
                return;
            }
}

static void check_same(const task *work)
{
    task *alone = calloc(1, sizeof *alone);
    run(alone, 1, (int[]){0});
    for (int k = 0; k < D; k++)
        CHECK_NEAR(work->result[k], alone->result[k], 1e-5);
    free(alone);
}

TEST(replicas_leave_and_change_places_and_the_others_go_on)
{
    static const change changes[] = {{7, 3, {0, 1, 2, -1}}, /* the last one leaves */
                                     {3, 2, {1, -1, 0}},    /* rank 0 becomes rank 1, 1 leaves */
                                     {20, 2, {1, 0}},       /* they change places */
                                     {1, 1, {-1, 0}}};      /* rank 0 leaves the other alone */
    task *work = calloc(1, sizeof *work);
    work->changes = changes;
    work->change_count = 4;
    run(work, 4, (int[]){143, 143, 0, 143});
    CHECK_INT(work->last_replicas, 1);
    for (int world = 0; world < 5; world++)
        CHECK(work->world_steps[world] > 0);
    check_same(work);
    free(work);
}

/* Nobody listens where the next world is said to be: the present one goes on. */
static void offer_nowhere(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    adl_loader *loader = NULL;
    adl_loader_options data = ADL_LOADER_OPTIONS_INIT;
    data.examples = 4000;
    data.batch_size = 4;
    ctx->options.connect_timeout_ms = 300;
    CHECK_OK(adl_loader_new(ctx, &data, &loader));
    int steps = 0;
    ADL_EPOCHS (ctx, epoch, 1)
        ADL_BATCHES (loader, batch) {
            if (steps++ == 3 && replica->rank == 0) {
                change next = {0, 3, {0, 1}}; /* a third one that never comes */
                offer(ctx, &next);
            }
            while (steps == 10 && replica->rank == 0 && adli_regroup_wishes(ctx) & ADLI_WISH_WAIT)
                usleep(1000); /* until the waiting for it has ended */
        }
    CHECK_INT(steps, 1000);
    CHECK_INT(ctx->world.generation, 0);
    CHECK_INT(adl_replicas(ctx), 2);
}

TEST(a_world_that_does_not_come_to_be_is_dropped)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 2, offer_nowhere, 0);
}

/* ---- offers as bytes ---- */

TEST(offers_are_checked)
{
    int ranks[3] = {1, -1, 0};
    adli_offer told = {.world = {.generation = 7,
                                 .replicas = 2,
                                 .nodes = 1,
                                 .master_addr = (char *)"node-1",
                                 .master_port = 4711},
                       .count = 3,
                       .ranks = ranks},
               heard;
    size_t length;
    uint8_t *bytes = adli_offer_encode(&told, &length);
    REQUIRE_OK(adli_offer_parse(bytes, length, &heard));
    CHECK_INT(heard.world.generation, 7);
    CHECK_INT(heard.world.replicas, 2);
    CHECK_INT(heard.world.nodes, 1);
    CHECK_INT(heard.world.master_port, 4711);
    CHECK(strcmp(heard.world.master_addr, "node-1") == 0);
    CHECK_INT(heard.count, 3);
    CHECK(memcmp(heard.ranks, ranks, sizeof ranks) == 0);
    adli_offer_fini(&heard);
    for (size_t cut = 0; cut < length; cut++)
        CHECK_INT(adli_offer_parse(bytes, cut, &heard), ADL_ECORRUPT);
    free(bytes);
    static const int wrong[][3] = {{1, 1, 0}, {1, 2, 0}, {1, -2, 0}, {1, -1, -1}, {0, 0, 0}};
    for (size_t i = 0; i < ADLI_COUNT(wrong); i++) {
        memcpy(ranks, wrong[i], sizeof ranks);
        bytes = adli_offer_encode(&told, &length);
        CHECK_FAILS(adli_offer_parse(bytes, length, &heard), ADL_ECORRUPT, "makes no sense");
        free(bytes);
    }
}
