/* What jobs of one application teach each other. Jobs with the same program and the same batch limits
 * have nearly the same step-time model, so a job need not measure what another one measured already: it
 * starts with the model of those before it, and its own measurements say only by how much it is slower or
 * faster than they are (delta).
 *
 *   points:     each (N, R, m) of a device type once, as the first job to report it measured it
 *   resid(R, multi) = mean log(point.optim / T_optim(fit, point)) over the points with that R and N > 1
 *   delta(job)  = mean over its own points x of log(x.optim / T_optim(fit, x)) - resid(x.R, x.N > 1)
 *   a new point is stored with both times multiplied by exp(-delta(job))
 *   model(job)  = the fit of the points; gradient statistics its own, before its first report the pool's
 *   profile(job) = its own points, and for every (R, multi) that it did not measure the pool's, times
 *                  exp(delta(job))
 *
 * A job whose measurements fit no delta is something else under the same name: it leaves, what it taught is
 * taken back, and it is on its own from then on. Pure: no clock, no files; bounded. One thread. */
#ifndef ADLI_POOL_H
#define ADLI_POOL_H

#include "adaptdl/speedup.h"
#include "base/buf.h"
#include "base/status.h"

#include <stdint.h>

typedef struct adli_pool adli_pool;
typedef struct adli_pool_member adli_pool_member;

/* More replicas than anything was ever measured on: whoever says more is wrong, and twice as many is still
 * a number. */
enum {
    ADLI_POOL_APPLICATIONS_MAX = 512,
    ADLI_POOL_POINTS_MAX = 256,
    ADLI_POOL_REPLICAS_MAX = 1000000
};

/* shares == false: every job knows only what it measured itself. */
ADL_MUST adl_status adli_pool_new(bool shares, adli_pool **out);
void adli_pool_free(adli_pool *pool);

bool adli_pool_shares(const adli_pool *pool);

/* The index of a device type, of adl_shape.type and adl_profile_point.type; a new one for a new name.
 * Types beyond the ADL_MAX_TYPES-th are taken for the last. */
ADL_MUST adl_status adli_pool_type_of(adli_pool *pool, const char *name, int *index);
/* What was learned on the only type, which had no name, was learned on this one. */
ADL_MUST adl_status adli_pool_name_type(adli_pool *pool, const char *name);
int adli_pool_type_count(const adli_pool *pool);
const char *const *adli_pool_type_names(const adli_pool *pool);

/* What it has learned, as JSON, and back into an empty pool. What cannot be read is EINVAL, and then the
 * pool is still empty. */
ADL_MUST adl_status adli_pool_save(const adli_pool *pool, adli_buf *out);
ADL_MUST adl_status adli_pool_load(adli_pool *pool, const char *text, size_t length);
/* Grows with everything that adli_pool_save would write differently. */
uint64_t adli_pool_clock(const adli_pool *pool);

/* A job of this application (copied; "" or NULL: of none, it shares nothing). */
ADL_MUST adl_status adli_pool_join(adli_pool *pool, const char *application,
                                   adli_pool_member **out);
/* Forgets the job, not what it taught. Before adli_pool_free. */
void adli_pool_leave(adli_pool *pool, adli_pool_member *member);
/* It is done; progress is what total_work would have been. */
void adli_pool_finished(adli_pool *pool, adli_pool_member *member, double progress);

/* What a job can say of itself. Copied. */
typedef struct adli_pool_news {
    adl_goodput model; /* its own fit, of the type it is on */
    adl_batch_limits limits;
    int type; /* that it is on */
    const adl_profile_point *profile;
    size_t profile_count;
    double speeds
        [ADL_MAX_TYPES]; /* of one device of each type; 0: unknown. Where all are, types that were
                                     not measured count as what other applications measured there, else
                                     as fast as the first one that was */
} adli_pool_news;
ADL_MUST adl_status adli_pool_tell(adli_pool *pool, adli_pool_member *member,
                                   const adli_pool_news *news);

/* A number that changes whenever adli_pool_model would answer differently; 0: it knows nothing. */
uint64_t adli_pool_version(adli_pool *pool, adli_pool_member *member);
/* The job's memo from everything that is known. ESTATE when that is nothing. */
ADL_MUST adl_status adli_pool_model(adli_pool *pool, adli_pool_member *member, int type_count,
                                    int max_replicas, adl_speedup **out);
/* The most replicas that were ever measured, by this job or those it learns from. */
int adli_pool_max_profiled(adli_pool *pool, const adli_pool_member *member);
/* What a job that starts on this type should know; false: nothing. */
bool adli_pool_prior(adli_pool *pool, const adli_pool_member *member, int type, adl_goodput *out);
/* The limits that go with it: its own, or those of the application; false: unknown. */
bool adli_pool_limits(const adli_pool *pool, const adli_pool_member *member, adl_batch_limits *out);
/* Mean progress at completion of the application's finished jobs; 0: none has finished. */
double adli_pool_total_work(const adli_pool *pool, const adli_pool_member *member);
/* Has it left, for measurements that fit nobody else's? */
bool adli_pool_alone(const adli_pool_member *member);

#endif
