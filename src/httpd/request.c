/* A request as its handler sees it, its answer, and how the answer is sent: at once, or piece by piece
 * with the connection suspended while there is nothing to send. */
#include "httpd/impl.h"

#include "base/json_write.h"
#include "base/log.h"
#include "base/mem.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STREAM_BLOCK = 32768, STREAM_MAX = 8 << 20 };

const char *adli_httpd_method(const adli_httpd_request *request)
{
    return request->method;
}

const char *adli_httpd_part(const adli_httpd_request *request, int index)
{
    return index >= 0 && index < ADLI_TARGET_PARTS_MAX ? request->parts[index] : "";
}

const char *adli_httpd_query(const adli_httpd_request *request, const char *name)
{
    return adli_target_query(&request->target, name);
}

const char *adli_httpd_header(const adli_httpd_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->conn->mhd, MHD_HEADER_KIND, name);
}

const char *adli_httpd_body(const adli_httpd_request *request, size_t *length)
{
    *length = request->body.length;
    return request->body.data ? request->body.data : "";
}

const char *adli_httpd_body_file(const adli_httpd_request *request)
{
    return request->body_kind == BODY_FILE ? request->body_path : NULL;
}

const char *adli_httpd_token(const adli_httpd_request *request)
{
    return request->token[0] ? request->token : NULL;
}

bool adli_httpd_local(const adli_httpd_request *request)
{
    return !request->conn->door->tcp;
}

int adli_httpd_door(const adli_httpd_request *request)
{
    return request->conn->door->options.id;
}

double adli_httpd_arrived_s(const adli_httpd_request *request)
{
    return request->arrived_s;
}

int64_t *adli_httpd_memo(adli_httpd_request *request)
{
    return &request->memo;
}

void adli_httpd_wait_until(adli_httpd_request *request, double monotonic_s)
{
    request->again_s = monotonic_s;
}

bool adli_httpd_ending(const adli_httpd_request *request)
{
    return atomic_load(&request->conn->door->httpd->ending);
}

void adli_httpd_set_known(adli_httpd_request *request)
{
    adli_conn_known(request->conn);
}

void adli_httpd_body_max(adli_httpd_request *request, int64_t max)
{
    request->body_max = max;
}

void adli_httpd_body_to_file(adli_httpd_request *request, const char *dir, int64_t max)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/upload-XXXXXX", dir) >= (int)sizeof path) {
        adli_httpd_answer_error(request, 500, "the upload directory's name is too long");
        return;
    }
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0) {
        adli_httpd_answer_error(request, 500, "no temporary file for the upload");
        return;
    }
    unlink(path); /* nothing is left behind, however we end */
    request->body_kind = BODY_FILE;
    request->body_max = max;
    request->body_fd = fd;
    snprintf(request->body_path, sizeof request->body_path, "/proc/self/fd/%d", fd);
}

static void drop_answer(adli_httpd_request *request)
{
    free(request->bytes);
    adli_shared_drop(request->text);
    if (request->fd >= 0)
        close(request->fd);
    if (request->stream.free)
        request->stream.free(request->stream.self);
    request->bytes = NULL;
    request->text = NULL;
    request->fd = -1;
    request->stream = (adli_httpd_stream){0};
    request->answer = ANSWER_NONE;
}

static void set_answer(adli_httpd_request *request, answer_kind kind, int code,
                       const char *content_type)
{
    drop_answer(request);
    request->answer = kind;
    request->code = code;
    request->content_type = content_type;
    request->size = request->offset = 0;
}

void adli_httpd_answer(adli_httpd_request *request, int code, const char *content_type,
                       const void *data, size_t length)
{
    char *copy = adli_memdup(data, length, 1);
    set_answer(request, ANSWER_BYTES, copy ? code : 503, content_type);
    request->bytes = copy;
    request->size = copy ? (int64_t)length : 0;
}

void adli_httpd_answer_take(adli_httpd_request *request, int code, const char *content_type,
                            adli_buf *body)
{
    set_answer(request, ANSWER_BYTES, code, content_type);
    request->bytes = body->data;
    request->size = (int64_t)body->length;
    *body = (adli_buf){.max = body->max};
}

