/* Taking over: the jobs of the store as they were, what the backend still runs, and what a sudden end left
 * half done. */
#include "daemon/core_impl.h"

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

adl_job_spec adli_core_sched_spec(const adli_core *core, const adli_kept_job *job)
{
    const adli_jobfile *spec = &job->spec;
    const adli_config *config = &core->config;
    int fixed = spec->max_replicas > 0   ? spec->max_replicas
                : spec->min_replicas > 1 ? spec->min_replicas
                                         : 1;
    return (adl_job_spec){
        .size = sizeof(adl_job_spec),
        .name = job->id,
        .request = adli_core_request(core, job),
        .min_replicas = spec->min_replicas,
        .max_replicas = spec->max_replicas,
        .preemptible = spec->preemptible,
        .priority = spec->priority,
        .suspend = (adl_suspend)spec->suspend,
        .fixed_replicas = fixed,
        .submit_s = job->created_s,
        .user = (void *)job,
        .own_rules = true,
        .rules = {.grace_s = spec->grace_s >= 0 ? spec->grace_s : config->grace_s,
                  .max_retries = spec->max_retries >= 0 ? spec->max_retries : config->max_retries,
                  .retry_pause_s = config->retry_pause_s,
                  .interrupted_pause_s = fmin(1, config->retry_pause_s),
                  .forgive_s = ADLI_FORGIVE_S}};
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* A JSON list of node names as numbers, ascending. */
static adl_status read_nodes(adli_core *core, const char *text, int **nodes, int *count)
{
    json_t *list;
    adl_status status = adli_json_parse(text, strlen(text), &list);
    if (status != ADL_OK)
        return status;
    size_t length = json_array_size(list);
    *nodes = adli_calloc(length ? length : 1, sizeof **nodes);
    status = *nodes ? ADL_OK : adli_fail_memory("allocation");
    for (size_t i = 0; status == ADL_OK && i < length; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        (*nodes)[i] = name ? adli_core_node_number(core, name) : -1;
        if ((*nodes)[i] < 0)
            status = adli_fail(ADL_ECORRUPT, "an allocation in the store is not readable");
    }
    *count = status == ADL_OK ? (int)length : 0;
    if (status == ADL_OK)
        qsort(*nodes, length, sizeof **nodes, by_number);
    json_decref(list);
    return status;
}

static adl_status read_row(adli_core *core, const adli_store_job *from, adli_row *row)
{
    row->life =
        (adl_life){.phase = from->phase >= 0 && from->phase < ADLI_PHASES ? (adl_phase)from->phase
                                                                          : ADL_FAILED,
                   .group = from->group,
                   .failures = from->failures,
                   .started_s = from->group_started_s,
                   .stop_since_s = from->stop_since_s,
                   .retry_at_s = from->retry_at_s,
                   .killed = from->killed};
    row->started_s = from->started_s;
    row->completed_s = from->completed_s;
    snprintf(row->reason, sizeof row->reason, "%s", from->reason);
    row->account = from->account;
    row->resize_cost_s = from->resize_cost_s;
    snprintf(row->resized, sizeof row->resized, "%s", from->resized ? from->resized : "");
    if (from->world && *from->world && !(row->world = adli_strdup(from->world)))
        return adli_fail_memory("worlds");
    adl_status status = read_nodes(core, from->wanted, &row->wanted, &row->wanted_count);
    if (status == ADL_OK)
        status = read_nodes(core, from->placed, &row->placed, &row->placed_count);
    if (status == ADL_OK && *from->message && !(row->message = adli_strdup(from->message)))
        status = adli_fail_memory("message");
    return status;
}

/* A report that another version took and this one would not is no reason not to start: the job reports
 * again. */
static adl_status read_report(const adli_store_job *from, adli_kept_job *job)
{
    if (!*from->hints)
        return ADL_OK;
    adl_status status = adli_hints_parse(from->hints, strlen(from->hints), &job->hints, NULL);
    if (status == ADL_EINVAL) {
        adli_say(ADL_LOG_WARNING, "job %s: its last report is forgotten: %s", job->id, adl_error());
        return ADL_OK;
    }
    job->hints.group = from->group;
    job->hints_json = status == ADL_OK ? adli_strdup(from->hints) : NULL;
    return status == ADL_OK && !job->hints_json ? adli_fail_memory("hints") : status;
}

static adl_status read_job(adli_core *core, const adli_store_job *from, adli_kept_job *job)
{
    snprintf(job->uid, sizeof job->uid, "%s", from->uid);
    snprintf(job->token, sizeof job->token, "%s", from->token);
    snprintf(job->secret, sizeof job->secret, "%s", from->secret);
    adl_status status = adli_jobfile_parse("stored job file", from->spec, strlen(from->spec),
                                           ADLI_DOC_JSON, &job->spec);
    if (status != ADL_OK)
        return status;
    free(job->spec.name); /* a generated one is not in the file */
    job->spec.name = adli_strdup(from->name);
    free(job->spec.json);
    job->spec.json = NULL;
    if (!job->spec.name)
        return adli_fail_memory("job name");
    job->ns = job->spec.ns;
    job->name = job->spec.name;
    snprintf(job->id, sizeof job->id, "%s/%s", job->ns, job->name);
    job->created_s = from->created_s;
    job->deleted = from->asked == ADLI_ASKED_DELETE;
    job->asked = job->deleted ? ADLI_ASKED_NOTHING : from->asked;
    job->restart_cost_s = from->restart_cost_s;
    job->pin = from->pin;
    job->resize_cost_s = from->resize_cost_s;
    snprintf(job->resized, sizeof job->resized, "%s", from->resized ? from->resized : "");
    job->reports_restart = from->reports_restart;
    status = read_report(from, job);
    return status == ADL_OK ? read_row(core, from, &job->row) : status;
}

/* Times of the store are never after now. */
static void notice_times(adli_core *core, const adli_store_job *from)
{
    const double times[] = {from->created_s, from->account.accounted_s, from->account.last_change_s,
                            from->completed_s};
    for (size_t i = 0; i < ADLI_COUNT(times); i++)
        core->now_s = fmax(core->now_s, times[i]);
    core->last_created_s = fmax(core->last_created_s, from->created_s);
}

static adl_status take_job(void *user, const adli_store_job *from)
{
    adli_core *core = user;
    adli_kept_job *job = adli_calloc(1, sizeof *job);
    if (!job)
        return adli_fail_memory("jobs");
    job->number = -1;
    notice_times(core, from);
    adl_status status = read_job(core, from, job);
    if (status != ADL_OK) {
        adli_core_job_free(job);
        return adli_wrap(status, "job %s/%s", from->ns, from->name);
    }
    adli_core_add_job(core, job);
    job->last_replicas = job->row.placed_count > 0 ? job->row.placed_count : from->group > 0;
    adli_core_train(job);
    return ADL_OK;
}

/* Puts an unfinished job into the cluster, and what has to be said to the backend again on its list. */
static adl_status restore(adli_core *core, adli_kept_job *job)
{
    const adli_row *row = &job->row;
    char application[ADLI_APPLICATION_SIZE];
    adl_job_spec spec = adli_core_sched_spec(core, job);
    adli_core_application(job, application);
    spec.application = application;
    adl_job_saved saved = {.size = sizeof saved,
                           .life = row->life,
                           .nodes = row->wanted,
                           .replicas = row->wanted_count,
                           .placed = row->placed,
                           .placed_count = row->placed_count,
                           .deleted = job->deleted || job->asked == ADLI_ASKED_CANCEL,
                           .account = row->account};
    adl_status status = adl_cluster_restore(core->cluster, &spec, &saved, &job->number);
    if (status != ADL_OK)
        return status;
    adli_cluster_pin(core->cluster, job->number, job->pin);
    if (job->asked == ADLI_ASKED_SUSPEND)
        adl_cluster_hold(core->cluster, job->number, true);
    adli_core_stage(core, job, STAGE_ACTIVE);
    adli_core_touch(core, job);
    job->was_placed = row->life.group > 0;
    job->cleaned = job->forgotten = row->life.group - (row->placed_count > 0);
    job->do_start = row->life.phase == ADL_STARTING;
    job->do_terminate = row->life.phase == ADL_STOPPING;
    job->do_kill = job->do_terminate && row->life.killed;
    if (job->do_start || job->do_terminate)
        adli_core_plan(core, job);
    adli_core_load_worlds(core, job);
    adli_core_report(core, job);
    return ADL_OK;
}

/* The group a job has now; 0: none. */
static int present_group(const adli_core *core, const char *uid)
{
    const adli_kept_job *job = adli_index_find(&core->by_uid, uid);
    bool present = job && job->row.placed_count > 0 && !adl_life_over(&job->row.life);
    return present ? job->row.life.group : 0;
}

typedef struct stray {
    char uid[64];
    int group;
} stray;

typedef struct strays {
    adli_core *core;
    stray *items;
    size_t count, capacity;
} strays;

static void find_stray(void *user, const char *uid, int group)
{
    strays *found = user;
    if (present_group(found->core, uid) == group)
        return;
    if (adli_grow(&found->items, &found->capacity, found->count + 1, sizeof *found->items) != 0)
        return; /* found again at the next start */
    stray *item = &found->items[found->count++];
    snprintf(item->uid, sizeof item->uid, "%s", uid);
    item->group = group;
}

/* Groups that are over, or that no job knows. */
static void forget_strays(adli_core *core)
{
    strays found = {.core = core};
    core->backend->ops->list(core->backend->self, find_stray, &found);
    for (size_t i = 0; i < found.count; i++)
        core->backend->ops->forget(core->backend->self, found.items[i].uid, found.items[i].group);
    free(found.items);
}

static adl_status drained(void *user, const char *node)
{
    adli_core *core = user;
    int number = adli_core_node_number(core, node);
    if (number < 0)
        return adli_fail_memory("nodes");
    core->nodes[number].drained = true;
    return ADL_OK;
}

static int by_completion(const void *a, const void *b)
{
    const adli_kept_job *x = *(adli_kept_job *const *)a, *y = *(adli_kept_job *const *)b;
    return (x->row.completed_s > y->row.completed_s) - (x->row.completed_s < y->row.completed_s);
}

/* Jobs that are over, by when that was; the others go on. */
static adl_status stage_all(adli_core *core)
{
    adl_status status = ADL_OK;
    adli_kept_job *job, **over = adli_calloc(core->by_id.count + 1, sizeof(adli_kept_job *));
    size_t count = 0;
    if (!over)
        return adli_fail_memory("jobs");
    TAILQ_FOREACH(job, &core->jobs, all)
    {
        if (adl_life_over(&job->row.life))
            over[count++] = job;
        else if (status == ADL_OK)
            status = restore(core, job);
    }
    qsort(over, count, sizeof(adli_kept_job *), by_completion);
    for (size_t i = 0; i < count; i++)
        adli_core_stage(core, over[i], over[i]->deleted ? STAGE_DOOMED : STAGE_OVER);
    free(over);
    return status;
}

adl_status adli_core_load(adli_core *core)
{
    adl_status status = adli_store_jobs(core->store, take_job, core);
    if (status == ADL_OK)
        status = adli_core_load_reports(core);
    if (status == ADL_OK)
        status = adli_store_drained(core->store, drained, core);
    if (status == ADL_OK)
        status = adli_core_take_old_drain(core);
    if (status == ADL_OK)
        status = adli_core_load_draining(core);
    if (status == ADL_OK)
        status = adli_core_finish_submissions(core);
    /* first the nodes that only allocations name, then the jobs, then the nodes again, so that jobs lose
     * what is not there any more */
    if (status == ADL_OK)
        status = adli_core_refresh_nodes(core, true);
    if (status == ADL_OK)
        status = stage_all(core);
    if (status == ADL_OK)
        status = adli_core_refresh_nodes(core, true);
    if (status == ADL_OK)
        forget_strays(core);
    core->placeless = true;
    return status;
}
