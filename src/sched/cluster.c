#include "sched/cluster_impl.h"

#include "base/mem.h"
#include "base/options.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef adli_sched_job job;

static adl_status set_up(adl_cluster *cluster, const adl_cluster_options *given, adli_pool *pool)
{
    adl_cluster_options *options = &cluster->options;
    *options = (adl_cluster_options)ADL_CLUSTER_OPTIONS_INIT;
    adl_status status = adli_options_take("adl_cluster_options", options, sizeof *options, given);
    if (status == ADL_OK && !options->policy)
        status = adli_fail(ADL_EINVAL, "adl_cluster_options: no policy");
    if (status == ADL_OK && !pool)
        status = adli_pool_new(options->shared_models, &cluster->own_pool);
    cluster->pool = pool ? pool : cluster->own_pool;
    if (status == ADL_OK)
        status = adli_cluster_find_types(cluster, options->nodes, options->node_count);
    return status == ADL_OK ? adli_cluster_size_tables(cluster, options->node_count) : status;
}

adl_status adli_cluster_new(const adl_cluster_options *options, adli_pool *pool, adl_cluster **out)
{
    adl_cluster *cluster = adli_calloc(1, sizeof *cluster);
    *out = NULL;
    if (!cluster)
        return adli_fail_memory("cluster");
    cluster->last_round_s = cluster->last_submit_s = -HUGE_VAL;
    TAILQ_INIT(&cluster->live);
    TAILQ_INIT(&cluster->busy);
    adl_status status = set_up(cluster, options, pool);
    if (status == ADL_OK)
        *out = cluster;
    else
        adl_cluster_free(cluster);
    return status;
}

adl_status adl_cluster_new(const adl_cluster_options *options, adl_cluster **out)
{
    return adli_cluster_new(options, NULL, out);
}

static void release(adl_cluster *cluster, job *j)
{
    if (!j)
        return;
    adl_speedup_free(j->model);
    adli_pool_leave(cluster->pool, j->known);
    free(j->placed);
    free(j->nodes);
    free(j->name);
    free(j);
}

void adl_cluster_free(adl_cluster *cluster)
{
    if (!cluster)
        return;
    for (size_t i = 0; i < cluster->job_count; i++)
        release(cluster, cluster->jobs[i]);
    adli_pool_free(cluster->own_pool);
    adl_decision_fini(&cluster->decision);
    free(cluster->claimed);
    free(cluster->occupied);
    free(cluster->orders);
    free(cluster->view_job);
    free(cluster->views);
    free(cluster->free_numbers);
    free(cluster->jobs);
    free(cluster);
}

/* A number for a new job, and room to give it back later without failing. */
static adl_status take_number(adl_cluster *cluster, int *number)
{
    if (cluster->free_count > 0) {
        *number = cluster->free_numbers[--cluster->free_count];
        return ADL_OK;
    }
    if (adli_grow(&cluster->jobs, &cluster->job_capacity, cluster->job_count + 1,
                  sizeof *cluster->jobs) != 0 ||
        adli_grow(&cluster->free_numbers, &cluster->free_capacity, cluster->job_count + 1,
                  sizeof *cluster->free_numbers) != 0)
        return adli_fail_memory("jobs");
    *number = (int)cluster->job_count++;
    cluster->jobs[*number] = NULL;
    return ADL_OK;
}

static void give_back(adl_cluster *cluster, int number)
{
    cluster->jobs[number] = NULL;
    cluster->free_numbers[cluster->free_count++] = number;
}

static adl_status submit(adl_cluster *cluster, const adl_job_spec *spec, int *number)
{
    if (!spec->name)
        return adli_fail(ADL_EINVAL, "adl_job_spec: no name");
    if (spec->submit_s < cluster->last_submit_s)
        return adli_fail(ADL_EINVAL, "job %s: submitted before the job before it", spec->name);
    adl_status status = take_number(cluster, number);
    if (status != ADL_OK)
        return status;
    job *j = adli_calloc(1, sizeof *j);
    char *name = j ? adli_strdup(spec->name) : NULL;
    adli_pool_member *known = NULL;
    status =
        name ? adli_pool_join(cluster->pool, spec->application, &known) : adli_fail_memory("job");
    if (status != ADL_OK) {
        free(name);
        free(j);
        give_back(cluster, *number);
        return status;
    }
    *j = (job){
        .number = *number, .seq = cluster->next_seq++, .name = name, .known = known, .spec = *spec};
    j->spec.name = name;
    j->spec.application = NULL;
    j->account.accounted_s = j->account.last_change_s = spec->submit_s;
    cluster->jobs[*number] = j;
    TAILQ_INSERT_TAIL(&cluster->live, j, live);
    cluster->live_count++;
    cluster->last_submit_s = spec->submit_s;
    return ADL_OK;
}

