/* The Kubernetes backend: members are pods. Names of pods are what keeps a member from being started twice;
 * a finalizer keeps its result until it is forgotten, whoever deletes the pod meanwhile. What there is comes
 * by watches, so that no call lists anything.
 *
 * Threads: as backend.h says. */
#ifndef ADLI_K8S_H
#define ADLI_K8S_H

#include "backend/backend.h"
#include "kube/kube.h"

/* The object that a job is. */
typedef struct adli_k8s_owner {
    char ns[64], name[64];
    char *pod; /* its spec.template as JSON, whole; free() */
} adli_k8s_owner;

/* Placeholder pods, for cluster autoscalers. Borrowed. */
typedef struct adli_k8s_scaling {
    bool on; /* false: there should be none */
    const char *ns, *image;
    const char *selector;          /* "key=value,...": labels of nodes that may be added; "": any */
    const char *owner, *owner_uid; /* the Deployment that they go with; "": none */
} adli_k8s_scaling;

typedef struct adli_k8s_options {
    size_t size; /* of this struct */
    adli_kube
        *kube; /* borrowed; NULL: one of its own, to where KUBECONFIG or the service account lead */
    const char *ns;   /* only pods of this namespace are seen; NULL: all */
    const char *only; /* all are seen, but those elsewhere are never ours; NULL: they may be */
    /* The job of that uid; ENOENT: there is none any more. From any thread, and with locks held. NULL: jobs are no
     * objects; their pods go to `ns`, carry start->pod, and belong to nobody. */
    adl_status (*owner)(void *user, const char *uid, adli_k8s_owner *out);
    void *owner_user;
    double stuck_s; /* a pod that cannot begin to run is given up after this; 0: five minutes */
    double grace_s; /* of pods whose template does not say; 0: Kubernetes' own */
    const adli_k8s_scaling *scaling; /* NULL: placeholders are not ours */
} adli_k8s_options;

#define ADLI_K8S_OPTIONS_INIT                                                                      \
    {                                                                                              \
        .size = sizeof(adli_k8s_options)                                                           \
    }

/* Waits until nodes and pods have been listed. EIO: the server does not answer. */
ADL_MUST adl_status adli_k8s_new(const adli_k8s_options *options, adli_backend **out);

#endif
