/* The local backend's parts on their own: records, trees, processes, control groups, the keeper's command
 * line. */
#include "backend/local/cgroup.h"
#include "backend/local/claim.h"
#include "backend/local/keeper.h"
#include "backend/output.h"
#include "backend/local/plan.h"
#include "proc/procs.h"
#include "backend/local/record.h"
#include "base/dirs.h"
#include "base/file.h"
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[64];

static int make_directory(void)
{
    strcpy(directory, "/tmp/adl-parts-XXXXXX");
    return mkdtemp(directory) ? open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
}

static void remove_directory(int dir)
{
    close(dir);
    adli_dirs_remove(AT_FDCWD, directory);
    CHECK(access(directory, F_OK) != 0);
}

static void write_file(int dir, const char *name, const void *data, size_t length)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, data, length) == (ssize_t)length);
    close(fd);
}

TEST(records_come_back_or_are_refused)
{
    adli_buf buf, again;
    int64_t number;
    size_t at = 0;
    int dir = make_directory(), damaged = 0;
    REQUIRE(dir >= 0);
    adli_buf_init(&buf, ADLI_RECORD_MAX_BYTES);
    adli_buf_init(&again, ADLI_RECORD_MAX_BYTES);
    CHECK_FAILS(adli_record_read(dir, "none", &again), ADL_ENOENT, "none");
    adli_record_put(&buf, "name", "a=b\nc");
    adli_record_put_int(&buf, "number", INT64_MIN);
    CHECK_OK(adli_record_write(dir, "r", &buf, true));
    CHECK_FAILS(adli_record_write(dir, "r", &buf, true), ADL_ESTATE, "r");
    CHECK_OK(adli_record_write(dir, "r", &buf, false));
    CHECK_OK(adli_record_read(dir, "r", &again));
    CHECK(!adli_record_next(&again, &at, "other"));
    CHECK_STR(adli_record_next(&again, &at, "name"), "a=b\nc");
    CHECK_OK(adli_record_next_int(&again, &at, "number", &number));
    CHECK(number == INT64_MIN);
    CHECK(!adli_record_next(&again, &at, "number"));

    char whole[256];
    int fd = openat(dir, "r", O_RDONLY | O_CLOEXEC);
    ssize_t length = read(fd, whole, sizeof whole);
    close(fd);
    for (ssize_t i = 0; i < length; i++) {
        whole[i] ^= 0x10;
        write_file(dir, "bad", whole, (size_t)length);
        whole[i] ^= 0x10;
        adli_buf_clear(&again);
        damaged += adli_record_read(dir, "bad", &again) == ADL_ECORRUPT;
        write_file(dir, "bad", whole, (size_t)i);
        adli_buf_clear(&again);
        damaged += adli_record_read(dir, "bad", &again) == ADL_ECORRUPT;
    }
    CHECK_INT(damaged, 2 * length);
    adli_buf_fini(&buf);
    adli_buf_fini(&again);
    remove_directory(dir);
}

/* A record with a good checksum and wrong fields is not a plan and not a result. */
TEST(wrong_fields_are_refused)
{
    static const char *const fields[][2] = {
        {"replicas", "0"}, {"replicas", "99999999"}, {"replicas", "x"},
        {"port", "1"},     {"replicas", "4 "},       {"replicas", ""},
    };
    adli_start_plan *plan;
    adli_result result;
    int dir = make_directory();
    REQUIRE(dir >= 0);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        adli_buf buf;
        adli_buf_init(&buf, 4096);
        adli_record_put(&buf, fields[i][0], fields[i][1]);
        adli_record_put_int(&buf, "port", 5);
        adli_record_put_int(&buf, "cgroup", 0);
        CHECK_OK(adli_record_write(dir, "plan", &buf, false));
        CHECK_FAILS(adli_start_plan_read(dir, "plan", &plan), ADL_ECORRUPT, "plan");
        CHECK(!plan);
        CHECK_OK(adli_record_write(dir, "0.result", &buf, false));
        CHECK(adli_result_read(dir, 0, &result) == ADL_ECORRUPT);
        adli_buf_fini(&buf);
    }
    adli_result_set(&result, ADLI_MEMBER_FAILED, 3, ADLI_CAUSE_OOM_KILLED, "two\nlines and %s",
                    "more");
    result.ended_s = 1234.5;
    CHECK_OK(adli_result_write(dir, 0, &result));
    CHECK_OK(adli_result_read(dir, 0, &result));
    CHECK_STR(result.message, "two lines and more");
    CHECK_INT(result.exit_code, 3);
    CHECK_INT(result.cause, ADLI_CAUSE_OOM_KILLED);
    CHECK_NEAR(result.ended_s, 1234.5, 1e-6);
    remove_directory(dir);
}

