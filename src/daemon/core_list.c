/* Lists of jobs, for clusters with many: in pages, with a filter and the fields that the caller wants, without keeping the
 * lock for the whole of it. What a job that has no replicas looks like is kept as text until something of it changes: of ten
 * thousand jobs most wait. */
#include "daemon/core_impl.h"

#include "base/json_write.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Jobs at a time, then others may have the lock. */
enum { AT_A_TIME = 128, LIST_MAX = 64 << 20 };
/* How old the list of all may be where jobs run, and where none does, should a change not have been counted. */
static const double WHOLE_S = 0.1, WHOLE_LASTS_S = 1;

/* ---- one job ---- */

/* Of everything that adli_job_json reads and that changes while the job has no replicas. */
static uint64_t print_of(const adli_kept_job *job)
{
    const adli_row *row = &job->row;
    struct {
        double started_s, completed_s, attained_s, hints_s;
        int phase, group, failures, pin;
        int flags;
        char reason[sizeof row->reason], resized[sizeof row->resized];
        uint64_t message;
    } of;
    memset(&of, 0, sizeof of);
    of.started_s = row->started_s;
    of.completed_s = row->completed_s;
    of.attained_s = row->account.attained_s;
    of.hints_s = job->hints.time_s;
    of.phase = row->life.phase;
    of.group = row->life.group;
    of.failures = row->life.failures;
    of.pin = job->pin;
    of.flags = job->deleted | job->hints.known << 1 | (int)job->asked << 2;
    snprintf(of.reason, sizeof of.reason, "%s", row->reason);
    snprintf(of.resized, sizeof of.resized, "%s", row->resized);
    of.message = row->message ? XXH3_64bits(row->message, strlen(row->message)) : 1;
    return XXH3_64bits(&of, sizeof of);
}

/* Is there nothing in it that goes on while nobody says so? */
static bool keeps(const adli_kept_job *job)
{
    return job->row.placed_count == 0 && !job->is_new && job->series_count == 0 &&
           job->use_count == 0;
}

static const char *text_of(const adli_core *core, adli_kept_job *job, double now_s,
                           adli_buf *scratch, size_t *length)
{
    uint64_t print = keeps(job) ? print_of(job) : 0;
    if (print && job->listed && job->listed_print == print) {
        *length = job->listed_length;
        return job->listed;
    }
    adli_buf_clear(scratch);
    adli_job_json(core, job, NULL, now_s, scratch);
    *length = scratch->length;
    free(job->listed);
    job->listed = print && scratch->status == ADL_OK ? adli_strdup(scratch->data) : NULL;
    job->listed_print = print;
    job->listed_length = scratch->length;
    return scratch->data ? scratch->data : "";
}

/* Past one JSON value, of text that we wrote ourselves. */
static const char *skip_value(const char *p)
{
    int depth = 0;
    do {
        if (*p == '"')
            for (p++; *p && *p != '"'; p++)
                p += *p == '\\' && p[1];
        depth += (*p == '{' || *p == '[') - (*p == '}' || *p == ']');
        p += *p != '\0';
    } while (*p && (depth > 0 || (*p != ',' && *p != '}' && *p != ']')));
    return p;
}

static bool is_wanted(const char *fields, const char *key, size_t length)
{
    for (const char *p = fields; *p;) {
        size_t size = strcspn(p, ",");
        if (size == length && memcmp(p, key, length) == 0)
            return true;
        p += size + (p[size] == ',');
    }
    return false;
}

/* The members of the object that are in the list. */
static void put_fields(const char *object, const char *fields, adli_buf *out)
{
    const char *p = object + 1;
    bool first = true;
    adli_buf_puts(out, "{");
    while (*p == '"') {
        const char *key = p + 1, *end = strchr(key, '"'), *value = end + 2;
        const char *next = skip_value(value);
        if (is_wanted(fields, key, (size_t)(end - key))) {
            adli_buf_puts(out, first ? "" : ",");
            adli_buf_append(out, p, (size_t)(next - p));
            first = false;
        }
        p = next + (*next == ',');
    }
    adli_buf_puts(out, "}");
}

