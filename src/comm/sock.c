#include "comm/sock.h"

#include "adaptdl/group.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BACKLOG = 512 };

int64_t adli_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int adli_until_ms(int64_t then, int64_t now, int limit)
{
    if (then <= now)
        return 0;
    return then - now < limit ? (int)(then - now) : limit;
}

static void unmap(const struct sockaddr *address, char *host, size_t size, int *port, bool *six)
{
    *six = address->sa_family == AF_INET6;
    if (*six) {
        const struct sockaddr_in6 *in = (const void *)address;
        *port = ntohs(in->sin6_port);
        if (IN6_IS_ADDR_V4MAPPED(&in->sin6_addr)) {
            *six = false;
            inet_ntop(AF_INET, &in->sin6_addr.s6_addr[12], host, (socklen_t)size);
        } else {
            inet_ntop(AF_INET6, &in->sin6_addr, host, (socklen_t)size);
        }
    } else {
        const struct sockaddr_in *in = (const void *)address;
        *port = ntohs(in->sin_port);
        inet_ntop(AF_INET, &in->sin_addr, host, (socklen_t)size);
    }
}

void adli_sock_text(const struct sockaddr *address, bool with_port, char out[ADLI_ADDRESS_TEXT])
{
    if (address->sa_family != AF_INET && address->sa_family != AF_INET6) {
        snprintf(out, ADLI_ADDRESS_TEXT, "a socket of family %d", address->sa_family);
        return;
    }
    char host[INET6_ADDRSTRLEN] = "?";
    int port;
    bool six;
    unmap(address, host, sizeof host, &port, &six);
    if (with_port)
        snprintf(out, ADLI_ADDRESS_TEXT, six ? "[%s]:%d" : "%s:%d", host, port);
    else
        snprintf(out, ADLI_ADDRESS_TEXT, "%s", host);
}

void adli_sock_peer(int fd, char out[ADLI_ADDRESS_TEXT])
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (getpeername(fd, (struct sockaddr *)&address, &length) == 0)
        adli_sock_text((struct sockaddr *)&address, true, out);
    else
        snprintf(out, ADLI_ADDRESS_TEXT, "an unknown address");
}

adl_status adli_sock_local(int fd, char out[ADLI_ADDRESS_TEXT])
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        return adli_fail(ADL_ENET, "getsockname: %s", strerror(errno));
    adli_sock_text((struct sockaddr *)&address, false, out);
    return ADL_OK;
}

adl_status adli_sock_resolve(const char *host, int port, struct addrinfo **out)
{
    char service[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    snprintf(service, sizeof service, "%d", port);
    *out = NULL;
    int failure = getaddrinfo(host, service, &hints, out);
    if (failure != 0)
        return adli_fail(ADL_ENET, "%s: %s", host,
                         failure == EAI_SYSTEM ? strerror(errno) : gai_strerror(failure));
    return ADL_OK;
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24 ==
               127;
    return address->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

bool adli_sock_loopback(const char *host)
{
    struct addrinfo *found;
    if (adli_sock_resolve(host, 0, &found) != ADL_OK)
        return false;
    bool all = true;
    for (struct addrinfo *it = found; it; it = it->ai_next)
        all = all && is_loopback(it->ai_addr);
    freeaddrinfo(found);
    return all;
}

static adl_status bind_listen(const struct sockaddr *address, socklen_t length, int *out)
{
    char text[ADLI_ADDRESS_TEXT];
    adli_sock_text(address, true, text);
    int one = 1, zero = 0, error;
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return adli_fail(ADL_ENET, "listen on %s: socket: %s", text, strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (address->sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(fd, address, length) == 0 && listen(fd, BACKLOG) == 0) {
        *out = fd;
        return ADL_OK;
    }
    error = errno;
    close(fd);
    return adli_fail(error == EADDRINUSE ? ADL_ESTATE : ADL_ENET, "listen on %s: %s", text,
                     strerror(error));
}

/* Every address: through IPv6 when the machine has it, which takes IPv4 along. */
static adl_status listen_any(int port, int *out)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    adl_status status = bind_listen((struct sockaddr *)&six, sizeof six, out);
    if (status == ADL_OK || status == ADL_ESTATE)
        return status;
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    return bind_listen((struct sockaddr *)&four, sizeof four, out);
}

adl_status adli_sock_listen(const char *addr, int port, int *fd, int *bound_port)
{
    *fd = -1;
    adl_status status;
    if (!addr) {
        status = listen_any(port, fd);
    } else {
        struct addrinfo *found;
        status = adli_sock_resolve(addr, port, &found);
        if (status == ADL_OK) {
            status = bind_listen(found->ai_addr, found->ai_addrlen, fd);
            freeaddrinfo(found);
        }
    }
    if (status != ADL_OK || !bound_port)
        return status;
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    char host[INET6_ADDRSTRLEN];
    bool six;
    getsockname(*fd, (struct sockaddr *)&address, &length);
    unmap((struct sockaddr *)&address, host, sizeof host, bound_port, &six);
    return ADL_OK;
}

adl_status adl_group_listen(const char *addr, int port, int *fd, int *bound_port)
{
    if (port < 0 || port > 65535)
        return adli_fail(ADL_EINVAL, "listen: port %d is not within 0..65535", port);
    adl_status status = adli_sock_listen(addr, port, fd, bound_port);
    return status == ADL_ESTATE ? ADL_ENET : status;
}

/* The kernel's keep-alives notice a machine that vanished where no heartbeats of ours are sent: while
 * a group forms, and on the ring. */
static void set_stream_options(int fd)
{
    int one = 1, idle_s = 5, interval_s = 5, probes = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

adl_status adli_sock_connect(const struct addrinfo *to, int *out)
{
    *out = -1;
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return adli_fail(ADL_ENET, "socket: %s", strerror(errno));
    set_stream_options(fd);
    if (connect(fd, to->ai_addr, to->ai_addrlen) == 0 || errno == EINPROGRESS) {
        *out = fd;
        return ADL_OK;
    }
    adl_status status = adli_fail(ADL_ENET, "%s", strerror(errno));
    close(fd);
    return status;
}

/* A port of this machine that nobody listens on can, by the rules of TCP, be connected to itself
 * when the kernel happens to pick it as the near end's; that is no peer. */
static bool connected_to_itself(int fd)
{
    struct sockaddr_storage near = {0}, far = {0};
    socklen_t near_length = sizeof near, far_length = sizeof far;
    return getsockname(fd, (struct sockaddr *)&near, &near_length) == 0 &&
           getpeername(fd, (struct sockaddr *)&far, &far_length) == 0 &&
           near_length == far_length && memcmp(&near, &far, near_length) == 0;
}

adl_status adli_sock_connected(int fd)
{
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
        error = errno;
    if (error == 0 && connected_to_itself(fd))
        error = ECONNREFUSED;
    return error == 0 ? ADL_OK : adli_fail(ADL_ENET, "%s", strerror(error));
}

adl_status adli_sock_accept(int listener, int *out)
{
    *out = -1;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        set_stream_options(fd);
        *out = fd;
        return ADL_OK;
    }
    switch (errno) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
    case EBADF:
    case EINVAL:
    case ENOTSOCK:
        return adli_fail(ADL_ENET, "accept: %s", strerror(errno));
    default: /* nobody there, or gone again (accept(2): errors of the new connection) */
        return ADL_OK;
    }
}
