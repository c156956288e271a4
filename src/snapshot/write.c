/* Snapshots and decisions to JSON. Fields that have their usual value are left out. */
#include "adaptdl/snapshot.h"

#include "base/json_write.h"
#include "base/mem.h"
#include "model/perf.h"
#include "model/speedup.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Past this a snapshot is a mistake. */
enum { TEXT_MAX = 1 << 30, TABLE_MAX = 1 << 16 };

const char *adl_reason_name(adl_reason reason)
{
    static const char *const names[] = {[ADL_REASON_KEPT] = "kept",
                                        [ADL_REASON_STARTED] = "started",
                                        [ADL_REASON_GREW] = "grew",
                                        [ADL_REASON_SHRANK] = "shrank",
                                        [ADL_REASON_MOVED] = "moved",
                                        [ADL_REASON_SUSPENDED] = "suspended",
                                        [ADL_REASON_WAITING] = "waiting",
                                        [ADL_REASON_PINNED] = "pinned",
                                        [ADL_REASON_IMPOSSIBLE] = "impossible"};
    return names[reason];
}

/* Amounts by name. Names may repeat (unused kinds): those count once, with the first amount. */
static void put_amounts(const adl_snapshot *s, const char *key, const adl_resources *amounts,
                        adli_buf *out)
{
    bool any = false;
    for (int r = 0; r < s->resource_count; r++)
        any |= amounts->amount[r] != 0;
    if (!any)
        return;
    adli_jw_open(out, key, '[');
    for (int r = 0; r < s->resource_count; r++)
        adli_jw_int(out, NULL, amounts->amount[r]);
    adli_jw_close(out, ']');
}

static void put_node(const adl_snapshot *s, const char *key, const adl_node *node, adli_buf *out)
{
    adli_jw_open(out, key, '{');
    adli_jw_text(out, "name", node->name);
    if (node->device_type && *node->device_type)
        adli_jw_text(out, "deviceType", node->device_type);
    put_amounts(s, "capacity", &node->capacity, out);
    put_amounts(s, "drained", &node->drained, out);
    if (node->preemptible)
        adli_jw_bool(out, "preemptible", true);
    adli_jw_close(out, '}');
}

static void put_unless(adli_buf *out, const char *key, double value, double usual)
{
    if (value != usual)
        adli_jw_number(out, key, value);
}

static void put_point(const adl_profile_point *point, adli_buf *out)
{
    adli_jw_open(out, NULL, '{');
    adli_jw_int(out, "nodes", point->nodes);
    adli_jw_int(out, "replicas", point->replicas);
    adli_jw_number(out, "localBsz", point->local_bsz);
    adli_jw_number(out, "accumTime", point->accum_time_s);
    adli_jw_number(out, "optimTime", point->optim_time_s);
    if (point->type)
        adli_jw_int(out, "type", point->type);
    adli_jw_close(out, '}');
}

static void put_type(const adl_type_model *on, adli_buf *out)
{
    adli_jw_open(out, NULL, '{');
    put_unless(out, "speed", on->speed, 0);
    if (on->model) {
        const adl_goodput *model = on->model;
        adli_jw_open(out, "perfParams", '{');
        for (int i = 0; i < ADLI_PERF_COUNT; i++)
            adli_jw_number(out, adli_perf_names[i], adli_perf_get(&model->perf, i));
        adli_jw_close(out, '}');
        adli_jw_open(out, "gradParams", '{');
        adli_jw_number(out, "norm", model->grad.sqr);
        adli_jw_number(out, "var", model->grad.var);
        adli_jw_close(out, '}');
        adli_jw_number(out, "initBatchSize", model->init_batch_size);
        put_unless(out, "maxBatchSize", on->limits->max_batch_size, 0);
        put_unless(out, "minLocalBsz", on->limits->min_local_bsz, 0);
        put_unless(out, "maxLocalBsz", on->limits->max_local_bsz, 0);
        if (on->limits->accumulation)
            adli_jw_bool(out, "gradientAccumulation", true);
        if (on->limits->lone_grows)
            adli_jw_bool(out, "loneReplicaGrows", true);
    }
    if (on->profile_count > 0) {
        adli_jw_open(out, "profile", '[');
        for (size_t i = 0; i < on->profile_count; i++)
            put_point(&on->profile[i], out);
        adli_jw_close(out, ']');
    }
    adli_jw_close(out, '}');
}

