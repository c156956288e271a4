/* A job's memo of its own model: the best goodput for every shape that a policy asks about,
 * computed once. One goodput, asked millions of times. A handle belongs to one thread at a time
 * (queries fill the memo); different handles are independent. */
#ifndef ADAPTDL_SPEEDUP_H
#define ADAPTDL_SPEEDUP_H

#include "adaptdl/fit.h"
#include "adaptdl/goodput.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adl_speedup adl_speedup;

/* Takes copies of everything. model == NULL: nothing is known yet, the job speeds up linearly.
 * limits == NULL: every bound is open. profile (may be NULL) corrects the rate where measurements
 * exist, see adl_speedup_rate. Memory is allocated here once, at most 12 KiB per
 * device type. EINVAL for a bad model or bad bounds, ENOMEM. */
ADL_API ADL_MUST adl_status adl_speedup_new(const adl_goodput *model,
                                            const adl_batch_limits *limits,
                                            const adl_profile_point *profile, size_t profile_count,
                                            int max_replicas, adl_speedup **out);

/* What is known of a job on one type of device. */
typedef struct adl_type_model {
    const adl_goodput *model; /* NULL: it was never measured there */
    const adl_batch_limits *limits;
    const adl_profile_point *profile; /* only the points of this type are read */
    size_t profile_count;
    double speed; /* of one device, in any unit that is the same for all types; 0: unknown */
} adl_type_model;

/* The same with a model per device type: types[shape.type]. A type without a model is projected from the
 * first one that has a model: the same shape's goodput there x the ratio of their speeds; where a speed is
 * unknown it cannot be had (0). No type has a model: the job speeds up linearly, on every type alike.
 * adl_speedup_new is the case of one type, whose answers hold for every shape.type. */
ADL_API ADL_MUST adl_status adl_speedup_new_types(const adl_type_model *types, size_t type_count,
                                                  int max_replicas, adl_speedup **out);
ADL_API void adl_speedup_free(adl_speedup *speedup);

/* optimize(shape) / optimize(1 replica); 0 at R = 0; R without a model. A shape that the bounds forbid,
 * or R > max_replicas: 0. Where one replica cannot hold B0, the fewest that can, on one node, count
 * as that many. A few nanoseconds once the answer is known, about 3 microseconds the first time. */
ADL_API double adl_speedup_get(adl_speedup *speedup, adl_shape shape);

/* The choice behind it; goodput 0 where there is none. Without a model: all zero. */
ADL_API adl_batch_choice adl_speedup_choice(adl_speedup *speedup, adl_shape shape);

/* Initial-batch steps' worth of progress per second: optimize(shape) / B0 * exp(-residual), where
 * residual = mean log(measured / modelled step time) at that replica count, single-node and
 * multi-node kept apart, linear in log R between profiled counts, constant outside; where only the
 * other of the two was measured, that one's: a machine that is slower than modelled is so on two nodes
 * as well. 0 where nothing was measured, at most 50 in size. R without a model. */
ADL_API double adl_speedup_rate(adl_speedup *speedup, adl_shape shape);

/* What it was made of, type by type; borrowed. false: there is no such type. */
ADL_API bool adl_speedup_type(const adl_speedup *speedup, size_t type, adl_type_model *out);
ADL_API int adl_speedup_max_replicas(const adl_speedup *speedup);

/* Was there a model? */
ADL_API bool adl_speedup_known(const adl_speedup *speedup);

#ifdef __cplusplus
}
#endif
#endif
