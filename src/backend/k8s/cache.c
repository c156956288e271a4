/* What there is: every pod and node of the cluster, kept up to date by two watches. Of pods that are not ours
 * only their node and what they take is kept. */
#include "backend/k8s/impl.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"

#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int by_key(const void *a, const void *b)
{
    return strcmp(((const adli_k8s_pod *)a)->key, ((const adli_k8s_pod *)b)->key);
}

static int by_name(const void *a, const void *b)
{
    const adli_k8s_group *x = a, *y = b;
    int order = strcmp(x->uid, y->uid);
    return order ? order : (x->number > y->number) - (x->number < y->number);
}

void adli_k8s_cache_tell(adli_k8s_cache *cache)
{
    uint64_t one = 1;
    pthread_cond_broadcast(&cache->news);
    if (write(cache->event_fd, &one, sizeof one) < 0)
        return; /* it says so already */
}

/* ---- names of resources, each kept once ---- */

static const char *intern(adli_k8s_cache *cache, const char *name)
{
    for (int i = 0; i < cache->name_count; i++)
        if (strcmp(cache->names[i], name) == 0)
            return cache->names[i];
    if (cache->name_count == ADLI_K8S_NAMES)
        return NULL;
    char *copy = adli_strdup(name);
    if (copy)
        cache->names[cache->name_count++] = copy;
    return copy;
}

static void keep_amounts(adli_k8s_cache *cache, const adli_k8s_amounts *from, adli_k8s_amounts *to)
{
    to->count = 0;
    for (int i = 0; i < from->count; i++) {
        const char *name = intern(cache, from->names[i]);
        if (!name)
            continue;
        to->names[to->count] = name;
        to->amounts[to->count++] = from->amounts[i];
    }
}

/* ---- groups ---- */

adli_k8s_group *adli_k8s_cache_group(adli_k8s_cache *cache, const char *uid, int number)
{
    adli_k8s_group key = {.number = number};
    snprintf(key.uid, sizeof key.uid, "%s", uid);
    adli_k8s_group **found = tfind(&key, &cache->groups, by_name);
    return found ? *found : NULL;
}

static adli_k8s_group *make_group(adli_k8s_cache *cache, const char *uid, int number)
{
    adli_k8s_group *group = adli_k8s_cache_group(cache, uid, number);
    if (group)
        return group;
    group = adli_calloc(1, sizeof *group);
    if (!group)
        return NULL;
    snprintf(group->uid, sizeof group->uid, "%s", uid);
    group->number = number;
    TAILQ_INIT(&group->pods);
    if (!tsearch(group, &cache->groups, by_name)) {
        free(group);
        return NULL;
    }
    return group;
}

static void join_group(adli_k8s_pod *pod, adli_k8s_group *group)
{
    adli_k8s_pod *other;
    pod->group = group;
    TAILQ_FOREACH(other, &group->pods, link)
    {
        if (other->view.member > pod->view.member) {
            TAILQ_INSERT_BEFORE(other, pod, link);
            return;
        }
    }
    TAILQ_INSERT_TAIL(&group->pods, pod, link);
}

/* ---- pods ---- */

static adli_k8s_pod *find_pod(adli_k8s_cache *cache, const char *key)
{
    adli_k8s_pod wanted = {.key = (char *)key};
    adli_k8s_pod **found = tfind(&wanted, &cache->pods, by_key);
    return found ? *found : NULL;
}

static adli_k8s_pod *make_pod(adli_k8s_cache *cache, const char *key, const char *node)
{
    adli_k8s_pod *pod = adli_calloc(1, sizeof *pod);
    if (pod) {
        pod->key = adli_strdup(key);
        pod->node = adli_strdup(node);
        pod->since_s = adli_monotonic_s();
    }
    if (pod && pod->key && pod->node && tsearch(pod, &cache->pods, by_key))
        return pod;
    if (pod) {
        free(pod->key);
        free(pod->node);
    }
    free(pod);
    return NULL;
}

