/* One elastic loop over data, without the data: position, batch size, step boundaries, profile. The
 * loader (loader.h) is made of it and a sampler; other languages and special iterators (sequences,
 * streams) build their own loaders on it:
 *
 *     bool run;
 *     adl_loop_begin(loop, &run);                        false: finished before a restart
 *     while (run) {
 *         adl_loop_pass(loop, &m, &s);                   start of a pass over the data
 *         for (batches of m examples, from adl_loop_index(loop) on, to the end of the pass) {
 *             if (!adl_loop_ready(loop, &again)) break;                      stopped
 *             if (again) { adl_loop_pass(loop, &m, &s); plan the rest anew; back to adl_loop_ready }
 *             if (!adl_loop_step(loop, size, last of the pass)) break;       stopped
 *             ... forward, backward, adl_dp_step ...
 *             if (!adl_loop_commit(loop, examples of all replicas)) break;   enough progress
 *         }
 *         run = adl_loop_more(loop);
 *     }
 *     adl_loop_end(loop);
 *
 * All replicas make the same calls. Failures stop the context (context.h). */
#ifndef ADAPTDL_LOOP_H
#define ADAPTDL_LOOP_H

#include "adaptdl/context.h"
#include "adaptdl/goodput.h"
#include "adaptdl/tensorboard.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_loop adl_loop;

/* A loop over `examples` examples, batch_size of them per optimizer step over all replicas together.
 * examples 0: the caller goes over its data in a way of its own; it moves the index
 * (adl_loop_set_index) and knows when the loop is over. The name makes its state in the checkpoint:
 * unique in the program, NULL for "loader-<ordinal>". A saved position is taken over. Belongs to the
 * context. EINVAL: batch_size below 1. ESTATE: the name is taken. */
ADL_API ADL_MUST adl_status adl_loop_new(adl_context *ctx, const char *name, size_t examples,
                                         int batch_size, adl_loop **out);

/* Lets the runtime choose the batch size: total at most max_batch_size, local between min_local and
 * max_local (0: open), with gradient accumulation if allowed. An epoch then ends after as much
 * statistical progress as one pass at batch_size makes, n / batch_size for each training loop since the
 * job's start, which may need more than one pass over the data. EINVAL names the bound that is wrong:
 * max_batch_size < batch_size, min_local > batch_size, max_local < batch_size. ESTATE while looping. */
ADL_API ADL_MUST adl_status adl_loop_autoscale(adl_loop *loop, int max_batch_size, int min_local,
                                               int max_local, bool accumulation);

/* Ends the loop before its context does: later checkpoints are without it. For programs that make one
 * per epoch, once the epoch is over. Does nothing inside the loop; NULL is fine. */
ADL_API void adl_loop_free(adl_loop *loop);
/* The loop may also run outside an epoch loop (a test after the last epoch, say). Its place survives
 * restarts there, too: such loops are counted over the whole program. It makes one pass over the data,
 * autoscaled or not. */
ADL_API void adl_loop_anywhere(adl_loop *loop);
/* How many loops over it were begun outside the epochs, skipped ones included. */
ADL_API int adl_loop_outside(const adl_loop *loop);
/* The data has another length from now on; between loops. A loop that was made with 0 examples takes a saved
 * position over whatever the length was then, and warns here when it was another in the middle of a loop. */
ADL_API void adl_loop_set_examples(adl_loop *loop, size_t examples);

/* The checks of adl_loop_autoscale alone, for a loop that is yet to be made: name is for the text. */
ADL_API ADL_MUST adl_status adl_loop_check_bounds(const char *name, int batch_size,
                                                  int max_batch_size, int min_local, int max_local);

/* Enters the loop, inside an epoch (or anywhere, see adl_loop_anywhere). *run is false when there is nothing to do: the context was
 * stopped, or this loop of the epoch had finished before a restart. ESTATE (and the context is
 * stopped): outside an epoch loop, or while another loop runs. */
ADL_API adl_status adl_loop_begin(adl_loop *loop, bool *run);

/* Start of a pass over the data: chooses the batch size (rank 0 does, for all: a collective). The
 * present one is kept unless another is at least 5 % better, twice in a row. */
ADL_API adl_status adl_loop_pass(adl_loop *loop, int *local_bsz, int *accum_steps);

