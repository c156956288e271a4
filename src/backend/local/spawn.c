/* One keeper: the environment of its replica, its command line, its start. */
#include "backend/local/impl.h"
#include "backend/local/keeper.h"

#include "base/clock.h"
#include "base/mem.h"
#include "proc/procs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { REPORT_TIMEOUT_MS = 30000 };

/* The environment of a replica: ours without what is about us, the job's, the rank's. Later ones win, so
 * the first of two with the same name is left out. */
typedef struct environment {
    char **entries;
    size_t count, capacity;
    bool failed;
} environment;

static bool about_us(const char *entry)
{
    static const char *const names[] = {
        "ADAPTDL_",        "NOTIFY_SOCKET=", "LISTEN_FDS=",    "LISTEN_PID=",
        "LISTEN_FDNAMES=", "INVOCATION_ID=", "JOURNAL_STREAM="};
    for (size_t i = 0; i < ADLI_COUNT(names); i++)
        if (strncmp(entry, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

static void env_set(environment *env, char *entry)
{
    size_t name = strcspn(entry, "=") + 1;
    for (size_t i = 0; i < env->count; i++)
        if (strncmp(env->entries[i], entry, name) == 0) {
            free(env->entries[i]);
            env->entries[i] = entry;
            return;
        }
    if (adli_grow(&env->entries, &env->capacity, env->count + 2, sizeof *env->entries) != 0) {
        env->failed = true;
        free(entry);
        return;
    }
    env->entries[env->count++] = entry;
    env->entries[env->count] = NULL;
}

static void env_copy(environment *env, const char *entry)
{
    char *copy = adli_strdup(entry);
    if (copy)
        env_set(env, copy);
    else
        env->failed = true;
}

__attribute__((format(printf, 3, 4))) static void env_add(environment *env, const char *name,
                                                          const char *format, ...)
{
    va_list arguments;
    adli_buf buf;
    char value[PATH_MAX];
    va_start(arguments, format);
    vsnprintf(value, sizeof value, format, arguments);
    va_end(arguments);
    adli_buf_init(&buf, 2 * PATH_MAX);
    adli_buf_printf(&buf, "%s=%s", name, value);
    if (adli_buf_check(&buf) == ADL_OK)
        env_copy(env, buf.data);
    else
        env->failed = true;
    adli_buf_fini(&buf);
}

static void env_fini(environment *env)
{
    for (size_t i = 0; i < env->count; i++)
        free(env->entries[i]);
    free(env->entries);
}

static void make_env(const local *self, const adli_start *start, const adli_member_start *which,
                     const run *what, const group *item, environment *env)
{
    const member *who = adli_local_member(item, which->member);
    char mark[PATH_MAX];
    for (char **entry = environ; *entry; entry++)
        if (strchr(*entry, '=') && !about_us(*entry))
            env_copy(env, *entry);
    if (what->as) {
        env_add(env, "HOME", "%s", what->as->home);
        env_add(env, "USER", "%s", what->as->name);
        env_add(env, "LOGNAME", "%s", what->as->name);
    }
    for (size_t i = 0; i < what->env_count; i++)
        env_copy(env, what->env[i]);
    env_add(env, "ADAPTDL_MEMBER", "%d", which->member);
    env_add(env, "ADAPTDL_JOIN", "%d", start->joins);
    env_add(env, "ADAPTDL_REPLICA_RANK", "%d", which->rank);
    env_add(env, "ADAPTDL_NUM_REPLICAS", "%d", start->replicas);
    env_add(env, "ADAPTDL_NUM_NODES", "%d", start->nodes);
    env_add(env, "ADAPTDL_NUM_RESTARTS", "%d", start->group - 1);
    env_add(env, "ADAPTDL_MASTER_ADDR", "127.0.0.1");
    env_add(env, "ADAPTDL_MASTER_PORT", "%d", who->plan->port);
    if (strcmp(who->gpus, "-") != 0)
        env_add(env, "CUDA_VISIBLE_DEVICES", "%s", who->gpus);
    adli_local_mark(self, item, who->number, mark, sizeof mark);
    env_add(env, ADLI_REPLICA_MARK, "%s", mark);
}

/* posix_spawn, so that a daemon with much memory need not copy its tables; the keeper leaves us by itself
 * and what we wait for is only its first half. Returns 0 or an errno. */
static int spawn(const char *path, char *const *argv, char *const *env, int report, pid_t *child)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int why = posix_spawn_file_actions_init(&files);
    if (why)
        return why;
    why = posix_spawnattr_init(&how);
    if (why)
        goto out;
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &all);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    why = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDWR, 0);
    for (int fd = 1; !why && fd < 3; fd++)
        why = posix_spawn_file_actions_adddup2(&files, 0, fd);
    if (!why)
        why = posix_spawn_file_actions_adddup2(&files, report, ADLI_KEEPER_REPORT_FD);
    if (!why)
        why = posix_spawn(child, path, &files, &how, argv, env);
    posix_spawnattr_destroy(&how);
out:
    posix_spawn_file_actions_destroy(&files);
    return why;
}

