#include "sim/mesh.h"

#include "base/mem.h"

#include <libqhull_r/libqhull_r.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { CORNERS = ADLI_MESH_DIM + 1 };

typedef struct tetra {
    int corner[CORNERS];
    double low[ADLI_MESH_DIM], high[ADLI_MESH_DIM]; /* bounding box */
    /* lambda[i] = sum over k of inverse[i][k] * (at[k] - origin[k]) for i < 3; the fourth is the
     * rest to 1. origin is corner 3. */
    double inverse[ADLI_MESH_DIM][ADLI_MESH_DIM];
} tetra;

struct adli_mesh {
    double (*points)[ADLI_MESH_DIM];    /* [point_count] */
    double (*values)[ADLI_MESH_VALUES]; /* [point_count] */
    tetra *tetras;
    size_t tetra_count, tetra_capacity;
};

static double cross_term(const double m[3][3], int i, int j)
{
    int i1 = (i + 1) % 3, i2 = (i + 2) % 3, j1 = (j + 1) % 3, j2 = (j + 2) % 3;
    return m[i1][j1] * m[i2][j2] - m[i1][j2] * m[i2][j1];
}

/* Fills in box and inverse; false for a flat tetrahedron, which covers nothing. */
static bool finish(const adli_mesh *mesh, tetra *t)
{
    double edge[3][3]; /* edge[k][i]: coordinate k of corner i relative to corner 3 */
    double size = 0;
    const double *origin = mesh->points[t->corner[3]];
    for (int k = 0; k < 3; k++) {
        t->low[k] = t->high[k] = origin[k];
        for (int i = 0; i < 3; i++) {
            double at = mesh->points[t->corner[i]][k];
            edge[k][i] = at - origin[k];
            size = fmax(size, fabs(edge[k][i]));
            t->low[k] = fmin(t->low[k], at);
            t->high[k] = fmax(t->high[k], at);
        }
    }
    double det = 0;
    for (int i = 0; i < 3; i++)
        det += edge[0][i] * cross_term(edge, 0, i);
    if (fabs(det) < 1e-9 * size)
        return false;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++)
            t->inverse[i][k] = cross_term(edge, k, i) / det;
    return true;
}

/* Copies the lower Delaunay facets out of Qhull. */
static adl_status collect(adli_mesh *mesh, qhT *qh)
{
    facetT *facet;
    vertexT *vertex, **vertexp;
    FORALLfacets
    {
        /* cppcheck-suppress uninitvar */ /* the macro sets it */
        if (facet->upperdelaunay)
            continue;
        if (adli_grow(&mesh->tetras, &mesh->tetra_capacity, mesh->tetra_count + 1,
                      sizeof *mesh->tetras) != 0)
            return adli_fail_memory("triangulation");
        tetra *t = &mesh->tetras[mesh->tetra_count];
        int corners = 0;
        FOREACHvertex_(facet->vertices)
        {
            if (corners < CORNERS)
                t->corner[corners] = qh_pointid(qh, vertex->point);
            corners++;
        }
        mesh->tetra_count += corners == CORNERS && finish(mesh, t);
    }
    return mesh->tetra_count ? ADL_OK : adli_fail(ADL_EINVAL, "the points lie in a plane");
}

/* Qt triangulates cells of cospherical points, which measurements on a grid are full of; Qbb and Qz
 * keep the paraboloid well conditioned; Qc and Q12 accept coplanar points and wide facets. */
