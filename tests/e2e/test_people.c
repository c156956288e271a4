/* `adaptdl` on Kubernetes: every command against an API server in memory with a real operator behind its proxy. */
#include "people.h"
#include "ws_server.h"

static const char JOB[] =
    "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata: {%s}\n"
    "spec:\n  minReplicas: 2\n  maxReplicas: 2\n  template:\n    spec:\n      containers:\n"
    "      - {name: main, image: i, command: [train], resources: {requests: {cpu: 3}}}\n";

static void write_job(const people *p, const char *metadata)
{
    char path[160];
    snprintf(path, sizeof path, "%s/job.yaml", p->sched.state);
    FILE *file = fopen(path, "w");
    if (file) {
        fprintf(file, JOB, metadata);
        fclose(file);
    }
}

static const char *submit_words(const people *p, const char *more)
{
    static char words[300];
    snprintf(words, sizeof words, "submit %s %s/job.yaml", more, p->sched.state);
    return words;
}

TEST(context_tells_which_cluster_and_why)
{
    char words[300];
    people *p = people_open();
    REQUIRE(p);
    CHECK_RUN(p, "context", 0, "kubernetes");
    CHECK(strstr(p->said, "no cluster on this machine is up") &&
          strstr(p->said, "KUBECONFIG is set"));
    CHECK(strstr(p->said, p->kubeconfig) && strstr(p->said, "adaptdl-supervisor"));
    CHECK_RUN(p, "context --context other -o json", 0, "\"namespace\": \"elsewhere\"");
    CHECK_RUN(p, "context --context none", 2, "there is no context \"none\"");
    snprintf(words, sizeof words, "context --state %s/other", p->sched.state);
    CHECK_RUN(p, words, 0, "local");
    CHECK(strstr(p->said, "--state says so"));
    CHECK_RUN(p, "context --server https://a.example:1", 0, "https://a.example:1");
    CHECK_RUN(p, "context --kubernetes --server https://a.example:1", 2, "which cluster is meant");
    /* what works on this machine only is not carried to another */
    CHECK_RUN(p, "down", 5, "no cluster is running");
    CHECK_RUN(p, "down --kubernetes", 2, "this machine only");
    p->kubeconfig[0] = '\0';
    CHECK_RUN(p, "context", 0, "local");
    people_close(p);
}

TEST(a_cluster_without_a_scheduler_is_told)
{
    people *p = people_open();
    REQUIRE(p);
    CHECK_RUN(p, "ls", 5, "there is no AdaptDL scheduler in namespace default");
    adlt_fake_put(
        &p->fake, "/api/v1/namespaces/default/secrets",
        "{\"metadata\":{\"name\":\"adaptdl-sched-token\"},\"data\":{\"token\":\"YWJj\"}}");
    CHECK_RUN(p, "ls", 5, "no endpoints available");
    people_close(p);
}

/* A program that says what it is and ends with 7. */
static bool serve_say(people *p, adlt_kube_request *request)
{
    (void)p;
    if (!strstr(request->path, "/exec?"))
        return false;
    bool right = strstr(request->path, "-1/exec?stdout=true&stdin=true&stderr=true&container=main"
                                       "&command=say&command=it%20all") != NULL;
    adlt_ws_accept(request, "v5.channel.k8s.io");
    adlt_ws_channel(request, 1, "out ", 4);
    adlt_ws_channel(request, 2, "err ", 4);
    adlt_ws_result(request, right ? 7 : 99);
    adlt_kube_hang(request);
    return true;
}

