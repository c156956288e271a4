#include "backend/local/keeper.h"

#include "backend/local/claim.h"
#include "backend/output.h"
#include "base/clock.h"
#include "base/dirs.h"
#include "base/log.h"
#include "proc/procs.h"
#include "proc/ward.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WATCH_MS = 250, WATCH_MAX_MS = 5000, REAP_MS = 5, RESULT_TRIES = 60 };
enum { LOG_MIN_MS = 20, LOG_MAX_MS = 5000 };

typedef struct watch {
    const adli_keeper *keeper;
    adli_cgroup cgroup; /* as it was made */
    bool watch_memory;
    int dir, claim, signals;
    pid_t self;
    int log; /* for its limit; -1: none */
    int64_t log_size;
    double log_s; /* when it had that size */
    adli_ward replica;
    bool node_lost, oom;
    bool hurry; /* told to kill */
} watch;

static bool parse_amount(const char *text, int64_t max, int64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return !errno && end != text && !*end && *out >= 0 && *out <= max;
}

adl_status adli_keeper_parse(int argc, char **argv, adli_keeper *out)
{
    int64_t rank;
    if (argc < ADLI_KEEPER_ARGS + 1 || strcmp(argv[ADLI_KEEPER_ARGS - 1], "--") != 0)
        return adli_fail(ADL_EINVAL,
                         "usage: adaptdl-keeper DIR RANK LOG WORKDIR CPU MEMORY CGROUP CGROUP "
                         "LOGBYTES USER -- "
                         "COMMAND [ARGUMENT...] (adaptdl-sched starts it)");
    *out = (adli_keeper){.dir = argv[1],
                         .log = argv[3],
                         .workdir = argv[4],
                         .user = argv[10],
                         .argv = argv + ADLI_KEEPER_ARGS};
    if (!parse_amount(argv[2], INT_MAX, &rank) ||
        !parse_amount(argv[5], INT64_MAX, &out->cpu_milli) ||
        !parse_amount(argv[6], INT64_MAX, &out->memory_bytes) ||
        !parse_amount(argv[9], INT64_MAX, &out->log_bytes))
        return adli_fail(ADL_EINVAL, "adaptdl-keeper: not a number among %s, %s, %s, %s", argv[2],
                         argv[5], argv[6], argv[9]);
    out->rank = (int)rank;
    for (int i = 0; i < 2; i++) {
        if (strcmp(argv[7 + i], "-") == 0)
            continue;
        out->cgroup.kind = i == 0 ? ADLI_CGROUP_V2 : ADLI_CGROUP_V1;
        if (snprintf(out->cgroup.path[i], ADLI_CGROUP_PATH, "%s", argv[7 + i]) >= ADLI_CGROUP_PATH)
            return adli_fail(ADL_EINVAL, "adaptdl-keeper: %s: too long", argv[7 + i]);
    }
    return ADL_OK;
}

/* ---- starting ---- */

static void report(const char *text)
{
    if (write(ADLI_KEEPER_REPORT_FD, text, strlen(text)) < 0)
        errno = 0; /* nobody listens */
    close(ADLI_KEEPER_REPORT_FD);
}

/* Nothing that the replica has done: there may be more later. */
static bool want_of_room(int why)
{
    return why == EAGAIN || why == ENOMEM || why == EMFILE || why == ENFILE || why == ENOSPC ||
           why == EDQUOT;
}

/* By errno. */
static void report_failure(const char *what)
{
    char text[160];
    int why = errno;
    snprintf(text, sizeof text, "%s%.80s: %s", want_of_room(why) ? ADLI_KEEPER_FULL ": " : "", what,
             strerror(why));
    report(text);
}

/* A process of its own: no terminal, no descriptors but the report's, not among the caller's children. */
static bool detach(void)
{
    pid_t child = fork();
    if (child < 0)
        report_failure("cannot start a process");
    if (child != 0)
        return false;
    setsid();
    int nothing = open("/dev/null", O_RDWR);
    for (int fd = 0; nothing >= 0 && fd < 3; fd++)
        dup2(nothing, fd);
    fcntl(ADLI_KEEPER_REPORT_FD, F_SETFD, FD_CLOEXEC);
    if (syscall(SYS_close_range, ADLI_KEEPER_REPORT_FD + 1, ~0u, 0) != 0)
        for (int fd = ADLI_KEEPER_REPORT_FD + 1; fd < FD_SETSIZE; fd++)
            close(fd); /* a kernel before 5.9 */
    return chdir("/") == 0;
}

