/* Questions about jobs, and the end of them. */
#include "daemon/core_impl.h"

#include "base/json_write.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Equal? In a time that depends on the lengths only. */
static bool secret_equal(const char *given, const char *secret)
{
    size_t length = strlen(secret), given_length = strlen(given);
    unsigned different = length != given_length;
    for (size_t i = 0; i < length; i++)
        different |= (unsigned char)secret[i] ^ (unsigned char)given[i < given_length ? i : 0];
    return different == 0;
}

bool adli_core_token_valid(adli_core *core, const char *ns, const char *name, const char *token)
{
    /* an unknown job takes as long as a wrong token */
    char secret[ADLI_SECRET_SIZE] = "--------------------------------";
    bool known = false;
    pthread_mutex_lock(&core->lock);
    const adli_kept_job *job = adli_core_find(core, ns, name);
    if (job) {
        memcpy(secret, job->token, sizeof secret);
        known = true;
    }
    pthread_mutex_unlock(&core->lock);
    bool equal = secret_equal(token ? token : "", secret);
    return known && equal;
}

adl_status adli_core_uid(adli_core *core, const char *ns, const char *name, char uid[ADLI_UID_SIZE])
{
    pthread_mutex_lock(&core->lock);
    const adli_kept_job *job = adli_core_find(core, ns, name);
    if (job)
        memcpy(uid, job->uid, ADLI_UID_SIZE);
    pthread_mutex_unlock(&core->lock);
    return job ? ADL_OK : adli_core_no_job(ns, name);
}

adl_status adli_core_job(adli_core *core, const char *ns, const char *name, adli_buf *out)
{
    char uid[ADLI_UID_SIZE];
    adli_buf spec;
    double now_s = adli_core_now(core);
    adli_buf_init(&spec, 4 << 20);
    adl_status status = adli_core_uid(core, ns, name, uid);
    if (status == ADL_OK)
        status = adli_store_spec(core->store, uid, &spec);
    if (status == ADL_OK) {
        pthread_mutex_lock(&core->lock);
        const adli_kept_job *job = adli_core_find(core, ns, name);
        if (job && strcmp(job->uid, uid) == 0)
            adli_job_json(core, job, spec.data, now_s, out);
        else
            status = ADL_ENOENT;
        pthread_mutex_unlock(&core->lock);
    }
    adli_buf_fini(&spec);
    if (status == ADL_ENOENT)
        return adli_core_no_job(ns, name);
    return status == ADL_OK ? adli_buf_check(out) : status;
}

adl_status adli_core_delete(adli_core *core, const char *ns, const char *name, adli_buf *out)
{
    double now_s = adli_core_now(core);
    adl_status status = ADL_OK;
    pthread_mutex_lock(&core->changes);
    pthread_mutex_lock(&core->lock);
    adli_kept_job *job = adli_core_find(core, ns, name);
    pthread_mutex_unlock(&core->lock);
    if (!job)
        status = adli_core_no_job(ns, name);
    /* only this function, under `changes`, sets deleted */
    else if (!job->deleted) {
        adli_core_make_room(core);
        adli_store_begin(core->store);
        adli_store_mark(core->store, job->uid, ADLI_ASKED_DELETE);
        status = adli_store_commit(core->store);
    }
    if (status == ADL_OK) {
        pthread_mutex_lock(&core->lock);
        job->deleted_new |= !job->deleted;
        job->deleted = true;
        adli_core_changed(core, job);
        adli_job_json(core, job, NULL, now_s, out);
        pthread_mutex_unlock(&core->lock);
        adli_core_wake(core);
    }
    pthread_mutex_unlock(&core->changes);
    return status == ADL_OK ? adli_buf_check(out) : status;
}

/* May that be asked of the job as it is? Under lock. */
static adl_status check_asked(const adli_kept_job *job, int asked)
{
    if (job->deleted)
        return adli_fail(ADL_ESTATE, "job %s is being deleted", job->id);
    if (adl_life_over(&job->row.life))
        return adli_fail(ADL_ESTATE, "job %s is over: %s", job->id,
                         adl_phase_name(job->row.life.phase));
    if (job->asked == ADLI_ASKED_CANCEL && asked != ADLI_ASKED_CANCEL)
        return adli_fail(ADL_ESTATE, "job %s was cancelled", job->id);
    if (asked == ADLI_ASKED_NOTHING && job->asked != ADLI_ASKED_SUSPEND)
        return adli_fail(ADL_ESTATE, "job %s is not suspended", job->id);
    return ADL_OK;
}

