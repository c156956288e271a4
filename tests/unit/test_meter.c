/* The meter: the estimator's numbers, in the order of steps, however late norms come; over replicas;
 * accumulation, several passes, restarts. */
#include "train_replicas.h"

#include "adaptdl/meter.h"
#include "base/rng.h"

enum { B0 = 8, GROUPS = 2 };

/* A step of this many batches of m; norms are what the test says. */
static adl_meter_shape take_step(adl_meter *meter, adl_loop *loop, int m, int accum)
{
    adl_meter_pass pass = {0};
    adl_meter_shape shape = {0};
    for (int i = 0; i <= accum; i++) {
        CHECK(adl_loop_step(loop, m, false));
        CHECK_OK(adl_meter_begin(meter, &pass));
        CHECK(pass.micro == i && pass.new_batch && pass.optim_step == (i == accum));
        CHECK_OK(adl_meter_begin(meter, &pass));
        CHECK(pass.micro == i && !pass.new_batch);
        if (i == accum)
            CHECK_OK(adl_meter_step(meter, &shape));
        else
            adl_loop_commit(loop, 0);
    }
    return shape;
}

static void end_step(adl_meter *meter, adl_loop *loop)
{
    adl_meter_advance(meter);
    adl_loop_commit(loop, 0);
}

static adl_loop *begin(adl_context *ctx, const char *name, int m, int accum)
{
    adl_loop *loop;
    bool run;
    int local_bsz, accum_steps;
    if (adl_loop_new(ctx, name, 0, B0, &loop) != ADL_OK)
        return NULL;
    CHECK_OK(adl_loop_begin(loop, &run));
    CHECK_OK(adl_loop_pass(loop, &local_bsz, &accum_steps));
    CHECK_OK(adl_loop_set_sizes(loop, m, accum));
    return loop;
}

/* Norms of step k on a replica; the mean over replicas is that of rank 1/2. */
static void norms_of(int k, double rank, double *local, double *total)
{
    for (int g = 0; g < GROUPS; g++) {
        total[g] = 1 + 0.1 * g + 0.01 * k;
        local[g] = total[g] + 0.5 + 0.02 * ((7 * k) % 5) + 0.1 * rank;
    }
}

/* ---- the same as the estimator ---- */

enum { STEPS = 20 };

static void sums_over_replicas(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    adl_meter *meter;
    adl_noise *noise;
    REQUIRE(adl_meter_new(ctx, "m", GROUPS, &meter) == ADL_OK);
    REQUIRE(adl_noise_new(GROUPS, &noise) == ADL_OK);
    ADL_EPOCHS (ctx, epoch, 1) {
        adl_loop *loop = begin(ctx, "l", 4, 2);
        for (int k = 0; k < STEPS; k++) {
            double local[GROUPS], total[GROUPS], before = adl_noise_progress(noise);
            adl_meter_shape shape = take_step(meter, loop, 4, 2);
            CHECK(shape.accum_scale == 4.0 * replica->replicas / B0 && shape.accum_count == 3);
            CHECK(shape.scale == shape.accum_scale * 3 && shape.measured && !shape.restart);
            /* The sums of the step before count now, on every replica. */
            CHECK(adl_meter_accum_count(meter) == 3);
            adl_grad_params a = adl_noise_params(noise),
                            b = adl_noise_params(adl_meter_noise(meter));
            CHECK_NEAR(a.sqr, b.sqr, 1e-12);
            CHECK_NEAR(a.var, b.var, 1e-12);
            norms_of(k, replica->rank, local, total);
            for (int g = 0; g < GROUPS; g++)
                local[g] *= 3; /* the sum over its micro-gradients */
            CHECK_OK(adl_meter_norms(meter, local, total, NULL, 1));
            adl_scaling_rule rule = {.kind = ADL_SCALING_ADASCALE};
            CHECK(adl_meter_factor(meter, &rule, 0, shape.scale) >= 1);
            CHECK(adl_meter_factor(meter, &rule, 0, 1) == 1);
            end_step(meter, loop);
            adl_noise_advance(noise, shape.scale);
            CHECK_NEAR(adl_noise_progress(adl_meter_noise(meter)) - before,
                       adl_noise_progress(noise) - before, 1e-9);
            norms_of(k, (replica->replicas - 1) / 2.0, local, total);
            CHECK_OK(
                adl_noise_update(noise, local, total, 3 * replica->replicas, shape.scale, 1, NULL));
        }
        CHECK(adl_meter_steps(meter) == STEPS);
        adl_loop_end(loop);
    }
    adl_noise_free(noise);
}

TEST(statistics_are_the_estimators)
{
    adlt_job job = {0};
    adlt_replica out[3];
    adlt_replicas_run(&job, 3, sums_over_replicas, out);
    for (int r = 0; r < 3; r++)
        CHECK(out[r].code == 0);
}

/* ---- late norms, passes, pairs ---- */

