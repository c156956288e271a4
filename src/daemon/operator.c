/* The operator as a whole: to lead, to take over what the server has, to follow it. */
#include "daemon/operator_impl.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "config/config.h"
#include "daemon/core_impl.h"
#include "jobspec/jobspec.h"

#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LIST_MS = 60000, POOL_MAX = 2 << 20, PATH_SIZE = 4200 };

/* ---- the key ---- */

static adl_status read_key(adli_operator *op, const json_t *secret)
{
    const char *text = json_string_value(json_object_get(json_object_get(secret, "data"), "key"));
    unsigned char clear[ADLI_KEY_BYTES + 8];
    size_t length = text ? strlen(text) : 0;
    int got = length > 0 && length <= sizeof clear / 3 * 4 && length % 4 == 0
                  ? EVP_DecodeBlock(clear, (const unsigned char *)text, (int)length)
                  : -1;
    if (got < ADLI_KEY_BYTES)
        return adli_fail(ADL_ECORRUPT, "secret %s/adaptdl-sched-key has no key of %d bytes", op->ns,
                         ADLI_KEY_BYTES);
    memcpy(op->key, clear, ADLI_KEY_BYTES);
    explicit_bzero(clear, sizeof clear);
    return ADL_OK;
}

static adl_status make_key(adli_operator *op, const char *collection)
{
    unsigned char key[ADLI_KEY_BYTES];
    char text[ADLI_KEY_BYTES * 2] = "";
    if (RAND_bytes(key, sizeof key) != 1)
        return adli_fail(ADL_EIO, "random numbers");
    EVP_EncodeBlock((unsigned char *)text, key, sizeof key);
    json_t *secret = json_pack("{s:s,s:s,s:{s:s,s:s},s:s,s:{s:s}}", "apiVersion", "v1", "kind",
                               "Secret", "metadata", "name", "adaptdl-sched-key", "namespace",
                               op->ns, "type", "Opaque", "data", "key", text);
    char *body = secret ? json_dumps(secret, JSON_COMPACT) : NULL;
    adl_status status = body ? adli_kube_one(op->kube, "POST", collection, body, NULL, 409, NULL)
                             : adli_fail_memory("key");
    explicit_bzero(text, sizeof text);
    explicit_bzero(key, sizeof key);
    free(body);
    json_decref(secret);
    return status;
}

static adl_status open_key(adli_operator *op)
{
    char collection[ADLI_OPERATOR_PATH], path[ADLI_OPERATOR_PATH + 32];
    json_t *secret;
    snprintf(collection, sizeof collection, "/api/v1/namespaces/%s/secrets", op->ns);
    snprintf(path, sizeof path, "%s/adaptdl-sched-key", collection);
    adl_status status = adli_kube_one(op->kube, "GET", path, NULL, NULL, 404, &secret);
    if (status == ADL_OK && !secret) {
        status = make_key(op, collection);
        if (status == ADL_OK)
            status = adli_kube_one(op->kube, "GET", path, NULL, NULL, 0, &secret);
    }
    if (status == ADL_OK)
        status = read_key(op, secret);
    json_decref(secret);
    return status;
}

/* ---- taking over ---- */

static adl_status watch_jobs(adli_operator *op)
{
    char path[ADLI_OPERATOR_PATH];
    const char *only = op->config->kubernetes.ns;
    if (*only)
        snprintf(path, sizeof path, ADLI_JOBS_PATH "namespaces/%s/adaptdljobs", only);
    else
        snprintf(path, sizeof path, ADLI_JOBS_PATH "adaptdljobs");
    /* a first look, so that what is wrong is said at once */
    char first[ADLI_OPERATOR_PATH + 16];
    snprintf(first, sizeof first, "%s?limit=1", path);
    adl_status status = adli_kube_one(op->kube, "GET", first, NULL, NULL, 0, NULL);
    if (status == ADL_ENOENT)
        return adli_fail(ADL_ENOENT, "the cluster does not know AdaptDLJobs: kubectl apply -f "
                                     "kubernetes/crd.yaml");
    if (status == ADL_OK)
        status = adli_kube_watch_new(op->kube, path, "", &adli_operator_job_ops, op, &op->watch);
    struct timespec until = adli_deadline(LIST_MS);
    pthread_mutex_lock(&op->lock);
    while (status == ADL_OK && !op->listed)
        if (pthread_cond_timedwait(&op->news, &op->lock, &until) != 0)
            status = adli_fail(ADL_EIO, "the jobs could not be listed in a minute");
    pthread_mutex_unlock(&op->lock);
    return status;
}

