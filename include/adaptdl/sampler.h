/* The elastic sampler: which example comes next, on which replica, when replicas come and go. Pure
 * (it allocates, and that is all).
 *
 * Over a data set of n examples, `index` counts the examples that all replicas together have consumed
 * since the loop began; index / n is the pass over the data and index % n the place in it. The order
 * of a pass is a permutation seeded by (seed, epoch, pass): the same on every replica and after every
 * restart, whatever their number. Replica r of R takes the elements at index + r, index + r + R, ...
 * So when every replica has taken m of them, exactly the elements index .. index + R m - 1 are gone,
 * and a program that goes on from there with another R repeats and loses nothing.
 * With adl_sampler_deal the elements go in steps of B, which need not be a multiple of R: of each B elements
 * in a row replica r takes those at r, r + R, ..., one more on the first B % R replicas.
 * All replicas get the same number, ceil((n - index % n) / R): the short ones get one extra element
 * at the end, which was or will be consumed elsewhere in the pass. */
#ifndef ADAPTDL_SAMPLER_H
#define ADAPTDL_SAMPLER_H

#include "adaptdl/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_sampler adl_sampler;

/* For n examples, 1 .. 2^32 - 1, with shuffle or in their natural order. EINVAL, ENOMEM. */
ADL_API ADL_MUST adl_status adl_sampler_new(size_t n, bool shuffle, uint64_t seed,
                                            adl_sampler **out);
ADL_API void adl_sampler_free(adl_sampler *sampler);

/* Goes to a place: replica rank of replicas, from index on, to the end of index's pass. EINVAL when
 * rank or replicas are impossible. */
ADL_API ADL_MUST adl_status adl_sampler_seek(adl_sampler *sampler, int epoch, uint64_t index,
                                             int rank, int replicas);
/* After a seek: elements are taken in steps of `total` by all replicas together. When that is a multiple of
 * the replicas, or below their number, nothing changes. Otherwise replicas may get different numbers, each
 * at least one of what is left over at the end of the pass. */
ADL_API void adl_sampler_deal(adl_sampler *sampler, size_t total);
/* Elements for this replica from there: ceil((n - index % n) / R), unless they are dealt. */
ADL_API size_t adl_sampler_length(const adl_sampler *sampler);
/* The j-th of them, j < length, as a number below n. Threads may read at the same time. */
ADL_API size_t adl_sampler_get(const adl_sampler *sampler, size_t j);
/* Is the last of them an extra element, which another replica takes too? */
ADL_API bool adl_sampler_padded(const adl_sampler *sampler);

#ifdef __cplusplus
}
#endif
#endif
