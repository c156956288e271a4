/* Starting members: the job's Secret first, whose answer tells which groups are over for ever, then a pod for
 * each member that has none. A pod that is there already is as good as one that was made. */
#include "backend/k8s/impl.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/options.h"
#include "jobspec/pod.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STARTS_KEPT = 3 };

typedef struct work {
    k8s *self;
    const adli_start *start;
    adli_k8s_owner owner;
    json_t *template;
    char secret[96];
    /* [start->count] those to be made, in `todo` of them */
    const adli_member_start **members;
    char (*hostnames)[256];
    char (*keys)[ADLI_K8S_PATH];
    char **bodies;
    adli_kube_call *calls;
    int todo, call_count, call_capacity;
} work;

static adl_status find_owner(work *w)
{
    k8s *self = w->self;
    const adli_start *start = w->start;
    const char *pod = start->pod ? start->pod : "";
    if (self->options.owner) {
        adl_status status = self->options.owner(self->options.owner_user, start->uid, &w->owner);
        if (status != ADL_OK)
            return status;
        pod = w->owner.pod ? w->owner.pod : "";
    } else {
        adli_jobfile spec = {0};
        adl_status status = adli_pod_parse("pod template", pod, strlen(pod), &spec);
        adli_jobfile_fini(&spec);
        if (status != ADL_OK)
            return status;
        snprintf(w->owner.ns, sizeof w->owner.ns, "%s", self->ns);
        snprintf(w->owner.name, sizeof w->owner.name, "%s",
                 start->name && *start->name ? start->name : start->uid);
    }
    return adli_json_parse(pod, strlen(pod), &w->template);
}

static adl_status allocate(work *w)
{
    size_t count = (size_t)w->start->count;
    w->members = adli_calloc(count, sizeof *w->members);
    w->hostnames = adli_calloc(count, sizeof *w->hostnames);
    w->keys = adli_calloc(count, sizeof *w->keys);
    w->bodies = adli_calloc(count, sizeof *w->bodies);
    return w->members && w->hostnames && w->keys && w->bodies ? ADL_OK : adli_fail_memory("pods");
}

static bool over(const adli_k8s_group *group)
{
    const adli_k8s_pod *pod;
    if (group)
        TAILQ_FOREACH(pod, &group->pods, link)
        {
            if (pod->forgotten)
                return true;
        }
    return false;
}

static bool known(const adli_k8s_group *group, int member)
{
    const adli_k8s_pod *pod;
    if (group)
        TAILQ_FOREACH(pod, &group->pods, link)
        {
            if (pod->view.member == member)
                return true;
        }
    return false;
}

static adl_status fail_over(const adli_start *start)
{
    return adli_fail(ADL_ESTATE, "group %d of %s is over", start->group, start->uid);
}

/* Those that have no pod yet, and where they go. ESTATE: the group is over. */
static adl_status choose(work *w)
{
    adli_k8s_cache *cache = &w->self->cache;
    const adli_start *start = w->start;
    adl_status status = ADL_OK;
    pthread_mutex_lock(&cache->lock);
    const adli_k8s_group *group = adli_k8s_cache_group(cache, start->uid, start->group);
    if (over(group))
        status = fail_over(start);
    for (int i = 0; status == ADL_OK && i < start->count; i++) {
        const adli_member_start *member = &start->members[i];
        if (known(group, member->member))
            continue;
        const adli_k8s_node *node = adli_k8s_cache_node(cache, member->node);
        if (!node || node->lost) {
            status = adli_fail(ADL_ENOENT, "no node %s", member->node);
            break;
        }
        char name[256];
        adli_k8s_pod_name(w->owner.name, start->uid, start->group, member->member, name,
                          sizeof name);
        snprintf(w->hostnames[w->todo], sizeof w->hostnames[0], "%s", node->hostname);
        snprintf(w->keys[w->todo], sizeof w->keys[0], "%s/%s", w->owner.ns, name);
        w->members[w->todo++] = member;
    }
    pthread_mutex_unlock(&cache->lock);
    return status;
}