static bool valid(const adli_operator_job *job)
{
    adli_jobfile spec = {0};
    bool fine = job->file && adli_jobfile_parse("job", job->file, strlen(job->file), ADLI_DOC_JSON,
                                                &spec) == ADL_OK;
    adli_jobfile_fini(&spec);
    return fine;
}

/* One that has a status of ours is the core's again; the others come as new ones. So does one whose spec does not
 * hold, though its status says that it was taken: we were ended before that could be told. */
static void load_job(adli_operator *op, adli_store *store, adli_operator_job *job)
{
    char token[ADLI_TOKEN_SIZE], secret[ADLI_TOKEN_SIZE];
    adli_store_job row;
    json_t *keep = NULL;
    bool known = !job->gone && job->object && adli_status_read(job->object, &row, &keep);
    bool ended = known && (row.phase == ADL_FAILED || row.phase == ADL_SUCCEEDED),
         fine = valid(job);
    if (ended && (!fine || strcmp(row.reason, "InvalidSpec") == 0))
        job->failed = true;
    else if (known && fine) {
        adli_operator_secret(op, "token", job->uid, token);
        adli_operator_secret(op, "secret", job->uid, secret);
        row.spec = job->file;
        row.token = token;
        row.secret = secret;
        adli_store_add_job(store, &row);
        adli_store_save_job(store, &row);
        adli_store_hints(store, row.uid, row.hints, row.restart_cost_s);
        job->taken = true;
    }
    json_decref(keep);
    json_decref(job->object);
    job->object = NULL;
}

/* First those that an operator before us took, in its order, which the core asks for: within the second that the server
 * knows it may have been any. */
static int by_creation(const void *a, const void *b)
{
    const adli_operator_job *x = *(adli_operator_job *const *)a,
                            *y = *(adli_operator_job *const *)b;
    const char *when[2];
    double taken_s[2];
    const adli_operator_job *both[] = {x, y};
    for (int i = 0; i < 2; i++) {
        taken_s[i] = adli_status_created(both[i]->object);
        const json_t *metadata = json_object_get(both[i]->object, "metadata");
        const char *text = json_string_value(json_object_get(metadata, "creationTimestamp"));
        when[i] = text ? text : "";
    }
    if (taken_s[0] != taken_s[1])
        return taken_s[0] < taken_s[1] ? -1 : 1;
    int order = strcmp(when[0], when[1]);
    return order ? order : strcmp(x->uid, y->uid);
}

/* Under lock: the jobs in the order of their making, which is that of the queue. */
static adl_status sort_jobs(adli_operator *op)
{
    size_t count = 0, i = 0;
    adli_operator_job *job;
    TAILQ_FOREACH(job, &op->jobs, link)
    {
        count++;
    }
    adli_operator_job **all = adli_calloc(count + 1, sizeof(adli_operator_job *));
    if (!all)
        return adli_fail_memory("jobs");
    TAILQ_FOREACH(job, &op->jobs, link)
    {
        all[i++] = job;
    }
    qsort(all, count, sizeof(adli_operator_job *), by_creation);
    TAILQ_INIT(&op->jobs);
    for (i = 0; i < count; i++) {
        TAILQ_INSERT_TAIL(&op->jobs, all[i], link);
        adli_operator_queue(op, all[i]);
    }
    free(all);
    return ADL_OK;
}

