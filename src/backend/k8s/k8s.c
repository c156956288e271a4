/* The Kubernetes backend's operations, but for start. */
#include "backend/k8s/impl.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/json_write.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/thread.h"
#include "jobspec/nodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* After its time a kubelet has so long to tell how a pod ended; where it was forced, nobody else waits either. */
enum { STUCK_S = 300, LIST_MS = 60000, CALL_S = 3, SILENT_S = 60, FORCED_S = 10 };

void adli_k8s_pod_path(const char *key, const char *more, char out[ADLI_K8S_PATH])
{
    int length = (int)strcspn(key, "/");
    snprintf(out, ADLI_K8S_PATH, "/api/v1/namespaces/%.*s/pods/%s%s", length, key, key + length + 1,
             more);
}

/* ---- nodes ---- */

static int64_t taken(const adli_k8s_node *node, const char *name)
{
    for (int i = 0; i < node->foreign.count; i++)
        if (node->foreign.names[i] == name)
            return node->foreign.amounts[i];
    return 0;
}

/* For a placeholder. */
static int64_t reserved(const k8s *self, const char *name)
{
    if (!self->options.scaling || !self->options.scaling->on)
        return 0;
    return strcmp(name, "memory") == 0 ? 1 << 20
                                       : strcmp(name, "cpu") == 0 || strcmp(name, "pods") == 0;
}

static const char *keep_text(k8s *self, const char *text)
{
    json_t *copy = json_string(text);
    json_array_append_new(self->view_texts, copy);
    return copy ? json_string_value(copy) : "";
}

static void view_node(k8s *self, const adli_k8s_node *node, adli_backend_node *out)
{
    *out = (adli_backend_node){.name = keep_text(self, node->name),
                               .device_type = keep_text(self, node->device_type),
                               .address = keep_text(self, node->address),
                               .ready = node->schedulable,
                               .preemptible = node->preemptible,
                               .price = node->price,
                               .addable = node->addable,
                               .resource_count = node->allocatable.count};
    for (int r = 0; r < node->allocatable.count; r++) {
        int64_t left = node->allocatable.amounts[r] - taken(node, node->allocatable.names[r]) -
                       reserved(self, node->allocatable.names[r]);
        out->resource_names[r] = node->allocatable.names[r]; /* the cache's, for ever */
        out->resource_amounts[r] = left > 0 ? left : 0;
    }
}

static void call_again(k8s *self);

static adl_status nodes(void *user, const adli_backend_node **out, int *count)
{
    k8s *self = user;
    call_again(self);
    adli_k8s_hold_places(self);
    adli_k8s_cache *cache = &self->cache;
    adl_status status = ADL_OK;
    pthread_mutex_lock(&cache->lock);
    if (cache->nodes_stale || !self->views) {
        adli_backend_node *views = adli_calloc(cache->node_count + 1, sizeof *views);
        json_t *texts = json_array();
        if (views && texts) {
            json_decref(self->view_texts);
            self->view_texts = texts;
            free(self->views);
            self->views = views;
            self->view_count = 0;
            adli_k8s_cache_sum(cache);
            for (size_t i = 0; i < cache->node_count; i++) {
                const adli_k8s_node *node = &cache->nodes[i];
                if (!node->lost && (node->schedulable || node->ours))
                    view_node(self, node, &views[self->view_count++]);
            }
            cache->nodes_stale = false;
        } else {
            free(views);
            json_decref(texts);
            status = adli_fail_memory("nodes");
        }
    }
    pthread_mutex_unlock(&cache->lock);
    *out = self->views;
    *count = self->view_count;
    return status;
}

/* ---- observe ---- */