/* A result and a plan as the version before wrote them: replicas that it had started are found. */
TEST(files_of_the_version_before_are_read)
{
    static const char *const plan_fields[][2] = {
        {"replicas", "2"}, {"port", "4711"}, {"cgroup", "0"}, {"cgroup0", ""},
        {"cgroup1", ""},   {"refused", ""},  {"message", ""}, {"node", "a"},
        {"gpus", "-"},     {"node", "b"},    {"gpus", "1"}};
    static const char *const result_fields[][2] = {
        {"state", "3"}, {"exit", "143"}, {"reason", "NodeLost"}, {"message", "its node was lost"}};
    adli_start_plan *plan;
    adli_result result;
    adli_buf buf;
    int dir = make_directory();
    REQUIRE(dir >= 0);
    adli_buf_init(&buf, 4096);
    for (size_t i = 0; i < sizeof plan_fields / sizeof plan_fields[0]; i++)
        adli_record_put(&buf, plan_fields[i][0], plan_fields[i][1]);
    CHECK_OK(adli_record_write(dir, "plan", &buf, false));
    adli_buf_clear(&buf);
    for (size_t i = 0; i < sizeof result_fields / sizeof result_fields[0]; i++)
        adli_record_put(&buf, result_fields[i][0], result_fields[i][1]);
    CHECK_OK(adli_record_write(dir, "1.result", &buf, false));
    adli_buf_fini(&buf);
    REQUIRE_OK(adli_start_plan_read(dir, "plan", &plan));
    CHECK(plan->count == 2 && plan->members[0] == 0 && plan->members[1] == 1);
    CHECK_STR(plan->nodes[1], "b");
    adli_start_plan_free(plan);
    CHECK_OK(adli_result_read(dir, 1, &result));
    CHECK_INT(result.state, ADLI_MEMBER_INTERRUPTED);
    CHECK_INT(result.cause, ADLI_CAUSE_NODE_LOST);
    CHECK_NEAR(result.ended_s, 0, 0);
    remove_directory(dir);
}

TEST(plans_come_back)
{
    const char *nodes[] = {"a", "b"}, *gpus[] = {"0,1", "-"};
    int members[] = {0, 1};
    adli_start_plan plan = {.count = 2,
                            .port = 4711,
                            .refused = "",
                            .message = "",
                            .members = members,
                            .nodes = nodes,
                            .gpus = gpus,
                            .cgroups = {ADLI_CGROUP_V1, {"/m", "/c"}}};
    adli_start_plan *again;
    int dir = make_directory();
    REQUIRE(dir >= 0);
    CHECK_FAILS(adli_start_plan_read(dir, "plan", &again), ADL_ENOENT, "plan");
    CHECK_OK(adli_start_plan_write(dir, "plan", &plan));
    CHECK_FAILS(adli_start_plan_write(dir, "plan", &plan), ADL_ESTATE, "plan");
    REQUIRE_OK(adli_start_plan_read(dir, "plan", &again));
    CHECK(again->count == 2 && again->port == 4711 && again->cgroups.kind == ADLI_CGROUP_V1);
    CHECK_STR(again->cgroups.path[1], "/c");
    CHECK_STR(again->nodes[1], "b");
    CHECK_STR(again->gpus[0], "0,1");
    CHECK(again->members[0] == 0 && again->members[1] == 1);
    adli_start_plan_free(again);
    members[0] = 4;
    members[1] = 7;
    CHECK_OK(adli_start_plan_write(dir, "plan-4", &plan));
    REQUIRE_OK(adli_start_plan_read(dir, "plan-4", &again));
    CHECK(again->members[0] == 4 && again->members[1] == 7);
    CHECK_STR(again->gpus[1], "-");
    adli_start_plan_free(again);
    remove_directory(dir);
}

