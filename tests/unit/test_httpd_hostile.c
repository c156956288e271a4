/* The HTTP server layer and clients that are slow, silent, greedy, broken or dishonest: what they send is refused, always in
 * JSON, and they cost the others nothing. */
#include "httpd_site.h"

#include "base/clock.h"
#include "base/mem.h"
#include "httpd/impl.h"

#define REQUEST "PUT /echo HTTP/1.1\r\n"
#define NEXT    "\r\n\r\nGET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n"

/* An error in JSON with this code, the end of the connection, and nothing after it. */
static bool is_refusal(const adlt_answer *answer, int code)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, "{\"error\": {\"code\": %d, \"message\": \"", code);
    bool good = answer->code == code && strstr(answer->text, wanted) &&
                strstr(answer->text, "application/json") &&
                strstr(answer->text, "Connection: close") && !strstr(answer->text, "hello") &&
                !strstr(answer->text, "<html");
    if (!good)
        printf("# wanted %d: %s\n", code, answer->text ? answer->text : "(closed)");
    return good;
}

/* Proxies and servers disagree about these; whoever gets them past one may speak as another client. */
TEST(what_could_be_read_in_two_ways_is_refused)
{
    static const char *const bad[] = {
        REQUEST "Host: localhost\r\nContent-Length: 0\r\nContent-Length: 4" NEXT,
        REQUEST "Host: localhost\r\nContent-Length: 4\r\ncontent-length: 4" NEXT,
        REQUEST "Host: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked" NEXT,
        REQUEST "Host: localhost\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked" NEXT,
        REQUEST "Host: localhost\r\nHost: 127.0.0.1\r\nContent-Length: 0" NEXT,
        REQUEST "Host: localhost\r\nX: a\001b\r\nContent-Length: 0" NEXT,
        REQUEST "Host: localhost\r\nX: a\rHost: 127.0.0.1\r\nContent-Length: 0" NEXT,
        REQUEST "Host: localhost\nContent-Length: 0" NEXT,
        REQUEST
        "Host: localhost\r\nContent-Length: 0\r\n\nGET /hello HTTP/1.1\r\nHost: localhost" NEXT,
        REQUEST "Host: localhost\r\nX: a\r\n folded\r\nContent-Length: 0" NEXT,
        REQUEST "Host : localhost\r\nContent-Length: 0" NEXT,
        REQUEST "Content-Length: 0" NEXT,
        REQUEST "Host: localhost\r\nX: a#b\r\nContent-Length: 0" NEXT,
        REQUEST "Host: localhost\r\nX: a#\r\nContent-Length: 0" NEXT,
        "PUT /echo# HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0" NEXT,
        "PUT /echo HTTP/1.1\nHost: localhost\r\nContent-Length: 0" NEXT,
        "G\001T /hello HTTP/1.1\r\nHost: localhost" NEXT,
        "G(T /hello HTTP/1.1\r\nHost: localhost" NEXT,
        "G#T /hello HTTP/1.1\r\nHost: localhost" NEXT,
        REQUEST "Host: localhost\r\nTransfer-Encoding: gzip" NEXT,
        REQUEST "Host: localhost\r\nTransfer-Encoding: gzip, chunked" NEXT,
        "PUT /echo HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0" NEXT,
        /* libmicrohttpd refuses the rest by itself */
        REQUEST "Host: localhost\r\nX#: a\r\nContent-Length: 0" NEXT,
        REQUEST "Host: localhost\r\nX\r\nContent-Length: 0" NEXT,
        REQUEST "Host: localhost\r\nContent-Length: -1" NEXT,
        REQUEST "Host: localhost\r\nContent-Length: +4" NEXT,
        REQUEST "Host: localhost\r\nContent-Length: 4x" NEXT,
        REQUEST "Host: localhost\r\nContent-Length:" NEXT,
        REQUEST "Host: localhost\r\nContent-Length: 4, 4" NEXT,
        REQUEST "Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" NEXT,
        REQUEST "Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n-4\r\n" NEXT,
    };
    static const char *const hung_up[] = {"GARBAGE" NEXT, "\001\002\003\377" NEXT};
    static const char *const good[] = {
        REQUEST "Host: localhost\r\nX:\r\nY:  a\tb \t\r\nZ:c\r\nContent-Length: 0\r\n\r\n",
        "GET /hello?a=b&c HTTP/1.1\r\nHost:localhost\r\nCookie: a=b; c=d\r\n\r\n",
        "GET /hello HTTP/1.0\r\n\r\n",
    };
    site s;
    adli_httpd_limits limits = no_rate();
    REQUIRE(start(&s, &limits));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[512]; /* # stands for a NUL */
        size_t length = strlen(bad[i]);
        for (size_t at = 0; at < length; at++)
            text[at] = bad[i][at] == '#' ? '\0' : bad[i][at];
        adlt_answer answer = adlt_raw(s.port, text, length, false);
        CHECK(is_refusal(&answer, 400));
        adlt_answer_free(&answer);
    }
    for (size_t i = 0; i < sizeof hung_up / sizeof hung_up[0]; i++) {
        adlt_answer answer = adlt_raw(s.port, hung_up[i], strlen(hung_up[i]), false);
        CHECK(!answer.text || is_refusal(&answer, 400));
        adlt_answer_free(&answer);
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        adlt_answer answer = adlt_raw(s.port, good[i], strlen(good[i]), true);
        CHECK_INT(answer.code, 200);
        adlt_answer_free(&answer);
    }
    adli_httpd_free(s.httpd);
}

