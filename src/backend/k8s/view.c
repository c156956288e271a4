#include "backend/k8s/view.h"

#include "base/mem.h"
#include "jobspec/quantity.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

double adli_k8s_time(const char *string)
{
    struct tm parts = {0};
    const char *end = strptime(string, "%Y-%m-%dT%H:%M:%S", &parts);
    return end ? (double)timegm(&parts) : 0;
}

/* ---- amounts ---- */

static int64_t *amount_of(adli_k8s_amounts *amounts, const char *name, bool make)
{
    for (int i = 0; i < amounts->count; i++)
        if (strcmp(amounts->names[i], name) == 0)
            return &amounts->amounts[i];
    if (!make || amounts->count == ADLI_NODE_RESOURCES_MAX)
        return NULL;
    amounts->names[amounts->count] = name;
    amounts->amounts[amounts->count] = 0;
    return &amounts->amounts[amounts->count++];
}

static void add_amount(adli_k8s_amounts *amounts, const char *name, int64_t amount)
{
    int64_t *sum = amount_of(amounts, name, true);
    if (sum && __builtin_add_overflow(*sum, amount, sum))
        *sum = INT64_MAX;
}

/* What is neither counted by nodes nor asked for by jobs. */
static bool counted(const char *name)
{
    return strcmp(name, "cpu") == 0 || strcmp(name, "memory") == 0 || strcmp(name, "pods") == 0 ||
           (strchr(name, '/') && strncmp(name, "attachable-volumes", 18) != 0);
}

static void add_list(const json_t *list, adli_k8s_amounts *out)
{
    const char *name;
    const json_t *value;
    json_object_foreach((json_t *)list, name, value)
    {
        int64_t amount;
        char number[32];
        const char *quantity = json_string_value(value);
        if (json_is_integer(value)) {
            snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
            quantity = number;
        }
        if (quantity && counted(name) && adli_resource_parse(name, quantity, &amount) == ADL_OK)
            add_amount(out, name, amount);
    }
}

/* Requests, and limits of what is not requested. */
static void container_requests(const json_t *container, adli_k8s_amounts *out)
{
    const json_t *resources = json_object_get(container, "resources");
    adli_k8s_amounts limits = {0};
    add_list(json_object_get(resources, "requests"), out);
    add_list(json_object_get(resources, "limits"), &limits);
    for (int i = 0; i < limits.count; i++)
        if (!amount_of(out, limits.names[i], false))
            add_amount(out, limits.names[i], limits.amounts[i]);
}

static void add_all(adli_k8s_amounts *to, const adli_k8s_amounts *from)
{
    for (int i = 0; i < from->count; i++)
        add_amount(to, from->names[i], from->amounts[i]);
}

void adli_k8s_pod_requests(const json_t *spec, adli_k8s_amounts *out)
{
    size_t i;
    const json_t *container;
    *out = (adli_k8s_amounts){0};
    json_array_foreach(json_object_get(spec, "containers"), i, container)
    {
        adli_k8s_amounts one = {0};
        container_requests(container, &one);
        add_all(out, &one);
    }
    json_array_foreach(json_object_get(spec, "initContainers"), i, container)
    {
        adli_k8s_amounts one = {0};
        container_requests(container, &one);
        if (strcmp(text(container, "restartPolicy"), "Always") == 0)
            add_all(out, &one);
        else
            for (int k = 0; k < one.count; k++) {
                int64_t *sum = amount_of(out, one.names[k], true);
                if (sum && *sum < one.amounts[k])
                    *sum = one.amounts[k];
            }
    }
    add_list(json_object_get(spec, "overhead"), out);
}

/* ---- how a member is ---- */

static const json_t *condition(const json_t *status, const char *type)
{
    size_t i;
    const json_t *item;
    json_array_foreach(json_object_get(status, "conditions"), i, item)
    {
        if (strcmp(text(item, "type"), type) == 0)
            return item;
    }
    return NULL;
}