/* Under lock: what is known of the pod, and what follows from its node and the time. */
static adli_member_view view_of(k8s *self, const adli_k8s_pod *pod)
{
    adli_member_view view = pod->view;
    const adli_k8s_node *node = adli_k8s_cache_node(&self->cache, pod->node);
    if (view.state > ADLI_MEMBER_READY)
        return view;
    double limit_s = self->options.stuck_s > 0 ? self->options.stuck_s : STUCK_S;
    if (!node || node->lost) {
        view.state = ADLI_MEMBER_INTERRUPTED;
        view.cause = ADLI_CAUSE_NODE_LOST;
        snprintf(view.message, sizeof view.message, "node %.100s is lost", pod->node);
    } else if (pod->leaving &&
               adli_monotonic_s() > pod->gone_s + (pod->leaves_s > 0 ? SILENT_S : FORCED_S)) {
        view.state = ADLI_MEMBER_INTERRUPTED;
        view.cause = ADLI_CAUSE_LOST;
        snprintf(view.message, sizeof view.message,
                 "it was deleted, and node %.80s does not say what became of it", pod->node);
    } else if (pod->stuck && adli_monotonic_s() - pod->since_s > limit_s) {
        view.state = pod->unplaced ? ADLI_MEMBER_INTERRUPTED : ADLI_MEMBER_FAILED;
        view.cause = pod->unplaced ? ADLI_CAUSE_OUT_OF_RESOURCES : ADLI_CAUSE_CANNOT_RUN;
    }
    return view;
}

static adl_status observe(void *user, const char *uid, int number, adli_member_view *views,
                          int capacity, int *count)
{
    k8s *self = user;
    const adli_k8s_pod *pod;
    *count = 0;
    adl_status status = adli_member_check(uid, number);
    if (status != ADL_OK)
        return status;
    pthread_mutex_lock(&self->cache.lock);
    const adli_k8s_group *group = adli_k8s_cache_group(&self->cache, uid, number);
    if (group)
        TAILQ_FOREACH(pod, &group->pods, link)
        {
            if (pod->forgotten)
                continue;
            if (*count < capacity)
                views[*count] = view_of(self, pod);
            ++*count;
        }
    pthread_mutex_unlock(&self->cache.lock);
    return *count > 0 ? ADL_OK : adli_fail(ADL_ENOENT, "no group %d of %s", number, uid);
}

/* A pod has its ports for itself: each meeting the next, so that nobody takes one for that of the world before. Those
 * of pods that share their node's network differ by member. */
static adl_status meet(void *user, const adli_meet *who, char *address, size_t size, int *port)
{
    k8s *self = user;
    const adli_k8s_pod *pod;
    *address = 0;
    pthread_mutex_lock(&self->cache.lock);
    const adli_k8s_group *group = adli_k8s_cache_group(&self->cache, who->uid, who->group);
    if (group)
        TAILQ_FOREACH(pod, &group->pods, link)
        {
            if (pod->view.member == who->member && view_of(self, pod).state == ADLI_MEMBER_READY)
                snprintf(address, size, "%s", pod->view.address);
        }
    pthread_mutex_unlock(&self->cache.lock);
    if (!*address)
        return adli_fail(ADL_ENOENT, "member %d of group %d does not run", who->member, who->group);
    int step =
        self->meetings++ * 61 + who->member; /* from the end: groups count from the beginning */
    *port = ADLI_K8S_PORT_FIRST + ADLI_K8S_PORTS - 1 - step % (ADLI_K8S_PORTS / 2);
    return ADL_OK;
}

typedef struct listed {
    adli_k8s_group **groups;
    size_t count, capacity;
} listed;

static void note_group(void *user, adli_k8s_group *group)
{
    listed *all = user;
    const adli_k8s_pod *pod;
    bool present = false;
    TAILQ_FOREACH(pod, &group->pods, link)
    {
        present |= !pod->forgotten;
    }
    if (present && adli_grow(&all->groups, &all->capacity, all->count + 1, sizeof(void *)) == 0)
        all->groups[all->count++] = group;
}

