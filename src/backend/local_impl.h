/* The local backend inside: local.c (the interface), local_group.c (groups and their files),
 * local_nodes.c (nodes and GPUs), local_start.c (plans and starting), local_spawn.c (one keeper). */
#ifndef ADLI_BACKEND_LOCAL_IMPL_H
#define ADLI_BACKEND_LOCAL_IMPL_H

#include "backend/claim.h"
#include "backend/local.h"
#include "backend/plan.h"

#include <limits.h>

enum { ADLI_UID_BYTES = 64 };

typedef struct node {
    char *name, *device_type;
    bool ready, preemptible;
    int resource_count;
    char *resource_names[ADLI_NODE_RESOURCES_MAX];
    int64_t resource_amounts[ADLI_NODE_RESOURCES_MAX];
    bool gpus_given; /* by the declaration, not dealt out */
    int gpu_count;
    char **gpus; /* [gpu_count] */
} node;

typedef struct group {
    char uid[ADLI_UID_BYTES];
    int number;
    adli_plan *plan;
    bool over; /* all replicas ended: holds no port and no device */
} group;

typedef struct local {
    adli_backend base;
    char *state_dir; /* absolute */
    char *keeper;
    adli_cgroup cgroups;
    node *nodes; /* [node_count] */
    int node_count;
    adli_backend_node *views; /* [node_count], what nodes() gave */
    group *groups;            /* [group_count] that are known */
    size_t group_count, group_capacity;
    int events, notify, timer; /* epoll over inotify and a timer */
} local;

/* local_group.c */
ADL_MUST adl_status adli_local_check_name(const char *uid, int group);
/* Opens the group's directory; -1: there is none. */
int adli_local_open(const local *self, const char *uid, int number);
/* The known group; one that is on disk but not known becomes known. ENOENT. */
ADL_MUST adl_status adli_local_find(local *self, const char *uid, int number, group **out);
void adli_local_drop(local *self, const char *uid, int number);
/* Finds all groups on disk and clears away what was half removed. */
ADL_MUST adl_status adli_local_scan(local *self);
/* What became of one replica. */
void adli_local_look(const local *self, const group *item, int dir, int rank,
                     adli_replica_view *view);
/* Ends a replica that nobody has started; false: somebody has. */
bool adli_local_settle(int dir, int rank, const adli_result *result);
void adli_local_mark(const local *self, const char *uid, int number, int rank, char *out,
                     size_t size);
adli_cgroup adli_local_cgroup(const local *self, const group *item, int rank);
/* Sends the signal to all that live; those that nobody has started end with `result`. */
void adli_local_signal(local *self, group *item, int rank, int number, const adli_result *result);
/* Groups up to this number were forgotten. */
int adli_local_forgotten(const local *self, const char *uid);
void adli_local_forget(local *self, const char *uid, int number);

/* local_nodes.c */
ADL_MUST adl_status adli_local_declare(local *self, const adli_local_node *nodes, int count);
void adli_local_nodes_fini(local *self);
node *adli_local_node_named(const local *self, const char *name);
/* Kills what runs on nodes that are not there (any more). */
void adli_local_lose(local *self);
adl_status adli_local_nodes(void *self, const adli_backend_node **nodes, int *count);

/* local_start.c */
adl_status adli_local_start(void *self, const adli_group_spec *spec);

/* local_spawn.c */
typedef struct pending {
    int fd; /* where it will say whether it has claimed; -1: nothing to wait for */
    pid_t child;
} pending;
/* Starts a keeper for the rank. Returns 0 or an errno. */
int adli_local_spawn(local *self, const adli_group_spec *spec, const group *item, int rank,
                     pending *out);
/* Waits until the keeper has claimed its replica, or found that another has. */
ADL_MUST adl_status adli_local_await(const pending *keeper);

#endif
