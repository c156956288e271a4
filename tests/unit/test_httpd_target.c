/* Request targets taken apart, and the buckets that limit rates: the parts of the server without a socket. */
#include "harness.h"

#include "base/mem.h"
#include "httpd/limit.h"
#include "httpd/target.h"

TEST(targets)
{
    adli_target target;
    const char *parts_[ADLI_TARGET_PARTS_MAX];
    const char *hosts[] = {"sched.example", NULL};
    REQUIRE_OK(adli_target_parse(&target, "/a/%C3%A9/c%20d?x=1&y&x=2&z=%26"));
    CHECK_INT(target.segments, 3);
    CHECK_STR(target.path, "/a/\xc3\xa9/c d");
    CHECK_STR(adli_target_query(&target, "x"), "1");
    CHECK_STR(adli_target_query(&target, "y"), "");
    CHECK_STR(adli_target_query(&target, "z"), "&");
    CHECK(!adli_target_query(&target, "w"));
    CHECK(adli_target_match(&target, "/a/{}/*", parts_) && !strcmp(parts_[1], "c d"));
    CHECK(!adli_target_match(&target, "/a/{}", parts_) && !adli_target_match(&target, "/", parts_));
    adli_target_fini(&target);
    CHECK_FAILS(adli_target_parse(&target, "http://x/"), ADL_EINVAL, "slash");
    adli_target_fini(&target);
    const char *good[] = {"127.0.0.1", "127.0.0.1:80", "localhost:1",
                          "[::1]",     "[::1]:80",     "SCHED.example:443"};
    const char *bad[] = {"",     "evil.example",  "localhost.evil", "127.0.0.1.evil",
                         "[::1", "[evil]",        "localhost:80x",  "127.0.0.1:80:evil",
                         "::1",  "localhost@evil"};
    for (size_t i = 0; i < ADLI_COUNT(good); i++)
        CHECK(adli_target_host_allowed(good[i], hosts));
    for (size_t i = 0; i < ADLI_COUNT(bad); i++)
        CHECK(!adli_target_host_allowed(bad[i], hosts));
    CHECK(adli_target_same_origin("https://h:1", "h:1"));
    CHECK(!adli_target_same_origin("https://h:1.evil", "h:1") &&
          !adli_target_same_origin("null", "null") && !adli_target_same_origin("ftp://h", "h"));
}

TEST(buckets)
{
    adli_limit *limit = NULL;
    double retry_s;
    CHECK_FAILS(adli_limit_new(0, 5, &limit), ADL_EINVAL, "rate");
    REQUIRE_OK(adli_limit_new(2, 3, &limit));
    for (int i = 0; i < 3; i++)
        CHECK(adli_limit_take(limit, 7, 100, &retry_s));
    CHECK(!adli_limit_take(limit, 7, 100, &retry_s));
    CHECK_NEAR(retry_s, 0.5, 1e-9);
    CHECK(adli_limit_take(limit, 8, 100, &retry_s)); /* another's bucket */
    CHECK(adli_limit_take(limit, 7, 100.6, &retry_s));
    CHECK(!adli_limit_take(limit, 7, 100.6, &retry_s));
    CHECK(!adli_limit_take(limit, 7, 50, &retry_s)); /* a clock that goes back gives nothing */
    for (uint64_t key = 1000; key < 101000; key++)   /* a flood of keys: no memory, no failure */
        CHECK(adli_limit_take(limit, key, 101, &retry_s));
    adli_limit_free(limit);
}
