/* The base module: error text, buffers, memory faults, random numbers, JSON fields. */
#include "harness.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_write.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/rng.h"
#include "base/utc.h"
#include "base/utf8.h"

#include <math.h>
#include <unistd.h>

TEST(error_text_can_be_wrapped)
{
    CHECK_INT(adli_fail(ADL_EINVAL, "column %d", 3), ADL_EINVAL);
    CHECK_INT(adli_wrap(ADL_EINVAL, "file %s", "a.csv"), ADL_EINVAL);
    CHECK_STR(adl_error(), "file a.csv: column 3");
    CHECK_INT(adli_fail(ADL_EIO, "again: %s", adl_error()), ADL_EIO);
    CHECK_STR(adl_error(), "again: file a.csv: column 3");
}

TEST(buffer_stops_at_its_maximum)
{
    adli_buf buf;
    adli_buf_init(&buf, 10);
    adli_buf_printf(&buf, "%d", 12345);
    CHECK_OK(adli_buf_check(&buf));
    adli_buf_puts(&buf, "67890");
    CHECK_OK(adli_buf_check(&buf));
    CHECK_STR(buf.data, "1234567890");
    adli_buf_puts(&buf, "x");
    CHECK_FAILS(adli_buf_check(&buf), ADL_ENOMEM, "10 bytes");
    CHECK_STR(buf.data, "1234567890");
    adli_buf_fini(&buf);
}

TEST(buffer_writes_doubles_that_read_back)
{
    const double values[] = {0, -0.0, 0.1, 1.0 / 3, 1e-300, 123456789012345678.0, -2.5};
    for (size_t i = 0; i < ADLI_COUNT(values); i++) {
        adli_buf buf;
        adli_buf_init(&buf, 64);
        adli_buf_double(&buf, values[i]);
        json_t *read = json_loads(buf.data, JSON_DECODE_ANY, NULL);
        CHECK(json_number_value(read) == values[i]);
        CHECK_INT(signbit(json_number_value(read)) != 0, signbit(values[i]) != 0);
        json_decref(read);
        adli_buf_fini(&buf);
    }
}

TEST(buffer_escapes_json)
{
    adli_buf buf;
    adli_buf_init(&buf, 64);
    adli_buf_json(&buf, "a\"b\\c\n");
    CHECK_STR(buf.data, "\"a\\\"b\\\\c\\u000a\"");
    adli_buf_fini(&buf);
}

TEST(the_nth_allocation_fails_on_demand)
{
    adli_mem_fail_at(2);
    void *first = adli_calloc(1, 8), *second = adli_calloc(1, 8), *third = adli_calloc(1, 8);
    CHECK(first && !second && third);
    adli_mem_fail_at(0);
    free(first);
    free(third);
    volatile size_t huge = SIZE_MAX / 2; /* volatile: the compiler would refuse the constant */
    CHECK(adli_realloc(NULL, huge, 16) == NULL);
}

TEST(random_numbers_repeat_and_stay_in_range)
{
    adli_rng a, b;
    adli_rng_init(&a, 7);
    adli_rng_init(&b, 7);
    int seen[5] = {0};
    for (int i = 0; i < 1000; i++) {
        int value = adli_rng_range(&a, 1, 5);
        CHECK_INT(value, adli_rng_range(&b, 1, 5));
        CHECK(value >= 1 && value <= 5);
        seen[value - 1]++;
    }
    for (int i = 0; i < 5; i++)
        CHECK(seen[i] > 100);
}

TEST(json_fields_are_checked_by_name)
{
    json_t *root = NULL;
    const char *text = "{\"n\": 3, \"x\": 1.5, \"s\": \"w\", \"a\": [1, 2], \"b\": true}";
    REQUIRE_OK(adli_json_parse(text, strlen(text), &root));
    int n;
    double x, a[2];
    bool b;
    CHECK_OK(adli_json_int(root, "n", 0, 10, &n));
    CHECK_INT(n, 3);
    CHECK_OK(adli_json_double(root, "x", &x));
    CHECK_OK(adli_json_bool(root, "b", &b));
    CHECK_OK(adli_json_doubles(root, "a", 2, a));
    CHECK_FAILS(adli_json_int(root, "x", 0, 10, &n), ADL_EINVAL, "\"x\" must be a whole number");
    CHECK_FAILS(adli_json_int(root, "n", 5, 10, &n), ADL_EINVAL, "from 5 to 10");
    CHECK_FAILS(adli_json_double(root, "s", &x), ADL_EINVAL, "not a string");
    CHECK_FAILS(adli_json_double(root, "none", &x), ADL_EINVAL, "\"none\" is missing");
    CHECK_FAILS(adli_json_doubles(root, "a", 3, a), ADL_EINVAL, "must have 3 numbers");
    json_decref(root);
    CHECK_FAILS(adli_json_parse("{\"a\":1,\"a\":2}", 13, &root), ADL_EINVAL, "not JSON");
}