TEST(a_job_from_submit_to_delete)
{
    people *p = people_open();
    REQUIRE(p);
    REQUIRE(people_start_sched(p));
    write_job(p, "name: one");
    CHECK_RUN(p, submit_words(p, "--dry-run"), 0, "one");
    CHECK_INT(adlt_fake_count(&p->fake, "adaptdljobs/"), 0);
    CHECK_RUN(p, submit_words(p, ""), 0, "one\n");
    CHECK_RUN(p, submit_words(p, ""), 6, "409");
    CHECK_RUN(p, "wait --for Running --timeout 100 one", 0, "");
    CHECK_RUN(p, "ls", 0, "one");
    CHECK(strstr(p->said, "Running"));
    CHECK_RUN(p, "ls -o json", 0, "\"phase\": \"Running\"");
    CHECK_RUN(p, "ls --context other", 0, "Name");
    CHECK(!strstr(p->said, "one"));
    CHECK_RUN(p, "describe one", 0, "2, 2 ready");
    CHECK_RUN(p, "describe ona", 4, "did you mean one?");
    CHECK_RUN(p, "nodes -o wide", 0, "default/one x1");
    CHECK_RUN(p, "explain one", 0, "one");
    CHECK_RUN(p, "status", 0, "cluster of 2 nodes");
    CHECK_RUN(p, "top --once", 0, "one");
    CHECK_RUN(p, "logs --no-follow one", 0, "its log");
    CHECK_RUN(p, "logs --no-follow --all-ranks one", 0, "[1] its log");
    CHECK_RUN(p, "logs --group 2 one", 4, "the newest is 1");
    p->special = serve_say;
    CHECK_RUN(p, "exec --rank 1 one -- say 'it all' </dev/null", 7, "out err");
    CHECK_RUN(p, "exec --rank 5 one -- say </dev/null", 4,
              "rank 5 of job default/one does not run");
    p->special = NULL;
    CHECK_RUN(p, "rerun one", 0, "one-");
    CHECK_RUN(p, "suspend one", 6, "on Kubernetes jobs cannot be changed");
    CHECK_RUN(p, "cancel one", 6, "adaptdl delete stops it");
    atomic_store(&p->fake.let_end, 1);
    CHECK_RUN(p, "wait --timeout 100 one", 0, "");
    CHECK_RUN(p, "logs one", 0, "its log"); /* follows, and ends since the job is over */
    CHECK_RUN(p, "events --job one", 0, "one");
    CHECK_RUN(p, "delete --wait one", 0, "default/one deleted");
    CHECK_RUN(p, "delete one", 4, "there is no job default/one");
    CHECK_INT(adlt_fake_count(&p->fake, "adaptdljobs/default/one."), 0);
    people_close(p);
}

/* What goes to the scheduler finds nobody, so many times. */
static atomic_int nobody;

static bool answer_for_nobody(people *p, adlt_kube_request *request)
{
    (void)p;
    if (!strstr(request->path, "/proxy/api/") || atomic_fetch_sub(&nobody, 1) <= 0)
        return false;
    adlt_kube_answer(request, 503, "",
                     "{\"kind\":\"Status\",\"message\":\"no endpoints available\"}");
    return true;
}

TEST(wait_survives_a_restart_of_the_operator)
{
    people *p = people_open();
    REQUIRE(p);
    REQUIRE(people_start_sched(p));
    write_job(p, "name: one");
    CHECK_RUN(p, submit_words(p, ""), 0, "one\n");
    p->special = answer_for_nobody;
    atomic_store(&nobody, 3);
    CHECK_RUN(p, "wait --for Running --timeout 100 one", 0, "");
    CHECK(atomic_load(&nobody) < 0);
    atomic_store(&nobody, 1000);
    CHECK_RUN(p, "ls", 5, "no endpoints available");
    p->special = NULL;
    people_close(p);
}

TEST(a_generated_name_is_made_and_nodes_are_drained)
{
    people *p = people_open();
    REQUIRE(p);
    REQUIRE(people_start_sched(p));
    write_job(p, "generateName: mine-");
    CHECK_RUN(p, submit_words(p, "-o json"), 0, "\"name\": \"mine-");
    CHECK_RUN(p, "drain a", 0, "a drained");
    json_t *node = adlt_fake_get(&p->fake, "/api/v1/nodes/a");
    CHECK(json_is_true(json_object_get(json_object_get(node, "spec"), "unschedulable")));
    json_decref(node);
    CHECK_RUN(p, "undrain a", 0, "a undrained");
    node = adlt_fake_get(&p->fake, "/api/v1/nodes/a");
    CHECK(json_is_false(json_object_get(json_object_get(node, "spec"), "unschedulable")));
    json_decref(node);
    CHECK_RUN(p, "drain no.such.node", 4, "404");
    CHECK_RUN(p, "drain UPPER", 2, "a name consists of");
    people_close(p);
}

