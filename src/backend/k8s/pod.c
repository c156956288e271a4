/* The objects that are made: a pod for each member, from the job's template, and the Secret of the job. */
#include "backend/k8s/impl.h"

#include "base/json.h"
#include "base/mem.h"
#include "jobspec/jobspec.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LABEL_MAX = 63 };

/* Those of the scheduler's variables that no reader of pods should see. */
static const char *const secrets[] = {"ADAPTDL_SUPERVISOR_URL", "ADAPTDL_JOB_SECRET"};

void adli_k8s_pod_name(const char *job, const char *uid, int group, int member, char *out,
                       size_t size)
{
    snprintf(out, size, "%s-%s-%d-%d", job, uid, group, member);
    for (char *c = out; *c; c++)
        *c = (char)tolower((unsigned char)*c);
}

void adli_k8s_secret_name(const char *uid, char *out, size_t size)
{
    snprintf(out, size, "adaptdl-%s", uid);
    for (char *c = out; *c; c++)
        *c = (char)tolower((unsigned char)*c);
}

/* The object under key, made if there is none; NULL: no memory, or it is something else. */
static json_t *child(json_t *object, const char *key)
{
    json_t *found = json_object_get(object, key);
    if (!found || json_is_null(found)) {
        json_object_set_new(object, key, json_object());
        found = json_object_get(object, key);
    }
    return json_is_object(found) ? found : NULL;
}

static json_t *list(json_t *object, const char *key)
{
    json_t *found = json_object_get(object, key);
    if (!found || json_is_null(found)) {
        json_object_set_new(object, key, json_array());
        found = json_object_get(object, key);
    }
    return json_is_array(found) ? found : NULL;
}

static void set_text(json_t *object, const char *key, const char *text)
{
    if (object)
        json_object_set_new(object, key, json_string(text));
}

static void set_number(json_t *object, const char *key, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    set_text(object, key, text);
}

/* ---- variables ---- */

/* A "$(" in a value of ours is no reference. */
static json_t *literal(const char *value)
{
    adli_buf text;
    adli_buf_init(&text, 1 << 20);
    adli_buf_puts(&text, "");
    for (const char *c = value; *c; c++) {
        if (c[0] == '$' && c[1] == '(')
            adli_buf_puts(&text, "$");
        adli_buf_append(&text, c, 1);
    }
    json_t *made = adli_buf_check(&text) == ADL_OK ? json_string(text.data) : NULL;
    adli_buf_fini(&text);
    return made;
}

static bool is_secret(const char *name, size_t length)
{
    for (size_t i = 0; i < ADLI_COUNT(secrets); i++)
        if (strlen(secrets[i]) == length && memcmp(secrets[i], name, length) == 0)
            return true;
    return false;
}

static bool has(const json_t *env, const char *name, size_t length)
{
    size_t i;
    const json_t *item;
    json_array_foreach(env, i, item)
    {
        const char *other = json_string_value(json_object_get(item, "name"));
        if (other && strlen(other) == length && memcmp(other, name, length) == 0)
            return true;
    }
    return false;
}

static void put(json_t *env, const char *name, size_t length, json_t *value, const char *key)
{
    json_t *item = json_object();
    json_object_set_new(item, "name", json_stringn(name, length));
    json_object_set_new(item, key, value);
    json_array_append_new(env, item);
}

static void put_number(json_t *env, const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    put(env, name, strlen(name), json_string(text), "value");
}

/* What the rank's variables are, and the devices'. */
static void put_ours(const adli_k8s_pod_plan *plan, const json_t *container, json_t *env)
{
    const adli_start *start = plan->start;
    const json_t *resources = json_object_get(container, "resources");
    put_number(env, "ADAPTDL_MASTER_PORT", ADLI_K8S_PORT_FIRST + start->group % ADLI_K8S_PORTS);
    put_number(env, "ADAPTDL_NUM_NODES", start->nodes);
    put_number(env, "ADAPTDL_NUM_REPLICAS", start->replicas);
    put_number(env, "ADAPTDL_NUM_RESTARTS", start->group - 1);
    put_number(env, "ADAPTDL_REPLICA_RANK", plan->member->rank);
    put_number(env, "ADAPTDL_MEMBER", plan->member->member);
    put_number(env, "ADAPTDL_JOIN", start->joins);
    if (!json_object_get(json_object_get(resources, "limits"), "nvidia.com/gpu") &&
        !json_object_get(json_object_get(resources, "requests"), "nvidia.com/gpu"))
        put(env, "NVIDIA_VISIBLE_DEVICES", strlen("NVIDIA_VISIBLE_DEVICES"), json_string("none"),
            "value");
}