static void list_groups(void *user, void (*each)(void *user, const char *uid, int group),
                        void *each_user)
{
    k8s *self = user;
    listed all = {0};
    pthread_mutex_lock(&self->cache.lock);
    adli_k8s_cache_walk(&self->cache, note_group, &all);
    struct name {
        char uid[64];
        int number;
    } *names = adli_calloc(all.count + 1, sizeof *names);
    for (size_t i = 0; names && i < all.count; i++) {
        memcpy(names[i].uid, all.groups[i]->uid, sizeof names[i].uid);
        names[i].number = all.groups[i]->number;
    }
    pthread_mutex_unlock(&self->cache.lock);
    for (size_t i = 0; names && i < all.count; i++)
        each(each_user, names[i].uid, names[i].number);
    free(names);
    free(all.groups);
}

/* ---- stop, forget, remove: the same calls for some pods ---- */

typedef adli_k8s_calls calls;

void adli_k8s_call_fini(adli_kube_call *call)
{
    free((char *)call->path);
    free((char *)call->body);
    adli_kube_call_fini(call);
}

void adli_k8s_add_call(calls *all, const char *method, const char *path, const char *body,
                       const char *type)
{
    adli_kube_call call = {.method = method,
                           .path = adli_strdup(path),
                           .body = adli_strdup(body),
                           .type = type,
                           .time_s = CALL_S};
    if (call.path && call.body &&
        adli_grow(&all->items, &all->capacity, all->count + 1, sizeof *all->items) == 0)
        all->items[all->count++] = call;
    else
        adli_k8s_call_fini(&call);
}

static void add_pod_call(calls *all, const adli_k8s_pod *pod, const char *method, const char *body,
                         const char *type)
{
    char path[ADLI_K8S_PATH];
    adli_k8s_pod_path(pod->key, "", path);
    adli_k8s_add_call(all, method, path, body, type);
}

/* Takes the body. */
static void add_written(calls *all, const char *method, const char *path, adli_buf *body,
                        const char *type)
{
    if (adli_buf_check(body) == ADL_OK)
        adli_k8s_add_call(all, method, path, body->data, type);
    adli_buf_fini(body);
}

/* Ends it, with so many seconds; negative: with those that it has itself. */
static void add_delete(calls *all, const adli_k8s_pod *pod, int grace_s)
{
    char path[ADLI_K8S_PATH];
    adli_buf body;
    adli_k8s_pod_path(pod->key, "", path);
    adli_buf_init(&body, 256);
    adli_jw_open(&body, NULL, '{');
    if (grace_s >= 0)
        adli_jw_int(&body, "gracePeriodSeconds", grace_s);
    adli_jw_close(&body, '}');
    add_written(all, "DELETE", path, &body, NULL);
}

/* For what the server was away or too busy for; once, however often it is asked for meanwhile. */
static void keep_call(k8s *self, const adli_kube_call *call)
{
    for (size_t i = 0; i < self->again.count; i++) {
        const adli_kube_call *kept = &self->again.items[i];
        if (strcmp(kept->method, call->method) == 0 && strcmp(kept->path, call->path) == 0 &&
            strcmp(kept->body, call->body) == 0)
            return;
    }
    adli_k8s_add_call(&self->again, call->method, call->path, call->body, call->type);
}

/* What is not there is as it should be. */
static void make_calls(k8s *self, calls *all)
{
    if (all->count)
        adli_kube_do(self->kube, all->items, (int)all->count);
    for (size_t i = 0; i < all->count; i++) {
        adli_kube_call *call = &all->items[i];
        adl_status status = call->code == 404 ? ADL_OK : adli_kube_check(call, call->path);
        if (status != ADL_OK)
            adli_say(ADL_LOG_WARNING, "%s %s", call->method, adl_error());
        if (status == ADL_EIO || status == ADL_ETIMEOUT || status == ADL_ESTATE)
            keep_call(self, call);
        adli_k8s_call_fini(call);
    }
    free(all->items);
    *all = (calls){0};
}

