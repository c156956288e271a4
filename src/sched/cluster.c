#include "sched/cluster_impl.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef adli_sched_job job;

adl_status adli_cluster_new(const adli_cluster_options *options, adli_cluster **out)
{
    adli_cluster *cluster = adli_calloc(1, sizeof *cluster);
    *out = cluster;
    if (!cluster)
        return adli_fail_memory("cluster");
    cluster->options = *options;
    adli_cluster_find_types(cluster);
    if (!options->pool) {
        adl_status status = adli_pool_new(false, &cluster->own_pool);
        if (status != ADL_OK) {
            adli_cluster_free(cluster);
            *out = NULL;
            return status;
        }
        cluster->options.pool = cluster->own_pool;
    }
    cluster->last_round_s = cluster->last_submit_s = -HUGE_VAL;
    return ADL_OK;
}

static void release(adli_cluster *cluster, job *j)
{
    adl_speedup_free(j->model);
    adli_pool_leave(cluster->options.pool, j->known);
    free(j->placed);
    free(j->nodes);
    free(j->name);
    *j = (job){.life = {.phase = ADLI_FAILED}};
}

void adli_cluster_free(adli_cluster *cluster)
{
    if (!cluster)
        return;
    for (size_t i = 0; i < cluster->job_count; i++)
        release(cluster, &cluster->jobs[i]);
    adli_pool_free(cluster->own_pool);
    adl_decision_fini(&cluster->decision);
    free(cluster->used);
    free(cluster->view_job);
    free(cluster->views);
    free(cluster->jobs);
    free(cluster);
}

adl_status adli_cluster_submit(adli_cluster *cluster, const adli_job_spec *spec, int *number)
{
    if (spec->submit_s < cluster->last_submit_s)
        return adli_fail(ADL_EINVAL, "job %s: submitted before the job before it", spec->name);
    if (adli_grow(&cluster->jobs, &cluster->job_capacity, cluster->job_count + 1,
                  sizeof *cluster->jobs) != 0)
        return adli_fail_memory("jobs");
    adli_pool_member *known;
    adl_status status = adli_pool_join(cluster->options.pool, spec->application, &known);
    if (status != ADL_OK)
        return status;
    char *name = adli_strdup(spec->name);
    if (!name) {
        adli_pool_leave(cluster->options.pool, known);
        return adli_fail_memory("job name");
    }
    job *j = &cluster->jobs[cluster->job_count];
    *j = (job){.name = name, .known = known, .spec = *spec, .accounted_s = spec->submit_s};
    j->spec.name = name;
    j->spec.application = NULL;
    j->last_change_s = spec->submit_s;
    *number = cluster->base + (int)cluster->job_count++;
    cluster->last_submit_s = spec->submit_s;
    return ADL_OK;
}

static job *find(const adli_cluster *cluster, int number)
{
    return &cluster->jobs[number - cluster->base];
}

static adl_status copy_nodes(int **to, size_t *capacity, const int *from, int count)
{
    if (adli_grow(to, capacity, (size_t)count, sizeof **to) != 0)
        return adli_fail_memory("allocation");
    if (count)
        memcpy(*to, from, (size_t)count * sizeof **to);
    return ADL_OK;
}

/* The wanted allocation, with room for where it will be started: a start cannot fail. */
static adl_status want(job *j, const int *nodes, int count)
{
    adl_status status = copy_nodes(&j->nodes, &j->nodes_capacity, nodes, count);
    if (status == ADL_OK &&
        adli_grow(&j->placed, &j->placed_capacity, (size_t)count, sizeof *j->placed) != 0)
        status = adli_fail_memory("allocation");
    return status;
}

adl_status adli_cluster_restore(adli_cluster *cluster, const adli_job_spec *spec,
                                const adli_job_saved *saved, int *number)
{
    adl_status status = adli_cluster_submit(cluster, spec, number);
    if (status != ADL_OK)
        return status;
    job *j = find(cluster, *number);
    status = want(j, saved->nodes, saved->replicas);
    if (status == ADL_OK)
        status = copy_nodes(&j->placed, &j->placed_capacity, saved->placed, saved->placed_count);
    if (status != ADL_OK) {
        release(cluster, j);
        cluster->job_count--;
        return status;
    }
    j->replicas = saved->replicas;
    j->placed_count = saved->placed_count;
    j->moved = saved->replicas != saved->placed_count ||
               (saved->replicas > 0 &&
                memcmp(saved->nodes, saved->placed, (size_t)saved->replicas * sizeof(int)) != 0);
    j->life = saved->life;
    /* until it is observed: a group that was started is there */
    j->seen = (adli_observed){.started = saved->placed_count, .alive = saved->placed_count};
    j->deleted = saved->deleted;
    j->last_change_s = saved->last_change_s;
    j->accounted_s = saved->accounted_s;
    j->attained_s = saved->attained_s;
    j->run_s = saved->run_s;
    j->active_sum = saved->active_sum;
    j->active_weight = saved->active_weight;
    return ADL_OK;
}

