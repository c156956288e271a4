/* A small HTTP server on loopback for tests: one connection at a time, each request is kept and
 * answered by a callback. */
#ifndef ADLI_TEST_HTTP_SERVER_H
#define ADLI_TEST_HTTP_SERVER_H

#include "harness.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct adlt_request {
    char method[16], path[512];
    char *body; /* NUL-terminated; valid during the callback */
    size_t length;
} adlt_request;

typedef struct adlt_server {
    int fd, port;
    pthread_t thread;
    atomic_bool ending;
    atomic_int requests;
    /* Returns the status code; fills answer. Negative: hang until the server ends; 0: hang up. */
    int (*answer)(void *user, const adlt_request *request, char *answer, size_t capacity);
    void *user;
} adlt_server;

/* Reads until `needle` or `length` bytes are there; false when the peer is gone. */
static inline bool adlt_server_read(int fd, char *buf, size_t *used, size_t capacity, size_t length)
{
    while (*used < length || (length == 0 && !strstr(buf, "\r\n\r\n"))) {
        if (*used + 1 >= capacity)
            return false;
        ssize_t got = recv(fd, buf + *used, capacity - *used - 1, 0);
        if (got <= 0)
            return false;
        *used += (size_t)got;
        buf[*used] = '\0';
    }
    return true;
}

static inline void adlt_server_hang(adlt_server *server)
{
    while (!atomic_load(&server->ending))
        usleep(2000);
}

/* Serves the requests of one connection. */
static inline void adlt_server_serve(adlt_server *server, int fd)
{
    enum { CAPACITY = 1 << 20 };
    char *buf = malloc(CAPACITY), *answer = malloc(CAPACITY), head[256];
    size_t used = 0;
    buf[0] = '\0';
    while (adlt_server_read(fd, buf, &used, CAPACITY, 0)) {
        adlt_request request = {0};
        size_t body_length = 0;
        sscanf(buf, "%15s %511s", request.method, request.path);
        char *body = strstr(buf, "\r\n\r\n") + 4;
        for (char *line = buf; line < body; line = strstr(line, "\r\n") + 2)
            if (strncasecmp(line, "Content-Length:", 15) == 0)
                body_length = strtoul(line + 15, NULL, 10);
        size_t whole = (size_t)(body - buf) + body_length;
        if (!adlt_server_read(fd, buf, &used, CAPACITY, whole))
            break;
        char *copy = malloc(body_length + 1);
        memcpy(copy, body, body_length);
        copy[body_length] = '\0';
        request.body = copy, request.length = body_length;
        memmove(buf, buf + whole, used - whole + 1);
        used -= whole;
        answer[0] = '\0';
        atomic_fetch_add(&server->requests, 1);
        int code = server->answer(server->user, &request, answer, CAPACITY);
        free(copy);
        if (code < 0)
            adlt_server_hang(server);
        if (code <= 0)
            break;
        int n = snprintf(head, sizeof head, "HTTP/1.1 %d X\r\nContent-Length: %zu\r\n\r\n", code,
                         strlen(answer));
        if (send(fd, head, (size_t)n, MSG_NOSIGNAL) < 0 ||
            send(fd, answer, strlen(answer), MSG_NOSIGNAL) < 0)
            break;
    }
    free(buf);
    free(answer);
}

static inline void *adlt_server_run(void *user)
{
    adlt_server *server = user;
    while (!atomic_load(&server->ending)) {
        struct pollfd wait = {server->fd, POLLIN, 0};
        if (poll(&wait, 1, 20) <= 0)
            continue;
        int fd = accept(server->fd, NULL, NULL);
        struct timeval limit = {0, 100000};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        if (fd >= 0)
            adlt_server_serve(server, fd);
        close(fd);
    }
    return NULL;
}

static inline bool adlt_server_start(adlt_server *server)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)server->port)};
    socklen_t length = sizeof address;
    int one = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    atomic_store(&server->ending, false);
    server->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(server->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(server->fd, (struct sockaddr *)&address, length) != 0 || listen(server->fd, 8) != 0)
        return false;
    getsockname(server->fd, (struct sockaddr *)&address, &length);
    server->port = ntohs(address.sin_port);
    return pthread_create(&server->thread, NULL, adlt_server_run, server) == 0;
}

static inline void adlt_server_stop(adlt_server *server)
{
    atomic_store(&server->ending, true);
    pthread_join(server->thread, NULL);
    close(server->fd);
}

#endif
