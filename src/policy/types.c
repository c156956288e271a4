#include "policy/types.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

adl_status adli_types_init(adli_types *types, const adl_snapshot *snapshot)
{
    *types = (adli_types){.snapshot = snapshot,
                          .count = snapshot->type_count > 1 ? snapshot->type_count : 1,
                          .node_size = {-1}};
    types->of_node = adli_calloc((size_t)snapshot->node_count, sizeof *types->of_node);
    if (!types->of_node)
        return adli_fail_memory("device types");
    for (int n = 0; n < snapshot->node_count; n++) {
        const adl_node *node = &snapshot->nodes[n];
        types->of_node[n] = types->count > 1 ? adli_node_type(snapshot, node) : 0;
        for (int r = 0; r < snapshot->resource_count; r++)
            types->total[types->of_node[n]].amount[r] += node->capacity.amount[r];
    }
    return ADL_OK;
}

void adli_types_fini(adli_types *types)
{
    free(types->of_node);
}

/* Jobs mostly ask for the same: what was found for the last one is kept. */
int adli_types_node_size(adli_types *types, const adl_job *job, int type)
{
    const adl_snapshot *snapshot = types->snapshot;
    if (types->node_size[0] < 0 || memcmp(&types->asked, &job->request, sizeof job->request) != 0) {
        types->asked = job->request;
        memset(types->node_size, 0, sizeof types->node_size);
        for (int n = 0; n < snapshot->node_count; n++) {
            int fit = adli_resources_fit(snapshot, &snapshot->nodes[n].capacity, job);
            int *most = &types->node_size[types->of_node[n]];
            *most = fit > *most ? fit : *most;
        }
    }
    return types->node_size[type];
}

int adli_types_present(const adli_types *types, const adl_job *job)
{
    return job->replicas > 0 ? types->of_node[job->allocation[0]] : -1;
}

void adli_types_take(const adli_types *types, const adl_job *job, adl_resources *free)
{
    for (int i = 0; i < job->replicas; i++)
        adli_resources_take(types->snapshot, &free[types->of_node[job->allocation[i]]], job, 1);
}

adli_sizes adli_types_sizes(adli_types *types, const adl_job *job, int type, bool present)
{
    int fit = adli_resources_fit(types->snapshot, &types->total[type], job);
    adli_sizes sizes = {.node = adli_types_node_size(types, job, type),
                        .least = job->min_replicas > 1 ? job->min_replicas : 1,
                        .most = fit < job->max_replicas ? fit : job->max_replicas,
                        .grid = 1};
    sizes.extra[0] = sizes.least;
    sizes.extra[1] = present ? job->replicas : 0;
    if (sizes.node == 0)
        sizes.most = 0;
    return sizes;
}

static int next_on_grid(int node, int n)
{
    int nodes = n / node;
    if (n < node)
        return 2 * n < node ? 2 * n : node;
    return n + node * (nodes >= 16 ? nodes / 8 : 1);
}

int adli_sizes_next(adli_sizes *sizes)
{
    while (sizes->last < sizes->most) {
        while (sizes->grid <= sizes->last)
            sizes->grid = next_on_grid(sizes->node, sizes->grid);
        int n = sizes->grid;
        for (int e = 0; e < 2; e++)
            if (sizes->extra[e] > sizes->last && sizes->extra[e] < n)
                n = sizes->extra[e];
        sizes->last = n;
        if (n >= sizes->least && n <= sizes->most)
            return n;
    }
    return 0;
}

double adli_types_rate(const adl_job *job, int node_size, int type, int n)
{
    if (!job->model)
        return n;
    int size = node_size > 0 ? node_size : 1;
    adl_shape shape = {(n + size - 1) / size, n, type};
    return adl_speedup_rate(job->model, shape);
}

/* ---- placing ---- */

typedef struct packing {
    adli_plan *plan;
    adli_types *types;
    adli_typed_size *sizes;
    adli_room room;
    adl_resources *open; /* [node_count] what jobs that may not be moved leave, */
    int *held;           /* [node_count] and how many of those on it use other nodes too */
    int *order;          /* jobs: the first ones, then larger ones first */
    bool *kept;          /* [job_count] stays where it is */
} packing;

/* One that was left on several types does not. */
static bool stays(const packing *p, int job)
{
    const adl_job *view = &p->types->snapshot->jobs[job];
    bool same = view->replicas > 0 && view->replicas == p->sizes[job].replicas;
    for (int i = 0; i < view->replicas && same; i++)
        same = p->types->of_node[view->allocation[i]] == p->sizes[job].type;
    return same;
}

/* Could it keep its nodes? Not where it would share one with another job that uses several. */
static bool undisturbed(const packing *p, int job)
{
    const adl_job *view = &p->types->snapshot->jobs[job];
    bool distributed = view->allocation[0] != view->allocation[view->replicas - 1];
    for (int i = 0; i < view->replicas && distributed; i++)
        if (p->room.distributed[view->allocation[i]] > 0)
            return false;
    return true;
}

static int by_size(const void *a, const void *b, void *user)
{
    const packing *p = user;
    int i = *(const int *)a, j = *(const int *)b;
    if (p->sizes[i].first != p->sizes[j].first)
        return p->sizes[i].first ? -1 : 1;
    if (p->sizes[i].replicas != p->sizes[j].replicas)
        return p->sizes[j].replicas - p->sizes[i].replicas;
    return i - j;
}

/* Would the job change in place if it had replicas on this node, because it has some there now? */
static bool goes_on(const adl_job *job, int node)
{
    for (int i = 0; i < job->replicas && job->resize_cost_s > 0; i++)
        if (job->allocation[i] == node)
            return true;
    return false;
}

