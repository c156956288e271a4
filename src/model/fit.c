/* Fits the step-time model to what a job measured about itself. A job refits every few seconds and
 * the scheduler acts on the result, so a fit has to be fast, repeatable, and calm about bad data.
 *
 * Minimised over x = (alpha_c beta_c alpha_n beta_n alpha_r beta_r gamma), with p and q the n
 * residuals of log T_accum and log T_optim:
 *
 *   f(x) = sqrt(|p|^2 / n) + sqrt(|q|^2 / n)
 *          + 1e-3 (gamma - 1)^2 + 1e-2 ((beta_n / alpha_n)^2 + (beta_r / alpha_r)^2)
 *
 * The roots have a kink where the residuals vanish, which is where the minimum lies when there are
 * few points. So f is smoothed, sqrt(|p|^2 / n + e^2), and followed from e = 0.1 down to e = 1e-8;
 * each minimum is the start of the next descent. The wide first e also keeps the path out of poor
 * local minima. */
#include "adaptdl/fit.h"

#include "base/mem.h"
#include "base/status.h"
#include "model/boxmin.h"
#include "model/fit_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VARS = FIT_VARS };
_Static_assert((int)FIT_VARS == (int)ADLI_BOX_VARS, "the minimiser is sized for this problem");

#define LOWER       1e-8 /* of alpha and beta */
#define UPPER       1e12 /* far above any measurement; keeps sums finite */
#define GAMMA_PRIOR 1e-3
#define RATIO_PRIOR 1e-2

/* log T and its derivatives by alpha and beta. */
typedef struct log_time {
    double value, by_alpha, by_beta;
} log_time;

/* By the chain rule all derivatives by a network's alpha and beta are those by b = log T_network,
 * times d b / d alpha and d b / d beta. So rows are first summed by b, network by network, and
 * multiplied once. */
typedef struct network_sums {
    double b_residual, bb, b_gamma, b_alpha_c, b_beta_c;
} network_sums;

typedef struct objective {
    const adli_fit_rows *rows;
    log_time *accum;    /* [accum_count] */
    log_time *network;  /* [network_count] */
    network_sums *sums; /* [network_count] */
    double smooth;      /* e */
} objective;

/* ---- f, term by term ---- */

/* sqrt(sum / n + e^2) where part holds sums over rows: value = sum w q^2, gradient = sum w q J,
 * hessian = sum w J J^T. Calling the root r:
 *   dr = gradient / (n r),   d2r = hessian / (n r) - dr dr^T / r   (Gauss-Newton)
 * which is positive semidefinite by the Cauchy-Schwarz inequality. The damping is scaled without
 * the second part, which can cancel the first. */
static void add_root(adli_quadratic *to, const adli_quadratic *part, double n, double smooth)
{
    double root = sqrt(part->value / n + smooth * smooth), inverse = 1 / (n * root), slope[VARS];
    to->value += root;
    for (int i = 0; i < VARS; i++) {
        slope[i] = part->gradient[i] * inverse;
        to->gradient[i] += slope[i];
        to->diagonal[i] += part->hessian[i][i] * inverse;
        for (int j = 0; j <= i; j++)
            to->hessian[i][j] += part->hessian[i][j] * inverse - slope[i] * slope[j] / root;
    }
}

/* 1e-2 (beta / alpha)^2, Gauss-Newton */
static void add_ratio_prior(adli_quadratic *to, const double *x, int alpha)
{
    int beta = alpha + 1;
    double ratio = x[beta] / x[alpha], by_alpha = -ratio / x[alpha], by_beta = 1 / x[alpha];
    double weight = 2 * RATIO_PRIOR;
    to->value += RATIO_PRIOR * ratio * ratio;
    to->gradient[alpha] += weight * ratio * by_alpha;
    to->gradient[beta] += weight * ratio * by_beta;
    to->hessian[alpha][alpha] += weight * by_alpha * by_alpha;
    to->hessian[beta][alpha] += weight * by_beta * by_alpha;
    to->hessian[beta][beta] += weight * by_beta * by_beta;
    to->diagonal[alpha] += weight * by_alpha * by_alpha;
    to->diagonal[beta] += weight * by_beta * by_beta;
}

/* 1e-3 (gamma - 1)^2 */
static void add_gamma_prior(adli_quadratic *to, double gamma)
{
    to->value += GAMMA_PRIOR * (gamma - 1) * (gamma - 1);
    to->gradient[GAMMA] += 2 * GAMMA_PRIOR * (gamma - 1);
    to->hessian[GAMMA][GAMMA] += 2 * GAMMA_PRIOR;
    to->diagonal[GAMMA] += 2 * GAMMA_PRIOR;
}

