/* Fitting the step-time model to measurements. Pure; any thread. */
#ifndef ADAPTDL_FIT_H
#define ADAPTDL_FIT_H

#include "adaptdl/goodput.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One configuration that ran, with its mean times in seconds: a pass that only accumulates
 * gradients, and a pass that ends in synchronisation and an optimizer step. */
typedef struct adl_profile_point {
    int nodes, replicas;
    double local_bsz;
    double accum_time_s, optim_time_s;
    int type; /* of the devices, see adl_shape; adl_fit does not read it */
} adl_profile_point;

typedef struct adl_fit_result {
    adl_perf_params perf;
    double objective; /* the minimum found, before alpha_n and beta_n are raised (see adl_fit) */
    size_t used;      /* points that entered the fit */
    size_t rejected;  /* points left out: not finite, not positive, R < N ... */
} adl_fit_result;

/* Minimises
 *   RMSE(log T_accum, log accum_time) + RMSE(log T_optim, log optim_time)
 *   + 1e-3 (gamma - 1)^2 + 1e-2 ((beta_n / alpha_n)^2 + (beta_r / alpha_r)^2)
 * with alpha, beta >= 1e-8 and 1 <= gamma <= 10. What was not yet seen stays optimistic:
 *   one distinct m: alpha_c = mean(accum_time) / 2;
 *   no N > 1: alpha_n, beta_n at their bound, after the fit raised to 1.1 * (alpha_r, beta_r);
 *   no N == 1 with R > 1: alpha_r, beta_r at their bound;  no R > 2: beta_n, beta_r at their bound.
 * A point is left out and counted when R < N, N < 1, m is not in (0, 1e9], or a time is not in
 * [1e-9, 1e9] s (zero, negative, NaN, infinite). EINVAL when none is left, ENOMEM. The result is
 * finite, does not depend on the order of the points, and costs about 2 microseconds per distinct
 * point. */
ADL_API ADL_MUST adl_status adl_fit(const adl_profile_point *points, size_t count,
                                    adl_fit_result *out);

/* The objective of given parameters on the usable ones of these points (for comparisons). */
ADL_API double adl_fit_objective(const adl_perf_params *perf, const adl_profile_point *points,
                                 size_t count);

#ifdef __cplusplus
}
#endif
#endif
