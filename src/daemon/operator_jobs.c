/* The jobs of the API server: a cache by watch, and a thread that hands the core what comes and goes. */
#include "daemon/operator_impl.h"

#include "adaptdl/life.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "config/config.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 1 << 20, IDLE_MS = 60000 };

static const double retry_s = 1;

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

adli_operator_job *adli_operator_find(adli_operator *op, const char *uid)
{
    op->visits++;
    return adli_index_find(&op->by_uid, uid);
}

static void unqueue(adli_operator_job *job)
{
    if (job->queue)
        TAILQ_REMOVE(job->queue, job, todo);
    job->queue = NULL;
}

/* The delay is the same for all of a queue, which keeps it in order. */
static void enqueue(struct adli_operator_jobs *queue, adli_operator_job *job, double delay_s)
{
    unqueue(job);
    job->due_s = adli_monotonic_s() + delay_s;
    job->queue = queue;
    TAILQ_INSERT_TAIL(queue, job, todo);
}

void adli_operator_queue(adli_operator *op, adli_operator_job *job)
{
    enqueue(&op->fresh, job, 0);
}

static void drop(adli_operator *op, adli_operator_job *job)
{
    unqueue(job);
    adli_index_remove(&op->by_uid, &job->by_uid);
    TAILQ_REMOVE(&op->jobs, job, link);
    free(job->file);
    free(job->pod);
    json_decref(job->object);
    free(job);
}

adl_status adli_operator_jobs_init(adli_operator *op)
{
    TAILQ_INIT(&op->jobs);
    TAILQ_INIT(&op->fresh);
    TAILQ_INIT(&op->again);
    pthread_mutex_init(&op->lock, NULL);
    adl_status status = adli_cond_init(&op->news);
    return status == ADL_OK ? adli_index_init(&op->by_uid) : status;
}

void adli_operator_jobs_fini(adli_operator *op)
{
    while (!TAILQ_EMPTY(&op->jobs))
        drop(op, TAILQ_FIRST(&op->jobs));
    adli_index_fini(&op->by_uid);
    pthread_cond_destroy(&op->news);
    pthread_mutex_destroy(&op->lock);
}