TEST(a_claim_is_made_once_and_locked_while_its_owner_lives)
{
    int dir = make_directory(), first, second, lock;
    pid_t keeper;
    REQUIRE(dir >= 0);
    CHECK_INT(adli_claim_look(dir, 3, &keeper, &lock), ADLI_CLAIM_NONE);
    CHECK_OK(adli_claim_take(dir, 3, &first));
    CHECK_FAILS(adli_claim_take(dir, 3, &second), ADL_ESTATE, "3.claim");
    CHECK_INT(adli_claim_look(dir, 3, &keeper, &lock), ADLI_CLAIM_STARTING);
    CHECK(keeper == getpid() && lock == -1);
    adli_claim_ready(first);
    CHECK_INT(adli_claim_look(dir, 3, &keeper, &lock), ADLI_CLAIM_RUNNING);
    close(first);
    CHECK_INT(adli_claim_look(dir, 3, &keeper, &lock), ADLI_CLAIM_DEAD);
    CHECK(lock >= 0);
    close(lock);
    CHECK_FAILS(adli_claim_take(dir, 3, &second), ADL_ESTATE, "3.claim");
    adli_claim_signal(dir, 3, SIGKILL); /* nobody there: we live on */
    remove_directory(dir);
}

TEST(trees_are_removed_whole_and_links_not_followed)
{
    char path[256];
    struct stat info;
    int top = make_directory();
    REQUIRE(top >= 0);
    CHECK_OK(adli_dirs_make("/tmp", 0755));
    snprintf(path, sizeof path, "%s/x/y/z", directory);
    CHECK_OK(adli_dirs_make(path, 0755));
    CHECK_OK(adli_dirs_make(path, 0755));
    write_file(top, "file", "", 0);
    snprintf(path, sizeof path, "%s/file/z", directory);
    CHECK(adli_dirs_make(path, 0755) == ADL_EIO);
    snprintf(path, sizeof path, "%s/file", directory);
    CHECK_FAILS(adli_dirs_make(path, 0755), ADL_EIO, "not a directory");

    CHECK(mkdirat(top, "keep", 0755) == 0 && mkdirat(top, "keep/inside", 0755) == 0);
    CHECK(symlinkat("../keep", top, "x/link") == 0);
    CHECK(mkdirat(top, "x/closed", 0755) == 0 && mkdirat(top, "x/closed/d", 0755) == 0);
    CHECK(fchmodat(top, "x/closed", 0, 0) == 0);
    int dir = openat(top, "x", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < 1500; i++) { /* deeper than PATH_MAX and than there are descriptors */
        CHECK(mkdirat(dir, "deep", 0755) == 0);
        int next = openat(dir, "deep", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        write_file(dir, "f", "f", 1);
        close(dir);
        dir = next;
    }
    close(dir);
    snprintf(path, sizeof path, "%s/x", directory);
    CHECK_OK(adli_dirs_remove(AT_FDCWD, path));
    CHECK(fstatat(top, "x", &info, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT);
    CHECK(fstatat(top, "keep/inside", &info, 0) == 0);
    CHECK_OK(adli_dirs_remove(top, "nothing"));
    CHECK_OK(adli_dirs_remove(top, "nowhere/nothing"));
    CHECK_FAILS(adli_dirs_make("", 0755), ADL_EINVAL, "without a name");
    remove_directory(top);
}

TEST(directories_are_copied_without_their_links)
{
    char from[80], to[80], path[200];
    int top = make_directory();
    REQUIRE(top >= 0);
    snprintf(from, sizeof from, "%s/from", directory);
    snprintf(to, sizeof to, "%s/to", directory);
    snprintf(path, sizeof path, "%s/below", from);
    CHECK_OK(adli_dirs_make(path, 0755));
    CHECK_OK(adli_dirs_make(to, 0755));
    snprintf(path, sizeof path, "%s/below/run", from);
    CHECK_OK(adli_file_write(path, "x", 1));
    CHECK(chmod(path, 0755) == 0);
    snprintf(path, sizeof path, "%s/link", from);
    CHECK(symlink("/etc", path) == 0);
    CHECK_OK(adli_dirs_copy(from, to));
    struct stat seen;
    snprintf(path, sizeof path, "%s/below/run", to);
    CHECK(stat(path, &seen) == 0 && seen.st_size == 1 && seen.st_mode & 0100);
    snprintf(path, sizeof path, "%s/link", to);
    CHECK(lstat(path, &seen) != 0);
    CHECK_FAILS(adli_dirs_copy(from, to), ADL_EIO, "below"); /* nothing is overwritten */
    CHECK_FAILS(adli_dirs_copy("/none", to), ADL_EIO, "/none");
    remove_directory(top);
}

/* Two children that share 64 MiB and have 32 MiB each of their own. */
TEST(shared_memory_is_counted_once)
{
    enum { SHARED = 64 << 20, OWN = 32 << 20 };
    int ready[2], hold[2];
    char byte;
    REQUIRE(pipe(ready) == 0 && pipe(hold) == 0);
    char *shared = mmap(NULL, SHARED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED);
    for (int i = 0; i < 2; i++)
        if (fork() == 0) {
            close(hold[1]);
            char *own = mmap(NULL, OWN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            memset(own, 1, OWN);
            memset(shared, 1, SHARED);
            if (write(ready[1], "r", 1) != 1 || read(hold[0], &byte, 1) != 0)
                _exit(1);
            _exit(0);
        }
    for (int i = 0; i < 2; i++)
        CHECK(read(ready[0], &byte, 1) == 1);
    munmap(shared, SHARED);
    int64_t bound = adli_procs_memory_below(getpid(), INT64_MAX);
    int64_t exact = adli_procs_memory_below(getpid(), 1);
    CHECK(bound >= 2 * (SHARED + OWN));
    CHECK(exact >= SHARED + 2 * OWN && exact < SHARED + 3 * OWN);
    close(hold[1]);
    for (int i = 0; i < 2; i++)
        CHECK(wait(NULL) > 0);
    close(hold[0]);
    close(ready[0]);
    close(ready[1]);
}

TEST(marked_processes_are_found)
{
    int unsure;
    pid_t children[2];
    static const char *const marks[] = {"/x/1/0", "/x/1/01"};
    for (int i = 0; i < 2; i++)
        if ((children[i] = fork()) == 0) {
            setenv(ADLI_REPLICA_MARK, marks[i], 1);
            execl("/bin/sleep", "sleep", "1000", (char *)NULL);
            _exit(1);
        }
    bool died = false;
    for (int i = 0; i < 60000 && !died; i++) { /* until it has executed */
        adli_procs_kill_marked(marks[0], adli_procs_born(getpid()), &unsure);
        siginfo_t info = {0};
        died = waitid(P_PID, (id_t)children[0], &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
               info.si_pid;
        usleep(1000);
    }
    CHECK(died);
    int status;
    CHECK(waitpid(children[0], &status, 0) == children[0] && WTERMSIG(status) == SIGKILL);
    CHECK_INT(adli_procs_kill_marked(marks[0], 0, &unsure), 0);
    CHECK_INT(adli_procs_kill_marked(marks[1], adli_procs_born(children[1]) + 1, &unsure), 0);
    CHECK(waitpid(children[1], &status, WNOHANG) == 0);
    while (adli_procs_kill_below(getpid()) > 0)
        usleep(1000);
    CHECK(waitpid(children[1], &status, 0) == children[1] && WTERMSIG(status) == SIGKILL);
}

/* What of version 2 works without controllers: groups, cgroup.kill, removal. */
TEST(a_version_2_group_is_entered_killed_and_removed)
{
    char name[64];
    adli_cgroup parents, mine = {0};
    if (adli_cgroup_probe(ADLI_CGROUP_V2, NULL, &parents) != ADL_OK) {
        printf("info - no limits by version 2 here: %s\n", adl_error());
        if (!parents.path[0][0])
            SKIP("version 2 is not mounted");
    }
    snprintf(name, sizeof name, "adaptdl-test-%ld", (long)getpid());
    mine = adli_cgroup_child(&parents, name);
    if (adli_cgroup_make(&mine, 0, 0) != ADL_OK)
        SKIP("%s", adl_error());
    int ready[2], status;
    char byte;
    REQUIRE(pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        if (adli_cgroup_enter(&mine) != 0)
            _exit(1);
        pid_t inner = fork(); /* is there as well */
        if (inner == 0 && write(ready[1], "r", 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    CHECK(!adli_cgroup_remove(&mine)); /* not empty */
    adli_cgroup_kill(&mine);
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    for (int i = 0; i < 3000 && !adli_cgroup_remove(&mine); i++)
        usleep(1000);
    CHECK(access(mine.path[0], F_OK) != 0);
    CHECK(!adli_cgroup_was_oom(&mine));
    close(ready[0]);
    close(ready[1]);
}

static adl_status parse(int argc, const char **argv, adli_keeper *out)
{
    return adli_keeper_parse(argc, (char **)argv, out);
}

TEST(the_keeper_refuses_a_wrong_command_line)
{
    const char *good[] = {"keeper", "/d", "1", "/l", "/w", "500", "1000", "-",
                          "-",      "64", "-", "--", "sh", "-c",  NULL};
    adli_keeper keeper;
    CHECK_OK(parse(14, good, &keeper));
    CHECK(keeper.rank == 1 && keeper.cpu_milli == 500 && keeper.cgroup.kind == ADLI_CGROUP_NONE);
    CHECK_STR(keeper.argv[0], "sh");
    CHECK(keeper.log_bytes == 64 && strcmp(keeper.user, "-") == 0);
    good[9] = "x";
    CHECK_FAILS(parse(14, good, &keeper), ADL_EINVAL, "not a number");
    good[9] = "64";
    CHECK_FAILS(parse(12, good, &keeper), ADL_EINVAL, "usage");
    good[11] = "-";
    CHECK_FAILS(parse(14, good, &keeper), ADL_EINVAL, "usage");
    good[11] = "--";
    good[5] = "-1";
    CHECK_FAILS(parse(14, good, &keeper), ADL_EINVAL, "not a number");
    good[5] = "99999999999999999999";
    CHECK_FAILS(parse(14, good, &keeper), ADL_EINVAL, "not a number");
    good[5] = "0";
    good[7] = "/a";
    CHECK_OK(parse(14, good, &keeper));
    CHECK_INT(keeper.cgroup.kind, ADLI_CGROUP_V2);
    good[8] = "/b";
    CHECK_OK(parse(14, good, &keeper));
    CHECK_INT(keeper.cgroup.kind, ADLI_CGROUP_V1);
}

/* A log that is cut while it is written and read. */
TEST(output_is_kept_to_its_size_where_it_stands)
{
    char path[] = "/tmp/adl-output-XXXXXX", line[64], got[64];
    int fd = mkstemp(path), append = open(path, O_WRONLY | O_APPEND);
    REQUIRE(fd >= 0 && append >= 0);
    CHECK_INT((int)adli_output_begin(fd), 0);
    for (int i = 0; i < 20000; i++) {
        int length = snprintf(line, sizeof line, "line %06d\n", i);
        REQUIRE(write(append, line, (size_t)length) == length);
        if (i % 1000 == 0)
            CHECK(adli_output_trim(fd, 65536) <= 65536);
    }
    adli_output_trim(fd, 65536);
    struct stat info;
    REQUIRE(fstat(fd, &info) == 0);
    int64_t begin = adli_output_begin(fd);
    CHECK(begin > 0 && begin < info.st_size && info.st_blocks * 512 <= 2 * 65536);
    CHECK_INT((int)info.st_size, 20000 * 12); /* the others are where they were */
    CHECK(pread(fd, got, 30, begin) == 30 &&
          memcmp(got, "\n[what was written before this", 30) == 0);
    CHECK(pread(fd, got, 12, info.st_size - 12) == 12 && memcmp(got, "line 019999\n", 12) == 0);
    CHECK(adli_output_trim(fd, 0) > 0); /* no limit */
    CHECK_INT((int)adli_output_begin(fd), (int)begin);
    close(append);
    close(fd);
    unlink(path);
}
