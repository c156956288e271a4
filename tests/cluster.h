/* A scheduler daemon for tests: a real process on a state directory of its own, asked over its socket.
 * Programs are looked for beside the test program (../bin, ../helpers). */
#ifndef ADLT_CLUSTER_H
#define ADLT_CLUSTER_H

#include "http_client.h"

#include "base/json.h"

#include <fcntl.h>
#include <ftw.h>
#include <libgen.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

typedef struct cluster {
    char state[64], socket[96];
    pid_t daemon; /* 0: none */
    int ready_fd; /* becomes readable when the daemon serves; -1 */
    int status;   /* of the daemon that ended, as of waitpid */
    char program[512];
} cluster;

/* The path of a program of this build: "bin/adaptdl-sched", "helpers/helper_job". Static. */
static inline const char *cluster_program(const char *name)
{
    static char paths[4][640];
    static int turn;
    char self[512] = "", *path = paths[turn++ % 4];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = 0;
    snprintf(path, sizeof paths[0], "%s/../%s", dirname(self), name);
    return path;
}

/* Only a directory; start it with cluster_start. */
static inline bool cluster_new(cluster *c)
{
    *c = (cluster){.state = "/tmp/adl-cluster-XXXXXX", .ready_fd = -1};
    if (!mkdtemp(c->state))
        return false;
    snprintf(c->socket, sizeof c->socket, "%s/adaptdl.sock", c->state);
    snprintf(c->program, sizeof c->program, "%s", cluster_program("bin/adaptdl-sched"));
    return true;
}

/* Starts the program with the flags after --state (NULL at the end); its output goes to
 * STATE/daemon.log. Does not wait. */
static inline void cluster_spawn(cluster *c, const char *const *first, const char *const *flags)
{
    const char *argv[32] = {c->program};
    char fd_text[16], log[128];
    int argc = 1, fds[2];
    for (int i = 0; first && first[i]; i++)
        argv[argc++] = first[i];
    argv[argc++] = "--state";
    argv[argc++] = c->state;
    argv[argc++] = "--ready-fd";
    argv[argc++] = fd_text;
    for (int i = 0; flags && flags[i]; i++)
        argv[argc++] = flags[i];
    if (pipe2(fds, O_CLOEXEC) != 0)
        abort();
    snprintf(fd_text, sizeof fd_text, "%d", fds[1]);
    snprintf(log, sizeof log, "%s/daemon.log", c->state);
    c->daemon = fork();
    if (c->daemon == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
        dup2(out, 1);
        dup2(out, 2);
        fcntl(fds[1], F_SETFD, 0);
        execv(c->program, (char *const *)argv);
        _exit(127);
    }
    close(fds[1]);
    c->ready_fd = fds[0];
}

/* Waits until it serves; false when it ended, or after so many ms. */
static inline bool cluster_ready(cluster *c, int timeout_ms)
{
    struct pollfd wait = {c->ready_fd, POLLIN, 0};
    char line[256];
    bool ready = c->ready_fd >= 0 && poll(&wait, 1, timeout_ms) == 1 &&
                 read(c->ready_fd, line, sizeof line) > 0;
    if (ready || (c->ready_fd >= 0 && (wait.revents & POLLHUP))) {
        close(c->ready_fd);
        c->ready_fd = -1;
    }
    return ready;
}

/* Sends the signal (0: none) and waits for its end; returns the status as of waitpid. */
static inline int cluster_end(cluster *c, int number)
{
    if (c->daemon > 0) {
        if (number)
            kill(c->daemon, number);
        while (waitpid(c->daemon, &c->status, 0) < 0 && errno == EINTR)
            continue;
    }
    if (c->ready_fd >= 0)
        close(c->ready_fd);
    c->ready_fd = -1;
    c->daemon = 0;
    return c->status;
}

/* Has it ended by itself? */
static inline bool cluster_ended(cluster *c)
{
    if (c->daemon > 0 && waitpid(c->daemon, &c->status, WNOHANG) == c->daemon)
        c->daemon = 0;
    return c->daemon <= 0;
}

/* One request; code 0: nobody answered. Free the answer. */
static inline adlt_answer cluster_ask(cluster *c, const char *method, const char *path,
                                      const char *yaml)
{
    adlt_answer answer = {0};
    int fd = adlt_connect_unix(c->socket);
    if (fd < 0)
        return answer;
    answer = adlt_exchange(fd, method, path, yaml ? "Content-Type: application/yaml\r\n" : "", yaml,
                           yaml ? strlen(yaml) : 0);
    close(fd);
    return answer;
}

/* The code only. */
static inline int cluster_code(cluster *c, const char *method, const char *path, const char *yaml)
{
    adlt_answer answer = cluster_ask(c, method, path, yaml);
    int code = answer.code;
    adlt_answer_free(&answer);
    return code;
}

/* The answer as JSON, or NULL; to be freed with json_decref. */
static inline json_t *cluster_json(cluster *c, const char *path)
{
    json_t *root = NULL;
    adlt_answer answer = cluster_ask(c, "GET", path, NULL);
    if (answer.code == 200 && adli_json_parse(answer.body, answer.body_length, &root) != ADL_OK)
        root = NULL;
    adlt_answer_free(&answer);
    return root;
}

/* Processes that have the state directory in their environment or command line, but for the daemon and
 * ourselves; shown when asked. */
static inline int cluster_processes(const cluster *c, bool show)
{
    int count = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && (entry = readdir(proc));) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid <= 0 || pid == getpid() || pid == c->daemon)
            continue;
        static const char *const files[] = {"cmdline", "environ"};
        static char text[65536];
        bool found = false;
        for (int i = 0; i < 2 && !found; i++) {
            char path[64];
            snprintf(path, sizeof path, "/proc/%ld/%s", pid, files[i]);
            int fd = open(path, O_RDONLY | O_CLOEXEC);
            ssize_t got = fd >= 0 ? read(fd, text, sizeof text) : -1;
            found = got > 0 && memmem(text, (size_t)got, c->state, strlen(c->state));
            if (fd >= 0)
                close(fd);
        }
        count += found;
        if (found && show)
            printf("# process %ld is left\n", pid);
    }
    if (proc)
        closedir(proc);
    return count;
}

static inline int cluster_remove_entry(const char *path, const struct stat *info, int kind,
                                       struct FTW *where)
{
    (void)info, (void)kind, (void)where;
    return remove(path);
}

/* Ends the daemon and removes the directory (kept, and said, when the test failed). */
static inline void cluster_free(cluster *c)
{
    cluster_end(c, SIGKILL);
    if (adlt_failed)
        printf("# state is kept in %s\n", c->state);
    else
        nftw(c->state, cluster_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
