/* What is particular to the local backend: keepers, control groups, declared nodes, damage. */
#include "backend/local/local.h"
#include "base/mem.h"
#include "conformance/suite.h"
#include "harness.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const family =
    "(sleep 1000 &) ; setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & sleep 1000' & "
    "(setsid sh -c 'setsid sleep 1000 & setsid sleep 1000 &' &) ; sleep 0.2; echo up; sleep 1000";

static long keeper_of(const adlt_site *site, const char *uid, int group, int rank)
{
    char path[256];
    snprintf(path, sizeof path, "%s/jobs/%s/groups/%d/%d.claim", site->state, uid, group, rank);
    return strtol(adlt_text(path) + 2, NULL, 10);
}

TEST(a_killed_keeper_takes_everything_with_it)
{
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 2, family));
    CHECK(adlt_wait_log(site, "job", 1, 0, "up") && adlt_wait_log(site, "job", 1, 1, "up"));
    long keeper = keeper_of(site, "job", 1, 0);
    REQUIRE(keeper > 1);
    CHECK(kill((pid_t)keeper, SIGKILL) == 0);
    CHECK(adlt_wait(site, "job", 1, 0, ADLI_MEMBER_INTERRUPTED));
    adli_member_view view = adlt_view(site, "job", 1, 0);
    CHECK_INT(view.cause, ADLI_CAUSE_LOST);
    CHECK_INT(view.exit_code, -1);
    CHECK_INT(adlt_view(site, "job", 1, 1).state, ADLI_MEMBER_READY);
    CHECK_OK(adlt_start(site, "job", 1, 2, family)); /* never again */
    CHECK_INT(adlt_view(site, "job", 1, 0).cause, ADLI_CAUSE_LOST);
    CLOSE();
}

TEST(keepers_are_small_and_nobodys_children)
{
    char path[64], *at;
    long pages = 0;
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 1, "sleep 1000"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_READY));
    long keeper = keeper_of(site, "job", 1, 0);
    snprintf(path, sizeof path, "/proc/%ld/stat", keeper);
    const char *stat = adlt_text(path);
    long parent = 0, process_group = 0, session = 0;
    at = strrchr(stat, ')');
    REQUIRE(at && sscanf(at + 1, " %*c %ld %ld %ld", &parent, &process_group, &session) == 3);
    CHECK(parent != (long)getpid());
    CHECK_INT(session, keeper);
    CHECK_INT(process_group, keeper);
    snprintf(path, sizeof path, "/proc/%ld/statm", keeper);
    CHECK(sscanf(adlt_text(path), "%*d %ld", &pages) == 1);
    printf("info - a keeper has %ld KiB resident\n", pages * sysconf(_SC_PAGESIZE) / 1024);
    snprintf(path, sizeof path, "ls /proc/%ld/fd | wc -l", keeper);
    FILE *listing = popen(path, "r");
    int descriptors = 0;
    CHECK(listing && fscanf(listing, "%d", &descriptors) == 1 && pclose(listing) == 0);
    CHECK(descriptors <= 6); /* three of /dev/null, signals, directory, claim */
    CLOSE();
}

TEST(a_damaged_result_is_a_lost_replica)
{
    char path[256];
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 1, "exit 0"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_SUCCEEDED));
    snprintf(path, sizeof path, "%s/jobs/job/groups/1/0.result", site->state);
    CHECK(truncate(path, 20) == 0);
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_INTERRUPTED));
    CHECK_INT(adlt_view(site, "job", 1, 0).cause, ADLI_CAUSE_LOST);
    snprintf(path, sizeof path, "%s/jobs/job/groups/1/plan", site->state);
    CHECK(truncate(path, 20) == 0);
    REQUIRE_OK(adlt_reopen(site));
    adli_member_view view;
    int count;
    CHECK_FAILS(site->backend->ops->observe(site->backend->self, "job", 1, &view, 1, &count),
                ADL_ECORRUPT, "plan");
    site->backend->ops->forget(site->backend->self, "job", 1);
    CHECK(adlt_gone(site, "job", 1));
    CLOSE();
}

