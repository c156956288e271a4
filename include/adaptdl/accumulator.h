/* The accumulator: named sums over all replicas and over restarts, for losses and accuracies.
 *
 *     adl_accumulator *stats;
 *     adl_accumulator_new(ctx, "test", &stats);
 *     ADL_BATCHES (test, batch) {
 *         adl_accumulator_add(stats, "correct", correct);
 *         adl_accumulator_add(stats, "total", batch->size - batch->extra);
 *     }
 *     ADL_SYNCHRONIZED (stats) {          the same numbers on every replica
 *         accuracy = adl_accumulator_get(stats, "correct") / adl_accumulator_get(stats, "total");
 *         adl_accumulator_clear(stats);
 *     }
 *
 * It has two modes. Accumulating (outside the scope): only add, each replica its own numbers; reads
 * find it empty. Synchronized (inside): entering sums what all replicas have added; then it is a
 * table that can be read and written freely, in the same way on all replicas.
 *
 * Deaths. Where the others go on without a replica that died (docs/elastic.md) its sums are kept: add before adl_dp_step, and
 * they travel with the step. Batches of a loop that does not train may come again, and count once here.
 *
 * Replay. Code outside a data loop is run again after a restart in the same epoch. The numbers seen on
 * entering a scope there are kept for the epoch, and the scope shows them again; what is then
 * changed is thrown away when the scope is left, as it was in effect already. */
#ifndef ADAPTDL_ACCUMULATOR_H
#define ADAPTDL_ACCUMULATOR_H

#include "adaptdl/context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_accumulator adl_accumulator;

#define ADL_ACCUMULATOR_KEY_MAX 63    /* bytes of a key, without the NUL */
#define ADL_ACCUMULATOR_KEYS    65536 /* keys in one accumulator */

/* The name makes its state in the checkpoint: unique in the program. Saved sums are taken over.
 * Belongs to the context. EINVAL, ESTATE: the name is wrong, or taken. */
ADL_API ADL_MUST adl_status adl_accumulator_new(adl_context *ctx, const char *name,
                                                adl_accumulator **out);

/* Were its sums taken over from a checkpoint? */
ADL_API bool adl_accumulator_restored(const adl_accumulator *accumulator);
/* Ends it before its context does: later checkpoints are without it. For programs that make one per
 * epoch, once the epoch is over; not inside its scope. NULL is fine. */
ADL_API void adl_accumulator_free(adl_accumulator *accumulator);

/* value[key] += amount. Works in both modes. A failure (key empty or too long, no memory) also stops
 * the context. */
ADL_API adl_status adl_accumulator_add(adl_accumulator *accumulator, const char *key,
                                       double amount);
/* value[key] -= amount. */
ADL_API adl_status adl_accumulator_subtract(adl_accumulator *accumulator, const char *key,
                                            double amount);

/* The body runs once, synchronized; not at all when the context was stopped or the replicas could not
 * be reached. All replicas come here at the same point of the program; blocks until they have. It
 * may be left by break, return or goto. A scope in a scope of the same accumulator just runs. */
#define ADL_SYNCHRONIZED(accumulator)            ADL_SYNCHRONIZED_ON(accumulator, __LINE__)
#define ADL_SYNCHRONIZED_ON(accumulator, line)   ADL_SYNCHRONIZED_LINE(accumulator, line)
#define ADL_SYNCHRONIZED_LINE(accumulator, line) ADL_SYNCHRONIZED_AS(accumulator, adl_scope_##line)
#define ADL_SYNCHRONIZED_AS(accumulator, scope)                                                    \
    for (adl_accumulator * scope                                                                   \
             __attribute__((cleanup(adl_accumulator_leave))) = adl_accumulator_enter(accumulator); \
         scope; adl_accumulator_leave(&scope))

/* What the macro is made of. enter: NULL when the scope is not to be run. leave sets it to NULL. */
ADL_API adl_accumulator *adl_accumulator_enter(adl_accumulator *accumulator);
ADL_API void adl_accumulator_leave(adl_accumulator **accumulator);

/* Inside the scope (outside, the accumulator reads as empty). A key that is not there reads as 0. */
ADL_API double adl_accumulator_get(const adl_accumulator *accumulator, const char *key);
ADL_API bool adl_accumulator_has(const adl_accumulator *accumulator, const char *key);
ADL_API size_t adl_accumulator_count(const adl_accumulator *accumulator);
/* The i-th key in alphabetical order, NULL past the end. Valid until the next change. */
ADL_API const char *adl_accumulator_key(const adl_accumulator *accumulator, size_t i);

/* Inside the scope only; ESTATE outside (and the context is stopped). */
ADL_API adl_status adl_accumulator_set(adl_accumulator *accumulator, const char *key, double value);
ADL_API adl_status adl_accumulator_remove(adl_accumulator *accumulator, const char *key);
ADL_API adl_status adl_accumulator_clear(adl_accumulator *accumulator);

#ifdef __cplusplus
}
#endif
#endif
