/* rank on a cluster of several device types. A job's options are (type, n); a device of a type costs what
 * it is worth to the jobs there are:
 *
 *   c_t    = mean over jobs of rate(t, 1) / rate(first type, 1),  C = sum of c_t * devices of t
 *   lambda = price * (k + kmix) / C
 *   w      = (min over (t, n) of (1 + lambda * c_t * n) * rate1 / rate(t, n))^pfut * max(1, rho / gth)
 *   V      = w * rate(t, n) / rate1 * f,   rate1 = rate(first type, 1)
 *
 * Greedy: of all jobs and options that fit, its own devices given back, the largest gain in V per price
 * added is taken, as long as there is one. A job keeps to one type. */
#include "policy/rank.h"

#include "base/mem.h"
#include "policy/types.h"

#include <math.h>
#include <stdlib.h>

typedef struct option {
    int type, replicas;
    double rate, value, keep;
} option;

typedef struct candidate {
    const adl_job *job;
    int first, count; /* options */
    int taken;        /* of all options; -1: none */
    int present;      /* the type it is on; -1: none */
    double work, t1, rate1, weight;
    bool hinted;
} candidate;

typedef struct rank {
    const adl_snapshot *snapshot;
    const double *params;
    double price;
    adli_types types;
    double cost[ADL_MAX_TYPES]; /* c_t */
    double devices;             /* C */
    candidate *jobs;
    option *options;
    size_t option_count, option_capacity;
    int *order;
    adl_resources free[ADL_MAX_TYPES];
} rank;

static adl_status list_options(rank *r, candidate *c)
{
    const adl_job *job = c->job;
    int least = job->min_replicas > 1 ? job->min_replicas : 1;
    c->first = (int)r->option_count;
    for (int t = 0; t < r->types.count; t++) {
        int size = adli_types_node_size(&r->types, job, t);
        int most = adli_resources_fit(r->snapshot, &r->types.total[t], job);
        most = most < job->max_replicas ? most : job->max_replicas;
        for (int n = 1; size > 0 && n <= most; n = adli_types_next(size, n)) {
            double rate = n >= least ? adli_types_rate(job, size, t, n) : 0;
            if (!(rate > 0))
                continue;
            if (adli_grow(&r->options, &r->option_capacity, r->option_count + 1,
                          sizeof *r->options) != 0)
                return adli_fail_memory("options");
            r->options[r->option_count++] = (option){.type = t, .replicas = n, .rate = rate};
            c->count++;
        }
    }
    return ADL_OK;
}

/* The price of each type, from the jobs that know it. */
static void set_prices(rank *r)
{
    r->devices = 0;
    for (int t = 0; t < r->types.count; t++) {
        double sum = 0;
        int known = 0, devices = 0;
        for (int j = 0; j < r->snapshot->job_count; j++) {
            const adl_job *job = &r->snapshot->jobs[j];
            devices = devices ? devices : adli_resources_fit(r->snapshot, &r->types.total[t], job);
            if (!job->model)
                continue;
            double base = adli_types_rate(job, 1, 0, 1), here = adli_types_rate(job, 1, t, 1);
            if (base > 0 && here > 0) {
                sum += here / base;
                known++;
            }
        }
        r->cost[t] = known ? sum / known : 1;
        r->devices += r->cost[t] * devices;
    }
}

static int by_time_left(const void *a, const void *b, void *user)
{
    const candidate *jobs = user;
    int i = *(const int *)a, j = *(const int *)b;
    const candidate *x = &jobs[i], *y = &jobs[j];
    if (x->t1 != y->t1)
        return x->t1 > y->t1 ? -1 : 1;
    if ((x->job->replicas > 0) != (y->job->replicas > 0))
        return x->job->replicas > 0 ? 1 : -1;
    return j - i;
}

static double price(const rank *r, const candidate *c, double position)
{
    double lambda = r->price * (position + r->params[ADLI_RANK_KMIX]) / r->devices, mu = HUGE_VAL;
    if (!c->job->model)
        return pow(0.5 + lambda, r->params[ADLI_RANK_PFUT]);
    for (int i = 0; i < c->count; i++) {
        const option *o = &r->options[c->first + i];
        mu = fmin(mu, (1 + lambda * r->cost[o->type] * o->replicas) * c->rate1 / o->rate);
    }
    return pow(mu < HUGE_VAL ? mu : 1 + lambda, r->params[ADLI_RANK_PFUT]);
}

static double unfairness(const rank *r, const candidate *c)
{
    const adl_job *job = c->job;
    double active = job->mean_active > 0 ? job->mean_active : r->snapshot->job_count;
    double fair = r->devices / active, best = fair < 1 ? fair * c->rate1 : 0;
    for (int i = 0; i < c->count; i++) {
        const option *o = &r->options[c->first + i];
        if (r->cost[o->type] * o->replicas <= fair)
            best = fmax(best, o->rate);
    }
    best = best > 0 ? best : c->rate1;
    double age_s = r->snapshot->now_s - job->submit_s, progress = job->model ? job->progress : 0;
    return (age_s + c->work / best) / ((progress + c->work) / best + 60);
}

static void weigh(rank *r)
{
    int count = r->snapshot->job_count, hinted = 0;
    for (int i = 0; i < count; i++)
        if (r->jobs[i].hinted)
            r->order[hinted++] = i;
        else
            r->jobs[i].weight = price(r, &r->jobs[i], 0.5 * (count + 1));
    qsort_r(r->order, (size_t)hinted, sizeof *r->order, by_time_left, r->jobs);
    for (int k = 0; k < hinted; k++) {
        candidate *c = &r->jobs[r->order[k]];
        c->weight = price(r, c, hinted > 1 ? 1 + (double)k * (count - 1) / (hinted - 1) : count);
    }
    for (int i = 0; i < count; i++)
        r->jobs[i].weight *= fmax(unfairness(r, &r->jobs[i]) / r->params[ADLI_RANK_GTH], 1) *
                             adli_job_priority(r->jobs[i].job);
}

