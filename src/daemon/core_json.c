/* Jobs, nodes and the cluster as JSON, in the shapes of docs/api.md. All under lock. */
#include "daemon/core_impl.h"

#include "adli_version.h"
#include "base/json_write.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A time; 0 is "not yet". */
static void put_time(adli_buf *out, const char *key, double time_s)
{
    adli_jw_number(out, key, time_s > 0 ? time_s : NAN);
}

static void put_text(adli_buf *out, const char *key, const char *text)
{
    adli_jw_text(out, key, text && *text ? text : NULL);
}

void adli_nodes_list_json(const adli_core *core, const char *key, const int *nodes, int count,
                          adli_buf *out)
{
    adli_jw_open(out, key, '[');
    for (int i = 0; i < count; i++)
        adli_jw_text(out, NULL, core->nodes[nodes[i]].name);
    adli_jw_close(out, ']');
}

/* Progress in initial-batch steps; goodput in examples a second. */
static void put_progress(adli_buf *out, const adli_kept_job *job)
{
    const adli_hints_data *hints = &job->hints;
    double total = hints->target_epochs > 0 && hints->iterations_per_epoch > 0
                       ? hints->target_epochs * hints->iterations_per_epoch
                       : NAN;
    double done = hints->progress / total, finish_s = NAN;
    /* epochs are passes over the data, progress is learning: the one that is further counts */
    if (hints->target_epochs > 0 && hints->epoch >= 0) {
        double passes = (double)hints->epoch / hints->target_epochs;
        done = isfinite(done) && done > passes ? done : passes;
    }
    if (job->row.life.phase == ADL_SUCCEEDED)
        done = 1;
    double rate = job->train.goodput / hints->init_batch_size;
    if (rate > 0 && isfinite(total) && hints->time_s > 0 && job->row.life.phase == ADL_RUNNING)
        finish_s = hints->time_s + fmax(total - hints->progress, 0) / rate;
    adli_jw_number(out, "progress", hints->progress);
    adli_jw_number(out, "totalProgress", total);
    adli_jw_number(out, "epoch", hints->epoch >= 0 ? hints->epoch : NAN);
    adli_jw_number(out, "targetEpochs", hints->target_epochs > 0 ? hints->target_epochs : NAN);
    adli_jw_number(out, "fractionDone", isfinite(done) ? fmin(fmax(done, 0), 1) : NAN);
    adli_jw_number(out, "estimatedFinish", finish_s);
}

static void put_train(adli_buf *out, const adli_kept_job *job)
{
    const adli_hints_data *hints = &job->hints;
    if (!hints->known) {
        adli_jw_text(out, "train", NULL);
        return;
    }
    const adli_train_info *train = &job->train;
    adli_jw_open(out, "train", '{');
    adli_jw_number(out, "batchSize", hints->batch_size > 0 ? hints->batch_size : NAN);
    adli_jw_number(out, "initBatchSize", hints->init_batch_size > 0 ? hints->init_batch_size : NAN);
    adli_jw_number(out, "maxBatchSize", hints->max_batch_size > 0 ? hints->max_batch_size : NAN);
    adli_jw_number(out, "throughput", train->throughput);
    adli_jw_number(out, "efficiency", train->efficiency);
    adli_jw_number(out, "goodput", train->goodput);
    adli_jw_number(out, "speedup", train->speedup);
    put_progress(out, job);
    adli_jw_int(out, "maxProfiledReplicas", hints->max_profiled);
    adli_jw_close(out, '}');
}

static void put_amounts(adli_buf *out, const adli_amounts *amounts)
{
    adli_jw_open(out, "resources", '{');
    for (int i = 0; i < amounts->count; i++)
        adli_jw_int(out, amounts->names[i], amounts->amounts[i]);
    adli_jw_close(out, '}');
}

static void put_what_was_asked(adli_buf *out, const adli_jobfile *spec)
{
    adli_jw_int(out, "minReplicas", spec->min_replicas);
    adli_jw_number(out, "maxReplicas", spec->max_replicas > 0 ? spec->max_replicas : NAN);
    adli_jw_bool(out, "preemptible", spec->preemptible);
    adli_jw_number(out, "priority", spec->priority);
    adli_jw_text(out, "suspend", adl_suspend_name(spec->suspend));
    put_amounts(out, &spec->requests);
    adli_jw_open(out, "command", '[');
    for (int i = 0; i < spec->argc; i++)
        adli_jw_text(out, NULL, spec->argv[i]);
    adli_jw_close(out, ']');
}

