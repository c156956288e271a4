/* The one place where goodput is computed. The scheduler, the simulator, the training library and
 * the Python package all come here, so they can never disagree about what a configuration is worth.
 *
 *   goodput(N, R, m, s) = throughput(N, R, m, s) * efficiency(B),   B = R * m * (s + 1)
 *
 * after Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning",
 * OSDI 2021, sections 3.1 and 3.2. */
#include "adaptdl/goodput.h"

#include "base/mem.h"
#include "base/status.h"
#include "model/perf.h"

#include <limits.h>
#include <math.h>

enum { CANDIDATES = 50 };

/* Batch sizes closer than this are the same: B / R and the geometric steps are rounded. */
#define ROUNDING 1e-8
/* Times and statistics between these can be multiplied and divided without leaving double. */
#define TINY     1e-100
#define LARGE    1e100

/* ---- the step-time model ---- */

/* T_accum(m) = alpha_c + beta_c * m */
double adl_accum_time(const adl_perf_params *perf, double local_bsz)
{
    return perf->alpha_c + perf->beta_c * local_bsz;
}

/* T_network(N, R) = alpha_n + beta_n * max(R - 2, 1e-8)   if N > 1
 *                   alpha_r + beta_r * max(R - 2, 1e-8)   else if R > 1
 *                   1e-8 + 1e-8 * max(R - 2, 1e-8)        else */
double adl_network_time(const adl_perf_params *perf, adl_shape shape)
{
    double beyond = fmax((double)shape.replicas - 2, 1e-8);
    if (shape.nodes > 1)
        return perf->alpha_n + perf->beta_n * beyond;
    if (shape.replicas > 1)
        return perf->alpha_r + perf->beta_r * beyond;
    return 1e-8 + 1e-8 * beyond;
}

/* T_optim = (T_accum^gamma + T_network^gamma)^(1/gamma), with the larger of the two taken out of
 * the root so that no power can overflow: high * (1 + (low / high)^gamma)^(1/gamma). */
static double overlap(double accum, double network, double gamma)
{
    double high = fmax(accum, network), low = fmin(accum, network);
    if (!(high > 0))
        return 0;
    double power = pow(low / high, gamma);
    /* 1 + power rounds to 1: usual on one replica, and it saves the second root */
    if (power < 1e-17)
        return high;
    return high * pow(1 + power, 1 / gamma);
}

double adl_optim_time(const adl_perf_params *perf, adl_shape shape, double local_bsz)
{
    return overlap(adl_accum_time(perf, local_bsz), adl_network_time(perf, shape), perf->gamma);
}

/* ---- statistical efficiency ---- */

/* gain(scale) = (var + sqr) / (var / scale + sqr) */
double adl_gain(adl_grad_params grad, double scale)
{
    double denominator = grad.var / scale + grad.sqr;
    if (!(denominator > 0))
        return 1;
    double gain = (grad.var + grad.sqr) / denominator;
    return isfinite(gain) ? gain : 1;
}

/* efficiency(B) = gain(scale) / scale, scale = B / B0 */
static double efficiency(const adl_goodput *model, double batch_size)
{
    double scale = batch_size / model->init_batch_size;
    return adl_gain(model->grad, scale) / scale;
}

/* ---- checks ---- */

static adl_status check_range(const char *name, double value, double low, double high)
{
    if (value >= low && value <= high) /* false for NaN */
        return ADL_OK;
    return adli_fail(ADL_EINVAL, "%s must be from %.15g to %.15g, not %.15g", name, low, high,
                     value);
}

const char *const adli_perf_names[ADLI_PERF_COUNT] = {"alpha_c", "beta_c", "alpha_n", "beta_n",
                                                      "alpha_r", "beta_r", "gamma"};

