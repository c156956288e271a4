/* A cluster of Kubernetes as the place that commands work on. What is read comes from the scheduler there, through the
 * API server's proxy, and looks as it does on a local cluster. What is changed is changed at the API server, by the
 * rights of whoever asks. */
#ifndef ADAPTDL_KUBE_H
#define ADAPTDL_KUBE_H

#include "cluster.h"

#include "kube/config.h"

#define KUBE_JOBS "/apis/adaptdl.petuum.com/v1/namespaces/%s/adaptdljobs"

typedef struct kube {
    adli_kube_config config;
    adli_server server; /* the API server itself */
    adli_streams *streams;
    char ns[64];      /* of the scheduler */
    char service[64]; /* its */
} kube;

/* Which cluster a command works on, and why. */
typedef enum site_kind { SITE_SOCKET, SITE_SERVER, SITE_KUBERNETES } site_kind;
enum { SITE_WHY = 400 };
typedef struct site {
    site_kind kind;
    char why[SITE_WHY]; /* "because ..." */
} site;

/* From options, environment and what is up. local: the command works on this machine's cluster only, so that
 * Kubernetes is chosen by --kubernetes alone. EXIT_DONE, or a message was shown. */
int site_choose(const cli *c, bool local, site *out);

/* Reads the kubeconfig, logs in; k->server becomes the scheduler behind the proxy. */
int kube_open(cluster *k);
/* Gets the scheduler's token, which its reads need; once. */
int kube_reach(cluster *k);
void kube_close(kube *there);
/* The user's credentials may have ended: gets new ones where a program gives them. false: there is no such. */
bool kube_renew(cluster *k);

/* One exchange with the API server. body may be NULL; type NULL: application/json. As cluster_ask otherwise. */
int kube_ask(cluster *k, const char *method, const char *path, const json_t *body, const char *type,
             int accept, json_t **out);
/* A value of a Secret, as text; free. NULL: it is none. */
char *kube_decode(const char *base64);
/* Tells what came of an exchange with the API server. */
int kube_failed(const cluster *k, adl_status status, int code, const adli_buf *answer);

/* A change that the scheduler's API describes, made at the API server. The answer is the one that the scheduler
 * of a local cluster gives. */
int kube_write(cluster *k, const adli_stream_request *request, json_t **out);

/* Makes a job at the API server, with the claim that a volume KUBE_CLAIM_VOLUME of it wants and with these objects, all
 * of which belong to it and go with it. *out: as the scheduler would describe it. The job is changed. */
#define KUBE_CLAIM_VOLUME "adaptdl-checkpoint"
#define KUBE_CLAIM_SIZE   "adaptdl.petuum.com/checkpoint-storage-size"
#define KUBE_CLAIM_CLASS  "adaptdl.petuum.com/checkpoint-storage-class"
int kube_create(cluster *k, json_t *job, json_t *objects, bool dry_run, json_t **out);
/* Before that: its name, made here where the file has generateName, and its namespace. */
int kube_settle(cluster *k, json_t *job);

#endif