static void put_scheduler(const adli_k8s_pod_plan *plan, json_t *env)
{
    for (int i = 0; plan->start->env && plan->start->env[i]; i++) {
        const char *entry = plan->start->env[i];
        size_t length = strcspn(entry, "=");
        char name[128];
        if (has(env, entry, length))
            continue; /* the rank's win over all */
        if (is_secret(entry, length)) {
            snprintf(name, sizeof name, "%.*s", (int)length, entry);
            put(env, entry, length,
                json_pack("{s:{s:s,s:s}}", "secretKeyRef", "name", plan->secret, "key", name),
                "valueFrom");
        } else
            put(env, entry, length, literal(entry + length + 1), "value");
    }
}

/* The pod's own variables come first: later ones may refer to them, and ours win. */
static bool set_env(const adli_k8s_pod_plan *plan, json_t *container)
{
    json_t *own = list(container, "env"), *ours = json_array(), *all = json_array();
    size_t i;
    json_t *item;
    if (!own || !ours || !all) {
        json_decref(ours);
        json_decref(all);
        return false;
    }
    put_ours(plan, container, ours);
    put_scheduler(plan, ours);
    for (int k = 0; plan->start->defaults && plan->start->defaults[k]; k++) {
        const char *entry = plan->start->defaults[k];
        size_t length = strcspn(entry, "=");
        if (!has(own, entry, length) && !has(ours, entry, length))
            put(all, entry, length, literal(entry + length + 1), "value");
    }
    json_array_foreach(own, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (!name || !has(ours, name, strlen(name)))
            json_array_append(all, item);
    }
    json_array_extend(all, ours);
    json_decref(ours);
    return json_object_set_new(container, "env", all) == 0;
}

/* ---- volumes ---- */

static void mount_memory(json_t *container)
{
    json_t *mounts = list(container, "volumeMounts"), *mount;
    size_t i;
    json_array_foreach(mounts, i, mount)
    {
        const char *path = json_string_value(json_object_get(mount, "mountPath"));
        if (path && strcmp(path, "/dev/shm") == 0)
            return;
    }
    json_array_append_new(mounts,
                          json_pack("{s:s,s:s}", "name", "adaptdl-shm", "mountPath", "/dev/shm"));
}

static adl_status set_containers(const adli_k8s_pod_plan *plan, json_t *spec)
{
    static const char *const keys[] = {"initContainers", "containers"};
    if (json_array_size(json_object_get(spec, "containers")) == 0)
        return adli_fail(ADL_EINVAL, "pod template: spec.containers is missing or empty");
    for (size_t k = 0; k < ADLI_COUNT(keys); k++) {
        size_t i;
        json_t *container;
        json_array_foreach(json_object_get(spec, keys[k]), i, container)
        {
            if (!json_is_object(container) || !set_env(plan, container))
                return adli_fail(ADL_EINVAL, "pod template: spec.%s[%zu] is no container", keys[k],
                                 i);
            mount_memory(container);
        }
    }
    json_t *volumes = list(spec, "volumes");
    json_array_append_new(
        volumes, json_pack("{s:s,s:{s:s}}", "name", "adaptdl-shm", "emptyDir", "medium", "Memory"));
    return ADL_OK;
}

/* ---- the pod ---- */

/* "{job}-{group}-{rank}" as a label: the job's name gives way. */
static void make_hostname(const adli_k8s_pod_plan *plan, char out[LABEL_MAX + 1])
{
    char tail[32];
    int length = snprintf(tail, sizeof tail, "-%d-%d", plan->start->group, plan->member->rank);
    snprintf(out, LABEL_MAX + 1, "%.*s%s", LABEL_MAX - length, plan->job, tail);
}

static void set_owner(const adli_k8s_pod_plan *plan, json_t *metadata)
{
    if (plan->owned)
        json_object_set_new(metadata, "ownerReferences",
                            json_pack("[{s:s,s:s,s:s,s:s,s:b,s:b}]", "apiVersion",
                                      ADLI_JOB_API_VERSION, "kind", ADLI_JOB_KIND, "name",
                                      plan->job, "uid", plan->start->uid, "controller", 1,
                                      "blockOwnerDeletion", 1));
}

