/* The noise scale: estimates of known statistics, averages by hand, resets, and checkpoints. */
#include "harness.h"

#include "adaptdl/noise.h"
#include "base/mem.h"
#include "base/rng.h"

enum { DIMENSIONS = 40 };

static double gaussian(adli_rng *rng)
{
    double u = adli_rng_unit(rng) + 1e-300, v = adli_rng_unit(rng);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* A gradient of a micro batch that is m / B0 = part of the initial one: mean G, covariance Sigma /
 * part, with |G|^2 = sqr and tr(Sigma) = var. */
static void draw(adli_rng *rng, double sqr, double var, double part, double *out)
{
    for (int i = 0; i < DIMENSIONS; i++)
        out[i] = sqrt(sqr / DIMENSIONS) + sqrt(var / part / DIMENSIONS) * gaussian(rng);
}

static double norm(const double *g)
{
    double sum = 0;
    for (int i = 0; i < DIMENSIONS; i++)
        sum += g[i] * g[i];
    return sum;
}

/* Feeds steps of `count` micro-gradients, each of part * B0 examples. */
static void train(adl_noise *noise, adli_rng *rng, double sqr, double var, int count, double part,
                  int steps)
{
    for (int step = 0; step < steps; step++) {
        double mean[DIMENSIONS] = {0}, g[DIMENSIONS], local = 0;
        for (int i = 0; i < count; i++) {
            draw(rng, sqr, var, part, g);
            local += norm(g) / count;
            for (int j = 0; j < DIMENSIONS; j++)
                mean[j] += g[j] / count;
        }
        double total = norm(mean);
        REQUIRE_OK(adl_noise_update(noise, &local, &total, count, count * part, 1, NULL));
    }
}

static void train_pairs(adl_noise *noise, adli_rng *rng, double sqr, double var, double part,
                        int steps)
{
    double before[DIMENSIONS], now[DIMENSIONS], mean[DIMENSIONS];
    draw(rng, sqr, var, part, before);
    for (int step = 0; step < steps; step++) {
        draw(rng, sqr, var, part, now);
        for (int j = 0; j < DIMENSIONS; j++)
            mean[j] = (before[j] + now[j]) / 2;
        double local = (norm(before) + norm(now)) / 2, total = norm(mean);
        REQUIRE_OK(adl_noise_update_pair(noise, &local, &total, part, 1, NULL));
        memcpy(before, now, sizeof before);
    }
}

TEST(known_statistics_are_recovered)
{
    const double sqr = 3, var = 12;
    double worst = 0;
    for (int count = 1; count <= 8; count *= 2) {
        for (double part = 0.25; part <= 1; part *= 2) {
            adl_noise *noise;
            adli_rng rng;
            adli_rng_init(&rng, (uint64_t)count);
            REQUIRE_OK(adl_noise_new(1, &noise));
            int steps = (int)(20000 / fmax(count * part, 1));
            if (count == 1)
                train_pairs(noise, &rng, sqr, var, part, steps);
            else
                train(noise, &rng, sqr, var, count, part, steps);
            adl_grad_params got = adl_noise_params(noise);
            worst = fmax(worst, fmax(fabs(got.sqr / sqr - 1), fabs(got.var / var - 1)));
            CHECK_NEAR(got.sqr, sqr, 0.1);
            CHECK_NEAR(got.var, var, 0.05);
            CHECK(adl_noise_biased(noise) == (count == 1));
            CHECK_NEAR(adl_noise_gain(noise, 4), 15 / (12 / 4.0 + 3), 0.1);
            adl_noise_free(noise);
        }
    }
    printf("info - 1, 2, 4 and 8 micro-gradients, within %.1f %% of the truth\n", 100 * worst);
}

TEST(averages_follow_the_formula)
{
    adl_noise *noise;
    REQUIRE_OK(adl_noise_new(1, &noise));
    const double local[] = {10, 14}, total[] = {4, 5}, scale[] = {2, 0.5};
    double biased = 0, unbias = 0, var_biased = 0;
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(adl_noise_update(noise, &local[i], &total[i], 4, scale[i], 1, NULL));
        double theta = pow(0.999, scale[i]);
        biased = theta * biased + (1 - theta) * (4 * total[i] - local[i]) / 3;
        var_biased = theta * var_biased + (1 - theta) * (local[i] - total[i]) * scale[i] / 3;
        unbias = theta * unbias + (1 - theta);
        CHECK_NEAR(adl_noise_params(noise).sqr, biased / unbias, 1e-10);
        CHECK_NEAR(adl_noise_params(noise).var, var_biased / unbias, 1e-10);
    }
    adl_noise_free(noise);
}

