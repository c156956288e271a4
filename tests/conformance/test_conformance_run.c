/* A group of replicas from start to forget. */
#include "conformance/suite.h"
#include "harness.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

TEST(nodes_are_as_declared)
{
    const adli_backend_node *nodes;
    int count;
    OPEN();
    CHECK_OK(backend->ops->nodes(backend->self, &nodes, &count));
    CHECK_INT(count, 2);
    CHECK_STR(nodes[0].name, "a");
    CHECK_STR(nodes[1].name, "b");
    CHECK(nodes[0].ready && nodes[1].ready && nodes[0].address[0]);
    CHECK_STR(nodes[0].resource_names[0], "pods");
    CHECK_INT(nodes[0].resource_amounts[0], 4);
    CLOSE();
}

TEST(replicas_become_ready_and_end)
{
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 3, "while [ ! -e $DIR/go ]; do sleep 0.02; done"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_REPLICA_READY));
    CHECK_INT(adlt_view(site, "job", 1, 2).exit_code, -1);
    CHECK(adlt_view(site, "job", 1, 2).address[0] != '\0');
    char path[4096];
    CHECK_OK(backend->ops->job_path(backend->self, "job", "share", path, sizeof path));
    strcat(path, "/go");
    FILE *go = fopen(path, "w");
    CHECK(go && fclose(go) == 0);
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_REPLICA_SUCCEEDED));
    CHECK_INT(adlt_view(site, "job", 1, 0).exit_code, 0);
    CLOSE();
}

TEST(exit_codes_and_signals_mean_what_they_should)
{
    static const struct {
        const char *script;
        adli_replica_state state;
        int code;
    } cases[] = {
        {"exit 0", ADLI_REPLICA_SUCCEEDED, 0},
        {"exit 7", ADLI_REPLICA_FAILED, 7},
        {"exit 255", ADLI_REPLICA_FAILED, 255},
        {"exit 143", ADLI_REPLICA_INTERRUPTED, 143},
        {"kill -TERM $$", ADLI_REPLICA_INTERRUPTED, 143},
        {"kill -SEGV $$", ADLI_REPLICA_FAILED, 139},
        {"kill -KILL $$", ADLI_REPLICA_FAILED, 137},
    };
    OPEN();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int group = (int)i + 1;
        CHECK_OK(adlt_start(site, "job", group, 1, cases[i].script));
        CHECK(adlt_wait(site, "job", group, 0, (int)cases[i].state));
        adli_replica_view view = adlt_view(site, "job", group, 0);
        CHECK_INT(view.exit_code, cases[i].code);
        CHECK_STR(view.reason, "");
        CHECK((view.message[0] != '\0') == (cases[i].code != 0));
    }
    CLOSE();
}

static void check_env(const char *text, const char *name, const char *value)
{
    char line[256];
    snprintf(line, sizeof line, "%s=%s", name, value);
    if (adlt_lines(text, line) != 1)
        ADLT_FAIL("not in the environment once: %s", line);
}

static int port_of(const char *text)
{
    const char *at = strstr(text, "ADAPTDL_MASTER_PORT=");
    return at ? atoi(at + strlen("ADAPTDL_MASTER_PORT=")) : -1;
}