/* T = alpha + beta * times */
static log_time log_of(double alpha, double beta, double times)
{
    double time = alpha + beta * times;
    return (log_time){log(time), 1 / time, times / time};
}

/* The logarithms are the dear part, so they are taken once per m and once per (N > 1, R). */
static void log_times(objective *f, const double *x)
{
    const adli_fit_rows *rows = f->rows;
    for (size_t i = 0; i < rows->accum_count; i++)
        f->accum[i] = log_of(x[ALPHA_C], x[BETA_C], rows->accum[i].bsz);
    for (size_t i = 0; i < rows->network_count; i++) {
        const adli_network_row *row = &rows->network[i];
        f->network[i] = row->alpha == NO_NETWORK
                            ? log_of(1e-8, 1e-8, row->beyond)
                            : log_of(x[row->alpha], x[row->alpha + 1], row->beyond);
    }
}

static void add_accum(const objective *f, adli_quadratic *part)
{
    const adli_fit_rows *rows = f->rows;
    part->value += rows->accum_spread;
    for (size_t i = 0; i < rows->accum_count; i++) {
        log_time model = f->accum[i];
        double weight = rows->accum[i].weight, residual = model.value - rows->accum[i].log_time;
        part->value += weight * residual * residual;
        part->gradient[ALPHA_C] += weight * residual * model.by_alpha;
        part->gradient[BETA_C] += weight * residual * model.by_beta;
        part->hessian[ALPHA_C][ALPHA_C] += weight * model.by_alpha * model.by_alpha;
        part->hessian[BETA_C][ALPHA_C] += weight * model.by_beta * model.by_alpha;
        part->hessian[BETA_C][BETA_C] += weight * model.by_beta * model.by_beta;
    }
}

/* Multiplies what was summed for one network. */
static void add_network(const network_sums *sums, log_time b, int alpha, adli_quadratic *part)
{
    const double by[2] = {b.by_alpha, b.by_beta};
    for (int i = 0; i < 2; i++) {
        part->gradient[alpha + i] += by[i] * sums->b_residual;
        part->hessian[alpha + i][ALPHA_C] += by[i] * sums->b_alpha_c;
        part->hessian[alpha + i][BETA_C] += by[i] * sums->b_beta_c;
        part->hessian[GAMMA][alpha + i] += by[i] * sums->b_gamma;
        for (int j = 0; j <= i; j++)
            part->hessian[alpha + i][alpha + j] += by[i] * by[j] * sums->bb;
    }
}

/* With a = log T_accum, b = log T_network and d = |a - b|, so that nothing can overflow:
 *   log T_optim = max(a, b) + log(1 + exp(-gamma d)) / gamma
 *   d/da = 1 / (1 + exp(gamma (b - a))),   d/db = 1 - d/da
 *   d/dgamma = -(log(1 + exp(-gamma d)) / gamma + d min(d/da, d/db)) / gamma
 * The sums are kept in variables of their own: this loop is where a fit spends its time. */