void adli_k8s_cache_drop(adli_k8s_cache *cache, adli_k8s_pod *pod)
{
    adli_k8s_group *group = pod->group;
    tdelete(pod, &cache->pods, by_key);
    if (group) {
        TAILQ_REMOVE(&group->pods, pod, link);
        if (TAILQ_EMPTY(&group->pods)) {
            tdelete(group, &cache->groups, by_name);
            free(group);
        }
    } else
        cache->nodes_stale = true;
    cache->holders_stale |= pod->placeholder;
    free(pod->key);
    free(pod->node);
    free(pod);
}

static bool same_view(const adli_member_view *a, const adli_member_view *b)
{
    return a->state == b->state && a->cause == b->cause && a->exit_code == b->exit_code &&
           strcmp(a->message, b->message) == 0 && strcmp(a->address, b->address) == 0;
}

static bool same_amounts(const adli_k8s_amounts *a, const adli_k8s_amounts *b)
{
    bool same = a->count == b->count;
    for (int i = 0; same && i < a->count; i++)
        same = a->names[i] == b->names[i] && a->amounts[i] == b->amounts[i];
    return same;
}

static void update(adli_k8s_cache *cache, adli_k8s_pod *pod, const adli_k8s_pod_view *from)
{
    adli_k8s_amounts requests;
    keep_amounts(cache, &from->requests, &requests);
    if (strcmp(pod->node, from->node) != 0) {
        char *node = adli_strdup(from->node);
        if (node) {
            free(pod->node);
            pod->node = node;
        }
        cache->nodes_stale = true;
    }
    bool changed =
        pod->group && (!same_view(&pod->view, &from->view) || pod->stuck != from->stuck ||
                       pod->leaving != from->leaving || (from->forgotten && !pod->forgotten));
    cache->nodes_stale |=
        !pod->group && (pod->over != from->over || !same_amounts(&pod->requests, &requests));
    cache->holders_stale |= pod->placeholder;
    pod->requests = requests;
    pod->over = from->over;
    pod->grace_s = from->grace_s;
    if (from->leaving && (!pod->leaving || pod->leaves_s != from->leaves_s))
        pod->gone_s = adli_monotonic_s() + from->leaves_s;
    pod->leaves_s = from->leaves_s;
    pod->forgotten |= from->forgotten; /* for good, though older news of it may still come */
    pod->leaving = from->leaving;
    pod->stuck = from->stuck;
    pod->unplaced = from->unplaced;
    pod->absent = false;
    pod->seen = true;
    if (pod->group)
        pod->view = from->view;
    if (changed || cache->nodes_stale)
        adli_k8s_cache_tell(cache);
}

static void take(adli_k8s_cache *cache, const adli_k8s_pod_view *from)
{
    char key[ADLI_K8S_PATH];
    snprintf(key, sizeof key, "%s/%s", from->ns, from->name);
    adli_k8s_pod *pod = find_pod(cache, key);
    bool fresh = !pod;
    if (fresh && !(pod = make_pod(cache, key, from->node)))
        return;
    bool ours =
        fresh && from->ours && (!cache->ours || cache->ours(cache->ours_user, from->ns, from->uid));
    if (ours) {
        adli_k8s_group *group = make_group(cache, from->uid, from->group);
        pod->view.member = from->view.member;
        if (group)
            join_group(pod, group);
    }
    pod->placeholder = from->placeholder && !pod->group && cache->holder_ns &&
                       strcmp(from->ns, cache->holder_ns) == 0;
    cache->nodes_stale |= fresh && !ours;
    update(cache, pod, from);
}

/* The server has it no more. Others' are gone; ours left without our leave, so what is known of it stays. */
static void lose(adli_k8s_cache *cache, adli_k8s_pod *pod)
{
    if (!pod->group || pod->forgotten) {
        adli_k8s_cache_drop(cache, pod);
        adli_k8s_cache_tell(cache);
        return;
    }
    pod->absent = true;
    if (pod->view.state <= ADLI_MEMBER_READY) {
        pod->view.state = ADLI_MEMBER_INTERRUPTED;
        pod->view.cause = ADLI_CAUSE_LOST;
        pod->view.ended_s = adli_clock_of(CLOCK_REALTIME);
        snprintf(pod->view.message, sizeof pod->view.message, "its pod is gone");
    }
    adli_k8s_cache_tell(cache);
}

