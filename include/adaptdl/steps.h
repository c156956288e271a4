/* Training by steps in place of epochs: a counter of optimizer steps that survives restarts, and a loop
 * that ends at a number of them.
 *
 *     ADL_STEPS (train, batch, 100000) {
 *         ... forward, backward ...
 *         adl_dp_step(dp);
 *         if (adl_global_step(ctx) % 1000 == 0) ...
 *     }
 *
 * It goes over the data again and again, each pass with another shuffle, and after a restart goes on at
 * the very example, as ADL_EPOCHS with ADL_BATCHES inside does (that is what it is made of: the passes
 * count as epochs, and there is no loop over epochs around it). Steps are fewer for the same data when
 * batches are larger: with adaptive batch sizes count epochs instead, or progress (adl_dp_progress). */
#ifndef ADAPTDL_STEPS_H
#define ADAPTDL_STEPS_H

#include "adaptdl/epoch.h"
#include "adaptdl/loader.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Optimizer steps of the training loop that are over, since the job began; saved. The step in hand is
 * not counted before its batch ends: in the loop this is the number of the step, from 0. */
ADL_API int64_t adl_global_step(const adl_context *ctx);

/* Runs the body for each batch until `until` optimizer steps were taken in all, those before a restart
 * included. It may be left by break, return or goto; the pass then counts as finished. A pass without a
 * training step (adl_dp_step, or a meter's) stops the context with ADL_ESTATE: it would never end. */
#define ADL_STEPS(loader, batch, until)                                                            \
    for (adl_steps batch##_steps                                                                   \
         __attribute__((cleanup(adl_steps_end))) = adl_steps_begin((loader), (until));             \
         !batch##_steps.over; adl_steps_end(&batch##_steps))                                       \
        for (adl_batch *batch = NULL; adl_steps_next(&batch##_steps, &batch);)

/* What the macro is made of: begin, then while next: body; end. end may come at any time, and again. */
typedef struct adl_steps {
    adl_loader *loader;
    int64_t until, before; /* steps at which it ends, that there were before this pass */
    adl_epochs epochs;
    adl_batch *batch;
    bool in_pass, over;
    bool ran; /* a batch of this pass was run */
} adl_steps;
ADL_API adl_steps adl_steps_begin(adl_loader *loader, int64_t until);
ADL_API bool adl_steps_next(adl_steps *steps, adl_batch **batch);
ADL_API void adl_steps_end(adl_steps *steps);

#ifdef __cplusplus
}
#endif
#endif
