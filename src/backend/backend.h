/* The seam between the scheduler and what runs replicas. The scheduler says which members of which job should
 * run where; a backend starts them, watches them and tells what became of them. `local` runs them as
 * processes on this machine, `kubernetes` as pods of a cluster. Every backend passes
 * tests/conformance.
 *
 * What runs is a member: one process of a job, named by (uid, group, member) for ever. The group counts the
 * job's full starts, from 1; the member counts who was ever started in that group, from 0. A rank is
 * something else: a member's place among those that train together at the moment, which a job that is
 * resized while it runs may change.
 *
 * The rules that make a scheduler safe to kill at any instant:
 *   - start is idempotent: a member that was ever started under its name is never started again, whoever
 *     asks, whenever;
 *   - what is running outlives the scheduler, and a new backend object on the same state finds it again, with
 *     the results of whatever ended meanwhile;
 *   - results stay until forget.
 *
 * Threads: a backend belongs to one thread, except event_fd's descriptor and the job's files (put_source,
 * copy_source, open_log, open_file), which any thread may ask for, and use, which is for one thread, whichever. No call blocks for longer than a process start. */
#ifndef ADLI_BACKEND_H
#define ADLI_BACKEND_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct adli_backend adli_backend;
struct adli_nodes; /* jobspec/nodes.h */

enum { ADLI_NODE_RESOURCES_MAX = 8, ADLI_MEMBERS_MAX = 4096, ADLI_ALL_MEMBERS = -1 };

/* What a node has for our jobs. Names and amounts as in job files: "cpu" in thousandths, "memory" in
 * bytes, "nvidia.com/gpu", "pods", any other by its own name. Texts are the backend's, valid until the
 * next call of nodes. */
typedef struct adli_backend_node {
    const char *name;
    const char *device_type; /* "" when unknown */
    const char *address;     /* where its replicas are reached */
    bool ready;              /* false: lost, or leaving: nothing is started there */
    bool preemptible;        /* a spot node */
    double price;            /* per hour; 0: not known */
    bool addable;            /* one of its kind is what scale adds */
    int resource_count;
    const char *resource_names[ADLI_NODE_RESOURCES_MAX];
    int64_t resource_amounts[ADLI_NODE_RESOURCES_MAX];
} adli_backend_node;

/* One member to be started. */
typedef struct adli_member_start {
    int member;
    int rank; /* its place in the world that it starts in */
    const char *node;
} adli_member_start;

/* Members of one group, all alike but for their ranks: the whole world of a start, or those that join one
 * that is there. Borrowed during the call. */
typedef struct adli_start {
    size_t size;     /* of this struct */
    const char *uid; /* of the job: unique for ever; letters, digits and '-', at most 63 */
    int group;       /* 1, 2, ... */
    const adli_member_start *members;
    int count;
    int replicas, nodes; /* of the world that they start in: its size, and on how many nodes */
    const char *pod;     /* the pod template of the job file (its spec.template) as JSON */
    const char *const
        *env; /* "NAME=value", NULL at the end: the scheduler's, which win over the pod's. The
                               member's variables (ADAPTDL_MEMBER, _JOIN, _REPLICA_RANK, _NUM_REPLICAS, _NUM_NODES,
                               _NUM_RESTARTS, _MASTER_ADDR, _MASTER_PORT), the directories' and the devices are the backend's */
    const char *const *defaults; /* the same, for what the pod does not set; may be NULL */
    const char *ns, *name;       /* the job's, for what people see; NULL: nobody knows */
    bool joins; /* others of the group are training: these join them (ADAPTDL_JOIN=1) */
} adli_start;

#define ADLI_START_INIT                                                                            \
    {                                                                                              \
        .size = sizeof(adli_start)                                                                 \
    }

typedef enum adli_member_state {
    ADLI_MEMBER_WAITING,     /* asked for, not running yet */
    ADLI_MEMBER_READY,       /* running */
    ADLI_MEMBER_SUCCEEDED,   /* exited 0 */
    ADLI_MEMBER_INTERRUPTED, /* exited 143, or taken from the job: nobody's fault */
    ADLI_MEMBER_FAILED,      /* anything else */
} adli_member_state;

