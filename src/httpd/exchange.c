/* The course of one exchange, as libmicrohttpd calls us: request line, headers (where most refusals
 * happen, before a body is read), body, handler, answer. */
#include "httpd/impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* A refused body this small is read and dropped, so that the connection can go on and the client sees the
 * answer; a larger one ends the connection. */
enum { DROP_MAX = 65536 };

enum MHD_Result adli_on_accept(void *user, const struct sockaddr *address, socklen_t length)
{
    door *d = user;
    (void)length;
    if (atomic_load(&d->httpd->ending))
        return MHD_NO;
    return adli_conn_admit(d, d->tcp ? adli_client_hash(address) : 0) ? MHD_YES : MHD_NO;
}

void adli_on_connection(void *user, struct MHD_Connection *mhd, void **context,
                        enum MHD_ConnectionNotificationCode what)
{
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        conn *c = NULL;
        *context = adli_conn_add(user, mhd, &c) == ADL_OK ? c : NULL;
    } else if (*context) {
        adli_conn_remove(*context);
        *context = NULL;
    }
}

conn *adli_conn_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

void *adli_on_uri(void *user, const char *uri, struct MHD_Connection *mhd)
{
    conn *c = adli_conn_of(mhd);
    (void)user;
    if (!c)
        return NULL;
    adli_request_reset(&c->request);
    c->request.uri = uri;
    c->request.uri_length = strlen(uri);
    adli_conn_state(c, CONN_HEADERS, 0);
    adl_status status = adli_target_parse(&c->request.target, uri);
    if (status != ADL_OK) {
        c->request.refusal_code = status == ADL_EINVAL ? 400 : 503;
        snprintf(c->request.refusal, sizeof c->request.refusal, "%s", adl_error());
    }
    return c;
}

void adli_on_completed(void *user, struct MHD_Connection *mhd, void **context,
                       enum MHD_RequestTerminationCode why)
{
    conn *c = adli_conn_of(mhd);
    (void)user, (void)context, (void)why;
    if (!c)
        return;
    adli_conn_state(c, CONN_IDLE, 0);
    adli_request_reset(&c->request);
}

static bool within_rate(adli_httpd_request *request)
{
    conn *c = request->conn;
    adli_httpd *httpd = c->door->httpd;
    double retry_s;
    char seconds[16];
    if (!c->door->limit || adli_limit_take(c->door->limit, c->client, request->arrived_s, &retry_s))
        return true;
    adli_httpd_answer_error(request, 429, "too many requests; try again later");
    snprintf(seconds, sizeof seconds, "%d", (int)ceil(retry_s));
    adli_httpd_set_header(request, "Retry-After", seconds);
    pthread_mutex_lock(&httpd->lock);
    httpd->counters.rate_limited++;
    pthread_mutex_unlock(&httpd->lock);
    return false;
}

/* Browsers: a page of another origin may not use us, nor one whose name was pointed at us. */
static bool is_from_here(adli_httpd_request *request)
{
    const door *d = request->conn->door;
    const char *host = adli_httpd_header(request, "Host");
    const char *origin = adli_httpd_header(request, "Origin");
    if (!d->tcp)
        return true;
    if (host && !adli_target_host_allowed(host, (const char *const *)d->hosts)) {
        adli_httpd_answer_error(request, 403, "host \"%.64s\" is not served here", host);
        return false;
    }
    if (origin && (!host || !adli_target_same_origin(origin, host))) {
        adli_httpd_answer_error(request, 403, "requests from pages of other origins are refused");
        return false;
    }
    return true;
}

/* The route, or 404, or 405 with what would be allowed. */
static bool find_route(adli_httpd_request *request)
{
    adli_httpd *httpd = request->conn->door->httpd;
    const char *parts[ADLI_TARGET_PARTS_MAX];
    char allow[64] = "";
    for (size_t i = 0; i < httpd->options.route_count; i++) {
        const adli_httpd_route *route = &httpd->options.routes[i];
        if (!(route->doors >> request->conn->door->options.id & 1) ||
            !adli_target_match(&request->target, route->path, parts))
            continue;
        if (strcmp(route->method, request->method) == 0) {
            request->route = route;
            memcpy(request->parts, parts, sizeof parts);
            return true;
        }
        size_t used = strlen(allow);
        snprintf(allow + used, sizeof allow - used, "%s%s%s", used ? ", " : "", route->method,
                 strcmp(route->method, "GET") == 0 ? ", HEAD" : "");
    }
    if (allow[0]) {
        adli_httpd_answer_error(request, 405, "%s: only %s", request->target.path, allow);
        adli_httpd_set_header(request, "Allow", allow);
    } else {
        adli_httpd_answer_error(request, 404, "%.200s: no such thing", request->target.path);
    }
    return false;
}

/* What two programs in a row may read differently, and so take for two requests or another one's. */
static bool is_framed_clearly(adli_httpd_request *request, const char *method, const char *version)
{
    adli_head head = {request->conn->mhd, method, request->uri, version, request->uri_length};
    const char *wrong = adli_head_wrong(&head);
    if (!wrong)
        return true;
    adli_httpd_answer_error(request, 400, "%s", wrong);
    adli_httpd_set_header(request, "Connection", "close");
    return false;
}

