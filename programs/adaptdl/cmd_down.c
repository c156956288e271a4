/* `adaptdl down`, and what `up` shares with it. There is no file with a process number that could be stale:
 * whoever listens on the socket is the scheduler. Stopping begins with one step that the scheduler writes
 * down, so that an interrupted `down` can be ended by another one or undone by `up`. What gets the signal is held by
 * a handle, since waiting for jobs takes time in which a process may end and its number go to another. */
#include "commands.h"
#include "local.h"
#include "state.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { JOBS = 256 };
static const double STOP_S = 60;

pid_t local_listener(const cluster *k)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer = {0};
    socklen_t length = sizeof peer;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", k->server.socket_path);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
        peer.pid = 0;
    close(fd);
    return peer.pid;
}

int local_open(cluster *k, const cli *c, char **state)
{
    int status = cluster_open_local(k, c);
    *state = NULL;
    return status == EXIT_DONE ? state_directory(k, state) : status;
}

static int drain_all(cluster *k)
{
    return cluster_ask(k, "POST", "/api/v1/cluster/drain", 0, NULL);
}

static int await_idle(cluster *k)
{
    bool told = false;
    for (;; pause_ms(100)) {
        json_t *answer = NULL;
        int status = cluster_ask(k, "GET", "/api/v1/cluster", 0, &answer);
        const json_t *jobs = json_object_get(answer, "jobs");
        int busy =
            whole_of(jobs, "Starting") + whole_of(jobs, "Running") + whole_of(jobs, "Stopping");
        json_decref(answer);
        if (status != EXIT_DONE || busy == 0)
            return status;
        if (interrupted())
            return EXIT_INTERRUPTED;
        if (!told)
            fprintf(stderr, "adaptdl down: %d job%s saving a checkpoint ...\n", busy,
                    busy == 1 ? " is" : "s are");
        told = true;
    }
}

/* A handle of the process that listens now. Its number may be another's as soon as it has ended, so it must still
 * be the listener's once there is a handle. -1: nobody listens. */
static int open_listener(const cluster *k, pid_t *pid)
{
    for (;;) {
        *pid = local_listener(k);
        if (*pid <= 1)
            return -1;
        int fd = (int)syscall(SYS_pidfd_open, *pid, 0);
        if (fd >= 0 && local_listener(k) == *pid)
            return fd;
        if (fd >= 0)
            close(fd);
        else if (errno != ESRCH)
            return -1;
    }
}

static int end_process(int fd, pid_t pid)
{
    if (syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0) != 0 && errno != ESRCH)
        return problem("down", EXIT_REFUSED, "process %ld: %s", (long)pid, strerror(errno));
    double until_s = adli_monotonic_s() + STOP_S, left_s;
    struct pollfd ended = {.fd = fd, .events = POLLIN};
    while ((left_s = until_s - adli_monotonic_s()) > 0)
        if (poll(&ended, 1, (int)(left_s * 1e3) + 1) == 1)
            return EXIT_DONE;
    return problem("down", EXIT_TIMEOUT, "the scheduler (process %ld) has not ended after %.0f s",
                   (long)pid, STOP_S);
}

static int stop_scheduler(cluster *k, int fd, pid_t pid, bool stop_jobs)
{
    int status = stop_jobs ? drain_all(k) : EXIT_DONE;
    if (status == EXIT_DONE && stop_jobs)
        status = await_idle(k);
    if (status == EXIT_INTERRUPTED)
        fprintf(stderr,
                "adaptdl down: interrupted; nothing is started any more. To end it: adaptdl "
                "down; to go on: adaptdl up\n");
    if (status != EXIT_DONE)
        return status;
    status = end_process(fd, pid);
    if (status == EXIT_DONE)
        printf("stopped\n");
    return status;
}

int take_down(cluster *k, bool stop_jobs)
{
    pid_t pid;
    int fd = open_listener(k, &pid);
    if (fd < 0 && pid > 1)
        return problem("down", EXIT_REFUSED, "process %ld: %s", (long)pid, strerror(errno));
    if (fd < 0)
        return problem("down", EXIT_NO_CLUSTER, "no cluster is running (socket %s does not answer)",
                       k->server.socket_path);
    int status = stop_scheduler(k, fd, pid, stop_jobs);
    close(fd);
    return status;
}

static int run_down(cli *c)
{
    bool stop_jobs = true;
    char *state = NULL;
    cluster k;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        stop_jobs = strcmp(c->value, "stop") == 0;
        if (!stop_jobs && strcmp(c->value, "leave") != 0)
            return usage_error("down", "--jobs %s: must be stop or leave", c->value);
    }
    if (cli_count(c) > 0)
        return usage_error("down", "takes no arguments, not \"%s\"", cli_argument(c, 0));
    catch_interrupts();
    int status = local_open(&k, c, &state);
    if (status == EXIT_DONE)
        status = take_down(&k, stop_jobs);
    free(state);
    cluster_close(&k);
    return status;
}

static const cli_option down_options[] = {
    {JOBS, "jobs", "HOW",
     "stop: they save a checkpoint and go on at the next up (default); leave: their "
     "replicas go on running",
     "stop leave"},
    {0},
};

const cli_command command_down = {
    .name = "down",
    .summary = "stop the cluster on this machine",
    .usage = "[--jobs stop|leave]",
    .text = "Stops the scheduler. No job is lost: adaptdl up goes on with all of them.",
    .options = down_options,
    .flags = CLI_CLUSTER,
    .run = run_down,
};
