/* A group of replicas from start to forget. */
#include "conformance/suite.h"
#include "harness.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

TEST(replicas_become_ready_and_end)
{
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 3, "while [ ! -e $DIR/go ]; do sleep 0.02; done"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_READY));
    CHECK_INT(adlt_view(site, "job", 1, 2).exit_code, -1);
    CHECK(adlt_view(site, "job", 1, 2).address[0] != '\0');
    adlt_backend.touch(site->state, "job", "go");
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_SUCCEEDED));
    CHECK_INT(adlt_view(site, "job", 1, 0).exit_code, 0);
    CLOSE();
}

TEST(exit_codes_and_signals_mean_what_they_should)
{
    static const struct {
        const char *script;
        adli_member_state state;
        int code;
    } cases[] = {
        {"exit 0", ADLI_MEMBER_SUCCEEDED, 0},
        {"exit 7", ADLI_MEMBER_FAILED, 7},
        {"exit 255", ADLI_MEMBER_FAILED, 255},
        {"exit 143", ADLI_MEMBER_INTERRUPTED, 143},
        {"kill -TERM $$", ADLI_MEMBER_INTERRUPTED, 143},
        {"kill -SEGV $$", ADLI_MEMBER_FAILED, 139},
        {"kill -KILL $$", ADLI_MEMBER_FAILED, 137},
    };
    OPEN();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int group = (int)i + 1;
        CHECK_OK(adlt_start(site, "job", group, 1, cases[i].script));
        CHECK(adlt_wait(site, "job", group, 0, (int)cases[i].state));
        adli_member_view view = adlt_view(site, "job", group, 0);
        CHECK_INT(view.exit_code, cases[i].code);
        CHECK_INT(view.cause, ADLI_CAUSE_NONE);
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
    if (!adlt_backend.here)
        SKIP("%s gives its members another environment", adlt_backend.name);
    static const adli_member_start members[] = {{0, 0, "a"}, {1, 1, "a"}, {2, 2, "b"}};
    const char *env[] = {"MINE=1 2=3", "HOME=/elsewhere", "ADAPTDL_REPLICA_RANK=99",
                         "BOTH=/adaptdl/share", NULL};
    const char *defaults[] = {"POD=not this", "DEFAULT=this", NULL};
    adli_start spec;
    OPEN();
    setenv("ADAPTDL_TOKEN", "the operator's", 1);
    setenv("LEFT_ALONE", "yes", 1);
    adlt_spec("job", 2, 3, "", &spec);
    spec.pod = adlt_pod("env; cat; pwd >&2; umask; sleep 100",
                        ",\"workingDir\":\"/usr\",\"env\":[{\"name\":\"BOTH\",\"value\":\"pod\"},"
                        "{\"name\":\"POD\",\"value\":\"its own\"}]");
    spec.env = env;
    spec.defaults = defaults;
    spec.members = members;
    CHECK_OK(backend->ops->start(backend->self, &spec));
    CHECK_OK(adlt_start(site, "other", 1, 1, "env; echo end; sleep 100"));
    int port = 0;
    for (int rank = 0; rank < 3; rank++) {
        char number[2] = {(char)('0' + rank), 0};
        CHECK(adlt_wait_log(site, "job", 2, rank, "/usr\n0022"));
        const char *log = adlt_log(site, "job", 2, rank);
        check_env(log, "MINE", "1 2=3");
        check_env(log, "HOME", "/elsewhere");
        check_env(log, "LEFT_ALONE", "yes");
        check_env(log, "BOTH", "/adaptdl/share"); /* the scheduler's win, as they are */
        check_env(log, "POD", "its own");
        check_env(log, "DEFAULT", "this");
        check_env(log, "ADAPTDL_REPLICA_RANK", number);
        check_env(log, "ADAPTDL_NUM_REPLICAS", "3");
        check_env(log, "ADAPTDL_NUM_NODES", "2");
        check_env(log, "ADAPTDL_NUM_RESTARTS", "1");
        CHECK(strstr(log, "ADAPTDL_MASTER_ADDR="));
        CHECK(strstr(log, "ADAPTDL_SHARE_PATH=") && strstr(log, "ADAPTDL_CHECKPOINT_PATH="));
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

/* Members are started and stopped one by one while the others run on. */
TEST(members_come_and_go)
{
    static const char script[] = "trap 'echo left; exit 143' TERM; "
                                 "echo rank $ADAPTDL_REPLICA_RANK of $ADAPTDL_NUM_REPLICAS; "
                                 "echo $ADAPTDL_REPLICA_RANK >>$DIR/runs; "
                                 "while [ ! -e $DIR/go ]; do sleep 0.02; done";
    adli_member_view views[ADLT_RANKS];
    int count;
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 2, script));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_READY));
    CHECK_OK(adlt_join(site, "job", 1, 2, "b", 2, 3, script));
    CHECK_OK(adlt_join(site, "job", 1, 5, "a", 0, 3, script)); /* numbers may be left out */
    CHECK(adlt_wait_log(site, "job", 1, 2, "rank 2 of 3"));
    CHECK(adlt_wait_log(site, "job", 1, 5, "rank 0 of 3"));
    CHECK_OK(backend->ops->observe(backend->self, "job", 1, views, ADLT_RANKS, &count));
    CHECK_INT(count, 4);
    for (int i = 0; i < 4; i++)
        CHECK_INT(views[i].member, i < 3 ? i : 5);

    CHECK(adlt_wait_log(site, "job", 1, 0, "rank 0 of 2"));
    backend->ops->stop(backend->self, "job", 1, 0, false);
    CHECK(adlt_wait(site, "job", 1, 0, ADLI_MEMBER_INTERRUPTED));
    backend->ops->stop(backend->self, "job", 1, 2, true);
    CHECK(adlt_wait(site, "job", 1, 2, ADLI_MEMBER_INTERRUPTED));
    CHECK_INT(adlt_view(site, "job", 1, 2).cause, ADLI_CAUSE_KILLED);
    CHECK_INT(adlt_view(site, "job", 1, 1).state, ADLI_MEMBER_READY);
    backend->ops->stop(backend->self, "job", 1, 77, true); /* nobody */

    REQUIRE_OK(adlt_reopen(site)); /* all of that is found again, and none is started twice */
    backend = site->backend;
    CHECK_OK(adlt_join(site, "job", 1, 2, "b", 2, 3, script));
    CHECK_OK(adlt_join(site, "job", 1, 5, "a", 0, 3, script));
    CHECK_OK(adlt_start(site, "job", 1, 3, script));
    CHECK_OK(backend->ops->observe(backend->self, "job", 1, views, ADLT_RANKS, &count));
    CHECK_INT(count, 4);
    CHECK_INT(adlt_view(site, "job", 1, 0).state, ADLI_MEMBER_INTERRUPTED);
    CHECK_INT(adlt_view(site, "job", 1, 5).state, ADLI_MEMBER_READY);
    if (adlt_backend.here)
        CHECK_INT(adlt_lines(adlt_log(site, "job", 1, 0), "left"), 1);
    adlt_backend.touch(site->state, "job", "go");
    CHECK(adlt_wait(site, "job", 1, 1, ADLI_MEMBER_SUCCEEDED));
    CHECK(adlt_wait(site, "job", 1, 5, ADLI_MEMBER_SUCCEEDED));
    const char *runs = adlt_file(site, "job", "/adaptdl/share/runs");
    CHECK_INT(adlt_lines(runs, "0"), 2); /* members 0 and 5 */
    CHECK_INT(adlt_lines(runs, "1"), 1);
    CHECK_INT(adlt_lines(runs, "2"), 1);
    backend->ops->forget(backend->self, "job", 1);
    CHECK(adlt_gone(site, "job", 1));
    CHECK_FAILS(adlt_join(site, "job", 1, 6, "a", 0, 1, script), ADL_ESTATE, "over");
    CLOSE();
}

