/* Jobs, nodes and the cluster as JSON, in the shapes of docs/api.md. All under lock. */
#include "daemon/core_impl.h"

#include "adli_version.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void put_key(adli_buf *out, const char *key)
{
    adli_buf_printf(out, ",\"%s\":", key);
}

static void put_number(adli_buf *out, const char *key, double value)
{
    put_key(out, key);
    adli_buf_double(out, value);
}

/* A time; 0 is "not yet". */
static void put_time(adli_buf *out, const char *key, double time_s)
{
    put_number(out, key, time_s > 0 ? time_s : NAN);
}

static void put_text(adli_buf *out, const char *key, const char *text)
{
    put_key(out, key);
    if (text && *text)
        adli_buf_json(out, text);
    else
        adli_buf_puts(out, "null");
}

void adli_nodes_list_json(const adli_core *core, const int *nodes, int count, adli_buf *out)
{
    adli_buf_puts(out, "[");
    for (int i = 0; i < count; i++) {
        adli_buf_puts(out, i ? "," : "");
        adli_buf_json(out, core->nodes[nodes[i]].name);
    }
    adli_buf_puts(out, "]");
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
    if (job->row.life.phase == ADLI_SUCCEEDED)
        done = 1;
    double rate = job->train.goodput / hints->init_batch_size;
    if (rate > 0 && isfinite(total) && hints->time_s > 0 && job->row.life.phase == ADLI_RUNNING)
        finish_s = hints->time_s + fmax(total - hints->progress, 0) / rate;
    put_number(out, "progress", hints->progress);
    put_number(out, "totalProgress", total);
    put_number(out, "epoch", hints->epoch >= 0 ? hints->epoch : NAN);
    put_number(out, "targetEpochs", hints->target_epochs > 0 ? hints->target_epochs : NAN);
    put_number(out, "fractionDone", isfinite(done) ? fmin(fmax(done, 0), 1) : NAN);
    put_number(out, "estimatedFinish", finish_s);
}

static void put_train(adli_buf *out, const adli_kept_job *job)
{
    const adli_hints_data *hints = &job->hints;
    put_key(out, "train");
    if (!hints->known) {
        adli_buf_puts(out, "null");
        return;
    }
    const adli_train_info *train = &job->train;
    adli_buf_puts(out, "{\"batchSize\":");
    adli_buf_double(out, hints->batch_size > 0 ? hints->batch_size : NAN);
    put_number(out, "initBatchSize", hints->init_batch_size > 0 ? hints->init_batch_size : NAN);
    put_number(out, "maxBatchSize", hints->max_batch_size > 0 ? hints->max_batch_size : NAN);
    put_number(out, "throughput", train->throughput);
    put_number(out, "efficiency", train->efficiency);
    put_number(out, "goodput", train->goodput);
    put_number(out, "speedup", train->speedup);
    put_progress(out, job);
    adli_buf_printf(out, ",\"maxProfiledReplicas\":%d}", hints->max_profiled);
}

static void put_amounts(adli_buf *out, const adli_amounts *amounts)
{
    adli_buf_puts(out, "{");
    for (int i = 0; i < amounts->count; i++) {
        adli_buf_puts(out, i ? "," : "");
        adli_buf_json(out, amounts->names[i]);
        adli_buf_printf(out, ":%lld", (long long)amounts->amounts[i]);
    }
    adli_buf_puts(out, "}");
}

static void put_what_was_asked(adli_buf *out, const adli_jobspec *spec)
{
    adli_buf_printf(out, ",\"minReplicas\":%d,\"maxReplicas\":", spec->min_replicas);
    if (spec->max_replicas > 0)
        adli_buf_printf(out, "%d", spec->max_replicas);
    else
        adli_buf_puts(out, "null");
    adli_buf_printf(out,
                    ",\"preemptible\":%s,\"resources\":", spec->preemptible ? "true" : "false");
    put_amounts(out, &spec->requests);
    adli_buf_puts(out, ",\"command\":[");
    for (int i = 0; i < spec->argc; i++) {
        adli_buf_puts(out, i ? "," : "");
        adli_buf_json(out, spec->argv[i]);
    }
    adli_buf_puts(out, "]");
}

void adli_job_json(const adli_core *core, const adli_kept_job *job, const char *spec, double now_s,
                   adli_buf *out)
{
    const adli_row *row = &job->row;
    const adli_life *life = &row->life;
    int ready = job->view_group == life->group && row->placed_count > 0 ? job->ready : 0;
    adli_buf_puts(out, "{\"namespace\":");
    adli_buf_json(out, job->ns);
    put_text(out, "name", job->name);
    put_text(out, "uid", job->uid);
    put_text(out, "phase", adli_phase_name(life->phase));
    put_text(out, "reason", row->reason);
    put_text(out, "message", row->message);
    put_number(out, "created", job->created_s);
    put_time(out, "started", row->started_s);
    put_time(out, "completed", row->completed_s);
    adli_buf_printf(out,
                    ",\"replicas\":%d,\"readyReplicas\":%d,\"group\":%d,\"restarts\":%d,"
                    "\"failures\":%d",
                    row->placed_count, ready, life->group, life->group > 0 ? life->group - 1 : 0,
                    life->failures);
    put_key(out, "allocation");
    adli_nodes_list_json(core, row->placed, row->placed_count, out);
    put_what_was_asked(out, &job->spec);
    put_train(out, job);
    double running = now_s - row->accounted_s;
    put_number(out, "deviceSeconds", row->attained_s + (running > 0 ? running * ready : 0));
    adli_buf_printf(out, ",\"deleted\":%s", job->deleted ? "true" : "false");
    if (spec)
        adli_buf_printf(out, ",\"spec\":%s", spec);
    adli_buf_puts(out, "}");
}

