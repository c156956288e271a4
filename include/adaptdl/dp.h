/* Data parallel: makes one optimizer step out of the gradients of all replicas and accumulation
 * steps, measures the gradient noise scale on the way, and scales the learning rate to the batch size.
 *
 *     adl_dp_options options = ADL_DP_OPTIONS_INIT;
 *     options.optim = adl_optim_get_ops(optim);
 *     adl_dp *dp;
 *     adl_dp_new(ctx, &options, &dp);
 *     ADL_BATCHES (train, batch) {
 *         ... forward, backward: every gradient is set (not added to) by this batch ...
 *         adl_dp_step(dp);
 *     }
 *
 * For one of our networks train.h has adl_dp_net, which fills in the rest. Foreign code describes its
 * arrays by adl_param and its optimizer by adl_optim_ops.
 *
 * What a step does, with count = R (s + 1) micro-gradients g_i, each the mean over m examples:
 *   1. g = mean of the g_i, over accumulation steps and replicas; buckets travel while backward is
 *      still busy when adl_dp_grad_ready tells which gradients are final.
 *   2. |G|^2 and tr(Sigma) from mean |g_i|^2 and |g|^2 (noise.h); for Adam after division by its
 *      preconditioner, once 5 steps were taken. With a single micro-gradient, from the differences of
 *      consecutive ones, in pairs.
 *   3. clipping, if asked for: g is shortened to norm c / sqrt(r), r = gain(scale). The mean square
 *      norm of a gradient is |G|^2 + tr(Sigma) / scale = (|G|^2 + tr(Sigma)) / r, so this is the
 *      threshold c of the initial batch size in units of the gradient's own typical length: as large
 *      a share of the steps is clipped at any batch size. With the rate scaled by r the longest step
 *      is sqrt(r) lr c: more than one step at the initial batch size may take, less than the r steps
 *      it stands for.
 *   4. one optimizer step with each group's rate times the rule's factor (scaling.h), for this step
 *      only. When the scale has changed since the last step, Adam's moments are restarted first, unless ADAPTDL_MOMENTS=keep.
 *   5. progress += gain(scale).
 * A gradient with a value that is not finite is skipped as a whole, on all replicas (warned once). */
#ifndef ADAPTDL_DP_H
#define ADAPTDL_DP_H

#include "adaptdl/allreduce.h"
#include "adaptdl/context.h"
#include "adaptdl/goodput.h"
#include "adaptdl/optim.h"
#include "adaptdl/scaling.h"
#include "adaptdl/tensorboard.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_dp adl_dp;

/* Something that is saved and restored with the model: a learning-rate schedule, a loss scaler. */
typedef struct adl_saved {
    void *self; /* NULL: nothing. Borrowed until adl_finish */
    size_t (*save_size)(const void *self);
    void (*save)(const void *self, void *out);
    adl_status (*load)(void *self, const void *data, size_t length);
} adl_saved;

#define ADL_DP_SAVED_MAX 4

typedef struct adl_dp_options {
    size_t size;                /* sizeof(adl_dp_options), set by the _INIT macro */
    const char *name;           /* of its state in the checkpoint; unique in the program. Copied. */
    const adl_optim_ops *optim; /* parameters and how to step them; borrowed until adl_finish */
    const adl_param *buffers;   /* [buffer_count] saved with the parameters, not trained (running
                                 * statistics); grad is not used. Borrowed until adl_finish */
    size_t buffer_count;
    adl_saved saved[ADL_DP_SAVED_MAX]; /* saved too; unused ones are zero */
    float *flat_grads;            /* all gradients lie in this one block of flat_count floats, */
    size_t flat_count;            /* gaps zero: they are then reduced in place. NULL: copied */
    const adl_scaling_rule *rule; /* NULL: AdamScale for kinds "adam" and "adamw", else AdaScale.
                                        * Copied. */
    double clip_norm;             /* threshold c at the initial batch size; 0: no clipping */
    size_t bucket_bytes;          /* gradients reduced in one go, about */
    adl_transport transport;
    adl_wire wire;
} adl_dp_options;

#define ADL_DP_OPTIONS_INIT                                                                        \
    {                                                                                              \
        .size = sizeof(adl_dp_options), .name = "model", .bucket_bytes = (size_t)1 << 20           \
    }

/* Collective. Takes a saved state over, or else gives all replicas the values of rank 0. Belongs to
 * the context; the first one made is the one whose statistics choose batch sizes. EINVAL: options;
 * ESTATE: the name is taken; ECORRUPT: the saved state does not fit these parameters. */
ADL_API ADL_MUST adl_status adl_dp_new(adl_context *ctx, const adl_dp_options *options,
                                       adl_dp **out);

/* The gradient of this parameter is final for this batch: index over all groups, in their order. May
 * start sending it. In the same order on all replicas; calling it is optional. ESTATE outside a loop
 * over data. Returns what it gives the context as a failure. */
ADL_API adl_status adl_dp_grad_ready(adl_dp *dp, size_t param);
/* The same in the form of adl_grad_hook, for adl_net_set_hook. */
ADL_API adl_status adl_dp_hook(void *dp, size_t param);

/* Once after each batch's backward pass: accumulates, or takes an optimizer step, as the loop says.
 * Blocks until the gradients are averaged. ESTATE outside a loop over data. A failure also stops the
 * context, so the result may be ignored. */
ADL_API adl_status adl_dp_step(adl_dp *dp);

/* Gradients are multiplied by this (mixed precision); their statistics and the threshold of clipping
 * are corrected, the gradients are not. Default 1. */
ADL_API void adl_dp_set_loss_scale(adl_dp *dp, double loss_scale);

/* gain(scale) at the present scale, and at any other. */
ADL_API double adl_dp_gain(const adl_dp *dp);
ADL_API double adl_dp_predict_gain(const adl_dp *dp, double scale);
/* The statistics, summed over groups; scale-invariant iterations; the last step's factor on the rate of
 * a group; steps skipped for gradients that were not finite. */
ADL_API adl_grad_params adl_dp_grad_params(const adl_dp *dp);
ADL_API double adl_dp_progress(const adl_dp *dp);
ADL_API double adl_dp_lr_factor(const adl_dp *dp, size_t group);
ADL_API int64_t adl_dp_skipped(const adl_dp *dp);

/* Writes Gradient_Norm_Sqr, Gradient_Variance, Gain, Learning_Rate_Factor, Accum_Scale, Accum_Count
 * and Progress, each tag after prefix (may be NULL). A NULL writer is fine. */
ADL_API adl_status adl_dp_to_tensorboard(const adl_dp *dp, adl_tensorboard *writer, int64_t step,
                                         const char *prefix);

#ifdef __cplusplus
}
#endif
#endif
