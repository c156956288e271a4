/* The HTTP client against servers that answer, hang and vanish; and its parsers, walked through every way an
 * answer can be cut. TLS has a test of its own. */
#include "harness.h"

#include "base/mem.h"
#include "http/http.h"
#include "http/parse.h"
#include "http_server.h"

#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- names of hosts ------------------------------------------------------------------------------ */

static sem_t resolver; /* slow.test is answered once it is posted */
static int dead_port, live_port;

/* In place of the system's: a name that takes its time, and one with an address that does not answer. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                struct addrinfo **out)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if ((hints->ai_flags & AI_NUMERICHOST) || !strstr(host, ".test"))
        return real(host, port, hints, out);
    if (strcmp(host, "slow.test") == 0) {
        while (sem_wait(&resolver) != 0)
            ;
        return EAI_FAIL;
    }
    char number[16];
    snprintf(number, sizeof number, "%d", dead_port);
    int error = real("127.0.0.1", number, hints, out);
    snprintf(number, sizeof number, "%d", live_port);
    return error ? error : real("127.0.0.1", number, hints, &(*out)->ai_next);
}

/* ---- exchanges --------------------------------------------------------------------------------- */

static int echo(void *user, const adlt_request *request, char *answer, size_t capacity)
{
    (void)user;
    if (strcmp(request->path, "/big") == 0) {
        memset(answer, 'x', 5000);
        answer[5000] = '\0';
        return 200;
    }
    if (strcmp(request->path, "/hang") == 0)
        return -1;
    if (strcmp(request->path, "/drop") == 0)
        return 0;
    snprintf(answer, capacity, "%s %s %zu %s", request->method, request->path, request->length,
             request->length < 100 ? request->body : "");
    return strcmp(request->path, "/missing") == 0 ? 404 : 200;
}

static adl_status ask(adli_http *http, int port, const char *method, const char *path,
                      const char *body, size_t length, adli_buf *answer, int *code)
{
    char url[256];
    snprintf(url, sizeof url, "http://127.0.0.1:%d%s", port, path);
    adli_http_request request = {.method = method,
                                 .url = url,
                                 .body = body,
                                 .body_length = length,
                                 .timeout_ms = strcmp(path, "/hang") == 0 ? 150 : 10000};
    return adli_http_exchange(http, &request, answer, code);
}

TEST(requests_and_answers)
{
    adlt_server server = {.answer = echo};
    adli_http *http;
    adli_buf answer;
    int code;
    adli_buf_init(&answer, 1000);
    REQUIRE(adlt_server_start(&server));
    REQUIRE_OK(adli_http_new(&http));
    CHECK_OK(ask(http, server.port, "GET", "/a/b?c=1#d", NULL, 0, &answer, &code));
    CHECK_STR(answer.data, "GET /a/b?c=1 0 ");
    CHECK_INT(code, 200);
    CHECK_OK(ask(http, server.port, "GET", "", NULL, 0, &answer, &code));
    CHECK_STR(answer.data, "GET / 0 ");
    CHECK_OK(ask(http, server.port, "PUT", "/x", "{\"a\": 1}", 8, &answer, &code));
    CHECK_STR(answer.data, "PUT /x 8 {\"a\": 1}");
    CHECK_OK(ask(http, server.port, "DELETE", "/missing", NULL, 0, &answer, &code));
    CHECK_INT(code, 404);
    CHECK_FAILS(ask(http, server.port, "GET", "/big", NULL, 0, &answer, &code), ADL_EINVAL,
                "larger than 1000 bytes");
    CHECK_FAILS(ask(http, server.port, "GET", "/drop", NULL, 0, &answer, &code), ADL_ENET, "/drop");
    CHECK_OK(ask(http, server.port, "GET", "/again", NULL, 0, &answer, &code)); /* it recovers */
    CHECK_FAILS(ask(http, server.port, "GET", "/hang", NULL, 0, &answer, &code), ADL_ETIMEOUT,
                "/hang");
    adlt_server_stop(&server);
    CHECK_FAILS(ask(http, server.port, "GET", "/", NULL, 0, &answer, &code), ADL_ENET, "127.0.0.1");
    adli_http_free(http);
    adli_buf_fini(&answer);
}

