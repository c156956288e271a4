/* Requests that are one call of the core: jobs, nodes, decisions, the cluster. */
#include "daemon/api_impl.h"

#include "base/clock.h"
#include "base/json_write.h"
#include "sched/lifecycle.h"

#include <math.h>
#include <string.h>
#include <strings.h>

static adli_buf answer_buf(void)
{
    adli_buf out;
    adli_buf_init(&out, API_ANSWER_MAX);
    return out;
}

/* "type/x" with or without parameters. */
static bool is_type(const char *given, const char *type)
{
    size_t length = strlen(type);
    return strncasecmp(given, type, length) == 0 && strchr("; ", given[length]);
}

bool adli_api_job_type(const adli_httpd_request *request, bool *yaml, bool *archive)
{
    const char *type = adli_httpd_header(request, "Content-Type");
    if (!type)
        return false;
    *archive = is_type(type, "application/x-tar");
    *yaml = is_type(type, "application/yaml") || is_type(type, "application/x-yaml") ||
            is_type(type, "text/yaml");
    return *archive || *yaml || is_type(type, "application/json");
}

adli_httpd_verdict adli_api_submit(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    bool dry, yaml = false, archive = false, known = false;
    size_t length;
    const char *body = adli_httpd_body(request, &length);
    if (!adli_api_query_bool(request, "dryRun", &dry))
        return ADLI_HTTPD_DONE;
    adli_api_job_type(request, &yaml, &archive);
    adli_buf out = answer_buf();
    adl_status status =
        archive
            ? adli_core_submit_archive(api->core, adli_httpd_body_file(request), dry, &known, &out)
            : adli_core_submit(api->core, body, length, yaml, dry, &known, &out);
    adli_api_answer(request, status, dry || known ? 200 : 201, &out);
    return ADLI_HTTPD_DONE;
}

adli_httpd_verdict adli_api_job(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    adli_buf out = answer_buf();
    adl_status status =
        adli_core_job(api->core, adli_httpd_part(request, 0), adli_httpd_part(request, 1), &out);
    adli_api_answer(request, status, 200, &out);
    return ADLI_HTTPD_DONE;
}

adli_httpd_verdict adli_api_delete(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    adli_buf out = answer_buf();
    adl_status status =
        adli_core_delete(api->core, adli_httpd_part(request, 0), adli_httpd_part(request, 1), &out);
    adli_api_answer(request, status, 202, &out);
    return ADLI_HTTPD_DONE;
}

static adli_httpd_verdict ask(adli_api *api, adli_httpd_request *request, adli_asked asked)
{
    adli_buf out = answer_buf();
    adl_status status = adli_core_ask(api->core, adli_httpd_part(request, 0),
                                      adli_httpd_part(request, 1), asked, &out);
    adli_api_answer(request, status, 202, &out);
    return ADLI_HTTPD_DONE;
}

adli_httpd_verdict adli_api_cancel(void *user, adli_httpd_request *request)
{
    return ask(user, request, ADLI_ASKED_CANCEL);
}

adli_httpd_verdict adli_api_suspend(void *user, adli_httpd_request *request)
{
    return ask(user, request, ADLI_ASKED_SUSPEND);
}

adli_httpd_verdict adli_api_resume(void *user, adli_httpd_request *request)
{
    return ask(user, request, ADLI_ASKED_NOTHING);
}

adli_httpd_verdict adli_api_scale(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    bool automatic;
    int64_t replicas;
    if (!adli_api_query_bool(request, "auto", &automatic) ||
        !adli_api_query_int(request, "replicas", 1, ADLI_MEMBERS_MAX, 0, &replicas))
        return ADLI_HTTPD_DONE;
    if (automatic == (replicas > 0)) {
        adli_httpd_answer_error(request, 400, "expected replicas=N, or auto=1");
        return ADLI_HTTPD_DONE;
    }
    adli_buf out = answer_buf();
    adl_status status = adli_core_pin(api->core, adli_httpd_part(request, 0),
                                      adli_httpd_part(request, 1), (int)replicas, &out);
    adli_api_answer(request, status, 202, &out);
    return ADLI_HTTPD_DONE;
}

adli_httpd_verdict adli_api_rerun(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    adli_buf out = answer_buf();
    adl_status status =
        adli_core_rerun(api->core, adli_httpd_part(request, 0), adli_httpd_part(request, 1), &out);
    adli_api_answer(request, status, 201, &out);
    return ADLI_HTTPD_DONE;
}

adli_httpd_verdict adli_api_history(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    adli_buf out = answer_buf();
    adl_status status = adli_core_history(api->core, adli_httpd_part(request, 0),
                                          adli_httpd_part(request, 1), &out);
    adli_api_answer(request, status, 200, &out);
    return ADLI_HTTPD_DONE;
}

