/* The Kubernetes backend where nodes come and go: placeholders for those that are wanted, notices of those that leave,
 * prices. */
#include "k8s_site.h"

#include "base/mem.h"

static const adli_k8s_scaling scaling = {.on = true,
                                         .ns = "system",
                                         .image = "own:1",
                                         .selector = "pool=gpu,zone=b",
                                         .owner = "adaptdl-sched",
                                         .owner_uid = "d-1"};

static adl_status reopen_scaling(site *s, const adli_k8s_scaling *with)
{
    adli_k8s_options options = ADLI_K8S_OPTIONS_INIT;
    options.kube = s->kube;
    options.owner = owner;
    options.scaling = with;
    s->backend->ops->free(s->backend->self);
    return adli_k8s_new(&options, &s->backend);
}

#define HOLDER(n) "/api/v1/namespaces/system/pods/adaptdl-placeholder-" #n

static bool wait_holders(site *s, int count)
{
    const adli_backend_node *nodes;
    int node_count;
    for (double until_s = adli_monotonic_s() + 60; adli_monotonic_s() < until_s;) {
        if (s->backend->ops->nodes(s->backend->self, &nodes, &node_count) != ADL_OK)
            return false;
        if (adlt_fake_count(&s->fake, "pods/system") == count)
            return true;
        struct pollfd wait = {s->backend->ops->event_fd(s->backend->self), POLLIN, 0};
        poll(&wait, 1, 100);
        s->backend->ops->drain_events(s->backend->self);
    }
    printf("info - %d placeholders\n", adlt_fake_count(&s->fake, "pods/system"));
    return false;
}

static void place(site *s, const char *path, const char *node)
{
    char text[200];
    snprintf(text, sizeof text,
             "{\"spec\":{\"nodeName\":\"%s\"},\"status\":{\"phase\":\"Running\"}}", node);
    adlt_fake_put(&s->fake, path, text);
}

static bool there(site *s, const char *path)
{
    json_t *object = adlt_fake_get(&s->fake, path);
    json_decref(object);
    return object != NULL;
}

