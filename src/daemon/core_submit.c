/* How a job comes in. Its files are unpacked beside the jobs first (STATE/incoming/UID), then the job is
 * committed, then the files are moved to its directory: whatever happens in between, either the job is
 * there with its files, or neither is. */
#include "daemon/core_impl.h"

#include "base/dirs.h"
#include "base/json.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "image/image.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, NAME_TRIES = 100 };

static void incoming_path(const adli_core *core, const char *uid, char *out)
{
    snprintf(out, PATH_SIZE, "%s/incoming%s%s", core->state_dir, *uid ? "/" : "", uid);
}

/* Hands what was unpacked for the job to the backend. Nothing there: nothing to do. */
static adl_status move_files(adli_core *core, const char *uid)
{
    char from[PATH_SIZE];
    struct stat info;
    incoming_path(core, uid, from);
    if (stat(from, &info) != 0)
        return ADL_OK;
    return core->backend->ops->put_source(core->backend->self, uid, from);
}

adl_status adli_core_finish_submissions(adli_core *core)
{
    char path[PATH_SIZE];
    int fd;
    adl_status status = ADL_OK;
    const adli_kept_job *job;
    incoming_path(core, "", path);
    status = adli_dirs_enter(path, &fd);
    if (status != ADL_OK)
        return status == ADL_ENOENT ? ADL_OK
                                    : status; /* a link: what is there is not ours to remove */
    TAILQ_FOREACH(job, &core->jobs, all)
    {
        if (status == ADL_OK)
            status = move_files(core, job->uid);
    }
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return status == ADL_OK ? adli_fail_memory(path) : status;
    }
    for (struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] != '.')
            adli_dirs_remove(dirfd(dir), entry->d_name);
    closedir(dir);
    return status;
}

static adl_status make_uid(char *out)
{
    char hex[33];
    adl_status status = adli_random_hex(hex, sizeof hex);
    if (status == ADL_OK)
        snprintf(out, ADLI_UID_SIZE, "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16,
                 hex + 20);
    return status;
}

/* A uid that the submission brings names directories, and members for ever. */
static adl_status take_uid(const char *given, char *out)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-";
    if (strlen(given) >= ADLI_UID_SIZE || given[0] == '-' ||
        strspn(given, letters) != strlen(given))
        return adli_fail(ADL_EINVAL,
                         "metadata.uid: \"%.60s\": up to %d letters, digits and inner '-'", given,
                         ADLI_UID_SIZE - 1);
    strcpy(out, given);
    return ADL_OK;
}

/* generateName and five characters that make no words. */
static adl_status generate_name(adli_core *core, adli_jobfile *spec)
{
    static const char letters[] = "bcdfghjklmnpqrstvwxz2456789";
    size_t length = strlen(spec->generate_name);
    if (length > ADLI_NAME_MAX - ADLI_GENERATED)
        length = ADLI_NAME_MAX - ADLI_GENERATED;
    char name[ADLI_NAME_MAX + 1];
    memcpy(name, spec->generate_name, length);
    for (int tries = 0; tries < NAME_TRIES; tries++) {
        for (int i = 0; i < ADLI_GENERATED; i++) {
            unsigned char byte;
            do /* 243 = 9 x 27: every letter as likely */
                if (getrandom(&byte, 1, 0) != 1)
                    return adli_fail(ADL_EIO, "random numbers: %s", strerror(errno));
            while (byte >= 243);
            name[length + (size_t)i] = letters[byte % 27];
        }
        name[length + ADLI_GENERATED] = 0;
        pthread_mutex_lock(&core->lock);
        bool taken = adli_core_find(core, spec->ns, name) != NULL;
        pthread_mutex_unlock(&core->lock);
        if (taken)
            continue;
        char *copy = adli_strdup(name);
        if (!copy)
            return adli_fail_memory("job name");
        free(spec->name);
        spec->name = copy;
        return ADL_OK;
    }
    return adli_fail(ADL_ESTATE, "%s: no free name was found", spec->generate_name);
}

