/* The daemon as a whole: a state directory that belongs to one process, a backend, the core, the
 * API, signals. programs/adaptdl-sched reads flags and calls this; tests call it with faults set. */
#ifndef ADLI_DAEMON_H
#define ADLI_DAEMON_H

#include "config/config.h"

typedef struct adli_daemon_options {
    const char *state_dir; /* NULL: adli_state_dir */
    const char *socket;    /* NULL: STATE/adaptdl.sock */
    const adli_config *config;
    bool background; /* standard error goes to a log, the other two to nowhere, once the directory
                             is ours */
    const char *log_path; /* NULL: STATE/daemon.log */
    /* SIGHUP: declares the nodes anew; NULL: they stay as they are */
    adl_status (*read_nodes)(void *user, adli_nodes *out);
    void *read_nodes_user;
    /* Called once when everything is served; may be NULL. url: "unix:PATH" */
    void (*ready)(void *user, const char *url, const char *dashboard);
    void *ready_user;
    /* Kubernetes, on a thread of ours: somebody else may lead from now on. Nothing may be done any more, so the process
     * is begun anew here, or ended; it ends when this returns. May be NULL. */
    void (*lost)(void *user);
    void *lost_user;
} adli_daemon_options;

/* Serves until SIGTERM or SIGINT, then leaves the replicas running. Blocks these signals and SIGHUP for
 * good. Writes its log where adli_log_start said. ESTATE: another daemon uses the directory. */
ADL_MUST adl_status adli_daemon_run(const adli_daemon_options *options);

#endif
