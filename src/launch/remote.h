/* A replica on another machine. Beside the launcher stands a process for it, which the launcher treats as the
 * replica itself: asked to stop by SIGTERM, ended by SIGKILL, its exit code is the replica's. It runs ssh, and
 * through ssh's standard input tells `adaptdl run --as-replica` at the other end (agent.h) what to start, by the
 * request below, and when to ask it to stop. The connection's end kills the replica: no orphans, whoever dies. */
#ifndef ADLI_LAUNCH_REMOTE_H
#define ADLI_LAUNCH_REMOTE_H

#include "base/buf.h"
#include "launch/hosts.h"

/* What is to be started. As bytes: a line with a magic word and the length of the rest, then strings, each with a
 * NUL at its end: replicas on the machine, directory, variables, an empty one, arguments, an empty one. */
typedef struct adli_request {
    int local_count; /* replicas on the machine, which share its processors */
    char *directory;
    char **variables; /* "NAME=value", NULL at the end */
    char **argv;      /* NULL at the end; at least one */
    char **lists;     /* owns both */
} adli_request;

enum { ADLI_REQUEST_MAX = 4 << 20, ADLI_REQUEST_HEAD = 32 };
#define ADLI_REQUEST_MAGIC "adaptdl-replica-1"
#define ADLI_REQUEST_STOP  "stop\n"

/* What to send for this process's directory and ADAPTDL_* variables; OMP_NUM_THREADS goes along if it is set.
 * ADAPTDL_TOKEN, which opens a cluster, does not. */
ADL_MUST adl_status adli_request_write(adli_buf *out, int local_count, char *const *argv);
/* The length from the first line; -1: it is none of ours. */
long adli_request_length(const char *head);
/* Reads the strings, in place: the request points into data, whose last byte is NUL. EINVAL says what is wrong. */
ADL_MUST adl_status adli_request_parse(char *data, size_t length, adli_request *out);
void adli_request_fini(adli_request *request);

/* Runs the program on the machine, in this process, which is the launcher's child. Does not return. */
_Noreturn void adli_remote_run(const adli_hosts *hosts, const adli_place *place, char *const *argv);

#endif
