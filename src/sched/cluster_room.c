/* Room on the nodes outside of rounds: what a new job can have at once, what a group must wait for, and
 * what is taken away when nodes go. */
#include "sched/cluster_impl.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t adli_cluster_fit(const adl_resources *capacity, const adl_resources *used,
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

/* All kinds, those past resource_count too: they may be named later. */
static void add(adl_resources *table, const int *nodes, int count, const adl_resources *request,
                int sign)
{
    for (int i = 0; i < count; i++)
        for (int r = 0; r < ADL_MAX_RESOURCES; r++)
            table[nodes[i]].amount[r] += sign * request->amount[r];
}

adl_status adli_cluster_size_tables(adl_cluster *cluster, int node_count)
{
    size_t count = node_count > 0 ? (size_t)node_count : 1;
    if (adli_grow(&cluster->claimed, &cluster->claimed_capacity, count, sizeof(adl_resources)) !=
            0 ||
        adli_grow(&cluster->occupied, &cluster->occupied_capacity, count, sizeof(adl_resources)) !=
            0)
        return adli_fail_memory("resources in use");
    for (int n = cluster->table_count; n < node_count; n++)
        cluster->claimed[n] = cluster->occupied[n] = (adl_resources){{0}};
    if (node_count > cluster->table_count)
        cluster->table_count = node_count;
    return ADL_OK;
}

adl_status adli_cluster_want(adl_cluster *cluster, adli_sched_job *j, const int *nodes, int count)
{
    if (adli_grow(&j->nodes, &j->nodes_capacity, (size_t)count, sizeof *j->nodes) != 0 ||
        adli_grow(&j->placed, &j->placed_capacity, (size_t)count, sizeof *j->placed) != 0)
        return adli_fail_memory("allocation");
    add(cluster->claimed, j->nodes, j->replicas, &j->spec.request, -1);
    if (count > 0 && nodes != j->nodes)
        memcpy(j->nodes, nodes, (size_t)count * sizeof *nodes);
    j->replicas = count;
    add(cluster->claimed, j->nodes, j->replicas, &j->spec.request, 1);
    return ADL_OK;
}

void adli_cluster_settle(adl_cluster *cluster, adli_sched_job *j, const int *nodes, int count)
{
    add(cluster->occupied, j->placed, j->placed_count, &j->spec.request, -1);
    if (count > 0)
        memcpy(j->placed, nodes, (size_t)count * sizeof *nodes);
    j->placed_count = count;
    j->trust.most_had = count > j->trust.most_had ? count : j->trust.most_had;
    add(cluster->occupied, j->placed, j->placed_count, &j->spec.request, 1);
}

void adl_cluster_set_request(adl_cluster *cluster, int number, adl_resources request)
{
    adli_sched_job *j = cluster->jobs[number];
    add(cluster->claimed, j->nodes, j->replicas, &j->spec.request, -1);
    add(cluster->occupied, j->placed, j->placed_count, &j->spec.request, -1);
    j->spec.request = request;
    add(cluster->claimed, j->nodes, j->replicas, &j->spec.request, 1);
    add(cluster->occupied, j->placed, j->placed_count, &j->spec.request, 1);
}

bool adli_cluster_has_room(adl_cluster *cluster, const adli_sched_job *wants)
{
    const adl_cluster_options *options = &cluster->options;
    for (int k = 0, next; k < wants->replicas; k = next) {
        int n = wants->nodes[k];
        for (next = k + 1; next < wants->replicas && wants->nodes[next] == n;)
            next++;
        if (adli_cluster_fit(&options->nodes[n].capacity, &cluster->occupied[n],
                             &wants->spec.request, options->resource_count) < next - k)
            return false;
    }
    return true;
}

static bool within(const adl_resources *capacity, const adl_resources *used, int kinds)
{
    for (int r = 0; r < kinds; r++)
        if (used->amount[r] > capacity->amount[r])
            return false;
    return true;
}

/* Does the job have replicas on a node that holds more than it has? */
static bool on_full_node(const adl_cluster *cluster, const adli_sched_job *j)
{
    const adl_cluster_options *options = &cluster->options;
    for (int k = 0; k < j->replicas; k++) {
        int n = j->nodes[k];
        if (!within(&options->nodes[n].capacity, &cluster->claimed[n], options->resource_count))
            return true;
    }
    return false;
}

