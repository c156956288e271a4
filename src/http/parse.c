#include "http/parse.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- URLs -------------------------------------------------------------------------------------- */

void adli_url_show(const char *text, char *out, size_t capacity)
{
    const char *start = strstr(text, "://");
    start = start ? start + 3 : text;
    const char *at = start + strcspn(start, "/?#");
    while (at > start && *at != '@')
        at--;
    const char *rest = *at == '@' ? at + 1 : start;
    snprintf(out, capacity, "%.*s%s", (int)(start - text), text, rest);
}

static adl_status bad_url(const char *text, const char *why)
{
    char shown[512];
    adli_url_show(text, shown, sizeof shown);
    return adli_fail(ADL_EINVAL, "%s: %s", shown, why);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* %41 becomes A. */
static bool decode_user(const char *from, size_t length, char *out, size_t capacity)
{
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        int c = (unsigned char)from[i];
        if (c == '%') {
            if (i + 2 >= length || hex_digit(from[i + 1]) < 0 || hex_digit(from[i + 2]) < 0)
                return false;
            c = hex_digit(from[i + 1]) * 16 + hex_digit(from[i + 2]);
            i += 2;
        }
        if (c == 0 || used + 1 >= capacity)
            return false;
        out[used++] = (char)c;
    }
    out[used] = '\0';
    return true;
}

static const char *default_port(const adli_url *url)
{
    return url->tls ? "443" : "80";
}

static adl_status parse_port(const char *text, const char *from, size_t length, adli_url *out)
{
    char *end;
    if (length > 5 || (length > 0 && !isdigit((unsigned char)*from)))
        return bad_url(text, "the port must be from 1 to 65535");
    if (length)
        snprintf(out->port, sizeof out->port, "%.*s", (int)length, from);
    else
        snprintf(out->port, sizeof out->port, "%s", default_port(out));
    long number = strtol(out->port, &end, 10);
    if (*end != '\0' || number < 1 || number > 65535)
        return bad_url(text, "the port must be from 1 to 65535");
    return ADL_OK;
}

/* host, host:port, [address]:port */
static adl_status parse_host(const char *text, const char *from, size_t length, adli_url *out)
{
    const char *end = from + length, *host = from, *host_end, *port = end;
    if (length > 0 && *from == '[') {
        host = from + 1;
        host_end = memchr(from, ']', length);
        if (!host_end)
            return bad_url(text, "no ']' after the address");
        port = host_end + 1;
        if (port < end && *port != ':')
            return bad_url(text, "what follows the address is not a port");
    } else {
        host_end = memchr(from, ':', length);
        if (!host_end)
            host_end = end;
        port = host_end;
    }
    if (host_end == host)
        return bad_url(text, "it has no host");
    if (host_end - host > ADLI_HOST_MAX)
        return bad_url(text, "the host's name is too long");
    snprintf(out->host, sizeof out->host, "%.*s", (int)(host_end - host), host);
    if (port < end)
        port++;
    return parse_port(text, port, (size_t)(end - port), out);
}

adl_status adli_url_parse(const char *text, adli_url *out)
{
    *out = (adli_url){0};
    for (const char *at = text; *at; at++)
        if ((unsigned char)*at <= ' ' || *at == 0x7f)
            return bad_url(text, "it has a space or a control character in it");
    out->tls = strncasecmp(text, "https://", 8) == 0;
    if (!out->tls && strncasecmp(text, "http://", 7) != 0)
        return bad_url(text, "must start with http:// or https://");
    const char *start = text + (out->tls ? 8 : 7);
    size_t length = strcspn(start, "/?#");
    out->path = start + length;
    out->path_length = strcspn(out->path, "#");
    const char *at = NULL;
    for (size_t i = 0; i < length; i++)
        if (start[i] == '@')
            at = start + i;
    if (at) {
        if (!decode_user(start, (size_t)(at - start), out->user, sizeof out->user))
            return bad_url(text, "user and password cannot be decoded, or are too long");
        length -= (size_t)(at + 1 - start);
        start = at + 1;
    }
    return parse_host(text, start, length, out);
}

/* ---- requests ---------------------------------------------------------------------------------- */

static void put_base64(adli_buf *out, const char *text)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t length = strlen(text);
    for (size_t i = 0; i < length; i += 3) {
        size_t have = length - i < 3 ? length - i : 3;
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++)
            bits = bits << 8 | (k < have ? (unsigned char)text[i + k] : 0);
        char four[4];
        for (size_t k = 0; k < 4; k++)
            four[k] = k <= have ? digits[bits >> (18 - 6 * k) & 63] : '=';
        adli_buf_append(out, four, 4);
    }
}

static bool one_line(const char *text)
{
    return !strpbrk(text, "\r\n");
}