static adl_status fill_store(adli_operator *op, adli_store *store)
{
    adli_operator_job *job;
    adli_buf pool;
    adli_buf_init(&pool, POOL_MAX);
    adl_status status = adli_operator_load_pool(op, &pool);
    if (status == ADL_OK) {
        adli_store_begin(store);
        if (pool.length > 0)
            adli_store_set(store, "pool", pool.data);
        pthread_mutex_lock(&op->lock);
        status = sort_jobs(op);
        if (status == ADL_OK)
            TAILQ_FOREACH(job, &op->jobs, link)
            {
                load_job(op, store, job);
            }
        pthread_mutex_unlock(&op->lock);
        adl_status written = adli_store_commit(store);
        status = status == ADL_OK ? written : status;
    }
    adli_buf_fini(&pool);
    return status;
}

/* What an operator before us left in the directory may be older than what the server has. */
static adl_status take_over(adli_operator *op, const char *state_dir)
{
    static const char *const files[] = {"jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm",
                                        "jobs.sqlite-journal"};
    char path[PATH_SIZE];
    adli_store *store = NULL;
    for (size_t i = ADLI_COUNT(files); i-- > 0;) {
        snprintf(path, sizeof path, "%s/%s", state_dir, files[i]);
        unlink(path);
    }
    adl_status status = adli_store_open(path, &store);
    if (status == ADL_OK)
        status = fill_store(op, store);
    if (store)
        adli_store_close(store);
    return status;
}

/* ---- all together ---- */

static adl_status open_client(adli_operator *op)
{
    adli_kube_config config;
    adl_status status = adli_kube_config_find(NULL, NULL, &config);
    if (status == ADL_OK)
        status = adli_kube_open(&config, &op->kube);
    adli_kube_config_fini(&config);
    const char *own = getenv("POD_NAMESPACE");
    if (status == ADL_OK) {
        op->ns = adli_strdup(own && *own ? own : adli_kube_namespace(op->kube));
        status = op->ns ? ADL_OK : adli_fail_memory("operator");
    }
    return status;
}

/* What placeholders are made of: the operator's own image, and its Deployment as their owner. Where there is none
 * the operator runs elsewhere. */
static adl_status find_deployment(adli_operator *op)
{
    char path[ADLI_OPERATOR_PATH];
    json_t *object = NULL;
    const char *image = op->config->autoscale.image, *uid = NULL;
    bool on = op->config->autoscale.max_nodes > 0;
    snprintf(path, sizeof path, "/apis/apps/v1/namespaces/%s/deployments/adaptdl-sched", op->ns);
    adl_status status = adli_kube_one(op->kube, "GET", path, NULL, NULL, 404, &object);
    if (status == ADL_EINVAL) { /* it may not be read: nothing is owned */
        adli_say(ADL_LOG_WARNING, "%s", adl_error());
        status = ADL_OK;
    }
    const json_t *spec = json_object_get(json_object_get(object, "spec"), "template"),
                 *list = json_object_get(json_object_get(spec, "spec"), "containers");
    const char *own = json_string_value(json_object_get(json_array_get(list, 0), "image"));
    uid = json_string_value(json_object_get(json_object_get(object, "metadata"), "uid"));
    if (status == ADL_OK && on && !*image && !own)
        status = adli_fail(ADL_EINVAL,
                           "autoscale.image: to be given where the operator is no "
                           "Deployment %s/adaptdl-sched",
                           op->ns);
    if (status == ADL_OK) {
        op->image = adli_strdup(*image ? image : own ? own : "");
        op->owner_uid = adli_strdup(uid ? uid : "");
        status = op->image && op->owner_uid ? ADL_OK : adli_fail_memory("operator");
    }
    op->scaling = (adli_k8s_scaling){.on = on,
                                     .ns = op->ns,
                                     .image = op->image,
                                     .selector = op->config->autoscale.selector,
                                     .owner = "adaptdl-sched",
                                     .owner_uid = op->owner_uid};
    json_decref(object);
    return status;
}

