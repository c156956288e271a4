/* The server as a whole: doors opened, threads started, and the graceful end. */
#include "httpd/impl.h"

#include "base/mem.h"
#include "httpd/listen.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool adli_httpd_secret_equal(const char *given, const char *secret)
{
    size_t given_length = strlen(given), length = strlen(secret);
    volatile unsigned char differ = given_length != length || length == 0;
    for (size_t i = 0; i < given_length && length > 0; i++)
        differ |= (unsigned char)(given[i] ^ secret[i % length]);
    return differ == 0;
}

adl_status adli_httpd_new(const adli_httpd_options *options, adli_httpd **out)
{
    pthread_condattr_t monotonic;
    adli_httpd *httpd = *out = NULL;
    httpd = adli_calloc(1, sizeof *httpd);
    if (!httpd)
        return adli_fail_memory("HTTP server");
    httpd->options = *options;
    adli_head_learn();
    pthread_mutex_init(&httpd->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&httpd->tick, &monotonic);
    for (int i = 0; i < ADLI_HTTPD_CLASSES; i++) {
        httpd->classes[i].httpd = httpd;
        pthread_cond_init(&httpd->classes[i].there, NULL);
    }
    pthread_condattr_destroy(&monotonic);
    adl_status status = adli_work_start(httpd);
    if (status == ADL_OK)
        *out = httpd;
    else
        adli_httpd_free(httpd);
    return status;
}

/* Paths are decoded by adli_target_parse, once. */
static size_t leave_escapes(void *user, struct MHD_Connection *mhd, char *text)
{
    (void)user, (void)mhd;
    return strlen(text);
}

/* The first message tells why a server does not start; later ones (a client that breaks off a TLS
 * handshake ...) are of no interest. */
__attribute__((format(printf, 2, 0))) static void keep_message(void *user, const char *format,
                                                               va_list args)
{
    door *d = user;
    if (!atomic_load(&d->started) && d->message[0] == '\0')
        vsnprintf(d->message, sizeof d->message, format, args);
}

static adl_status copy_names(const char *const *names, char ***out)
{
    size_t count = 0;
    while (names && names[count])
        count++;
    *out = adli_calloc(count + 1, sizeof **out);
    for (size_t i = 0; *out && i < count; i++)
        if (!((*out)[i] = adli_strdup(names[i])))
            return adli_fail_memory("host names");
    return *out ? ADL_OK : adli_fail_memory("host names");
}

static adl_status open_socket(door *d, int *fd, int *port)
{
    const adli_httpd_listener *options = &d->options;
    struct stat info;
    if (options->address)
        return adli_listen_tcp(options->address, fd, port);
    d->socket_path = adli_strdup(options->socket_path);
    if (!d->socket_path)
        return adli_fail_memory("socket");
    adl_status status = adli_listen_unix(options->socket_path, fd);
    if (status == ADL_OK && stat(d->socket_path, &info) == 0) {
        d->socket_device = info.st_dev;
        d->socket_inode = info.st_ino;
    }
    return status;
}

static adl_status start_daemon(door *d, int fd, const adli_buf *cert, const adli_buf *key)
{
    const adli_httpd_limits *limits = &d->options.limits;
    unsigned threads = d->options.threads > 0 ? (unsigned)d->options.threads : 2;
    unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                     (d->tls ? MHD_USE_TLS : 0);
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, cert->data},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, key->data},
        {MHD_OPTION_END, 0, NULL},
    };
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    d->mhd = MHD_start_daemon(
        flags, 0, adli_on_accept, d, adli_on_access, d, MHD_OPTION_EXTERNAL_LOGGER, keep_message, d,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_THREAD_POOL_SIZE, threads,
        /* Ours is the limit that counts: theirs makes new clients wait instead. */
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)(limits->connections + 128) * threads,
        /* What it reads into and writes from comes out of the same memory. */
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)limits->header_bytes + 8192,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)(limits->idle_s + 1), MHD_OPTION_NOTIFY_CONNECTION,
        adli_on_connection, d, MHD_OPTION_NOTIFY_COMPLETED, adli_on_completed, d,
        MHD_OPTION_URI_LOG_CALLBACK, adli_on_uri, d, MHD_OPTION_UNESCAPE_CALLBACK, leave_escapes, d,
        ADLI_STRICTNESS, MHD_OPTION_ARRAY, d->tls ? tls : tls + 2, MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    atomic_store(&d->started, true);
    d->message[strcspn(d->message, "\n")] = '\0';
    if (d->mhd)
        return ADL_OK;
    return adli_fail(ADL_EIO, "HTTP server: cannot start: %s",
                     d->message[0] ? d->message : "unknown reason");
}

static void close_door(door *d)
{
    struct stat info;
    if (d->mhd)
        MHD_stop_daemon(d->mhd);
    adli_limit_free(d->limit);
    for (char **name = d->hosts; name && *name; name++)
        free(*name);
    free(d->hosts);
    /* Only the socket that we made: another server may have taken the place. */
    if (d->socket_path && stat(d->socket_path, &info) == 0 && info.st_dev == d->socket_device &&
        info.st_ino == d->socket_inode)
        unlink(d->socket_path);
    free(d->socket_path);
}