__attribute__((format(printf, 2, 3))) static void say(adli_member_view *view, const char *format,
                                                      ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(view->message, sizeof view->message, format, arguments);
    va_end(arguments);
    for (char *c = view->message; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
}

/* The container that decides: the first that ended badly, else the first. */
static const json_t *ended_container(const json_t *status)
{
    size_t i;
    const json_t *item, *found = NULL;
    json_array_foreach(json_object_get(status, "containerStatuses"), i, item)
    {
        const json_t *ended = json_object_get(json_object_get(item, "state"), "terminated");
        if (ended && (!found || (json_integer_value(json_object_get(found, "exitCode")) == 0 &&
                                 json_integer_value(json_object_get(ended, "exitCode")) != 0)))
            found = ended;
    }
    return found;
}

static int64_t memory_limit(const json_t *pod)
{
    const json_t *containers = json_object_get(json_object_get(pod, "spec"), "containers");
    const json_t *limits =
        json_object_get(json_object_get(json_array_get(containers, 0), "resources"), "limits");
    int64_t bytes;
    return adli_resource_parse("memory", text(limits, "memory"), &bytes) == ADL_OK ? bytes : 0;
}

/* By reasons that the kubelet and the control plane give for pods that they end themselves. */
static adli_cause cause_of(const json_t *status)
{
    static const struct {
        const char *reason;
        adli_cause cause;
    } known[] = {
        {"Evicted", ADLI_CAUSE_EVICTED},
        {"Preempting", ADLI_CAUSE_EVICTED},
        {"Preempted", ADLI_CAUSE_EVICTED},
        {"Terminated", ADLI_CAUSE_NODE_LOST}, /* its node is shut down */
        {"Shutdown", ADLI_CAUSE_NODE_LOST},
        {"NodeShutdown", ADLI_CAUSE_NODE_LOST},
        {"NodeLost", ADLI_CAUSE_NODE_LOST},
        {"UnexpectedAdmissionError", ADLI_CAUSE_OUT_OF_RESOURCES},
        {"NodeAffinity", ADLI_CAUSE_OUT_OF_RESOURCES},
    };
    const char *reason = text(status, "reason");
    for (size_t i = 0; i < ADLI_COUNT(known); i++)
        if (strcmp(reason, known[i].reason) == 0)
            return known[i].cause;
    if (strncmp(reason, "OutOf", 5) == 0)
        return ADLI_CAUSE_OUT_OF_RESOURCES;
    const json_t *target = condition(status, "DisruptionTarget");
    return target && strcmp(text(target, "status"), "True") == 0 ? ADLI_CAUSE_EVICTED
                                                                 : ADLI_CAUSE_NONE;
}

static bool cannot_run(const char *reason)
{
    static const char *const reasons[] = {"StartError", "ContainerCannotRun", "RunContainerError",
                                          "CreateContainerError", "CreateContainerConfigError"};
    for (size_t i = 0; i < ADLI_COUNT(reasons); i++)
        if (strcmp(reason, reasons[i]) == 0)
            return true;
    return false;
}

static void set_end(adli_member_view *view, adli_member_state state, adli_cause cause)
{
    view->state = state;
    view->cause = cause;
}

/* Its last container has ended. killed: we did not let it finish. */
static void read_exit(const json_t *pod, const json_t *ended, bool leaving, bool killed,
                      adli_member_view *view)
{
    const char *reason = text(ended, "reason"), *message = text(ended, "message");
    view->exit_code = (int)json_integer_value(json_object_get(ended, "exitCode"));
    view->ended_s = adli_k8s_time(text(ended, "finishedAt"));
    if (strcmp(reason, "OOMKilled") == 0) {
        set_end(view, ADLI_MEMBER_FAILED, ADLI_CAUSE_OOM_KILLED);
        say(view, "needed more memory than its limit of %lld MiB",
            (long long)(memory_limit(pod) >> 20));
    } else if (cannot_run(reason)) {
        set_end(view, ADLI_MEMBER_FAILED, ADLI_CAUSE_CANNOT_RUN);
        const char *exec = strstr(message, "exec: "); /* after what runtimes say about themselves */
        say(view, "%s", exec ? exec : *message ? message : reason);
    } else if (view->exit_code == 0)
        set_end(view, ADLI_MEMBER_SUCCEEDED, ADLI_CAUSE_NONE);
    else if (killed || (leaving && view->exit_code == 137)) {
        set_end(view, ADLI_MEMBER_INTERRUPTED, ADLI_CAUSE_KILLED);
        say(view, "killed");
    } else if (view->exit_code == 143) {
        set_end(view, ADLI_MEMBER_INTERRUPTED, ADLI_CAUSE_NONE);
        say(view, "exited with 143");
    } else {
        set_end(view, ADLI_MEMBER_FAILED, ADLI_CAUSE_NONE);
        if (view->exit_code > 128 && view->exit_code < 128 + 65)
            say(view, "ended by signal %d", view->exit_code - 128);
        else
            say(view, "exited with %d", view->exit_code);
    }
}

/* Why it does not begin to run; "" when it just takes its time. */
static void read_waiting(const json_t *status, adli_k8s_pod_view *out)
{
    const json_t *placed = condition(status, "PodScheduled"), *item;
    static const char *const lists[] = {"initContainerStatuses", "containerStatuses"};
    out->unplaced = placed && strcmp(text(placed, "status"), "False") == 0 &&
                    strcmp(text(placed, "reason"), "Unschedulable") == 0;
    if (out->unplaced)
        say(&out->view, "no node takes it: %s", text(placed, "message"));
    out->stuck = out->unplaced;
    for (size_t l = 0; l < 2 && !out->stuck; l++) {
        size_t i;
        json_array_foreach(json_object_get(status, lists[l]), i, item)
        {
            const json_t *waiting = json_object_get(json_object_get(item, "state"), "waiting");
            const char *reason = text(waiting, "reason"), *message = text(waiting, "message");
            if (!*reason || strcmp(reason, "ContainerCreating") == 0 ||
                strcmp(reason, "PodInitializing") == 0)
                continue;
            out->stuck = true;
            say(&out->view, "%s%s%s", reason, *message ? ": " : "", message);
            if (cannot_run(reason) || strcmp(reason, "InvalidImageName") == 0)
                set_end(&out->view, ADLI_MEMBER_FAILED, ADLI_CAUSE_CANNOT_RUN);
            break;
        }
    }
}

static void read_state(const json_t *pod, bool killed, adli_k8s_pod_view *out)
{
    const json_t *status = json_object_get(pod, "status"), *ended = ended_container(status);
    const char *phase = text(status, "phase");
    adli_member_view *view = &out->view;
    adli_cause cause = cause_of(status);
    snprintf(view->address, sizeof view->address, "%s", text(status, "podIP"));
    if (out->over) {
        if (ended)
            read_exit(pod, ended, out->leaving, killed, view);
        else
            set_end(view, ADLI_MEMBER_FAILED, ADLI_CAUSE_NONE);
        if (cause != ADLI_CAUSE_NONE && view->state != ADLI_MEMBER_SUCCEEDED) {
            set_end(view, ADLI_MEMBER_INTERRUPTED, cause);
            const char *message = text(status, "message");
            say(view, "%s",
                *message ? message : text(condition(status, "DisruptionTarget"), "message"));
        } else if (!ended) {
            set_end(view, out->leaving ? ADLI_MEMBER_INTERRUPTED : ADLI_MEMBER_FAILED,
                    out->leaving ? ADLI_CAUSE_KILLED : ADLI_CAUSE_NONE);
            say(view, "%s", out->leaving ? "killed before it ran" : text(status, "message"));
        }
    } else if (strcmp(phase, "Running") == 0)
        view->state = ADLI_MEMBER_READY;
    else if (out->leaving && !*out->node) {
        set_end(view, ADLI_MEMBER_INTERRUPTED, ADLI_CAUSE_KILLED);
        say(view, "killed before it ran");
    } else
        read_waiting(status, out);
}

static int number(const json_t *object, const char *key, int low)
{
    char *end;
    const char *value = text(object, key);
    long found = strtol(value, &end, 10);
    return *value && !*end && found >= low && found < 1000000000 ? (int)found : -1;
}

static void read_ours(const json_t *pod, const json_t *metadata, adli_k8s_pod_view *out)
{
    const json_t *annotations = json_object_get(metadata, "annotations");
    const json_t *grace = json_object_get(metadata, "deletionGracePeriodSeconds");
    out->uid = text(annotations, "adaptdl/uid");
    out->group = number(annotations, "adaptdl/group", 1);
    out->view.member = number(annotations, "adaptdl/member", 0);
    out->ours = out->group > 0 && out->view.member >= 0 &&
                adli_member_check(out->uid, out->group) == ADL_OK;
    out->forgotten = *text(annotations, "adaptdl/forgotten") != 0;
    out->leaves_s = (int)json_integer_value(grace);
    if (!out->ours)
        return;
    if (!*out->node)
        out->view.exit_code = -1;
    read_state(pod, out->leaving && json_integer_value(grace) <= 1, out);
    if (!*out->node)
        out->node = text(annotations, "adaptdl/node");
}

bool adli_k8s_read_pod(const json_t *pod, adli_k8s_pod_view *out)
{
    const json_t *metadata = json_object_get(pod, "metadata"), *spec = json_object_get(pod, "spec");
    const char *phase = text(json_object_get(pod, "status"), "phase");
    *out = (adli_k8s_pod_view){.ns = text(metadata, "namespace"),
                               .name = text(metadata, "name"),
                               .node = text(spec, "nodeName"),
                               .uid = ""};
    out->view.exit_code = -1;
    if (!*out->ns || !*out->name)
        return false;
    out->over = strcmp(phase, "Succeeded") == 0 || strcmp(phase, "Failed") == 0;
    const json_t *grace = json_object_get(spec, "terminationGracePeriodSeconds");
    out->grace_s = json_is_integer(grace) ? (int)json_integer_value(grace) : 30;
    const json_t *deleted = json_object_get(metadata, "deletionTimestamp");
    out->leaving = json_is_string(deleted);
    out->placeholder = *text(json_object_get(metadata, "labels"), ADLI_K8S_PLACEHOLDER) != 0;
    adli_k8s_pod_requests(spec, &out->requests);
    add_amount(&out->requests, "pods", 1);
    if (strcmp(text(json_object_get(metadata, "labels"), "adaptdl"), "true") == 0)
        read_ours(pod, metadata, out);
    return true;
}

/* ---- nodes ---- */

static bool tolerated(const json_t *spec)
{
    size_t i;
    const json_t *taint;
    json_array_foreach(json_object_get(spec, "taints"), i, taint)
    {
        if (strcmp(text(taint, "effect"), "PreferNoSchedule") == 0 ||
            (strcmp(text(taint, "key"), "petuum.com/nodegroup") == 0 &&
             strcmp(text(taint, "value"), "adaptdl") == 0))
            continue;
        return false;
    }
    return true;
}

static bool spot(const json_t *labels)
{
    static const char *const marks[][2] = {{"eks.amazonaws.com/capacityType", "SPOT"},
                                           {"karpenter.sh/capacity-type", "spot"},
                                           {"cloud.google.com/gke-spot", "true"},
                                           {"cloud.google.com/gke-preemptible", "true"},
                                           {"kubernetes.azure.com/scalesetpriority", "spot"},
                                           {"node.kubernetes.io/lifecycle", "spot"}};
    for (size_t i = 0; i < ADLI_COUNT(marks); i++)
        if (strcmp(text(labels, marks[i][0]), marks[i][1]) == 0)
            return true;
    return false;
}

/* Clouds that want a node back say so in ways of their own. A taint that we do not tolerate has the same effect, but for
 * the time that is left. Seconds are those of the cloud, less some to get there. */
static const struct {
    const char *key; /* of a label, an annotation or a taint; or the type of a condition */
    int seconds;
} notices[] = {
    {"aws-node-termination-handler/event-id", 110}, /* two minutes */
    {"aws-node-termination-handler/spot-itn", 110},
    {"aws-node-termination-handler/scheduled-maintenance", 110},
    {"aws-node-termination-handler/asg-lifecycle-termination", 110},
    {"aws-node-termination-handler/rebalance-recommendation", 110},
    {"cloud.google.com/impending-node-termination", 25}, /* half a minute */
    {"PreemptScheduled", 25},                            /* AKS */
    {"karpenter.sh/disrupted", 110},
    {"node.cloudprovider.kubernetes.io/shutdown", 25},
};

static bool tainted(const json_t *spec, const char *key)
{
    size_t i;
    const json_t *taint;
    json_array_foreach(json_object_get(spec, "taints"), i, taint)
    {
        if (strcmp(text(taint, "key"), key) == 0)
            return true;
    }
    return false;
}

static int notice_of(const json_t *metadata, const json_t *spec, const json_t *status)
{
    const json_t *labels = json_object_get(metadata, "labels"),
                 *notes = json_object_get(metadata, "annotations");
    for (size_t i = 0; i < ADLI_COUNT(notices); i++) {
        const char *key = notices[i].key;
        const json_t *found = condition(status, key);
        if (json_object_get(labels, key) || json_object_get(notes, key) || tainted(spec, key) ||
            (found && strcmp(text(found, "status"), "True") == 0))
            return notices[i].seconds;
    }
    return 0;
}

static double price_of(const json_t *labels)
{
    char *end;
    const char *value = text(labels, ADLI_K8S_PRICE);
    double price = strtod(value, &end);
    return *value && !*end && price > 0 && price < 1e6 ? price : 0;
}

static const char *address_of(const json_t *status)
{
    size_t i;
    const json_t *item;
    json_array_foreach(json_object_get(status, "addresses"), i, item)
    {
        if (strcmp(text(item, "type"), "InternalIP") == 0)
            return text(item, "address");
    }
    return "";
}

bool adli_k8s_read_node(const json_t *node, adli_k8s_node_view *out)
{
    const json_t *metadata = json_object_get(node, "metadata"),
                 *status = json_object_get(node, "status"), *spec = json_object_get(node, "spec");
    const json_t *labels = json_object_get(metadata, "labels"), *ready = condition(status, "Ready");
    *out = (adli_k8s_node_view){.name = text(metadata, "name"),
                                .hostname = text(labels, "kubernetes.io/hostname"),
                                .device_type = text(labels, "nvidia.com/gpu.product"),
                                .address = address_of(status),
                                .notice_s = notice_of(metadata, spec, status),
                                .price = price_of(labels),
                                .labels = labels,
                                .preemptible = spot(labels)};
    if (!*out->name)
        return false;
    if (!*out->hostname)
        out->hostname = out->name;
    const char *how = ready ? text(ready, "status") : "Unknown";
    out->lost = strcmp(how, "Unknown") == 0;
    out->schedulable = strcmp(how, "True") == 0 && tolerated(spec) && out->notice_s == 0 &&
                       !json_is_true(json_object_get(spec, "unschedulable"));
    add_amount(&out->allocatable, "pods", 0);
    add_list(json_object_get(status, "allocatable"), &out->allocatable);
    return true;
}