/* The token that the Secret holds is what opens the operator's door, and no other. */
TEST(a_wrong_token_is_refused)
{
    people *p = people_open();
    REQUIRE(p);
    REQUIRE(people_start_sched(p));
    CHECK_RUN(p, "ls", 0, "Name");
    adlt_fake_put(&p->fake, "/api/v1/namespaces/default/secrets/adaptdl-sched-token",
                  "{\"data\":{\"token\":\"d3Jvbmctd3Jvbmctd3Jvbmctd3Jvbmc=\"}}");
    CHECK_RUN(p, "ls", 6, "wrong token");
    people_close(p);
}

/* Each time it is run it gives another token; the server takes no other than the second. */
static bool second_only(people *p, adlt_kube_request *request)
{
    (void)p;
    if (strcmp(request->authorization, "Bearer token-2") == 0)
        return false;
    adlt_kube_answer(request, 401, "", "{\"kind\":\"Status\",\"message\":\"Unauthorized\"}");
    return true;
}

TEST(a_program_logs_in_and_again_when_that_is_over)
{
    char path[160], user[400];
    people *p = people_open();
    REQUIRE(p);
    REQUIRE(people_start_sched(p));
    snprintf(path, sizeof path, "%s/log-in", p->sched.state);
    FILE *file = fopen(path, "w");
    REQUIRE(file);
    fprintf(file,
            "#!/bin/sh\necho x >>%s.runs\n"
            "echo '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\","
            "\"status\":{\"token\":\"token-'$(wc -l <%s.runs)'\"}}'\n",
            path, path);
    fclose(file);
    chmod(path, 0755);
    snprintf(user, sizeof user,
             "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./log-in, "
             "interactiveMode: Never}");
    REQUIRE(people_kubeconfig(p, user));
    p->special = second_only;
    CHECK_RUN(p, "ls", 0, "Name");
    p->special = NULL;
    people_close(p);
}

/* ---- files ---- */

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    if (file) {
        fputs(text, file);
        fclose(file);
    }
}

static const char *folder_of(const people *p, const char *name)
{
    static char paths[4][200];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", p->sched.state, name);
    mkdir(path, 0755);
    return path;
}

/* The seed's example. */
static const char *hello(const people *p)
{
    const char *folder = folder_of(p, "hello");
    write_file(folder, "hello_world.py", "print('hello')\n");
    write_file(folder, "Dockerfile",
               "FROM python:3.7-slim\nRUN python3 -m pip install adaptdl\n"
               "COPY hello_world.py /root/hello_world.py\nENV PYTHONUNBUFFERED=true\n");
    write_file(folder, "adaptdljob.yaml",
               "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\nmetadata: {name: hello}\n"
               "spec:\n  template:\n    spec:\n      containers:\n      - name: main\n"
               "        command: [python3, /root/hello_world.py]\n");
    return folder;
}

static const json_t *named(const json_t *list, const char *field, const char *value)
{
    size_t i;
    const json_t *item;
    json_array_foreach((json_t *)list, i, item)
    {
        const char *text = json_string_value(json_object_get(item, field));
        if (text && strcmp(text, value) == 0)
            return item;
    }
    return NULL;
}

static const char *text_in(const json_t *object, const char *field)
{
    const char *text = json_string_value(json_object_get(object, field));
    return text ? text : "";
}

static json_t *pod_of(const json_t *job)
{
    return json_object_get(json_object_get(json_object_get(job, "spec"), "template"), "spec");
}

