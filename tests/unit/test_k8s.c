/* The Kubernetes backend on a server in memory: what it makes of members, and what it sees of pods. */
#include "k8s_site.h"

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"

/* ---- reading objects ---- */

static bool read_pod(const char *spec_and_status, const char *more_metadata, json_t **keep,
                     adli_k8s_pod_view *out)
{
    char text[4096];
    snprintf(text, sizeof text,
             "{\"metadata\":{\"namespace\":\"n\",\"name\":\"p\",\"labels\":{\"adaptdl\":\"true\"},"
             "\"annotations\":{\"adaptdl/uid\":\"u\",\"adaptdl/group\":\"3\","
             "\"adaptdl/member\":\"1\"}%s},%s}",
             more_metadata, spec_and_status);
    *keep = json_loads(text, 0, NULL);
    return *keep && adli_k8s_read_pod(*keep, out);
}

#define ENDED(code, reason)                                                                        \
    "\"containerStatuses\":[{\"state\":{\"terminated\":{\"exitCode\":" #code                       \
    ",\"reason\":\"" reason "\",\"message\":\"why\",\"finishedAt\":\"2026-01-01T00:00:01Z\"}}}]"
#define STATUS(phase, more)                                                                        \
    "\"spec\":{\"nodeName\":\"a\"},\"status\":{\"phase\":\"" phase "\"" more "}"
#define LEAVING   ",\"deletionTimestamp\":\"2026-01-01T00:00:00Z\",\"deletionGracePeriodSeconds\":30"
#define ENDED_NOW ",\"deletionTimestamp\":\"2026-01-01T00:00:00Z\",\"deletionGracePeriodSeconds\":1"