adl_status adl_cluster_submit(adl_cluster *cluster, const adl_job_spec *given, int *number)
{
    adl_job_spec spec = ADL_JOB_SPEC_INIT;
    adl_status status = adli_options_take("adl_job_spec", &spec, sizeof spec, given);
    return status == ADL_OK ? submit(cluster, &spec, number) : status;
}

static job *find(const adl_cluster *cluster, int number)
{
    return cluster->jobs[number];
}

/* Nearly always it is the newest of those already there: rounds go by submission. */
void adli_cluster_stir(adl_cluster *cluster, job *j)
{
    if (j->is_busy)
        return;
    job *after = TAILQ_LAST(&cluster->busy, adli_sched_jobs);
    if (j->deleted && j->replicas == 0) /* takes nothing from anybody: its place does not matter */
        after = NULL;
    while (after && after->seq > j->seq)
        after = TAILQ_PREV(after, adli_sched_jobs, busy);
    if (after)
        TAILQ_INSERT_AFTER(&cluster->busy, after, j, busy);
    else
        TAILQ_INSERT_HEAD(&cluster->busy, j, busy);
    j->is_busy = true;
}

static void rest(adl_cluster *cluster, job *j)
{
    if (j->is_busy)
        TAILQ_REMOVE(&cluster->busy, j, busy);
    j->is_busy = false;
}

/* No longer one of the unfinished. */
static void retire(adl_cluster *cluster, job *j)
{
    rest(cluster, j);
    TAILQ_REMOVE(&cluster->live, j, live);
    cluster->live_count--;
}

adl_status adl_cluster_restore(adl_cluster *cluster, const adl_job_spec *spec,
                               const adl_job_saved *given, int *number)
{
    adl_job_saved own = ADL_JOB_SAVED_INIT, *saved = &own;
    adl_status status = adli_options_take("adl_job_saved", &own, sizeof own, given);
    if (status == ADL_OK)
        status = adl_cluster_submit(cluster, spec, number);
    if (status != ADL_OK)
        return status;
    job *j = find(cluster, *number);
    status = adli_cluster_want(cluster, j, saved->nodes, saved->replicas);
    if (status == ADL_OK && adli_grow(&j->placed, &j->placed_capacity, (size_t)saved->placed_count,
                                      sizeof *j->placed) != 0)
        status = adli_fail_memory("allocation");
    if (status != ADL_OK) {
        retire(cluster, j);
        give_back(cluster, *number);
        release(cluster, j);
        return status;
    }
    adli_cluster_settle(cluster, j, saved->placed, saved->placed_count);
    j->moved = saved->replicas != saved->placed_count ||
               (saved->replicas > 0 &&
                memcmp(saved->nodes, saved->placed, (size_t)saved->replicas * sizeof(int)) != 0);
    j->life = saved->life;
    /* until it is observed: a group that was started is there */
    j->seen = (adl_observed){.started = saved->placed_count, .alive = saved->placed_count};
    j->deleted = saved->deleted;
    j->account = saved->account;
    if (saved->life.group > 0)
        j->trust.most_had = INT_MAX; /* nobody knows any more */
    adli_cluster_stir(cluster, j);
    return ADL_OK;
}

void adl_cluster_set_preemptible(adl_cluster *cluster, int number, bool preemptible)
{
    find(cluster, number)->spec.preemptible = preemptible;
}

void adl_cluster_delete(adl_cluster *cluster, int number)
{
    job *j = find(cluster, number);
    j->deleted = true;
    if (!adl_life_over(&j->life))
        adli_cluster_stir(cluster, j);
}

