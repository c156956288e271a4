/* A site for tests of the HTTP server layer: one of each kind of handler, and a server with given limits. */
#ifndef ADLT_HTTPD_SITE_H
#define ADLT_HTTPD_SITE_H

#include "http_client.h"

#include "httpd/httpd.h"

#include <stdatomic.h>
#include <sys/stat.h>

typedef struct site {
    adli_httpd *httpd;
    int port;
    atomic_bool go;     /* what the polls wait for */
    atomic_int streams; /* open */
    atomic_int in_work;
} site;

static inline adli_httpd_verdict hello(void *user, adli_httpd_request *request)
{
    (void)user;
    adli_httpd_answer(request, 200, "text/plain", "hello", 5);
    return ADLI_HTTPD_DONE;
}

static inline adli_httpd_verdict parts(void *user, adli_httpd_request *request)
{
    char text[512];
    const char *q = adli_httpd_query(request, "q");
    (void)user;
    int n = snprintf(text, sizeof text, "[%s][%s][%s]", adli_httpd_part(request, 0),
                     adli_httpd_part(request, 1), q ? q : "-");
    adli_httpd_answer(request, 200, "text/plain", text, (size_t)n);
    return ADLI_HTTPD_DONE;
}

static inline adli_httpd_verdict echo(void *user, adli_httpd_request *request)
{
    size_t length;
    const char *body = adli_httpd_body(request, &length);
    (void)user;
    adli_httpd_answer(request, 200, "text/plain", body, length);
    return ADLI_HTTPD_DONE;
}

static inline adli_httpd_verdict work(void *user, adli_httpd_request *request)
{
    site *s = user;
    int most = atomic_fetch_add(&s->in_work, 1) + 1;
    usleep(2000);
    atomic_fetch_sub(&s->in_work, 1);
    adli_httpd_answer_error(request, most <= 2 ? 409 : 500, "worked");
    return ADLI_HTTPD_DONE;
}

static inline adli_httpd_verdict upload(void *user, adli_httpd_request *request)
{
    struct stat info = {0};
    char text[64];
    (void)user;
    int bad = stat(adli_httpd_body_file(request), &info);
    int n = snprintf(text, sizeof text, "%d %lld", bad, (long long)info.st_size);
    adli_httpd_answer(request, 201, "text/plain", text, (size_t)n);
    return ADLI_HTTPD_DONE;
}

static inline adli_httpd_verdict poll_go(void *user, adli_httpd_request *request)
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

static inline adli_httpd_flow fill(void *self, adli_buf *out, double now_s, double *again_s)
{
    site *s = self;
    *again_s = now_s + 0.05;
    if (!atomic_load(&s->go))
        return ADLI_FLOW_WAIT;
    adli_buf_puts(out, "piece ");
    return ADLI_FLOW_DATA;
}

static inline void end_stream(void *self)
{
    site *s = self;
    atomic_fetch_sub(&s->streams, 1);
}

static inline adli_httpd_verdict stream(void *user, adli_httpd_request *request)
{
    site *s = user;
    atomic_fetch_add(&s->streams, 1);
    adli_httpd_stream it = {.self = s, .fill = fill, .free = end_stream, .live = true};
    adli_httpd_answer_stream(request, "text/plain", &it);
    return ADLI_HTTPD_DONE;
}

static inline void check(void *user, adli_httpd_request *request, const adli_httpd_route *route)
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
static inline bool start(site *s, const adli_httpd_limits *limits)
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

static inline adli_httpd_limits no_rate(void)
{
    adli_httpd_limits limits = LIMITS;
    limits.requests_per_s = 0;
    limits.connections_per_ip = 0;
    return limits;
}

static inline long metric(site *s, const char *name)
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
static inline bool await_metric(site *s, const char *name, long wanted)
{
    for (int i = 0; i < 3000; i++, usleep(10000)) {
        long value = metric(s, name);
        if (wanted < 0 ? value >= -wanted : value <= wanted)
            return true;
    }
    printf("# %s is %ld\n", name, metric(s, name));
    return false;
}

#endif