/* Whoever submits a job that fits nowhere need not wait for the controller to be told. */
static void put_reason(const adli_core *core, const adli_kept_job *job, adli_buf *out)
{
    char why[256];
    bool impossible = job->is_new && !adli_core_fits(core, job, true, why, sizeof why);
    put_text(out, "reason", impossible ? "Unschedulable" : job->row.reason);
    put_text(out, "message", impossible ? why : job->row.message);
}

void adli_job_json(const adli_core *core, const adli_kept_job *job, const char *spec, double now_s,
                   adli_buf *out)
{
    const adli_row *row = &job->row;
    const adl_life *life = &row->life;
    int ready = job->view_group == life->group && row->placed_count > 0 ? job->ready : 0;
    adli_jw_open(out, NULL, '{');
    adli_jw_text(out, "namespace", job->ns);
    put_text(out, "name", job->name);
    put_text(out, "uid", job->uid);
    put_text(out, "phase", adl_phase_name(life->phase));
    put_reason(core, job, out);
    adli_jw_number(out, "created", job->created_s);
    put_time(out, "started", row->started_s);
    put_time(out, "completed", row->completed_s);
    adli_jw_int(out, "replicas", row->placed_count);
    adli_jw_int(out, "readyReplicas", ready);
    adli_jw_int(out, "group", life->group);
    adli_jw_int(out, "restarts", life->group > 0 ? life->group - 1 : 0);
    adli_jw_int(out, "failures", life->failures);
    adli_jw_number(out, "pinned", job->pin > 0 ? job->pin : NAN);
    put_text(out, "lastResize", row->resized);
    adli_jw_number(out, "resizeCost", row->resize_cost_s > 0 ? row->resize_cost_s : NAN);
    adli_nodes_list_json(core, "allocation", row->placed, row->placed_count, out);
    put_what_was_asked(out, &job->spec);
    put_train(out, job);
    adli_job_metrics_json(job, out);
    adli_job_use_json(job, out);
    double running = now_s - row->account.accounted_s;
    adli_jw_number(out, "deviceSeconds",
                   row->account.attained_s + (running > 0 ? running * ready : 0));
    adli_jw_bool(out, "deleted", job->deleted);
    if (spec)
        adli_jw_raw(out, "spec", spec);
    adli_jw_close(out, '}');
}

static void put_resources(const adli_core *core, const adli_core_node *node, const char *key,
                          const adl_resources *amounts, adli_buf *out)
{
    adli_jw_open(out, key, '{');
    for (int r = 0; r < core->resource_count; r++)
        if (node->known_resource[r])
            adli_jw_int(out, core->resource_names[r], amounts->amount[r]);
    adli_jw_close(out, '}');
}

static int64_t slots_of(const adli_core *core, const adli_core_node *node)
{
    for (int r = 0; r < core->resource_count; r++)
        if (node->known_resource[r] && strcmp(core->resource_names[r], "nvidia.com/gpu") == 0 &&
            node->declared.amount[r] > 0)
            return node->declared.amount[r];
    return node->declared.amount[0];
}

/* A job's replicas on one node, next to those of other jobs there. */
typedef struct share {
    const adli_kept_job *job;
    int first, count; /* ranks: placed is by node */
    struct share *next;
} share;

typedef struct shares {
    share *items;
    share **of; /* [node_count] */
} shares;

/* Every job that runs is looked at once, however many nodes there are. */
static adl_status sort_by_node(adli_core *core, shares *out)
{
    size_t count = 0, most = 1;
    const adli_kept_job *job;
    TAILQ_FOREACH(job, &core->placed, placed)
    {
        most += (size_t)job->row.placed_count;
    }
    *out = (shares){.items = adli_calloc(most, sizeof *out->items),
                    .of = adli_calloc((size_t)core->node_count + 1, sizeof *out->of)};
    if (!out->items || !out->of)
        return adli_fail_memory("nodes");
    TAILQ_FOREACH_REVERSE(job, &core->placed, adli_kept_jobs, placed)
    {
        const adli_row *row = &job->row;
        core->looks++;
        for (int i = 0, next; i < row->placed_count; i = next) {
            share *item = &out->items[count++];
            for (next = i + 1; next < row->placed_count && row->placed[next] == row->placed[i];)
                next++;
            *item = (share){job, i, next - i, out->of[row->placed[i]]};
            out->of[row->placed[i]] = item;
        }
    }
    return ADL_OK;
}

