/* The HTTP API over a core that is made up here: who may do what, how statuses become codes, logs that
 * grow, files that try to lead elsewhere, streams and long polls. */
#include "fake_core.h"

#include "base/mem.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>

/* A long answer is gzip for whoever takes it, and nobody else; one that is there already is not sent. */
static void check_squeezed(void)
{
    static const char *const wanted[] = {"Accept-Encoding: br, gzip\r\n",
                                         "Accept-Encoding: gzip;q=0\r\n", ""};
    char path[2048] = "/api/v1/jobs?label=", headers[512], tag[64] = "";
    memset(path + strlen(path), 'a', 1500);
    for (int i = 0; i < 3; i++) {
        snprintf(headers, sizeof headers, "%s%s", OPERATOR, wanted[i]);
        adlt_answer answer = adlt_once(port, "GET", path, headers, NULL);
        bool squeezed = strstr(answer.text, "Content-Encoding: gzip") != NULL;
        CHECK_INT(answer.code, 200);
        CHECK(squeezed == (i == 0));
        CHECK((answer.body_length < 1000) == squeezed);
        CHECK(squeezed == (memcmp(answer.body, "\x1f\x8b", 2) == 0));
        const char *found = strstr(answer.text, "ETag: ");
        CHECK(found && sscanf(found + 6, "%63s", tag) == 1);
        adlt_answer_free(&answer);
    }
    snprintf(headers, sizeof headers, "%sIf-None-Match: %s\r\n", OPERATOR, tag);
    CHECK_INT(adlt_code(port, "GET", path, headers, NULL, NULL), 304);
}

