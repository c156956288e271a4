/* The test harness. A test program is a list of TEST functions; each prints one line:
 *   ok - name | not ok - name: file:line: what | skip - name: why
 * and tests/run adds the lines up. A crash or a non-zero exit without a "not ok" counts as one
 * failure. Tests of one program run in order in one process. */
#ifndef ADLI_HARNESS_H
#define ADLI_HARNESS_H

#include "base/status.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct adlt_case {
    const char *name;
    void (*run)(void);
    struct adlt_case *next;
} adlt_case;

static adlt_case *adlt_first, **adlt_last = &adlt_first;
static bool adlt_failed;
static bool adlt_skipped;

#define TEST(name)                                                                                 \
    static void name(void);                                                                        \
    __attribute__((constructor)) static void adlt_add_##name(void)                                 \
    {                                                                                              \
        static adlt_case entry = {#name, name, NULL};                                              \
        *adlt_last = &entry;                                                                       \
        adlt_last = &entry.next;                                                                   \
    }                                                                                              \
    static void name(void)

#define ADLT_FAIL(...)                                                                             \
    do {                                                                                           \
        if (!adlt_failed) {                                                                        \
            printf("not ok - %s: %s:%d: ", __func__, __FILE__, __LINE__);                          \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
        }                                                                                          \
        adlt_failed = true;                                                                        \
    } while (0)

/* CHECK goes on after a failure (the first is printed), REQUIRE returns from the test. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ADLT_FAIL("%s", #condition);                                                           \
    } while (0)
#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            ADLT_FAIL("%s", #condition);                                                           \
            return;                                                                                \
        }                                                                                          \
    } while (0)
#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        adl_status adlt_status = (call);                                                           \
        if (adlt_status != ADL_OK)                                                                 \
            ADLT_FAIL("%s: %s (%s)", #call, adl_error(), adl_status_text(adlt_status));            \
    } while (0)
#define REQUIRE_OK(call)                                                                           \
    do {                                                                                           \
        adl_status adlt_status = (call);                                                           \
        if (adlt_status != ADL_OK) {                                                               \
            ADLT_FAIL("%s: %s (%s)", #call, adl_error(), adl_status_text(adlt_status));            \
            return;                                                                                \
        }                                                                                          \
    } while (0)
/* The call fails with this status and its error text contains `text`. */
#define CHECK_FAILS(call, wanted, text)                                                            \
    do {                                                                                           \
        adl_status adlt_status = (call);                                                           \
        if (adlt_status != (wanted) || !strstr(adl_error(), (text)))                               \
            ADLT_FAIL("%s: status %s, text \"%s\"; wanted %s with \"%s\"", #call,                  \
                      adl_status_text(adlt_status), adl_error(), #wanted, (text));                 \
    } while (0)
#define CHECK_NEAR(got, wanted, relative)                                                          \
    do {                                                                                           \
        double adlt_got = (got), adlt_wanted = (wanted);                                           \
        if (!(fabs(adlt_got - adlt_wanted) <= (relative)*fabs(adlt_wanted)))                       \
            ADLT_FAIL("%s = %.17g, wanted %.17g within %g", #got, adlt_got, adlt_wanted,           \
                      (double)(relative));                                                         \
    } while (0)
#define CHECK_INT(got, wanted)                                                                     \
    do {                                                                                           \
        long long adlt_got = (long long)(got), adlt_wanted = (long long)(wanted);                  \
        if (adlt_got != adlt_wanted)                                                               \
            ADLT_FAIL("%s = %lld, wanted %lld", #got, adlt_got, adlt_wanted);                      \
    } while (0)
#define CHECK_STR(got, wanted)                                                                     \
    do {                                                                                           \
        const char *adlt_got = (got), *adlt_wanted = (wanted);                                     \
        if (strcmp(adlt_got, adlt_wanted) != 0)                                                    \
            ADLT_FAIL("%s = \"%s\", wanted \"%s\"", #got, adlt_got, adlt_wanted);                  \
    } while (0)
#define SKIP(...)                                                                                  \
    do {                                                                                           \
        printf("skip - %s: ", __func__);                                                           \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        adlt_skipped = true;                                                                       \
        return;                                                                                    \
    } while (0)

/* A file of the reference data beside the project, or NULL when it is not there (then SKIP). The
 * result is static. */
static inline const char *adlt_shared(const char *relative)
{
    static char path[4096];
    const char *root = getenv("ADAPTDL_SHARED");
    snprintf(path, sizeof path, "%s/%s", root ? root : "../shared", relative);
    FILE *file = fopen(path, "r");
    if (file)
        fclose(file);
    return file ? path : NULL;
}

int main(int argc, char **argv)
{
    int failures = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (adlt_case *entry = adlt_first; entry; entry = entry->next) {
        if (argc > 1 && strcmp(argv[1], entry->name) != 0)
            continue;
        adlt_failed = adlt_skipped = false;
        entry->run();
        failures += adlt_failed;
        if (!adlt_failed && !adlt_skipped)
            printf("ok - %s\n", entry->name);
    }
    return failures ? 1 : 0;
}

#endif