void adli_cluster_set_request(adli_cluster *cluster, int number, adl_resources request)
{
    find(cluster, number)->spec.request = request;
}

void adli_cluster_set_preemptible(adli_cluster *cluster, int number, bool preemptible)
{
    find(cluster, number)->spec.preemptible = preemptible;
}

void adli_cluster_delete(adli_cluster *cluster, int number)
{
    find(cluster, number)->deleted = true;
}

void adli_cluster_remove(adli_cluster *cluster, int number)
{
    release(cluster, find(cluster, number));
    size_t gone = 0;
    while (gone < cluster->job_count && !cluster->jobs[gone].name)
        gone++;
    memmove(cluster->jobs, cluster->jobs + gone,
            (cluster->job_count - gone) * sizeof *cluster->jobs);
    cluster->job_count -= gone;
    cluster->base += (int)gone;
    cluster->first_unfinished =
        cluster->first_unfinished > (int)gone ? cluster->first_unfinished - (int)gone : 0;
}

static void account(job *j, double now_s)
{
    double passed_s = now_s - j->accounted_s;
    if (passed_s <= 0)
        return;
    if (j->seen.alive > 0) {
        j->attained_s += passed_s * j->seen.alive;
        j->run_s += passed_s;
    }
    j->accounted_s = now_s;
}

void adli_cluster_observe(adli_cluster *cluster, int number, const adli_observed *seen,
                          double now_s)
{
    job *j = find(cluster, number);
    account(j, now_s);
    j->seen = *seen;
}

static void act(adli_cluster *cluster, int number, adli_action action)
{
    const adli_executor *executor = &cluster->options.executor;
    job *j = find(cluster, number);
    switch (action) {
    case ADLI_START:
        j->moved = false;
        if (j->replicas) /* room was made when the allocation was */
            memcpy(j->placed, j->nodes, (size_t)j->replicas * sizeof *j->placed);
        j->placed_count = j->replicas;
        executor->start(executor->self, number, j->nodes, j->replicas, j->life.group);
        break;
    case ADLI_TERMINATE:
    case ADLI_KILL:
        executor->terminate(executor->self, number, action == ADLI_KILL);
        break;
    case ADLI_CLEAN:
        j->seen = (adli_observed){0};
        j->placed_count = 0;
        if (executor->clean)
            executor->clean(executor->self, number);
        if (adli_life_over(&j->life))
            j->replicas = 0;
        if (j->life.phase == ADLI_SUCCEEDED)
            adli_pool_finished(cluster->options.pool, j->known, j->progress);
        break;
    case ADLI_NOTHING:
        break;
    }
}

static const adli_rules *rules_of(const adli_cluster *cluster, const job *j)
{
    return j->spec.own_rules ? &j->spec.rules : &cluster->options.rules;
}

/* Returns whether anything changed. */
static bool advance(adli_cluster *cluster, int index, double now_s)
{
    job *j = &cluster->jobs[index];
    for (bool changed = false;; changed = true) {
        adli_phase before = j->life.phase;
        bool waits = cluster->options.wait_for_room && before == ADLI_PENDING && j->replicas > 0 &&
                     !adli_cluster_has_room(cluster, j);
        j->seen.wanted = waits ? 0 : j->replicas;
        j->seen.moved = j->moved;
        j->seen.deleted = j->deleted;
        adli_action action = adli_lifecycle(&j->life, &j->seen, rules_of(cluster, j), now_s);
        act(cluster, cluster->base + index, action);
        if (action == ADLI_NOTHING && j->life.phase == before)
            return changed;
    }
}

void adli_cluster_advance(adli_cluster *cluster, double now_s)
{
    bool again = true;
    while (again) {
        again = false;
        for (int i = cluster->first_unfinished; i < (int)cluster->job_count; i++)
            if (!adli_life_over(&cluster->jobs[i].life))
                again |= advance(cluster, i, now_s);
        /* what one job gives up may be what another waits for */
        again &= cluster->options.wait_for_room;
    }
    while (cluster->first_unfinished < (int)cluster->job_count &&
           adli_life_over(&cluster->jobs[cluster->first_unfinished].life))
        cluster->first_unfinished++;
}

static double mean_active(const job *j)
{
    return j->active_weight > 0 ? j->active_sum / j->active_weight : 0;
}

