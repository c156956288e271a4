/* How far a job may grow beyond what was measured: a model that was fitted on few replicas says little about
 * many. */
#ifndef ADLI_POLICY_EXPLORE_H
#define ADLI_POLICY_EXPLORE_H

#include "adaptdl/goodput.h"

/* Most replicas that the batch limits allow: max_batch / min_local; 0: they say nothing. */
int adli_explore_batch_cap(const adl_batch_limits *limits);

/* Twice what it was measured on (profiled; 0: nothing yet), at least 1, within batch_cap (0: none), max (0: none)
 * and min, which goes before the others. */
int adli_explore_most(int profiled, int batch_cap, int min, int max);

#endif
