/* Writing down: what became of the jobs, the events and decisions that go with it, in one transaction;
 * then, and only then, readers see it. */
#include "daemon/core_impl.h"

#include "base/json_write.h"
#include "adaptdl/snapshot.h"
#include "base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUTBOX_MAX = 20000, ROUNDS_KEPT = 1000, PRUNE_S = 60, MIRROR_S = 60 };

void adli_pending_fini(adli_pending *pending)
{
    free(pending->job);
    free(pending->text);
    free(pending->fields);
    *pending = (adli_pending){0};
}

/* Takes the texts. When the store cannot be written for long, what people would read is dropped. */
static void post(adli_core *core, adli_pending pending)
{
    bool texts = pending.kind == PENDING_ROUND ||
                 (pending.job && (pending.kind == PENDING_SAMPLE || pending.text));
    if (!texts || core->outbox_count >= OUTBOX_MAX ||
        adli_grow(&core->outbox, &core->outbox_capacity, core->outbox_count + 1,
                  sizeof *core->outbox) != 0) {
        adli_pending_fini(&pending);
        return;
    }
    core->outbox[core->outbox_count++] = pending;
}

void adli_core_event(adli_core *core, double now_s, const char *type, const char *job,
                     const char *fields, const char *format, ...)
{
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    adli_pending pending = {.kind = PENDING_EVENT,
                            .time_s = now_s,
                            .job = adli_strdup(job),
                            .text = adli_strdup(message),
                            .fields = adli_strdup(fields ? fields : "")};
    snprintf(pending.type, sizeof pending.type, "%s", type);
    post(core, pending);
}

/* ---- decisions ---- */

/* tell: whoever mirrors the job is told, too. */
static void put_decision(adli_core *core, const adli_kept_job *job, int index, double now_s,
                         bool tell, adli_buf *out)
{
    const adl_snapshot *snapshot = adl_cluster_snapshot(core->cluster);
    const adl_decision *decision = adl_cluster_decision(core->cluster);
    const adl_job_decision *now = &decision->jobs[index];
    const char *doubt =
        adl_cluster_job(core->cluster, adl_cluster_round_job(core->cluster, index))->doubt;
    char text[1024], sized[300];
    bool more = now->next_replicas > now->replicas, rival = more && now->rival >= 0;
    adli_jw_open(out, NULL, '{');
    adli_jw_int(out, "round", core->round);
    adli_jw_number(out, "time", now_s);
    adli_jw_text(out, "job", job->id);
    adli_nodes_list_json(core, "before", job->before, job->before_count, out);
    adli_nodes_list_json(core, "after", now->nodes, now->replicas, out);
    adli_jw_number(out, "speedup", now->speedup);
    adli_jw_number(out, "restartCost", now->restart_cost);
    adli_jw_text(out, "reason", adl_reason_name(now->reason));
    adli_jw_number(out, "nextReplicas", more ? now->next_replicas : NAN);
    adli_jw_number(out, "nextGain", more ? now->next_gain : NAN);
    adli_jw_text(out, "rival", rival ? snapshot->jobs[now->rival].name : NULL);
    adli_jw_number(out, "rivalGain", rival ? now->rival_gain : NAN);
    adli_jw_number(out, "weight", more && now->next_worth > 0 ? now->weight : NAN);
    adli_jw_number(out, "nextWorth", more && now->next_worth > 0 ? now->next_worth : NAN);
    adli_jw_number(out, "rivalWeight", rival && now->rival_worth > 0 ? now->rival_weight : NAN);
    adli_jw_number(out, "rivalWorth", rival && now->rival_worth > 0 ? now->rival_worth : NAN);
    adl_decision_explain(snapshot, decision, index, text, sizeof text);
    size_t used = strlen(text);
    if (doubt)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "; its report is not believed: it %s", doubt);
    bool scales = adli_core_sized_text(core, sized, sizeof sized);
    if (scales && used < sizeof text)
        snprintf(text + used, sizeof text - used, "; %s", sized);
    adli_jw_text(out, "cluster", scales ? sized : NULL);
    adli_jw_text(out, "distrust", doubt);
    adli_jw_text(out, "text", text);
    adli_jw_close(out, '}');
    if (tell && core->mirror.tell)
        core->mirror.tell(core->mirror.user, job->uid, job->ns, job->name, "Decision", text, false);
}

