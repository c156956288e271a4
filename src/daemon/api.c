/* The API's doors, its table of routes, and who may use them. */
#include "daemon/api_impl.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <xxhash.h>

enum { JOB_BODY_MAX = 1 << 20, HINTS_BODY_MAX = 4 << 20, WORLD_BODY_MAX = 64 << 10 };

#define JOB "/api/v1/jobs/{}/{}"

/* Whose work waits for whose: each has workers of its own. */
enum { ASK = 1, REPORT, UPLOAD };

static const adli_httpd_route ROUTES[] = {
    {"GET", "/healthz", EVERYONE, ACCESS_OPEN, 0, 0, adli_api_healthz},
    {"GET", "/readyz", EVERYONE, ACCESS_OPEN, 0, 0, adli_api_readyz},
    {"GET", "/discover/{}/{}/{}", EVERYONE, ACCESS_JOB, 0, 0, adli_api_discover},
    {"PUT", "/hints/{}/{}", EVERYONE, ACCESS_JOB, HINTS_BODY_MAX, REPORT, adli_api_hints},
    {"GET", "/world/{}/{}", EVERYONE, ACCESS_JOB, 0, 0, adli_api_world},
    {"PUT", "/world/{}/{}", EVERYONE, ACCESS_JOB, WORLD_BODY_MAX, 0, adli_api_say},
    {"PUT", "/reports/{}/{}", EVERYONE, ACCESS_JOB, HINTS_BODY_MAX, REPORT, adli_api_reports},
    {"GET", "/metrics", OPERATORS, ACCESS_OPERATOR, 0, 0, adli_api_metrics},
    {"GET", "/api/v1/cluster", OPERATORS, ACCESS_OPERATOR, 0, 0, adli_api_cluster},
    {"POST", "/api/v1/cluster/drain", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_drain_all},
    {"POST", "/api/v1/cluster/undrain", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_undrain_all},
    {"GET", "/api/v1/jobs", OPERATORS, ACCESS_OPERATOR, 0, 0, adli_api_list_jobs},
    {"DELETE", "/api/v1/jobs", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_delete_jobs},
    {"POST", "/api/v1/jobs", OPERATORS, ACCESS_OPERATOR, JOB_BODY_MAX, UPLOAD, adli_api_submit},
    {"GET", JOB, OPERATORS, ACCESS_OPERATOR, 0, 0, adli_api_job},
    {"DELETE", JOB, OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_delete},
    {"POST", JOB "/cancel", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_cancel},
    {"POST", JOB "/suspend", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_suspend},
    {"POST", JOB "/resume", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_resume},
    {"POST", JOB "/scale", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_scale},
    {"POST", JOB "/rerun", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_rerun},
    {"GET", JOB "/logs", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_logs},
    {"GET", JOB "/history", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_history},
    {"GET", JOB "/metrics", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_curves},
    {"GET", JOB "/decisions", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_job_decisions},
    {"GET", JOB "/files", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_files},
    {"GET", "/api/v1/decisions", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_decisions},
    {"GET", "/api/v1/snapshot", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_snapshot},
    {"GET", "/api/v1/nodes", OPERATORS, ACCESS_OPERATOR, 0, 0, adli_api_nodes},
    {"POST", "/api/v1/nodes/{}/drain", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_drain},
    {"POST", "/api/v1/nodes/{}/undrain", OPERATORS, ACCESS_OPERATOR, 0, ASK, adli_api_undrain},
    {"GET", "/api/v1/events", OPERATORS, ACCESS_OPERATOR, 0, 0, adli_api_events},
    {"GET", "/", OPERATORS, ACCESS_OPEN, 0, 0, adli_api_page},
    {"GET", "/dashboard/*", OPERATORS, ACCESS_OPEN, 0, 0, adli_api_asset},
};

/* Data is for programs: a browser that shows it runs nothing of it. */
static const char *const HEADERS[] = {"Cache-Control",
                                      "no-store",
                                      "Content-Security-Policy",
                                      "default-src 'none'; frame-ancestors 'none'; sandbox",
                                      "X-Content-Type-Options",
                                      "nosniff",
                                      "Referrer-Policy",
                                      "no-referrer",
                                      NULL};

void adli_api_answer_failure(adli_httpd_request *request, adl_status status)
{
    int code = status == ADL_EINVAL                          ? 400
               : status == ADL_ENOENT                        ? 404
               : status == ADL_ESTATE                        ? 409
               : status == ADL_ETIMEOUT                      ? 408
               : status == ADL_ENOMEM || status == ADL_EINTR ? 503
                                                             : 500;
    adli_httpd_answer_error(request, code, "%s", adl_error());
}

void adli_api_answer(adli_httpd_request *request, adl_status status, int code, adli_buf *out)
{
    if (status == ADL_OK)
        status = adli_buf_check(out);
    if (status == ADL_OK)
        adli_httpd_answer_take(request, code, "application/json", out);
    else
        adli_api_answer_failure(request, status);
    adli_buf_fini(out);
}