static int block_signals(void)
{
    static const int wanted[] = {ADLI_KEEPER_TERMINATE, ADLI_KEEPER_KILL, ADLI_KEEPER_NODE_LOST,
                                 SIGCHLD, SIGINT};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        sigaddset(&set, wanted[i]);
    signal(SIGCHLD, SIG_DFL); /* ignored, children would vanish without a status */
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_SETMASK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Why a replica could not be executed. */
typedef struct refusal {
    int why;
    char where; /* 'g': cgroup, 'l': log, 'u': user, 'd': directory, 'x': exec */
} refusal;

static void refuse(int fd, char where)
{
    refusal no = {errno, where};
    if (write(fd, &no, sizeof no) < 0)
        _exit(126);
    _exit(127);
}

/* Of the parent's death the kernel tells; that is forgotten when the user changes. False: it is dead already. */
static bool dies_with(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return getppid() == parent;
}

/* "UID:GID,GID..." for good; "-": as we are. */
static bool become_user(const char *identity)
{
    gid_t groups[64];
    size_t count = 0;
    char *at;
    if (strcmp(identity, "-") == 0)
        return true;
    uid_t user = (uid_t)strtoul(identity, &at, 10);
    while (*at && count < sizeof groups / sizeof groups[0])
        groups[count++] = (gid_t)strtoul(at + 1, &at, 10);
    errno = EINVAL;
    return user != 0 && count > 0 && setgroups(count, groups) == 0 &&
           setresgid(groups[0], groups[0], groups[0]) == 0 && setresuid(user, user, user) == 0;
}

/* In the child: does not return. */
static void become(const watch *w, int tell)
{
    const adli_keeper *keeper = w->keeper;
    static const char defaults[64]; /* the kernel's struct sigaction: SIG_DFL is 0 */
    sigset_t none;
    setpgid(0, 0);
    /* Past the C library, which keeps two signals for itself: posix_spawn leaves those ignored. */
    for (int number = 1; number <= 64; number++)
        syscall(SYS_rt_sigaction, number, defaults, NULL, 8);
    if (adli_cgroup_enter(&w->cgroup) != 0)
        refuse(tell, 'g');
    int log = open(keeper->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (log < 0)
        refuse(tell, 'l');
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    if (!become_user(keeper->user) || (strcmp(keeper->user, "-") != 0 && !dies_with(w->self)))
        refuse(tell, 'u');
    if (chdir(keeper->workdir) != 0)
        refuse(tell, 'd');
    umask(022);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(keeper->argv[0], keeper->argv);
    refuse(tell, 'x');
}

/* Starts the replica; false: it cannot be, and *result says why. */
static bool start_replica(watch *w, adli_result *result)
{
    int tell[2];
    refusal no = {0, 'x'};
    pid_t keeper = w->self = getpid();
    pid_t id;
    if (pipe2(tell, O_CLOEXEC) != 0 || (id = fork()) < 0) {
        adli_result_set(result, ADLI_MEMBER_INTERRUPTED, -1, ADLI_CAUSE_OUT_OF_RESOURCES,
                        "cannot start a process: %s", strerror(errno));
        return false;
    }
    if (id == 0) {
        if (!dies_with(keeper))
            _exit(1);
        become(w, tell[1]);
    }
    setpgid(id, id); /* also here: whoever is first */
    close(tell[1]);
    ssize_t got = read(tell[0], &no, sizeof no); /* ends when exec succeeds */
    close(tell[0]);
    if (got != sizeof no) {
        w->replica.id = id;
        return true;
    }
    while (waitpid(id, NULL, 0) < 0 && errno == EINTR)
        continue;
    const char *what = no.where == 'l'   ? w->keeper->log
                       : no.where == 'd' ? w->keeper->workdir
                       : no.where == 'g' ? "its control group"
                       : no.where == 'u' ? "its user"
                                         : w->keeper->argv[0];
    if (want_of_room(no.why)) {
        adli_result_set(result, ADLI_MEMBER_INTERRUPTED, -1, ADLI_CAUSE_OUT_OF_RESOURCES,
                        "%.100s: %s", what, strerror(no.why));
        return false;
    }
    adli_result_set(result, ADLI_MEMBER_FAILED, no.where == 'x' && no.why == ENOENT ? 127 : 126,
                    ADLI_CAUSE_CANNOT_RUN, "%.100s: %s", what, strerror(no.why));
    return false;
}

/* ---- watching ---- */

static void kill_all(watch *w)
{
    adli_cgroup_kill(&w->cgroup);
    adli_ward_kill(&w->replica);
    adli_procs_kill_below(getpid());
}

/* Collects what died; false when there is no child, so no descendant, left: those of dead parents are
 * given to us. */
static bool reap(watch *w)
{
    int status;
    pid_t id;
    while ((id = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0)
        adli_ward_note(&w->replica, id, status, adli_clock_of(CLOCK_REALTIME));
    return !(id < 0 && errno == ECHILD);
}

static void take_signals(watch *w)
{
    struct signalfd_siginfo info;
    while (read(w->signals, &info, sizeof info) == sizeof info) {
        int number = (int)info.ssi_signo;
        if (number == ADLI_KEEPER_TERMINATE) {
            adli_say(ADL_LOG_DEBUG, "asks the replica to stop");
            adli_ward_ask(&w->replica);
        } else if (number == ADLI_KEEPER_KILL || number == ADLI_KEEPER_NODE_LOST) {
            adli_say(ADL_LOG_DEBUG, "kills the replica");
            w->node_lost |= number == ADLI_KEEPER_NODE_LOST;
            w->hurry = true;
            kill_all(w);
        }
    }
}

/* Kills the replica above its limit. Returns when to look again, in ms: where there are thousands of
 * processes a look is dear, and may take 2 % of a processor. */
static int look_at_memory(watch *w)
{
    int64_t limit = w->keeper->memory_bytes;
    double before_s = adli_thread_cpu_s();
    if (adli_procs_memory_below(getpid(), limit) > limit) {
        w->oom = true;
        kill_all(w);
    }
    double pause_ms = 50 * 1e3 * (adli_thread_cpu_s() - before_s);
    return pause_ms < WATCH_MS ? WATCH_MS : pause_ms > WATCH_MAX_MS ? WATCH_MAX_MS : (int)pause_ms;
}

/* Keeps the log within its limit. Returns when to look again, in ms: before it can have grown by an eighth of that at
 * the pace of the last interval. */
static int look_at_log(watch *w)
{
    struct stat info;
    int64_t limit = w->keeper->log_bytes;
    double now_s = adli_monotonic_s(), passed_s = now_s - w->log_s;
    adli_output_trim(w->log, limit);
    int64_t size = fstat(w->log, &info) == 0 ? (int64_t)info.st_size : 0;
    double grown = size > w->log_size ? (double)(size - w->log_size) : 0;
    double pause_ms = grown > 0 ? 1e3 * passed_s * (double)limit / 8 / grown : LOG_MAX_MS;
    w->log_size = size;
    w->log_s = now_s;
    return pause_ms < LOG_MIN_MS ? LOG_MIN_MS : pause_ms > LOG_MAX_MS ? LOG_MAX_MS : (int)pause_ms;
}

/* The one that comes first; -1: never. */
static int sooner(int one_ms, int other_ms)
{
    return one_ms < 0 || (other_ms >= 0 && other_ms < one_ms) ? other_ms : one_ms;
}

static void watch_replica(watch *w)
{
    struct pollfd wake = {.fd = w->signals, .events = POLLIN};
    int memory_ms = w->watch_memory ? WATCH_MS : -1, log_ms = w->log >= 0 ? LOG_MIN_MS : -1;
    while (reap(w) && !adli_ward_over(&w->replica)) {
        if (adli_ward_is_silent(&w->replica))
            kill_all(w);
        poll(&wake, 1, sooner(memory_ms, log_ms));
        take_signals(w);
        if (w->watch_memory && !w->replica.killed)
            memory_ms = look_at_memory(w);
        if (w->log >= 0)
            log_ms = look_at_log(w);
    }
    while (reap(w)) { /* its descendants end with it */
        kill_all(w);
        poll(&wake, 1, REAP_MS);
        take_signals(w);
    }
}

static void conclude(watch *w, adli_result *out)
{
    const adli_ward *replica = &w->replica;
    bool by_signal = WIFSIGNALED(replica->status);
    int code = adli_ward_code(replica), number = code - 128;
    bool oom = w->oom || (code != 0 && adli_cgroup_was_oom(&w->cgroup));
    if (code == 0)
        adli_result_set(out, ADLI_MEMBER_SUCCEEDED, 0, ADLI_CAUSE_NONE, NULL);
    else if (w->node_lost)
        adli_result_set(out, ADLI_MEMBER_INTERRUPTED, code, ADLI_CAUSE_NODE_LOST,
                        "its node was lost");
    else if (oom)
        adli_result_set(out, ADLI_MEMBER_FAILED, code, ADLI_CAUSE_OOM_KILLED,
                        "needed more memory than its limit of %lld MiB",
                        (long long)(w->keeper->memory_bytes >> 20));
    else if (replica->silent)
        adli_result_set(out, ADLI_MEMBER_INTERRUPTED, code, ADLI_CAUSE_SILENT,
                        "was stopped by a signal and could not answer: killed");
    else if (replica->killed && by_signal && number == SIGKILL)
        adli_result_set(out, ADLI_MEMBER_INTERRUPTED, code, ADLI_CAUSE_KILLED,
                        "killed by the scheduler");
    else if (code == 128 + SIGTERM)
        adli_result_set(out, ADLI_MEMBER_INTERRUPTED, code, ADLI_CAUSE_NONE, "%s",
                        replica->asked ? "stopped by the scheduler" : "stopped by SIGTERM");
    else if (by_signal)
        adli_result_set(out, ADLI_MEMBER_FAILED, code, ADLI_CAUSE_NONE, "killed by signal %d (%s)",
                        number, strsignal(number));
    else
        adli_result_set(out, ADLI_MEMBER_FAILED, code, ADLI_CAUSE_NONE, "exited with %d", code);
    out->ended_s = replica->ended_s;
}

/* From the claim on. Limits that no control group keeps are watched; the job is not to blame. */
static void keep(watch *w)
{
    adli_result result;
    const adli_keeper *keeper = w->keeper;
    w->cgroup = keeper->cgroup;
    if (w->cgroup.kind != ADLI_CGROUP_NONE &&
        adli_cgroup_make(&w->cgroup, keeper->cpu_milli, keeper->memory_bytes) != ADL_OK)
        w->cgroup = (adli_cgroup){0};
    w->watch_memory = w->cgroup.kind == ADLI_CGROUP_NONE && keeper->memory_bytes > 0;
    if (start_replica(w, &result)) {
        adli_say(ADL_LOG_DEBUG, "the replica is process %d", (int)w->replica.id);
        adli_claim_ready(w->claim);
        if (keeper->log_bytes > 0)
            w->log = open(keeper->log, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        w->log_s = adli_monotonic_s();
        watch_replica(w);
        if (w->log >= 0)
            adli_output_trim(w->log, keeper->log_bytes);
        conclude(w, &result);
        adli_say(ADL_LOG_DEBUG, "the replica ended with %d", adli_ward_code(&w->replica));
    }
    adli_cgroup_remove(&w->cgroup);
    /* A full disk may get room again; without a result the replica is seen as lost. */
    struct pollfd wake = {.fd = w->signals, .events = POLLIN};
    w->hurry = false;
    for (int i = 0; i < RESULT_TRIES && !w->hurry; i++) {
        if (adli_result_write(w->dir, keeper->rank, &result) == ADL_OK)
            return;
        poll(&wake, 1, 1000);
        take_signals(w);
    }
}

static adl_status prepare(watch *w)
{
    w->signals = block_signals();
    adl_status status = adli_dirs_enter(w->keeper->dir, &w->dir);
    if (status != ADL_OK)
        return status;
    if (w->signals < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        return adli_fail(ADL_EIO, "signals: %s", strerror(errno));
    return ADL_OK;
}

int adli_keeper_run(const adli_keeper *keeper)
{
    watch w = {.keeper = keeper, .log = -1};
    if (!detach())
        return 0;
    errno = 0;
    adl_status status = prepare(&w);
    if (status == ADL_OK)
        status = adli_claim_take(w.dir, keeper->rank, &w.claim);
    if (status == ADL_OK || status == ADL_ESTATE)
        report(status == ADL_OK ? ADLI_KEEPER_CLAIMED : ADLI_KEEPER_TAKEN);
    else if (want_of_room(errno))
        report_failure("it");
    else
        report(adl_error());
    if (status != ADL_OK)
        return 1;
    keep(&w);
    return 0;
}