void adl_cluster_hold(adl_cluster *cluster, int number, bool on)
{
    job *j = find(cluster, number);
    j->held = on;
    if (!on || adl_life_over(&j->life) || j->replicas == 0)
        return;
    (void)!adli_cluster_want(cluster, j, NULL, 0); /* none: cannot fail */
    j->moved = true;
    adli_cluster_stir(cluster, j);
}

void adl_cluster_remove(adl_cluster *cluster, int number)
{
    job *j = find(cluster, number);
    if (!adl_life_over(&j->life)) /* not a good idea, but the caller's */
        retire(cluster, j);
    (void)!adli_cluster_want(cluster, j, NULL, 0); /* none: cannot fail */
    adli_cluster_settle(cluster, j, NULL, 0);
    release(cluster, j);
    give_back(cluster, number);
}

static void account(job *j, double now_s)
{
    adl_account *account = &j->account;
    double passed_s = now_s - account->accounted_s;
    if (passed_s <= 0)
        return;
    if (j->seen.alive > 0) {
        account->attained_s += passed_s * j->seen.alive;
        account->run_s += passed_s;
        adli_trust_serve(&j->trust, passed_s, j->seen.alive);
    }
    account->accounted_s = now_s;
}

void adl_cluster_observe(adl_cluster *cluster, int number, const adl_observed *seen, double now_s)
{
    job *j = find(cluster, number);
    account(j, now_s);
    j->seen = *seen;
    if (!adl_life_over(&j->life))
        adli_cluster_stir(cluster, j);
}

/* What the action means here, and an order for whoever carries it out. There is room for one. */
static void act(adl_cluster *cluster, job *j, adl_action action, double now_s)
{
    if (action == ADL_NOTHING)
        return;
    adl_order *order = &cluster->orders[cluster->order_count++];
    *order = (adl_order){
        .action = action, .job = j->number, .user = j->spec.user, .group = j->life.group};
    if (action == ADL_START) {
        j->moved = j->in_place = false;
        adli_cluster_settle(cluster, j, j->nodes, j->replicas);
        account(j, now_s);
        j->seen = (adl_observed){.started = j->replicas, .alive = j->replicas};
        order->nodes = j->placed;
        order->replicas = j->placed_count;
    } else if (action == ADL_CLEAN) {
        j->seen = (adl_observed){0};
        adli_cluster_settle(cluster, j, NULL, 0);
        if (adl_life_over(&j->life))
            (void)!adli_cluster_want(cluster, j, NULL, 0); /* none: cannot fail */
        if (j->life.phase == ADL_SUCCEEDED)
            adli_pool_finished(cluster->pool, j->known, j->progress);
    }
}

const adl_rules *adli_cluster_rules(const adl_cluster *cluster, const job *j)
{
    return j->spec.own_rules ? &j->spec.rules : &cluster->options.rules;
}

/* *changed: did anything? */
static adl_status advance(adl_cluster *cluster, job *j, double now_s, bool *changed)
{
    for (;;) {
        if (adli_grow(&cluster->orders, &cluster->order_capacity, cluster->order_count + 1,
                      sizeof *cluster->orders) != 0)
            return adli_fail_memory("orders");
        adl_phase before = j->life.phase;
        bool waits = cluster->options.wait_for_room && before == ADL_PENDING && j->replicas > 0 &&
                     !adli_cluster_has_room(cluster, j);
        j->seen.wanted = waits ? 0 : j->replicas;
        j->seen.moved = j->moved && !j->in_place;
        j->seen.deleted = j->deleted;
        adl_action action =
            adli_lifecycle(&j->life, &j->seen, adli_cluster_rules(cluster, j), now_s);
        act(cluster, j, action, now_s);
        if (action == ADL_NOTHING && j->life.phase == before)
            return ADL_OK;
        *changed = true;
    }
}

static adl_status advance_all(adl_cluster *cluster, double now_s)
{
    adl_status status = ADL_OK;
    for (bool again = true; again && status == ADL_OK;) {
        again = false;
        for (job *j = TAILQ_FIRST(&cluster->busy), *next; j && status == ADL_OK; j = next) {
            next = TAILQ_NEXT(j, busy);
            cluster->visits++;
            status = advance(cluster, j, now_s, &again);
            if (adl_life_over(&j->life))
                retire(cluster, j);
            else if (j->life.phase == ADL_PENDING && j->replicas == 0 && !j->deleted)
                rest(cluster, j);
        }
        /* what one job gives up may be what another waits for */
        again &= cluster->options.wait_for_room;
    }
    return status;
}

