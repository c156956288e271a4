/* From a snapshot to the problem that the genetic search works on: which jobs are open and in what
 * order they take resources, which resources can be short at all, and what every row is worth.
 *
 * Worth of a row with N nodes and R replicas:
 *   scaled  = speedup(N, R) x share x nodes in the cluster x (factor if the row is not the present one)
 *   share   = dominant resource share of one replica
 *   value   = -1 / (scaled + 1e-3)   paper's form; the first objective is J / -sum, a power mean, p = -1
 *             scaled                 seeds' form; the first objective is the sum
 *   utility = (speedup / R) x (R x share) = speedup x share
 *   factor  = max(age - restarts x D, 0) / (age + D)   paper's form, D seconds lost per restart
 *             1 - penalty                              seeds' form */
#include "policy/pollux.h"

#include "base/mem.h"
#include "policy/room.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Replicas of one job beyond this are not considered unless its minimum asks for them: keeps the
 * tables small where a job has no bound and asks for crumbs. */
enum { MAX_REPLICAS = 4096 };

static const double epsilon = 1e-3;

/* ---- nodes ---- */

static adl_status order_nodes(adli_pollux_problem *problem)
{
    const adl_snapshot *snapshot = problem->snapshot;
    problem->node_of = adli_calloc((size_t)problem->node_count, sizeof *problem->node_of);
    problem->position = adli_calloc((size_t)snapshot->node_count, sizeof *problem->position);
    problem->type_of = adli_calloc((size_t)problem->node_count, sizeof *problem->type_of);
    if (!problem->node_of || !problem->position || !problem->type_of)
        return adli_fail_memory("nodes of the search");
    int next = 0;
    for (int spot = 0; spot < 2; spot++)
        for (int node = 0; node < snapshot->node_count; node++)
            if (snapshot->nodes[node].preemptible == (spot == 1)) {
                problem->position[node] = next;
                problem->node_of[next++] = node;
            }
    while (next < problem->node_count)
        problem->node_of[next++] = -1;
    for (int node = 0; node < problem->node_count && problem->type_count > 1; node++) {
        int real = problem->node_of[node];
        problem->type_of[node] =
            adli_node_type(snapshot, real < 0 ? snapshot->template_node : &snapshot->nodes[real]);
    }
    return ADL_OK;
}

static const adl_resources *capacity_of(const adli_pollux_problem *problem, int node)
{
    int real = problem->node_of[node];
    return real < 0 ? &problem->snapshot->template_node->capacity
                    : &problem->snapshot->nodes[real].capacity;
}

/* ---- worth ---- */

static double dominant_share(const adli_pollux_problem *problem, const adl_job *job)
{
    double share = 0;
    for (int r = 0; r < problem->snapshot->resource_count; r++)
        if (problem->totals[r] > 0)
            share = fmax(share, (double)job->request.amount[r] / problem->totals[r]);
    return share;
}

static adli_worth worth_of(const adli_pollux_problem *problem, const adl_job *job, double share,
                           double factor, adl_shape shape)
{
    double speedup = shape.replicas > 0 ? adli_job_speedup(job, shape) : 0;
    double scaled = speedup * factor * share * problem->node_count;
    return (adli_worth){
        .value = problem->form == ADLI_POLLUX_PAPER ? -1 / (scaled + epsilon) : scaled,
        .utility = speedup * share,
    };
}

adli_worth adli_pollux_worth(const adli_pollux_problem *problem, const adli_pollux_job *job,
                             adl_shape shape)
{
    return worth_of(problem, &problem->snapshot->jobs[job->index], job->share, job->factor, shape);
}

/* What a change of allocation multiplies the job's speedup by. */
static double change_factor(const adl_snapshot *snapshot, const adl_job *job,
                            const adli_pollux_options *options)
{
    if (options->form == ADLI_POLLUX_SEEDS)
        return 1 - options->change_penalty;
    double cost = adli_job_change_cost(job, job->replicas > 0 ? ADLI_RESIZES : ADLI_RESTARTS,
                                       options->restart_cost_s);
    double age = fmax(snapshot->now_s - job->submit_s, 0);
    return age + cost > 0 ? fmax(age - job->restarts * cost, 0) / (age + cost) : 1;
}

/* ---- jobs that are not open ---- */

static void fix(adli_pollux_problem *problem, const adl_job *job, adl_shape shape)
{
    adli_worth worth = worth_of(problem, job, dominant_share(problem, job), 1, shape);
    problem->fixed.value += worth.value;
    problem->fixed.utility += worth.utility;
    problem->fixed_count++;
}

