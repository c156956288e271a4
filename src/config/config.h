/* The daemon's one configuration file: every constant, its default and its range in one table
 * (config.c), from which the reader, the printer and docs/config.md come. */
#ifndef ADLI_CONFIG_H
#define ADLI_CONFIG_H

#include "base/buf.h"
#include "doc/doc.h"
#include "jobspec/nodes.h"

enum { ADLI_CONFIG_FILE_MAX = 1 << 20, ADLI_CONFIG_PARAMETERS_MAX = 64 };

typedef struct adli_config_parameter {
    char name[64];
    double value;
    int line; /* where it stands, for the message of whoever checks it; 0: not from a file */
} adli_config_parameter;

/* All texts are the struct's own, never NULL; "" where nothing is set. */
typedef struct adli_config {
    char *source; /* the file; "" when there is none */

    char *policy;                      /* "": the default one */
    char *backend;                     /* "": the default one */
    adli_config_parameter *parameters; /* for adl_policy_set */
    size_t parameter_count, parameter_capacity;

    double interval_s;    /* between allocation rounds */
    double event_delay_s; /* rounds that events ask for are at least this far apart */
    bool start_at_once;   /* a new job that fits starts without waiting for a round */
    bool share_models;    /* jobs of one application learn from each other */
    double grace_s;       /* from SIGTERM to SIGKILL */
    int max_retries;      /* after failures of the job's own */
    double retry_pause_s; /* doubled with every failure */

    char *listen;         /* "ADDRESS:PORT" or "[ADDRESS]:PORT"; "": Unix socket only */
    bool listen_insecure; /* without TLS on addresses that other machines reach */
    char *tls_certificate, *tls_key;
    char *token_file;
    char *namespace_users; /* "NAMESPACE=USER, ..."; "": all jobs run as the daemon's user */

    struct {
        int64_t max_body_bytes;   /* of a request */
        int64_t max_upload_bytes; /* of a job with its files */
        int64_t max_header_bytes;
        int max_connections;
        double requests_per_second; /* of one client; 0: no limit */
        int burst;                  /* requests at once before that counts */
        double idle_s;              /* a connection on which nothing moves is closed */
        int64_t max_log_bytes;      /* kept of a replica's output, and of daemon.log; 0: all */
        int64_t reserve_bytes;      /* of the disk, for when it is full */
    } limits;

    struct {
        int events;            /* kept in all */
        int decisions_per_job; /* kept for each job */
        int samples_per_job;
        int finished_jobs; /* kept in all; the oldest are removed with their files */
    } store;
    double history_s; /* between samples of a job */
    double use_s;     /* between looks at what replicas use; 0: none */

    struct {
        char *ns;         /* whose jobs; "": all */
        char *listen;     /* where pods reach the scheduler */
        char *supervisor; /* the URL that they are told; "": that of the service */
        char *webhook;    /* where the API server reaches the admission webhook */
        char *api;        /* where people reach it through the API server; "": nowhere */
        bool tokens;      /* replicas must show that of their job */
        char *resources;  /* of jobs that name none, as JSON; "": none */
        char *pod_patch, *container_patch; /* JSON patches to each; "": none */
    } kubernetes;

    struct {
        int min_nodes, max_nodes; /* max_nodes 0: none is added */
        double low_utility, high_utility;
        double node_price, budget; /* per hour */
        char *image;               /* of placeholders; "": the operator's own */
        char *selector;            /* "KEY=VALUE,...": labels of nodes that are added */
    } autoscale;

    adli_nodes nodes; /* none: this machine as it is */
    char *nodes_file; /* already read into nodes */
} adli_config;

/* All defaults. Always call adli_config_fini at the end, whatever failed. ENOMEM only. */
ADL_MUST adl_status adli_config_defaults(adli_config *out);
/* Defaults, then the file's fields. EINVAL names file, line and field; *out is then empty. */
ADL_MUST adl_status adli_config_load(const char *path, adli_config *out);
ADL_MUST adl_status adli_config_parse(const char *source, const char *text, size_t length,
                                      adli_doc_format format, adli_config *out);
ADL_MUST adl_status adli_config_copy(const adli_config *from, adli_config *out);
void adli_config_fini(adli_config *config);

/* Appends the complete file with a comment on every field; reading it gives an equal configuration.
 */
ADL_MUST adl_status adli_config_print(const adli_config *config, adli_buf *out);
/* Appends the fields as a Markdown table: the body of docs/config.md. */
ADL_MUST adl_status adli_config_document(adli_buf *out);

#endif
