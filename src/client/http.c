#include "client/http.h"

#include "base/clock.h"
#include "base/mem.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CONNECT_TIMEOUT_MS = 10000, POLL_MS = 100 };

struct adli_http {
    CURL *easy;
    CURLM *multi; /* curl_multi_wakeup is how another thread ends a transfer */
    atomic_bool cancelled;
    char why[CURL_ERROR_SIZE];
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode global_result;

static void init_once(void)
{
    global_result = curl_global_init(CURL_GLOBAL_DEFAULT);
}

adl_status adli_http_new(adli_http **out)
{
    *out = NULL;
    pthread_once(&once, init_once);
    if (global_result != CURLE_OK)
        return adli_fail(ADL_ENET, "libcurl: %s", curl_easy_strerror(global_result));
    adli_http *http = adli_calloc(1, sizeof *http);
    if (http) {
        http->easy = curl_easy_init();
        http->multi = curl_multi_init();
    }
    if (!http || !http->easy || !http->multi) {
        adli_http_free(http);
        return adli_fail_memory("HTTP client");
    }
    *out = http;
    return ADL_OK;
}

void adli_http_free(adli_http *http)
{
    if (!http)
        return;
    if (http->easy)
        curl_easy_cleanup(http->easy);
    if (http->multi)
        curl_multi_cleanup(http->multi);
    free(http);
}

void adli_http_cancel(adli_http *http)
{
    atomic_store(&http->cancelled, true);
    curl_multi_wakeup(http->multi);
}

static size_t take(char *data, size_t size, size_t count, void *user)
{
    adli_buf *answer = user;
    adli_buf_append(answer, data, size * count);
    return answer->status == ADL_OK ? size * count : 0;
}

/* Every option anew for each request: the handle is reused for its connection only. */
static adl_status set_up(adli_http *http, const adli_http_request *request, adli_buf *answer,
                         struct curl_slist **headers)
{
    CURL *easy = http->easy;
    char type[256];
    const char *content_type = request->content_type ? request->content_type : "application/json";
    snprintf(type, sizeof type, "Content-Type: %s", content_type);
    *headers = curl_slist_append(NULL, "Expect:"); /* no waiting for 100 Continue */
    if (request->body && *headers)
        curl_slist_append(*headers, type);
    for (size_t i = 0; request->headers && request->headers[i] && *headers; i++)
        curl_slist_append(*headers, request->headers[i]);
    if (!*headers)
        return adli_fail_memory("HTTP headers");
    curl_easy_reset(easy);
    http->why[0] = '\0';
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, http->why);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_URL, request->url);
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request->method);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, *headers);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)request->timeout_ms);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_TIMEOUT_MS);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, answer);
    if (request->body) {
        curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body_length);
        curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request->body);
    }
    return ADL_OK;
}

static bool cancelled(adli_http *http, const adli_http_request *request)
{
    return atomic_load(&http->cancelled) ||
           (request->cancelled && request->cancelled(request->cancel_context));
}

static CURLcode perform(adli_http *http, const adli_http_request *request)
{
    int running = 1;
    while (running) {
        if (cancelled(http, request))
            return CURLE_ABORTED_BY_CALLBACK;
        if (curl_multi_perform(http->multi, &running) != CURLM_OK)
            return CURLE_FAILED_INIT;
        if (running && curl_multi_poll(http->multi, NULL, 0, POLL_MS, NULL) != CURLM_OK)
            return CURLE_FAILED_INIT;
    }
    int left;
    CURLMsg *message = curl_multi_info_read(http->multi, &left);
    return message && message->msg == CURLMSG_DONE ? message->data.result : CURLE_FAILED_INIT;
}

adl_status adli_http_exchange(adli_http *http, const adli_http_request *request, adli_buf *answer,
                              int *code)
{
    struct curl_slist *headers = NULL;
    long response = 0;
    *code = 0;
    adli_buf_clear(answer);
    adl_status status = set_up(http, request, answer, &headers);
    if (status != ADL_OK)
        goto out;
    if (curl_multi_add_handle(http->multi, http->easy) != CURLM_OK) {
        status = adli_fail(ADL_ENET, "%s: libcurl refuses the request", request->url);
        goto out;
    }
    CURLcode result = perform(http, request);
    curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &response);
    curl_multi_remove_handle(http->multi, http->easy);
    *code = (int)response;
    const char *why = http->why[0] ? http->why : curl_easy_strerror(result);
    if (result == CURLE_ABORTED_BY_CALLBACK)
        status = adli_fail(ADL_EINTR, "%s %s: cancelled", request->method, request->url);
    else if (result == CURLE_OPERATION_TIMEDOUT)
        status = adli_fail(ADL_ETIMEOUT, "%s %s: %s", request->method, request->url, why);
    else if (result == CURLE_WRITE_ERROR)
        status = adli_fail(ADL_EINVAL, "%s %s: the answer is larger than %zu bytes",
                           request->method, request->url, answer->max);
    else if (result == CURLE_URL_MALFORMAT || result == CURLE_UNSUPPORTED_PROTOCOL)
        status = adli_fail(ADL_EINVAL, "%s: %s", request->url, why);
    else if (result != CURLE_OK)
        status = adli_fail(ADL_ENET, "%s %s: %s", request->method, request->url, why);
    else
        adli_buf_append(answer, "", 0); /* an empty answer is "" */
out:
    curl_slist_free_all(headers);
    return status;
}
