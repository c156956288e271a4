/* libcurl connects and encrypts; the rest is ours, since the libcurl of Debian 12 has no WebSockets (docs/adr/0301). */
#include "kube/exec.h"

#include "adli_version.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "kube/websocket.h"

#include <curl/curl.h>
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

enum { HEAD_MAX = 64 << 10, PIECE = 64 << 10, SEND_S = 30, CONNECT_S = 15 };

struct adli_kube_exec {
    CURL *easy;
    curl_socket_t socket;
    adli_ws_reader reader;
    bool halves; /* the server knows how one stream ends */
    bool over;
    adli_buf result; /* what came on its channel */
    char why[CURL_ERROR_SIZE];
};

static void put_escaped(adli_buf *out, const char *name, const char *text)
{
    char *safe = curl_easy_escape(NULL, text, 0);
    adli_buf_printf(out, "&%s=%s", name, safe ? safe : "");
    curl_free(safe);
}

void adli_kube_exec_path(adli_buf *out, const char *ns, const char *pod, const char *container,
                         const char *const *words, bool in, bool tty)
{
    adli_buf_printf(out, "/api/v1/namespaces/%s/pods/%s/exec?stdout=true%s%s%s", ns, pod,
                    in ? "&stdin=true" : "", tty ? "&tty=true" : "", tty ? "" : "&stderr=true");
    put_escaped(out, "container", container);
    for (; *words; words++)
        put_escaped(out, "command", *words);
}

/* ---- bytes ---- */

static bool wait_for(const adli_kube_exec *exec, short events, int timeout_ms)
{
    struct pollfd wait = {exec->socket, events, 0};
    return poll(&wait, 1, timeout_ms) > 0;
}

static adl_status send_all(adli_kube_exec *exec, const char *data, size_t length)
{
    double until_s = adli_monotonic_s() + SEND_S;
    while (length > 0) {
        size_t sent = 0;
        CURLcode code = curl_easy_send(exec->easy, data, length, &sent);
        if (code == CURLE_AGAIN && adli_monotonic_s() < until_s) {
            wait_for(exec, POLLOUT, 100);
            continue;
        }
        if (code != CURLE_OK)
            return adli_fail(ADL_ENET, "exec: %s", curl_easy_strerror(code));
        data += sent;
        length -= sent;
    }
    return ADL_OK;
}

static adl_status send_frame(adli_kube_exec *exec, int opcode, const char *data, size_t length)
{
    adli_buf bytes;
    unsigned char mask[4];
    if (getrandom(mask, sizeof mask, 0) != (ssize_t)sizeof mask)
        return adli_fail(ADL_EIO, "random numbers: %s", strerror(errno));
    adli_buf_init(&bytes, ADLI_WS_MESSAGE_MAX + 64);
    adli_ws_put(&bytes, opcode, data, length, mask);
    adl_status status = adli_buf_check(&bytes);
    if (status == ADL_OK)
        status = send_all(exec, bytes.data, bytes.length);
    adli_buf_fini(&bytes);
    return status;
}

/* ---- the handshake ---- */

static void set_blob(CURL *easy, CURLoption option, const char *text)
{
    struct curl_blob blob = {
        .data = (void *)(uintptr_t)text, .len = strlen(text), .flags = CURL_BLOB_COPY};
    if (*text)
        curl_easy_setopt(easy, option, &blob);
}

