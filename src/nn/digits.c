/* Digits as a pen might draw them. Each digit has a few forms; a form is a list of strokes through
 * control points. An example jitters the points, bends and slants the plane, draws the strokes with a
 * pen of random width, and then spoils the picture: specks of other strokes, blur, contrast, noise. */
#include "nn/dataset.h"

#include "base/status.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { SIDE = 28, POINTS_MAX = 14, FORMS_MAX = 3, CURVE_STEPS = 6 };

/* The forms of each digit. A form is a list of strokes, each with a sign and control points "x,y" in a
 * square of 100 x 100 (y down): "~" is a spline through its points, "-" straight lines. */
static const char *const glyphs[10][FORMS_MAX] = {
    {"~50,08 22,24 14,54 28,88 52,94 78,80 86,48 74,18 48,08",
     "~58,06 34,26 28,60 42,94 62,84 72,46 64,14 46,10"},
    {"-50,06 50,94", "-30,30 54,08 52,94", "-32,26 52,08 52,92 -30,93 74,92"},
    {"~18,28 32,10 58,08 76,26 66,52 40,74 16,92 -16,92 84,90",
     "~20,30 40,10 70,16 72,42 46,70 22,90 16,78 34,74 60,90 86,86"},
    {"~18,16 44,06 72,18 68,40 40,48 ~40,48 74,56 80,78 54,94 18,84",
     "-20,10 74,10 44,42 ~44,42 76,54 78,80 48,95 16,84"},
    {"-60,06 14,62 86,62 -64,34 62,94", "-24,08 20,50 76,52 -72,08 68,94"},
    {"-76,08 30,08 26,46 ~26,46 56,40 80,58 72,86 42,95 16,84",
     "-34,10 80,08 ~34,10 26,44 58,42 78,62 66,88 40,94 18,84"},
    {"~70,08 36,30 18,64 30,92 62,92 78,70 60,50 32,56 20,74",
     "~54,06 30,36 22,74 42,95 70,84 68,60 44,56 24,78"},
    {"-16,10 82,10 56,48 42,94", "-18,12 80,10 44,94 -34,50 74,48",
     "~16,18 44,08 80,12 58,50 50,94"},
    {"~50,48 24,34 28,12 52,06 74,14 74,34 50,48 22,66 22,86 50,95 78,86 78,66 50,48",
     "~74,18 46,06 26,22 46,46 74,70 64,94 32,90 28,68 56,44 76,18"},
    {"~76,28 58,08 28,14 20,38 42,54 68,44 77,24 ~77,24 74,60 60,94",
     "~70,30 54,08 30,18 28,42 48,52 66,40 71,16 -71,14 70,94"},
};

typedef struct stroke {
    int count;
    bool straight;
    double point[POINTS_MAX][2]; /* in -0.5 .. 0.5 */
} stroke;

/* Reads the next stroke of a form; false at its end. */
static bool next_stroke(const char **at, stroke *s)
{
    if (**at == '\0')
        return false;
    s->straight = *(*at)++ == '-';
    for (s->count = 0; **at >= '0' && **at <= '9'; s->count++) {
        const char *p = *at; /* "12,34" */
        s->point[s->count][0] = ((p[0] - '0') * 10 + p[1] - '0') / 100.0 - 0.5;
        s->point[s->count][1] = ((p[3] - '0') * 10 + p[4] - '0') / 100.0 - 0.5;
        *at += p[5] == ' ' ? 6 : 5;
    }
    return true;
}

/* A picture being drawn: how near, in pixels, each pixel is to the pen's path. */
typedef struct canvas {
    double distance[SIDE][SIDE];
} canvas;

/* The way from the glyph's square to the picture. */
typedef struct warp {
    double m[2][2], shift[2]; /* affine, to pixels */
    double amplitude[2], wave[2][2], phase[2];
} warp;