/* What somebody wants of one job: may it be, written down, done. */
typedef struct job_change {
    adl_status (*check)(const adli_kept_job *job, int value); /* under lock */
    void (*store)(adli_core *core, const adli_kept_job *job, int value, double now_s);
    void (*apply)(adli_kept_job *job, int value); /* under lock */
} job_change;

/* In that order, in one commit; *out: the job afterwards. */
static adl_status change_job(adli_core *core, const char *ns, const char *name,
                             const job_change *change, int value, adli_buf *out)
{
    double now_s = adli_core_now(core);
    pthread_mutex_lock(&core->changes);
    pthread_mutex_lock(&core->lock);
    adli_kept_job *job = adli_core_find(core, ns, name);
    adl_status status = job ? change->check(job, value) : adli_core_no_job(ns, name);
    pthread_mutex_unlock(&core->lock);
    if (status == ADL_OK) {
        adli_core_make_room(core);
        adli_store_begin(core->store);
        change->store(core, job, value, now_s);
        status = adli_store_commit(core->store);
    }
    if (status == ADL_OK) {
        pthread_mutex_lock(&core->lock);
        change->apply(job, value);
        adli_core_changed(core, job);
        adli_job_json(core, job, NULL, now_s, out);
        pthread_mutex_unlock(&core->lock);
        adli_core_wake(core);
    }
    pthread_mutex_unlock(&core->changes);
    return status == ADL_OK ? adli_buf_check(out) : status;
}

static void store_asked(adli_core *core, const adli_kept_job *job, int asked, double now_s)
{
    (void)now_s;
    adli_store_mark(core->store, job->uid, (adli_asked)asked);
}

static void apply_asked(adli_kept_job *job, int asked)
{
    job->asked = (adli_asked)asked;
    job->asked_new = true;
}

adl_status adli_core_ask(adli_core *core, const char *ns, const char *name, adli_asked asked,
                         adli_buf *out)
{
    static const job_change change = {check_asked, store_asked, apply_asked};
    return change_job(core, ns, name, &change, (int)asked, out);
}

static adl_status check_pin(const adli_kept_job *job, int replicas)
{
    const adli_jobfile *spec = &job->spec;
    if (adl_life_over(&job->row.life) || job->deleted || job->asked == ADLI_ASKED_CANCEL)
        return adli_fail(ADL_ESTATE, "job %s is over", job->id);
    if (replicas == 0)
        return ADL_OK;
    if (!spec->preemptible)
        return adli_fail(ADL_ESTATE, "job %s is not preemptible: it keeps what it was given",
                         job->id);
    if (replicas < spec->min_replicas)
        return adli_fail(ADL_EINVAL, "job %s: minReplicas of its file is %d", job->id,
                         spec->min_replicas);
    if (spec->max_replicas > 0 && replicas > spec->max_replicas)
        return adli_fail(ADL_EINVAL, "job %s: maxReplicas of its file is %d", job->id,
                         spec->max_replicas);
    return ADL_OK;
}

static void store_pin(adli_core *core, const adli_kept_job *job, int replicas, double now_s)
{
    char message[64];
    snprintf(message, sizeof message,
             replicas > 0 ? "pinned to %d replicas" : "not pinned any more", replicas);
    adli_store_pin(core->store, job->uid, replicas);
    adli_store_event(core->store, now_s, "JobPinned", job->id, message, "");
}

static void apply_pin(adli_kept_job *job, int replicas)
{
    job->pin = replicas;
    job->pin_new = true;
}

adl_status adli_core_pin(adli_core *core, const char *ns, const char *name, int replicas,
                         adli_buf *out)
{
    static const job_change change = {check_pin, store_pin, apply_pin};
    return change_job(core, ns, name, &change, replicas, out);
}

static void put_sample(void *user, const adli_store_sample *sample)
{
    adli_buf *out = user;
    adli_jw_open(out, NULL, '{');
    adli_jw_number(out, "time", sample->time_s);
    adl_phase phase =
        sample->phase >= 0 && sample->phase < ADLI_PHASES ? (adl_phase)sample->phase : ADL_PENDING;
    adli_jw_text(out, "phase", adl_phase_name(phase));
    adli_jw_int(out, "replicas", sample->replicas);
    adli_jw_number(out, "batchSize", sample->batch_size);
    adli_jw_number(out, "throughput", sample->throughput);
    adli_jw_number(out, "efficiency", sample->efficiency);
    adli_jw_number(out, "goodput", sample->goodput);
    adli_jw_number(out, "progress", sample->progress);
    adli_jw_close(out, '}');
}

