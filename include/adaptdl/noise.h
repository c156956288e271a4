/* Gradient noise scale: running estimates of |G|^2 and tr(Sigma), per parameter group, fed with
 * squared norms only. The caller computes the norms; this does the statistics. A handle belongs to
 * one thread at a time. */
#ifndef ADAPTDL_NOISE_H
#define ADAPTDL_NOISE_H

#include "adaptdl/goodput.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The whole state of one estimator, plain data so that it can be checkpointed as it is. */
typedef struct adl_noise_group {
    double sqr_biased, var_biased; /* exponentially weighted sums */
    double sqr_unbias, var_unbias; /* their weights; average = biased / unbias */
    double sqr, var;               /* present averages */
} adl_noise_group;

typedef struct adl_noise adl_noise;

/* A new estimator for groups >= 1 parameter groups, which knows nothing yet: sqr = 1, var = 0 in
 * each, a gain of 1. Free with adl_noise_free (NULL is fine). */
ADL_API ADL_MUST adl_status adl_noise_new(size_t groups, adl_noise **out);
ADL_API void adl_noise_free(adl_noise *noise);

/* One optimizer step made of count = R * (s + 1) > 1 micro-gradients:
 *   local_sqr[g] = mean over them of |g_i|^2, total_sqr[g] = |mean gradient|^2, scale = B / B0,
 *   sqr = (count * total - local) / (count - 1), var = (local - total) * scale / (count - 1).
 * loss_scale (1 without mixed precision) divides both by its square. The averages are exponential
 * with theta = 0.999^scale, corrected for their start. Non-finite norms leave the state alone and
 * set *skipped (may be NULL). EINVAL: count < 2, a negative norm, a scale that is not positive. */
ADL_API ADL_MUST adl_status adl_noise_update(adl_noise *noise, const double *local_sqr,
                                             const double *total_sqr, int count, double scale,
                                             double loss_scale, bool *skipped);

/* One step that had a single micro-gradient (count == 1), by the difference of two consecutive
 * steps: local_sqr[g] = mean of the two squared norms, total_sqr[g] = |mean of the two
 * gradients|^2. The averages become biased and are reset by the first adl_noise_update. Ignored
 * when unbiased estimates exist already. */
ADL_API ADL_MUST adl_status adl_noise_update_pair(adl_noise *noise, const double *local_sqr,
                                                  const double *total_sqr, double accum_scale,
                                                  double loss_scale, bool *skipped);

/* Sums over groups, sqr floored at 0 and var at 1e-6 for each. */
ADL_API adl_grad_params adl_noise_params(const adl_noise *noise);
/* One group's present averages (sqr floored at 0, var at 1e-6); those of a new estimator for a
 * group that does not exist. */
ADL_API adl_grad_params adl_noise_group_params(const adl_noise *noise, size_t group);
/* gain(scale) of the summed statistics. */
ADL_API double adl_noise_gain(const adl_noise *noise, double scale);
/* Scale-invariant iterations so far; add one step's gain with adl_noise_advance. */
ADL_API double adl_noise_progress(const adl_noise *noise);
ADL_API void adl_noise_advance(adl_noise *noise, double scale);
/* Progress as it is to be; ignored when it is negative or not finite. */
ADL_API void adl_noise_set_progress(adl_noise *noise, double progress);
ADL_API bool adl_noise_biased(const adl_noise *noise);
ADL_API size_t adl_noise_groups(const adl_noise *noise);

/* The state as bytes (fixed little-endian layout), for checkpoints: adl_noise_save_size says how
 * many. Load leaves the estimator alone and fails when the bytes are damaged (ECORRUPT) or belong
 * to another number of groups (EINVAL). */
ADL_API size_t adl_noise_save_size(const adl_noise *noise);
ADL_API void adl_noise_save(const adl_noise *noise, void *out);
ADL_API ADL_MUST adl_status adl_noise_load(adl_noise *noise, const void *data, size_t length);

#ifdef __cplusplus
}
#endif
#endif
