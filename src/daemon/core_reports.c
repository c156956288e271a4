/* What jobs measure, for people: kept in the store, the newest values in memory, curves and gauges made of it. A
 * curve keeps so many points; when it has more, every second one goes. */
#include "daemon/core_impl.h"

#include "base/json_write.h"
#include "base/mem.h"
#include "measures/measures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CURVE_POINTS = 1000 };

void adli_series_free(adli_series *series, int count)
{
    for (int i = 0; i < count; i++)
        free(series[i].name);
    free(series);
}

static adli_series *find(adli_series *series, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(series[i].name, name) == 0)
            return &series[i];
    return NULL;
}

/* ---- the list of a job ---- */

typedef struct list {
    adli_series *items; /* room for ADLI_MEASURES_NAMES */
    int count;
} list;

static adl_status list_add(list *to, const char *name, const adli_store_value *value)
{
    if (to->count == ADLI_MEASURES_NAMES)
        return adli_fail(ADL_EINVAL, "metric %.100s: a job has at most %d metrics", name,
                         ADLI_MEASURES_NAMES);
    adli_series *item = &to->items[to->count];
    *item = (adli_series){.name = adli_strdup(name), .end = *value};
    if (!item->name)
        return adli_fail_memory("metrics");
    to->count++;
    return ADL_OK;
}

static adl_status list_init(list *out)
{
    *out = (list){.items = adli_calloc(ADLI_MEASURES_NAMES, sizeof *out->items)};
    return out->items ? ADL_OK : adli_fail_memory("metrics");
}

static adl_status list_copy(const adli_kept_job *job, list *out)
{
    adl_status status = list_init(out);
    for (int i = 0; i < job->series_count && status == ADL_OK; i++)
        status = list_add(out, job->series[i].name, &job->series[i].end);
    return status;
}

static adl_status take_end(void *user, const char *uid, const char *name,
                           const adli_store_value *value)
{
    (void)uid;
    list *to = user;
    return to->count < ADLI_MEASURES_NAMES ? list_add(to, name, value) : ADL_OK;
}

/* Under lock, or before the core starts. */
static void publish(adli_kept_job *job, list *from)
{
    adli_series_free(job->series, job->series_count);
    job->series = from->items;
    job->series_count = from->count;
    *from = (list){0};
}

static adl_status take_end_of_any(void *user, const char *uid, const char *name,
                                  const adli_store_value *value)
{
    adli_core *core = user;
    adli_kept_job *job = adli_index_find(&core->by_uid, uid);
    if (!job)
        return ADL_OK;
    if (!job->series) {
        list made;
        adl_status status = list_init(&made);
        if (status != ADL_OK)
            return status;
        publish(job, &made);
    }
    list to = {job->series, job->series_count};
    adl_status status = take_end(&to, uid, name, value);
    job->series_count = to.count;
    return status;
}

adl_status adli_core_load_reports(adli_core *core)
{
    return adli_store_report_ends(core->store, NULL, take_end_of_any, core);
}

/* ---- a document ---- */

typedef struct change {
    adli_core *core;
    const char *uid;
    list next;  /* the job's series as they will be */
    bool stale; /* ends and counts have to be read again */
} change;

/* Everything from the step on is taken back. */
static void take_back(change *c, adli_series *series, int64_t step)
{
    if (series->end.step < step)
        return;
    adli_store_report_from(c->core->store, c->uid, series->name, step);
    series->end.step = step - 1;
    c->stale = true;
}

/* The replicas are others than those who told last: they go on from a checkpoint that knows steps up to `last`. */
static void rewind_to(change *c, const adli_measures *report)
{
    for (int i = 0; i < c->next.count; i++) {
        adli_series *series = &c->next.items[i];
        int64_t last = -1;
        bool named = false;
        for (int n = 0; n < report->name_count && !named; n++)
            if (strcmp(report->names[n], series->name) == 0) {
                named = report->last[n] >= 0;
                last = report->last[n];
            }
        if (named || report->whole)
            take_back(c, series, last + 1);
    }
}

static adl_status add_point(change *c, const char *name, const adli_measures_point *point,
                            double now_s)
{
    adli_store_value value = {point->step, fmin(fmax(point->time_s, 0), now_s), point->value, 1};
    adli_series *series = find(c->next.items, c->next.count, name);
    if (series) {
        take_back(c, series, value.step);
        value.count += series->end.count;
        series->end = value;
    } else {
        adl_status status = list_add(&c->next, name, &value);
        if (status != ADL_OK)
            return status;
    }
    adli_store_report(c->core->store, c->uid, name, &value);
    return ADL_OK;
}

