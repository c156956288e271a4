/* Fits the step-time model to what a job measured about itself. The job's agent refits every few
 * seconds and the scheduler acts on the result, so a fit has to be fast, repeatable, and free of
 * surprises on bad data.
 *
 * Minimised over x = (alpha_c beta_c alpha_n beta_n alpha_r beta_r gamma), with r and q the residuals
 * of log T_accum and log T_optim:
 *
 *   f(x) = |r| / sqrt(n) + |q| / sqrt(n)
 *          + 1e-3 (gamma - 1)^2 + 1e-2 ((beta_n / alpha_n)^2 + (beta_r / alpha_r)^2)
 *
 * by a Levenberg-Marquardt method on the box alpha, beta >= 1e-8, 1 <= gamma <= 10 (descend below). */
#include "adaptdl/fit.h"

#include "base/mem.h"
#include "base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ALPHA_C, BETA_C, ALPHA_N, BETA_N, ALPHA_R, BETA_R, GAMMA, VARS };

#define LOWER       1e-8
#define GAMMA_MIN   1.0
#define GAMMA_MAX   10.0
#define GAMMA_PRIOR 1e-3
#define RATIO_PRIOR 1e-2
/* A pass shorter than a nanosecond or longer than thirty years was not measured. */
#define TIME_MIN_S  1e-9
#define TIME_MAX_S  1e9
#define BSZ_MAX     1e9
/* |r| has no derivative at 0; sqrt(|r|^2 + SMOOTH^2) has, and differs by less than anyone can see. */
#define SMOOTH      1e-8

/* Points of the same (N > 1, R, m) have the same modelled times, so their residuals are a constant plus
 * those of their mean: sum (x_i - y)^2 = sum (x_i - mean)^2 + n (mean - y)^2. The same holds for T_accum
 * over points of one m. Measurements of a long-running job collapse to a handful of rows. */
typedef struct accum_row {
    double bsz, weight, log_time; /* mean over the points of this m */
} accum_row;

typedef struct network_row {
    int key;       /* R, negative when N > 1 */
    int alpha;     /* ALPHA_N or ALPHA_R (beta is the next one), or NO_NETWORK on one replica */
    double beyond; /* max(R - 2, 1e-8) */
} network_row;

enum { NO_NETWORK = -1 };

typedef struct optim_row {
    size_t accum, network; /* rows */
    double weight, log_time;
} optim_row;

typedef struct fit_problem {
    double points;
    accum_row *accum;
    network_row *network;
    optim_row *optim;
    size_t accum_count, network_count, optim_count;
    double accum_spread, optim_spread; /* the constants: sums of squares around the means */
    double (*accum_log)[3];            /* [accum_count]: log T_accum, d/d alpha, d/d beta */
    double (*network_log)[3];          /* [network_count]: log T_network, likewise */
    bool fixed[VARS];
    double start[VARS];
} fit_problem;

/* f, its gradient, and a positive semidefinite model of its Hessian. */
typedef struct quadratic {
    double value, gradient[VARS], hessian[VARS][VARS], diagonal[VARS];
} quadratic;

/* ---- points to rows ---- */

static bool usable(const adl_profile_point *point)
{
    return point->nodes >= 1 && point->replicas >= point->nodes && point->local_bsz > 0 &&
           point->local_bsz <= BSZ_MAX && point->accum_time_s >= TIME_MIN_S &&
           point->accum_time_s <= TIME_MAX_S && point->optim_time_s >= TIME_MIN_S &&
           point->optim_time_s <= TIME_MAX_S;
}

static int compare(double a, double b)
{
    return (a > b) - (a < b);
}

/* By m, then (N > 1), then R; then by the times, so that the order of the points cannot change even the
 * last bit of a sum. */
static int by_configuration(const void *left, const void *right)
{
    const adl_profile_point *a = left, *b = right;
    int order = compare(a->local_bsz, b->local_bsz);
    if (order == 0)
        order = (a->nodes > 1) - (b->nodes > 1);
    if (order == 0)
        order = compare(a->replicas, b->replicas);
    if (order == 0)
        order = compare(a->accum_time_s, b->accum_time_s);
    return order ? order : compare(a->optim_time_s, b->optim_time_s);
}

static int by_key(const void *left, const void *right)
{
    int a = ((const network_row *)left)->key, b = ((const network_row *)right)->key;
    return (a > b) - (a < b);
}

