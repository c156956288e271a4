/* The scheduler daemon's program: flags and how it goes into the background. The daemon itself is
 * src/daemon. */
#include "adaptdl/status.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "daemon/flags.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { EXIT_INPUT = 1, EXIT_USAGE = 2 };

/* Tells a service manager that waits ($NOTIFY_SOCKET, sd_notify(3)). */
static void notify_manager(void)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!path || !*path || strlen(path) >= sizeof address.sun_path)
        return;
    memcpy(address.sun_path, path, strlen(path));
    if (address.sun_path[0] == '@')
        address.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    if (fd >= 0)
        sendto(fd, "READY=1\n", 8, MSG_NOSIGNAL, (struct sockaddr *)&address, length);
    if (fd >= 0)
        close(fd);
}

/* "ready URL [DASHBOARD]" for whoever waits on the descriptor. */
static void ready(void *user, const char *url, const char *dashboard)
{
    const adli_flags *flags = user;
    if (flags->ready_fd >= 0) {
        dprintf(flags->ready_fd, "ready %s%s%s\n", url, *dashboard ? " " : "", dashboard);
        close(flags->ready_fd);
    }
    notify_manager();
}

/* The parent waits until the child serves, or fails. The child's log goes to STATE/daemon.log. */
static int go_to_background(adli_flags *flags)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
        fprintf(stderr, "adaptdl-sched: pipe: %s\n", strerror(errno));
        return EXIT_INPUT;
    }
    pid_t child = fork();
    if (child < 0) {
        fprintf(stderr, "adaptdl-sched: fork: %s\n", strerror(errno));
        return EXIT_INPUT;
    }
    if (child == 0) {
        setsid();
        close(fds[0]);
        flags->ready_fd = fds[1];
        return -1;
    }
    close(fds[1]);
    char line[8192];
    size_t have = 0;
    for (ssize_t got;
         have < sizeof line - 1 && (got = read(fds[0], line + have, sizeof line - 1 - have)) > 0;)
        have += (size_t)got;
    line[have] = 0;
    if (strncmp(line, "ready ", 6) == 0) {
        fputs(line, stdout);
        return EXIT_SUCCESS;
    }
    fprintf(stderr, "%s", have ? line : "adaptdl-sched: ended before it was ready\n");
    return EXIT_INPUT;
}

static adl_status read_nodes(void *user, adli_nodes *out)
{
    return adli_flags_nodes(user, out);
}

/* The program from its beginning, with nothing of what it did: who lost the lead waits to lead again, and is not kept
 * waiting itself, as one that crashes. */
static void begin_anew(void *user)
{
    sigset_t ends; /* one that has come stays for the new program */
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    if (close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) == 0 &&
        pthread_sigmask(SIG_SETMASK, &ends, NULL) == 0)
        execv("/proc/self/exe", user);
}

static int serve(adli_flags *flags, char **argv)
{
    if (fcntl(flags->ready_fd, F_GETFD) < 0)
        flags->ready_fd = -1; /* whoever waited has been told, before the program began anew */
    adl_log_level level;
    if (adli_log_level(flags->verbose, &level) != ADL_OK) {
        fprintf(stderr, "adaptdl-sched: %s\n", adl_error());
        return EXIT_USAGE;
    }
    adli_log_start(adli_log_stamped, NULL, level);
    bool background = flags->background;
    if (background) {
        int code = go_to_background(flags);
        if (code >= 0)
            return code;
    }
    adli_daemon_options options = {.state_dir = flags->state_dir,
                                   .socket = flags->socket,
                                   .config = &flags->config,
                                   .background = background,
                                   .log_path = flags->log_path,
                                   .read_nodes = read_nodes,
                                   .read_nodes_user = flags,
                                   .ready = ready,
                                   .ready_user = flags,
                                   .lost = begin_anew,
                                   .lost_user = argv};
    adl_status status = adli_daemon_run(&options);
    if (status == ADL_OK)
        return EXIT_SUCCESS;
    dprintf(background ? flags->ready_fd : 2, "adaptdl-sched: %s\n", adl_error());
    return status == ADL_EINVAL ? EXIT_USAGE : EXIT_INPUT;
}

/* A placeholder is there, and nothing else. As the first process of a container it must ask for SIGTERM. */
static int keep_place(void)
{
    sigset_t ends;
    int which;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    while (sigwait(&ends, &which) != 0)
        continue;
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    adli_flags flags;
    adl_status status = adli_flags_read(argc, argv, &flags);
    int code = EXIT_SUCCESS;
    if (status != ADL_OK) {
        fprintf(stderr, "adaptdl-sched: %s (see: adaptdl-sched --help)\n", adl_error());
        code = EXIT_USAGE;
    } else if (flags.text.length > 0)
        fputs(flags.text.data, stdout);
    else if (flags.placeholder)
        code = keep_place();
    else
        code = serve(&flags, argv);
    adli_flags_fini(&flags);
    return code;
}
