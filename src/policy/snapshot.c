/* Checks on what comes in, and words for what goes out. */
#include "policy/policy.h"

#include "base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static adl_status check_node(const adl_snapshot *snapshot, const adl_node *node)
{
    if (!node->name)
        return adli_fail(ADL_EINVAL, "a node has no name");
    for (int r = 0; r < snapshot->resource_count; r++)
        if (node->capacity.amount[r] < 0 || node->capacity.amount[r] > ADL_MAX_AMOUNT ||
            node->drained.amount[r] < 0 || node->drained.amount[r] > ADL_MAX_AMOUNT)
            return adli_fail(ADL_EINVAL, "node %s: capacity of %s is negative or above 2^50",
                             node->name, snapshot->resource_names[r]);
    return ADL_OK;
}

static adl_status check_job(const adl_snapshot *snapshot, const adl_job *job)
{
    if (!job->name)
        return adli_fail(ADL_EINVAL, "a job has no name");
    if (job->min_replicas < 0 || job->max_replicas < 1 || job->min_replicas > job->max_replicas)
        return adli_fail(ADL_EINVAL, "job %s: bad bounds: %d to %d replicas", job->name,
                         job->min_replicas, job->max_replicas);
    if (job->replicas < 0 || job->restarts < 0 || job->max_profiled < 0 || job->fixed_replicas < 0)
        return adli_fail(ADL_EINVAL, "job %s: a count is negative", job->name);
    const double numbers[] = {job->submit_s,        job->last_change_s, job->attained_s,
                              job->run_s,           job->mean_active,   job->restart_cost_s,
                              job->progress,        job->total_work,    job->epoch_work,
                              job->remaining_steps, job->resize_cost_s};
    for (size_t i = 0; i < ADLI_COUNT(numbers); i++)
        if (!isfinite(numbers[i]))
            return adli_fail(ADL_EINVAL, "job %s: a time or amount is not finite", job->name);
    int64_t asks = 0;
    for (int r = 0; r < snapshot->resource_count; r++) {
        if (job->request.amount[r] < 0 || job->request.amount[r] > ADL_MAX_AMOUNT)
            return adli_fail(ADL_EINVAL, "job %s: request of %s is negative or above 2^50",
                             job->name, snapshot->resource_names[r]);
        asks |= job->request.amount[r];
    }
    if (asks == 0)
        return adli_fail(ADL_EINVAL, "job %s: requests no resource at all", job->name);
    if (job->replicas > 0 && !job->allocation)
        return adli_fail(ADL_EINVAL, "job %s: %d replicas without an allocation", job->name,
                         job->replicas);
    for (int i = 0; i < job->replicas; i++)
        if (job->allocation[i] < 0 || job->allocation[i] >= snapshot->node_count ||
            (i > 0 && job->allocation[i] < job->allocation[i - 1]))
            return adli_fail(ADL_EINVAL, "job %s: allocation[%d] = %d is no node, or out of order",
                             job->name, i, job->allocation[i]);
    return ADL_OK;
}

static adl_status check_capacity(const adl_snapshot *snapshot)
{
    adl_resources *used = adli_calloc((size_t)snapshot->node_count, sizeof *used);
    adl_status status = used ? ADL_OK : adli_fail_memory("used resources");
    for (int j = 0; status == ADL_OK && j < snapshot->job_count; j++) {
        const adl_job *job = &snapshot->jobs[j];
        for (int i = 0; status == ADL_OK && i < job->replicas; i++)
            for (int r = 0; r < snapshot->resource_count; r++) {
                int n = job->allocation[i];
                used[n].amount[r] += job->request.amount[r];
                if (used[n].amount[r] > snapshot->nodes[n].capacity.amount[r])
                    status = adli_fail(ADL_EINVAL, "node %s: allocations use more %s than it has",
                                       snapshot->nodes[n].name, snapshot->resource_names[r]);
            }
    }
    free(used);
    return status;
}

