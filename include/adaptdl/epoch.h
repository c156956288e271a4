/* The loop over epochs, in a way that survives restarts:
 *
 *     ADL_EPOCHS (ctx, epoch, 30) {       epoch is 0 .. 29
 *         ADL_BATCHES (train, batch) ...
 *         ADL_BATCHES (valid, batch) ...
 *         adl_schedule_step(schedule);    the last thing in the body
 *     }
 *     ADL_EPOCHS (ctx, epoch, 60) ...     30 .. 59
 *
 * After a restart finished epochs are skipped, and the interrupted one is entered again, with the
 * loops over data that had finished yielding nothing. So code before a loop (over epochs or over
 * data) may run more than once and must not mind; code after the last data loop of the body runs
 * once per epoch. */
#ifndef ADAPTDL_EPOCH_H
#define ADAPTDL_EPOCH_H

#include "adaptdl/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Declares `int epoch` and runs the body for each epoch that is left, up to (not including) until.
 * An epoch is finished when its body is left for any reason: at its end, by break, return or goto;
 * only when the context was stopped it is not. Nested loops over epochs stop the context with
 * ADL_ESTATE. Nothing is run on a context that was stopped. */
#define ADL_EPOCHS(ctx, epoch, until)                                                              \
    for (adl_epochs epoch##_loop                                                                   \
         __attribute__((cleanup(adl_epochs_end))) = adl_epochs_begin((ctx), (until));              \
         adl_epochs_next(&epoch##_loop);)                                                          \
        for (int epoch __attribute__((unused)) = epoch##_loop.number;                              \
             adl_epochs_enter(&epoch##_loop); adl_epochs_leave(&epoch##_loop))

/* The epoch the program is in, -1 outside the loop. */
ADL_API int adl_current_epoch(const adl_context *ctx);
/* Epochs finished so far; inside the loop the same as adl_current_epoch. */
ADL_API int adl_finished_epochs(const adl_context *ctx);

/* What the macro is made of, for other languages: begin, then while next: (enter; body; leave), end.
 * end may come at any time, once. */
typedef struct adl_epochs {
    adl_context *ctx;
    int until;
    int target; /* what the scheduler is told: `until`, unless somebody knows better */
    int number; /* of the epoch */
    int phase;
} adl_epochs;
ADL_API adl_epochs adl_epochs_begin(adl_context *ctx, int until);
ADL_API bool adl_epochs_next(adl_epochs *loop);
ADL_API bool adl_epochs_enter(adl_epochs *loop);
ADL_API void adl_epochs_leave(adl_epochs *loop);
ADL_API void adl_epochs_end(adl_epochs *loop);

#ifdef __cplusplus
}
#endif
#endif
