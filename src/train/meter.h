/* The inside of a meter, for adl_dp, which measures its gradients itself and has the numbers at once. */
#ifndef ADLI_TRAIN_METER_H
#define ADLI_TRAIN_METER_H

#include "adaptdl/checkpoint.h"
#include "adaptdl/meter.h"

/* A meter that belongs to the caller and whose state is the caller's to save. */
ADL_MUST adl_status adli_meter_make(adl_context *ctx, const char *name, size_t groups,
                                    adl_meter **out);
/* NULL is fine. */
void adli_meter_free(adl_meter *meter);
ADL_MUST adl_status adli_meter_save(const adl_meter *meter, adl_sink *sink);
ADL_MUST adl_status adli_meter_load(adl_meter *meter, adl_source *source);

/* A step of `micro` micro-gradients on each replica is about to be taken. measured: its norms (or a
 * pair's, or a skip) will be handed in. Sets *shape, and with it the scale that adl_meter_advance
 * counts. */
ADL_MUST adl_status adli_meter_shape(adl_meter *meter, int micro, bool measured,
                                     adl_meter_shape *shape);
/* The oldest step without norms has these, the same on every replica: mean |g_i|^2 and |mean|^2 of each
 * group. Ignored without such a step. */
ADL_MUST adl_status adli_meter_see(adl_meter *meter, const double *local_sqr,
                                   const double *total_sqr, double loss_scale);
/* Its gradient was not finite: what is done about it is said in the log, once. */
void adli_meter_skip(adl_meter *meter, const char *what);

/* The context is in another world. */
void adli_meter_regroup(adl_meter *meter);

/* Tells the context's metrics, if this is the meter whose statistics choose batch sizes: the first that
 * was published. */
void adli_meter_publish(adl_meter *meter);

#endif
