/* What the scheduler must not forget, in one SQLite file: jobs, drained nodes, rounds, decisions,
 * events, samples. Knows nothing of scheduling: rows in, rows out.
 *
 * Changes are made in transactions. Between begin and commit, calls remember their first failure and
 * commit reports it; then nothing at all was changed. ADL_OK from commit means that it is on disk.
 *
 * Threads: any. One transaction at a time (begin waits for the one before); readers have a connection
 * of their own and wait for no writer. */
#ifndef ADLI_STORE_H
#define ADLI_STORE_H

#include "adaptdl/account.h"
#include "base/buf.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct adli_store adli_store;

/* Opens or creates the file. ECORRUPT: not a database of ours, damaged, or written by a later version;
 * EINVAL: a link, or another user's file; ENOENT, EIO: cannot be opened or written. The text names the file, which is left as it is. */
ADL_MUST adl_status adli_store_open(const char *path, adli_store **out);
void adli_store_close(adli_store *store);

/* ---- copies (backup.c) ---- */

/* A consistent copy of the database, which may be in use, as one file. ESTATE: `to` exists. */
ADL_MUST adl_status adli_store_backup(const char *path, const char *to, bool overwrite);
/* Puts a copy in the place of the database, which nobody may have open; what was there before stays as
 * PATH.before-restore. ECORRUPT: `from` is damaged, not ours, or of a later version: nothing changes. */
ADL_MUST adl_status adli_store_restore(const char *from, const char *path);
/* Is the open file still where it was opened? */
bool adli_store_present(const adli_store *store);
/* Copies what is open to `to`, though its name may be gone. */
ADL_MUST adl_status adli_store_rescue(adli_store *store, const char *to);

void adli_store_begin(adli_store *store);
ADL_MUST adl_status adli_store_commit(adli_store *store);
void adli_store_rollback(adli_store *store);
/* Blocks of the disk for the next so many bytes that are written: commits do not need more while the disk is full. Again
 * and again: does nothing while it has them. Where the file system cannot, nothing is held. */
void adli_store_hold(adli_store *store, int64_t bytes);

/* What its user has asked for, as it is in the file; the last counts. */
typedef enum adli_asked {
    ADLI_ASKED_NOTHING,
    ADLI_ASKED_DELETE,
    ADLI_ASKED_CANCEL,
    ADLI_ASKED_SUSPEND,
} adli_asked;

/* One job. Texts are borrowed on the way in, and on the way out during the callback; NULL is "". */
typedef struct adli_store_job {
    /* given once */
    const char *uid, *ns, *name, *spec, *token, *secret;
    double created_s;
    /* its life */
    int phase, group, failures;
    bool killed;
    adli_asked asked; /* by adli_store_mark only */
    double group_started_s, stop_since_s, retry_at_s;
    const char *wanted, *placed;   /* JSON lists of node names */
    double started_s, completed_s; /* 0: not yet */
    const char *reason, *message;
    adl_account account;
    /* what it reported: set by adli_store_hints only */
    const char *hints;
    double restart_cost_s;
    int reports_restart; /* by adli_store_report_restart; -1: never */
    /* resizing in place */
    const char *world;    /* its processes and worlds as JSON; "": as it was started */
    const char *resized;  /* how its size was last changed, for people */
    double resize_cost_s; /* measured; 0: never */
    int pin;              /* replicas, by adli_store_pin; 0: as the policy likes */
} adli_store_job;

/* A new job; uid, and namespace with name, must be new. */
void adli_store_add_job(adli_store *store, const adli_store_job *job);
/* Everything about its life, by uid. */
void adli_store_save_job(adli_store *store, const adli_store_job *job);
void adli_store_hints(adli_store *store, const char *uid, const char *hints, double restart_cost_s);
void adli_store_mark(adli_store *store, const char *uid, adli_asked asked);
void adli_store_pin(adli_store *store, const char *uid, int replicas);
/* With its decisions and samples. */
void adli_store_remove_job(adli_store *store, const char *uid);
/* All jobs in order of submission. A failure of each ends it. */
ADL_MUST adl_status adli_store_jobs(adli_store *store,
                                    adl_status (*each)(void *user, const adli_store_job *job),
                                    void *user);
/* Appends what was submitted. ENOENT: no such job. */
ADL_MUST adl_status adli_store_spec(adli_store *store, const char *uid, adli_buf *out);

