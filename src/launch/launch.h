/* Running a training program on several replicas, on this machine or over ssh on a few: `adaptdl run` and
 * `adaptdl scale`. The launcher does for one program what a scheduler does for many: it starts the replicas with the right
 * environment, stops them by SIGTERM when their number is to change, starts them again, and reports
 * the one that failed. */
#ifndef ADLI_LAUNCH_H
#define ADLI_LAUNCH_H

#include "base/buf.h"
#include "base/log.h"
#include "base/status.h"

#include <stdbool.h>

enum { ADLI_LAUNCH_REPLICAS_MAX = 1024 };

typedef struct adli_launch_options {
    char *const *argv; /* the program and its arguments, NULL at the end */
    int replicas;
    const char *checkpoint; /* directory, made if need be; NULL: as the environment says */
    int max_restarts;       /* after failures */
    double grace_s;         /* from SIGTERM to SIGKILL */
    const char *name;       /* of the run; NULL: made from the program's and the process id */
    const char *program;    /* what people call it; NULL: argv[0] */
    adl_log_level level;    /* of the launcher's own messages; from warnings on: failures only */
    const char *hosts;      /* "a,b": machines to run on, over ssh; NULL: this one */
    const char *ssh;        /* command that reaches them; NULL: ssh */
} adli_launch_options;

/* Runs the program to its end. Replicas' lines go to standard output and error, each after "[rank] ",
 * the launcher's own to standard error. The signals SIGINT, SIGTERM, SIGHUP and SIGCHLD belong to it
 * meanwhile. *exit_code: 0 all replicas finished; 143 stopped as asked; otherwise that of the replica
 * that failed first, 128 + N for signal N. EINVAL, ENOENT, EIO: nothing was started. */
ADL_MUST adl_status adli_launch(const adli_launch_options *options, int *exit_code);

/* Asks a run by its name for another number of replicas (0: only asks for its state). The run's answer
 * is one line. A run that saves no checkpoints would start again from its first step: it refuses unless
 * forced. ENOENT, EINVAL: there is or can be no run of that name; ESTATE: it refused; EIO: it does not
 * answer. */
ADL_MUST adl_status adli_launch_scale(const char *name, int replicas, bool force, adli_buf *answer);

#endif
