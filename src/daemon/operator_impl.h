/* The operator's parts. */
#ifndef ADLI_OPERATOR_IMPL_H
#define ADLI_OPERATOR_IMPL_H

#include "backend/k8s/k8s.h"
#include "base/buf.h"
#include "daemon/index.h"
#include "daemon/operator.h"
#include "daemon/webhook.h"
#include "kube/kube.h"
#include "store/store.h"

#include <pthread.h>
#include <sys/queue.h>

#define ADLI_JOBS_PATH "/apis/adaptdl.petuum.com/v1/"

enum { ADLI_OPERATOR_PATH = 512, ADLI_KEY_BYTES = 32, ADLI_TOKEN_SIZE = 33 };

/* ---- operator_lease.c ---- */
typedef struct adli_lease adli_lease;

/* Waits until the Lease is ours, then keeps it by a thread of its own. When it cannot be kept the process
 * is lost, as the options say: whoever has it now must be alone. */
ADL_MUST adl_status adli_lease_new(adli_kube *kube, const char *ns, const char *name,
                                   const adli_operator_options *options, adli_lease **out);
/* Lets somebody else have it at once. NULL is harmless. */
void adli_lease_free(adli_lease *lease);

/* ---- operator_status.c: pure ---- */

/* What of a job is told beside its row. */
typedef struct adli_status_more {
    int64_t generation;
    int ready;
    double batch_size, goodput, speedup; /* NAN: not known */
} adli_status_more;

/* The whole object for server-side apply of its status. */
void adli_status_write(const adli_store_job *row, const adli_status_more *more, adli_buf *out);
/* Makes any text one that the server takes: what is no UTF-8 or no visible character becomes "?". */
void adli_status_clean(char *text);
/* When the core took the job; INFINITY: the object has no status of ours. */
double adli_status_created(const json_t *object);
/* What adli_status_write wrote, from the object: texts are new and in *keep (json_decref). false: the object
 * has no status of ours. */
bool adli_status_read(const json_t *object, adli_store_job *row, json_t **keep);
/* An AdaptDLJob as the job file that the core takes: its template reduced to what scheduling needs.
 * EINVAL: it is no such thing. */
ADL_MUST adl_status adli_job_file(const json_t *object, adli_buf *out);

/* ---- operator_outfit.c ---- */
typedef struct adli_outfit {
    json_t *resources, *pod, *container; /* NULL: none */
} adli_outfit;

/* EINVAL: a field of the configuration is no such thing. Call fini whatever the result. */
ADL_MUST adl_status adli_outfit_init(adli_outfit *outfit, const struct adli_config *config);
void adli_outfit_fini(adli_outfit *outfit);
/* Changes the pod template of a job. EINVAL: a patch cannot be applied to it. */
ADL_MUST adl_status adli_outfit_dress(const adli_outfit *outfit, json_t *template);

/* ---- operator_jobs.c ---- */
typedef struct adli_operator_job {
    TAILQ_ENTRY(adli_operator_job) link, todo;
    struct adli_operator_jobs *queue; /* its todo is in; NULL: none */
    adli_index_link by_uid;
    char uid[64], ns[64], name[64];
    int64_t generation;
    char *file, *pod;  /* the job file; the template, whole */
    char problem[300]; /* why it can never run; "" */
    json_t *object;    /* until it was loaded */
    bool seen, gone;
    bool taken;    /* the core has it */
    bool failed;   /* the core never will */
    bool over;     /* the core was told that it is gone */
    double due_s;  /* in a queue */
    char told[40]; /* phase and reason of the last event */
} adli_operator_job;

TAILQ_HEAD(adli_operator_jobs, adli_operator_job);

struct adli_operator {
    const struct adli_config *config;
    adli_kube *kube;
    char *ns; /* of the operator's own objects */
    adli_lease *lease;
    adli_backend *backend;
    unsigned char key[ADLI_KEY_BYTES]; /* job tokens are made from it */
    adli_core_mirror mirror;

    pthread_mutex_t lock;
    pthread_cond_t news;
    struct adli_operator_jobs jobs;
    adli_index by_uid;
    /* Those with something to be done: now, and those for which it was tried before. Both in the order of due_s. */
    struct adli_operator_jobs fresh, again;
    int64_t visits; /* of jobs one by one, for tests */
    bool listed, stopping;
    adli_kube_watch *watch;
    pthread_t thread;
    bool running;
    adli_core *core;
    adli_webhook *webhook;
    adli_outfit outfit;
    adli_k8s_scaling scaling;
    char *image, *owner_uid; /* of the operator's Deployment */
    char *state_dir;

    /* the controller's: what the next commit writes */
    adli_kube_call *calls;
    size_t call_count, call_capacity;
};

extern const adli_kube_watch_ops adli_operator_job_ops; /* user: the operator */
/* The lock, and no jobs. */
ADL_MUST adl_status adli_operator_jobs_init(adli_operator *op);
/* Whatever the result of init was. */
void adli_operator_jobs_fini(adli_operator *op);
/* Under lock. */
adli_operator_job *adli_operator_find(adli_operator *op, const char *uid);
/* Under lock: the job is the last of those that the thread looks at now. */
void adli_operator_queue(adli_operator *op, adli_operator_job *job);
/* The backend's question. */
adl_status adli_operator_owner(void *op, const char *uid, adli_k8s_owner *out);
/* The thread that hands jobs to the core. */
void *adli_operator_feed(void *op);
/* what: "token" or "secret". */
void adli_operator_secret(void *op, const char *what, const char *uid, char out[ADLI_TOKEN_SIZE]);

/* ---- operator_mirror.c ---- */
void adli_operator_mirror_init(adli_operator *op);
/* Writes that the job is as it is, without the core. */
ADL_MUST adl_status adli_operator_say(adli_operator *op, const adli_operator_job *job, int phase,
                                      const char *reason, const char *message);
ADL_MUST adl_status adli_operator_load_pool(adli_operator *op, adli_buf *out);

#endif
