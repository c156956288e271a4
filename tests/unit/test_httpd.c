/* The HTTP server layer with real sockets: what it serves, what it refuses, and that clients which are
 * slow, silent, greedy or broken cost the others nothing. */
#include "http_client.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "httpd/httpd.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

typedef struct site {
    adli_httpd *httpd;
    int port;
    atomic_bool go;     /* what the polls wait for */
    atomic_int streams; /* open */
    atomic_int in_work;
} site;

static adli_httpd_verdict hello(void *user, adli_httpd_request *request)
{
    (void)user;
    adli_httpd_answer(request, 200, "text/plain", "hello", 5);
    return ADLI_HTTPD_DONE;
}

static adli_httpd_verdict parts(void *user, adli_httpd_request *request)
{
    char text[512];
    const char *q = adli_httpd_query(request, "q");
    (void)user;
    int n = snprintf(text, sizeof text, "[%s][%s][%s]", adli_httpd_part(request, 0),
                     adli_httpd_part(request, 1), q ? q : "-");
    adli_httpd_answer(request, 200, "text/plain", text, (size_t)n);
    return ADLI_HTTPD_DONE;
}

static adli_httpd_verdict echo(void *user, adli_httpd_request *request)
{
    size_t length;
    const char *body = adli_httpd_body(request, &length);
    (void)user;
    adli_httpd_answer(request, 200, "text/plain", body, length);
    return ADLI_HTTPD_DONE;
}

static adli_httpd_verdict work(void *user, adli_httpd_request *request)
{
    site *s = user;
    int most = atomic_fetch_add(&s->in_work, 1) + 1;
    usleep(2000);
    atomic_fetch_sub(&s->in_work, 1);
    adli_httpd_answer_error(request, most <= 2 ? 409 : 500, "worked");
    return ADLI_HTTPD_DONE;
}

static adli_httpd_verdict upload(void *user, adli_httpd_request *request)
{
    struct stat info = {0};
    char text[64];
    (void)user;
    int bad = stat(adli_httpd_body_file(request), &info);
    int n = snprintf(text, sizeof text, "%d %lld", bad, (long long)info.st_size);
    adli_httpd_answer(request, 201, "text/plain", text, (size_t)n);
    return ADLI_HTTPD_DONE;
}

static adli_httpd_verdict poll_go(void *user, adli_httpd_request *request)
{
    site *s = user;
    if (atomic_load(&s->go)) {
        adli_httpd_answer(request, 200, "text/plain", "went", 4);
    } else if (adli_httpd_ending(request) || (*adli_httpd_memo(request))++ > 1000) {
        adli_httpd_answer_error(request, 408, "not yet");
    } else {
        adli_httpd_wait_until(request, adli_httpd_arrived_s(request) + 3600);
        return ADLI_HTTPD_WAIT;
    }
    return ADLI_HTTPD_DONE;
}

static adli_httpd_flow fill(void *self, adli_buf *out, double now_s, double *again_s)
{
    site *s = self;
    *again_s = now_s + 0.05;
    if (!atomic_load(&s->go))
        return ADLI_FLOW_WAIT;
    adli_buf_puts(out, "piece ");
    return ADLI_FLOW_DATA;
}

static void end_stream(void *self)
{
    site *s = self;
    atomic_fetch_sub(&s->streams, 1);
}

static adli_httpd_verdict stream(void *user, adli_httpd_request *request)
{
    site *s = user;
    atomic_fetch_add(&s->streams, 1);
    adli_httpd_stream it = {.self = s, .fill = fill, .free = end_stream, .live = true};
    adli_httpd_answer_stream(request, "text/plain", &it);
    return ADLI_HTTPD_DONE;
}

static void check(void *user, adli_httpd_request *request, const adli_httpd_route *route)
{
    const char *token = adli_httpd_token(request);
    (void)user;
    bool good = token && adli_httpd_secret_equal(token, "secret");
    if (good)
        adli_httpd_set_known(request);
    if (route->access == 1 && !good)
        adli_httpd_answer_error(request, 401, "token");
    else if (route->access == 2)
        adli_httpd_body_to_file(request, "/tmp", 3 << 20);
}

