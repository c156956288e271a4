#include "daemon/daemon.h"

#include "adli_version.h"
#include "backend/backend.h"
#include "base/clock.h"
#include "base/dirs.h"
#include "base/file.h"
#include "base/mem.h"
#include "daemon/api.h"
#include "daemon/core_impl.h"
#include "daemon/operator.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, TOKEN_MAX = 4096 };

typedef struct daemon {
    const adli_daemon_options *options;
    char state[PATH_SIZE], socket[PATH_SIZE], uploads[PATH_SIZE];
    int lock_fd;
    char token[TOKEN_MAX];
    adli_operator *op; /* NULL: not on a cluster */
    adli_backend *backend;
    adli_core *core;
    adli_api *api;
} daemon_state;

/* ---- the state directory ---- */

/* An absolute name without links, so that replicas that change their directory find it too. */
static adl_status open_state(daemon_state *d)
{
    char *given;
    adl_status status = adli_state_dir(d->options->state_dir, &given);
    if (status == ADL_OK)
        status = adli_dirs_make(given, 0700);
    char *full = status == ADL_OK ? realpath(given, NULL) : NULL;
    if (status == ADL_OK)
        status =
            full ? adli_dirs_private(full) : adli_fail(ADL_EIO, "%s: %s", given, strerror(errno));
    int length = full ? snprintf(d->state, sizeof d->state, "%s", full) : 0;
    if (length < 0 || (size_t)length + 64 >= sizeof d->state)
        status = adli_fail(ADL_EINVAL, "%s: the name is too long", given);
    free(full);
    free(given);
    if (status != ADL_OK)
        return status;
    memcpy(d->uploads, d->state, (size_t)length);
    strcpy(d->uploads + length, "/uploads");
    if (d->options->socket)
        snprintf(d->socket, sizeof d->socket, "%s", d->options->socket);
    else {
        memcpy(d->socket, d->state, (size_t)length);
        strcpy(d->socket + length, "/adaptdl.sock");
    }
    size_t most = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1;
    if (strlen(d->socket) > most)
        return adli_fail(ADL_EINVAL,
                         "%s: longer than the %zu bytes that a socket's name may have; choose a "
                         "shorter --state or --socket",
                         d->socket, most);
    if (mkdir(d->uploads, 0700) != 0 && errno != EEXIST)
        return adli_fail(ADL_EIO, "%s: %s", d->uploads, strerror(errno));
    return adli_dirs_private(d->uploads);
}

/* The lock, at once; but a child that a killed daemon was just starting has it, too, until it is another program: then
 * in a moment. pid: of whoever has it otherwise. */
static bool take_lock(int fd, char *pid, size_t size)
{
    const struct timespec moment = {.tv_nsec = 20000000};
    for (double until_s = adli_monotonic_s() + 10;;) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return true;
        ssize_t got = pread(fd, pid, size - 1, 0);
        pid[got > 0 ? strcspn(pid, "\n") : 0] = 0;
        long number = strtol(pid, NULL, 10);
        if (number <= 0 || kill((pid_t)number, 0) == 0 || errno != ESRCH ||
            adli_monotonic_s() >= until_s)
            return false;
        nanosleep(&moment, NULL);
    }
}

/* One daemon to a directory: whoever holds the lock of its pid file. The lock goes with the process. */
static adl_status lock_state(daemon_state *d)
{
    char path[PATH_SIZE + 32], pid[32] = "";
    snprintf(path, sizeof path, "%s/adaptdl-sched.pid", d->state);
    adl_status status = adli_dirs_open(path, O_RDWR | O_CREAT, 0600, &d->lock_fd);
    if (status != ADL_OK)
        return status;
    if (!take_lock(d->lock_fd, pid, sizeof pid))
        return adli_fail(ADL_ESTATE, "%s is in use by another daemon (process %s)", d->state, pid);
    int length = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    if (ftruncate(d->lock_fd, 0) != 0 || pwrite(d->lock_fd, pid, (size_t)length, 0) != length)
        return adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    return ADL_OK;
}

/* NULL: it is not there, or is a link. */
static DIR *look_into(const char *path)
{
    int fd;
    if (adli_dirs_enter(path, &fd) != ADL_OK)
        return NULL;
    DIR *dir = fdopendir(fd);
    if (!dir)
        close(fd);
    return dir;
}