adl_status adl_cluster_advance(adl_cluster *cluster, double now_s, adl_orders *orders)
{
    cluster->order_count = 0;
    adl_status status = advance_all(cluster, now_s);
    *orders = (adl_orders){cluster->orders, cluster->order_count};
    return status;
}

static double mean_active(const job *j)
{
    const adl_account *account = &j->account;
    return account->active_weight > 0 ? account->active_sum / account->active_weight : 0;
}

/* Until it was measured, what is usual for a change in place. */
static double price_in_place(const job *j)
{
    static const double usual_s = 1;
    return j->resize_cost_s > 0 ? j->resize_cost_s : usual_s;
}

static adl_job view_of(const adl_cluster *cluster, const job *j)
{
    return (adl_job){.name = j->name,
                     .request = j->spec.request,
                     .min_replicas = j->pin > 0 ? j->pin : j->spec.min_replicas,
                     .max_replicas = adli_cluster_cap(cluster, j),
                     .preemptible = j->spec.preemptible,
                     .priority = j->spec.priority,
                     .suspend = j->spec.suspend,
                     .allocation = j->nodes,
                     .replicas = j->replicas,
                     .submit_s = j->spec.submit_s,
                     .last_change_s = j->account.last_change_s,
                     .attained_s = j->account.attained_s,
                     .run_s = j->account.run_s,
                     .mean_active = mean_active(j),
                     .restart_cost_s = j->restart_cost_s,
                     .resize_cost_s = j->in_place ? price_in_place(j) : j->resize_told_s,
                     .restarts = j->life.group > 0 ? j->life.group - 1 : 0,
                     .model = j->model,
                     .max_profiled = j->max_profiled,
                     .progress = j->progress,
                     .total_work = adli_cluster_total_work(cluster, j),
                     .epoch_work = j->epoch_work,
                     .fixed_replicas = j->pin > 0 ? j->pin : j->spec.fixed_replicas,
                     .step_time_s = j->step_time_s,
                     .step_context = j->step_context,
                     .remaining_steps = j->remaining_steps};
}

static adl_status make_snapshot(adl_cluster *cluster, double now_s)
{
    size_t most = cluster->live_count > 0 ? (size_t)cluster->live_count : 1;
    if (adli_grow(&cluster->views, &cluster->view_capacity, most, sizeof *cluster->views) != 0 ||
        adli_grow(&cluster->view_job, &cluster->view_job_capacity, most,
                  sizeof *cluster->view_job) != 0)
        return adli_fail_memory("snapshot");
    double weight = isfinite(cluster->last_round_s) ? now_s - cluster->last_round_s : 1;
    int count = 0;
    for (job *j = TAILQ_FIRST(&cluster->live); j; j = TAILQ_NEXT(j, live)) {
        cluster->visits++;
        if (j->held)
            continue;
        adl_status status = adli_cluster_learn(cluster, j);
        if (status == ADL_ENOMEM) /* anything else is this job's: it keeps the model it has */
            return status;
        account(j, now_s);
        j->account.active_sum += weight * cluster->live_count;
        j->account.active_weight += weight;
        cluster->view_job[count] = j->number;
        cluster->views[count] = view_of(cluster, j);
        int missed = j->trust.missed;
        adli_trust_weigh(&j->trust, &cluster->views[count++], j->total_work > 0,
                         j->replicas > 0 ? adl_cluster_type(cluster, j->nodes[0]) : 0);
        cluster->misses += j->trust.missed - missed;
    }
    const adl_cluster_options *options = &cluster->options;
    cluster->snapshot = (adl_snapshot){.resource_names = options->resource_names,
                                       .resource_count = options->resource_count,
                                       .nodes = options->nodes,
                                       .node_count = options->node_count,
                                       .jobs = cluster->views,
                                       .job_count = count,
                                       .template_node = options->template_node,
                                       .type_names = adli_pool_type_names(cluster->pool),
                                       .type_count = adli_pool_type_count(cluster->pool),
                                       .shared_models = adli_pool_shares(cluster->pool),
                                       .now_s = now_s,
                                       .seed = options->seed};
    return ADL_OK;
}

