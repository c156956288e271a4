/* The inside of an accumulator, for the sums that travel with each step (sums.h). */
#ifndef ADLI_TRAIN_ACCUMULATOR_H
#define ADLI_TRAIN_ACCUMULATOR_H

#include "adaptdl/accumulator.h"
#include "train/context.h"
#include "train/table.h"

typedef struct adli_moment adli_moment;

struct adl_accumulator {
    adl_context *ctx;
    char name[ADL_CHECKPOINT_NAME_MAX + 1];
    adli_table pending;   /* what this replica has added, and the others do not know */
    adli_table results;   /* the sums that all replicas agree on */
    adli_table replayed;  /* while a scope is replayed: a copy of what it saw the first time */
    adli_moment *history; /* in the order of time */
    size_t history_count, history_capacity;
    int seen_epoch, seen; /* scopes entered in that epoch, in this run */
    int seen_outside;     /* likewise outside epochs */
    int depth;
    bool replaying, restored;
    adl_checkpoint_state *state;
};

extern const adli_owned_ops adli_accumulator_ops;

#endif
