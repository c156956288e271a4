/* The local backend killed before every system call that can change something outside the process, one
 * after the other: first the process that holds the backend, then the keeper. ptrace counts the calls;
 * before the nth the process dies by SIGKILL. Afterwards a new backend object brings the group to its
 * end. ADLT_ALL=1 takes every call, ADLT_STRIDE=n only each nth. */
#include "conformance/suite.h"
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Rank 0 leaves a child in a session of its own, which must not stay behind. */
static const char *const script = "echo run >>$DIR/runs.$ADAPTDL_REPLICA_RANK; "
                                  "[ $ADAPTDL_REPLICA_RANK = 1 ] || setsid sleep 1000 & exit 0";
enum { TRACED_MAX = 64, PATIENCE_S = 100 };

/* Which process dies: 0 the one that holds the backend, 2 the keeper (1 is its first half, 3 the
 * replica). */
typedef struct traced {
    pid_t id;
    int generation;
} traced;

typedef struct tracer {
    traced known[TRACED_MAX];
    int count;
    int target;       /* generation */
    long nth, passed; /* system calls of the first process of that generation */
    pid_t victim;
    bool all, killed;
} tracer;

static traced *known(tracer *t, pid_t id)
{
    for (int i = 0; i < t->count; i++)
        if (t->known[i].id == id)
            return &t->known[i];
    if (t->count == TRACED_MAX)
        return NULL;
    t->known[t->count] = (traced){id, -1};
    return &t->known[t->count++];
}

/* Is this stop the entry of a call that counts? What only reads or is about memory looks the same from
 * outside whether it was made or not. */
static bool counts(const tracer *t, pid_t id)
{
    static const long reads[] = {
        SYS_read,  SYS_close, SYS_newfstatat, SYS_getdents64, SYS_pread64,
        SYS_brk,   SYS_mmap,  SYS_munmap,     SYS_mprotect,   SYS_rt_sigprocmask,
        SYS_fstat, SYS_lseek, SYS_getpid,     SYS_faccessat};
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, id, sizeof info, &info) <= 0 ||
        info.op != PTRACE_SYSCALL_INFO_ENTRY)
        return false;
    for (size_t i = 0; !t->all && i < sizeof reads / sizeof reads[0]; i++)
        if ((long)info.entry.nr == reads[i])
            return false;
    return t->all || info.entry.nr != SYS_openat || (info.entry.args[2] & O_CREAT);
}

/* A stop of a process: what to do next with it. */
static void handle_stop(tracer *t, pid_t id, int status)
{
    traced *process = known(t, id);
    int event = status >> 16, number = WSTOPSIG(status), pass = 0;
    if (event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK || event == PTRACE_EVENT_CLONE) {
        unsigned long child;
        if (ptrace(PTRACE_GETEVENTMSG, id, 0, &child) == 0) {
            traced *born = known(t, (pid_t)child);
            if (born && process)
                born->generation = process->generation + 1;
            if (born && born->generation == t->target && !t->victim)
                t->victim = (pid_t)child;
        }
    } else if (number == (SIGTRAP | 0x80)) {
        if (id == t->victim && counts(t, id) && ++t->passed == t->nth) {
            kill(id, SIGKILL);
            t->killed = true;
            return;
        }
    } else if (event == 0 && number != SIGSTOP && number != SIGTRAP)
        pass = number;
    bool watched = id == t->victim || (process && process->generation < t->target) || !process;
    ptrace(watched || process->generation < 0 ? PTRACE_SYSCALL : PTRACE_CONT, id, 0, pass);
}

/* Runs body in a child and kills at the nth call; false when there were fewer than n. */
static bool kill_at(adlt_site *site, void (*body)(adlt_site *), int target, long nth)
{
    tracer t = {.target = target, .nth = nth, .all = getenv("ADLT_ALL")};
    int status;
    pid_t child = fork(), id;
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        body(site);
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        return false;
    known(&t, child)->generation = 0;
    if (target == 0)
        t.victim = child;
    ptrace(PTRACE_SETOPTIONS, child, 0,
           PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
               PTRACE_O_TRACECLONE);
    ptrace(PTRACE_SYSCALL, child, 0, 0);
    alarm(PATIENCE_S);
    while ((id = waitpid(-1, &status, __WALL)) > 0)
        if (WIFSTOPPED(status))
            handle_stop(&t, id, status);
    if (errno == EINTR)
        ADLT_FAIL("a process did not end");
    alarm(0);
    return t.killed;
}