adl_status adl_goodput_check(const adl_goodput *model)
{
    const adl_perf_params *perf = &model->perf;
    adl_status status = ADL_OK;
    const struct {
        const char *name;
        double value, low, high;
    } ranges[] = {
        {"alpha_c + beta_c", perf->alpha_c + perf->beta_c, TINY, 2 * LARGE},
        {"grad sqr", model->grad.sqr, 0, LARGE},
        {"grad var", model->grad.var, 0, LARGE},
        {"init batch size", model->init_batch_size, 1, INT_MAX},
    };
    for (int i = 0; i < ADLI_PERF_COUNT && status == ADL_OK; i++) {
        bool gamma = i == ADLI_PERF_COUNT - 1;
        status = check_range(adli_perf_names[i], adli_perf_get(perf, i), gamma, gamma ? 10 : LARGE);
    }
    for (size_t i = 0; i < ADLI_COUNT(ranges) && status == ADL_OK; i++)
        status = check_range(ranges[i].name, ranges[i].value, ranges[i].low, ranges[i].high);
    return status;
}

static adl_status check_shape(adl_shape shape)
{
    if (shape.nodes < 1)
        return adli_fail(ADL_EINVAL, "N must be at least 1, not %d", shape.nodes);
    if (shape.replicas < shape.nodes)
        return adli_fail(ADL_EINVAL, "R must be at least N: R = %d, N = %d", shape.replicas,
                         shape.nodes);
    return ADL_OK;
}

static adl_status check_batch(const adl_goodput *model, double batch_size)
{
    /* the slack is for B0 that are not whole numbers */
    if (batch_size >= model->init_batch_size * (1 - 1e-12) && batch_size <= LARGE)
        return ADL_OK;
    return adli_fail(ADL_EINVAL, "batch size %.15g must be at least the initial batch size %.15g",
                     batch_size, model->init_batch_size);
}

/* ---- evaluate ---- */

/* throughput(N, R, m, s) = B / (s * T_accum + T_optim) */
adl_status adl_throughput(const adl_goodput *model, adl_shape shape, double local_bsz,
                          int accum_steps, double *out)
{
    *out = 0;
    adl_status status = adl_goodput_check(model);
    if (status == ADL_OK)
        status = check_shape(shape);
    if (status == ADL_OK)
        status = check_range("m", local_bsz, 1, INT_MAX);
    if (status == ADL_OK)
        status = check_range("s", accum_steps, 0, INT_MAX);
    if (status != ADL_OK)
        return status;
    double batch_size = shape.replicas * local_bsz * (accum_steps + 1.0);
    *out = batch_size / (accum_steps * adl_accum_time(&model->perf, local_bsz) +
                         adl_optim_time(&model->perf, shape, local_bsz));
    return ADL_OK;
}

adl_status adl_efficiency(const adl_goodput *model, double batch_size, double *out)
{
    *out = 0;
    adl_status status = adl_goodput_check(model);
    if (status == ADL_OK)
        status = check_batch(model, batch_size);
    if (status == ADL_OK)
        *out = efficiency(model, batch_size);
    return status;
}

adl_status adl_goodput_evaluate(const adl_goodput *model, adl_shape shape, double local_bsz,
                                int accum_steps, double *out)
{
    double batch_size = shape.replicas * local_bsz * (accum_steps + 1.0);
    double rate;
    *out = 0;
    adl_status status = adl_throughput(model, shape, local_bsz, accum_steps, &rate);
    if (status == ADL_OK)
        status = check_batch(model, batch_size);
    if (status == ADL_OK)
        *out = rate * efficiency(model, batch_size);
    return status;
}

/* ---- optimize ---- */

/* The limits with every open bound replaced and m's bounds made whole. */
typedef struct batch_range {
    double max_batch, min_m, max_m;
    bool accumulation, lone_grows;
} batch_range;

