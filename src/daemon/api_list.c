/* GET and DELETE of /api/v1/jobs: filters, pages, fields, and answers that are not sent twice. */
#include "daemon/api_impl.h"

#include "adaptdl/life.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum { LIMIT_MAX = 10000, FIELDS_TEXT_MAX = 1024 };

static const char *given(const adli_httpd_request *request, const char *name)
{
    const char *value = adli_httpd_query(request, name);
    return value && *value ? value : NULL;
}

/* "Running,Pending"; false: answered. */
static bool read_phases(adli_httpd_request *request, unsigned *out)
{
    *out = 0;
    for (const char *p = given(request, "phase"); p && *p;) {
        size_t length = strcspn(p, ",");
        unsigned bit = 0;
        for (int phase = ADL_PENDING; phase <= ADL_FAILED; phase++) {
            const char *name = adl_phase_name((adl_phase)phase);
            bit |= strlen(name) == length && memcmp(name, p, length) == 0 ? 1u << phase : 0;
        }
        if (!bit) {
            adli_httpd_answer_error(request, 400, "phase=%.*s: there is no such phase",
                                    length < 40 ? (int)length : 40, p);
            return false;
        }
        *out |= bit;
        p += length + (p[length] == ',');
    }
    return true;
}

static bool read_filter(adli_httpd_request *request, adli_list_query *out)
{
    out->ns = given(request, "namespace");
    out->label = given(request, "label");
    return read_phases(request, &out->phases);
}

static bool read_query(adli_api *api, adli_httpd_request *request, adli_list_query *out)
{
    int64_t limit;
    const char *token = given(request, "continue");
    if (!read_filter(request, out) ||
        !adli_api_query_int(request, "limit", 1, LIMIT_MAX, 0, &limit))
        return false;
    out->limit = (int)limit;
    out->fields = given(request, "fields");
    if (out->fields && strlen(out->fields) > FIELDS_TEXT_MAX) {
        adli_httpd_answer_error(request, 400, "fields: more than %d bytes", FIELDS_TEXT_MAX);
        return false;
    }
    adl_status status = token ? adli_list_continue(api->core, token, &out->after) : ADL_OK;
    if (status == ADL_ESTATE)
        adli_httpd_answer_error(request, 410, "%s", adl_error());
    else if (status != ADL_OK)
        adli_api_answer_failure(request, status);
    return status == ADL_OK;
}

/* The tag is of what was written, so that it is right whatever changes. */
static void answer_unless_known(adli_httpd_request *request, adli_shared *text)
{
    char tag[32];
    const char *known = adli_httpd_header(request, "If-None-Match");
    snprintf(tag, sizeof tag, "W/\"%016" PRIx64 "\"", text->print);
    if (known && strstr(known, tag + 2))
        adli_httpd_answer_static(request, 304, NULL, "", 0);
    else
        adli_httpd_answer_shared(request, 200, "application/json", text);
    adli_httpd_set_header(request, "ETag", tag);
    adli_httpd_set_header(request, "Cache-Control", "private, no-cache");
}

static bool is_all(const adli_list_query *query)
{
    return !query->ns && !query->phases && !query->label && !query->fields && !query->limit &&
           !query->after;
}

static adl_status write_some(adli_core *core, const adli_list_query *query, adli_shared **text)
{
    adli_buf out;
    adli_buf_init(&out, API_ANSWER_MAX);
    adl_status status = adli_core_jobs(core, query, &out);
    if (status == ADL_OK)
        *text = adli_shared_take(&out);
    adli_buf_fini(&out);
    if (!*text)
        return status == ADL_OK ? adli_fail_memory("list of jobs") : status;
    (*text)->print = XXH3_64bits((*text)->data, (*text)->length);
    return ADL_OK;
}

adli_httpd_verdict adli_api_list_jobs(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    adli_list_query query = {0};
    if (!read_query(api, request, &query))
        return ADLI_HTTPD_DONE;
    adli_shared *text = NULL;
    adl_status status = is_all(&query) ? adli_core_all_jobs(api->core, &text)
                                       : write_some(api->core, &query, &text);
    if (status == ADL_OK)
        answer_unless_known(request, text);
    else
        adli_api_answer_failure(request, status);
    adli_shared_drop(text);
    return ADLI_HTTPD_DONE;
}

adli_httpd_verdict adli_api_delete_jobs(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    adli_list_query query = {0};
    if (!read_filter(request, &query))
        return ADLI_HTTPD_DONE;
    if (!query.ns) { /* a forgotten word must not empty the cluster */
        adli_httpd_answer_error(request, 400, "namespace: jobs of which one?");
        return ADLI_HTTPD_DONE;
    }
    adli_buf out;
    adli_buf_init(&out, API_ANSWER_MAX);
    adl_status status = adli_core_delete_jobs(api->core, &query, &out);
    adli_api_answer(request, status, 202, &out);
    return ADLI_HTTPD_DONE;
}