static network_row network_of(const adl_profile_point *point)
{
    bool multi = point->nodes > 1;
    return (network_row){
        .key = multi ? -point->replicas : point->replicas,
        .alpha = multi                 ? ALPHA_N
                 : point->replicas > 1 ? ALPHA_R
                                       : NO_NETWORK,
        .beyond = fmax((double)point->replicas - 2, 1e-8),
    };
}

static void collect_networks(fit_problem *problem, const adl_profile_point *points, size_t count)
{
    network_row *rows = problem->network;
    for (size_t i = 0; i < count; i++)
        rows[i] = network_of(&points[i]);
    qsort(rows, count, sizeof *rows, by_key);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || rows[i].key != rows[problem->network_count - 1].key)
            rows[problem->network_count++] = rows[i];
}

/* points are usable and sorted by configuration. Welford's update keeps the sums of squares exact. */
static void collect_rows(fit_problem *problem, const adl_profile_point *points, size_t count)
{
    accum_row *accum = problem->accum - 1;
    optim_row *optim = problem->optim - 1;
    for (size_t i = 0; i < count; i++) {
        network_row key = network_of(&points[i]);
        network_row *network =
            bsearch(&key, problem->network, problem->network_count, sizeof key, by_key);
        size_t index = (size_t)(network - problem->network);
        if (problem->accum_count == 0 || accum->bsz != points[i].local_bsz) {
            *++accum = (accum_row){.bsz = points[i].local_bsz};
            problem->accum_count++;
        }
        if (problem->optim_count == 0 || optim->network != index ||
            optim->accum != problem->accum_count - 1) {
            *++optim = (optim_row){.accum = problem->accum_count - 1, .network = index};
            problem->optim_count++;
        }
        double delta = log(points[i].accum_time_s) - accum->log_time;
        accum->log_time += delta / ++accum->weight;
        problem->accum_spread += delta * delta * (1 - 1 / accum->weight);
        delta = log(points[i].optim_time_s) - optim->log_time;
        optim->log_time += delta / ++optim->weight;
        problem->optim_spread += delta * delta * (1 - 1 / optim->weight);
    }
}

/* What was not seen cannot be fitted. Fixing it keeps the model optimistic there: the scheduler then
 * tries what was not tried, and learns. */
static void fix_unseen(fit_problem *problem, const adl_profile_point *points, size_t count)
{
    static const double start[VARS] = {0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001};
    bool between = false, within = false, beyond = false;
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        between |= points[i].nodes > 1;
        within |= points[i].nodes == 1 && points[i].replicas > 1;
        beyond |= points[i].replicas > 2;
        sum += points[i].accum_time_s;
    }
    problem->fixed[ALPHA_C] = problem->accum_count == 1;
    problem->fixed[ALPHA_N] = !between;
    problem->fixed[BETA_N] = !between || !beyond;
    problem->fixed[ALPHA_R] = !within;
    problem->fixed[BETA_R] = !within || !beyond;
    for (int i = 0; i < VARS; i++)
        problem->start[i] = problem->fixed[i] ? LOWER : start[i];
    if (problem->fixed[ALPHA_C])
        problem->start[ALPHA_C] = fmax(sum / (double)count / 2, LOWER);
}

static void problem_fini(fit_problem *problem)
{
    free(problem->network_log);
    free(problem->accum_log);
    free(problem->optim);
    free(problem->network);
    free(problem->accum);
}

static adl_status problem_init(fit_problem *problem, const adl_profile_point *points, size_t count)
{
    *problem = (fit_problem){.points = (double)count};
    problem->accum = adli_calloc(count, sizeof *problem->accum);
    problem->network = adli_calloc(count, sizeof *problem->network);
    problem->optim = adli_calloc(count, sizeof *problem->optim);
    problem->accum_log = adli_calloc(count, sizeof *problem->accum_log);
    problem->network_log = adli_calloc(count, sizeof *problem->network_log);
    if (!problem->accum || !problem->network || !problem->optim || !problem->accum_log ||
        !problem->network_log) {
        problem_fini(problem);
        return adli_fail_memory("points of a fit");
    }
    collect_networks(problem, points, count);
    collect_rows(problem, points, count);
    fix_unseen(problem, points, count);
    return ADL_OK;
}

/* ---- the objective ---- */

/* Adds |residual| / sqrt(n) to f, where the sums over rows are in part: value = sum w q^2,
 * gradient = sum w q J, hessian = sum w J J^T. With e = sqrt(value / n):
 *   d e = gradient / (n e),   d2 e = hessian / (n e) - (d e)(d e)^T / e   (Gauss-Newton)
 * which is positive semidefinite by the inequality of Cauchy and Schwarz. The second term is left out
 * of the diagonal, which scales the damping. */
