/* Opening doors: Unix sockets that only we may use, TCP addresses, and the files of TLS, with errors that
 * say what is wrong before the first client finds out. */
#ifndef ADLI_HTTPD_LISTEN_H
#define ADLI_HTTPD_LISTEN_H

#include "base/buf.h"

/* A listening socket at path, mode 0600. What a dead server left there is replaced. ESTATE: a living one
 * answers. */
ADL_MUST adl_status adli_listen_unix(const char *path, int *fd);
/* "ADDR:PORT", "[ADDR6]:PORT", "NAME:PORT". ESTATE: the port is taken. */
ADL_MUST adl_status adli_listen_tcp(const char *address, int *fd, int *port);
/* Reads certificate (chain) and key and checks that they belong together. */
ADL_MUST adl_status adli_listen_tls(const char *cert_path, const char *key_path, adli_buf *cert,
                                    adli_buf *key);

#endif
