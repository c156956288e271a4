/* Fits the step-time model to what a job measured about itself. A job refits every few seconds and the
 * scheduler acts on the result, so a fit has to be fast, repeatable, and calm about bad data.
 *
 * Minimised over x = (alpha_c beta_c alpha_n beta_n alpha_r beta_r gamma), with p and q the n residuals of
 * log T_accum and log T_optim:
 *
 *   f(x) = sqrt(|p|^2 / n) + sqrt(|q|^2 / n)
 *          + 1e-3 (gamma - 1)^2 + 1e-2 ((beta_n / alpha_n)^2 + (beta_r / alpha_r)^2)
 *
 * The roots have a kink where the residuals vanish, which is where the minimum lies when there are few
 * points. So f is smoothed, sqrt(|p|^2 / n + e^2), and followed from e = 0.1 down to e = 1e-8; each
 * minimum is the start of the next descent. The wide first e also keeps the path out of poor local minima. */
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

typedef struct objective {
    const adli_fit_rows *rows;
    log_time *accum;   /* [accum_count] */
    log_time *network; /* [network_count] */
    double smooth;     /* e */
} objective;

/* ---- f, term by term ---- */

/* sqrt(sum / n + e^2) where part holds sums over rows: value = sum w q^2, gradient = sum w q J,
 * hessian = sum w J J^T. Calling the root r:
 *   dr = gradient / (n r),   d2r = hessian / (n r) - dr dr^T / r   (Gauss-Newton)
 * which is positive semidefinite by the Cauchy-Schwarz inequality. The damping is scaled without the
 * second part, which can cancel the first. */
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

/* With a = log T_accum, b = log T_network and d = |a - b|, so that nothing can overflow:
 *   log T_optim = max(a, b) + log(1 + exp(-gamma d)) / gamma
 *   d/da = 1 / (1 + exp(gamma (b - a))),   d/db = 1 - d/da
 *   d/dgamma = -(log(1 + exp(-gamma d)) / gamma + d min(d/da, d/db)) / gamma */
static void add_optim(const objective *f, double gamma, adli_quadratic *part)
{
    const adli_fit_rows *rows = f->rows;
    part->value += rows->optim_spread;
    for (size_t i = 0; i < rows->optim_count; i++) {
        const adli_optim_row *row = &rows->optim[i];
        log_time a = f->accum[row->accum], b = f->network[row->network];
        double apart = fabs(a.value - b.value), ratio = exp(-gamma * apart);
        double more = log1p(ratio) / gamma, less_share = ratio / (1 + ratio);
        double by_a = a.value > b.value ? 1 - less_share : less_share;
        double residual = fmax(a.value, b.value) + more - row->log_time;
        double slope[5] = {by_a * a.by_alpha, by_a * a.by_beta, (1 - by_a) * b.by_alpha,
                           (1 - by_a) * b.by_beta, -(more + less_share * apart) / gamma};
        int alpha = rows->network[row->network].alpha, first = alpha == NO_NETWORK ? 0 : alpha;
        int index[5] = {ALPHA_C, BETA_C, first, first + 1, GAMMA}; /* ascending */
        if (alpha == NO_NETWORK)
            slope[2] = slope[3] = 0;
        part->value += row->weight * residual * residual;
        for (int j = 0; j < 5; j++) {
            double weighted = row->weight * slope[j];
            part->gradient[index[j]] += weighted * residual;
            for (int k = 0; k <= j; k++)
                part->hessian[index[j]][index[k]] += weighted * slope[k];
        }
    }
}

static void evaluate(void *context, const double *x, adli_quadratic *out)
{
    objective *f = context;
    adli_quadratic accum = {0}, optim = {0};
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

static void minimise(objective *f, const adli_box *box, double *x)
{
    static const struct {
        double smooth, tolerance;
    } stages[] = {{1e-1, 1e-4}, {1e-3, 1e-5}, {1e-5, 1e-7}, {1e-8, 1e-9}};
    for (size_t i = 0; i < ADLI_COUNT(stages); i++) {
        f->smooth = stages[i].smooth;
        adli_box_minimise(box, evaluate, f, stages[i].tolerance, 100, x);
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
                   .network = adli_calloc(rows->network_count, sizeof *f.network)};
    adl_status status = ADL_OK;
    if (!f.accum || !f.network) {
        status = adli_fail_memory("rows of a fit");
        goto out;
    }
    fix_unseen(rows, &box, x);
    minimise(&f, &box, x);
    out->perf = params(x);
    out->objective = adl_fit_objective(&out->perf, rows->points, rows->point_count);
    if (box.fixed[ALPHA_N]) { /* crossing nodes is never cheaper than staying on one */
        out->perf.alpha_n = fmax(x[ALPHA_N], 1.1 * x[ALPHA_R]);
        out->perf.beta_n = fmax(x[BETA_N], 1.1 * x[BETA_R]);
    }
out:
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
        double optim_s = adl_optim_time(perf, point->nodes, point->replicas, point->local_bsz);
        accum += square(log(accum_s / point->accum_time_s));
        optim += square(log(optim_s / point->optim_time_s));
        n += 1;
    }
    return sqrt(accum / fmax(n, 1)) + sqrt(optim / fmax(n, 1)) +
           GAMMA_PRIOR * square(perf->gamma - 1) +
           RATIO_PRIOR *
               (square(perf->beta_n / perf->alpha_n) + square(perf->beta_r / perf->alpha_r));
}