static void warp_init(warp *w, adli_rng *rng)
{
    double turn = adli_uniform(rng, -0.05, 0.05), shear = adli_uniform(rng, -0.35, 0.35);
    double wide = adli_uniform(rng, 12, 20), tall = adli_uniform(rng, 15, 21);
    double c = adli_sin_turns(turn + 0.25), s = adli_sin_turns(turn);
    w->m[0][0] = wide * c;
    w->m[0][1] = wide * shear * c - tall * s;
    w->m[1][0] = wide * s;
    w->m[1][1] = wide * shear * s + tall * c;
    for (int i = 0; i < 2; i++) {
        w->shift[i] = SIDE / 2.0 + adli_uniform(rng, -2.5, 2.5);
        w->amplitude[i] = adli_uniform(rng, 0, 1.2);
        w->wave[i][0] = adli_uniform(rng, -1, 1);
        w->wave[i][1] = adli_uniform(rng, -1, 1);
        w->phase[i] = adli_rng_unit(rng);
    }
}

/* (u, v) in -0.5 .. 0.5 to pixels: affine, then a slow wave in each direction. */
static void warp_point(const warp *w, double u, double v, double out[2])
{
    for (int i = 0; i < 2; i++)
        out[i] =
            w->shift[i] + w->m[i][0] * u + w->m[i][1] * v +
            w->amplitude[i] * adli_sin_turns(w->wave[i][0] * u + w->wave[i][1] * v + w->phase[i]);
}

static void draw_segment(canvas *c, const double a[2], const double b[2], double reach)
{
    double dx = b[0] - a[0], dy = b[1] - a[1], square = dx * dx + dy * dy;
    double low_x = (a[0] < b[0] ? a[0] : b[0]) - reach,
           high_x = (a[0] < b[0] ? b[0] : a[0]) + reach;
    double low_y = (a[1] < b[1] ? a[1] : b[1]) - reach,
           high_y = (a[1] < b[1] ? b[1] : a[1]) + reach;
    for (int y = low_y < 0 ? 0 : (int)low_y; y < SIDE && y <= high_y; y++)
        for (int x = low_x < 0 ? 0 : (int)low_x; x < SIDE && x <= high_x; x++) {
            double px = x + 0.5 - a[0], py = y + 0.5 - a[1];
            double t = square > 0 ? (px * dx + py * dy) / square : 0;
            t = t < 0 ? 0 : t > 1 ? 1 : t;
            double ex = px - t * dx, ey = py - t * dy, d = sqrt(ex * ex + ey * ey);
            if (d < c->distance[y][x])
                c->distance[y][x] = d;
        }
}

/* Catmull-Rom between p[1] and p[2]. */
static double spline(const double p[4], double t)
{
    return p[1] + 0.5 * t *
                      (p[2] - p[0] +
                       t * (2 * p[0] - 5 * p[1] + 4 * p[2] - p[3] +
                            t * (3 * (p[1] - p[2]) + p[3] - p[0])));
}

static void draw_stroke(canvas *c, stroke *s, const warp *w, double jitter, double reach,
                        adli_rng *rng)
{
    double(*point)[2] = s->point, from[2], to[2];
    for (int i = 0; i < s->count; i++)
        for (int k = 0; k < 2; k++)
            point[i][k] += jitter * adli_noise(rng);
    warp_point(w, point[0][0], point[0][1], from);
    int steps = s->straight ? 3 : CURVE_STEPS; /* straight lines bend with the plane, too */
    for (int i = 0; i + 1 < s->count; i++)
        for (int step = 1; step <= steps; step++) {
            double t = (double)step / steps, at[2];
            for (int k = 0; k < 2; k++) {
                double p[4] = {point[i > 0 ? i - 1 : 0][k], point[i][k], point[i + 1][k],
                               point[i + 2 < s->count ? i + 2 : i + 1][k]};
                at[k] = s->straight ? p[1] + t * (p[2] - p[1]) : spline(p, t);
            }
            warp_point(w, at[0], at[1], to);
            draw_segment(c, from, to, reach);
            memcpy(from, to, sizeof from);
        }
}