/* The key never leaves the operator; what it makes of a uid opens that job's paths and no others. */
void adli_operator_secret(void *user, const char *what, const char *uid, char out[ADLI_TOKEN_SIZE])
{
    const adli_operator *op = user;
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    char message[128];
    snprintf(message, sizeof message, "%s:%s", what, uid);
    HMAC(EVP_sha256(), op->key, ADLI_KEY_BYTES, (const unsigned char *)message, strlen(message),
         digest, &length);
    for (unsigned int i = 0; i < 16 && i < length; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

adl_status adli_operator_owner(void *user, const char *uid, adli_k8s_owner *out)
{
    adli_operator *op = user;
    *out = (adli_k8s_owner){.pod = NULL};
    pthread_mutex_lock(&op->lock);
    const adli_operator_job *job = adli_operator_find(op, uid);
    bool there = job && !job->gone;
    if (there) {
        memcpy(out->ns, job->ns, sizeof out->ns);
        memcpy(out->name, job->name, sizeof out->name);
        out->pod = adli_strdup(job->pod);
    }
    pthread_mutex_unlock(&op->lock);
    if (!there)
        return adli_fail(ADL_ENOENT, "the job was deleted");
    return out->pod ? ADL_OK : adli_fail_memory("pod template");
}

/* ---- the watch ---- */

/* Why a spec cannot be taken is told by whoever hands it to the core. */
static adli_operator_job *make_job(const adli_operator *op, const json_t *object)
{
    json_t *dressed = json_deep_copy(object);
    const json_t *metadata = json_object_get(object, "metadata"),
                 *spec = json_object_get(dressed, "spec");
    adli_operator_job *job = adli_calloc(1, sizeof *job);
    adli_buf file;
    if (!job || !dressed) {
        json_decref(dressed);
        free(job);
        return NULL;
    }
    if (adli_outfit_dress(&op->outfit, json_object_get(spec, "template")) != ADL_OK)
        snprintf(job->problem, sizeof job->problem, "%s", adl_error());
    snprintf(job->uid, sizeof job->uid, "%s", text(metadata, "uid"));
    snprintf(job->ns, sizeof job->ns, "%s", text(metadata, "namespace"));
    snprintf(job->name, sizeof job->name, "%s", text(metadata, "name"));
    job->generation = json_integer_value(json_object_get(metadata, "generation"));
    job->pod = json_dumps(json_object_get(spec, "template"), JSON_COMPACT);
    adli_buf_init(&file, FILE_MAX);
    if (adli_job_file(dressed, &file) == ADL_OK)
        job->file = file.data;
    else
        adli_buf_fini(&file);
    job->object = json_incref((json_t *)object);
    if (!job->pod)
        job->pod = adli_strdup("{}");
    json_decref(dressed);
    return job;
}

static void begin(void *user)
{
    adli_operator *op = user;
    adli_operator_job *job;
    pthread_mutex_lock(&op->lock);
    TAILQ_FOREACH(job, &op->jobs, link)
    {
        op->visits++;
        job->seen = false;
    }
    pthread_mutex_unlock(&op->lock);
}

static void on_job(void *user, const json_t *object, bool gone)
{
    adli_operator *op = user;
    const json_t *metadata = json_object_get(object, "metadata");
    const char *uid = text(metadata, "uid");
    /* one that waits for its dependents to go is gone for us */
    gone |= json_object_get(metadata, "deletionTimestamp") != NULL;
    pthread_mutex_lock(&op->lock);
    adli_operator_job *job = adli_operator_find(op, uid);
    bool news = gone ? job && !job->gone : !job;
    if (!job && !gone && *uid && (job = make_job(op, object))) {
        TAILQ_INSERT_TAIL(&op->jobs, job, link);
        adli_index_add(&op->by_uid, &job->by_uid, job->uid, job);
    }
    if (job) {
        job->seen = true;
        job->gone |= gone;
    }
    if (job && news) {
        adli_operator_queue(op, job);
        pthread_cond_broadcast(&op->news);
    }
    pthread_mutex_unlock(&op->lock);
}

static void complete(void *user)
{
    adli_operator *op = user;
    adli_operator_job *job;
    pthread_mutex_lock(&op->lock);
    TAILQ_FOREACH(job, &op->jobs, link)
    {
        op->visits++;
        if (job->seen || job->gone)
            continue;
        job->gone = true;
        adli_operator_queue(op, job);
    }
    op->listed = true;
    pthread_cond_broadcast(&op->news);
    pthread_mutex_unlock(&op->lock);
}

static void trouble(void *user, const char *what)
{
    (void)user;
    adli_say(ADL_LOG_WARNING, "watch %s", what);
}

const adli_kube_watch_ops adli_operator_job_ops = {begin, on_job, complete, trouble};

/* ---- to the core ---- */

static adl_status submit(adli_operator *op, const char *file)
{
    adli_buf answer;
    adli_buf_init(&answer, 8 << 20);
    adl_status status = adli_core_submit(op->core, file, strlen(file), false, false, NULL, &answer);
    adli_buf_fini(&answer);
    return status;
}

/* What is copied of a job while the lock is not held. */
typedef struct one {
    adli_operator_job job;
    char *file;
} one;

static void take(adli_operator *op, one *it)
{
    adl_status status =
        it->file ? ADL_OK : adli_fail(ADL_EINVAL, "spec.template has no containers");
    if (*it->job.problem)
        status = adli_fail(ADL_EINVAL, "%s", it->job.problem);
    if (status == ADL_OK) {
        status = adli_operator_say(op, &it->job, ADL_PENDING, "", "");
        if (status == ADL_OK)
            status = submit(op, it->file);
        else if (status == ADL_EINVAL)
            status = ADL_EIO; /* we were refused, which says nothing about the job */
    }
    it->job.taken = status == ADL_OK;
    if (status == ADL_EINVAL) {
        char why[1024];
        snprintf(why, sizeof why, "%s", adl_error());
        adli_say(ADL_LOG_WARNING, "job %s/%s: %s", it->job.ns, it->job.name, why);
        it->job.failed = adli_operator_say(op, &it->job, ADL_FAILED, "InvalidSpec", why) == ADL_OK;
    } else if (status != ADL_OK && status != ADL_ESTATE)
        adli_say(ADL_LOG_WARNING, "job %s/%s, tried again: %s", it->job.ns, it->job.name,
                 adl_error());
}

/* Unless another of its name has come meanwhile. */
static void let_go(adli_operator *op, one *it)
{
    adli_buf answer;
    adli_buf_init(&answer, 8 << 20);
    adl_status status = adli_core_delete(op->core, it->job.ns, it->job.name, &answer);
    adli_buf_fini(&answer);
    it->job.over = status == ADL_OK || status == ADL_ENOENT;
    if (!it->job.over)
        adli_say(ADL_LOG_WARNING, "job %s/%s: %s", it->job.ns, it->job.name, adl_error());
}

/* Is there anything to be done about it? One that is gone and was never taken, or given up, is only dropped. */
static bool idle(const adli_operator_job *job)
{
    return job->gone ? !job->taken || job->over : job->taken || job->failed;
}

/* Under lock: the next with something to be done, out of its queue; *wait_ms how long there is nothing. */
static adli_operator_job *next_job(adli_operator *op, int *wait_ms)
{
    double now_s = adli_monotonic_s();
    *wait_ms = IDLE_MS;
    for (;;) {
        adli_operator_job *job = TAILQ_FIRST(&op->fresh), *again = TAILQ_FIRST(&op->again);
        if (!job || (again && again->due_s < job->due_s))
            job = again;
        if (!job)
            return NULL;
        if (job->due_s > now_s) {
            *wait_ms = (int)((job->due_s - now_s) * 1e3) + 1;
            return NULL;
        }
        op->visits++;
        unqueue(job);
        if (!idle(job))
            return job;
        if (job->gone)
            drop(op, job);
    }
}

/* Under lock: what was done about it. News that came meanwhile have it in a queue already. */
static void done(adli_operator *op, adli_operator_job *job, const adli_operator_job *result)
{
    job->taken = result->taken;
    job->failed = result->failed;
    job->over = result->over;
    if (job->queue)
        return;
    if (!idle(job))
        enqueue(&op->again, job, retry_s);
    else if (job->gone)
        drop(op, job);
}

void *adli_operator_feed(void *user)
{
    adli_operator *op = user;
    pthread_mutex_lock(&op->lock);
    while (!op->stopping) {
        int wait_ms;
        adli_operator_job *job = next_job(op, &wait_ms);
        if (!job) {
            struct timespec until = adli_deadline(wait_ms);
            pthread_cond_timedwait(&op->news, &op->lock, &until);
            continue;
        }
        one it = {.job = *job, .file = job->file ? adli_strdup(job->file) : NULL};
        pthread_mutex_unlock(&op->lock);
        if (it.job.gone)
            let_go(op, &it);
        else
            take(op, &it);
        free(it.file);
        pthread_mutex_lock(&op->lock);
        done(op, job, &it.job); /* nobody else drops one */
    }
    pthread_mutex_unlock(&op->lock);
    return NULL;
}