TEST(pods_become_states_and_causes)
{
    static const struct {
        const char *pod, *metadata;
        adli_member_state state;
        adli_cause cause;
        int code;
        const char *message;
    } cases[] = {
        {STATUS("Pending", ""), "", ADLI_MEMBER_WAITING, ADLI_CAUSE_NONE, -1, ""},
        {STATUS("Running", ""), "", ADLI_MEMBER_READY, ADLI_CAUSE_NONE, -1, ""},
        {STATUS("Running", ""), LEAVING, ADLI_MEMBER_READY, ADLI_CAUSE_NONE, -1, ""},
        {STATUS("Succeeded", "," ENDED(0, "Completed")), "", ADLI_MEMBER_SUCCEEDED, ADLI_CAUSE_NONE,
         0, ""},
        {STATUS("Succeeded", "," ENDED(0, "Completed")), LEAVING, ADLI_MEMBER_SUCCEEDED,
         ADLI_CAUSE_NONE, 0, ""},
        {STATUS("Failed", "," ENDED(7, "Error")), "", ADLI_MEMBER_FAILED, ADLI_CAUSE_NONE, 7,
         "exited with 7"},
        {STATUS("Failed", "," ENDED(143, "Error")), "", ADLI_MEMBER_INTERRUPTED, ADLI_CAUSE_NONE,
         143, "143"},
        {STATUS("Failed", "," ENDED(139, "Error")), "", ADLI_MEMBER_FAILED, ADLI_CAUSE_NONE, 139,
         "signal 11"},
        {STATUS("Failed", "," ENDED(137, "Error")), "", ADLI_MEMBER_FAILED, ADLI_CAUSE_NONE, 137,
         "signal 9"},
        {STATUS("Failed", "," ENDED(137, "Error")), LEAVING, ADLI_MEMBER_INTERRUPTED,
         ADLI_CAUSE_KILLED, 137, "killed"},
        {STATUS("Failed", "," ENDED(143, "Error")), ENDED_NOW, ADLI_MEMBER_INTERRUPTED,
         ADLI_CAUSE_KILLED, 143, "killed"},
        {STATUS("Failed", "," ENDED(137, "OOMKilled")), "", ADLI_MEMBER_FAILED,
         ADLI_CAUSE_OOM_KILLED, 137, "memory"},
        {STATUS("Failed", "," ENDED(128, "StartError")), "", ADLI_MEMBER_FAILED,
         ADLI_CAUSE_CANNOT_RUN, 128, "why"},
        {STATUS("Failed", ",\"reason\":\"Evicted\",\"message\":\"low on disk\""), "",
         ADLI_MEMBER_INTERRUPTED, ADLI_CAUSE_EVICTED, -1, "low on disk"},
        {STATUS("Failed", ",\"reason\":\"Evicted\"," ENDED(137, "Error")), "",
         ADLI_MEMBER_INTERRUPTED, ADLI_CAUSE_EVICTED, 137, ""},
        {STATUS("Failed", ",\"reason\":\"OutOfcpu\",\"message\":\"no cpu\""), "",
         ADLI_MEMBER_INTERRUPTED, ADLI_CAUSE_OUT_OF_RESOURCES, -1, "no cpu"},
        {STATUS("Failed", ",\"reason\":\"UnexpectedAdmissionError\",\"message\":\"no gpu\""), "",
         ADLI_MEMBER_INTERRUPTED, ADLI_CAUSE_OUT_OF_RESOURCES, -1, "no gpu"},
        {STATUS("Failed", ",\"reason\":\"Terminated\"," ENDED(143, "Error")), "",
         ADLI_MEMBER_INTERRUPTED, ADLI_CAUSE_NODE_LOST, 143, ""},
        {STATUS("Failed",
                ",\"conditions\":[{\"type\":\"DisruptionTarget\",\"status\":\"True\",\"message\":"
                "\"preempted\"}]," ENDED(1, "Error")),
         "", ADLI_MEMBER_INTERRUPTED, ADLI_CAUSE_EVICTED, 1, "preempted"},
        {"\"spec\":{},\"status\":{\"phase\":\"Pending\"}", LEAVING, ADLI_MEMBER_INTERRUPTED,
         ADLI_CAUSE_KILLED, -1, "before it ran"},
        {STATUS("Pending", ",\"containerStatuses\":[{\"state\":{\"waiting\":{\"reason\":"
                           "\"ImagePullBackOff\",\"message\":\"no such image\"}}}]"),
         "", ADLI_MEMBER_WAITING, ADLI_CAUSE_NONE, -1, "ImagePullBackOff: no such image"},
        {STATUS("Pending", ",\"containerStatuses\":[{\"state\":{\"waiting\":{\"reason\":"
                           "\"CreateContainerConfigError\",\"message\":\"no map\"}}}]"),
         "", ADLI_MEMBER_FAILED, ADLI_CAUSE_CANNOT_RUN, -1, "no map"},
        {STATUS("Pending", ",\"containerStatuses\":[{\"state\":{\"waiting\":{\"reason\":"
                           "\"ContainerCreating\"}}}]"),
         "", ADLI_MEMBER_WAITING, ADLI_CAUSE_NONE, -1, ""},
        {"\"spec\":{},\"status\":{\"phase\":\"Pending\",\"conditions\":[{\"type\":\"PodScheduled\","
         "\"status\":\"False\",\"reason\":\"Unschedulable\",\"message\":\"0/2 nodes\"}]}",
         "", ADLI_MEMBER_WAITING, ADLI_CAUSE_NONE, -1, "0/2 nodes"},
    };
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        json_t *keep;
        adli_k8s_pod_view pod;
        REQUIRE(read_pod(cases[i].pod, cases[i].metadata, &keep, &pod));
        const adli_member_view *view = &pod.view;
        if (!pod.ours || strcmp(pod.uid, "u") != 0 || pod.group != 3 || view->member != 1 ||
            view->state != cases[i].state || view->cause != cases[i].cause ||
            view->exit_code != cases[i].code || !strstr(view->message, cases[i].message))
            ADLT_FAIL("case %zu: state %d, cause %d, code %d, \"%s\"", i, (int)view->state,
                      (int)view->cause, view->exit_code, view->message);
        json_decref(keep);
    }
}

TEST(what_pods_take_is_counted_as_kubernetes_does)
{
    static const char spec[] =
        "{\"containers\":[{\"resources\":{\"requests\":{\"cpu\":\"500m\",\"memory\":\"1Gi\"}}},"
        "{\"resources\":{\"requests\":{\"cpu\":1},\"limits\":{\"nvidia.com/gpu\":\"2\",\"cpu\":"
        "\"3\"}}}],\"initContainers\":[{\"resources\":{\"requests\":{\"cpu\":\"4\"}}},"
        "{\"restartPolicy\":\"Always\",\"resources\":{\"requests\":{\"memory\":\"1Gi\"}}}],"
        "\"overhead\":{\"cpu\":\"250m\"}}";
    adli_k8s_amounts amounts;
    json_t *root = json_loads(spec, 0, NULL);
    REQUIRE(root);
    adli_k8s_pod_requests(root, &amounts);
    CHECK_INT(amounts.count, 3);
    CHECK_STR(amounts.names[0], "cpu");
    CHECK_INT(amounts.amounts[0], 4250);
    CHECK_INT(amounts.amounts[1], 2LL << 30);
    CHECK_STR(amounts.names[2], "nvidia.com/gpu");
    CHECK_INT(amounts.amounts[2], 2);
    json_decref(root);
}

