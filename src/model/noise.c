/* How noisy the gradient is decides how much a larger batch is worth, and therefore the learning
 * rate, the batch size and the job's share of the cluster. The statistics, after McCandlish et al.,
 * "An Empirical Model of Large-Batch Training", 2018, appendix A, with the exponential averages of
 * AdaScale (Johnson et al., 2020). */
#include "adaptdl/noise.h"

#include "base/bytes.h"
#include "base/mem.h"
#include "base/status.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SMOOTHING 0.999 /* per initial batch: theta = SMOOTHING^scale */
#define VAR_FLOOR 1e-6

struct adl_noise {
    size_t groups;
    bool biased;
    double progress;
    adl_noise_group group[]; /* [groups] */
};

adl_status adl_noise_new(size_t groups, adl_noise **out)
{
    *out = NULL;
    if (groups < 1 || groups > INT32_MAX)
        return adli_fail(ADL_EINVAL, "noise scale: groups must be at least 1, not %zu", groups);
    adl_noise *noise = adli_calloc(1, sizeof *noise + groups * sizeof noise->group[0]);
    if (!noise)
        return adli_fail_memory("noise scale");
    noise->groups = groups;
    /* nothing measured, no noise: a gain of 1, so that no learning rate grows on faith */
    for (size_t i = 0; i < groups; i++)
        noise->group[i].sqr = 1;
    *out = noise;
    return ADL_OK;
}

void adl_noise_free(adl_noise *noise)
{
    free(noise);
}

/* ---- one step's estimate into the averages ---- */

/* What one optimizer step says about one group, before averaging:
 *   sqr = (count * total - local) / (count - 1),   var = (local - total) * scale / (count - 1)
 * Both are unbiased: E[local] = |G|^2 + tr(Sigma)/b and E[total] = |G|^2 + tr(Sigma)/(b count) for
 * micro batches of size b, and scale turns tr(Sigma)/(b count) into the variance at B0. */
typedef struct estimate {
    double sqr, var;
} estimate;

static estimate estimate_of(double local_sqr, double total_sqr, int count, double scale,
                            double loss_scale)
{
    double local = local_sqr / loss_scale / loss_scale, total = total_sqr / loss_scale / loss_scale;
    return (estimate){(count * total - local) / (count - 1), (local - total) * scale / (count - 1)};
}

/* biased = theta biased + (1 - theta) value, unbias = theta unbias + (1 - theta);
 * average = biased / unbias */
static double average(double theta, double weight, double value, double *biased, double *unbias)
{
    *biased = theta * *biased + weight * value;
    *unbias = theta * *unbias + weight;
    return *biased / *unbias;
}

static void add(adl_noise *noise, const double *local_sqr, const double *total_sqr, int count,
                double scale, double loss_scale)
{
    double exponent = scale * log(SMOOTHING);
    double theta = exp(exponent), weight = -expm1(exponent);
    for (size_t i = 0; i < noise->groups; i++) {
        adl_noise_group *group = &noise->group[i];
        estimate step = estimate_of(local_sqr[i], total_sqr[i], count, scale, loss_scale);
        group->sqr = average(theta, weight, step.sqr, &group->sqr_biased, &group->sqr_unbias);
        group->var = average(theta, weight, step.var, &group->var_biased, &group->var_unbias);
    }
}

static void reset(adl_noise *noise)
{
    for (size_t i = 0; i < noise->groups; i++)
        noise->group[i] = (adl_noise_group){.sqr = 1};
}

static bool measured(const adl_noise *noise)
{
    return noise->group[0].sqr_unbias > 0;
}

/* Are the arguments sensible, and do the norms give finite estimates? A gradient that overflowed is
 * no error: *skip says that this step teaches nothing. */
static adl_status check(const adl_noise *noise, const double *local_sqr, const double *total_sqr,
                        int count, double scale, double loss_scale, bool *skip)
{
    *skip = false;
    if (count < 2)
        return adli_fail(ADL_EINVAL, "noise scale: count must be at least 2, not %d", count);
    if (!(scale > 0) || !(scale <= 1e12))
        return adli_fail(ADL_EINVAL, "noise scale: scale must be positive, not %g", scale);
    if (!(loss_scale > 0) || !isfinite(loss_scale))
        return adli_fail(ADL_EINVAL, "noise scale: loss scale must be positive, not %g",
                         loss_scale);
    for (size_t i = 0; i < noise->groups; i++) {
        if (local_sqr[i] < 0 || total_sqr[i] < 0)
            return adli_fail(ADL_EINVAL, "noise scale: group %zu: squared norm %g is negative", i,
                             fmin(local_sqr[i], total_sqr[i]));
        estimate step = estimate_of(local_sqr[i], total_sqr[i], count, scale, loss_scale);
        *skip |= !isfinite(step.sqr) || !isfinite(step.var);
    }
    return ADL_OK;
}

adl_status adl_noise_update(adl_noise *noise, const double *local_sqr, const double *total_sqr,
                            int count, double scale, double loss_scale, bool *skipped)
{
    bool skip;
    adl_status status = check(noise, local_sqr, total_sqr, count, scale, loss_scale, &skip);
    if (skipped)
        *skipped = skip;
    if (status != ADL_OK || skip)
        return status;
    if (noise->biased)
        reset(noise);
    noise->biased = false;
    add(noise, local_sqr, total_sqr, count, scale, loss_scale);
    return ADL_OK;
}

