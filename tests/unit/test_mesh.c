/* Interpolation between scattered points: a linear function is reproduced exactly. */
#include "harness.h"

#include "base/mem.h"
#include "base/rng.h"
#include "sim/mesh.h"

static void linear(const double p[3], double out[2])
{
    out[0] = 3 + 2 * p[0] - p[1] + 0.5 * p[2];
    out[1] = p[0] + p[1] + p[2];
}

/* A grid, as measurements are: full of points on common spheres. */
TEST(linear_functions_are_exact_on_a_grid)
{
    double points[5 * 5 * 4][3], values[5 * 5 * 4][2];
    int count = 0;
    for (int x = 1; x <= 5; x++)
        for (int y = 1; y <= 5; y++)
            for (int z = 0; z < 4; z++, count++) {
                double p[3] = {x, x * y, 10 * (1 << z)};
                memcpy(points[count], p, sizeof p);
                linear(p, values[count]);
            }
    adli_mesh *mesh;
    REQUIRE_OK(adli_mesh_new(&points[0][0], &values[0][0], count, &mesh));
    adli_rng rng;
    adli_rng_init(&rng, 1);
    for (int i = 0; i < 2000; i++) {
        double x = 1 + 4 * adli_rng_unit(&rng), got[2], wanted[2];
        double p[3] = {x, x * (1 + 4 * adli_rng_unit(&rng)), 10 + 70 * adli_rng_unit(&rng)};
        linear(p, wanted);
        adli_mesh_at(mesh, p, got);
        CHECK_NEAR(got[0], wanted[0], 1e-9);
        CHECK_NEAR(got[1], wanted[1], 1e-9);
    }
    for (int i = 0; i < count; i++) {
        double got[2];
        adli_mesh_at(mesh, points[i], got);
        CHECK_NEAR(got[1], values[i][1], 1e-12);
    }
    adli_mesh_free(mesh);
}

TEST(outside_the_hull_stays_within_the_values)
{
    const double points[][3] = {{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, 1, 1}};
    const double values[][2] = {{1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}};
    const double far[][3] = {{9, 9, 9}, {-5, 0, 0}, {0, 100, -3}};
    adli_mesh *mesh;
    REQUIRE_OK(adli_mesh_new(&points[0][0], &values[0][0], 5, &mesh));
    for (size_t i = 0; i < ADLI_COUNT(far); i++) {
        double got[2];
        adli_mesh_at(mesh, far[i], got);
        CHECK(got[0] >= 1 && got[0] <= 5);
    }
    adli_mesh_free(mesh);
}

TEST(degenerate_points_are_refused)
{
    double flat[6][3] = {{0, 0, 1}, {1, 0, 1}, {0, 1, 1}, {1, 1, 1}, {2, 1, 1}, {1, 2, 1}};
    double values[6][2] = {{0}};
    adli_mesh *mesh;
    CHECK_FAILS(adli_mesh_new(&flat[0][0], &values[0][0], 6, &mesh), ADL_EINVAL, "");
    CHECK(mesh == NULL);
    CHECK_FAILS(adli_mesh_new(&flat[0][0], &values[0][0], 4, &mesh), ADL_EINVAL, "too few");
}

TEST(running_out_of_memory_is_reported)
{
    const double points[][3] = {{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, 1, 1}};
    const double values[5][2] = {{0}};
    for (int nth = 1;; nth++) {
        adli_mesh *mesh;
        int64_t before = adli_mem_count();
        adli_mem_fail_at(nth);
        adl_status status = adli_mesh_new(&points[0][0], &values[0][0], 5, &mesh);
        adli_mem_fail_at(0);
        if (adli_mem_count() - before < nth) {
            CHECK(nth > 3 && status == ADL_OK);
            adli_mesh_free(mesh);
            break;
        }
        CHECK_INT(status, ADL_ENOMEM);
        CHECK(mesh == NULL);
    }
}