TEST(replicas_get_their_environment)
{
    adli_group_spec spec;
    const char *env[] = {"MINE=1 2=3", "HOME=/elsewhere", "ADAPTDL_REPLICA_RANK=99", NULL};
    const char *nodes[] = {"a", "a", "b"};
    OPEN();
    setenv("ADAPTDL_TOKEN", "the operator's", 1);
    setenv("LEFT_ALONE", "yes", 1);
    adlt_spec(site, "job", 1, 3, "env; cat; pwd >&2; umask; sleep 100", &spec);
    spec.env = env;
    spec.nodes = nodes;
    spec.workdir = "/usr";
    CHECK_OK(backend->ops->start(backend->self, &spec));
    CHECK_OK(adlt_start(site, "other", 1, 1, "env; echo end; sleep 100"));
    int port = 0;
    for (int rank = 0; rank < 3; rank++) {
        char number[2] = {(char)('0' + rank), 0};
        CHECK(adlt_wait_log(site, "job", 1, rank, "/usr\n0022"));
        const char *log = adlt_log(site, "job", 1, rank);
        check_env(log, "MINE", "1 2=3");
        check_env(log, "HOME", "/elsewhere");
        check_env(log, "LEFT_ALONE", "yes");
        check_env(log, "ADAPTDL_REPLICA_RANK", number);
        check_env(log, "ADAPTDL_NUM_REPLICAS", "3");
        check_env(log, "ADAPTDL_NUM_NODES", "2");
        CHECK(strstr(log, "ADAPTDL_MASTER_ADDR="));
        CHECK(!strstr(log, "ADAPTDL_TOKEN"));
        CHECK(strstr(log, "\n/usr\n"));
        CHECK(port_of(log) > 1023);
        if (rank > 0)
            CHECK_INT(port_of(log), port);
        port = port_of(log);
    }
    CHECK(adlt_wait_log(site, "other", 1, 0, "end"));
    CHECK(port_of(adlt_log(site, "other", 1, 0)) != port);
    unsetenv("ADAPTDL_TOKEN");
    CLOSE();
}

TEST(signals_start_with_their_defaults)
{
    OPEN();
    signal(SIGINT, SIG_IGN);
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, &old);
    CHECK_OK(adlt_start(site, "job", 1, 1, "grep -E 'SigBlk|SigIgn' /proc/self/status"));
    sigprocmask(SIG_SETMASK, &old, NULL);
    signal(SIGINT, SIG_DFL);
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_REPLICA_SUCCEEDED));
    CHECK_INT(adlt_lines(adlt_log(site, "job", 1, 0), "SigBlk:\t0000000000000000"), 1);
    CHECK_INT(adlt_lines(adlt_log(site, "job", 1, 0), "SigIgn:\t0000000000000000"), 1);
    CLOSE();
}

TEST(each_replica_gets_devices_of_its_own)
{
    if (!adlt_backend.has_devices)
        SKIP("%s has no devices", adlt_backend.name);
    adli_group_spec spec;
    int uses = 0;
    OPEN();
    adlt_spec(site, "job", 1, 4, "echo gpus=$CUDA_VISIBLE_DEVICES.; sleep 100", &spec);
    spec.devices = 1;
    CHECK_OK(backend->ops->start(backend->self, &spec));
    CHECK_OK(adlt_start(site, "none", 1, 1, "echo gpus=$CUDA_VISIBLE_DEVICES.; sleep 100"));
    for (int rank = 0; rank < 4; rank++) {
        CHECK(adlt_wait_log(site, "job", 1, rank, "gpus"));
        const char *log = adlt_log(site, "job", 1, rank);
        int gpu = -1;
        CHECK(sscanf(log, "gpus=%d.", &gpu) == 1 && gpu >= 0 && gpu < 4);
        CHECK(gpu / 2 == rank % 2); /* a has 0 and 1, b has 2 and 3 */
        CHECK(!(uses & 1 << gpu));
        uses |= 1 << gpu;
    }
    CHECK(adlt_wait_log(site, "none", 1, 0, "gpus"));
    CHECK_STR(adlt_log(site, "none", 1, 0), "gpus=.\n");

    spec.uid = "late"; /* all are taken */
    spec.replicas = 1;
    CHECK_OK(backend->ops->start(backend->self, &spec));
    CHECK(adlt_wait(site, "late", 1, -1, ADLI_REPLICA_INTERRUPTED));
    CHECK_STR(adlt_view(site, "late", 1, 0).reason, "OutOfResources");
    CHECK(strstr(adlt_view(site, "late", 1, 0).message, "GPU"));

    backend->ops->terminate(backend->self, "job", 1, true);
    CHECK(adlt_wait(site, "job", 1, -1, -1));
    spec.group = 2; /* free again */
    CHECK_OK(backend->ops->start(backend->self, &spec));
    CHECK(adlt_wait(site, "late", 2, -1, ADLI_REPLICA_READY));
    CLOSE();
}

