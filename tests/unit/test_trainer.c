/* The older trainer interface: that it is the newer ones put together. */
#include "train_replicas.h"

#include "adaptdl/trainer.h"

enum { EXAMPLES = 64, BATCH = 8, EPOCHS = 3 };

typedef struct record {
    int stop_epoch;
    int steps[EPOCHS]; /* of rank 0 */
    float value;
} record;

/* One parameter pulled towards 3 by SGD. */
static void train_epochs(adlt_replica *replica)
{
    record *log = replica->job->user;
    adl_context *ctx = replica->ctx;
    float value = 0, grad = 0;
    adl_param param = {"w", &value, &grad, 1};
    adl_optim_options sgd = ADL_SGD_INIT(0.1);
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    adl_optim *optim;
    adl_trainer *trainer;
    REQUIRE_OK(adl_optim_new(&param, 1, &sgd, &optim));
    options.optim = adl_optim_get_ops(optim);
    REQUIRE_OK(adl_trainer_new(ctx, BATCH, 0, 0, 0, EXAMPLES, &trainer));
    REQUIRE_OK(adl_trainer_reentry(trainer, &options));
    CHECK_FAILS(adl_trainer_reentry(trainer, &options), ADL_ESTATE, "a model already");
    while (adl_trainer_epoch(trainer) < EPOCHS && !adl_stopped(ctx)) {
        int epoch = adl_trainer_epoch(trainer), m = adl_trainer_local_bsz(trainer);
        CHECK_INT(m, BATCH / replica->replicas);
        while (adl_trainer_index(trainer) < EXAMPLES) {
            uint64_t index = adl_trainer_index(trainer);
            grad = value - 3;
            if (replica->rank == 0)
                log->steps[epoch]++;
            if (epoch == log->stop_epoch && index == EXAMPLES / 2)
                adl_stop(ctx);
            if (adl_trainer_optimize(trainer) != ADL_OK)
                break;
        }
        adl_trainer_step(trainer, epoch);
    }
    CHECK(adl_trainer_predict_gain(trainer, 1) == 1);
    if (replica->rank == 0)
        log->value = value;
    replica->code = adl_finish(ctx);
    adl_optim_free(optim);
    pthread_exit(NULL);
}

TEST(epochs_and_steps_resume_where_they_were)
{
    for (int replicas = 1; replicas <= 2; replicas++) {
        record straight = {.stop_epoch = -1}, broken = {.stop_epoch = 1};
        char *directory = adlt_tempdir();
        adlt_job job = {.user = &straight};
        adlt_replicas_expect(&job, replicas, train_epochs, 0);
        for (int e = 0; e < EPOCHS; e++)
            CHECK_INT(straight.steps[e], EXAMPLES / BATCH);
        job = (adlt_job){.user = &broken, .checkpoint = directory};
        adlt_replicas_expect(&job, replicas, train_epochs, 143);
        CHECK(broken.steps[1] > 0 && broken.steps[1] < EXAMPLES / BATCH && broken.steps[2] == 0);
        broken.stop_epoch = -1;
        job.restarts = 1;
        adlt_replicas_expect(&job, replicas, train_epochs, 0);
        for (int e = 0; e < EPOCHS; e++)
            CHECK_INT(broken.steps[e], EXAMPLES / BATCH);
        CHECK(fabsf(broken.value - straight.value) < 1e-6f && straight.value > 2);
        adlt_tempdir_remove(directory);
    }
}

static void misuse(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    float value = 0, grad = 1;
    adl_param param = {"w", &value, &grad, 1};
    adl_optim_options sgd = ADL_SGD_INIT(0.1);
    adl_dp_options options = ADL_DP_OPTIONS_INIT;
    adl_optim *optim;
    adl_trainer *trainer;
    REQUIRE_OK(adl_optim_new(&param, 1, &sgd, &optim));
    options.optim = adl_optim_get_ops(optim);
    REQUIRE_OK(adl_trainer_new(ctx, BATCH, 32, 2, 16, EXAMPLES, &trainer));
    REQUIRE_OK(adl_trainer_reentry(trainer, &options));
    CHECK_INT(adl_trainer_local_bsz(trainer), BATCH);
    CHECK_FAILS(adl_trainer_update_scale(trainer, 2, 5), ADL_EINVAL, "5 replicas, there are 1");
    CHECK_FAILS(adl_trainer_update_scale(trainer, 0.01, 1), ADL_EINVAL, "scale 0.01");
    CHECK_OK(adl_trainer_update_scale(trainer, 2, 1));
    CHECK_INT(adl_trainer_local_bsz(trainer), 2 * BATCH);
    CHECK_OK(adl_trainer_optimize(trainer));
    CHECK_INT(adl_trainer_index(trainer), 2 * BATCH);
    CHECK_FAILS(adl_trainer_step(trainer, 7), ADL_EINVAL, "epoch 7");
    replica->code = adl_finish(ctx);
    adl_optim_free(optim);
    pthread_exit(NULL);
}

TEST(misuse_is_named)
{
    static const adlt_job job = {0};
    adlt_replicas_expect(&job, 1, misuse, 1);
}