static void look_at_headers(adli_httpd_request *request)
{
    adli_httpd *httpd = request->conn->door->httpd;
    for (int i = 0; i < ADLI_TARGET_PARTS_MAX; i++)
        request->parts[i] = "";
    if (!within_rate(request))
        return;
    if (request->refusal_code) {
        adli_httpd_answer_error(request, request->refusal_code, "%s", request->refusal);
        return;
    }
    if (!is_from_here(request) || !find_route(request))
        return;
    const char *authorization = adli_httpd_header(request, "Authorization");
    if (authorization && !adli_target_credentials(authorization, request->token, TOKEN_MAX))
        request->token[0] = '\0';
    /* what a proxy that takes Authorization for itself lets through */
    const char *own = adli_httpd_header(request, "X-Adaptdl-Token");
    if (own && strlen(own) < TOKEN_MAX)
        strcpy(request->token, own);
    request->body_max = (int64_t)request->route->body_max;
    if (httpd->options.check)
        httpd->options.check(httpd->options.user, request, request->route);
}

/* Whether the exchange goes on; false: the answer was sent without waiting for the body. */
static bool expect_body(adli_httpd_request *request)
{
    const char *length = adli_httpd_header(request, "Content-Length");
    bool chunked = adli_httpd_header(request, "Transfer-Encoding") != NULL;
    unsigned long long declared = length ? strtoull(length, NULL, 10) : 0;
    int64_t max = request->body_max > 0 ? request->body_max : DROP_MAX;
    if (request->answer == ANSWER_NONE && declared > (unsigned long long)max)
        adli_httpd_answer_error(request, 413, "body: %llu bytes; at most %lld are accepted",
                                declared, (long long)max);
    if (request->answer == ANSWER_NONE && request->body_max > 0) {
        if (request->body_kind == BODY_MEMORY)
            adli_buf_init(&request->body, (size_t)request->body_max);
        return true;
    }
    if (request->body_kind == BODY_FILE)
        close(request->body_fd);
    request->body_fd = -1;
    request->body_kind = BODY_DROPPED;
    request->body_max = DROP_MAX;
    return request->answer == ANSWER_NONE || (!chunked && declared <= DROP_MAX);
}

static enum MHD_Result begin(adli_httpd_request *request, const char *method, const char *version)
{
    request->begun = true;
    request->arrived_s = adli_monotonic_s();
    request->method = strcmp(method, "HEAD") == 0 ? "GET" : method;
    adli_conn_state(request->conn, CONN_BODY, 0);
    if (!is_framed_clearly(request, method, version))
        return adli_request_send(request); /* where its body ends nobody knows */
    look_at_headers(request);
    return expect_body(request) ? MHD_YES : adli_request_send(request);
}

static bool write_all(int fd, const char *data, size_t length)
{
    while (length > 0) {
        ssize_t done = write(fd, data, length);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        data += done;
        length -= (size_t)done;
    }
    return true;
}

/* A body that grows past its limit cannot be answered before it ends; it is dropped for a while and then
 * cut off. */
static enum MHD_Result take_body(adli_httpd_request *request, const char *data, size_t length)
{
    request->body_seen += (int64_t)length;
    adli_conn_moved(request->conn, (int64_t)length);
    if (request->body_seen > request->body_max) {
        if (request->answer == ANSWER_NONE)
            adli_httpd_answer_error(request, 413, "body: more than %lld bytes",
                                    (long long)request->body_max);
        return request->body_seen <= request->body_max + DROP_MAX ? MHD_YES : MHD_NO;
    }
    if (request->answer != ANSWER_NONE || request->body_kind == BODY_DROPPED)
        return MHD_YES;
    if (request->body_kind == BODY_FILE) {
        if (!write_all(request->body_fd, data, length))
            adli_httpd_answer_error(request, 507, "the upload cannot be stored: %s",
                                    strerror(errno));
        return MHD_YES;
    }
    adli_buf_append(&request->body, data, length);
    if (request->body.status != ADL_OK)
        adli_httpd_answer_error(request, 503, "no memory for the body");
    return MHD_YES;
}

enum MHD_Result adli_on_access(void *user, struct MHD_Connection *mhd, const char *url,
                               const char *method, const char *version, const char *upload,
                               size_t *upload_size, void **context)
{
    conn *c = adli_conn_of(mhd);
    (void)user, (void)url, (void)context;
    if (!c || adli_conn_doomed(c))
        return MHD_NO;
    adli_httpd_request *request = &c->request;
    if (!request->begun)
        return begin(request, method, version);
    if (*upload_size > 0) {
        size_t length = *upload_size;
        *upload_size = 0;
        return take_body(request, upload, length);
    }
    if (request->answer == ANSWER_NONE)
        return adli_request_dispatch(request);
    return adli_request_send(request);
}