TEST(asked_to_stop_it_may_save_first)
{
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 2,
                        "trap 'echo saved; exit 143' TERM; echo up; while :; do sleep 0.02; done"));
    CHECK_OK(adlt_start(site, "zero", 1, 1,
                        "trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done"));
    CHECK_OK(adlt_start(site, "plain", 1, 1, "echo up; sleep 100"));
    static const char *const uids[] = {"job", "zero", "plain"};
    for (int j = 0; j < 3; j++) {
        CHECK(adlt_wait_log(site, uids[j], 1, j == 0, "up"));
        backend->ops->terminate(backend->self, uids[j], 1, false);
    }
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_REPLICA_INTERRUPTED));
    CHECK(adlt_wait(site, "zero", 1, -1, ADLI_REPLICA_SUCCEEDED));
    CHECK(adlt_wait(site, "plain", 1, -1, ADLI_REPLICA_INTERRUPTED));
    CHECK_INT(adlt_view(site, "plain", 1, 0).exit_code, 143);
    CHECK_INT(adlt_lines(adlt_log(site, "job", 1, 1), "saved"), 1);
    backend->ops->terminate(backend->self, "job", 1, true); /* long over: harmless */
    backend->ops->terminate(backend->self, "nobody", 1, true);
    CHECK_INT(adlt_view(site, "job", 1, 0).state, ADLI_REPLICA_INTERRUPTED);
    CLOSE();
}

TEST(what_a_shell_started_may_save_as_well)
{
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 2,
                        "sh -c 'trap \"sleep 0.2; echo saved; exit 143\" TERM; echo up; "
                        "while :; do sleep 0.02; done'; echo never"));
    CHECK_OK(adlt_start(
        site, "hung", 1, 1,
        "sh -c 'trap \"echo no\" TERM; echo up; while :; do sleep 0.02; done'; echo never"));
    CHECK(adlt_wait_log(site, "job", 1, 0, "up") && adlt_wait_log(site, "job", 1, 1, "up"));
    CHECK(adlt_wait_log(site, "hung", 1, 0, "up"));
    backend->ops->terminate(backend->self, "job", 1, false);
    backend->ops->terminate(backend->self, "hung", 1, false);
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_REPLICA_INTERRUPTED));
    for (int rank = 0; rank < 2; rank++) {
        CHECK_INT(adlt_lines(adlt_log(site, "job", 1, rank), "saved"), 1);
        CHECK_INT(adlt_lines(adlt_log(site, "job", 1, rank), "never"), 0);
    }
    CHECK(adlt_wait_log(site, "hung", 1, 0, "no"));
    CHECK_INT(adlt_view(site, "hung", 1, 0).state, ADLI_REPLICA_READY);
    backend->ops->terminate(backend->self, "hung", 1, true);
    CHECK(adlt_wait(site, "hung", 1, -1, ADLI_REPLICA_INTERRUPTED));
    CLOSE();
}

/* Workers of a data loader, say: the replica needs them until it has saved. */
TEST(asked_to_stop_its_children_are_its_own_to_stop)
{
    OPEN();
    CHECK_OK(
        adlt_start(site, "job", 1, 2,
                   "sh -c 'trap \"echo worker asked\" TERM; echo up; while [ ! -e $DIR/done ]; do "
                   "sleep 0.02; done; echo worker done' & "
                   "trap 'touch $DIR/done; wait; echo saved; exit 143' TERM; wait"));
    for (int rank = 0; rank < 2; rank++)
        CHECK(adlt_wait_log(site, "job", 1, rank, "up"));
    backend->ops->terminate(backend->self, "job", 1, false);
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_REPLICA_INTERRUPTED));
    for (int rank = 0; rank < 2; rank++) {
        const char *log = adlt_log(site, "job", 1, rank);
        CHECK_INT(adlt_lines(log, "worker asked"), 0);
        CHECK_INT(adlt_lines(log, "worker done"), 1);
        CHECK_INT(adlt_lines(log, "saved"), 1);
        CHECK(adlt_view(site, "job", 1, rank).ended_s > 0);
    }
    CLOSE();
}

