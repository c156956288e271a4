/* The daemon's core with a backend that only pretends and a clock that the test moves: what callers see,
 * what is written down and what is asked of the backend. */
#include "adaptdl/snapshot.h"
#include "base/file.h"
#include "core_world.h"
#include "image/image.h"

#include <dirent.h>
#include <fcntl.h>

TEST(a_job_starts_at_once_runs_and_succeeds)
{
    world w;
    REQUIRE_OK(open_world(&w, 2, 2));
    w.fake->auto_ready = false;
    REQUIRE_OK(submit(&w, "first", ""));
    CHECK(strstr(w.out.data, "\"phase\":\"Pending\""));
    CHECK(strstr(w.out.data, "\"spec\":{"));
    step(&w, 0);
    CHECK_STR(text_of(&w, "first", "phase"), "Starting");
    CHECK_INT(int_of(&w, "first", "replicas"), 1);
    CHECK_INT(int_of(&w, "first", "group"), 1);
    CHECK_INT(w.fake->starts, 1);
    fake_set(w.fake, uid_of(&w, "first"), ADLI_MEMBER_READY, -1);
    step(&w, 1);
    CHECK_STR(text_of(&w, "first", "phase"), "Running");
    CHECK_INT(int_of(&w, "first", "readyReplicas"), 1);
    fake_set(w.fake, uid_of(&w, "first"), ADLI_MEMBER_SUCCEEDED, 0);
    step(&w, 9);
    CHECK_STR(text_of(&w, "first", "phase"), "Succeeded");
    CHECK_INT(int_of(&w, "first", "replicas"), 0);
    CHECK_NEAR(json_number_value(field(&w, "first", "completed")), w.now_s, 1e-12);
    CHECK_NEAR(json_number_value(field(&w, "first", "deviceSeconds")), 10, 1e-6);
    CHECK_INT(w.fake->forgets, 1);
    CHECK_INT(events_with(&w, "Starting -> Running"), 1);
    CHECK_INT(w.fake->broken, 0);
    close_world(&w);
}

TEST(names_are_unique_and_generated)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 1));
    REQUIRE_OK(submit(&w, "twice", ""));
    CHECK_FAILS(submit(&w, "twice", ""), ADL_ESTATE, "default/twice exists already");
    const char *generated = "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\n"
                            "metadata: {generateName: gen-}\nspec: {template: {spec: {containers: "
                            "[{name: main, command: [sleep, '1']}]}}}\n";
    REQUIRE_OK(submit_text(&w, generated));
    CHECK(strstr(w.out.data, "\"name\":\"gen-"));
    REQUIRE_OK(submit_text(&w, generated));
    adli_buf_clear(&w.out);
    REQUIRE_OK(
        adli_core_submit(w.core, generated, strlen(generated), true, true, NULL, &w.out)); /* dry */
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_jobs(
        w.core, &(adli_list_query){.ns = "default", .phases = 1u << ADL_PENDING}, &w.out));
    int names = 0;
    for (const char *at = w.out.data; (at = strstr(at, "\"uid\":")); at++)
        names++;
    CHECK_INT(names, 3);
    CHECK_FAILS(submit_text(&w, "kind: AdaptDLJob\n"), ADL_EINVAL, "job file");
    close_world(&w);
}

static adl_status submit_uid(world *w, const char *name, const char *uid, const char *command)
{
    char text[1024];
    snprintf(text, sizeof text,
             "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata: {%s, uid: '%s'}\n"
             "spec: {template: {spec: {containers: [{name: main, command: [%s]}]}}}\n",
             name, uid, command);
    return submit_text(w, text);
}

