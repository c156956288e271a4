/* A core that is made up: jobs "default/a" (token "token-a") and "default/b", whose replicas write what a test puts into
 * files, and the API that is served over it. In the place of src/daemon/core.c, for one program. */
#ifndef ADLT_FAKE_CORE_H
#define ADLT_FAKE_CORE_H

#include "http_client.h"

#include "backend/local/local.h"
#include "base/file.h"
#include "daemon/api.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

struct adli_core {
    pthread_mutex_t lock;
    char dir[64];
    void (*wake)(void *user);
    void *wake_user;
    int events, group, replicas;
    bool over, ready, full;
    adl_status next; /* what the next call of submit or drain answers */
    long long archive_bytes;
    int hints;
    bool slow; /* under lock: archives take until it is not so any more */
    pthread_cond_t sped_up;
    int unpacking;
};

static struct adli_core core;

static void ring(void)
{
    pthread_mutex_lock(&core.lock);
    if (core.wake)
        core.wake(core.wake_user);
    pthread_mutex_unlock(&core.lock);
}

static adl_status known(const char *ns, const char *name)
{
    if (strcmp(ns, "default") == 0 && (strcmp(name, "a") == 0 || strcmp(name, "b") == 0))
        return ADL_OK;
    return adli_fail(ADL_ENOENT, "no job %s/%s", ns, name);
}

static adl_status answer(const char *text, adli_buf *out)
{
    adli_buf_puts(out, text);
    return ADL_OK;
}

adl_status adli_core_submit(adli_core *c, const char *body, size_t length, bool yaml, bool dry_run,
                            bool *known, adli_buf *out)
{
    if (c->next != ADL_OK)
        return adli_fail(c->next, "line 3: spec.template: \"wrong\"");
    adli_buf_printf(out, "{\"length\":%zu,\"first\":\"%c\",\"yaml\":%d,\"dry\":%d}", length,
                    body[0], yaml, dry_run);
    *known = memchr(body, '!', length) != NULL;
    return ADL_OK;
}

adl_status adli_core_check_room(adli_core *c)
{
    return c->full ? adli_fail(ADL_EIO, "disk full: 0 of 32 MiB are free") : ADL_OK;
}

adl_status adli_core_submit_archive(adli_core *c, const char *tar_path, bool dry_run, bool *known,
                                    adli_buf *out)
{
    struct stat info = {0};
    if (stat(tar_path, &info) != 0)
        return adli_fail(ADL_EIO, "no archive");
    pthread_mutex_lock(&c->lock);
    c->archive_bytes = info.st_size;
    c->unpacking++;
    while (c->slow)
        pthread_cond_wait(&c->sped_up, &c->lock);
    pthread_mutex_unlock(&c->lock);
    (void)dry_run;
    *known = false;
    return answer("{\"archive\":1}", out);
}

static adl_status show_query(const adli_list_query *query, adli_buf *out)
{
    adli_buf_printf(out,
                    "{\"items\":[],\"ns\":\"%s\",\"phases\":%u,\"label\":\"%s\",\"fields\":\"%s\","
                    "\"limit\":%d,\"after\":%d}",
                    query->ns ? query->ns : "-", query->phases, query->label ? query->label : "-",
                    query->fields ? query->fields : "-", query->limit, (int)query->after);
    return ADL_OK;
}

adl_status adli_core_jobs(adli_core *c, const adli_list_query *query, adli_buf *out)
{
    (void)c;
    return show_query(query, out);
}

adl_status adli_core_all_jobs(adli_core *c, adli_shared **out)
{
    adli_buf text;
    adli_buf_init(&text, 1 << 20);
    adl_status status = adli_core_jobs(c, &(adli_list_query){0}, &text);
    *out = adli_shared_take(&text);
    (*out)->print = 1;
    return status;
}

adl_status adli_core_delete_jobs(adli_core *c, const adli_list_query *query, adli_buf *out)
{
    (void)c;
    return show_query(query, out);
}

adl_status adli_list_continue(adli_core *c, const char *token, int64_t *after)
{
    (void)c;
    *after = atoi(token);
    return strcmp(token, "old") == 0 ? adli_fail(ADL_ESTATE, "begin anew") : ADL_OK;
}