/* A job that can lose some replicas and go on keeps those on other nodes, if they are enough; the number. */
static int keep_fitting(adl_cluster *cluster, adli_sched_job *j)
{
    const adl_cluster_options *options = &cluster->options;
    int least = j->spec.min_replicas > 1 ? j->spec.min_replicas : 1, left = 0;
    int *kept = adli_calloc((size_t)j->replicas, sizeof *kept);
    for (int k = 0; kept && k < j->replicas; k++) {
        int n = j->nodes[k];
        if (within(&options->nodes[n].capacity, &cluster->claimed[n], options->resource_count))
            kept[left++] = n;
    }
    if (left < least || adli_cluster_want(cluster, j, kept, left) != ADL_OK)
        left = 0;
    free(kept);
    return left;
}

/* None of its nodes holds it any more, but it can be led to others while it runs: as many as fit there, at most as it
 * has, if they are enough; the number. */
static int lead_elsewhere(adl_cluster *cluster, adli_sched_job *j)
{
    const adl_cluster_options *options = &cluster->options;
    int least = j->spec.min_replicas > 1 ? j->spec.min_replicas : 1, found = 0;
    int *nodes = adli_calloc((size_t)j->replicas, sizeof *nodes);
    for (int n = 0; nodes && n < options->node_count; n++) {
        int fit = adli_cluster_fit(&options->nodes[n].capacity, &cluster->claimed[n],
                                   &j->spec.request, options->resource_count);
        for (; fit > 0 && found < j->replicas; fit--)
            nodes[found++] = n;
    }
    if (found < least || adli_cluster_want(cluster, j, nodes, found) != ADL_OK)
        found = 0;
    free(nodes);
    return found;
}

adl_status adl_cluster_set_nodes(adl_cluster *cluster, const char *const *resource_names,
                                 int resource_count, const adl_node *nodes, int node_count,
                                 double now_s, int *withdrawn)
{
    *withdrawn = 0;
    adl_status status = adli_cluster_size_tables(cluster, node_count);
    if (status == ADL_OK)
        status = adli_cluster_find_types(cluster, nodes, node_count);
    if (status != ADL_OK)
        return status;
    adl_cluster_options *options = &cluster->options;
    options->resource_names = resource_names;
    options->resource_count = resource_count;
    options->nodes = nodes;
    options->node_count = node_count;
    adli_sched_job *j;
    TAILQ_FOREACH_REVERSE(j, &cluster->busy, adli_sched_jobs, busy)
    {
        cluster->visits++;
        if (!on_full_node(cluster, j))
            continue;
        int left = j->in_place ? keep_fitting(cluster, j) : 0;
        if (j->in_place && left == 0)
            left = lead_elsewhere(cluster, j);
        (void)!adli_cluster_want(cluster, j, j->nodes, left); /* fewer: cannot fail */
        j->moved = true;
        j->account.last_change_s = now_s;
        ++*withdrawn;
    }
    return ADL_OK;
}

adl_status adl_cluster_place(adl_cluster *cluster, int number, double now_s, bool *placed)
{
    adli_sched_job *j = cluster->jobs[number];
    const adl_cluster_options *options = &cluster->options;
    int need = j->spec.min_replicas > 1 ? j->spec.min_replicas : 1;
    *placed = false;
    if (!j->spec.preemptible || j->replicas > 0 || j->life.phase != ADL_PENDING || j->deleted ||
        j->held)
        return ADL_OK;
    int *nodes = adli_calloc((size_t)need, sizeof *nodes);
    adl_status status = nodes ? ADL_OK : adli_fail_memory("allocation");
    for (int n = 0; status == ADL_OK && n < options->node_count && !*placed; n++) {
        if (adli_cluster_fit(&options->nodes[n].capacity, &cluster->claimed[n], &j->spec.request,
                             options->resource_count) < need)
            continue;
        for (int k = 0; k < need; k++)
            nodes[k] = n;
        status = adli_cluster_want(cluster, j, nodes, need);
        *placed = status == ADL_OK;
    }
    free(nodes);
    if (*placed) {
        j->moved = true;
        j->account.last_change_s = now_s;
        adli_cluster_stir(cluster, j);
    }
    return status;
}

bool adl_fits_ever(const char *const *resource_names, int resource_count, const adl_node *nodes,
                   int node_count, const adl_resources *request, int min_replicas, char *why,
                   size_t size)
{
    static const adl_resources nothing;
    int64_t need = min_replicas > 1 ? min_replicas : 1, total = 0;
    for (int n = 0; n < node_count; n++)
        total += adli_cluster_fit(&nodes[n].capacity, &nothing, request, resource_count);
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