/* Whoever does not know whether a submission has arrived submits it again. */
TEST(a_submission_with_a_uid_may_be_repeated)
{
    static const char uid[] = "0b7c1e9e-9d5c-4f7e-8a51-4f2d9f0c6a11";
    world w;
    char first[256], name[64];
    REQUIRE_OK(open_world(&w, 1, 4));
    REQUIRE_OK(submit_uid(&w, "generateName: job-", uid, "sleep"));
    CHECK(!w.known);
    json_t *root = NULL;
    REQUIRE_OK(adli_json_parse(w.out.data, w.out.length, &root));
    snprintf(name, sizeof name, "%s", json_string_value(json_object_get(root, "name")));
    CHECK_STR(json_string_value(json_object_get(root, "uid")), uid);
    json_decref(root);
    snprintf(first, sizeof first, "%.200s", w.out.data);
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(submit_uid(&w, "generateName: job-", uid, "sleep"));
        CHECK(w.known);
        if (i == 0)
            CHECK(strncmp(w.out.data, first, 60) == 0); /* the same job: namespace, name, uid */
        CHECK(strstr(w.out.data, name));
        step(&w, 1);
        if (i == 1)
            REQUIRE_OK(reopen(&w)); /* another daemon knows it, too */
    }
    CHECK_INT(w.fake->starts, 1);
    CHECK_STR(w.fake->groups[0].uid, uid);
    CHECK_INT(events_with(&w, "JobCreated"), 1);
    CHECK_FAILS(submit_uid(&w, "generateName: job-", uid, "ls"), ADL_ESTATE, "which is another");
    CHECK_FAILS(submit_uid(&w, "name: other", uid, "sleep"), ADL_ESTATE, "which is another");
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_delete(w.core, "default", name, &w.out));
    w.fake->obedient = false;
    CHECK_FAILS(submit_uid(&w, "generateName: job-", uid, "sleep"), ADL_ESTATE, "being deleted");
    CHECK_FAILS(submit_uid(&w, "name: bad", "../x", "sleep"), ADL_EINVAL, "metadata.uid");
    CHECK_FAILS(submit_uid(&w, "name: bad", "-x", "sleep"), ADL_EINVAL, "metadata.uid");
    CHECK_FAILS(submit_uid(&w, "name: bad", "0123456789012345678901234567890123456", "sleep"),
                ADL_EINVAL, "metadata.uid");
    close_world(&w);
}

TEST(tokens_belong_to_one_job)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 2));
    REQUIRE_OK(submit(&w, "mine", ""));
    REQUIRE_OK(submit(&w, "other", ""));
    step(&w, 0);
    const char *url = strstr(w.fake->groups[0].env, "ADAPTDL_SUPERVISOR_URL=http://job:");
    REQUIRE(url);
    char token[64];
    REQUIRE(sscanf(url, "ADAPTDL_SUPERVISOR_URL=http://job:%63[0-9a-f]@127.0.0.1:1234", token) ==
            1);
    CHECK_INT(strlen(token), 32);
    CHECK(adli_core_token_valid(w.core, "default", "mine", token));
    CHECK(!adli_core_token_valid(w.core, "default", "other", token));
    CHECK(!adli_core_token_valid(w.core, "default", "none", token));
    CHECK(!adli_core_token_valid(w.core, "default", "mine", ""));
    CHECK(!adli_core_token_valid(w.core, "default", "mine", NULL));
    close_world(&w);
}

TEST(the_pod_template_reaches_the_backend)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 1));
    REQUIRE_OK(submit_text(
        &w, "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata: {name: paths}\n"
            "spec: {template: {metadata: {labels: {team: red}}, spec: {nodeSelector: {disk: ssd},\n"
            " containers: [{name: main, command: [python3, /root/x.py],\n"
            " env: [{name: DIR, value: '/adaptdl/checkpoint:/root'}],\n"
            " resources: {requests: {cpu: 1500m}}}]}}}\n"));
    step(&w, 0);
    REQUIRE(w.fake->group_count == 1);
    const fake_group *group = &w.fake->groups[0];
    CHECK_STR(group->pod,
              "{\"metadata\":{\"labels\":{\"team\":\"red\"}},\"spec\":{\"containers\":[{"
              "\"command\":[\"python3\",\"/root/x.py\"],\"env\":[{\"name\":\"DIR\",\"value\":"
              "\"/adaptdl/checkpoint:/root\"}],\"name\":\"main\",\"resources\":{\"requests\":{"
              "\"cpu\":\"1500m\"}}}],\"nodeSelector\":{\"disk\":\"ssd\"}}}");
    CHECK(strstr(group->env, "ADAPTDL_JOB_ID=default/paths\n"));
    CHECK(strstr(group->env, "ADAPTDL_JOB_SECRET="));
    CHECK_STR(group->defaults, "ADAPTDL_HINTS_INTERVAL=30\n");
    close_world(&w);
}

/* A job with files: an archive as the command line makes it. */
static bool make_archive(world *w, const char *job, char *tar, size_t size)
{
    char source[128], file[160];
    adli_image *image = NULL;
    snprintf(source, sizeof source, "%s/files", w->dir);
    snprintf(file, sizeof file, "%s/hello.py", source);
    snprintf(tar, size, "%s/job.tar", w->dir);
    mkdir(source, 0755);
    FILE *text = fopen(file, "w");
    fputs("print('hello')\n", text);
    fclose(text);
    int fd = open(tar, O_RDWR | O_CREAT | O_TRUNC, 0600);
    bool made = adli_image_build(source, NULL, &image) == ADL_OK &&
                adli_image_pack(image, job, strlen(job), true, fd) == ADL_OK;
    adli_image_free(image);
    close(fd);
    return made;
}