/* Takes the pinned jobs' resources out of room. */
static void fix_pinned(adli_pollux_problem *problem, adl_resources *room)
{
    const adl_snapshot *snapshot = problem->snapshot;
    for (int j = 0; j < snapshot->job_count; j++) {
        const adl_job *job = &snapshot->jobs[j];
        if (!adli_job_pinned(job))
            continue;
        int nodes = 0;
        bool distributed = job->allocation[0] != job->allocation[job->replicas - 1];
        for (int i = 0; i < job->replicas; i++) {
            int node = problem->position[job->allocation[i]];
            for (int r = 0; r < snapshot->resource_count; r++)
                room[node].amount[r] -= job->request.amount[r];
            if (i > 0 && job->allocation[i] == job->allocation[i - 1])
                continue;
            nodes++;
            problem->pinned[node] += distributed;
            if (node >= problem->fixed_size)
                problem->fixed_size = node + 1;
        }
        int type = problem->type_of[problem->position[job->allocation[0]]];
        fix(problem, job, (adl_shape){nodes, job->replicas, type});
    }
}

/* ---- resources ---- */

static bool same_request(const adl_snapshot *snapshot, int a, int b)
{
    return memcmp(snapshot->jobs[a].request.amount, snapshot->jobs[b].request.amount,
                  (size_t)snapshot->resource_count * sizeof(int64_t)) == 0;
}

/* Does a node that has enough of resource b for its jobs always have enough of a? True when no kind
 * asks for more of a per unit of b than any node has left of a per unit of b. */
static bool implied(const adli_pollux_problem *problem, const adl_resources *room, const int *kinds,
                    int a, int b)
{
    for (int kind = 0; kind < problem->kind_count; kind++) {
        const int64_t *request = problem->snapshot->jobs[kinds[kind]].request.amount;
        if (request[a] > 0 && request[b] == 0)
            return false;
        for (int node = 0; request[a] > 0 && node < problem->node_count; node++)
            if ((__int128)request[a] * room[node].amount[b] >
                (__int128)request[b] * room[node].amount[a])
                return false;
    }
    return true;
}

/* Leaves out the resources that never decide. kinds: [kind_count] a job of each. */
static adl_status choose_resources(adli_pollux_problem *problem, const adl_resources *room,
                                   const int *kinds)
{
    int chosen[ADL_MAX_RESOURCES], all = problem->snapshot->resource_count;
    bool out[ADL_MAX_RESOURCES] = {false};
    for (int a = all - 1; a >= 0; a--)
        for (int b = 0; b < all && !out[a]; b++)
            out[a] = b != a && !out[b] && implied(problem, room, kinds, a, b);
    for (int r = 0; r < all; r++)
        if (!out[r])
            chosen[problem->resource_count++] = r;

    size_t count = (size_t)problem->resource_count;
    problem->request = adli_calloc((size_t)problem->kind_count * count, sizeof(int64_t));
    problem->free = adli_calloc((size_t)problem->node_count * count, sizeof(int64_t));
    if (!problem->request || !problem->free)
        return adli_fail_memory("resources of the search");
    for (int kind = 0; kind < problem->kind_count; kind++)
        for (size_t r = 0; r < count; r++)
            problem->request[(size_t)kind * count + r] =
                problem->snapshot->jobs[kinds[kind]].request.amount[chosen[r]];
    for (int node = 0; node < problem->node_count; node++)
        for (size_t r = 0; r < count; r++)
            problem->free[(size_t)node * count + r] = room[node].amount[chosen[r]];
    return ADL_OK;
}

static adl_status find_capacity(adli_pollux_problem *problem, const adl_resources *room,
                                const int *kinds)
{
    size_t nodes = (size_t)problem->node_count;
    problem->capacity = adli_calloc((size_t)problem->kind_count * nodes, sizeof(int));
    if (!problem->capacity)
        return adli_fail_memory("capacities of the search");
    for (int kind = 0; kind < problem->kind_count; kind++)
        for (size_t node = 0; node < nodes; node++)
            problem->capacity[(size_t)kind * nodes + node] = adli_resources_fit(
                problem->snapshot, &room[node], &problem->snapshot->jobs[kinds[kind]]);
    return ADL_OK;
}

/* ---- open jobs ---- */

/* Who takes resources first. Paper's form: who had least, then who waits longest. Seeds' form: who
 * is content with fewest, then who waits longest. */