void adli_core_decisions_of_round(adli_core *core, double now_s, double duration_s)
{
    const adl_snapshot *snapshot = adl_cluster_snapshot(core->cluster);
    const adl_decision *decision = adl_cluster_decision(core->cluster);
    int changed = 0;
    core->round++;
    for (int i = 0; i < snapshot->job_count; i++) {
        adl_reason reason = decision->jobs[i].reason;
        bool changes = reason != ADL_REASON_KEPT && reason != ADL_REASON_WAITING &&
                       reason != ADL_REASON_PINNED && reason != ADL_REASON_IMPOSSIBLE;
        changed += changes;
        const adli_kept_job *job =
            adl_cluster_job(core->cluster, adl_cluster_round_job(core->cluster, i))->user;
        adli_buf text;
        adli_buf_init(&text, 1 << 20);
        put_decision(core, job, i, now_s, changes, &text);
        post(core, (adli_pending){.kind = PENDING_DECISION,
                                  .job = adli_strdup(job->uid),
                                  .round = core->round,
                                  .text = text.data});
    }
    adli_buf fields;
    adli_buf_init(&fields, FIELDS_MAX);
    adli_jw_int(&fields, "round", core->round);
    adli_jw_int(&fields, "changed", changed);
    adli_jw_int(&fields, "jobs", snapshot->job_count);
    adli_core_event(core, now_s, "Round", "", fields.data, "round %lld: %d of %d jobs changed",
                    (long long)core->round, changed, snapshot->job_count);
    adli_buf_fini(&fields);
    adli_say(ADL_LOG_DEBUG, "round %lld: %d of %d jobs changed, decided in %.3f ms",
             (long long)core->round, changed, snapshot->job_count, duration_s * 1e3);
    post(core, (adli_pending){.kind = PENDING_ROUND,
                              .time_s = now_s,
                              .round = core->round,
                              .duration_s = duration_s,
                              .jobs = snapshot->job_count,
                              .changed = changed});
}

/* ---- rows ---- */

static bool same_nodes(const int *a, int a_count, const int *b, int b_count)
{
    return a_count == b_count && (a_count == 0 || memcmp(a, b, (size_t)a_count * sizeof *a) == 0);
}

static bool same_life(const adl_life *a, const adl_life *b)
{
    return a->phase == b->phase && a->group == b->group && a->failures == b->failures &&
           a->stop_since_s == b->stop_since_s && a->retry_at_s == b->retry_at_s &&
           a->killed == b->killed;
}

/* Why it has no allocation, unless it just waits for its turn. */
static void describe_waiting(adli_core *core, const adli_kept_job *job, char *reason,
                             adli_buf *message)
{
    char why[256], unused[256];
    pthread_mutex_lock(&core->lock); /* nodes may be drained meanwhile */
    bool ever = adli_core_fits(core, job, true, why, sizeof why);
    bool now = ever && adli_core_fits(core, job, false, unused, sizeof unused);
    bool added = !now && adli_core_fits_more(core, job);
    pthread_mutex_unlock(&core->lock);
    if (added) {
        strcpy(reason, "WaitingForNodes");
        adli_buf_puts(message, "it fits on nodes that are to be added");
    } else if (!ever) {
        strcpy(reason, "Unschedulable");
        adli_buf_puts(message, why);
    } else if (core->held) {
        strcpy(reason, "Draining");
        adli_buf_puts(message, ADLI_DRAINING);
    } else if (!now) {
        strcpy(reason, "Draining");
        adli_buf_puts(message, "the nodes that could hold it are drained");
    }
}

/* Why its replicas do not begin to run, when there is something to say. */
static void describe_starting(const adli_kept_job *job, char *reason, adli_buf *message)
{
    for (int i = 0; i < job->view_count; i++)
        if (job->views[i].state == ADLI_MEMBER_WAITING && job->views[i].message[0]) {
            strcpy(reason, "Waiting");
            adli_buf_printf(message, "replica %d: %s", i, job->views[i].message);
            return;
        }
}