TEST(signals_start_with_their_defaults)
{
    if (!adlt_backend.here)
        SKIP("%s leaves that to who starts its containers", adlt_backend.name);
    OPEN();
    signal(SIGINT, SIG_IGN);
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, &old);
    CHECK_OK(adlt_start(site, "job", 1, 1, "grep -E 'SigBlk|SigIgn' /proc/self/status"));
    sigprocmask(SIG_SETMASK, &old, NULL);
    signal(SIGINT, SIG_DFL);
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_SUCCEEDED));
    CHECK_INT(adlt_lines(adlt_log(site, "job", 1, 0), "SigBlk:\t0000000000000000"), 1);
    CHECK_INT(adlt_lines(adlt_log(site, "job", 1, 0), "SigIgn:\t0000000000000000"), 1);
    CLOSE();
}

TEST(each_replica_gets_devices_of_its_own)
{
    if (!adlt_backend.has_devices)
        SKIP("%s has no devices", adlt_backend.name);
    adli_start spec;
    int uses = 0;
    OPEN();
    adlt_spec("job", 1, 4, "", &spec);
    spec.pod = adlt_pod("echo gpus=$CUDA_VISIBLE_DEVICES.; sleep 100",
                        ",\"resources\":{\"limits\":{\"nvidia.com/gpu\":1}}");
    CHECK_OK(backend->ops->start(backend->self, &spec));
    CHECK_OK(adlt_start(site, "none", 1, 1, "echo gpus=$CUDA_VISIBLE_DEVICES.; sleep 100"));
    adlt_spec("late", 1, 1, "", &spec);
    spec.pod = adlt_pod("sleep 100", ",\"resources\":{\"limits\":{\"nvidia.com/gpu\":1}}");
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

    /* all are taken */
    CHECK_OK(backend->ops->start(backend->self, &spec));
    CHECK(adlt_wait(site, "late", 1, -1, ADLI_MEMBER_INTERRUPTED));
    CHECK_INT(adlt_view(site, "late", 1, 0).cause, ADLI_CAUSE_OUT_OF_RESOURCES);
    CHECK(strstr(adlt_view(site, "late", 1, 0).message, "GPU"));

    backend->ops->stop(backend->self, "job", 1, ADLI_ALL_MEMBERS, true);
    CHECK(adlt_wait(site, "job", 1, -1, -1));
    spec.group = 2; /* free again */
    CHECK_OK(backend->ops->start(backend->self, &spec));
    CHECK(adlt_wait(site, "late", 2, -1, ADLI_MEMBER_READY));
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
        backend->ops->stop(backend->self, uids[j], 1, ADLI_ALL_MEMBERS, false);
    }
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_INTERRUPTED));
    CHECK(adlt_wait(site, "zero", 1, -1, ADLI_MEMBER_SUCCEEDED));
    CHECK(adlt_wait(site, "plain", 1, -1, ADLI_MEMBER_INTERRUPTED));
    CHECK_INT(adlt_view(site, "plain", 1, 0).exit_code, 143);
    if (adlt_backend.here) /* elsewhere what was stopped may be gone, with its output */
        CHECK_INT(adlt_lines(adlt_log(site, "job", 1, 1), "saved"), 1);
    backend->ops->stop(backend->self, "job", 1, ADLI_ALL_MEMBERS, true); /* long over: harmless */
    backend->ops->stop(backend->self, "nobody", 1, ADLI_ALL_MEMBERS, true);
    CHECK_INT(adlt_view(site, "job", 1, 0).state, ADLI_MEMBER_INTERRUPTED);
    CLOSE();
}

