/* Goodput: how fast a training job learns, and the batch size that makes it learn fastest.
 *
 * Notation, everywhere in the library: N nodes, R replicas (one process per device), m local
 * (atomic) batch size, s accumulation steps, B = R * m * (s + 1) the total batch size, B0 the
 * initial batch size for which the learning rate was tuned, scale = B / B0. An adl_shape holds N and R;
 * an adl_goodput is a model on one type of device, so it does not read the shape's type. All functions
 * are pure and safe to call from any thread; none blocks. */
#ifndef ADAPTDL_GOODPUT_H
#define ADAPTDL_GOODPUT_H

#include "adaptdl/shape.h"
#include "adaptdl/status.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The step-time model, in seconds:
 *   T_accum(m)     = alpha_c + beta_c * m
 *   T_network(N,R) = alpha_n + beta_n * max(R - 2, 1e-8)   if N > 1
 *                    alpha_r + beta_r * max(R - 2, 1e-8)   else if R > 1
 *                    1e-8 + 1e-8 * max(R - 2, 1e-8)        else
 *   T_optim        = (T_accum^gamma + T_network^gamma)^(1/gamma) */
typedef struct adl_perf_params {
    double alpha_c, beta_c; /* compute: constant, per example */
    double alpha_n, beta_n; /* network between nodes: constant, per replica beyond the second */
    double alpha_r, beta_r; /* network within a node, likewise */
    double gamma;           /* 1: no overlap of compute and network ... 10: nearly perfect */
} adl_perf_params;

/* Gradient statistics: sqr = |G|^2, var = tr(Sigma), both at the initial batch size. */
typedef struct adl_grad_params {
    double sqr, var;
} adl_grad_params;

/* Everything needed to predict one job's goodput. */
typedef struct adl_goodput {
    adl_perf_params perf;
    adl_grad_params grad;
    double init_batch_size; /* B0 >= 1 */
} adl_goodput;

/* What optimize may choose from. Zero means "open" for each bound. lone_grows: a single replica's noise is measured
 * from pairs of gradients, as our runtime does; without, it has no estimate unless it accumulates, so it stays at B0
 * or accumulates (the original's rule). The flag lies where the struct was padded. */
typedef struct adl_batch_limits {
    double max_batch_size; /* total over all replicas; 0: B0 */
    double min_local_bsz;  /* 0: 1 */
    double max_local_bsz;  /* 0: max_batch_size */
    bool accumulation;     /* may s be more than 0? */
    bool lone_grows;       /* may a single replica have m > B0 with s = 0? */
} adl_batch_limits;

typedef struct adl_batch_choice {
    double goodput;  /* useful examples per second */
    int local_bsz;   /* m */
    int accum_steps; /* s */
} adl_batch_choice;

/* Are all parameters in their ranges: times from 0 to 1e100 with alpha_c + beta_c > 0, 1 <= gamma
 * <= 10, sqr and var from 0 to 1e100, B0 from 1 to INT_MAX? Every result is then finite. EINVAL
 * names the field. */
ADL_API ADL_MUST adl_status adl_goodput_check(const adl_goodput *model);

/* T_accum, T_network and T_optim in seconds. No checks: for callers that evaluate millions. */
ADL_API double adl_accum_time(const adl_perf_params *perf, double local_bsz);
ADL_API double adl_network_time(const adl_perf_params *perf, adl_shape shape);
ADL_API double adl_optim_time(const adl_perf_params *perf, adl_shape shape, double local_bsz);

/* gain(scale) = (var + sqr) / (var / scale + sqr), 1 when the denominator is <= 0: how many steps
 * at B0 one step at scale * B0 is worth. */
ADL_API double adl_gain(adl_grad_params grad, double scale);

/* Examples per second; efficiency in (0, 1]; their product. EINVAL when R < N, N < 1, m < 1, s < 0,
 * or (efficiency and goodput) B < B0. */
ADL_API ADL_MUST adl_status adl_throughput(const adl_goodput *model, adl_shape shape,
                                           double local_bsz, int accum_steps, double *out);
ADL_API ADL_MUST adl_status adl_efficiency(const adl_goodput *model, double batch_size,
                                           double *out);
ADL_API ADL_MUST adl_status adl_goodput_evaluate(const adl_goodput *model, adl_shape shape,
                                                 double local_bsz, int accum_steps, double *out);

/* The (m, s) of highest goodput for a shape, among 50 total batch sizes in geometric
 * steps. min_local_bsz wins over max_batch_size when R * min_local_bsz is larger. EINVAL with a
 * message for bad bounds (min > max, B0 > max_batch_size, R < N, N < 1), and when R replicas of
 * max_local_bsz cannot hold B0. About 3 microseconds. */
ADL_API ADL_MUST adl_status adl_goodput_optimize(const adl_goodput *model,
                                                 const adl_batch_limits *limits, adl_shape shape,
                                                 adl_batch_choice *out);

/* The same for several shapes. out: [count]. Where a shape has no answer its goodput is 0 and the
 * others are still computed; then the result is the first failure's. */
ADL_API ADL_MUST adl_status adl_goodput_optimize_array(const adl_goodput *model,
                                                       const adl_batch_limits *limits,
                                                       const adl_shape *shapes, size_t count,
                                                       adl_batch_choice *out);

#ifdef __cplusplus
}
#endif
#endif
