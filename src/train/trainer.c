#include "adaptdl/trainer.h"

#include "adaptdl/epoch.h"
#include "base/mem.h"
#include "train/context.h"
#include "train/loop.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

struct adl_trainer {
    adl_context *ctx;
    adl_loop *loop;
    adl_dp *dp;
    adl_epochs epochs;
    bool in_epoch;
};

adl_status adl_trainer_new(adl_context *ctx, int batch_size, int max_batch_size, int min_local,
                           int max_local, size_t examples, adl_trainer **out)
{
    *out = NULL;
    adl_loop *loop;
    adl_status status = adl_loop_new(ctx, "trainer", examples, batch_size, &loop);
    if (status == ADL_OK && (max_batch_size || min_local || max_local)) {
        /* Bounded by one of them alone: the other follows. */
        int64_t most = max_batch_size ? max_batch_size : (int64_t)max_local * ctx->env.replicas;
        most = most < batch_size && !max_batch_size ? batch_size : most;
        status = adl_loop_autoscale(loop, most > INT_MAX ? INT_MAX : (int)most, min_local,
                                    max_local, false);
    }
    if (status != ADL_OK)
        return status;
    adl_trainer *trainer = adli_calloc(1, sizeof *trainer);
    if (!trainer)
        return adli_fail_memory("trainer");
    *trainer = (adl_trainer){.ctx = ctx, .loop = loop};
    status = adli_context_own(ctx, trainer, free);
    if (status == ADL_OK)
        *out = trainer;
    return status;
}

adl_status adl_trainer_reentry(adl_trainer *trainer, const adl_dp_options *options)
{
    if (trainer->dp)
        return adli_fail(ADL_ESTATE, "trainer: there is a model already");
    return adl_dp_new(trainer->ctx, options, &trainer->dp);
}

int adl_trainer_epoch(const adl_trainer *trainer)
{
    return adl_finished_epochs(trainer->ctx);
}

uint64_t adl_trainer_index(const adl_trainer *trainer)
{
    return adl_loop_index(trainer->loop);
}

/* Gradients may come at any time, so the loop is always before a step or in one. */
static bool begin_epoch(adl_trainer *trainer)
{
    bool run;
    int local_bsz, accum_steps;
    trainer->epochs = adl_epochs_begin(trainer->ctx, INT_MAX);
    if (!adl_epochs_next(&trainer->epochs) || !adl_epochs_enter(&trainer->epochs))
        return false;
    trainer->in_epoch = true;
    return adl_loop_begin(trainer->loop, &run) == ADL_OK && run &&
           adl_loop_pass(trainer->loop, &local_bsz, &accum_steps) == ADL_OK &&
           adl_loop_step(trainer->loop, local_bsz, false);
}

int adl_trainer_local_bsz(adl_trainer *trainer)
{
    if (!trainer->in_epoch && !begin_epoch(trainer))
        return 0;
    return adl_stopped(trainer->ctx) ? 0 : trainer->loop->local_bsz;
}

adl_status adl_trainer_optimize(adl_trainer *trainer)
{
    adl_loop *loop = trainer->loop;
    if (!trainer->dp || !trainer->in_epoch)
        return adl_fail(trainer->ctx, adli_fail(ADL_ESTATE, "trainer: %s",
                                                trainer->dp ? "a step outside an epoch"
                                                            : "there is no model yet"));
    adl_status status = adl_dp_step(trainer->dp);
    if (status != ADL_OK)
        return status;
    /* The program ends the epoch, at the end of its data, not the progress made. */
    adl_loop_commit(loop, (size_t)loop->local_bsz * (size_t)adl_replicas(trainer->ctx));
    adl_loop_step(loop, loop->local_bsz, false);
    return adl_context_status(trainer->ctx);
}

adl_status adl_trainer_step(adl_trainer *trainer, int epoch)
{
    if (adl_stopped(trainer->ctx))
        return adl_context_status(trainer->ctx);
    if (!trainer->in_epoch || epoch != adl_finished_epochs(trainer->ctx))
        return adl_fail(trainer->ctx,
                        adli_fail(ADL_EINVAL, "trainer: epoch %d is not the present one", epoch));
    adl_loop_end(trainer->loop);
    adl_epochs_leave(&trainer->epochs);
    adl_epochs_end(&trainer->epochs);
    trainer->in_epoch = false;
    return ADL_OK;
}

double adl_trainer_predict_gain(const adl_trainer *trainer, double scale)
{
    return trainer->dp ? adl_dp_predict_gain(trainer->dp, scale) : 1;
}

adl_status adl_trainer_update_scale(adl_trainer *trainer, double scale, int replicas)
{
    double local = scale * trainer->loop->batch_size / replicas;
    if (replicas != adl_replicas(trainer->ctx))
        return adli_fail(ADL_EINVAL, "trainer: %d replicas, there are %d", replicas,
                         adl_replicas(trainer->ctx));
    if (!(local >= 0.5 && local < INT_MAX / 2))
        return adli_fail(ADL_EINVAL, "trainer: scale %g makes batches of %g", scale, local);
    return adl_loop_set_sizes(trainer->loop, (int)lround(local), 0);
}