TEST(what_a_shell_started_may_save_as_well)
{
    if (!adlt_backend.here)
        SKIP("%s asks the first process only", adlt_backend.name);
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 2,
                        "sh -c 'trap \"sleep 0.2; echo saved; exit 143\" TERM; echo up; "
                        "while :; do sleep 0.02; done'; echo never"));
    CHECK_OK(adlt_start(
        site, "hung", 1, 1,
        "sh -c 'trap \"echo no\" TERM; echo up; while :; do sleep 0.02; done'; echo never"));
    CHECK(adlt_wait_log(site, "job", 1, 0, "up") && adlt_wait_log(site, "job", 1, 1, "up"));
    CHECK(adlt_wait_log(site, "hung", 1, 0, "up"));
    backend->ops->stop(backend->self, "job", 1, ADLI_ALL_MEMBERS, false);
    backend->ops->stop(backend->self, "hung", 1, ADLI_ALL_MEMBERS, false);
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_INTERRUPTED));
    for (int rank = 0; rank < 2; rank++) {
        CHECK_INT(adlt_lines(adlt_log(site, "job", 1, rank), "saved"), 1);
        CHECK_INT(adlt_lines(adlt_log(site, "job", 1, rank), "never"), 0);
    }
    CHECK(adlt_wait_log(site, "hung", 1, 0, "no"));
    CHECK_INT(adlt_view(site, "hung", 1, 0).state, ADLI_MEMBER_READY);
    backend->ops->stop(backend->self, "hung", 1, ADLI_ALL_MEMBERS, true);
    CHECK(adlt_wait(site, "hung", 1, -1, ADLI_MEMBER_INTERRUPTED));
    CLOSE();
}