static adl_status name_job(adli_core *core, adli_kept_job *job)
{
    adli_jobfile *spec = &job->spec;
    adl_status status = ADL_OK;
    if (!*spec->name)
        status = generate_name(core, spec);
    if (status != ADL_OK)
        return status;
    job->ns = spec->ns;
    job->name = spec->name;
    snprintf(job->id, sizeof job->id, "%s/%s", job->ns, job->name);
    pthread_mutex_lock(&core->lock);
    const adli_kept_job *other = adli_core_find(core, job->ns, job->name);
    bool leaving = other && other->deleted;
    pthread_mutex_unlock(&core->lock);
    if (other)
        return adli_fail(ADL_ESTATE, "job %s exists already%s", job->id,
                         leaving ? " (it is being deleted)" : "");
    return ADL_OK;
}

/* Has it been submitted before, under this uid? Then *found, and that job is the answer; ESTATE when the uid is that of
 * another. */
static adl_status submitted_before(adli_core *core, const adli_kept_job *job, double now_s,
                                   adli_buf *out, bool *found)
{
    adli_buf spec;
    adli_buf_init(&spec, 4 << 20);
    pthread_mutex_lock(&core->lock);
    const adli_kept_job *other = *job->spec.uid ? adli_index_find(&core->by_uid, job->uid) : NULL;
    bool deleted = other && other->deleted;
    char id[ADLI_JOB_ID_SIZE] = "";
    if (other)
        strcpy(id, other->id);
    pthread_mutex_unlock(&core->lock);
    *found = false;
    if (!other)
        return ADL_OK;
    adl_status status = adli_store_spec(core->store, job->uid, &spec);
    if (status == ADL_OK && (deleted || strcmp(spec.data, job->spec.json) != 0))
        status = adli_fail(ADL_ESTATE, "metadata.uid %s is that of job %s, which is %s", job->uid,
                           id, deleted ? "being deleted" : "another");
    if (status == ADL_OK) {
        pthread_mutex_lock(&core->lock);
        other = adli_index_find(&core->by_uid, job->uid);
        if (other) {
            adli_job_json(core, other, spec.data, now_s, out);
            *found = true;
        } else
            status = adli_fail(ADL_ESTATE, "job %s was just deleted", id);
        pthread_mutex_unlock(&core->lock);
    }
    adli_buf_fini(&spec);
    return status;
}

static adl_status new_job(const char *body, size_t length, bool yaml, adli_kept_job **out)
{
    adli_kept_job *job = *out = adli_calloc(1, sizeof *job);
    if (!job)
        return adli_fail_memory("job");
    job->number = job->reports_restart = -1;
    adl_status status = adli_jobfile_parse("job file", body, length,
                                           yaml ? ADLI_DOC_YAML : ADLI_DOC_JSON, &job->spec);
    if (status == ADL_OK)
        status = *job->spec.uid ? take_uid(job->spec.uid, job->uid) : make_uid(job->uid);
    if (status == ADL_OK)
        status = adli_random_hex(job->token, sizeof job->token);
    if (status == ADL_OK)
        status = adli_random_hex(job->secret, sizeof job->secret);
    if (status != ADL_OK) {
        adli_core_job_free(job);
        *out = NULL;
    }
    return status;
}

static void put_warnings(const adli_jobfile *spec, adli_buf *out)
{
    if (spec->warning_count == 0)
        return;
    adli_jw_open(out, "warnings", '[');
    for (int i = 0; i < spec->warning_count; i++)
        adli_jw_text(out, NULL, spec->warnings[i]);
    adli_jw_close(out, ']');
}

static adl_status commit_job(adli_core *core, const adli_kept_job *job)
{
    adli_buf fields;
    adli_buf_init(&fields, 1 << 20);
    put_warnings(&job->spec, &fields);
    adl_status status = adli_buf_check(&fields);
    if (status == ADL_OK) {
        adli_store_job row = {.uid = job->uid,
                              .ns = job->ns,
                              .name = job->name,
                              .spec = job->spec.json,
                              .token = job->token,
                              .secret = job->secret,
                              .created_s = job->created_s};
        adli_store_begin(core->store);
        adli_store_add_job(core->store, &row);
        adli_store_event(core->store, job->created_s, "JobCreated", job->id, "submitted",
                         fields.data);
        status = adli_store_commit(core->store);
    }
    adli_buf_fini(&fields);
    return status;
}