/* Jobs without their database: to begin with an empty one would forget them, and their replicas. */
static adl_status check_database(const daemon_state *d)
{
    char path[PATH_SIZE + 32], jobs[PATH_SIZE + 8];
    struct stat info;
    int found = 0;
    snprintf(path, sizeof path, "%s/jobs.sqlite", d->state);
    snprintf(jobs, sizeof jobs, "%s/jobs", d->state);
    if (stat(path, &info) == 0 && info.st_size > 0)
        return ADL_OK;
    DIR *dir = look_into(jobs);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        found += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    if (found == 0)
        return ADL_OK;
    return adli_fail(
        ADL_ECORRUPT,
        "%s: missing or empty, but %s has the files of %d jobs; bring it back (adaptdl "
        "restore FILE), or begin anew: mv %s %s.old",
        path, jobs, found, jobs, jobs);
}

/* Files of uploads lose their names at once; one whose daemon was killed just before that is still there. */
static void clear_uploads(const daemon_state *d)
{
    DIR *dir = look_into(d->uploads);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (strncmp(entry->d_name, "upload-", 7) == 0)
            unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        closedir(dir);
}

static adl_status open_log(daemon_state *d)
{
    char own[PATH_SIZE + 16];
    snprintf(own, sizeof own, "%s/daemon.log", d->state);
    const char *path = d->options->log_path ? d->options->log_path : own;
    const int flags = O_WRONLY | O_CREAT | O_APPEND;
    int log = -1, null = open("/dev/null", O_RDWR | O_CLOEXEC);
    adl_status status = ADL_OK;
    if (d->options->log_path) /* the user's own choice, a device or a link perhaps */
        log = open(path, flags | O_CLOEXEC, 0600);
    else
        status = adli_dirs_open(path, flags, 0600, &log);
    if (status == ADL_OK &&
        (log < 0 || null < 0 || dup2(log, 2) < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0))
        status = adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    if (log >= 0)
        close(log);
    if (null >= 0)
        close(null);
    return status;
}

/* The log that has become too long makes room for a new one; the one before stays. It is ours to do when standard error
 * is that log, whoever made it so: "adaptdl up" does it before the daemon begins. */
static void rotate_log(daemon_state *d)
{
    char path[PATH_SIZE + 16], old[PATH_SIZE + 16];
    struct stat now, named;
    int64_t most = d->options->config->limits.max_log_bytes;
    snprintf(path, sizeof path, "%s/daemon.log", d->state);
    if (d->options->log_path || most == 0 || fstat(2, &now) != 0 || !S_ISREG(now.st_mode) ||
        (int64_t)now.st_size <= most / 2 || lstat(path, &named) != 0 ||
        named.st_dev != now.st_dev || named.st_ino != now.st_ino)
        return;
    snprintf(old, sizeof old, "%s/daemon.log.1", d->state);
    if (rename(path, old) != 0 || open_log(d) != ADL_OK)
        adli_say(ADL_LOG_WARNING, "daemon.log is not made anew: %s", strerror(errno));
    else
        adli_say(ADL_LOG_INFO, "goes on from daemon.log.1");
}

/* Keepers, replicas and our own threads count together. */
static void raise_processes(void)
{
    struct rlimit all;
    if (getrlimit(RLIMIT_NPROC, &all) != 0)
        return;
    struct rlimit more = {all.rlim_max, all.rlim_max};
    if (all.rlim_cur != all.rlim_max && setrlimit(RLIMIT_NPROC, &more) == 0)
        all = more;
    if (all.rlim_cur != RLIM_INFINITY)
        adli_say(all.rlim_cur < 256 ? ADL_LOG_WARNING : ADL_LOG_INFO,
                 "may have %llu processes and threads at a time, replicas' included%s",
                 (unsigned long long)all.rlim_cur,
                 all.rlim_cur < 256 ? "; raise the hard limit (ulimit -Hu) for more" : "");
}

/* The usual soft limit of 1024 descriptors is for programs that use select; connections, logs and pipes to
 * keepers need more. Jobs inherit it. */