static void add_rms(quadratic *to, const quadratic *part, double points)
{
    double rms = sqrt(part->value / points + SMOOTH * SMOOTH), inverse = 1 / (points * rms);
    to->value += rms;
    for (int i = 0; i < VARS; i++) {
        double slope = part->gradient[i] * inverse;
        to->gradient[i] += slope;
        to->diagonal[i] += part->hessian[i][i] * inverse;
        for (int j = 0; j <= i; j++)
            to->hessian[i][j] +=
                part->hessian[i][j] * inverse - slope * part->gradient[j] * inverse / rms;
    }
}

/* weight (beta / alpha)^2 */
static void add_ratio_prior(quadratic *to, const double *x, int alpha)
{
    int beta = alpha + 1;
    double ratio = x[beta] / x[alpha];
    double by_alpha = -ratio / x[alpha], by_beta = 1 / x[alpha];
    to->value += RATIO_PRIOR * ratio * ratio;
    to->gradient[alpha] += 2 * RATIO_PRIOR * ratio * by_alpha;
    to->gradient[beta] += 2 * RATIO_PRIOR * ratio * by_beta;
    to->hessian[alpha][alpha] += 2 * RATIO_PRIOR * by_alpha * by_alpha;
    to->hessian[beta][alpha] += 2 * RATIO_PRIOR * by_alpha * by_beta;
    to->hessian[beta][beta] += 2 * RATIO_PRIOR * by_beta * by_beta;
    to->diagonal[alpha] += 2 * RATIO_PRIOR * by_alpha * by_alpha;
    to->diagonal[beta] += 2 * RATIO_PRIOR * by_beta * by_beta;
}

static void add_gamma_prior(quadratic *to, double gamma)
{
    to->value += GAMMA_PRIOR * (gamma - 1) * (gamma - 1);
    to->gradient[GAMMA] += 2 * GAMMA_PRIOR * (gamma - 1);
    to->hessian[GAMMA][GAMMA] += 2 * GAMMA_PRIOR;
    to->diagonal[GAMMA] += 2 * GAMMA_PRIOR;
}

static void log_times(fit_problem *problem, const double *x)
{
    for (size_t i = 0; i < problem->accum_count; i++) {
        double bsz = problem->accum[i].bsz, time = x[ALPHA_C] + x[BETA_C] * bsz;
        double *row = problem->accum_log[i];
        row[0] = log(time);
        row[1] = 1 / time;
        row[2] = bsz / time;
    }
    for (size_t i = 0; i < problem->network_count; i++) {
        const network_row *network = &problem->network[i];
        double alpha = network->alpha == NO_NETWORK ? 1e-8 : x[network->alpha];
        double beta = network->alpha == NO_NETWORK ? 1e-8 : x[network->alpha + 1];
        double time = alpha + beta * network->beyond, *row = problem->network_log[i];
        row[0] = log(time);
        row[1] = 1 / time;
        row[2] = network->beyond / time;
    }
}

static void accum_part(const fit_problem *problem, quadratic *part)
{
    *part = (quadratic){.value = problem->accum_spread};
    for (size_t i = 0; i < problem->accum_count; i++) {
        const double *row = problem->accum_log[i];
        double weight = problem->accum[i].weight;
        double residual = row[0] - problem->accum[i].log_time;
        part->value += weight * residual * residual;
        part->gradient[ALPHA_C] += weight * residual * row[1];
        part->gradient[BETA_C] += weight * residual * row[2];
        part->hessian[ALPHA_C][ALPHA_C] += weight * row[1] * row[1];
        part->hessian[BETA_C][ALPHA_C] += weight * row[2] * row[1];
        part->hessian[BETA_C][BETA_C] += weight * row[2] * row[2];
    }
}

/* With a = log T_accum, b = log T_network:
 *   log T_optim = max(a, b) + log(1 + exp(-gamma |a - b|)) / gamma
 *   d/da = share, d/db = 1 - share, share = 1 / (1 + exp(gamma (b - a)))
 *   d/dgamma = (share a + (1 - share) b - log T_optim) / gamma */