adl_status adli_request_head(const adli_url *url, const adli_http_request *request, adli_buf *out)
{
    bool bracket = strchr(url->host, ':') != NULL;
    const char *type = request->content_type ? request->content_type : "application/json";
    if (!*request->method || strcspn(request->method, " \t\r\n") != strlen(request->method))
        return adli_fail(ADL_EINVAL, "\"%s\" is not an HTTP method", request->method);
    adli_buf_printf(out, "%s %s%.*s HTTP/1.1\r\n", request->method, *url->path == '/' ? "" : "/",
                    (int)url->path_length, url->path);
    adli_buf_printf(out, "Host: %s%s%s", bracket ? "[" : "", url->host, bracket ? "]" : "");
    bool usual = strcmp(url->port, default_port(url)) == 0;
    adli_buf_printf(out, "%s%s\r\n", usual ? "" : ":", usual ? "" : url->port);
    adli_buf_puts(out, "User-Agent: adaptdl\r\nAccept: */*\r\nConnection: close\r\n");
    if (*url->user) {
        adli_buf_puts(out, "Authorization: Basic ");
        put_base64(out, url->user);
        adli_buf_puts(out, "\r\n");
    }
    if (request->body && !one_line(type))
        return adli_fail(ADL_EINVAL, "the content type has a line break in it");
    if (request->body)
        adli_buf_printf(out, "Content-Type: %s\r\nContent-Length: %zu\r\n", type,
                        request->body_length);
    for (size_t i = 0; request->headers && request->headers[i]; i++) {
        if (!one_line(request->headers[i]))
            return adli_fail(ADL_EINVAL, "a header has a line break in it");
        adli_buf_printf(out, "%s\r\n", request->headers[i]);
    }
    adli_buf_puts(out, "\r\n");
    return adli_buf_check(out);
}

/* ---- answers ----------------------------------------------------------------------------------- */

void adli_answer_init(adli_answer *answer, adli_buf *body, int *code, bool no_body)
{
    *answer = (adli_answer){.body = body, .code = code, .no_body = no_body};
    *code = 0;
}

bool adli_answer_done(const adli_answer *answer)
{
    return answer->phase == ADLI_ANSWER_DONE;
}

/* Ends the answer; an empty body is "", not NULL. */
static adl_status finish(adli_answer *answer)
{
    answer->phase = ADLI_ANSWER_DONE;
    adli_buf_append(answer->body, "", 0);
    return adli_buf_check(answer->body);
}

static adl_status take_body(adli_answer *answer, const char *data, size_t length)
{
    if (length > answer->body->max - answer->body->length)
        return adli_fail(ADL_EINVAL, "the answer is larger than %zu bytes", answer->body->max);
    adli_buf_append(answer->body, data, length);
    return adli_buf_check(answer->body);
}

/* HTTP/1.1 200 OK */
static adl_status status_line(adli_answer *answer)
{
    const char *line = answer->line;
    if (strncmp(line, "HTTP/1.", 7) != 0 || !isdigit((unsigned char)line[7]) || line[8] != ' ' ||
        strspn(line + 9, "0123456789") != 3 || (line[12] != ' ' && line[12] != '\0'))
        return adli_fail(ADL_ENET, "the answer is not HTTP: \"%.60s\"", line);
    *answer->code = (int)strtol(line + 9, NULL, 10);
    if (*answer->code < 100)
        return adli_fail(ADL_ENET, "the answer has the impossible code %d", *answer->code);
    answer->phase = ADLI_ANSWER_HEADERS;
    answer->chunked = answer->has_length = false;
    return ADL_OK;
}

/* A whole number of base 10 or 16 with nothing but blanks, or (chunks) an extension, after it. */
static bool whole_number(const char *text, int base, uint64_t *out)
{
    const char *digits = base == 16 ? "0123456789abcdefABCDEF" : "0123456789";
    text += strspn(text, " \t");
    size_t length = strspn(text, digits);
    if (length == 0 || length > 15)
        return false;
    *out = strtoull(text, NULL, base);
    text += length;
    text += strspn(text, " \t");
    return *text == '\0' || (base == 16 && *text == ';');
}

static adl_status header(adli_answer *answer)
{
    const char *line = answer->line, *colon = strchr(line, ':');
    if (!colon)
        return adli_fail(ADL_ENET, "the answer has a bad header: \"%.60s\"", line);
    size_t name = (size_t)(colon - line);
    if (name == 14 && strncasecmp(line, "content-length", name) == 0) {
        uint64_t length = 0;
        if (!whole_number(colon + 1, 10, &length) || (answer->has_length && length != answer->left))
            return adli_fail(ADL_ENET, "the answer has a bad header: \"%.60s\"", line);
        answer->has_length = true;
        answer->left = length;
    } else if (name == 17 && strncasecmp(line, "transfer-encoding", name) == 0) {
        const char *value = colon + 1 + strspn(colon + 1, " \t");
        if (strcasecmp(value, "chunked") != 0)
            return adli_fail(ADL_ENET, "the answer comes in the encoding \"%.60s\"", value);
        answer->chunked = true;
    }
    return ADL_OK;
}

