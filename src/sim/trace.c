/* Asking the traces: pure look-ups and interpolations (spec: simulator semantics). Loading is in
 * trace_load.c. */
#include "sim/trace.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The lexicographically smallest rotation of the shape, as digits. False when it can't be one of the
 * recorded ones: too many nodes, or more than 9 replicas on one. */
static bool rotation_of(const int *shape, int nodes, char text[16])
{
    char best[16] = "", turned[16];
    if (nodes > 15)
        return false;
    for (int first = 0; first < nodes; first++) {
        for (int i = 0; i < nodes; i++) {
            int replicas = shape[(first + i) % nodes];
            if (replicas > 9)
                return false;
            turned[i] = (char)('0' + replicas);
        }
        turned[nodes] = '\0';
        if (first == 0 || strcmp(turned, best) < 0)
            strcpy(best, turned);
    }
    strcpy(text, best);
    return true;
}

/* Position of x in ascending xs: index of the left neighbour and the fraction beyond it; constant
 * outside. */
static int bracket(const double *xs, int count, double x, double *fraction)
{
    int left = 0;
    while (left + 2 < count && xs[left + 1] <= x)
        left++;
    *fraction = 0;
    if (count > 1)
        *fraction = fmin(fmax((x - xs[left]) / (xs[left + 1] - xs[left]), 0), 1);
    return left;
}

static double between(const double *ys, int left, double fraction)
{
    return fraction > 0 ? ys[left] + fraction * (ys[left + 1] - ys[left]) : ys[left];
}

void adli_app_step_time(const adli_app *app, const int *shape, int nodes, int local_bsz,
                        double *step_s, double *sync_s)
{
    char placement[16];
    double fraction;
    if (rotation_of(shape, nodes, placement))
        for (int i = 0; i < app->curve_count; i++) {
            const adli_curve *curve = &app->curves[i];
            if (strcmp(curve->placement, placement) != 0)
                continue;
            int left = bracket(curve->local_bsz, curve->count, local_bsz, &fraction);
            *step_s = between(curve->step_s, left, fraction);
            *sync_s = between(curve->sync_s, left, fraction);
            return;
        }
    int replicas = 0;
    for (int i = 0; i < nodes; i++)
        replicas += shape[i];
    double at[ADLI_MESH_DIM] = {nodes < 16 ? nodes : 16, replicas, local_bsz};
    double times[ADLI_MESH_VALUES];
    adli_mesh_at(app->mesh, at, times);
    *step_s = times[0];
    *sync_s = times[1];
}

/* The two validations around a batch size and the weight of the right one. */
static void around(const adli_app *app, double batch_size, const adli_validation **left,
                   const adli_validation **right, double *fraction)
{
    const adli_validation *v = app->validations;
    int i = 0;
    while (i + 2 < app->validation_count && v[i + 1].batch_size <= batch_size)
        i++;
    *left = &v[i];
    *right = app->validation_count > 1 ? &v[i + 1] : &v[i];
    double span = (*right)->batch_size - (*left)->batch_size;
    *fraction = span > 0 ? fmin(fmax((batch_size - (*left)->batch_size) / span, 0), 1) : 0;
}

void adli_app_grad(const adli_app *app, double batch_size, int epoch, double *sqr, double *var)
{
    const adli_validation *left, *right;
    double f;
    around(app, batch_size, &left, &right, &f);
    *sqr = (1 - f) * left->sqr[epoch] + f * right->sqr[epoch];
    *var = (1 - f) * left->var[epoch] + f * right->var[epoch];
}

double adli_app_iterations(const adli_app *app, double batch_size, int epoch)
{
    const adli_validation *left, *right;
    double f;
    if (epoch < 1)
        return 0;
    around(app, batch_size, &left, &right, &f);
    return (1 - f) * left->iteration[epoch - 1] + f * right->iteration[epoch - 1];
}

int adli_app_max_local(const adli_app *app, int replicas)
{
    int most = app->max_local;
    for (int i = 0; i < app->limit_count; i++) /* the tightest of those at or above */
        if (app->limits[i].replicas >= replicas || i == app->limit_count - 1) {
            most = app->limits[i].max_local < most ? app->limits[i].max_local : most;
            break;
        }
    return most;
}

void adli_app_split(const adli_app *app, int batch_size, int replicas, int *local_bsz,
                    int *accum_steps)
{
    double local = ceil((double)batch_size / replicas - 1e-8);
    int steps = (int)ceil(local / adli_app_max_local(app, replicas) - 1e-8) - 1;
    if (replicas == 1 && batch_size > app->init_batch && steps < 1)
        steps = 1; /* one gradient alone gives no noise estimate */
    int m = (int)ceil(local / (steps + 1) - 1e-8);
    int most = app->max_batch / (replicas * (steps + 1));
    *local_bsz = m < most ? m : most > 1 ? most : 1;
    *accum_steps = steps;
}