/* Workers of a data loader, say: the replica needs them until it has saved. */
TEST(asked_to_stop_its_children_are_its_own_to_stop)
{
    OPEN();
    CHECK_OK(
        adlt_start(site, "job", 1, 2,
                   "trap 'touch $DIR/done$ADAPTDL_REPLICA_RANK; wait; echo saved; exit 143' TERM; "
                   "sh -c 'trap \"echo worker asked\" TERM; echo up; while [ ! -e "
                   "$DIR/done$ADAPTDL_REPLICA_RANK ]; do "
                   "sleep 0.02; done; echo worker done' & wait"));
    for (int rank = 0; rank < 2; rank++)
        CHECK(adlt_wait_log(site, "job", 1, rank, "up"));
    backend->ops->stop(backend->self, "job", 1, ADLI_ALL_MEMBERS, false);
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_INTERRUPTED));
    for (int rank = 0; rank < 2; rank++)
        CHECK(adlt_view(site, "job", 1, rank).ended_s > 0);
    for (int rank = 0; rank < 2 * adlt_backend.here; rank++) {
        const char *log = adlt_log(site, "job", 1, rank);
        CHECK_INT(adlt_lines(log, "worker asked"), 0);
        CHECK_INT(adlt_lines(log, "worker done"), 1);
        CHECK_INT(adlt_lines(log, "saved"), 1);
    }
    CLOSE();
}

