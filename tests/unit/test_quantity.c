/* Kubernetes quantities: values that Kubernetes' own tests and documentation give, what is refused,
 * and properties over random ones against exact rational arithmetic. */
#include "jobspec/quantity.h"

#include "adaptdl/policy.h"
#include "base/mem.h"
#include "base/rng.h"
#include "harness.h"

#include <inttypes.h>

static void is(const char *text, int scale, int64_t wanted, bool wanted_exact)
{
    int64_t got = -1;
    bool exact = !wanted_exact;
    adl_status status = adli_quantity_parse(text, scale, &got, &exact);
    if (status != ADL_OK || got != wanted || exact != wanted_exact)
        ADLT_FAIL("%s: status %d, got %" PRId64 " (%s), wanted %" PRId64, text, status, got,
                  exact ? "exact" : "rounded", wanted);
}

TEST(values_are_those_of_kubernetes)
{
    is("0", 0, 0, true);
    is("0Ei", 0, 0, true);
    is("-0", 0, 0, true);
    is("+1", 0, 1, true);
    is("1.", 0, 1, true);
    is(".5", 3, 500, true);
    is("0.5", 0, 1, false);
    is("100m", 3, 100, true);
    is("100m", 0, 1, false);
    is("1500m", 0, 2, false);
    is("2000m", 0, 2, true);
    is("1.5", 3, 1500, true);
    is("0.0001", 3, 1, false);
    is("1u", 3, 1, false);
    is("1n", 0, 1, false);
    is("1000000n", 3, 1, true);
    is("1k", 0, 1000, true);
    is("1M", 0, 1000000, true);
    is("1G", 0, 1000000000, true);
    is("1T", 0, 1000000000000, true);
    is("1P", 0, 1000000000000000, true);
    is("9E", 0, 9000000000000000000, true);
    is("1E3", 0, 1000, true);
    is("1e3", 0, 1000, true);
    is("12e-1", 0, 2, false);
    is("1e+2", 0, 100, true);
    is("1Ki", 0, 1024, true);
    is("1.5Mi", 0, 1572864, true);
    is("8Gi", 0, 8589934592, true);
    is("1Ti", 0, 1099511627776, true);
    is("1Pi", 0, 1125899906842624, true);
    is("7Ei", 0, 8070450532247928832, true);
    is("0.1Ki", 0, 103, false);
    is("0.25Ki", 3, 256000, true);
    is("1.00000000000000000000000000000000000001Ki", 0, 1025, false);
    is("0.00000000000000000000000000000000000000000000000000000001", 0, 1, false);
    is("9223372036854775807", 0, INT64_MAX, true);
    is("9223372036854775806.5", 0, INT64_MAX, false);
    is("000000000000000000000000000000000000000000000000012", 0, 12, true);
    is("0e999999999999999", 0, 0, true);
    is("1e-999999999999999", 0, 1, false);
}

TEST(what_is_refused)
{
    static const char *const bad[] = {
        "",
        " ",
        " 1",
        "1 ",
        "-",
        "+",
        ".",
        "1.1.M",
        "1+1.0M",
        "0.1mi",
        "0.1am",
        "aoeu",
        ".5i",
        "1i",
        "-3.01i",
        "3e",
        "3e-",
        "e3",
        "1KiB",
        "1ki",
        "1K",
        "1mm",
        "1e3k",
        "0x10",
        "1_000",
        "NaN",
        "inf",
        "1,5",
        "++1",
        "--1",
        "1e1.5",
        "\xc2\xb5",
        "1111111111111111111111111111111111111111111111111111111111111111111111111111111111"};
    static const char *const large[] = {
        "9223372036854775808",   "9223372036854775807.1", "10E", "8Ei", "1e19", "1e999999999",
        "9223372036854775808e0", "9007199254740992Ki"};
    int64_t out;
    for (size_t i = 0; i < ADLI_COUNT(bad); i++)
        if (adli_quantity_parse(bad[i], 0, &out, NULL) != ADL_EINVAL ||
            !strstr(adl_error(), "is not a quantity"))
            ADLT_FAIL("\"%s\": %s", bad[i], adl_error());
    for (size_t i = 0; i < ADLI_COUNT(large); i++)
        if (adli_quantity_parse(large[i], 0, &out, NULL) != ADL_EINVAL ||
            !strstr(adl_error(), "is too large"))
            ADLT_FAIL("\"%s\": %s", large[i], adl_error());
    CHECK_FAILS(adli_quantity_parse("-1", 0, &out, NULL), ADL_EINVAL, "is negative");
    CHECK_FAILS(adli_quantity_parse("-1m", 0, &out, NULL), ADL_EINVAL, "is negative");
}