static void whole_life(adlt_site *site)
{
    site->backend = NULL;
    if (adlt_reopen(site) != ADL_OK || adlt_start(site, "job", 1, 2, script) != ADL_OK)
        return;
    if (adlt_wait(site, "job", 1, -1, -1))
        site->backend->ops->forget(site->backend->self, "job", 1);
}

/* As above, without the end: the result is looked at from outside. */
static void start_and_wait(adlt_site *site)
{
    site->backend = NULL;
    if (adlt_reopen(site) == ADL_OK && adlt_start(site, "job", 1, 1, script) == ADL_OK)
        adlt_wait(site, "job", 1, -1, -1);
}

static int runs(adlt_site *site, int rank)
{
    char path[64];
    snprintf(path, sizeof path, "/adaptdl/share/runs.%d", rank);
    return adlt_lines(adlt_file(site, "job", path), "run");
}

/* Brings the group to its end; adds up how it ended in ended[]. */
static void check_after(adlt_site *site, int replicas, int *ended)
{
    adl_status status;
    REQUIRE_OK(adlt_reopen(site));
    status = adlt_start(site, "job", 1, replicas, script);
    if (status == ADL_ESTATE) { /* it had been forgotten: then it was over */
        for (int rank = 0; rank < replicas; rank++)
            CHECK_INT(runs(site, rank), 1);
        ended[0]++;
    } else {
        CHECK_OK(status);
        CHECK(adlt_wait(site, "job", 1, -1, -1));
        for (int rank = 0; rank < replicas; rank++) {
            adli_member_view view = adlt_view(site, "job", 1, rank);
            ended[view.state]++;
            CHECK(view.state != ADLI_MEMBER_FAILED);
            CHECK(runs(site, rank) <= 1);
            if (view.state == ADLI_MEMBER_SUCCEEDED)
                CHECK_INT(runs(site, rank), 1);
            else
                CHECK_INT(view.cause, ADLI_CAUSE_LOST);
        }
    }
    site->backend->ops->remove(site->backend->self, "job");
}

static void wake(int number)
{
    (void)number;
}

static bool can_trace(void)
{
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = wake}, NULL); /* ends a wait */
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0 ? 0 : 1);
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Every call, or every ADLT_STRIDE-th. */
static void walk(const char *what, void (*body)(adlt_site *), int target, int replicas)
{
    const char *text = getenv("ADLT_STRIDE");
    int stride = text ? atoi(text) : 1, kills = 0, ended[5] = {0};
    for (long nth = 1; !adlt_failed; nth += stride) {
        adlt_site *site = adlt_open();
        REQUIRE(site);
        bool killed = kill_at(site, body, target, nth);
        check_after(site, replicas, ended);
        const char *wrong = adlt_close(site);
        if (wrong)
            ADLT_FAIL("%s", wrong);
        if (adlt_failed)
            printf("| %s killed before system call %ld\n", what, nth);
        kills += killed;
        if (!killed)
            break;
    }
    CHECK(kills > 10);
    printf("info - %s killed before each of %d system calls: %d replicas succeeded, %d lost, %d "
           "groups "
           "were over\n",
           what, kills * stride, ended[ADLI_MEMBER_SUCCEEDED], ended[ADLI_MEMBER_INTERRUPTED],
           ended[0]);
}

TEST(the_daemon_may_die_before_any_system_call)
{
    if (!can_trace())
        SKIP("ptrace is not allowed");
    walk("the daemon", whole_life, 0, 2);
}

TEST(a_keeper_may_die_before_any_system_call)
{
    if (!can_trace())
        SKIP("ptrace is not allowed");
    walk("a keeper", start_and_wait, 2, 1);
}
