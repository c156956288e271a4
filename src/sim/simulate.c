#include "sim/simulate.h"

#include "base/clock.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/rng.h"
#include "sched/cluster.h"
#include "sim/fairness.h"
#include "sim/job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOG_MAX_BYTES = 1 << 30, STUCK_ROUNDS = 1000 };

/* With rounds by event, how often the world is looked at. */
static const double tick_s = 10;

/* Where a job was until this moment. */
typedef struct stopped {
    int *nodes; /* [replicas] */
    int replicas;
    size_t capacity;
    double at_s, delay_s;
} stopped;

typedef struct sim {
    const adli_workload *workload;
    const adli_sim_options *options;
    adli_sim_result *result;
    adl_policy *policy;
    adli_pool *pool;
    adl_cluster *cluster;
    adl_node *nodes;
    int node_count, device_count;
    char (*node_names)[48];
    adli_sim_kind plain;             /* when there are no kinds */
    adli_sim_job *jobs;              /* [workload->count], by number in the cluster */
    stopped *stopped;                /* [workload->count] */
    double (*speeds)[ADL_MAX_TYPES]; /* [workload->count] of one device of each type */
    double *since_s;                 /* [workload->count] start of the present allocation */
    double step_s, last_round_s;
    int events, new_sizes; /* since the last round; seen so far */
    int submitted, finished;
    int idle_rounds; /* rounds in a row without any replica */
    double now_s;
    int *distributed; /* [node_count] distributed jobs on each node, for interference */
    int *idle;        /* [node_count] devices that were free when the round began */
    double *decision_ms;
    size_t decision_count, decision_capacity;
} sim;

/* --- orders: pretended replicas are ready at once and stop at once --- */

static void close_spans(sim *s, int number, double end_s)
{
    adli_sim_result *result = s->result;
    for (size_t i = result->span_count; i-- > 0;) {
        adli_sim_span *span = &result->spans[i];
        if (span->job == number && span->end_s < 0)
            span->end_s = end_s;
        if (span->start_s < s->since_s[number])
            break;
    }
}

static adl_status open_spans(sim *s, int number, const int *nodes, int replicas)
{
    adli_sim_result *result = s->result;
    s->since_s[number] = s->now_s;
    for (int i = 0, next; s->options->timeline && i < replicas; i = next) {
        for (next = i + 1; next < replicas && nodes[next] == nodes[i];)
            next++;
        if (adli_grow(&result->spans, &result->span_capacity, result->span_count + 1,
                      sizeof *result->spans) != 0)
            return adli_fail_memory("timeline");
        result->spans[result->span_count++] =
            (adli_sim_span){number, nodes[i], next - i, s->now_s, -1};
    }
    return ADL_OK;
}

/* The next run of replicas on one node: its length. */
static int run_length(const int *nodes, int count, int at)
{
    int next = at + 1;
    while (next < count && nodes[next] == nodes[at])
        next++;
    return next - at;
}

static bool same_shape(const int *a, const int *b, int count)
{
    for (int i = 0; i < count;) {
        int run = run_length(a, count, i);
        if (run != run_length(b, count, i))
            return false;
        i += run;
    }
    return true;
}

/* Could all of a job's replicas be started beside those that it has? Not where others are only about to leave. */
static bool had_room(const sim *s, const int *nodes, int replicas)
{
    bool room = true;
    for (int i = 0, run; i < replicas && room; i += run) {
        run = run_length(nodes, replicas, i);
        room = s->idle[nodes[i]] >= run;
    }
    return room;
}

/* What this start costs: nothing when it only moves and that is free, less when the job goes on where
 * some of it is or is led elsewhere in two changes, a restart otherwise. */
