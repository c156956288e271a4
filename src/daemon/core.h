/* The scheduler daemon without its network face: jobs, nodes, rounds, the store and the backend, behind
 * functions that take and give JSON. The HTTP API (api.c) is a thin layer over this header, and so are
 * the tests.
 *
 * One thread, the controller, owns the backend, the rounds and the life-cycles; it starts with
 * adli_core_start. Everything here may be called from any thread; calls take one lock for as long as
 * they copy a few values (a call that changes something: for one commit of the store).
 *
 * What is promised: a change that was answered with ADL_OK is on disk. Statuses: EINVAL the request is
 * wrong (400), ENOENT no such thing (404), ESTATE it exists already or does not fit (409), EIO the store
 * failed (500; nothing was changed), ETIMEOUT a long poll ended without an answer (408). */
#ifndef ADLI_CORE_H
#define ADLI_CORE_H

#include "backend/backend.h"
#include "store/store.h"
#include "base/buf.h"
#include "base/shared.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct adli_core adli_core;

struct adli_store_job; /* store/store.h */

/* What a job has beside its row, for whoever mirrors it; NAN: not known. */
typedef struct adli_mirrored {
    int ready;
    double batch_size, goodput, speedup;
} adli_mirrored;

/* Another place that must have everything before it is committed, and so before it is done: the API server of a
 * cluster. Called by the controller. */
typedef struct adli_core_mirror {
    /* A row of the next commit, whole; borrowed. Under the core's lock: it takes what it needs. */
    void (*put)(void *user, const struct adli_store_job *row, const adli_mirrored *more);
    /* Something of the job that people should see, with the next commit; it may be lost. bad: it is no good news. */
    void (*tell)(void *user, const char *uid, const char *ns, const char *name, const char *reason,
                 const char *note, bool bad);
    /* Writes what was put. A failure: nothing is committed, and all is put again later. */
    adl_status (*commit)(void *user);
    /* What jobs have learned, as text. */
    adl_status (*keep_pool)(void *user, const char *text);
    /* A new job's "token" or "secret", the same whenever it is asked for: 32 digits. Any thread. */
    void (*secret)(void *user, const char *what, const char *uid, char out[33]);
    int64_t (*requests)(void *user); /* sent to wherever that is, so far; any thread */
    void *user;
} adli_core_mirror;

typedef struct adli_core_options {
    const char *state_dir;            /* jobs.sqlite and what belongs to it */
    adli_backend *backend;            /* borrowed */
    const struct adli_config *config; /* config/config.h: policy, interval, constants; copied */
    const char *supervisor_url; /* for the replicas: "http://127.0.0.1:PORT"; set before start by
                                   adli_core_set_supervisor when NULL */
    bool no_job_tokens;         /* replicas are given none */
    const adli_core_mirror *mirror; /* copied; NULL: the store is all there is */
} adli_core_options;

/* Opens the store and takes over what it and the backend hold. EIO, ECORRUPT: the store cannot be used;
 * the text names the file. */
ADL_MUST adl_status adli_core_new(const adli_core_options *options, adli_core **out);
void adli_core_set_supervisor(adli_core *core, const char *url);
/* Where the dashboard is, for Cluster.dashboard; NULL: nowhere. */
void adli_core_set_dashboard(adli_core *core, const char *url);
/* Settings that the daemon keeps in the store ("supervisor-port"). value: "" when it was never set. */
ADL_MUST adl_status adli_core_set(adli_core *core, const char *key, const char *value);
/* EIO: the database was removed or replaced under us; what it held was saved beside it. Nothing that is
 * answered from now on would be remembered. */
ADL_MUST adl_status adli_core_check_store(adli_core *core);
/* Holds some of the disk in reserve from now on, for the time when it is full. */
ADL_MUST adl_status adli_core_keep_room(adli_core *core);
/* Looks how much room there is; every few seconds. Any thread. */
void adli_core_look_at_room(adli_core *core);
/* EIO: the disk is full; the text says what to do. */
ADL_MUST adl_status adli_core_check_room(adli_core *core);
ADL_MUST adl_status adli_core_get(adli_core *core, const char *key, char *value, size_t size);
/* The controller thread. */
ADL_MUST adl_status adli_core_start(adli_core *core);
/* Runs function(user) on the controller's thread, to which the backend belongs, and waits for it. On the
 * caller's when the controller does not run. */
