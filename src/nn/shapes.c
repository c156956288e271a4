/* Colour images of ten kinds of figure, for networks that want CIFAR-10's shape of data: a figure of
 * random colour, place, size and angle on a shaded background, under noise. */
#include "nn/dataset.h"

#include "base/status.h"

enum { SIDE = 32, PLANE = SIDE * SIDE, CLASSES = 10 };

static double size_of(double x)
{
    return x < 0 ? -x : x;
}

/* Whether the n-th band of width 1/3 that x lies in is an odd one. */
static int band(double x)
{
    return (int)((x + 30) * 3) & 1;
}

/* Whether (u, v), in units of the figure's radius, is part of the figure. */
static int inside(int kind, double u, double v)
{
    double square = u * u + v * v, far = size_of(u) > size_of(v) ? size_of(u) : size_of(v);
    double near = size_of(u) > size_of(v) ? size_of(v) : size_of(u);
    switch (kind) {
    case 0: /* disc */
        return square < 0.8;
    case 1: /* square */
        return far < 0.8;
    case 2: /* triangle */
        return v < 0.7 && v > -1 + 2.2 * size_of(u);
    case 3: /* ring */
        return square < 1 && square > 0.36;
    case 4: /* frame */
        return far < 0.9 && far > 0.55;
    case 5: /* cross */
        return far < 1 && near < 0.28;
    case 6: /* stripes */
        return square < 1 && band(u);
    case 7: /* chequers */
        return far < 0.95 && (band(u) ^ band(v));
    case 8: /* half disc */
        return square < 1 && v > 0;
    default: /* two dots */
        return (u - 0.5) * (u - 0.5) + v * v < 0.16 || (u + 0.5) * (u + 0.5) + v * v < 0.16;
    }
}

typedef struct scene {
    int kind;
    double x, y, radius, c, s;                /* place, size, angle */
    double figure[3], ground[3], slope[3][2]; /* colours, 0 .. 255 */
    double noise;
} scene;

static void scene_init(scene *at, adli_rng *rng)
{
    double turn = adli_uniform(rng, -0.08, 0.08), apart = 0;
    at->kind = (int)adli_rng_below(rng, CLASSES);
    at->radius = adli_uniform(rng, 7, 13);
    at->x = adli_uniform(rng, 11, 21);
    at->y = adli_uniform(rng, 11, 21);
    at->c = adli_sin_turns(turn + 0.25);
    at->s = adli_sin_turns(turn);
    at->noise = adli_uniform(rng, 5, 40);
    while (apart < 90) { /* the figure can be told from the ground */
        apart = 0;
        for (int k = 0; k < 3; k++) {
            at->figure[k] = adli_uniform(rng, 0, 255);
            at->ground[k] = adli_uniform(rng, 0, 255);
            apart += size_of(at->figure[k] - at->ground[k]);
        }
    }
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 2; i++)
            at->slope[k][i] = adli_uniform(rng, -2, 2);
}

/* The part of a pixel that the figure covers, from four points in it. */
static double cover(const scene *at, int x, int y)
{
    int hits = 0;
    for (int i = 0; i < 4; i++) {
        double dx = x + 0.25 + 0.5 * (i & 1) - at->x, dy = y + 0.25 + 0.5 * (i >> 1) - at->y;
        hits += inside(at->kind, (at->c * dx + at->s * dy) / at->radius,
                       (at->c * dy - at->s * dx) / at->radius);
    }
    return 0.25 * hits;
}

static int draw_scene(adli_rng *rng, uint8_t *pixels)
{
    scene at;
    scene_init(&at, rng);
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            double part = cover(&at, x, y);
            for (int k = 0; k < 3; k++) {
                double ground = at.ground[k] + at.slope[k][0] * (x - SIDE / 2) +
                                at.slope[k][1] * (y - SIDE / 2);
                pixels[k * PLANE + y * SIDE + x] =
                    adli_byte(ground + part * (at.figure[k] - ground) + at.noise * adli_noise(rng));
            }
        }
    return at.kind;
}

adl_status adl_dataset_shapes(size_t count, uint64_t seed, adl_dataset **out)
{
    *out = NULL;
    if (count == 0)
        return adli_fail(ADL_EINVAL, "generated shapes: count is 0");
    adl_dataset_info info = {
        .count = count, .channels = 3, .height = SIDE, .width = SIDE, .classes = CLASSES};
    adl_status status = adli_dataset_new(&info, out);
    if (status != ADL_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        adli_rng rng = adli_example_rng(seed, i);
        (*out)->labels[i] = (uint8_t)draw_scene(&rng, (*out)->pixels + i * 3 * PLANE);
    }
    return ADL_OK;
}
