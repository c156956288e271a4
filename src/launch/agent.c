#include "launch/agent.h"

#include "base/clock.h"
#include "base/mem.h"
#include "launch/remote.h"
#include "launch/replica.h"
#include "proc/ward.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TICK_MS = 1000, CANNOT_START = 126, NOT_FOUND = 127 };

/* Exactly so many bytes, or the input was too short. */
static bool read_all(char *out, size_t length)
{
    while (length > 0) {
        ssize_t got = read(STDIN_FILENO, out, length);
        if (got == 0 || (got < 0 && errno != EINTR))
            return false;
        out += got > 0 ? got : 0;
        length -= got > 0 ? (size_t)got : 0;
    }
    return true;
}

/* The bytes after the first line (free); NULL: there is no request. */
static char *read_request(size_t *length)
{
    char head[ADLI_REQUEST_HEAD + 16] = "";
    for (size_t i = 0; i + 1 < sizeof head && (i == 0 || head[i - 1] != '\n'); i++)
        if (!read_all(head + i, 1))
            return NULL;
    long wanted = adli_request_length(head);
    char *data = wanted > 0 ? adli_calloc((size_t)wanted, 1) : NULL;
    *length = wanted > 0 ? (size_t)wanted : 0;
    if (data && !read_all(data, *length)) {
        free(data);
        data = NULL;
    }
    return data;
}

/* In the child: does not return. */
static _Noreturn void become(const adli_request *request, pid_t agent)
{
    sigset_t none;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != agent)
        _exit(1);
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(nothing, STDIN_FILENO);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (char **variable = request->variables; *variable; variable++)
        putenv(*variable);
    adli_replica_share_processors(request->local_count);
    execvp(request->argv[0], request->argv);
    int why = errno;
    fprintf(stderr, "%s: %s\n", request->argv[0], strerror(why));
    _exit(why == ENOENT ? NOT_FOUND : CANNOT_START);
}

/* Words from the launcher. Its end, or that of the connection, is the end of the replica. */
static void listen_to_launcher(adli_ward *ward, bool *open)
{
    char text[256];
    ssize_t got = read(STDIN_FILENO, text, sizeof text);
    if (got > 0)
        adli_ward_ask(ward); /* the only word there is */
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) {
        *open = false;
        adli_ward_kill(ward);
    }
}

static int attend(adli_ward *ward, int signals)
{
    bool open = true;
    while (!adli_ward_over(ward)) {
        struct signalfd_siginfo info;
        struct pollfd wait[] = {{signals, POLLIN, 0}, {open ? STDIN_FILENO : -1, POLLIN, 0}};
        (void)poll(wait, 2, TICK_MS);
        if (wait[0].revents && read(signals, &info, sizeof info) == sizeof info &&
            info.ssi_signo != SIGCHLD)
            adli_ward_ask(ward);
        if (wait[1].revents)
            listen_to_launcher(ward, &open);
        int status;
        for (pid_t id; (id = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0;)
            adli_ward_note(ward, id, status, adli_monotonic_s());
        if (adli_ward_is_silent(ward))
            adli_ward_kill(ward);
    }
    kill(-ward->id, SIGKILL); /* what it left behind in its group */
    return adli_ward_code(ward);
}

static int serve(const adli_request *request)
{
    adli_ward ward = {0};
    sigset_t handled;
    pid_t agent = getpid();
    if (chdir(request->directory) != 0) {
        char host[256] = "";
        gethostname(host, sizeof host - 1);
        fprintf(stderr, "directory %s on %s: %s\n", request->directory, host, strerror(errno));
        return CANNOT_START;
    }
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
    sigemptyset(&handled);
    for (size_t i = 0; i < ADLI_COUNT(numbers); i++)
        sigaddset(&handled, numbers[i]);
    sigprocmask(SIG_BLOCK, &handled, NULL);
    int signals = signalfd(-1, &handled, SFD_NONBLOCK | SFD_CLOEXEC);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    ward.id = signals >= 0 ? fork() : -1;
    if (ward.id == 0)
        become(request, agent);
    if (ward.id < 0) {
        fprintf(stderr, "cannot start a process: %s\n", strerror(errno));
        return CANNOT_START;
    }
    setpgid(ward.id, ward.id);
    fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
    return attend(&ward, signals);
}

int adli_agent_run(void)
{
    adli_request request;
    size_t length;
    char *data = read_request(&length);
    if (!data) {
        fprintf(stderr, "adaptdl run --as-replica: no request on standard input\n");
        return CANNOT_START;
    }
    int code = CANNOT_START;
    if (adli_request_parse(data, length, &request) == ADL_OK)
        code = serve(&request);
    else
        fprintf(stderr, "adaptdl run --as-replica: %s\n", adl_error());
    adli_request_fini(&request);
    free(data);
    return code;
}