adl_status adli_core_history(adli_core *core, const char *ns, const char *name, adli_buf *out)
{
    char uid[ADLI_UID_SIZE];
    adl_status status = adli_core_uid(core, ns, name, uid);
    if (status != ADL_OK)
        return status;
    adli_jw_open(out, NULL, '{');
    adli_jw_open(out, "samples", '[');
    status = adli_store_samples(core->store, uid, put_sample, out);
    adli_jw_close(out, ']');
    adli_jw_close(out, '}');
    return status == ADL_OK ? adli_buf_check(out) : status;
}

adl_status adli_core_decisions(adli_core *core, const char *ns, const char *name, int limit,
                               adli_buf *out)
{
    char uid[ADLI_UID_SIZE];
    adl_status status = name ? adli_core_uid(core, ns, name, uid) : ADL_OK;
    if (status != ADL_OK)
        return status;
    if (limit < 1)
        limit = 1;
    adli_jw_open(out, NULL, '{');
    adli_jw_open(out, "items", '[');
    status = adli_store_decisions(core->store, name ? uid : NULL, limit, out);
    adli_jw_close(out, ']');
    adli_jw_close(out, '}');
    return status == ADL_OK ? adli_buf_check(out) : status;
}

adl_status adli_core_snapshot(adli_core *core, adli_buf *out)
{
    pthread_mutex_lock(&core->lock);
    bool there = core->saved != NULL;
    if (there)
        adli_buf_puts(out, core->saved);
    core->save = true; /* the next one, too: of a large round none is kept unasked */
    pthread_mutex_unlock(&core->lock);
    return there ? adli_buf_check(out)
                 : adli_fail(ADL_ENOENT,
                             "no snapshot of a round was kept yet; ask again after the next round");
}

adl_status adli_core_open_file(adli_core *core, const char *ns, const char *name, const char *path,
                               adli_opened *out)
{
    char uid[ADLI_UID_SIZE];
    *out = (adli_opened){.fd = -1};
    adl_status status = adli_core_uid(core, ns, name, uid);
    if (status != ADL_OK)
        return status;
    return core->backend->ops->open_file(core->backend->self, uid, path, out);
}

adl_status adli_core_log_state(adli_core *core, const char *ns, const char *name,
                               adli_log_state *out)
{
    pthread_mutex_lock(&core->lock);
    const adli_kept_job *job = adli_core_find(core, ns, name);
    int ever = job && job->offer.group == job->row.life.group ? job->offer.members_ever : 0;
    if (job)
        *out = (adli_log_state){.group = job->row.life.group,
                                .replicas = job->row.placed_count > 0 ? job->row.placed_count
                                                                      : job->last_replicas,
                                .over = adl_life_over(&job->row.life)};
    if (job && out->replicas < ever) /* some have joined, some have left */
        out->replicas = ever;
    pthread_mutex_unlock(&core->lock);
    return job ? ADL_OK : adli_core_no_job(ns, name);
}

adl_status adli_core_open_log(adli_core *core, const char *ns, const char *name, int group,
                              int member, int *fd)
{
    char uid[ADLI_UID_SIZE];
    *fd = -1;
    adl_status status = adli_core_uid(core, ns, name, uid);
    if (status != ADL_OK)
        return status;
    return core->backend->ops->open_log(core->backend->self, uid, group, member, fd);
}

adl_status adli_core_discover(adli_core *core, const char *ns, const char *name, int restarts,
                              adli_buf *out)
{
    bool ready = false;
    pthread_mutex_lock(&core->lock);
    const adli_kept_job *job = adli_core_find(core, ns, name);
    if (job && job->view_group == job->row.life.group && job->view_group - 1 == restarts) {
        ready = job->view_count > 0;
        for (int i = 0; ready && i < job->view_count; i++)
            ready = job->views[i].state != ADLI_MEMBER_WAITING && job->views[i].address[0];
    }
    if (ready) {
        for (int i = 0; i < job->view_count; i++) {
            adli_buf_puts(out, i ? "," : "[");
            adli_buf_json(out, job->views[i].address);
        }
        adli_buf_puts(out, "]");
    }
    pthread_mutex_unlock(&core->lock);
    if (!job)
        return adli_core_no_job(ns, name);
    return ready
               ? adli_buf_check(out)
               : adli_fail(ADL_ETIMEOUT, "group %d of job %s/%s is not ready", restarts, ns, name);
}
