/* rank: the default policy. Jobs are ranked by the time they still need; a weight that grows with the
 * rank (short ones first) and with unfairness suffered makes a job's devices worth more, and devices
 * are handed out greedily to where they add most value.
 *
 *   R = work left, T1 = R / rate(1), k = rank by T1 (1 = longest ... J = shortest)
 *   lambda = price * (k + kmix) / devices
 *   w    = priority * (min over n of (1 + lambda * n) * rate(1) / rate(n))^pfut * max(1, rho / gth)
 *   V(n) = w * rate(n) / rate(1) * f(n)
 *   f(n) = 1 for the present size; otherwise less: what a restart costs, and some hysteresis.
 *
 * w is what a job would pay for a unit of progress at its best size, if a device cost lambda and that
 * price fell as jobs finish. It needs models that are right early, which jobs have where they share what
 * they measured. Where they do not (or with price=0),
 *
 *   w    = priority * k^hep * (T1 / 1000 s)^-alpha * max(1, rho / gth)^gex
 *   V(n) = w * (rate(n) / rate(1) * f(n))^p
 *
 * Found by experiment on the OSDI'21 traces, workloads 1 to 4; docs/policies.md has the numbers. */
#include "policy/rank.h"

#include "base/mem.h"
#include "model/speedup.h"
#include "policy/heap.h"
#include "policy/room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const adli_policy_param params[] = {
    [ADLI_RANK_PRICE] =
        {"price", -1, -1, 1000,
         "price of the cluster; 0: weights by rank; -1: 4 where jobs share models or there are "
         "device types, else 0"},
    [ADLI_RANK_KMIX] = {"kmix", 0, 0, 1000, "part of the price that does not fall with the rank"},
    [ADLI_RANK_PFUT] = {"pfut", 1, 0, 10, "exponent of the price of progress"},
    [ADLI_RANK_HEP] = {"hep", 1.4, 0, 10,
                       "price=0: exponent of the rank: how strongly short jobs go first"},
    [ADLI_RANK_ALPHA] = {"alpha", 0.1, 0, 5, "price=0: exponent of the remaining time"},
    [ADLI_RANK_P] = {"p", 0.45, 0.01, 1,
                     "price=0: exponent of the speedup: below 1, the first devices count most"},
    [ADLI_RANK_RS] = {"rs", 1.35, 0, 100, "how much a restart counts against the remaining time"},
    [ADLI_RANK_HY] = {"hy", 0.06, 0, 1, "least relative gain for growing"},
    [ADLI_RANK_SHY] = {"shy", 0.07, 0, 1, "least relative gain for shrinking"},
    [ADLI_RANK_DW] = {"dw", 0.8, 0, 10, "reluctance to change what changed just now"},
    [ADLI_RANK_TPRIOR] = {"tprior_s", 300, 1, 1e9,
                          "remaining time of a job that has not reported yet"},
    [ADLI_RANK_GTH] = {"gth", 1, 0.01, 100, "unfairness above which a job's weight is raised"},
    [ADLI_RANK_GEX] = {"gex", 2, 0, 10, "price=0: exponent of the unfairness"},
    [ADLI_RANK_RESTART] = {"restart_cost_s", 30, 0, 1e6,
                           "restart cost of a job that has not measured its own"},
    {0}};

static const double usual_price = 4;

/* One size a job could have. */
typedef struct option {
    int replicas;
    bool grid;    /* one of the sizes that all jobs have in common */
    float keep;   /* f(n) */
    double rate;  /* asked for once */
    double value; /* V(n) */
} option;

typedef struct candidate {
    const adl_job *job;
    int node_size;     /* replicas on one empty node */
    int sizes, end;    /* options[sizes .. end): all that its weight depends on, 1 replica first; */
    int first, count;  /* of these [first .. first + count) are those it may have */
    int limit;         /* how many of them it may choose from now */
    int taken;         /* index of the option taken so far; -1: none */
    int best;          /* index of the option of the best jump from there; -1: none */
    double density;    /* its value per share of the cluster */
    double share;      /* of the cluster's dominant resource, one replica */
    int widest, empty; /* replicas for which one node has room now; nodes on which nobody is */
    double work, t1, rate1, weight;
    bool hinted;
} candidate;

