/* The points of a fit, prepared: unusable ones left out, equal configurations joined. */
#ifndef ADLI_FIT_ROWS_H
#define ADLI_FIT_ROWS_H

#include "adaptdl/fit.h"

/* The variables of a fit, in the order of adl_perf_params. */
enum { ALPHA_C, BETA_C, ALPHA_N, BETA_N, ALPHA_R, BETA_R, GAMMA, FIT_VARS };

/* One m. */
typedef struct adli_accum_row {
    double bsz, weight;
    double log_time; /* mean of log accum_time over the points of this m */
} adli_accum_row;

enum { NO_NETWORK = -1 };

/* One (N > 1, R). */
typedef struct adli_network_row {
    int key;       /* R, negative when N > 1 */
    int alpha;     /* ALPHA_N or ALPHA_R (its beta is the next), NO_NETWORK on one replica */
    double beyond; /* max(R - 2, 1e-8) */
} adli_network_row;

/* One (N > 1, R, m). */
typedef struct adli_optim_row {
    size_t accum, network; /* indices of rows */
    double weight;
    double log_time; /* mean of log optim_time */
} adli_optim_row;

/* Points of one (N > 1, R, m) have the same modelled T_optim, and points of one m the same T_accum,
 * so
 *   sum (x_i - y)^2 = sum (x_i - mean)^2 + n (mean - y)^2
 * lets each group stand as one row with a weight, exactly; the first sum is a constant ("spread").
 * A job that measured the same few configurations all day is a handful of rows. */
typedef struct adli_fit_rows {
    adl_profile_point *points; /* the usable ones, sorted by configuration */
    adli_accum_row *accum;
    adli_network_row *network;
    adli_optim_row *optim;
    size_t point_count, accum_count, network_count, optim_count;
    double accum_spread, optim_spread;
} adli_fit_rows;

/* May this point enter a fit: R >= N >= 1, m > 0, times that were really measured? */
bool adli_fit_usable(const adl_profile_point *point);

/* Free with adli_fit_rows_fini, also after a failure. No usable point is no failure. */
ADL_MUST adl_status adli_fit_rows_init(adli_fit_rows *rows, const adl_profile_point *points,
                                       size_t count);
void adli_fit_rows_fini(adli_fit_rows *rows);

#endif
