/* The daemon's core and its nodes: what fits nowhere, draining, nodes that are lost, come and go. */
#include "base/file.h"
#include "core_world.h"

TEST(what_fits_nowhere_is_said)
{
    world w;
    REQUIRE_OK(open_world(&w, 2, 2));
    REQUIRE_OK(submit(&w, "many", "  minReplicas: 5\n"));
    REQUIRE_OK(submit_text(
        &w, "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata: {name: gpu}\n"
            "spec: {template: {spec: {containers: [{name: main, command: [a],\n"
            " resources: {limits: {nvidia.com/gpu: 1}}}]}}}\n"));
    step(&w, 0);
    CHECK_STR(text_of(&w, "many", "phase"), "Pending");
    CHECK_STR(text_of(&w, "many", "reason"), "Unschedulable");
    CHECK_STR(text_of(&w, "many", "message"),
              "needs 5 replicas at once; the whole cluster holds 4");
    CHECK_STR(text_of(&w, "gpu", "reason"), "Unschedulable");
    CHECK_STR(text_of(&w, "gpu", "message"),
              "a replica asks for nvidia.com/gpu 1; no node has any");
    /* a node that has one comes */
    w.fake->nodes[2] = (adli_backend_node){.name = "gpu-0",
                                           .device_type = "a100",
                                           .address = "",
                                           .ready = true,
                                           .resource_count = 2,
                                           .resource_names = {"pods", "nvidia.com/gpu"},
                                           .resource_amounts = {4, 1}};
    w.fake->node_count = 3;
    step(&w, 1);
    step(&w, 1);
    CHECK_STR(text_of(&w, "gpu", "phase"), "Running");
    CHECK_STR(json_string_value(json_array_get(field(&w, "gpu", "allocation"), 0)), "gpu-0");
    CHECK(json_is_null(field(&w, "many", "reason")));
    close_world(&w);
}

TEST(draining_moves_replicas_and_is_remembered)
{
    world w;
    REQUIRE_OK(open_world(&w, 2, 1));
    REQUIRE_OK(submit(&w, "moves", ""));
    step(&w, 0);
    CHECK_STR(json_string_value(json_array_get(field(&w, "moves", "allocation"), 0)), "node-0");
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_drain(w.core, "node-0", true, &w.out));
    CHECK(strstr(w.out.data, "\"draining\":true"));
    CHECK_FAILS(adli_core_drain(w.core, "node-9", true, &w.out), ADL_ENOENT, "node-9");
    step(&w, 1);
    step(&w, 1);
    CHECK_STR(json_string_value(json_array_get(field(&w, "moves", "allocation"), 0)), "node-1");
    CHECK_INT(w.fake->groups[0].terms, 1);
    CHECK_INT(int_of(&w, "moves", "failures"), 0);
    REQUIRE_OK(reopen(&w));
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_nodes(w.core, &w.out));
    CHECK(strstr(w.out.data, "\"name\":\"node-0\",\"ready\":true,\"draining\":true"));
    REQUIRE_OK(adli_core_drain(w.core, "node-0", false, &w.out));
    CHECK_INT(events_with(&w, "NodeDrained"), 1);
    CHECK_INT(events_with(&w, "NodeUndrained"), 1);
    CHECK_INT(w.fake->broken, 0);
    close_world(&w);
}

/* The scheduler before this one could not drain all nodes at once: it wrote down which it had drained. */
TEST(what_an_older_down_drained_is_used_again)
{
    world w;
    char path[128];
    REQUIRE_OK(open_world(&w, 3, 1));
    for (int n = 0; n < 3; n++) {
        char name[16];
        snprintf(name, sizeof name, "node-%d", n);
        REQUIRE_OK(adli_core_drain(w.core, name, true, &w.out));
    }
    snprintf(path, sizeof path, "%s/drained-by-down", w.dir);
    REQUIRE_OK(adli_file_write(path, "node-0\nnode-1\nnode-8\n", 21));
    for (int i = 0; i < 2; i++) { /* and it stays so */
        REQUIRE_OK(reopen(&w));
        adli_buf_clear(&w.out);
        REQUIRE_OK(adli_core_nodes(w.core, &w.out));
        CHECK(strstr(w.out.data, "\"name\":\"node-0\",\"ready\":true,\"draining\":false"));
        CHECK(strstr(w.out.data, "\"name\":\"node-1\",\"ready\":true,\"draining\":false"));
        CHECK(strstr(w.out.data, "\"name\":\"node-2\",\"ready\":true,\"draining\":true"));
        CHECK(access(path, F_OK) != 0);
    }
    close_world(&w);
}