typedef struct rank {
    const adl_snapshot *snapshot;
    const double *params;
    double price; /* 0: weights by rank */
    candidate *jobs;
    option *options;
    size_t option_count, option_capacity;
    int *order; /* by T1; then the heap */
    adl_resources total;
    adl_resources *idle; /* [node_count] what no job has now; NULL: no job can change in place */
} rank;

static int node_size(const adl_snapshot *snapshot, const adl_job *job)
{
    int most = 0;
    for (int node = 0; node < snapshot->node_count; node++) {
        int fit = adli_resources_fit(snapshot, &snapshot->nodes[node].capacity, job);
        most = fit > most ? fit : most;
    }
    return most;
}

static double rate(const candidate *c, int replicas)
{
    if (!c->job->model)
        return replicas;
    int size = c->node_size > 0 ? c->node_size : 1, nodes = (replicas + size - 1) / size;
    return adl_speedup_rate(c->job->model, adl_shape_of(nodes, replicas));
}

/* 1, 2, 4 ... below a node's size, then whole nodes; beyond 16 of them in steps of an eighth, so that a
 * job on a large cluster has tens of sizes to choose from, not hundreds. */
static int next_size(const candidate *c, int n)
{
    int size = c->node_size > 0 ? c->node_size : 1, nodes = n / size;
    if (n < c->node_size)
        return 2 * n < c->node_size ? 2 * n : c->node_size;
    return n + size * (nodes >= 16 ? nodes / 8 : 1);
}

static double devices(const rank *r, const candidate *c)
{
    return c->share > 0 ? 1 / c->share : r->snapshot->node_count;
}

double adli_rank_work(const adl_job *job, double rate1, double tprior_s)
{
    if (!job->model)
        return tprior_s;
    if (!(job->total_work > 0))
        return fmax(job->progress, 1000 * rate1);
    double work = fmax(job->total_work - job->progress, 0.5 * job->epoch_work);
    if (job->progress > job->total_work) /* it overran what it declared: expect more of that */
        work = fmax(work, 0.25 * job->progress);
    return work;
}

static adl_status add_size(rank *r, candidate *c, int n, bool grid)
{
    if (adli_grow(&r->options, &r->option_capacity, r->option_count + 1, sizeof *r->options) != 0)
        return adli_fail_memory("options");
    r->options[r->option_count++] = (option){.replicas = n, .grid = grid, .rate = rate(c, n)};
    c->end = (int)r->option_count;
    return ADL_OK;
}

/* The sizes worth considering, ascending: the grid up to the first that is all it could have or more, the
 * least the job accepts, and what it has. */
static adl_status list_sizes(rank *r, candidate *c)
{
    const adl_job *job = c->job;
    int least = job->min_replicas > 1 ? job->min_replicas : 1, last = 0;
    int most = (int)fmin(job->max_replicas, devices(r, c) + 1e-9);
    int extra[2] = {least < job->replicas ? least : job->replicas,
                    least < job->replicas ? job->replicas : least};
    adl_status status = ADL_OK;
    c->sizes = c->end = (int)r->option_count;
    for (int n = 1; status == ADL_OK; n = next_size(c, n)) {
        for (int e = 0; e < 2 && status == ADL_OK; e++)
            if (extra[e] > last && extra[e] < n && extra[e] <= most) {
                last = extra[e];
                status = add_size(r, c, last, false);
            }
        if (status == ADL_OK)
            status = add_size(r, c, n, true);
        last = n;
        if (n >= most)
            break;
    }
    if (c->node_size == 0 || adli_job_pinned(job))
        return status;
    for (c->first = c->sizes; c->first < c->end && r->options[c->first].replicas < least;)
        c->first++;
    while (c->first + c->count < c->end && r->options[c->first + c->count].replicas <= most)
        c->count++;
    return status;
}

/* Step 2: what is left to do, and how long it takes on one device. */
static void estimate(const rank *r, candidate *c)
{
    const adl_job *job = c->job;
    c->hinted = !job->model || job->total_work > 0;
    c->rate1 = fmax(r->options[c->sizes].rate, 1e-300);
    if (job->model) /* one alone may be impossible: its share of the fewest that are not */
        c->rate1 = fmax(c->rate1, adli_speedup_one(job->model));
    c->work = adli_rank_work(job, c->rate1, r->params[ADLI_RANK_TPRIOR]);
    if (!job->model) {
        c->t1 = c->work;
        return;
    }
    c->t1 = fmax(c->work / c->rate1, 30);
}

