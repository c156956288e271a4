/* What a job gets on its way to Kubernetes: an image, or files for a stock one; volumes; variables. */
#ifndef ADAPTDL_KUBE_SUBMIT_H
#define ADAPTDL_KUBE_SUBMIT_H

#include "kube.h"

#include "image/image.h"
#include "kube/kube.h"

#include <sys/types.h>

typedef struct kube_outfit {
    const char *image;        /* NULL: as in the job file */
    const char *pull_secret;  /* of a registry; NULL: none */
    const char *pull_config;  /* what it must hold, in base64; NULL: it is there */
    const adli_image *files;  /* sent beside the job, for an image that lacks them; NULL: none */
    const char *tensorboard;  /* name; NULL: none */
    const char *size, *class; /* of its claim; NULL: the usual */
    bool no_storage;          /* no claim */
} kube_outfit;

/* Makes the job, dressed like this. The job is changed. *out: as the scheduler would describe it. */
int kube_submit(cluster *k, json_t *job, const kube_outfit *outfit, bool dry_run, json_t **out);

/* `adaptdl tensorboard` on Kubernetes; name NULL: list. */
int kube_tensorboard(cluster *k, const char *verb, const char *name, int port);

/* The cluster's own registry (docs/adr/0341). */
#define KUBE_REGISTRY "adaptdl-registry" /* the Secret that holds its password, and the service */
typedef struct kube_registry {
    char host[32]; /* "localhost:32000"; "": there is none */
    int port;
    char *config;  /* of the Secret, in base64 */
    json_t *auths; /* in it */
    pid_t forward; /* the program that leads a port there */
    char directory[40];
} kube_registry;

/* Is there one? EXIT_DONE, or a message was shown. */
int kube_registry_find(cluster *k, kube_registry *out);
/* Until it is closed, programs of ours that push to its host reach it, and it knows them. */
int kube_registry_open(cluster *k, kube_registry *r);
void kube_registry_close(kube_registry *r); /* after find, whatever came of it */
/* Makes or renews the Secret by which pods of a namespace pull from it. */
int kube_registry_share(cluster *k, const char *ns, const char *config);

/* Builds the image of the directory with docker, podman or buildah, pushes it to $ADAPTDL_SUBMIT_REPO, else to the
 * cluster's registry, and says under which name, with its digest, the cluster finds it. What the programs print goes to
 * standard error. */
enum { IMAGE_NAME = 600 };
int kube_build(cluster *k, const char *directory, const char *dockerfile, kube_registry *registry,
               char out[IMAGE_NAME]);

#endif
