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
#include "policy/heap.h"
#include "policy/types.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct option {
    int type, replicas;
    double rate, value, keep;
} option;

typedef struct candidate {
    const adl_job *job;
    int first, count;               /* options */
    int of_type[ADL_MAX_TYPES + 1]; /* where those of each type begin, by ascending size */
    int taken;                      /* of all options; -1: none */
    int best;                       /* the option of the best jump from there; -1: none */
    double density;                 /* its gain per price */
    int present;                    /* the type it is on; -1: none */
    double work, t1, rate1, weight;
    bool hinted;
    bool waits; /* while floors are handed out: it is not asked */
} candidate;

typedef struct rank {
    const adl_snapshot *snapshot;
    const double *params;
    double price; /* 0: weights by rank */
    adli_types types;
    double cost[ADL_MAX_TYPES]; /* c_t */
    double devices;             /* C */
    candidate *jobs;
    option *options;
    size_t option_count, option_capacity;
    int *order; /* by T1; then the heap */
    adl_resources free[ADL_MAX_TYPES];
    adl_resources idle[ADL_MAX_TYPES];   /* what no job has now */
    adl_resources wanted[ADL_MAX_TYPES]; /* with so much free, nobody wants more */
    bool floors; /* least sizes are handed out, to jobs that have nothing yet */
} rank;

static void want(const rank *r, adl_resources *wanted, const adl_job *job, int replicas)
{
    for (int i = 0; i < r->snapshot->resource_count; i++)
        if (job->request.amount[i] * replicas > wanted->amount[i])
            wanted->amount[i] = job->request.amount[i] * replicas;
}

static bool nobody_waits(const rank *r, const adl_resources *free, int type)
{
    for (int i = 0; i < r->snapshot->resource_count; i++)
        if (free->amount[i] < r->wanted[type].amount[i])
            return false;
    return true;
}

static adl_status list_options(rank *r, candidate *c)
{
    const adl_job *job = c->job;
    c->first = (int)r->option_count;
    for (int t = 0; t < r->types.count; t++) {
        c->of_type[t] = (int)r->option_count;
        if (adli_job_pinned(job))
            continue;
        adli_sizes sizes = adli_types_sizes(&r->types, job, t, t == c->present);
        for (int n; (n = adli_sizes_next(&sizes)) > 0;) {
            double rate = adli_types_rate(job, sizes.node, t, n);
            if (!(rate > 0))
                continue;
            if (adli_grow(&r->options, &r->option_capacity, r->option_count + 1,
                          sizeof *r->options) != 0)
                return adli_fail_memory("options");
            r->options[r->option_count++] = (option){.type = t, .replicas = n, .rate = rate};
            c->count++;
            want(r, &r->wanted[t], job, n);
        }
    }
    c->of_type[r->types.count] = (int)r->option_count;
    return ADL_OK;
}

/* The price of each type, from the jobs that know it and the first one. */
static void set_prices(rank *r)
{
    double sum[ADL_MAX_TYPES] = {0};
    int known[ADL_MAX_TYPES] = {0}, devices[ADL_MAX_TYPES] = {0};
    for (int j = 0; j < r->snapshot->job_count; j++) {
        const adl_job *job = &r->snapshot->jobs[j];
        double base = job->model ? adli_types_rate(job, 1, 0, 1) : 0;
        for (int t = 0; t < r->types.count; t++) {
            if (devices[t] == 0)
                devices[t] = adli_resources_fit(r->snapshot, &r->types.total[t], job);
            double here = t == 0 || !(base > 0) ? base : adli_types_rate(job, 1, t, 1);
            if (here > 0) {
                sum[t] += here / base;
                known[t]++;
            }
        }
    }
    r->devices = 0;
    for (int t = 0; t < r->types.count; t++) {
        r->cost[t] = known[t] ? sum[t] / known[t] : 1;
        r->devices += r->cost[t] * devices[t];
    }
}

/* What one device of the first type gives the job. Where that cannot be had, what one of another type does,
 * by their prices; where one replica is too few for its batch, a share of the fewest that are enough. */
