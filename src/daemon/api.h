/* The network face of the daemon: docs/api.md over core.h. Three doors:
 *   - a Unix socket, mode 0600: whoever may open it is an operator;
 *   - TCP for operators and browsers, with a token, TLS when a certificate is given;
 *   - TCP on loopback for the replicas: /discover, /hints, /healthz and /readyz only, each with its job's token.
 */
#ifndef ADLI_API_H
#define ADLI_API_H

#include "daemon/core.h"
#include "httpd/httpd.h"

typedef struct adli_api adli_api;

typedef struct adli_api_options {
    adli_core *core;         /* borrowed until adli_api_free */
    const char *socket_path; /* NULL: no Unix socket */
    const char *listen;   /* "ADDR:PORT", "[ADDR]:PORT", port 0: any; NULL: no TCP for operators */
    const char *token;    /* needed with listen */
    const char *tls_cert; /* PEM files; both or none */
    const char *tls_key;
    const char *const *hosts;   /* names besides IP addresses and localhost that the Host header may
                                   carry, NULL at the end; NULL: none */
    const char *replica_listen; /* "127.0.0.1:PORT"; NULL: no door for replicas */
    const char *const *replica_hosts; /* names that replicas know it by, as hosts */
    bool any_host;                    /* whoever comes through a proxy names that one */
    bool read_only;                   /* jobs and nodes are changed elsewhere, by kubectl */
    bool open_to_replicas;    /* at their door nobody needs a token for what is a job's own */
    bool replica_port_any;    /* when that port is taken, any other will do */
    const char *upload_dir;   /* for archives while they are received; needed */
    adli_httpd_limits limits; /* of the doors for operators; ADLI_HTTPD_LIMITS */
    int64_t body_bytes_max;   /* of a job file; 0: 1 MiB */
    int64_t upload_bytes_max; /* of an archive; 0: 1 GiB */
} adli_api_options;

/* Opens the doors and serves. Nothing blocks but name look-up of `listen`. EINVAL: an address, a
 * certificate; ESTATE: somebody else listens there; EIO. The texts name which. */
ADL_MUST adl_status adli_api_new(const adli_api_options *options, adli_api **out);
/* What /readyz says: not ready until this is called. Any thread. */
void adli_api_set_ready(adli_api *api, bool ready);
/* The ports in use; 0 when that door is closed. Any thread. */
int adli_api_port(const adli_api *api);
int adli_api_replica_port(const adli_api *api);
/* No new requests; those under way are finished, streams and long polls end. Takes a few seconds at
 * most. Then frees; the socket's file is removed. */
void adli_api_free(adli_api *api);

#endif