typedef struct turn {
    double first, second;
    int index;
} turn;

static int by_turn(const void *a, const void *b)
{
    const turn *x = a, *y = b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    if (x->second != y->second)
        return x->second < y->second ? -1 : 1;
    return x->index - y->index;
}

static int find_kind(const adl_snapshot *snapshot, int *kinds, int *kind_count, int job)
{
    for (int kind = 0; kind < *kind_count; kind++)
        if (same_request(snapshot, kinds[kind], job))
            return kind;
    kinds[*kind_count] = job;
    return (*kind_count)++;
}

static adl_status order_jobs(adli_pollux_problem *problem, int *kinds)
{
    const adl_snapshot *snapshot = problem->snapshot;
    size_t all = (size_t)snapshot->job_count;
    turn *turns = adli_calloc(all, sizeof *turns);
    problem->jobs = adli_calloc(all, sizeof *problem->jobs);
    if (!turns || !problem->jobs) {
        free(turns);
        return adli_fail_memory("jobs of the search");
    }
    int count = 0;
    for (int j = 0; j < snapshot->job_count; j++) {
        const adl_job *job = &snapshot->jobs[j];
        if (adli_job_pinned(job))
            continue;
        double first = problem->form == ADLI_POLLUX_PAPER ? job->attained_s : job->min_replicas;
        turns[count++] = (turn){first, job->submit_s, j};
    }
    qsort(turns, (size_t)count, sizeof *turns, by_turn);
    for (int j = 0; j < count; j++) {
        problem->jobs[j].index = turns[j].index;
        problem->jobs[j].kind = find_kind(snapshot, kinds, &problem->kind_count, turns[j].index);
    }
    problem->job_count = count;
    free(turns);
    return ADL_OK;
}

/* Bounds every job by what the nodes hold and leaves out those that cannot run. */
static void bound_jobs(adli_pollux_problem *problem)
{
    int kept = 0;
    for (int j = 0; j < problem->job_count; j++) {
        adli_pollux_job job = problem->jobs[j];
        const adl_job *view = &problem->snapshot->jobs[job.index];
        job.capacity = problem->capacity + (size_t)job.kind * (size_t)problem->node_count;
        job.min = view->min_replicas > 1 ? view->min_replicas : 1;
        job.max = job.min > MAX_REPLICAS ? job.min : MAX_REPLICAS;
        if (job.max > view->max_replicas)
            job.max = view->max_replicas;
        int64_t most = 0;
        for (int node = 0; node < problem->node_count; node++)
            most += job.capacity[node];
        if (job.max > most)
            job.max = (int)most;
        if (job.max < job.min)
            fix(problem, view, adl_shape_of(0, 0));
        else
            problem->jobs[kept++] = job;
    }
    problem->job_count = kept;
}

static void read_base(adli_pollux_problem *problem, adli_pollux_job *job)
{
    const adl_job *view = &problem->snapshot->jobs[job->index];
    for (int i = 0; i < view->replicas; i++) {
        int node = problem->position[view->allocation[i]], at = job->base_count;
        if (i > 0 && view->allocation[i] == view->allocation[i - 1]) {
            for (at = 0; job->base[at].node != node;)
                at++;
            job->base[at].count++;
            continue;
        }
        for (; at > 0 && job->base[at - 1].node > node; at--)
            job->base[at] = job->base[at - 1];
        job->base[at] = (adli_cell){node, 1};
        job->base_count++;
    }
    job->base_replicas = view->replicas;
    job->base_legal = job->base_replicas >= job->min && job->base_replicas <= job->max;
    for (int i = 1; i < job->base_count; i++)
        job->base_legal &=
            problem->type_of[job->base[i].node] == problem->type_of[job->base[0].node];
}

static int distinct_nodes(const adl_job *job)
{
    int nodes = job->replicas > 0;
    for (int i = 1; i < job->replicas; i++)
        nodes += job->allocation[i] != job->allocation[i - 1];
    return nodes;
}