adl_status adli_core_job(adli_core *c, const char *ns, const char *name, adli_buf *out)
{
    (void)c;
    adl_status status = known(ns, name);
    return status == ADL_OK ? answer("{\"name\":\"a\"}", out) : status;
}

adl_status adli_core_delete(adli_core *c, const char *ns, const char *name, adli_buf *out)
{
    return adli_core_job(c, ns, name, out);
}

adl_status adli_core_ask(adli_core *c, const char *ns, const char *name, adli_asked asked,
                         adli_buf *out)
{
    if (asked == ADLI_ASKED_NOTHING)
        return adli_fail(ADL_ESTATE, "job %s/%s is not suspended", ns, name);
    return adli_core_job(c, ns, name, out);
}

adl_status adli_core_rerun(adli_core *c, const char *ns, const char *name, adli_buf *out)
{
    return adli_core_job(c, ns, name, out);
}

adl_status adli_core_history(adli_core *c, const char *ns, const char *name, adli_buf *out)
{
    return adli_core_job(c, ns, name, out);
}

adl_status adli_core_curves(adli_core *c, const char *ns, const char *name, int points,
                            adli_buf *out)
{
    (void)c;
    adli_buf_printf(out, "{\"items\":[],\"points\":%d}", points);
    return known(ns, name);
}

adl_status adli_core_reports(adli_core *c, const char *ns, const char *name, const char *body,
                             size_t length)
{
    return adli_core_hints(c, ns, name, body, length);
}

adl_status adli_core_say(adli_core *c, const char *ns, const char *name, const char *body,
                         size_t length)
{
    return adli_core_hints(c, ns, name, body, length);
}

adl_status adli_core_world(adli_core *c, const char *ns, const char *name,
                           const adli_world_asked *asked, adli_buf *out)
{
    (void)asked;
    return adli_core_job(c, ns, name, out);
}

adl_status adli_core_pin(adli_core *c, const char *ns, const char *name, int replicas,
                         adli_buf *out)
{
    (void)replicas;
    return adli_core_job(c, ns, name, out);
}

adl_status adli_core_decisions(adli_core *c, const char *ns, const char *name, int limit,
                               adli_buf *out)
{
    (void)c, (void)ns, (void)name;
    adli_buf_printf(out, "{\"items\":[],\"limit\":%d}", limit);
    return ADL_OK;
}

/* The real thing, on a job whose directory is the test's own. */
adl_status adli_core_open_file(adli_core *c, const char *ns, const char *name, const char *path,
                               adli_opened *out)
{
    adli_local_options options = ADLI_LOCAL_OPTIONS_INIT;
    adli_backend *backend = NULL;
    options.state_dir = c->dir;
    *out = (adli_opened){.fd = -1};
    adl_status status = known(ns, name);
    if (status == ADL_OK)
        status = adli_local_new(&options, &backend);
    if (status == ADL_OK)
        status = backend->ops->open_file(backend->self, "job", path, out);
    if (backend)
        backend->ops->free(backend->self);
    return status;
}

adl_status adli_core_log_state(adli_core *c, const char *ns, const char *name, adli_log_state *out)
{
    pthread_mutex_lock(&c->lock);
    *out = (adli_log_state){c->group, c->replicas, c->over};
    pthread_mutex_unlock(&c->lock);
    return known(ns, name);
}

adl_status adli_core_open_log(adli_core *c, const char *ns, const char *name, int group, int member,
                              int *fd)
{
    char path[256];
    (void)ns, (void)name;
    snprintf(path, sizeof path, "%s/log-%d-%d", c->dir, group, member);
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    return *fd >= 0 ? ADL_OK : adli_fail(ADL_ENOENT, "no log");
}

bool adli_core_token_valid(adli_core *c, const char *ns, const char *name, const char *token)
{
    char wanted[64];
    (void)c;
    snprintf(wanted, sizeof wanted, "token-%.20s", name);
    return strcmp(ns, "default") == 0 && adli_httpd_secret_equal(token, wanted);
}

adl_status adli_core_hints(adli_core *c, const char *ns, const char *name, const char *body,
                           size_t length)
{
    if (length == 0 || body[0] != '{')
        return adli_fail(ADL_EINVAL, "hints: not an object");
    pthread_mutex_lock(&c->lock);
    c->hints++;
    pthread_mutex_unlock(&c->lock);
    return known(ns, name);
}

