/* The HTTP server layer with real sockets: what it serves, and what becomes of it when memory runs out. */
#include "httpd_site.h"

#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>

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
    CHECK(strstr(answer.text, "Connection: close"));
    adlt_answer_free(&answer);
    close(fd);
    fd = adlt_connect(s.port);
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