void adli_k8s_cache_add(adli_k8s_cache *cache, const json_t *object)
{
    adli_k8s_pod_view view;
    char key[ADLI_K8S_PATH];
    if (!adli_k8s_read_pod(object, &view))
        return;
    snprintf(key, sizeof key, "%s/%s", view.ns, view.name);
    if (!find_pod(cache, key))
        take(cache, &view);
}

adl_status adli_k8s_cache_invent(adli_k8s_cache *cache, const char *key, const char *uid,
                                 int number, const char *node, const adli_member_view *view,
                                 bool absent)
{
    if (find_pod(cache, key))
        return ADL_OK;
    adli_k8s_group *group = make_group(cache, uid, number);
    adli_k8s_pod *pod = group ? make_pod(cache, key, node) : NULL;
    if (!pod)
        return adli_fail_memory("pods");
    pod->view = *view;
    pod->seen = true;
    pod->absent = absent;
    join_group(pod, group);
    adli_k8s_cache_tell(cache);
    return ADL_OK;
}

/* ---- the watch of pods ---- */

typedef struct collected {
    adli_k8s_pod **items;
    size_t count, capacity;
} collected;

static void collect(const void *node, VISIT which, void *user)
{
    collected *all = user;
    if ((which == postorder || which == leaf) &&
        adli_grow(&all->items, &all->capacity, all->count + 1, sizeof *all->items) == 0)
        all->items[all->count++] = *(adli_k8s_pod *const *)node;
}

static void begin_pods(void *user)
{
    adli_k8s_cache *cache = user;
    collected all = {0};
    pthread_mutex_lock(&cache->lock);
    twalk_r(cache->pods, collect, &all);
    for (size_t i = 0; i < all.count; i++)
        all.items[i]->seen = all.items[i]->absent;
    pthread_mutex_unlock(&cache->lock);
    free(all.items);
}

static void on_pod(void *user, const json_t *object, bool gone)
{
    adli_k8s_cache *cache = user;
    adli_k8s_pod_view view;
    char key[ADLI_K8S_PATH];
    if (!adli_k8s_read_pod(object, &view))
        return;
    snprintf(key, sizeof key, "%s/%s", view.ns, view.name);
    pthread_mutex_lock(&cache->lock);
    adli_k8s_pod *pod = gone ? find_pod(cache, key) : NULL;
    if (!gone)
        take(cache, &view);
    else if (pod) {
        update(cache, pod, &view); /* its last state */
        lose(cache, pod);
    }
    pthread_mutex_unlock(&cache->lock);
}

static void complete_pods(void *user)
{
    adli_k8s_cache *cache = user;
    collected all = {0};
    pthread_mutex_lock(&cache->lock);
    twalk_r(cache->pods, collect, &all);
    for (size_t i = 0; i < all.count; i++)
        if (!all.items[i]->seen)
            lose(cache, all.items[i]);
    cache->pods_listed = true;
    cache->trouble[0] = 0;
    adli_k8s_cache_tell(cache);
    pthread_mutex_unlock(&cache->lock);
    free(all.items);
}

static void on_trouble(void *user, const char *text)
{
    adli_k8s_cache *cache = user;
    pthread_mutex_lock(&cache->lock);
    snprintf(cache->trouble, sizeof cache->trouble, "%s", text);
    pthread_mutex_unlock(&cache->lock);
    adli_say(ADL_LOG_WARNING, "watch %s", text);
}

const adli_kube_watch_ops adli_k8s_pod_ops = {begin_pods, on_pod, complete_pods, on_trouble};

/* ---- nodes ---- */

adli_k8s_node *adli_k8s_cache_node(adli_k8s_cache *cache, const char *name)
{
    for (size_t i = 0; i < cache->node_count; i++)
        if (strcmp(cache->nodes[i].name, name) == 0)
            return &cache->nodes[i];
    return NULL;
}

