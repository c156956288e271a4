/* Models that several jobs have in common. */
#ifndef ADLI_MODEL_SPEEDUP_H
#define ADLI_MODEL_SPEEDUP_H

#include "adaptdl/speedup.h"

/* One more holder, who frees it as well. One thread. */
adl_speedup *adli_speedup_share(adl_speedup *speedup);

/* Measurements of others are claims. From now on what the memo answers is at most linear over the smallest size that was
 * measured (one replica where none was), and below that size no less than linear:
 *
 *   u = rate(n0) / n0 at the smallest measured n0, v = max(u / L, rate(1))
 *   rate'(n) = min(rate(n), L * n * u) for n > n0, rate(n) within n * u / L ... L * n * v below
 *
 * L is leeway: what is measured scatters, and what the recorded jobs measured is not touched by it. No type is
 * more than ADLI_TYPES_APART times as fast, device by device, as the first that is known. Before the first question, by
 * its only holder. */
#define ADLI_LEEWAY      1.25
#define ADLI_TYPES_APART 32.0
void adli_speedup_bound(adl_speedup *speedup);
bool adli_speedup_bounded(const adl_speedup *speedup);
/* rate'(1), or what one of the fewest that can run counts for where one cannot; 0: not bounded. */
double adli_speedup_one(const adl_speedup *speedup);
/* Did the bound take anything away worth speaking of: what was claimed at some measured size, over what counts?
 * 1: nothing. */
double adli_speedup_claimed(const adl_speedup *speedup);

#endif
