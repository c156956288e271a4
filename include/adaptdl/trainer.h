/* The older trainer interface, for programs that go over their data themselves and only ask how large
 * their batches should be. A thin layer over epoch.h, loop.h and dp.h, which new programs use.
 *
 *     adl_trainer *trainer;
 *     adl_trainer_new(ctx, 128, 4096, 32, 512, examples, &trainer);
 *     adl_trainer_reentry(trainer, &dp_options);        model, optimizer, schedule: restores them
 *     while (adl_trainer_epoch(trainer) < 60 && !adl_stopped(ctx)) {
 *         int epoch = adl_trainer_epoch(trainer), m = adl_trainer_local_bsz(trainer);
 *         ... batches of m from adl_trainer_index(trainer) on: forward, backward,
 *             adl_trainer_optimize(trainer); until it fails or the data ends ...
 *         adl_trainer_step(trainer, epoch);
 *     }
 *     return adl_finish(ctx);
 *
 * Threads and failures: as everywhere on a context. */
#ifndef ADAPTDL_TRAINER_H
#define ADAPTDL_TRAINER_H

#include "adaptdl/context.h"
#include "adaptdl/dp.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_trainer adl_trainer;

/* batch_size: initial, over all replicas. max_batch_size, min_local, max_local: bounds, 0: open; all 0:
 * the batch size stays as it is. examples: in the data set. Belongs to the context. EINVAL names what
 * is wrong. */
ADL_API ADL_MUST adl_status adl_trainer_new(adl_context *ctx, int batch_size, int max_batch_size,
                                            int min_local, int max_local, size_t examples,
                                            adl_trainer **out);

/* program_reentry: registers the model, its optimizer and schedule, and restores what was saved. Once.
 * Collective. */
ADL_API ADL_MUST adl_status adl_trainer_reentry(adl_trainer *trainer,
                                                const adl_dp_options *options);

/* Epochs finished: the number of the one to run next. */
ADL_API int adl_trainer_epoch(const adl_trainer *trainer);

/* get_local_bsz: the batch size of this replica for the present epoch, which begins with the first
 * call; 0 when the context was stopped. Collective at that first call. */
ADL_API int adl_trainer_local_bsz(adl_trainer *trainer);
/* Examples of this epoch that all replicas together have consumed: where to go on after a restart. */
ADL_API uint64_t adl_trainer_index(const adl_trainer *trainer);

/* The optimizer's step with the rate scaled by the gain, after each batch's backward pass. The result
 * is ADL_EINTR when the replicas have agreed to stop: the checkpoint is written. */
ADL_API adl_status adl_trainer_optimize(adl_trainer *trainer);

/* step(epoch): the epoch is over. EINVAL when it is not the present one. */
ADL_API adl_status adl_trainer_step(adl_trainer *trainer, int epoch);

/* gain(scale) as known at present. */
ADL_API double adl_trainer_predict_gain(const adl_trainer *trainer, double scale);
/* From now on steps are of scale * initial batch size on that many replicas, which must be those there
 * are. Until the next epoch. */
ADL_API ADL_MUST adl_status adl_trainer_update_scale(adl_trainer *trainer, double scale,
                                                     int replicas);

#ifdef __cplusplus
}
#endif
#endif