static void put_model(const adl_speedup *model, adli_buf *out)
{
    adl_type_model on;
    adli_jw_open(out, "model", '{');
    adli_jw_int(out, "maxReplicas", adl_speedup_max_replicas(model));
    if (adli_speedup_bounded(model))
        adli_jw_bool(out, "bounded", true);
    adli_jw_open(out, "types", '[');
    for (size_t t = 0; adl_speedup_type(model, t, &on); t++)
        put_type(&on, out);
    adli_jw_close(out, ']');
    adli_jw_close(out, '}');
}

static void put_step_times(const adl_job *job, adli_buf *out)
{
    int count = job->max_replicas > job->replicas ? job->max_replicas : job->replicas;
    adli_jw_open(out, "stepTimes", '[');
    for (int r = 1; r <= count && r <= TABLE_MAX; r++)
        adli_jw_number(out, NULL, job->step_time_s(job->step_context, r));
    adli_jw_close(out, ']');
}

static void put_nodes(const char *key, const int *nodes, int count, adli_buf *out)
{
    adli_jw_open(out, key, '[');
    for (int i = 0; i < count; i++)
        adli_jw_int(out, NULL, nodes[i]);
    adli_jw_close(out, ']');
}

static void put_job(const adl_snapshot *s, const adl_job *job, adli_buf *out)
{
    adli_jw_open(out, NULL, '{');
    adli_jw_text(out, "name", job->name);
    put_amounts(s, "request", &job->request, out);
    put_unless(out, "minReplicas", job->min_replicas, 0);
    adli_jw_int(out, "maxReplicas", job->max_replicas);
    if (!job->preemptible)
        adli_jw_bool(out, "preemptible", false);
    if (job->priority > 0)
        put_unless(out, "priority", job->priority, 1);
    if (job->suspend != ADL_SUSPEND_WHEN_BETTER)
        adli_jw_text(out, "suspend", adl_suspend_name((int)job->suspend));
    if (job->replicas > 0)
        put_nodes("allocation", job->allocation, job->replicas, out);
    put_unless(out, "submitted", job->submit_s, 0);
    put_unless(out, "lastChange", job->last_change_s, 0);
    put_unless(out, "deviceSeconds", job->attained_s, 0);
    put_unless(out, "runSeconds", job->run_s, 0);
    put_unless(out, "meanActive", job->mean_active, 0);
    put_unless(out, "restartCost", job->restart_cost_s, 0);
    put_unless(out, "resizeCost", job->resize_cost_s, 0);
    put_unless(out, "restarts", job->restarts, 0);
    put_unless(out, "maxProfiledReplicas", job->max_profiled, 0);
    put_unless(out, "progress", job->progress, 0);
    put_unless(out, "totalWork", job->total_work, 0);
    put_unless(out, "epochWork", job->epoch_work, 0);
    put_unless(out, "fixedReplicas", job->fixed_replicas, 0);
    put_unless(out, "remainingSteps", job->remaining_steps, 0);
    if (job->step_time_s)
        put_step_times(job, out);
    if (job->model)
        put_model(job->model, out);
    adli_jw_close(out, '}');
}

static void put_policy(const adl_policy *policy, adli_buf *out)
{
    adl_policy_parameter parameter;
    adli_jw_text(out, "policy", adl_policy_name(policy));
    adli_jw_open(out, "parameters", '{');
    for (int i = 0; adl_policy_get(policy, i, &parameter); i++)
        adli_jw_number(out, parameter.name, parameter.value);
    adli_jw_close(out, '}');
}