/* What the newest decision on the job says. */
static bool decision_says(world *w, const char *name, const char *text)
{
    adli_buf_clear(&w->out);
    CHECK_OK(adli_core_decisions(w->core, "default", name, 1, &w->out));
    return w->out.data && strstr(w->out.data, text);
}

TEST(a_job_that_only_drained_nodes_could_hold_is_told_so)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 1));
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_drain(w.core, "node-0", true, &w.out));
    REQUIRE_OK(submit(&w, "waits", ""));
    step(&w, 0);
    step(&w, 1);
    CHECK_STR(text_of(&w, "waits", "reason"), "Draining");
    CHECK_STR(text_of(&w, "waits", "message"), "the nodes that could hold it are drained");
    CHECK(decision_says(&w, "waits", "waits: the nodes that could hold a replica are drained"));
    CHECK(!decision_says(&w, "waits", "could ever"));
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_drain(w.core, "node-0", false, &w.out));
    step(&w, 1);
    CHECK_STR(text_of(&w, "waits", "phase"), "Running");
    close_world(&w);
}

TEST(draining_all_is_one_step_that_is_remembered_and_undone)
{
    world w;
    REQUIRE_OK(open_world(&w, 3, 1));
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_drain(w.core, "node-2", true, &w.out));
    REQUIRE_OK(submit(&w, "runs", ""));
    step(&w, 0);
    CHECK_STR(text_of(&w, "runs", "phase"), "Running");
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_drain_all(w.core, true, &w.out));
    CHECK(strstr(w.out.data, "\"draining\":true,\"nodes\":[{\"name\":\"node-0\",\"ready\":true,"
                             "\"draining\":true"));
    step(&w, 1);
    step(&w, 1);
    REQUIRE_OK(submit(&w, "new", ""));
    step(&w, 100); /* no round has anything to say */
    CHECK_INT(w.fake->groups[0].terms, 1);
    CHECK_INT(w.fake->starts, 1);
    CHECK_STR(text_of(&w, "runs", "phase"), "Pending");
    CHECK_STR(text_of(&w, "runs", "reason"), "Draining");
    CHECK_STR(text_of(&w, "new", "reason"), "Draining");
    CHECK_STR(text_of(&w, "new", "message"),
              "the cluster is being stopped; adaptdl up lets it go on");
    CHECK(!decision_says(&w, "runs", "could ever"));
    CHECK_FAILS(adli_core_drain(w.core, "node-2", false, &w.out), ADL_ESTATE, "being stopped");
    REQUIRE_OK(reopen(&w));
    step(&w, 1);
    CHECK_INT(w.fake->starts, 1);
    CHECK_STR(text_of(&w, "runs", "reason"), "Draining");
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_drain_all(w.core, false, &w.out));
    REQUIRE_OK(adli_core_drain_all(w.core, false, &w.out)); /* again: nothing */
    step(&w, 1);
    step(&w, 2);
    CHECK_STR(text_of(&w, "runs", "phase"), "Running");
    CHECK_STR(text_of(&w, "new", "phase"), "Running");
    CHECK(json_is_null(field(&w, "new", "reason")));
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_nodes(w.core, &w.out)); /* drained by itself before: still is */
    CHECK(strstr(w.out.data, "\"name\":\"node-2\",\"ready\":true,\"draining\":true"));
    CHECK_INT(events_with(&w, "ClusterDrained"), 1);
    CHECK_INT(events_with(&w, "ClusterUndrained"), 1);
    CHECK_INT(w.fake->broken, 0);
    close_world(&w);
}

TEST(a_lost_node_is_not_the_jobs_fault)
{
    world w;
    REQUIRE_OK(open_world(&w, 2, 1));
    REQUIRE_OK(submit(&w, "moves", ""));
    step(&w, 0);
    w.fake->nodes[0].ready = false;
    fake_group *group = fake_set(w.fake, uid_of(&w, "moves"), ADLI_MEMBER_INTERRUPTED, -1);
    group->views[0].cause = ADLI_CAUSE_NODE_LOST;
    step(&w, 1);
    step(&w, 1);
    CHECK_STR(text_of(&w, "moves", "phase"), "Running");
    CHECK_STR(json_string_value(json_array_get(field(&w, "moves", "allocation"), 0)), "node-1");
    CHECK_INT(int_of(&w, "moves", "failures"), 0);
    CHECK_INT(events_with(&w, "\"type\":\"NodeLost\""), 1);
    close_world(&w);
}

static int listed_nodes(world *w)
{
    json_t *root = NULL;
    adli_buf_clear(&w->out);
    CHECK_OK(adli_core_nodes(w->core, &w->out));
    CHECK_OK(adli_json_parse(w->out.data, w->out.length, &root));
    int count = (int)json_array_size(json_object_get(root, "items"));
    json_decref(root);
    return count;
}

