/* The launcher's end of a replica on another machine; see remote.h. */
#include "launch/remote.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COMMAND_MAX = 4096 + 128, LOST = 255 };

/* The same program at the same place, or else what is called adaptdl there. The shell there may be any: sh is
 * asked for, and a path that would need quotes is not tried. */
static void make_command(char *out, size_t capacity)
{
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    if (self[strspn(self, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._+-")])
        self[0] = '\0';
    snprintf(out, capacity,
             "exec sh -c 'p=\"%s\"; [ -x \"$p\" ] || p=adaptdl; exec \"$p\" run --as-replica'",
             self);
}

static void become_ssh(const adli_hosts *hosts, const char *host, int in, pid_t parent)
{
    static char batch[] = "-oBatchMode=yes", alive[] = "-oServerAliveInterval=5",
                most[] = "-oServerAliveCountMax=3", plain[] = "-T";
    char command[COMMAND_MAX], name[ADLI_HOST_MAX + 1];
    char *argv[ADLI_SSH_WORDS + 8];
    int count = 0;
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(LOST);
    for (; hosts->ssh[count]; count++)
        argv[count] = hosts->ssh[count];
    make_command(command, sizeof command);
    snprintf(name, sizeof name, "%s", host);
    char *rest[] = {plain, batch, alive, most, name, command, NULL};
    memcpy(argv + count, rest, sizeof rest);
    dup2(in, STDIN_FILENO);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(argv[0], argv);
    fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
    _exit(LOST);
}

static bool write_all(int fd, const char *data, size_t length)
{
    while (length > 0) {
        ssize_t wrote = write(fd, data, length);
        if (wrote < 0 && errno != EINTR)
            return false;
        data += wrote > 0 ? wrote : 0;
        length -= wrote > 0 ? (size_t)wrote : 0;
    }
    return true;
}

/* Does a process die of it? Some others stop it instead, and a program may exit with any number. */
static bool kills(int number)
{
    static const int deadly[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGILL,  SIGTRAP, SIGABRT,
                                 SIGBUS,  SIGFPE,  SIGKILL, SIGUSR1, SIGSEGV, SIGUSR2,
                                 SIGPIPE, SIGALRM, SIGXCPU, SIGXFSZ, SIGSYS};
    for (size_t i = 0; i < ADLI_COUNT(deadly); i++)
        if (deadly[i] == number)
            return true;
    return false;
}

/* Ends as the replica did: whoever looks at this process sees the signal that killed it. */
static _Noreturn void end_like(int status)
{
    int code = WIFSIGNALED(status) ? LOST : WEXITSTATUS(status);
    int number = code - 128;
    if (kills(number)) {
        sigset_t none;
        prctl(PR_SET_DUMPABLE, 0); /* the core is elsewhere */
        signal(number, SIG_DFL);
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        raise(number);
    }
    _exit(code);
}

/* Until ssh ends. A SIGTERM is passed on as a word: ssh itself would just die of it. */
static _Noreturn void attend(pid_t ssh, int in, int signals)
{
    for (;;) {
        int status;
        struct signalfd_siginfo info;
        struct pollfd wait = {signals, POLLIN, 0};
        if (waitpid(ssh, &status, WNOHANG) == ssh)
            end_like(status);
        if (poll(&wait, 1, -1) <= 0 || read(signals, &info, sizeof info) != sizeof info)
            continue;
        if (info.ssi_signo == SIGTERM)
            (void)write_all(in, ADLI_REQUEST_STOP, strlen(ADLI_REQUEST_STOP));
    }
}

_Noreturn void adli_remote_run(const adli_hosts *hosts, const adli_place *place, char *const *argv)
{
    adli_buf request;
    sigset_t handled;
    int in[2];
    pid_t parent = getpid();
    sigemptyset(&handled);
    sigaddset(&handled, SIGTERM);
    sigaddset(&handled, SIGCHLD);
    sigprocmask(SIG_BLOCK, &handled, NULL);
    signal(SIGPIPE, SIG_IGN);
    adli_buf_init(&request, ADLI_REQUEST_MAX + ADLI_REQUEST_HEAD);
    if (adli_request_write(&request, place->local_count, argv) != ADL_OK) {
        fprintf(stderr, "%s\n", adl_error());
        _exit(126);
    }
    int signals = signalfd(-1, &handled, SFD_CLOEXEC);
    if (signals < 0 || pipe2(in, O_CLOEXEC) != 0)
        _exit(LOST);
    pid_t ssh = fork();
    if (ssh == 0) {
        signal(SIGPIPE, SIG_DFL);
        become_ssh(hosts, hosts->name[place->host], in[0], parent);
    }
    if (ssh < 0)
        _exit(LOST);
    close(in[0]);
    (void)write_all(in[1], request.data,
                    request.length); /* a failure: ssh has ended, and said why */
    attend(ssh, in[1], signals);
}