/* Why a member is as it is, beyond its exit code. docs/backend.md has the states that go with each. */
typedef enum adli_cause {
    ADLI_CAUSE_NONE,
    ADLI_CAUSE_KILLED,           /* by us */
    ADLI_CAUSE_SILENT,           /* asked to stop while it was stopped and could not answer */
    ADLI_CAUSE_NODE_LOST,        /* with its node */
    ADLI_CAUSE_LOST,             /* with its keeper, or whatever watched it */
    ADLI_CAUSE_OUT_OF_RESOURCES, /* its node could not take it after all */
    ADLI_CAUSE_EVICTED,          /* its node took it back */
    ADLI_CAUSE_OOM_KILLED,       /* needed more memory than its limit */
    ADLI_CAUSE_CANNOT_RUN,       /* the command, the image or their settings are wrong */
} adli_cause;

/* "OOMKilled"; "" for NONE. Static. */
const char *adli_cause_name(adli_cause cause);
/* NONE when there is none of that name. */
adli_cause adli_cause_named(const char *name);

/* A member, and the node that it was started on. */
typedef struct adli_meet {
    const char *uid;
    int group, member;
    const char *node;
} adli_meet;

typedef struct adli_member_view {
    int member;
    adli_member_state state;
    int exit_code; /* 128 + N for signal N; -1 while it runs or when unknown */
    adli_cause cause;
    char message[160]; /* one line for people; "" when there is nothing to say */
    char address[64];  /* where it can be reached, once it runs */
    double ended_s;    /* when it ended, in seconds since 1970; 0: it has not, or that is unknown */
} adli_member_view;

/* What a member uses. */
typedef struct adli_member_use {
    char uid[64]; /* given: which */
    int group, member;
    double cpu_s; /* processor time since its start, its children's included; NAN: not known */
    int64_t memory_bytes; /* now, what its processes share counted once; -1: not known */
    double gpus; /* how many GPUs it keeps busy, 0.5: one for half of the time; NAN: not known */
    int64_t gpu_memory_bytes; /* -1: not known */
} adli_member_use;

/* A file of a job, or what is in one of its directories. */
typedef struct adli_entry {
    char *name;
    int64_t size;
    bool directory;
} adli_entry;

typedef struct adli_opened {
    bool directory;
    int fd;              /* of a file: to be read by offset; -1 for a directory */
    int64_t size;        /* of the file */
    adli_entry *entries; /* [count] of the directory, by name */
    size_t count;
} adli_opened;

/* Closes and frees what is still there. */
void adli_opened_fini(adli_opened *opened);

/* Is it a failure of start that is no one's fault and may not come again? */
static inline bool adli_start_later(adl_status status)
{
    return status == ADL_ENOMEM || status == ADL_ETIMEOUT;
}

