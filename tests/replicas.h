/* Test replicas: the same body run once for each rank, as threads of this process or as child
 * processes, with a group already formed. A body reports through its adlt_replica, not through CHECK,
 * because it does not run on the test's thread. */
#ifndef ADLI_TEST_REPLICAS_H
#define ADLI_TEST_REPLICAS_H

#include "adaptdl/group.h"
#include "base/mem.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __SANITIZE_THREAD__
/* Children are forked when all threads were joined, which the sanitizer may not have noticed yet. */
const char *__tsan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}
#endif

enum { ADLT_PEER_TIMEOUT_MS = 5000, ADLT_REPLICAS_MAX = 8, ADLT_LIMIT_S = 120 };

typedef struct adlt_replica {
    int rank, replicas, port, listen_fd, peer_timeout_ms, extra;
    const void *secret;
    size_t secret_length;
    void (*body)(struct adlt_replica *);
    adl_group *group;
    pthread_t thread;
    char failure[768];
} adlt_replica;

static int adlt_peer_timeout_ms = ADLT_PEER_TIMEOUT_MS;
static int adlt_extra; /* handed to every replica */

static inline void adlt_replica_fail(adlt_replica *r, int line, const char *what)
{
    if (!r->failure[0])
        snprintf(r->failure, sizeof r->failure, "rank %d of %d, line %d: %s (last error: %s)",
                 r->rank, r->replicas, line, what, adl_error());
}

#define NEED(r, condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            adlt_replica_fail(r, __LINE__, #condition);                                            \
            return;                                                                                \
        }                                                                                          \
    } while (0)