static const adli_httpd_route ROUTES[] = {
    {.method = "GET", .path = "/hello", .doors = 3, .handle = hello},
    {.method = "GET", .path = "/", .doors = 1, .handle = hello},
    {.method = "GET", .path = "/p/{}/{}", .doors = 1, .handle = parts},
    {.method = "GET", .path = "/s/{}/*", .doors = 1, .handle = parts},
    {.method = "PUT", .path = "/echo", .doors = 1, .body_max = 100000, .handle = echo},
    {.method = "POST", .path = "/echo", .doors = 1, .body_max = 100000, .handle = echo},
    {.method = "PUT", .path = "/upload", .doors = 1, .access = 2, .body_max = 1, .handle = upload},
    {.method = "GET", .path = "/secret", .doors = 1, .access = 1, .handle = hello},
    {.method = "PUT", .path = "/secret", .doors = 1, .access = 1, .body_max = 100, .handle = echo},
    {.method = "GET", .path = "/work", .doors = 1, .slow = true, .handle = work},
    {.method = "GET", .path = "/poll", .doors = 1, .handle = poll_go},
    {.method = "GET", .path = "/stream", .doors = 1, .handle = stream},
};

static const adli_httpd_limits LIMITS = ADLI_HTTPD_LIMITS;

/* A server with these limits; no limit on the rate unless the test sets one. */
static bool start(site *s, const adli_httpd_limits *limits)
{
    adli_httpd_options options = {.routes = ROUTES,
                                  .route_count = sizeof ROUTES / sizeof ROUTES[0],
                                  .check = check,
                                  .user = s};
    adli_httpd_listener listener = {.address = "127.0.0.1:0", .limits = *limits};
    *s = (site){0};
    adl_status status = adli_httpd_new(&options, &s->httpd);
    if (status == ADL_OK)
        status = adli_httpd_listen(s->httpd, &listener, &s->port);
    if (status != ADL_OK)
        printf("# %s\n", adl_error());
    return status == ADL_OK;
}

static adli_httpd_limits no_rate(void)
{
    adli_httpd_limits limits = LIMITS;
    limits.requests_per_s = 0;
    limits.connections_per_ip = 0;
    return limits;
}

static long metric(site *s, const char *name)
{
    adli_buf out;
    adli_buf_init(&out, 65536);
    adli_httpd_metrics(s->httpd, &out);
    char line[128];
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(out.data, line);
    long value = at ? strtol(at + strlen(line), NULL, 10) : -1;
    adli_buf_fini(&out);
    return value;
}

/* Waits until the metric is at most (or, wanted < 0, at least -wanted); false after 30 s. */
static bool await_metric(site *s, const char *name, long wanted)
{
    for (int i = 0; i < 3000; i++, usleep(10000)) {
        long value = metric(s, name);
        if (wanted < 0 ? value >= -wanted : value <= wanted)
            return true;
    }
    printf("# %s is %ld\n", name, metric(s, name));
    return false;
}