TEST(who_may_do_what)
{
    REQUIRE(open_api());
    CHECK_INT(adlt_code(port, "GET", "/healthz", "", NULL, "\"status\":\"ok\""), 200);
    CHECK_INT(adlt_code(port, "GET", "/readyz", "", NULL, "does not serve yet"), 503);
    adli_api_set_ready(api, true);
    CHECK_INT(adlt_code(port, "GET", "/readyz", "", NULL, "\"status\":\"ok\""), 200);
    CHECK_INT(adlt_code(replicas, "GET", "/readyz", "", NULL, NULL), 200);
    adli_api_set_ready(api, false);
    CHECK_INT(adlt_code(replicas, "GET", "/readyz", "", NULL, NULL), 503);
    CHECK_INT(adlt_code(port, "GET", "/healthz", "", NULL, NULL), 200);
    CHECK_INT(adlt_code(port, "GET", "/api/v1/jobs", "", NULL, "WWW-Authenticate: Bearer"), 401);
    CHECK_INT(adlt_code(port, "GET", "/metrics", "", NULL, NULL), 401);
    CHECK_INT(
        adlt_code(port, "GET", "/api/v1/jobs", "Authorization: Bearer token-a\r\n", NULL, NULL),
        401);
    CHECK_INT(adlt_code(port, "GET", "/api/v1/jobs", "Authorization: Bearer \r\n", NULL, NULL),
              401);
    CHECK_INT(get("/api/v1/jobs?namespace=x&phase=Running", "\"ns\":\"x\",\"phases\":4"), 200);
    CHECK_INT(
        get("/api/v1/jobs?phase=Pending,Failed&label=a%3Db&fields=name,phase&limit=7&continue=9",
            "\"ns\":\"-\",\"phases\":33,\"label\":\"a=b\",\"fields\":\"name,phase\","
            "\"limit\":7,\"after\":9"),
        200);
    CHECK_INT(get("/api/v1/jobs?phase=Running,Sleeping", "phase=Sleeping"), 400);
    CHECK_INT(get("/api/v1/jobs?limit=0", "limit=0"), 400);
    check_squeezed();
    CHECK_INT(get("/api/v1/jobs?continue=old", "begin anew"), 410);
    CHECK_INT(adlt_code(port, "DELETE", "/api/v1/jobs", OPERATOR, NULL, "which one"), 400);
    CHECK_INT(adlt_code(port, "DELETE", "/api/v1/jobs?namespace=x&phase=Failed", OPERATOR, NULL,
                        "\"ns\":\"x\",\"phases\":32"),
              202);
    CHECK_INT(adlt_code(port, "DELETE", "/api/v1/jobs?namespace=x", "", NULL, NULL), 401);
    CHECK_INT(get("/metrics", "adaptdl_http_connections_accepted_total"), 200);
    /* The replicas' door: three paths, the job's own token. */
    const char *own = "Authorization: Basic am9iOnRva2VuLWE=\r\n"; /* job:token-a */
    CHECK_INT(adlt_code(replicas, "GET", "/healthz", "", NULL, NULL), 200);
    CHECK_INT(adlt_code(replicas, "GET", "/api/v1/jobs", OPERATOR, NULL, NULL), 404);
    CHECK_INT(adlt_code(replicas, "GET", "/", "", NULL, NULL), 404);
    CHECK_INT(adlt_code(replicas, "PUT", "/hints/default/a", own, "{}", "\"status\":\"ok\""), 200);
    CHECK_INT(adlt_code(replicas, "PUT", "/hints/default/b", own, "{}", NULL), 403);
    CHECK_INT(adlt_code(replicas, "PUT", "/hints/default/none", own, "{}", NULL), 403);
    CHECK_INT(adlt_code(replicas, "PUT", "/hints/default/a", "", "{}", NULL), 401);
    CHECK_INT(adlt_code(replicas, "GET", "/discover/default/b/0", own, NULL, NULL), 403);
    CHECK_INT(adlt_code(replicas, "PUT", "/hints/default/a", OPERATOR, "{}", NULL), 200);
    CHECK_INT(adlt_code(port, "PUT", "/hints/default/a", own, "{}", NULL), 200);
    CHECK_INT(core.hints, 3);
    CHECK_INT(adlt_code(replicas, "PUT", "/reports/default/a", own, "{}", "\"status\":\"ok\""),
              200);
    CHECK_INT(adlt_code(replicas, "PUT", "/reports/default/b", own, "{}", NULL), 403);
    CHECK_INT(adlt_code(replicas, "PUT", "/reports/default/a", "", "{}", NULL), 401);
    CHECK_INT(adlt_code(replicas, "PUT", "/reports/default/a", own, "[1]", "not an object"), 400);
    CHECK_INT(core.hints, 4);
    CHECK_INT(adlt_code(replicas, "PUT", "/hints/default/a", own, "[1]", "not an object"), 400);
    /* The socket needs no token. */
    int fd = adlt_connect_unix(sock);
    adlt_answer got = adlt_exchange(fd, "GET", "/api/v1/cluster", "", NULL, 0);
    CHECK_INT(got.code, 200);
    adlt_answer_free(&got);
    got = adlt_exchange(fd, "PUT", "/hints/default/a", "", "{}", 2);
    CHECK_INT(got.code, 200);
    adlt_answer_free(&got);
    close(fd);
    close_api();
}

/* Eight archives that take long to unpack: replicas report, questions are answered. */
static void check_slow_uploads(const char *headers)
{
    enum { UPLOADS = 8 };
    int fds[UPLOADS];
    char request[1024];
    snprintf(
        request, sizeof request,
        "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n%s\r\n0123456789",
        headers);
    pthread_mutex_lock(&core.lock);
    core.slow = true;
    core.unpacking = 0;
    pthread_mutex_unlock(&core.lock);
    for (int i = 0; i < UPLOADS; i++) {
        fds[i] = adlt_connect(port);
        CHECK(adlt_send(fds[i], request, strlen(request)));
    }
    for (bool busy = false; !busy; usleep(1000)) { /* all workers of that class */
        pthread_mutex_lock(&core.lock);
        busy = core.unpacking >= 4;
        pthread_mutex_unlock(&core.lock);
    }
    CHECK_INT(adlt_code(port, "PUT", "/hints/default/a", OPERATOR, "{}", "ok"), 200);
    CHECK_INT(get("/api/v1/jobs/default/a/history", NULL), 200);
    pthread_mutex_lock(&core.lock);
    core.slow = false;
    pthread_cond_broadcast(&core.sped_up);
    pthread_mutex_unlock(&core.lock);
    for (int i = 0; i < UPLOADS; i++) {
        adlt_answer answer = adlt_read_answer(fds[i], false);
        CHECK_INT(answer.code, 201);
        adlt_answer_free(&answer);
        close(fds[i]);
    }
}