/* The empty line: what the body will be like. */
static adl_status end_of_head(adli_answer *answer)
{
    int code = *answer->code;
    if (code < 200) { /* 100 Continue and the like: the real answer follows */
        answer->phase = ADLI_ANSWER_STATUS_LINE;
        return ADL_OK;
    }
    if (answer->no_body || code == 204 || code == 304)
        return finish(answer);
    if (answer->chunked) {
        answer->phase = ADLI_ANSWER_CHUNK_SIZE;
    } else if (answer->has_length) {
        if (answer->left > answer->body->max)
            return adli_fail(ADL_EINVAL, "the answer is larger than %zu bytes", answer->body->max);
        answer->phase = ADLI_ANSWER_LENGTH;
        if (answer->left == 0)
            return finish(answer);
    } else {
        answer->phase = ADLI_ANSWER_REST;
    }
    return ADL_OK;
}

static adl_status take_line(adli_answer *answer)
{
    bool empty = answer->line_length == 0;
    switch (answer->phase) {
    case ADLI_ANSWER_STATUS_LINE:
        return status_line(answer);
    case ADLI_ANSWER_HEADERS:
        return empty ? end_of_head(answer) : header(answer);
    case ADLI_ANSWER_CHUNK_SIZE:
        if (!whole_number(answer->line, 16, &answer->left))
            return adli_fail(ADL_ENET, "the answer has a bad chunk size: \"%.60s\"", answer->line);
        answer->phase = answer->left ? ADLI_ANSWER_CHUNK_DATA : ADLI_ANSWER_TRAILERS;
        return ADL_OK;
    case ADLI_ANSWER_CHUNK_END:
        if (!empty)
            return adli_fail(ADL_ENET, "a chunk of the answer is longer than it says");
        answer->phase = ADLI_ANSWER_CHUNK_SIZE;
        return ADL_OK;
    default: /* trailers are of no interest */
        return empty ? finish(answer) : ADL_OK;
    }
}

/* Bytes of a line, up to its end; how many were used goes into *used. */
static adl_status feed_line(adli_answer *answer, const char *data, size_t length, size_t *used)
{
    const char *end = memchr(data, '\n', length);
    size_t take = end ? (size_t)(end - data) : length;
    *used = end ? take + 1 : take;
    answer->head_bytes += *used;
    if (answer->line_length + take >= sizeof answer->line)
        return adli_fail(ADL_ENET, "the answer has a line of more than %d bytes", ADLI_LINE_MAX);
    /* Chunk sizes are lines too, and there may be many: only the head has a limit as a whole. */
    if (answer->phase <= ADLI_ANSWER_HEADERS && answer->head_bytes > ADLI_HEAD_MAX)
        return adli_fail(ADL_ENET, "the answer's head is larger than %d bytes", ADLI_HEAD_MAX);
    memcpy(answer->line + answer->line_length, data, take);
    answer->line_length += take;
    if (!end)
        return ADL_OK;
    if (answer->line_length > 0 && answer->line[answer->line_length - 1] == '\r')
        answer->line_length--;
    answer->line[answer->line_length] = '\0';
    if (strlen(answer->line) != answer->line_length)
        return adli_fail(ADL_ENET, "the answer's head has a NUL in it");
    adl_status status = take_line(answer);
    answer->line_length = 0;
    return status;
}

adl_status adli_answer_feed(adli_answer *answer, const char *data, size_t length)
{
    adl_status status = ADL_OK;
    while (length > 0 && status == ADL_OK && answer->phase != ADLI_ANSWER_DONE) {
        size_t used = length;
        bool counted =
            answer->phase == ADLI_ANSWER_LENGTH || answer->phase == ADLI_ANSWER_CHUNK_DATA;
        if (!counted && answer->phase != ADLI_ANSWER_REST) {
            status = feed_line(answer, data, length, &used);
        } else {
            if (counted && used > answer->left)
                used = (size_t)answer->left;
            status = take_body(answer, data, used);
            if (counted && status == ADL_OK && (answer->left -= used) == 0) {
                if (answer->phase == ADLI_ANSWER_LENGTH)
                    status = finish(answer);
                else
                    answer->phase = ADLI_ANSWER_CHUNK_END;
            }
        }
        data += used;
        length -= used;
    }
    return status;
}

adl_status adli_answer_end(adli_answer *answer)
{
    if (answer->phase == ADLI_ANSWER_REST || answer->phase == ADLI_ANSWER_DONE)
        return finish(answer);
    return adli_fail(ADL_ENET, "the server closed the connection %s",
                     answer->head_bytes ? "in the middle of its answer" : "without an answer");
}
