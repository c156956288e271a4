/* Minimises a smooth function of a few variables on a box, given its gradient and a positive
 * semidefinite model of its Hessian: a Levenberg-Marquardt method with an active set, dense, no
 * allocation. Deterministic: the same function and start give the same bits. */
#ifndef ADLI_BOXMIN_H
#define ADLI_BOXMIN_H

#include <stdbool.h>

enum { ADLI_BOX_VARS = 7 };

typedef struct adli_box {
    double lower[ADLI_BOX_VARS], upper[ADLI_BOX_VARS];
    bool fixed[ADLI_BOX_VARS]; /* stays where the start put it */
} adli_box;

/* f near x. Of hessian only the lower triangle counts. diagonal (positive for every variable that f
 * depends on) scales the damping, so that units do not matter. */
typedef struct adli_quadratic {
    double value;
    double gradient[ADLI_BOX_VARS];
    double hessian[ADLI_BOX_VARS][ADLI_BOX_VARS];
    double diagonal[ADLI_BOX_VARS];
} adli_quadratic;

typedef void adli_box_function(void *context, const double *x, adli_quadratic *out);

/* From x (moved into the box if need be) down to a point where a step gains less than tolerance *
 * f, or max_steps evaluations were spent. x never gets worse, and never leaves the box. Returns f
 * there. */
double adli_box_minimise(const adli_box *box, adli_box_function *function, void *context,
                         double tolerance, int max_steps, double *x);

#endif