/* The job is the core's from here on. */
static void admit(adli_core *core, adli_kept_job *job, adli_buf *out)
{
    pthread_mutex_lock(&core->lock);
    adli_core_add_job(core, job);
    job->is_new = true;
    adli_core_changed(core, job);
    core->last_created_s = job->created_s;
    core->counters.submitted++;
    adli_job_json(core, job, job->spec.json, job->created_s, out);
    free(job->spec.json);
    job->spec.json = NULL;
    pthread_mutex_unlock(&core->lock);
    adli_core_wake(core);
}

/* The committed job's files; when they cannot be moved the job is taken back. */
static adl_status place_files(adli_core *core, const adli_kept_job *job)
{
    adl_status status = move_files(core, job->uid);
    if (status == ADL_OK)
        return ADL_OK;
    char why[512];
    snprintf(why, sizeof why, "%s", adl_error());
    adli_store_begin(core->store);
    adli_store_remove_job(core->store, job->uid);
    if (adli_store_commit(core->store) != ADL_OK) /* the next daemon finds job and files */
        adli_say(ADL_LOG_WARNING, "job %s: %s", job->id, adl_error());
    return adli_fail(ADL_EIO, "its files: %s", why);
}

/* Where a job's files come from: an archive, or another job. */
typedef struct job_files {
    const char *tar, *uid; /* one of them; NULL: not from there */
} job_files;

/* Brings them beside the jobs. ESTATE: another submission with the same uid is just doing that. */
static adl_status unpack(const adli_core *core, const job_files *files, const char *incoming,
                         bool *made)
{
    const adli_backend *backend = core->backend;
    char parent[PATH_SIZE];
    adli_image_limits limits = {.max_bytes = 0};
    incoming_path(core, "", parent);
    if (mkdir(parent, 0700) != 0 && errno != EEXIST)
        return adli_fail(ADL_EIO, "%s: %s", parent, strerror(errno));
    int above;
    adl_status status = adli_dirs_enter(parent, &above); /* it may be a link */
    if (status != ADL_OK)
        return status;
    close(above);
    *made = mkdir(incoming, 0700) == 0;
    if (!*made)
        return adli_fail(errno == EEXIST ? ADL_ESTATE : ADL_EIO, "%s: %s", incoming,
                         errno == EEXIST ? "it is being submitted" : strerror(errno));
    if (files->tar)
        return adli_image_unpack(files->tar, incoming, &limits);
    return backend->ops->copy_source
               ? backend->ops->copy_source(backend->self, files->uid, incoming)
               : adli_fail(ADL_ESTATE, "this backend keeps no files of jobs to copy");
}

/* Those that another place can tell again. */
static void take_secrets(const adli_core *core, adli_kept_job *job)
{
    if (!core->mirror.secret)
        return;
    core->mirror.secret(core->mirror.user, "token", job->uid, job->token);
    core->mirror.secret(core->mirror.user, "secret", job->uid, job->secret);
}

/* files may be NULL. Under `changes` while it is named and committed, not while files are unpacked. */
static adl_status submit(adli_core *core, adli_kept_job *job, const job_files *files, bool dry_run,
                         bool *known, adli_buf *out)
{
    char incoming[PATH_SIZE];
    incoming_path(core, job->uid, incoming);
    bool made = false, committed = false, found = false;
    double now_s = adli_core_now(core);
    take_secrets(core, job);
    const adli_backend_ops *ops = core->backend->ops;
    adl_status status = ops->admit ? ops->admit(core->backend->self, job->spec.ns) : ADL_OK;
    if (status == ADL_OK)
        status = submitted_before(core, job, now_s, out, &found);
    if (status == ADL_OK && !found && files && !dry_run)
        status = unpack(core, files, incoming, &made);
    pthread_mutex_lock(&core->changes);
    if (status == ADL_OK && !found) /* meanwhile? */
        status = submitted_before(core, job, now_s, out, &found);
    if (status == ADL_OK && !found)
        status = name_job(core, job);
    /* only submit, under `changes`, writes last_created_s: order of submission is order of time */
    job->created_s = job->row.account.last_change_s = job->row.account.accounted_s =
        now_s > core->last_created_s ? now_s : core->last_created_s;
    if (status == ADL_OK && !found && dry_run) {
        pthread_mutex_lock(&core->lock);
        job->is_new = true;
        adli_job_json(core, job, job->spec.json, now_s, out);
        pthread_mutex_unlock(&core->lock);
    } else if (status == ADL_OK && !found) {
        status = commit_job(core, job);
        if (status == ADL_OK && files)
            status = place_files(core, job);
        committed = status == ADL_OK;
        if (committed)
            admit(core, job, out);
    }
    pthread_mutex_unlock(&core->changes);
    if (made && !committed)
        adli_dirs_remove(AT_FDCWD, incoming);
    if (!committed)
        adli_core_job_free(job);
    if (known)
        *known = found;
    return status == ADL_OK ? adli_buf_check(out) : status;
}