void adli_httpd_answer_static(adli_httpd_request *request, int code, const char *content_type,
                              const void *data, size_t length)
{
    set_answer(request, ANSWER_STATIC, code, content_type);
    request->data = data;
    request->size = (int64_t)length;
}

void adli_httpd_answer_shared(adli_httpd_request *request, int code, const char *content_type,
                              adli_shared *text)
{
    adli_shared_hold(text);
    set_answer(request, ANSWER_SHARED, code, content_type);
    request->text = text;
    request->data = text->data;
    request->size = (int64_t)text->length;
}

void adli_httpd_answer_file(adli_httpd_request *request, const char *content_type, int fd,
                            int64_t offset, int64_t size)
{
    if (size <= 0) { /* a response of a file needs a byte */
        close(fd);
        adli_httpd_answer(request, 200, content_type, "", 0);
        return;
    }
    set_answer(request, ANSWER_FD, 200, content_type);
    request->fd = fd;
    request->offset = offset;
    request->size = size;
}

void adli_error_text(adli_buf *body, int code, const char *message)
{
    adli_buf_init(body, 16384);
    adli_jw_spaced(body);
    adli_jw_open(body, NULL, '{');
    adli_jw_open(body, "error", '{');
    adli_jw_int(body, "code", code);
    adli_jw_text(body, "message", message);
    adli_jw_close(body, '}');
    adli_jw_close(body, '}');
    adli_buf_puts(body, "\n");
}

void adli_httpd_answer_error(adli_httpd_request *request, int code, const char *format, ...)
{
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    adli_target_printable(message); /* it may quote the client, and may have been cut */
    adli_buf body;
    adli_error_text(&body, code, message);
    adli_httpd_answer_take(request, code, "application/json", &body);
    adli_buf_fini(&body);
}

void adli_httpd_answer_stream(adli_httpd_request *request, const char *content_type,
                              const adli_httpd_stream *stream)
{
    set_answer(request, ANSWER_STREAM, 200, content_type);
    request->stream = *stream;
}

void adli_httpd_set_header(adli_httpd_request *request, const char *name, const char *value)
{
    int n = request->header_count;
    if (n == HEADERS_MAX)
        return;
    request->header_names[n] = adli_strdup(name);
    request->header_values[n] = adli_strdup(value);
    request->header_count++;
}

void adli_request_reset(adli_httpd_request *request)
{
    conn *c = request->conn;
    drop_answer(request);
    adli_target_fini(&request->target);
    adli_buf_fini(&request->body);
    adli_buf_fini(&request->out);
    if (request->body_fd >= 0)
        close(request->body_fd);
    for (int i = 0; i < request->header_count; i++) {
        free(request->header_names[i]);
        free(request->header_values[i]);
    }
    explicit_bzero(request->token, sizeof request->token);
    *request = (adli_httpd_request){.conn = c, .body_fd = -1, .fd = -1};
}

/* Copies out what the stream has, asking it for more when all is sent. */
static ssize_t read_stream(void *user, uint64_t position, char *buf, size_t max)
{
    adli_httpd_request *request = user;
    conn *c = request->conn;
    adli_httpd *httpd = c->door->httpd;
    (void)position;
    while (request->out_sent == request->out.length) {
        double now_s = adli_monotonic_s(), again_s = now_s + 1;
        uint64_t generation = adli_httpd_generation(httpd);
        request->out_sent = 0;
        adli_buf_clear(&request->out);
        if (atomic_load(&httpd->ending))
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (adli_conn_doomed(c))
            return MHD_CONTENT_READER_END_WITH_ERROR;
        adli_httpd_flow flow =
            request->stream.fill(request->stream.self, &request->out, now_s, &again_s);
        if (request->out.status != ADL_OK)
            return MHD_CONTENT_READER_END_WITH_ERROR;
        if (flow == ADLI_FLOW_END && request->out.length == 0)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (flow == ADLI_FLOW_WAIT && adli_conn_wait(c, CONN_STREAM, generation, again_s))
            return 0;
    }
    size_t count = request->out.length - request->out_sent;
    if (count > max)
        count = max;
    memcpy(buf, request->out.data + request->out_sent, count);
    request->out_sent += count;
    adli_conn_moved(c, (int64_t)count);
    return (ssize_t)count;
}