/* It could not save anything, so there is nothing to wait for. */
TEST(asked_to_stop_a_silent_replica_is_killed)
{
    OPEN();
    CHECK_OK(
        adlt_start(site, "job", 1, 1, "trap 'exit 143' TERM; echo up; kill -STOP $$; sleep 100"));
    CHECK_OK(adlt_start(site, "late", 1, 1,
                        "trap 'kill -STOP $$' TERM; echo up; while :; do sleep 0.02; done"));
    CHECK_OK(
        adlt_start(site, "goes-on", 1, 1,
                   "sh -c \"sleep 0.2; kill -CONT $$\" & echo up; kill -STOP $$; "
                   "trap 'echo saved; exit 143' TERM; echo again; while :; do sleep 0.02; done"));
    CHECK(adlt_wait_log(site, "job", 1, 0, "up") && adlt_wait_log(site, "late", 1, 0, "up"));
    CHECK(adlt_wait_log(site, "goes-on", 1, 0, "again"));
    backend->ops->terminate(backend->self, "job", 1, false);
    backend->ops->terminate(backend->self, "late", 1, false);
    backend->ops->terminate(backend->self, "goes-on", 1, false);
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_REPLICA_INTERRUPTED));
    CHECK_STR(adlt_view(site, "job", 1, 0).reason, "Silent");
    CHECK(adlt_wait(site, "late", 1, -1, ADLI_REPLICA_INTERRUPTED));
    CHECK_STR(adlt_view(site, "late", 1, 0).reason, "Silent");
    CHECK(adlt_wait(site, "goes-on", 1, -1, ADLI_REPLICA_INTERRUPTED));
    CHECK_STR(adlt_view(site, "goes-on", 1, 0).reason, "");
    CHECK_INT(adlt_lines(adlt_log(site, "goes-on", 1, 0), "saved"), 1);
    CLOSE();
}

TEST(what_does_not_stop_is_killed)
{
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 2,
                        "trap 'echo no' TERM; echo up; while :; do sleep 0.02; done"));
    for (int rank = 0; rank < 2; rank++)
        CHECK(adlt_wait_log(site, "job", 1, rank, "up"));
    backend->ops->terminate(backend->self, "job", 1, false);
    CHECK(adlt_wait_log(site, "job", 1, 1, "no"));
    CHECK_INT(adlt_view(site, "job", 1, 1).state, ADLI_REPLICA_READY);
    backend->ops->terminate(backend->self, "job", 1, true);
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_REPLICA_INTERRUPTED));
    CHECK_STR(adlt_view(site, "job", 1, 0).reason, "Killed");
    CHECK_INT(adlt_view(site, "job", 1, 0).exit_code, 137);
    CLOSE();
}

TEST(rescaling_is_a_new_group)
{
    OPEN();
    for (int group = 1; group <= 4; group++) {
        int replicas = group == 4 ? 2 : group;
        CHECK_OK(adlt_start(site, "job", group, replicas,
                            "trap 'exit 143' TERM; echo of $ADAPTDL_NUM_REPLICAS; "
                            "while :; do sleep 0.02; done"));
        for (int rank = 0; rank < replicas; rank++)
            CHECK(adlt_wait_log(site, "job", group, rank, "of"));
        CHECK(adlt_wait(site, "job", group, -1, ADLI_REPLICA_READY));
        backend->ops->terminate(backend->self, "job", group, false);
        CHECK(adlt_wait(site, "job", group, -1, ADLI_REPLICA_INTERRUPTED));
        backend->ops->forget(backend->self, "job", group);
        CHECK(adlt_gone(site, "job", group));
    }
    CHECK_INT(adlt_lines(adlt_log(site, "job", 3, 2), "of 3"), 1); /* logs stay */
    CHECK_INT(adlt_lines(adlt_log(site, "job", 4, 1), "of 2"), 1);
    CHECK_STR(adlt_log(site, "job", 4, 2), "");
    CLOSE();
}

