/* The elastic sampler: the same order everywhere, and every element exactly once however the number of
 * replicas changes on the way. */
#include "harness.h"

#include "adaptdl/sampler.h"
#include "base/mem.h"
#include "base/rng.h"

TEST(order_is_a_permutation_that_depends_on_epoch_and_pass_only)
{
    enum { N = 1000 };
    adl_sampler *a, *b;
    REQUIRE_OK(adl_sampler_new(N, true, 7, &a));
    REQUIRE_OK(adl_sampler_new(N, true, 7, &b));
    int same = 0, seen[N] = {0};
    REQUIRE_OK(adl_sampler_seek(a, 3, 2 * N, 0, 1));
    REQUIRE_OK(adl_sampler_seek(b, 3, 2 * N + 10, 0, 1)); /* the same pass, further on */
    for (size_t i = 0; i < N; i++)
        seen[adl_sampler_get(a, i)]++;
    for (size_t i = 0; i < N; i++)
        CHECK_INT(seen[i], 1);
    for (size_t i = 10; i < N; i++)
        CHECK_INT(adl_sampler_get(a, i), adl_sampler_get(b, i - 10));
    static const int others[][2] = {{3, 0}, {3, 1}, {2, 2}, {2, 3}, {1, 3}};
    for (size_t k = 0; k < ADLI_COUNT(others); k++) {
        REQUIRE_OK(adl_sampler_seek(b, others[k][0], (uint64_t)others[k][1] * N, 0, 1));
        for (size_t i = 0; i < N; i++)
            same += adl_sampler_get(a, i) == adl_sampler_get(b, i);
    }
    CHECK(same < 40); /* one in N would be by chance */
    adl_sampler_free(a);
    adl_sampler_free(b);
}

TEST(replicas_interleave_and_short_ones_get_one_extra)
{
    adl_sampler *sampler;
    REQUIRE_OK(adl_sampler_new(11, false, 0, &sampler));
    static const size_t wanted[4][3] = {{1, 5, 9}, {2, 6, 10}, {3, 7, 2}, {4, 8, 3}};
    for (int rank = 0; rank < 4; rank++) {
        REQUIRE_OK(adl_sampler_seek(sampler, 0, 11 + 1, rank, 4)); /* 10 left: ceil(10 / 4) = 3 */
        CHECK_INT(adl_sampler_length(sampler), 3);
        CHECK_INT(adl_sampler_padded(sampler), rank >= 2);
        for (size_t j = 0; j < 3; j++)
            CHECK_INT(adl_sampler_get(sampler, j), wanted[rank][j]);
    }
    adl_sampler_free(sampler);
    /* More replicas than examples. */
    REQUIRE_OK(adl_sampler_new(3, true, 0, &sampler));
    for (int rank = 0; rank < 8; rank++) {
        REQUIRE_OK(adl_sampler_seek(sampler, 0, 0, rank, 8));
        CHECK_INT(adl_sampler_length(sampler), 1);
        CHECK_INT(adl_sampler_padded(sampler), rank >= 3);
        CHECK(adl_sampler_get(sampler, 0) < 3);
    }
    adl_sampler_free(sampler);
}

TEST(steps_that_do_not_divide_are_dealt_out)
{
    adl_sampler *sampler;
    REQUIRE_OK(adl_sampler_new(11, false, 0, &sampler));
    /* From 1 on, in steps of 4 by 3 replicas: 1 2 3 4 | 5 6 7 8 | 9 10, and one extra. */
    static const size_t wanted[3][6] = {{1, 4, 5, 8, 9, 99}, {2, 6, 10, 99}, {3, 7, 2, 99}};
    for (int rank = 0; rank < 3; rank++) {
        REQUIRE_OK(adl_sampler_seek(sampler, 0, 1, rank, 3));
        adl_sampler_deal(sampler, 4);
        CHECK_INT(adl_sampler_padded(sampler), rank == 2);
        for (size_t j = 0; j < adl_sampler_length(sampler); j++)
            CHECK_INT(adl_sampler_get(sampler, j), wanted[rank][j]);
        CHECK_INT(wanted[rank][adl_sampler_length(sampler)], 99);
    }
    for (size_t total = 2; total <= 6; total += 4) { /* too few for each; as many for each */
        REQUIRE_OK(adl_sampler_seek(sampler, 0, 1, 1, 3));
        adl_sampler_deal(sampler, total);
        CHECK_INT(adl_sampler_length(sampler), 4);
        CHECK_INT(adl_sampler_get(sampler, 1), 5);
    }
    adl_sampler_free(sampler);
}

/* A pass with random changes of R and m, counting what is not extra. */
static void one_history(adli_rng *rng)
{
    size_t n = (size_t)adli_rng_range(rng, 1, 300);
    bool shuffle = adli_rng_below(rng, 4) > 0;
    int seen[300] = {0}, epoch = adli_rng_range(rng, 0, 5);
    adl_sampler *sampler;
    REQUIRE_OK(adl_sampler_new(n, shuffle, adli_rng_u64(rng), &sampler));
    for (uint64_t index = 0; index < n;) {
        int replicas = adli_rng_range(rng, 1, 9), m = adli_rng_range(rng, 1, 20);
        int steps = adli_rng_range(rng, 1, 4), total = m + adli_rng_range(rng, 0, 20);
        bool dealt = adli_rng_below(rng, 2) && total > replicas && total % replicas != 0;
        uint64_t taken = 0;
        for (int rank = 0; rank < replicas; rank++) {
            REQUIRE_OK(adl_sampler_seek(sampler, epoch, index, rank, replicas));
            if (dealt)
                adl_sampler_deal(sampler, (size_t)total);
            int mine = dealt ? total / replicas + (rank < total % replicas) : m;
            size_t length = adl_sampler_length(sampler), count = (size_t)(mine * steps);
            count = count < length ? count : length;
            for (size_t j = 0; j < count; j++) {
                bool extra = j + 1 == length && adl_sampler_padded(sampler);
                seen[adl_sampler_get(sampler, j)] += !extra;
                taken += !extra;
            }
        }
        index += taken;
    }
    for (size_t i = 0; i < n; i++)
        CHECK_INT(seen[i], 1);
    adl_sampler_free(sampler);
}

TEST(every_element_exactly_once_over_random_resizes)
{
    adli_rng rng;
    adli_rng_init(&rng, 1);
    for (int i = 0; i < 2000; i++)
        one_history(&rng);
}

TEST(impossible_arguments_are_refused)
{
    adl_sampler *sampler = (adl_sampler *)1;
    CHECK_FAILS(adl_sampler_new(0, true, 0, &sampler), ADL_EINVAL, "0 examples");
    CHECK(sampler == NULL);
    CHECK_FAILS(adl_sampler_new((size_t)1 << 40, true, 0, &sampler), ADL_EINVAL, "2^32");
    REQUIRE_OK(adl_sampler_new(5, true, 0, &sampler));
    CHECK_FAILS(adl_sampler_seek(sampler, 0, 0, 2, 2), ADL_EINVAL, "rank 2 of 2");
    CHECK_FAILS(adl_sampler_seek(sampler, 0, 0, -1, 2), ADL_EINVAL, "rank -1");
    CHECK_FAILS(adl_sampler_seek(sampler, 0, 0, 0, 0), ADL_EINVAL, "0 replicas");
    adl_sampler_free(sampler);
    for (int nth = 1; nth <= 2; nth++) {
        adli_mem_fail_at(nth);
        CHECK_FAILS(adl_sampler_new(5, true, 0, &sampler), ADL_ENOMEM, "sampler");
    }
    adli_mem_fail_at(0);
}