/* For clients that know no tokens: nobody else's doors are open, and a token that is shown must be right. */
TEST(without_tokens_for_replicas)
{
    static const char own[] = "Authorization: Bearer token-a\r\n";
    open_to_replicas = true;
    bool opened = open_api();
    open_to_replicas = false;
    REQUIRE(opened);
    CHECK_INT(adlt_code(replicas, "PUT", "/hints/default/a", "", "{}", "\"status\":\"ok\""), 200);
    CHECK_INT(adlt_code(replicas, "GET", "/discover/default/a/x", "", NULL, "whole number"), 400);
    CHECK_INT(adlt_code(replicas, "PUT", "/hints/default/a", own, "{}", NULL), 200);
    CHECK_INT(adlt_code(replicas, "PUT", "/hints/default/b", own, "{}", NULL), 403);
    CHECK_INT(adlt_code(replicas, "GET", "/api/v1/jobs", "", NULL, NULL), 404);
    CHECK_INT(adlt_code(port, "PUT", "/hints/default/a", "", "{}", NULL), 401);
    CHECK_INT(adlt_code(port, "GET", "/api/v1/jobs", "", NULL, NULL), 401);
    close_api();
}

TEST(jobs_and_nodes)
{
    REQUIRE(open_api());
    char headers[256];
    snprintf(headers, sizeof headers, "%sContent-Type: application/json\r\n", OPERATOR);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/jobs", headers, "{}", "\"yaml\":0,\"dry\":0"), 201);
    /* one that was there already was not created */
    CHECK_INT(adlt_code(port, "POST", "/api/v1/jobs", headers, "{!}", "\"dry\":0"), 200);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/jobs?dryRun=1", headers, "{}", "\"dry\":1"), 200);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/jobs?dryRun=perhaps", headers, "{}", "dryRun"), 400);
    core.full = true;
    CHECK_INT(adlt_code(port, "POST", "/api/v1/jobs", headers, "{}", "disk full"), 507);
    core.full = false;
    core.next = ADL_EINVAL;
    CHECK_INT(adlt_code(port, "POST", "/api/v1/jobs", headers, "{}", "line 3: spec.template"), 400);
    core.next = ADL_ESTATE;
    CHECK_INT(adlt_code(port, "POST", "/api/v1/jobs", headers, "{}", NULL), 409);
    core.next = ADL_EIO;
    CHECK_INT(adlt_code(port, "POST", "/api/v1/nodes/node%200/drain", OPERATOR, NULL, "disk"), 500);
    core.next = ADL_OK;
    snprintf(headers, sizeof headers, "%sContent-Type: application/yaml; charset=utf-8\r\n",
             OPERATOR);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/jobs", headers, "kind: x", "\"yaml\":1"), 201);
    snprintf(headers, sizeof headers, "%sContent-Type: application/x-tar\r\n", OPERATOR);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/jobs", headers, "0123456789", "archive"), 201);
    CHECK_INT(core.archive_bytes, 10);
    check_slow_uploads(headers);
    snprintf(headers, sizeof headers, "%sContent-Type: text/plain\r\n", OPERATOR);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/jobs", headers, "x", "application/yaml"), 415);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/jobs", OPERATOR, "x", NULL), 415);
    CHECK_INT(get("/api/v1/jobs/default/a", "\"name\":\"a\""), 200);
    CHECK_INT(get("/api/v1/jobs/default/zz", "no job default/zz"), 404);
    CHECK_INT(adlt_code(port, "DELETE", "/api/v1/jobs/default/a", OPERATOR, NULL, NULL), 202);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/jobs/default/a/cancel", OPERATOR, NULL, NULL), 202);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/jobs/default/a/suspend", OPERATOR, NULL, NULL), 202);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/jobs/default/a/resume", OPERATOR, NULL, NULL), 409);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/jobs/default/a/rerun", OPERATOR, NULL, NULL), 201);
    CHECK_INT(adlt_code(port, "PATCH", "/api/v1/jobs/default/a", OPERATOR, NULL,
                        "Allow: GET, HEAD, DELETE"),
              405);
    CHECK_INT(get("/api/v1/jobs/default/a/history", NULL), 200);
    CHECK_INT(get("/api/v1/jobs/default/a/metrics", "\"points\":1000"), 200);
    CHECK_INT(get("/api/v1/jobs/default/a/metrics?points=7", "\"points\":7"), 200);
    CHECK_INT(get("/api/v1/jobs/default/a/metrics?points=1", "points=1"), 400);
    CHECK_INT(get("/api/v1/jobs/default/zz/metrics", "no job default/zz"), 404);
    CHECK_INT(get("/api/v1/jobs/default/a/decisions?limit=7", "\"limit\":7"), 200);
    CHECK_INT(get("/api/v1/decisions", "\"limit\":100"), 200);
    CHECK_INT(get("/api/v1/decisions?limit=-1", "limit=-1"), 400);
    CHECK_INT(get("/api/v1/decisions?limit=9x", NULL), 400);
    CHECK_INT(get("/api/v1/nodes", "items"), 200);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/nodes/node%200/drain", OPERATOR, NULL, "true"), 200);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/nodes/node%200/undrain", OPERATOR, NULL, "false"),
              200);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/nodes/x/drain", OPERATOR, NULL, NULL), 404);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/cluster/drain", OPERATOR, NULL, "true"), 200);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/cluster/undrain", OPERATOR, NULL, "false"), 200);
    CHECK_INT(adlt_code(port, "POST", "/api/v1/cluster/drain", "", NULL, NULL), 401);
    close_api();
}