static adl_status value_jobs(adli_pollux_problem *problem, const adli_pollux_options *options)
{
    size_t base = 0, entries = 0, tables = 2 * (size_t)problem->type_count;
    for (int j = 0; j < problem->job_count; j++) {
        base += (size_t)distinct_nodes(&problem->snapshot->jobs[problem->jobs[j].index]);
        entries += tables * ((size_t)problem->jobs[j].max + 1);
    }
    problem->base_cells = adli_calloc(base, sizeof *problem->base_cells);
    problem->worths = adli_calloc(entries, sizeof *problem->worths);
    if (!problem->base_cells || !problem->worths)
        return adli_fail_memory("values of the search");
    for (size_t i = 0; i < entries; i++)
        problem->worths[i].value = NAN;
    base = entries = 0;
    for (int j = 0; j < problem->job_count; j++) {
        adli_pollux_job *job = &problem->jobs[j];
        const adl_job *view = &problem->snapshot->jobs[job->index];
        job->share = dominant_share(problem, view);
        job->factor = change_factor(problem->snapshot, view, options);
        job->base = problem->base_cells + base;
        job->worths = problem->worths + entries;
        read_base(problem, job);
        base += (size_t)job->base_count;
        entries += tables * ((size_t)job->max + 1);
        adl_shape shape = {job->base_count, job->base_replicas,
                           adli_row_type(problem, job->base, job->base_count)};
        job->kept = worth_of(problem, view, job->share, 1, shape);
    }
    return ADL_OK;
}

/* Upper bounds for the storage of one solution. */
static adl_status bound_cells(adli_pollux_problem *problem)
{
    size_t nodes = (size_t)problem->node_count, kinds = (size_t)problem->kind_count;
    int *jobs_of = adli_calloc(kinds, sizeof *jobs_of);
    if (!jobs_of)
        return adli_fail_memory("sizes of the search");
    for (int j = 0; j < problem->job_count; j++) {
        const adli_pollux_job *job = &problem->jobs[j];
        problem->row_cells += adli_pollux_row_cells(problem, job);
        jobs_of[job->kind]++;
    }
    for (size_t node = 0; node < nodes; node++) {
        for (size_t kind = 0; kind < kinds; kind++) {
            int fit = problem->capacity[kind * nodes + node];
            problem->genome_cells += (size_t)(fit < jobs_of[kind] ? fit : jobs_of[kind]);
        }
    }
    if (problem->genome_cells > problem->row_cells)
        problem->genome_cells = problem->row_cells;
    free(jobs_of);
    return ADL_OK;
}

/* ---- all of it ---- */

static adl_status build(adli_pollux_problem *problem, const adli_pollux_options *options,
                        adl_resources *room, int *kinds)
{
    adl_status status = order_nodes(problem);
    if (status != ADL_OK)
        return status;
    for (int node = 0; node < problem->node_count; node++) {
        room[node] = *capacity_of(problem, node);
        for (int r = 0; r < problem->snapshot->resource_count; r++)
            problem->totals[r] += (double)room[node].amount[r];
    }
    fix_pinned(problem, room);
    status = order_jobs(problem, kinds);
    if (status == ADL_OK)
        status = choose_resources(problem, room, kinds);
    if (status == ADL_OK)
        status = find_capacity(problem, room, kinds);
    if (status != ADL_OK)
        return status;
    bound_jobs(problem);
    status = value_jobs(problem, options);
    return status == ADL_OK ? bound_cells(problem) : status;
}

adl_status adli_pollux_problem_init(adli_pollux_problem *problem, const adl_snapshot *snapshot,
                                    const adli_pollux_options *options)
{
    int extra = 0;
    if (options->form == ADLI_POLLUX_SEEDS && snapshot->template_node)
        extra = snapshot->node_count > 0 ? snapshot->node_count : 1;
    *problem =
        (adli_pollux_problem){.snapshot = snapshot,
                              .form = options->form,
                              .type_count = snapshot->type_count > 1 ? snapshot->type_count : 1,
                              .real_count = snapshot->node_count,
                              .node_count = snapshot->node_count + extra};
    size_t nodes = (size_t)problem->node_count;
    adl_resources *room = adli_calloc(nodes, sizeof *room);
    int *kinds = adli_calloc((size_t)snapshot->job_count, sizeof *kinds);
    problem->pinned = adli_calloc(nodes, sizeof *problem->pinned);
    adl_status status = room && kinds && problem->pinned ? build(problem, options, room, kinds)
                                                         : adli_fail_memory("genetic search");
    free(kinds);
    free(room);
    if (status != ADL_OK)
        adli_pollux_problem_fini(problem);
    return status;
}

void adli_pollux_problem_fini(adli_pollux_problem *problem)
{
    free(problem->worths);
    free(problem->base_cells);
    free(problem->capacity);
    free(problem->free);
    free(problem->request);
    free(problem->jobs);
    free(problem->pinned);
    free(problem->type_of);
    free(problem->position);
    free(problem->node_of);
    *problem = (adli_pollux_problem){0};
}