static double delay_of(const sim *s, int number, const int *nodes, int replicas)
{
    const adli_sim_options *o = s->options;
    const stopped *was = &s->stopped[number];
    int type = adl_cluster_type(s->cluster, nodes[0]);
    const adli_app *app = adli_app_on(s->jobs[number].app, type);
    bool goes_on = was->replicas > 0 && was->at_s == s->now_s, stays = false;
    if (!goes_on)
        return adli_sim_delay_s(o, app, ADLI_SIM_RESTARTS);
    if (o->free_moves && was->replicas == replicas && same_shape(was->nodes, nodes, replicas) &&
        adl_cluster_type(s->cluster, was->nodes[0]) == type)
        return was->delay_s; /* the rest of what it was waiting for */
    for (int i = 0, k = 0; i < replicas && k < was->replicas && !stays;) {
        stays = nodes[i] == was->nodes[k];
        if (nodes[i] < was->nodes[k])
            i++;
        else
            k++;
    }
    adli_sim_change change = stays                          ? ADLI_SIM_RESIZES
                             : had_room(s, nodes, replicas) ? ADLI_SIM_MOVES
                                                            : ADLI_SIM_RESTARTS;
    return adli_sim_delay_s(o, app, change);
}

static adl_status start(sim *s, int number, const int *nodes, int replicas)
{
    adl_goodput prior;
    int type = adl_cluster_type(s->cluster, nodes[0]);
    bool told = adl_cluster_prior(s->cluster, number, type, &prior);
    adl_status status =
        adli_sim_job_place(&s->jobs[number], nodes, replicas, type,
                           delay_of(s, number, nodes, replicas), told ? &prior : NULL);
    if (status == ADL_OK)
        status = open_spans(s, number, nodes, replicas);
    adl_observed seen = {.started = replicas, .alive = replicas, .ready = replicas};
    adl_cluster_observe(s->cluster, number, &seen, s->now_s);
    return status;
}

static adl_status remember_nodes(sim *s, int number)
{
    const adl_job_info *info = adl_cluster_job(s->cluster, number);
    stopped *was = &s->stopped[number];
    if (adli_grow(&was->nodes, &was->capacity, (size_t)info->placed_count, sizeof *was->nodes) != 0)
        return adli_fail_memory("simulation");
    memcpy(was->nodes, info->placed, (size_t)info->placed_count * sizeof *was->nodes);
    was->replicas = info->placed_count;
    was->at_s = s->now_s;
    was->delay_s = s->jobs[number].delay_s;
    return ADL_OK;
}

static adl_status terminate(sim *s, int number)
{
    adl_status status = remember_nodes(s, number);
    adl_observed seen = {.started = s->jobs[number].replicas,
                         .interrupted = s->jobs[number].replicas};
    adl_cluster_observe(s->cluster, number, &seen, s->now_s);
    close_spans(s, number, s->now_s);
    return status == ADL_OK ? adli_sim_job_place(&s->jobs[number], NULL, 0, 0, 0, NULL) : status;
}

/* Until there are no more. */
static adl_status carry_out(sim *s, adl_orders orders)
{
    adl_status status = ADL_OK;
    while (status == ADL_OK && orders.count > 0) {
        for (size_t i = 0; status == ADL_OK && i < orders.count; i++) {
            const adl_order *order = &orders.items[i];
            if (order->action == ADL_START)
                status = start(s, order->job, order->nodes, order->replicas);
            else if (order->action != ADL_CLEAN)
                status = terminate(s, order->job);
        }
        if (status == ADL_OK)
            status = adl_cluster_advance(s->cluster, s->now_s, &orders);
    }
    return status;
}

/* --- one tick --- */

