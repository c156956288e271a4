/* Room on the nodes outside of rounds: what a new job can have at once, what a group must wait for, and
 * what is taken away when nodes go. */
#include "sched/cluster_impl.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* How many replicas fit in what is left of a node. */
static int64_t fit(const adl_resources *capacity, const adl_resources *used,
                   const adl_resources *request, int kinds)
{
    int64_t most = INT32_MAX;
    for (int r = 0; r < kinds; r++) {
        int64_t want = request->amount[r], left = capacity->amount[r] - used->amount[r];
        if (want > 0 && left / want < most)
            most = left > 0 ? left / want : 0;
    }
    return most;
}

static void take(adl_resources *used, const adl_resources *request, int kinds, int sign)
{
    for (int r = 0; r < kinds; r++)
        used->amount[r] += sign * request->amount[r];
}

static adl_status clear_used(adli_cluster *cluster, int node_count)
{
    size_t count = node_count > 0 ? (size_t)node_count : 1;
    if (adli_grow(&cluster->used, &cluster->used_capacity, count, sizeof *cluster->used) != 0)
        return adli_fail_memory("used resources");
    memset(cluster->used, 0, count * sizeof *cluster->used);
    return ADL_OK;
}

bool adli_cluster_has_room(adli_cluster *cluster, const adli_sched_job *wants)
{
    const adli_cluster_options *options = &cluster->options;
    if (clear_used(cluster, options->node_count) != ADL_OK)
        return false;
    for (size_t i = (size_t)cluster->first_unfinished; i < cluster->job_count; i++) {
        const adli_sched_job *j = &cluster->jobs[i];
        for (int k = 0; j != wants && adli_cluster_occupies(j) && k < j->placed_count; k++)
            take(&cluster->used[j->placed[k]], &j->spec.request, options->resource_count, 1);
    }
    for (int k = 0; k < wants->replicas; k++) {
        int n = wants->nodes[k];
        if (fit(&options->nodes[n].capacity, &cluster->used[n], &wants->spec.request,
                options->resource_count) < 1)
            return false;
        take(&cluster->used[n], &wants->spec.request, options->resource_count, 1);
    }
    return true;
}

static void use_wanted(adli_cluster *cluster)
{
    for (size_t i = (size_t)cluster->first_unfinished; i < cluster->job_count; i++) {
        const adli_sched_job *j = &cluster->jobs[i];
        for (int k = 0; !adli_life_over(&j->life) && k < j->replicas; k++)
            take(&cluster->used[j->nodes[k]], &j->spec.request, cluster->options.resource_count, 1);
    }
}

static void withdraw(adli_cluster *cluster, adli_sched_job *j, double now_s)
{
    for (int k = 0; k < j->replicas; k++)
        take(&cluster->used[j->nodes[k]], &j->spec.request, cluster->options.resource_count, -1);
    j->replicas = 0;
    j->moved = true;
    j->last_change_s = now_s;
}

static bool within(const adl_resources *capacity, const adl_resources *used, int kinds)
{
    for (int r = 0; r < kinds; r++)
        if (used->amount[r] > capacity->amount[r])
            return false;
    return true;
}

/* Does the job have replicas on a node that holds more than it has? */
static bool on_full_node(const adli_cluster *cluster, const adli_sched_job *j)
{
    const adli_cluster_options *options = &cluster->options;
    for (int k = 0; k < j->replicas; k++) {
        int n = j->nodes[k];
        if (!within(&options->nodes[n].capacity, &cluster->used[n], options->resource_count))
            return true;
    }
    return false;
}

adl_status adli_cluster_set_nodes(adli_cluster *cluster, const char *const *resource_names,
                                  int resource_count, const adl_node *nodes, int node_count,
                                  double now_s, int *withdrawn)
{
    *withdrawn = 0;
    adl_status status = clear_used(cluster, node_count);
    if (status != ADL_OK)
        return status;
    adli_cluster_options *options = &cluster->options;
    options->resource_names = resource_names;
    options->resource_count = resource_count;
    options->nodes = nodes;
    options->node_count = node_count;
    adli_cluster_find_types(cluster);
    use_wanted(cluster);
    for (size_t i = cluster->job_count; i-- > (size_t)cluster->first_unfinished;) {
        adli_sched_job *j = &cluster->jobs[i];
        if (adli_life_over(&j->life) || !on_full_node(cluster, j))
            continue;
        withdraw(cluster, j, now_s);
        ++*withdrawn;
    }
    return ADL_OK;
}

adl_status adli_cluster_place(adli_cluster *cluster, int number, double now_s, bool *placed)
{
    adli_sched_job *j = &cluster->jobs[number - cluster->base];
    const adli_cluster_options *options = &cluster->options;
    int need = j->spec.min_replicas > 1 ? j->spec.min_replicas : 1;
    *placed = false;
    if (!j->spec.preemptible || j->replicas > 0 || j->life.phase != ADLI_PENDING || j->deleted)
        return ADL_OK;
    adl_status status = clear_used(cluster, options->node_count);
    if (status != ADL_OK)
        return status;
    if (adli_grow(&j->nodes, &j->nodes_capacity, (size_t)need, sizeof *j->nodes) != 0 ||
        adli_grow(&j->placed, &j->placed_capacity, (size_t)need, sizeof *j->placed) != 0)
        return adli_fail_memory("allocation");
    use_wanted(cluster);
    for (int n = 0; n < options->node_count && !*placed; n++) {
        if (fit(&options->nodes[n].capacity, &cluster->used[n], &j->spec.request,
                options->resource_count) < need)
            continue;
        for (int k = 0; k < need; k++)
            j->nodes[k] = n;
        j->replicas = need;
        j->moved = true;
        j->last_change_s = now_s;
        *placed = true;
    }
    return ADL_OK;
}

bool adli_fits_ever(const char *const *resource_names, int resource_count, const adl_node *nodes,
                    int node_count, const adl_resources *request, int min_replicas, char *why,
                    size_t size)
{
    static const adl_resources nothing;
    int64_t need = min_replicas > 1 ? min_replicas : 1, total = 0;
    for (int n = 0; n < node_count; n++)
        total += fit(&nodes[n].capacity, &nothing, request, resource_count);
    if (total >= need)
        return true;
    if (node_count == 0) {
        snprintf(why, size, "there is no node");
        return false;
    }
    for (int r = 0; r < resource_count; r++) {
        int largest = 0;
        for (int n = 1; n < node_count; n++)
            if (nodes[n].capacity.amount[r] > nodes[largest].capacity.amount[r])
                largest = n;
        if (request->amount[r] <= nodes[largest].capacity.amount[r])
            continue;
        snprintf(why, size, "a replica asks for %s %" PRId64 "; the largest node, %s, has %" PRId64,
                 resource_names[r], request->amount[r], nodes[largest].name,
                 nodes[largest].capacity.amount[r]);
        return false;
    }
    if (total == 0)
        snprintf(why, size, "no single node has all that a replica asks for");
    else
        snprintf(why, size, "needs %" PRId64 " replicas at once; the whole cluster holds %" PRId64,
                 need, total);
    return false;
}
