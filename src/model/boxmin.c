#include "model/boxmin.h"

#include <math.h>
#include <string.h>

enum { VARS = ADLI_BOX_VARS };

/* Solves A p = rhs for the variables not held, by Cholesky's method (A: lower triangle). False when
 * A is not positive definite there. */
static bool solve(const double A[VARS][VARS], const double *rhs, const bool *held, double *p)
{
    double factor[VARS][VARS], y[VARS];
    int index[VARS] = {0}, n = 0;
    for (int i = 0; i < VARS; i++)
        if (!held[i])
            index[n++] = i;
    for (int i = 0; i < n; i++) {
        double sum = rhs[index[i]];
        for (int j = 0; j <= i; j++) {
            double entry = A[index[i]][index[j]];
            for (int k = 0; k < j; k++)
                entry -= factor[i][k] * factor[j][k];
            if (j == i && !(entry > 0))
                return false;
            factor[i][j] = j == i ? sqrt(entry) : entry / factor[j][j];
        }
        for (int k = 0; k < i; k++)
            sum -= factor[i][k] * y[k];
        y[i] = sum / factor[i][i];
    }
    for (int i = n - 1; i >= 0; i--) {
        double sum = y[i];
        for (int k = i + 1; k < n; k++)
            sum -= factor[k][i] * p[index[k]];
        p[index[i]] = sum / factor[i][i];
    }
    return true;
}

/* Stops the variables that p would carry past a bound on it. False when there was none. */
static bool hold_outside(const adli_box *box, const double *x, bool *held, double *p)
{
    bool any = false;
    for (int i = 0; i < VARS; i++) {
        if (held[i])
            continue;
        double to = x[i] + p[i];
        if (to >= box->lower[i] && to <= box->upper[i])
            continue;
        p[i] = (to < box->lower[i] ? box->lower[i] : box->upper[i]) - x[i];
        held[i] = any = true;
    }
    return any;
}

/* The step that minimises the damped quadratic on the box, near enough: what sits on a bound and is
 * pushed outwards stays, what the step carries past a bound stops there and the others are solved
 * again. */
static bool box_step(const adli_box *box, const adli_quadratic *at, const double *x, double damping,
                     double *p)
{
    double A[VARS][VARS], rhs[VARS];
    bool held[VARS];
    for (int i = 0; i < VARS; i++) {
        memcpy(A[i], at->hessian[i], sizeof A[i]);
        A[i][i] += damping * at->diagonal[i];
        held[i] = box->fixed[i] || (x[i] <= box->lower[i] && at->gradient[i] >= 0) ||
                  (x[i] >= box->upper[i] && at->gradient[i] <= 0);
        p[i] = 0;
    }
    do {
        for (int i = 0; i < VARS; i++) {
            rhs[i] = -at->gradient[i];
            for (int j = 0; j < VARS; j++)
                if (held[j])
                    rhs[i] -= (i >= j ? A[i][j] : A[j][i]) * p[j];
        }
        if (!solve(A, rhs, held, p))
            return false;
    } while (hold_outside(box, x, held, p)); /* at most VARS rounds: each holds one more */
    return true;
}

/* How much f falls with the step p if the quadratic is right. */
static double predicted_gain(const adli_quadratic *at, const double *p)
{
    double gain = 0;
    for (int i = 0; i < VARS; i++) {
        gain -= p[i] * (at->gradient[i] + 0.5 * at->hessian[i][i] * p[i]);
        for (int j = 0; j < i; j++)
            gain -= p[i] * at->hessian[i][j] * p[j];
    }
    return gain;
}

static void clamp(const adli_box *box, double *x)
{
    for (int i = 0; i < VARS; i++)
        if (!box->fixed[i])
            x[i] = fmin(fmax(x[i], box->lower[i]), box->upper[i]);
}

double adli_box_minimise(const adli_box *box, adli_box_function *function, void *context,
                         double tolerance, int max_steps, double *x)
{
    adli_quadratic at, trial;
    double damping = 1, p[VARS], next[VARS];
    int steps = 1;
    bool refused = false;
    clamp(box, x);
    function(context, x, &at);
    while (steps < max_steps && damping < 1e12) {
        if (!box_step(box, &at, x, damping, p)) {
            damping = fmax(damping, 1e-9) * 10;
            continue;
        }
        double predicted = predicted_gain(&at, p);
        /* a damped step is short: only an almost free one shows that nothing is left to gain */
        if (predicted <= tolerance * fabs(at.value)) {
            if (damping <= 1e-2 || refused)
                break;
            damping *= 0.1;
            continue;
        }
        for (int i = 0; i < VARS; i++)
            next[i] = x[i] + p[i];
        clamp(box, next);
        function(context, next, &trial);
        steps++;
        double gained = at.value - trial.value;
        refused = !(gained > 0);
        if (refused) {
            damping = fmax(damping, 1e-6) * 5;
            continue;
        }
        damping *= gained > 0.75 * predicted ? 0.1 : gained > 0.25 * predicted ? 0.5 : 3;
        memcpy(x, next, sizeof next);
        at = trial;
    }
    return at.value;
}