/* Standard normal by Box and Muller. */
static double gaussian(adli_rng *rng)
{
    double u = 1 - adli_rng_unit(rng), v = adli_rng_unit(rng);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* What distinguishes this job from others of its application: drawn from the seed and its place in the
 * workload, whatever the policy does. */
static void set_apart(sim *s, const adli_work *work, int number)
{
    adli_sim_job *job = &s->jobs[number];
    adli_rng rng;
    adli_rng_init(&rng, s->options->seed + 0x9e3779b97f4a7c15u * (uint64_t)(work->order + 1));
    double compute = gaussian(&rng), sync = gaussian(&rng);
    if (s->options->noise > 0) {
        job->compute_factor = exp(s->options->noise * compute);
        job->sync_factor = exp(s->options->noise * sync);
    }
    job->declares = adli_rng_unit(&rng) >= s->options->undeclared;
    for (int t = 0; t < s->options->kind_count; t++)
        s->speeds[number][t] = adli_app_on(work->app, t)->speed;
}

static adl_status submit_due(sim *s)
{
    adl_status status = ADL_OK;
    bool adapts = adl_policy_adapts(s->policy);
    for (; status == ADL_OK && s->submitted < s->workload->count; s->submitted++) {
        const adli_work *work = &s->workload->jobs[s->submitted];
        if (work->submit_s > s->now_s)
            break;
        adl_job_spec spec = {.size = sizeof spec,
                             .name = work->name,
                             .request = {{1}},
                             .max_replicas = s->device_count,
                             .application = work->app->name,
                             .type_speeds = s->speeds[s->submitted],
                             .preemptible = true,
                             .submit_s = work->submit_s};
        if (adapts && work->app->fixed_replicas > 0)
            spec.max_replicas = work->app->fixed_replicas;
        if (!adapts)
            spec.fixed_replicas = work->replicas;
        int number, batch = adapts ? work->app->fixed_batch : work->batch_size;
        adli_sim_job *job = &s->jobs[s->submitted];
        status = adli_sim_job_init(job, work->app, batch, adapts, s->node_count);
        job->now_s = s->now_s;
        set_apart(s, work, s->submitted);
        s->events++;
        job->gpus = s->options->gpus;
        job->lone_grows = s->options->lone_grows;
        if (status == ADL_OK)
            status = adl_cluster_submit(s->cluster, &spec, &number);
    }
    return status;
}

/* True seconds per step at the fixed batch size, for optimus. */
static double step_time(void *context, int replicas)
{
    const adli_sim_job *job = context;
    int shape[64], nodes = 0, gpus = job->gpus, m, steps;
    for (int left = replicas; left > 0 && nodes < 64; left -= gpus)
        shape[nodes++] = left < gpus ? left : gpus;
    double step_s, sync_s;
    adli_app_split(job->app, job->fixed_batch, replicas, &m, &steps);
    adli_app_step_time(job->app, shape, nodes, m, &step_s, &sync_s);
    return step_s + (step_s - sync_s) * steps;
}

/* What a restart, or a resize where nodes stay, costs this job, as it would have measured it. A cost of exactly 0
 * would mean "not measured", or of a resize that it is no less than a restart. */
static double change_cost(const sim *s, const adli_sim_job *job, adli_sim_change change)
{
    double cost_s = adli_sim_delay_s(s->options, job->app, change);
    if (change != ADLI_SIM_RESTARTS &&
        cost_s >= adli_sim_delay_s(s->options, job->app, ADLI_SIM_RESTARTS))
        return 0;
    return fmax(cost_s, 1e-3);
}

static adl_status report(sim *s, int number)
{
    adli_sim_job *job = &s->jobs[number];
    const adli_app *app = job->app;
    adl_job_report report = {.size = sizeof report,
                             .has_model = adli_sim_job_measured(job),
                             .limits = adli_sim_job_limits(job),
                             .profile = job->profile,
                             .profile_count = job->profile_count,
                             .type = job->type,
                             .max_profiled = job->max_profiled,
                             .progress = job->progress,
                             .total_work = job->declares ? app->needed[app->epochs] : 0,
                             .epoch_work =
                                 job->declares ? app->needed[app->epochs] / app->epochs : 0,
                             .restart_cost_s = change_cost(s, job, ADLI_SIM_RESTARTS),
                             .resize_cost_s = change_cost(s, job, ADLI_SIM_RESIZES)};
    if (adli_sim_job_measured(job))
        report.model = adli_sim_job_model(job);
    if (!adl_policy_adapts(s->policy)) {
        report.max_profiled = job->fixed_batch / app->min_local; /* no exploration cap */
        report.limits.max_batch_size = job->fixed_batch;
        report.step_time_s = step_time;
        report.step_context = job;
        report.remaining_steps = adli_app_iterations(app, job->fixed_batch, app->epochs - 1) -
                                 adli_app_iterations(app, job->fixed_batch, job->epoch);
        report.remaining_steps = fmax(report.remaining_steps, 1);
    }
    return adl_cluster_report(s->cluster, number, &report);
}

static double interference_of(const sim *s, int number)
{
    const adl_job_info *info = adl_cluster_job(s->cluster, number);
    if (s->options->interference <= 0 || s->jobs[number].nodes < 2)
        return 0;
    for (int i = 0; i < info->replicas; i++)
        if (s->distributed[info->nodes[i]] > 1)
            return s->options->interference;
    return 0;
}

static void count_distributed(sim *s)
{
    for (int n = 0; n < s->node_count; n++)
        s->distributed[n] = 0;
    for (int i = 0; i < s->submitted; i++) {
        const adl_job_info *info = adl_cluster_job(s->cluster, i);
        for (int k = 0; s->jobs[i].nodes > 1 && k < info->replicas; k++)
            if (k == 0 || info->nodes[k] != info->nodes[k - 1])
                s->distributed[info->nodes[k]]++;
    }
}

static adl_status run_jobs(sim *s)
{
    adl_status status = ADL_OK;
    count_distributed(s);
    for (int i = 0; i < s->submitted && status == ADL_OK; i++) {
        adli_sim_job *job = &s->jobs[i];
        if (adli_sim_job_finished(job))
            continue;
        status = adli_sim_job_run(job, s->step_s, interference_of(s, i));
        s->events += job->new_sizes;
        job->new_sizes = 0;
        if (status == ADL_OK && adli_sim_job_finished(job)) {
            status = report(s, i);
            s->events++;
            adl_observed seen = {.started = job->replicas, .succeeded = job->replicas};
            adl_cluster_observe(s->cluster, i, &seen, job->finish_s);
            close_spans(s, i, job->finish_s);
            s->finished++;
        }
    }
    return status;
}

static void count_idle(sim *s)
{
    for (int n = 0; n < s->node_count; n++)
        s->idle[n] = (int)s->nodes[n].capacity.amount[0];
    for (int i = 0; i < s->submitted; i++) {
        const adl_job_info *info = adl_cluster_job(s->cluster, i);
        for (int k = 0; !adli_sim_job_finished(&s->jobs[i]) && k < info->replicas; k++)
            s->idle[info->nodes[k]]--;
    }
}

static adl_status decide(sim *s)
{
    if (s->options->resize_delay_s >= 0 || s->options->recorded_delays)
        count_idle(s);
    if (adli_grow(&s->decision_ms, &s->decision_capacity, s->decision_count + 1,
                  sizeof *s->decision_ms) != 0)
        return adli_fail_memory("decision times");
    double before_s = adli_thread_cpu_s();
    adl_orders orders;
    adl_status status = adl_cluster_round(s->cluster, s->now_s, &orders);
    if (status == ADL_OK)
        status = carry_out(s, orders);
    s->decision_ms[s->decision_count++] = 1e3 * (adli_thread_cpu_s() - before_s);
    s->events = 0;
    s->last_round_s = s->now_s;
    return status;
}

static void log_job(sim *s, int index)
{
    const adl_snapshot *snapshot = adl_cluster_snapshot(s->cluster);
    const adl_decision *decision = adl_cluster_decision(s->cluster);
    const adli_sim_job *job = &s->jobs[adl_cluster_round_job(s->cluster, index)];
    char text[256];
    adli_buf *log = &s->result->log;
    adli_jw_open(log, NULL, '{');
    adli_jw_text(log, "name", snapshot->jobs[index].name);
    adli_jw_open(log, "nodes", '[');
    for (int i = 0; i < decision->jobs[index].replicas; i++)
        adli_jw_int(log, NULL, decision->jobs[index].nodes[i]);
    adli_jw_close(log, ']');
    adli_jw_int(log, "local_bsz", job->replicas ? job->local_bsz : 0);
    adli_jw_int(log, "accum_steps", job->replicas ? job->accum_steps : 0);
    adli_jw_int(log, "epoch", job->epoch);
    adli_jw_number(log, "progress", job->progress);
    adli_jw_text(log, "why", adl_decision_explain(snapshot, decision, index, text, sizeof text));
    adli_jw_close(log, '}');
}

static adl_status log_round(sim *s)
{
    adli_buf *log = &s->result->log;
    if (!s->options->log)
        return ADL_OK;
    adli_jw_open(log, NULL, '{');
    adli_jw_text(log, "workload", s->workload->name);
    adli_jw_text(log, "policy", s->options->policy);
    adli_jw_number(log, "time", s->now_s);
    adli_jw_int(log, "finished", s->finished);
    adli_jw_open(log, "jobs", '[');
    for (int i = 0; i < adl_cluster_snapshot(s->cluster)->job_count; i++)
        log_job(s, i);
    adli_buf_puts(log, "]}\n");
    return adli_buf_check(log);
}

/* Nothing runs, nothing will come: the policy will never place what is left. */
static adl_status check_stuck(sim *s)
{
    const adl_snapshot *snapshot = adl_cluster_snapshot(s->cluster);
    bool any = s->submitted < s->workload->count || snapshot->job_count == 0;
    for (int i = 0; i < snapshot->job_count && !any; i++)
        any = adl_cluster_decision(s->cluster)->jobs[i].replicas > 0;
    s->idle_rounds = any ? 0 : s->idle_rounds + 1;
    if (s->idle_rounds < STUCK_ROUNDS)
        return ADL_OK;
    return adli_fail(ADL_ESTATE, "%s: policy %s never starts job \"%s\" on %d nodes with %d GPUs",
                     s->workload->name, s->options->policy, snapshot->jobs[0].name, s->node_count,
                     s->device_count);
}

/* A job that is starting is not to be disturbed. */
static void hold_jobs(sim *s)
{
    for (int i = 0; i < s->submitted && s->options->hold; i++)
        if (!adli_sim_job_finished(&s->jobs[i]))
            adl_cluster_set_preemptible(s->cluster, i, s->jobs[i].delay_s <= 0);
}

static adl_status tick(sim *s)
{
    adl_status status = run_jobs(s);
    s->now_s += s->step_s;
    adl_orders orders;
    if (status == ADL_OK)
        status = adl_cluster_advance(s->cluster, s->now_s, &orders);
    if (status == ADL_OK)
        status = carry_out(s, orders);
    if (status == ADL_OK)
        status = submit_due(s);
    for (int i = 0; i < s->submitted && status == ADL_OK; i++)
        if (!adli_sim_job_finished(&s->jobs[i]))
            status = report(s, i);
    hold_jobs(s);
    bool due = s->events > 0 || s->now_s - s->last_round_s >= s->options->interval_s;
    if (status == ADL_OK && s->finished < s->submitted && due) {
        status = decide(s);
        if (status == ADL_OK)
            status = log_round(s);
        if (status == ADL_OK)
            status = check_stuck(s);
    }
    return status;
}

/* --- set-up and summary --- */

static adl_status make_policy(sim *s)
{
    adl_status status = adl_policy_new(s->options->policy, &s->policy);
    for (int i = 0; status == ADL_OK && i < s->options->setting_count; i++)
        status = adl_policy_set(s->policy, s->options->settings[i].parameter,
                                s->options->settings[i].value);
    return status;
}

static void add_nodes(sim *s, const adli_sim_kind *kind)
{
    for (int i = 0; i < kind->nodes; i++, s->node_count++) {
        char *name = s->node_names[s->node_count];
        if (kind->type[0])
            snprintf(name, sizeof *s->node_names, "%.24s-%d", kind->type, i);
        else
            snprintf(name, sizeof *s->node_names, "node-%d", i);
        s->nodes[s->node_count] =
            (adl_node){.name = name, .device_type = kind->type, .capacity = {{kind->gpus}}};
        s->device_count += kind->gpus;
    }
}

static adl_status make_nodes(sim *s)
{
    const adli_sim_options *o = s->options;
    s->plain = (adli_sim_kind){.nodes = o->nodes, .gpus = o->gpus};
    const adli_sim_kind *kinds = o->kind_count ? o->kinds : &s->plain;
    int kind_count = o->kind_count ? o->kind_count : 1, all = 0;
    for (int g = 0; g < kind_count; g++)
        all += kinds[g].nodes;
    s->nodes = adli_calloc((size_t)all, sizeof *s->nodes);
    s->node_names = adli_calloc((size_t)all, sizeof *s->node_names);
    s->distributed = adli_calloc((size_t)all, sizeof *s->distributed);
    s->idle = adli_calloc((size_t)all, sizeof *s->idle);
    if (!s->nodes || !s->node_names || !s->distributed || !s->idle)
        return adli_fail_memory("simulation");
    for (int g = 0; g < kind_count; g++)
        add_nodes(s, &kinds[g]);
    return ADL_OK;
}

static adl_status set_up(sim *s)
{
    static const char *const resources[] = {"nvidia.com/gpu"};
    size_t jobs = (size_t)s->workload->count;
    s->jobs = adli_calloc(jobs, sizeof *s->jobs);
    s->stopped = adli_calloc(jobs, sizeof *s->stopped);
    s->speeds = adli_calloc(jobs, sizeof *s->speeds);
    s->since_s = adli_calloc(jobs, sizeof *s->since_s);
    s->result->jobs = adli_calloc(jobs, sizeof *s->result->jobs);
    if (!s->jobs || !s->stopped || !s->speeds || !s->since_s || !s->result->jobs)
        return adli_fail_memory("simulation");
    s->step_s = s->options->event ? fmin(tick_s, s->options->interval_s) : s->options->interval_s;
    adl_status status = make_nodes(s);
    if (status == ADL_OK)
        status = make_policy(s);
    if (status != ADL_OK)
        return status;
    adl_cluster_options cluster = {.size = sizeof cluster,
                                   .resource_names = resources,
                                   .resource_count = 1,
                                   .nodes = s->nodes,
                                   .node_count = s->node_count,
                                   .policy = s->policy,
                                   .seed = s->options->seed,
                                   .rules = {.grace_s = 60, .max_retries = 3}};
    return adli_cluster_new(&cluster, s->pool, &s->cluster);
}

double adli_quantile(const double *sorted, size_t count, double p)
{
    if (count == 0)
        return 0;
    double at = p * (double)(count - 1);
    size_t left = (size_t)at;
    if (left + 1 >= count)
        return sorted[count - 1];
    return sorted[left] + (at - (double)left) * (sorted[left + 1] - sorted[left]);
}

int adli_by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static adl_status summarise_jobs(sim *s, adli_alone *alone, double *jcts)
{
    adli_sim_result *r = s->result;
    double first_s = HUGE_VAL, last_s = 0, attained_s = 0;
    adl_status status = ADL_OK;
    int count = s->workload->count;
    for (int i = 0; i < count && status == ADL_OK; i++) {
        const adli_work *work = &s->workload->jobs[i];
        const adl_job_info *info = adl_cluster_job(s->cluster, i);
        adli_sim_job_result *job = &r->jobs[i];
        jcts[i] = job->jct_s = s->jobs[i].finish_s - work->submit_s;
        job->restarts = info->life->group - 1;
        double wait_s = ceil(work->submit_s / s->step_s) * s->step_s - work->submit_s;
        status = adli_fairness(alone, work->app, info->mean_active, wait_s, job->jct_s, &job->rho);
        r->avg_jct_s += job->jct_s / count;
        r->restarts_per_job += (double)job->restarts / count;
        r->worst_ftf = fmax(r->worst_ftf, job->rho);
        first_s = fmin(first_s, work->submit_s);
        last_s = fmax(last_s, s->jobs[i].finish_s);
        attained_s += info->account->attained_s;
    }
    r->makespan_s = last_s - first_s;
    r->gpu_util = attained_s / (r->makespan_s * s->device_count);
    return status;
}

static adl_status summarise(sim *s)
{
    size_t count = (size_t)s->workload->count;
    adli_sim_result *r = s->result;
    adli_alone *alone = NULL;
    double *jcts = adli_calloc(count, sizeof *jcts);
    adl_status status =
        jcts ? adli_alone_new(s->options, s->device_count, &alone) : adli_fail_memory("summary");
    if (status == ADL_OK)
        status = summarise_jobs(s, alone, jcts);
    if (status == ADL_OK) {
        qsort(jcts, count, sizeof *jcts, adli_by_double);
        r->p50_s = adli_quantile(jcts, count, 0.5);
        r->p99_s = adli_quantile(jcts, count, 0.99);
        qsort(s->decision_ms, s->decision_count, sizeof *s->decision_ms, adli_by_double);
        r->decision_median_ms = adli_quantile(s->decision_ms, s->decision_count, 0.5);
        r->decision_p95_ms = adli_quantile(s->decision_ms, s->decision_count, 0.95);
        r->decision_max_ms = adli_quantile(s->decision_ms, s->decision_count, 1);
        r->rounds = (int)s->decision_count;
    }
    adli_alone_free(alone);
    free(jcts);
    return status;
}

static void tear_down(sim *s)
{
    for (int i = 0; s->jobs && i < s->submitted; i++)
        adli_sim_job_fini(&s->jobs[i]);
    adl_cluster_free(s->cluster);
    adl_policy_free(s->policy);
    free(s->decision_ms);
    for (int i = 0; s->stopped && i < s->submitted; i++)
        free(s->stopped[i].nodes);
    free(s->stopped);
    free(s->speeds);
    free(s->distributed);
    free(s->idle);
    free(s->node_names);
    free(s->nodes);
    free(s->since_s);
    free(s->jobs);
}

/* Jobs teach the pool, and learn from it. */
static adl_status replay(const adli_workload *workload, const adli_sim_options *options,
                         adli_pool *pool, _Atomic int *done, adli_sim_result *result)
{
    *result = (adli_sim_result){0};
    adli_buf_init(&result->log, LOG_MAX_BYTES);
    sim s = {.workload = workload, .options = options, .pool = pool, .result = result};
    adl_status status = set_up(&s);
    while (status == ADL_OK && s.finished < workload->count) {
        int before = s.finished;
        status = tick(&s);
        if (done)
            *done += s.finished - before;
    }
    if (status == ADL_OK)
        status = summarise(&s);
    tear_down(&s);
    if (status != ADL_OK)
        adli_sim_result_fini(result);
    return status;
}

adl_status adli_simulate(const adli_workload *workload, const adli_sim_options *options,
                         _Atomic int *done, adli_sim_result *result)
{
    adli_pool *pool;
    *result = (adli_sim_result){0};
    adl_status status = adli_pool_new(options->pool, &pool);
    if (status == ADL_OK && options->learned) {
        status = replay(workload, options, pool, NULL, result);
        adli_sim_result_fini(result);
    }
    if (status == ADL_OK)
        status = replay(workload, options, pool, done, result);
    adli_pool_free(pool);
    return status;
}

void adli_sim_result_fini(adli_sim_result *result)
{
    free(result->spans);
    free(result->jobs);
    adli_buf_fini(&result->log);
    *result = (adli_sim_result){0};
}