static void raise_files(void)
{
    enum { PLENTY = 65536 };
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return;
    rlim_t wanted = files.rlim_max < PLENTY ? files.rlim_max : PLENTY;
    if (files.rlim_cur < wanted) {
        struct rlimit more = {wanted, files.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &more) == 0)
            files = more;
    }
    adli_say(files.rlim_cur < 512 ? ADL_LOG_WARNING : ADL_LOG_INFO,
             "may open %llu files at a time%s", (unsigned long long)files.rlim_cur,
             files.rlim_cur < 512 ? "; raise the hard limit (ulimit -Hn) for more connections"
                                  : "");
}

static void raise_limits(void)
{
    raise_files();
    raise_processes();
}

/* ---- the parts ---- */

static bool asked_to_end(void *user)
{
    (void)user;
    sigset_t pending;
    return sigpending(&pending) == 0 &&
           (sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1);
}

static adl_status open_operator(daemon_state *d)
{
    adli_operator_options options = {.state_dir = d->state,
                                     .config = d->options->config,
                                     .interrupted = asked_to_end,
                                     .lost = d->options->lost,
                                     .user = d->options->lost_user};
    adl_status status = adli_operator_new(&options, &d->op);
    if (status == ADL_OK)
        d->backend = adli_operator_backend(d->op);
    return status;
}

static adl_status open_backend(daemon_state *d)
{
    if (strcmp(d->options->config->backend, "kubernetes") == 0)
        return open_operator(d);
    adli_backend_options options = ADLI_BACKEND_OPTIONS_INIT;
    options.state_dir = d->state;
    options.nodes = &d->options->config->nodes;
    options.log_bytes = d->options->config->limits.max_log_bytes;
    options.users = d->options->config->namespace_users;
    return adli_backend_open(d->options->config->backend, &options, &d->backend);
}

static adl_status open_core(daemon_state *d)
{
    adli_core_options options = {
        .state_dir = d->state, .backend = d->backend, .config = d->options->config};
    if (d->op) {
        options.mirror = adli_operator_mirror(d->op);
        options.no_job_tokens = !d->options->config->kubernetes.tokens;
    }
    return adli_core_new(&options, &d->core);
}

/* A token of our own, made once. One that somebody else put there is refused: they would know it. */
static adl_status own_token(const char *path, adli_buf *text)
{
    char fresh[65], chunk[256];
    int fd;
    adl_status status = adli_dirs_open(path, O_RDONLY, 0, &fd);
    if (status == ADL_ENOENT) {
        status = adli_random_hex(fresh, sizeof fresh);
        if (status == ADL_OK)
            status = adli_dirs_open(path, O_RDWR | O_CREAT | O_EXCL, 0600, &fd);
        if (status != ADL_OK)
            return status;
        if (dprintf(fd, "%s\n", fresh) < 0 || fsync(fd) != 0 || lseek(fd, 0, SEEK_SET) != 0)
            status = adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
    }
    for (ssize_t got; status == ADL_OK && (got = read(fd, chunk, sizeof chunk)) != 0;) {
        if (got < 0)
            status = adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
        else
            adli_buf_append(text, chunk, (size_t)got);
    }
    if (fd >= 0)
        close(fd);
    return status == ADL_OK ? adli_buf_check(text) : status;
}

/* The operators' token: the file that was named, or one of our own. */
static adl_status read_token(daemon_state *d)
{
    const char *named = d->options->config->token_file;
    char own[PATH_SIZE + 16];
    snprintf(own, sizeof own, "%s/token", d->state);
    const char *path = *named ? named : own;
    adli_buf text;
    adli_buf_init(&text, TOKEN_MAX - 1);
    adl_status status = *named ? adli_file_read(path, &text) : own_token(path, &text);
    if (status == ADL_OK) {
        snprintf(d->token, sizeof d->token, "%s", text.data ? text.data : "");
        d->token[strcspn(d->token, " \t\r\n")] = 0;
        if (strlen(d->token) < 16)
            status = adli_fail(ADL_EINVAL, "%s: a token has at least 16 characters", path);
    }
    adli_buf_fini(&text);
    return status;
}

