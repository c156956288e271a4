/* Placing the sizes that rank.c decided. Jobs of at most one node's size go on one node, the tightest
 * that holds them; larger ones take whole free nodes, so two of them never share one. When there is
 * no room, smaller single-node jobs make way, those of the least weight first, and are placed again;
 * when that does not help either, the job is made smaller. */
#include "policy/rank.h"

#include "base/mem.h"
#include "policy/room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SUBSET_MAX = 10 }; /* jobs on a node of which all subsets are tried */

typedef struct pack {
    adli_plan *plan;
    const adl_snapshot *snapshot;
    adli_rank_job *jobs;
    adli_room room;
    int *node_of;  /* [job_count] of a single-node job; -1: not placed so */
    int *next_on;  /* [job_count] next single-node job on the same node */
    int *first_on; /* [node_count] -1: none */
    int *used;     /* [node_count] jobs on the node */
    double *cost;  /* [node_count] weight to evict for the whole node */
    int *queue;    /* heap of jobs to place: larger first, then heavier, then earlier */
    int queued;
} pack;

static bool before(const pack *p, int x, int y)
{
    const adli_rank_job *a = &p->jobs[x], *b = &p->jobs[y];
    if (a->replicas != b->replicas)
        return a->replicas > b->replicas;
    return a->weight != b->weight ? a->weight > b->weight : x < y;
}

static void push(pack *p, int job)
{
    int at = p->queued++;
    for (; at > 0 && before(p, job, p->queue[(at - 1) / 2]); at = (at - 1) / 2)
        p->queue[at] = p->queue[(at - 1) / 2];
    p->queue[at] = job;
}

static int pop(pack *p)
{
    int top = p->queue[0], job = p->queue[--p->queued], at = 0;
    for (int child; (child = 2 * at + 1) < p->queued; at = child) {
        if (child + 1 < p->queued && before(p, p->queue[child + 1], p->queue[child]))
            child++;
        if (!before(p, p->queue[child], job))
            break;
        p->queue[at] = p->queue[child];
    }
    p->queue[at] = job;
    return top;
}

static void put_single(pack *p, int job, int node)
{
    p->node_of[job] = node;
    p->next_on[job] = p->first_on[node];
    p->first_on[node] = job;
    p->used[node]++;
    adli_room_take(&p->room, &p->snapshot->jobs[job], node, p->jobs[job].replicas);
}

static void evict(pack *p, int job)
{
    int node = p->node_of[job], *link = &p->first_on[node];
    while (*link != job)
        link = &p->next_on[*link];
    *link = p->next_on[job];
    p->node_of[job] = -1;
    p->used[node]--;
    adli_room_take(&p->room, &p->snapshot->jobs[job], node, -p->jobs[job].replicas);
    push(p, job);
}

static bool was_on(const adl_job *job, int node)
{
    for (int i = 0; i < job->replicas; i++)
        if (job->allocation[i] == node)
            return true;
    return false;
}

/* Does the node have room for n replicas now? Without a division: it is asked for every node. */
static bool has_room(const pack *p, const adl_job *job, int node, int n)
{
    for (int r = 0; r < p->snapshot->resource_count; r++)
        if (p->room.free[node].amount[r] < job->request.amount[r] * n)
            return false;
    return true;
}

/* The tightest of these nodes with room for n; nodes == NULL: of all. -1: none. */
static int tightest(const pack *p, const adl_job *job, int n, const int *nodes, int count)
{
    int best = -1, best_fit = 0;
    for (int i = 0; i < count && best_fit != n; i++) {
        int node = nodes ? nodes[i] : i;
        if (!has_room(p, job, node, n))
            continue;
        int fit = adli_room_fit(&p->room, job, node);
        if (best < 0 || fit < best_fit) {
            best = node;
            best_fit = fit;
        }
    }
    return best;
}

/* A node that the job was on before all others. */
static int find_node(const pack *p, int job, int n)
{
    const adl_job *view = &p->snapshot->jobs[job];
    int own = tightest(p, view, n, view->allocation, view->replicas);
    return own >= 0 ? own : tightest(p, view, n, NULL, p->snapshot->node_count);
}