TEST(answers_and_refusals)
{
    site s;
    adli_httpd_limits limits = no_rate();
    REQUIRE(start(&s, &limits));
    CHECK_INT(adlt_code(s.port, "GET", "/hello", "", NULL, "\r\n\r\nhello"), 200);
    CHECK_INT(adlt_code(s.port, "GET", "/", "", NULL, "hello"), 200);
    CHECK_INT(adlt_code(s.port, "GET", "/hello?x=1", "", NULL, NULL), 200);
    CHECK_INT(adlt_code(s.port, "HEAD", "/hello", "", NULL, "Content-Length: 5"), 200);
    CHECK_INT(adlt_code(s.port, "GET", "/nothing", "", NULL, "{\"error\": {\"code\": 404, "), 404);
    CHECK_INT(adlt_code(s.port, "DELETE", "/echo", "", NULL, "Allow: PUT, POST"), 405);
    CHECK_INT(adlt_code(s.port, "OPTIONS", "/hello", "", NULL, "Allow: GET, HEAD"), 405);
    CHECK_INT(adlt_code(s.port, "GET", "/p/a%20b/c?q=1%2B2+3", "", NULL, "[a b][c][1+2 3]"), 200);
    CHECK_INT(adlt_code(s.port, "GET", "/s/x/a/b/c", "", NULL, "[x][a/b/c][-]"), 200);
    const char *bad[] = {
        "/p/../etc", "/p/%2e%2e/x", "/p/a%2fb/c", "/p/%00/c",   "/p/%zz/c",
        "/p/%f/c",   "/p/%ff/c",    "/p/a/%0a",   "/hello?q=%", "/s/x/%2e%2e/%2e%2e/etc"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_INT(adlt_code(s.port, "GET", bad[i], "", NULL, "\"code\": 400"), 400);
    CHECK_INT(adlt_code(s.port, "GET", "/p//c", "", NULL, NULL), 404);
    CHECK_INT(adlt_code(s.port, "GET", "/secret", "", NULL, NULL), 401);
    CHECK_INT(adlt_code(s.port, "GET", "/secret", "Authorization: Bearer secre\r\n", NULL, NULL),
              401);
    CHECK_INT(adlt_code(s.port, "GET", "/secret", "Authorization: Bearer secret\r\n", NULL, NULL),
              200);
    CHECK_INT(adlt_code(s.port, "GET", "/secret", "Authorization: Basic am9iOnNlY3JldA==\r\n", NULL,
                        NULL),
              200);
    CHECK_INT(adlt_code(s.port, "GET", "/secret", "Authorization: Basic !!!\r\n", NULL, NULL), 401);
    CHECK_INT(adlt_code(s.port, "PUT", "/secret", "", "a small body is read and dropped", NULL),
              401);
    adli_httpd_free(s.httpd);
}

TEST(browsers_of_other_sites_are_refused)
{
    site s;
    adli_httpd_limits limits = no_rate();
    REQUIRE(start(&s, &limits));
    const char *forged =
        "GET /hello HTTP/1.1\r\nHost: evil.example:80\r\nConnection: close\r\n\r\n";
    adlt_answer answer = adlt_raw(s.port, forged, strlen(forged), false);
    CHECK_INT(answer.code, 403);
    adlt_answer_free(&answer);
    CHECK_INT(adlt_code(s.port, "GET", "/hello", "Origin: http://localhost\r\n", NULL, NULL), 200);
    CHECK_INT(adlt_code(s.port, "GET", "/hello", "Origin: http://evil.example\r\n", NULL, NULL),
              403);
    CHECK_INT(adlt_code(s.port, "PUT", "/echo", "Origin: null\r\n", "x", NULL), 403);
    adli_httpd_free(s.httpd);
}

static void send_chunks(int fd, const char *path, size_t chunk, int count)
{
    char head[256], *data = malloc(chunk);
    memset(data, 'x', chunk);
    int n =
        snprintf(head, sizeof head,
                 "PUT %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", path);
    adlt_send(fd, head, (size_t)n);
    for (int i = 0; i < count; i++) {
        n = snprintf(head, sizeof head, "%zx\r\n", chunk);
        if (!adlt_send(fd, head, (size_t)n) || !adlt_send(fd, data, chunk) ||
            !adlt_send(fd, "\r\n", 2))
            break;
    }
    adlt_send(fd, "0\r\n\r\n", 5);
    free(data);
}

TEST(bodies_and_their_limits)
{
    site s;
    adli_httpd_limits limits = no_rate();
    REQUIRE(start(&s, &limits));
    char *big = malloc(4000001);
    memset(big, 'y', 4000000);
    big[4000000] = '\0';
    CHECK_INT(adlt_code(s.port, "PUT", "/echo", "", "body", "\r\n\r\nbody"), 200);
    CHECK_INT(adlt_code(s.port, "PUT", "/echo", "Expect: 100-continue\r\n", "body", NULL), 100);
    CHECK_INT(adlt_code(s.port, "PUT", "/upload", "", "12345", "\r\n\r\n0 5"), 201);
    int fd = adlt_connect(s.port);
    adlt_answer answer = adlt_exchange(fd, "PUT", "/upload", "", big, 3 << 20);
    CHECK_INT(answer.code, 201);
    CHECK(strstr(answer.body, "0 3145728"));
    adlt_answer_free(&answer);
    answer = adlt_exchange(fd, "PUT", "/echo", "", big, 100000);
    CHECK_INT(answer.code, 200);
    CHECK_INT(answer.body_length, 100000);
    adlt_answer_free(&answer);
    send_chunks(fd, "/echo", 1000, 100);
    answer = adlt_read_answer(fd, false);
    CHECK_INT(answer.code, 200);
    CHECK_INT(answer.body_length, 100000);
    adlt_answer_free(&answer);
    send_chunks(fd, "/echo", 1000, 110);
    answer = adlt_read_answer(fd, false);
    CHECK_INT(answer.code, 413);
    adlt_answer_free(&answer);
    close(fd);
    fd = adlt_connect(s.port); /* without end: cut off */
    send_chunks(fd, "/echo", 10000, 1000);
    answer = adlt_read_answer(fd, false);
    CHECK(answer.code == 0 || answer.code == 413);
    adlt_answer_free(&answer);
    close(fd);
    /* Declared too large: answered before the body is sent. */
    const char *head =
        "PUT /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n";
    fd = adlt_connect(s.port);
    adlt_send(fd, head, strlen(head));
    answer = adlt_read_answer(fd, false);
    CHECK_INT(answer.code, 413);
    adlt_answer_free(&answer);
    close(fd);
    free(big);
    adli_httpd_free(s.httpd);
}

TEST(headers_pipelines_half_closed_garbage)
{
    site s;
    adli_httpd_limits limits = no_rate();
    REQUIRE(start(&s, &limits));
    char *text = malloc(200000), *at = text;
    at += sprintf(at, "GET /hello HTTP/1.1\r\nHost: localhost\r\nA: ");
    memset(at, 'a', 150000);
    strcpy(at + 150000, "\r\n\r\n");
    adlt_answer answer = adlt_raw(s.port, text, strlen(text), false);
    CHECK_INT(answer.code, 431);
    adlt_answer_free(&answer);
    strcpy(at + 8000, "\r\nConnection: close\r\n\r\n");
    answer = adlt_raw(s.port, text, strlen(text), false);
    CHECK_INT(answer.code, 200);
    adlt_answer_free(&answer);
    at = text + sprintf(text, "GET /");
    memset(at, 'u', 100000);
    strcpy(at + 100000, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    answer = adlt_raw(s.port, text, strlen(text), false);
    CHECK(answer.code == 414 || answer.code == 431);
    adlt_answer_free(&answer);
    /* 50 requests at once, answers in order. */
    at = text;
    for (int i = 0; i < 50; i++)
        at += sprintf(at, "GET /p/n/%d HTTP/1.1\r\nHost: localhost\r\n%s\r\n", i,
                      i == 49 ? "Connection: close\r\n" : "");
    answer = adlt_raw(s.port, text, (size_t)(at - text), false);
    const char *in = answer.text ? answer.text : "";
    for (int i = 0; i < 50 && in; i++) {
        char wanted[32];
        sprintf(wanted, "[n][%d][-]", i);
        in = strstr(in, wanted);
    }
    CHECK(in != NULL);
    adlt_answer_free(&answer);
    /* A client that has nothing more to say still gets its answer. */
    const char *half = "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n";
    answer = adlt_raw(s.port, half, strlen(half), true);
    CHECK_INT(answer.code, 200);
    adlt_answer_free(&answer);
    free(text);
    adli_httpd_free(s.httpd);
}

/* Proxies and servers disagree about these; whoever gets them past one may speak as another client. */
TEST(what_could_be_read_in_two_ways_is_refused)
{
#define REQUEST "PUT /echo HTTP/1.1\r\n"
#define NEXT    "\r\n\r\nGET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n"
    static const char *const bad[] = {
        REQUEST "Host: localhost\r\nContent-Length: 0\r\nContent-Length: 4" NEXT,
        REQUEST "Host: localhost\r\nContent-Length: 4\r\ncontent-length: 4" NEXT,
        REQUEST "Host: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked" NEXT,
        REQUEST "Host: localhost\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked" NEXT,
        REQUEST "Host: localhost\r\nHost: 127.0.0.1\r\nContent-Length: 0" NEXT,
        REQUEST "Host: localhost\r\nX: a\001b\r\nContent-Length: 0" NEXT,
        REQUEST "Host: localhost\r\nX: a\rHost: 127.0.0.1\r\nContent-Length: 0" NEXT,
    };
    site s;
    adli_httpd_limits limits = no_rate();
    REQUIRE(start(&s, &limits));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        adlt_answer answer = adlt_raw(s.port, bad[i], strlen(bad[i]), false);
        CHECK_INT(answer.code, 400);
        CHECK(answer.text && !strstr(answer.text, "hello") && strstr(answer.text, "\"error\""));
        adlt_answer_free(&answer);
    }
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

TEST(long_polls_wake_end_and_are_forgotten)
{
    site s;
    adli_httpd_limits limits = no_rate();
    int fds[60];
    const char *request = "GET /poll HTTP/1.1\r\nHost: localhost\r\n\r\n";
    REQUIRE(start(&s, &limits));
    for (int i = 0; i < 60; i++) {
        fds[i] = adlt_connect(s.port);
        adlt_send(fds[i], request, strlen(request));
    }
    CHECK_INT(adlt_code(s.port, "GET", "/hello", "", NULL, NULL), 200);
    for (int i = 0; i < 20; i++) /* those hang up */
        close(fds[i]);
    CHECK(await_metric(&s, "adaptdl_http_connections", 40));
    for (int i = 0; i < 200; i++)
        adli_httpd_wake(s.httpd);
    atomic_store(&s.go, true);
    adli_httpd_wake(s.httpd);
    for (int i = 20; i < 60; i++) {
        adlt_answer answer = adlt_read_answer(fds[i], false);
        CHECK_INT(answer.code, 200);
        adlt_answer_free(&answer);
    }
    atomic_store(&s.go, false);
    for (int i = 20; i < 60; i++)
        adlt_send(fds[i], request, strlen(request));
    CHECK_INT(adlt_code(s.port, "GET", "/hello", "", NULL, NULL), 200);
    adli_httpd_free(s.httpd); /* those who wait are told */
    for (int i = 20; i < 60; i++) {
        adlt_answer answer = adlt_read_answer(fds[i], false);
        CHECK(answer.code == 408 || answer.code == 503 || answer.code == 0);
        adlt_answer_free(&answer);
        close(fds[i]);
    }
}

/* Streams nobody reads are ended; those that are read go on; the server's end ends all. */
TEST(streams)
{
    enum { DEAF = 50 };
    site s;
    adli_httpd_limits limits = no_rate();
    int deaf[DEAF];
    const char *request = "GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n";
    limits.catch_up_s = 1;
    REQUIRE(start(&s, &limits));
    for (int i = 0; i < DEAF; i++) {
        deaf[i] = adlt_connect(s.port);
        adlt_send(deaf[i], request, strlen(request));
        if (i % 5 == 0)
            shutdown(deaf[i], SHUT_WR);
    }
    for (int i = 0; i < 3000 && atomic_load(&s.streams) < DEAF * 4 / 5; i++)
        usleep(10000);
    atomic_store(&s.go, true);
    adli_httpd_wake(s.httpd);
    CHECK_INT(adlt_code(s.port, "GET", "/hello", "", NULL, NULL), 200);
    CHECK(await_metric(&s, "adaptdl_http_connections", 0)); /* all were dropped */
    CHECK_INT(atomic_load(&s.streams), 0);
    for (int i = 0; i < DEAF; i++)
        close(deaf[i]);
    atomic_store(&s.go, false);
    int reader = adlt_connect(s.port);
    adlt_send(reader, request, strlen(request));
    for (int i = 0; i < 3000 && atomic_load(&s.streams) < 1; i++)
        usleep(10000);
    atomic_store(&s.go, true);
    adli_httpd_wake(s.httpd);
    adlt_answer answer = {0};
    CHECK(adlt_read_until(reader, &answer, "piece \r\n6\r\npiece "));
    atomic_store(&s.go, false);
    adli_httpd_free(s.httpd);
    while (adlt_read_more(reader, &answer))
        ;
    CHECK(answer.length > 5 && strcmp(answer.text + answer.length - 5, "0\r\n\r\n") == 0);
    CHECK_INT(atomic_load(&s.streams), 0);
    adlt_answer_free(&answer);
    close(reader);
}

typedef struct crowd {
    int port, good;
} crowd;

static void *visit(void *user)
{
    crowd *c = user;
    for (int i = 0; i < 40; i++)
        c->good += adlt_code(c->port, "GET", i % 2 ? "/work" : "/hello", "", NULL, NULL) ==
                   (i % 2 ? 409 : 200);
    return NULL;
}

TEST(workers)
{
    enum { VISITORS = 6 };
    site s;
    adli_httpd_limits limits = no_rate();
    pthread_t threads[VISITORS];
    crowd crowds[VISITORS];
    REQUIRE(start(&s, &limits));
    for (int i = 0; i < VISITORS; i++) {
        crowds[i] = (crowd){s.port, 0};
        pthread_create(&threads[i], NULL, visit, &crowds[i]);
    }
    for (int i = 0; i < VISITORS; i++) {
        pthread_join(threads[i], NULL);
        CHECK_INT(crowds[i].good, 40);
    }
    /* Ending with work in the queue: it is finished and answered. */
    int fds[10];
    const char *request = "GET /work HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (int i = 0; i < 10; i++) {
        fds[i] = adlt_connect(s.port);
        adlt_send(fds[i], request, strlen(request));
    }
    CHECK(await_metric(&s, "adaptdl_http_connections", -10));
    adli_httpd_free(s.httpd);
    for (int i = 0; i < 10; i++) {
        adlt_answer answer = adlt_read_answer(fds[i], false);
        CHECK(answer.code == 409 || answer.code == 503 || answer.code == 0);
        adlt_answer_free(&answer);
        close(fds[i]);
    }
}

TEST(unix_sockets)
{
    char path[64], deep[300];
    struct stat info;
    site s;
    adli_httpd *other = NULL;
    adli_httpd_options options = {.routes = ROUTES, .route_count = 1, .user = &s};
    snprintf(path, sizeof path, "/tmp/adl-httpd-%d.sock", (int)getpid());
    adli_httpd_listener listener = {.id = 1, .socket_path = path, .limits = LIMITS};
    REQUIRE_OK(adli_httpd_new(&options, &s.httpd));
    REQUIRE_OK(adli_httpd_listen(s.httpd, &listener, NULL));
    CHECK_INT(stat(path, &info), 0);
    CHECK_INT(info.st_mode & 0777, 0600);
    int fd = adlt_connect_unix(path);
    adlt_answer answer = adlt_exchange(fd, "GET", "/hello", "Origin: http://x\r\n", NULL, 0);
    CHECK_INT(answer.code, 200);
    adlt_answer_free(&answer);
    answer = adlt_exchange(fd, "GET", "/p/a/b", "", NULL, 0); /* not at this door */
    CHECK_INT(answer.code, 404);
    adlt_answer_free(&answer);
    close(fd);
    REQUIRE_OK(adli_httpd_new(&options, &other));
    CHECK_FAILS(adli_httpd_listen(other, &listener, NULL), ADL_ESTATE, "another server listens");
    adli_httpd_free(s.httpd);
    CHECK_INT(access(path, F_OK), -1);
    /* What a killed server leaves behind is replaced. */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK_INT(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    CHECK_OK(adli_httpd_listen(other, &listener, NULL));
    memset(deep, 'd', sizeof deep - 1);
    deep[0] = '/';
    deep[sizeof deep - 1] = '\0';
    listener.socket_path = deep;
    CHECK_FAILS(adli_httpd_listen(other, &listener, NULL), ADL_EINVAL, "107 characters");
    listener.socket_path = "/tmp";
    CHECK_FAILS(adli_httpd_listen(other, &listener, NULL), ADL_ESTATE, "no socket");
    adli_httpd_free(other);
}

TEST(bad_addresses_and_certificates)
{
    site s;
    adli_httpd *other = NULL;
    adli_httpd_limits limits = no_rate();
    adli_httpd_options options = {.routes = ROUTES, .route_count = 1, .user = &s};
    adli_httpd_listener listener = {.limits = LIMITS};
    char taken[32];
    REQUIRE(start(&s, &limits));
    REQUIRE_OK(adli_httpd_new(&options, &other));
    const char *bad[] = {"",    "localhost", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999",
                         ":80", "[::1]80",   "[::1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        listener.address = bad[i];
        CHECK_FAILS(adli_httpd_listen(other, &listener, NULL), ADL_EINVAL, "expected ADDR:PORT");
    }
    snprintf(taken, sizeof taken, "127.0.0.1:%d", s.port);
    listener.address = taken;
    CHECK_FAILS(adli_httpd_listen(other, &listener, NULL), ADL_ESTATE, "in use");
    listener.address = "127.0.0.1:0";
    listener.tls_cert = "/nonexistent/cert.pem";
    CHECK_FAILS(adli_httpd_listen(other, &listener, NULL), ADL_EINVAL, "both");
    listener.tls_key = "/etc/hostname";
    CHECK_FAILS(adli_httpd_listen(other, &listener, NULL), ADL_ENOENT, "/nonexistent/cert.pem");
    listener.tls_cert = "/etc/hostname";
    CHECK_FAILS(adli_httpd_listen(other, &listener, NULL), ADL_EINVAL, "no PEM certificate");
    adli_httpd_free(other);
    adli_httpd_free(s.httpd);
}

/* A key and its self-signed certificate as PEM files. */
static bool make_pair(const char *cert_path, const char *key_path)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    FILE *cert_file = fopen(cert_path, "w"), *key_file = fopen(key_path, "w");
    bool good = key && cert && cert_file && key_file;
    if (good) {
        X509_set_version(cert, 2);
        ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
        X509_gmtime_adj(X509_getm_notBefore(cert), 0);
        X509_gmtime_adj(X509_getm_notAfter(cert), 86400);
        X509_set_pubkey(cert, key);
        X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                                   (const unsigned char *)"localhost", -1, -1, 0);
        X509_set_issuer_name(cert, X509_get_subject_name(cert));
        good = X509_sign(cert, key, EVP_sha256()) && PEM_write_X509(cert_file, cert) &&
               PEM_write_PrivateKey(key_file, key, NULL, NULL, 0, NULL, NULL);
    }
    if (cert_file)
        fclose(cert_file);
    if (key_file)
        fclose(key_file);
    X509_free(cert);
    EVP_PKEY_free(key);
    return good;
}