static adl_job view_of(const adli_cluster *cluster, const job *j)
{
    return (adl_job){.name = j->name,
                     .request = j->spec.request,
                     .min_replicas = j->spec.min_replicas,
                     .max_replicas = adli_cluster_cap(cluster, j),
                     .preemptible = j->spec.preemptible,
                     .allocation = j->nodes,
                     .replicas = j->replicas,
                     .submit_s = j->spec.submit_s,
                     .last_change_s = j->last_change_s,
                     .attained_s = j->attained_s,
                     .run_s = j->run_s,
                     .mean_active = mean_active(j),
                     .restart_cost_s = j->restart_cost_s,
                     .restarts = j->life.group > 0 ? j->life.group - 1 : 0,
                     .model = j->model,
                     .max_profiled = j->max_profiled,
                     .progress = j->progress,
                     .total_work = adli_cluster_total_work(cluster, j),
                     .epoch_work = j->epoch_work,
                     .fixed_replicas = j->spec.fixed_replicas,
                     .step_time_s = j->step_time_s,
                     .step_context = j->step_context,
                     .remaining_steps = j->remaining_steps};
}

static adl_status make_snapshot(adli_cluster *cluster, double now_s)
{
    size_t most = cluster->job_count - (size_t)cluster->first_unfinished;
    if (adli_grow(&cluster->views, &cluster->view_capacity, most ? most : 1,
                  sizeof *cluster->views) != 0 ||
        adli_grow(&cluster->view_job, &cluster->view_job_capacity, most ? most : 1,
                  sizeof *cluster->view_job) != 0)
        return adli_fail_memory("snapshot");
    int count = 0;
    for (int i = cluster->first_unfinished; i < (int)cluster->job_count; i++)
        if (!adli_life_over(&cluster->jobs[i].life))
            cluster->view_job[count++] = cluster->base + i;
    double weight = isfinite(cluster->last_round_s) ? now_s - cluster->last_round_s : 1;
    for (int i = 0; i < count; i++) {
        job *j = find(cluster, cluster->view_job[i]);
        adl_status status = adli_cluster_learn(cluster, j);
        if (status != ADL_OK)
            return status;
        account(j, now_s);
        j->active_sum += weight * count;
        j->active_weight += weight;
        cluster->views[i] = view_of(cluster, j);
    }
    const adli_cluster_options *options = &cluster->options;
    cluster->snapshot = (adl_snapshot){.resource_names = options->resource_names,
                                       .resource_count = options->resource_count,
                                       .nodes = options->nodes,
                                       .node_count = options->node_count,
                                       .jobs = cluster->views,
                                       .job_count = count,
                                       .template_node = options->template_node,
                                       .shared_models = adli_pool_shares(options->pool),
                                       .now_s = now_s,
                                       .seed = options->seed};
    return ADL_OK;
}

static adl_status adopt(job *j, const adl_job_decision *decided, double now_s)
{
    size_t bytes = (size_t)decided->replicas * sizeof *j->nodes;
    if (decided->replicas == j->replicas &&
        (bytes == 0 || memcmp(decided->nodes, j->nodes, bytes) == 0))
        return ADL_OK;
    adl_status status = want(j, decided->nodes, decided->replicas);
    if (status != ADL_OK)
        return status;
    j->replicas = decided->replicas;
    j->moved = true;
    j->last_change_s = now_s;
    return ADL_OK;
}

adl_status adli_cluster_round(adli_cluster *cluster, double now_s)
{
    adl_status status = make_snapshot(cluster, now_s);
    if (status == ADL_OK)
        status = adl_policy_decide(cluster->options.policy, &cluster->snapshot, &cluster->decision);
    cluster->last_round_s = now_s;
    for (int i = 0; status == ADL_OK && i < cluster->snapshot.job_count; i++)
        status = adopt(find(cluster, cluster->view_job[i]), &cluster->decision.jobs[i], now_s);
    if (status == ADL_OK)
        adli_cluster_advance(cluster, now_s);
    return status;
}

const adl_snapshot *adli_cluster_snapshot(const adli_cluster *cluster)
{
    return &cluster->snapshot;
}

const adl_decision *adli_cluster_decision(const adli_cluster *cluster)
{
    return &cluster->decision;
}

int adli_cluster_round_job(const adli_cluster *cluster, int index)
{
    return cluster->view_job[index];
}

adli_job_info adli_cluster_job(const adli_cluster *cluster, int number)
{
    const job *j = find(cluster, number);
    return (adli_job_info){.life = &j->life,
                           .nodes = j->nodes,
                           .replicas = j->replicas,
                           .placed = j->placed,
                           .placed_count = j->placed_count,
                           .attained_s = j->attained_s,
                           .run_s = j->run_s,
                           .last_change_s = j->last_change_s,
                           .accounted_s = j->accounted_s,
                           .active_sum = j->active_sum,
                           .active_weight = j->active_weight,
                           .mean_active = mean_active(j),
                           .most_replicas = adli_cluster_cap(cluster, j),
                           .model = j->model};
}