/* The cheapest set of smaller jobs on the node whose leaving makes room for n; HUGE_VAL: there is
 * none. *mask: bit i for the i-th of the node's evictable jobs in list order. */
static double cheapest_subset(const pack *p, int job, int n, int node, unsigned *mask)
{
    const adl_job *view = &p->snapshot->jobs[job];
    int small[SUBSET_MAX], count = 0;
    for (int other = p->first_on[node]; other >= 0 && count < SUBSET_MAX; other = p->next_on[other])
        if (p->jobs[other].replicas < n && !adli_job_pinned(&p->snapshot->jobs[other]))
            small[count++] = other;
    double best = HUGE_VAL;
    for (unsigned set = 1; set < 1u << count; set++) {
        adl_resources free = p->room.free[node];
        double weight = 0;
        for (int i = 0; i < count; i++)
            if (set >> i & 1) {
                weight += p->jobs[small[i]].weight;
                adli_resources_take(p->snapshot, &free, &p->snapshot->jobs[small[i]],
                                    -p->jobs[small[i]].replicas);
            }
        if (weight < best && adli_resources_fit(p->snapshot, &free, view) >= n) {
            best = weight;
            *mask = set;
        }
    }
    return best;
}

static bool evict_for_single(pack *p, int job, int n)
{
    int best = -1;
    unsigned best_mask = 0, mask = 0;
    double least = HUGE_VAL;
    for (int node = 0; node < p->snapshot->node_count; node++) {
        double weight = p->first_on[node] < 0 ? HUGE_VAL : cheapest_subset(p, job, n, node, &mask);
        if (weight < least) {
            least = weight;
            best = node;
            best_mask = mask;
        }
    }
    if (best < 0)
        return false;
    for (int other = p->first_on[best], next, i = 0; other >= 0; other = next) {
        next = p->next_on[other];
        if (p->jobs[other].replicas >= n || adli_job_pinned(&p->snapshot->jobs[other]))
            continue;
        if (best_mask >> i++ & 1)
            evict(p, other);
        if (i == SUBSET_MAX)
            break;
    }
    put_single(p, job, best);
    return true;
}

/* What it costs to clear the node: the weights of its jobs; HUGE_VAL when it can't be. */
static double clearing_cost(const pack *p, int node)
{
    double cost = 0;
    int singles = 0;
    for (int other = p->first_on[node]; other >= 0; other = p->next_on[other], singles++) {
        if (adli_job_pinned(&p->snapshot->jobs[other]))
            return HUGE_VAL;
        cost += p->jobs[other].weight;
    }
    return singles == p->used[node] ? cost : HUGE_VAL; /* else a distributed job is on it */
}

/* The next node to take for a distributed job: an empty one that it was on, an empty one, then the
 * cheapest to clear. Nodes already taken have cost < 0. */
static int next_whole_node(const pack *p, const adl_job *job)
{
    int best = -1;
    bool best_own = false;
    for (int node = 0; node < p->snapshot->node_count; node++) {
        double cost = p->cost[node];
        if (!(cost >= 0 && cost < HUGE_VAL))
            continue;
        bool own = was_on(job, node);
        if (best < 0 || cost < p->cost[best] || (cost == p->cost[best] && own && !best_own)) {
            best = node;
            best_own = own;
        }
    }
    return best;
}

/* Takes whole nodes for up to n replicas, if at least `least` fit. Returns how many it placed. */
static int place_distributed(pack *p, int job, int n, int least)
{
    const adl_job *view = &p->snapshot->jobs[job];
    int fit_all = 0;
    for (int node = 0; node < p->snapshot->node_count; node++) {
        int fit = adli_resources_fit(p->snapshot, &p->snapshot->nodes[node].capacity, view);
        p->cost[node] = fit > 0 ? clearing_cost(p, node) : HUGE_VAL;
        if (p->cost[node] < HUGE_VAL)
            fit_all += fit;
    }
    n = n < fit_all ? n : fit_all;
    if (n < least)
        return 0;
    for (int left = n; left > 0;) {
        int node = next_whole_node(p, view);
        while (p->first_on[node] >= 0)
            evict(p, p->first_on[node]);
        p->cost[node] = -1;
        int fit = adli_room_fit(&p->room, view, node), take = fit < left ? fit : left;
        adli_plan_place(p->plan, job, node, take);
        adli_room_take(&p->room, view, node, take);
        p->used[node]++;
        left -= take;
    }
    return n;
}

