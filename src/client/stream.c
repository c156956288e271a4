#include "client/stream.h"

#include "base/mem.h"

#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum {
    CONNECT_TIMEOUT_MS = 10000,
    EXPECT_TIMEOUT_MS = 5000,
    POLL_MS = 100,
    ANSWER_MAX = 256 << 20,
    ERROR_MAX = 1 << 16,
    HEADER_MAX = 16384
};

struct adli_streams {
    const adli_server *server;
    CURLM *multi;
    adli_stream *first;
};

struct adli_stream {
    adli_streams *set;
    adli_stream *next;
    CURL *easy;
    struct curl_slist *headers;
    char *what; /* "GET unix:/x/adaptdl.sock /api/v1/jobs" */
    adl_status (*data)(void *user, const char *data, size_t length);
    void *user;
    adl_status data_status;
    adli_buf data_error; /* adl_error() is of the thread: kept until somebody asks */
    adli_buf answer;
    int body_fd;
    int64_t body_left;
    bool over, directory;
    CURLcode result;
    char why[CURL_ERROR_SIZE];
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode global_result;

static void init_once(void)
{
    global_result = curl_global_init(CURL_GLOBAL_DEFAULT);
}

adl_status adli_streams_new(const adli_server *server, adli_streams **out)
{
    *out = NULL;
    pthread_once(&once, init_once);
    if (global_result != CURLE_OK)
        return adli_fail(ADL_ENET, "libcurl: %s", curl_easy_strerror(global_result));
    adli_streams *set = adli_calloc(1, sizeof *set);
    if (set)
        set->multi = curl_multi_init();
    if (!set || !set->multi) {
        free(set);
        return adli_fail_memory("HTTP client");
    }
    set->server = server;
    *out = set;
    return ADL_OK;
}

void adli_streams_free(adli_streams *set)
{
    if (!set)
        return;
    while (set->first)
        adli_stream_close(set->first);
    curl_multi_cleanup(set->multi);
    free(set);
}

/* ---- libcurl's callbacks ---- */

static size_t take_body(char *data, size_t size, size_t count, void *user)
{
    adli_stream *stream = user;
    size_t length = size * count;
    long code = 0;
    curl_easy_getinfo(stream->easy, CURLINFO_RESPONSE_CODE, &code);
    if (stream->data && code < 400) {
        stream->data_status = stream->data(stream->user, data, length);
        if (stream->data_status != ADL_OK)
            adli_buf_puts(&stream->data_error, adl_error());
        return stream->data_status == ADL_OK ? length : 0;
    }
    adli_buf_append(&stream->answer, data, length);
    return stream->answer.status == ADL_OK ? length : 0;
}

static size_t take_header(char *data, size_t size, size_t count, void *user)
{
    static const char name[] = "X-Adaptdl-Directory:";
    adli_stream *stream = user;
    if (size * count > sizeof name && strncasecmp(data, name, sizeof name - 1) == 0)
        stream->directory = memchr(data, '1', size * count) != NULL;
    return size * count;
}

static size_t give_body(char *data, size_t size, size_t count, void *user)
{
    adli_stream *stream = user;
    size_t room = size * count;
    if ((int64_t)room > stream->body_left)
        room = (size_t)stream->body_left;
    ssize_t got = room ? read(stream->body_fd, data, room) : 0;
    if (got < 0 || (got == 0 && room > 0))
        return CURL_READFUNC_ABORT;
    stream->body_left -= got;
    return (size_t)got;
}

/* ---- an exchange ---- */

static adl_status add_header(adli_stream *stream, const char *name, const char *value)
{
    adli_buf text;
    if (!value)
        return ADL_OK;
    adli_buf_init(&text, HEADER_MAX);
    adli_buf_printf(&text, "%s: %s", name, value);
    bool fits = adli_buf_check(&text) == ADL_OK;
    struct curl_slist *longer = fits ? curl_slist_append(stream->headers, text.data) : NULL;
    adli_buf_fini(&text);
    if (!fits)
        return adli_fail(ADL_EINVAL, "header %s: the value is too long", name);
    if (!longer)
        return adli_fail_memory("HTTP headers");
    stream->headers = longer;
    return ADL_OK;
}

static adl_status set_headers(adli_stream *stream, const adli_stream_request *request)
{
    const adli_server *server = stream->set->server;
    const char *token = server->token;
    bool body = request->body || request->body_bytes > 0;
    char bearer[HEADER_MAX];
    if (token && (size_t)snprintf(bearer, sizeof bearer, "Bearer %s", token) >= sizeof bearer)
        return adli_fail(ADL_EINVAL, "ADAPTDL_TOKEN: too long");
    /* A server that refuses a large body closes the connection while it is on its way, and what it said may be lost: those are
     * announced first. */
    stream->headers =
        curl_slist_append(NULL, request->body_bytes > 0 ? "Expect: 100-continue" : "Expect:");
    adl_status status = stream->headers ? ADL_OK : adli_fail_memory("HTTP headers");
    if (status == ADL_OK)
        status = add_header(stream, "Accept", request->accept ? request->accept : "*/*");
    if (status == ADL_OK && body)
        status = add_header(stream, "Content-Type", request->content_type);
    if (status == ADL_OK)
        status = add_header(stream, "Last-Event-ID", request->last_event_id);
    if (status == ADL_OK && token)
        status = add_header(stream, "Authorization", bearer);
    if (status == ADL_OK)
        status = add_header(stream, "X-Adaptdl-Token", server->own_token);
    explicit_bzero(bearer, sizeof bearer);
    return status;
}

static adl_status set_body(adli_stream *stream, const adli_stream_request *request)
{
    CURL *easy = stream->easy;
    if (request->body) {
        curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body_length);
        if (curl_easy_setopt(easy, CURLOPT_COPYPOSTFIELDS, request->body) != CURLE_OK)
            return adli_fail_memory("HTTP body");
    } else if (request->body_bytes > 0) {
        stream->body_fd = request->body_fd;
        stream->body_left = request->body_bytes;
        if (lseek(request->body_fd, 0, SEEK_SET) != 0)
            return adli_fail(ADL_EIO, "the file to send: %s", strerror(errno));
        curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)request->body_bytes);
        curl_easy_setopt(easy, CURLOPT_READFUNCTION, give_body);
        curl_easy_setopt(easy, CURLOPT_READDATA, stream);
    } else if (strcmp(request->method, "POST") == 0) {
        curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)0);
        curl_easy_setopt(easy, CURLOPT_POSTFIELDS, "");
    }
    return ADL_OK;
}

