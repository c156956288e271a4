/* A training job on a real cluster grows when there is room, shrinks when another job comes or a node is
 * drained, and grows again, mostly in place, without losing a sample: its ledger has every example of every epoch exactly
 * once. */
#include "train_job.h"

#include "base/clock.h"

enum { WAIT_S = 240 };

/* A minute of work for one replica. */
static const train_job long_job = {
    .epochs = 60, .examples = 240, .batch = 24, .example_us = 4000, .crash = -1, .retries = 0};
static const train_job short_job = {
    .epochs = 10, .examples = 240, .batch = 24, .example_us = 4000, .crash = -1, .retries = 0};

/* Rounds come often, and restarts are known to be cheap: these jobs last seconds, not hours. */
static bool open_cluster(cluster *c)
{
    char path[128];
    const char *const flags[] = {"--nodes", "2", "--slots", "2", "--config", path, NULL};
    if (!cluster_new(c))
        return false;
    snprintf(path, sizeof path, "%s/config.yaml", c->state);
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    fputs("intervalSeconds: 0.5\neventDelaySeconds: 0.2\n"
          "policy:\n  parameters: {restart_cost_s: 0.3}\n",
          file);
    fclose(file);
    cluster_spawn(c, NULL, flags);
    return cluster_ready(c, 30000);
}

static bool submit(cluster *c, const train_job *job, const char *name)
{
    char text[1024];
    train_job_file(job, name, text, sizeof text);
    return cluster_code(c, "POST", "/api/v1/jobs", text) == 201;
}

/* Waits until the job is in the phase with so many replicas ready, and when it runs has trained on the
 * least; false when it ended otherwise, or never came there. */
static bool wait_for(cluster *c, const char *name, const char *phase, int least, int most)
{
    char path[128];
    snprintf(path, sizeof path, "/api/v1/jobs/default/%s", name);
    for (double end_s = adli_monotonic_s() + WAIT_S; adli_monotonic_s() < end_s; usleep(20000)) {
        json_t *job = cluster_json(c, path);
        const char *now = json_string_value(json_object_get(job, "phase"));
        int ready = (int)json_integer_value(json_object_get(job, "readyReplicas"));
        int trained = (int)json_integer_value(
            json_object_get(json_object_get(job, "train"), "maxProfiledReplicas"));
        bool there =
            now && strcmp(now, phase) == 0 && ready >= least && ready <= most && trained >= least;
        bool over = now && (strcmp(now, "Succeeded") == 0 || strcmp(now, "Failed") == 0);
        if (over && !there)
            printf("# %s is %s: %s\n", name, now,
                   json_string_value(json_object_get(job, "message")));
        json_decref(job);
        if (there || over)
            return there;
    }
    printf("# %s is not %s with %d to %d replicas\n", name, phase, least, most);
    return false;
}

static void check_end(cluster *c, const train_job *plan, const char *name, train_end *end)
{
    char path[256];
    snprintf(path, sizeof path, "/api/v1/jobs/default/%s", name);
    json_t *job = cluster_json(c, path);
    snprintf(path, sizeof path, "%s/jobs/%s/share", c->state,
             json_string_value(json_object_get(job, "uid")));
    CHECK_INT(json_integer_value(json_object_get(job, "failures")), 0);
    train_job_check_ledger(plan, name, path);
    train_job_check_starts(name, path, end);
    printf("info - %s: %d groups, %d members, at most %d replicas; %d samples exactly once\n", name,
           end->groups, end->starts, end->most, plan->epochs * plan->examples);
    json_decref(job);
}

/* In place, as its events tell. */
static int resizes(cluster *c, const char *name)
{
    char path[128];
    int found = 0;
    snprintf(path, sizeof path, "/api/v1/events?job=default/%s&limit=1000", name);
    adlt_answer answer = cluster_ask(c, "GET", path, NULL);
    for (const char *at = answer.body; at && (at = strstr(at, "resized in place, paused")); at++)
        found++;
    adlt_answer_free(&answer);
    return found;
}

static void close_cluster(cluster *c)
{
    int left = 1;
    CHECK_INT(cluster_end(c, SIGTERM), 0);
    for (int i = 0; i < 600 && (left = cluster_processes(c, i == 599)) > 0; i++)
        usleep(100000);
    CHECK_INT(left, 0);
    cluster_free(c);
}

TEST(a_job_makes_room_for_another_and_takes_it_back)
{
    cluster c;
    train_end first, second;
    REQUIRE(open_cluster(&c));
    REQUIRE(submit(&c, &long_job, "first"));
    REQUIRE(wait_for(&c, "first", "Running", 1, 1));
    REQUIRE(wait_for(&c, "first", "Running", 3, 4));
    REQUIRE(submit(&c, &short_job, "second"));
    /* room was made: four slots are all there are */
    REQUIRE(wait_for(&c, "second", "Succeeded", 0, 0));
    /* taken back, unless the second waited for so long that the first is done */
    REQUIRE(wait_for(&c, "first", "Running", 3, 4) || wait_for(&c, "first", "Succeeded", 0, 0));
    REQUIRE(wait_for(&c, "first", "Succeeded", 0, 0));
    check_end(&c, &long_job, "first", &first);
    check_end(&c, &short_job, "second", &second);
    CHECK(first.most >= 3);
    /* whether one shrinks or waits for the other is the policy's affair */
    CHECK(resizes(&c, "first") >= 1);
    close_cluster(&c);
}

TEST(a_job_leaves_a_drained_node_and_comes_back)
{
    cluster c;
    train_end end;
    REQUIRE(open_cluster(&c));
    REQUIRE(submit(&c, &long_job, "moves"));
    REQUIRE(wait_for(&c, "moves", "Running", 4, 4));
    CHECK_INT(cluster_code(&c, "POST", "/api/v1/nodes/node-0/drain", ""), 200);
    REQUIRE(wait_for(&c, "moves", "Running", 1, 2));
    CHECK_INT(cluster_code(&c, "POST", "/api/v1/nodes/node-0/undrain", ""), 200);
    REQUIRE(wait_for(&c, "moves", "Running", 3, 4));
    REQUIRE(wait_for(&c, "moves", "Succeeded", 0, 0));
    check_end(&c, &long_job, "moves", &end);
    CHECK(end.most == 4 && end.groups == 1);
    CHECK(resizes(&c, "moves") >= 3);
    close_cluster(&c);
}
