/* What is read out of the server's objects: pods, ours and others', and nodes. Pure: objects in, structs out,
 * whatever is in them. */
#ifndef ADLI_K8S_VIEW_H
#define ADLI_K8S_VIEW_H

#include "backend/backend.h"

#include <jansson.h>

#define ADLI_K8S_FINALIZER   "adaptdl.petuum.com/result"
#define ADLI_K8S_PLACEHOLDER "adaptdl/placeholder"
#define ADLI_K8S_PRICE       "adaptdl/price-per-hour"

/* Amounts by name, borrowed from the object. */
typedef struct adli_k8s_amounts {
    int count;
    const char *names[ADLI_NODE_RESOURCES_MAX];
    int64_t amounts[ADLI_NODE_RESOURCES_MAX];
} adli_k8s_amounts;

/* Texts are borrowed from the object; "" where there is none. */
typedef struct adli_k8s_pod_view {
    const char *ns, *name, *node;
    bool over; /* takes nothing of its node any more */
    bool placeholder;
    int grace_s;               /* from SIGTERM to SIGKILL */
    adli_k8s_amounts requests; /* with one of "pods" */
    /* ours only */
    bool ours, forgotten;
    const char *uid;
    int group;
    bool leaving;  /* it was deleted; the finalizer keeps it */
    int leaves_s;  /* ... and was given so long to end; 0: none, nobody waits for it */
    bool stuck;    /* WAITING, and not getting on: view.message says why */
    bool unplaced; /* ... because no node takes it */
    adli_member_view view;
} adli_k8s_pod_view;

/* false: that is no pod. */
bool adli_k8s_read_pod(const json_t *pod, adli_k8s_pod_view *out);

typedef struct adli_k8s_node_view {
    const char *name, *hostname, *device_type, *address;
    bool schedulable; /* pods of ours can be placed there */
    bool lost;        /* nobody has heard of it */
    bool preemptible;
    int notice_s; /* it will be taken away in about so long; 0: nobody said so */
    double price; /* per hour; 0: not known */
    const json_t *labels;
    adli_k8s_amounts allocatable;
} adli_k8s_node_view;

bool adli_k8s_read_node(const json_t *node, adli_k8s_node_view *out);

/* "2026-11-17T23:21:19Z" in seconds since 1970; 0: no time. */
double adli_k8s_time(const char *text);
/* What the pod takes: containers together, or an init container if that is more. */
void adli_k8s_pod_requests(const json_t *spec, adli_k8s_amounts *out);

#endif