TEST(logs)
{
    REQUIRE(open_api());
    put_file("log-1-0", "one\ntwo\nthree\n");
    put_file("log-1-1", "other\n");
    CHECK_INT(get("/api/v1/jobs/default/a/logs", "\r\n\r\none\ntwo\nthree\n"), 200);
    CHECK_INT(get("/api/v1/jobs/default/a/logs?tail=2", "\r\n\r\ntwo\nthree\n"), 200);
    CHECK_INT(get("/api/v1/jobs/default/a/logs?tail=99", "\r\n\r\none\n"), 200);
    CHECK_INT(get("/api/v1/jobs/default/a/logs?tail=0", "Content-Length: 0"), 200);
    CHECK_INT(get("/api/v1/jobs/default/a/logs?rank=1&group=1", "\r\n\r\nother"), 200);
    CHECK_INT(adlt_code(port, "HEAD", "/api/v1/jobs/default/a/logs?follow=1", OPERATOR, NULL, NULL),
              200);
    CHECK_INT(get("/api/v1/jobs/default/a/logs?rank=2", "no log of rank 2"), 404);
    CHECK_INT(get("/api/v1/jobs/default/a/logs?group=2", "the newest is 1"), 404);
    CHECK_INT(get("/api/v1/jobs/default/a/logs?group=0", NULL), 400);
    CHECK_INT(get("/api/v1/jobs/default/zz/logs?follow=1", NULL), 404);
    char *big = malloc(1000001);
    memset(big, 'x', 1000000);
    for (int i = 99; i < 1000000; i += 100)
        big[i] = '\n';
    big[1000000] = '\0';
    put_file("log-1-1", big);
    adlt_answer got =
        adlt_once(port, "GET", "/api/v1/jobs/default/a/logs?rank=1&tail=5000", OPERATOR, NULL);
    CHECK_INT(got.body_length, 500000);
    adlt_answer_free(&got);
    free(big);
    close_api();
}