/* It could not save anything, so there is nothing to wait for. */
TEST(asked_to_stop_a_silent_replica_is_killed)
{
    if (!adlt_backend.here)
        SKIP("%s does not see that a process is stopped", adlt_backend.name);
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
    backend->ops->stop(backend->self, "job", 1, ADLI_ALL_MEMBERS, false);
    backend->ops->stop(backend->self, "late", 1, ADLI_ALL_MEMBERS, false);
    backend->ops->stop(backend->self, "goes-on", 1, ADLI_ALL_MEMBERS, false);
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_INTERRUPTED));
    CHECK_INT(adlt_view(site, "job", 1, 0).cause, ADLI_CAUSE_SILENT);
    CHECK(adlt_wait(site, "late", 1, -1, ADLI_MEMBER_INTERRUPTED));
    CHECK_INT(adlt_view(site, "late", 1, 0).cause, ADLI_CAUSE_SILENT);
    CHECK(adlt_wait(site, "goes-on", 1, -1, ADLI_MEMBER_INTERRUPTED));
    CHECK_INT(adlt_view(site, "goes-on", 1, 0).cause, ADLI_CAUSE_NONE);
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
    backend->ops->stop(backend->self, "job", 1, ADLI_ALL_MEMBERS, false);
    CHECK(adlt_wait_log(site, "job", 1, 1, "no"));
    CHECK_INT(adlt_view(site, "job", 1, 1).state, ADLI_MEMBER_READY);
    backend->ops->stop(backend->self, "job", 1, ADLI_ALL_MEMBERS, true);
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_INTERRUPTED));
    CHECK_INT(adlt_view(site, "job", 1, 0).cause, ADLI_CAUSE_KILLED);
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
        CHECK(adlt_wait(site, "job", group, -1, ADLI_MEMBER_READY));
        backend->ops->stop(backend->self, "job", group, ADLI_ALL_MEMBERS, false);
        CHECK(adlt_wait(site, "job", group, -1, ADLI_MEMBER_INTERRUPTED));
        backend->ops->forget(backend->self, "job", group);
        CHECK(adlt_gone(site, "job", group));
    }
    if (adlt_backend.here) { /* logs stay */
        CHECK_INT(adlt_lines(adlt_log(site, "job", 3, 2), "of 3"), 1);
        CHECK_INT(adlt_lines(adlt_log(site, "job", 4, 1), "of 2"), 1);
    }
    CHECK_STR(adlt_log(site, "job", 4, 2), "");
    CLOSE();
}

TEST(a_lost_node_takes_its_replicas_with_it)
{
    if (!adlt_backend.here)
        SKIP("%s has nodes that come by themselves", adlt_backend.name);
    static const adlt_node one[] = {{"a", 4, 2}}, back[] = {{"c", 1, 0}, {"b", 4, 2}, {"a", 4, 2}};
    const adli_backend_node *nodes;
    int count;
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 2, "trap '' TERM; while :; do sleep 0.02; done"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_READY));
    CHECK_OK(adlt_backend.set_nodes(backend, one, 1));
    CHECK(adlt_wait(site, "job", 1, 1, ADLI_MEMBER_INTERRUPTED));
    CHECK_INT(adlt_view(site, "job", 1, 1).cause, ADLI_CAUSE_NODE_LOST);
    CHECK_INT(adlt_view(site, "job", 1, 0).state, ADLI_MEMBER_READY);
    CHECK_OK(backend->ops->nodes(backend->self, &nodes, &count));
    CHECK_INT(count, 1);
    CHECK_STR(nodes[0].name, "a");
    CHECK_FAILS(adlt_start(site, "next", 1, 2, "echo ran"), ADL_ENOENT, "no node b");
    CHECK(adlt_gone(site, "next", 1));                   /* nothing was started */
    CHECK_OK(adlt_start(site, "job", 1, 2, "echo ran")); /* as often as one likes */
    CHECK_INT(adlt_view(site, "job", 1, 1).cause, ADLI_CAUSE_NODE_LOST);

    CHECK_OK(adlt_backend.set_nodes(backend, back, 3));
    CHECK_OK(backend->ops->nodes(backend->self, &nodes, &count));
    CHECK_INT(count, 3);
    for (int i = 0; i < 3; i++)
        CHECK(nodes[i].ready);
    CHECK_OK(adlt_start(site, "next", 2, 2, "echo ran"));
    CHECK(adlt_wait(site, "next", 2, -1, ADLI_MEMBER_SUCCEEDED));
    CHECK_OK(backend->ops->scale(backend->self, 3));
    CHECK_OK(backend->ops->scale(backend->self, 0));
    CHECK_FAILS(backend->ops->scale(backend->self, -1), ADL_EINVAL, "-1 nodes");
    CLOSE();
}

static void start_command(adlt_site *site, int group, const char *command)
{
    char pod[512];
    adli_start spec;
    snprintf(pod, sizeof pod, "{\"spec\":{\"containers\":[{\"name\":\"main\",\"command\":[%s]}]}}",
             command);
    adlt_spec("job", group, 1, "", &spec);
    spec.pod = pod;
    CHECK_OK(site->backend->ops->start(site->backend->self, &spec));
}