TEST(a_lost_node_takes_its_replicas_with_it)
{
    static const adlt_node one[] = {{"a", 4, 2}}, back[] = {{"c", 1, 0}, {"b", 4, 2}, {"a", 4, 2}};
    const adli_backend_node *nodes;
    int count;
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 2, "trap '' TERM; while :; do sleep 0.02; done"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_REPLICA_READY));
    CHECK_OK(adlt_backend.set_nodes(backend, one, 1));
    CHECK(adlt_wait(site, "job", 1, 1, ADLI_REPLICA_INTERRUPTED));
    CHECK_STR(adlt_view(site, "job", 1, 1).reason, "NodeLost");
    CHECK_INT(adlt_view(site, "job", 1, 0).state, ADLI_REPLICA_READY);
    CHECK_OK(backend->ops->nodes(backend->self, &nodes, &count));
    CHECK_INT(count, 2);
    CHECK(strcmp(nodes[1].name, "b") == 0 && !nodes[1].ready && nodes[0].ready);

    CHECK_OK(adlt_start(site, "next", 1, 2, "echo ran")); /* one of them there */
    CHECK(adlt_wait(site, "next", 1, 1, ADLI_REPLICA_INTERRUPTED));
    CHECK_STR(adlt_view(site, "next", 1, 1).reason, "NodeLost");
    CHECK_STR(adlt_log(site, "next", 1, 1), "");

    CHECK_OK(adlt_backend.set_nodes(backend, back, 3));
    CHECK_OK(backend->ops->nodes(backend->self, &nodes, &count));
    CHECK_INT(count, 3);
    CHECK(strcmp(nodes[1].name, "b") == 0 && nodes[1].ready && strcmp(nodes[2].name, "c") == 0);
    CHECK_OK(adlt_start(site, "next", 2, 2, "echo ran"));
    CHECK(adlt_wait(site, "next", 2, -1, ADLI_REPLICA_SUCCEEDED));
    CLOSE();
}

TEST(what_cannot_be_run_says_so)
{
    static const char *const missing[] = {"no-such-program-9", "--help", NULL};
    static const char *const not_program[] = {"/etc/passwd", NULL};
    static char huge[300000];
    const char *too_long[] = {"/bin/echo", huge, NULL};
    const char *const *commands[] = {missing, not_program, too_long};
    static const char *const texts[] = {"no-such-program-9: No such file",
                                        "/etc/passwd: Permission", "too long"};
    adli_group_spec spec;
    OPEN();
    memset(huge, 'x', sizeof huge - 1);
    for (int i = 0; i < 3; i++) {
        adlt_spec(site, "job", i + 1, 1, "", &spec);
        spec.argv = commands[i];
        CHECK_OK(backend->ops->start(backend->self, &spec));
        CHECK(adlt_wait(site, "job", i + 1, -1, ADLI_REPLICA_FAILED));
        CHECK_STR(adlt_view(site, "job", i + 1, 0).reason, "CannotRun");
        if (!strstr(adlt_view(site, "job", i + 1, 0).message, texts[i]))
            ADLT_FAIL("%s", adlt_view(site, "job", i + 1, 0).message);
    }
    adlt_spec(site, "job", 9, 1, "exit 0", &spec);
    spec.workdir = "/no/such/directory";
    CHECK_OK(backend->ops->start(backend->self, &spec));
    CHECK(adlt_wait(site, "job", 9, -1, ADLI_REPLICA_FAILED));
    CHECK(strstr(adlt_view(site, "job", 9, 0).message, "/no/such/directory"));
    CLOSE();
}

TEST(too_much_memory_is_named)
{
    if (!adlt_backend.limits_memory)
        SKIP("%s does not limit memory", adlt_backend.name);
    adli_group_spec spec;
    OPEN();
    /* A child of the shell holds it, as a loader's worker would, and waits for a reader. In a control
     * group only the child is killed. */
    adlt_spec(site, "job", 1, 1, "head -c 400M /dev/zero | tail -c 400M | sleep 3; exit 1", &spec);
    spec.memory_bytes = 128 << 20;
    CHECK_OK(backend->ops->start(backend->self, &spec));
    adlt_spec(site, "small", 1, 1, "head -c 30M /dev/zero | tail -c 30M | wc -c; sleep 1", &spec);
    spec.memory_bytes = 128 << 20;
    spec.cpu_milli = 900;
    CHECK_OK(backend->ops->start(backend->self, &spec));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_REPLICA_FAILED));
    CHECK_STR(adlt_view(site, "job", 1, 0).reason, "OOMKilled");
    CHECK(strstr(adlt_view(site, "job", 1, 0).message, "128 MiB"));
    CHECK(adlt_wait(site, "small", 1, -1, ADLI_REPLICA_SUCCEEDED));
    CLOSE();
}