static adli_k8s_pod_plan plan_of(const work *w, int i)
{
    return (adli_k8s_pod_plan){.start = w->start,
                               .member = w->members[i],
                               .ns = w->owner.ns,
                               .job = w->owner.name,
                               .hostname = w->hostnames[i],
                               .secret = w->secret,
                               .owned = w->self->options.owner != NULL,
                               .grace_s = w->self->options.grace_s};
}

/* ESTATE: the group is over. */
static adl_status apply_secret(work *w)
{
    adli_k8s_pod_plan plan = plan_of(w, 0);
    char path[ADLI_K8S_PATH], *body = NULL;
    json_t *made = NULL;
    snprintf(path, sizeof path,
             "/api/v1/namespaces/%s/secrets/%s?fieldManager=adaptdl-sched&force=true", w->owner.ns,
             w->secret);
    adl_status status = adli_k8s_make_secret(&plan, &body);
    if (status == ADL_OK)
        status = adli_kube_one(w->self->kube, "PATCH", path, body, ADLI_KUBE_APPLY, 0, &made);
    if (status == ADL_ESTATE) /* others change it, too: asked again later */
        status = ADL_ETIMEOUT;
    if (body)
        explicit_bzero(body, strlen(body));
    free(body);
    const json_t *annotations = json_object_get(json_object_get(made, "metadata"), "annotations");
    const char *text = json_string_value(json_object_get(annotations, "adaptdl/forgotten"));
    if (status == ADL_OK && text && atoi(text) >= w->start->group)
        status = fail_over(w->start);
    json_decref(made);
    return status;
}

/* ---- what the server says ---- */

static adl_status refuse(work *w, int i, adli_member_state state, adli_cause cause,
                         const char *message, bool absent)
{
    adli_member_view view = {
        .member = w->members[i]->member, .state = state, .cause = cause, .exit_code = -1};
    snprintf(view.message, sizeof view.message, "%s", message);
    return adli_k8s_cache_invent(&w->self->cache, w->keys[i], w->start->uid, w->start->group,
                                 w->members[i]->node, &view, absent);
}

/* Under the cache's lock. */
static adl_status take_answer(work *w, int i)
{
    adli_kube_call *call = &w->calls[i];
    json_t *pod = NULL;
    if (call->code == 409 && !adli_kube_conflicts(call))
        return refuse(w, i, ADLI_MEMBER_WAITING, ADLI_CAUSE_NONE, "", false);
    adl_status status = adli_kube_check(call, "pod");
    if (status == ADL_OK) {
        status =
            adli_json_parse(call->answer.data ? call->answer.data : "", call->answer.length, &pod);
        if (status == ADL_OK)
            adli_k8s_cache_add(&w->self->cache, pod);
        json_decref(pod);
        return status;
    }
    if (call->code == 403 && strstr(adl_error(), "quota"))
        return refuse(w, i, ADLI_MEMBER_INTERRUPTED, ADLI_CAUSE_OUT_OF_RESOURCES, adl_error(),
                      true);
    if (status == ADL_EINVAL || status == ADL_ENOENT)
        return refuse(w, i, ADLI_MEMBER_FAILED, ADLI_CAUSE_CANNOT_RUN, adl_error(), true);
    return ADL_ETIMEOUT; /* the server is away or busy: asked again later */
}

/* Pods of groups that are over are kept for their logs, until so many starts came after them. One that still runs, because the server was away
 * when it was forgotten, is ended: without its grace nobody would know when it is gone. */
typedef struct old_pods {
    work *w;
    adl_status status;
} old_pods;

