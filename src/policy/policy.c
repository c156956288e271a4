/* The registry of policies, the checks every snapshot passes, and the one place where a plan becomes
 * a decision: reasons and predicted speedups are derived here, so that all policies explain
 * themselves alike. */
#include "policy/policy.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const adli_policy_class *const classes[] = {
    &adli_policy_rank,     &adli_policy_pollux,  &adli_policy_sia,
    &adli_policy_tiresias, &adli_policy_optimus, &adli_policy_fifo,
};

struct adl_policy {
    const adli_policy_class *class;
    double params[ADLI_POLICY_PARAMS_MAX];
    void *state;
    adli_placement *placed; /* reused from decision to decision */
    size_t placed_capacity;
    int *index; /* scratch of the assembly */
    size_t index_capacity;
};

const char *adl_policy_list(int index, const char **summary)
{
    if (index < 0 || index >= (int)ADLI_COUNT(classes))
        return NULL;
    if (summary)
        *summary = classes[index]->summary;
    return classes[index]->name;
}

static adl_status unknown_policy(const char *name)
{
    char names[256] = "";
    for (size_t i = 0, used = 0; i < ADLI_COUNT(classes); i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                                 classes[i]->name);
    return adli_fail(ADL_EINVAL, "unknown policy \"%s\"; there are: %s", name, names);
}

adl_status adl_policy_new(const char *name, adl_policy **out)
{
    *out = NULL;
    const adli_policy_class *class = NULL;
    for (size_t i = 0; i < ADLI_COUNT(classes); i++)
        if (strcmp(classes[i]->name, name) == 0)
            class = classes[i];
    if (!class)
        return unknown_policy(name);
    adl_policy *policy = adli_calloc(1, sizeof *policy);
    void *state = adli_calloc(1, class->state_size);
    if (!policy || !state) {
        free(policy);
        free(state);
        return adli_fail_memory("policy");
    }
    policy->class = class;
    policy->state = state;
    for (int i = 0; class->params[i].name; i++)
        policy->params[i] = class->params[i].initial;
    *out = policy;
    return ADL_OK;
}

void adl_policy_free(adl_policy *policy)
{
    if (!policy)
        return;
    if (policy->class->fini)
        policy->class->fini(policy->state);
    free(policy->state);
    free(policy->placed);
    free(policy->index);
    free(policy);
}

const char *adl_policy_name(const adl_policy *policy)
{
    return policy->class->name;
}

bool adl_policy_adapts(const adl_policy *policy)
{
    return policy->class->adapts;
}