static const char archive_job[] =
    "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata: {name: files}\n"
    "spec: {template: {spec: {containers: [{name: main, command: [python3, /workspace/hello.py],\n"
    " workingDir: /workspace}]}}}\n";

static int entries_in(const char *path)
{
    int count = 0;
    DIR *stream = opendir(path);
    for (struct dirent *entry; stream && (entry = readdir(stream));)
        count += entry->d_name[0] != '.';
    if (stream)
        closedir(stream);
    return count;
}

TEST(a_job_brings_its_files)
{
    world w;
    char tar[128], path[512];
    REQUIRE_OK(open_world(&w, 1, 1));
    REQUIRE(make_archive(&w, archive_job, tar, sizeof tar));
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_submit_archive(w.core, tar, true, NULL, &w.out)); /* dry */
    CHECK(field(&w, "files", "phase") == NULL);
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_submit_archive(w.core, tar, false, NULL, &w.out));
    snprintf(path, sizeof path, "%s/incoming", w.dir);
    CHECK_INT(entries_in(path), 0);
    CHECK_FAILS(adli_core_submit_archive(w.core, tar, false, NULL, &w.out), ADL_ESTATE,
                "exists already");
    CHECK_INT(entries_in(path), 0);
    step(&w, 0);
    REQUIRE(w.fake->group_count == 1);
    CHECK(strstr(w.fake->groups[0].pod, "hello.py"));
    snprintf(path, sizeof path, "%s/jobs/%s/source/workspace", w.dir, uid_of(&w, "files"));
    CHECK_INT(entries_in(path), 1);
    snprintf(path, sizeof path, "%s/hello.py", w.dir);
    CHECK_FAILS(adli_core_submit_archive(w.core, path, false, NULL, &w.out), ADL_ENOENT,
                "hello.py");
    close_world(&w);
}

/* Killed after the commit: the files are there, in the wrong place. Before it: they belong to nobody. */
TEST(half_a_submission_is_finished_or_undone)
{
    world w;
    char from[256], to[512];
    REQUIRE_OK(open_world(&w, 1, 1));
    REQUIRE_OK(submit(&w, "job", ""));
    snprintf(from, sizeof from, "%s/incoming", w.dir);
    mkdir(from, 0700);
    snprintf(from, sizeof from, "%s/incoming/%s", w.dir, uid_of(&w, "job"));
    mkdir(from, 0700);
    snprintf(to, sizeof to, "%s/file", from);
    fclose(fopen(to, "w"));
    snprintf(from, sizeof from, "%s/incoming/nobodys", w.dir);
    mkdir(from, 0700);
    snprintf(to, sizeof to, "%s/file", from);
    fclose(fopen(to, "w"));
    REQUIRE_OK(reopen(&w));
    snprintf(from, sizeof from, "%s/incoming", w.dir);
    CHECK_INT(entries_in(from), 0);
    snprintf(to, sizeof to, "%s/jobs/%s/source/file", w.dir, uid_of(&w, "job"));
    CHECK(access(to, F_OK) == 0);
    close_world(&w);
}

