/* TLS for the HTTP client, by OpenSSL: the server's certificate and name are always checked. The socket
 * stays the caller's, and never blocks here. */
#ifndef ADLI_HTTP_TLS_H
#define ADLI_HTTP_TLS_H

#include "base/status.h"

#include <stddef.h>
#include <sys/types.h>

typedef struct adli_trust adli_trust; /* the certificates to trust; one thread at a time */
typedef struct adli_tls adli_tls;     /* one connection */

/* The certificates of $ADAPTDL_CA; without it those of OpenSSL ($SSL_CERT_FILE, $SSL_CERT_DIR) and of the
 * system. Reads files. */
ADL_MUST adl_status adli_trust_new(adli_trust **out);
void adli_trust_free(adli_trust *trust);

/* A connection over a connected, non-blocking socket, to a server that must prove that it is host (a
 * name or an address). */
ADL_MUST adl_status adli_tls_new(adli_trust *trust, int fd, const char *host, adli_tls **out);
void adli_tls_free(adli_tls *tls);

/* As send and recv, the handshake included: -1 and errno EAGAIN with *events what to poll for, or -1 and
 * errno EPROTO with adl_error() saying why. A peer that vanishes without saying so is an error. */
ssize_t adli_tls_send(adli_tls *tls, const void *data, size_t length, short *events);
ssize_t adli_tls_receive(adli_tls *tls, void *data, size_t length, short *events);

#endif
