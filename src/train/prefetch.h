/* Batches filled ahead of time. A pass over the data is a row of tickets 0 .. batches - 1; ticket t is
 * filled into slot t % slots by whichever worker is free and taken by the training thread in order. */
#ifndef ADLI_TRAIN_PREFETCH_H
#define ADLI_TRAIN_PREFETCH_H

#include "adaptdl/loader.h"
#include "adaptdl/sampler.h"

typedef struct adli_prefetch adli_prefetch;

typedef struct adli_slot {
    size_t *index; /* [count] */
    int count;
    void *part[ADL_PARTS_MAX];
    int state;         /* under the lock */
    adl_status status; /* of the filling */
    char error[256];
} adli_slot;

/* options is borrowed (the loader's copy). Threads are started by the first pass. */
ADL_MUST adl_status adli_prefetch_new(const adl_loader_options *options, adli_prefetch **out);
/* Ends a pass that is still going on. NULL is fine. */
void adli_prefetch_free(adli_prefetch *prefetch);

/* Starts a pass: batch t has the sampler's elements t * local_bsz .. , all but the last of them
 * local_bsz. The sampler must stay as it is until the pass is ended. */
ADL_MUST adl_status adli_prefetch_begin(adli_prefetch *prefetch, const adl_sampler *sampler,
                                        int local_bsz, int64_t batches, uint64_t seed);
/* The slot of the next ticket, filled; blocks for it. The one taken before is given back. */
ADL_MUST adl_status adli_prefetch_take(adli_prefetch *prefetch, adli_slot **out);
/* Gives the last slot back and waits until no worker is busy. */
void adli_prefetch_end(adli_prefetch *prefetch);

/* One 64-bit seed out of two numbers. */
uint64_t adli_mix(uint64_t a, uint64_t b);

#endif