static adl_status resolve(const adl_goodput *model, const adl_batch_limits *limits,
                          batch_range *out)
{
    double max_batch = limits->max_batch_size, max_m = limits->max_local_bsz;
    out->accumulation = limits->accumulation;
    out->lone_grows = limits->lone_grows;
    out->max_batch = max_batch == 0 ? model->init_batch_size : max_batch;
    out->min_m = limits->min_local_bsz == 0 ? 1 : ceil(limits->min_local_bsz);
    out->max_m = max_m == 0 ? ceil(out->max_batch) : floor(max_m);
    adl_status status = check_range("max_batch_size", out->max_batch, 1, INT_MAX);
    if (status == ADL_OK)
        status = check_range("min local batch size", out->min_m, 1, INT_MAX);
    if (status == ADL_OK)
        status = check_range("max local batch size", out->max_m, 1, INT_MAX);
    if (status != ADL_OK)
        return status;
    if (model->init_batch_size > out->max_batch)
        return adli_fail(ADL_EINVAL, "init batch size %.15g is more than max_batch_size %.15g",
                         model->init_batch_size, out->max_batch);
    if (out->min_m > out->max_m)
        return adli_fail(ADL_EINVAL, "no whole local batch size from %.15g to %.15g",
                         limits->min_local_bsz == 0 ? 1 : limits->min_local_bsz,
                         max_m == 0 ? out->max_batch : max_m);
    return ADL_OK;
}

/* ceil, fmin and fmax are calls into libm on a plain x86-64; these are instructions, and the loop over the
 * candidates is done two at a time. No NaN comes here, and no batch size is beyond INT_MAX: adding and
 * subtracting 2^52 rounds to a whole number. */
static inline double up(double x)
{
    double whole = (x + 0x1p52) - 0x1p52;
    return whole < x ? whole + 1 : whole;
}

static inline double larger(double x, double y)
{
    return x > y ? x : y;
}

/* Total batch sizes split over the replicas into (m, s), T_accum(m), and a bound of the goodput that needs
 * no roots; -1 where the batch is smaller than B0. */
typedef struct candidates {
    double batch[CANDIDATES], m[CANDIDATES], s[CANDIDATES], accum[CANDIDATES], bound[CANDIDATES];
} candidates;

/* Does a single replica keep to B0, or accumulate? */
static bool held(const batch_range *range, int replicas)
{
    return replicas == 1 && !range->lone_grows;
}

/* 50 total batch sizes in geometric steps from max(B0, min_m * R) to max_batch_size, both exact. One replica
 * without accumulation has one. */
static void list_batches(const batch_range *range, double init, int replicas, candidates *list)
{
    double batch = larger(init, range->min_m * replicas);
    double ratio = exp(log(range->max_batch / batch) / (CANDIDATES - 1));
    for (int i = 0; i < CANDIDATES - 1; i++, batch *= ratio)
        list->batch[i] = batch;
    list->batch[CANDIDATES - 1] = range->max_batch;
    for (int i = 0; held(range, replicas) && !range->accumulation && i < CANDIDATES; i++)
        list->batch[i] = init;
}

/* The bound takes T_optim for what it is at least: its larger part, and 2^(1 / gamma) times the mean of both
 * (no mean of powers is less than the mean). Where statistics are so small that products of them are rounded to
 * nothing, there is none. */
static void list_candidates(const adl_goodput *model, const batch_range *range, int replicas,
                            double network, candidates *list)
{
    double init = model->init_batch_size, var = model->grad.var, sqr = model->grad.sqr;
    double both = 0.5 * exp2(1 / model->perf.gamma), least = init * (1 - 1e-12);
    double min_m = range->min_m, max_m = range->max_m;
    double whole = range->accumulation ? max_m : HUGE_VAL; /* what is not split further */
    /* one gradient alone gives no noise estimate */
    double alone = range->accumulation && held(range, replicas) ? init + ROUNDING : HUGE_VAL;
    adl_perf_params perf = model->perf;
    list_batches(range, init, replicas, list);
    for (int i = 0; i < CANDIDATES; i++) {
        double local = list->batch[i] / replicas;
        double s = larger(up(local / whole - ROUNDING) - 1, local > alone ? 1 : 0);
        double m = larger(up(local / (s + 1) - ROUNDING), min_m);
        m = m < max_m ? m : max_m;
        double total = replicas * m * (s + 1), accum = adl_accum_time(&perf, m);
        double optim = larger(larger(accum, network), both * (accum + network));
        double bound =
            init * (var + sqr) * total / ((var * init + sqr * total) * (s * accum + optim));
        list->m[i] = m;
        list->s[i] = s;
        list->accum[i] = accum;
        list->bound[i] = total < least ? -1 : bound;
    }
    for (int i = 0; var + sqr < TINY && i < CANDIDATES; i++)
        list->bound[i] = list->bound[i] == -1 ? -1 : HUGE_VAL;
}