static void node_fini(adli_k8s_node *node)
{
    free(node->name);
    free(node->hostname);
    free(node->device_type);
    free(node->address);
}

static void drop_node(adli_k8s_cache *cache, adli_k8s_node *node)
{
    node_fini(node);
    *node = cache->nodes[--cache->node_count];
    cache->nodes_stale = cache->holders_stale = true;
    adli_k8s_cache_tell(cache);
}

static bool same_node(const adli_k8s_node *a, const adli_k8s_node *b)
{
    return a->schedulable == b->schedulable && a->lost == b->lost &&
           a->preemptible == b->preemptible && a->notice_s == b->notice_s &&
           a->addable == b->addable && a->price == b->price &&
           strcmp(a->hostname, b->hostname) == 0 && strcmp(a->device_type, b->device_type) == 0 &&
           strcmp(a->address, b->address) == 0 && same_amounts(&a->allocatable, &b->allocatable);
}

static bool selected(const adli_k8s_cache *cache, const json_t *labels)
{
    const char *key;
    const json_t *value;
    json_object_foreach(cache->holder_nodes, key, value)
    {
        if (!json_equal(json_object_get(labels, key), value))
            return false;
    }
    return true;
}

static void take_node(adli_k8s_cache *cache, const adli_k8s_node_view *view)
{
    adli_k8s_node *old = adli_k8s_cache_node(cache, view->name);
    adli_k8s_node node = {.name = adli_strdup(view->name),
                          .hostname = adli_strdup(view->hostname),
                          .device_type = adli_strdup(view->device_type),
                          .address = adli_strdup(view->address),
                          .schedulable = view->schedulable,
                          .lost = view->lost,
                          .preemptible = view->preemptible,
                          .price = view->price,
                          .notice_s = view->notice_s,
                          .addable = selected(cache, view->labels),
                          .seen = true};
    keep_amounts(cache, &view->allocatable, &node.allocatable);
    bool whole = node.name && node.hostname && node.device_type && node.address;
    if (!whole || (!old && adli_grow(&cache->nodes, &cache->node_capacity, cache->node_count + 1,
                                     sizeof *cache->nodes) != 0)) {
        node_fini(&node);
        return;
    }
    bool changed = !old || !same_node(old, &node);
    if (old)
        node_fini(old);
    else
        old = &cache->nodes[cache->node_count++];
    *old = node;
    if (changed) { /* a kubelet reports every few seconds, mostly nothing */
        cache->nodes_stale = cache->holders_stale = true;
        adli_k8s_cache_tell(cache);
    }
}

static void begin_nodes(void *user)
{
    adli_k8s_cache *cache = user;
    pthread_mutex_lock(&cache->lock);
    for (size_t i = 0; i < cache->node_count; i++)
        cache->nodes[i].seen = false;
    pthread_mutex_unlock(&cache->lock);
}

static void on_node(void *user, const json_t *object, bool gone)
{
    adli_k8s_cache *cache = user;
    adli_k8s_node_view view;
    if (!adli_k8s_read_node(object, &view))
        return;
    pthread_mutex_lock(&cache->lock);
    adli_k8s_node *old = gone ? adli_k8s_cache_node(cache, view.name) : NULL;
    if (!gone)
        take_node(cache, &view);
    else if (old)
        drop_node(cache, old);
    pthread_mutex_unlock(&cache->lock);
}

static void complete_nodes(void *user)
{
    adli_k8s_cache *cache = user;
    pthread_mutex_lock(&cache->lock);
    for (size_t i = cache->node_count; i-- > 0;)
        if (!cache->nodes[i].seen)
            drop_node(cache, &cache->nodes[i]);
    cache->nodes_listed = true;
    cache->trouble[0] = 0;
    adli_k8s_cache_tell(cache);
    pthread_mutex_unlock(&cache->lock);
}

const adli_kube_watch_ops adli_k8s_node_ops = {begin_nodes, on_node, complete_nodes, on_trouble};