/* Step 4: how much later than on a fair share this job will be done, as things stand. */
static double unfairness(const rank *r, const candidate *c)
{
    const adl_job *job = c->job;
    double active = job->mean_active > 0 ? job->mean_active : r->snapshot->job_count;
    double fair = devices(r, c) / active, best = c->rate1;
    if (fair < 1)
        best *= fair;
    for (const option *o = r->options + c->sizes; o < r->options + c->end; o++)
        if (o->grid && o->replicas <= fair && o->rate > best)
            best = o->rate;
    double age_s = r->snapshot->now_s - job->submit_s, progress = job->model ? job->progress : 0;
    return (age_s + c->work / best) / ((progress + c->work) / best + 60);
}

/* Longest first. Of equal ones those that run count as shorter: they are not stopped for a newcomer that
 * is no better. Then the older ones, so that jobs that never report are served as they came. */
static int by_time_left(const void *a, const void *b, void *jobs)
{
    int i = *(const int *)a, j = *(const int *)b;
    const candidate *x = (const candidate *)jobs + i, *y = (const candidate *)jobs + j;
    if (x->t1 != y->t1)
        return x->t1 > y->t1 ? -1 : 1;
    if ((x->job->replicas > 0) != (y->job->replicas > 0))
        return x->job->replicas > 0 ? 1 : -1;
    return j - i;
}

/* What a unit of the job's progress is worth: what it would pay for it at its best size, were devices
 * to cost lambda each and time 1. */
static double price(const rank *r, const candidate *c, double position)
{
    double lambda = r->price * (position + r->params[ADLI_RANK_KMIX]) / devices(r, c),
           mu = HUGE_VAL;
    if (!c->job->model)
        return pow(0.5 + lambda, r->params[ADLI_RANK_PFUT]);
    for (const option *o = r->options + c->sizes; o < r->options + c->end; o++) {
        double paid = (1 + lambda * o->replicas) * c->rate1 / o->rate;
        if (o->grid && o->rate > 0 && paid < mu)
            mu = paid;
    }
    return pow(mu < HUGE_VAL ? mu : 1 + lambda, r->params[ADLI_RANK_PFUT]);
}

double adli_rank_weight(const double *values, double position, double t1_s)
{
    return pow(position, values[ADLI_RANK_HEP]) * pow(t1_s / 1000, -values[ADLI_RANK_ALPHA]);
}

/* The weight of a job at a place in the ranking, one formula for all jobs. */
static double worth(const rank *r, const candidate *c, double position)
{
    if (r->price > 0)
        return price(r, c, position);
    return adli_rank_weight(r->params, position, c->hinted ? c->t1 : 10000);
}

/* Steps 3 and 4. Jobs that declare no work are put in the middle, the others ranked over 1 .. J. */
static void weigh(rank *r)
{
    int count = r->snapshot->job_count, hinted = 0;
    for (int i = 0; i < count; i++)
        if (r->jobs[i].hinted)
            r->order[hinted++] = i;
    qsort_r(r->order, (size_t)hinted, sizeof *r->order, by_time_left, r->jobs);
    for (int i = 0; i < count; i++)
        if (!r->jobs[i].hinted)
            r->jobs[i].weight = worth(r, &r->jobs[i], 0.5 * (count + 1));
    for (int k = 0; k < hinted; k++) {
        candidate *c = &r->jobs[r->order[k]];
        c->weight = worth(r, c, hinted > 1 ? 1 + (double)k * (count - 1) / (hinted - 1) : count);
    }
    for (int i = 0; i < count; i++) {
        double rho = unfairness(r, &r->jobs[i]) / r->params[ADLI_RANK_GTH];
        if (rho > 1)
            r->jobs[i].weight *= r->price > 0 ? rho : pow(rho, r->params[ADLI_RANK_GEX]);
        r->jobs[i].weight *= adli_job_priority(r->jobs[i].job);
    }
}

