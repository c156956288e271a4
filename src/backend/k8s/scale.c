/* Placeholders: one pod for each node that there should be, no two on one node, with a priority below everything. Those
 * that find no node wait, and a cluster autoscaler adds nodes for them; where there are fewer, nodes become empty and it
 * takes them away. Names are numbers, so that nothing is made twice. */
#include "backend/k8s/impl.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAUSE_S = 5, AT_ONCE = 100 };

static const char prefix[] = "adaptdl-placeholder-";

/* ---- the pod ---- */

/* "key=value,key=value" as an object. */
json_t *adli_k8s_selector(const char *text)
{
    json_t *out = json_object();
    while (*text) {
        size_t length = strcspn(text, ","), name = strcspn(text, "=,");
        if (name < length) {
            char *key = strndup(text, name);
            if (key)
                json_object_set_new(out, key, json_stringn(text + name + 1, length - name - 1));
            free(key);
        }
        text += length;
        text += *text == ',';
    }
    return out;
}

char *adli_k8s_placeholder(const adli_k8s_scaling *scaling, int number)
{
    char name[64];
    snprintf(name, sizeof name, "%s%d", prefix, number);
    json_t *pod = json_pack(
        "{s:s,s:s,s:{s:s,s:s,s:{s:s}},s:{s:s,s:i,s:b,s:b,s:s,s:o,s:[{s:s,s:s,s:s}],"
        "s:{s:{s:[{s:{s:{s:s}},s:s}]}},"
        "s:[{s:s,s:s,s:s,s:[ss],s:{s:{s:s,s:s}},s:{s:b,s:b,s:i,s:{s:[s]}}}]}}",
        "apiVersion", "v1", "kind", "Pod", "metadata", "name", name, "namespace", scaling->ns,
        "labels", ADLI_K8S_PLACEHOLDER, "true", "spec", "priorityClassName", "adaptdl-placeholder",
        "terminationGracePeriodSeconds", 0, "automountServiceAccountToken", 0, "enableServiceLinks",
        0, "restartPolicy", "Always", "nodeSelector", adli_k8s_selector(scaling->selector),
        "tolerations", "key", "petuum.com/nodegroup", "operator", "Equal", "value", "adaptdl",
        "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution",
        "labelSelector", "matchLabels", ADLI_K8S_PLACEHOLDER, "true", "topologyKey",
        "kubernetes.io/hostname", "containers", "name", "placeholder", "image", scaling->image,
        "imagePullPolicy", "IfNotPresent", "command", "/bin/adaptdl-sched", "--placeholder",
        "resources", "requests", "cpu", "1m", "memory", "1Mi", "securityContext",
        "allowPrivilegeEscalation", 0, "readOnlyRootFilesystem", 1, "runAsUser", 65532,
        "capabilities", "drop", "ALL");
    if (pod && *scaling->owner_uid)
        json_object_set_new(json_object_get(pod, "metadata"), "ownerReferences",
                            json_pack("[{s:s,s:s,s:s,s:s}]", "apiVersion", "apps/v1", "kind",
                                      "Deployment", "name", scaling->owner, "uid",
                                      scaling->owner_uid));
    char *text = pod ? json_dumps(pod, JSON_COMPACT) : NULL;
    json_decref(pod);
    return text;
}

/* ---- which there are ---- */

typedef struct holders {
    k8s *self;
    adli_k8s_pod **items;
    size_t count, capacity;
} holders;

static void note(void *user, adli_k8s_pod *pod)
{
    holders *all = user;
    if (pod->placeholder &&
        adli_grow(&all->items, &all->capacity, all->count + 1, sizeof *all->items) == 0)
        all->items[all->count++] = pod;
}

/* Those to be removed come first: what ended, what waits, what is where no job is. */
static int worth(const k8s *self, const adli_k8s_pod *pod)
{
    const adli_k8s_node *node = adli_k8s_cache_node((adli_k8s_cache *)&self->cache, pod->node);
    if (pod->over || pod->leaving)
        return 0;
    if (!*pod->node)
        return 1;
    return !node || !node->schedulable ? 2 : node->ours ? 4 : 3;
}

static int number_of(const adli_k8s_pod *pod)
{
    const char *name = strchr(pod->key, '/') + 1;
    return strncmp(name, prefix, sizeof prefix - 1) == 0 ? atoi(name + sizeof prefix - 1) : -1;
}