TEST(hints_are_checked_kept_and_used)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 4));
    REQUIRE_OK(submit(&w, "train", ""));
    step(&w, 0);
    CHECK(json_is_null(field(&w, "train", "train")));
    static const char *const bad[][2] = {
        {"[1]", "object"},
        {"{", "not JSON"},
        {"{\"initBatchSize\":\"64\"}", "initBatchSize"},
        {"{\"initBatchSize\":0}", "initBatchSize"},
        {"{\"localBszBounds\":[64]}", "localBszBounds"},
        {"{\"localBszBounds\":[64,16]}", "localBszBounds"},
        {"{\"maxProfiledReplicas\":1.5}", "maxProfiledReplicas"},
        {"{\"maxProfiledReplicas\":1073741824}", "maxProfiledReplicas"},
        {"{\"gradientAccumulation\":1}", "gradientAccumulation"},
        {"{\"loneReplicaGrows\":\"yes\"}", "loneReplicaGrows"},
        {"{\"perfParams\":{\"alpha_c\":1}}", "perfParams"},
        {"{\"gradParams\":[1,2]}", "gradParams"},
        {"{\"profile\":[{\"nodes\":1}]}", "profile[0]"},
        {"{\"profile\":[{\"nodes\":1,\"replicas\":1073741824,\"localBsz\":1,\"accumTime\":1,"
         "\"optimTime\":1}]}",
         "replicas"},
        {"{\"progress\":-1}", "progress"},
        {"{\"epoch\":true}", "epoch"},
    };
    for (size_t i = 0; i < ADLI_COUNT(bad); i++)
        CHECK_FAILS(adli_core_hints(w.core, "default", "train", bad[i][0], strlen(bad[i][0])),
                    ADL_EINVAL, bad[i][1]);
    CHECK(json_is_null(field(&w, "train", "train")));
    CHECK_FAILS(adli_core_hints(w.core, "default", "none", "{}", 2), ADL_ENOENT, "default/none");
    REQUIRE_OK(adli_core_hints(w.core, "default", "train", good_hints, strlen(good_hints)));
    const json_t *train = field(&w, "train", "train");
    CHECK_NEAR(json_number_value(json_object_get(train, "batchSize")), 128, 0);
    double throughput = json_number_value(json_object_get(train, "throughput"));
    double efficiency = json_number_value(json_object_get(train, "efficiency"));
    CHECK(throughput > 0 && efficiency > 0.5 && efficiency < 1);
    CHECK_NEAR(json_number_value(json_object_get(train, "goodput")), throughput * efficiency,
               1e-12);
    CHECK_NEAR(json_number_value(json_object_get(train, "fractionDone")), 0.1, 1e-12);
    CHECK(strstr(w.out.data, "surprise") == NULL);
    step(&w, 60); /* a round: one measured replica allows two */
    step(&w, 1);
    CHECK_INT(int_of(&w, "train", "replicas"), 2);
    CHECK_INT(int_of(&w, "train", "restarts"), 1);
    CHECK_INT(events_with(&w, "1 -> 2 replicas"), 1);
    /* kept over a restart of the daemon */
    REQUIRE_OK(reopen(&w));
    CHECK_NEAR(json_number_value(json_object_get(field(&w, "train", "train"), "batchSize")), 128,
               0);
    /* one that an older daemon took is forgotten */
    adli_store_begin(w.core->store);
    adli_store_hints(w.core->store, uid_of(&w, "train"), bad[7][0], 0);
    REQUIRE_OK(adli_store_commit(w.core->store));
    REQUIRE_OK(reopen(&w));
    CHECK(json_is_null(field(&w, "train", "train")));
    close_world(&w);
}

/* What one replica of the job does is kept over a restart of the daemon, and what the policy computes with. */
TEST(whether_a_single_replica_grows_is_what_the_job_says)
{
    static const char body[] =
        "{\"initBatchSize\":64,\"maxBatchSize\":4096,\"maxProfiledReplicas\":1,"
        "\"gradParams\":{\"norm\":0.01,\"var\":1},\"perfParams\":{\"alpha_c\":1,\"beta_c\":0.001,"
        "\"alpha_n\":0.01,\"beta_n\":0.001,\"alpha_r\":0.01,\"beta_r\":0.001,\"gamma\":1.5}%s}";
    static const char *const says[] = {"", ",\"loneReplicaGrows\":null",
                                       ",\"loneReplicaGrows\":false", ",\"loneReplicaGrows\":true"};
    for (size_t i = 0; i < ADLI_COUNT(says); i++) {
        world w;
        char hints[1024];
        bool grows = i == 3;
        snprintf(hints, sizeof hints, body, says[i]);
        REQUIRE_OK(open_world(&w, 1, 4));
        REQUIRE_OK(submit(&w, "train", ""));
        step(&w, 0);
        REQUIRE_OK(adli_core_hints(w.core, "default", "train", hints, strlen(hints)));
        REQUIRE_OK(reopen(&w));
        step(&w, 61);
        step(&w, 61);
        CHECK_INT(int_of(&w, "train", "replicas"), 2);
        double speedup = json_number_value(json_object_get(field(&w, "train", "train"), "speedup"));
        CHECK(grows ? speedup > 1 && speedup < 2.05 : speedup > 2.5);
        adli_buf_clear(&w.out);
        REQUIRE_OK(adli_core_snapshot(w.core, &w.out));
        CHECK((strstr(w.out.data, "\"loneReplicaGrows\":true") != NULL) == grows);
        close_world(&w);
    }
}

