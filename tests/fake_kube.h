/* As much of a Kubernetes API server as the operator uses, in memory, for tests that need no cluster: lists,
 * watches, create, replace, merge and apply patches, finalizers. And a kubelet that makes pods run and end. */
#ifndef ADLI_TEST_FAKE_KUBE_H
#define ADLI_TEST_FAKE_KUBE_H

#include "kube_server.h"

#include "base/buf.h"

#include <jansson.h>

enum {
    ADLT_FAKE_CONFLICT = -409, /* of a hook: 409, and not for a name that there is */
    ADLT_FAKE_EVENTS = 20000
};

typedef struct adlt_fake_name {
    char kind[64], ns[64], name[256], sub[32];
} adlt_fake_name;

typedef struct adlt_fake_event {
    char kind[64], ns[64];
    const char *type;
    char *object;
} adlt_fake_event;

typedef struct adlt_fake {
    adlt_kube_server server;
    pthread_mutex_t lock;
    pthread_cond_t news;
    json_t *objects; /* "kind/ns/name" -> object */
    adlt_fake_event events[ADLT_FAKE_EVENTS];
    int version;  /* of the last event */
    json_t *made; /* "kind/ns/name" -> how often it was created */
    /* Before (done false) and after each request that changes something; not 0: that code is the answer. */
    int (*hook)(void *user, const char *method, const char *path, bool done);
    void *hook_user;
    /* the kubelet */
    pthread_t kubelet;
    atomic_bool kubelet_ends;
    atomic_int let_end; /* pods that run exit with 0 when that is 1 */
} adlt_fake;

static inline void adlt_fake_parse(const char *path, adlt_fake_name *out)
{
    char copy[2048], *parts[16] = {0}, *save = NULL;
    int count = 0, at;
    *out = (adlt_fake_name){0};
    snprintf(copy, sizeof copy, "%.*s", (int)strcspn(path, "?"), path);
    for (char *p = strtok_r(copy, "/", &save); p && count < 16; p = strtok_r(NULL, "/", &save))
        parts[count++] = p;
    at = count > 0 && strcmp(parts[0], "api") == 0 ? 2 : 3;
    if (at + 1 < count && strcmp(parts[at], "namespaces") == 0) {
        snprintf(out->ns, sizeof out->ns, "%s", parts[at + 1]);
        at += 2;
    }
    snprintf(out->kind, sizeof out->kind, "%s", at < count ? parts[at] : "");
    snprintf(out->name, sizeof out->name, "%s", at + 1 < count ? parts[at + 1] : "");
    snprintf(out->sub, sizeof out->sub, "%s", at + 2 < count ? parts[at + 2] : "");
}

static inline void adlt_fake_key(const adlt_fake_name *name, char *out, size_t size)
{
    snprintf(out, size, "%s/%s/%s", name->kind, name->ns, name->name);
}

/* As a strategic merge patch asks for it: "$deleteFromPrimitiveList/LIST": [texts]. */
static inline void adlt_remove_some(json_t *to, const char *list, const json_t *texts)
{
    size_t i;
    const json_t *text;
    json_t *old = json_object_get(to, list);
    json_array_foreach(texts, i, text)
    {
        for (size_t k = json_array_size(old); k-- > 0;)
            if (json_equal(json_array_get(old, k), text))
                json_array_remove(old, k);
    }
}

static inline void adlt_merge(json_t *to, json_t *from)
{
    const char *key;
    json_t *value;
    json_object_foreach(from, key, value)
    {
        json_t *old = json_object_get(to, key);
        if (strncmp(key, "$deleteFromPrimitiveList/", 25) == 0)
            adlt_remove_some(to, key + 25, value);
        else if (json_is_null(value))
            json_object_del(to, key);
        else if (json_is_object(value) && json_is_object(old))
            adlt_merge(old, value);
        else
            json_object_set_new(to, key, json_deep_copy(value));
    }
}