adl_status adli_core_submit(adli_core *core, const char *body, size_t length, bool yaml,
                            bool dry_run, bool *known, adli_buf *out)
{
    adli_kept_job *job;
    adl_status status = new_job(body, length, yaml, &job);
    return status == ADL_OK ? submit(core, job, NULL, dry_run, known, out) : status;
}

/* What was submitted, as a new job: without its uid, under a name that is made of the old one. */
static adl_status spec_again(const char *text, adli_buf *out)
{
    json_t *spec;
    adl_status status = adli_json_parse(text, strlen(text), &spec);
    if (status != ADL_OK)
        return status;
    json_t *metadata = json_object_get(spec, "metadata");
    const char *name = json_string_value(json_object_get(metadata, "name"));
    char prefix[ADLI_NAME_MAX + 1];
    if (name) { /* room for what is added to it */
        snprintf(prefix, sizeof prefix, "%.*s-", ADLI_NAME_MAX - ADLI_GENERATED - 1, name);
        json_object_set_new(metadata, "generateName", json_string(prefix));
        json_object_del(metadata, "name");
    }
    json_object_del(metadata, "uid");
    char *again = json_dumps(spec, JSON_COMPACT);
    if (again)
        adli_buf_puts(out, again);
    status = again ? adli_buf_check(out) : adli_fail_memory("job");
    free(again);
    json_decref(spec);
    return status;
}

adl_status adli_core_rerun(adli_core *core, const char *ns, const char *name, adli_buf *out)
{
    char uid[ADLI_UID_SIZE] = "";
    bool known;
    adli_kept_job *job = NULL;
    adli_buf spec, again;
    adli_buf_init(&spec, 4 << 20);
    adli_buf_init(&again, 4 << 20);
    pthread_mutex_lock(&core->lock);
    const adli_kept_job *old = adli_core_find(core, ns, name);
    if (old)
        memcpy(uid, old->uid, sizeof uid);
    pthread_mutex_unlock(&core->lock);
    adl_status status =
        *uid ? adli_store_spec(core->store, uid, &spec) : adli_core_no_job(ns, name);
    if (status == ADL_OK)
        status = spec_again(spec.data, &again);
    if (status == ADL_OK)
        status = new_job(again.data, again.length, false, &job);
    if (status == ADL_OK)
        status = submit(core, job, &(job_files){.uid = uid}, false, &known, out);
    adli_buf_fini(&again);
    adli_buf_fini(&spec);
    return status;
}

adl_status adli_core_submit_archive(adli_core *core, const char *tar_path, bool dry_run,
                                    bool *known, adli_buf *out)
{
    adli_kept_job *job = NULL;
    adli_buf body;
    bool yaml = false;
    adli_buf_init(&body, ADLI_IMAGE_JOB_MAX_BYTES);
    adl_status status = adli_image_read_job(tar_path, &body, &yaml);
    if (status == ADL_OK)
        status = new_job(body.data ? body.data : "", body.length, yaml, &job);
    adli_buf_fini(&body);
    if (status == ADL_OK)
        status = submit(core, job, &(job_files){.tar = tar_path}, dry_run, known, out);
    return status == ADL_ECORRUPT ? ADL_EINVAL : status; /* a damaged archive is the client's */
}
