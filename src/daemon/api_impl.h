/* What the files of the API share: the object, and small helpers for handlers. */
#ifndef ADLI_API_IMPL_H
#define ADLI_API_IMPL_H

#include "daemon/api.h"
#include "httpd/limit.h"

#include <stdatomic.h>

enum { DOOR_SOCKET, DOOR_TCP, DOOR_REPLICAS, DOORS };
enum { OPERATORS = 1 << DOOR_SOCKET | 1 << DOOR_TCP, EVERYONE = OPERATORS | 1 << DOOR_REPLICAS };

/* Who may use a route. */
enum {
    ACCESS_OPEN,     /* anybody */
    ACCESS_OPERATOR, /* the operators' token */
    ACCESS_JOB,      /* that, or the token of the job that the path names */
};

struct adli_api {
    adli_core *core;
    adli_httpd *httpd;
    char *token; /* NULL: no door needs it */
    char *upload_dir;
    int64_t body_bytes_max, upload_bytes_max;
    int port, replica_port;
    bool read_only, open_to_replicas;
    atomic_bool ready;
    double started_s;
    adli_limit *job_limit; /* requests of one job's replicas */
};

enum { API_ANSWER_MAX = 64 << 20 };

/* 200 (or code) with the document, or the error that the status stands for. Empties out. */
void adli_api_answer(adli_httpd_request *request, adl_status status, int code, adli_buf *out);
/* The error that the status stands for, with adl_error() as message. */
void adli_api_answer_failure(adli_httpd_request *request, adl_status status);
/* A whole number of the query. False: it was wrong and 400 was answered. */
bool adli_api_query_int(adli_httpd_request *request, const char *name, int64_t low, int64_t high,
                        int64_t absent, int64_t *out);
bool adli_api_query_bool(adli_httpd_request *request, const char *name, bool *out);

/* The handlers; user is the adli_api. */
typedef adli_httpd_verdict adli_api_handler(void *user, adli_httpd_request *request);
adli_api_handler adli_api_list_jobs, adli_api_delete_jobs, adli_api_submit, adli_api_job,
    adli_api_delete, adli_api_cancel, adli_api_suspend, adli_api_resume, adli_api_rerun,
    adli_api_history, adli_api_job_decisions, adli_api_decisions, adli_api_logs, adli_api_files,
    adli_api_snapshot, adli_api_nodes, adli_api_drain, adli_api_undrain, adli_api_drain_all,
    adli_api_undrain_all, adli_api_cluster, adli_api_metrics, adli_api_healthz, adli_api_readyz,
    adli_api_events, adli_api_discover, adli_api_hints, adli_api_reports, adli_api_world,
    adli_api_say, adli_api_scale, adli_api_curves, adli_api_page, adli_api_asset;

/* What kind of job file this is; false: a Content-Type that is none. */
bool adli_api_job_type(const adli_httpd_request *request, bool *yaml, bool *archive);

#endif