/* Whatever else is lost with a plan: what runs by it ends when it is forgotten. */
TEST(an_unreadable_plan_leaves_nothing_running)
{
    char path[256];
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 2, family));
    CHECK(adlt_wait_log(site, "job", 1, 0, "up") && adlt_wait_log(site, "job", 1, 1, "up"));
    CHECK(adlt_backend.leftovers(site->state) > 0);
    snprintf(path, sizeof path, "%s/jobs/job/groups/1/plan", site->state);
    CHECK(truncate(path, 20) == 0);
    REQUIRE_OK(adlt_reopen(site));
    site->backend->ops->forget(site->backend->self, "job", 1);
    CHECK(adlt_gone(site, "job", 1));
    CLOSE(); /* counts what is left */
}

/* A job owns its directories, and may put links there. */
TEST(files_are_only_the_jobs_own)
{
    char path[256], elsewhere[256];
    adli_opened opened;
    struct stat info;
    OPEN();
    snprintf(path, sizeof path, "%s/jobs/asks", site->state);
    CHECK_OK(backend->ops->open_file(backend->self, "asks", "/adaptdl/share", &opened));
    CHECK(opened.directory && opened.count == 0);
    adli_opened_fini(&opened);
    CHECK_FAILS(backend->ops->open_file(backend->self, "asks", "/adaptdl/share/x", &opened),
                ADL_ENOENT, "share/x");
    CHECK(stat(path, &info) != 0); /* asking makes nothing */
    CHECK_OK(adlt_start(site, "job", 1, 1, "echo mine > $DIR/file"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_SUCCEEDED));
    snprintf(path, sizeof path, "%s/jobs/job/share", site->state);
    snprintf(elsewhere, sizeof elsewhere, "%s/jobs/job/away", site->state);
    CHECK(rename(path, elsewhere) == 0 && symlink("/etc", path) == 0);
    CHECK_FAILS(backend->ops->open_file(backend->self, "job", "/adaptdl/share/passwd", &opened),
                ADL_ESTATE, "leads out");
    CHECK_FAILS(backend->ops->open_file(backend->self, "job", "/adaptdl/share", &opened),
                ADL_ESTATE, "leads out");
    CLOSE();
}

static void move_and_link(const char *path, char away[300])
{
    snprintf(away, 300, "%s.away", path);
    CHECK(rename(path, away) == 0 && symlink(away, path) == 0);
}

/* What lies below a job's directory is found by its name alone: a link in the place of any part of it leads nowhere. */
TEST(links_in_place_of_a_jobs_directories_are_not_followed)
{
    static const char *const below[] = {"", "/groups", "/groups/1", "/logs"};
    char path[256], away[300];
    adli_opened opened;
    int fd;
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 1, "echo mine > $DIR/file; echo said"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_SUCCEEDED));
    for (size_t i = 0; i < ADLI_COUNT(below); i++) {
        snprintf(path, sizeof path, "%s/jobs/job%s", site->state, below[i]);
        move_and_link(path, away);
        adl_status log = backend->ops->open_log(backend->self, "job", 1, 0, &fd);
        CHECK(log == (i == 0 || i == 3 ? ADL_EIO : ADL_OK));
        if (log == ADL_OK)
            close(fd);
        adl_status file =
            backend->ops->open_file(backend->self, "job", "/adaptdl/share/file", &opened);
        CHECK(file == (i == 0 ? ADL_ESTATE : ADL_OK));
        adli_opened_fini(&opened);
        REQUIRE_OK(adlt_reopen(site));
        backend = site->backend;
        CHECK(adlt_gone(site, "job", 1) == (i < 3));
        if (i != 2)
            CHECK(adlt_start(site, "job", 2, 1, "exit 0") == ADL_EINVAL);
        else
            CHECK(adlt_start(site, "job", 1, 1, "exit 0") == ADL_EINVAL);
        CHECK(unlink(path) == 0 && rename(away, path) == 0);
        REQUIRE_OK(adlt_reopen(site));
        backend = site->backend;
    }
    CHECK_INT(adlt_view(site, "job", 1, 0).state, ADLI_MEMBER_SUCCEEDED);
    CHECK_OK(adlt_start(site, "job", 2, 1, "exit 0"));
    CHECK(adlt_wait(site, "job", 2, -1, ADLI_MEMBER_SUCCEEDED));
    CLOSE();
}