static void add_optim(const objective *f, double gamma, adli_quadratic *part)
{
    const adli_fit_rows *rows = f->rows;
    const double inverse = 1 / gamma;
    double value = rows->optim_spread, a0 = 0, a1 = 0, g = 0; /* gradient: alpha_c beta_c gamma */
    double a0a0 = 0, a1a0 = 0, a1a1 = 0, ga0 = 0, ga1 = 0, gg = 0; /* hessian */
    memset(f->sums, 0, rows->network_count * sizeof *f->sums);
    for (size_t i = 0; i < rows->optim_count; i++) {
        const adli_optim_row *row = &rows->optim[i];
        const log_time *a = &f->accum[row->accum], *b = &f->network[row->network];
        network_sums *sums = &f->sums[row->network];
        bool slower = a->value > b->value; /* computing is slower than the network */
        double apart = fabs(a->value - b->value), ratio = exp(-gamma * apart);
        double more = log(1 + ratio) * inverse, less_share = ratio / (1 + ratio);
        double by_a = slower ? 1 - less_share : less_share, by_b = 1 - by_a;
        double by_a0 = by_a * a->by_alpha, by_a1 = by_a * a->by_beta;
        double by_gamma = -(more + less_share * apart) * inverse;
        double residual = (slower ? a->value : b->value) + more - row->log_time;
        double weighted = row->weight * residual, weighted_b = row->weight * by_b;
        double weighted_a0 = row->weight * by_a0, weighted_a1 = row->weight * by_a1;
        value += weighted * residual;
        a0 += weighted * by_a0;
        a1 += weighted * by_a1;
        g += weighted * by_gamma;
        a0a0 += weighted_a0 * by_a0;
        a1a0 += weighted_a1 * by_a0;
        a1a1 += weighted_a1 * by_a1;
        ga0 += weighted_a0 * by_gamma;
        ga1 += weighted_a1 * by_gamma;
        gg += row->weight * by_gamma * by_gamma;
        sums->b_residual += weighted_b * residual;
        sums->bb += weighted_b * by_b;
        sums->b_gamma += weighted_b * by_gamma;
        sums->b_alpha_c += weighted_b * by_a0;
        sums->b_beta_c += weighted_b * by_a1;
    }
    *part = (adli_quadratic){
        .value = value,
        .gradient = {[ALPHA_C] = a0, [BETA_C] = a1, [GAMMA] = g},
        .hessian = {
            [ALPHA_C] = {a0a0}, [BETA_C] = {a1a0, a1a1}, [GAMMA] = {ga0, ga1, [GAMMA] = gg}}};
    for (size_t i = 0; i < rows->network_count; i++)
        if (rows->network[i].alpha != NO_NETWORK)
            add_network(&f->sums[i], f->network[i], rows->network[i].alpha, part);
}

static void evaluate(void *context, const double *x, adli_quadratic *out)
{
    objective *f = context;
    adli_quadratic accum = {0}, optim;
    double n = (double)f->rows->point_count;
    *out = (adli_quadratic){0};
    log_times(f, x);
    add_accum(f, &accum);
    add_root(out, &accum, n, f->smooth);
    add_optim(f, x[GAMMA], &optim);
    add_root(out, &optim, n, f->smooth);
    add_ratio_prior(out, x, ALPHA_N);
    add_ratio_prior(out, x, ALPHA_R);
    add_gamma_prior(out, x[GAMMA]);
}

/* ---- the box and the start ---- */

/* What was not seen cannot be fitted. It is fixed so that the model stays optimistic there: the
 * scheduler then tries what was never tried, and the next fit knows more. */
static void fix_unseen(const adli_fit_rows *rows, adli_box *box, double *x)
{
    bool between = false, within = false, beyond = false;
    for (size_t i = 0; i < rows->network_count; i++) {
        between |= rows->network[i].alpha == ALPHA_N;
        within |= rows->network[i].alpha == ALPHA_R;
        beyond |= rows->network[i].beyond >= 1;
    }
    box->fixed[ALPHA_C] = rows->accum_count == 1;
    box->fixed[ALPHA_N] = !between;
    box->fixed[BETA_N] = !between || !beyond;
    box->fixed[ALPHA_R] = !within;
    box->fixed[BETA_R] = !within || !beyond;
    for (int i = ALPHA_N; i <= BETA_R; i++)
        if (box->fixed[i])
            x[i] = LOWER;
    if (box->fixed[ALPHA_C]) {
        double sum = 0;
        for (size_t i = 0; i < rows->point_count; i++)
            sum += rows->points[i].accum_time_s;
        x[ALPHA_C] = fmax(sum / (double)rows->point_count / 2, LOWER);
    }
}

static const struct stage {
    double smooth, tolerance;
} stages[] = {{1e-1, 1e-6}, {1e-2, 1e-6}, {1e-3, 1e-6}, {1e-5, 1e-7}, {1e-8, 1e-9}};

enum { STAGES = ADLI_COUNT(stages) };

/* Follows the minimum down the stages first .. last of smoothing; returns the last f. */
static double minimise(objective *f, const adli_box *box, int first, int last, double *x)
{
    double value = 0;
    for (int i = first; i <= last; i++) {
        f->smooth = stages[i].smooth;
        value = adli_box_minimise(box, evaluate, f, stages[i].tolerance, 100, x);
    }
    return value;
}

/* Does the network (alpha: ALPHA_N or ALPHA_R) make no difference to any of its rows? */
static bool vanished(const objective *f, int alpha, double gamma)
{
    const adli_fit_rows *rows = f->rows;
    for (size_t i = 0; i < rows->optim_count; i++) {
        const adli_optim_row *row = &rows->optim[i];
        double apart = f->accum[row->accum].value - f->network[row->network].value;
        if (rows->network[row->network].alpha == alpha && exp(-gamma * apart) > 1e-3)
            return false;
    }
    return true;
}