/* B * efficiency(B) = B0 * gain(B / B0), without the divisions that cancel. */
static double worth(const adl_goodput *model, const candidates *list, int replicas, int i)
{
    adl_grad_params grad = model->grad;
    double init = model->init_batch_size, total = replicas * list->m[i] * (list->s[i] + 1);
    double noise = grad.var * init / total + grad.sqr;
    return noise > 0 ? init * (grad.var + grad.sqr) / noise : init;
}

/* The first best of the candidates; -1: there is none. The one with the best bound is looked at first: it is
 * often the winner. T_optim is convex in T_accum, so no other is below its tangent there, and most others need
 * no roots. */
static int find_best(const adl_goodput *model, const candidates *list, int replicas, double network,
                     double *best)
{
    double gamma = model->perf.gamma, slope = 0, touched = 0, at = 0;
    int winner = -1, start = 0;
    for (int i = 1; i < CANDIDATES; i++)
        start = list->bound[i] > list->bound[start] ? i : start;
    for (int k = -1; k < CANDIDATES && list->bound[start] >= 0; k++) {
        int i = k < 0 ? start : k;
        double limit = list->bound[i] * (1 + 1e-12), accum = list->accum[i], steps = list->s[i];
        if (limit < *best || limit < 0 || k == start ||
            (k > 0 && list->m[k] == list->m[k - 1] && steps == list->s[k - 1]))
            continue;
        double value = worth(model, list, replicas, i);
        double tangent = steps * accum + touched + slope * (accum - at);
        if (k >= 0 && tangent > 0 && value / tangent * (1 + 1e-12) < *best)
            continue;
        double optim = overlap(accum, network, gamma), goodput = value / (steps * accum + optim);
        if (k < 0) {
            touched = optim;
            at = accum;
            slope = pow(accum / optim, gamma - 1);
        }
        if (winner < 0 || goodput > *best || (goodput == *best && i < winner)) {
            *best = goodput;
            winner = i;
        }
    }
    return winner;
}

adl_status adl_goodput_optimize(const adl_goodput *model, const adl_batch_limits *limits,
                                adl_shape shape, adl_batch_choice *out)
{
    batch_range range;
    candidates list;
    *out = (adl_batch_choice){0};
    adl_status status = adl_goodput_check(model);
    if (status == ADL_OK)
        status = check_shape(shape);
    if (status == ADL_OK)
        status = resolve(model, limits, &range);
    if (status != ADL_OK)
        return status;

    double best = -1, network = adl_network_time(&model->perf, shape);
    list_candidates(model, &range, shape.replicas, network, &list);
    int winner = find_best(model, &list, shape.replicas, network, &best);
    if (winner < 0)
        return adli_fail(ADL_EINVAL,
                         "%d replica%s of at most %.15g examples cannot hold the initial batch of "
                         "%.15g without accumulation",
                         shape.replicas, shape.replicas == 1 ? "" : "s", range.max_m,
                         model->init_batch_size);
    *out = (adl_batch_choice){best, (int)list.m[winner], (int)list.s[winner]};
    return ADL_OK;
}

adl_status adl_goodput_optimize_array(const adl_goodput *model, const adl_batch_limits *limits,
                                      const adl_shape *shapes, size_t count, adl_batch_choice *out)
{
    size_t failed = count;
    for (size_t i = count; i-- > 0;) /* backwards, so that the first failure's text stays */
        if (adl_goodput_optimize(model, limits, shapes[i], &out[i]) != ADL_OK)
            failed = i;
    return failed < count ? adli_wrap(ADL_EINVAL, "element %zu", failed) : ADL_OK;
}