TEST(a_replica_is_started_once)
{
    char path[4200];
    OPEN();
    for (int i = 0; i < 5; i++)
        CHECK_OK(adlt_start(site, "job", 1, 3, "echo $ADAPTDL_REPLICA_RANK >>$DIR/runs"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_REPLICA_SUCCEEDED));
    for (int i = 0; i < 5; i++)
        CHECK_OK(adlt_start(site, "job", 1, 3, "echo $ADAPTDL_REPLICA_RANK >>$DIR/runs"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_REPLICA_SUCCEEDED));
    CHECK_FAILS(adlt_start(site, "job", 1, 2, "echo"), ADL_EINVAL, "3 replicas");
    CHECK_OK(backend->ops->job_path(backend->self, "job", "share", path, 4096));
    strcat(path, "/runs");
    CHECK_INT(adlt_lines(adlt_text(path), "0"), 1);
    CHECK_INT(adlt_lines(adlt_text(path), "1"), 1);
    CHECK_INT(adlt_lines(adlt_text(path), "2"), 1);
    CLOSE();
}

TEST(bad_specs_are_refused)
{
    static const char *const uids[] = {
        "",     ".",        "..",
        "../x", "a/b",      "a b",
        "a\n",  "\xc3\xa4", "0123456789012345678901234567890123456789012345678901234567890123"};
    static const char *const nowhere[] = {"a", "nowhere"};
    static const char *const no_argv[] = {NULL}, *const bad_env[] = {"NOVALUE", NULL};
    adli_group_spec spec;
    adli_replica_view view;
    char path[256];
    int count;
    OPEN();
    for (size_t i = 0; i < sizeof uids / sizeof uids[0]; i++) {
        adlt_spec(site, "good", 1, 1, "exit 0", &spec);
        spec.uid = uids[i];
        CHECK_FAILS(backend->ops->start(backend->self, &spec), ADL_EINVAL, "uid");
        CHECK_FAILS(backend->ops->job_path(backend->self, uids[i], "share", path, sizeof path),
                    ADL_EINVAL, "uid");
        CHECK(backend->ops->observe(backend->self, uids[i], 1, &view, 1, &count) != ADL_OK);
        backend->ops->forget(backend->self, uids[i], 1);
        backend->ops->remove(backend->self, uids[i]);
    }
    CHECK_FAILS(backend->ops->job_path(backend->self, "good", "../..", path, sizeof path),
                ADL_EINVAL, "directory");
    CHECK_FAILS(adlt_start(site, "good", 0, 1, ""), ADL_EINVAL, "group");
    CHECK_FAILS(adlt_start(site, "good", 1, 0, ""), ADL_EINVAL, "replicas");
    adlt_spec(site, "good", 1, 2, "exit 0", &spec);
    spec.nodes = nowhere;
    CHECK_FAILS(backend->ops->start(backend->self, &spec), ADL_ENOENT, "nowhere");
    adlt_spec(site, "good", 1, 1, "exit 0", &spec);
    spec.argv = no_argv;
    CHECK_FAILS(backend->ops->start(backend->self, &spec), ADL_EINVAL, "argv");
    adlt_spec(site, "good", 1, 1, "exit 0", &spec);
    spec.env = bad_env;
    CHECK_FAILS(backend->ops->start(backend->self, &spec), ADL_EINVAL, "NOVALUE");
    adlt_spec(site, "good", 1, 1, "exit 0", &spec);
    spec.memory_bytes = -1;
    CHECK_FAILS(backend->ops->start(backend->self, &spec), ADL_EINVAL, "limits");
    CHECK_FAILS(backend->ops->observe(backend->self, "good", 1, &view, 1, &count), ADL_ENOENT,
                "good");
    CLOSE();
}

static void count_group(void *user, const char *uid, int group)
{
    (void)uid;
    *(int *)user += group;
}