static void call_again(k8s *self)
{
    calls again = self->again;
    self->again = (calls){0};
    make_calls(self, &again);
}

/* Under lock. Where the node goes before the pod's grace is over, that is cut: it is to end by itself, not with it. */
static void add_stop(k8s *self, calls *all, const adli_k8s_pod *pod, bool kill)
{
    const adli_k8s_node *node = adli_k8s_cache_node(&self->cache, pod->node);
    bool cut = node && node->notice_s > 0 && pod->grace_s > node->notice_s;
    add_delete(all, pod, kill ? 1 : cut ? node->notice_s : -1);
}

static void stop(void *user, const char *uid, int number, int member, bool kill)
{
    k8s *self = user;
    calls all = {0};
    adli_k8s_pod *pod;
    if (adli_member_check(uid, number) != ADL_OK)
        return;
    pthread_mutex_lock(&self->cache.lock);
    adli_k8s_group *group = adli_k8s_cache_group(&self->cache, uid, number);
    if (group)
        TAILQ_FOREACH(pod, &group->pods, link)
        {
            bool alive = !pod->absent && !pod->forgotten && pod->view.state <= ADLI_MEMBER_READY;
            if (alive && (member == ADLI_ALL_MEMBERS || pod->view.member == member) &&
                (kill || !pod->leaving))
                add_stop(self, &all, pod, kill);
        }
    pthread_mutex_unlock(&self->cache.lock);
    make_calls(self, &all);
}

/* Others may have finalizers of their own there. */
static const char release[] =
    "{\"metadata\":{\"$deleteFromPrimitiveList/finalizers\":[\"" ADLI_K8S_FINALIZER
    "\"],\"annotations\":{\"adaptdl/forgotten\":\"true\"}}}";

/* Under lock. What has ended is kept for its log, until the job starts again or goes; the rest is ended: first
 * deleted, then released, so that nothing is left running that nobody knows when we are killed in between. */
static void release_pod(adli_k8s_cache *cache, calls *first, calls *then, adli_k8s_pod *pod,
                        bool keep)
{
    bool ended = pod->over && !pod->leaving;
    if (!pod->absent) {
        if (!pod->forgotten || !keep)
            add_pod_call(then, pod, "PATCH", release, ADLI_KUBE_STRATEGIC);
        if (!ended || !keep)
            add_delete(first, pod, ended ? 0 : 1);
    }
    pod->forgotten = true;
    if (pod->absent)
        adli_k8s_cache_drop(cache, pod);
}

static void release_group(k8s *self, adli_k8s_group *group, calls *first, calls *then, bool keep)
{
    adli_k8s_pod *pod, *next;
    for (pod = TAILQ_FIRST(&group->pods); pod; pod = next) {
        next = TAILQ_NEXT(pod, link); /* the group goes with its last */
        release_pod(&self->cache, first, then, pod, keep);
    }
}

/* Where the job's objects are, by one of its pods; "": nobody knows. Under lock. */
static void namespace_of(const adli_k8s_group *group, char *out, size_t size)
{
    const adli_k8s_pod *pod = TAILQ_FIRST(&group->pods);
    snprintf(out, size, "%.*s", (int)strcspn(pod->key, "/"), pod->key);
}