static adl_status triangulate(adli_mesh *mesh, int count)
{
    char options[] = "qhull d Qt Qbb Qc Qz Q12";
    qhT *qh = adli_calloc(1, sizeof *qh);
    double *copy = adli_memdup(mesh->points, (size_t)count, sizeof *mesh->points);
    FILE *quiet = fopen("/dev/null", "w");
    adl_status status = ADL_OK;
    if (!qh || !copy || !quiet) {
        status = adli_fail_memory("triangulation");
        goto out;
    }
    qh_zero(qh, quiet);
    if (qh_new_qhull(qh, ADLI_MESH_DIM, count, copy, False, options, quiet, quiet) != 0)
        status = adli_fail(ADL_EINVAL, "these points can't be triangulated");
    else
        status = collect(mesh, qh);
    int long_left, total;
    qh_freeqhull(qh, !qh_ALL);
    qh_memfreeshort(qh, &long_left, &total);
out:
    if (quiet)
        fclose(quiet);
    free(copy);
    free(qh);
    return status;
}

adl_status adli_mesh_new(const double *points, const double *values, int count, adli_mesh **out)
{
    *out = NULL;
    if (count < CORNERS + 1)
        return adli_fail(ADL_EINVAL, "%d points are too few to interpolate", count);
    adli_mesh *mesh = adli_calloc(1, sizeof *mesh);
    if (!mesh)
        return adli_fail_memory("triangulation");
    mesh->points = adli_memdup(points, (size_t)count, sizeof *mesh->points);
    mesh->values = adli_memdup(values, (size_t)count, sizeof *mesh->values);
    adl_status status =
        mesh->points && mesh->values ? triangulate(mesh, count) : adli_fail_memory("triangulation");
    if (status != ADL_OK) {
        adli_mesh_free(mesh);
        return status;
    }
    *out = mesh;
    return ADL_OK;
}

void adli_mesh_free(adli_mesh *mesh)
{
    if (!mesh)
        return;
    free(mesh->tetras);
    free(mesh->values);
    free(mesh->points);
    free(mesh);
}

static void weights(const adli_mesh *mesh, const tetra *t, const double at[3], double lambda[4])
{
    const double *origin = mesh->points[t->corner[3]];
    lambda[3] = 1;
    for (int i = 0; i < 3; i++) {
        lambda[i] = 0;
        for (int k = 0; k < 3; k++)
            lambda[i] += t->inverse[i][k] * (at[k] - origin[k]);
        lambda[3] -= lambda[i];
    }
}

static bool in_box(const tetra *t, const double at[3])
{
    const double slack = 1e-9;
    return at[0] >= t->low[0] - slack && at[0] <= t->high[0] + slack &&
           at[1] >= t->low[1] - slack && at[1] <= t->high[1] + slack &&
           at[2] >= t->low[2] - slack && at[2] <= t->high[2] + slack;
}

/* The tetrahedron whose smallest weight is largest: the one that holds the point, or, outside, one
 * that is near it. */
static const tetra *locate(const adli_mesh *mesh, const double at[3], bool boxed, double lambda[4])
{
    const tetra *best = NULL;
    double best_least = -HUGE_VAL;
    for (size_t i = 0; i < mesh->tetra_count; i++) {
        const tetra *t = &mesh->tetras[i];
        double w[4];
        if (boxed && !in_box(t, at))
            continue;
        weights(mesh, t, at, w);
        double least = fmin(fmin(w[0], w[1]), fmin(w[2], w[3]));
        if (least > best_least) {
            best = t;
            best_least = least;
            memcpy(lambda, w, sizeof w);
        }
        if (least >= 0)
            break;
    }
    return boxed && best_least < -1e-6 ? NULL : best;
}

void adli_mesh_at(const adli_mesh *mesh, const double at[ADLI_MESH_DIM],
                  double out[ADLI_MESH_VALUES])
{
    double lambda[4] = {0}, sum = 0;
    const tetra *t = locate(mesh, at, true, lambda);
    if (!t)
        t = locate(mesh, at, false, lambda);
    for (int i = 0; i < CORNERS; i++)
        sum += lambda[i] = fmax(lambda[i], 0);
    for (int v = 0; v < ADLI_MESH_VALUES; v++) {
        out[v] = 0;
        for (int i = 0; i < CORNERS; i++)
            out[v] += lambda[i] / sum * mesh->values[t->corner[i]][v];
    }
}
