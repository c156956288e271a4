/* Which values of a gradient are looked at, and whether all of them are finite. */
#include "harness.h"

#include "train/norms.h"
#include "train/sample.h"

#include <math.h>
#include <stdlib.h>

enum { CHUNK = ADLI_SAMPLE_CHUNK, EVERY = ADLI_SAMPLE_EVERY, MOST = 40 * CHUNK };

static float g[MOST], h[MOST], kept[MOST + 1];

TEST(a_value_whose_square_is_not_finite_is_found_anywhere)
{
    static const float fine[] = {0, -1e-42f, 1, -1.8446742e19f};
    static const float bad[] = {1.8446744e19f, -1e38f, INFINITY, -INFINITY, NAN, -NAN};
    float values[70] = {0};
    for (size_t n = 0; n <= 70; n++) {
        CHECK(adli_finite(values, n));
        for (size_t i = 0; i < n; i++) {
            for (size_t k = 0; k < sizeof fine / sizeof fine[0]; k++) {
                values[i] = fine[k];
                CHECK(adli_finite(values, n) && isfinite(values[i] * values[i]));
            }
            for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
                values[i] = bad[k];
                CHECK(!adli_finite(values, n) && !isfinite(values[i] * values[i]));
            }
            values[i] = 0;
        }
    }
}

/* The sums over what the turn looks at, counting for the whole. */
static void expect(size_t count, size_t turn, double sums[3])
{
    bool all = count < ADLI_SAMPLE_FROM || turn == ADLI_SAMPLE_ALL;
    size_t seen = 0;
    sums[0] = sums[1] = sums[2] = 0;
    for (size_t i = 0; i < count; i++) {
        if (!all && i / CHUNK % EVERY != turn % EVERY)
            continue;
        seen++;
        sums[0] += (double)g[i] * g[i];
        sums[1] += (double)h[i] * h[i];
        sums[2] += ((double)g[i] - h[i]) * ((double)g[i] - h[i]);
    }
    for (int k = 0; k < 3; k++)
        sums[k] *= (double)count / (double)seen;
}

static void check_pair(size_t count, size_t turn, float guard)
{
    double sums[3] = {1, 2, 3}, expected[3];
    size_t room = turn == ADLI_SAMPLE_ALL ? count : adli_sample_room(count);
    bool finite;
    kept[room] = guard;
    adli_sample_keep(kept, h, count, turn, &finite);
    CHECK(finite && kept[room] == guard);
    adli_sample_pair(g, kept, count, turn, NULL, NULL, sums, &finite);
    expect(count, turn, expected);
    CHECK(finite);
    for (int k = 0; k < 3; k++)
        CHECK_NEAR(sums[k] - (k + 1), expected[k], 1e-5 * expected[k]);
}

static void check_found(float *values, size_t count, size_t turn, size_t at)
{
    double sums[3] = {0};
    float before = values[at];
    bool finite = true;
    values[at] = NAN;
    adli_sample_keep(kept, values, count, turn, &finite);
    CHECK(!finite);
    finite = true;
    adli_sample_pair(values, h, count, turn, NULL, NULL, sums, &finite);
    CHECK(!finite);
    values[at] = before;
}

TEST(a_pair_is_about_what_was_kept_and_finite_about_everything)
{
    static const size_t counts[] = {1,          1000,           16 * CHUNK - 1,
                                    16 * CHUNK, 17 * CHUNK + 5, 40 * CHUNK - 3};
    for (size_t i = 0; i < MOST; i++) {
        g[i] = (float)(i * 7919 % 1000) / 1000;
        h[i] = (float)(i * 104729 % 1000) / 1000;
    }
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
        for (size_t turn = 0; turn <= EVERY; turn++) {
            check_pair(counts[c], turn, (float)turn);
            for (size_t at = 0; at < counts[c]; at += CHUNK)
                check_found(g, counts[c], turn, at);
            check_found(g, counts[c], turn, counts[c] - 1);
        }
    check_pair(20 * CHUNK, ADLI_SAMPLE_ALL, 1);
    CHECK_INT(adli_sample_room(16 * CHUNK - 1), 16 * CHUNK - 1);
    CHECK_INT(adli_sample_room(40 * CHUNK - 3), 5 * CHUNK);
}