/* ---- the backend ---- */

static const char *env_value(const json_t *pod, int container, const char *name)
{
    size_t i;
    const json_t *item,
        *env = json_object_get(
            json_array_get(json_object_get(json_object_get(pod, "spec"), "containers"),
                           (size_t)container),
            "env");
    const char *found = "(none)";
    json_array_foreach(env, i, item)
    {
        if (strcmp(json_string_value(json_object_get(item, "name")), name) != 0)
            continue;
        if (strcmp(found, "(none)") != 0)
            return "(twice)";
        const char *value = json_string_value(json_object_get(item, "value"));
        const json_t *ref = json_object_get(json_object_get(item, "valueFrom"), "secretKeyRef");
        found = value ? value
                : ref ? json_string_value(json_object_get(ref, "name"))
                      : "(from elsewhere)";
    }
    return found;
}

TEST(a_member_becomes_the_pod_that_it_should)
{
    site *s = open_site();
    REQUIRE(s);
    REQUIRE_OK(start(s, "u", 1, 2));
    json_t *pod = adlt_fake_get(&s->fake, POD(1));
    REQUIRE(pod);
    json_t *expected = json_loads(
        "{\"adaptdl\":\"true\",\"adaptdl/job\":\"hello\",\"petuum.com/nodegroup\":\"all\","
        "\"mine\":\"yes\"}",
        0, NULL);
    const json_t *metadata = json_object_get(pod, "metadata"), *spec = json_object_get(pod, "spec");
    CHECK(json_equal(json_object_get(metadata, "labels"), expected));
    json_decref(expected);
    const json_t *owner_reference = json_array_get(json_object_get(metadata, "ownerReferences"), 0);
    CHECK_STR(json_string_value(json_object_get(owner_reference, "uid")), "u");
    CHECK(json_is_true(json_object_get(owner_reference, "controller")));
    const json_t *notes = json_object_get(metadata, "annotations");
    CHECK_STR(json_string_value(json_object_get(notes, "adaptdl/rank")), "1");
    CHECK_STR(json_string_value(json_object_get(notes, "adaptdl/replicas")), "2");
    CHECK_STR(json_string_value(json_object_get(notes, "adaptdl/node")), "b");
    CHECK_STR(json_string_value(json_object_get(spec, "hostname")), "hello-1-1");
    CHECK_STR(json_string_value(json_object_get(spec, "restartPolicy")), "Never");
    CHECK_INT(json_integer_value(json_object_get(spec, "terminationGracePeriodSeconds")), 45);
    const json_t *selector = json_object_get(spec, "nodeSelector");
    CHECK_STR(json_string_value(json_object_get(selector, "kubernetes.io/hostname")), "host-b");
    CHECK_STR(json_string_value(json_object_get(selector, "disk")), "ssd");
    for (int c = 0; c < 2; c++) {
        CHECK_STR(env_value(pod, c, "ADAPTDL_REPLICA_RANK"), "1");
        CHECK_STR(env_value(pod, c, "ADAPTDL_NUM_REPLICAS"), "2");
        CHECK_STR(env_value(pod, c, "ADAPTDL_NUM_NODES"), "2");
        CHECK_STR(env_value(pod, c, "ADAPTDL_NUM_RESTARTS"), "0");
        CHECK_STR(env_value(pod, c, "ADAPTDL_MASTER_PORT"), "47001");
        CHECK_STR(env_value(pod, c, "NVIDIA_VISIBLE_DEVICES"), "none");
        CHECK_STR(env_value(pod, c, "ADAPTDL_JOB_SECRET"), "adaptdl-u");
        CHECK_STR(env_value(pod, c, "ADAPTDL_SUPERVISOR_URL"), "adaptdl-u");
        CHECK_STR(env_value(pod, c, "MINE"), "has $$(none)");
        CHECK_STR(env_value(pod, c, "D"), "yes");
    }
    CHECK_STR(env_value(pod, 0, "A"), "$(B)"); /* the template's own, as it is */
    CHECK_STR(env_value(pod, 0, "KEPT"), "(from elsewhere)");
    CHECK_STR(env_value(pod, 1, "A"), "no");
    char *text = json_dumps(pod, 0);
    CHECK(!strstr(text, "s3cret") && !strstr(text, "t0ken"));
    CHECK(strstr(text, "/dev/shm") && strstr(text, ADLI_K8S_FINALIZER));
    free(text);
    json_decref(pod);
    json_t *secret = adlt_fake_get(&s->fake, "/api/v1/namespaces/mine/secrets/adaptdl-u");
    const json_t *data = json_object_get(secret, "stringData");
    CHECK_STR(json_string_value(json_object_get(data, "ADAPTDL_JOB_SECRET")), "s3cret");
    CHECK_INT(json_object_size(data), 2);
    json_decref(secret);
    close_site(s);
}

