/* Sockets as the rest of comm wants them: non-blocking, closed on exec, with addresses as text for
 * messages. Times are milliseconds of the monotonic clock. */
#ifndef ADLI_COMM_SOCK_H
#define ADLI_COMM_SOCK_H

#include "base/status.h"

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum { ADLI_ADDRESS_TEXT = 64 };

int64_t adli_now_ms(void);
/* What is left until then, for poll: 0 when it has passed, at most limit. */
int adli_until_ms(int64_t then, int64_t now, int limit);

/* "10.0.0.7:80", "[::1]:80"; with_port false: without. IPv4 that came in through an IPv6 socket is
 * shown as IPv4. */
void adli_sock_text(const struct sockaddr *address, bool with_port, char out[ADLI_ADDRESS_TEXT]);
/* The far or the near end of a connected socket. */
void adli_sock_peer(int fd, char out[ADLI_ADDRESS_TEXT]);
ADL_MUST adl_status adli_sock_local(int fd, char out[ADLI_ADDRESS_TEXT]);

/* The addresses of a name. *out is freed with freeaddrinfo. Blocks as long as the resolver does. */
ADL_MUST adl_status adli_sock_resolve(const char *host, int port, struct addrinfo **out);
/* Is every address of this name one of this machine's loopback? */
bool adli_sock_loopback(const char *host);

/* A listening socket; addr NULL: every address, IPv4 and IPv6. ADL_ESTATE when the port is taken,
 * ADL_ENET for everything else. */
ADL_MUST adl_status adli_sock_listen(const char *addr, int port, int *fd, int *bound_port);
/* Starts to connect; *fd is usable when poll says POLLOUT and adli_sock_connected says ADL_OK. */
ADL_MUST adl_status adli_sock_connect(const struct addrinfo *to, int *fd);
ADL_MUST adl_status adli_sock_connected(int fd);
/* The next connection, or *fd == -1 when there is none. */
ADL_MUST adl_status adli_sock_accept(int listener, int *fd);

#endif
