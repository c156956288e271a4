#include "launch/replica.h"

#include "base/mem.h"
#include "launch/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 64 << 10, SSH_FAILED = 255 };

static void set_number(const char *variable, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(variable, text, 1);
}

/* Without this every replica would use all processors, and they would be in each other's way. */
void adli_replica_share_processors(int replicas)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (!getenv("OMP_NUM_THREADS"))
        set_number("OMP_NUM_THREADS", processors > replicas ? (int)(processors / replicas) : 1);
}

static void set_environment(int rank, const adli_place *place, const adli_replica_env *env)
{
    setenv("ADAPTDL_MASTER_ADDR", env->hosts->count ? env->hosts->master : "127.0.0.1", 1);
    set_number("ADAPTDL_MASTER_PORT", env->port);
    set_number("ADAPTDL_REPLICA_RANK", rank);
    set_number("ADAPTDL_NUM_REPLICAS", env->replicas);
    set_number("ADAPTDL_NUM_NODES", place->hosts);
    set_number("ADAPTDL_LOCAL_RANK", place->local_rank);
    set_number("ADAPTDL_NUM_RESTARTS", env->restarts);
    setenv("ADAPTDL_JOB_SECRET", env->secret, 1);
    setenv("ADAPTDL_WORLD_SOCKET", env->socket ? env->socket : "", 1);
    set_number("ADAPTDL_MEMBER", env->member);
    set_number("ADAPTDL_JOIN", env->joins);
    if (env->checkpoint)
        setenv("ADAPTDL_CHECKPOINT_PATH", env->checkpoint, 1);
    if (env->hosts->count == 0)
        adli_replica_share_processors(env->replicas);
}

/* In the child: does not return. `report` tells the launcher why exec failed; it closes by itself. */
static void become(int rank, char *const *argv, const adli_replica_env *env, pid_t launcher,
                   const int out[2], const int err[2], int report)
{
    sigset_t none;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) /* it died before the line above */
        _exit(1);
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(nothing, STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    /* A shell's background jobs ignore SIGINT, and what is ignored stays so through exec. */
    static const int usual[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    for (size_t i = 0; i < ADLI_COUNT(usual); i++)
        signal(usual[i], SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    adli_place place = adli_hosts_place(env->hosts, rank, env->replicas);
    set_environment(rank, &place, env);
    if (env->hosts->count) {
        close(report); /* there is no exec that would */
        adli_remote_run(env->hosts, &place, argv);
    }
    execvp(argv[0], argv);
    int why = errno;
    if (write(report, &why, sizeof why) < 0)
        _exit(126);
    _exit(127);
}

static adl_status make_pipes(int out[2], int err[2], int report[2])
{
    out[0] = out[1] = err[0] = err[1] = report[0] = report[1] = -1;
    if (pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0 && pipe2(report, O_CLOEXEC) == 0)
        return ADL_OK;
    return adli_fail(ADL_EIO, "cannot make a pipe: %s", strerror(errno));
}

static void close_all(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

adl_status adli_replica_start(adli_replica *replica, int rank, char *const *argv,
                              const adli_replica_env *env)
{
    int out[2], err[2], report[2], why;
    pid_t launcher = getpid();
    *replica = (adli_replica){.rank = rank, .out.fd = -1, .err.fd = -1, .link.fd = -1};
    if (env->hosts->count)
        replica->host = env->hosts->name[adli_hosts_place(env->hosts, rank, env->replicas).host];
    adl_status status = make_pipes(out, err, report);
    if (status != ADL_OK)
        goto out;
    fflush(NULL);
    replica->ward.id = fork();
    if (replica->ward.id == 0)
        become(rank, argv, env, launcher, out, err, report[1]);
    if (replica->ward.id < 0) {
        replica->ward.id = 0;
        status = adli_fail(ADL_EIO, "cannot start a process: %s", strerror(errno));
        goto out;
    }
    setpgid(replica->ward.id, replica->ward.id); /* also here: whoever is first */
    close(report[1]);
    report[1] = -1;
    ssize_t got = read(report[0], &why, sizeof why); /* ends when exec succeeds */
    if (got == sizeof why) {
        waitpid(replica->ward.id, NULL, 0);
        replica->ward.id = 0;
        status = adli_fail(why == ENOENT ? ADL_ENOENT : ADL_EIO, "%s: %s", argv[0], strerror(why));
        goto out;
    }
    replica->out.fd = out[0];
    replica->err.fd = err[0];
    out[0] = err[0] = -1;
    fcntl(replica->out.fd, F_SETFL, O_NONBLOCK);
    fcntl(replica->err.fd, F_SETFL, O_NONBLOCK);
    adli_buf_init(&replica->out.line, LINE_MAX_BYTES);
    adli_buf_init(&replica->err.line, LINE_MAX_BYTES);
    adli_buf_init(&replica->link.line, LINE_MAX_BYTES);
out:
    close_all(out, 2);
    close_all(err, 2);
    close_all(report, 2);
    return status;
}

void adli_replica_fini(adli_replica *replica)
{
    adli_ward_fini(&replica->ward);
    close_all(&replica->out.fd, 1);
    close_all(&replica->err.fd, 1);
    close_all(&replica->link.fd, 1);
    adli_buf_fini(&replica->out.line);
    adli_buf_fini(&replica->err.line);
    adli_buf_fini(&replica->link.line);
    replica->out.fd = replica->err.fd = replica->link.fd = -1;
}

const char *adli_replica_fate(const adli_replica *replica, char *text, size_t capacity)
{
    int status = replica->ward.status;
    const char *on = replica->host ? "on " : "", *host = replica->host ? replica->host : "";
    const char *space = replica->host ? " " : "";
    if (WIFSIGNALED(status))
        snprintf(text, capacity, "%s%s%swas killed by signal %d (%s)", on, host, space,
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (replica->host && WEXITSTATUS(status) == SSH_FAILED)
        snprintf(text, capacity, "on %s: the connection failed or was lost", host);
    else
        snprintf(text, capacity, "%s%s%sexited with %d", on, host, space, WEXITSTATUS(status));
    return text;
}
