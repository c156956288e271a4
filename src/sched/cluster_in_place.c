/* Jobs whose group changes while it runs: what whoever carries out the orders tells about it. The life-cycle stays the
 * same; an allocation that changed is only no reason to stop such a job. */
#include "sched/cluster_impl.h"

#include "base/mem.h"

adl_status adli_cluster_follow(adl_cluster *cluster, int number, const int *nodes, int count,
                               bool settled)
{
    adli_sched_job *j = cluster->jobs[number];
    if (adli_grow(&j->placed, &j->placed_capacity, (size_t)(count ? count : 1),
                  sizeof *j->placed) != 0)
        return adli_fail_memory("allocation");
    adli_cluster_settle(cluster, j, nodes, count);
    j->moved = !settled;
    return ADL_OK;
}

void adli_cluster_in_place(adl_cluster *cluster, int number, bool on, double resize_cost_s)
{
    adli_sched_job *j = cluster->jobs[number];
    j->in_place = on;
    j->resize_cost_s = resize_cost_s;
}

bool adli_cluster_room(const adl_cluster *cluster, int number, int node, int more)
{
    const adl_cluster_options *options = &cluster->options;
    return node < options->node_count &&
           adli_cluster_fit(&options->nodes[node].capacity, &cluster->occupied[node],
                            &cluster->jobs[number]->spec.request, options->resource_count) >= more;
}

/* A group that ran long enough wipes out earlier failures. */
static bool forgiven(const adl_cluster *cluster, const adli_sched_job *j, double now_s)
{
    const adl_rules *rules = adli_cluster_rules(cluster, j);
    return rules->forgive_s > 0 && now_s - j->life.started_s >= rules->forgive_s;
}

void adli_cluster_survived(adl_cluster *cluster, int number, double now_s)
{
    adli_sched_job *j = cluster->jobs[number];
    if (forgiven(cluster, j, now_s))
        j->life.failures = 0;
    j->life.failures++;
}

bool adli_cluster_may_fail(const adl_cluster *cluster, int number, double now_s)
{
    const adli_sched_job *j = cluster->jobs[number];
    return j->life.failures < adli_cluster_rules(cluster, j)->max_retries ||
           forgiven(cluster, j, now_s);
}

int adli_cluster_missed(const adl_cluster *cluster, int number)
{
    return cluster->jobs[number]->trust.missed;
}

int64_t adli_cluster_misses(const adl_cluster *cluster)
{
    return cluster->misses;
}

void adli_cluster_set_missed(adl_cluster *cluster, int number, int missed)
{
    cluster->jobs[number]->trust.missed = missed;
}

void adli_cluster_pin(adl_cluster *cluster, int number, int replicas)
{
    cluster->jobs[number]->pin = replicas;
}