adl_status adl_policy_set(adl_policy *policy, const char *parameter, double value)
{
    char names[512] = "";
    size_t used = 0;
    for (int i = 0; policy->class->params[i].name; i++) {
        const adli_policy_param *param = &policy->class->params[i];
        used +=
            (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", param->name);
        if (strcmp(param->name, parameter) != 0)
            continue;
        if (!(value >= param->low && value <= param->high))
            return adli_fail(ADL_EINVAL, "%s: %s must be within %g .. %g, not %g",
                             policy->class->name, parameter, param->low, param->high, value);
        policy->params[i] = value;
        return ADL_OK;
    }
    return adli_fail(ADL_EINVAL, "policy %s has no parameter \"%s\"; there are: %s",
                     policy->class->name, parameter, used ? names : "none");
}

bool adl_policy_get(const adl_policy *policy, int index, adl_policy_parameter *out)
{
    const adli_policy_param *params = policy->class->params;
    for (int i = 0; params[i].name; i++)
        if (i == index) {
            *out = (adl_policy_parameter){params[i].name, policy->params[i], params[i].low,
                                          params[i].high, params[i].meaning};
            return true;
        }
    return false;
}

int adli_node_type(const adl_snapshot *snapshot, const adl_node *node)
{
    for (int t = 0; t < snapshot->type_count; t++)
        if (strcmp(snapshot->type_names[t], node->device_type ? node->device_type : "") == 0)
            return t;
    return 0;
}

double adli_job_speedup(const adl_job *job, adl_shape shape)
{
    return job->model ? adl_speedup_get(job->model, shape) : shape.replicas;
}

void adli_plan_place(adli_plan *plan, int job, int node, int count)
{
    if (adli_grow(&plan->placed, &plan->placed_capacity, plan->placed_count + 1,
                  sizeof *plan->placed) != 0) {
        plan->status = adli_fail_memory("placements");
        return;
    }
    plan->placed[plan->placed_count++] = (adli_placement){job, node, count};
}

void adl_decision_fini(adl_decision *decision)
{
    free(decision->jobs);
    free(decision->storage);
    *decision = (adl_decision){0};
}

/* Lays the placements out by job, then node: two passes of a counting sort. */
static adl_status assemble(adl_policy *policy, const adli_plan *plan, adl_decision *decision)
{
    const adl_snapshot *snapshot = plan->snapshot;
    size_t nodes = (size_t)snapshot->node_count, total = 0;
    for (size_t i = 0; i < plan->placed_count; i++)
        total += (size_t)plan->placed[i].count;
    if (adli_grow(&decision->storage, &decision->storage_capacity, total ? total : 1,
                  sizeof *decision->storage) != 0 ||
        adli_grow(&policy->index, &policy->index_capacity, nodes + 1 + plan->placed_count,
                  sizeof *policy->index) != 0)
        return adli_fail_memory("decision");

    int *start = policy->index, *order = policy->index + nodes + 1;
    memset(start, 0, (nodes + 1) * sizeof *start);
    for (size_t i = 0; i < plan->placed_count; i++) {
        start[plan->placed[i].node + 1]++;
        decision->jobs[plan->placed[i].job].replicas += plan->placed[i].count;
    }
    for (size_t node = 0; node < nodes; node++)
        start[node + 1] += start[node];
    for (size_t i = 0; i < plan->placed_count; i++)
        order[start[plan->placed[i].node]++] = (int)i;

    int *next = decision->storage;
    for (int job = 0; job < snapshot->job_count; job++) {
        decision->jobs[job].nodes = next;
        next += decision->jobs[job].replicas;
        decision->jobs[job].replicas = 0; /* filled again below */
    }
    for (size_t i = 0; i < plan->placed_count; i++) {
        const adli_placement *placed = &plan->placed[order[i]];
        adl_job_decision *job = &decision->jobs[placed->job];
        int *to = decision->storage + (job->nodes - decision->storage);
        for (int k = 0; k < placed->count; k++)
            to[job->replicas++] = placed->node;
    }
    return ADL_OK;
}

static bool within(const adl_resources *request, const adl_resources *room, int kinds)
{
    for (int r = 0; r < kinds; r++)
        if (request->amount[r] > room->amount[r])
            return false;
    return true;
}

bool adli_could_hold(const adl_snapshot *snapshot, const adl_job *job, bool drained)
{
    for (int node = -1; node < snapshot->node_count; node++) {
        const adl_node *candidate = node < 0 ? snapshot->template_node : &snapshot->nodes[node];
        if (candidate &&
            (within(&job->request, &candidate->capacity, snapshot->resource_count) ||
             (drained && within(&job->request, &candidate->drained, snapshot->resource_count))))
            return true;
    }
    return false;
}

static adl_reason reason_of(const adl_snapshot *snapshot, const adl_job *job,
                            const adl_job_decision *now)
{
    if (now->replicas == 0 && job->replicas == 0)
        return adli_could_hold(snapshot, job, true) ? ADL_REASON_WAITING : ADL_REASON_IMPOSSIBLE;
    if (now->replicas == 0)
        return ADL_REASON_SUSPENDED;
    if (job->replicas == 0)
        return ADL_REASON_STARTED;
    if (now->replicas > job->replicas)
        return ADL_REASON_GREW;
    if (now->replicas < job->replicas)
        return ADL_REASON_SHRANK;
    if (memcmp(now->nodes, job->allocation, (size_t)now->replicas * sizeof(int)) != 0)
        return ADL_REASON_MOVED;
    return adli_job_pinned(job) ? ADL_REASON_PINNED : ADL_REASON_KEPT;
}

/* The other type on which as many replicas would be fastest. */
static void compare_types(const adli_plan *plan, const adl_job *job, adl_shape shape,
                          adl_job_decision *now)
{
    const adl_snapshot *snapshot = plan->snapshot;
    double best = 0;
    for (int t = 0; t < snapshot->type_count && job->model && now->speedup > 0; t++) {
        double speedup = adli_job_speedup(job, (adl_shape){shape.nodes, shape.replicas, t});
        if (t != shape.type && speedup > best) {
            best = speedup;
            now->other_type = t;
            now->other_gain = speedup / now->speedup;
        }
    }
    if (now->other_gain > 0 && plan->type_price[shape.type] > 0)
        now->other_price = plan->type_price[now->other_type] / plan->type_price[shape.type];
}

static void explain(const adli_plan *plan, adl_decision *decision)
{
    const adl_snapshot *snapshot = plan->snapshot;
    for (int i = 0; i < snapshot->job_count; i++) {
        adl_job_decision *now = &decision->jobs[i];
        int nodes = now->replicas > 0;
        for (int k = 1; k < now->replicas; k++)
            nodes += now->nodes[k] != now->nodes[k - 1];
        adl_shape shape = adl_shape_of(nodes, now->replicas);
        if (now->replicas > 0 && snapshot->type_count > 1)
            shape.type = now->type = adli_node_type(snapshot, &snapshot->nodes[now->nodes[0]]);
        now->speedup = now->replicas ? adli_job_speedup(&snapshot->jobs[i], shape) : 0;
        now->reason = reason_of(snapshot, &snapshot->jobs[i], now);
        if (now->replicas > 0 && snapshot->type_count > 1)
            compare_types(plan, &snapshot->jobs[i], shape, now);
    }
}

adl_status adl_policy_decide(adl_policy *policy, const adl_snapshot *snapshot,
                             adl_decision *decision)
{
    size_t jobs = (size_t)snapshot->job_count;
    adl_status status = ADL_OK;
    decision->job_count = 0;
    if (adli_grow(&decision->jobs, &decision->jobs_capacity, jobs ? jobs : 1,
                  sizeof *decision->jobs) != 0)
        return adli_fail_memory("decision");
    for (size_t job = 0; job < jobs; job++)
        decision->jobs[job] = (adl_job_decision){.rival = -1, .other_type = -1};
    adli_plan plan = {.snapshot = snapshot,
                      .params = policy->params,
                      .state = policy->state,
                      .jobs = decision->jobs,
                      .desired_nodes = snapshot->node_count,
                      .placed = policy->placed,
                      .placed_capacity = policy->placed_capacity};
    status = policy->class->decide(&plan);
    policy->placed = plan.placed;
    policy->placed_capacity = plan.placed_capacity;
    if (status == ADL_OK)
        status = plan.status;
    if (status == ADL_OK)
        status = assemble(policy, &plan, decision);
    if (status != ADL_OK)
        return status;
    explain(&plan, decision);
    decision->job_count = snapshot->job_count;
    decision->desired_nodes = plan.desired_nodes;
    return ADL_OK;
}
