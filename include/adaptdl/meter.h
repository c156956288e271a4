/* Gradient statistics for data parallelism that is done elsewhere: a framework averages the gradients
 * and steps the optimizer itself, measures squared norms on the way, and hands them in. What adl_dp
 * (dp.h) does with them is done here too: noise scale, gain, progress, what batch sizes are chosen by
 * and the scheduler is told.
 *
 *     adl_meter_begin(meter, &pass);             at the start of each backward pass in a batch
 *     ... gradients; |g|^2 before they are averaged over replicas, |mean|^2 after ...
 *     if (pass.optim_step) {
 *         adl_meter_step(meter, &step);          before the optimizer's step
 *         adl_meter_norms(meter, ...);           this step's, or those of one not long ago
 *         ... one optimizer step, learning rates times adl_meter_factor(meter, &rule, g) ...
 *         adl_meter_advance(meter);
 *     }
 *
 * Norms may come late, when they are still on their way from a device: each call is about the oldest
 * step that has none yet. With several replicas the sums over them are formed in the background and
 * count from the next step on, so that no step waits for the network. All replicas make the same
 * calls in the same order and see the same numbers.
 *
 * Threads and failures: as everywhere on a context; a failure also stops it. */
#ifndef ADAPTDL_METER_H
#define ADAPTDL_METER_H

#include "adaptdl/context.h"
#include "adaptdl/goodput.h"
#include "adaptdl/noise.h"
#include "adaptdl/scaling.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_meter adl_meter;

#define ADL_METER_GROUPS_MAX 1024
#define ADL_METER_LATE_MAX   4 /* steps that may be without norms */

/* For `groups` parameter groups. The name makes its state in the checkpoint: unique in the program;
 * saved statistics are taken over. Belongs to the context; the first adl_meter or adl_dp made is
 * the one whose statistics choose batch sizes. EINVAL, ESTATE: the name is wrong, or taken. */
ADL_API ADL_MUST adl_status adl_meter_new(adl_context *ctx, const char *name, size_t groups,
                                          adl_meter **out);

typedef struct adl_meter_pass {
    bool optim_step; /* does the batch end in an optimizer step (false: accumulate)? */
    int micro;       /* micro-gradients of the step before this batch; 0: a new step begins */
    bool single;     /* it is the only micro-gradient of its step: norms are those of pairs */
    bool new_batch;  /* the first pass in this batch */
    double
        weight; /* what this replica's gradient is to be multiplied by before the mean over replicas is
                      * taken; 1 unless the batch is dealt out unevenly. Norms are those of before */
} adl_meter_pass;

/* A backward pass begins, in the loop that thereby is the training loop. ESTATE outside a loop over
 * data, or in another loop than the training loop (the context goes on). */
ADL_API ADL_MUST adl_status adl_meter_begin(adl_meter *meter, adl_meter_pass *pass);

typedef struct adl_meter_shape {
    double scale;       /* of the step: B / B0, by the micro-gradients that it really has */
    double accum_scale; /* R m / B0 */
    int accum_count;    /* micro-gradients on each replica */
    bool measured;      /* adl_meter_norms is expected for it: every batch was full */
    bool restart;       /* Adam's moments are to be begun anew: the batch size has changed, and
                         * ADAPTDL_MOMENTS=keep does not say otherwise */
} adl_meter_shape;

/* The optimizer is about to step. Waits for sums of earlier steps, which have long been on their way. */
ADL_API ADL_MUST adl_status adl_meter_step(adl_meter *meter, adl_meter_shape *shape);

/* The oldest step without norms has these, per group, on this replica:
 *   local_sqr  sum over its micro-gradients (and passes) of |g_i|^2
 *   total_sqr  |mean gradient|^2, after the last pass
 *   passes_sqr sum of |mean gradient|^2 over the passes of the last batch; NULL: one pass, total_sqr
 * Several backward passes in one batch add up in the gradient. Pass b starts from the mean that the
 * replicas agreed on before it, so what it says about the noise is local_b - total_b, and
 * local = total + sum_b (mean over replicas of local_b - total_b) makes both estimates unbiased.
 * loss_scale as in adl_noise_update. Ignored without such a step. */
ADL_API ADL_MUST adl_status adl_meter_norms(adl_meter *meter, const double *local_sqr,
                                            const double *total_sqr, const double *passes_sqr,
                                            double loss_scale);

/* The same for a step of a single micro-gradient, by its difference from the one before:
 * pair_sqr: [groups][3], |g|^2, |h|^2 and |g - h|^2. NULL: nothing was measured, it is the first. */
ADL_API ADL_MUST adl_status adl_meter_pair(adl_meter *meter, const double *pair_sqr,
                                           double loss_scale);

/* The rule's factor on a group's learning rate at any scale. The rule is taken to be checked. */
ADL_API double adl_meter_factor(const adl_meter *meter, const adl_scaling_rule *rule, size_t group,
                                double scale);
/* The optimizer has stepped: progress += gain(scale), with the scale of the last adl_meter_step. */
ADL_API void adl_meter_advance(adl_meter *meter);

/* Optimizer steps since the start, or since the last restart of moments; saved. */
ADL_API int64_t adl_meter_steps(const adl_meter *meter);
/* The estimator behind it. Borrowed. */
ADL_API const adl_noise *adl_meter_noise(const adl_meter *meter);
/* Progress as it is to be. */
ADL_API void adl_meter_set_progress(adl_meter *meter, double progress);
/* R m / B0 as somebody else knows it better; 0: by the loop, as at the start. */
ADL_API void adl_meter_set_accum_scale(adl_meter *meter, double accum_scale);
/* What the last step had, 1 before; steps whose norms were not finite. */
ADL_API double adl_meter_accum_scale(const adl_meter *meter);
ADL_API int adl_meter_accum_count(const adl_meter *meter);
ADL_API int64_t adl_meter_skipped(const adl_meter *meter);

#ifdef __cplusplus
}
#endif
#endif