TEST(groups_are_floored_one_by_one_and_added)
{
    adl_noise *noise;
    REQUIRE_OK(adl_noise_new(3, &noise));
    CHECK_INT(adl_noise_groups(noise), 3);
    const double local[] = {10, 10, 1}, total[] = {4, 1, 1}; /* sqr 2, -2, 1; var 2, 3, 0 */
    REQUIRE_OK(adl_noise_update(noise, local, total, 4, 1, 1, NULL));
    CHECK_NEAR(adl_noise_group_params(noise, 0).sqr, 2, 1e-12);
    CHECK(adl_noise_group_params(noise, 1).sqr == 0);
    CHECK(adl_noise_group_params(noise, 2).var == 1e-6);
    CHECK_NEAR(adl_noise_params(noise).sqr, 3, 1e-12);
    CHECK_NEAR(adl_noise_params(noise).var, 5 + 1e-6, 1e-12);
    CHECK(adl_noise_group_params(noise, 99).sqr == 1);
    adl_noise_free(noise);
}

TEST(the_first_unbiased_estimate_resets_the_averages)
{
    adl_noise *noise;
    const double a = 8, b = 2, c = 30, d = 20;
    REQUIRE_OK(adl_noise_new(1, &noise));
    REQUIRE_OK(adl_noise_update_pair(noise, &a, &b, 1, 1, NULL));
    CHECK(adl_noise_biased(noise));
    CHECK_NEAR(adl_noise_params(noise).var, 6 * 2, 1e-12); /* count 2, scale 2 */
    REQUIRE_OK(adl_noise_update(noise, &c, &d, 2, 3, 1, NULL));
    CHECK(!adl_noise_biased(noise));
    CHECK_NEAR(adl_noise_params(noise).sqr, 10, 1e-12); /* nothing of the pair is left */
    CHECK_NEAR(adl_noise_params(noise).var, 30, 1e-12);
    REQUIRE_OK(adl_noise_update_pair(noise, &a, &b, 1, 1, NULL));
    CHECK(!adl_noise_biased(noise)); /* worse estimates no longer count */
    CHECK_NEAR(adl_noise_params(noise).sqr, 10, 1e-12);
    adl_noise_free(noise);
}

TEST(overflown_gradients_teach_nothing)
{
    const double bad[] = {INFINITY, NAN, 1.7e308};
    adl_noise *noise;
    double fine[] = {8, 8}, less[] = {2, 2};
    bool skipped = true;
    REQUIRE_OK(adl_noise_new(2, &noise));
    REQUIRE_OK(adl_noise_update(noise, fine, less, 4, 1, 1, &skipped));
    CHECK(!skipped);
    adl_grad_params before = adl_noise_params(noise);
    for (size_t i = 0; i < ADLI_COUNT(bad); i++) {
        double broken[] = {8, bad[i]};
        skipped = false;
        REQUIRE_OK(adl_noise_update(noise, broken, broken, 4, 1, 1, &skipped));
        CHECK(skipped);
        REQUIRE_OK(adl_noise_update_pair(noise, broken, broken, 1, 1, NULL));
        adl_grad_params after = adl_noise_params(noise);
        CHECK(memcmp(&before, &after, sizeof before) == 0);
    }
    adl_noise_free(noise);
}

TEST(the_loss_scale_is_divided_out)
{
    adl_noise *plain, *scaled;
    const double local = 8, total = 3, big_local = 8 * 65536.0 * 65536,
                 big_total = 3 * 65536.0 * 65536;
    REQUIRE_OK(adl_noise_new(1, &plain));
    REQUIRE_OK(adl_noise_new(1, &scaled));
    REQUIRE_OK(adl_noise_update(plain, &local, &total, 4, 2, 1, NULL));
    REQUIRE_OK(adl_noise_update(scaled, &big_local, &big_total, 4, 2, 65536, NULL));
    CHECK_NEAR(adl_noise_params(scaled).sqr, adl_noise_params(plain).sqr, 1e-12);
    CHECK_NEAR(adl_noise_params(scaled).var, adl_noise_params(plain).var, 1e-12);
    adl_noise_free(scaled);
    adl_noise_free(plain);
}

TEST(bad_updates_are_refused)
{
    adl_noise *noise;
    const double one = 1, negative = -1;
    REQUIRE_OK(adl_noise_new(1, &noise));
    CHECK_FAILS(adl_noise_update(noise, &one, &one, 1, 1, 1, NULL), ADL_EINVAL, "count");
    CHECK_FAILS(adl_noise_update(noise, &one, &one, 2, 0, 1, NULL), ADL_EINVAL, "scale");
    CHECK_FAILS(adl_noise_update(noise, &one, &one, 2, NAN, 1, NULL), ADL_EINVAL, "scale");
    CHECK_FAILS(adl_noise_update(noise, &one, &one, 2, 1, 0, NULL), ADL_EINVAL, "loss scale");
    CHECK_FAILS(adl_noise_update(noise, &one, &negative, 2, 1, 1, NULL), ADL_EINVAL, "group 0");
    CHECK_FAILS(adl_noise_update_pair(noise, &one, &one, -1, 1, NULL), ADL_EINVAL, "scale");
    adl_noise_free(noise);
    CHECK_FAILS(adl_noise_new(0, &noise), ADL_EINVAL, "groups");
    CHECK(noise == NULL);
}