static int node_order(const void *a, const void *b)
{
    return strcmp(((const adli_k8s_node *)a)->name, ((const adli_k8s_node *)b)->name);
}

void adli_k8s_cache_sum(adli_k8s_cache *cache)
{
    collected all = {0};
    if (cache->node_count)
        qsort(cache->nodes, cache->node_count, sizeof *cache->nodes, node_order);
    for (size_t i = 0; i < cache->node_count; i++) {
        cache->nodes[i].foreign = (adli_k8s_amounts){0};
        cache->nodes[i].ours = false;
    }
    twalk_r(cache->pods, collect, &all);
    for (size_t i = 0; i < all.count; i++) {
        const adli_k8s_pod *pod = all.items[i];
        adli_k8s_node key = {.name = pod->node}, *node = NULL;
        if (!pod->over && *pod->node && cache->node_count)
            node = bsearch(&key, cache->nodes, cache->node_count, sizeof *cache->nodes, node_order);
        if (!node)
            continue;
        node->ours |= pod->group && pod->view.state <= ADLI_MEMBER_READY;
        adli_k8s_amounts *sum = &node->foreign;
        /* what placeholders take is kept free on all nodes, whether one is there or not */
        for (int r = 0; !pod->group && !pod->placeholder && r < pod->requests.count; r++) {
            int at = 0;
            while (at < sum->count && sum->names[at] != pod->requests.names[r])
                at++;
            if (at == ADLI_NODE_RESOURCES_MAX)
                continue;
            int64_t before = at < sum->count ? sum->amounts[at] : 0;
            if (__builtin_add_overflow(before, pod->requests.amounts[r], &sum->amounts[at]))
                sum->amounts[at] = INT64_MAX;
            sum->names[at] = pod->requests.names[r];
            sum->count += at == sum->count;
        }
    }
    free(all.items);
}

/* ---- all of it ---- */

typedef struct walk {
    void (*each)(void *user, adli_k8s_group *group);
    void *user;
} walk;

static void visit_group(const void *node, VISIT which, void *user)
{
    const walk *w = user;
    if (which == postorder || which == leaf)
        w->each(w->user, *(adli_k8s_group *const *)node);
}

typedef struct pod_walk {
    void (*each)(void *user, adli_k8s_pod *pod);
    void *user;
} pod_walk;

static void visit_pod(const void *node, VISIT which, void *user)
{
    const pod_walk *w = user;
    if (which == postorder || which == leaf)
        w->each(w->user, *(adli_k8s_pod *const *)node);
}

void adli_k8s_cache_each(adli_k8s_cache *cache, void (*each)(void *user, adli_k8s_pod *pod),
                         void *user)
{
    pod_walk w = {each, user};
    twalk_r(cache->pods, visit_pod, &w);
}

void adli_k8s_cache_walk(adli_k8s_cache *cache, void (*each)(void *user, adli_k8s_group *group),
                         void *user)
{
    walk w = {each, user};
    twalk_r(cache->groups, visit_group, &w);
}

adl_status adli_k8s_cache_init(adli_k8s_cache *cache)
{
    pthread_mutex_init(&cache->lock, NULL);
    cache->nodes_stale = true;
    cache->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    adl_status status = adli_cond_init(&cache->news);
    return status == ADL_OK && cache->event_fd < 0 ? adli_fail(ADL_EIO, "eventfd") : status;
}

void adli_k8s_cache_fini(adli_k8s_cache *cache)
{
    collected all = {0};
    twalk_r(cache->pods, collect, &all);
    for (size_t i = 0; i < all.count; i++)
        adli_k8s_cache_drop(cache, all.items[i]);
    free(all.items);
    for (size_t i = 0; i < cache->node_count; i++)
        node_fini(&cache->nodes[i]);
    free(cache->nodes);
    for (int i = 0; i < cache->name_count; i++)
        free(cache->names[i]);
    if (cache->event_fd >= 0)
        close(cache->event_fd);
    pthread_cond_destroy(&cache->news);
    pthread_mutex_destroy(&cache->lock);
}
