/* The local backend inside: local.c (the interface), group.c (groups and their files), nodes.c (nodes and
 * GPUs), start.c (plans and starting), pod.c (what to run), spawn.c (one keeper), files.c (the jobs'
 * files), use.c (what replicas use), users.c (whose processes they are), trash.c (what is left of removed jobs). */
#ifndef ADLI_LOCAL_IMPL_H
#define ADLI_LOCAL_IMPL_H

#include "backend/local/claim.h"
#include "backend/local/local.h"
#include "backend/local/plan.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

enum { ADLI_UID_BYTES = 64 };

typedef struct node {
    char *name, *device_type;
    bool preemptible;
    int resource_count;
    char *resource_names[ADLI_NODE_RESOURCES_MAX];
    int64_t resource_amounts[ADLI_NODE_RESOURCES_MAX];
    bool gpus_given; /* by the declaration, not dealt out */
    int gpu_count;
    char **gpus; /* [gpu_count] */
} node;

typedef struct member {
    int number;
    const char *node, *gpus; /* the plan's */
    const adli_start_plan *plan;
} member;

typedef struct local_group {
    char uid[ADLI_UID_BYTES];
    int number;
    adli_start_plan **plans; /* [plan_count], the first one first */
    size_t plan_count, plan_capacity;
    member *members; /* [count] ascending */
    size_t count, capacity;
    bool over; /* all members ended: holds no port and no device */
} group;

/* Of a namespace (users.c). */
typedef struct ns_user {
    char *ns, *name, *home;
    uid_t id;
    gid_t group;
    char identity[1024]; /* "UID:GID,GID...", for the keeper */
} ns_user;

/* Trees on their way out (trash.c). */
typedef struct trash {
    pthread_mutex_t lock;
    bool news, running; /* under lock: there may be more than was seen; somebody looks after it */
    bool joinable;      /* the backend's: thread was started */
    pthread_t thread;
    atomic_bool stop;
    void (*removing)(void *user); /* the options' */
    void *removing_user;
} trash;

typedef struct local {
    adli_backend base;
    char *state_dir; /* absolute */
    char *keeper;
    int64_t log_bytes; /* kept of each member's output; 0: all */
    adli_cgroup cgroups;
    ns_user *users; /* [user_count]; none: replicas are our own processes */
    size_t user_count, user_capacity;
    node *nodes; /* [node_count] */
    int node_count;
    adli_backend_node *views; /* [node_count], what nodes() gave */
    group *groups;            /* [group_count] that are known */
    size_t group_count, group_capacity;
    int events, notify, timer; /* epoll over inotify and a timer */
    struct adli_nvml *nvml;    /* use.c's, as is the next: NULL when there is none */
    bool nvml_sought;
    trash trash;
    int lent[64], lent_count; /* ports of worlds that were given away last, in a ring */
} local;

/* group.c */
/* adli_dirs_enter's descriptor; -1, with errno: none. */
int adli_local_enter(const char *path);
/* Opens the group's directory; -1: there is none. */
int adli_local_open(const local *self, const char *uid, int number);
/* The known group; one that is on disk but not known becomes known. ENOENT. */
ADL_MUST adl_status adli_local_find(local *self, const char *uid, int number, group **out);
void adli_local_drop(local *self, const char *uid, int number);
/* Finds all groups on disk and clears away what was half removed. */
ADL_MUST adl_status adli_local_scan(local *self);
/* NULL: there is none of that number. */
const member *adli_local_member(const group *item, int number);
/* What became of one member. */
void adli_local_look(const local *self, const group *item, int dir, const member *who,
                     adli_member_view *view);
/* Ends a member that nobody has started; false: somebody has. */
bool adli_local_settle(int dir, int number, const adli_result *result);
void adli_local_mark(const local *self, const group *item, int number, char *out, size_t size);
adli_cgroup adli_local_cgroup(const local *self, const group *item, const member *who);
/* Any member's, below these parents. */
adli_cgroup adli_local_cgroup_of(const local *self, const adli_cgroup *parents, const char *uid,
                                 int group, int member);
