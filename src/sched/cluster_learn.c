/* What the cluster knows of a job's speed: what the job reported, and what others of its kind did. */
#include "sched/cluster_impl.h"

#include "base/mem.h"
#include "base/options.h"
#include "policy/explore.h"

#include <stdlib.h>
#include <string.h>

/* One without is known by name only, and not what it is. */
static bool has_devices(const adl_node *node)
{
    static const adl_resources nothing;
    return memcmp(&node->capacity, &nothing, sizeof nothing) != 0 ||
           memcmp(&node->drained, &nothing, sizeof nothing) != 0;
}

/* The device type of all nodes that have any; NULL: they differ, or there is none. */
static const char *common_type(const adl_node *nodes, int count)
{
    const char *common = NULL;
    for (int n = 0; n < count; n++) {
        const char *type = nodes[n].device_type ? nodes[n].device_type : "";
        if (!has_devices(&nodes[n]))
            continue;
        if (common && strcmp(common, type) != 0)
            return NULL;
        common = type;
    }
    return common;
}

adl_status adli_cluster_find_types(adl_cluster *cluster, const adl_node *nodes, int count)
{
    const char *common = common_type(nodes, count);
    adl_status status = common ? adli_pool_name_type(cluster->pool, common) : ADL_OK;
    for (int n = 0; n < count && status == ADL_OK; n++) {
        int index;
        const char *type = nodes[n].device_type;
        if (!has_devices(&nodes[n]))
            continue;
        status = adli_pool_type_of(cluster->pool, type ? type : "", &index);
    }
    return status;
}

int adl_cluster_type(const adl_cluster *cluster, int node)
{
    const char *type = cluster->options.nodes[node].device_type;
    const char *const *names = adli_pool_type_names(cluster->pool);
    int count = adli_pool_type_count(cluster->pool);
    for (int t = 0; t < count; t++)
        if (strcmp(names[t], type ? type : "") == 0)
            return t;
    return count == ADL_MAX_TYPES ? ADL_MAX_TYPES - 1 : 0; /* as adli_pool_type_of has it */
}

/* Its own measurements of sizes that it has had: a report is a claim. Only where sizes are explored; a policy that does
 * not adapt has the size from the user. */
static adl_status take_points(const adl_cluster *cluster, adli_sched_job *j, adl_job_report *report,
                              adl_profile_point **out)
{
    *out = NULL;
    if (!adl_policy_adapts(cluster->options.policy))
        return ADL_OK;
    int had = j->trust.most_had;
    report->max_profiled = report->max_profiled < had ? report->max_profiled : had;
    if (report->profile_count == 0)
        return ADL_OK;
    *out = adli_memdup(report->profile, report->profile_count, sizeof **out);
    if (!*out)
        return adli_fail_memory("measurements of a job");
    report->profile_count = adli_trust_points(&j->trust, *out, report->profile_count);
    report->profile = *out;
    return ADL_OK;
}

/* A job may explore up to twice what it, or one of its kind, was measured on, at least 1. The first of a kind may begin
 * with 2 where there are several device types and jobs share models: what one replica measures says little of larger
 * sizes, and each size of each type is found for a restart (docs/adr/0352). */
int adli_cluster_cap(const adl_cluster *cluster, const adli_sched_job *j)
{
    int profiled = j->max_profiled, limit = j->batch_cap;
    if (j->pin > 0)
        return j->pin;
    if (adli_pool_shares(cluster->pool)) {
        int shared = adli_pool_max_profiled(cluster->pool, j->known);
        profiled = shared > profiled ? shared : profiled;
        if (profiled == 0 && adli_pool_type_count(cluster->pool) > 1)
            profiled = 1;
    }
    adl_batch_limits limits;
    if (limit == 0 && adli_pool_limits(cluster->pool, j->known, &limits))
        limit = adli_explore_batch_cap(&limits);
    int most = adli_explore_most(profiled, limit, j->spec.min_replicas, j->spec.max_replicas);
    return most < ADLI_POOL_REPLICAS_MAX ? most : ADLI_POOL_REPLICAS_MAX;
}

adl_status adli_cluster_learn(adl_cluster *cluster, adli_sched_job *j)
{
    adli_pool *pool = cluster->pool;
    uint64_t version = adli_pool_version(pool, j->known);
    int cap = adli_cluster_cap(cluster, j), most = cap > j->replicas ? cap : j->replicas;
    if (version == 0 || (version == j->model_version && most == j->model_most))
        return ADL_OK;
    adl_speedup *model;
    int types = adli_pool_type_count(pool) > 1 ? adli_pool_type_count(pool) : 1;
    adl_status status = adli_pool_model(pool, j->known, types, most, &model);
    if (status != ADL_OK)
        return adli_wrap(status, "job %s", j->name);
    adl_speedup_free(j->model);
    j->model = model;
    j->model_version = version;
    j->model_most = most;
    return ADL_OK;
}

static adl_status hear(adl_cluster *cluster, adli_sched_job *j, const adl_job_report *report)
{
    j->max_profiled = report->max_profiled;
    j->batch_cap = adli_explore_batch_cap(&report->limits);
    j->progress = report->progress;
    j->total_work = report->total_work;
    j->epoch_work = report->epoch_work;
    j->restart_cost_s = report->restart_cost_s;
    j->resize_told_s = report->resize_cost_s;
    j->step_time_s = report->step_time_s;
    j->step_context = report->step_context;
    j->remaining_steps = report->remaining_steps;
    if (!report->has_model)
        return ADL_OK;
    adl_status status = adl_goodput_check(&report->model);
    if (status != ADL_OK)
        return adli_wrap(status, "job %s", j->name);
    adli_pool_news news = {.model = report->model,
                           .limits = report->limits,
                           .type = report->type,
                           .profile = report->profile,
                           .profile_count = report->profile_count};
    if (j->spec.type_speeds)
        memcpy(news.speeds, j->spec.type_speeds, sizeof news.speeds);
    status = adli_pool_tell(cluster->pool, j->known, &news);
    return status == ADL_OK ? adli_cluster_learn(cluster, j) : status;
}

adl_status adl_cluster_report(adl_cluster *cluster, int number, const adl_job_report *given)
{
    adl_job_report report = ADL_JOB_REPORT_INIT;
    adl_profile_point *points = NULL;
    adli_sched_job *j = cluster->jobs[number];
    adl_status status = adli_options_take("adl_job_report", &report, sizeof report, given);
    if (status == ADL_OK)
        status = take_points(cluster, j, &report, &points);
    if (status == ADL_OK)
        status = hear(cluster, j, &report);
    free(points);
    return status;
}

bool adl_cluster_prior(const adl_cluster *cluster, int number, int type, adl_goodput *out)
{
    const adli_sched_job *j = cluster->jobs[number];
    return adli_pool_prior(cluster->pool, j->known, type, out);
}

/* What it declared, else what jobs of its kind needed. */
double adli_cluster_total_work(const adl_cluster *cluster, const adli_sched_job *j)
{
    return j->total_work > 0 ? j->total_work : adli_pool_total_work(cluster->pool, j->known);
}