/* Why it is where it is, for people. */
static void describe(adli_core *core, const adli_kept_job *job, const adl_job_info *info,
                     double now_s, char *reason, adli_buf *message)
{
    const adl_life *life = info->life;
    pthread_mutex_lock(&core->lock);
    adli_asked asked = job->asked;
    pthread_mutex_unlock(&core->lock);
    *reason = 0;
    if (life->phase == ADL_FAILED && asked == ADLI_ASKED_CANCEL)
        strcpy(reason, "Cancelled");
    else if (life->phase == ADL_PENDING && asked == ADLI_ASKED_SUSPEND) {
        strcpy(reason, "Suspended");
        adli_buf_puts(message, "adaptdl resume lets it go on");
    } else if (life->phase == ADL_FAILED && job->failure_seen) {
        strcpy(reason, job->failure_reason);
        adli_buf_puts(message, job->failure_message ? job->failure_message : "");
    } else if (life->phase == ADL_FAILED)
        strcpy(reason, "Deleted");
    else if (life->phase == ADL_PENDING && life->failures > 0 && life->retry_at_s > now_s) {
        strcpy(reason, "Retrying");
        if (job->failure_seen)
            adli_buf_printf(message, "failed %d time%s, is tried again: %s", life->failures,
                            life->failures > 1 ? "s" : "",
                            job->failure_message ? job->failure_message : "");
        else /* by the daemon before this one */
            adli_buf_puts(message, job->row.message ? job->row.message : "");
    } else if (life->phase == ADL_PENDING && info->replicas == 0)
        describe_waiting(core, job, reason, message);
    else if (life->phase == ADL_STARTING && job->view_group == life->group)
        describe_starting(job, reason, message);
}

static adl_status copy_nodes(int **to, int *count, const int *from, int from_count)
{
    *to = adli_memdup(from ? from : (const int[1]){0}, (size_t)(from_count ? from_count : 1),
                      sizeof **to);
    *count = *to ? from_count : 0;
    return *to ? ADL_OK : adli_fail_memory("allocation");
}

static adl_status make_row(const adli_kept_job *job, const adl_job_info *info, const char *reason,
                           const char *message, const char *world, double now_s, adli_row *row)
{
    *row = (adli_row){.life = *info->life,
                      .started_s = job->row.started_s,
                      .completed_s = job->row.completed_s,
                      .account = *info->account,
                      .resize_cost_s = job->resize_cost_s};
    snprintf(row->resized, sizeof row->resized, "%s", job->resized);
    if (row->started_s == 0 && row->life.group > 0)
        row->started_s = now_s;
    if (row->completed_s == 0 && adl_life_over(&row->life))
        row->completed_s = now_s;
    snprintf(row->reason, sizeof row->reason, "%s", reason);
    row->message = adli_strdup(message);
    row->world = adli_strdup(world);
    adl_status status = row->message && row->world ? ADL_OK : adli_fail_memory("message");
    if (status == ADL_OK)
        status = copy_nodes(&row->wanted, &row->wanted_count, info->nodes, info->replicas);
    if (status == ADL_OK)
        status = copy_nodes(&row->placed, &row->placed_count, info->placed, info->placed_count);
    return status;
}

/* ---- the transaction ---- */

typedef struct change {
    adli_kept_job *job;
    adli_row row;
    adli_store_sample sample;
    bool sample_only; /* nothing else is new */
} change;

static adli_store_sample sample_of(const adli_kept_job *job, adl_phase phase, int replicas,
                                   double now_s)
{
    const adli_hints_data *hints = &job->hints;
    const adli_train_info *train = &job->train;
    bool known = hints->known && replicas > 0;
    return (adli_store_sample){.time_s = now_s,
                               .phase = (int)phase,
                               .replicas = replicas,
                               .batch_size =
                                   known && hints->batch_size > 0 ? hints->batch_size : NAN,
                               .throughput = known ? train->throughput : NAN,
                               .efficiency = known ? train->efficiency : NAN,
                               .goodput = known ? train->goodput : NAN,
                               .progress = hints->known ? hints->progress : NAN};
}