TEST(resources_have_their_units)
{
    int64_t out;
    CHECK_OK(adli_resource_parse("cpu", "250m", &out));
    CHECK_INT(out, 250);
    CHECK_OK(adli_resource_parse("memory", "100m", &out));
    CHECK_INT(out, 1);
    CHECK_OK(adli_resource_parse("nvidia.com/gpu", "2", &out));
    CHECK_INT(out, 2);
    CHECK_FAILS(adli_resource_parse("nvidia.com/gpu", "500m", &out), ADL_EINVAL, "whole number");
    CHECK_FAILS(adli_resource_parse("pods", "1.5", &out), ADL_EINVAL, "whole number");
    CHECK_FAILS(adli_resource_parse("memory", "2Pi", &out), ADL_EINVAL, "too large");
    CHECK_OK(adli_resource_parse("memory", "1Pi", &out));
    CHECK(out == ADL_MAX_AMOUNT);

    const char *near;
    CHECK(adli_resource_name_valid("cpu", NULL) &&
          adli_resource_name_valid("hugepages-2Mi", NULL) &&
          adli_resource_name_valid("nvidia.com/gpu", &near) &&
          adli_resource_name_valid("example.com/My_Thing-1", &near));
    CHECK(!adli_resource_name_valid("memroy", &near));
    CHECK_STR(near, "memory");
    static const char *const bad[] = {"",      "gpu",     "hugepages-", "a/b/c",
                                      "/x",    "x/",      "-a.b/c",     "a.b-/c",
                                      "a b/c", "A.com/x", "a.com/-x",   "a.com/x-"};
    for (size_t i = 0; i < ADLI_COUNT(bad); i++)
        if (adli_resource_name_valid(bad[i], NULL))
            ADLT_FAIL("\"%s\" is taken for a resource", bad[i]);
}

TEST(printing_reads_back)
{
    static const char *const names[] = {"cpu", "memory", "nvidia.com/gpu", "pods"};
    char text[32];
    CHECK_STR(adli_resource_print("cpu", 1500, text, sizeof text), "1500m");
    CHECK_STR(adli_resource_print("cpu", 2000, text, sizeof text), "2");
    CHECK_STR(adli_resource_print("memory", 8589934592, text, sizeof text), "8Gi");
    CHECK_STR(adli_resource_print("memory", 1000, text, sizeof text), "1000");
    CHECK_STR(adli_resource_print("memory", 0, text, sizeof text), "0");
    CHECK_STR(adli_resource_print("pods", 1024, text, sizeof text), "1024");
    adli_rng rng;
    adli_rng_init(&rng, 1);
    int rounds = 200000;
    for (int i = 0; i < rounds; i++) {
        const char *name = names[i % 4];
        uint32_t shift = 14 + adli_rng_below(&rng, 50);
        int64_t amount = (int64_t)(adli_rng_u64(&rng) >> shift), again;
        if (adli_rng_below(&rng, 2))
            amount = amount >> 30 << adli_rng_below(&rng, 31);
        if (amount > ADL_MAX_AMOUNT)
            amount = ADL_MAX_AMOUNT;
        adli_resource_print(name, amount, text, sizeof text);
        adl_status status = adli_resource_parse(name, text, &again);
        if (status != ADL_OK || again != amount) {
            ADLT_FAIL("%s %" PRId64 " prints as %s, which is %" PRId64, name, amount, text, again);
            return;
        }
    }
    printf("info - %d amounts printed and read\n", rounds);
}

/* digits with the point after `point` of them, times 10^ten x 2^two x 10^scale, rounded up, by
 * 128-bit integers: small enough here never to overflow. */
static bool exactly(uint64_t digits, int after, int ten, int two, int scale, int64_t *out,
                    bool *exact)
{
    unsigned __int128 top = digits, bottom = 1;
    int power = ten + scale - after;
    for (int i = 0; i < power; i++)
        top *= 10;
    for (int i = 0; i > power; i--)
        bottom *= 10;
    top <<= two;
    unsigned __int128 value = (top + bottom - 1) / bottom;
    *exact = top % bottom == 0;
    *out = (int64_t)value;
    return value <= INT64_MAX;
}

TEST(random_quantities_agree_with_rational_arithmetic)
{
    static const struct {
        const char *text;
        int ten, two;
    } suffixes[] = {{"", 0, 0},     {"n", -9, 0},  {"u", -6, 0},  {"m", -3, 0},  {"k", 3, 0},
                    {"M", 6, 0},    {"G", 9, 0},   {"T", 12, 0},  {"P", 15, 0},  {"E", 18, 0},
                    {"Ki", 0, 10},  {"Mi", 0, 20}, {"Gi", 0, 30}, {"Ti", 0, 40}, {"e2", 2, 0},
                    {"E-4", -4, 0}, {"e+5", 5, 0}};
    adli_rng rng;
    adli_rng_init(&rng, 2);
    int rounds = 300000, refused = 0, rounded = 0;
    for (int i = 0; i < rounds; i++) {
        uint32_t which = adli_rng_below(&rng, ADLI_COUNT(suffixes));
        uint32_t shift = 14 + adli_rng_below(&rng, 50);
        uint64_t digits = adli_rng_u64(&rng) >> shift;
        int after = (int)adli_rng_below(&rng, 6), scale = adli_rng_below(&rng, 2) ? 3 : 0;
        char number[32], text[64];
        snprintf(number, sizeof number, "%0*" PRIu64, after + 1, digits);
        int before = (int)strlen(number) - after;
        snprintf(text, sizeof text, "%.*s%s%s%s", before, number, after ? "." : "", number + before,
                 suffixes[which].text);
        int64_t wanted, got = 0;
        bool wanted_exact, exact = false;
        bool fits = exactly(digits, after, suffixes[which].ten, suffixes[which].two, scale, &wanted,
                            &wanted_exact);
        adl_status status = adli_quantity_parse(text, scale, &got, &exact);
        if (fits != (status == ADL_OK) || (fits && (got != wanted || exact != wanted_exact))) {
            ADLT_FAIL("%s at scale %d: %d %" PRId64 ", wanted %d %" PRId64, text, scale, status,
                      got, fits, wanted);
            return;
        }
        refused += !fits;
        rounded += fits && !exact;
    }
    CHECK(refused > 1000 && rounded > 1000);
    printf("info - %d quantities, %d too large, %d rounded up\n", rounds, refused, rounded);
}