TEST(there_is_a_placeholder_for_each_node_that_is_wanted)
{
    site *s = open_site();
    REQUIRE(s);
    REQUIRE_OK(reopen_scaling(s, &scaling));
    /* a and b are not of the kind that is added */
    CHECK_OK(s->backend->ops->scale(s->backend->self, 4));
    CHECK(wait_holders(s, 2));
    for (int i = 0; i < 2; i++)
        adlt_fake_put(&s->fake, i ? "/api/v1/nodes/b" : "/api/v1/nodes/a",
                      "{\"metadata\":{\"labels\":{\"pool\":\"gpu\",\"zone\":\"b\"}}}");
    CHECK(wait_holders(s, 4));
    json_t *pod = adlt_fake_get(&s->fake, HOLDER(3));
    REQUIRE(pod);
    const json_t *spec = json_object_get(pod, "spec"),
                 *selector = json_object_get(spec, "nodeSelector"),
                 *owners = json_object_get(json_object_get(pod, "metadata"), "ownerReferences");
    CHECK_STR(json_string_value(json_object_get(selector, "pool")), "gpu");
    CHECK_STR(json_string_value(json_object_get(selector, "zone")), "b");
    CHECK_STR(json_string_value(json_object_get(spec, "priorityClassName")), "adaptdl-placeholder");
    CHECK_STR(json_string_value(json_object_get(json_array_get(owners, 0), "uid")), "d-1");
    json_decref(pod);

    /* one waits, one is where a job is, two are not */
    adlt_fake_node(&s->fake, "c");
    adlt_fake_put(&s->fake, "/api/v1/nodes/c",
                  "{\"metadata\":{\"labels\":{\"pool\":\"gpu\",\"zone\":\"b\"}}}");
    place(s, HOLDER(0), "a");
    place(s, HOLDER(1), "b");
    place(s, HOLDER(3), "c");
    REQUIRE_OK(start(s, "u", 1, 1)); /* on a */
    adlt_fake_put(&s->fake, POD(0),
                  "{\"spec\":{\"nodeName\":\"a\"},\"status\":{\"phase\":\"Running\"}}");
    CHECK(wait_state(s, "u", 1, 0, ADLI_MEMBER_READY));
    CHECK_OK(s->backend->ops->scale(s->backend->self, 3));
    CHECK(wait_holders(s, 3));
    CHECK(!there(s, HOLDER(2))); /* the one that waits */
    CHECK_OK(s->backend->ops->scale(s->backend->self, 1));
    CHECK(wait_holders(s, 1));
    CHECK(there(s, HOLDER(0))); /* where the job is */

    /* one that is taken away, or ends, is made anew; one that somebody else has is not ours */
    adlt_fake_put(&s->fake, "/api/v1/namespaces/other/pods",
                  "{\"metadata\":{\"name\":\"adaptdl-placeholder-9\",\"namespace\":\"other\","
                  "\"labels\":{\"adaptdl/placeholder\":\"true\"}},\"spec\":{}}");
    adlt_fake_remove(&s->fake, HOLDER(0));
    CHECK(wait_holders(s, 1));
    adlt_fake_put(&s->fake, HOLDER(0), "{\"status\":{\"phase\":\"Failed\"}}");
    for (double until_s = adli_monotonic_s() + 60; adli_monotonic_s() < until_s;) {
        CHECK(wait_holders(s, 1));
        pod = there(s, HOLDER(0)) ? adlt_fake_get(&s->fake, HOLDER(0)) : NULL;
        const json_t *status = json_object_get(pod, "status");
        bool fresh = !pod || !json_object_get(status, "phase") ||
                     strcmp(json_string_value(json_object_get(status, "phase")), "Failed") != 0;
        json_decref(pod);
        if (fresh)
            break;
    }
    CHECK(wait_holders(s, 1));
    CHECK_INT(adlt_fake_count(&s->fake, "pods/other"), 1);

    /* where scaling was switched off they go */
    adli_k8s_scaling off = scaling;
    off.on = false;
    REQUIRE_OK(reopen_scaling(s, &off));
    CHECK_OK(s->backend->ops->scale(s->backend->self, 7));
    CHECK(wait_holders(s, 0));
    CHECK_FAILS(s->backend->ops->scale(s->backend->self, -1), ADL_EINVAL, "-1");
    close_site(s);
}

static bool node_of(site *s, const char *name, adli_backend_node *out)
{
    const adli_backend_node *nodes;
    int count;
    if (s->backend->ops->nodes(s->backend->self, &nodes, &count) != ADL_OK)
        return false;
    for (int i = 0; i < count; i++)
        if (strcmp(nodes[i].name, name) == 0) {
            *out = nodes[i];
            return true;
        }
    return false;
}

/* What clouds say about a node that they want back makes it leave, and cuts the grace of what runs there. */
TEST(a_notice_makes_a_node_leave_in_time)
{
    static const struct {
        const char *patch;
        int grace;
    } notices[] = {
        {"{\"metadata\":{\"annotations\":{\"aws-node-termination-handler/"
         "event-id\":\"spot-itn-1\"}}}",
         30},
        {"{\"metadata\":{\"labels\":{\"aws-node-termination-handler/event-id\":\"x\"}}}", 30},
        {"{\"spec\":{\"taints\":[{\"key\":\"cloud.google.com/impending-node-termination\","
         "\"effect\":\"NoSchedule\"}]}}",
         25},
        {"{\"spec\":{\"taints\":[{\"key\":\"anything\",\"effect\":\"NoExecute\"}]}}", 30},
        {"{\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"},{\"type\":"
         "\"PreemptScheduled\",\"status\":\"True\"}]}}",
         25},
    };
    for (size_t i = 0; i < ADLI_COUNT(notices); i++) {
        site *s = open_site();
        adli_backend_node node = {.name = ""};
        REQUIRE(s);
        REQUIRE_OK(start(s, "u", 1, 2)); /* one of them on b, with 45 s to end */
        place(s, POD(1), "b");
        CHECK(wait_state(s, "u", 1, 1, ADLI_MEMBER_READY));
        CHECK(node_of(s, "b", &node) && node.ready);
        adlt_fake_put(&s->fake, "/api/v1/nodes/b", notices[i].patch);
        for (double until_s = adli_monotonic_s() + 60; adli_monotonic_s() < until_s;)
            if (node_of(s, "b", &node) && !node.ready)
                break;
        if (node.ready)
            ADLT_FAIL("notice %zu: the node is still ready", i);
        CHECK(node_of(s, "a", &node) && node.ready);
        s->backend->ops->stop(s->backend->self, "u", 1, 1, false);
        json_t *pod = adlt_fake_get(&s->fake, POD(1));
        const json_t *metadata = json_object_get(pod, "metadata");
        CHECK(json_object_get(metadata, "deletionTimestamp"));
        CHECK_INT(json_integer_value(json_object_get(metadata, "deletionGracePeriodSeconds")),
                  notices[i].grace);
        json_decref(pod);
        close_site(s);
    }
}