/* Submits a job with a label and lets it start. */
static const fake_group *start_labelled(world *w, const char *name, const char *application)
{
    char text[1024];
    snprintf(text, sizeof text,
             "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\n"
             "metadata: {name: %s, labels: {adaptdl/application: %s}}\n"
             "spec: {template: {spec: {containers: [{name: main, command: [sleep, '1']}]}}}\n",
             name, application);
    if (submit_text(w, text) != ADL_OK)
        ADLT_FAIL("%s", adl_error());
    step(w, 0);
    step(w, 1);
    const char *uid = uid_of(w, name);
    for (int i = w->fake->group_count; i-- > 0;)
        if (strcmp(w->fake->groups[i].uid, uid) == 0)
            return &w->fake->groups[i];
    ADLT_FAIL("%s was not started", name);
    abort();
}

static const char profile_hints[] =
    "{\"initBatchSize\":64,\"localBszBounds\":[16,64],\"globalBatchSize\":128,"
    "\"maxBatchSize\":1024,\"maxProfiledReplicas\":2,\"gradientAccumulation\":true,"
    "\"gradParams\":{\"norm\":1.0,\"var\":100.0},\"perfParams\":{\"alpha_c\":0.1,"
    "\"beta_c\":0.01,\"alpha_n\":0.01,\"beta_n\":0.001,\"alpha_r\":0.01,\"beta_r\":0.001,"
    "\"gamma\":1.5},\"progress\":100,\"profile\":["
    "{\"nodes\":1,\"replicas\":1,\"localBsz\":64,\"accumTime\":0.74,\"optimTime\":0.74},"
    "{\"nodes\":1,\"replicas\":2,\"localBsz\":64,\"accumTime\":0.74,\"optimTime\":0.75}]}";

/* What one job measured, the next of its application is told when it starts, by another daemon too. */
TEST(a_job_is_told_what_others_of_its_application_measured)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 4));
    w.fake->auto_ready = true;
    const fake_group *first = start_labelled(&w, "first", "resnet");
    CHECK(strstr(first->env, "ADAPTDL_PRIOR=") == NULL);
    w.fake->obedient = true;
    REQUIRE_OK(adli_core_hints(w.core, "default", "first", profile_hints, strlen(profile_hints)));
    step(&w,
         60); /* one replica measured: two; what it says of two before it had them does not count */
    step(&w, 1);
    step(&w, 1);
    CHECK_INT(int_of(&w, "first", "replicas"), 2);
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_decisions(w.core, "default", "first", 1, &w.out));
    CHECK(strstr(w.out.data, "\"distrust\":\"claims measurements of 2 replicas and never had more "
                             "than 1\"") != NULL);
    CHECK(strstr(w.out.data, "its report is not believed: it claims") != NULL);
    REQUIRE_OK(adli_core_hints(w.core, "default", "first", profile_hints, strlen(profile_hints)));
    step(&w, 60);
    REQUIRE_OK(adli_core_delete(w.core, "default", "first", &w.out));
    step(&w, 1);
    step(&w, 60);
    step(&w, 60);
    for (int turn = 0; turn < 2; turn++) {
        const fake_group *second = start_labelled(&w, turn ? "third" : "second", "resnet");
        CHECK(strstr(second->env,
                     "ADAPTDL_PRIOR={\"initBatchSize\":64,\"gradParams\":{\"norm\":1") != NULL);
        if (turn == 0) /* twice what was measured, at once */
            CHECK_INT(second->replicas, 4);
        REQUIRE_OK(reopen(&w));
        step(&w, 1);
    }
    const fake_group *other = start_labelled(&w, "other", "bert");
    CHECK(strstr(other->env, "ADAPTDL_PRIOR=") == NULL);
    close_world(&w);
}

/* A report of one replica that takes step_s on a device type; old points stay in it. */
static adl_status report_on(world *w, const char *name, const char *points, double step_s)
{
    char text[2048];
    snprintf(text, sizeof text,
             "{\"initBatchSize\":64,\"localBszBounds\":[16,64],\"globalBatchSize\":64,"
             "\"maxBatchSize\":1024,\"maxProfiledReplicas\":1,\"gradientAccumulation\":true,"
             "\"gradParams\":{\"norm\":1.0,\"var\":100.0},\"perfParams\":{\"alpha_c\":%g,"
             "\"beta_c\":%g,\"alpha_n\":0.01,\"beta_n\":0.001,\"alpha_r\":0.01,\"beta_r\":0.001,"
             "\"gamma\":1.5},\"progress\":100,\"profile\":[%s]}",
             step_s / 2, step_s / 128, points);
    return adli_core_hints(w->core, "default", name, text, strlen(text));
}

#define POINT(type, time)                                                                          \
    "{\"nodes\":1,\"replicas\":1,\"localBsz\":64,\"accumTime\":" time ",\"optimTime\":" time       \
    ",\"deviceType\":\"" type "\"}"