TEST(a_group_lives_and_is_found_again)
{
    site *s = open_site();
    REQUIRE(s);
    adlt_kubelet_start(&s->fake);
    REQUIRE_OK(start(s, "u", 1, 2));
    REQUIRE_OK(start(s, "u", 1, 2));
    CHECK(wait_state(s, "u", 1, 1, ADLI_MEMBER_READY));
    CHECK_STR(view(s, "u", 1, 1).address, "10.1.0.1");
    REQUIRE_OK(reopen(s));
    REQUIRE_OK(start(s, "u", 1, 3)); /* one more */
    CHECK(wait_state(s, "u", 1, 2, ADLI_MEMBER_READY));
    s->backend->ops->stop(s->backend->self, "u", 1, 0, false);
    CHECK(wait_state(s, "u", 1, 0, ADLI_MEMBER_INTERRUPTED));
    CHECK_INT(view(s, "u", 1, 0).exit_code, 143);
    CHECK_INT(view(s, "u", 1, 1).state, ADLI_MEMBER_READY);
    REQUIRE_OK(reopen(s)); /* its result is still there, though it was deleted */
    CHECK_INT(view(s, "u", 1, 0).state, ADLI_MEMBER_INTERRUPTED);
    REQUIRE_OK(start(s, "u", 1, 3));
    CHECK_INT(view(s, "u", 1, 0).state, ADLI_MEMBER_INTERRUPTED); /* and was not started again */
    atomic_store(&s->fake.let_end, 1);
    CHECK(wait_state(s, "u", 1, 1, ADLI_MEMBER_SUCCEEDED));
    CHECK(wait_state(s, "u", 1, 2, ADLI_MEMBER_SUCCEEDED));
    s->backend->ops->forget(s->backend->self, "u", 1);
    CHECK_INT(view(s, "u", 1, 1).member, -1);
    CHECK_INT(adlt_fake_count(&s->fake, "pods/"), 2); /* for their logs */
    int fd = -1;
    CHECK_OK(s->backend->ops->open_log(s->backend->self, "u", 1, 1, &fd));
    if (fd >= 0)
        close(fd);
    CHECK_FAILS(start(s, "u", 1, 2), ADL_ESTATE, "over");
    REQUIRE_OK(reopen(s));
    CHECK_FAILS(start(s, "u", 1, 4 - 1), ADL_ESTATE, "over"); /* whoever asks */
    REQUIRE_OK(start(s, "u", 2, 1));
    CHECK_INT(adlt_fake_count(&s->fake, "pods/"), 3); /* the old ones stay */
    s->backend->ops->remove(s->backend->self, "u");
    for (double until_s = adli_monotonic_s() + 60;
         adlt_fake_count(&s->fake, "pods/") && adli_monotonic_s() < until_s;)
        usleep(5000);
    CHECK_INT(adlt_fake_count(&s->fake, "pods/") + adlt_fake_count(&s->fake, "secrets/"), 0);
    adlt_kubelet_stop(&s->fake);
    close_site(s);
}