TEST(source_is_sent_beside_a_stock_image_with_a_claim)
{
    char words[400];
    people *p = people_open();
    REQUIRE(p);
    snprintf(words, sizeof words,
             "submit %s --source --image stock:1 --checkpoint-storage-size 3Gi "
             "--checkpoint-storage-class fast",
             hello(p));
    CHECK_RUN(p, words, 0, "hello");
    json_t *job = adlt_fake_get(&p->fake, JOBS "/hello"), *pod = pod_of(job);
    const json_t *main = json_array_get(json_object_get(pod, "containers"), 0);
    const json_t *mounts = json_object_get(main, "volumeMounts"),
                 *env = json_object_get(main, "env");
    CHECK_STR(text_in(main, "image"), "stock:1");
    CHECK_STR(text_in(named(mounts, "mountPath", "/root/hello_world.py"), "subPath"), "file-0");
    CHECK_STR(text_in(named(mounts, "mountPath", "/adaptdl/share"), "subPath"), "share");
    CHECK(named(mounts, "mountPath", "/adaptdl/checkpoint"));
    CHECK_STR(text_in(named(env, "name", "ADAPTDL_SHARE_PATH"), "value"), "/adaptdl/share");
    CHECK_STR(text_in(named(env, "name", "ADAPTDL_CHECKPOINT_PATH"), "value"),
              "/adaptdl/checkpoint");
    CHECK_STR(text_in(named(env, "name", "PYTHONUNBUFFERED"), "value"), "true");
    const char *uid = text_in(json_object_get(job, "metadata"), "uid");
    json_t *map =
        adlt_fake_get(&p->fake, "/api/v1/namespaces/default/configmaps/adaptdl-hello-source");
    CHECK_STR(text_in(json_object_get(map, "binaryData"), "file-0"), "cHJpbnQoJ2hlbGxvJykK");
    json_t *claim =
        adlt_fake_get(&p->fake, "/api/v1/namespaces/default/persistentvolumeclaims/adaptdl-hello");
    const json_t *spec = json_object_get(claim, "spec");
    CHECK_STR(text_in(spec, "storageClassName"), "fast");
    const json_t *requests = json_object_get(json_object_get(spec, "resources"), "requests");
    CHECK_STR(text_in(requests, "storage"), "3Gi");
    CHECK_STR(json_string_value(json_array_get(json_object_get(spec, "accessModes"), 0)),
              "ReadWriteMany");
    const json_t *owners = json_object_get(json_object_get(claim, "metadata"), "ownerReferences");
    CHECK_STR(text_in(json_array_get(owners, 0), "uid"), uid);
    json_decref(map);
    json_decref(claim);
    json_decref(job);
    people_close(p);
}

TEST(what_a_job_lacks_for_kubernetes_is_told)
{
    char words[400];
    people *p = people_open();
    REQUIRE(p);
    snprintf(words, sizeof words, "submit %s", hello(p));
    CHECK_RUN(p, words, 2, "ADAPTDL_SUBMIT_REPO");
    snprintf(words, sizeof words, "submit %s --source", hello(p));
    CHECK_RUN(p, words, 2, "--image");
    snprintf(words, sizeof words, "submit %s --no-build --image i --tensorboard none", hello(p));
    CHECK_RUN(p, words, 4, "adaptdl-tensorboard-none");
    char *large = malloc(800001);
    memset(large, 'x', 800000);
    large[800000] = '\0';
    write_file(folder_of(p, "hello"), "hello_world.py", large);
    free(large);
    snprintf(words, sizeof words, "submit %s --source --image i", folder_of(p, "hello"));
    CHECK_RUN(p, words, 2, "more than can be sent beside a job");
    CHECK_INT(adlt_fake_count(&p->fake, "adaptdljobs/"), 0);
    people_close(p);
}

/* The second of the objects is refused: nothing stays that would wait for it. */
static int refuse_claims(void *user, const char *method, const char *path, bool done)
{
    (void)user;
    return !done && strcmp(method, "POST") == 0 && strstr(path, "persistentvolumeclaims") ? 403 : 0;
}

TEST(a_job_whose_claim_is_refused_does_not_stay)
{
    char words[400];
    people *p = people_open();
    REQUIRE(p);
    p->fake.hook = refuse_claims;
    snprintf(words, sizeof words, "submit %s --no-build --image i", hello(p));
    CHECK_RUN(p, words, 6, "403");
    CHECK_INT(adlt_fake_count(&p->fake, "adaptdljobs/"), 0);
    people_close(p);
}