static void write_events(adli_core *core, const change *made, double now_s)
{
    const adli_kept_job *job = made->job;
    const adli_row *old = &job->row, *row = &made->row;
    const char *name = adl_phase_name(row->life.phase);
    char message[256];
    adli_buf fields;
    adli_buf_init(&fields, FIELDS_MAX);
    bool phase = old->life.phase != row->life.phase;
    if (phase || strcmp(old->reason, row->reason) != 0) {
        adli_jw_text(&fields, "phase", name);
        adli_jw_int(&fields, "group", row->life.group);
        adli_jw_int(&fields, "replicas", row->placed_count);
        int used = phase ? snprintf(message, sizeof message, "%s -> %s",
                                    adl_phase_name(old->life.phase), name)
                         : snprintf(message, sizeof message, "%s", name);
        if (row->reason[0])
            snprintf(message + used, sizeof message - (size_t)used, " (%s)%s%.*s", row->reason,
                     *row->message ? ": " : "", (int)strcspn(row->message, "\n"), row->message);
        adli_say(ADL_LOG_DEBUG, "job %s: %s", job->id, message);
        if (phase || row->reason[0])
            adli_store_event(core->store, now_s, "JobPhase", job->id, message, fields.data);
    }
    if (row->life.group > old->life.group && old->life.group > 0 &&
        job->last_replicas != row->placed_count) {
        adli_buf_clear(&fields);
        adli_jw_int(&fields, "before", job->last_replicas);
        adli_jw_int(&fields, "after", row->placed_count);
        adli_jw_int(&fields, "group", row->life.group);
        snprintf(message, sizeof message, "%d -> %d replicas", job->last_replicas,
                 row->placed_count);
        adli_store_event(core->store, now_s, "JobRescaled", job->id, message, fields.data);
    }
    adli_buf_fini(&fields);
}

/* Reports come meanwhile, on other threads. */
static void mirror_row(adli_core *core, const change *made, adli_store_job *row, double now_s)
{
    adli_kept_job *job = made->job;
    if (!core->mirror.put || (made->sample_only && now_s - job->mirrored_s < MIRROR_S))
        return;
    job->mirrored_s = now_s;
    pthread_mutex_lock(&core->lock);
    row->ns = job->ns;
    row->name = job->name;
    row->created_s = job->created_s;
    row->hints = job->hints_json;
    row->restart_cost_s = job->restart_cost_s;
    adli_mirrored more = {.ready = job->view_group == row->group ? job->ready : 0,
                          .batch_size = made->sample.batch_size,
                          .goodput = made->sample.goodput,
                          .speedup = isfinite(made->sample.goodput) ? job->train.speedup : NAN};
    core->mirror.put(core->mirror.user, row, &more);
    pthread_mutex_unlock(&core->lock);
}

static void write_change(adli_core *core, const change *made, adli_buf *wanted, adli_buf *placed,
                         double now_s)
{
    const adli_kept_job *job = made->job;
    const adli_row *row = &made->row;
    adli_buf_clear(wanted);
    adli_buf_clear(placed);
    adli_nodes_list_json(core, NULL, row->wanted, row->wanted_count, wanted);
    adli_nodes_list_json(core, NULL, row->placed, row->placed_count, placed);
    adli_store_job saved = {.uid = job->uid,
                            .phase = (int)row->life.phase,
                            .group = row->life.group,
                            .failures = row->life.failures,
                            .killed = row->life.killed,
                            .group_started_s = row->life.started_s,
                            .stop_since_s = row->life.stop_since_s,
                            .retry_at_s = row->life.retry_at_s,
                            .wanted = wanted->data,
                            .placed = placed->data,
                            .started_s = row->started_s,
                            .completed_s = row->completed_s,
                            .reason = row->reason,
                            .message = row->message,
                            .world = row->world,
                            .resized = row->resized,
                            .resize_cost_s = row->resize_cost_s,
                            .account = row->account};
    adli_store_save_job(core->store, &saved);
    mirror_row(core, made, &saved, now_s);
    write_events(core, made, now_s);
    if (row->life.phase != job->row.life.phase || row->placed_count != job->row.placed_count)
        adli_store_add_sample(core->store, job->uid, &made->sample);
}