/* Members of a group may meet as another world: at the address of a pod that runs, each time at another port. */
TEST(members_meet_where_a_pod_runs)
{
    static const adli_member_start one = {4, 1, "b"};
    site *s = open_site();
    char address[64];
    int ports[40];
    adli_meet who = {.uid = "u", .group = 1, .member = 1, .node = "b"};
    adli_start spec = ADLI_START_INIT;
    REQUIRE(s);
    REQUIRE_OK(start(s, "u", 1, 2));
    CHECK_FAILS(s->backend->ops->meet(s->backend->self, &who, address, sizeof address, &ports[0]),
                ADL_ENOENT, "member 1 of group 1 does not run");
    adlt_fake_put(&s->fake, POD(1), "{\"status\":{\"phase\":\"Running\",\"podIP\":\"10.1.2.3\"}}");
    CHECK(wait_state(s, "u", 1, 1, ADLI_MEMBER_READY));
    for (int i = 0; i < 40; i++) {
        CHECK_OK(s->backend->ops->meet(s->backend->self, &who, address, sizeof address, &ports[i]));
        CHECK_STR(address, "10.1.2.3");
        CHECK(ports[i] > 1023 && ports[i] < 65536);
        for (int k = 0; k < i; k++)
            CHECK(ports[k] != ports[i]);
    }
    spec.uid = "u";
    spec.group = 1;
    spec.members = &one;
    spec.count = spec.nodes = 1;
    spec.replicas = 2;
    spec.joins = true;
    CHECK_OK(s->backend->ops->start(s->backend->self, &spec));
    json_t *pod = adlt_fake_get(&s->fake, POD(4)), *first = adlt_fake_get(&s->fake, POD(0));
    CHECK_STR(env_value(pod, 0, "ADAPTDL_MEMBER"), "4");
    CHECK_STR(env_value(pod, 0, "ADAPTDL_JOIN"), "1");
    CHECK_STR(env_value(first, 0, "ADAPTDL_MEMBER"), "0");
    CHECK_STR(env_value(first, 0, "ADAPTDL_JOIN"), "0");
    json_decref(pod);
    json_decref(first);
    close_site(s);
}

TEST(a_node_that_is_lost_takes_its_pods_along)
{
    site *s = open_site();
    const adli_backend_node *nodes;
    int count;
    REQUIRE(s);
    adlt_kubelet_start(&s->fake);
    adlt_fake_put(
        &s->fake, "/api/v1/namespaces/other/pods",
        "{\"metadata\":{\"name\":\"foreign\"},\"spec\":{\"nodeName\":\"b\",\"containers\":"
        "[{\"resources\":{\"requests\":{\"cpu\":\"1500m\"}}}]}}");
    REQUIRE_OK(start(s, "u", 1, 2));
    CHECK(wait_state(s, "u", 1, 1, ADLI_MEMBER_READY));
    CHECK(wait_state(s, "u", 1, 0, ADLI_MEMBER_READY));
    REQUIRE_OK(s->backend->ops->nodes(s->backend->self, &nodes, &count));
    REQUIRE(count == 2);
    CHECK_STR(nodes[1].name, "b");
    for (int r = 0; r < nodes[1].resource_count; r++) {
        if (strcmp(nodes[1].resource_names[r], "cpu") == 0)
            CHECK_INT(nodes[1].resource_amounts[r], 2500); /* ours is not subtracted */
        if (strcmp(nodes[1].resource_names[r], "pods") == 0)
            CHECK_INT(nodes[1].resource_amounts[r], 109);
    }
    adlt_fake_put(&s->fake, "/api/v1/nodes/b",
                  "{\"metadata\":{\"labels\":{\"nvidia.com/gpu.product\":\"NVIDIA-A100\"}},"
                  "\"spec\":{\"unschedulable\":true}}");
    for (int i = 0; i < 6000; i++) {
        REQUIRE_OK(s->backend->ops->nodes(s->backend->self, &nodes, &count));
        if (!nodes[1].ready)
            break;
        usleep(10000);
    }
    REQUIRE(count == 2 && !nodes[1].ready); /* listed while a pod of ours is there */
    CHECK_STR(nodes[0].device_type, "");
    CHECK_STR(nodes[1].device_type, "NVIDIA-A100");
    CHECK_INT(view(s, "u", 1, 1).state, ADLI_MEMBER_READY);
    adlt_fake_put(&s->fake, "/api/v1/nodes/b",
                  "{\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"Unknown\"}]}}");
    CHECK(wait_state(s, "u", 1, 1, ADLI_MEMBER_INTERRUPTED));
    CHECK_INT(view(s, "u", 1, 1).cause, ADLI_CAUSE_NODE_LOST);
    CHECK_INT(view(s, "u", 1, 0).state, ADLI_MEMBER_READY);
    REQUIRE_OK(s->backend->ops->nodes(s->backend->self, &nodes, &count));
    CHECK_INT(count, 1);
    CHECK_FAILS(start(s, "next", 1, 2), ADL_ENOENT, "no node b");
    CHECK_FAILS(start(s, "gone", 1, 1), ADL_ENOENT, "deleted");
    adlt_kubelet_stop(&s->fake);
    close_site(s);
}

/* How long a pod may take to begin is counted by our own clock: what the server's says, or ours was set to, is no time that
 * has passed. */