TEST(what_cannot_be_run_says_so)
{
    if (!adlt_backend.here)
        SKIP("%s has words of its own for that", adlt_backend.name);
    static char huge[300000] = "HUGE=";
    const char *too_long[] = {huge, NULL};
    static const char *const texts[] = {"no-such-program-9: No such file",
                                        "/etc/passwd: Permission", "too long"};
    adli_start spec;
    OPEN();
    start_command(site, 1, "\"no-such-program-9\",\"--help\"");
    start_command(site, 2, "\"/etc/passwd\"");
    memset(huge + 5, 'x', sizeof huge - 6);
    adlt_spec("job", 3, 1, "exit 0", &spec);
    spec.env = too_long;
    CHECK_OK(backend->ops->start(backend->self, &spec));
    for (int i = 0; i < 3; i++) {
        CHECK(adlt_wait(site, "job", i + 1, -1, ADLI_MEMBER_FAILED));
        CHECK_INT(adlt_view(site, "job", i + 1, 0).cause, ADLI_CAUSE_CANNOT_RUN);
        if (!strstr(adlt_view(site, "job", i + 1, 0).message, texts[i]))
            ADLT_FAIL("%s", adlt_view(site, "job", i + 1, 0).message);
    }
    CLOSE();
}

TEST(paths_are_where_the_job_expects_them)
{
    if (!adlt_backend.here)
        SKIP("%s has volumes", adlt_backend.name);
    char folder[128], path[160];
    adli_start spec;
    OPEN();
    snprintf(folder, sizeof folder, "%s/image", site->state);
    for (int i = 0; i < 2; i++) { /* the second replaces the first */
        CHECK(mkdir(folder, 0755) == 0);
        snprintf(path, sizeof path, "%s/root", folder);
        CHECK(mkdir(path, 0755) == 0);
        snprintf(path, sizeof path, "%s/root/say.sh", folder);
        FILE *file = fopen(path, "w");
        REQUIRE(file);
        fprintf(file, "echo version %d; pwd\n", i);
        fclose(file);
        CHECK_OK(backend->ops->put_source(backend->self, "job", folder));
        CHECK(access(folder, F_OK) != 0);
    }
    adlt_spec("job", 1, 1, "", &spec);
    spec.pod = adlt_pod("sh /root/say.sh; echo result >/adaptdl/share/out; "
                        "mkdir /adaptdl/share/sub; echo http://h/root/say.sh /adaptdl/sharex "
                        "/etc/passwd $OMP_NUM_THREADS $BOTH",
                        ",\"workingDir\":\"/not/there/yet\","
                        "\"env\":[{\"name\":\"BOTH\",\"value\":\"a=/root/say.sh\"}],"
                        "\"resources\":{\"requests\":{\"cpu\":\"1500m\"}}");
    CHECK_OK(backend->ops->start(backend->self, &spec));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_SUCCEEDED));
    const char *log = adlt_log(site, "job", 1, 0);
    CHECK_INT(adlt_lines(log, "version 1"), 1);
    CHECK(strstr(log, "/not/there/yet\nhttp://h/root/say.sh /adaptdl/sharex /etc/passwd 2 a="));
    CHECK(!strstr(log, " a=/root")); /* a path of the image is mapped */
    CHECK_STR(adlt_file(site, "job", "/adaptdl/share/out"), "result\n");
    adli_opened opened;
    CHECK_OK(backend->ops->open_file(backend->self, "job", "/adaptdl/share", &opened));
    REQUIRE(opened.directory && opened.count == 2 && opened.fd < 0);
    CHECK_STR(opened.entries[0].name, "out");
    CHECK_INT(opened.entries[0].size, 7);
    CHECK(opened.entries[1].directory && !opened.entries[0].directory);
    adli_opened_fini(&opened);
    CHECK_FAILS(backend->ops->open_file(backend->self, "job", "/adaptdl/share/none", &opened),
                ADL_ENOENT, "none");
    CHECK_FAILS(backend->ops->open_file(backend->self, "job", "/adaptdl/share/../../x", &opened),
                ADL_ESTATE, "leads out");
    CHECK_FAILS(backend->ops->open_file(backend->self, "job", "/etc/passwd", &opened), ADL_EINVAL,
                "expected /adaptdl");
    CLOSE();
}

