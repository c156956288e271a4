/* From one world to the next without stopping the processes that stay.
 *
 * In order. Rank 0 hears of the next world (an offer) and says so with its vote. At the boundary where all read that,
 * it tells everyone the offer, and those who are in the next world begin to form its group, in the background, while
 * training goes on in the present one. With each vote a replica says whether its part is still forming; at the
 * boundary where nobody is, all of them act: what each has not told yet is told (as before a checkpoint), those who
 * leave are stopped, and the others go on, in the same loop, from the same index, as the next world. If forming
 * fails on one, all drop the offer and stay as they are.
 *
 * Joining. A new process runs the program up to its first loop over epochs (or its first collective call), says that
 * it is ready, and waits there for a world that it is in. Rank 0 sends it the states (transfer.h).
 *
 * After a death. The step in flight is void. Who has survived says so, waits for a world without the dead one, and
 * forms it; those who are a step behind take the state of one that is ahead; the batch comes again. */
#ifndef ADLI_TRAIN_REGROUP_H
#define ADLI_TRAIN_REGROUP_H

#include "train/world.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ADLI_OFFER_LINE_MAX = 1 << 19 };

/* A world that is offered has no rank yet (-1). Bytes for adli_offer_parse (free); NULL: out of memory. */
uint8_t *adli_offer_encode(const adli_world *world, size_t *length);
/* ECORRUPT: these bytes are no world, or one that makes no sense: no member, or one twice. */
ADL_MUST adl_status adli_offer_parse(const void *data, size_t length, adli_world *out);
/* The same from text: "GENERATION NODES ADDRESS PORT MEMBER...". */
ADL_MUST adl_status adli_offer_read(const char *line, adli_world *out);

/* This is the next world, if it is newer than what was offered before. Any thread. It is copied. */
ADL_MUST adl_status adli_regroup_offer(adl_context *ctx, const adli_world *world);
/* Nothing comes of worlds up to that one. Any thread. */
void adli_regroup_cancel(adl_context *ctx, uint32_t generation);
/* Nobody is there any more who could offer one. Any thread. */
void adli_regroup_orphan(adl_context *ctx);

/* For boundary.c: what this replica has to say (adli_vote), and what becomes of what all have said at the
 * boundary before. may_regroup: whoever is at the boundary would notice that the world is another one.
 * EINTR: this replica leaves. */
uint32_t adli_regroup_wishes(adl_context *ctx);
ADL_MUST adl_status adli_regroup_act(adl_context *ctx, uint32_t wishes, bool may_regroup);
/* Nothing comes of it: gives up what is forming. Also at the context's end. */
void adli_regroup_drop(adl_context *ctx);

/* The loop over data of this program calls adl_loop_ready: whoever offers worlds is told. */
void adli_regroup_able(adl_context *ctx);
/* Waits for a world and becomes a part of it. For a context that is joining. */
ADL_MUST adl_status adli_join(adl_context *ctx);
/* Is this failure the loss of a peer that can be survived? Then the step is void, and adli_recover is
 * called at the next boundary. */
bool adli_lost(adl_context *ctx, adl_status status);
/* For a thread beside an owner that is stuck outside the library, in a collective of somebody else's with a replica
 * that was stopped: has the world lost a member? Then the step is void, and whoever opens worlds is told, who ends it. The
 * owner must not be in the library meanwhile. */
bool adli_regroup_hurry(adl_context *ctx);
/* The program has made collective calls outside loops over data of which there is no log, so a new process cannot
 * repeat them: nobody joins before the next epoch, or, when they were made before the epochs, at all. */
void adli_regroup_unlogged(adl_context *ctx);
/* Waits for a world without those that were lost, and goes on in it. */
ADL_MUST adl_status adli_recover(adl_context *ctx);

#endif