/* What of a node is left for n replicas, were those of the job that are there taken for some of them? */
static bool could_stay(const rank *r, const candidate *c, int node, int n)
{
    const adl_job *job = c->job;
    adl_resources room = r->idle[node];
    for (int i = 0; i < job->replicas; i++)
        if (job->allocation[i] == node)
            adli_resources_take(r->snapshot, &room, job, -1);
    return adli_resources_fit(r->snapshot, &room, job) >= n;
}

/* Will it go on where some of it is? Only if one of its nodes has room for it as the others are now: up to a node's size
 * it is on one, and larger it has its nodes for itself. */
static adli_change change_to(const rank *r, const candidate *c, int n)
{
    const adl_job *job = c->job;
    int part = n < c->node_size ? n : c->node_size;
    if (job->replicas == 0 || !r->idle)
        return ADLI_RESTARTS;
    for (int i = 0; i < job->replicas; i++)
        if ((i == 0 || job->allocation[i] != job->allocation[i - 1]) &&
            could_stay(r, c, job->allocation[i], part))
            return ADLI_RESIZES;
    bool room = n <= c->node_size ? n <= c->widest : n <= c->empty * c->node_size;
    return room ? ADLI_MOVES : ADLI_RESTARTS;
}

/* Step 5: f(n), the part of the value that survives the change. */
static double kept(const rank *r, const candidate *c, const option *o)
{
    const adl_job *job = c->job;
    int n = o->replicas;
    bool priced = r->price > 0;
    if (n == job->replicas || (priced && job->attained_s == 0))
        return 1;
    double cost_s = adli_job_change_cost(job, change_to(r, c, n), r->params[ADLI_RANK_RESTART]);
    double left_s = job->model ? c->work / fmax(o->rate, 1e-300) : r->params[ADLI_RANK_TPRIOR];
    double f = 1 - fmin(0.95, r->params[ADLI_RANK_RS] * cost_s / (left_s + cost_s));
    f -= r->params[n < job->replicas ? ADLI_RANK_SHY : ADLI_RANK_HY] *
         (priced ? sqrt(cost_s / 30) : 1);
    bool explores = n > job->replicas && n > job->max_profiled;
    if (job->replicas > 0 && !explores)
        f -= r->params[ADLI_RANK_DW] * cost_s / (r->snapshot->now_s - job->last_change_s + cost_s);
    return fmax(f, 0.01);
}

static void value(const rank *r, const candidate *c)
{
    for (option *o = r->options + c->first; o < r->options + c->first + c->count; o++) {
        double keep = kept(r, c, o), speedup = fmax(o->rate, 0) / c->rate1 * keep;
        o->keep = (float)keep;
        o->value = c->weight * (r->price > 0 ? speedup : pow(speedup, r->params[ADLI_RANK_P]));
    }
}

/* Step 6: the best jump of a job from where it is, within what is free. */
static void find_jump(const rank *r, candidate *c)
{
    const option *options = r->options + c->first;
    double value = c->taken >= 0 ? options[c->taken].value : 0;
    int size = c->taken >= 0 ? options[c->taken].replicas : 0;
    int room = adli_resources_fit(r->snapshot, &r->total, c->job);
    c->best = -1;
    c->density = 0;
    for (int i = c->taken + 1; i < c->limit && options[i].replicas - size <= room; i++) {
        double density = (options[i].value - value) / ((options[i].replicas - size) * c->share);
        if (density > c->density) {
            c->density = density;
            c->best = i;
        }
    }
}

/* Is x's jump to be taken before y's? Ties: the earlier job. */
static bool before(const void *user, int x, int y)
{
    const rank *r = user;
    double a = r->jobs[x].density, b = r->jobs[y].density;
    return a != b ? a > b : x < y;
}

/* The last jump that was taken: who else wants devices has lost them to this one. */
typedef struct jump {
    int job; /* -1: none was */
    double gain, worth;
} jump;

/* Hands out devices: a heap of jobs by their best jump. What is free only shrinks, so a job's best
 * jump only gets worse, and looking again when it reaches the top is enough. */