static void write_pending(adli_core *core, const adli_pending *pending)
{
    switch (pending->kind) {
    case PENDING_EVENT:
        adli_store_event(core->store, pending->time_s, pending->type, pending->job, pending->text,
                         pending->fields);
        break;
    case PENDING_DECISION:
        adli_store_decision(core->store, pending->job, pending->round, pending->text);
        break;
    case PENDING_SAMPLE:
        adli_store_add_sample(core->store, pending->job, &pending->sample);
        break;
    case PENDING_ROUND:
        adli_store_round(core->store, pending->round, pending->time_s, pending->duration_s,
                         pending->jobs, pending->changed);
        break;
    }
}

static adl_status write_all(adli_core *core, const change *changes, size_t count, double now_s)
{
    adli_buf wanted, placed;
    adli_buf_init(&wanted, 4 << 20);
    adli_buf_init(&placed, 4 << 20);
    adli_core_make_room(core);
    adli_store_begin(core->store);
    for (size_t i = 0; i < count; i++)
        write_change(core, &changes[i], &wanted, &placed, now_s);
    for (size_t i = 0; i < core->outbox_count; i++)
        write_pending(core, &core->outbox[i]);
    bool prune = now_s - core->pruned_s >= PRUNE_S;
    if (prune) {
        adli_store_limits limits = {.events = core->config.store.events,
                                    .rounds = ROUNDS_KEPT,
                                    .decisions_per_job = core->config.store.decisions_per_job,
                                    .samples_per_job = core->config.store.samples_per_job};
        adli_store_prune(core->store, &limits);
    }
    adl_status status = adli_buf_check(&wanted);
    if (status == ADL_OK)
        status = adli_buf_check(&placed);
    if (core->mirror.commit) { /* in any case: it forgets what was put */
        adl_status mirrored = core->mirror.commit(core->mirror.user);
        status = status == ADL_OK ? mirrored : status;
    }
    if (status == ADL_OK)
        status = adli_store_commit(core->store);
    else
        adli_store_rollback(core->store);
    if (status == ADL_OK && prune)
        core->pruned_s = now_s;
    adli_buf_fini(&placed);
    adli_buf_fini(&wanted);
    return status;
}

/* ---- publish ---- */

const double adli_completion_bounds[ADLI_COMPLETION_BOUNDS] = {1,    10,    60,    300,  1800,
                                                               3600, 10800, 43200, 86400};

static void count_completion(adli_core *core, const adli_kept_job *job)
{
    int which = job->row.life.phase == ADL_FAILED;
    double took_s = job->row.completed_s - job->created_s;
    adli_counters *counters = &core->counters;
    counters->completed[which]++;
    counters->completed_s[which] += took_s;
    for (int b = 0; b < ADLI_COMPLETION_BOUNDS; b++)
        counters->completion_buckets[which][b] += took_s <= adli_completion_bounds[b];
}

static void publish(adli_core *core, change *made)
{
    adli_kept_job *job = made->job;
    adli_row old = job->row;
    adli_core_count_row(core, job, false);
    job->row = made->row;
    adli_core_count_row(core, job, true);
    made->row = (adli_row){0};
    if (job->row.life.group > old.life.group && old.life.group > 0)
        core->counters.restarts++;
    if (job->row.life.failures > old.life.failures)
        core->counters.failures++;
    if (job->row.placed_count > 0)
        job->last_replicas = job->row.placed_count;
    if (adl_life_over(&job->row.life) && !adl_life_over(&old.life))
        count_completion(core, job);
    adli_core_train(job);
    adli_row_fini(&old);
}

/* ---- all together ---- */

static bool sample_due(const adli_core *core, const adli_kept_job *job, const adl_job_info *info,
                       double now_s)
{
    return info->placed_count > 0 && now_s - job->sampled_s >= core->config.history_s;
}

