/* Fitting the step-time model to measurements. Pure; any thread. */
#ifndef ADAPTDL_FIT_H
#define ADAPTDL_FIT_H

#include "adaptdl/goodput.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One configuration that ran, with its mean times in seconds: a pass that only accumulates gradients,
 * and a pass that ends in synchronisation and an optimizer step. */
typedef struct adl_profile_point {
    int nodes, replicas;
    double local_bsz;
    double accum_time_s, optim_time_s;
} adl_profile_point;

typedef struct adl_fit_result {
    adl_perf_params perf;
    double objective; /* of the returned parameters */
    size_t used;      /* points that entered the fit */
    size_t rejected;  /* points left out: not finite, not positive, R < N ... */
} adl_fit_result;

/* Minimises
 *   RMSE(log T_accum, log accum_time) + RMSE(log T_optim, log optim_time)
 *   + 1e-3 (gamma - 1)^2 + 1e-2 ((beta_n / alpha_n)^2 + (beta_r / alpha_r)^2)
 * with alpha, beta >= 1e-8, 1 <= gamma <= 10, and priors that stay optimistic about what was not yet
 * seen. Points that no model could explain are left out and counted; when none is left: EINVAL. The
 * result is always finite. */
ADL_API ADL_MUST adl_status adl_fit(const adl_profile_point *points, size_t count,
                                    adl_fit_result *out);

/* The objective of given parameters on these points (for comparisons and tests). */
ADL_API double adl_fit_objective(const adl_perf_params *perf, const adl_profile_point *points,
                                 size_t count);

#ifdef __cplusplus
}
#endif
#endif