/* Whoever sees the token on its way is an operator from then on. */
static adl_status check_public(const adli_config *config)
{
    static const char *const own[] = {"127.", "[::1]:", "localhost:"};
    if (!*config->listen || *config->tls_certificate || config->listen_insecure)
        return ADL_OK;
    for (size_t i = 0; i < ADLI_COUNT(own); i++)
        if (strncmp(config->listen, own[i], strlen(own[i])) == 0)
            return ADL_OK;
    return adli_fail(ADL_EINVAL,
                     "listen: %s can be reached from other machines, and without TLS the token can "
                     "be read on its way: give a certificate (--tls-cert, --tls-key), or say "
                     "--insecure (listenInsecure: true)",
                     config->listen);
}

/* Names by which pods may ask: that of the URL that they are told, short or in full. */
typedef struct host_names {
    char text[3][340];
    const char *list[4];
} host_names;

static void name_hosts(const daemon_state *d, host_names *out)
{
    static const char *const endings[] = {"", ".svc", ".svc.cluster.local"};
    char url[600];
    adli_operator_url(d->op, 0, url, sizeof url);
    const char *host = strstr(url, "://") ? strstr(url, "://") + 3 : url;
    for (size_t i = 0; i < ADLI_COUNT(endings); i++) {
        snprintf(out->text[i], sizeof out->text[i], "%.*s%s", (int)strcspn(host, ":/"), host,
                 endings[i]);
        out->list[i] = out->text[i];
    }
}

/* On a cluster people come through the API server's proxy, where that was asked for. */
static adl_status open_people(daemon_state *d, adli_operator_door *door, adli_api_options *options)
{
    options->any_host = d->op != NULL;
    if (!d->op || options->listen || !*d->options->config->kubernetes.api)
        return ADL_OK;
    adl_status status = adli_operator_door_open(d->op, door);
    options->listen = d->options->config->kubernetes.api;
    options->token = door->token;
    options->tls_cert = door->certificate;
    options->tls_key = door->key;
    return status;
}

/* Replicas that still run expect the daemon at the port that it had. */
static adl_status open_api(daemon_state *d)
{
    const adli_config *config = d->options->config;
    char port[16], at[300], url[600];
    host_names names = {.list = {NULL}};
    adl_status status = check_public(config);
    if (status == ADL_OK && *config->listen)
        status = read_token(d);
    if (status == ADL_OK)
        status = adli_core_get(d->core, "supervisor-port", port, sizeof port);
    if (status != ADL_OK)
        return status;
    if (d->op)
        name_hosts(d, &names);
    if (d->op)
        snprintf(at, sizeof at, "%s",
                 *config->kubernetes.listen ? config->kubernetes.listen : "0.0.0.0:8080");
    else
        snprintf(at, sizeof at, "127.0.0.1:%s", *port ? port : "0");
    adli_api_options options = {.core = d->core,
                                .socket_path = d->socket,
                                .listen = *config->listen ? config->listen : NULL,
                                .token = *config->listen ? d->token : NULL,
                                .tls_cert =
                                    *config->tls_certificate ? config->tls_certificate : NULL,
                                .tls_key = *config->tls_key ? config->tls_key : NULL,
                                .replica_listen = at,
                                .replica_hosts = names.list,
                                .replica_port_any = !d->op,
                                .read_only = d->op != NULL,
                                .open_to_replicas = d->op && !config->kubernetes.tokens,
                                .upload_dir = d->uploads,
                                .limits = ADLI_HTTPD_LIMITS,
                                .body_bytes_max = config->limits.max_body_bytes,
                                .upload_bytes_max = config->limits.max_upload_bytes};
    options.limits.header_bytes = (int)config->limits.max_header_bytes;
    options.limits.connections = config->limits.max_connections;
    options.limits.requests_per_s = config->limits.requests_per_second;
    options.limits.burst = config->limits.burst;
    options.limits.idle_s = config->limits.idle_s;
    adli_operator_door door = {.token = ""};
    status = open_people(d, &door, &options);
    if (status == ADL_OK)
        status = adli_api_new(&options, &d->api);
    if (*door.token)
        adli_operator_door_served(&door);
    explicit_bzero(door.token, sizeof door.token);
    if (status != ADL_OK)
        return status;
    snprintf(at, sizeof at, "%d", adli_api_replica_port(d->api));
    if (d->op)
        adli_operator_url(d->op, adli_api_replica_port(d->api), url, sizeof url);
    else
        snprintf(url, sizeof url, "http://127.0.0.1:%s", at);
    adli_core_set_supervisor(d->core, url);
    return strcmp(at, port) == 0 ? ADL_OK : adli_core_set(d->core, "supervisor-port", at);
}