static void set_blob(CURL *easy, CURLoption option, char *text)
{
    if (!text)
        return;
    struct curl_blob blob = {.data = text, .len = strlen(text), .flags = CURL_BLOB_COPY};
    curl_easy_setopt(easy, option, &blob);
}

static void set_trust(CURL *easy, const adli_server *server)
{
    if (server->ca_file)
        curl_easy_setopt(easy, CURLOPT_CAINFO, server->ca_file);
    set_blob(easy, CURLOPT_CAINFO_BLOB, server->ca);
    if (server->ca) /* and nobody whom the machine trusts besides */
        curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
    set_blob(easy, CURLOPT_SSLCERT_BLOB, server->certificate);
    set_blob(easy, CURLOPT_SSLKEY_BLOB, server->key);
    if (server->insecure) {
        curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L);
    }
}

static adl_status set_target(adli_stream *stream, const adli_stream_request *request)
{
    const adli_server *server = stream->set->server;
    adli_buf url;
    adli_buf_init(&url, 1 << 16);
    adli_buf_printf(&url, "%s%s", server->url, request->path);
    adl_status status = adli_buf_check(&url);
    if (status == ADL_OK) {
        curl_easy_setopt(stream->easy, CURLOPT_URL, url.data);
        adli_buf_clear(&url);
        adli_buf_printf(&url, "%s %s%.500s", request->method,
                        server->socket_path ? "" : server->url, request->path);
        status = adli_buf_check(&url);
    }
    if (status == ADL_OK && !(stream->what = adli_strdup(url.data)))
        status = adli_fail_memory("URL");
    adli_buf_fini(&url);
    if (server->socket_path) {
        curl_easy_setopt(stream->easy, CURLOPT_UNIX_SOCKET_PATH, server->socket_path);
        curl_easy_setopt(stream->easy, CURLOPT_PROXY, "");
    }
    set_trust(stream->easy, server);
    return status;
}

static void set_options(adli_stream *stream, const adli_stream_request *request)
{
    CURL *easy = stream->easy;
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, stream->why);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request->method);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, stream->headers);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)request->timeout_ms);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_TIMEOUT_MS);
    curl_easy_setopt(easy, CURLOPT_EXPECT_100_TIMEOUT_MS, (long)EXPECT_TIMEOUT_MS);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, stream);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, stream);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, stream);
}

adl_status adli_stream_open(adli_streams *set, const adli_stream_request *request,
                            adli_stream **out)
{
    *out = NULL;
    adli_stream *stream = adli_calloc(1, sizeof *stream);
    if (!stream)
        return adli_fail_memory("HTTP exchange");
    stream->set = set;
    stream->data = request->data;
    stream->user = request->user;
    adli_buf_init(&stream->answer, request->data ? ERROR_MAX : ANSWER_MAX);
    adli_buf_init(&stream->data_error, ERROR_MAX);
    stream->next = set->first;
    set->first = stream;
    stream->easy = curl_easy_init();
    adl_status status = stream->easy ? set_headers(stream, request) : adli_fail_memory("libcurl");
    if (status == ADL_OK)
        status = set_target(stream, request);
    if (status == ADL_OK) {
        set_options(stream, request);
        status = set_body(stream, request);
    }
    if (status == ADL_OK && curl_multi_add_handle(set->multi, stream->easy) != CURLM_OK)
        status = adli_fail(ADL_ENET, "%s: libcurl refuses the request", stream->what);
    if (status == ADL_OK)
        *out = stream;
    else
        adli_stream_close(stream);
    return status;
}