TEST(a_pod_that_cannot_begin_is_given_up_by_time_that_passes)
{
    static const char *const made[] = {"2001-01-01T00:00:00Z", "2091-01-01T00:00:00Z"};
    site *s = open_site();
    char text[400];
    REQUIRE(s);
    s->stuck_s = 3600;
    REQUIRE_OK(reopen(s));
    REQUIRE_OK(start(s, "u", 1, 2));
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text,
                 "{\"metadata\":{\"creationTimestamp\":\"%s\"},\"status\":{\"phase\":\"Pending\","
                 "\"containerStatuses\":[{\"name\":\"main\",\"state\":{\"waiting\":"
                 "{\"reason\":\"ImagePullBackOff\",\"message\":\"no such image\"}}}]}}",
                 made[i]);
        adlt_fake_put(&s->fake, i ? POD(1) : POD(0), text);
    }
    for (int i = 0; i < 2; i++) {
        for (int turn = 0; turn < 6000 && !strstr(view(s, "u", 1, i).message, "no such image");
             turn++)
            usleep(10000);
        CHECK(strstr(view(s, "u", 1, i).message, "no such image"));
        CHECK_INT(view(s, "u", 1, i).state, ADLI_MEMBER_WAITING);
    }
    s->stuck_s = 0.01;
    REQUIRE_OK(reopen(s));
    CHECK(wait_state(s, "u", 1, 0, ADLI_MEMBER_FAILED));
    CHECK(wait_state(s, "u", 1, 1, ADLI_MEMBER_FAILED));
    close_site(s);
}

TEST(what_others_ask_for_may_be_more_than_a_number_holds)
{
    site *s = open_site();
    const adli_backend_node *nodes;
    int count;
    REQUIRE(s);
    for (int i = 0; i < 2; i++) {
        adli_buf text;
        adli_buf_init(&text, 1 << 20);
        adli_buf_printf(
            &text, "{\"metadata\":{\"name\":\"p%d\"},\"spec\":{\"nodeName\":\"a\",\"containers\":[",
            i);
        for (int c = 0; c < 5000; c++) /* each as much as a quantity may be */
            adli_buf_printf(&text, "%s{\"resources\":{\"requests\":{\"memory\":\"1Pi\"}}}",
                            c ? "," : "");
        adli_buf_puts(&text, "]}}");
        REQUIRE_OK(adli_buf_check(&text));
        adlt_fake_put(&s->fake, "/api/v1/namespaces/other/pods", text.data);
        adli_buf_fini(&text);
    }
    REQUIRE_OK(reopen(s));
    REQUIRE_OK(s->backend->ops->nodes(s->backend->self, &nodes, &count));
    REQUIRE(count == 2);
    for (int r = 0; r < nodes[0].resource_count; r++)
        if (strcmp(nodes[0].resource_names[r], "memory") == 0)
            CHECK_INT(nodes[0].resource_amounts[r], 0);
    close_site(s);
}

TEST(a_template_whose_variables_are_no_list_is_refused)
{
    static const adli_member_start member = {0, 0, "a"};
    adli_start spec = ADLI_START_INIT;
    char *out;
    spec.uid = "u";
    spec.group = 1;
    adli_k8s_pod_plan plan = {
        .start = &spec, .member = &member, .ns = "n", .job = "j", .secret = "s"};
    json_t *template = json_loads("{\"spec\":{\"containers\":[{\"env\":{}}]}}", 0, NULL);
    CHECK_FAILS(adli_k8s_make_pod(&plan, template, &out), ADL_EINVAL, "no container");
    json_decref(template);
}

static int keep_pods(void *user, const char *method, const char *path, bool done)
{
    bool refused = !done && strcmp(method, "DELETE") == 0 && strstr(path, "/pods/");
    return refused && atomic_load((atomic_int *)user) ? 403 : 0;
}

/* How the server was asked to end the pod that is gone; -1: it is not. */
static int grace_of(site *s, const char *name)
{
    int grace = -1;
    pthread_mutex_lock(&s->fake.lock);
    for (int i = 1; i <= s->fake.version; i++) {
        const adlt_fake_event *event = &s->fake.events[i];
        if (strcmp(event->type, "DELETED") != 0 || !strstr(event->object, name))
            continue;
        json_t *pod = json_loads(event->object, 0, NULL);
        grace = (int)json_integer_value(
            json_object_get(json_object_get(pod, "metadata"), "deletionGracePeriodSeconds"));
        json_decref(pod);
    }
    pthread_mutex_unlock(&s->fake.lock);
    return grace;
}