static void forget(void *user, const char *uid, int number)
{
    k8s *self = user;
    calls first = {0}, then = {0};
    char ns[64], path[ADLI_K8S_PATH], secret[96], text[16];
    if (adli_member_check(uid, number) != ADL_OK)
        return;
    pthread_mutex_lock(&self->cache.lock);
    adli_k8s_group *group = adli_k8s_cache_group(&self->cache, uid, number);
    if (group) {
        namespace_of(group, ns, sizeof ns);
        adli_k8s_secret_name(uid, secret, sizeof secret);
        snprintf(path, sizeof path, "/api/v1/namespaces/%s/secrets/%s", ns, secret);
        snprintf(text, sizeof text, "%d", number);
        adli_buf body;
        adli_buf_init(&body, 256);
        adli_jw_open(&body, NULL, '{');
        adli_jw_open(&body, "metadata", '{');
        adli_jw_open(&body, "annotations", '{');
        adli_jw_text(&body, "adaptdl/forgotten", text);
        adli_buf_puts(&body, "}}}");
        add_written(&first, "PATCH", path, &body, ADLI_KUBE_MERGE);
        release_group(self, group, &first, &then, true);
    }
    pthread_mutex_unlock(&self->cache.lock);
    make_calls(self, &first);
    make_calls(self, &then);
}

typedef struct removal {
    const char *uid;
    adli_k8s_group **groups;
    size_t count, capacity;
} removal;

static void note_removed(void *user, adli_k8s_group *group)
{
    removal *r = user;
    if (strcmp(group->uid, r->uid) == 0 &&
        adli_grow(&r->groups, &r->capacity, r->count + 1, sizeof(void *)) == 0)
        r->groups[r->count++] = group;
}

static void remove_job(void *user, const char *uid)
{
    k8s *self = user;
    calls first = {0}, then = {0};
    removal found = {.uid = uid};
    char ns[64] = "", path[ADLI_K8S_PATH], secret[96];
    if (adli_member_check(uid, 1) != ADL_OK)
        return;
    pthread_mutex_lock(&self->cache.lock);
    adli_k8s_cache_walk(&self->cache, note_removed, &found);
    for (size_t i = 0; i < found.count; i++) {
        namespace_of(found.groups[i], ns, sizeof ns);
        release_group(self, found.groups[i], &first, &then, false);
    }
    pthread_mutex_unlock(&self->cache.lock);
    free(found.groups);
    adli_k8s_secret_name(uid, secret, sizeof secret);
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/secrets/%s", ns, secret);
    if (*ns)
        adli_k8s_add_call(&then, "DELETE", path, "{}", NULL);
    make_calls(self, &first);
    make_calls(self, &then);
}

/* ---- events, coming and going ---- */

static int event_fd(void *user)
{
    return ((k8s *)user)->cache.event_fd;
}

static void drain_events(void *user)
{
    uint64_t count;
    if (read(((k8s *)user)->cache.event_fd, &count, sizeof count) < 0)
        return; /* quiet already */
}

static void free_backend(void *user)
{
    k8s *self = user;
    if (!self)
        return;
    adli_kube_watch_free(self->pod_watch);
    adli_kube_watch_free(self->node_watch);
    if (self->own_kube)
        adli_kube_close(self->kube);
    adli_k8s_cache_fini(&self->cache);
    for (size_t i = 0; i < self->again.count; i++)
        adli_k8s_call_fini(&self->again.items[i]);
    free(self->again.items);
    free(self->views);
    free(self->only);
    json_decref(self->view_texts);
    json_decref(self->cache.holder_nodes);
    free(self->ns);
    free(self);
}

static const adli_backend_ops ops = {.nodes = nodes,
                                     .scale = adli_k8s_scale,
                                     .start = adli_k8s_start,
                                     .meet = meet,
                                     .stop = stop,
                                     .observe = observe,
                                     .forget = forget,
                                     .remove = remove_job,
                                     .list = list_groups,
                                     .event_fd = event_fd,
                                     .drain_events = drain_events,
                                     .put_source = adli_k8s_put_source,
                                     .open_log = adli_k8s_open_log,
                                     .open_file = adli_k8s_open_file,
                                     .free = free_backend};

static adl_status open_client(k8s *self)
{
    adli_kube_config config;
    if (self->options.kube) {
        self->kube = self->options.kube;
        return ADL_OK;
    }
    adl_status status = adli_kube_config_find(NULL, NULL, &config);
    if (status == ADL_OK)
        status = adli_kube_open(&config, &self->kube);
    self->own_kube = status == ADL_OK;
    adli_kube_config_fini(&config);
    return status;
}