static adl_status open_backend(adli_operator *op)
{
    adli_k8s_options options = ADLI_K8S_OPTIONS_INIT;
    options.kube = op->kube;
    options.owner = adli_operator_owner;
    options.owner_user = op;
    options.grace_s = op->config->grace_s;
    if (*op->config->kubernetes.ns)
        options.only = op->config->kubernetes.ns;
    options.scaling = &op->scaling;
    adl_status status = find_deployment(op);
    return status == ADL_OK ? adli_k8s_new(&options, &op->backend) : status;
}

adl_status adli_operator_new(const adli_operator_options *options, adli_operator **out)
{
    *out = NULL;
    adli_operator *op = adli_calloc(1, sizeof *op);
    if (!op)
        return adli_fail_memory("operator");
    op->config = options->config;
    op->state_dir = adli_strdup(options->state_dir);
    adli_operator_mirror_init(op);
    adl_status status = adli_operator_jobs_init(op);
    if (status == ADL_OK && !op->state_dir)
        status = adli_fail_memory("operator");
    if (status == ADL_OK)
        status = adli_outfit_init(&op->outfit, op->config);
    if (status == ADL_OK)
        status = open_client(op);
    if (status == ADL_OK)
        status = adli_lease_new(op->kube, op->ns, "adaptdl-sched", options, &op->lease);
    if (status == ADL_OK)
        status = open_key(op);
    if (status == ADL_OK)
        status = watch_jobs(op);
    if (status == ADL_OK)
        status = take_over(op, options->state_dir);
    if (status == ADL_OK)
        status = open_backend(op);
    if (status == ADL_OK)
        *out = op;
    else
        adli_operator_free(op);
    return status;
}

adli_backend *adli_operator_backend(adli_operator *op)
{
    return op->backend;
}

const adli_core_mirror *adli_operator_mirror(adli_operator *op)
{
    return &op->mirror;
}

void adli_operator_url(const adli_operator *op, int port, char *out, size_t size)
{
    const char *given = op->config->kubernetes.supervisor;
    if (*given)
        snprintf(out, size, "%s", given);
    else
        snprintf(out, size, "http://adaptdl-supervisor.%s:%d", op->ns, port);
}

static adl_status open_webhook(adli_operator *op)
{
    const char *listen = op->config->kubernetes.webhook;
    adli_webhook_options options = {.kube = op->kube,
                                    .state_dir = op->state_dir,
                                    .listen = *listen ? listen : "0.0.0.0:8443",
                                    .configuration = "adaptdl-sched",
                                    .life_s = 90 * 86400.0,
                                    .look_s = 30};
    return adli_webhook_new(&options, &op->webhook);
}

adl_status adli_operator_follow(adli_operator *op, adli_core *core)
{
    op->core = core;
    adl_status status = adli_thread_start(&op->thread, "jobs", adli_operator_feed, op);
    op->running = status == ADL_OK;
    if (status == ADL_OK)
        status = open_webhook(op);
    return status;
}

void adli_operator_unfollow(adli_operator *op)
{
    adli_webhook_free(op->webhook);
    op->webhook = NULL;
    pthread_mutex_lock(&op->lock);
    op->stopping = true;
    pthread_cond_broadcast(&op->news);
    pthread_mutex_unlock(&op->lock);
    if (op->running)
        pthread_join(op->thread, NULL);
    op->running = false;
}

void adli_operator_free(adli_operator *op)
{
    if (!op)
        return;
    adli_operator_unfollow(op);
    if (op->backend)
        op->backend->ops->free(op->backend->self);
    adli_kube_watch_free(op->watch);
    adli_lease_free(op->lease);
    adli_kube_close(op->kube);
    adli_operator_jobs_fini(op);
    adli_outfit_fini(&op->outfit);
    explicit_bzero(op->key, sizeof op->key);
    free(op->calls);
    free(op->image);
    free(op->owner_uid);
    free(op->ns);
    free(op->state_dir);
    free(op);
}