TEST(a_large_body_is_sent_whole)
{
    enum { LENGTH = 900000 }; /* more than a socket holds, less than the server does */
    char *body = malloc(LENGTH);
    memset(body, 'b', LENGTH);
    adlt_server server = {.answer = echo};
    adli_http *http;
    adli_buf answer;
    int code;
    adli_buf_init(&answer, 1000);
    REQUIRE(adlt_server_start(&server));
    REQUIRE_OK(adli_http_new(&http));
    CHECK_OK(ask(http, server.port, "PUT", "/l", body, LENGTH, &answer, &code));
    CHECK_STR(answer.data, "PUT /l 900000 ");
    adli_http_free(http);
    adlt_server_stop(&server);
    adli_buf_fini(&answer);
    free(body);
}

static void *cancel_soon(void *user)
{
    usleep(50000);
    adli_http_cancel(user);
    return NULL;
}

static bool say_yes(void *user)
{
    return ++*(int *)user > 2;
}

TEST(a_request_can_be_cancelled)
{
    adlt_server server = {.answer = echo};
    adli_http *http;
    adli_buf answer;
    pthread_t thread;
    int code, asked = 0;
    char url[64];
    adli_buf_init(&answer, 1000);
    REQUIRE(adlt_server_start(&server));
    REQUIRE_OK(adli_http_new(&http));
    snprintf(url, sizeof url, "http://127.0.0.1:%d/hang", server.port);
    adli_http_request request = {.method = "GET",
                                 .url = url,
                                 .timeout_ms = 600000,
                                 .cancelled = say_yes,
                                 .cancel_context = &asked};
    CHECK_FAILS(adli_http_exchange(http, &request, &answer, &code), ADL_EINTR, "cancelled");
    request.cancelled = NULL;
    pthread_create(&thread, NULL, cancel_soon, http);
    CHECK_FAILS(adli_http_exchange(http, &request, &answer, &code), ADL_EINTR, "cancelled");
    pthread_join(thread, NULL);
    CHECK_FAILS(adli_http_exchange(http, &request, &answer, &code), ADL_EINTR,
                "cancelled"); /* for good */
    adli_http_free(http);
    adlt_server_stop(&server);
    adli_buf_fini(&answer);
}

TEST(wrong_urls_are_refused)
{
    static const char *const bad[] = {"ftp://x/",
                                      "x",
                                      "",
                                      "http://",
                                      "http://:80/",
                                      "http://a:0x50/",
                                      "http://a:99999/",
                                      "http://[::1/",
                                      "https://"};
    adli_buf answer;
    adli_http *http;
    int code;
    adli_buf_init(&answer, 100);
    REQUIRE_OK(adli_http_new(&http));
    for (size_t k = 0; k < ADLI_COUNT(bad); k++) {
        adli_http_request request = {.method = "GET", .url = bad[k], .timeout_ms = 100};
        CHECK(adli_http_exchange(http, &request, &answer, &code) == ADL_EINVAL);
    }
    adli_http_free(http);
    adli_buf_fini(&answer);
}

/* ---- URLs -------------------------------------------------------------------------------------- */

TEST(urls_are_taken_apart)
{
    adli_url url;
    char shown[64];
    REQUIRE_OK(adli_url_parse("http://host", &url));
    CHECK(!strcmp(url.host, "host") && !strcmp(url.port, "80") && url.path_length == 0);
    REQUIRE_OK(adli_url_parse("HTTP://a.b:8080/p?q#f", &url));
    CHECK(!strcmp(url.host, "a.b") && !strcmp(url.port, "8080") && url.path_length == 4);
    REQUIRE_OK(adli_url_parse("http://[fe80::1]:81/", &url));
    CHECK(!strcmp(url.host, "fe80::1") && !strcmp(url.port, "81"));
    REQUIRE_OK(adli_url_parse("http://me:p%40ss@host:1/", &url));
    CHECK(!strcmp(url.host, "host") && !strcmp(url.user, "me:p@ss"));
    REQUIRE_OK(adli_url_parse("https://secure/", &url));
    CHECK(url.tls && !strcmp(url.host, "secure") && !strcmp(url.port, "443"));
    CHECK_FAILS(adli_url_parse("http://a b/", &url), ADL_EINVAL, "space");
    CHECK_FAILS(adli_url_parse("http://me%zz@host/", &url), ADL_EINVAL, "password");
    CHECK_FAILS(adli_url_parse("ftp://me:secret@host/", &url), ADL_EINVAL, "ftp://host/");
    adli_url_show("http://me:secret@host/@path", shown, sizeof shown);
    CHECK_STR(shown, "http://host/@path");
}