/* With gamma > 1, T_optim is flat in a network time that is small beside T_accum: once there, a
 * descent does not come back, even if a slow network explained the points better. So a network that
 * vanished gets a second chance, from as slow as the computation. It is given up when it is no
 * better after one stage. */
static void retry_vanished(objective *f, const adli_box *box, double value, double *x)
{
    for (int alpha = ALPHA_N; alpha <= ALPHA_R; alpha += 2) {
        double y[VARS];
        adli_quadratic at;
        f->smooth = stages[1].smooth;
        evaluate(f, x, &at);
        if (box->fixed[alpha] || !vanished(f, alpha, x[GAMMA]))
            continue;
        memcpy(y, x, sizeof y);
        y[alpha] = exp(f->accum[f->rows->accum_count / 2].value);
        y[GAMMA] = fmax(y[GAMMA], 3);
        if (minimise(f, box, 1, 1, y) > 0.999 * at.value)
            continue;
        double retried = minimise(f, box, 2, STAGES - 1, y);
        if (retried < value) {
            value = retried;
            memcpy(x, y, sizeof y);
        }
    }
}

static adl_perf_params params(const double *x)
{
    return (adl_perf_params){x[ALPHA_C], x[BETA_C], x[ALPHA_N], x[BETA_N],
                             x[ALPHA_R], x[BETA_R], x[GAMMA]};
}

static adl_status fit_rows(const adli_fit_rows *rows, adl_fit_result *out)
{
    double x[VARS] = {0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001};
    adli_box box = {.lower = {LOWER, LOWER, LOWER, LOWER, LOWER, LOWER, 1},
                    .upper = {UPPER, UPPER, UPPER, UPPER, UPPER, UPPER, 10}};
    objective f = {.rows = rows,
                   .accum = adli_calloc(rows->accum_count, sizeof *f.accum),
                   .network = adli_calloc(rows->network_count, sizeof *f.network),
                   .sums = adli_calloc(rows->network_count, sizeof *f.sums)};
    adl_status status = ADL_OK;
    if (!f.accum || !f.network || !f.sums) {
        status = adli_fail_memory("rows of a fit");
        goto out;
    }
    fix_unseen(rows, &box, x);
    double value = minimise(&f, &box, 0, STAGES - 1, x);
    retry_vanished(&f, &box, value, x);
    out->perf = params(x);
    out->objective = adl_fit_objective(&out->perf, rows->points, rows->point_count);
    if (box.fixed[ALPHA_N]) { /* crossing nodes is never cheaper than staying on one */
        out->perf.alpha_n = fmax(x[ALPHA_N], 1.1 * x[ALPHA_R]);
        out->perf.beta_n = fmax(x[BETA_N], 1.1 * x[BETA_R]);
    }
out:
    free(f.sums);
    free(f.network);
    free(f.accum);
    return status;
}

/* ---- the public functions ---- */

adl_status adl_fit(const adl_profile_point *points, size_t count, adl_fit_result *out)
{
    adli_fit_rows rows;
    *out = (adl_fit_result){0};
    adl_status status = adli_fit_rows_init(&rows, points, count);
    if (status != ADL_OK)
        goto out;
    out->used = rows.point_count;
    out->rejected = count - rows.point_count;
    status = rows.point_count > 0 ? fit_rows(&rows, out)
                                  : adli_fail(ADL_EINVAL, "no usable point among %zu", count);
out:
    adli_fit_rows_fini(&rows);
    return status;
}

static double square(double value)
{
    return value * value;
}

double adl_fit_objective(const adl_perf_params *perf, const adl_profile_point *points, size_t count)
{
    double accum = 0, optim = 0, n = 0;
    for (size_t i = 0; i < count; i++) {
        const adl_profile_point *point = &points[i];
        if (!adli_fit_usable(point))
            continue;
        double accum_s = adl_accum_time(perf, point->local_bsz);
        double optim_s =
            adl_optim_time(perf, adl_shape_of(point->nodes, point->replicas), point->local_bsz);
        accum += square(log(accum_s / point->accum_time_s));
        optim += square(log(optim_s / point->optim_time_s));
        n += 1;
    }
    return sqrt(accum / fmax(n, 1)) + sqrt(optim / fmax(n, 1)) +
           GAMMA_PRIOR * square(perf->gamma - 1) +
           RATIO_PRIOR *
               (square(perf->beta_n / perf->alpha_n) + square(perf->beta_r / perf->alpha_r));
}