bool adli_api_query_int(adli_httpd_request *request, const char *name, int64_t low, int64_t high,
                        int64_t absent, int64_t *out)
{
    const char *text = adli_httpd_query(request, name);
    char *end;
    *out = absent;
    if (!text || !*text)
        return true;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno == 0 && *end == '\0' && value >= low && value <= high) {
        *out = value;
        return true;
    }
    adli_httpd_answer_error(request, 400, "%s=%.40s: expected a whole number from %lld to %lld",
                            name, text, (long long)low, (long long)high);
    return false;
}

bool adli_api_query_bool(adli_httpd_request *request, const char *name, bool *out)
{
    const char *text = adli_httpd_query(request, name);
    *out = text && (!*text || !strcmp(text, "1") || !strcmp(text, "true"));
    if (!text || *out || !strcmp(text, "0") || !strcmp(text, "false"))
        return true;
    adli_httpd_answer_error(request, 400, "%s=%.40s: expected 1, true, 0 or false", name, text);
    return false;
}

static uint64_t hash_job(const char *ns, const char *name)
{
    return XXH3_64bits_withSeed(name, strlen(name), XXH3_64bits(ns, strlen(ns)));
}

static bool is_operator(const adli_api *api, const char *token)
{
    return token && api->token && adli_httpd_secret_equal(token, api->token);
}

/* Nobody has to show a token there, but one that is shown must be right. */
static bool needs_token(const adli_api *api, adli_httpd_request *request)
{
    return adli_httpd_token(request) || !api->open_to_replicas ||
           adli_httpd_door(request) != DOOR_REPLICAS;
}

/* A job's token opens that job's own paths, and nobody else's; its requests are counted. */
static void check_job(adli_api *api, adli_httpd_request *request)
{
    const char *token = adli_httpd_token(request);
    const char *ns = adli_httpd_part(request, 0), *name = adli_httpd_part(request, 1);
    double retry_s;
    if (is_operator(api, token)) {
        adli_httpd_set_known(request);
        return;
    }
    if (needs_token(api, request) && !adli_core_token_valid(api->core, ns, name, token))
        adli_httpd_answer_error(request, 403, "the token is not that of job %.100s/%.100s", ns,
                                name);
    else if (!adli_limit_take(api->job_limit, hash_job(ns, name), adli_httpd_arrived_s(request),
                              &retry_s)) {
        adli_httpd_answer_error(request, 429, "too many requests of job %.100s/%.100s", ns, name);
        adli_httpd_set_header(request, "Retry-After", "1");
    } else {
        adli_httpd_set_known(request);
    }
}

static void check(void *user, adli_httpd_request *request, const adli_httpd_route *route)
{
    adli_api *api = user;
    const char *token = adli_httpd_token(request);
    bool yaml, archive;
    if (route->access != ACCESS_OPEN && !adli_httpd_local(request)) {
        bool open = route->access == ACCESS_JOB && !needs_token(api, request);
        if (!open && (!token || (route->access == ACCESS_OPERATOR && !is_operator(api, token)))) {
            adli_httpd_answer_error(request, 401, token ? "wrong token" : "a token is needed");
            adli_httpd_set_header(request, "WWW-Authenticate", "Bearer realm=\"adaptdl\"");
            return;
        }
        if (route->access == ACCESS_JOB)
            check_job(api, request);
        else
            adli_httpd_set_known(request);
    }
    if (api->read_only && route->access == ACCESS_OPERATOR && strcmp(route->method, "GET") != 0) {
        adli_httpd_answer_error(request, 409,
                                "on Kubernetes jobs and nodes are changed with kubectl");
        return;
    }
    if (route->handle != adli_api_submit)
        return;
    if (!adli_api_job_type(request, &yaml, &archive))
        adli_httpd_answer_error(request, 415,
                                "Content-Type: expected application/json, application/yaml or "
                                "application/x-tar");
    else if (adli_core_check_room(api->core) != ADL_OK)
        adli_httpd_answer_error(request, 507, "%s", adl_error());
    else if (archive)
        adli_httpd_body_to_file(request, api->upload_dir, api->upload_bytes_max);
    else
        adli_httpd_body_max(request, api->body_bytes_max);
}

/* As many connections as descriptors allow: the three doors together take no more than is left when the
 * rest of the daemon has its share. Each has a part of its own, so that a crowd at one door leaves the
 * others open. */
static adli_httpd_limits bounded(adli_httpd_limits limits)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY)
        return limits;
    rlim_t others = files.rlim_cur > 512 ? 256 : files.rlim_cur / 2;
    rlim_t most = (files.rlim_cur - others) / DOORS;
    if ((rlim_t)limits.connections > most)
        limits.connections = most > 4 ? (int)most : 4;
    return limits;
}