adl_status adl_snapshot_check(const adl_snapshot *snapshot)
{
    if (snapshot->resource_count < 1 || snapshot->resource_count > ADL_MAX_RESOURCES)
        return adli_fail(ADL_EINVAL, "%d kinds of resources; 1 to %d are possible",
                         snapshot->resource_count, ADL_MAX_RESOURCES);
    if (snapshot->node_count < 0 || snapshot->job_count < 0 || !isfinite(snapshot->now_s))
        return adli_fail(ADL_EINVAL, "snapshot: a count is negative or the time is not finite");
    if (snapshot->type_count < 0 || snapshot->type_count > ADL_MAX_TYPES)
        return adli_fail(ADL_EINVAL, "%d device types; at most %d are possible",
                         snapshot->type_count, ADL_MAX_TYPES);
    for (int t = 0; t < snapshot->type_count; t++)
        if (!snapshot->type_names || !snapshot->type_names[t])
            return adli_fail(ADL_EINVAL, "device type %d has no name", t);
    adl_status status = ADL_OK;
    for (int n = 0; status == ADL_OK && n < snapshot->node_count; n++)
        status = check_node(snapshot, &snapshot->nodes[n]);
    if (status == ADL_OK && snapshot->template_node)
        status = check_node(snapshot, snapshot->template_node);
    for (int j = 0; status == ADL_OK && j < snapshot->job_count; j++)
        status = check_job(snapshot, &snapshot->jobs[j]);
    return status == ADL_OK ? check_capacity(snapshot) : status;
}

const char *adl_suspend_name(int suspend)
{
    static const char *const names[] = {"when-better", "last-resort", "never"};
    return suspend >= 0 && suspend < (int)ADLI_COUNT(names) ? names[suspend] : NULL;
}

/* Adds to the text what fits; returns its length, which may be past the end. */
__attribute__((format(printf, 4, 5))) static size_t add(char *text, size_t size, size_t used,
                                                        const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(used < size ? text + used : NULL, used < size ? size - used : 0, format,
                         arguments);
    va_end(arguments);
    return used + (more > 0 ? (size_t)more : 0);
}

/* Why this device type and not another. */
static size_t add_type(const adl_snapshot *snapshot, const adl_job_decision *now, char *text,
                       size_t size, size_t used)
{
    if (snapshot->type_count < 2 || now->replicas == 0)
        return used;
    used = add(text, size, used, " on %s", snapshot->type_names[now->type]);
    if (now->other_type < 0)
        return used;
    const char *other = snapshot->type_names[now->other_type];
    if (now->other_gain < 1)
        used = add(text, size, used, ", %.2fx as fast as on %s", 1 / now->other_gain, other);
    else
        used = add(text, size, used, ", where %s would be %.2fx as fast", other, now->other_gain);
    if (now->other_price > 0)
        used = add(text, size, used, "%s a device there counts %.2fx",
                   now->other_gain < 1 ? " and" : " but", now->other_price);
    return used;
}

const char *adl_decision_explain(const adl_snapshot *snapshot, const adl_decision *decision,
                                 int index, char *text, size_t size)
{
    static const char *const words[] = {
        [ADL_REASON_KEPT] = "keeps",       [ADL_REASON_STARTED] = "starts on",
        [ADL_REASON_GREW] = "grows to",    [ADL_REASON_SHRANK] = "shrinks to",
        [ADL_REASON_MOVED] = "moves with", [ADL_REASON_PINNED] = "is pinned to"};
    const adl_job *job = &snapshot->jobs[index];
    const adl_job_decision *now = &decision->jobs[index];
    size_t used = 0;
    int more = now->next_replicas - now->replicas;
    more = more > 0 ? more : 0;
    if (now->reason == ADL_REASON_IMPOSSIBLE)
        used = add(text, size, 0, "no node could ever hold one replica");
    else if (now->reason == ADL_REASON_SUSPENDED)
        used = add(text, size, 0, "suspended, had %d", job->replicas);
    else if (now->reason == ADL_REASON_WAITING)
        used = add(text, size, 0, "%s",
                   adli_could_hold(snapshot, job, false)
                       ? "waits"
                       : "waits: the nodes that could hold a replica are drained");
    else if (now->reason == ADL_REASON_KEPT && more)
        used = add(text, size, 0, "has %d of %d wanted (%.2fx)", now->replicas, now->next_replicas,
                   now->speedup);
    else
        used = add(text, size, 0, "%s %d (%.2fx)", words[now->reason], now->replicas, now->speedup);
    used = add_type(snapshot, now, text, size, used);
    if (now->restart_cost > 0)
        used = add(text, size, used, ", restart costs %.0f %%", 100 * now->restart_cost);
    if (more)
        used = add(text, size, used, "%s +%d would give %.2fx",
                   now->reason == ADL_REASON_KEPT ? ":" : ";", more, now->next_gain);
    if (more && now->next_worth > 0)
        used = add(text, size, used, ", worth %.3g (weight %.3g)", now->next_worth, now->weight);
    if (more && now->rival >= 0)
        used = add(text, size, used, "; job %s gets %.2fx from %s", snapshot->jobs[now->rival].name,
                   now->rival_gain, more > 1 ? "them" : "it");
    if (more && now->rival >= 0 && now->rival_worth > 0)
        add(text, size, used, ", worth %.3g (weight %.3g)", now->rival_worth, now->rival_weight);
    return text;
}