TEST(too_much_memory_is_named)
{
    if (!adlt_backend.limits_memory)
        SKIP("%s does not limit memory", adlt_backend.name);
    adli_start spec;
    OPEN();
    /* A child of the shell holds it, as a loader's worker would, and waits for a reader that never reads.
     * In a control group only the child is killed: the shell waits for that. */
    adlt_spec("job", 1, 1, "", &spec);
    spec.pod = adlt_pod("mkfifo $DIR/never; sleep 300 <$DIR/never & s=$!; "
                        "head -c 400M /dev/zero | tail -c 400M >$DIR/never & wait $!; "
                        "kill $s; exit 1",
                        ",\"resources\":{\"limits\":{\"memory\":\"128Mi\"}}");
    CHECK_OK(backend->ops->start(backend->self, &spec));
    adlt_spec("small", 1, 1, "", &spec);
    spec.pod = adlt_pod("head -c 30M /dev/zero | tail -c 30M | wc -c; sleep 1",
                        ",\"resources\":{\"limits\":{\"memory\":\"128Mi\",\"cpu\":\"900m\"}}");
    CHECK_OK(backend->ops->start(backend->self, &spec));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_FAILED));
    CHECK_INT(adlt_view(site, "job", 1, 0).cause, ADLI_CAUSE_OOM_KILLED);
    CHECK(strstr(adlt_view(site, "job", 1, 0).message, "128 MiB"));
    CHECK(adlt_wait(site, "small", 1, -1, ADLI_MEMBER_SUCCEEDED));
    CLOSE();
}

TEST(a_replica_is_started_once)
{
    OPEN();
    for (int i = 0; i < 5; i++)
        CHECK_OK(adlt_start(site, "job", 1, 3, "echo $ADAPTDL_REPLICA_RANK >>$DIR/runs"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_SUCCEEDED));
    for (int i = 0; i < 5; i++)
        CHECK_OK(adlt_start(site, "job", 1, 3, "echo $ADAPTDL_REPLICA_RANK >>$DIR/runs"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_SUCCEEDED));
    for (int rank = 0; rank < 3; rank++) {
        char line[2] = {(char)('0' + rank), 0};
        CHECK_INT(adlt_lines(adlt_file(site, "job", "/adaptdl/share/runs"), line), 1);
    }
    CLOSE();
}