void adli_core_call(adli_core *core, void (*function)(void *user), void *user);
/* Stops the controller and leaves the replicas running; wakes all that wait. */
void adli_core_stop(adli_core *core);
void adli_core_free(adli_core *core);

/* ---- jobs (JSON shapes: docs/api.md) ---- */

/* body: a job file, JSON or YAML (yaml true). Appends the Job created. EINVAL names line and field;
 * ESTATE: the name is taken. dry_run: only checks. *known (may be NULL): a job with its own uid was
 * there already. */
ADL_MUST adl_status adli_core_submit(adli_core *core, const char *body, size_t length, bool yaml,
                                     bool dry_run, bool *known, adli_buf *out);
/* The same with files: a tar archive (src/image) whose first entry job.yaml or job.json is the job file
 * and whose entries below image/ are the files of its image; they become the job's "source" directory.
 * The archive is the caller's to remove. */
ADL_MUST adl_status adli_core_submit_archive(adli_core *core, const char *tar_path, bool dry_run,
                                             bool *known, adli_buf *out);
/* Which jobs, and what of them. */
typedef struct adli_list_query {
    const char *ns;     /* NULL: all */
    unsigned phases;    /* bits 1 << adl_phase; 0: all */
    const char *label;  /* "key" or "key=value"; NULL: any */
    const char *fields; /* "name,phase"; NULL: all */
    int limit;          /* 0: none */
    int64_t after;      /* from adli_list_continue; 0: from the beginning */
} adli_list_query;
/* {"items":[Job ...],"continue":text or null}, oldest first. Jobs that come or go while a list is read page by page are
 * in it or not; all others are, once. */
ADL_MUST adl_status adli_core_jobs(adli_core *core, const adli_list_query *query, adli_buf *out);
/* All of them, with a print: the same text for whoever asks until something of it changes. What goes on by itself in jobs
 * that run (device time, use, metrics) may be 0.1 s old. The caller drops it. */
ADL_MUST adl_status adli_core_all_jobs(adli_core *core, adli_shared **out);
/* What "continue" said. ESTATE: it was said by another daemon. */
ADL_MUST adl_status adli_list_continue(adli_core *core, const char *token, int64_t *after);
/* Asks for the end of all that match, in one commit: {"items":["ns/name" ...]}. */
ADL_MUST adl_status adli_core_delete_jobs(adli_core *core, const adli_list_query *query,
                                          adli_buf *out);
ADL_MUST adl_status adli_core_job(adli_core *core, const char *ns, const char *name, adli_buf *out);
/* Asks for its end; it disappears when its replicas are gone. Appends the Job as it is now. */
ADL_MUST adl_status adli_core_delete(adli_core *core, const char *ns, const char *name,
                                     adli_buf *out);
/* Asks for the job's end (its files stay), that it waits, or (NOTHING) that it goes on. ESTATE: it is over, or not
 * suspended. */
ADL_MUST adl_status adli_core_ask(adli_core *core, const char *ns, const char *name,
                                  adli_asked asked, adli_buf *out);
/* Submits the job once more, with its files, under a name of its own. ESTATE: the backend cannot copy them. */
ADL_MUST adl_status adli_core_rerun(adli_core *core, const char *ns, const char *name,
                                    adli_buf *out);
ADL_MUST adl_status adli_core_history(adli_core *core, const char *ns, const char *name,
                                      adli_buf *out);
/* The curves of the job's metrics, by name, each with about so many points at most. */
ADL_MUST adl_status adli_core_curves(adli_core *core, const char *ns, const char *name, int points,
                                     adli_buf *out);
/* The newest limit decisions about the job, or about all jobs when name is NULL. */
ADL_MUST adl_status adli_core_decisions(adli_core *core, const char *ns, const char *name,
                                        int limit, adli_buf *out);

/* ---- files and logs ---- */

/* A file or directory of a job, as open_file of its backend. */
ADL_MUST adl_status adli_core_open_file(adli_core *core, const char *ns, const char *name,
                                        const char *path, adli_opened *out);