/* A pipe whose end for writing is not where the keeper wants it to be. */
static int make_report(int report[2])
{
    if (pipe2(report, O_CLOEXEC) != 0)
        return errno;
    int high = fcntl(report[1], F_DUPFD_CLOEXEC, ADLI_KEEPER_REPORT_FD + 1), why = errno;
    close(report[1]);
    report[1] = high;
    if (high >= 0)
        return 0;
    close(report[0]);
    return why;
}

int adli_local_spawn(local *self, const adli_start *start, const adli_member_start *which,
                     const run *what, const group *item, pending *out)
{
    char dir[PATH_MAX], log[PATH_MAX], number[16], cpu[24], memory[24], kept[24];
    char none[] = "-", end[] = "--", *identity = what->as ? (char *)what->as->identity : none;
    int report[2], why = ENOMEM;
    environment env = {0};
    adli_cgroup cgroup = adli_local_cgroup(self, item, adli_local_member(item, which->member));
    char **argv = adli_calloc(ADLI_KEEPER_ARGS + what->argc + 1, sizeof *argv);
    snprintf(dir, sizeof dir, "%s/jobs/%s/groups/%d", self->state_dir, item->uid, item->number);
    snprintf(log, sizeof log, "%s/jobs/%s/logs/%d-%d.log", self->state_dir, item->uid, item->number,
             which->member);
    snprintf(number, sizeof number, "%d", which->member);
    snprintf(cpu, sizeof cpu, "%" PRId64, what->cpu_milli);
    snprintf(memory, sizeof memory, "%" PRId64, what->memory_bytes);
    snprintf(kept, sizeof kept, "%" PRId64, self->log_bytes);
    make_env(self, start, which, what, item, &env);
    if (!argv || env.failed || (why = make_report(report)) != 0)
        goto out;
    char *head[ADLI_KEEPER_ARGS] = {self->keeper,
                                    dir,
                                    number,
                                    log,
                                    what->workdir,
                                    cpu,
                                    memory,
                                    cgroup.path[0][0] ? cgroup.path[0] : none,
                                    cgroup.path[1][0] ? cgroup.path[1] : none,
                                    kept,
                                    identity,
                                    end};
    memcpy(argv, head, sizeof head);
    memcpy(argv + ADLI_KEEPER_ARGS, what->argv, what->argc * sizeof *argv);
    why = spawn(self->keeper, argv, env.entries, report[1], &out->child);
    close(report[1]);
    if (why)
        close(report[0]);
    else
        out->fd = report[0];
out:
    env_fini(&env);
    free(argv);
    return why;
}

adl_status adli_local_await(const pending *keeper)
{
    char said[160];
    size_t length = 0;
    bool late = false;
    struct pollfd wait = {.fd = keeper->fd, .events = POLLIN};
    double until_s = adli_monotonic_s() + 1e-3 * REPORT_TIMEOUT_MS;
    while (waitpid(keeper->child, NULL, 0) < 0 && errno == EINTR)
        continue;
    for (int left_ms; length < sizeof said - 1;) {
        left_ms = (int)(1e3 * (until_s - adli_monotonic_s()));
        int ready = poll(&wait, 1, left_ms > 0 ? left_ms : 0);
        if (ready < 0 && errno == EINTR)
            continue;
        late = ready == 0;
        ssize_t got = wait.revents ? read(keeper->fd, said + length, sizeof said - 1 - length) : 0;
        if (got <= 0)
            break;
        length += (size_t)got;
    }
    said[length] = '\0';
    close(keeper->fd);
    if (strcmp(said, ADLI_KEEPER_CLAIMED) == 0 || strcmp(said, ADLI_KEEPER_TAKEN) == 0)
        return ADL_OK;
    if (late)
        return adli_fail(ADL_ETIMEOUT, "its keeper has said nothing for %d s",
                         REPORT_TIMEOUT_MS / 1000);
    if (strncmp(said, ADLI_KEEPER_FULL, strlen(ADLI_KEEPER_FULL)) == 0)
        return adli_fail(ADL_ENOMEM, "its keeper did not start: %s", said);
    return adli_fail(ADL_EIO, "its keeper did not start%s%s", length ? ": " : "", said);
}