static struct MHD_Response *make_response(adli_httpd_request *request)
{
    struct MHD_Response *response = NULL;
    switch (request->answer) {
    case ANSWER_BYTES:
        response = MHD_create_response_from_buffer((size_t)request->size, request->bytes,
                                                   MHD_RESPMEM_MUST_FREE);
        if (response)
            request->bytes = NULL;
        break;
    case ANSWER_SHARED: /* held until the next request: longer than the library reads it */
    case ANSWER_STATIC:
        response = MHD_create_response_from_buffer((size_t)request->size, (void *)request->data,
                                                   MHD_RESPMEM_PERSISTENT);
        break;
    case ANSWER_FD:
        response = MHD_create_response_from_fd_at_offset64((uint64_t)request->size, request->fd,
                                                           (uint64_t)request->offset);
        if (response)
            request->fd = -1;
        break;
    case ANSWER_STREAM:
        adli_buf_init(&request->out, STREAM_MAX);
        response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream,
                                                     request, NULL);
        break;
    case ANSWER_NONE:
        break;
    }
    return response;
}

static void add_headers(struct MHD_Response *response, const adli_httpd_request *request)
{
    const char *const *extra = request->conn->door->httpd->options.extra;
    if (request->content_type)
        MHD_add_response_header(response, "Content-Type", request->content_type);
    for (; extra && extra[0]; extra += 2) {
        bool given = false;
        for (int i = 0; i < request->header_count; i++)
            given |= request->header_names[i] && !strcmp(request->header_names[i], extra[0]);
        if (!given)
            MHD_add_response_header(response, extra[0], extra[1]);
    }
    for (int i = 0; i < request->header_count; i++)
        if (request->header_names[i] && request->header_values[i])
            MHD_add_response_header(response, request->header_names[i], request->header_values[i]);
    /* Where chunks end the library is lenient about, too: what follows them is not taken for a request. */
    if (atomic_load(&request->conn->door->httpd->ending) || adli_head_trust() == HEAD_ONCE ||
        adli_httpd_header(request, "Transfer-Encoding"))
        MHD_add_response_header(response, "Connection", "close");
}

enum MHD_Result adli_request_send(adli_httpd_request *request)
{
    conn *c = request->conn;
    if (request->answer == ANSWER_BYTES || request->answer == ANSWER_SHARED)
        adli_request_squeeze(request);
    struct MHD_Response *response = make_response(request);
    if (!response)
        return MHD_NO;
    add_headers(response, request);
    adli_conn_state(c, request->answer == ANSWER_STREAM ? CONN_STREAM : CONN_ANSWER, request->size);
    adli_say(ADL_LOG_DEBUG, "%s %s: %d", request->method,
             request->target.path ? request->target.path : "?", request->code);
    enum MHD_Result result = adli_queue(c->mhd, (unsigned)request->code, response);
    MHD_destroy_response(response);
    adli_conn_counted(c, request->code);
    return result;
}

enum MHD_Result adli_request_dispatch(adli_httpd_request *request)
{
    conn *c = request->conn;
    adli_httpd *httpd = c->door->httpd;
    if (request->route->slow) {
        if (adli_work_push(c))
            return MHD_YES;
        adli_httpd_answer_error(request, 503, "the server is ending");
    }
    while (request->answer == ANSWER_NONE) {
        uint64_t generation = adli_httpd_generation(httpd);
        bool ending = atomic_load(&httpd->ending);
        request->again_s = adli_monotonic_s() + 1;
        if (request->route->handle(httpd->options.user, request) == ADLI_HTTPD_WAIT) {
            if (adli_conn_wait(c, CONN_POLL, generation, request->again_s))
                return MHD_YES;
            if (adli_conn_doomed(c))
                return MHD_NO;
            if (ending)
                adli_httpd_answer_error(request, 503, "the server is ending");
        } else if (request->answer == ANSWER_NONE) {
            adli_httpd_answer_error(request, 500, "the request was not answered");
        }
    }
    return adli_request_send(request);
}