/* What a follower of logs needs to know. */
typedef struct adli_log_state {
    int group;    /* the newest */
    int replicas; /* of that group */
    bool over;    /* Succeeded, Failed or deleted: nothing more will be written */
} adli_log_state;
ADL_MUST adl_status adli_core_log_state(adli_core *core, const char *ns, const char *name,
                                        adli_log_state *out);
/* The output of a member, as open_log of its backend. */
ADL_MUST adl_status adli_core_open_log(adli_core *core, const char *ns, const char *name, int group,
                                       int member, int *fd);

/* ---- replicas ---- */

/* Does the token belong to this job? Constant time. */
bool adli_core_token_valid(adli_core *core, const char *ns, const char *name, const char *token);
/* body: hints (PUT /hints). Unknown fields are dropped, bad types refused (EINVAL). */
ADL_MUST adl_status adli_core_hints(adli_core *core, const char *ns, const char *name,
                                    const char *body, size_t length);
/* body: metrics (PUT /reports), as in measures/measures.h. EINVAL. */
ADL_MUST adl_status adli_core_reports(adli_core *core, const char *ns, const char *name,
                                      const char *body, size_t length);
/* Appends the JSON list of addresses in rank order when all replicas of that group (numbered as the
 * replicas see it: ADAPTDL_NUM_RESTARTS) are ready; ETIMEOUT: not yet. Does not wait. */
ADL_MUST adl_status adli_core_discover(adli_core *core, const char *ns, const char *name,
                                       int restarts, adli_buf *out);

/* body: what a member says (PUT /world), train/opener.h. EINVAL. ENOMEM: too much at once. */
ADL_MUST adl_status adli_core_say(adli_core *core, const char *ns, const char *name,
                                  const char *body, size_t length);
typedef struct adli_world_asked {
    int64_t after, dropped; /* generations that are known already; -1: none */
    int restarts;           /* -1: any */
    const char *scheduler;  /* the one that answered last; NULL: it does not matter */
} adli_world_asked;
/* Appends the newest world of the job. ETIMEOUT: nothing is new. Does not wait. ESTATE: it was restarted since. */
ADL_MUST adl_status adli_core_world(adli_core *core, const char *ns, const char *name,
                                    const adli_world_asked *asked, adli_buf *out);
/* So many replicas from now on; 0: as the policy likes. Appends the Job. EINVAL: outside of its limits. ESTATE: it is
 * over, or not preemptible. */
ADL_MUST adl_status adli_core_pin(adli_core *core, const char *ns, const char *name, int replicas,
                                  adli_buf *out);

/* ---- nodes, cluster ---- */

ADL_MUST adl_status adli_core_nodes(adli_core *core, adli_buf *out);
/* Draining: its replicas go elsewhere (checkpoint first), nothing is started there. */
ADL_MUST adl_status adli_core_drain(adli_core *core, const char *node, bool drain, adli_buf *out);
/* Draining every node there is or comes, in one step that the store keeps: jobs save a checkpoint and
 * wait, no round is run. Nodes that were drained one by one stay so afterwards. Appends the Cluster. */
ADL_MUST adl_status adli_core_drain_all(adli_core *core, bool drain, adli_buf *out);
ADL_MUST adl_status adli_core_cluster(adli_core *core, adli_buf *out);
/* The snapshot of the last round and what was decided, docs/snapshots.md. ENOENT: there was no round yet, or it
 * was of so many jobs that it was not kept: the next one is. */
ADL_MUST adl_status adli_core_snapshot(adli_core *core, adli_buf *out);
ADL_MUST adl_status adli_core_metrics(adli_core *core, adli_buf *out);

/* ---- events ---- */

/* Appends, as one JSON object a line, the events after *seq (0: from the oldest kept), at most limit,
 * and sets *seq to the last. ns, name: only that job's; may be NULL. Does not wait. */
ADL_MUST adl_status adli_core_events(adli_core *core, const char *ns, const char *name, int limit,
                                     int64_t *seq, adli_buf *out);
/* Calls wake(user) from the controller, without its lock, whenever there is a new event or a replica's
 * state changed (long polls and streams then look again). One listener; NULL takes it away. */
void adli_core_listen(adli_core *core, void (*wake)(void *user), void *user);

#endif