/* Nor is STATE/jobs: neither at the start, nor when a job's directory is removed later. */
TEST(a_link_in_place_of_all_jobs_is_not_followed)
{
    char path[256], away[300], kept[320];
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 1, "exit 0"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_SUCCEEDED));
    snprintf(path, sizeof path, "%s/jobs", site->state);
    move_and_link(path, away);
    backend->ops->remove(backend->self, "job");
    snprintf(kept, sizeof kept, "%s/job", away);
    CHECK(access(kept, F_OK) == 0);
    const adli_local_node node = {.name = "a"};
    adli_local_options options = ADLI_LOCAL_OPTIONS_INIT;
    adli_backend *other;
    options.state_dir = site->state;
    options.nodes = &node;
    options.node_count = 1;
    CHECK_FAILS(adli_local_new(&options, &other), ADL_EINVAL, "jobs: is a link");
    CHECK(unlink(path) == 0 && rename(away, path) == 0);
    CLOSE();
}

/* Nor is the folder that removed jobs are moved to: what is elsewhere stays, and the job goes all the same. */
TEST(a_link_in_place_of_the_trash_is_not_followed)
{
    char path[256], away[300], kept[320];
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 1, "exit 0"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_SUCCEEDED));
    snprintf(away, sizeof away, "%s/elsewhere", site->state);
    snprintf(kept, sizeof kept, "%s/theirs", away);
    CHECK(mkdir(away, 0700) == 0 && mkdir(kept, 0700) == 0);
    snprintf(path, sizeof path, "%s/jobs/.trash", site->state);
    CHECK(symlink(away, path) == 0);
    REQUIRE_OK(adlt_reopen(site));
    backend = site->backend;
    backend->ops->remove(backend->self, "job");
    REQUIRE_OK(adlt_reopen(site));
    backend = site->backend;
    CHECK(access(kept, F_OK) == 0);
    snprintf(kept, sizeof kept, "%s/job.0", away);
    CHECK(access(kept, F_OK) != 0);
    snprintf(path, sizeof path, "%s/jobs/job", site->state);
    CHECK(access(path, F_OK) != 0);
    CLOSE();
}

TEST(what_a_killed_scheduler_was_writing_is_cleared_away)
{
    char path[256];
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 1, "exit 0"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_SUCCEEDED));
    snprintf(path, sizeof path, "%s/jobs/job/groups/forgotten.tmp.1", site->state);
    FILE *file = fopen(path, "w");
    REQUIRE(file && fclose(file) == 0);
    REQUIRE_OK(adlt_reopen(site));
    CHECK(access(path, F_OK) != 0);
    CHECK_INT(adlt_view(site, "job", 1, 0).state, ADLI_MEMBER_SUCCEEDED);
    CLOSE();
}

TEST(limits_are_kept_by_control_groups_of_version_1)
{
    adli_start spec;
    setenv("ADLT_CGROUPS", "v1", 1);
    adlt_site *site = adlt_open();
    unsetenv("ADLT_CGROUPS");
    if (!site)
        SKIP("%s", adl_error());
    adli_backend *backend = site->backend;
    CHECK_STR(adli_local_limits(backend), "cgroup v1");
    adlt_spec("job", 1, 1, "", &spec);
    spec.pod = adlt_pod("for kind in memory cpu; do "
                        "g=/sys/fs/cgroup/$kind$(sed -n \"s/^[0-9]*:$kind://p\" "
                        "/proc/self/cgroup); "
                        "cat $g/memory.limit_in_bytes $g/cpu.cfs_quota_us 2>/dev/null; done; "
                        "setsid sleep 1000 & exit 0",
                        ",\"resources\":{\"limits\":{\"memory\":\"256Mi\",\"cpu\":\"250m\"}}");
    CHECK_OK(backend->ops->start(backend->self, &spec));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_SUCCEEDED));
    CHECK_STR(adlt_log(site, "job", 1, 0), "268435456\n25000\n");

    adlt_spec("large", 1, 1, "", &spec);
    spec.pod = adlt_pod("head -c 400M /dev/zero | tail -c 400M | sleep 1; exit 1",
                        ",\"resources\":{\"limits\":{\"memory\":\"64Mi\"}}");
    CHECK_OK(backend->ops->start(backend->self, &spec));
    CHECK(adlt_wait(site, "large", 1, -1, ADLI_MEMBER_FAILED));
    CHECK_INT(adlt_view(site, "large", 1, 0).cause, ADLI_CAUSE_OOM_KILLED);

    CHECK_OK(adlt_start(site, "lost", 1, 1, family)); /* the group goes even without its keeper */
    CHECK(adlt_wait_log(site, "lost", 1, 0, "up"));
    CHECK(kill((pid_t)keeper_of(site, "lost", 1, 0), SIGKILL) == 0);
    CHECK(adlt_wait(site, "lost", 1, -1, ADLI_MEMBER_INTERRUPTED));
    CHECK_INT(adlt_view(site, "lost", 1, 0).cause, ADLI_CAUSE_LOST);
    CLOSE();
}