/* Under lock: the object has a new version, and watchers hear of it. */
static inline void adlt_fake_tell(adlt_fake *fake, const adlt_fake_name *name, const char *type,
                                  json_t *object)
{
    char version[16];
    if (fake->version + 1 >= ADLT_FAKE_EVENTS)
        abort();
    adlt_fake_event *event = &fake->events[++fake->version];
    snprintf(version, sizeof version, "%d", fake->version);
    json_object_set_new(json_object_get(object, "metadata"), "resourceVersion",
                        json_string(version));
    snprintf(event->kind, sizeof event->kind, "%s", name->kind);
    snprintf(event->ns, sizeof event->ns, "%s", name->ns);
    event->type = type;
    event->object = json_dumps(object, JSON_COMPACT);
    pthread_cond_broadcast(&fake->news);
}

/* Under lock: a change was made. One that was deleted goes when no finalizer holds it. */
static inline void adlt_fake_changed(adlt_fake *fake, const adlt_fake_name *name, json_t *object)
{
    char key[400];
    const json_t *metadata = json_object_get(object, "metadata");
    adlt_fake_key(name, key, sizeof key);
    if (json_object_get(metadata, "deletionTimestamp") &&
        json_array_size(json_object_get(metadata, "finalizers")) == 0) {
        json_incref(object);
        json_object_del(fake->objects, key);
        adlt_fake_tell(fake, name, "DELETED", object);
        json_decref(object);
    } else
        adlt_fake_tell(fake, name, "MODIFIED", object);
}

/* Under lock. NULL: it is there already. Takes the object. */
static inline json_t *adlt_fake_create(adlt_fake *fake, adlt_fake_name *name, json_t *object)
{
    char key[400], uid[64];
    json_t *metadata = json_object_get(object, "metadata");
    snprintf(name->name, sizeof name->name, "%s",
             json_string_value(json_object_get(metadata, "name")));
    adlt_fake_key(name, key, sizeof key);
    if (json_object_get(fake->objects, key)) {
        json_decref(object);
        return NULL;
    }
    snprintf(uid, sizeof uid, "uid-%d", fake->version + 1);
    if (!json_object_get(metadata, "uid"))
        json_object_set_new(metadata, "uid", json_string(uid));
    json_object_set_new(metadata, "namespace", json_string(name->ns));
    json_object_set_new(metadata, "generation", json_integer(1));
    json_object_set_new(metadata, "creationTimestamp", json_string("2026-01-01T00:00:00Z"));
    if (strcmp(name->kind, "pods") == 0)
        json_object_set_new(object, "status", json_pack("{s:s}", "phase", "Pending"));
    json_object_set_new(fake->objects, key, object);
    json_int_t times = json_integer_value(json_object_get(fake->made, key));
    json_object_set_new(fake->made, key, json_integer(times + 1));
    adlt_fake_tell(fake, name, "ADDED", object);
    return object;
}

/* ---- requests ---- */

static inline void adlt_fake_reply(adlt_kube_request *request, int code, const json_t *object)
{
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    adlt_kube_answer(request, code, "", text ? text : "{}");
    free(text);
}

static inline void adlt_fake_list(adlt_fake *fake, adlt_kube_request *request,
                                  const adlt_fake_name *name)
{
    const char *key;
    json_t *object, *items = json_array();
    char version[16], prefix[200];
    snprintf(prefix, sizeof prefix, "%s/%s%s", name->kind, name->ns, *name->ns ? "/" : "");
    pthread_mutex_lock(&fake->lock);
    json_object_foreach(fake->objects, key, object)
    {
        if (strncmp(key, prefix, strlen(prefix)) == 0)
            json_array_append_new(items, json_deep_copy(object));
    }
    snprintf(version, sizeof version, "%d", fake->version);
    pthread_mutex_unlock(&fake->lock);
    json_t *list =
        json_pack("{s:{s:s},s:o}", "metadata", "resourceVersion", version, "items", items);
    adlt_fake_reply(request, 200, list);
    json_decref(list);
}