static void put_decided(const adl_snapshot *s, const adl_decision *decision, int index,
                        adli_buf *out)
{
    const adl_job_decision *now = &decision->jobs[index];
    bool more = now->next_replicas > now->replicas;
    char text[512];
    adli_jw_open(out, NULL, '{');
    adli_jw_text(out, "name", s->jobs[index].name);
    put_nodes("nodes", now->nodes, now->replicas, out);
    adli_jw_text(out, "reason", adl_reason_name(now->reason));
    adli_jw_number(out, "speedup", now->speedup);
    adli_jw_number(out, "restartCost", now->restart_cost);
    if (s->type_count > 1 && now->replicas > 0) {
        adli_jw_text(out, "deviceType", s->type_names[now->type]);
        if (now->other_type >= 0) {
            adli_jw_text(out, "otherType", s->type_names[now->other_type]);
            adli_jw_number(out, "otherGain", now->other_gain);
            adli_jw_number(out, "otherPrice", now->other_price);
        }
    }
    if (more) {
        adli_jw_int(out, "nextReplicas", now->next_replicas);
        adli_jw_number(out, "nextGain", now->next_gain);
        put_unless(out, "weight", now->weight, 0);
        put_unless(out, "nextWorth", now->next_worth, 0);
    }
    if (more && now->rival >= 0) {
        adli_jw_text(out, "rival", s->jobs[now->rival].name);
        adli_jw_number(out, "rivalGain", now->rival_gain);
        put_unless(out, "rivalWeight", now->rival_weight, 0);
        put_unless(out, "rivalWorth", now->rival_worth, 0);
    }
    adli_jw_text(out, "text", adl_decision_explain(s, decision, index, text, sizeof text));
    adli_jw_close(out, '}');
}

static void put_decision(const adl_snapshot *s, const char *key, const adl_decision *decision,
                         adli_buf *out)
{
    adli_jw_open(out, key, '{');
    adli_jw_int(out, "desiredNodes", decision->desired_nodes);
    adli_jw_open(out, "jobs", '[');
    for (int i = 0; i < decision->job_count; i++)
        put_decided(s, decision, i, out);
    adli_jw_close(out, ']');
    adli_jw_close(out, '}');
}

static bool any_grows(const adl_snapshot *s)
{
    adl_type_model on;
    for (int j = 0; j < s->job_count; j++)
        for (size_t t = 0; s->jobs[j].model && adl_speedup_type(s->jobs[j].model, t, &on); t++)
            if (on.model && on.limits->lone_grows)
                return true;
    return false;
}

/* The first that has all of it, so that older programs can read what they understand. */
static int version_of(const adl_snapshot *s)
{
    return any_grows(s) ? 3 : s->type_count > 1 ? 2 : 1;
}

static adl_status finish(adli_buf *out, char **text)
{
    adl_status status = adli_buf_check(out);
    *text = status == ADL_OK ? out->data : NULL;
    if (status != ADL_OK)
        adli_buf_fini(out);
    return status;
}

adl_status adl_snapshot_write(const adl_snapshot *s, const adl_policy *policy,
                              const adl_decision *decision, char **text)
{
    adli_buf out;
    char seed[32];
    adli_buf_init(&out, TEXT_MAX);
    adli_jw_open(&out, NULL, '{');
    adli_jw_int(&out, "version", version_of(s));
    if (policy)
        put_policy(policy, &out);
    adli_jw_number(&out, "now", s->now_s);
    snprintf(seed, sizeof seed, "%" PRIu64, s->seed); /* too large for some readers' numbers */
    adli_jw_text(&out, "seed", seed);
    if (s->shared_models)
        adli_jw_bool(&out, "sharedModels", true);
    adli_jw_open(&out, "resources", '[');
    for (int r = 0; r < s->resource_count; r++)
        adli_jw_text(&out, NULL, s->resource_names[r]);
    adli_jw_close(&out, ']');
    if (s->type_count > 1) {
        adli_jw_open(&out, "deviceTypes", '[');
        for (int t = 0; t < s->type_count; t++)
            adli_jw_text(&out, NULL, s->type_names[t]);
        adli_jw_close(&out, ']');
    }
    adli_jw_open(&out, "nodes", '[');
    for (int n = 0; n < s->node_count; n++)
        put_node(s, NULL, &s->nodes[n], &out);
    adli_jw_close(&out, ']');
    if (s->template_node)
        put_node(s, "templateNode", s->template_node, &out);
    adli_jw_open(&out, "jobs", '[');
    for (int j = 0; j < s->job_count; j++)
        put_job(s, &s->jobs[j], &out);
    adli_jw_close(&out, ']');
    if (decision)
        put_decision(s, "decision", decision, &out);
    adli_jw_close(&out, '}');
    return finish(&out, text);
}

adl_status adl_decision_write(const adl_snapshot *snapshot, const adl_decision *decision,
                              char **text)
{
    adli_buf out;
    adli_buf_init(&out, TEXT_MAX);
    put_decision(snapshot, NULL, decision, &out);
    return finish(&out, text);
}