/* A job that measured on one type goes to another when it must, is told there what it runs on, and what it
 * measures on each is kept apart, for the next of its application and for the next daemon. */
TEST(what_jobs_measure_is_kept_by_device_type)
{
    world w;
    REQUIRE_OK(open_world(&w, 2, 1));
    w.fake->nodes[0].device_type = "t4";
    w.fake->nodes[1].device_type = "a100";
    w.fake->auto_ready = w.fake->obedient = true;
    REQUIRE_OK(reopen(&w));
    const fake_group *group = start_labelled(&w, "moves", "resnet");
    CHECK_STR(group->nodes[0], "node-0");
    CHECK(strstr(group->env, "ADAPTDL_DEVICE_TYPE=t4") != NULL);
    REQUIRE_OK(report_on(&w, "moves", POINT("t4", "1.0"), 1));
    step(&w, 60);
    REQUIRE_OK(adli_core_drain(w.core, "node-0", true, &w.out));
    for (int i = 0; i < 4; i++)
        step(&w, 61);
    CHECK_STR(text_of(&w, "moves", "phase"), "Running");
    CHECK_STR(json_string_value(json_array_get(field(&w, "moves", "allocation"), 0)), "node-1");
    const char *uid = uid_of(&w, "moves");
    for (int i = 0; i < w.fake->group_count; i++)
        if (strcmp(w.fake->groups[i].uid, uid) == 0)
            group = &w.fake->groups[i];
    CHECK(strstr(group->env, "ADAPTDL_DEVICE_TYPE=a100") != NULL);
    REQUIRE_OK(report_on(&w, "moves", POINT("t4", "1.0") "," POINT("a100", "0.25"), 0.25));
    step(&w, 60);
    REQUIRE_OK(report_on(
        &w, "moves", POINT("t4", "1.0") "," POINT("a100", "0.25") "," POINT("h900", "1e-6"), 0.25));
    step(&w, 60);
    CHECK_INT(adli_pool_type_count(w.core->pool), 2); /* no node is an h900 */
    REQUIRE_OK(reopen(&w));                           /* it is saved by type */
    CHECK_INT(adli_pool_type_count(w.core->pool), 2);
    adli_buf pool;
    adli_buf_init(&pool, 1 << 20);
    REQUIRE_OK(adli_pool_save(w.core->pool, &pool));
    CHECK(strstr(pool.data, "\"types\":[\"t4\",\"a100\"]") != NULL);
    CHECK(strstr(pool.data, "[0,1,1,64,1,1,") != NULL);
    CHECK(strstr(pool.data, "[1,1,1,64,0.25,0.25,") != NULL);
    adli_buf_fini(&pool);
    CHECK_FAILS(
        report_on(&w, "moves",
                  POINT("0123456789012345678901234567890123456789012345678901234567890123", "1"),
                  1),
        ADL_EINVAL, "deviceType");
    close_world(&w);
}

/* A daemon that did not tell types apart has left what it learned without a type's name. */
TEST(what_was_learned_without_a_type_is_of_the_only_one)
{
    static const char old[] = "{\"version\":1,\"types\":[\"\"],\"applications\":[]}";
    world w;
    REQUIRE_OK(open_world(&w, 2, 1));
    adli_store_begin(w.core->store);
    adli_store_set(w.core->store, "pool", old);
    REQUIRE_OK(adli_store_commit(w.core->store));
    w.fake->nodes[0].device_type = w.fake->nodes[1].device_type = "t4";
    REQUIRE_OK(reopen(&w));
    step(&w, 1);
    CHECK_INT(adli_pool_type_count(w.core->pool), 1);
    CHECK_STR(adli_pool_type_names(w.core->pool)[0], "t4");
    close_world(&w);
}

TEST(a_daemon_that_is_stopped_has_saved_what_jobs_learned)
{
    world w;
    char pool[4096];
    REQUIRE_OK(open_world(&w, 1, 4));
    start_labelled(&w, "done", "resnet");
    REQUIRE_OK(adli_core_hints(w.core, "default", "done", profile_hints, strlen(profile_hints)));
    step(&w, 31);
    fake_set(w.fake, uid_of(&w, "done"), ADLI_MEMBER_SUCCEEDED, 0);
    step(&w, 1); /* too soon after the last saving for another */
    REQUIRE_OK(adli_store_get(w.core->store, "pool", pool, sizeof pool));
    CHECK(strstr(pool, "\"finished\":0"));
    REQUIRE_OK(adli_core_start(w.core));
    adli_core_stop(w.core);
    REQUIRE_OK(adli_store_get(w.core->store, "pool", pool, sizeof pool));
    CHECK(strstr(pool, "\"finished\":1"));
    close_world(&w);
}