static void optim_part(const fit_problem *problem, double gamma, quadratic *part)
{
    *part = (quadratic){.value = problem->optim_spread};
    for (size_t i = 0; i < problem->optim_count; i++) {
        const optim_row *optim = &problem->optim[i];
        const double *accum = problem->accum_log[optim->accum];
        const double *network = problem->network_log[optim->network];
        int alpha = problem->network[optim->network].alpha;
        double a = accum[0], b = network[0], apart = fabs(a - b), weight = optim->weight;
        double less = exp(-gamma * apart), more = log1p(less) / gamma;
        double share = (a > b ? 1 : less) / (1 + less), rest = (a > b ? less : 1) / (1 + less);
        double residual = fmax(a, b) + more - optim->log_time;
        double slope[5] = {share * accum[1], share * accum[2],
                           -(more + (a > b ? rest : share) * apart) / gamma, rest * network[1],
                           rest * network[2]};
        int index[5] = {ALPHA_C, BETA_C, GAMMA, alpha, alpha + 1};
        int used = alpha == NO_NETWORK ? 3 : 5;
        part->value += weight * residual * residual;
        for (int j = 0; j < used; j++) {
            double weighted = weight * slope[j];
            part->gradient[index[j]] += weighted * residual;
            for (int k = 0; k <= j; k++) {
                int row = index[j] > index[k] ? index[j] : index[k];
                int column = index[j] > index[k] ? index[k] : index[j];
                part->hessian[row][column] += weighted * slope[k];
            }
        }
    }
}

static void evaluate(fit_problem *problem, const double *x, quadratic *out)
{
    quadratic part;
    *out = (quadratic){0};
    log_times(problem, x);
    accum_part(problem, &part);
    add_rms(out, &part, problem->points);
    optim_part(problem, x[GAMMA], &part);
    add_rms(out, &part, problem->points);
    add_ratio_prior(out, x, ALPHA_N);
    add_ratio_prior(out, x, ALPHA_R);
    add_gamma_prior(out, x[GAMMA]);
    for (int i = 0; i < VARS; i++)
        for (int j = i + 1; j < VARS; j++)
            out->hessian[i][j] = out->hessian[j][i];
}

/* ---- the minimiser ---- */

static double lower(int i)
{
    return i == GAMMA ? GAMMA_MIN : LOWER;
}

static double upper(int i)
{
    return i == GAMMA ? GAMMA_MAX : 1e12;
}

/* Solves A p = rhs on the free variables by Cholesky's method; false when A is not positive definite. */
static bool solve(double A[VARS][VARS], const double *rhs, const bool *held, double *p)
{
    double factor[VARS][VARS], y[VARS];
    for (int i = 0; i < VARS; i++) {
        if (held[i])
            continue;
        double sum = rhs[i];
        for (int j = 0; j <= i; j++) {
            if (held[j])
                continue;
            double entry = A[i][j];
            for (int k = 0; k < j; k++)
                if (!held[k])
                    entry -= factor[i][k] * factor[j][k];
            if (j < i)
                factor[i][j] = entry / factor[j][j];
            else if (entry > 0)
                factor[i][i] = sqrt(entry);
            else
                return false;
        }
        for (int k = 0; k < i; k++)
            if (!held[k])
                sum -= factor[i][k] * y[k];
        y[i] = sum / factor[i][i];
    }
    for (int i = VARS - 1; i >= 0; i--) {
        if (held[i])
            continue;
        double sum = y[i];
        for (int k = i + 1; k < VARS; k++)
            if (!held[k])
                sum -= factor[k][i] * p[k];
        p[i] = sum / factor[i][i];
    }
    return true;
}

/* The step p that minimises the damped quadratic model on the box, by adding bounds one round at a
 * time: variables at a bound that the gradient pushes out of stay, those that the step would carry past
 * a bound stop on it and the rest is solved again. */
static bool box_step(const fit_problem *problem, const quadratic *at, const double *x,
                     double damping, double *p)
{
    double A[VARS][VARS];
    bool held[VARS];
    for (int i = 0; i < VARS; i++) {
        memcpy(A[i], at->hessian[i], sizeof A[i]);
        A[i][i] += damping * at->diagonal[i] + 1e-300;
        held[i] = problem->fixed[i] || (x[i] <= lower(i) && at->gradient[i] > 0) ||
                  (x[i] >= upper(i) && at->gradient[i] < 0);
        p[i] = 0;
    }
    for (int round = 0; round <= VARS; round++) {
        double rhs[VARS];
        for (int i = 0; i < VARS; i++) {
            rhs[i] = -at->gradient[i];
            for (int j = 0; j < VARS; j++)
                if (held[j])
                    rhs[i] -= A[i][j] * p[j];
        }
        if (!solve(A, rhs, held, p))
            return false;
        bool inside = true;
        for (int i = 0; i < VARS; i++) {
            if (held[i])
                continue;
            double wanted = fmin(fmax(x[i] + p[i], lower(i)), upper(i));
            if (wanted != x[i] + p[i]) {
                p[i] = wanted - x[i];
                held[i] = true;
                inside = false;
            }
        }
        if (inside)
            return true;
    }
    return true;
}

