/* The seam between the scheduler and what runs replicas. The scheduler says which group of replicas of
 * which job should run where; a backend starts them, watches them and tells what became of them.
 * `local` runs them as processes on this machine; Kubernetes comes behind the same interface. Every
 * backend passes tests/conformance.
 *
 * The rules that make a scheduler safe to kill at any instant:
 *   - a group is named by (uid, group) for ever. start is idempotent: a replica that was ever started
 *     under that name is never started again, whoever asks, whenever;
 *   - what is running outlives the scheduler, and a new backend object on the same state directory
 *     finds it again, with the results of whatever ended meanwhile;
 *   - results stay until forget.
 *
 * Threads: a backend belongs to one thread, except event_fd's descriptor and the log paths. No call
 * blocks for longer than a process start. */
#ifndef ADLI_BACKEND_H
#define ADLI_BACKEND_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct adli_backend adli_backend;

enum { ADLI_NODE_RESOURCES_MAX = 8 };

/* What a node has for our jobs. Names and amounts as in job files: "cpu" in thousandths, "memory" in
 * bytes, "nvidia.com/gpu", "pods", any other by its own name. Texts are the backend's, valid until the
 * next call of nodes. */
typedef struct adli_backend_node {
    const char *name;
    const char *device_type; /* "" when unknown */
    const char *address;     /* where its replicas are reached */
    bool ready;              /* false: lost, or leaving: nothing is started there */
    bool preemptible;        /* a spot node */
    int resource_count;
    const char *resource_names[ADLI_NODE_RESOURCES_MAX];
    int64_t resource_amounts[ADLI_NODE_RESOURCES_MAX];
} adli_backend_node;

/* A group of replicas of one job, all alike but for their rank. Borrowed during the call. */
typedef struct adli_group_spec {
    const char *uid; /* of the job: unique for ever; letters, digits and '-', at most 63 */
    int group;       /* 1, 2, ... */
    int replicas;
    const char *const *nodes; /* [replicas] by rank */
    const char *const *argv;  /* NULL at the end; argv[0] is looked up in PATH */
    const char *const *env; /* "NAME=value", NULL at the end: added to the backend's own. The rank's
                                 variables (ADAPTDL_REPLICA_RANK, _NUM_REPLICAS, _NUM_NODES,
                                 _MASTER_ADDR, _MASTER_PORT) and the devices are the backend's to set */
    const char *workdir;    /* NULL: the job's directory */
    int64_t cpu_milli;      /* limits of one replica; 0: none */
    int64_t memory_bytes;
    int devices; /* GPUs of one replica */
} adli_group_spec;

typedef enum adli_replica_state {
    ADLI_REPLICA_WAITING,   /* asked for, not running yet */
    ADLI_REPLICA_READY,     /* running */
    ADLI_REPLICA_SUCCEEDED, /* exited 0 */
    ADLI_REPLICA_INTERRUPTED, /* exited 143, killed by us, lost with its node or its keeper, refused for
                                 lack of resources: nobody's fault */
    ADLI_REPLICA_FAILED,      /* anything else */
} adli_replica_state;

typedef struct adli_replica_view {
    adli_replica_state state;
    int exit_code;     /* 128 + N for signal N; -1 while it runs or when unknown */
    char reason[32];   /* "", "OOMKilled", "NodeLost", "Killed", "Silent", "CannotRun",
                          "OutOfResources", "Lost" */
    char message[160]; /* one line for people; "" when there is nothing to say */
    char address[64];  /* where it can be reached, once it runs */
    double ended_s;    /* when it ended, in seconds since 1970; 0: it has not, or that is unknown */
} adli_replica_view;

typedef struct adli_backend_ops {
    /* *nodes: [*count], the backend's. Nodes never change places: a lost one stays with ready false. */
    adl_status (*nodes)(void *self, const adli_backend_node **nodes, int *count);

    /* Starts what of the group was never started. ENOENT: no such node, EINVAL: the spec, ESTATE: the
     * group was forgotten; then nothing was started. EIO: some may have been; calling again goes on from
     * there. A replica that cannot be executed is no failure of start: it is observed FAILED with reason
     * CannotRun. */
    adl_status (*start)(void *self, const adli_group_spec *spec);

    /* Asks all replicas of the group that are alive to stop: SIGTERM to each replica alone, its children are
     * its own to stop; one that cannot answer because it is stopped (SIGSTOP) is killed at once. kill: SIGKILL
     * to them and all their descendants. What of it nobody has started yet never will be: INTERRUPTED,
     * "Killed". */
    void (*terminate)(void *self, const char *uid, int group, bool kill);

    /* The group's replicas as they are now: views[capacity], *count the group's size. ENOENT: no such
     * group was started (or it was forgotten). */
    adl_status (*observe)(void *self, const char *uid, int group, adli_replica_view *views,
                          int capacity, int *count);

    /* The group is over and its results are stored: lets go of everything but its logs. Whatever is
     * still alive of it is killed. Harmless for an unknown group. */
    void (*forget)(void *self, const char *uid, int group);
    /* The job is deleted: its directories and logs too. */
    void (*remove)(void *self, const char *uid);

    /* Calls each for every group that is there, so that a scheduler that starts can forget those that it
     * does not know (from within each, if it likes). */
    void (*list)(void *self, void (*each)(void *user, const char *uid, int group), void *user);

    /* Readable when observe or nodes may tell something new; adli_backend_drain_events makes it quiet. */
    int (*event_fd)(void *self);
    void (*drain_events)(void *self);

    /* Where the job's own files are: "checkpoint", "share", "logs", "source". Made if need be. out[size]
     * becomes the path; EINVAL when it does not fit. Any thread. */
    adl_status (*job_path)(void *self, const char *uid, const char *which, char *out, size_t size);
    /* The output of one replica: a file that grows. Any thread. ENOENT: there is none (yet). */
    adl_status (*log_path)(void *self, const char *uid, int group, int rank, char *out,
                           size_t size);

    /* Leaves everything running and lets go of it. */
    void (*free)(void *self);
} adli_backend_ops;

struct adli_backend {
    const adli_backend_ops *ops;
    void *self;
};

#endif