/* Anybody can label a pod: it is ours only where its job is. Whose job is gone has to be cleared away. */
static bool is_ours(void *user, const char *ns, const char *uid)
{
    const k8s *self = user;
    adli_k8s_owner owner = {.pod = NULL};
    if (self->only && strcmp(ns, self->only) != 0)
        return false;
    if (!self->options.owner ||
        self->options.owner(self->options.owner_user, uid, &owner) != ADL_OK)
        return true;
    free(owner.pod);
    return strcmp(ns, owner.ns) == 0;
}

static adl_status watch_all(k8s *self)
{
    char path[ADLI_K8S_PATH];
    if (self->options.ns)
        snprintf(path, sizeof path, "/api/v1/namespaces/%s/pods", self->ns);
    else
        snprintf(path, sizeof path, "/api/v1/pods");
    adl_status status = adli_kube_watch_new(self->kube, path, "", &adli_k8s_pod_ops, &self->cache,
                                            &self->pod_watch);
    if (status == ADL_OK)
        status = adli_kube_watch_new(self->kube, "/api/v1/nodes", "", &adli_k8s_node_ops,
                                     &self->cache, &self->node_watch);
    struct timespec until = adli_deadline(LIST_MS);
    adli_k8s_cache *cache = &self->cache;
    pthread_mutex_lock(&cache->lock);
    while (status == ADL_OK && !(cache->pods_listed && cache->nodes_listed))
        if (pthread_cond_timedwait(&cache->news, &cache->lock, &until) != 0)
            status = adli_fail(ADL_EIO, "the cluster does not answer: %s",
                               *cache->trouble ? cache->trouble : "no list in a minute");
    pthread_mutex_unlock(&cache->lock);
    return status;
}

adl_status adli_k8s_new(const adli_k8s_options *given, adli_backend **out)
{
    *out = NULL;
    k8s *self = adli_calloc(1, sizeof *self);
    if (!self)
        return adli_fail_memory("backend");
    self->backend = (adli_backend){.ops = &ops, .self = self};
    self->options = (adli_k8s_options)ADLI_K8S_OPTIONS_INIT;
    self->cache.event_fd = -1;
    self->wanted_nodes = -1;
    adl_status status = adli_k8s_cache_init(&self->cache);
    if (status == ADL_OK)
        status = adli_options_take("k8s", &self->options, sizeof self->options, given);
    if (status == ADL_OK)
        status = open_client(self);
    if (status == ADL_OK) {
        const char *ns = self->options.ns;
        self->ns = adli_strdup(ns ? ns : adli_kube_namespace(self->kube));
        self->only = self->options.only ? adli_strdup(self->options.only) : NULL;
        self->cache.ours = is_ours;
        self->cache.ours_user = self;
        self->cache.holder_ns = self->options.scaling ? self->options.scaling->ns : NULL;
        if (self->options.scaling)
            self->cache.holder_nodes = adli_k8s_selector(self->options.scaling->selector);
        bool whole = self->ns && !self->only == !self->options.only;
        status = whole ? watch_all(self) : adli_fail_memory("backend");
    }
    if (status == ADL_OK)
        *out = &self->backend;
    else
        free_backend(self);
    return status;
}

/* Alone, without an operator: pods belong to nobody. */
static adl_status open_class(const adli_backend_options *options, adli_backend **out)
{
    adli_k8s_options own = ADLI_K8S_OPTIONS_INIT;
    if (options->nodes && options->nodes->count > 0)
        return adli_fail(ADL_EINVAL, "nodes: the cluster has its own");
    return adli_k8s_new(&own, out);
}

const adli_backend_class adli_backend_kubernetes = {
    .name = "kubernetes",
    .summary = "members are pods of a Kubernetes cluster",
    .open = open_class,
};