static int count_on(const adli_kept_job *job, int node)
{
    int count = 0;
    for (int i = 0; i < job->row.placed_count; i++)
        count += job->row.placed[i] == node;
    return count;
}

static void put_resources(const adli_core *core, const adli_core_node *node,
                          const adl_resources *amounts, adli_buf *out)
{
    bool first = true;
    adli_buf_puts(out, "{");
    for (int r = 0; r < core->resource_count; r++) {
        if (!node->known_resource[r])
            continue;
        adli_buf_puts(out, first ? "" : ",");
        adli_buf_json(out, core->resource_names[r]);
        adli_buf_printf(out, ":%lld", (long long)amounts->amount[r]);
        first = false;
    }
    adli_buf_puts(out, "}");
}

static int64_t slots_of(const adli_core *core, const adli_core_node *node)
{
    for (int r = 0; r < core->resource_count; r++)
        if (node->known_resource[r] && strcmp(core->resource_names[r], "nvidia.com/gpu") == 0 &&
            node->declared.amount[r] > 0)
            return node->declared.amount[r];
    return node->declared.amount[0];
}

void adli_node_json(const adli_core *core, int number, adli_buf *out)
{
    const adli_core_node *node = &core->nodes[number];
    adl_resources free = node->declared;
    for (size_t i = 0; i < core->job_count; i++) {
        int count = count_on(core->jobs[i], number);
        if (count == 0)
            continue;
        adl_resources request = adli_core_request(core, core->jobs[i]);
        for (int r = 0; r < core->resource_count; r++)
            free.amount[r] -= count * request.amount[r];
    }
    adli_buf_puts(out, "{\"name\":");
    adli_buf_json(out, node->name);
    adli_buf_printf(out, ",\"ready\":%s,\"draining\":%s,\"preemptible\":%s,\"deviceType\":",
                    node->ready ? "true" : "false",
                    node->drained || core->draining ? "true" : "false",
                    node->preemptible ? "true" : "false");
    adli_buf_json(out, node->device_type);
    put_key(out, "resources");
    put_resources(core, node, &node->declared, out);
    put_key(out, "free");
    put_resources(core, node, &free, out);
    adli_buf_printf(out, ",\"slots\":%lld,\"replicas\":[", (long long)slots_of(core, node));
    bool first = true;
    for (size_t i = 0; i < core->job_count; i++) {
        const adli_kept_job *job = core->jobs[i];
        for (int rank = 0; rank < job->row.placed_count; rank++) {
            if (job->row.placed[rank] != number)
                continue;
            adli_buf_puts(out, first ? "{\"job\":" : ",{\"job\":");
            adli_buf_json(out, job->id);
            adli_buf_printf(out, ",\"rank\":%d,\"group\":%d}", rank, job->row.life.group);
            first = false;
        }
    }
    adli_buf_puts(out, "]}");
}

adl_status adli_core_cluster(adli_core *core, adli_buf *out)
{
    double now_s = adli_core_now(core);
    adli_store_stats stats = adli_store_look(core->store);
    adli_buf_puts(out, "{\"version\":\"" ADLI_VERSION "\"");
    put_text(out, "policy", adl_policy_name(core->policy));
    put_number(out, "intervalSeconds", core->config.interval_s);
    pthread_mutex_lock(&core->lock);
    put_number(out, "started", core->opened_s);
    put_number(out, "now", now_s);
    adli_buf_printf(out, ",\"round\":%lld", (long long)stats.last_round);
    put_time(out, "lastRound", core->last_round_s);
    put_time(out, "nextRound", core->next_round_s);
    adli_buf_printf(out, ",\"draining\":%s,\"nodes\":[", core->draining ? "true" : "false");
    for (int i = 0; i < core->node_count; i++) {
        adli_buf_puts(out, i ? "," : "");
        adli_node_json(core, i, out);
    }
    int phases[ADLI_PHASES] = {0};
    for (size_t i = 0; i < core->job_count; i++)
        phases[core->jobs[i]->row.life.phase]++;
    adli_buf_puts(out, "],\"jobs\":{");
    for (int i = 0; i < ADLI_PHASES; i++)
        adli_buf_printf(out, "%s\"%s\":%d", i ? "," : "", adli_phase_name((adli_phase)i),
                        phases[i]);
    adli_buf_puts(out, "}");
    put_text(out, "dashboard", core->dashboard);
    adli_buf_printf(out, ",\"lastEvent\":%lld}", (long long)stats.last_event);
    pthread_mutex_unlock(&core->lock);
    return adli_buf_check(out);
}