static jump hand_out(rank *r)
{
    int count = r->snapshot->job_count;
    jump last = {.job = -1};
    for (int i = 0; i < count; i++) {
        find_jump(r, &r->jobs[i]);
        r->order[i] = i;
    }
    for (int i = count / 2; i-- > 0;)
        adli_heap_sift(r->order, count, i, before, r);
    while (count > 0 && r->jobs[r->order[0]].best >= 0) {
        candidate *c = &r->jobs[r->order[0]];
        const option *options = r->options + c->first;
        int size = c->taken >= 0 ? options[c->taken].replicas : 0;
        int more = options[c->best].replicas - size;
        if (adli_resources_fit(r->snapshot, &r->total, c->job) >= more) {
            adli_resources_take(r->snapshot, &r->total, c->job, more);
            double from = size ? options[c->taken].rate : c->rate1;
            last = (jump){r->order[0], options[c->best].rate / from, c->density};
            c->taken = c->best;
        }
        find_jump(r, c);
        adli_heap_sift(r->order, count, 0, before, r);
    }
    return last;
}

/* Those that run and are not to be suspended get their least size before anybody grows: the ones that never are at
 * once, the others as far as no newcomer's start is worth more. */
static jump hand_out_floors(rank *r)
{
    bool any = false;
    for (int i = 0; i < r->snapshot->job_count; i++) {
        candidate *c = &r->jobs[i];
        int least = c->count > 0 ? r->options[c->first].replicas : 0;
        bool runs = c->job->replicas > 0;
        c->limit = c->count > 0 && (!runs || c->job->suspend == ADL_SUSPEND_LAST_RESORT);
        any |= runs && c->limit;
        if (runs && c->count > 0 && c->job->suspend == ADL_SUSPEND_NEVER &&
            adli_resources_fit(r->snapshot, &r->total, c->job) >= least) {
            adli_resources_take(r->snapshot, &r->total, c->job, least);
            c->taken = 0;
        }
    }
    jump last = any ? hand_out(r) : (jump){.job = -1};
    for (int i = 0; i < r->snapshot->job_count; i++)
        r->jobs[i].limit = r->jobs[i].count;
    return last;
}

/* What a job would do with more, were there more. */
static void explain(rank *r, adl_job_decision *out, candidate *c, const jump *last)
{
    const option *options = r->options + c->first;
    double value = c->taken >= 0 ? options[c->taken].value : 0, best = 0;
    int size = c->taken >= 0 ? options[c->taken].replicas : 0, next = -1;
    if (c->taken >= 0)
        out->restart_cost = 1 - (double)options[c->taken].keep;
    for (int i = c->taken + 1; i < c->count; i++) {
        double density = (options[i].value - value) / ((options[i].replicas - size) * c->share);
        if (density > best) {
            best = density;
            next = i;
        }
    }
    if (next >= 0) {
        out->next_replicas = options[next].replicas;
        out->next_gain = options[next].rate / (size ? options[c->taken].rate : c->rate1);
        out->weight = c->weight;
        out->next_worth = best;
    }
    /* who took less than this job's next devices are worth did not take them: they do not fit */
    if (out->next_replicas > 0 && last->job >= 0 && c != &r->jobs[last->job] &&
        last->worth >= best) {
        out->rival = last->job;
        out->rival_gain = last->gain;
        out->rival_weight = r->jobs[last->job].weight;
        out->rival_worth = last->worth;
    }
}

static double share_of(const adl_snapshot *snapshot, const adl_resources *total, const adl_job *job)
{
    double share = 0;
    for (int i = 0; i < snapshot->resource_count; i++)
        if (total->amount[i] > 0)
            share = fmax(share, (double)job->request.amount[i] / (double)total->amount[i]);
    return share;
}

/* What nobody has now, if there are jobs to which it matters. */
static adl_status find_idle(rank *r)
{
    const adl_snapshot *snapshot = r->snapshot;
    bool any = false;
    for (int i = 0; i < snapshot->job_count; i++)
        any |= snapshot->jobs[i].resize_cost_s > 0 && snapshot->jobs[i].replicas > 0;
    if (!any)
        return ADL_OK;
    r->idle = adli_calloc((size_t)snapshot->node_count, sizeof *r->idle);
    if (!r->idle)
        return adli_fail_memory("idle devices");
    for (int n = 0; n < snapshot->node_count; n++)
        r->idle[n] = snapshot->nodes[n].capacity;
    for (int i = 0; i < snapshot->job_count; i++)
        for (int k = 0; k < snapshot->jobs[i].replicas; k++)
            adli_resources_take(snapshot, &r->idle[snapshot->jobs[i].allocation[k]],
                                &snapshot->jobs[i], 1);
    return ADL_OK;
}