/* The tightest node of the type with room for n (single), or an empty one (whole); -1: none. For a job that can change
 * in place, one that it is on before all others. */
static int find_node(const packing *p, int job, int n, bool whole)
{
    const adl_snapshot *snapshot = p->types->snapshot;
    const adl_job *view = &snapshot->jobs[job];
    int best = -1, best_fit = 0;
    bool best_own = false;
    for (int node = 0; node < snapshot->node_count; node++) {
        if (p->types->of_node[node] != p->sizes[job].type)
            continue;
        bool own = goes_on(view, node);
        int fit = adli_room_fit(&p->room, view, node);
        if (fit < 1 || (whole ? p->room.distributed[node] > 0 : fit < n))
            continue;
        if (whole && fit < adli_resources_fit(snapshot, &snapshot->nodes[node].capacity, view))
            continue;
        if (best < 0 || own > best_own ||
            (own == best_own && (whole ? fit > best_fit : fit < best_fit))) {
            best = node;
            best_fit = fit;
            best_own = own;
        }
    }
    return best;
}

/* Takes back what was placed since. */
static void undo(packing *p, int job, size_t mark)
{
    const adl_job *view = &p->types->snapshot->jobs[job];
    for (size_t k = mark; k < p->plan->placed_count; k++)
        adli_room_take(&p->room, view, p->plan->placed[k].node, -p->plan->placed[k].count);
    p->plan->placed_count = mark;
}

/* Places n replicas of the job, all of them or none. */
static bool place(packing *p, int job, int n)
{
    const adl_job *view = &p->types->snapshot->jobs[job];
    bool whole = n > adli_types_node_size(p->types, view, p->sizes[job].type);
    size_t mark = p->plan->placed_count;
    for (int left = n; left > 0;) {
        int node = find_node(p, job, left, whole);
        if (node < 0 || p->plan->status != ADL_OK) {
            undo(p, job, mark);
            return false;
        }
        int fit = adli_room_fit(&p->room, view, node), take = fit < left ? fit : left;
        adli_plan_place(p->plan, job, node, take);
        adli_room_take(&p->room, view, node, take);
        left -= take;
    }
    for (size_t k = mark; whole && k < p->plan->placed_count; k++)
        p->room.distributed[p->plan->placed[k].node]++;
    return true;
}

/* Places a job as it is to be, or in the last resort with as much less as it takes. */
static bool place_job(packing *p, int job, bool last_resort)
{
    const adl_job *view = &p->types->snapshot->jobs[job];
    int least = view->min_replicas > 1 ? view->min_replicas : 1;
    if (!last_resort)
        return place(p, job, p->sizes[job].replicas);
    while (p->sizes[job].replicas >= least) {
        if (place(p, job, p->sizes[job].replicas))
            return true;
        p->sizes[job].replicas--;
    }
    p->sizes[job].replicas = 0;
    return true;
}

/* All jobs of a type; those that stay are not moved unless it is the last resort. false: there is no room
 * for one, and nothing was placed. */
static bool pack_type(packing *p, int type, bool last_resort)
{
    const adl_snapshot *snapshot = p->types->snapshot;
    size_t before = p->plan->placed_count;
    bool placed = true;
    for (int n = 0; n < snapshot->node_count; n++)
        if (p->types->of_node[n] == type) {
            p->room.free[n] = p->open[n];
            p->room.distributed[n] = p->held[n];
        }
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < snapshot->job_count && placed; i++) {
            int job = p->order[i];
            if (p->sizes[job].replicas == 0 || p->sizes[job].type != type ||
                adli_job_pinned(&snapshot->jobs[job]))
                continue;
            if (turn == 0)
                p->kept[job] = stays(p, job) && !last_resort && undisturbed(p, job);
            if (turn == 0 && p->kept[job])
                adli_room_keep(&p->room, p->plan, job);
            if (turn == 1 && !p->kept[job])
                placed = place_job(p, job, last_resort);
        }
    if (!placed)
        p->plan->placed_count = before;
    return placed;
}

adl_status adli_types_pack(adli_plan *plan, adli_types *types, adli_typed_size *sizes)
{
    int count = types->snapshot->job_count;
    size_t nodes = (size_t)types->snapshot->node_count;
    packing p = {.plan = plan, .types = types, .sizes = sizes};
    p.order = adli_calloc((size_t)count, sizeof *p.order);
    p.open = adli_calloc(nodes, sizeof *p.open);
    p.held = adli_calloc(nodes, sizeof *p.held);
    p.kept = adli_calloc((size_t)count, sizeof *p.kept);
    adl_status status = p.order && p.open && p.held && p.kept
                            ? adli_room_init(&p.room, types->snapshot)
                            : adli_fail_memory("packing");
    for (int i = 0; status == ADL_OK && i < count; i++)
        p.order[i] = i;
    if (status == ADL_OK) {
        adli_room_keep_pinned(&p.room, plan);
        memcpy(p.open, p.room.free, nodes * sizeof *p.open);
        memcpy(p.held, p.room.distributed, nodes * sizeof *p.held);
        qsort_r(p.order, (size_t)count, sizeof *p.order, by_size, &p);
    }
    for (int t = 0; t < types->count && status == ADL_OK; t++)
        if (!pack_type(&p, t, false))
            (void)pack_type(&p, t, true);
    adli_room_fini(&p.room);
    free(p.kept);
    free(p.held);
    free(p.open);
    free(p.order);
    return status;
}