/* Followers see what is written later, the next group, and the end. */
TEST(follow_logs)
{
    enum { FOLLOWERS = 20 };
    int fds[FOLLOWERS];
    REQUIRE(open_api());
    put_file("log-1-0", "first group\n");
    char request[512];
    snprintf(request, sizeof request,
             "GET /api/v1/jobs/default/a/logs?follow=1 HTTP/1.1\r\nHost: localhost\r\n%s\r\n",
             OPERATOR);
    for (int i = 0; i < FOLLOWERS; i++) {
        fds[i] = adlt_connect(port);
        adlt_send(fds[i], request, strlen(request));
    }
    adlt_answer got = {0};
    CHECK(adlt_read_until(fds[0], &got, "first group\n"));
    put_file("log-1-0",
             "first group\nand more\n"); /* replaced: a new file is not the one followed */
    char path[256];
    snprintf(path, sizeof path, "%s/log-2-0", core.dir);
    int log = open(path, O_CREAT | O_WRONLY | O_APPEND, 0600);
    pthread_mutex_lock(&core.lock);
    core.group = 2;
    pthread_mutex_unlock(&core.lock);
    CHECK_INT(write(log, "second ", 7), 7);
    ring();
    CHECK(adlt_read_until(fds[0], &got, "second "));
    CHECK_INT(write(log, "grows\n", 6), 6); /* found by looking */
    CHECK(adlt_read_until(fds[0], &got, "grows\n"));
    adlt_answer one = adlt_once(port, "GET", "/api/v1/jobs/default/a/logs?follow=1&group=1",
                                OPERATOR, NULL); /* that group is over */
    CHECK_STR(one.body, "first group\nand more\n");
    adlt_answer_free(&one);
    CHECK_INT(write(log, "last\n", 5), 5);
    pthread_mutex_lock(&core.lock);
    core.over = true;
    pthread_mutex_unlock(&core.lock);
    ring();
    CHECK(adlt_read_until(fds[0], &got, "\r\n0\r\n\r\n"));
    adlt_answer_free(&got);
    for (int i = 1; i < FOLLOWERS; i++) {
        got = adlt_read_answer(fds[i], false);
        CHECK(got.code == 200 && strstr(got.body, "second grows\nlast\n"));
        adlt_answer_free(&got);
    }
    for (int i = 0; i < FOLLOWERS; i++)
        close(fds[i]);
    close(log);
    close_api();
}

static int get_file(const char *path, const char *text)
{
    char url[512];
    snprintf(url, sizeof url, "/api/v1/jobs/default/a/files?path=%s", path);
    return get(url, text);
}

TEST(files_stay_in_the_jobs_directory)
{
    char path[256], link[300];
    REQUIRE(open_api());
    snprintf(path, sizeof path, "%s/jobs", core.dir);
    CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
    strcat(path, "/job");
    CHECK_INT(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/jobs/job/share", core.dir);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/jobs/job/share/sub", core.dir);
    mkdir(path, 0700);
    put_file("jobs/job/share/foo.txt", "foo");
    put_file("jobs/job/share/sub/b\"ar", "bar!");
    put_file("jobs/job/secret", "secret");
    snprintf(path, sizeof path, "%s/jobs/job/share/up", core.dir);
    CHECK_INT(symlink("../secret", path), 0);
    snprintf(path, sizeof path, "%s/jobs/job/share/root", core.dir);
    CHECK_INT(symlink("/", path), 0);
    snprintf(path, sizeof path, "%s/jobs/job/share/self", core.dir);
    CHECK_INT(symlink("self", path), 0);
    snprintf(path, sizeof path, "%s/jobs/job/share/abs", core.dir);
    snprintf(link, sizeof link, "%s/jobs/job/secret", core.dir);
    CHECK_INT(symlink(link, path), 0);
    snprintf(path, sizeof path, "%s/jobs/job/share/magic", core.dir);
    CHECK_INT(symlink("/proc/self/environ", path), 0);
    snprintf(path, sizeof path, "%s/jobs/job/share/pipe", core.dir);
    CHECK_INT(mkfifo(path, 0600), 0);
    CHECK_INT(get_file("/adaptdl/share/foo.txt", "\r\n\r\nfoo"), 200);
    CHECK_INT(get_file("/adaptdl/share/sub/../foo.txt", "\r\n\r\nfoo"), 200);
    CHECK_INT(
        get_file("/adaptdl/share/sub", "[{\"name\":\"b\\\"ar\",\"size\":4,\"directory\":false}]"),
        200);
    CHECK_INT(get_file("/adaptdl/share", "X-Adaptdl-Directory: 1"), 200);
    CHECK_INT(get_file("/adaptdl/share/", "{\"name\":\"sub\",\"size\":0,\"directory\":true}"), 200);
    const char *out[] = {
        "/adaptdl/share/../secret",       "/adaptdl/share/up",   "/adaptdl/share/abs",
        "/adaptdl/share/root/etc/passwd", "/adaptdl/share/self", "/adaptdl/share/magic",
        "/adaptdl/share/sub/../../secret"};
    for (size_t i = 0; i < sizeof out / sizeof out[0]; i++)
        CHECK_INT(get_file(out[i], "\"code\": 403"), 403);
    CHECK_INT(get_file("/adaptdl/share/none", NULL), 404);
    CHECK_INT(get_file("/adaptdl/share/foo.txt/x", NULL), 404);
    CHECK_INT(get_file("/adaptdl/share/pipe", "neither"), 400);
    CHECK_INT(get_file("/adaptdl/shared", NULL), 400);
    CHECK_INT(get_file("/etc/passwd", "expected /adaptdl/share"), 400);
    CHECK_INT(get_file("", NULL), 400);
    CHECK_INT(get("/api/v1/jobs/default/zz/files?path=/adaptdl/share", NULL), 404);
    snprintf(path, sizeof path, "%s/jobs/job/share/big", core.dir);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    CHECK_INT(ftruncate(fd, 20 << 20), 0);
    close(fd);
    adlt_answer got = adlt_once(port, "GET", "/api/v1/jobs/default/a/files?path=/adaptdl/share/big",
                                OPERATOR, NULL);
    CHECK_INT(got.body_length, 20 << 20);
    adlt_answer_free(&got);
    close_api();
}