/* Nodes come and go, under old names or new ones; the table does not grow with all that ever were. */
TEST(nodes_come_and_go)
{
    static const char *const names[] = {"spot-0", "spot-1", "spot-2", "spot-3", "spot-4"};
    world w;
    REQUIRE_OK(open_world(&w, 2, 1));
    REQUIRE_OK(submit(&w, "stays", ""));
    step(&w, 0);
    CHECK_STR(w.fake->groups[0].nodes[0], "node-0");
    for (int i = 0; i < 5; i++) {
        w.fake->nodes[1].name = names[i];
        step(&w, 1);
        CHECK_INT(listed_nodes(&w), 3); /* the one before is shown as lost for a while */
        step(&w, 61);
        CHECK_INT(listed_nodes(&w), 2);
        CHECK(w.core->node_count <= 3);
    }
    CHECK_INT(events_with(&w, "NodeLost"), 5);
    w.fake->node_count = 1;
    step(&w, 1);
    step(&w, 61);
    CHECK_INT(w.core->node_count, 1);

    w.fake->nodes[0].name = "new"; /* the job's own goes: kept as long as the job is there */
    step(&w, 1);
    fake_group *group = fake_set(w.fake, uid_of(&w, "stays"), ADLI_MEMBER_READY, -1);
    CHECK_INT(listed_nodes(&w), 2);
    group->views[0].state = ADLI_MEMBER_INTERRUPTED;
    group->views[0].cause = ADLI_CAUSE_NODE_LOST;
    for (int i = 0; i < 4; i++)
        step(&w, 2);
    CHECK_STR(json_string_value(json_array_get(field(&w, "stays", "allocation"), 0)), "new");
    step(&w, 61);
    CHECK_INT(listed_nodes(&w), 1);
    REQUIRE_OK(reopen(&w)); /* another daemon finds the same */
    step(&w, 1);
    CHECK_INT(listed_nodes(&w), 1);
    CHECK_STR(text_of(&w, "stays", "phase"), "Running");
    CHECK_INT(int_of(&w, "stays", "failures"), 0);
    CHECK_INT(w.fake->broken, 0);
    close_world(&w);
}

TEST(the_backend_hears_how_many_nodes_are_wanted)
{
    world w;
    REQUIRE_OK(open_world(&w, 3, 1));
    step(&w, 0);
    CHECK_INT(w.fake->scales, 0); /* nothing was decided */
    REQUIRE_OK(submit(&w, "one", ""));
    step(&w, 0);
    step(&w, 61);
    CHECK_INT(w.fake->scales, 1);
    CHECK_INT(w.fake->desired_nodes, 3);
    step(&w, 61);
    CHECK_INT(w.fake->scales, 1); /* the same again is not told again */
    w.fake->node_count = 2;
    step(&w, 1);
    step(&w, 61);
    CHECK_INT(w.fake->scales, 2);
    CHECK_INT(w.fake->desired_nodes, 2);
    close_world(&w);
}

/* A round's answer for a cluster that can grow: from none, by what jobs need, and back; jobs and explanations tell. */
TEST(the_number_of_nodes_follows_the_jobs)
{
    world w;
    REQUIRE_OK(open_world(&w, 3, 2));
    w.config.autoscale.max_nodes = 3;
    w.fake->node_count = 0;
    REQUIRE_OK(reopen(&w));
    step(&w, 0);
    CHECK_INT(w.fake->desired_nodes, 0);
    REQUIRE_OK(submit(&w, "two", "  minReplicas: 4\n  maxReplicas: 4\n"));
    step(&w, 0);
    step(&w, 1);
    CHECK_INT(w.fake->desired_nodes, 1);
    CHECK_STR(text_of(&w, "two", "reason"), "WaitingForNodes");
    w.fake->node_count = 1; /* now it is known what a node has */
    step(&w, 1);
    step(&w, 61);
    CHECK_INT(w.fake->desired_nodes, 3); /* two are needed; of three two thirds are in use */
    w.fake->node_count = 2;
    step(&w, 1);
    step(&w, 61);
    CHECK_INT(int_of(&w, "two", "replicas"), 4);
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_decisions(w.core, "default", "two", 1, &w.out));
    CHECK(strstr(w.out.data, "\"cluster\":\"3 nodes wanted, 2 there: utility 1.00 (0.35 to 0.65 is "
                             "right); the last brings 0.00, one more would bring 0.00\""));
    CHECK(strstr(w.out.data, "; 3 nodes wanted, 2 there"));
    REQUIRE_OK(adli_core_delete(w.core, "default", "two", &w.out));
    for (int i = 0; i < 5; i++)
        step(&w, 20);
    CHECK_INT(w.fake->desired_nodes, 0);
    close_world(&w);
}