TEST(an_image_is_built_pushed_and_pinned)
{
    static const char digest[] =
        "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    static const char *const builders[] = {"docker", "podman", "buildah"};
    people *p = people_open();
    REQUIRE(p);
    for (int i = 0; i < 3; i++) {
        char words[800], script[600], image[300];
        const char *bin = folder_of(p, "bin");
        snprintf(script, sizeof script,
                 "#!/bin/sh\necho \"$@\" >>%s/calls\n"
                 "case $1 in image) echo registry.example/me@%s ;; esac\n"
                 "[ \"$2\" = --digestfile ] && echo %s >$3\nexit 0\n",
                 p->sched.state, digest, digest);
        write_file(bin, builders[i], script);
        snprintf(words, sizeof words, "%s/%s", bin, builders[i]);
        chmod(words, 0755);
        setenv("ADAPTDL_BUILDER", words, 1);
        setenv("ADAPTDL_BUILD_ARGS", " --network host  --no-cache", 1);
        char path[4096], *old = strdup(getenv("PATH"));
        snprintf(path, sizeof path, "%s:%s", bin, old);
        setenv("PATH", path, 1);
        setenv("ADAPTDL_SUBMIT_REPO", "registry.example/me", 1);
        setenv("ADAPTDL_SUBMIT_REPO_CREDS", "my-secret", 1);
        snprintf(words, sizeof words, "submit %s -n built-%d", hello(p), i);
        CHECK_RUN(p, words, 0, "built-");
        setenv("PATH", old, 1);
        free(old);
        snprintf(words, sizeof words, JOBS "/built-%d", i);
        json_t *job = adlt_fake_get(&p->fake, words), *pod = pod_of(job);
        snprintf(image, sizeof image, "registry.example/me@%s", digest);
        CHECK_STR(text_in(json_array_get(json_object_get(pod, "containers"), 0), "image"), image);
        CHECK(named(json_object_get(pod, "imagePullSecrets"), "name", "my-secret"));
        json_decref(job);
        /* docker, wherever it is, writes no file with the digest */
        snprintf(words, sizeof words,
                 "cd %s && grep -q '^build --network host --no-cache --tag registry.example/me:' "
                 "calls && %s grep -q '^push --digestfile' calls && rm calls",
                 p->sched.state, i == 0 ? "!" : "");
        CHECK_INT(system(words), 0);
    }
    char many[80] = "";
    for (int i = 0; i < 33; i++)
        strcat(many, "x ");
    setenv("ADAPTDL_BUILD_ARGS", many, 1);
    char submit[400];
    snprintf(submit, sizeof submit, "submit %s -n many", hello(p));
    CHECK_RUN(p, submit, 2, "more than 32 words");
    unsetenv("ADAPTDL_BUILD_ARGS");
    unsetenv("ADAPTDL_BUILDER");
    unsetenv("ADAPTDL_SUBMIT_REPO");
    unsetenv("ADAPTDL_SUBMIT_REPO_CREDS");
    people_close(p);
}

/* Programs of the test's own, before all others. */
static void put_programs(people *p, const char *kubectl, const char *builder)
{
    char path[300];
    const char *bin = folder_of(p, "bin");
    write_file(bin, "kubectl", kubectl);
    write_file(bin, "docker", builder);
    snprintf(path, sizeof path, "chmod 755 %s/kubectl %s/docker", bin, bin);
    CHECK_INT(system(path), 0);
}

