/* Replicas as threads of a test: R contexts in one process, each on its own thread, meeting on a
 * loopback port. Bodies run between adl_init and adl_finish and may use CHECK. */
#ifndef ADLI_TEST_TRAIN_REPLICAS_H
#define ADLI_TEST_TRAIN_REPLICAS_H

#include "harness.h"

#include "adaptdl/accumulator.h"
#include "adaptdl/epoch.h"
#include "adaptdl/loader.h"
#include "adaptdl/train.h"

#include <ftw.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <unistd.h>

enum { ADLT_REPLICAS_MAX = 8 };

typedef struct adlt_job {
    const char *checkpoint; /* directory; NULL: none */
    int restarts;
    double save_interval_s;
    const char *program;
    const char *world_socket; /* where worlds are opened; NULL: nowhere */
    void *user;
} adlt_job;

typedef struct adlt_replica {
    const adlt_job *job;
    adl_context *ctx;
    int rank, replicas;
    adl_env env;
    adl_options options;
    void (*body)(struct adlt_replica *replica);
    adl_status started;
    char error[512]; /* of adl_init */
    int code;        /* of adl_finish */
    pthread_t thread;
} adlt_replica;

static void *adlt_replica_run(void *user)
{
    adlt_replica *replica = user;
    replica->started = adl_init(&replica->options, &replica->ctx);
    if (replica->started == ADL_OK) {
        replica->body(replica);
        replica->code = adl_finish(replica->ctx);
    } else {
        snprintf(replica->error, sizeof replica->error, "%s", adl_error());
        replica->code = adl_exit_code(replica->started);
    }
    return NULL;
}

/* Runs body on that many replicas and fills out[replicas]. */
static void adlt_replicas_run(const adlt_job *job, int replicas, void (*body)(adlt_replica *),
                              adlt_replica *out)
{
    int fd = -1, port = 0;
    if (replicas > 1 && adl_group_listen("127.0.0.1", 0, &fd, &port) != ADL_OK) {
        ADLT_FAIL("listen: %s", adl_error());
        return;
    }
    for (int r = 0; r < replicas; r++) {
        adlt_replica *replica = &out[r];
        *replica = (adlt_replica){.job = job, .rank = r, .replicas = replicas, .body = body};
        replica->env = (adl_env)ADL_ENV_INIT;
        replica->env.rank = r;
        replica->env.replicas = replicas;
        replica->env.master_addr = "127.0.0.1";
        replica->env.master_port = port;
        replica->env.checkpoint_path = job->checkpoint;
        replica->env.restarts = job->restarts;
        replica->env.world_socket = job->world_socket;
        replica->env.member = r;
        replica->options = (adl_options)ADL_OPTIONS_INIT;
        replica->options.env = &replica->env;
        replica->options.handle_signals = false;
        replica->options.log = getenv("ADL_TEST_VERBOSE") ? adl_log_stderr : NULL;
        replica->options.program = job->program;
        replica->options.checkpoint_interval_s = job->save_interval_s;
        replica->options.connect_timeout_ms = 60000;
        replica->options.peer_timeout_ms = 20000;
        replica->options.listen_fd = r == 0 ? fd : -1;
    }
    for (int r = 0; r < replicas; r++)
        pthread_create(&out[r].thread, NULL, adlt_replica_run, &out[r]);
    for (int r = 0; r < replicas; r++)
        pthread_join(out[r].thread, NULL);
}

/* The same when all is expected to end with this exit code. */
static inline void adlt_replicas_expect(const adlt_job *job, int replicas,
                                        void (*body)(adlt_replica *), int code)
{
    adlt_replica all[ADLT_REPLICAS_MAX];
    adlt_replicas_run(job, replicas, body, all);
    for (int r = 0; r < replicas; r++)
        if (all[r].code != code)
            ADLT_FAIL("rank %d ended with %d, wanted %d: %s", r, all[r].code, code, all[r].error);
}

/* A port that was free a moment ago, below those that the system hands out for connections meanwhile. */
static inline int adlt_free_port(void)
{
    enum { PORTS = 12000 };
    static atomic_int next;
    int fd, port;
    for (int i = 0; i < PORTS; i++) {
        port = 20000 + (getpid() * 37 + atomic_fetch_add(&next, 1)) % PORTS;
        if (adl_group_listen("127.0.0.1", port, &fd, &port) == ADL_OK) {
            close(fd);
            return port;
        }
    }
    ADLT_FAIL("no free port in 20000 .. %d", 20000 + PORTS - 1);
    return 0;
}

static int adlt_remove_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info, (void)kind, (void)walk;
    return remove(path);
}

/* A new empty directory; static storage. Remove it with adlt_tempdir_remove. */
static inline char *adlt_tempdir(void)
{
    static char path[64];
    strcpy(path, "/tmp/adl-test-XXXXXX");
    return mkdtemp(path);
}

static inline void adlt_tempdir_remove(const char *path)
{
    nftw(path, adlt_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
