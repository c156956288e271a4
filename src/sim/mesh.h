/* Piecewise linear interpolation over scattered points in three dimensions: a Delaunay triangulation
 * (Qhull's) and barycentric coordinates within its tetrahedra. Immutable once made, so any number of
 * threads may ask. */
#ifndef ADLI_MESH_H
#define ADLI_MESH_H

#include "base/status.h"

enum { ADLI_MESH_DIM = 3, ADLI_MESH_VALUES = 2 };

typedef struct adli_mesh adli_mesh;

/* points: [count][3], values: [count][2]; copied. At least 5 points that do not lie in a plane. */
ADL_MUST adl_status adli_mesh_new(const double *points, const double *values, int count,
                                  adli_mesh **out);
void adli_mesh_free(adli_mesh *mesh);

/* The values at a point. Outside the convex hull: those of the nearest point of the hull's nearest
 * tetrahedron, i.e. barycentric coordinates cut off at 0 and normalised. */
void adli_mesh_at(const adli_mesh *mesh, const double at[ADLI_MESH_DIM],
                  double out[ADLI_MESH_VALUES]);

#endif