static void set_metadata(const adli_k8s_pod_plan *plan, json_t *pod)
{
    const adli_start *start = plan->start;
    json_t *metadata = child(pod, "metadata"), *labels = child(metadata, "labels"),
           *annotations = child(metadata, "annotations");
    char name[256];
    adli_k8s_pod_name(plan->job, start->uid, start->group, plan->member->member, name, sizeof name);
    set_text(metadata, "name", name);
    set_text(metadata, "namespace", plan->ns);
    json_object_set_new(metadata, "finalizers", json_pack("[s]", ADLI_K8S_FINALIZER));
    set_owner(plan, metadata);
    set_text(labels, "adaptdl", "true");
    set_text(labels, "adaptdl/job", plan->job);
    set_text(labels, "petuum.com/nodegroup", "all");
    set_text(annotations, "adaptdl/uid", start->uid);
    set_number(annotations, "adaptdl/group", start->group);
    set_number(annotations, "adaptdl/member", plan->member->member);
    set_number(annotations, "adaptdl/rank", plan->member->rank);
    set_number(annotations, "adaptdl/replicas", start->replicas);
    set_text(annotations, "adaptdl/node", plan->member->node);
    json_object_del(annotations, "adaptdl/forgotten"); /* of a pod that was taken as template */
}

static adl_status set_spec(const adli_k8s_pod_plan *plan, json_t *spec)
{
    char hostname[LABEL_MAX + 1];
    make_hostname(plan, hostname);
    set_text(spec, "hostname", hostname);
    set_text(spec, "restartPolicy", "Never");
    json_t *selector = child(spec, "nodeSelector"), *tolerations = list(spec, "tolerations");
    if (!selector || !tolerations)
        return adli_fail(ADL_EINVAL, "pod template: nodeSelector or tolerations is no such thing");
    set_text(selector, "kubernetes.io/hostname", plan->hostname);
    json_array_append_new(tolerations, json_pack("{s:s,s:s,s:s}", "key", "petuum.com/nodegroup",
                                                 "operator", "Equal", "value", "adaptdl"));
    if (plan->grace_s > 0 && !json_object_get(spec, "terminationGracePeriodSeconds"))
        json_object_set_new(spec, "terminationGracePeriodSeconds",
                            json_integer((json_int_t)plan->grace_s));
    return set_containers(plan, spec);
}

static adl_status dump(json_t *object, adl_status status, char **out)
{
    *out = status == ADL_OK ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    return status == ADL_OK && !*out ? adli_fail_memory("pod") : status;
}

adl_status adli_k8s_make_pod(const adli_k8s_pod_plan *plan, const json_t *template, char **out)
{
    json_t *pod = json_object(), *metadata = json_object_get(template, "metadata"),
           *spec = json_deep_copy(json_object_get(template, "spec"));
    *out = NULL;
    if (!pod || !json_is_object(spec)) {
        json_decref(pod);
        json_decref(spec);
        return adli_fail(ADL_EINVAL, "pod template: spec is missing");
    }
    set_text(pod, "apiVersion", "v1");
    set_text(pod, "kind", "Pod");
    json_object_set_new(pod, "spec", spec);
    json_t *own = child(pod, "metadata");
    static const char *const kept[] = {"labels", "annotations"};
    for (size_t i = 0; i < ADLI_COUNT(kept); i++)
        if (json_is_object(json_object_get(metadata, kept[i])))
            json_object_set_new(own, kept[i], json_deep_copy(json_object_get(metadata, kept[i])));
    set_metadata(plan, pod);
    return dump(pod, set_spec(plan, spec), out);
}

adl_status adli_k8s_make_secret(const adli_k8s_pod_plan *plan, char **out)
{
    json_t *secret =
        json_pack("{s:s,s:s,s:{s:s,s:s,s:{s:s,s:s}},s:s}", "apiVersion", "v1", "kind", "Secret",
                  "metadata", "name", plan->secret, "namespace", plan->ns, "labels", "adaptdl",
                  "true", "adaptdl/job", plan->job, "type", "Opaque");
    json_t *data = child(secret, "stringData");
    if (!secret || !data) {
        json_decref(secret);
        return adli_fail_memory("secret");
    }
    set_owner(plan, json_object_get(secret, "metadata"));
    for (int i = 0; plan->start->env && plan->start->env[i]; i++) {
        const char *entry = plan->start->env[i];
        size_t length = strcspn(entry, "=");
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)length, entry);
        if (is_secret(entry, length))
            set_text(data, name, entry + length + 1);
    }
    return dump(secret, ADL_OK, out);
}