TEST(events)
{
    char request[512];
    adlt_answer got = {0};
    REQUIRE(open_api());
    core.events = 3;
    CHECK_INT(get("/api/v1/events?since=1",
                  "[{\"seq\":2,\"type\":\"JobPhase\",\"job\":\"default/a\"},{"
                  "\"seq\":3"),
              200);
    CHECK_INT(get("/api/v1/events?since=3", "{\"items\":[],\"last\":3}"), 200);
    CHECK_INT(get("/api/v1/events?limit=1", "\"last\":1}"), 200);
    CHECK_INT(get("/api/v1/events?job=default", "NAMESPACE/NAME"), 400);
    CHECK_INT(get("/api/v1/events?since=x", NULL), 400);
    snprintf(
        request, sizeof request,
        "GET /api/v1/events?since=1 HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
        "Last-Event-ID: 2\r\n%s\r\n",
        OPERATOR);
    int fd = adlt_connect(port);
    adlt_send(fd, request, strlen(request));
    CHECK(adlt_read_until(fd, &got, "id: 3\nevent: JobPhase\ndata: {\"seq\":3,"));
    CHECK(!strstr(got.text, "id: 2\n") && strstr(got.text, "text/event-stream"));
    for (int i = 4; i < 40; i++) {
        char wanted[32];
        pthread_mutex_lock(&core.lock);
        core.events = i;
        pthread_mutex_unlock(&core.lock);
        ring();
        snprintf(wanted, sizeof wanted, "id: %d\n", i);
        REQUIRE(adlt_read_until(fd, &got, wanted));
    }
    close_api();
    CHECK(adlt_read_until(fd, &got, "\r\n0\r\n\r\n")); /* the server's end is a proper end */
    adlt_answer_free(&got);
    close(fd);
}

TEST(discovery)
{
    const char *own = "Authorization: Bearer token-a\r\n";
    char request[256];
    int fds[30];
    REQUIRE(open_api());
    CHECK_INT(adlt_code(replicas, "GET", "/discover/default/a/x", own, NULL, "whole number"), 400);
    CHECK_INT(adlt_code(port, "GET", "/discover/default/zz/0", OPERATOR, NULL, NULL), 404);
    snprintf(request, sizeof request,
             "GET /discover/default/a/0?replicas=2 HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n", own);
    for (int i = 0; i < 30; i++) {
        fds[i] = adlt_connect(replicas);
        adlt_send(fds[i], request, strlen(request));
    }
    CHECK_INT(adlt_code(replicas, "GET", "/healthz", "", NULL, NULL), 200);
    pthread_mutex_lock(&core.lock);
    core.ready = true;
    pthread_mutex_unlock(&core.lock);
    ring();
    for (int i = 0; i < 30; i++) {
        adlt_answer got = adlt_read_answer(fds[i], false);
        CHECK(got.code == 200 && strcmp(got.body, "[\"10.0.0.1\",\"10.0.0.2\"]") == 0);
        adlt_answer_free(&got);
        close(fds[i]);
    }
    snprintf(request, sizeof request,
             "GET /discover/default/a/1 HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n", own);
    int fd = adlt_connect(replicas);
    adlt_send(fd, request, strlen(request));
    CHECK_INT(adlt_code(replicas, "GET", "/healthz", "", NULL, NULL), 200);
    close_api(); /* those who wait are told to ask again */
    adlt_answer got = adlt_read_answer(fd, false);
    CHECK(got.code == 408 || got.code == 0);
    adlt_answer_free(&got);
    close(fd);
}