static inline void adlt_fake_watch(adlt_fake *fake, adlt_kube_request *request,
                                   const adlt_fake_name *name)
{
    int at = atoi(strstr(request->path, "resourceVersion=") + 16);
    adlt_kube_stream(request);
    while (!atomic_load(&fake->server.ending) && !request->hang_up) {
        char byte;
        adli_buf line;
        adli_buf_init(&line, 1 << 20);
        pthread_mutex_lock(&fake->lock);
        if (at < fake->version) {
            const adlt_fake_event *event = &fake->events[++at];
            if (strcmp(event->kind, name->kind) == 0 &&
                (!*name->ns || strcmp(event->ns, name->ns) == 0))
                adli_buf_printf(&line, "{\"type\":\"%s\",\"object\":%s}\n", event->type,
                                event->object);
        } else {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += 50000000;
            until.tv_sec += until.tv_nsec / 1000000000;
            until.tv_nsec %= 1000000000;
            pthread_cond_timedwait(&fake->news, &fake->lock, &until);
        }
        pthread_mutex_unlock(&fake->lock);
        if (line.length)
            adlt_kube_piece(request, line.data);
        adli_buf_fini(&line);
        if (recv(request->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
            break;
    }
    request->hang_up = true;
}

static inline void adlt_fake_delete(adlt_fake *fake, const adlt_fake_name *name, json_t *object,
                                    const char *body)
{
    json_t *metadata = json_object_get(object, "metadata"), *options = json_loads(body, 0, NULL);
    json_t *grace = json_object_get(options, "gracePeriodSeconds");
    json_object_set_new(metadata, "deletionTimestamp", json_string("2026-01-01T00:00:00Z"));
    json_object_set_new(metadata, "deletionGracePeriodSeconds",
                        json_integer(grace ? json_integer_value(grace) : 30));
    json_decref(options);
    adlt_fake_changed(fake, name, object);
}

/* Under lock. The code; *out is what is answered, borrowed. */
static inline int adlt_fake_change(adlt_fake *fake, adlt_kube_request *request,
                                   adlt_fake_name *name, json_t **out)
{
    char key[400];
    json_t *body = json_loads(request->body, 0, NULL);
    adlt_fake_key(name, key, sizeof key);
    json_t *old = json_object_get(fake->objects, key),
           *metadata = json_object_get(body, "metadata");
    const char *uid = json_string_value(json_object_get(metadata, "uid"));
    int code = 200;
    *out = old;
    if (strcmp(request->method, "POST") == 0) {
        *out = adlt_fake_create(fake, name, json_incref(body));
        code = *out ? 201 : 409;
    } else if (strcmp(request->method, "PATCH") == 0 && !old && !*name->sub &&
               strcmp(request->type, "application/apply-patch+yaml") == 0) {
        *out = adlt_fake_create(fake, name, json_incref(body));
        code = 201;
    } else if (!old)
        code = 404;
    else if (strcmp(request->method, "DELETE") == 0) {
        adlt_fake_delete(fake, name, old, request->body);
        *out = json_object_get(fake->objects, key); /* it may be gone */
    } else if (uid && strcmp(uid, json_string_value(json_object_get(
                                      json_object_get(old, "metadata"), "uid"))) != 0)
        code = 409;
    else if (strcmp(request->method, "PUT") == 0 &&
             !json_equal(json_object_get(metadata, "resourceVersion"),
                         json_object_get(json_object_get(old, "metadata"), "resourceVersion")))
        code = 409;
    else {
        adlt_merge(old, body);
        adlt_fake_changed(fake, name, old);
        *out = json_object_get(fake->objects, key);
    }
    json_decref(body);
    return code;
}

static inline void adlt_fake_answer(void *user, adlt_kube_request *request)
{
    adlt_fake *fake = user;
    adlt_fake_name name;
    char key[400];
    adlt_fake_parse(request->path, &name);
    adlt_fake_key(&name, key, sizeof key);
    if (strcmp(request->method, "GET") == 0) {
        if (!*name.name && strstr(request->path, "watch=1"))
            adlt_fake_watch(fake, request, &name);
        else if (!*name.name)
            adlt_fake_list(fake, request, &name);
        else if (strcmp(name.sub, "log") == 0)
            adlt_kube_answer(request, 200, "", "its log\n");
        else {
            pthread_mutex_lock(&fake->lock);
            json_t *object = json_deep_copy(json_object_get(fake->objects, key));
            pthread_mutex_unlock(&fake->lock);
            adlt_fake_reply(request, object ? 200 : 404, object);
            json_decref(object);
        }
        return;
    }
    json_t *out = NULL;
    int code = fake->hook ? fake->hook(fake->hook_user, request->method, request->path, false) : 0;
    if (code == 0) {
        pthread_mutex_lock(&fake->lock);
        code = adlt_fake_change(fake, request, &name, &out);
        out = json_deep_copy(out);
        pthread_mutex_unlock(&fake->lock);
        int other =
            fake->hook ? fake->hook(fake->hook_user, request->method, request->path, true) : 0;
        code = other ? other : code;
    }
    if (code == ADLT_FAKE_CONFLICT)
        adlt_kube_answer(request, 409, "", "{\"reason\":\"Conflict\"}");
    else
        adlt_fake_reply(request, code, out);
    json_decref(out);
}

/* ---- for tests ---- */

static inline bool adlt_fake_start(adlt_fake *fake)
{
    *fake = (adlt_fake){.server = {.answer = adlt_fake_answer}};
    fake->server.user = fake;
    fake->objects = json_object();
    fake->made = json_object();
    pthread_mutex_init(&fake->lock, NULL);
    pthread_cond_init(&fake->news, NULL);
    return adlt_kube_server_start(&fake->server);
}

static inline void adlt_fake_stop(adlt_fake *fake)
{
    adlt_kube_server_stop(&fake->server);
    for (int i = 0; i <= fake->version; i++)
        free(fake->events[i].object);
    json_decref(fake->objects);
    json_decref(fake->made);
}

/* Creates it, or merges it into what is there. path: as in a request. */
static inline void adlt_fake_put(adlt_fake *fake, const char *path, const char *text)
{
    adlt_fake_name name;
    char key[400];
    json_t *from = json_loads(text, 0, NULL);
    if (!from)
        abort();
    adlt_fake_parse(path, &name);
    adlt_fake_key(&name, key, sizeof key);
    pthread_mutex_lock(&fake->lock);
    json_t *old = *name.name ? json_object_get(fake->objects, key) : NULL;
    if (old) {
        adlt_merge(old, from);
        adlt_fake_changed(fake, &name, old);
    } else if (!*name.name)
        adlt_fake_create(fake, &name, json_incref(from));
    pthread_mutex_unlock(&fake->lock);
    json_decref(from);
}

/* A copy; NULL: there is none. */
static inline json_t *adlt_fake_get(adlt_fake *fake, const char *path)
{
    adlt_fake_name name;
    char key[400];
    adlt_fake_parse(path, &name);
    adlt_fake_key(&name, key, sizeof key);
    pthread_mutex_lock(&fake->lock);
    json_t *copy = json_deep_copy(json_object_get(fake->objects, key));
    pthread_mutex_unlock(&fake->lock);
    return copy;
}

static inline void adlt_fake_remove(adlt_fake *fake, const char *path)
{
    adlt_fake_name name;
    char key[400];
    adlt_fake_parse(path, &name);
    adlt_fake_key(&name, key, sizeof key);
    pthread_mutex_lock(&fake->lock);
    json_t *old = json_object_get(fake->objects, key);
    if (old)
        adlt_fake_delete(fake, &name, old, "{}");
    pthread_mutex_unlock(&fake->lock);
}

static inline int adlt_fake_count(adlt_fake *fake, const char *prefix)
{
    int count = 0;
    const char *key;
    json_t *object;
    pthread_mutex_lock(&fake->lock);
    json_object_foreach(fake->objects, key, object) count +=
        strncmp(key, prefix, strlen(prefix)) == 0;
    pthread_mutex_unlock(&fake->lock);
    return count;
}

static inline void adlt_fake_node(adlt_fake *fake, const char *name)
{
    char text[800];
    snprintf(text, sizeof text,
             "{\"metadata\":{\"name\":\"%s\",\"labels\":{\"kubernetes.io/hostname\":\"host-%s\"}},"
             "\"status\":{\"allocatable\":{\"cpu\":\"4\",\"memory\":\"8Gi\",\"pods\":\"110\"},"
             "\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}],"
             "\"addresses\":[{\"type\":\"InternalIP\",\"address\":\"10.0.0.9\"}]}}",
             name, name);
    adlt_fake_put(fake, "/api/v1/nodes", text);
}

/* ---- the kubelet ---- */

/* Under lock. What a kubelet would make of the pod next; NULL: nothing. */
static inline char *adlt_kubelet_next(adlt_fake *fake, const json_t *pod)
{
    char text[800];
    const json_t *metadata = json_object_get(pod, "metadata");
    const char *phase = json_string_value(json_object_get(json_object_get(pod, "status"), "phase"));
    const char *node = json_string_value(json_object_get(
        json_object_get(json_object_get(pod, "spec"), "nodeSelector"), "kubernetes.io/hostname"));
    bool leaving = json_object_get(metadata, "deletionTimestamp") != NULL;
    bool running = phase && strcmp(phase, "Running") == 0;
    const json_t *grace = json_object_get(metadata, "deletionGracePeriodSeconds");
    bool killed = grace && json_integer_value(grace) <= 1;
    if (!node)
        return NULL; /* not ours */
    if (phase && strcmp(phase, "Pending") == 0 && !leaving)
        snprintf(text, sizeof text,
                 "{\"spec\":{\"nodeName\":\"%s\"},\"status\":{\"phase\":\"Running\","
                 "\"podIP\":\"10.1.0.1\"}}",
                 node + 5);
    else if ((running && (leaving || atomic_load(&fake->let_end) == 1)) ||
             (leaving && phase && strcmp(phase, "Pending") == 0))
        snprintf(text, sizeof text,
                 "{\"status\":{\"phase\":\"%s\",\"containerStatuses\":[{\"state\":{\"terminated\":"
                 "{\"exitCode\":%d,\"finishedAt\":\"2026-01-01T00:00:01Z\"}}}]}}",
                 leaving ? "Failed" : "Succeeded",
                 !leaving ? 0
                 : killed ? 137
                          : 143);
    else
        return NULL;
    return strdup(text);
}

static inline void *adlt_kubelet_run(void *user)
{
    adlt_fake *fake = user;
    while (!atomic_load(&fake->kubelet_ends)) {
        const char *key;
        json_t *object;
        char path[500] = "", *change = NULL;
        pthread_mutex_lock(&fake->lock);
        json_object_foreach(fake->objects, key, object)
        {
            if (strncmp(key, "pods/", 5) == 0 && !change &&
                (change = adlt_kubelet_next(fake, object))) {
                const char *slash = strchr(key + 5, '/');
                snprintf(path, sizeof path, "/api/v1/namespaces/%.*s/pods/%s",
                         (int)(slash - key - 5), key + 5, slash + 1);
            }
        }
        pthread_mutex_unlock(&fake->lock);
        if (change)
            adlt_fake_put(fake, path, change);
        else
            usleep(5000);
        free(change);
    }
    return NULL;
}

static inline void adlt_kubelet_start(adlt_fake *fake)
{
    atomic_store(&fake->kubelet_ends, false);
    pthread_create(&fake->kubelet, NULL, adlt_kubelet_run, fake);
}

static inline void adlt_kubelet_stop(adlt_fake *fake)
{
    atomic_store(&fake->kubelet_ends, true);
    pthread_join(fake->kubelet, NULL);
}

#endif