TEST(a_request_has_what_http_asks_for)
{
    adli_url url;
    adli_buf head;
    const char *const headers[] = {"X-One: 1", NULL}, *const broken[] = {"X: 1\r\nY: 2", NULL};
    adli_http_request request = {
        .method = "PUT", .url = "", .body = "12345", .body_length = 5, .headers = headers};
    adli_buf_init(&head, 10000);
    REQUIRE_OK(adli_url_parse("http://me:secret@[::1]:81/x", &url));
    CHECK_OK(adli_request_head(&url, &request, &head));
    CHECK_STR(head.data, "PUT /x HTTP/1.1\r\nHost: [::1]:81\r\nUser-Agent: adaptdl\r\n"
                         "Accept: */*\r\nConnection: close\r\n"
                         "Authorization: Basic bWU6c2VjcmV0\r\nContent-Type: application/json\r\n"
                         "Content-Length: 5\r\nX-One: 1\r\n\r\n");
    request.headers = broken;
    CHECK_FAILS(adli_request_head(&url, &request, &head), ADL_EINVAL, "line break");
    request.method = "GET /\r\n";
    CHECK_FAILS(adli_request_head(&url, &request, &head), ADL_EINVAL, "method");
    adli_buf_fini(&head);
}

/* ---- answers ----------------------------------------------------------------------------------- */

/* Feeds the text in pieces of that size, then ends the connection. */
static adl_status read_answer(const char *text, size_t piece, adli_buf *body, int *code)
{
    adli_answer answer;
    adli_buf_clear(body);
    adli_answer_init(&answer, body, code, false);
    size_t length = strlen(text);
    for (size_t at = 0; at < length; at += piece) {
        size_t size = length - at < piece ? length - at : piece;
        char *copy = malloc(size); /* so that a sanitizer sees a read past the piece */
        memcpy(copy, text + at, size);
        adl_status status = adli_answer_feed(&answer, copy, size);
        free(copy);
        if (status != ADL_OK)
            return status;
    }
    return adli_answer_done(&answer) ? ADL_OK : adli_answer_end(&answer);
}

TEST(answers_are_read_however_they_arrive)
{
    static const struct {
        const char *text, *body;
        int code;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", 200},
        {"HTTP/1.0 201\r\n\r\nuntil the end", "until the end", 201},
        {"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", "", 204},
        {"HTTP/1.1 200 OK\ncontent-length:0\n\nrest", "", 200},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 X\r\nContent-Length: 1\r\n\r\n!", "!", 500},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n"
         "0\r\nTrailer: 1\r\n\r\nmore",
         "abc0123456789", 200},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "", 200},
    };
    adli_buf body;
    adli_buf_init(&body, 100);
    for (size_t i = 0; i < ADLI_COUNT(cases); i++)
        for (size_t piece = 1; piece <= strlen(cases[i].text); piece++) {
            int code;
            CHECK_OK(read_answer(cases[i].text, piece, &body, &code));
            CHECK_STR(body.data, cases[i].body);
            CHECK_INT(code, cases[i].code);
        }
    adli_buf_fini(&body);
}

TEST(broken_answers_are_failures)
{
    static const struct {
        const char *text, *why;
        adl_status status;
    } cases[] = {
        {"", "without an answer", ADL_ENET},
        {"SSH-2.0-x\r\n", "not HTTP", ADL_ENET},
        {"HTTP/1.1 2000 OK\r\n", "not HTTP", ADL_ENET},
        {"HTTP/1.1 099 OK\r\n", "impossible code", ADL_ENET},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", "in the middle", ADL_ENET},
        {"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "bad header", ADL_ENET},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "bad header",
         ADL_ENET},
        {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", "bad header", ADL_ENET},
        {"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n", "larger than 100", ADL_EINVAL},
        {"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "bad header", ADL_ENET},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "encoding", ADL_ENET},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "chunk size", ADL_ENET},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", "longer than it",
         ADL_ENET},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n"
         "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567"
         "8901234567890\r\n0\r\n\r\n",
         "larger than 100", ADL_EINVAL},
    };
    adli_buf body;
    adli_buf_init(&body, 100);
    for (size_t i = 0; i < ADLI_COUNT(cases); i++)
        for (size_t piece = 1; piece <= 64; piece += 21) {
            int code;
            CHECK_FAILS(read_answer(cases[i].text, piece, &body, &code), cases[i].status,
                        cases[i].why);
        }
    adli_buf_fini(&body);
}