/* f(t, n): the part of the value that survives the change. */
static double kept(const rank *r, const candidate *c, const option *o)
{
    const adl_job *job = c->job;
    const double *params = r->params;
    if (job->attained_s == 0 || (o->replicas == job->replicas && o->type == c->present))
        return 1;
    double cost_s = job->restart_cost_s > 0 ? job->restart_cost_s : params[ADLI_RANK_RESTART];
    double left_s = job->model ? c->work / o->rate : params[ADLI_RANK_TPRIOR];
    double f = 1 - fmin(0.95, params[ADLI_RANK_RS] * cost_s / (left_s + cost_s));
    double now = c->present < 0 ? 0 : r->cost[c->present] * job->replicas;
    bool shrinks = r->cost[o->type] * o->replicas < now;
    f -= params[shrinks ? ADLI_RANK_SHY : ADLI_RANK_HY] * sqrt(cost_s / 30);
    bool explores = o->replicas > job->replicas && o->replicas > job->max_profiled;
    if (job->replicas > 0 && !explores)
        f -= params[ADLI_RANK_DW] * cost_s / (r->snapshot->now_s - job->last_change_s + cost_s);
    return fmax(f, 0.01);
}

/* The best jump of all jobs; -1: there is none. */
static int best_jump(const rank *r, int *job)
{
    int best = -1;
    double highest = 0;
    for (int j = 0; j < r->snapshot->job_count; j++) {
        const candidate *c = &r->jobs[j];
        const option *now = c->taken >= 0 ? &r->options[c->taken] : NULL;
        double value = now ? now->value : 0, paid = now ? r->cost[now->type] * now->replicas : 0;
        for (int i = c->first; i < c->first + c->count; i++) {
            const option *o = &r->options[i];
            int own = now && now->type == o->type ? now->replicas : 0;
            if (!(o->value > value))
                continue;
            double density =
                (o->value - value) / fmax(r->cost[o->type] * o->replicas - paid, 0.001);
            if (density > highest &&
                adli_resources_fit(r->snapshot, &r->free[o->type], c->job) + own >= o->replicas) {
                highest = density;
                best = i;
                *job = j;
            }
        }
    }
    return best;
}

static void hand_out(rank *r)
{
    for (int job = 0, at; (at = best_jump(r, &job)) >= 0;) {
        candidate *c = &r->jobs[job];
        if (c->taken >= 0)
            adli_resources_take(r->snapshot, &r->free[r->options[c->taken].type], c->job,
                                -r->options[c->taken].replicas);
        adli_resources_take(r->snapshot, &r->free[r->options[at].type], c->job,
                            r->options[at].replicas);
        c->taken = at;
    }
}

static adl_status prepare(rank *r)
{
    adl_status status = ADL_OK;
    set_prices(r);
    for (int t = 0; t < r->types.count; t++)
        r->free[t] = r->types.total[t];
    for (int j = 0; j < r->snapshot->job_count && status == ADL_OK; j++) {
        candidate *c = &r->jobs[j];
        c->job = &r->snapshot->jobs[j];
        c->taken = -1;
        c->present = adli_types_present(&r->types, c->job);
        c->hinted = !c->job->model || c->job->total_work > 0;
        c->rate1 = fmax(adli_types_rate(c->job, 1, 0, 1), 1e-300);
        c->work = adli_rank_work(c->job, c->rate1, r->params[ADLI_RANK_TPRIOR]);
        c->t1 = c->job->model ? fmax(c->work / c->rate1, 30) : c->work;
        if (adli_job_pinned(c->job))
            adli_resources_take(r->snapshot, &r->free[c->present], c->job, c->job->replicas);
        else
            status = list_options(r, c);
    }
    if (status != ADL_OK)
        return status;
    weigh(r);
    for (int j = 0; j < r->snapshot->job_count; j++) {
        candidate *c = &r->jobs[j];
        for (int i = c->first; i < c->first + c->count; i++) {
            option *o = &r->options[i];
            o->keep = kept(r, c, o);
            o->value = c->weight * o->rate / c->rate1 * o->keep;
        }
    }
    return ADL_OK;
}

adl_status adli_rank_types(adli_plan *plan, double price_of_cluster)
{
    size_t count = (size_t)plan->snapshot->job_count;
    rank r = {.snapshot = plan->snapshot, .params = plan->params, .price = price_of_cluster};
    adli_typed_size *sizes = adli_calloc(count, sizeof *sizes);
    r.jobs = adli_calloc(count, sizeof *r.jobs);
    r.order = adli_calloc(count, sizeof *r.order);
    adl_status status = sizes && r.jobs && r.order ? adli_types_init(&r.types, plan->snapshot)
                                                   : adli_fail_memory("ranks of jobs");
    if (status == ADL_OK)
        status = prepare(&r);
    if (status == ADL_OK) {
        hand_out(&r);
        for (size_t j = 0; j < count; j++) {
            const candidate *c = &r.jobs[j];
            if (adli_job_pinned(c->job))
                sizes[j] = (adli_typed_size){c->present, c->job->replicas};
            else if (c->taken >= 0) {
                const option *o = &r.options[c->taken];
                sizes[j] = (adli_typed_size){o->type, o->replicas};
                plan->jobs[j].restart_cost = 1 - o->keep;
            }
        }
        status = adli_types_pack(plan, &r.types, sizes);
    }
    adli_types_fini(&r.types);
    free(r.options);
    free(r.order);
    free(r.jobs);
    free(sizes);
    return status;
}