/* Too much of something, or another protocol: refused by libmicrohttpd, in our words, with our headers, and counted. */
TEST(what_cannot_be_read_is_refused_in_json)
{
    static const char *const extra[] = {"X-Content-Type-Options", "nosniff", NULL};
    enum { LARGE = 100000 };
    static const struct {
        const char *before, *after;
        int code;
        const char *says;
    } cases[] = {
        {"GET /", " HTTP/1.1\r\nHost: localhost", 414, "request line is too long"},
        {"GET /hello HTTP/1.1\r\nHost: localhost\r\nA: ", "", 431, "headers are too large"},
        {"GET /hello HTTP/1.1\r\nHost: localhost\r\n", ": a", 431, "headers are too large"},
        {"PUT /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9", "", 413, "larger than any"},
        {"GET /hello HTTP/2.0\r\nHost: localhost\r\n", NULL, 505, "only HTTP/1.0"},
        {"GET /hello HTTP/1.1\r\nHost: localhost\r\nno colon", NULL, 400, "malformed line"},
    };
    site s = {0};
    adli_httpd_options options = {
        .routes = ROUTES, .route_count = ADLI_COUNT(ROUTES), .user = &s, .extra = extra};
    adli_httpd_listener listener = {.address = "127.0.0.1:0", .limits = no_rate()};
    REQUIRE_OK(adli_httpd_new(&options, &s.httpd));
    REQUIRE_OK(adli_httpd_listen(s.httpd, &listener, &s.port));
    long before = metric(&s, "adaptdl_http_requests_total{code=\"4xx\"}");
    char *text = malloc(LARGE + 1000);
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        char *at = text + sprintf(text, "%s", cases[i].before);
        size_t fill = !cases[i].after ? 0 : cases[i].code == 413 ? 30 : LARGE;
        memset(at, '9', fill);
        sprintf(at + fill, "%s" NEXT, cases[i].after ? cases[i].after : "");
        adlt_answer answer = adlt_raw(s.port, text, strlen(text), false);
        CHECK(is_refusal(&answer, cases[i].code));
        CHECK(answer.text && strstr(answer.text, cases[i].says));
        CHECK(answer.text && strstr(answer.text, "nosniff"));
        adlt_answer_free(&answer);
    }
    CHECK_INT(metric(&s, "adaptdl_http_requests_total{code=\"4xx\"}") - before, 5);
    free(text);
    adli_httpd_free(s.httpd);
}

/* A libmicrohttpd that keeps heads otherwise, and is not strict: what was hidden behind a request is never read. */
TEST(where_heads_cannot_be_checked_a_connection_serves_one_request)
{
    static const char two[] = "GET /p/a/b HTTP/1.1\r\nHost: localhost\r\nX: a\r\n folded" NEXT;
    static const struct {
        head_trust trust;
        int code;
        bool both; /* are answered */
    } cases[] = {{HEAD_WALK, 400, false}, {HEAD_ONCE, 200, false}, {HEAD_STRICT, 200, true}};
    site s;
    adli_httpd_limits limits = no_rate();
    REQUIRE(start(&s, &limits));
    CHECK_INT(adli_head_trust(), HEAD_WALK); /* found out with the library that is here */
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        adli_head_assume(cases[i].trust);
        adlt_answer answer = adlt_raw(s.port, two, sizeof two - 1, true);
        CHECK_INT(answer.code, cases[i].code);
        CHECK_INT(answer.text && strstr(answer.text, "hello"), cases[i].both);
        adlt_answer_free(&answer);
    }
    adli_head_assume(HEAD_WALK);
    adli_httpd_free(s.httpd);
}