TEST(a_forgotten_group_is_over_though_its_pods_still_run)
{
    site *s = open_site();
    atomic_int refusing = 1;
    REQUIRE(s);
    adlt_kubelet_start(&s->fake);
    s->fake.hook = keep_pods;
    s->fake.hook_user = &refusing;
    REQUIRE_OK(start(s, "u", 1, 2));
    CHECK(wait_state(s, "u", 1, 0, ADLI_MEMBER_READY));
    CHECK(wait_state(s, "u", 1, 1, ADLI_MEMBER_READY));
    s->backend->ops->forget(s->backend->self, "u", 1);
    CHECK_INT(adlt_fake_count(&s->fake, "pods/"), 2);
    CHECK_FAILS(start(s, "u", 1, 2), ADL_ESTATE, "over");
    atomic_store(&refusing, 0);
    REQUIRE_OK(start(s, "u", 2, 1));
    CHECK_INT(grace_of(s, "\"hello-u-1-0\""), 1); /* ended, not struck from the server's list */
    CHECK_INT(grace_of(s, "\"hello-u-1-1\""), 1);
    adlt_kubelet_stop(&s->fake);
    close_site(s);
}

/* Pods are not released. */
static int hold_pods(void *user, const char *method, const char *path, bool done)
{
    (void)user;
    return !done && strcmp(method, "PATCH") == 0 && strstr(path, "/pods/") ? 403 : 0;
}

TEST(older_news_of_a_pod_do_not_bring_its_group_back)
{
    site *s = open_site();
    REQUIRE(s);
    adlt_kubelet_start(&s->fake);
    REQUIRE_OK(start(s, "u", 1, 1));
    CHECK(wait_state(s, "u", 1, 0, ADLI_MEMBER_READY));
    s->fake.hook = hold_pods;
    s->backend->ops->forget(s->backend->self, "u", 1);
    CHECK_INT(view(s, "u", 1, 0).member, -1);
    adlt_fake_put(&s->fake, POD(0), "{\"metadata\":{\"labels\":{\"news\":\"old\"}}}");
    REQUIRE_OK(start(s, "v", 1, 1));
    CHECK(wait_state(s, "v", 1, 0, ADLI_MEMBER_READY)); /* those of the first have come before */
    CHECK_INT(view(s, "u", 1, 0).member, -1);
    adlt_kubelet_stop(&s->fake);
    close_site(s);
}

/* So many pods are refused, as when their quota is changed at the same moment. */
static int conflict(void *user, const char *method, const char *path, bool done)
{
    return !done && strcmp(method, "POST") == 0 && strstr(path, "/pods") &&
                   atomic_fetch_sub((atomic_int *)user, 1) > 0
               ? ADLT_FAKE_CONFLICT
               : 0;
}

TEST(a_pod_that_met_a_conflict_is_made_later)
{
    site *s = open_site();
    atomic_int conflicts = 4; /* as often as it is tried by itself */
    REQUIRE(s);
    adlt_kubelet_start(&s->fake);
    s->fake.hook = conflict;
    s->fake.hook_user = &conflicts;
    CHECK_INT(start(s, "u", 1, 1), ADL_ETIMEOUT);
    CHECK_INT(adlt_fake_count(&s->fake, "pods/"), 0);
    REQUIRE_OK(start(s, "u", 1, 1));
    CHECK(wait_state(s, "u", 1, 0, ADLI_MEMBER_READY));
    adlt_kubelet_stop(&s->fake);
    close_site(s);
}

TEST(pods_that_ended_stay_for_three_starts)
{
    site *s = open_site();
    REQUIRE(s);
    adlt_kubelet_start(&s->fake);
    atomic_store(&s->fake.let_end, 1);
    for (int group = 1; group <= 6; group++) {
        REQUIRE_OK(start(s, "u", group, 1));
        CHECK(wait_state(s, "u", group, 0, ADLI_MEMBER_SUCCEEDED));
        s->backend->ops->forget(s->backend->self, "u", group);
    }
    CHECK_INT(adlt_fake_count(&s->fake, "pods/mine/hello-u-"), 4);
    CHECK_INT(adlt_fake_count(&s->fake, "pods/mine/hello-u-3-"), 1);
    adlt_kubelet_stop(&s->fake);
    close_site(s);
}

/* What is asked of one pod, in order; all of it fails while `away`. */
typedef struct asked {
    atomic_bool away;
    char methods[80];
} asked;

static int note(void *user, const char *method, const char *path, bool done)
{
    asked *a = user;
    if (done || !strstr(path, "/pods/hello-u-1-0"))
        return 0;
    if (atomic_load(&a->away))
        return 503;
    strncat(a->methods, method, sizeof a->methods - strlen(a->methods) - 1);
    return 0;
}