TEST(utf8_is_checked)
{
    static const char *const good[] = {"",
                                       "abc",
                                       "\xc3\xa9",
                                       "\xe2\x82\xac",
                                       "\xf0\x9f\x98\x80",
                                       "\xed\x9f\xbf",
                                       "\xf4\x8f\xbf\xbf",
                                       "\xe0\xa0\x80"};
    static const char *const bad[] = {"\x80",
                                      "\xc3",
                                      "\xc3(",
                                      "\xc0\xaf",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "a\xe2\x82"};
    for (size_t i = 0; i < ADLI_COUNT(good); i++)
        CHECK(adli_utf8_valid(good[i]));
    for (size_t i = 0; i < ADLI_COUNT(bad); i++)
        CHECK(!adli_utf8_valid(bad[i]));
    uint32_t code = 0;
    CHECK_INT((int)adli_utf8_decode("\xe2\x82\xac", 3, &code), 3);
    CHECK_INT((int)code, 0x20ac);
    CHECK_INT((int)adli_utf8_decode("\xe2\x82\xac", 2, &code), 0); /* cut */
    CHECK_INT((int)adli_utf8_decode("x", 0, NULL), 0);
    CHECK_INT((int)adli_utf8_decode("\0", 1, &code), 1);
    CHECK_INT((int)code, 0);
}

TEST(json_is_written_with_its_commas)
{
    adli_buf out;
    adli_buf_init(&out, 1000);
    for (int line = 0; line < 2; line++) {
        adli_jw_open(&out, NULL, '{');
        adli_jw_text(&out, "a \"b\"", "x{");
        adli_jw_text(&out, "none", NULL);
        adli_jw_open(&out, "list", '[');
        adli_jw_int(&out, NULL, -7);
        adli_jw_number(&out, NULL, NAN);
        adli_jw_open(&out, NULL, '[');
        adli_jw_close(&out, ']');
        adli_jw_text(&out, NULL, "");
        adli_jw_close(&out, ']');
        adli_jw_bool(&out, "yes", true);
        adli_jw_raw(&out, "raw", "{\"k\":[1]}");
        adli_jw_close(&out, '}');
        adli_buf_puts(&out, "\n");
    }
    CHECK_OK(adli_buf_check(&out));
    CHECK_STR(out.data, "{\"a \\\"b\\\"\":\"x{\",\"none\":null,\"list\":[-7,null,[],\"\"],"
                        "\"yes\":true,\"raw\":{\"k\":[1]}}\n"
                        "{\"a \\\"b\\\"\":\"x{\",\"none\":null,\"list\":[-7,null,[],\"\"],"
                        "\"yes\":true,\"raw\":{\"k\":[1]}}\n");
    adli_buf_fini(&out);
}

static char said[256];

static void keep(void *user, adl_log_level level, const char *line)
{
    snprintf(said + strlen(said), sizeof said - strlen(said), "%s%s%s;", (const char *)user,
             adli_log_mark(level), line);
}

TEST(the_logger_is_silent_until_it_is_started_and_then_filters)
{
    static const struct {
        const char *text;
        int verbose;
        adl_log_level level;
    } cases[] = {{"", 0, ADL_LOG_INFO},         {"", 1, ADL_LOG_DEBUG},
                 {"debug", 0, ADL_LOG_DEBUG},   {"Warning", 0, ADL_LOG_WARNING},
                 {"warning", 1, ADL_LOG_INFO},  {"error", 0, ADL_LOG_ERROR},
                 {"off", 0, ADL_LOG_ERROR + 1}, {"debug", 9, ADL_LOG_DEBUG}};
    adl_log_level level;
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        setenv("ADAPTDL_LOG", cases[i].text, 1);
        CHECK_OK(adli_log_level(cases[i].verbose, &level));
        CHECK_INT((int)level, (int)cases[i].level);
    }
    setenv("ADAPTDL_LOG", "loud", 1);
    CHECK_FAILS(adli_log_level(0, &level), ADL_EINVAL, "ADAPTDL_LOG=loud: must be debug");
    adli_say(ADL_LOG_ERROR, "nobody listens");
    char prefix[] = "> ";
    adli_log_start(keep, prefix, ADL_LOG_WARNING);
    adli_say(ADL_LOG_INFO, "no");
    adli_say(ADL_LOG_WARNING, "%d", 1);
    adli_say(ADL_LOG_ERROR, "two");
    adli_log_start(NULL, NULL, ADL_LOG_DEBUG);
    adli_say(ADL_LOG_ERROR, "nobody listens");
    CHECK_STR(said, "> warning: 1;> error: two;");
}

/* Whoever reads a log must not be able to speak for the job whose address stands in it. */
TEST(moments_are_written_in_utc)
{
    char text[ADLI_UTC_SIZE];
    const struct timespec when = {1767323045, 6007008};
    adli_utc_text(&when, 0, text);
    CHECK_STR(text, "2026-01-02T03:04:05Z");
    adli_utc_text(&when, 3, text);
    CHECK_STR(text, "2026-01-02T03:04:05.006Z");
    adli_utc_text(&when, 6, text);
    CHECK_STR(text, "2026-01-02T03:04:05.006007Z");
    adli_utc_text(&(struct timespec){.tv_sec = INT64_MAX}, 3, text);
    CHECK_STR(text, "");
}