TEST(bad_specs_are_refused)
{
    if (!adlt_backend.here)
        SKIP("%s asks a server what can be run", adlt_backend.name);
    static const char *const bad_env[] = {"NOVALUE", NULL};
    adli_start spec;
    adli_member_view view;
    adli_opened opened;
    int count, fd;
    OPEN();
    CHECK_FAILS(backend->ops->open_file(backend->self, "../x", "/adaptdl/share", &opened),
                ADL_EINVAL, "uid");
    CHECK_FAILS(backend->ops->open_log(backend->self, "../x", 1, 0, &fd), ADL_EINVAL, "uid");
    CHECK_FAILS(backend->ops->put_source(backend->self, "../x", "x"), ADL_EINVAL, "uid");
    static const char *const pods[][2] = {
        {"", "pod template"},
        {"{\"spec\":{}}", "containers"},
        {"{\"spec\":{\"containers\":[{\"name\":\"main\"}]}}", "command"},
        {"{\"spec\":{\"containers\":[{\"name\":\"main\",\"command\":[\"x\"],\"resources\":"
         "{\"limits\":{\"memory\":\"-1\"}}}]}}",
         "memory"}};
    for (size_t i = 0; i < sizeof pods / sizeof pods[0]; i++) {
        adlt_spec("good", 1, 1, "exit 0", &spec);
        spec.pod = pods[i][0];
        CHECK_FAILS(backend->ops->start(backend->self, &spec), ADL_EINVAL, pods[i][1]);
    }
    adlt_spec("good", 1, 1, "exit 0", &spec);
    spec.env = bad_env;
    CHECK_FAILS(backend->ops->start(backend->self, &spec), ADL_EINVAL, "NOVALUE");
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
    adli_opened opened;
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
    if (adlt_backend.here)
        CHECK_STR(adlt_log(site, "job", 1, 1), "hello\n");
    CHECK_FAILS(adlt_start(site, "job", 1, 2, "echo hello"), ADL_ESTATE, "over");
    CHECK(adlt_wait(site, "job", 20, -1, ADLI_MEMBER_READY));
    backend->ops->forget(backend->self, "job", 7);
    backend->ops->forget(backend->self, "nobody", 1);
    sum = 0;
    backend->ops->list(backend->self, count_group, &sum);
    CHECK_INT(sum, 320);
    adlt_backend.touch(site->state, "job", "kept");
    CHECK_OK(backend->ops->open_file(backend->self, "job", "/adaptdl/share/kept", &opened));
    adli_opened_fini(&opened);
    backend->ops->remove(backend->self, "job");
    CHECK_FAILS(backend->ops->open_file(backend->self, "job", "/adaptdl/share/kept", &opened),
                ADL_ENOENT, "kept");
    if (adlt_backend.here)
        CHECK_STR(adlt_log(site, "job", 1, 1), "");
    CHECK(adlt_gone(site, "job", 20));
    CHECK(adlt_wait(site, "two", 300, -1, ADLI_MEMBER_READY));
    CLOSE();
}

TEST(descendants_end_with_their_replica)
{
    if (!adlt_backend.here)
        SKIP("%s has no processes here to be counted", adlt_backend.name);
    static const char *const family =
        "(sleep 1000 &) ; setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & sleep 1000' & "
        "(setsid sh -c 'setsid sleep 1000 & setsid sleep 1000 &' &) ; sleep 0.2; echo up; ";
    char script[512];
    OPEN();
    snprintf(script, sizeof script, "%s exit 3", family);
    CHECK_OK(adlt_start(site, "ends", 1, 2, script));
    snprintf(script, sizeof script, "%s sleep 1000", family);
    CHECK_OK(adlt_start(site, "killed", 1, 2, script));
    CHECK(adlt_wait(site, "ends", 1, -1, ADLI_MEMBER_FAILED));
    for (int rank = 0; rank < 2; rank++)
        CHECK(adlt_wait_log(site, "killed", 1, rank, "up"));
    int before = adlt_backend.leftovers(site->state);
    CHECK(before >= 2 * 6); /* keeper, shell, five sleeps and their shells: all of the second job */
    backend->ops->stop(backend->self, "killed", 1, ADLI_ALL_MEMBERS, true);
    CHECK(adlt_wait(site, "killed", 1, -1, ADLI_MEMBER_INTERRUPTED));
    printf("info - %d processes of 2 replicas ended with them\n", before);
    CLOSE();
}

TEST(output_goes_to_a_file_for_each_replica)
{
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 2,
                        "echo out $ADAPTDL_REPLICA_RANK; echo err $ADAPTDL_REPLICA_RANK >&2"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_SUCCEEDED));
    for (int rank = 0; rank < 2; rank++) {
        char out[16], err[16], both[32];
        snprintf(out, sizeof out, "out %d\n", rank);
        snprintf(err, sizeof err, "err %d\n", rank);
        snprintf(both, sizeof both, "%s%s", out, err);
        const char *log = adlt_log(site, "job", 1, rank);
        if (adlt_backend.here)
            CHECK_STR(log, both);
        else /* a node reads two pipes, in an order of its own */
            CHECK(strlen(log) == strlen(both) && strstr(log, out) && strstr(log, err));
    }
    CLOSE();
}