static adl_status connect_to(adli_kube_exec *exec, const adli_kube_config *config)
{
    CURL *easy = exec->easy;
    curl_easy_setopt(easy, CURLOPT_URL, config->server);
    curl_easy_setopt(easy, CURLOPT_CONNECT_ONLY, 1L);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, exec->why);
    set_blob(easy, CURLOPT_CAINFO_BLOB, config->ca);
    if (*config->ca)
        curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
    set_blob(easy, CURLOPT_SSLCERT_BLOB, config->certificate);
    set_blob(easy, CURLOPT_SSLKEY_BLOB, config->key);
    if (config->insecure) {
        curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L);
    }
    CURLcode code = curl_easy_perform(easy);
    if (code == CURLE_OK)
        code = curl_easy_getinfo(easy, CURLINFO_ACTIVESOCKET, &exec->socket);
    if (code != CURLE_OK)
        return adli_fail(ADL_ENET, "%s: %s", config->server,
                         exec->why[0] ? exec->why : curl_easy_strerror(code));
    return ADL_OK;
}

static adl_status ask(adli_kube_exec *exec, const adli_kube_config *config, const char *path,
                      const char *key)
{
    const char *host = strstr(config->server, "://") + 3, *under = strchr(host, '/');
    adli_buf text;
    adli_buf_init(&text, HEAD_MAX);
    adli_buf_printf(&text,
                    "GET %s%s HTTP/1.1\r\nHost: %.*s\r\nUser-Agent: adaptdl/" ADLI_VERSION
                    "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                    "Sec-WebSocket-Protocol: v5.channel.k8s.io, v4.channel.k8s.io\r\n"
                    "Sec-WebSocket-Key: %s\r\n",
                    under ? under : "", path, (int)strcspn(host, "/"), host, key);
    if (*config->token)
        adli_buf_printf(&text, "Authorization: Bearer %s\r\n", config->token);
    adli_buf_puts(&text, "\r\n");
    adl_status status = adli_buf_check(&text);
    if (status == ADL_OK)
        status = send_all(exec, text.data, text.length);
    if (text.data)
        explicit_bzero(text.data, text.length);
    adli_buf_fini(&text);
    return status;
}

/* The head of the answer into text; what came behind it stays there too. */
static adl_status read_head(adli_kube_exec *exec, double until_s, adli_buf *text, char **body)
{
    char piece[PIECE];
    for (;;) {
        size_t got = 0;
        *body = text->data ? strstr(text->data, "\r\n\r\n") : NULL;
        if (*body) {
            *body += 4;
            return ADL_OK;
        }
        CURLcode code = curl_easy_recv(exec->easy, piece, sizeof piece, &got);
        if (code == CURLE_AGAIN && adli_monotonic_s() < until_s) {
            wait_for(exec, POLLIN, 100);
            continue;
        }
        if (code == CURLE_AGAIN)
            return adli_fail(ADL_ETIMEOUT, "exec: the API server does not answer");
        if (code != CURLE_OK || got == 0)
            return adli_fail(ADL_ENET, "exec: %s",
                             code ? curl_easy_strerror(code) : "the connection was closed");
        adli_buf_append(text, piece, got);
        adl_status status = adli_buf_check(text);
        if (status != ADL_OK)
            return status;
    }
}

/* The value of a header, "" when there is none. */
static void header_of(const char *head, const char *name, char *out, size_t size)
{
    size_t length = strlen(name);
    out[0] = '\0';
    for (const char *line = strstr(head, "\r\n"); line && line[2] != '\r';
         line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, name, length) == 0 && line[2 + length] == ':') {
            const char *value = line + 3 + length;
            value += strspn(value, " \t");
            snprintf(out, size, "%.*s", (int)strcspn(value, "\r"), value);
        }
}

/* A refusal: the Status behind the head, as far as it has come. */
static adl_status refused(adli_kube_exec *exec, int code, const char *body)
{
    char piece[PIECE], text[PIECE] = "";
    size_t got = 0;
    json_t *said = NULL;
    snprintf(text, sizeof text, "%s", body);
    if (!*body && wait_for(exec, POLLIN, 2000) &&
        curl_easy_recv(exec->easy, piece, sizeof piece - 1, &got) == CURLE_OK)
        snprintf(text, sizeof text, "%.*s", (int)got, piece);
    const char *json = strchr(text, '{');
    if (json)
        said = json_loads(json, JSON_DISABLE_EOF_CHECK, NULL);
    const char *message = json_string_value(json_object_get(said, "message"));
    adl_status status = code == 404 ? ADL_ENOENT : code >= 400 && code < 500 ? ADL_EINVAL : ADL_EIO;
    status = message ? adli_fail(status, "exec: %.600s", message)
                     : adli_fail(status, "exec: HTTP %d", code);
    json_decref(said);
    return status;
}