static double rate_of_one(const rank *r, const candidate *c)
{
    for (int i = 0; i < c->count; i++) {
        const option *o = &r->options[c->first + i];
        if (o->type > 0 && i == 0)
            break;
        if (o->replicas == 1)
            return o->rate;
    }
    for (int t = 0; t < r->types.count; t++) {
        double rate = adli_types_rate(c->job, 1, t, 1);
        if (rate > 0)
            return rate / r->cost[t];
    }
    if (c->count == 0)
        return 1e-300;
    const option *o = &r->options[c->first];
    return o->rate / (o->replicas * r->cost[o->type]);
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

static double worth(const rank *r, const candidate *c, double position)
{
    if (r->price > 0)
        return price(r, c, position);
    return adli_rank_weight(r->params, position, c->hinted ? c->t1 : 10000);
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
            r->jobs[i].weight = worth(r, &r->jobs[i], 0.5 * (count + 1));
    qsort_r(r->order, (size_t)hinted, sizeof *r->order, by_time_left, r->jobs);
    for (int k = 0; k < hinted; k++) {
        candidate *c = &r->jobs[r->order[k]];
        c->weight = worth(r, c, hinted > 1 ? 1 + (double)k * (count - 1) / (hinted - 1) : count);
    }
    for (int i = 0; i < count; i++) {
        double rho = fmax(unfairness(r, &r->jobs[i]) / r->params[ADLI_RANK_GTH], 1);
        r->jobs[i].weight *= (r->price > 0 ? rho : pow(rho, r->params[ADLI_RANK_GEX])) *
                             adli_job_priority(r->jobs[i].job);
    }
}

/* Hysteresis against what it is where there is one type: with more options to change to there are more
 * changes that turn out not to have been worth it. Found on the traces of Sia. */
static const double stay = 5.0 / 3;
/* With fewer jobs than this, less of it: what one that is nearly alone leaves unused nobody else takes. */
static const double few = 8;

/* Can it be led to another type, or is it restarted there? */
static adli_change change_to(const rank *r, const candidate *c, const option *o)
{
    if (o->type == c->present)
        return ADLI_RESIZES;
    bool room = adli_resources_fit(r->snapshot, &r->idle[o->type], c->job) >= o->replicas;
    return c->present >= 0 && room ? ADLI_MOVES : ADLI_RESTARTS;
}

/* f(t, n): the part of the value that survives the change. */
static double kept(const rank *r, const candidate *c, const option *o)
{
    const adl_job *job = c->job;
    const double *params = r->params;
    bool priced = r->price > 0;
    if ((priced && job->attained_s == 0) || (o->replicas == job->replicas && o->type == c->present))
        return 1;
    double cost_s = adli_job_change_cost(job, change_to(r, c, o), params[ADLI_RANK_RESTART]);
    double left_s = job->model ? c->work / o->rate : params[ADLI_RANK_TPRIOR];
    double f = 1 - fmin(0.95, params[ADLI_RANK_RS] * cost_s / (left_s + cost_s));
    double now = c->present < 0 ? 0 : r->cost[c->present] * job->replicas;
    bool shrinks = r->cost[o->type] * o->replicas < now;
    f -= params[shrinks ? ADLI_RANK_SHY : ADLI_RANK_HY] * stay * (priced ? sqrt(cost_s / 30) : 1) *
         fmin(1, r->snapshot->job_count / few);
    bool explores = o->replicas > job->replicas && o->replicas > job->max_profiled;
    if (job->replicas > 0 && !explores)
        f -= params[ADLI_RANK_DW] * cost_s / (r->snapshot->now_s - job->last_change_s + cost_s);
    return fmax(f, 0.01);
}

/* ---- handing out ---- */

static bool fits(const rank *r, const candidate *c, int at)
{
    const option *o = &r->options[at], *now = c->taken >= 0 ? &r->options[c->taken] : NULL;
    int own = now && now->type == o->type ? now->replicas : 0;
    return adli_resources_fit(r->snapshot, &r->free[o->type], c->job) + own >= o->replicas;
}

/* The best jump of a job to a type, within what is free, if it is better than the one it has. before: what was
 * free when it last looked, or since; NULL: it looks for the first time. Is it better? */
static bool look(const rank *r, candidate *c, int type, const adl_resources *before)
{
    int i = c->of_type[type], end = c->of_type[type + 1];
    if (r->floors && end > i)
        end = c->waits || c->taken >= 0 ? i : i + 1;
    const option *now = c->taken >= 0 ? &r->options[c->taken] : NULL;
    int own = now && now->type == type ? now->replicas : 0;
    int known = before ? own + adli_resources_fit(r->snapshot, before, c->job) : 0;
    if (i == end || r->options[end - 1].replicas <= known)
        return false;
    double before_density = c->density;
    double value = now ? now->value : 0, paid = now ? r->cost[now->type] * now->replicas : 0;
    int room = own + adli_resources_fit(r->snapshot, &r->free[type], c->job);
    while (i < end && r->options[i].replicas <= known)
        i++;
    for (; i < end && r->options[i].replicas <= room; i++) {
        const option *o = &r->options[i];
        double more = r->cost[type] * o->replicas - paid;
        if (o->value - value > c->density * (more > 0.001 ? more : 0.001)) {
            c->density = (o->value - value) / (more > 0.001 ? more : 0.001);
            c->best = i;
        }
    }
    return c->density > before_density;
}

static void find_jump(const rank *r, candidate *c)
{
    c->best = -1;
    c->density = 0;
    for (int t = 0; t < r->types.count; t++)
        look(r, c, t, NULL);
}

/* Is x's jump to be taken before y's? Ties: the earlier job. */
static bool before(const void *user, int x, int y)
{
    const rank *r = user;
    double a = r->jobs[x].density, b = r->jobs[y].density;
    return a != b ? a > b : x < y;
}

static void order(rank *r, int count)
{
    for (int i = count / 2; i-- > 0;)
        adli_heap_sift(r->order, count, i, before, r);
}

/* As in rank.c a heap of jobs by their best jump, looked at again when one reaches the top; but a job that
 * goes to another type leaves room behind, and then every job may have a better jump to that one. */
static void hand_out(rank *r)
{
    int count = r->snapshot->job_count;
    for (int i = 0; i < count; i++) {
        find_jump(r, &r->jobs[i]);
        r->order[i] = i;
    }
    order(r, count);
    while (count > 0 && r->jobs[r->order[0]].best >= 0) {
        candidate *c = &r->jobs[r->order[0]];
        adl_resources before_left;
        int left = -1;
        if (fits(r, c, c->best)) {
            const option *to = &r->options[c->best];
            if (c->taken >= 0) {
                const option *from = &r->options[c->taken];
                before_left = r->free[from->type];
                adli_resources_take(r->snapshot, &r->free[from->type], c->job, -from->replicas);
                if ((from->type != to->type || from->replicas > to->replicas) &&
                    !nobody_waits(r, &before_left, from->type))
                    left = from->type;
            }
            adli_resources_take(r->snapshot, &r->free[to->type], c->job, to->replicas);
            c->taken = c->best;
        }
        bool better = false;
        find_jump(r, c);
        for (int i = 0; i < count && left >= 0; i++)
            better |= &r->jobs[i] != c && look(r, &r->jobs[i], left, &before_left);
        if (better)
            order(r, count);
        else
            adli_heap_sift(r->order, count, 0, before, r);
    }
}

static bool must_stay(const candidate *c)
{
    return c->job->replicas > 0 && c->job->suspend == ADL_SUSPEND_NEVER;
}

/* The least size of a job that is never suspended, on the type that it is on, or the next that has room. */
static void take_least(rank *r, candidate *c)
{
    for (int k = 0; k < r->types.count && c->taken < 0; k++) {
        int type = (c->present + k) % r->types.count, least = c->of_type[type];
        if (least == c->of_type[type + 1] || !fits(r, c, least))
            continue;
        adli_resources_take(r->snapshot, &r->free[type], c->job, r->options[least].replicas);
        c->taken = least;
    }
}

/* Those that run and are not to be suspended get their least size before anybody grows, as in rank.c: the ones that never
 * are at once, the others as far as no newcomer's start is worth more. */
static void hand_out_floors(rank *r)
{
    bool any = false;
    for (int i = 0; i < r->snapshot->job_count; i++) {
        candidate *c = &r->jobs[i];
        bool last_resort = c->job->suspend == ADL_SUSPEND_LAST_RESORT;
        c->waits = c->job->replicas > 0 && !last_resort;
        any |= c->job->replicas > 0 && last_resort;
        if (must_stay(c) && c->count > 0)
            take_least(r, c);
    }
    r->floors = true;
    if (any)
        hand_out(r);
    r->floors = false;
}

static adl_status prepare(rank *r)
{
    adl_status status = ADL_OK;
    set_prices(r);
    for (int t = 0; t < r->types.count; t++)
        r->free[t] = r->idle[t] = r->types.total[t];
    for (int j = 0; j < r->snapshot->job_count && status == ADL_OK; j++) {
        candidate *c = &r->jobs[j];
        c->job = &r->snapshot->jobs[j];
        c->taken = -1;
        c->present = adli_types_present(&r->types, c->job);
        c->hinted = !c->job->model || c->job->total_work > 0;
        adli_types_take(&r->types, c->job, r->idle);
        if (adli_job_pinned(c->job))
            adli_types_take(&r->types, c->job, r->free);
        status = list_options(r, c);
        c->rate1 = rate_of_one(r, c);
        c->work = adli_rank_work(c->job, c->rate1, r->params[ADLI_RANK_TPRIOR]);
        c->t1 = c->job->model ? fmax(c->work / c->rate1, 30) : c->work;
    }
    if (status != ADL_OK)
        return status;
    weigh(r);
    for (int j = 0; j < r->snapshot->job_count; j++) {
        candidate *c = &r->jobs[j];
        for (int i = c->first; i < c->first + c->count; i++) {
            option *o = &r->options[i];
            o->keep = kept(r, c, o);
            double speedup = o->rate / c->rate1 * o->keep;
            o->value = c->weight * (r->price > 0 ? speedup : pow(speedup, r->params[ADLI_RANK_P]));
        }
    }
    return ADL_OK;
}

static void fill_sizes(const rank *r, adli_plan *plan, adli_typed_size *sizes)
{
    for (int j = 0; j < r->snapshot->job_count; j++) {
        const candidate *c = &r->jobs[j];
        if (adli_job_pinned(c->job))
            sizes[j] = (adli_typed_size){.type = c->present, .replicas = c->job->replicas};
        else if (c->taken >= 0) {
            const option *o = &r->options[c->taken];
            sizes[j] = (adli_typed_size){o->type, o->replicas, must_stay(c)};
            plan->jobs[j].restart_cost = 1 - o->keep;
        }
    }
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
        hand_out_floors(&r);
        hand_out(&r);
        fill_sizes(&r, plan, sizes);
        memcpy(plan->type_price, r.cost, sizeof r.cost);
        status = adli_types_pack(plan, &r.types, sizes);
    }
    adli_types_fini(&r.types);
    free(r.options);
    free(r.order);
    free(r.jobs);
    free(sizes);
    return status;
}