static adl_status write_change(change *c, const adli_kept_job *job, const adli_measures *report,
                               bool has_last, double now_s)
{
    adl_status status = list_copy(job, &c->next);
    adli_store_begin(c->core->store);
    if (report->restart > job->reports_restart) {
        adli_store_report_restart(c->core->store, c->uid, report->restart);
        if (has_last)
            rewind_to(c, report);
    }
    for (size_t i = 0; i < report->count && status == ADL_OK; i++)
        status = add_point(c, report->names[report->points[i].name], &report->points[i], now_s);
    for (int i = 0; i < c->next.count && status == ADL_OK; i++)
        if (c->next.items[i].end.count > CURVE_POINTS) {
            adli_store_report_thin(c->core->store, c->uid, c->next.items[i].name);
            c->stale = true;
        }
    if (status != ADL_OK) {
        adli_store_rollback(c->core->store);
        return status;
    }
    status = adli_store_commit(c->core->store);
    if (status != ADL_OK || !c->stale)
        return status;
    adli_series_free(c->next.items, c->next.count);
    status = list_init(&c->next);
    return status == ADL_OK ? adli_store_report_ends(c->core->store, c->uid, take_end, &c->next)
                            : status;
}

/* Under `changes`: the job stays. */
static adl_status keep(adli_core *core, adli_kept_job *job, const adli_measures *report,
                       bool has_last)
{
    change c = {.core = core, .uid = job->uid};
    if (report->restart < job->reports_restart) /* from replicas that others have followed */
        return ADL_OK;
    adl_status status = write_change(&c, job, report, has_last, adli_core_now(core));
    if (status == ADL_OK) {
        pthread_mutex_lock(&core->lock);
        publish(job, &c.next);
        core->news++;
        job->reports_restart = report->restart;
        pthread_mutex_unlock(&core->lock);
    }
    adli_series_free(c.next.items, c.next.count);
    return status;
}

adl_status adli_core_reports(adli_core *core, const char *ns, const char *name, const char *body,
                             size_t length)
{
    adli_measures report;
    bool has_last;
    adl_status status = adli_measures_parse(body, length, &report, &has_last);
    if (status != ADL_OK)
        return status;
    pthread_mutex_lock(&core->changes);
    pthread_mutex_lock(&core->lock);
    adli_kept_job *job = adli_core_find(core, ns, name);
    pthread_mutex_unlock(&core->lock);
    status = job ? keep(core, job, &report, has_last) : adli_core_no_job(ns, name);
    pthread_mutex_unlock(&core->changes);
    adli_measures_fini(&report);
    return status;
}

/* ---- what becomes of it ---- */

void adli_job_metrics_json(const adli_kept_job *job, adli_buf *out)
{
    adli_jw_open(out, "metrics", '{');
    for (int i = 0; i < job->series_count; i++) {
        const adli_series *series = &job->series[i];
        adli_jw_open(out, series->name, '{');
        adli_jw_int(out, "step", series->end.step);
        adli_jw_number(out, "time", series->end.time_s);
        adli_jw_number(out, "value", series->end.value);
        adli_jw_close(out, '}');
    }
    adli_jw_close(out, '}');
}

typedef struct curves {
    adli_buf *out;
    int most;                 /* points of each */
    char *name;               /* of the curve that is being read; NULL: none */
    adli_store_value *values; /* [capacity] */
    size_t count, capacity;
} curves;

static void put_numbers(const curves *c, const char *key, int which)
{
    size_t stride = (c->count + (size_t)c->most - 1) / (size_t)c->most;
    adli_jw_open(c->out, key, '[');
    for (size_t i = 0; i < c->count; i++) {
        const adli_store_value *value = &c->values[i];
        if ((c->count - 1 - i) % stride != 0) /* the newest is always there */
            continue;
        if (which == 0)
            adli_jw_int(c->out, NULL, value->step);
        else
            adli_jw_number(c->out, NULL, which == 1 ? value->time_s : value->value);
    }
    adli_jw_close(c->out, ']');
}

static void end_curve(curves *c)
{
    if (!c->name)
        return;
    adli_jw_open(c->out, NULL, '{');
    adli_jw_text(c->out, "name", c->name);
    put_numbers(c, "steps", 0);
    put_numbers(c, "times", 1);
    put_numbers(c, "values", 2);
    adli_jw_close(c->out, '}');
    free(c->name);
    c->name = NULL;
    c->count = 0;
}

static adl_status take_value(void *user, const char *uid, const char *name,
                             const adli_store_value *value)
{
    (void)uid;
    curves *c = user;
    if (c->name && strcmp(c->name, name) != 0)
        end_curve(c);
    if (!c->name && !(c->name = adli_strdup(name)))
        return adli_fail_memory("curves");
    if (adli_grow(&c->values, &c->capacity, c->count + 1, sizeof *c->values) != 0)
        return adli_fail_memory("curves");
    c->values[c->count++] = *value;
    return adli_buf_check(c->out);
}

adl_status adli_core_curves(adli_core *core, const char *ns, const char *name, int points,
                            adli_buf *out)
{
    char uid[ADLI_UID_SIZE];
    curves c = {.out = out, .most = points > 0 ? points : 1};
    adl_status status = adli_core_uid(core, ns, name, uid);
    if (status != ADL_OK)
        return status;
    adli_jw_open(out, NULL, '{');
    adli_jw_open(out, "items", '[');
    status = adli_store_reports(core->store, uid, take_value, &c);
    end_curve(&c);
    adli_jw_close(out, ']');
    adli_jw_close(out, '}');
    free(c.values);
    return status == ADL_OK ? adli_buf_check(out) : status;
}