static void lateness(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    adl_meter *meter;
    double local[GROUPS], total[GROUPS], passes[GROUPS];
    REQUIRE(adl_meter_new(ctx, "m", GROUPS, &meter) == ADL_OK);
    ADL_EPOCHS (ctx, epoch, 1) {
        adl_loop *loop = begin(ctx, "l", 4, 1);
        for (int k = 0; k < ADL_METER_LATE_MAX; k++) {
            take_step(meter, loop, 4, 1);
            end_step(meter, loop);
        }
        CHECK(adl_noise_params(adl_meter_noise(meter)).sqr == 2); /* nothing is known: 1 each */
        for (int k = 0; k < ADL_METER_LATE_MAX; k++) {
            norms_of(k, 0, local, total);
            for (int g = 0; g < GROUPS; g++)
                local[g] *= 2, passes[g] = total[g] + 0.25, local[g] += 2 * 0.25;
            CHECK_OK(adl_meter_norms(meter, local, total, passes, 1));
        }
        CHECK_OK(adl_meter_norms(meter, local, total, NULL, 1)); /* one too many: ignored */
        adl_noise *noise;
        REQUIRE(adl_noise_new(GROUPS, &noise) == ADL_OK);
        for (int k = 0; k < ADL_METER_LATE_MAX; k++) {
            norms_of(k, 0, local, total);
            CHECK_OK(adl_noise_update(noise, local, total, 2, 1, 1, NULL));
        }
        CHECK_NEAR(adl_noise_params(noise).var, adl_noise_params(adl_meter_noise(meter)).var,
                   1e-12);
        adl_noise_free(noise);
        /* Norms that are not finite are left out, and do no harm. */
        double var = adl_noise_params(adl_meter_noise(meter)).var;
        take_step(meter, loop, 4, 1);
        local[0] = NAN;
        CHECK_OK(adl_meter_norms(meter, local, total, NULL, 1));
        CHECK(adl_meter_skipped(meter) == 1);
        CHECK(adl_noise_params(adl_meter_noise(meter)).var == var);
        end_step(meter, loop);
        for (int k = 0; k < ADL_METER_LATE_MAX; k++) {
            take_step(meter, loop, 4, 1);
            end_step(meter, loop);
        }
        adl_meter_shape shape;
        adl_meter_pass pass;
        CHECK(adl_loop_step(loop, 4, true));
        CHECK_OK(adl_meter_begin(meter, &pass));
        CHECK(adl_meter_step(meter, &shape) == ADL_ESTATE);
        adl_loop_end(loop);
    }
}

TEST(norms_may_come_late)
{
    adlt_job job = {0};
    adlt_replica out[1];
    adlt_replicas_run(&job, 1, lateness, out);
    CHECK(out[0].code == 1); /* the last step had one too many before it */
}

static void pairs(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    adl_meter *meter;
    adl_meter_pass pass;
    adl_meter_shape shape;
    REQUIRE(adl_meter_new(ctx, "m", 1, &meter) == ADL_OK);
    CHECK(adl_meter_begin(meter, &pass) == ADL_ESTATE);
    CHECK(strstr(adl_error(), "outside a loop"));
    CHECK(adl_meter_step(meter, &shape) == ADL_ESTATE);
    CHECK(adl_context_status(ctx) == ADL_OK);
    ADL_EPOCHS (ctx, epoch, 1) {
        adl_loop *loop = begin(ctx, "l", 8, 0);
        for (int k = 0; k < 10; k++) {
            CHECK(adl_loop_step(loop, 8, false));
            CHECK_OK(adl_meter_begin(meter, &pass));
            CHECK(pass.single);
            CHECK_OK(adl_meter_step(meter, &shape));
            /* g = (3, 1), h = (3, -1): the mean is (3, 0) */
            double pair[3] = {10, 10, 4};
            CHECK_OK(adl_meter_pair(meter, k % 2 ? pair : NULL, 1));
            end_step(meter, loop);
        }
        adl_grad_params grad = adl_noise_params(adl_meter_noise(meter));
        CHECK(adl_noise_biased(adl_meter_noise(meter)));
        CHECK_NEAR(grad.sqr, 8, 1e-9); /* 2 * 9 - 10 */
        CHECK_NEAR(grad.var, 2, 1e-9); /* (10 - 9) * 2 */
        /* A short batch says nothing; another size restarts moments. */
        CHECK(adl_loop_step(loop, 5, false));
        CHECK_OK(adl_meter_begin(meter, &pass));
        CHECK_OK(adl_meter_step(meter, &shape));
        CHECK(!shape.measured && !shape.restart);
        end_step(meter, loop);
        CHECK_OK(adl_loop_set_sizes(loop, 16, 0));
        CHECK(adl_loop_step(loop, 16, false));
        CHECK_OK(adl_meter_begin(meter, &pass));
        CHECK_OK(adl_meter_step(meter, &shape));
        CHECK(shape.restart && shape.scale == 2 && adl_meter_steps(meter) == 0);
        adl_meter_set_accum_scale(meter, 3);
        CHECK(adl_meter_accum_scale(meter) == 3);
        end_step(meter, loop);
        /* Another loop becomes the training loop. */
        adl_loop_end(loop);
        CHECK(adl_loop_training(loop));
        loop = begin(ctx, "other", 8, 0);
        CHECK(adl_loop_step(loop, 8, false));
        CHECK_OK(adl_meter_begin(meter, &pass));
        CHECK(adl_loop_training(loop));
        adl_loop_end(loop);
    }
    adl_meter *none;
    CHECK(adl_meter_new(ctx, "m", 1, &none) == ADL_ESTATE && !none);
    CHECK(adl_meter_new(ctx, "", 1, &none) == ADL_EINVAL);
    CHECK(adl_meter_new(ctx, "n", 0, &none) == ADL_EINVAL);
    CHECK(adl_meter_new(ctx, "n", ADL_METER_GROUPS_MAX + 1, &none) == ADL_EINVAL);
}

