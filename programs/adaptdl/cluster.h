/* What the cluster commands share: one connection to the scheduler, its answers as JSON, its
 * refusals as one line and an exit status, and the names of jobs. */
#ifndef ADAPTDL_CLUSTER_H
#define ADAPTDL_CLUSTER_H

#include "cli.h"

#include "client/stream.h"

#include <jansson.h>

typedef struct job_name {
    char ns[64], name[64];
} job_name;

struct kube;

typedef struct cluster {
    const cli *cli;
    struct kube *kube; /* NULL: no Kubernetes */
    char ns[64];       /* of jobs that are named without one */
    adli_server server;
    adli_streams *streams;
    adli_buf answer; /* the last */
    int code;        /* its status */
    int told;        /* a message was shown in the place of an answer: its exit status; 0: none */
    job_name asked;  /* the last that the user named; "": none */
} cluster;

/* EXIT_DONE, or the exit status of a message that was shown. Call cluster_close whatever the
 * result. */
int cluster_open(cluster *k, const cli *c);
/* The same for commands that work on a cluster of this machine only. */
int cluster_open_local(cluster *k, const cli *c);
void cluster_close(cluster *k);
/* Before a stream is opened without cluster_request: what reads need. EXIT_DONE, or a message was shown. */
int cluster_reach(cluster *k);

/* One exchange. *out (may be NULL): the answer, json_decref. EXIT_DONE, or a message was shown.
 * A status of 400 and more is a failure, but for `accept` (0: none), with *out NULL then;
 * k->code tells. */
/* All jobs that the query ("namespace=x&fields=name") names, page by page: {"items": [...]}. */
int cluster_list(cluster *k, const char *query, json_t **out);
int cluster_ask(cluster *k, const char *method, const char *path, int accept, json_t **out);
/* The same with a request of the caller's. */
int cluster_request(cluster *k, const adli_stream_request *request, int accept, json_t **out);

/* Tells about a failed exchange: status is what the client said (ADL_OK: look at code and
 * answer). */
int cluster_failed(const cluster *k, adl_status status, int code, const adli_buf *answer);
/* GET without a word: what the client says; k->code and k->answer hold the rest. */
ADL_MUST adl_status cluster_look(cluster *k, const char *path, int timeout_ms);
/* k->answer as JSON. EXIT_DONE, or a message was shown. */
int cluster_parse(const cluster *k, json_t **out);

/* "NAME" or "NS/NAME"; the namespace of -N otherwise. */
int cluster_job_name(cluster *k, const char *text, job_name *out);
/* "; did you mean NAME?" when there is no such job but one of a similar name, else "". */
const char *job_hint(const cluster *k, const job_name *job, char out[HINT_TEXT]);
/* The path of a job, "/api/v1/jobs/NS/NAME" and what follows. */
enum { PATH_TEXT = 512 };
const char *job_path(const job_name *job, const char *rest, char *out);
/* Appends text, percent-encoded. */
void put_encoded(adli_buf *out, const char *text);

/* Prints a value as the user wants it (FORMAT_JSON or FORMAT_YAML). */
int print_value(const cli *c, const json_t *value);

/* Fields of an answer, with what to take when they are absent or of another type. */
const char *text_of(const json_t *object, const char *field, const char *absent);
double number_of(const json_t *object, const char *field); /* NAN */
int whole_of(const json_t *object, const char *field);     /* 0 */
bool true_of(const json_t *object, const char *field);

/* Is the job over? */
bool phase_over(const char *phase);

/* CTRL-C is noticed instead of fatal. */
void catch_interrupts(void);
bool interrupted(void);
/* Sleeps, less when interrupted. */
void pause_ms(int milliseconds);

#endif