typedef struct adli_backend_ops {
    /* *nodes: [*count], the backend's: those there are now. Nodes come and go; a name may come back. One that
     * is not in the answer any more is lost, and so are the members on it. */
    adl_status (*nodes)(void *self, const adli_backend_node **nodes, int *count);
    /* How many nodes the scheduler would like there to be. Advice: a backend that cannot add or remove any
     * (local) leaves it at that. EINVAL: negative. */
    adl_status (*scale)(void *self, int desired_nodes);
    /* The nodes are these from now on. EINVAL (nodes NULL, for one): nothing was changed. A backend that finds its
     * nodes by itself has no such function. */
    adl_status (*declare)(void *self, const struct adli_nodes *nodes);

    /* Starts those of the members that were never started. ENOENT: no such node, EINVAL: the spec, ESTATE: the
     * group was forgotten; then nothing was started. EIO: some may have been; calling again goes on from
     * there. ENOMEM, ETIMEOUT: the same, and nothing is wrong with the job: there is no room for a process just now,
     * or the machine is too busy to start one in time. What was started runs on; ask again later. A member that cannot be executed is no failure of start: it is observed FAILED with
     * CANNOT_RUN. */
    adl_status (*start)(void *self, const adli_start *start);

    /* Where this member, which runs, can listen as rank 0 of another world of its group: an address that the others
     * reach, and a port that nobody has. NULL: members of this backend do not change their world while they run.
     * ENOENT: it does not run. EIO. */
    adl_status (*meet)(void *self, const adli_meet *who, char *address, size_t size, int *port);

    /* Asks a member of the group, or all that are alive, to stop: SIGTERM to the replica alone, its children are
     * its own to stop; one that cannot answer because it is stopped (SIGSTOP) is killed at once. kill: SIGKILL
     * to it and all its descendants. What of it nobody has started yet never will be: INTERRUPTED,
     * KILLED. Harmless for one that is over or unknown. */
    void (*stop)(void *self, const char *uid, int group, int member, bool kill);

    /* The group's members as they are now, ascending: views[capacity], *count how many there are. ENOENT: no such
     * group was started (or it was forgotten). */
    adl_status (*observe)(void *self, const char *uid, int group, adli_member_view *views,
                          int capacity, int *count);

    /* Fills uses[count]: what these use now. NULL: the backend cannot tell. May take as long as a look at all
     * processes of the machine. */
    void (*use)(void *self, adli_member_use *uses, int count);

    /* The group is over and its results are stored: lets go of everything but its logs. Whatever is
     * still alive of it is killed. Harmless for an unknown group. */
    void (*forget)(void *self, const char *uid, int group);
    /* The job is deleted: its directories and logs too. They are out of reach at once; the room that they took comes back
     * as they are removed, behind the call. */
    void (*remove)(void *self, const char *uid);

    /* Calls each for every group that is there, so that a scheduler that starts can forget those that it
     * does not know (from within each, if it likes). */
    void (*list)(void *self, void (*each)(void *user, const char *uid, int group), void *user);

    /* Readable when observe or nodes may tell something new; drain_events makes it quiet. */
    int (*event_fd)(void *self);
    void (*drain_events)(void *self);

    /* May jobs of this namespace run here? EINVAL says why not. NULL: of every one. Any thread. */
    adl_status (*admit)(void *self, const char *ns);

    /* The files of the job's image are in this folder of ours, which the backend takes (it is gone afterwards).
     * Again: replaces what was there. */
    adl_status (*put_source)(void *self, const char *uid, const char *folder);
    /* The same files once more, as the job has them now, into a folder of ours that is there and empty. NULL: the
     * backend keeps none. */
    adl_status (*copy_source)(void *self, const char *uid, const char *folder);
    /* The output of one member, to be read by offset (pread) and closed; it grows until the member has ended.
     * ENOENT: there is none (yet). */
    adl_status (*open_log)(void *self, const char *uid, int group, int member, int *fd);
    /* A file or directory of the job by the path that its containers see: /adaptdl/checkpoint/...,
     * /adaptdl/share/... ENOENT: there is none; EINVAL: another path, or neither a file nor a directory; ESTATE:
     * it leads out of the job's directories, or may not be read. *out is to be freed by
     * adli_opened_fini. */
    adl_status (*open_file)(void *self, const char *uid, const char *path, adli_opened *out);

    /* Leaves everything running and lets go of it. */
    void (*free)(void *self);
} adli_backend_ops;

struct adli_backend {
    const adli_backend_ops *ops;
    void *self;
};

/* EINVAL: no name of a group, or no start that any backend would take; the text says why. */
ADL_MUST adl_status adli_member_check(const char *uid, int group);
ADL_MUST adl_status adli_start_check(const adli_start *start);

/* ---- the backends there are ---- */

typedef struct adli_backend_options {
    size_t size;                    /* of this struct */
    const char *state_dir;          /* the daemon's */
    const struct adli_nodes *nodes; /* declared; none: the backend finds its own */
    int64_t log_bytes; /* kept of each member's output, about, where the backend keeps it; 0: all */
    const char *users; /* the local one's namespaceUsers; NULL: none */
} adli_backend_options;

#define ADLI_BACKEND_OPTIONS_INIT                                                                  \
    {                                                                                              \
        .size = sizeof(adli_backend_options)                                                       \
    }

/* To add a backend: write a folder with an adli_backend_class, and name the class in backend.c. */
typedef struct adli_backend_class {
    const char *name, *summary;
    adl_status (*open)(const adli_backend_options *options, adli_backend **out);
} adli_backend_class;

extern const adli_backend_class adli_backend_local, adli_backend_kubernetes;

/* Takes over whatever the state holds. name "": the first one of the list. *out is freed by
 * (*out)->ops->free((*out)->self). EINVAL: no backend of that name (the text lists them), or the options. */
ADL_MUST adl_status adli_backend_open(const char *name, const adli_backend_options *options,
                                      adli_backend **out);
/* Index 0 is the default; NULL past the end. */
const char *adli_backend_list(int index, const char **summary);

#endif