TEST(an_image_is_pushed_to_the_clusters_registry)
{
    /* {"auths":{"localhost:32123":{"auth":"YTpi"}}} */
    static const char config[] = "eyJhdXRocyI6eyJsb2NhbGhvc3Q6MzIxMjMiOnsiYXV0aCI6IllUcGkifX19";
    static const char digest[] =
        "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    char words[800], kubectl[700], docker[900], path[4096], *old = strdup(getenv("PATH"));
    people *p = people_open();
    REQUIRE(p && old);
    snprintf(kubectl, sizeof kubectl,
             "#!/bin/sh\nprintf '%%s\\n' \"$*\" >>%s/calls\necho $$ >%s/kubectl.pid\n"
             "echo \"Forwarding from 127.0.0.1:32123 -> 5000\"\nexec sleep 100\n",
             p->sched.state, p->sched.state);
    /* pushes only while a port leads there, and with the password */
    snprintf(docker, sizeof docker,
             "#!/bin/sh\nprintf '%%s\\n' \"$*\" >>%s/calls\n"
             "case $1 in push) kill -0 $(cat %s/kubectl.pid) && grep -q YTpi "
             "$DOCKER_CONFIG/config.json && "
             "cmp -s $REGISTRY_AUTH_FILE $DOCKER_CONFIG/config.json ;;\n"
             "image) echo localhost:32123/adaptdl-submit@%s ;; esac\n",
             p->sched.state, p->sched.state, digest);
    put_programs(p, kubectl, docker);
    snprintf(path, sizeof path, "%s:%s", folder_of(p, "bin"), old);
    setenv("PATH", path, 1);
    snprintf(
        words, sizeof words,
        "{\"metadata\":{\"name\":\"adaptdl-registry\"},\"data\":{\".dockerconfigjson\":\"%s\"}}",
        config);
    adlt_fake_put(&p->fake, "/api/v1/namespaces/default/secrets", words);
    snprintf(words, sizeof words, "submit %s -n pushed --context other", hello(p));
    CHECK_RUN(p, words, 0, "pushed");

    json_t *job = adlt_fake_get(
               &p->fake, "/apis/adaptdl.petuum.com/v1/namespaces/elsewhere/adaptdljobs/pushed"),
           *pod = pod_of(job);
    snprintf(words, sizeof words, "localhost:32123/adaptdl-submit@%s", digest);
    CHECK_STR(text_in(json_array_get(json_object_get(pod, "containers"), 0), "image"), words);
    CHECK(named(json_object_get(pod, "imagePullSecrets"), "name", "adaptdl-registry"));
    json_decref(job);
    json_t *secret =
        adlt_fake_get(&p->fake, "/api/v1/namespaces/elsewhere/secrets/adaptdl-registry");
    CHECK_STR(text_in(json_object_get(secret, "data"), ".dockerconfigjson"), config);
    json_decref(secret);
    snprintf(words, sizeof words,
             "cd %s && grep -q -- '-n default port-forward pod/adaptdl-registry-0 32123:5000 "
             "--context=other' calls && ! kill -0 $(cat kubectl.pid) 2>/dev/null",
             p->sched.state);
    CHECK_INT(system(words), 0); /* and it does not stay */

    put_programs(p, "#!/bin/sh\necho 'pods \"adaptdl-registry-0\" not found' >&2\nexit 1\n",
                 docker);
    snprintf(words, sizeof words, "submit %s -n lost", hello(p));
    CHECK_RUN(p, words, 1, "adaptdl-registry-0\" not found");
    CHECK_INT(adlt_fake_count(&p->fake, "adaptdljobs/"), 1);
    setenv("PATH", old, 1);
    adlt_fake_put(&p->fake, "/api/v1/namespaces/default/secrets/adaptdl-registry",
                  "{\"data\":{\".dockerconfigjson\":"
                  "\"bm90aGluZw==\"}}");
    CHECK_RUN(p, words, 6, "does not say where a registry is");
    free(old);
    people_close(p);
}

/* What a container would do: tar, with the volume's mount in the place of "/". */
static bool serve_tar(people *p, adlt_kube_request *request)
{
    char line[600], piece[30000];
    const char *exec = strstr(request->path, "/exec?");
    bool helper = strstr(request->path, "/pods/hello-files-") != NULL;
    if (helper && !exec && strcmp(request->method, "GET") == 0)
        adlt_kube_answer(request, 200, "", "{\"status\":{\"phase\":\"Running\"}}");
    if (!exec)
        return helper && strcmp(request->method, "GET") == 0;
    adlt_ws_accept(request, "v5.channel.k8s.io");
    if (!strstr(exec, "command=tar&command=-c&command=-f&command=-&command=-C")) {
        adlt_ws_result(request, 99);
        return true;
    }
    bool absent = strstr(exec, "nothing") != NULL;
    snprintf(line, sizeof line, "cd %s/volume && tar -c -f - share", p->sched.state);
    FILE *tar = absent ? NULL : popen(line, "r");
    for (size_t got; tar && (got = fread(piece, 1, sizeof piece, tar)) > 0;)
        adlt_ws_channel(request, 1, piece, got);
    if (tar)
        pclose(tar);
    if (absent)
        adlt_ws_channel(request, 2, "tar: nothing: No such file or directory\n", 40);
    adlt_ws_result(request, absent ? 2 : 0);
    adlt_kube_hang(request);
    return true;
}