enum { MAX_STEPS = 200 };

/* Levenberg-Marquardt: the damping falls while the quadratic model predicts well, and grows when a step
 * does not lower f. */
static double descend(fit_problem *problem, double *x)
{
    quadratic at, trial;
    double damping = 1, p[VARS], next[VARS];
    int flat = 0;
    evaluate(problem, x, &at);
    for (int step = 0; step < MAX_STEPS && flat < 3 && damping < 1e12; step++) {
        if (!box_step(problem, &at, x, damping, p)) {
            damping = fmax(damping * 4, 1e-9);
            continue;
        }
        double predicted = 0;
        for (int i = 0; i < VARS; i++) {
            next[i] = fmin(fmax(x[i] + p[i], lower(i)), upper(i));
            if (problem->fixed[i])
                next[i] = x[i];
            predicted -= at.gradient[i] * p[i];
            for (int j = 0; j < VARS; j++)
                predicted -= 0.5 * p[i] * at.hessian[i][j] * p[j];
        }
        evaluate(problem, next, &trial);
        double gained = at.value - trial.value;
        if (!(gained > 0)) {
            flat += predicted < 1e-9 * at.value;
            damping = fmax(damping, 1e-6) * 5;
            continue;
        }
        flat = gained < 1e-7 * at.value ? flat + 1 : 0;
        damping *= gained > 0.75 * predicted ? 0.1 : gained > 0.25 * predicted ? 0.5 : 3;
        memcpy(x, next, sizeof next);
        at = trial;
    }
    return at.value;
}

/* ---- the public functions ---- */

adl_status adl_fit(const adl_profile_point *points, size_t count, adl_fit_result *out)
{
    *out = (adl_fit_result){0};
    adl_profile_point *kept = adli_calloc(count, sizeof *kept);
    if (!kept)
        return adli_fail_memory("points of a fit");
    for (size_t i = 0; i < count; i++)
        if (usable(&points[i]))
            kept[out->used++] = points[i];
    out->rejected = count - out->used;
    adl_status status = ADL_OK;
    if (out->used == 0) {
        status = adli_fail(ADL_EINVAL, "none of %zu points can be used for a fit", count);
        goto out;
    }
    qsort(kept, out->used, sizeof *kept, by_configuration);
    fit_problem problem;
    status = problem_init(&problem, kept, out->used);
    if (status != ADL_OK)
        goto out;
    double x[VARS];
    memcpy(x, problem.start, sizeof x);
    out->objective = descend(&problem, x);
    out->perf = (adl_perf_params){x[ALPHA_C], x[BETA_C], x[ALPHA_N], x[BETA_N],
                                  x[ALPHA_R], x[BETA_R], x[GAMMA]};
    if (problem.fixed[ALPHA_N]) {
        out->perf.alpha_n = fmax(out->perf.alpha_n, 1.1 * out->perf.alpha_r);
        out->perf.beta_n = fmax(out->perf.beta_n, 1.1 * out->perf.beta_r);
    }
    problem_fini(&problem);
out:
    free(kept);
    return status;
}

double adl_fit_objective(const adl_perf_params *perf, const adl_profile_point *points, size_t count)
{
    double accum = 0, optim = 0;
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        const adl_profile_point *point = &points[i];
        if (!usable(point))
            continue;
        double a = log(adl_accum_time(perf, point->local_bsz) / point->accum_time_s);
        double b = log(adl_optim_time(perf, point->nodes, point->replicas, point->local_bsz) /
                       point->optim_time_s);
        accum += a * a;
        optim += b * b;
        used++;
    }
    double n = used ? (double)used : 1;
    double ratio_n = perf->beta_n / perf->alpha_n, ratio_r = perf->beta_r / perf->alpha_r;
    return sqrt(accum / n) + sqrt(optim / n) + GAMMA_PRIOR * (perf->gamma - 1) * (perf->gamma - 1) +
           RATIO_PRIOR * (ratio_n * ratio_n + ratio_r * ratio_r);
}