/* Damaged requests and random bytes: an answer or a closed connection, never a crash or a hang. */
TEST(garbage)
{
    site s;
    adli_httpd_limits limits = no_rate();
    const char *seeds[] = {
        "PUT /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody",
        ("PUT /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
         "4\r\nbody\r\n0\r\n\r\n"),
        "GET /p/a%20b/c?q=1&r=2 HTTP/1.0\r\nAuthorization: Basic am9iOnNlY3JldA==\r\n\r\n",
        "GET http://localhost/hello HTTP/1.1\r\nHost: localhost\r\nCookie: a=b; c\r\n\r\n"};
    unsigned state = 12345;
    int count = getenv("ADL_TEST_GARBAGE") ? atoi(getenv("ADL_TEST_GARBAGE")) : 1500, answered = 0;
    REQUIRE(start(&s, &limits));
    for (int i = 0; i < count; i++) {
        char data[512];
        const char *seed = seeds[i % 4];
        size_t length = strlen(seed);
        memcpy(data, seed, length);
        for (int k = 0; k < 1 + i % 5; k++) {
            state = state * 1664525 + 1013904223;
            data[(state >> 8) % length] = (char)(state >> 24);
        }
        if (i % 10 == 9)
            for (size_t k = 0; k < length; k++)
                data[k] = (char)((state = state * 1664525 + 1013904223) >> 24);
        adlt_answer answer = adlt_raw(s.port, data, length, true);
        answered += answer.code != 0;
        adlt_answer_free(&answer);
    }
    CHECK(answered > count / 4);
    CHECK_INT(adlt_code(s.port, "GET", "/hello", "", NULL, NULL), 200);
    CHECK(await_metric(&s, "adaptdl_http_connections", 0));
    printf("info - %d damaged requests, %d answered\n", count, answered);
    adli_httpd_free(s.httpd);
}

TEST(rate_limit)
{
    site s;
    adli_httpd_limits limits = LIMITS;
    limits.requests_per_s = 0.01;
    limits.burst = 5;
    REQUIRE(start(&s, &limits));
    for (int i = 0; i < 5; i++)
        CHECK_INT(adlt_code(s.port, "GET", "/hello", "", NULL, NULL), 200);
    CHECK_INT(adlt_code(s.port, "GET", "/hello", "", NULL, "Retry-After: "), 429);
    CHECK_INT(metric(&s, "adaptdl_http_rate_limited_total"), 1);
    adli_httpd_free(s.httpd);
}

/* 200 clients that send a byte now and then, 100 that read nothing: the others are served, and the slow
 * ones are shown out. */