/* ---- declared nodes ---- */

static adli_local_node gpu_node(const char *name, int gpus, const char *which)
{
    return (adli_local_node){.name = name,
                             .resource_count = 1,
                             .resource_names = {"nvidia.com/gpu"},
                             .resource_amounts = {gpus},
                             .gpus = which};
}

/* What one replica that asks for `devices` on the node sees. */
static const char *seen_on(adlt_site *site, const char *uid, const char *node, int devices)
{
    adli_start spec;
    adli_member_start one = {.node = node};
    char limits[80];
    snprintf(limits, sizeof limits, ",\"resources\":{\"limits\":{\"nvidia.com/gpu\":%d}}", devices);
    adlt_spec(uid, 1, 1, "", &spec);
    spec.members = &one;
    spec.pod = adlt_pod("echo $CUDA_VISIBLE_DEVICES; sleep 1000", limits);
    if (site->backend->ops->start(site->backend->self, &spec) != ADL_OK ||
        !adlt_wait_log(site, uid, 1, 0, "\n"))
        return adl_error();
    return adlt_log(site, uid, 1, 0);
}

TEST(gpus_stay_with_their_nodes)
{
    OPEN(); /* a: 0 1, b: 2 3 */
    adli_local_node nodes[3] = {gpu_node("c", 1, NULL), gpu_node("b", 2, NULL),
                                gpu_node("d", 2, "GPU-x, GPU-y")};
    CHECK_OK(adli_local_set_nodes(backend, nodes, 3));
    CHECK_STR(seen_on(site, "one", "b", 2), "2,3\n"); /* as before */
    CHECK_STR(seen_on(site, "two", "c", 1), "0\n");   /* a is gone */
    CHECK_STR(seen_on(site, "three", "d", 2), "GPU-x,GPU-y\n");
    CLOSE();
}

/* Who joins others is told so, and where their next rank 0 listens is nobody else's place. */
TEST(members_that_join_know_it_and_meet_somewhere)
{
    static const char script[] = "echo member $ADAPTDL_MEMBER joins $ADAPTDL_JOIN.; sleep 100";
    adli_member_start one = {.member = 4, .rank = 1, .node = "b"};
    adli_start spec;
    char address[64];
    int ports[40];
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 1, script));
    adlt_spec("job", 1, 2, script, &spec);
    spec.members = &one;
    spec.count = 1;
    spec.joins = true;
    CHECK_OK(backend->ops->start(backend->self, &spec));
    CHECK(adlt_wait_log(site, "job", 1, 0, "member 0 joins 0."));
    CHECK(adlt_wait_log(site, "job", 1, 4, "member 4 joins 1."));
    for (int i = 0; i < 40; i++) {
        CHECK_OK(backend->ops->meet(backend->self, &(adli_meet){"job", 1, 0, "a"}, address,
                                    sizeof address, &ports[i]));
        CHECK(ports[i] > 1023 && address[0]);
        for (int k = 0; k < i; k++)
            CHECK(ports[k] != ports[i]);
    }
    CHECK_FAILS(backend->ops->meet(backend->self, &(adli_meet){"job", 1, 0, "nowhere"}, address,
                                   sizeof address, &ports[0]),
                ADL_ENOENT, "nowhere");
    CLOSE();
}