TEST(messages_show_no_passwords)
{
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"PUT http://job:s3cret@h:80/x: refused", "PUT http://***@h:80/x: refused"},
        {"https://s3cret@h", "https://***@h"},
        {"http://job:s3@cret@h/", "http://***@h/"},
        {"a http://job:s3cret@h, b http://job:s3cret@[::1]:1/y",
         "a http://***@h, b http://***@[::1]:1/y"},
        {"\"http://a@b\"", "\"http://*@b\""},
        {"http://@b", "http://@b"},
        {"http://h:80/a@b c@d", "http://h:80/a@b c@d"},
        {"GET http://h:80", "GET http://h:80"},
        {"GET http://[::1]", "GET http://[::1]"},
        {"expected http://HOST:PORT", "expected http://HOST:PORT"},
        {"mail@example.com ://", "mail@example.com ://"},
        {"", ""},
    };
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        CHECK_FAILS(adli_fail(ADL_ENET, "%s", cases[i].text), ADL_ENET, "");
        CHECK_STR(adl_error(), cases[i].shown);
    }
    CHECK_FAILS(adli_wrap(ADL_ENET, "PUT http://job:s3cret@h"), ADL_ENET, "PUT http://***@h: ");
    /* cut off before the @ */
    CHECK_FAILS(adli_fail(ADL_ENET, "%1010s http://job:s3cret@h", ""), ADL_ENET, " http://***");
    CHECK_FAILS(adli_wrap(ADL_ENET, "%498s http://job:s3cret@h", ""), ADL_ENET, " http://***: ");
    said[0] = '\0';
    char prefix[] = "";
    adli_log_start(keep, prefix, ADL_LOG_INFO);
    adli_say(ADL_LOG_INFO, "at http://job:%s@h", "s3cret");
    adli_log_start(NULL, NULL, ADL_LOG_INFO);
    CHECK_STR(said, "at http://***@h;");
}

TEST(files_are_replaced_whole)
{
    char path[] = "/tmp/adl-test-XXXXXX";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    CHECK_OK(adli_file_write(path, "hello", 5));
    adli_buf buf;
    adli_buf_init(&buf, 4);
    CHECK_FAILS(adli_file_read(path, &buf), ADL_EINVAL, "limit of 4 bytes");
    adli_buf_fini(&buf);
    adli_buf_init(&buf, 100);
    CHECK_OK(adli_file_read(path, &buf));
    CHECK_STR(buf.data, "hello");
    adli_buf_fini(&buf);
    unlink(path);
    CHECK_FAILS(adli_file_read(path, &buf), ADL_ENOENT, path);
    CHECK_FAILS(adli_file_write("/nonexistent/x", "", 0), ADL_EIO, "/nonexistent/x");
}

typedef struct grown {
    size_t size;
    int old_member;
    double new_member;
} grown;

/* One rule for all option structs: older callers get defaults, newer ones are told. */
TEST(option_structs_may_grow)
{
    grown own = {sizeof own, 1, 2.5}, given = {sizeof given, 7, 8.5};
    CHECK_OK(adli_options_take("grown", &own, sizeof own, NULL));
    CHECK(own.old_member == 1 && own.new_member == 2.5);
    given.size = offsetof(grown, new_member); /* what it was before it grew */
    CHECK_OK(adli_options_take("grown", &own, sizeof own, &given));
    CHECK(own.old_member == 7 && own.new_member == 2.5 && own.size == sizeof own);
    given.size = sizeof given;
    CHECK_OK(adli_options_take("grown", &own, sizeof own, &given));
    CHECK(own.new_member == 8.5);
    given.size = 0;
    CHECK_FAILS(adli_options_take("grown", &own, sizeof own, &given), ADL_EINVAL,
                "grown: size is 0");
    given.size = sizeof given + 1;
    CHECK_FAILS(adli_options_take("grown", &own, sizeof own, &given), ADL_EINVAL, "newer version");
}

/* The same for structs that the library fills. */
TEST(structs_that_are_filled_may_grow)
{
    grown own = {sizeof own, 1, 2.5}, given = {offsetof(grown, new_member), 7, 8.5};
    CHECK_OK(adli_options_give("grown", &given, &own, sizeof own));
    CHECK(given.old_member == 1 && given.new_member == 8.5);
    CHECK(given.size == offsetof(grown, new_member));
    given.size = 0;
    CHECK_FAILS(adli_options_give("grown", &given, &own, sizeof own), ADL_EINVAL,
                "grown: size is 0");
    given = (grown){sizeof given + 1, 7, 8.5};
    CHECK_FAILS(adli_options_give("grown", &given, &own, sizeof own), ADL_EINVAL, "newer version");
    CHECK(given.old_member == 7);
}
