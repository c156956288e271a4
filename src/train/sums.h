/* Sums of accumulators that outlive the replica that made them.
 *
 * What a replica adds is known to it alone until it is shared, and lost with it. Where a death can be survived without a
 * restart (ctx->recovers), it is shared so that after a death the sums are those of the steps that were applied, each
 * counted once:
 *
 * A training step carries what was added up to it (adli_sums_post, adli_sums_take): the step is applied only where the
 * sums of all replicas have arrived as well, so a step that is void has added nothing, and one that is applied anywhere
 * has added everything. What a program adds after its step is shared at the boundary before the next one, by a call that
 * waits; a death in between costs a restart.
 *
 * A loop that does not train changes nothing but sums: it goes back to the last boundary where they were shared (its
 * mark), and its batches since then come again. Rank 0 asks for a mark every second.
 *
 * Whether there are accumulators is said with each vote, so that all replicas agree on making these calls. */
#ifndef ADLI_TRAIN_SUMS_H
#define ADLI_TRAIN_SUMS_H

#include "train/loop.h"

/* For votes: are there accumulators here, and is it time for a mark? And what all have said: before a checkpoint sums are
 * shared, too, at once for all accumulators. */
uint32_t adli_sums_wishes(adl_context *ctx);
ADL_MUST adl_status adli_sums_act(adl_context *ctx, uint32_t wishes);
/* At a boundary: everybody's pending sums become results, where it matters. Collective. */
ADL_MUST adl_status adli_sums_share(adl_context *ctx);

/* The sums of the present step begin to travel, and have arrived: between them is the all-reduce. A failure, or
 * adli_sums_drop: nothing was added. */
ADL_MUST adl_status adli_sums_post(adl_context *ctx);
ADL_MUST adl_status adli_sums_take(adl_context *ctx);
void adli_sums_drop(adl_context *ctx);

/* Has this replica added something that the others do not know? */
bool adli_sums_pending(const adl_context *ctx);
/* A loop begins; its first boundary, or one of a loop whose program adds after its steps. */
void adli_sums_begin(adl_loop *loop);
ADL_MUST adl_status adli_sums_boundary(adl_loop *loop);
/* The loop is at a place where nothing is pending, on any replica. */
void adli_sums_mark(adl_loop *loop);

/* After a death: is all known that the dead one has added, or can it be added again? */
bool adli_sums_known(const adl_loop *loop);
/* What was not shared has not happened; a loop that does not train goes back to its mark. */
void adli_sums_void(adl_loop *loop);

#endif
