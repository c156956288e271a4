/* Events, as a list or as a stream (server-sent events, WHATWG HTML 9.2). A stream keeps a sequence
 * number and nothing else: a client that reads slowly finds what it missed in the core's own list, and
 * one that is behind for too long is shown out by the server. */
#include "daemon/api_impl.h"

#include "base/json.h"
#include "base/json_write.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { STREAM_BATCH = 64, LIST_LIMIT = 1000, NAME_SIZE = 256 };
static const double HEARTBEAT_S = 15;

typedef struct watcher {
    adli_api *api;
    char ns[NAME_SIZE], name[NAME_SIZE]; /* "": all jobs */
    int64_t seq;
    bool greeted;
    double spoke_s;
} watcher;

static const char *or_null(const char *text)
{
    return *text ? text : NULL;
}

static void put_event(adli_buf *out, const char *line, size_t length)
{
    json_t *event = NULL;
    if (adli_json_parse(line, length, &event) != ADL_OK)
        return;
    const char *type = json_string_value(json_object_get(event, "type"));
    adli_buf_printf(out, "id: %lld\n",
                    (long long)json_integer_value(json_object_get(event, "seq")));
    adli_buf_printf(out, "event: %s\ndata: ", type ? type : "message");
    adli_buf_append(out, line, length);
    adli_buf_puts(out, "\n\n");
    json_decref(event);
}

static void put_lines(adli_buf *out, const adli_buf *lines,
                      void (*put)(adli_buf *out, const char *line, size_t length))
{
    for (const char *line = lines->data; line && *line;) {
        size_t length = strcspn(line, "\n");
        if (length > 0)
            put(out, line, length);
        line += length + (line[length] == '\n');
    }
}

static adli_httpd_flow watch(void *self, adli_buf *out, double now_s, double *again_s)
{
    watcher *w = self;
    adli_buf lines;
    adli_buf_init(&lines, API_ANSWER_MAX);
    adl_status status = adli_core_events(w->api->core, or_null(w->ns), or_null(w->name),
                                         STREAM_BATCH, &w->seq, &lines);
    if (!w->greeted)
        adli_buf_puts(out, "retry: 2000\n\n");
    w->greeted = true;
    if (status == ADL_OK)
        put_lines(out, &lines, put_event);
    adli_buf_fini(&lines);
    if (status != ADL_OK)
        return ADLI_FLOW_END;
    if (out->length == 0 && now_s >= w->spoke_s + HEARTBEAT_S)
        adli_buf_puts(out, ": still here\n\n");
    if (out->length > 0)
        w->spoke_s = now_s;
    *again_s = w->spoke_s + HEARTBEAT_S;
    return out->length > 0 ? ADLI_FLOW_DATA : ADLI_FLOW_WAIT;
}

static void put_item(adli_buf *out, const char *line, size_t length)
{
    adli_jw_raw(out, NULL, ""); /* the comma */
    adli_buf_append(out, line, length);
}

static void answer_list(adli_httpd_request *request, watcher *w, int limit)
{
    adli_buf lines, out;
    adli_buf_init(&lines, API_ANSWER_MAX);
    adli_buf_init(&out, API_ANSWER_MAX);
    adl_status status =
        adli_core_events(w->api->core, or_null(w->ns), or_null(w->name), limit, &w->seq, &lines);
    adli_jw_open(&out, NULL, '{');
    adli_jw_open(&out, "items", '[');
    if (status == ADL_OK)
        put_lines(&out, &lines, put_item);
    adli_jw_close(&out, ']');
    adli_jw_int(&out, "last", w->seq);
    adli_jw_close(&out, '}');
    adli_buf_puts(&out, "\n");
    adli_buf_fini(&lines);
    adli_api_answer(request, status, 200, &out);
}

/* job=ns/name, since=SEQ or Last-Event-ID. False: 400 was answered. */
static bool read_query(adli_httpd_request *request, watcher *w)
{
    const char *job = adli_httpd_query(request, "job");
    const char *last = adli_httpd_header(request, "Last-Event-ID");
    char *end;
    if (!adli_api_query_int(request, "since", 0, INT64_MAX, 0, &w->seq))
        return false;
    long long seen = last ? strtoll(last, &end, 10) : 0;
    if (last && *last && *end == '\0' && seen > w->seq)
        w->seq = seen;
    if (!job || !*job)
        return true;
    const char *slash = strchr(job, '/');
    size_t ns_length = slash ? (size_t)(slash - job) : 0;
    if (!slash || !ns_length || ns_length >= NAME_SIZE || !slash[1] ||
        strlen(slash + 1) >= NAME_SIZE || strchr(slash + 1, '/')) {
        adli_httpd_answer_error(request, 400, "job=%.100s: expected NAMESPACE/NAME", job);
        return false;
    }
    memcpy(w->ns, job, ns_length);
    strcpy(w->name, slash + 1);
    return true;
}

adli_httpd_verdict adli_api_events(void *user, adli_httpd_request *request)
{
    const char *accept = adli_httpd_header(request, "Accept");
    watcher now = {.api = user};
    int64_t limit;
    if (!read_query(request, &now) ||
        !adli_api_query_int(request, "limit", 1, LIST_LIMIT, LIST_LIMIT, &limit))
        return ADLI_HTTPD_DONE;
    if (!accept || !strstr(accept, "text/event-stream")) {
        answer_list(request, &now, (int)limit);
        return ADLI_HTTPD_DONE;
    }
    watcher *w = adli_memdup(&now, 1, sizeof now);
    if (!w) {
        adli_httpd_answer_error(request, 503, "no memory for the stream");
        return ADLI_HTTPD_DONE;
    }
    adli_httpd_stream stream = {.self = w, .fill = watch, .free = free, .live = true};
    adli_httpd_answer_stream(request, "text/event-stream", &stream);
    return ADLI_HTTPD_DONE;
}