TEST(single_gradients_come_in_pairs)
{
    adlt_job job = {0};
    adlt_replica out[1];
    adlt_replicas_run(&job, 1, pairs, out);
    CHECK(out[0].code == 0);
}

/* ---- over restarts ---- */

static double kept[4];

static void save_some(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    adl_meter *meter;
    double local[1] = {6}, total[1] = {2};
    bool restarted = replica->job->restarts > 0;
    REQUIRE(adl_meter_new(ctx, "m", 1, &meter) == ADL_OK);
    const adl_noise *noise = adl_meter_noise(meter);
    if (restarted && replica->rank == 0) {
        CHECK(adl_noise_params(noise).sqr == kept[0] && adl_noise_params(noise).var == kept[1]);
        CHECK(adl_noise_progress(noise) == kept[2] && (double)adl_meter_steps(meter) == kept[3]);
    }
    if (restarted)
        return;
    ADL_EPOCHS (ctx, epoch, 1) {
        adl_loop *loop = begin(ctx, "l", 4, 1);
        take_step(meter, loop, 4, 1);
        CHECK_OK(adl_meter_norms(meter, local, total, NULL, 1));
        end_step(meter, loop);
        adl_meter_set_progress(meter, 42.5);
        adl_loop_end(loop);
    }
    /* The sums that are still on their way are part of the checkpoint. */
    CHECK_OK(adl_checkpoint_save_all(adl_context_store(ctx)));
    if (replica->rank == 0) {
        kept[0] = adl_noise_params(noise).sqr, kept[1] = adl_noise_params(noise).var;
        kept[2] = adl_noise_progress(noise), kept[3] = (double)adl_meter_steps(meter);
        CHECK(kept[1] > 0 && kept[2] == 42.5 && kept[3] == 1);
    }
}

TEST(statistics_survive_restarts)
{
    char *folder = adlt_tempdir();
    REQUIRE(folder);
    adlt_job job = {.checkpoint = folder};
    adlt_replica out[2];
    adlt_replicas_run(&job, 2, save_some, out);
    CHECK(out[0].code == 0 && out[1].code == 0);
    job.restarts = 1;
    adlt_replicas_run(&job, 1, save_some, out);
    CHECK(out[0].code == 0);
    adlt_tempdir_remove(folder);
}

/* ---- loops that move their own index ---- */

static void own_index(adlt_replica *replica)
{
    adl_context *ctx = replica->ctx;
    ADL_EPOCHS (ctx, epoch, 1) {
        adl_loop *loop = begin(ctx, "l", 2, 0);
        if (replica->job->restarts == 0) {
            adl_loop_set_end(loop, 49);
            adl_loop_set_index(loop, 27);
            adl_loop_no_profile(loop);
            adl_loop_add_sync(loop, 0.5);
            CHECK_OK(adl_loop_train(loop));
            CHECK_OK(adl_checkpoint_save_all(adl_context_store(ctx)));
            adl_stop(ctx);
            CHECK(!adl_loop_step(loop, 2, false));
        } else {
            CHECK(adl_loop_index(loop) == 27 && adl_loop_end_index(loop) == 49);
            adl_loop_set_end(loop, 99);
            CHECK(adl_loop_index(loop) == 55); /* ceil(27 * 99 / 49) */
        }
        adl_loop_end(loop);
        CHECK(adl_loop_set_sizes(loop, 0, 0) == ADL_EINVAL);
    }
}

TEST(loops_may_move_their_own_index)
{
    char *folder = adlt_tempdir();
    REQUIRE(folder);
    adlt_job job = {.checkpoint = folder};
    adlt_replica out[1];
    adlt_replicas_run(&job, 1, own_index, out);
    CHECK(out[0].code == 143);
    job.restarts = 1;
    adlt_replicas_run(&job, 1, own_index, out);
    CHECK(out[0].code == 0);
    adlt_tempdir_remove(folder);
}