/* Fills *made when the job differs from its row. */
static adl_status compare(adli_core *core, adli_kept_job *job, double now_s, change *made,
                          bool *differs)
{
    const adl_job_info *info = adl_cluster_job(core->cluster, job->number);
    adli_buf message, world;
    char reason[32];
    adli_buf_init(&message, 2 * ADLI_MESSAGE_MAX);
    adli_buf_init(&world, 16 << 20);
    adli_core_write_world(core, job, &world);
    adl_status status = adli_buf_check(&world);
    const char *worlds = world.data ? world.data : "";
    describe(core, job, info, now_s, reason, &message);
    const char *text = message.data ? message.data : "";
    const adli_row *row = &job->row;
    *differs = !same_life(info->life, &row->life) ||
               !same_nodes(info->nodes, info->replicas, row->wanted, row->wanted_count) ||
               !same_nodes(info->placed, info->placed_count, row->placed, row->placed_count) ||
               strcmp(reason, row->reason) != 0 ||
               strcmp(text, row->message ? row->message : "") != 0 ||
               strcmp(worlds, row->world ? row->world : "") != 0 ||
               strcmp(job->resized, row->resized) != 0;
    bool changed = info->life->phase != row->life.phase || info->placed_count != row->placed_count;
    bool due = !changed && sample_due(core, job, info, now_s);
    made->sample_only = due && !*differs;
    *differs |= due; /* its device time */
    if (*differs) {
        pthread_mutex_lock(&core->lock); /* replicas may report meanwhile */
        made->sample = sample_of(job, info->life->phase, info->placed_count, now_s);
        pthread_mutex_unlock(&core->lock);
    }
    if (due) {
        post(core, (adli_pending){.kind = PENDING_SAMPLE,
                                  .job = adli_strdup(job->uid),
                                  .sample = made->sample});
    }
    if (due || changed)
        job->sampled_s = now_s;
    made->job = job;
    if (*differs && status == ADL_OK)
        status = make_row(job, info, reason, text, worlds, now_s, &made->row);
    adli_buf_fini(&world);
    adli_buf_fini(&message);
    return status;
}

typedef struct changes {
    change *items;
    size_t count, capacity;
} changes;

static adl_status collect(adli_core *core, adli_kept_job *job, double now_s, changes *all)
{
    bool differs = false;
    core->visits++;
    if (adli_grow(&all->items, &all->capacity, all->count + 1, sizeof *all->items) != 0)
        return adli_fail_memory("changes");
    all->items[all->count] = (change){0};
    adl_status status = compare(core, job, now_s, &all->items[all->count], &differs);
    all->count += differs;
    return status;
}

/* Those that were touched, and those that run: their states and samples follow the time. */
static adl_status collect_all(adli_core *core, double now_s, changes *all)
{
    adl_status status = ADL_OK;
    adli_kept_job *job;
    for (job = adli_core_busy(core, NULL); job; job = adli_core_busy(core, job))
        adli_core_touch(core, job);
    TAILQ_FOREACH(job, &core->touched, touched)
    {
        if (status == ADL_OK && job->number >= 0)
            status = collect(core, job, now_s, all);
    }
    return status;
}

static void untouch_all(adli_core *core)
{
    for (adli_kept_job *job; (job = TAILQ_FIRST(&core->touched));) {
        TAILQ_REMOVE(&core->touched, job, touched);
        job->is_touched = false;
    }
}

adl_status adli_core_commit(adli_core *core, double now_s)
{
    changes all = {0};
    adl_status status = collect_all(core, now_s, &all);
    bool any = all.count > 0 || core->outbox_count > 0;
    if (status == ADL_OK && any)
        status = write_all(core, all.items, all.count, now_s);
    if (status == ADL_OK && any) {
        pthread_mutex_lock(&core->lock);
        for (size_t i = 0; i < all.count; i++)
            publish(core, &all.items[i]);
        pthread_mutex_unlock(&core->lock);
        for (size_t i = 0; i < core->outbox_count; i++)
            adli_pending_fini(&core->outbox[i]);
        core->outbox_count = 0;
        core->tell = true;
    }
    if (status == ADL_OK)
        untouch_all(core);
    for (size_t i = 0; i < all.count; i++)
        adli_row_fini(&all.items[i].row);
    free(all.items);
    return status;
}
