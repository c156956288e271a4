/* Finish-time fairness: how much later a job finished than it would have on its fair share. */
#ifndef ADLI_FAIRNESS_H
#define ADLI_FAIRNESS_H

#include "sim/simulate.h"

/* Times of applications alone on n devices (of the first type, where there are several), remembered. One
 * thread. */
typedef struct adli_alone adli_alone;

ADL_MUST adl_status adli_alone_new(const adli_sim_options *options, int devices, adli_alone **out);
void adli_alone_free(adli_alone *alone);

/* rho = jct / (wait + time alone on the best fixed number of devices not above devices / active),
 * active = mean number of unfinished jobs during its life, wait = from submission to the next round.
 * With less than one device per job the time on one is divided by the share. */
ADL_MUST adl_status adli_fairness(adli_alone *alone, const adli_app *app, double active,
                                  double wait_s, double jct_s, double *rho);

#endif
