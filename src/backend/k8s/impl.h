/* The Kubernetes backend's parts: the cache of what there is, the pods that are made, the operations. */
#ifndef ADLI_K8S_IMPL_H
#define ADLI_K8S_IMPL_H

#include "backend/k8s/k8s.h"
#include "backend/k8s/view.h"

#include <pthread.h>
#include <sys/queue.h>

enum {
    ADLI_K8S_NAMES = 64,
    ADLI_K8S_PATH = 512,
    ADLI_K8S_PORT_FIRST = 47000,
    ADLI_K8S_PORTS = 18000
};

typedef struct adli_k8s_group adli_k8s_group;

/* A pod of the cluster, as little of it as is needed. */
typedef struct adli_k8s_pod {
    char *key; /* "namespace/name" */
    char *node;
    bool over, seen;
    bool placeholder; /* ours, but no member */
    int grace_s;
    adli_k8s_amounts requests; /* names from the cache's table */
    /* ours */
    adli_k8s_group *group; /* NULL: somebody else's */
    TAILQ_ENTRY(adli_k8s_pod) link;
    bool forgotten, leaving, stuck, unplaced;
    bool absent; /* the server has it no more, or never took it: what is known stays */
    double
        since_s; /* monotonic: when it was first seen, whatever clocks say about when it was made */
    int leaves_s;
    double gone_s; /* monotonic: when it should have ended, since it was deleted; 0: it was not */
    adli_member_view view;
} adli_k8s_pod;

TAILQ_HEAD(adli_k8s_pods, adli_k8s_pod);

struct adli_k8s_group {
    char uid[64];
    int number;
    struct adli_k8s_pods pods; /* by member */
};

typedef struct adli_k8s_node {
    char *name, *hostname, *device_type, *address;
    bool schedulable, lost, preemptible, seen;
    bool addable; /* has the labels of nodes that may be added */
    double price;
    int notice_s; /* it goes, in so long; 0: no notice */
    adli_k8s_amounts allocatable;
    adli_k8s_amounts foreign; /* scratch: what others take */
    bool ours;                /* scratch: a pod of ours is there */
} adli_k8s_node;

/* Everything under lock. */
typedef struct adli_k8s_cache {
    pthread_mutex_t lock;
    pthread_cond_t news;
    int event_fd;
    void *pods, *groups; /* trees: by key; by uid and number */
    adli_k8s_node *nodes;
    size_t node_count, node_capacity;
    bool pods_listed, nodes_listed;
    bool nodes_stale;   /* something that nodes() tells has changed */
    bool holders_stale; /* placeholders may not be those that there should be */
    char *names[ADLI_K8S_NAMES];
    int name_count;
    char trouble[300];
    const char *holder_ns; /* where placeholders are; NULL: there are none */
    json_t *holder_nodes;  /* the labels of nodes that they wait for; NULL: any */
    /* Whether a pod that says so is of that job of ours; on the client's thread, under lock. */
    bool (*ours)(void *user, const char *ns, const char *uid);
    void *ours_user;
} adli_k8s_cache;

/* Requests; their paths and bodies are their own. */
typedef struct adli_k8s_calls {
    adli_kube_call *items;
    size_t count, capacity;
} adli_k8s_calls;

typedef struct k8s {
    adli_backend backend;
    adli_kube *kube;
    bool own_kube;
    adli_k8s_options options;
    char *ns, *only;
    adli_k8s_cache cache;
    adli_kube_watch *pod_watch, *node_watch;
    adli_k8s_calls again;     /* what the server could not be told; nodes() tries */
    adli_backend_node *views; /* what nodes() gave, and its texts */
    int view_count;
    json_t *view_texts;
    int meetings;     /* places that meet() gave */
    int wanted_nodes; /* -1: nobody said */
    double hold_again_s;
} k8s;

