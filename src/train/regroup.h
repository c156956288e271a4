/* From one world to the next, at a step boundary, without stopping the processes that stay.
 *
 * Rank 0 hears of the next world (an offer) and says so with its vote. At the boundary where all read that, it
 * tells everyone the offer, and those who are in the next world begin to form its group, in the background, while
 * training goes on in the present one. With each vote a replica says whether its part is still forming; at the
 * boundary where nobody is, all of them act: what each has not told yet is told (as before a checkpoint), those who
 * leave are stopped, and the others go on, in the same loop, from the same index, as the next world. If forming
 * fails on one, all drop the offer and stay as they are. */
#ifndef ADLI_TRAIN_REGROUP_H
#define ADLI_TRAIN_REGROUP_H

#include "train/world.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The next world, as the present one is told of it. */
typedef struct adli_offer {
    adli_world world; /* without a rank; generation is one more than the present */
    int count;        /* replicas of the present world */
    int *ranks;       /* [count] of each in the next one; -1: it leaves */
} adli_offer;

void adli_offer_fini(adli_offer *offer);
/* Bytes for adli_offer_parse (free); NULL: out of memory. */
uint8_t *adli_offer_encode(const adli_offer *offer, size_t *length);
/* ECORRUPT: these bytes are no offer, or one that makes no sense: ranks twice or out of range, no next
 * world, a first member that does not have the state. */
ADL_MUST adl_status adli_offer_parse(const void *data, size_t length, adli_offer *out);

/* Rank 0: this is the next world. Any thread. The offer is copied. ESTATE: there is an offer already. */
ADL_MUST adl_status adli_regroup_offer(adl_context *ctx, const adli_offer *offer);

/* For boundary.c: what this replica has to say (adli_vote), and what becomes of what all have said at the
 * boundary before. may_regroup: whoever is at the boundary would notice that the world is another one.
 * EINTR: this replica leaves. */
uint32_t adli_regroup_wishes(adl_context *ctx);
ADL_MUST adl_status adli_regroup_act(adl_context *ctx, uint32_t wishes, bool may_regroup);
/* Nothing comes of it: gives up what is forming. Also at the context's end. */
void adli_regroup_drop(adl_context *ctx);

#endif
