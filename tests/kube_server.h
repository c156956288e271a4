/* A server for tests of the Kubernetes client: a thread to a connection, and a script that answers each
 * request as it likes: whole answers, streams that go on, silence, or hanging up. */
#ifndef ADLI_TEST_KUBE_SERVER_H
#define ADLI_TEST_KUBE_SERVER_H

#include "base/status.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ADLT_KUBE_CONNECTIONS = 256, ADLT_KUBE_BYTES = 1 << 16 };

struct adlt_kube_server;

typedef struct adlt_kube_request {
    struct adlt_kube_server *server;
    int fd;
    char method[16], path[2048], type[80], authorization[200], own_token[200], ws_key[40];
    char *body;
    bool hang_up;
} adlt_kube_request;

typedef struct adlt_kube_server {
    int fd, port;
    pthread_t thread, connections[ADLT_KUBE_CONNECTIONS];
    int fds[ADLT_KUBE_CONNECTIONS];
    int count;
    atomic_bool ending;
    atomic_int requests;
    void (*answer)(void *user, adlt_kube_request *request);
    void *user;
} adlt_kube_server;

static inline void adlt_kube_send(adlt_kube_request *request, const char *text)
{
    if (send(request->fd, text, strlen(text), MSG_NOSIGNAL) < 0)
        request->hang_up = true;
}

/* headers: "Name: value\r\n"... or "". */
static inline void adlt_kube_answer(adlt_kube_request *request, int code, const char *headers,
                                    const char *body)
{
    char head[512];
    snprintf(head, sizeof head, "HTTP/1.1 %d X\r\nContent-Length: %zu\r\n%s\r\n", code,
             strlen(body), headers);
    adlt_kube_send(request, head);
    adlt_kube_send(request, body);
}

/* A stream begins; its pieces follow, and "" at the end. */
static inline void adlt_kube_stream(adlt_kube_request *request)
{
    adlt_kube_send(request, "HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n");
}

static inline void adlt_kube_piece(adlt_kube_request *request, const char *text)
{
    char head[32];
    snprintf(head, sizeof head, "%zx\r\n", strlen(text));
    adlt_kube_send(request, head);
    adlt_kube_send(request, text);
    adlt_kube_send(request, "\r\n");
}

/* Until the client or the server goes. */
static inline void adlt_kube_hang(adlt_kube_request *request)
{
    char byte;
    while (!atomic_load(&request->server->ending)) {
        struct pollfd wait = {request->fd, POLLIN, 0};
        if (poll(&wait, 1, 20) > 0 && recv(request->fd, &byte, 1, MSG_PEEK) <= 0)
            break;
    }
    request->hang_up = true;
}

static inline bool adlt_kube_read(int fd, char *buf, size_t *used, size_t want)
{
    while (*used < want || (want == 0 && !strstr(buf, "\r\n\r\n"))) {
        ssize_t got = *used + 1 < ADLT_KUBE_BYTES
                          ? recv(fd, buf + *used, ADLT_KUBE_BYTES - *used - 1, 0)
                          : -1;
        if (got <= 0)
            return false;
        *used += (size_t)got;
        buf[*used] = '\0';
    }
    return true;
}

typedef struct adlt_kube_connection {
    adlt_kube_server *server;
    int fd;
} adlt_kube_connection;

static inline void *adlt_kube_serve(void *user)
{
    adlt_kube_connection connection = *(adlt_kube_connection *)user;
    free(user);
    char *buf = calloc(1, ADLT_KUBE_BYTES);
    size_t used = 0;
    while (adlt_kube_read(connection.fd, buf, &used, 0)) {
        adlt_kube_request request = {.server = connection.server, .fd = connection.fd};
        size_t length = 0;
        sscanf(buf, "%15s %2047s", request.method, request.path);
        char *body = strstr(buf, "\r\n\r\n") + 4;
        for (char *line = buf; line < body - 2; line = strstr(line, "\r\n") + 2) {
            if (strncasecmp(line, "Content-Length:", 15) == 0)
                length = strtoul(line + 15, NULL, 10);
            sscanf(line, "Content-Type: %79[^\r]", request.type);
            sscanf(line, "Authorization: %199[^\r]", request.authorization);
            sscanf(line, "Sec-WebSocket-Key: %39[^\r]", request.ws_key);
            sscanf(line, "X-Adaptdl-Token: %199[^\r]", request.own_token);
        }
        size_t whole = (size_t)(body - buf) + length;
        if (!adlt_kube_read(connection.fd, buf, &used, whole))
            break;
        request.body = strndup(body, length);
        memmove(buf, buf + whole, used - whole + 1);
        used -= whole;
        atomic_fetch_add(&connection.server->requests, 1);
        connection.server->answer(connection.server->user, &request);
        free(request.body);
        if (request.hang_up)
            break;
    }
    free(buf);
    shutdown(connection.fd, SHUT_RDWR);
    return NULL;
}

static inline void *adlt_kube_accept(void *user)
{
    adlt_kube_server *server = user;
    while (!atomic_load(&server->ending)) {
        struct pollfd wait = {server->fd, POLLIN, 0};
        if (server->count == ADLT_KUBE_CONNECTIONS || poll(&wait, 1, 20) <= 0)
            continue;
        int fd = accept(server->fd, NULL, NULL);
        if (fd < 0)
            continue;
        /* an answer is several writes, which are not to wait for each other's acknowledgement */
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        adlt_kube_connection *connection = calloc(1, sizeof *connection);
        *connection = (adlt_kube_connection){server, fd};
        server->fds[server->count] = fd;
        pthread_create(&server->connections[server->count++], NULL, adlt_kube_serve, connection);
    }
    return NULL;
}

static inline bool adlt_kube_server_start(adlt_kube_server *server)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    setenv("no_proxy", "127.0.0.1", 1); /* a proxy of the machine's has no part in this */
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    server->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(server->fd, (struct sockaddr *)&address, length) != 0 || listen(server->fd, 8) != 0)
        return false;
    getsockname(server->fd, (struct sockaddr *)&address, &length);
    server->port = ntohs(address.sin_port);
    return pthread_create(&server->thread, NULL, adlt_kube_accept, server) == 0;
}

static inline void adlt_kube_server_stop(adlt_kube_server *server)
{
    atomic_store(&server->ending, true);
    pthread_join(server->thread, NULL);
    for (int i = 0; i < server->count; i++) {
        shutdown(server->fds[i], SHUT_RDWR);
        pthread_join(server->connections[i], NULL);
        close(server->fds[i]);
    }
    close(server->fd);
}

#endif