/* ---- cache.c ---- */
ADL_MUST adl_status adli_k8s_cache_init(adli_k8s_cache *cache);
void adli_k8s_cache_fini(adli_k8s_cache *cache);
extern const adli_kube_watch_ops adli_k8s_pod_ops, adli_k8s_node_ops; /* user: the cache */
/* Under lock. An object as the server answered it; one that is known is newer. */
void adli_k8s_cache_add(adli_k8s_cache *cache, const json_t *pod);
/* Under lock. A pod of ours that the server did not take, or that is there but not yet seen. */
ADL_MUST adl_status adli_k8s_cache_invent(adli_k8s_cache *cache, const char *key, const char *uid,
                                          int group, const char *node, const adli_member_view *view,
                                          bool absent);
/* Under lock. NULL: there is none. */
adli_k8s_group *adli_k8s_cache_group(adli_k8s_cache *cache, const char *uid, int number);
adli_k8s_node *adli_k8s_cache_node(adli_k8s_cache *cache, const char *name);
/* Under lock: forgets the pod. */
void adli_k8s_cache_drop(adli_k8s_cache *cache, adli_k8s_pod *pod);
/* Under lock: calls each for every group; it may change the cache only after the walk. */
void adli_k8s_cache_walk(adli_k8s_cache *cache, void (*each)(void *user, adli_k8s_group *group),
                         void *user);
/* Under lock: calls each for every pod of the cluster. */
void adli_k8s_cache_each(adli_k8s_cache *cache, void (*each)(void *user, adli_k8s_pod *pod),
                         void *user);
/* Under lock: what others take of each node, and where we are. */
void adli_k8s_cache_sum(adli_k8s_cache *cache);
void adli_k8s_cache_tell(adli_k8s_cache *cache);

/* ---- pod.c ---- */
typedef struct adli_k8s_pod_plan {
    const adli_start *start;
    const adli_member_start *member;
    const char *ns, *job; /* whose name pods carry */
    const char *hostname; /* label of the node */
    const char *secret;   /* name of the Secret with those of start->env that are secret */
    bool owned;           /* by the AdaptDLJob of that name and uid */
    double grace_s;
} adli_k8s_pod_plan;

/* The pod as JSON; free(). EINVAL: the template. */
ADL_MUST adl_status adli_k8s_make_pod(const adli_k8s_pod_plan *plan, const json_t *template,
                                      char **out);
/* The Secret, for server-side apply; free(). */
ADL_MUST adl_status adli_k8s_make_secret(const adli_k8s_pod_plan *plan, char **out);
void adli_k8s_pod_name(const char *job, const char *uid, int group, int member, char *out,
                       size_t size);

/* ---- start.c ---- */
ADL_MUST adl_status adli_k8s_start(void *self, const adli_start *start);

/* ---- scale.c ---- */
ADL_MUST adl_status adli_k8s_scale(void *self, int desired_nodes);
/* Makes and deletes placeholders, when something has changed. */
void adli_k8s_hold_places(k8s *self);
/* "key=value,..." as an object. */
json_t *adli_k8s_selector(const char *text);
/* The pod as JSON; free(). NULL: no memory. */
char *adli_k8s_placeholder(const adli_k8s_scaling *scaling, int number);

/* ---- k8s.c: calls that own their texts ---- */
void adli_k8s_add_call(adli_k8s_calls *all, const char *method, const char *path, const char *body,
                       const char *type);
void adli_k8s_call_fini(adli_kube_call *call);

/* ---- files.c ---- */
ADL_MUST adl_status adli_k8s_put_source(void *self, const char *uid, const char *folder);
ADL_MUST adl_status adli_k8s_open_log(void *self, const char *uid, int group, int member, int *fd);
ADL_MUST adl_status adli_k8s_open_file(void *self, const char *uid, const char *path,
                                       adli_opened *out);

/* The path of a pod: "/api/v1/namespaces/NS/pods/NAME" and what follows. */
void adli_k8s_pod_path(const char *key, const char *more, char out[ADLI_K8S_PATH]);
void adli_k8s_secret_name(const char *uid, char *out, size_t size);

#endif