void adli_stream_close(adli_stream *stream)
{
    if (!stream)
        return;
    adli_stream **at = &stream->set->first;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    if (stream->easy) {
        curl_multi_remove_handle(stream->set->multi, stream->easy);
        curl_easy_cleanup(stream->easy);
    }
    curl_slist_free_all(stream->headers);
    adli_buf_fini(&stream->answer);
    adli_buf_fini(&stream->data_error);
    free(stream->what);
    free(stream);
}

static void collect(adli_streams *set)
{
    int left;
    for (CURLMsg *message; (message = curl_multi_info_read(set->multi, &left));) {
        char *private = NULL;
        if (message->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &private);
        adli_stream *stream = (adli_stream *)(void *)private;
        stream->over = true;
        stream->result = message->data.result;
    }
}

adl_status adli_streams_step(adli_streams *set, int timeout_ms, int wake_fd)
{
    struct curl_waitfd wake = {wake_fd, CURL_WAIT_POLLIN, 0};
    int running;
    if (curl_multi_perform(set->multi, &running) != CURLM_OK)
        return adli_fail(ADL_ENET, "libcurl fails");
    collect(set);
    bool over = !set->first;
    for (const adli_stream *s = set->first; s; s = s->next)
        over |= s->over;
    if (over && wake_fd < 0)
        return ADL_OK; /* the caller has something to look at */
    CURLMcode code = curl_multi_poll(set->multi, &wake, wake_fd >= 0, over ? 0 : timeout_ms, NULL);
    if (code == CURLM_OK)
        code = curl_multi_perform(set->multi, &running);
    collect(set);
    return code == CURLM_OK ? ADL_OK : adli_fail(ADL_ENET, "%s", curl_multi_strerror(code));
}

bool adli_stream_over(const adli_stream *stream)
{
    return stream->over;
}

bool adli_stream_is_directory(const adli_stream *stream)
{
    return stream->directory;
}

const adli_buf *adli_stream_answer(const adli_stream *stream)
{
    return &stream->answer;
}

adl_status adli_stream_result(const adli_stream *stream, int *code)
{
    long response = 0;
    curl_easy_getinfo(stream->easy, CURLINFO_RESPONSE_CODE, &response);
    *code = (int)response;
    const char *why = stream->why[0] ? stream->why : curl_easy_strerror(stream->result);
    if (stream->data_status != ADL_OK)
        return adli_fail(stream->data_status, "%s",
                         stream->data_error.data ? stream->data_error.data : "failed");
    switch (stream->result) {
    case CURLE_OK:
        return ADL_OK;
    case CURLE_OPERATION_TIMEDOUT:
        return adli_fail(ADL_ETIMEOUT, "%s: %s", stream->what, why);
    case CURLE_WRITE_ERROR:
        return adli_fail(ADL_EINVAL, "%s: the answer is larger than %zu bytes", stream->what,
                         stream->answer.max);
    case CURLE_URL_MALFORMAT:
        return adli_fail(ADL_EINVAL, "%s: %s", stream->what, why);
    default:
        return adli_fail(ADL_ENET, "%s: %s", stream->what, why);
    }
}

adl_status adli_stream_exchange(adli_streams *set, const adli_stream_request *request,
                                bool (*cancelled)(void), adli_buf *answer, int *code)
{
    adli_stream *stream;
    *code = 0;
    adli_buf_clear(answer);
    adl_status status = adli_stream_open(set, request, &stream);
    if (status != ADL_OK)
        return status;
    while (status == ADL_OK && !stream->over) {
        status = adli_streams_step(set, POLL_MS, -1);
        if (status == ADL_OK && cancelled && cancelled())
            status = adli_fail(ADL_EINTR, "%s: cancelled", stream->what);
    }
    if (status == ADL_OK)
        status = adli_stream_result(stream, code);
    if (status == ADL_OK) {
        adli_buf_append(answer, stream->answer.data ? stream->answer.data : "",
                        stream->answer.length);
        if (adli_buf_check(answer) != ADL_OK)
            status = adli_fail(ADL_EINVAL, "%s: the answer is larger than %zu bytes", stream->what,
                               answer->max);
    }
    adli_stream_close(stream);
    return status;
}