TEST(endless_heads_are_cut)
{
    adli_buf body;
    adli_answer answer;
    int code;
    char line[ADLI_LINE_MAX + 100];
    memset(line, 'a', sizeof line);
    adli_buf_init(&body, 100);
    adli_answer_init(&answer, &body, &code, false);
    CHECK_FAILS(adli_answer_feed(&answer, line, sizeof line), ADL_ENET, "a line of more than");
    adli_answer_init(&answer, &body, &code, false);
    CHECK_OK(adli_answer_feed(&answer, "HTTP/1.1 200 OK\r\n", 17));
    adl_status status = ADL_OK;
    for (int i = 0; i < 100000 && status == ADL_OK; i++)
        status = adli_answer_feed(&answer, "X: y\r\n", 6);
    CHECK_FAILS(status, ADL_ENET, "head is larger");
    adli_buf_fini(&body);
}

static bool at_the_third_time(void *count)
{
    return ++*(int *)count >= 3;
}

TEST(a_name_that_nobody_answers_for_can_be_left_alone)
{
    adli_http *http;
    adli_buf answer;
    int code, asked = 0;
    adli_buf_init(&answer, 1000);
    REQUIRE(sem_init(&resolver, 0, 0) == 0);
    REQUIRE_OK(adli_http_new(&http));
    adli_http_request request = {.method = "GET",
                                 .url = "http://slow.test/",
                                 .timeout_ms = 600000,
                                 .cancelled = at_the_third_time,
                                 .cancel_context = &asked};
    CHECK_FAILS(adli_http_exchange(http, &request, &answer, &code), ADL_EINTR, "cancelled");
    request.timeout_ms = 50;
    request.cancelled = NULL;
    CHECK_FAILS(adli_http_exchange(http, &request, &answer, &code), ADL_ETIMEOUT, "slow.test");
    for (int i = 0; i < 3; i++)
        sem_post(&resolver);
    request.timeout_ms = 600000;
    CHECK_FAILS(adli_http_exchange(http, &request, &answer, &code), ADL_ENET, "slow.test");
    adli_http_free(http);
    adli_buf_fini(&answer);
}

/* A port whose queue is full: connections to it neither come about nor fail. */
static int deaf_port(int fds[], int count)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fds[0], (struct sockaddr *)&at, sizeof at) != 0 || listen(fds[0], 0) != 0 ||
        getsockname(fds[0], (struct sockaddr *)&at, &length) != 0)
        return 0;
    for (int i = 1; i < count; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (connect(fds[i], (struct sockaddr *)&at, sizeof at) != 0 && errno != EINPROGRESS)
            return 0;
    }
    return ntohs(at.sin_port);
}

TEST(an_address_that_does_not_answer_leaves_time_for_the_next)
{
    adlt_server server = {.answer = echo};
    adli_http *http;
    adli_buf answer;
    int code, fds[8];
    adli_buf_init(&answer, 1000);
    REQUIRE(adlt_server_start(&server));
    dead_port = deaf_port(fds, 8);
    live_port = server.port;
    REQUIRE(dead_port != 0);
    REQUIRE_OK(adli_http_new(&http));
    adli_http_request request = {.method = "GET", .url = "http://two.test/x", .timeout_ms = 6000};
    CHECK_OK(adli_http_exchange(http, &request, &answer, &code));
    CHECK_STR(answer.data, "GET /x 0 ");
    for (int i = 0; i < 8; i++)
        close(fds[i]);
    adlt_server_stop(&server);
    adli_http_free(http);
    adli_buf_fini(&answer);
}