TEST(files_are_copied_through_a_pod_that_goes)
{
    char words[400], path[400], text[100] = "";
    people *p = people_open();
    REQUIRE(p);
    snprintf(words, sizeof words, "submit %s --no-build --image i", hello(p));
    CHECK_RUN(p, words, 0, "hello");
    folder_of(p, "volume");
    folder_of(p, "volume/share");
    folder_of(p, "volume/share/deep");
    write_file(p->sched.state, "volume/share/foo.txt", "Hello, world!");
    write_file(p->sched.state, "volume/share/deep/more", "more");
    snprintf(path, sizeof path, "%s/volume/share/link", p->sched.state);
    CHECK(symlink("/etc/passwd", path) == 0);
    p->special = serve_tar;
    snprintf(words, sizeof words, "cp hello:/adaptdl/share %s/copy", p->sched.state);
    CHECK_RUN(p, words, 1, "link");
    snprintf(path, sizeof path, "%s/copy/foo.txt", p->sched.state);
    FILE *file = fopen(path, "r");
    CHECK(file && fgets(text, sizeof text, file));
    if (file)
        fclose(file);
    CHECK_STR(text, "Hello, world!");
    snprintf(path, sizeof path, "%s/copy/deep/more", p->sched.state);
    CHECK(access(path, R_OK) == 0);
    snprintf(path, sizeof path, "%s/copy/link", p->sched.state);
    CHECK(access(path, F_OK) != 0);
    snprintf(words, sizeof words, "cp hello:/adaptdl/share/nothing %s/copy2", p->sched.state);
    CHECK_RUN(p, words, 4, "No such file");
    CHECK_RUN(p, "cp none:/adaptdl/share/x /tmp", 4, "there is no job default/none");
    CHECK_INT(adlt_fake_count(&p->fake, "pods/default/hello-files-"), 0);
    people_close(p);
}

TEST(tensorboards_are_made_listed_and_used)
{
    char words[400], script[400];
    people *p = people_open();
    REQUIRE(p);
    CHECK_RUN(p, "tensorboard create mine", 0, "mine created");
    CHECK_RUN(p, "tensorboard create mine", 6, "there is a TensorBoard of that name already");
    CHECK_RUN(p, "tensorboard list", 0, "mine");
    snprintf(words, sizeof words, "submit %s --no-build --image i --tensorboard mine", hello(p));
    CHECK_RUN(p, words, 0, "hello");
    json_t *job = adlt_fake_get(&p->fake, JOBS "/hello"), *pod = pod_of(job);
    const json_t *main = json_array_get(json_object_get(pod, "containers"), 0);
    CHECK(named(json_object_get(main, "volumeMounts"), "mountPath", "/adaptdl/tensorboard"));
    CHECK_STR(
        text_in(named(json_object_get(main, "env"), "name", "ADAPTDL_TENSORBOARD_LOGDIR"), "value"),
        "/adaptdl/tensorboard");
    json_decref(job);
    snprintf(script, sizeof script, "#!/bin/sh\necho kubectl \"$@\"\n");
    const char *bin = folder_of(p, "bin");
    write_file(bin, "kubectl", script);
    snprintf(words, sizeof words, "%s/kubectl", bin);
    chmod(words, 0755);
    char path[4096], *old = strdup(getenv("PATH"));
    snprintf(path, sizeof path, "%s:%s", bin, old);
    setenv("PATH", path, 1);
    CHECK_RUN(p, "tensorboard attach mine -p 7007", 0,
              "kubectl -n default port-forward service/adaptdl-tensorboard-mine 7007:6006 "
              "--context=c");
    setenv("PATH", old, 1);
    free(old);
    CHECK_RUN(p, "tensorboard proxy none", 4, "there is no TensorBoard none");
    CHECK_RUN(p, "tensorboard delete mine", 0, "mine deleted");
    CHECK_RUN(p, "tensorboard delete mine", 4, "there is no TensorBoard mine");
    CHECK_INT(adlt_fake_count(&p->fake, "persistentvolumeclaims/default/adaptdl-tensorboard-mine"),
              0);
    people_close(p);
}
