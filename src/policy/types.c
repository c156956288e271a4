#include "policy/types.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

adl_status adli_types_init(adli_types *types, const adl_snapshot *snapshot)
{
    *types = (adli_types){.snapshot = snapshot,
                          .count = snapshot->type_count > 1 ? snapshot->type_count : 1};
    types->of_node = adli_calloc((size_t)snapshot->node_count, sizeof *types->of_node);
    if (!types->of_node)
        return adli_fail_memory("device types");
    for (int n = 0; n < snapshot->node_count; n++) {
        const adl_node *node = &snapshot->nodes[n];
        const char *name = node->device_type ? node->device_type : "";
        for (int t = 0; t < types->count && types->count > 1; t++)
            if (strcmp(snapshot->type_names[t], name) == 0)
                types->of_node[n] = t;
        for (int r = 0; r < snapshot->resource_count; r++)
            types->total[types->of_node[n]].amount[r] += node->capacity.amount[r];
    }
    return ADL_OK;
}

void adli_types_fini(adli_types *types)
{
    free(types->of_node);
}

int adli_types_node_size(const adli_types *types, const adl_job *job, int type)
{
    int most = 0;
    for (int n = 0; n < types->snapshot->node_count; n++) {
        if (types->of_node[n] != type)
            continue;
        int fit = adli_resources_fit(types->snapshot, &types->snapshot->nodes[n].capacity, job);
        most = fit > most ? fit : most;
    }
    return most;
}

int adli_types_present(const adli_types *types, const adl_job *job)
{
    return job->replicas > 0 ? types->of_node[job->allocation[0]] : -1;
}

int adli_types_next(int node_size, int n)
{
    if (n < node_size)
        return 2 * n < node_size ? 2 * n : node_size;
    return n + (node_size > 0 ? node_size : 1);
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
    const adli_types *types;
    adli_typed_size *sizes;
    adli_room room;
    int *order; /* jobs, larger first */
} packing;

static bool stays(const packing *p, int job)
{
    const adl_job *view = &p->types->snapshot->jobs[job];
    return view->replicas > 0 && view->replicas == p->sizes[job].replicas &&
           adli_types_present(p->types, view) == p->sizes[job].type;
}

static int by_size(const void *a, const void *b, void *user)
{
    const packing *p = user;
    int i = *(const int *)a, j = *(const int *)b;
    if (p->sizes[i].replicas != p->sizes[j].replicas)
        return p->sizes[j].replicas - p->sizes[i].replicas;
    return i - j;
}

/* The tightest node of the type with room for n (single), or an empty one (whole); -1: none. */
static int find_node(const packing *p, int job, int n, bool whole)
{
    const adl_snapshot *snapshot = p->types->snapshot;
    const adl_job *view = &snapshot->jobs[job];
    int best = -1, best_fit = 0;
    for (int node = 0; node < snapshot->node_count; node++) {
        if (p->types->of_node[node] != p->sizes[job].type)
            continue;
        int fit = adli_room_fit(&p->room, view, node);
        int all = adli_resources_fit(snapshot, &snapshot->nodes[node].capacity, view);
        if (fit < 1 || (whole ? fit < all : fit < n))
            continue;
        if (best < 0 || (whole ? fit > best_fit : fit < best_fit)) {
            best = node;
            best_fit = fit;
        }
    }
    return best;
}

/* Places the job's replicas. Returns how many there was no room for. */
static int place(packing *p, int job)
{
    const adl_job *view = &p->types->snapshot->jobs[job];
    int size = adli_types_node_size(p->types, view, p->sizes[job].type);
    int left = p->sizes[job].replicas;
    bool whole = left > size;
    while (left > 0) {
        int node = find_node(p, job, left, whole);
        if (node < 0)
            return left;
        int fit = adli_room_fit(&p->room, view, node), take = fit < left ? fit : left;
        adli_plan_place(p->plan, job, node, take);
        adli_room_take(&p->room, view, node, take);
        left -= take;
    }
    return 0;
}

/* All jobs of a type; keep: those that stay are not moved. Returns the replicas without a place, and
 * then has placed nothing. */
static int pack_type(packing *p, int type, bool keep, bool final)
{
    const adl_snapshot *snapshot = p->types->snapshot;
    size_t before = p->plan->placed_count;
    int missing = 0;
    for (int n = 0; n < snapshot->node_count; n++)
        if (p->types->of_node[n] == type)
            p->room.free[n] = snapshot->nodes[n].capacity;
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < snapshot->job_count; i++) {
            int job = p->order[i];
            if (p->sizes[job].replicas == 0 || p->sizes[job].type != type)
                continue;
            bool kept = stays(p, job) && (keep || adli_job_pinned(&snapshot->jobs[job]));
            if (turn == 0 && kept)
                adli_room_keep(&p->room, p->plan, job);
            if (turn == 1 && !kept) {
                size_t mark = p->plan->placed_count;
                int left = place(p, job);
                missing += left;
                if (left > 0 && final) { /* it gets none rather than a part */
                    for (size_t k = mark; k < p->plan->placed_count; k++)
                        adli_room_take(&p->room, &snapshot->jobs[job], p->plan->placed[k].node,
                                       -p->plan->placed[k].count);
                    p->plan->placed_count = mark;
                }
            }
        }
    if (missing > 0 && !final)
        p->plan->placed_count = before;
    return missing;
}

adl_status adli_types_pack(adli_plan *plan, const adli_types *types, adli_typed_size *sizes)
{
    int count = types->snapshot->job_count;
    packing p = {.plan = plan, .types = types, .sizes = sizes};
    p.order = adli_calloc((size_t)count, sizeof *p.order);
    adl_status status =
        p.order ? adli_room_init(&p.room, types->snapshot) : adli_fail_memory("packing");
    for (int i = 0; status == ADL_OK && i < count; i++)
        p.order[i] = i;
    if (status == ADL_OK)
        qsort_r(p.order, (size_t)count, sizeof *p.order, by_size, &p);
    for (int t = 0; t < types->count && status == ADL_OK; t++)
        if (pack_type(&p, t, true, false) > 0)
            (void)pack_type(&p, t, false, true);
    adli_room_fini(&p.room);
    free(p.order);
    return status;
}