static adl_status add_call(work *w, const char *method, const char *path, const char *body)
{
    size_t capacity = (size_t)w->call_capacity;
    if (adli_grow(&w->calls, &capacity, (size_t)w->call_count + 1, sizeof *w->calls) != 0)
        return adli_fail_memory("pods");
    w->call_capacity = (int)capacity;
    w->calls[w->call_count] = (adli_kube_call){.method = method, .path = path, .body = body};
    w->call_count++;
    return ADL_OK;
}

static void delete_old(void *user, adli_k8s_group *group)
{
    old_pods *old = user;
    const adli_k8s_pod *pod;
    if (strcmp(group->uid, old->w->start->uid) != 0 || old->status != ADL_OK)
        return;
    TAILQ_FOREACH(pod, &group->pods, link)
    {
        bool kept = pod->over && group->number + STARTS_KEPT >= old->w->start->group;
        if (!pod->forgotten || pod->absent || kept || old->status != ADL_OK)
            continue;
        char path[ADLI_K8S_PATH];
        adli_k8s_pod_path(pod->key, "", path);
        char *copy = adli_strdup(path);
        const char *body = pod->over ? "{\"gracePeriodSeconds\":0}" : "{\"gracePeriodSeconds\":1}";
        old->status = copy ? add_call(old->w, "DELETE", copy, body) : adli_fail_memory("pods");
    }
}

static adl_status make_calls(work *w, const char *collection)
{
    adl_status status = ADL_OK;
    for (int i = 0; status == ADL_OK && i < w->todo; i++) {
        adli_k8s_pod_plan plan = plan_of(w, i);
        status = adli_k8s_make_pod(&plan, w->template, &w->bodies[i]);
        if (status == ADL_OK)
            status = add_call(w, "POST", collection, w->bodies[i]);
    }
    if (status != ADL_OK)
        return status;
    old_pods old = {w, ADL_OK};
    pthread_mutex_lock(&w->self->cache.lock);
    adli_k8s_cache_walk(&w->self->cache, delete_old, &old);
    pthread_mutex_unlock(&w->self->cache.lock);
    return old.status;
}

static adl_status make_pods(work *w)
{
    char collection[ADLI_K8S_PATH];
    snprintf(collection, sizeof collection, "/api/v1/namespaces/%s/pods", w->owner.ns);
    adl_status status = make_calls(w, collection);
    if (status == ADL_OK)
        adli_kube_do(w->self->kube, w->calls, w->call_count);
    pthread_mutex_lock(&w->self->cache.lock);
    for (int i = 0; status == ADL_OK && i < w->todo; i++)
        status = take_answer(w, i);
    pthread_mutex_unlock(&w->self->cache.lock);
    for (int i = 0; i < w->call_count; i++) {
        adli_kube_call_fini(&w->calls[i]);
        if (i >= w->todo)
            free((char *)w->calls[i].path);
    }
    return status;
}

adl_status adli_k8s_start(void *self, const adli_start *given)
{
    adli_start start = ADLI_START_INIT;
    adl_status status = adli_options_take("start", &start, sizeof start, given);
    if (status == ADL_OK)
        status = adli_start_check(&start);
    work w = {.self = self, .start = &start};
    if (status == ADL_OK)
        status = find_owner(&w);
    if (status == ADL_OK)
        status = allocate(&w);
    if (status == ADL_OK)
        status = choose(&w);
    adli_k8s_secret_name(status == ADL_OK ? start.uid : "", w.secret, sizeof w.secret);
    if (status == ADL_OK && w.todo > 0)
        status = apply_secret(&w);
    if (status == ADL_OK && w.todo > 0)
        status = make_pods(&w);
    if (status == ADL_EIO)
        status = ADL_ETIMEOUT; /* nothing is wrong with the job */
    for (int i = 0; w.bodies && i < w.todo; i++)
        free(w.bodies[i]);
    free(w.bodies);
    free(w.keys);
    free(w.hostnames);
    free(w.members);
    free(w.calls);
    free(w.owner.pod);
    json_decref(w.template);
    return status;
}