static void put_node(const adli_core *core, int number, const share *first, adli_buf *out)
{
    const adli_core_node *node = &core->nodes[number];
    adl_resources free = node->declared;
    for (const share *s = first; s; s = s->next) {
        adl_resources request = adli_core_request(core, s->job);
        for (int r = 0; r < core->resource_count; r++)
            free.amount[r] -= s->count * request.amount[r];
    }
    adli_jw_open(out, NULL, '{');
    adli_jw_text(out, "name", node->name);
    adli_jw_bool(out, "ready", node->ready);
    adli_jw_bool(out, "draining", node->drained || core->draining);
    adli_jw_bool(out, "preemptible", node->preemptible);
    adli_jw_text(out, "deviceType", node->device_type);
    put_resources(core, node, "resources", &node->declared, out);
    put_resources(core, node, "free", &free, out);
    adli_jw_int(out, "slots", slots_of(core, node));
    adli_jw_open(out, "replicas", '[');
    for (const share *s = first; s; s = s->next)
        for (int i = 0; i < s->count; i++) {
            adli_jw_open(out, NULL, '{');
            adli_jw_text(out, "job", s->job->id);
            adli_jw_int(out, "rank", s->first + i);
            adli_jw_int(out, "group", s->job->row.life.group);
            adli_jw_close(out, '}');
        }
    adli_jw_close(out, ']');
    adli_jw_close(out, '}');
}

adl_status adli_nodes_json(adli_core *core, int node, adli_buf *out)
{
    shares by_node;
    adl_status status = sort_by_node(core, &by_node);
    for (int i = node < 0 ? 0 : node; status == ADL_OK && i < core->node_count; i++) {
        if (!core->nodes[i].unused)
            put_node(core, i, by_node.of[i], out);
        if (node >= 0)
            break;
    }
    free(by_node.items);
    free(by_node.of);
    return status;
}

adl_status adli_core_cluster(adli_core *core, adli_buf *out)
{
    double now_s = adli_core_now(core);
    adli_store_stats stats = adli_store_look(core->store);
    int64_t left, size;
    adli_room_state room = adli_core_room(core, &left, &size);
    adli_jw_open(out, NULL, '{');
    adli_jw_text(out, "version", ADLI_VERSION);
    put_text(out, "policy", adl_policy_name(core->policy));
    adli_jw_number(out, "intervalSeconds", core->config.interval_s);
    pthread_mutex_lock(&core->lock);
    adli_jw_number(out, "started", core->opened_s);
    adli_jw_number(out, "now", now_s);
    adli_jw_int(out, "round", stats.last_round);
    put_time(out, "lastRound", core->last_round_s);
    put_time(out, "nextRound", core->next_round_s);
    adli_jw_bool(out, "draining", core->draining);
    adli_jw_open(out, "nodes", '[');
    adl_status status = adli_nodes_json(core, -1, out);
    adli_jw_close(out, ']');
    adli_jw_open(out, "jobs", '{');
    for (int i = 0; i < ADLI_PHASES; i++)
        adli_jw_int(out, adl_phase_name((adl_phase)i), core->phases[i]);
    adli_jw_close(out, '}');
    adli_jw_open(out, "disk", '{');
    adli_jw_text(out, "state", adli_room_name(room));
    adli_jw_int(out, "freeBytes", left);
    adli_jw_int(out, "sizeBytes", size);
    adli_jw_close(out, '}');
    put_text(out, "dashboard", core->dashboard);
    adli_jw_int(out, "lastEvent", stats.last_event);
    adli_jw_close(out, '}');
    pthread_mutex_unlock(&core->lock);
    return status == ADL_OK ? adli_buf_check(out) : status;
}