TEST(a_daemon_that_shares_no_models_tells_nothing)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 4));
    w.config.share_models = false;
    REQUIRE_OK(reopen(&w));
    w.fake->auto_ready = true;
    start_labelled(&w, "first", "resnet");
    REQUIRE_OK(adli_core_hints(w.core, "default", "first", profile_hints, strlen(profile_hints)));
    step(&w, 60);
    const fake_group *second = start_labelled(&w, "second", "resnet");
    CHECK(strstr(second->env, "ADAPTDL_PRIOR=") == NULL);
    CHECK_INT(second->replicas, 1);
    close_world(&w);
}

/* The time between two reports that was not trained is what the restart cost. */
TEST(restart_costs_are_measured)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 4));
    REQUIRE_OK(submit(&w, "train", ""));
    step(&w, 0);
    REQUIRE_OK(adli_core_hints(w.core, "default", "train", good_hints, strlen(good_hints)));
    step(&w, 60);
    REQUIRE(int_of(&w, "train", "group") == 2);
    w.now_s += 40;
    char later[1024];
    snprintf(later, sizeof later, "%s", good_hints);
    memcpy(strstr(later, "\"elapsed\":60"), "\"elapsed\":85", 12);
    REQUIRE_OK(adli_core_hints(w.core, "default", "train", later, strlen(later)));
    CHECK_NEAR(TAILQ_FIRST(&w.core->jobs)->restart_cost_s, 100 - 25, 1e-6);
    close_world(&w);
}

/* The last round, as a reader elsewhere sees it: decided again, it is the same. */
static void check_snapshot(world *w, int jobs)
{
    adl_record *record = NULL;
    adl_policy *policy = NULL;
    adl_decision decision = {0};
    adli_buf_clear(&w->out);
    REQUIRE_OK(adli_core_snapshot(w->core, &w->out));
    REQUIRE_OK(adl_record_parse(w->out.data, w->out.length, &record));
    REQUIRE_OK(adl_record_policy(record, NULL, &policy));
    REQUIRE_OK(adl_policy_decide(policy, adl_record_snapshot(record), &decision));
    CHECK(adl_record_decided(record));
    CHECK_INT(adl_record_difference(record, &decision), -1);
    CHECK_INT(decision.job_count, jobs);
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adl_record_free(record);
}

TEST(discovery_waits_for_all_replicas_of_the_group)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 2));
    w.fake->auto_ready = false;
    REQUIRE_OK(submit(&w, "pair", "  minReplicas: 2\n"));
    step(&w, 0);
    adli_buf_clear(&w.out);
    CHECK_FAILS(adli_core_discover(w.core, "default", "pair", 0, &w.out), ADL_ETIMEOUT,
                "not ready");
    fake_set(w.fake, uid_of(&w, "pair"), ADLI_MEMBER_READY, -1)->views[1].state =
        ADLI_MEMBER_WAITING;
    step(&w, 1);
    adli_buf_clear(&w.out);
    CHECK_FAILS(adli_core_discover(w.core, "default", "pair", 0, &w.out), ADL_ETIMEOUT,
                "not ready");
    fake_set(w.fake, uid_of(&w, "pair"), ADLI_MEMBER_READY, -1);
    step(&w, 1);
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_discover(w.core, "default", "pair", 0, &w.out));
    CHECK_STR(w.out.data, "[\"10.0.0.1\",\"10.0.0.2\"]");
    CHECK_FAILS(adli_core_discover(w.core, "default", "pair", 1, &w.out), ADL_ETIMEOUT,
                "not ready");
    CHECK_FAILS(adli_core_discover(w.core, "default", "none", 0, &w.out), ADL_ENOENT, "none");
    close_world(&w);
}

/* When the round was whose snapshot is kept. */
static double saved_at(world *w)
{
    adl_record *record = NULL;
    adli_buf_clear(&w->out);
    if (adli_core_snapshot(w->core, &w->out) != ADL_OK ||
        adl_record_parse(w->out.data, w->out.length, &record) != ADL_OK)
        return NAN;
    double now_s = adl_record_snapshot(record)->now_s;
    adl_record_free(record);
    return now_s;
}