static void find_room(const rank *r, candidate *c)
{
    for (int n = 0; r->idle && n < r->snapshot->node_count; n++) {
        int fit = adli_resources_fit(r->snapshot, &r->idle[n], c->job);
        c->widest = fit > c->widest ? fit : c->widest;
        c->empty += fit == c->node_size;
    }
}

static adl_status prepare(rank *r, const adl_resources *total)
{
    int count = r->snapshot->job_count;
    adl_status status = find_idle(r);
    if (status != ADL_OK)
        return status;
    for (int i = 0; i < count; i++) {
        candidate *c = &r->jobs[i];
        c->job = &r->snapshot->jobs[i];
        c->taken = c->best = -1;
        bool same =
            i > 0 && memcmp(&c->job->request, &c[-1].job->request, sizeof c->job->request) == 0;
        if (same) {
            c->node_size = c[-1].node_size;
            c->widest = c[-1].widest;
            c->empty = c[-1].empty;
        } else {
            c->node_size = node_size(r->snapshot, c->job);
            find_room(r, c);
        }
        c->share = share_of(r->snapshot, total, c->job);
        if (adli_job_pinned(c->job))
            adli_resources_take(r->snapshot, &r->total, c->job, c->job->replicas);
        status = list_sizes(r, c);
        if (status != ADL_OK)
            return status;
        estimate(r, c);
    }
    weigh(r);
    for (int i = 0; i < count; i++)
        value(r, &r->jobs[i]);
    return status;
}

static adl_status decide(adli_plan *plan)
{
    const adl_snapshot *snapshot = plan->snapshot;
    size_t count = (size_t)snapshot->job_count;
    rank r = {.snapshot = snapshot, .params = plan->params, .price = plan->params[ADLI_RANK_PRICE]};
    if (r.price < 0)
        r.price = snapshot->shared_models || snapshot->type_count > 1 ? usual_price : 0;
    if (snapshot->type_count > 1)
        return adli_rank_types(plan, r.price);
    adli_rank_job *sizes = adli_calloc(count, sizeof *sizes);
    r.jobs = adli_calloc(count, sizeof *r.jobs);
    r.order = adli_calloc(count, sizeof *r.order);
    adl_status status = sizes && r.jobs && r.order ? ADL_OK : adli_fail_memory("ranks of jobs");
    for (int node = 0; node < snapshot->node_count; node++)
        for (int i = 0; i < snapshot->resource_count; i++)
            r.total.amount[i] += snapshot->nodes[node].capacity.amount[i];
    if (status == ADL_OK) {
        adl_resources total = r.total;
        status = prepare(&r, &total);
    }
    if (status == ADL_OK) {
        jump floor = hand_out_floors(&r), last = hand_out(&r);
        last = last.job >= 0 ? last : floor;
        for (size_t i = 0; i < count; i++) {
            candidate *c = &r.jobs[i];
            /* no other job's place is worth the one of a job that must stay */
            bool stays = c->job->replicas > 0 && c->job->suspend == ADL_SUSPEND_NEVER;
            sizes[i].weight = stays ? 1e12 * c->weight : c->weight;
            sizes[i].node_size = c->node_size;
            sizes[i].replicas = c->taken >= 0 ? r.options[c->first + c->taken].replicas : 0;
            if (adli_job_pinned(c->job))
                sizes[i].replicas = c->job->replicas;
            explain(&r, &plan->jobs[i], c, &last);
        }
        status = adli_rank_pack(plan, sizes);
    }
    free(r.idle);
    free(r.options);
    free(r.order);
    free(r.jobs);
    free(sizes);
    return status;
}

const adli_policy_class adli_policy_rank = {
    .name = "rank",
    .summary = "short jobs first, devices where they add most (default)",
    .params = params,
    .adapts = true,
    .decide = decide,
};