TEST(no_nodes_at_all_are_refused)
{
    OPEN();
    CHECK_FAILS(backend->ops->declare(backend->self, NULL), ADL_EINVAL, "nodes");
    CHECK_INT(adlt_view(site, "job", 1, 0).state, ADLI_MEMBER_WAITING);
    CLOSE();
}

TEST(bad_nodes_change_nothing)
{
    const adli_backend_node *views;
    int count;
    OPEN();
    adli_local_node twice[] = {gpu_node("x", 0, NULL), gpu_node("x", 0, NULL)};
    CHECK_FAILS(adli_local_set_nodes(backend, twice, 2), ADL_EINVAL, "twice");
    adli_local_node unnamed = gpu_node("", 0, NULL), less = gpu_node("n", -1, NULL);
    CHECK_FAILS(adli_local_set_nodes(backend, &unnamed, 1), ADL_EINVAL, "name");
    CHECK_FAILS(adli_local_set_nodes(backend, &less, 1), ADL_EINVAL, "-1");
    adli_local_node few = gpu_node("n", 2, "0"), many = gpu_node("n", 1, "0,1");
    CHECK_FAILS(adli_local_set_nodes(backend, &few, 1), ADL_EINVAL, "gpus");
    CHECK_FAILS(adli_local_set_nodes(backend, &many, 1), ADL_EINVAL, "gpus");
    CHECK_OK(backend->ops->nodes(backend->self, &views, &count));
    CHECK_INT(count, 2);
    CHECK(views[0].ready && views[1].ready);
    CLOSE();
}

TEST(this_machine_is_a_node)
{
    adli_local_node node;
    adli_local_machine(&node);
    CHECK_STR(node.name, "node-0");
    CHECK(node.resource_count >= 3 && node.resource_amounts[0] >= 1);
    CHECK(node.resource_amounts[1] >= 1000 && node.resource_amounts[2] > 64 << 20);
}

TEST(bad_options_are_named)
{
    adli_local_options options = ADLI_LOCAL_OPTIONS_INIT;
    adli_backend *backend;
    CHECK_FAILS(adli_local_new(&options, &backend), ADL_EINVAL, "options");
    options.state_dir = "/dev/null/x";
    CHECK_FAILS(adli_local_new(&options, &backend), ADL_EIO, "/dev/null");
    char dir[] = "/tmp/adl-options-XXXXXX";
    REQUIRE(mkdtemp(dir));
    options.state_dir = dir;
    options.keeper = "/no/such/keeper";
    CHECK_FAILS(adli_local_new(&options, &backend), ADL_ENOENT, "/no/such/keeper");
    CHECK(!backend);
    options.keeper = NULL;
    options.cgroups = ADLI_CGROUPS_V2;
    options.cgroup_parent = dir;
    CHECK_FAILS(adli_local_new(&options, &backend), ADL_ENOENT, "cgroups");
    CHECK(rmdir(dir) == 0);
}

/* ---- no memory ---- */

static adl_status one_life(adlt_site *site, int group)
{
    adl_status status = adlt_reopen(site);
    if (status != ADL_OK)
        site->backend = NULL;
    if (status == ADL_OK)
        status = adlt_start(site, "job", group, 1, "exit 0");
    return status;
}

TEST(any_allocation_may_fail)
{
    int failed = 0, group = 1;
    OPEN();
    for (int64_t nth = 1; !adlt_failed; nth++) {
        adli_mem_fail_at(nth);
        int64_t before = adli_mem_count();
        adl_status status = one_life(site, group);
        adli_mem_fail_at(0);
        bool reached = adli_mem_count() - before >= nth;
        if (!site->backend)
            CHECK_OK(adlt_reopen(site));
        failed += status != ADL_OK;
        CHECK(status == ADL_OK || reached);
        CHECK_OK(adlt_start(site, "job", group, 1, "exit 0"));
        CHECK(adlt_wait(site, "job", group, -1, ADLI_MEMBER_SUCCEEDED));
        site->backend->ops->forget(site->backend->self, "job", group++);
        if (!reached)
            break;
    }
    CHECK(failed > 10);
    printf("info - %d of %d allocations failed in turn\n", failed, group - 1);
    CLOSE();
}
