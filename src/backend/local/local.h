/* The local backend: replicas are processes on this machine, "nodes" are shares of it that somebody
 * declared. Everything it knows is in files under STATE/jobs/UID/groups/GROUP, so that it can be killed
 * at any instant and found again; docs/backend.md says which files and in which order.
 *
 * Threads: as backend.h says. The process may have other threads. What is left of removed jobs is taken apart by
 * one of its own, while there is something. */
#ifndef ADLI_LOCAL_LOCAL_H
#define ADLI_LOCAL_LOCAL_H

#include "backend/backend.h"

/* What is declared of a node. Texts are copied. Amounts as in backend.h; "nvidia.com/gpu" is how many
 * GPUs it has. */
typedef struct adli_local_node {
    const char *name;
    const char *device_type; /* NULL: "" */
    bool preemptible;
    int resource_count;
    const char *resource_names[ADLI_NODE_RESOURCES_MAX];
    int64_t resource_amounts[ADLI_NODE_RESOURCES_MAX];
    const char
        *gpus; /* which: "0,1" or names (CUDA_VISIBLE_DEVICES); NULL: the machine's GPUs are dealt
                         out in the order of the nodes */
} adli_local_node;

/* How limits of a replica are kept. */
typedef enum adli_local_cgroups {
    ADLI_CGROUPS_AUTO, /* V2 where that works, else NONE */
    ADLI_CGROUPS_NONE, /* memory: the keeper looks a few times a second; cpu: not limited */
    ADLI_CGROUPS_V1,   /* below our own cpu and memory groups */
    ADLI_CGROUPS_V2,   /* below our own group; needs the controllers cpu and memory there */
} adli_local_cgroups;

typedef struct adli_local_options {
    size_t size;           /* of this struct */
    const char *state_dir; /* made if need be */
    const adli_local_node *nodes;
    int node_count;
    const char *keeper; /* path of adaptdl-keeper; NULL: $ADAPTDL_KEEPER, else beside this program,
                                   in ../bin or in ../libexec/adaptdl */
    adli_local_cgroups cgroups;
    const char *cgroup_parent; /* directory to make groups in (V2); NULL: our own group */
    int64_t log_bytes;         /* kept of each member's output, about; 0: all */
    const char *users;         /* "NAMESPACE=USER, ...": as whom replicas run; NULL, "": as us */
    /* Called before each file of a removed job is removed, by the thread that does it; for tests. May be NULL. */
    void (*removing)(void *user);
    void *removing_user;
} adli_local_options;

#define ADLI_LOCAL_OPTIONS_INIT                                                                    \
    {                                                                                              \
        .size = sizeof(adli_local_options)                                                         \
    }

/* Takes over whatever groups are under the state directory. One object at a time should use a state
 * directory (the daemon sees to that); two are safe, but may give the same GPU or port away twice.
 * *out is freed with (*out)->ops->free((*out)->self). EINVAL: the options; ENOENT: no keeper; EIO. */
ADL_MUST adl_status adli_local_new(const adli_local_options *options, adli_backend **out);

/* Declares the nodes anew. A node that is not named any more is lost: ready false, its replicas are
 * killed and observed INTERRUPTED/"NodeLost". One that is named again is ready again. EINVAL: nothing
 * was changed. */
ADL_MUST adl_status adli_local_set_nodes(adli_backend *backend, const adli_local_node *nodes,
                                         int count);

/* This machine as one node "node-0": its cores (those we may run on) as cpu and its memory; its GPUs when
 * it has some; pods: one for each GPU, or core. Texts are static. */
void adli_local_machine(adli_local_node *out);

/* How limits are kept: "cgroup v2", "cgroup v1" or "watched". Static. */
const char *adli_local_limits(const adli_backend *backend);

#endif
