/* What a replica says at a step boundary: its wishes (stop, save) and where in the program it is. The votes of
 * all are merged on rank 0, and everybody gets the same result: the wishes of any, and, when two are not at the
 * same place, those two. Replicas that have run apart (one left its loop early) would otherwise go on and average
 * gradients of different epochs. Pure: bytes in, bytes out. */
#ifndef ADLI_TRAIN_VOTE_H
#define ADLI_TRAIN_VOTE_H

#include "adaptdl/group.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    ADLI_WISH_STOP = 1,
    ADLI_WISH_SAVE = 2,
    ADLI_WISH_NEWS = 4,      /* there is a next world to hear of (regroup.h) */
    ADLI_WISH_WAIT = 8,      /* its group is still forming here */
    ADLI_WISH_DROP = 16,     /* it did not form here */
    ADLI_WISH_SUMS = 32,     /* there are accumulators (sums.h) */
    ADLI_WISH_MARK = 64,     /* what was added to them is to be shared */
    ADLI_VOTE_LOOP_MAX = 64, /* bytes of a loop's name, with the NUL; a longer one is cut */
};

/* Where a replica is, when it is between two optimizer steps. */
typedef struct adli_step_place {
    int rank;
    int64_t epoch; /* -1: outside the epochs */
    int64_t loops; /* begun over this loader in this epoch; in no loop: epochs that are finished */
    uint64_t index;
    char loop[ADLI_VOTE_LOOP_MAX];
} adli_step_place;

typedef struct adli_vote {
    uint32_t wishes;
    bool apart;                   /* other is not at first's place */
    adli_step_place first, other; /* other: only when apart */
} adli_vote;

enum { ADLI_VOTE_MAX = 8 + 2 * (32 + ADLI_VOTE_LOOP_MAX) };

/* Returns the number of bytes, at most ADLI_VOTE_MAX. */
size_t adli_vote_encode(const adli_vote *vote, uint8_t out[ADLI_VOTE_MAX]);
/* ADL_EPEER: these bytes are no vote. */
ADL_MUST adl_status adli_vote_parse(const void *data, size_t length, adli_vote *out);
/* An adl_reduce_fn. */
ADL_MUST adl_status adli_vote_merge(void *unused, const void *a, size_t a_length, const void *b,
                                    size_t b_length, adl_reduced *out);
/* ADL_ESTATE with a text that names both replicas and where they are, when they are apart. */
ADL_MUST adl_status adli_vote_check(const adli_vote *vote);

#endif