TEST(a_round_is_written_down_and_decided_again)
{
    world w;
    REQUIRE_OK(open_world(&w, 2, 2));
    CHECK_FAILS(adli_core_snapshot(w.core, &w.out), ADL_ENOENT, "no snapshot");
    REQUIRE_OK(submit(&w, "one", ""));
    REQUIRE_OK(submit(&w, "two", ""));
    step(&w, 0);
    REQUIRE_OK(adli_core_hints(w.core, "default", "one", good_hints, strlen(good_hints)));
    for (int i = 0; i < 4; i++) {
        step(&w, 61);
        check_snapshot(&w, 2);
    }
    /* a round in which something changes is the one that is hard: its jobs are not where they were */
    REQUIRE_OK(submit(&w, "three", "  minReplicas: 2\n"));
    step(&w, 61);
    step(&w, 61);
    check_snapshot(&w, 3);
    CHECK(strstr(w.out.data, "\"policy\":\"rank\",\"parameters\":{"));
    /* rounds of very many, of which one is written down when somebody has asked: it stays */
    w.core->active_count += ADLI_SAVED_JOBS_MAX;
    step(&w, 61);
    step(&w, 61);
    CHECK_NEAR(saved_at(&w), w.now_s - 61, 1e-6);
    step(&w, 61);
    CHECK_NEAR(saved_at(&w), w.now_s, 1e-6);
    w.core->active_count -= ADLI_SAVED_JOBS_MAX;
    close_world(&w);
}

TEST(deletion_stops_removes_and_frees_the_name)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 1));
    w.fake->obedient = false;
    REQUIRE_OK(submit(&w, "gone", ""));
    step(&w, 0);
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_delete(w.core, "default", "gone", &w.out));
    CHECK(strstr(w.out.data, "\"deleted\":true"));
    step(&w, 0);
    CHECK_STR(text_of(&w, "gone", "phase"), "Stopping");
    CHECK_FAILS(submit(&w, "gone", ""), ADL_ESTATE, "being deleted");
    step(&w, 31); /* the grace period is over: killed */
    CHECK_INT(w.fake->groups[0].kills, 1);
    step(&w, 1);
    CHECK(field(&w, "gone", "phase") == NULL);
    CHECK_INT(w.fake->removes, 1);
    CHECK_FAILS(adli_core_delete(w.core, "default", "gone", &w.out), ADL_ENOENT, "default/gone");
    CHECK_OK(submit(&w, "gone", ""));
    close_world(&w);
}

TEST(finished_jobs_are_pruned)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 1));
    w.core->config.store.finished_jobs = 2;
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "job-%d", i);
        REQUIRE_OK(submit(&w, name, ""));
        step(&w, 1);
        fake_set(w.fake, uid_of(&w, name), ADLI_MEMBER_SUCCEEDED, 0);
        step(&w, 1);
    }
    CHECK(field(&w, "job-0", "phase") == NULL);
    CHECK(field(&w, "job-1", "phase") == NULL);
    CHECK_STR(text_of(&w, "job-2", "phase"), "Succeeded");
    CHECK_STR(text_of(&w, "job-3", "phase"), "Succeeded");
    CHECK_INT(w.fake->removes, 2);
    close_world(&w);
}

TEST(decisions_and_history_are_kept)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 2));
    REQUIRE_OK(submit(&w, "a", ""));
    REQUIRE_OK(submit(&w, "b", ""));
    REQUIRE_OK(submit(&w, "c", ""));
    step(&w, 0);
    for (int i = 0; i < 10; i++)
        step(&w, 6.5);
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_decisions(w.core, "default", "a", 10, &w.out));
    json_t *root;
    REQUIRE_OK(adli_json_parse(w.out.data, w.out.length, &root));
    const json_t *items = json_object_get(root, "items"), *newest = json_array_get(items, 0);
    CHECK(json_array_size(items) >= 1);
    CHECK_STR(json_string_value(json_object_get(newest, "job")), "default/a");
    CHECK(json_number_value(json_object_get(newest, "round")) >= 1);
    CHECK(*json_string_value(json_object_get(newest, "text")) != 0);
    json_decref(root);
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_decisions(w.core, NULL, NULL, 1000, &w.out));
    CHECK(strstr(w.out.data, "\"job\":\"default/c\""));
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_history(w.core, "default", "a", &w.out));
    REQUIRE_OK(adli_json_parse(w.out.data, w.out.length, &root));
    size_t samples = json_array_size(json_object_get(root, "samples"));
    CHECK(samples >= 10 && samples <= 14);
    json_decref(root);
    CHECK_FAILS(adli_core_history(w.core, "default", "zzz", &w.out), ADL_ENOENT, "default/zzz");
    close_world(&w);
}

/* Groups that run are taken over, not started again; those that ended meanwhile are seen. */