adl_status adl_noise_update_pair(adl_noise *noise, const double *local_sqr, const double *total_sqr,
                                 double accum_scale, double loss_scale, bool *skipped)
{
    bool skip;
    double scale = 2 * accum_scale; /* two steps stand for two micro-gradients of one */
    adl_status status = check(noise, local_sqr, total_sqr, 2, scale, loss_scale, &skip);
    if (skipped)
        *skipped = skip;
    if (status != ADL_OK || skip || (measured(noise) && !noise->biased))
        return status;
    noise->biased = true;
    add(noise, local_sqr, total_sqr, 2, scale, loss_scale);
    return ADL_OK;
}

/* ---- what the averages say ---- */

adl_grad_params adl_noise_group_params(const adl_noise *noise, size_t group)
{
    if (group >= noise->groups)
        return (adl_grad_params){1, VAR_FLOOR};
    return (adl_grad_params){.sqr = fmax(noise->group[group].sqr, 0),
                             .var = fmax(noise->group[group].var, VAR_FLOOR)};
}

adl_grad_params adl_noise_params(const adl_noise *noise)
{
    adl_grad_params sum = {0, 0};
    for (size_t i = 0; i < noise->groups; i++) {
        adl_grad_params group = adl_noise_group_params(noise, i);
        sum.sqr += group.sqr;
        sum.var += group.var;
    }
    return sum;
}

double adl_noise_gain(const adl_noise *noise, double scale)
{
    return adl_gain(adl_noise_params(noise), scale);
}

double adl_noise_progress(const adl_noise *noise)
{
    return noise->progress;
}

void adl_noise_advance(adl_noise *noise, double scale)
{
    noise->progress += adl_noise_gain(noise, scale);
}

void adl_noise_set_progress(adl_noise *noise, double progress)
{
    if (isfinite(progress) && progress >= 0)
        noise->progress = progress;
}

bool adl_noise_biased(const adl_noise *noise)
{
    return noise->biased;
}

size_t adl_noise_groups(const adl_noise *noise)
{
    return noise->groups;
}

/* ---- checkpoints ---- */

/* 32 bytes: "ADLNOISE", u32 version 1, u32 biased, u64 groups, f64 progress;
 * then per group the six f64 of adl_noise_group in order. Little-endian. */

enum { HEADER_BYTES = 32, GROUP_DOUBLES = 6, VERSION = 1 };

static const char magic[8] = {'A', 'D', 'L', 'N', 'O', 'I', 'S', 'E'};

size_t adl_noise_save_size(const adl_noise *noise)
{
    return HEADER_BYTES + noise->groups * GROUP_DOUBLES * 8;
}

void adl_noise_save(const adl_noise *noise, void *out)
{
    uint8_t *to = adli_put_bytes(out, magic, sizeof magic);
    to = adli_put_u64(to, (uint64_t)noise->biased << 32 | VERSION);
    to = adli_put_u64(to, noise->groups);
    to = adli_put_double(to, noise->progress);
    for (size_t i = 0; i < noise->groups; i++) {
        const adl_noise_group *group = &noise->group[i];
        to = adli_put_double(to, group->sqr_biased);
        to = adli_put_double(to, group->var_biased);
        to = adli_put_double(to, group->sqr_unbias);
        to = adli_put_double(to, group->var_unbias);
        to = adli_put_double(to, group->sqr);
        to = adli_put_double(to, group->var);
    }
}

static bool get_group(adli_reader *reader, adl_noise_group *out)
{
    double v[GROUP_DOUBLES];
    for (int i = 0; i < GROUP_DOUBLES; i++) {
        v[i] = adli_get_double(reader);
        if (!isfinite(v[i]))
            return false;
    }
    *out = (adl_noise_group){v[0], v[1], v[2], v[3], v[4], v[5]};
    return v[2] >= 0 && v[2] <= 1 + 1e-9 && v[3] >= 0 && v[3] <= 1 + 1e-9;
}

adl_status adl_noise_load(adl_noise *noise, const void *data, size_t length)
{
    adli_reader reader = adli_reader_over(data, length);
    const uint8_t *start = adli_get_bytes(&reader, sizeof magic);
    if (length < HEADER_BYTES || memcmp(start, magic, sizeof magic) != 0)
        return adli_fail(ADL_ECORRUPT, "noise scale: %zu bytes are no saved state", length);
    uint64_t flags = adli_get_u64(&reader), groups = adli_get_u64(&reader);
    double progress = adli_get_double(&reader);
    if ((uint32_t)flags != VERSION || flags >> 32 > 1)
        return adli_fail(ADL_ECORRUPT, "noise scale: unknown version %u of a saved state",
                         (unsigned)(uint32_t)flags);
    if (groups != noise->groups)
        return adli_fail(ADL_EINVAL, "noise scale: saved with %llu groups, not %zu",
                         (unsigned long long)groups, noise->groups);
    if (length != adl_noise_save_size(noise) || !(progress >= 0) || !isfinite(progress))
        return adli_fail(ADL_ECORRUPT, "noise scale: saved state is damaged");
    adl_noise_group group;
    adli_reader again = reader; /* all are checked before any is taken over */
    for (size_t i = 0; i < noise->groups; i++)
        if (!get_group(&again, &group))
            return adli_fail(ADL_ECORRUPT, "noise scale: saved state of group %zu is damaged", i);
    for (size_t i = 0; i < noise->groups; i++)
        get_group(&reader, &noise->group[i]);
    noise->biased = flags >> 32;
    noise->progress = progress;
    return ADL_OK;
}