TEST(the_page)
{
    REQUIRE(open_api());
    CHECK_INT(adlt_code(port, "GET", "/", "", NULL, "Content-Security-Policy: default-src 'self'"),
              200);
    adlt_answer got = adlt_once(port, "GET", "/", "", NULL);
    const char *etag = strstr(got.text, "ETag: ");
    REQUIRE(etag);
    char header[128];
    snprintf(header, sizeof header, "If-None-Match: %.*s\r\n", (int)strcspn(etag + 6, "\r"),
             etag + 6);
    CHECK_INT(adlt_code(port, "GET", "/", header, NULL, NULL), 304);
    CHECK_INT(adlt_code(port, "GET", "/dashboard/nothing", "", NULL, NULL), 404);
    CHECK_INT(adlt_code(port, "GET", "/dashboard/../web.h", "", NULL, NULL), 400);
    CHECK_INT(adlt_code(port, "GET", "/healthz", "", NULL, "X-Content-Type-Options: nosniff"), 200);
    adlt_answer_free(&got);
    close_api();
}

TEST(what_cannot_start)
{
    adli_api *none = NULL;
    REQUIRE(open_api());
    char taken[32];
    snprintf(taken, sizeof taken, "127.0.0.1:%d", replicas);
    adli_api_options options = {.core = &core,
                                .listen = "127.0.0.1:0",
                                .upload_dir = core.dir,
                                .limits = ADLI_HTTPD_LIMITS};
    CHECK_FAILS(adli_api_new(&options, &none), ADL_EINVAL, "needs a token");
    options.listen = NULL;
    options.replica_listen = taken;
    CHECK_FAILS(adli_api_new(&options, &none), ADL_ESTATE, taken);
    options.replica_port_any = true;
    CHECK_OK(adli_api_new(&options, &none));
    CHECK(none && adli_api_replica_port(none) != replicas);
    adli_api_free(none);
    close_api();
}

enum { FLOOD = 600, FEW_FILES = 400 };

/* Another process, so that its descriptors are not the server's: holds FLOOD connections of many addresses, each with half
 * a request, and makes those anew that the server closes. Never blocks: nobody may accept them. */
static void flood(int at)
{
    int fds[FLOOD];
    memset(fds, -1, sizeof fds);
    for (unsigned n = 0;; n++) {
        struct sockaddr_in from = {.sin_family = AF_INET}, to = from;
        int *fd = &fds[n % FLOOD];
        char byte;
        if (n % FLOOD == 0)
            usleep(1000);
        if (*fd >= 0 && recv(*fd, &byte, 1, 0) < 0 && (errno == EAGAIN || errno == ENOTCONN))
            continue;
        if (*fd >= 0)
            close(*fd);
        from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + n % 100);
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        to.sin_port = htons((uint16_t)at);
        *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (bind(*fd, (struct sockaddr *)&from, sizeof from) == 0 &&
            (connect(*fd, (struct sockaddr *)&to, sizeof to) == 0 || errno == EINPROGRESS))
            send(*fd, "GET /healthz HT", 15, MSG_NOSIGNAL);
    }
}

/* The server has no more than FEW_FILES descriptors, the crowd at one door has more: those at the others are answered, and
 * what the daemon opens for jobs is opened. */