TEST(slow_clients_block_nobody)
{
    enum { SLOW = 200 };
    site s;
    adli_httpd_limits limits = no_rate();
    int slow[SLOW], served = 0, rounds = 0;
    limits.idle_s = 2;
    limits.header_s = 2;
    limits.body_s = 2;
    REQUIRE(adlt_raise_files(1000) && start(&s, &limits));
    const char *parts_of[] = {
        "GET /hel", "GET /hello HTTP/1.1\r\nHost: loc",
        "PUT /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n"};
    for (int i = 0; i < SLOW; i++) {
        slow[i] = adlt_connect(s.port);
        adlt_send(slow[i], parts_of[i % 3], strlen(parts_of[i % 3]));
    }
    CHECK(await_metric(&s, "adaptdl_http_connections", -SLOW));
    for (; rounds < 300 && metric(&s, "adaptdl_http_connections") > 0; rounds++, usleep(100000)) {
        if (rounds % 10 == 0)
            for (int i = 0; i < SLOW; i++)
                send(slow[i], "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        int code = adlt_code(s.port, "GET", "/hello", "", NULL, NULL);
        CHECK_INT(code, 200);
        served += code == 200;
    }
    CHECK_INT(metric(&s, "adaptdl_http_connections_timed_out_total"), SLOW);
    printf("info - %d slow clients, %d requests served meanwhile\n", SLOW, served);
    for (int i = 0; i < SLOW; i++)
        close(slow[i]);
    adli_httpd_free(s.httpd);
}

TEST(idle_connections_give_way)
{
    site s;
    adli_httpd_limits limits = no_rate();
    int idle[40];
    limits.connections = 40;
    REQUIRE(start(&s, &limits));
    for (int i = 0; i < 40; i++) {
        idle[i] = adlt_connect(s.port);
        adlt_send(idle[i], "GET /", (size_t)(i % 6));
    }
    CHECK(await_metric(&s, "adaptdl_http_connections", -40));
    for (int i = 0; i < 60; i++)
        CHECK_INT(adlt_code(s.port, "GET", "/hello", "Connection: close\r\n", NULL, NULL), 200);
    CHECK(metric(&s, "adaptdl_http_connections_evicted_total") >= 1);
    for (int i = 0; i < 40; i++)
        close(idle[i]);
    adli_httpd_free(s.httpd);
}

/* Nobody needs a token to connect: strangers that do nothing, or dribble, must not keep others out, those of
 * their own address included, nor push out a client that has shown its token. */
TEST(strangers_lock_nobody_out)
{
    enum { MOST = 10 };
    site s;
    adli_httpd_limits limits = no_rate();
    const char *known =
        "GET /secret HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\r\n";
    const char *do_little[] = {
        "", "GET /hello HTTP/1.1\r\nHost: loc",
        "PUT /secret HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\nx"};
    int strangers[3 * MOST];
    for (int per_ip = 0; per_ip < 2; per_ip++) {
        limits.connections_per_ip = per_ip ? MOST : 0;
        limits.connections = per_ip ? 100 : MOST;
        REQUIRE(start(&s, &limits));
        int friend = adlt_connect(s.port);
        for (int round = 0; round < 3; round++) {
            adlt_send(friend, known, strlen(known));
            adlt_answer answer = adlt_read_answer(friend, false);
            CHECK_INT(answer.code, 200);
            adlt_answer_free(&answer);
            for (int i = 0; i < MOST; i++) {
                strangers[round * MOST + i] = adlt_connect(s.port);
                adlt_send(strangers[round * MOST + i], do_little[i % 3], strlen(do_little[i % 3]));
            }
            CHECK(await_metric(&s, "adaptdl_http_connections_accepted_total",
                               -(1 + (round + 1) * MOST)));
        }
        CHECK_INT(adlt_code(s.port, "GET", "/hello", "", NULL, NULL), 200);
        adlt_send(friend, known, strlen(known));
        adlt_answer answer = adlt_read_answer(friend, false);
        CHECK_INT(answer.code, 200);
        adlt_answer_free(&answer);
        CHECK(metric(&s, "adaptdl_http_connections_evicted_total") >= 2 * MOST);
        CHECK_INT(metric(&s, "adaptdl_http_connections_refused_total"), 0);
        for (int i = 0; i < 3 * MOST; i++)
            close(strangers[i]);
        close(friend);
        adli_httpd_free(s.httpd);
    }
}

TEST(a_thousand_connections)
{
    enum { MANY = 1000 };
    static int fds[MANY];
    site s;
    adli_httpd_limits limits = no_rate();
    int before = adlt_open_files(), good = 0;
    if (!adlt_raise_files(2 * MANY + 100))
        SKIP("fewer than %d descriptors are allowed", 2 * MANY + 100);
    REQUIRE(start(&s, &limits));
    for (int i = 0; i < MANY; i++)
        fds[i] = adlt_connect(s.port);
    for (int round = 0; round < 2; round++) {
        const char *request = "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n";
        for (int i = 0; i < MANY; i++)
            adlt_send(fds[i], request, strlen(request));
        for (int i = 0; i < MANY; i++) {
            adlt_answer answer = adlt_read_answer(fds[i], false);
            good += answer.code == 200;
            adlt_answer_free(&answer);
        }
    }
    CHECK_INT(good, 2 * MANY);
    CHECK_INT(metric(&s, "adaptdl_http_connections"), MANY);
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    CHECK(await_metric(&s, "adaptdl_http_connections", 0));
    adli_httpd_free(s.httpd);
    CHECK_INT(adlt_open_files(), before);
}