adl_status adli_core_discover(adli_core *c, const char *ns, const char *name, int restarts,
                              adli_buf *out)
{
    adl_status status = known(ns, name);
    if (status != ADL_OK)
        return status;
    pthread_mutex_lock(&c->lock);
    bool ready = c->ready && restarts == 0;
    pthread_mutex_unlock(&c->lock);
    return ready ? answer("[\"10.0.0.1\",\"10.0.0.2\"]", out) : adli_fail(ADL_ETIMEOUT, "not yet");
}

adl_status adli_core_nodes(adli_core *c, adli_buf *out)
{
    (void)c;
    return answer("{\"items\":[]}", out);
}

adl_status adli_core_drain(adli_core *c, const char *node, bool drain, adli_buf *out)
{
    if (c->next != ADL_OK)
        return adli_fail(c->next, "store: disk full");
    if (strcmp(node, "node 0") != 0)
        return adli_fail(ADL_ENOENT, "no node %s", node);
    return answer(drain ? "{\"draining\":true}" : "{\"draining\":false}", out);
}

adl_status adli_core_drain_all(adli_core *c, bool drain, adli_buf *out)
{
    (void)c;
    return answer(drain ? "{\"draining\":true}" : "{\"draining\":false}", out);
}

adl_status adli_core_snapshot(adli_core *c, adli_buf *out)
{
    return c->ready ? answer("{\"version\":1}", out) : adli_fail(ADL_ENOENT, "no snapshot");
}

adl_status adli_core_cluster(adli_core *c, adli_buf *out)
{
    (void)c;
    return answer("{\"policy\":\"rank\"}", out);
}

adl_status adli_core_metrics(adli_core *c, adli_buf *out)
{
    (void)c;
    return answer("job_submission_count 3\n", out);
}

adl_status adli_core_events(adli_core *c, const char *ns, const char *name, int limit, int64_t *seq,
                            adli_buf *out)
{
    (void)ns;
    pthread_mutex_lock(&c->lock);
    for (; *seq < c->events && limit > 0; limit--) {
        ++*seq;
        if (!name || *seq % 2)
            adli_buf_printf(out, "{\"seq\":%lld,\"type\":\"JobPhase\",\"job\":\"default/a\"}\n",
                            (long long)*seq);
    }
    pthread_mutex_unlock(&c->lock);
    return ADL_OK;
}

void adli_core_listen(adli_core *c, void (*wake)(void *user), void *user)
{
    pthread_mutex_lock(&c->lock);
    c->wake = wake;
    c->wake_user = user;
    pthread_mutex_unlock(&c->lock);
}

/* ---- the API over it ---- */

static adli_api *api;
static int port, replicas;
static bool open_to_replicas;
static char sock[96];
static const char OPERATOR[] = "Authorization: Bearer operator-token\r\n";

static bool open_api(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    core = (struct adli_core){.lock = lock, .group = 1, .replicas = 2};
    strcpy(core.dir, "/tmp/adl-api-XXXXXX");
    if (!mkdtemp(core.dir))
        return false;
    snprintf(sock, sizeof sock, "%s/s", core.dir);
    adli_api_options options = {.core = &core,
                                .socket_path = sock,
                                .listen = "127.0.0.1:0",
                                .token = "operator-token",
                                .replica_listen = "127.0.0.1:0",
                                .open_to_replicas = open_to_replicas,
                                .upload_dir = core.dir,
                                .limits = ADLI_HTTPD_LIMITS,
                                .upload_bytes_max = 1 << 20};
    adl_status status = adli_api_new(&options, &api);
    if (status != ADL_OK) {
        printf("# %s\n", adl_error());
        return false;
    }
    port = adli_api_port(api);
    replicas = adli_api_replica_port(api);
    return true;
}

static void close_api(void)
{
    char command[128];
    adli_api_free(api);
    snprintf(command, sizeof command, "rm -rf %s", core.dir);
    if (system(command) != 0)
        printf("# %s failed\n", command);
}

static void put_file(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", core.dir, name);
    if (adli_file_write(path, text, strlen(text)) != ADL_OK)
        printf("# %s\n", adl_error());
}

static int get(const char *path, const char *text)
{
    return adlt_code(port, "GET", path, OPERATOR, NULL, text);
}

#endif