TEST(a_crowd_at_one_door_leaves_the_others_open)
{
    struct rlimit before, few;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    if (before.rlim_max < FLOOD + 100) {
        SKIP("may not open enough files");
        return;
    }
    few = before;
    few.rlim_cur = FEW_FILES;
    for (int which = 0; which < 2; which++) { /* TCP, replicas */
        int tell[2], heard = 0, more[60], made = 0;
        REQUIRE(pipe(tell) == 0);
        pid_t crowd = fork(); /* before there are threads */
        if (crowd == 0) {
            close(tell[1]);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            few.rlim_cur = FLOOD + 100;
            if (setrlimit(RLIMIT_NOFILE, &few) == 0 &&
                read(tell[0], &heard, sizeof heard) == sizeof heard)
                flood(heard);
            _exit(1);
        }
        REQUIRE(crowd > 0 && setrlimit(RLIMIT_NOFILE, &few) == 0);
        REQUIRE(open_api());
        heard = which == 0 ? port : replicas;
        CHECK(write(tell[1], &heard, sizeof heard) == sizeof heard);
        for (double accepted = 0; accepted < 2 * FLOOD && !adlt_failed;) {
            int fd = adlt_connect_unix(sock);
            adlt_answer got = adlt_exchange(fd, "GET", "/metrics", "", NULL, 0);
            const char *at =
                got.text ? strstr(got.text, "\nadaptdl_http_connections_accepted_total ") : NULL;
            CHECK(got.code == 200 && at);
            accepted = at ? strtod(strchr(at, ' '), NULL) : 0;
            adlt_answer_free(&got);
            close(fd);
        }
        static const char own[] = "Authorization: Bearer token-a\r\n";
        for (int i = 0; i < 20 && !adlt_failed; i++) {
            int fd = adlt_connect_unix(sock);
            adlt_answer got = adlt_exchange(fd, "GET", "/api/v1/jobs", "", NULL, 0);
            CHECK_INT(got.code, 200);
            adlt_answer_free(&got);
            close(fd);
            if (which == 0)
                CHECK_INT(adlt_code(replicas, "PUT", "/hints/default/a", own, "{}", NULL), 200);
            else
                CHECK_INT(adlt_code(port, "GET", "/api/v1/jobs", OPERATOR, NULL, NULL), 200);
        }
        for (; made < (int)ADLI_COUNT(more); made++)
            if ((more[made] = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0)
                break;
        CHECK_INT(made, (int)ADLI_COUNT(more));
        while (made > 0)
            close(more[--made]);
        kill(crowd, SIGKILL);
        waitpid(crowd, NULL, 0);
        close(tell[0]);
        close(tell[1]);
        close_api();
        REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
    }
}

/* Everything at once, with wake-ups all the time; what ThreadSanitizer is for. */
static atomic_bool stop;
static atomic_int served;

static void *crowd(void *user)
{
    const char *paths[] = {"/healthz",
                           "/api/v1/jobs",
                           "/api/v1/jobs/default/a/history",
                           "/metrics",
                           "/api/v1/jobs/default/a/logs?tail=1",
                           "/api/v1/events",
                           "/",
                           "/none"};
    (void)user;
    for (int i = 0; !atomic_load(&stop); i++)
        served += get(paths[i % 8], NULL) > 0;
    return NULL;
}

static void *deaf(void *user)
{
    char request[256];
    (void)user;
    snprintf(
        request, sizeof request,
        "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n%s\r\n",
        OPERATOR);
    while (!atomic_load(&stop)) {
        int fd = adlt_connect(port);
        adlt_send(fd, request, strlen(request));
        usleep(3000);
        close(fd);
    }
    return NULL;
}

TEST(everything_at_once)
{
    enum { LEAST = 50 };
    pthread_t threads[6];
    int before = adlt_open_files();
    REQUIRE(open_api());
    put_file("log-1-0", "one\n");
    atomic_store(&stop, false);
    atomic_store(&served, 0);
    for (int i = 0; i < 6; i++)
        pthread_create(&threads[i], NULL, i < 4 ? crowd : deaf, NULL);
    for (int i = 0; i < 300 || (served < LEAST && i < 60000);
         i++) { /* a busy machine takes longer */
        pthread_mutex_lock(&core.lock);
        core.events++;
        pthread_mutex_unlock(&core.lock);
        ring();
        usleep(5000);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    CHECK(served >= LEAST);
    printf("info - %d requests served among streams that come and go\n", served);
    close_api();
    CHECK_INT(adlt_open_files(), before);
}