static adl_status shake(adli_kube_exec *exec, const adli_kube_config *config, const char *path,
                        double until_s)
{
    unsigned char random[16];
    char key[ADLI_WS_KEY], accept[ADLI_WS_ACCEPT], given[80], protocol[80], *body;
    int code = 0;
    adli_buf text;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return adli_fail(ADL_EIO, "random numbers: %s", strerror(errno));
    adli_ws_key(random, key);
    adli_ws_accept(key, accept);
    adli_buf_init(&text, HEAD_MAX + PIECE);
    adl_status status = ask(exec, config, path, key);
    if (status == ADL_OK)
        status = read_head(exec, until_s, &text, &body);
    if (status == ADL_OK && sscanf(text.data, "HTTP/1.%*d %d", &code) == 1 && code != 101)
        status = refused(exec, code, body);
    else if (status == ADL_OK) {
        header_of(text.data, "Sec-WebSocket-Accept", given, sizeof given);
        header_of(text.data, "Sec-WebSocket-Protocol", protocol, sizeof protocol);
        exec->halves = strcmp(protocol, "v5.channel.k8s.io") == 0;
        if (strcmp(given, accept) != 0 ||
            (!exec->halves && strcmp(protocol, "v4.channel.k8s.io") != 0))
            status = adli_fail(ADL_EIO, "exec: the API server does not speak our WebSocket");
    }
    if (status == ADL_OK)
        status = adli_ws_feed(&exec->reader, body, text.length - (size_t)(body - text.data));
    adli_buf_fini(&text);
    return status;
}

adl_status adli_kube_exec_open(const adli_kube_config *config, const char *path, double limit_s,
                               adli_kube_exec **out)
{
    *out = NULL;
    adli_kube_exec *exec = adli_calloc(1, sizeof *exec);
    if (!exec)
        return adli_fail_memory("exec");
    adli_ws_init(&exec->reader);
    adli_buf_init(&exec->result, PIECE);
    exec->socket = CURL_SOCKET_BAD;
    exec->easy = curl_easy_init();
    adl_status status = exec->easy ? connect_to(exec, config) : adli_fail_memory("exec");
    if (status == ADL_OK)
        status = shake(exec, config, path, adli_monotonic_s() + limit_s);
    if (status == ADL_OK)
        *out = exec;
    else
        adli_kube_exec_close(exec);
    return status;
}

void adli_kube_exec_close(adli_kube_exec *exec)
{
    if (!exec)
        return;
    if (exec->easy)
        curl_easy_cleanup(exec->easy);
    adli_ws_fini(&exec->reader);
    adli_buf_fini(&exec->result);
    free(exec);
}

/* ---- the streams ---- */

/* A message that is whole; *channel -1: none of the program's. */
static adl_status take(adli_kube_exec *exec, int opcode, const char **data, size_t *length,
                       int *channel)
{
    *channel = -1;
    if (opcode == ADLI_WS_PING)
        return send_frame(exec, ADLI_WS_PONG, *data, *length);
    if (opcode == ADLI_WS_CLOSE)
        exec->over = true;
    if ((opcode != ADLI_WS_BINARY && opcode != ADLI_WS_TEXT) || *length == 0)
        return ADL_OK;
    int number = (unsigned char)(*data)[0];
    if (number == ADLI_EXEC_RESULT) {
        adli_buf_append(&exec->result, *data + 1, *length - 1);
        exec->over = true; /* all output was sent before */
        return adli_buf_check(&exec->result);
    }
    if ((number == ADLI_EXEC_OUT || number == ADLI_EXEC_ERR) && *length > 1) {
        *channel = number;
        ++*data;
        --*length;
    }
    return ADL_OK;
}