TEST(forgotten_groups_are_gone_for_ever)
{
    char path[4096];
    int sum = 0;
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 2, "echo hello; sleep 1000"));
    CHECK_OK(adlt_start(site, "job", 20, 1, "sleep 1000"));
    CHECK_OK(adlt_start(site, "two", 300, 1, "sleep 1000"));
    CHECK(adlt_wait_log(site, "job", 1, 1, "hello"));
    backend->ops->list(backend->self, count_group, &sum);
    CHECK_INT(sum, 321);
    backend->ops->forget(backend->self, "job", 1);
    CHECK(adlt_gone(site, "job", 1));
    CHECK_STR(adlt_log(site, "job", 1, 1), "hello\n");
    CHECK_FAILS(adlt_start(site, "job", 1, 2, "echo hello"), ADL_ESTATE, "over");
    CHECK(adlt_wait(site, "job", 20, -1, ADLI_REPLICA_READY));
    backend->ops->forget(backend->self, "job", 7);
    backend->ops->forget(backend->self, "nobody", 1);
    sum = 0;
    backend->ops->list(backend->self, count_group, &sum);
    CHECK_INT(sum, 320);
    CHECK_OK(backend->ops->job_path(backend->self, "job", "checkpoint", path, sizeof path));
    CHECK(access(path, F_OK) == 0);
    backend->ops->remove(backend->self, "job");
    CHECK(access(path, F_OK) != 0);
    CHECK_STR(adlt_log(site, "job", 1, 1), "");
    CHECK(adlt_gone(site, "job", 20));
    CHECK(adlt_wait(site, "two", 300, -1, ADLI_REPLICA_READY));
    CLOSE();
}

static int quiet_after_drain(const adli_backend *backend)
{
    struct pollfd wait = {.fd = backend->ops->event_fd(backend->self), .events = POLLIN};
    for (int i = 0; i < 20; i++) { /* a slow poll may fall between the two lines */
        backend->ops->drain_events(backend->self);
        if (poll(&wait, 1, 0) == 0)
            return 1;
    }
    return 0;
}

TEST(the_event_descriptor_is_quiet_then_not)
{
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 1, "sleep 1000"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_REPLICA_READY));
    CHECK(quiet_after_drain(backend));
    backend->ops->terminate(backend->self, "job", 1, true);
    struct pollfd wait = {.fd = backend->ops->event_fd(backend->self), .events = POLLIN};
    CHECK_INT(poll(&wait, 1, 30000), 1);
    CHECK(adlt_wait(site, "job", 1, -1, -1));
    CLOSE();
}

TEST(descendants_end_with_their_replica)
{
    static const char *const family =
        "(sleep 1000 &) ; setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & sleep 1000' & "
        "(setsid sh -c 'setsid sleep 1000 & setsid sleep 1000 &' &) ; sleep 0.2; echo up; ";
    char script[512];
    OPEN();
    snprintf(script, sizeof script, "%s exit 3", family);
    CHECK_OK(adlt_start(site, "ends", 1, 2, script));
    snprintf(script, sizeof script, "%s sleep 1000", family);
    CHECK_OK(adlt_start(site, "killed", 1, 2, script));
    CHECK(adlt_wait(site, "ends", 1, -1, ADLI_REPLICA_FAILED));
    for (int rank = 0; rank < 2; rank++)
        CHECK(adlt_wait_log(site, "killed", 1, rank, "up"));
    int before = adlt_backend.leftovers(site->state);
    CHECK(before >= 2 * 6); /* keeper, shell, five sleeps and their shells: all of the second job */
    backend->ops->terminate(backend->self, "killed", 1, true);
    CHECK(adlt_wait(site, "killed", 1, -1, ADLI_REPLICA_INTERRUPTED));
    printf("info - %d processes of 2 replicas ended with them\n", before);
    CLOSE();
}

TEST(output_goes_to_a_file_for_each_replica)
{
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 2,
                        "echo out $ADAPTDL_REPLICA_RANK; echo err $ADAPTDL_REPLICA_RANK >&2"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_REPLICA_SUCCEEDED));
    CHECK_STR(adlt_log(site, "job", 1, 0), "out 0\nerr 0\n");
    CHECK_STR(adlt_log(site, "job", 1, 1), "out 1\nerr 1\n");
    CLOSE();
}