TEST(a_pod_is_deleted_before_it_is_released_and_others_may_hold_it)
{
    site *s = open_site();
    asked a = {0};
    REQUIRE(s);
    adlt_kubelet_start(&s->fake);
    REQUIRE_OK(start(s, "u", 1, 1));
    CHECK(wait_state(s, "u", 1, 0, ADLI_MEMBER_READY));
    adlt_fake_put(&s->fake, POD(0),
                  "{\"metadata\":{\"finalizers\":[\"theirs/hold\",\"" ADLI_K8S_FINALIZER "\"]}}");
    s->fake.hook = note;
    s->fake.hook_user = &a;
    s->backend->ops->forget(s->backend->self, "u", 1);
    CHECK_STR(a.methods, "DELETEPATCH");
    json_t *pod = adlt_fake_get(&s->fake, POD(0));
    const json_t *held = json_object_get(json_object_get(pod, "metadata"), "finalizers");
    CHECK_INT(json_array_size(held), 1);
    CHECK_STR(json_string_value(json_array_get(held, 0)), "theirs/hold");
    json_decref(pod);
    adlt_kubelet_stop(&s->fake);
    close_site(s);
}

TEST(what_the_server_was_away_for_is_asked_again)
{
    site *s = open_site();
    asked a = {.away = true};
    const adli_backend_node *nodes;
    int count;
    REQUIRE(s);
    REQUIRE_OK(start(s, "u", 1, 1));
    s->fake.hook = note;
    s->fake.hook_user = &a;
    s->backend->ops->forget(s->backend->self, "u", 1);
    CHECK_INT(adlt_fake_count(&s->fake, "pods/"), 1);
    atomic_store(&a.away, false);
    REQUIRE_OK(s->backend->ops->nodes(s->backend->self, &nodes, &count));
    CHECK_INT(adlt_fake_count(&s->fake, "pods/"), 0);
    close_site(s);
}

/* uid: of a job in the namespace "mine" (any but "gone"). */
static void put_labelled(site *s, const char *ns, const char *uid)
{
    char path[100], text[400];
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/pods", ns);
    snprintf(text, sizeof text,
             "{\"metadata\":{\"name\":\"x-%s\",\"labels\":{\"adaptdl\":\"true\"},\"annotations\":"
             "{\"adaptdl/uid\":\"%s\",\"adaptdl/group\":\"1\",\"adaptdl/member\":\"0\"}},"
             "\"spec\":{\"nodeName\":\"a\",\"containers\":[]}}",
             uid, uid);
    adlt_fake_put(&s->fake, path, text);
}

TEST(a_pod_is_ours_only_where_its_job_is)
{
    site *s = open_site();
    REQUIRE(s);
    put_labelled(s, "other", "u");
    put_labelled(s, "other", "gone");
    put_labelled(s, "mine", "v");
    REQUIRE_OK(reopen(s));
    CHECK_INT(view(s, "u", 1, 0).member, -1);
    CHECK_INT(view(s, "gone", 1, 0).member, 0); /* to be cleared away */
    CHECK_INT(view(s, "v", 1, 0).member, 0);
    s->only = "mine";
    REQUIRE_OK(reopen(s));
    CHECK_INT(view(s, "gone", 1, 0).member, -1); /* somebody else's to clear away */
    CHECK_INT(view(s, "v", 1, 0).member, 0);
    close_site(s);
}

static int refuse(void *user, const char *method, const char *path, bool done)
{
    return !done && strcmp(method, "POST") == 0 && strstr(path, "/pods") ? *(int *)user : 0;
}

TEST(what_the_server_refuses_is_told)
{
    site *s = open_site();
    int code = 422;
    REQUIRE(s);
    s->fake.hook = refuse;
    s->fake.hook_user = &code;
    CHECK_OK(start(s, "u", 1, 1));
    CHECK_INT(view(s, "u", 1, 0).state, ADLI_MEMBER_FAILED);
    CHECK_INT(view(s, "u", 1, 0).cause, ADLI_CAUSE_CANNOT_RUN);
    CHECK_OK(start(s, "u", 1, 1));
    s->backend->ops->forget(s->backend->self, "u", 1);
    CHECK_INT(view(s, "u", 1, 0).member, -1);
    code = 409; /* somebody made it, and we have not seen it yet */
    CHECK_OK(start(s, "v", 1, 1));
    CHECK_INT(view(s, "v", 1, 0).state, ADLI_MEMBER_WAITING);
    close_site(s);
}