static adl_status receive(adli_kube_exec *exec, bool *some)
{
    char piece[PIECE];
    size_t got = 0;
    CURLcode code = curl_easy_recv(exec->easy, piece, sizeof piece, &got);
    *some = code == CURLE_OK && got > 0;
    if (code == CURLE_AGAIN)
        return ADL_OK;
    if (code != CURLE_OK || got == 0)
        return adli_fail(ADL_ENET, "exec: %s",
                         code ? curl_easy_strerror(code) : "the connection was closed");
    return adli_ws_feed(&exec->reader, piece, got);
}

adl_status adli_kube_exec_next(adli_kube_exec *exec, int timeout_ms, int extra_fd, int *channel,
                               const char **data, size_t *length, bool *over)
{
    bool waited = false;
    *channel = -1;
    for (;;) {
        int opcode;
        bool some;
        adl_status status = adli_ws_next(&exec->reader, &opcode, data, length);
        if (status == ADL_OK && opcode)
            status = take(exec, opcode, data, length, channel);
        *over = exec->over;
        if (status != ADL_OK || *channel >= 0 || exec->over)
            return status;
        if (opcode)
            continue;
        status = receive(exec, &some);
        if (status != ADL_OK)
            return status;
        if (some)
            continue;
        if (waited)
            return ADL_OK;
        struct pollfd wait[2] = {{exec->socket, POLLIN, 0}, {extra_fd, POLLIN, 0}};
        poll(wait, extra_fd >= 0 ? 2 : 1, timeout_ms);
        waited = true;
    }
}

adl_status adli_kube_exec_send(adli_kube_exec *exec, int channel, const char *data, size_t length)
{
    adli_buf message;
    adli_buf_init(&message, ADLI_WS_MESSAGE_MAX);
    adli_buf_append(&message, &(char){(char)channel}, 1);
    adli_buf_append(&message, data, length);
    adl_status status = adli_buf_check(&message);
    if (status == ADL_OK)
        status = send_frame(exec, ADLI_WS_BINARY, message.data, message.length);
    adli_buf_fini(&message);
    return status;
}

adl_status adli_kube_exec_end_input(adli_kube_exec *exec)
{
    static const char close_input[] = {(char)255, ADLI_EXEC_IN};
    if (!exec->halves)
        return ADL_OK;
    return send_frame(exec, ADLI_WS_BINARY, close_input, sizeof close_input);
}

adl_status adli_kube_exec_result(const adli_kube_exec *exec, int *exit_status)
{
    json_t *root = NULL;
    size_t i;
    const json_t *cause;
    *exit_status = 0;
    if (exec->result.length == 0)
        return adli_fail(ADL_ENET, "exec: the connection was closed before the program ended");
    if (adli_json_parse(exec->result.data, exec->result.length, &root) != ADL_OK)
        return adli_fail(ADL_EIO, "exec: %.300s", exec->result.data);
    const char *status = json_string_value(json_object_get(root, "status")),
               *message = json_string_value(json_object_get(root, "message"));
    bool known = status && strcmp(status, "Success") == 0;
    json_array_foreach(json_object_get(json_object_get(root, "details"), "causes"), i, cause)
    {
        const char *reason = json_string_value(json_object_get(cause, "reason")),
                   *text = json_string_value(json_object_get(cause, "message"));
        if (reason && text && strcmp(reason, "ExitCode") == 0) {
            *exit_status = atoi(text);
            known = true;
        }
    }
    adl_status result =
        known ? ADL_OK : adli_fail(ADL_EINVAL, "exec: %.600s", message ? message : "it failed");
    json_decref(root);
    return result;
}