adli_httpd_verdict adli_api_curves(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    int64_t points;
    if (!adli_api_query_int(request, "points", 2, 10000, 1000, &points))
        return ADLI_HTTPD_DONE;
    adli_buf out = answer_buf();
    adl_status status = adli_core_curves(api->core, adli_httpd_part(request, 0),
                                         adli_httpd_part(request, 1), (int)points, &out);
    adli_api_answer(request, status, 200, &out);
    return ADLI_HTTPD_DONE;
}

static adli_httpd_verdict decisions(adli_api *api, adli_httpd_request *request, const char *ns,
                                    const char *name)
{
    int64_t limit;
    if (!adli_api_query_int(request, "limit", 1, 10000, 100, &limit))
        return ADLI_HTTPD_DONE;
    adli_buf out = answer_buf();
    adl_status status = adli_core_decisions(api->core, ns, name, (int)limit, &out);
    adli_api_answer(request, status, 200, &out);
    return ADLI_HTTPD_DONE;
}

adli_httpd_verdict adli_api_job_decisions(void *user, adli_httpd_request *request)
{
    return decisions(user, request, adli_httpd_part(request, 0), adli_httpd_part(request, 1));
}

adli_httpd_verdict adli_api_decisions(void *user, adli_httpd_request *request)
{
    return decisions(user, request, NULL, NULL);
}

adli_httpd_verdict adli_api_snapshot(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    adli_buf out = answer_buf();
    adl_status status = adli_core_snapshot(api->core, &out);
    adli_api_answer(request, status, 200, &out);
    return ADLI_HTTPD_DONE;
}

adli_httpd_verdict adli_api_nodes(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    adli_buf out = answer_buf();
    adl_status status = adli_core_nodes(api->core, &out);
    adli_api_answer(request, status, 200, &out);
    return ADLI_HTTPD_DONE;
}

static adli_httpd_verdict drain(adli_api *api, adli_httpd_request *request, bool on)
{
    adli_buf out = answer_buf();
    adl_status status = adli_core_drain(api->core, adli_httpd_part(request, 0), on, &out);
    adli_api_answer(request, status, 200, &out);
    return ADLI_HTTPD_DONE;
}

adli_httpd_verdict adli_api_drain(void *user, adli_httpd_request *request)
{
    return drain(user, request, true);
}

adli_httpd_verdict adli_api_undrain(void *user, adli_httpd_request *request)
{
    return drain(user, request, false);
}

static adli_httpd_verdict drain_all(adli_api *api, adli_httpd_request *request, bool on)
{
    adli_buf out = answer_buf();
    adl_status status = adli_core_drain_all(api->core, on, &out);
    adli_api_answer(request, status, 200, &out);
    return ADLI_HTTPD_DONE;
}

adli_httpd_verdict adli_api_drain_all(void *user, adli_httpd_request *request)
{
    return drain_all(user, request, true);
}

adli_httpd_verdict adli_api_undrain_all(void *user, adli_httpd_request *request)
{
    return drain_all(user, request, false);
}

adli_httpd_verdict adli_api_cluster(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    adli_buf out = answer_buf();
    adl_status status = adli_core_cluster(api->core, &out);
    adli_api_answer(request, status, 200, &out);
    return ADLI_HTTPD_DONE;
}

adli_httpd_verdict adli_api_metrics(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    adli_buf out = answer_buf();
    adl_status status = adli_core_metrics(api->core, &out);
    adli_httpd_metrics(api->httpd, &out);
    if (status == ADL_OK)
        status = adli_buf_check(&out);
    if (status == ADL_OK)
        adli_httpd_answer_take(request, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
    else
        adli_api_answer_failure(request, status);
    adli_buf_fini(&out);
    return ADLI_HTTPD_DONE;
}

static adli_httpd_verdict answer_health(const adli_api *api, adli_httpd_request *request)
{
    adli_buf out = answer_buf();
    adli_jw_open(&out, NULL, '{');
    adli_jw_text(&out, "status", "ok");
    adli_jw_text(&out, "version", adl_version());
    adli_jw_number(&out, "uptimeSeconds", round((adli_monotonic_s() - api->started_s) * 1e3) / 1e3);
    adli_jw_close(&out, '}');
    adli_buf_puts(&out, "\n");
    adli_api_answer(request, ADL_OK, 200, &out);
    return ADLI_HTTPD_DONE;
}

adli_httpd_verdict adli_api_healthz(void *user, adli_httpd_request *request)
{
    return answer_health(user, request);
}

/* Whoever asks here sends others' requests on, or does not. */
adli_httpd_verdict adli_api_readyz(void *user, adli_httpd_request *request)
{
    const adli_api *api = user;
    if (atomic_load(&api->ready))
        return answer_health(api, request);
    adli_httpd_answer_error(request, 503, "the scheduler does not serve yet, or stops");
    return ADLI_HTTPD_DONE;
}