static void canvas_clear(canvas *c)
{
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            c->distance[y][x] = SIDE;
}

/* Ink where the pen of this radius went, with an edge one pixel soft; the darker of old and new. */
static void ink(const canvas *c, double radius, double strength, double picture[SIDE][SIDE])
{
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            double cover = radius + 0.5 - c->distance[y][x];
            cover = strength * (cover < 0 ? 0 : cover > 1 ? 1 : cover);
            if (cover > picture[y][x])
                picture[y][x] = cover;
        }
}

/* Up to two specks: short strokes anywhere, fainter than the digit. */
static void add_specks(double picture[SIDE][SIDE], adli_rng *rng)
{
    for (int specks = adli_rng_range(rng, 0, 2); specks > 0; specks--) {
        canvas c;
        canvas_clear(&c);
        double a[2], b[2]; /* one draw a statement: C leaves the order within one open */
        for (int k = 0; k < 2; k++) {
            a[k] = adli_uniform(rng, 0, SIDE);
            b[k] = a[k] + adli_uniform(rng, -5, 5);
        }
        double radius = adli_uniform(rng, 0.3, 0.8);
        double strength = adli_uniform(rng, 0.3, 0.8);
        draw_segment(&c, a, b, 2);
        ink(&c, radius, strength, picture);
    }
}

/* One pass of the kernel (1, 2, 1) / 4 along rows, then along columns. */
static void blur(double picture[SIDE][SIDE])
{
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < SIDE; i++) {
            double before = 0;
            for (int k = 0; k < SIDE; k++) {
                double *at = pass == 0 ? &picture[i][k] : &picture[k][i];
                double after =
                    k + 1 < SIDE ? (pass == 0 ? picture[i][k + 1] : picture[k + 1][i]) : 0;
                double now = *at;
                *at = 0.25 * before + 0.5 * now + 0.25 * after;
                before = now;
            }
        }
}

static int draw_digit(adli_rng *rng, uint8_t *pixels)
{
    int digit = (int)adli_rng_below(rng, 10);
    int forms = FORMS_MAX;
    while (!glyphs[digit][forms - 1])
        forms--;
    const char *form = glyphs[digit][adli_rng_below(rng, (uint32_t)forms)];
    stroke s;
    warp w;
    canvas c;
    double picture[SIDE][SIDE] = {{0}};
    warp_init(&w, rng);
    canvas_clear(&c);
    double radius = adli_uniform(rng, 0.5, 1.6), jitter = adli_uniform(rng, 0.01, 0.035);
    while (next_stroke(&form, &s))
        draw_stroke(&c, &s, &w, jitter, radius + 1, rng);
    ink(&c, radius, 1, picture);
    add_specks(picture, rng);
    for (int passes = adli_rng_range(rng, 0, 2); passes > 0; passes--)
        blur(picture);
    double contrast = adli_uniform(rng, 150, 255), noise = adli_uniform(rng, 0, 24);
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            pixels[y * SIDE + x] = adli_byte(contrast * picture[y][x] + noise * adli_noise(rng));
    return digit;
}

adl_status adl_dataset_digits(size_t count, uint64_t seed, adl_dataset **out)
{
    *out = NULL;
    if (count == 0)
        return adli_fail(ADL_EINVAL, "generated digits: count is 0");
    adl_dataset_info info = {
        .count = count, .channels = 1, .height = SIDE, .width = SIDE, .classes = 10};
    adl_status status = adli_dataset_new(&info, out);
    if (status != ADL_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        adli_rng rng = adli_example_rng(seed, i);
        (*out)->labels[i] = (uint8_t)draw_digit(&rng, (*out)->pixels + i * SIDE * SIDE);
    }
    return ADL_OK;
}
