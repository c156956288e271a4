/* A client of the Kubernetes API server: calls that are tried again, and watches that are kept alive. All
 * exchanges of one object share its connections and its one thread; over TLS they speak HTTP/2.
 *
 * Calls are tried again while the server cannot answer (connection lost, 429, 5xx), as often as their time
 * allows, and a few times when they meet another change (409 Conflict); so only what may be repeated is to be asked for. In Kubernetes that is nearly everything: a name
 * that exists already is 409, one that is gone is 404. */
#ifndef ADLI_KUBE_H
#define ADLI_KUBE_H

#include "base/buf.h"
#include "kube/config.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct adli_kube adli_kube;

/* Copies the config. Nothing is connected yet. */
ADL_MUST adl_status adli_kube_open(const adli_kube_config *config, adli_kube **out);
/* Watches end first; no calls may be under way. NULL is harmless. */
void adli_kube_close(adli_kube *kube);
/* The namespace of its config. */
const char *adli_kube_namespace(const adli_kube *kube);
/* Requests sent so far, each try counted. Any thread. */
int64_t adli_kube_requests(const adli_kube *kube);

/* ---- calls ---- */

#define ADLI_KUBE_APPLY     "application/apply-patch+yaml"
#define ADLI_KUBE_MERGE     "application/merge-patch+json"
#define ADLI_KUBE_STRATEGIC "application/strategic-merge-patch+json"

typedef struct adli_kube_call {
    const char *method, *path; /* path: with its query */
    const char *body;          /* NULL: none */
    const char *type;          /* of the body; NULL: application/json */
    double time_s;             /* for all tries together; 0: ten seconds */
    size_t max_bytes;          /* of the answer; 0: 32 MiB */
    /* what came of it */
    int code; /* of HTTP; 0: no answer in time, `failure` says why */
    adli_buf answer;
    char failure[200];
} adli_kube_call;

/* Makes the calls, some dozens at a time, and waits for them. Any thread. */
void adli_kube_do(adli_kube *kube, adli_kube_call *calls, int count);
/* What a call's answer means: OK for 2xx; ENOENT 404, 410; ESTATE 409; EINVAL 400, 403, 422 and the other
 * refusals; ETIMEOUT 408, 429 and EIO 5xx, or no answer. The text has the server's message after `what`. */
ADL_MUST adl_status adli_kube_check(const adli_kube_call *call, const char *what);
/* Is it 409 for what somebody else changed at the same time (the object, or a quota), not for a name that there is? PATCH
 * and POST were tried again a few times then. */
bool adli_kube_conflicts(const adli_kube_call *call);
void adli_kube_call_fini(adli_kube_call *call);
/* One call; its answer as JSON (out may be NULL). A code of `fine` is as good as 2xx (0: none); then *out is
 * NULL. */
ADL_MUST adl_status adli_kube_one(adli_kube *kube, const char *method, const char *path,
                                  const char *body, const char *type, int fine, json_t **out);

/* ---- watches ---- */

/* Called on the client's thread: they take what they need and return. Objects are borrowed. */
typedef struct adli_kube_watch_ops {
    /* All objects follow; those that do not are gone. At the start, and when too much was missed. */
    void (*begin)(void *user);
    void (*object)(void *user, const json_t *object, bool gone);
    /* All that there were at one moment have been told. */
    void (*complete)(void *user);
    /* The server cannot be reached or refuses; in words. May be NULL. */
    void (*trouble)(void *user, const char *text);
} adli_kube_watch_ops;

typedef struct adli_kube_watch adli_kube_watch;

/* Lists path and then watches it, for ever. query: selectors ("labelSelector=a%3Db"), "" for none. */
ADL_MUST adl_status adli_kube_watch_new(adli_kube *kube, const char *path, const char *query,
                                        const adli_kube_watch_ops *ops, void *user,
                                        adli_kube_watch **out);
/* No op is called once this returns. NULL is harmless. */
void adli_kube_watch_free(adli_kube_watch *watch);

typedef struct adli_kube_watch_stats {
    int64_t lists, watches, events, bookmarks, failures;
} adli_kube_watch_stats;
adli_kube_watch_stats adli_kube_watch_look(adli_kube_watch *watch);

#endif