static void place(pack *p, int job)
{
    const adl_job *view = &p->snapshot->jobs[job];
    int n = p->jobs[job].replicas, least = view->min_replicas > 1 ? view->min_replicas : 1;
    int above = p->jobs[job].node_size + 1; /* least size that is distributed */
    if (n >= above) {
        int placed = place_distributed(p, job, n, least > above ? least : above);
        p->jobs[job].replicas = placed;
        if (placed > 0)
            return;
        n = p->jobs[job].node_size;
    }
    for (; n >= least; n--) {
        p->jobs[job].replicas = n;
        int node = find_node(p, job, n);
        if (node >= 0)
            put_single(p, job, node);
        if (node >= 0 || evict_for_single(p, job, n))
            return;
    }
    p->jobs[job].replicas = 0;
}

/* Keeps the job where it is, if its number did not change and no other distributed job is on its
 * nodes. */
static bool keep(pack *p, int job)
{
    const adl_job *view = &p->snapshot->jobs[job];
    if (view->replicas == 0 || view->replicas != p->jobs[job].replicas)
        return false;
    const int *nodes = view->allocation;
    if (nodes[0] == nodes[view->replicas - 1]) {
        put_single(p, job, nodes[0]);
        return true;
    }
    for (int i = 0; i < view->replicas && !adli_job_pinned(view); i++)
        if (p->room.distributed[nodes[i]] > 0)
            return false;
    adli_room_keep(&p->room, p->plan, job);
    for (int i = 0; i < view->replicas; i++)
        p->used[nodes[i]] += i == 0 || nodes[i] != nodes[i - 1];
    return true;
}

static adl_status set_up(pack *p)
{
    size_t jobs = (size_t)p->snapshot->job_count, nodes = (size_t)p->snapshot->node_count;
    p->node_of = adli_calloc(jobs, sizeof(int));
    p->next_on = adli_calloc(jobs, sizeof(int));
    p->queue = adli_calloc(jobs, sizeof(int));
    p->first_on = adli_calloc(nodes, sizeof(int));
    p->used = adli_calloc(nodes, sizeof(int));
    p->cost = adli_calloc(nodes, sizeof(double));
    if (!p->node_of || !p->next_on || !p->queue || !p->first_on || !p->used || !p->cost)
        return adli_fail_memory("packing");
    for (size_t i = 0; i < jobs; i++)
        p->node_of[i] = -1;
    for (size_t i = 0; i < nodes; i++)
        p->first_on[i] = -1;
    return adli_room_init(&p->room, p->snapshot);
}

static void pack_all(pack *p)
{
    int count = p->snapshot->job_count;
    for (int pinned = 1; pinned >= 0; pinned--)
        for (int job = 0; job < count; job++)
            if (adli_job_pinned(&p->snapshot->jobs[job]) == pinned && !keep(p, job) &&
                p->jobs[job].replicas > 0)
                push(p, job);
    while (p->queued > 0)
        place(p, pop(p));
    for (int job = 0; job < count; job++)
        if (p->node_of[job] >= 0)
            adli_plan_place(p->plan, job, p->node_of[job], p->jobs[job].replicas);
}

adl_status adli_rank_pack(adli_plan *plan, adli_rank_job *jobs)
{
    pack p = {.plan = plan, .snapshot = plan->snapshot, .jobs = jobs};
    adl_status status = set_up(&p);
    if (status == ADL_OK)
        pack_all(&p);
    adli_room_fini(&p.room);
    free(p.cost);
    free(p.used);
    free(p.first_on);
    free(p.queue);
    free(p.next_on);
    free(p.node_of);
    return status;
}