/* ---- which ---- */

static bool has_label(const adli_kept_job *job, const char *label)
{
    size_t key = strcspn(label, "=");
    for (size_t i = 0; i < job->spec.labels.count; i++) {
        const char *name = job->spec.labels.items[i].name;
        if (strlen(name) == key && memcmp(name, label, key) == 0 &&
            (!label[key] || strcmp(job->spec.labels.items[i].value, label + key + 1) == 0))
            return true;
    }
    return false;
}

static bool matches(const adli_kept_job *job, const adli_list_query *query)
{
    return (!query->ns || strcmp(query->ns, job->ns) == 0) &&
           (!query->phases || query->phases >> job->row.life.phase & 1) &&
           (!query->label || has_label(job, query->label)) && job->order > query->after;
}

/* The first after one that may be gone by now. Under lock. */
static adli_kept_job *find_after(const adli_core *core, int64_t order)
{
    adli_kept_job *job = TAILQ_FIRST(&core->jobs);
    while (job && job->order <= order)
        job = TAILQ_NEXT(job, all);
    return job;
}

static uint64_t epoch_of(const adli_core *core)
{
    return XXH3_64bits(&core->opened_s, sizeof core->opened_s) >> 32;
}

adl_status adli_list_continue(adli_core *core, const char *token, int64_t *after)
{
    uint64_t epoch;
    int used = 0;
    if (sscanf(token, "%" SCNx64 "-%" SCNd64 "%n", &epoch, after, &used) != 2 || token[used] ||
        *after < 0)
        return adli_fail(ADL_EINVAL, "continue=%.40s: not what a list said", token);
    if (epoch != epoch_of(core))
        return adli_fail(ADL_ESTATE,
                         "the list was begun before the scheduler was started: begin anew");
    return ADL_OK;
}

/* *lasts: nothing in it goes on by itself. */
static adl_status write_list(adli_core *core, const adli_list_query *query, double now_s,
                             adli_buf *out, bool *lasts)
{
    int64_t last = 0, drops;
    int count = 0;
    bool more = false;
    *lasts = true;
    adli_buf scratch;
    adli_buf_init(&scratch, 4 << 20);
    adli_jw_open(out, NULL, '{');
    adli_jw_open(out, "items", '[');
    pthread_mutex_lock(&core->lock);
    adli_kept_job *job = find_after(core, query->after);
    drops = core->drops;
    for (int seen = 1; job; seen++) {
        core->looks++;
        if (matches(job, query)) {
            more = query->limit > 0 && count == query->limit;
            if (more)
                break;
            size_t length;
            const char *text = text_of(core, job, now_s, &scratch, &length);
            *lasts &= keeps(job);
            adli_buf_puts(out, count++ > 0 ? "," : "");
            if (query->fields && scratch.status == ADL_OK)
                put_fields(text, query->fields, out);
            else
                adli_buf_append(out, text, length);
            last = job->order;
        }
        int64_t here = job->order;
        job = TAILQ_NEXT(job, all);
        if (seen % AT_A_TIME == 0) {
            pthread_mutex_unlock(&core->lock);
            pthread_mutex_lock(&core->lock);
            job = core->drops == drops && job ? job : find_after(core, here);
            drops = core->drops;
        }
    }
    pthread_mutex_unlock(&core->lock);
    adli_jw_close(out, ']');
    char token[48];
    snprintf(token, sizeof token, "%" PRIx64 "-%" PRId64, epoch_of(core), last);
    adli_jw_text(out, "continue", more ? token : NULL);
    adli_jw_close(out, '}');
    adl_status status = adli_buf_check(&scratch);
    adli_buf_fini(&scratch);
    return status == ADL_OK ? adli_buf_check(out) : status;
}