void adli_store_drain(adli_store *store, const char *node, bool drained);
ADL_MUST adl_status adli_store_drained(adli_store *store,
                                       adl_status (*each)(void *user, const char *node),
                                       void *user);

void adli_store_set(adli_store *store, const char *key, const char *value);
/* value: "" when it was never set. */
ADL_MUST adl_status adli_store_get(adli_store *store, const char *key, char *value, size_t size);

/* job: "namespace/name" or "". fields: more of the event, the members of a JSON object ("\"phase\":\"Running\"");
 * NULL or "": none. Returns its number, 0 when the transaction has failed. */
int64_t adli_store_event(adli_store *store, double time_s, const char *type, const char *job,
                         const char *message, const char *fields);
void adli_store_round(adli_store *store, int64_t round, double time_s, double duration_s, int jobs,
                      int changed);
/* text: the decision as JSON. */
void adli_store_decision(adli_store *store, const char *uid, int64_t round, const char *text);
typedef struct adli_store_sample {
    double time_s;
    int phase, replicas;
    double batch_size, throughput, efficiency, goodput, progress; /* NAN: unknown */
} adli_store_sample;
void adli_store_add_sample(adli_store *store, const char *uid, const adli_store_sample *sample);

/* A metric of a job at a step. count: how many there are of it, where that was asked for. */
typedef struct adli_store_value {
    int64_t step;
    double time_s, value; /* value: NAN is kept as such */
    int count;
} adli_store_value;
typedef adl_status adli_store_each_value(void *user, const char *uid, const char *name,
                                         const adli_store_value *value);
/* Sets the value at its step. */
void adli_store_report(adli_store *store, const char *uid, const char *name,
                       const adli_store_value *value);
/* The restart of the replicas that told last. */
void adli_store_report_restart(adli_store *store, const char *uid, int restart);
/* Forgets the values from the step on. */
void adli_store_report_from(adli_store *store, const char *uid, const char *name, int64_t step);
/* Forgets every second value; the first and the last stay. */
void adli_store_report_thin(adli_store *store, const char *uid, const char *name);
/* Every value of a job, by name and step. A failure of each ends it. */
ADL_MUST adl_status adli_store_reports(adli_store *store, const char *uid,
                                       adli_store_each_value *each, void *user);
/* The last value of each metric, and how many there are; uid NULL: of all jobs. By uid and name. */
ADL_MUST adl_status adli_store_report_ends(adli_store *store, const char *uid,
                                           adli_store_each_value *each, void *user);

/* Keeps the newest so many; within a transaction. */
typedef struct adli_store_limits {
    int events, rounds, decisions_per_job, samples_per_job;
} adli_store_limits;
void adli_store_prune(adli_store *store, const adli_store_limits *limits);

/* Appends one JSON object a line: the events after *seq, at most limit; job "" is all. */
ADL_MUST adl_status adli_store_events(adli_store *store, const char *job, int limit, int64_t *seq,
                                      adli_buf *out);
/* Appends the newest decisions, newest first, separated by commas; uid NULL: of all jobs. */
ADL_MUST adl_status adli_store_decisions(adli_store *store, const char *uid, int limit,
                                         adli_buf *out);
/* Oldest first. */
ADL_MUST adl_status adli_store_samples(adli_store *store, const char *uid,
                                       void (*each)(void *user, const adli_store_sample *sample),
                                       void *user);

typedef struct adli_store_stats {
    int64_t last_event, last_round;
    int64_t commits, failed_commits;
    double commit_s; /* in all commits together */
} adli_store_stats;
adli_store_stats adli_store_look(adli_store *store);

/* ---- tests only ---- */

typedef enum adli_store_fault_kind {
    ADLI_FAULT_NONE,
    ADLI_FAULT_KILL, /* SIGKILL to ourselves before the operation */
    ADLI_FAULT_TORN, /* half of a write is done, then SIGKILL */
    ADLI_FAULT_EIO,
    ADLI_FAULT_FULL,
} adli_store_fault_kind;

/* The nth operation (1 = the next) that writes, syncs, cuts or deletes a file of a store does this, and
 * so do the count - 1 after it. Call first before any store is opened. */
void adli_store_fault(adli_store_fault_kind kind, int64_t nth, int64_t count);
/* Such operations so far. */
int64_t adli_store_operations(void);

#endif