static adl_status open_door(door *d, int *port)
{
    const adli_httpd_limits *limits = &d->options.limits;
    adli_buf cert = {0}, key = {0};
    int fd = -1;
    adl_status status = copy_names(d->options.hosts, &d->hosts);
    if (status == ADL_OK && d->tcp && limits->requests_per_s > 0)
        status = adli_limit_new(limits->requests_per_s, limits->burst, &d->limit);
    if (status == ADL_OK && d->tls)
        status = adli_listen_tls(d->options.tls_cert, d->options.tls_key, &cert, &key);
    if (status == ADL_OK)
        status = open_socket(d, &fd, port);
    if (status == ADL_OK)
        status = start_daemon(d, fd, &cert, &key);
    if (status != ADL_OK && fd >= 0)
        close(fd);
    if (key.data)
        explicit_bzero(key.data, key.length);
    adli_buf_fini(&key);
    adli_buf_fini(&cert);
    return status;
}

adl_status adli_httpd_listen(adli_httpd *httpd, const adli_httpd_listener *listener, int *port)
{
    int unused;
    if (httpd->door_count == DOORS_MAX || (!listener->address) == (!listener->socket_path))
        return adli_fail(ADL_EINVAL, "listener %d: needs an address or a socket's path",
                         listener->id);
    if (listener->limits.connections < 1 || listener->limits.header_bytes < 1024)
        return adli_fail(ADL_EINVAL, "listener %d: limits are not set", listener->id);
    door *d = &httpd->doors[httpd->door_count];
    *d = (door){.httpd = httpd, .options = *listener, .tcp = listener->address != NULL};
    d->tls = listener->tls_cert || listener->tls_key;
    adl_status status = open_door(d, port ? port : &unused);
    if (status == ADL_OK)
        httpd->door_count++;
    else
        close_door(d);
    return status;
}

/* Nobody new; requests under way get their answers; streams and long polls end. No connection may be
 * suspended when its daemon is stopped: after `ending` none is, except for work, which is finished. */
void adli_httpd_free(adli_httpd *httpd)
{
    double stop_s = 0;
    if (!httpd)
        return;
    atomic_store(&httpd->ending, true);
    for (int i = 0; i < httpd->door_count; i++) {
        MHD_socket fd = MHD_quiesce_daemon(httpd->doors[i].mhd);
        if (fd != MHD_INVALID_SOCKET)
            close(fd);
        if (httpd->doors[i].options.limits.stop_s > stop_s)
            stop_s = httpd->doors[i].options.limits.stop_s;
    }
    adli_httpd_wake(httpd);
    adli_httpd_drain(httpd, stop_s);
    adli_work_stop(httpd);
    for (int i = 0; i < httpd->door_count; i++)
        close_door(&httpd->doors[i]);
    for (int i = 0; i < ADLI_HTTPD_CLASSES; i++)
        pthread_cond_destroy(&httpd->classes[i].there);
    pthread_cond_destroy(&httpd->tick);
    pthread_mutex_destroy(&httpd->lock);
    free(httpd);
}

void adli_httpd_metrics(adli_httpd *httpd, adli_buf *out)
{
    pthread_mutex_lock(&httpd->lock);
    httpd_counters counters = httpd->counters;
    int open = 0;
    for (int i = 0; i < httpd->door_count; i++)
        open += httpd->doors[i].open;
    pthread_mutex_unlock(&httpd->lock);
    adli_buf_puts(out, "# HELP adaptdl_http_requests_total Answers by class of status code.\n"
                       "# TYPE adaptdl_http_requests_total counter\n");
    for (int class = 2; class < CODE_CLASSES; class ++)
        adli_buf_printf(out, "adaptdl_http_requests_total{code=\"%dxx\"} %llu\n", class,
                        (unsigned long long)counters.by_class[class]);
    const struct {
        const char *name, *help;
        uint64_t value;
    } rows[] = {
        {"connections_accepted", "Connections accepted.", counters.accepted},
        {"connections_refused", "Connections refused at a limit.", counters.refused},
        {"connections_evicted", "Idle connections closed to make room.", counters.evicted},
        {"connections_timed_out", "Connections closed for being slow.", counters.timed_out},
        {"rate_limited", "Requests answered with 429.", counters.rate_limited},
    };
    for (size_t i = 0; i < ADLI_COUNT(rows); i++)
        adli_buf_printf(out,
                        "# HELP adaptdl_http_%s_total %s\n# TYPE adaptdl_http_%s_total counter\n"
                        "adaptdl_http_%s_total %llu\n",
                        rows[i].name, rows[i].help, rows[i].name, rows[i].name,
                        (unsigned long long)rows[i].value);
    adli_buf_printf(out,
                    "# HELP adaptdl_http_connections Open connections.\n"
                    "# TYPE adaptdl_http_connections gauge\nadaptdl_http_connections %d\n",
                    open);
}
