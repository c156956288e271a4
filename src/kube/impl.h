/* What calls and watches share: transfers on the client's thread. */
#ifndef ADLI_KUBE_IMPL_H
#define ADLI_KUBE_IMPL_H

#include "kube/kube.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

/* One exchange, made again as often as its owner likes. Fields above the line are the owner's. */
typedef struct adli_transfer {
    const char *method, *body, *type;
    char *url;
    long limit_s; /* of one try; 0: none */
    /* On the client's thread. data: false ends the transfer. done: code 0 when there was no answer, then
     * `failure` says why; retry_s: what the server asked for, or -1. */
    bool (*data)(struct adli_transfer *transfer, const char *bytes, size_t count);
    void (*done)(struct adli_transfer *transfer, int code, const char *failure, double retry_s);
    void *user;
    /* ---- */
    TAILQ_ENTRY(adli_transfer) link;
    bool queued, dropped;
    CURL *easy; /* while it runs */
    struct curl_slist *headers;
    double due_s; /* monotonic: starts then */
    char failure[CURL_ERROR_SIZE];
} adli_transfer;

TAILQ_HEAD(adli_transfers, adli_transfer);

struct adli_kube {
    adli_kube_config config;
    CURLM *multi;
    pthread_t thread;
    bool running;
    pthread_mutex_t lock; /* held while owners' functions are called */
    pthread_cond_t news;
    struct adli_transfers waiting, active;
    bool stopping;
    atomic_llong requests;
    uint64_t random;
    char *token; /* of token_file, when it was read */
    double token_s;
};

/* Under lock, on any thread: starts it (again) in so many seconds. It must not be running. */
void adli_kube_begin(adli_kube *kube, adli_transfer *transfer, double in_s);
/* Under lock, which it gives up meanwhile, and not on the client's thread: when it returns, the transfer is not running
 * and no function of it is called any more. */
void adli_kube_drop(adli_kube *kube, adli_transfer *transfer);
/* How long to wait before try number `failures` + 1: doubling, with jitter, or what the server wants. */
double adli_kube_pause_s(adli_kube *kube, int failures, double retry_s);
/* "URL/path?query". */
ADL_MUST adl_status adli_kube_url(const adli_kube *kube, const char *path, char **out);

#endif