/* ---- life ---- */

static void renew_nodes(void *user)
{
    daemon_state *d = user;
    adli_nodes nodes = {0};
    adl_status status = ADL_OK;
    if (!d->backend->ops->declare)
        status = adli_fail(ADL_ESTATE, "the backend finds its nodes by itself");
    if (status == ADL_OK)
        status = d->options->read_nodes(d->options->read_nodes_user, &nodes);
    if (status == ADL_OK)
        status = d->backend->ops->declare(d->backend->self, &nodes);
    adli_say(status == ADL_OK ? ADL_LOG_INFO : ADL_LOG_WARNING,
             status == ADL_OK ? "nodes were read again%s" : "nodes stay as they are: %s",
             status == ADL_OK ? "" : adl_error());
    adli_nodes_fini(&nodes);
}

/* ADL_OK: a signal asked for the end. */
static adl_status serve(daemon_state *d, const sigset_t *signals)
{
    const struct timespec look = {.tv_sec = 2};
    const adli_daemon_options *options = d->options;
    char url[PATH_SIZE + 8], dashboard[320] = "";
    const char *listen = options->config->listen;
    const char *colon = strrchr(listen, ':');
    snprintf(url, sizeof url, "unix:%s", d->socket);
    if (*listen && colon)
        snprintf(dashboard, sizeof dashboard, "http%s://%.*s:%d/",
                 *options->config->tls_certificate ? "s" : "", (int)(colon - listen), listen,
                 adli_api_port(d->api));
    adli_core_set_dashboard(d->core, dashboard);
    adli_say(ADL_LOG_INFO, "adaptdl-sched %s serves %s%s%s", ADLI_VERSION, url,
             *dashboard ? " and " : "", dashboard);
    if (d->op && !*listen && adli_api_port(d->api))
        adli_say(ADL_LOG_INFO, "the read API is at port %d", adli_api_port(d->api));
    adli_api_set_ready(d->api, true);
    if (options->ready)
        options->ready(options->ready_user, url, dashboard);
    for (;;) {
        int signal = sigtimedwait(signals, NULL, &look);
        adl_status status = adli_core_check_store(d->core);
        adli_core_look_at_room(d->core);
        rotate_log(d);
        if (status != ADL_OK)
            return status;
        if (signal == SIGTERM || signal == SIGINT)
            break;
        if (signal == SIGHUP && options->read_nodes)
            adli_core_call(d->core, renew_nodes, d);
    }
    adli_api_set_ready(d->api, false);
    adli_say(ADL_LOG_INFO, "stops; replicas run on");
    return ADL_OK;
}

static adl_status run(daemon_state *d, const sigset_t *signals)
{
    adl_status status = open_state(d);
    if (status == ADL_OK)
        status = lock_state(d);
    if (status == ADL_OK)
        clear_uploads(d);
    if (status == ADL_OK && d->options->background)
        status = open_log(d);
    if (status == ADL_OK)
        raise_limits();
    if (status == ADL_OK)
        status = open_backend(d);
    if (status == ADL_OK)
        status = check_database(d);
    if (status == ADL_OK)
        status = open_core(d);
    if (status == ADL_OK)
        status = adli_core_keep_room(d->core);
    if (status == ADL_OK)
        status = open_api(d);
    if (status == ADL_OK)
        status = adli_core_start(d->core);
    if (status == ADL_OK && d->op)
        status = adli_operator_follow(d->op, d->core);
    if (status == ADL_OK)
        status = serve(d, signals);
    return status;
}

adl_status adli_daemon_run(const adli_daemon_options *options)
{
    daemon_state *d = adli_calloc(1, sizeof *d);
    if (!d)
        return adli_fail_memory("daemon");
    d->options = options;
    d->lock_fd = -1;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    adl_status status = run(d, &signals);
    adli_api_free(d->api);
    if (d->op)
        adli_operator_unfollow(d->op);
    adli_core_stop(d->core);
    adli_core_free(d->core);
    if (d->op)
        adli_operator_free(d->op); /* with its backend */
    else if (d->backend)
        d->backend->ops->free(d->backend->self);
    if (d->lock_fd >= 0)
        close(d->lock_fd);
    free(d);
    return status;
}