TEST(certificates_and_keys)
{
    char dir[] = "/tmp/adl-tls-XXXXXX", paths[4][64];
    adli_httpd *httpd = NULL;
    site s = {0};
    adli_httpd_options options = {.routes = ROUTES, .route_count = 1, .user = &s};
    REQUIRE(mkdtemp(dir));
    for (int i = 0; i < 4; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%d.pem", dir, i);
    REQUIRE(make_pair(paths[0], paths[1]) && make_pair(paths[2], paths[3]));
    REQUIRE_OK(adli_httpd_new(&options, &httpd));
    adli_httpd_listener listener = {
        .address = "127.0.0.1:0", .tls_cert = paths[0], .tls_key = paths[3], .limits = LIMITS};
    CHECK_FAILS(adli_httpd_listen(httpd, &listener, NULL), ADL_EINVAL,
                "not the key of certificate");
    listener.tls_key = paths[0];
    CHECK_FAILS(adli_httpd_listen(httpd, &listener, NULL), ADL_EINVAL, "no PEM private key");
    CHECK_OK(adli_file_write(paths[3], "", 0));
    listener.tls_key = paths[3];
    CHECK_FAILS(adli_httpd_listen(httpd, &listener, NULL), ADL_EINVAL, "empty");
    listener.tls_key = paths[1];
    CHECK_OK(adli_httpd_listen(httpd, &listener, &s.port));
    CHECK_INT(adlt_code(s.port, "GET", "/hello", "", NULL, NULL), 0); /* not without TLS */
    adli_httpd_free(httpd);
    for (int i = 0; i < 4; i++)
        unlink(paths[i]);
    rmdir(dir);
}

/* Any allocation may fail: no server, or one request that is refused; then all is well again. */
TEST(memory_runs_out)
{
    site s = {0};
    int failures = 0, before = adlt_open_files();
    const char *hosts[] = {"a.example", "b.example", NULL};
    char path[64];
    adli_httpd_options options = {
        .routes = ROUTES, .route_count = ADLI_COUNT(ROUTES), .check = check, .user = &s};
    snprintf(path, sizeof path, "/tmp/adl-httpd-%d.sock", (int)getpid());
    adli_httpd_listener door = {.socket_path = path, .hosts = hosts, .limits = LIMITS};
    for (int nth = 1; nth < 40; nth++) {
        adli_mem_fail_at(nth);
        adl_status status = adli_httpd_new(&options, &s.httpd);
        if (status == ADL_OK)
            status = adli_httpd_listen(s.httpd, &door, NULL);
        adli_mem_fail_at(0);
        CHECK(status == ADL_OK || status == ADL_ENOMEM);
        failures += status != ADL_OK;
        adli_httpd_free(s.httpd);
        s.httpd = NULL;
    }
    CHECK(failures >= 5);
    REQUIRE_OK(adli_httpd_new(&options, &s.httpd));
    REQUIRE_OK(adli_httpd_listen(s.httpd, &door, NULL));
    const char *requests[][3] = {{"GET", "/hello", NULL},
                                 {"PUT", "/echo", "body"},
                                 {"GET", "/none", NULL},
                                 {"PUT", "/upload", "file"},
                                 {"GET", "/work", NULL}};
    int refused = 0;
    for (int i = 0; i < 5 * 12; i++) {
        const char *const *r = requests[i % 5];
        for (int fail = 1; fail >= 0; fail--) {
            int fd = adlt_connect_unix(path);
            adli_mem_fail_at(fail ? 1 + i / 5 : 0);
            adlt_answer got = adlt_exchange(fd, r[0], r[1], "", r[2], r[2] ? strlen(r[2]) : 0);
            adli_mem_fail_at(0);
            refused += got.code == 0 || got.code == 503;
            if (!fail)
                CHECK(got.code == 200 || got.code == 201 || got.code == 404 || got.code == 409);
            adlt_answer_free(&got);
            close(fd);
        }
    }
    CHECK(refused >= 5);
    adli_httpd_free(s.httpd);
    CHECK_INT(adlt_open_files(), before);
}