/* Of equal ones the last made go first. */
static int by_worth(const void *a, const void *b, void *user)
{
    const adli_k8s_pod *x = *(adli_k8s_pod *const *)a, *y = *(adli_k8s_pod *const *)b;
    int order = worth(user, x) - worth(user, y);
    return order ? order : number_of(y) - number_of(x);
}

static bool taken(const holders *all, int number)
{
    for (size_t i = 0; i < all->count; i++)
        if (number_of(all->items[i]) == number)
            return true;
    return false;
}

/* Under lock: of the nodes that there should be, those that can be of the kind that is added. */
static size_t places(const k8s *self)
{
    size_t others = 0, wanted = (size_t)self->wanted_nodes;
    for (size_t i = 0; i < self->cache.node_count; i++)
        others += self->cache.nodes[i].schedulable && !self->cache.nodes[i].addable;
    return wanted > others ? wanted - others : 0;
}

/* Under lock: the calls that make as many as are wanted of what there is. */
static void plan(k8s *self, adli_k8s_calls *calls)
{
    holders all = {.self = self};
    char path[ADLI_K8S_PATH];
    adli_k8s_cache_sum(&self->cache);
    adli_k8s_cache_each(&self->cache, note, &all);
    if (all.count)
        qsort_r(all.items, all.count, sizeof *all.items, by_worth, self);
    size_t good = 0, wanted = places(self);
    for (size_t i = 0; i < all.count; i++)
        good += worth(self, all.items[i]) > 0;
    for (size_t i = 0; i < all.count; i++) {
        bool bad = worth(self, all.items[i]) == 0;
        if (all.items[i]->leaving || (!bad && good <= wanted))
            continue;
        good -= !bad;
        adli_k8s_pod_path(all.items[i]->key, "", path);
        adli_k8s_add_call(calls, "DELETE", path, "{\"gracePeriodSeconds\":0}", NULL);
    }
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/pods", self->options.scaling->ns);
    for (int number = 0; good < wanted && calls->count < AT_ONCE; number++) {
        if (taken(&all, number))
            continue;
        char *body = adli_k8s_placeholder(self->options.scaling, number);
        if (body)
            adli_k8s_add_call(calls, "POST", path, body, NULL);
        free(body);
        good++;
    }
    self->cache.holders_stale = good < wanted;
    free(all.items);
}

static bool refused(const adli_kube_call *call)
{
    bool fine =
        call->code == 409 || call->code == 404 || adli_kube_check(call, call->path) == ADL_OK;
    if (!fine)
        adli_say(ADL_LOG_WARNING, "placeholder: %s %s", call->method, adl_error());
    return !fine;
}

void adli_k8s_hold_places(k8s *self)
{
    adli_k8s_calls calls = {0};
    double now_s = adli_monotonic_s();
    if (!self->options.scaling || self->wanted_nodes < 0 || now_s < self->hold_again_s)
        return;
    pthread_mutex_lock(&self->cache.lock);
    if (self->cache.holders_stale)
        plan(self, &calls);
    pthread_mutex_unlock(&self->cache.lock);
    bool again = false;
    if (calls.count)
        adli_kube_do(self->kube, calls.items, (int)calls.count);
    for (size_t i = 0; i < calls.count; i++) {
        again |= refused(&calls.items[i]);
        adli_k8s_call_fini(&calls.items[i]);
    }
    free(calls.items);
    if (again) {
        self->hold_again_s = now_s + PAUSE_S;
        pthread_mutex_lock(&self->cache.lock);
        self->cache.holders_stale = true;
        pthread_mutex_unlock(&self->cache.lock);
    }
}

adl_status adli_k8s_scale(void *user, int desired_nodes)
{
    k8s *self = user;
    if (desired_nodes < 0)
        return adli_fail(ADL_EINVAL, "%d nodes", desired_nodes);
    self->wanted_nodes = self->options.scaling && self->options.scaling->on ? desired_nodes : 0;
    pthread_mutex_lock(&self->cache.lock);
    self->cache.holders_stale = true;
    pthread_mutex_unlock(&self->cache.lock);
    adli_k8s_hold_places(self);
    return ADL_OK;
}