TEST(prices_are_read_from_labels)
{
    static const struct {
        const char *label;
        double price;
    } cases[] = {{"1.25", 1.25}, {"cheap", 0}, {"-1", 0}, {"1e9", 0}, {"", 0}, {"0.5x", 0}};
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        adli_k8s_node_view view;
        json_t *node = json_pack("{s:{s:s,s:{s:s}}}", "metadata", "name", "n", "labels",
                                 "adaptdl/price-per-hour", cases[i].label);
        REQUIRE(adli_k8s_read_node(node, &view));
        CHECK_NEAR(view.price, cases[i].price, 0);
        json_decref(node);
    }
}

/* Each cloud has a label of its own, and says with it what is no spot node, too. */
TEST(spot_nodes_are_known_by_their_labels)
{
    static const struct {
        const char *label, *value;
        bool spot;
    } cases[] = {{"eks.amazonaws.com/capacityType", "SPOT", true},
                 {"eks.amazonaws.com/capacityType", "ON_DEMAND", false},
                 {"cloud.google.com/gke-spot", "true", true},
                 {"cloud.google.com/gke-preemptible", "true", true},
                 {"cloud.google.com/gke-spot", "false", false},
                 {"kubernetes.azure.com/scalesetpriority", "spot", true},
                 {"kubernetes.azure.com/scalesetpriority", "regular", false},
                 {"karpenter.sh/capacity-type", "spot", true},
                 {"karpenter.sh/capacity-type", "on-demand", false},
                 {"karpenter.sh/capacity-type", "reserved", false},
                 {"node.kubernetes.io/lifecycle", "spot", true},
                 {"node.kubernetes.io/lifecycle", "normal", false},
                 {"example.com/spot", "true", false}};
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        adli_k8s_node_view view;
        json_t *node = json_pack("{s:{s:s,s:{s:s}}}", "metadata", "name", "n", "labels",
                                 cases[i].label, cases[i].value);
        REQUIRE(adli_k8s_read_node(node, &view));
        if (view.preemptible != cases[i].spot)
            ADLT_FAIL("%s=%s: %d", cases[i].label, cases[i].value, view.preemptible);
        json_decref(node);
    }
}

/* As the scheduler sees them: one that was there and is labelled, and one that comes. */
TEST(the_scheduler_is_told_which_nodes_are_spot)
{
    site *s = open_site();
    adli_backend_node node = {.name = ""};
    REQUIRE(s);
    CHECK(node_of(s, "a", &node) && !node.preemptible);
    adlt_fake_put(&s->fake, "/api/v1/nodes/b",
                  "{\"metadata\":{\"labels\":{\"eks.amazonaws.com/capacityType\":\"SPOT\"}}}");
    adlt_fake_node(&s->fake, "c");
    adlt_fake_put(&s->fake, "/api/v1/nodes/c",
                  "{\"metadata\":{\"labels\":{\"karpenter.sh/capacity-type\":\"spot\"}}}");
    for (size_t i = 0; i < 2; i++) {
        node.preemptible = false;
        for (double until_s = adli_monotonic_s() + 60;
             !node.preemptible && adli_monotonic_s() < until_s;)
            node_of(s, i ? "c" : "b", &node);
        CHECK(node.preemptible);
    }
    CHECK(node_of(s, "a", &node) && !node.preemptible);
    close_site(s);
}