/* How many batches the rest of the pass has, for loops over `examples`. drop_last: without a short one, unless
 * it is all there is. The same on every replica. */
ADL_API int64_t adl_loop_batches(const adl_loop *loop, bool drop_last);

/* Before each batch is fetched. Between optimizer steps this is a step boundary, where the replicas agree
 * on stopping, on background checkpoints, and on going on as other replicas. *again: they are others now, so
 * the rest of the pass, from adl_loop_index on, is planned anew, beginning with adl_loop_pass, and this is called again.
 * false: the context was stopped. A loader that leaves the call out has its boundaries in adl_loop_step, and keeps its
 * replicas. */
ADL_API bool adl_loop_ready(adl_loop *loop, bool *again);

/* Before each batch of `size` examples on this replica, after adl_loop_ready. false: do not run the
 * batch, the context was stopped.
 * last_of_pass: then the batch ends in an optimizer step, however many were accumulated, so that
 * no gradient is left over. */
ADL_API bool adl_loop_step(adl_loop *loop, int size, bool last_of_pass);

/* After each batch: `examples` on all replicas together are consumed. false: enough progress was made,
 * the loop is over. */
ADL_API bool adl_loop_commit(adl_loop *loop, size_t examples);

/* After a pass: rounds the index up to the next pass; true: another pass is needed. */
ADL_API bool adl_loop_more(adl_loop *loop);

/* Leaves the loop; on a context that was not stopped it counts as finished. Harmless when the loop
 * was not entered. */
ADL_API void adl_loop_end(adl_loop *loop);

/* Makes this the training loop, in the place of another one, which adl_dp_step or adl_meter_begin in it does
 * otherwise. */
ADL_API ADL_MUST adl_status adl_loop_train(adl_loop *loop);
/* Adds to the time that the present batch spends waiting for gradients. */
ADL_API void adl_loop_add_sync(adl_loop *loop, double seconds);
/* The present batch is not to be profiled. */
ADL_API void adl_loop_no_profile(adl_loop *loop);

/* Other sizes until the next pass, for programs that choose them themselves. EINVAL: local_bsz below 1,
 * accum_steps below 0. */
ADL_API ADL_MUST adl_status adl_loop_set_sizes(adl_loop *loop, int local_bsz, int accum_steps);

/* For loops that move their index themselves: the index as it is to be saved. */
ADL_API void adl_loop_set_index(adl_loop *loop, uint64_t index);
/* The index at which such a loop ends, saved too; 0 until set. When the data is laid out anew (by the
 * batch size, say) its length changes, and the index moves along to the same share of it, rounded
 * up: ceil(index end / end before). */
ADL_API uint64_t adl_loop_end_index(const adl_loop *loop);
ADL_API void adl_loop_set_end(adl_loop *loop, uint64_t end);

/* The loop the program is in, NULL outside. */
ADL_API adl_loop *adl_current_loop(adl_context *ctx);
ADL_API const char *adl_loop_name(const adl_loop *loop);
/* Examples consumed so far in this loop by all replicas together. */
ADL_API uint64_t adl_loop_index(const adl_loop *loop);
/* Present sizes: total R m (s + 1), local m, accumulation steps s. An initial batch size B that does not divide
 * by R is dealt out unevenly, where examples are counted: the total is B, m one more on the first B % R replicas
 * (adl_sampler_deal), and adl_dp and adl_meter weigh gradients by examples. */
ADL_API int adl_loop_batch_size(const adl_loop *loop);
ADL_API int adl_loop_local_bsz(const adl_loop *loop);
ADL_API int adl_loop_accum_steps(const adl_loop *loop);
/* Does the present batch end in an optimizer step? */
ADL_API bool adl_loop_optim_step(const adl_loop *loop);
/* Is this the training loop, the one that is profiled? It is the one in which the last adl_dp_step was
 * taken. */
ADL_API bool adl_loop_training(const adl_loop *loop);

/* Writes Total_Batch_Size, Local_Batch_Size and Accumulation_Steps, each tag after prefix (may be
 * NULL). Rank 0 usually has the writer; NULL is fine. */
ADL_API adl_status adl_loop_to_tensorboard(const adl_loop *loop, adl_tensorboard *writer,
                                           int64_t step, const char *prefix);

#ifdef __cplusplus
}
#endif
#endif