static adl_status adopt(adl_cluster *cluster, job *j, const adl_job_decision *decided, double now_s)
{
    size_t bytes = (size_t)decided->replicas * sizeof *j->nodes;
    if (decided->replicas == j->replicas &&
        (bytes == 0 || memcmp(decided->nodes, j->nodes, bytes) == 0))
        return ADL_OK;
    adl_status status = adli_cluster_want(cluster, j, decided->nodes, decided->replicas);
    if (status != ADL_OK)
        return status;
    j->moved = true;
    j->account.last_change_s = now_s;
    return ADL_OK;
}

/* Those that want replicas, in their order, without looking for each one's place. */
static void rebuild_busy(adl_cluster *cluster)
{
    TAILQ_INIT(&cluster->busy);
    for (job *j = TAILQ_FIRST(&cluster->live); j; j = TAILQ_NEXT(j, live)) {
        j->is_busy |= j->replicas > 0;
        if (j->is_busy)
            TAILQ_INSERT_TAIL(&cluster->busy, j, busy);
    }
}

adl_status adl_cluster_prepare(adl_cluster *cluster, double now_s)
{
    adl_status status = make_snapshot(cluster, now_s);
    cluster->prepared = status == ADL_OK;
    return status;
}

adl_status adl_cluster_round(adl_cluster *cluster, double now_s, adl_orders *orders)
{
    *orders = (adl_orders){0};
    adl_status status = cluster->prepared ? ADL_OK : make_snapshot(cluster, now_s);
    cluster->prepared = false;
    if (status == ADL_OK)
        status = cluster->sizing.max_nodes > 0
                     ? adl_sizing_decide(cluster->options.policy, &cluster->snapshot,
                                         &cluster->sizing, &cluster->decision, &cluster->sized)
                     : adl_policy_decide(cluster->options.policy, &cluster->snapshot,
                                         &cluster->decision);
    cluster->last_round_s = now_s;
    for (int i = 0; status == ADL_OK && i < cluster->snapshot.job_count; i++)
        status =
            adopt(cluster, find(cluster, cluster->view_job[i]), &cluster->decision.jobs[i], now_s);
    rebuild_busy(cluster);
    return status == ADL_OK ? adl_cluster_advance(cluster, now_s, orders) : status;
}

adl_status adl_cluster_set_sizing(adl_cluster *cluster, const adl_sizing *sizing,
                                  const adl_node *template_node)
{
    cluster->options.template_node = template_node;
    cluster->sized = (adl_sized){0};
    cluster->sizing = (adl_sizing)ADL_SIZING_INIT;
    return adli_options_take("sizing", &cluster->sizing, sizeof cluster->sizing, sizing);
}

const adl_sized *adl_cluster_sized(const adl_cluster *cluster)
{
    return cluster->sizing.max_nodes > 0 ? &cluster->sized : NULL;
}

int adl_cluster_busy(const adl_cluster *cluster, int after)
{
    const job *j = after < 0 ? TAILQ_FIRST(&cluster->busy) : TAILQ_NEXT(find(cluster, after), busy);
    return j ? j->number : -1;
}

const adl_snapshot *adl_cluster_snapshot(const adl_cluster *cluster)
{
    return &cluster->snapshot;
}

const adl_decision *adl_cluster_decision(const adl_cluster *cluster)
{
    return &cluster->decision;
}

int adl_cluster_round_job(const adl_cluster *cluster, int index)
{
    return cluster->view_job[index];
}

const adl_job_info *adl_cluster_job(const adl_cluster *cluster, int number)
{
    job *j = find(cluster, number);
    j->info = (adl_job_info){.user = j->spec.user,
                             .life = &j->life,
                             .nodes = j->nodes,
                             .replicas = j->replicas,
                             .placed = j->placed,
                             .placed_count = j->placed_count,
                             .account = &j->account,
                             .mean_active = mean_active(j),
                             .model = j->model,
                             .doubt = j->trust.doubt[0] ? j->trust.doubt : NULL};
    return &j->info;
}

int adl_cluster_most_replicas(const adl_cluster *cluster, int number)
{
    return adli_cluster_cap(cluster, find(cluster, number));
}
