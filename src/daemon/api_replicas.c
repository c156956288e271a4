/* What replicas ask and tell, in the form that the training side has always spoken: discover until the
 * group is complete, hints and metrics now and then. */
#include "daemon/api_impl.h"

#include "base/clock.h"

#include <stdlib.h>

static const double DISCOVER_S = 30;

adli_httpd_verdict adli_api_discover(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    const char *ns = adli_httpd_part(request, 0), *name = adli_httpd_part(request, 1);
    char *end;
    const char *text = adli_httpd_part(request, 2);
    long restarts = strtol(text, &end, 10);
    double until_s = adli_httpd_arrived_s(request) + DISCOVER_S;
    if (*end || restarts < 0 || restarts > 1000000000) {
        adli_httpd_answer_error(request, 400, "group \"%.40s\": expected a whole number", text);
        return ADLI_HTTPD_DONE;
    }
    adli_buf out;
    adli_buf_init(&out, API_ANSWER_MAX);
    adl_status status = adli_core_discover(api->core, ns, name, (int)restarts, &out);
    if (status == ADL_ETIMEOUT && !adli_httpd_ending(request) && adli_monotonic_s() < until_s) {
        adli_buf_fini(&out);
        adli_httpd_wait_until(request, until_s);
        return ADLI_HTTPD_WAIT;
    }
    if (status == ADL_ETIMEOUT) {
        adli_httpd_answer_error(request, 408, "group %ld of job %.100s/%.100s is not complete yet",
                                restarts, ns, name);
        adli_buf_fini(&out);
    } else {
        adli_api_answer(request, status, 200, &out);
    }
    return ADLI_HTTPD_DONE;
}

adli_httpd_verdict adli_api_world(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    int64_t restarts;
    adli_world_asked asked = {.scheduler = adli_httpd_query(request, "scheduler")};
    if (!adli_api_query_int(request, "after", -1, UINT32_MAX, -1, &asked.after) ||
        !adli_api_query_int(request, "dropped", -1, UINT32_MAX, UINT32_MAX, &asked.dropped) ||
        !adli_api_query_int(request, "restarts", 0, 1000000000, -1, &restarts))
        return ADLI_HTTPD_DONE;
    asked.restarts = (int)restarts;
    double until_s = adli_httpd_arrived_s(request) + DISCOVER_S;
    adli_buf out;
    adli_buf_init(&out, API_ANSWER_MAX);
    adl_status status = adli_core_world(api->core, adli_httpd_part(request, 0),
                                        adli_httpd_part(request, 1), &asked, &out);
    if (status == ADL_ETIMEOUT && !adli_httpd_ending(request) && adli_monotonic_s() < until_s) {
        adli_buf_fini(&out);
        adli_httpd_wait_until(request, until_s);
        return ADLI_HTTPD_WAIT;
    }
    adli_api_answer(request, status, 200, &out);
    return ADLI_HTTPD_DONE;
}

/* What a replica tells goes to one function of the core, which takes it or says why not. */
static adli_httpd_verdict take(adli_httpd_request *request, adli_core *core,
                               adl_status (*to)(adli_core *core, const char *ns, const char *name,
                                                const char *body, size_t length))
{
    static const char answer[] = "{\"status\":\"ok\"}\n";
    size_t length;
    const char *body = adli_httpd_body(request, &length);
    adl_status status =
        to(core, adli_httpd_part(request, 0), adli_httpd_part(request, 1), body, length);
    if (status == ADL_OK)
        adli_httpd_answer_static(request, 200, "application/json", answer, sizeof answer - 1);
    else
        adli_api_answer_failure(request, status);
    return ADLI_HTTPD_DONE;
}

adli_httpd_verdict adli_api_hints(void *user, adli_httpd_request *request)
{
    return take(request, ((adli_api *)user)->core, adli_core_hints);
}

adli_httpd_verdict adli_api_say(void *user, adli_httpd_request *request)
{
    return take(request, ((adli_api *)user)->core, adli_core_say);
}

adli_httpd_verdict adli_api_reports(void *user, adli_httpd_request *request)
{
    return take(request, ((adli_api *)user)->core, adli_core_reports);
}