adl_status adli_core_jobs(adli_core *core, const adli_list_query *query, adli_buf *out)
{
    bool lasts;
    return write_list(core, query, adli_core_now(core), out, &lasts);
}

/* What changes while it is written is news again: then it is written anew for the next who asks. */
adl_status adli_core_all_jobs(adli_core *core, adli_shared **out)
{
    double now_s = adli_core_now(core);
    pthread_mutex_lock(&core->lock);
    int64_t news = core->news;
    bool kept = core->whole && core->whole_news == news && now_s <= core->whole_until_s;
    *out = kept ? adli_shared_hold(core->whole) : NULL;
    pthread_mutex_unlock(&core->lock);
    if (kept)
        return ADL_OK;
    adli_buf text;
    bool lasts;
    adli_buf_init(&text, LIST_MAX);
    adl_status status = write_list(core, &(adli_list_query){0}, now_s, &text, &lasts);
    if (status == ADL_OK)
        *out = adli_shared_take(&text);
    adli_buf_fini(&text);
    if (!*out)
        return status == ADL_OK ? adli_fail_memory("list of jobs") : status;
    (*out)->print = XXH3_64bits((*out)->data, (*out)->length);
    pthread_mutex_lock(&core->lock);
    adli_shared *old = core->whole;
    core->whole = adli_shared_hold(*out);
    core->whole_news = news;
    core->whole_until_s = now_s + (lasts ? WHOLE_LASTS_S : WHOLE_S);
    pthread_mutex_unlock(&core->lock);
    adli_shared_drop(old);
    return ADL_OK;
}

/* ---- the end of many ---- */

/* Those that match and are not on their way out yet. Under lock. */
static adl_status collect(adli_core *core, const adli_list_query *query, adli_kept_job ***out,
                          size_t *count)
{
    size_t capacity = 0;
    adli_kept_job *job;
    *out = NULL;
    *count = 0;
    TAILQ_FOREACH(job, &core->jobs, all)
    {
        if (!matches(job, query) || job->deleted)
            continue;
        if (adli_grow(out, &capacity, *count + 1, sizeof **out) != 0) {
            free(*out);
            *out = NULL;
            return adli_fail_memory("jobs to delete");
        }
        (*out)[(*count)++] = job;
    }
    return ADL_OK;
}

adl_status adli_core_delete_jobs(adli_core *core, const adli_list_query *query, adli_buf *out)
{
    adli_kept_job **jobs = NULL;
    size_t count = 0;
    pthread_mutex_lock(&core->changes);
    pthread_mutex_lock(&core->lock);
    adl_status status = collect(core, query, &jobs, &count);
    pthread_mutex_unlock(&core->lock);
    if (status == ADL_OK && count > 0) {
        /* only under `changes` is deleted set, and a job removed */
        adli_core_make_room(core);
        adli_store_begin(core->store);
        for (size_t i = 0; i < count; i++)
            adli_store_mark(core->store, jobs[i]->uid, ADLI_ASKED_DELETE);
        status = adli_store_commit(core->store);
    }
    adli_jw_open(out, NULL, '{');
    adli_jw_open(out, "items", '[');
    pthread_mutex_lock(&core->lock);
    for (size_t i = 0; status == ADL_OK && i < count; i++) {
        jobs[i]->deleted_new = jobs[i]->deleted = true;
        adli_core_changed(core, jobs[i]);
        adli_jw_text(out, NULL, jobs[i]->id);
    }
    pthread_mutex_unlock(&core->lock);
    adli_jw_close(out, ']');
    adli_jw_close(out, '}');
    if (status == ADL_OK && count > 0)
        adli_core_wake(core);
    pthread_mutex_unlock(&core->changes);
    free(jobs);
    return status == ADL_OK ? adli_buf_check(out) : status;
}