TEST(progress_adds_up_gains)
{
    adl_noise *noise;
    const double local = 8, total = 3;
    REQUIRE_OK(adl_noise_new(1, &noise));
    adl_noise_advance(noise, 16);
    CHECK_NEAR(adl_noise_progress(noise), 1, 1e-5); /* nothing known: a step is worth one */
    REQUIRE_OK(adl_noise_update(noise, &local, &total, 4, 2, 1, NULL));
    double gain = adl_noise_gain(noise, 16);
    CHECK(gain > 2);
    double before = adl_noise_progress(noise);
    adl_noise_advance(noise, 16);
    CHECK_NEAR(adl_noise_progress(noise), before + gain, 1e-12);
    adl_noise_free(noise);
}

TEST(the_state_survives_a_checkpoint)
{
    adl_noise *noise, *copy, *other;
    const double local[] = {8, 5}, total[] = {3, 1};
    unsigned char bytes[256], again[256];
    REQUIRE_OK(adl_noise_new(2, &noise));
    REQUIRE_OK(adl_noise_new(2, &copy));
    REQUIRE_OK(adl_noise_new(3, &other));
    REQUIRE_OK(adl_noise_update_pair(noise, local, total, 2, 1, NULL));
    adl_noise_advance(noise, 4);
    size_t size = adl_noise_save_size(noise);
    REQUIRE(size <= sizeof bytes);
    adl_noise_save(noise, bytes);
    REQUIRE_OK(adl_noise_load(copy, bytes, size));
    adl_noise_save(copy, again);
    CHECK(memcmp(bytes, again, size) == 0);
    CHECK(adl_noise_biased(copy));
    CHECK(adl_noise_progress(copy) == adl_noise_progress(noise));
    CHECK(adl_noise_params(copy).sqr == adl_noise_params(noise).sqr);
    CHECK_FAILS(adl_noise_load(other, bytes, size), ADL_EINVAL, "2 groups, not 3");
    CHECK_FAILS(adl_noise_load(copy, bytes, size - 1), ADL_ECORRUPT, "damaged");
    CHECK_FAILS(adl_noise_load(copy, bytes, 5), ADL_ECORRUPT, "no saved state");
    adl_noise_free(other);
    adl_noise_free(copy);
    adl_noise_free(noise);
}

TEST(damaged_checkpoints_are_refused_or_harmless)
{
    adl_noise *noise;
    const double local = 8, total = 3;
    unsigned char bytes[128], broken[128];
    int refused = 0, taken = 0;
    REQUIRE_OK(adl_noise_new(1, &noise));
    REQUIRE_OK(adl_noise_update(noise, &local, &total, 4, 2, 1, NULL));
    size_t size = adl_noise_save_size(noise);
    REQUIRE(size <= sizeof bytes);
    adl_noise_save(noise, bytes);
    for (size_t i = 0; i < size; i++) {
        for (int bit = 0; bit < 8; bit++) {
            memcpy(broken, bytes, size);
            broken[i] ^= (unsigned char)(1 << bit);
            REQUIRE_OK(adl_noise_load(noise, bytes, size));
            if (adl_noise_load(noise, broken, size) != ADL_OK) {
                unsigned char after[128];
                adl_noise_save(noise, after);
                CHECK(memcmp(after, bytes, size) == 0); /* left alone */
                refused++;
                continue;
            }
            taken++;
            REQUIRE_OK(adl_noise_update(noise, &local, &total, 4, 2, 1, NULL));
            CHECK(isfinite(adl_noise_gain(noise, 8)));
            CHECK(adl_noise_params(noise).sqr >= 0);
        }
    }
    printf("info - %d damaged states refused, %d plausible ones taken\n", refused, taken);
    CHECK(refused >= 8 * 24); /* everything in the header but the bits of progress */
    adl_noise_free(noise);
}

TEST(an_allocation_may_fail)
{
    adl_noise *noise;
    adli_mem_fail_at(1);
    CHECK_FAILS(adl_noise_new(1, &noise), ADL_ENOMEM, "out of memory");
    adli_mem_fail_at(0);
    CHECK(noise == NULL);
    adl_noise_free(NULL);
}
