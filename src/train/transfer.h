/* The states, from the memory of rank 0 to that of replicas that join, or that are a step behind after a death: the
 * same save and load functions as a checkpoint's, in pieces, with no file and no second copy of a large model. */
#ifndef ADLI_TRAIN_TRANSFER_H
#define ADLI_TRAIN_TRANSFER_H

#include "adaptdl/context.h"

/* Everybody in a new world says how far it is, and whoever lacks the state gets it. Collective. ESTATE: rank 0 is not
 * the one that is ahead, or replicas are at places of the program that are too far apart. */
ADL_MUST adl_status adli_transfer(adl_context *ctx);

#endif