static adl_status open_replicas(adli_api *api, const adli_api_options *options)
{
    const adli_httpd_limits defaults = ADLI_HTTPD_LIMITS;
    adli_httpd_listener listener = {.id = DOOR_REPLICAS,
                                    .address = options->replica_listen,
                                    .hosts = options->replica_hosts,
                                    .limits = bounded(defaults)};
    /* All replicas of this machine come from one address; what one job may ask is limited apart. */
    listener.limits.connections_per_ip = 0;
    listener.limits.requests_per_s = 5000;
    listener.limits.burst = 10000;
    adl_status status = adli_httpd_listen(api->httpd, &listener, &api->replica_port);
    const char *colon = strrchr(options->replica_listen, ':');
    char any[300];
    if (status != ADL_ESTATE || !options->replica_port_any || !colon ||
        snprintf(any, sizeof any, "%.*s:0", (int)(colon - options->replica_listen),
                 options->replica_listen) >= (int)sizeof any)
        return status;
    listener.address = any;
    return adli_httpd_listen(api->httpd, &listener, &api->replica_port);
}

static adl_status open_doors(adli_api *api, const adli_api_options *options)
{
    static const char *const any_host[] = {"*", NULL};
    adl_status status = ADL_OK;
    if (options->socket_path) {
        adli_httpd_listener listener = {.id = DOOR_SOCKET,
                                        .socket_path = options->socket_path,
                                        .limits = bounded(options->limits)};
        status = adli_httpd_listen(api->httpd, &listener, NULL);
    }
    if (status == ADL_OK && options->listen) {
        adli_httpd_listener listener = {.id = DOOR_TCP,
                                        .address = options->listen,
                                        .tls_cert = options->tls_cert,
                                        .tls_key = options->tls_key,
                                        .hosts = options->any_host ? any_host : options->hosts,
                                        .limits = bounded(options->limits)};
        status = adli_httpd_listen(api->httpd, &listener, &api->port);
    }
    if (status == ADL_OK && options->replica_listen)
        status = open_replicas(api, options);
    return status;
}

static void wake(void *user)
{
    adli_api *api = user;
    adli_httpd_wake(api->httpd);
}

static adl_status prepare(adli_api *api, const adli_api_options *options)
{
    if (options->listen && (!options->token || !*options->token))
        return adli_fail(ADL_EINVAL, "listening on %s needs a token", options->listen);
    if (!options->upload_dir)
        return adli_fail(ADL_EINVAL, "no directory for uploads");
    api->core = options->core;
    api->read_only = options->read_only;
    api->open_to_replicas = options->open_to_replicas;
    api->started_s = adli_monotonic_s();
    api->body_bytes_max = options->body_bytes_max > 0 ? options->body_bytes_max : JOB_BODY_MAX;
    api->upload_bytes_max =
        options->upload_bytes_max > 0 ? options->upload_bytes_max : (int64_t)1 << 30;
    api->upload_dir = adli_strdup(options->upload_dir);
    api->token = options->token ? adli_strdup(options->token) : NULL;
    if (!api->upload_dir || (options->token && !api->token))
        return adli_fail_memory("API");
    /* A start asks once per replica and may have to ask again; hints come twice a minute. */
    return adli_limit_new(200, 2000, &api->job_limit);
}

adl_status adli_api_new(const adli_api_options *options, adli_api **out)
{
    *out = NULL;
    adli_api *api = adli_calloc(1, sizeof *api);
    if (!api)
        return adli_fail_memory("API");
    adli_httpd_options server = {.routes = ROUTES,
                                 .route_count = ADLI_COUNT(ROUTES),
                                 .check = check,
                                 .user = api,
                                 .workers = 4,
                                 .extra = HEADERS};
    adl_status status = prepare(api, options);
    if (status == ADL_OK)
        status = adli_httpd_new(&server, &api->httpd);
    if (status == ADL_OK)
        adli_core_listen(api->core, wake, api);
    if (status == ADL_OK)
        status = open_doors(api, options);
    if (status == ADL_OK)
        *out = api;
    else
        adli_api_free(api);
    return status;
}

void adli_api_set_ready(adli_api *api, bool ready)
{
    atomic_store(&api->ready, ready);
}

int adli_api_port(const adli_api *api)
{
    return api->port;
}

int adli_api_replica_port(const adli_api *api)
{
    return api->replica_port;
}

void adli_api_free(adli_api *api)
{
    if (!api)
        return;
    if (api->httpd)
        adli_core_listen(api->core, NULL, NULL);
    adli_httpd_free(api->httpd);
    adli_limit_free(api->job_limit);
    if (api->token)
        explicit_bzero(api->token, strlen(api->token));
    free(api->token);
    free(api->upload_dir);
    free(api);
}