/* Sends the signal if it lives; one that nobody has started ends with `result`. */
void adli_local_signal(local *self, const group *item, const member *who, int signal,
                       const adli_result *result);
void adli_local_group_fini(group *item);
/* Groups up to this number were forgotten. */
int adli_local_forgotten(const local *self, const char *uid);
void adli_local_forget(local *self, const char *uid, int number);

/* nodes.c */
ADL_MUST adl_status adli_local_declare(local *self, const adli_local_node *nodes, int count);
void adli_local_nodes_fini(local *self);
node *adli_local_node_named(const local *self, const char *name);
/* Kills what runs on nodes that are not there (any more). */
void adli_local_lose(local *self);
adl_status adli_local_nodes(void *self, const adli_backend_node **nodes, int *count);

/* start.c */
adl_status adli_local_start(void *self, const adli_start *start);
ADL_MUST adl_status adli_local_meet(void *self, const adli_meet *who, char *address, size_t size,
                                    int *port);

/* pod.c */
typedef struct run {
    char **argv, **env; /* NULL at the end */
    size_t argc, argv_capacity, env_count, env_capacity;
    char *workdir;
    int64_t cpu_milli, memory_bytes; /* limits; 0: none */
    int devices;
    const ns_user *as; /* NULL: our own */
} run;
/* What the pod template and the scheduler's variables become here. EINVAL. */
ADL_MUST adl_status adli_local_run(const local *self, const adli_start *start, run *out);
void adli_local_run_fini(run *run);

/* files.c */
/* STATE/jobs/UID/WHICH, made if need be. */
ADL_MUST adl_status adli_local_job_dir(const local *self, const char *uid, const char *which,
                                       char *out, size_t size);
adl_status adli_local_put_source(void *self, const char *uid, const char *folder);
adl_status adli_local_copy_source(void *self, const char *uid, const char *folder);
adl_status adli_local_open_log(void *self, const char *uid, int group, int member, int *fd);
adl_status adli_local_open_file(void *self, const char *uid, const char *path, adli_opened *out);

/* users.c */
/* "NAMESPACE=USER, ...". EINVAL: not that, no such user, or we are not root. */
ADL_MUST adl_status adli_local_users(local *self, const char *list);
void adli_local_users_fini(local *self);
/* NULL: none is named for it. */
const ns_user *adli_local_user(const local *self, const char *ns);
/* EINVAL: its jobs would have no user. */
ADL_MUST adl_status adli_local_admit(void *self, const char *ns);
/* The job's directories become the user's; what is ours beside them is closed. */
ADL_MUST adl_status adli_local_give(const local *self, const char *uid, const ns_user *to);

/* use.c */
void adli_local_use(void *self, adli_member_use *uses, int count);

/* trash.c */
#define ADLI_LOCAL_TRASH ".trash" /* in STATE/jobs */
/* dir/NAME goes into dir's trash, where adli_local_empty_trash finds it; false: it was not there, or had to be removed at
 * once. */
bool adli_local_trash(int dir, const char *name);
/* Removes what is in the trash, on a thread of its own. */
void adli_local_empty_trash(local *self);
/* Ends that thread; what it has not removed stays. */
void adli_local_trash_fini(local *self);

/* spawn.c */
typedef struct pending {
    int fd; /* where it will say whether it has claimed; -1: nothing to wait for */
    pid_t child;
} pending;
/* Starts a keeper for one of the members. Returns 0 or an errno. */
int adli_local_spawn(local *self, const adli_start *start, const adli_member_start *which,
                     const run *what, const group *item, pending *out);
/* Waits until the keeper has claimed its member, or found that another has. */
ADL_MUST adl_status adli_local_await(const pending *keeper);

#endif
