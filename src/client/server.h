/* Which scheduler a command talks to: the socket in the state directory of this machine, or what
 * --server and the environment say. */
#ifndef ADLI_CLIENT_SERVER_H
#define ADLI_CLIENT_SERVER_H

#include "base/status.h"

#include <stdbool.h>

/* All texts are the struct's own. */
typedef struct adli_server {
    char *url;         /* "http://HOST:PORT"; for a socket "http://localhost" */
    char *socket_path; /* NULL: TCP */
    char *token;       /* NULL: none */
    char *ca_file;     /* certificates to trust; NULL: the system's */
    /* of a Kubernetes API server; PEM texts, NULL: none */
    char *ca, *certificate, *key;
    char *own_token; /* the scheduler's, where the API server takes Authorization; NULL: none */
    bool insecure;   /* the certificate is not checked */
} adli_server;

/* address: "unix:PATH", "http://HOST:PORT" or "https://HOST:PORT"; NULL: $ADAPTDL_SERVER, else
 * the socket of the state directory. state: NULL: the default (adli_state_dir). ca_file:
 * NULL: $ADAPTDL_CA or the system's. The token comes from $ADAPTDL_TOKEN. EINVAL names what is
 * wrong. On failure *out is empty. Not thread-safe against setenv; does not block. */
ADL_MUST adl_status adli_server_init(adli_server *out, const char *address, const char *state,
                                     const char *ca_file);
void adli_server_fini(adli_server *server);

#endif