#define NEED_OK(r, call) NEED(r, (call) == ADL_OK)
#define NEED_FAILS(r, call, wanted, text)                                                          \
    do {                                                                                           \
        adl_status adlt_status = (call);                                                           \
        if (adlt_status != (wanted) || !strstr(adl_error(), (text))) {                             \
            char adlt_what[256];                                                                   \
            snprintf(adlt_what, sizeof adlt_what, "%s: wanted %s with \"%s\", got %s", #call,      \
                     #wanted, (text), adl_status_text(adlt_status));                               \
            adlt_replica_fail(r, __LINE__, adlt_what);                                             \
            return;                                                                                \
        }                                                                                          \
    } while (0)

static inline void *adlt_replica_run(void *argument)
{
    adlt_replica *r = argument;
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    options.rank = r->rank;
    options.replicas = r->replicas;
    options.master_port = r->port;
    options.listen_fd = r->rank == 0 ? r->listen_fd : -1;
    options.secret = r->secret;
    options.secret_length = r->secret ? r->secret_length : 0;
    options.peer_timeout_ms = r->peer_timeout_ms;
    options.connect_timeout_ms = 60000;
    if (adl_group_new(&options, &r->group) != ADL_OK)
        adlt_replica_fail(r, __LINE__, "adl_group_new");
    else
        r->body(r);
    adl_group_free(r->group);
    return NULL;
}

static inline void adlt_replicas_init(adlt_replica *all, int replicas, void (*body)(adlt_replica *),
                                      const void *secret, size_t secret_length, int listen_fd,
                                      int port)
{
    memset(all, 0, (size_t)replicas * sizeof *all);
    for (int rank = 0; rank < replicas; rank++) {
        all[rank].rank = rank;
        all[rank].replicas = replicas;
        all[rank].port = port;
        all[rank].listen_fd = listen_fd;
        all[rank].peer_timeout_ms = adlt_peer_timeout_ms;
        all[rank].extra = adlt_extra;
        all[rank].secret = secret;
        all[rank].secret_length = secret_length;
        all[rank].body = body;
    }
}

/* Takes listen_fd over. Prints what failed; returns whether nothing did. */
static inline bool adlt_run_threads_on(int replicas, void (*body)(adlt_replica *),
                                       const void *secret, size_t secret_length, int listen_fd,
                                       int port)
{
    adlt_replica all[ADLT_REPLICAS_MAX];
    bool fine = true;
    adlt_replicas_init(all, replicas, body, secret, secret_length, listen_fd, port);
    for (int rank = 0; rank < replicas; rank++) {
        if (pthread_create(&all[rank].thread, NULL, adlt_replica_run, &all[rank]) != 0)
            abort();
    }
    for (int rank = 0; rank < replicas; rank++) {
        pthread_join(all[rank].thread, NULL);
        if (all[rank].failure[0])
            printf("# %s\n", all[rank].failure);
        fine = fine && !all[rank].failure[0];
    }
    return fine;
}

static inline bool adlt_run_threads(int replicas, void (*body)(adlt_replica *), const void *secret,
                                    size_t secret_length)
{
    int fd = -1, port = 0;
    if (adl_group_listen("127.0.0.1", 0, &fd, &port) != ADL_OK)
        return false;
    return adlt_run_threads_on(replicas, body, secret, secret_length, fd, port);
}

/* In a child of adlt_run_processes: dies, or falls silent until the test is over. */
static inline void adlt_signal_me(bool stop)
{
    kill(getpid(), stop ? SIGSTOP : SIGKILL);
}

/* Waits for one child; one that killed itself is fine. *pid becomes 0 unless it is only stopped. */
static inline bool adlt_reap(pid_t *pid, int rank)
{
    int status = 0;
    if (waitpid(*pid, &status, WUNTRACED) != *pid)
        return false;
    if (WIFSTOPPED(status))
        return true;
    *pid = 0;
    if ((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
        (WIFEXITED(status) && WEXITSTATUS(status) == 0))
        return true;
    printf("# rank %d ended with wait status 0x%x\n", rank, status);
    return false;
}

static inline bool adlt_run_processes(int replicas, void (*body)(adlt_replica *),
                                      const void *secret, size_t secret_length)
{
    int fd = -1, port = 0;
    bool fine = true;
    pid_t children[ADLT_REPLICAS_MAX];
    adlt_replica all[ADLT_REPLICAS_MAX];
    if (adl_group_listen("127.0.0.1", 0, &fd, &port) != ADL_OK)
        return false;
    adlt_replicas_init(all, replicas, body, secret, secret_length, fd, port);
    fflush(stdout);
    for (int rank = 0; rank < replicas; rank++) {
        children[rank] = fork();
        if (children[rank] == 0) {
            alarm(ADLT_LIMIT_S); /* a hang is a failure, not a hang */
            if (rank != 0)
                close(fd);
            adlt_replica_run(&all[rank]);
            if (all[rank].failure[0])
                printf("# %s\n", all[rank].failure);
            fflush(stdout);
            _exit(all[rank].failure[0] ? 1 : 0);
        }
    }
    close(fd);
    for (int rank = 0; rank < replicas; rank++)
        fine = adlt_reap(&children[rank], rank) && fine;
    for (int rank = 0; rank < replicas; rank++) { /* the stopped ones: the others are done now */
        if (children[rank] > 0) {
            kill(children[rank], SIGKILL);
            waitpid(children[rank], NULL, 0);
        }
    }
    return fine;
}

static inline int adlt_count_dir(const char *path)
{
    int count = 0;
    DIR *dir = opendir(path);
    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count;
}

static inline int adlt_count_fds(void)
{
    return adlt_count_dir("/proc/self/fd");
}

/* Threads of this process; one that was joined may take a moment to vanish, so a count above
 * `wanted` is looked at again for a while. */
static inline int adlt_count_threads(int wanted)
{
    int count = 0;
    for (int i = 0; i < 2000 && (i == 0 || count > wanted); i++) {
        if (i > 0)
            usleep(1000);
        count = adlt_count_dir("/proc/self/task") - 2;
    }
    return count;
}

#endif
