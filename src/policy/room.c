#include "policy/room.h"

#include "base/mem.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

adl_status adli_room_init(adli_room *room, const adl_snapshot *snapshot)
{
    size_t nodes = (size_t)snapshot->node_count;
    *room = (adli_room){.snapshot = snapshot};
    room->free = adli_calloc(nodes, sizeof *room->free);
    room->distributed = adli_calloc(nodes, sizeof *room->distributed);
    room->scratch = adli_calloc(nodes, sizeof *room->scratch);
    if (snapshot->type_count > 1)
        room->type_of = adli_calloc(nodes, sizeof *room->type_of);
    if (!room->free || !room->distributed || !room->scratch ||
        (snapshot->type_count > 1 && !room->type_of)) {
        adli_room_fini(room);
        return adli_fail_memory("free resources of the nodes");
    }
    for (size_t node = 0; node < nodes; node++) {
        room->free[node] = snapshot->nodes[node].capacity;
        if (room->type_of)
            room->type_of[node] = adli_node_type(snapshot, &snapshot->nodes[node]);
    }
    return ADL_OK;
}

void adli_room_fini(adli_room *room)
{
    free(room->type_of);
    free(room->scratch);
    free(room->distributed);
    free(room->free);
    *room = (adli_room){0};
}

int adli_resources_fit(const adl_snapshot *snapshot, const adl_resources *have, const adl_job *job)
{
    int64_t fit = INT_MAX / 2;
    for (int r = 0; r < snapshot->resource_count; r++) {
        int64_t want = job->request.amount[r];
        if (want > 0 && have->amount[r] / want < fit)
            fit = have->amount[r] / want;
    }
    return fit > 0 ? (int)fit : 0;
}

void adli_resources_take(const adl_snapshot *snapshot, adl_resources *have, const adl_job *job,
                         int count)
{
    for (int r = 0; r < snapshot->resource_count; r++)
        have->amount[r] -= job->request.amount[r] * count;
}

void adli_room_take(adli_room *room, const adl_job *job, int node, int count)
{
    adli_resources_take(room->snapshot, &room->free[node], job, count);
}

adl_resources adli_room_total(const adli_room *room)
{
    adl_resources total = {{0}};
    for (int node = 0; node < room->snapshot->node_count; node++)
        for (int r = 0; r < room->snapshot->resource_count; r++)
            total.amount[r] += room->free[node].amount[r];
    return total;
}

int64_t adli_room_most(const adli_room *room, const adl_job *job)
{
    const adl_snapshot *snapshot = room->snapshot;
    int64_t fit[ADL_MAX_TYPES] = {0}, most = 0;
    for (int node = 0; node < snapshot->node_count; node++) {
        int type = room->type_of ? room->type_of[node] : 0;
        fit[type] += adli_resources_fit(snapshot, &snapshot->nodes[node].capacity, job);
        most = fit[type] > most ? fit[type] : most;
    }
    return most;
}

void adli_room_keep(adli_room *room, adli_plan *plan, int job)
{
    const adl_job *view = &plan->snapshot->jobs[job];
    const int *nodes = view->allocation;
    bool distributed = view->replicas > 0 && nodes[0] != nodes[view->replicas - 1];
    for (int i = 0, next; i < view->replicas; i = next) {
        for (next = i + 1; next < view->replicas && nodes[next] == nodes[i];)
            next++;
        adli_plan_place(plan, job, nodes[i], next - i);
        adli_room_take(room, view, nodes[i], next - i);
        room->distributed[nodes[i]] += distributed;
    }
}

void adli_room_keep_pinned(adli_room *room, adli_plan *plan)
{
    for (int job = 0; job < plan->snapshot->job_count; job++)
        if (adli_job_pinned(&plan->snapshot->jobs[job]))
            adli_room_keep(room, plan, job);
}

/* The node of the type (-1: any) where most replicas fit, not yet in scratch; -1 when none takes any. */
static int emptiest(const adli_room *room, const adl_job *job, int type, int left, bool first,
                    bool exclusive)
{
    int best = -1, best_fit = 0;
    for (int node = 0; node < room->snapshot->node_count; node++) {
        if (type >= 0 && room->type_of[node] != type)
            continue;
        int fit = room->scratch[node] ? 0 : adli_room_fit(room, job, node);
        bool spread = !first || fit < left;
        if (fit > best_fit && !(exclusive && spread && room->distributed[node] > 0)) {
            best = node;
            best_fit = fit;
        }
    }
    return best;
}

static bool spread_on(adli_room *room, adli_plan *plan, int job, int type, int replicas,
                      bool exclusive)
{
    const adl_job *view = &plan->snapshot->jobs[job];
    int left = replicas, used = 0, node;
    memset(room->scratch, 0, (size_t)room->snapshot->node_count * sizeof *room->scratch);
    while (left > 0 && (node = emptiest(room, view, type, left, used == 0, exclusive)) >= 0) {
        int fit = adli_room_fit(room, view, node);
        room->scratch[node] = fit < left ? fit : left;
        left -= room->scratch[node];
        used++;
    }
    if (left > 0)
        return false;
    for (node = 0; node < room->snapshot->node_count; node++)
        if (room->scratch[node] > 0) {
            adli_plan_place(plan, job, node, room->scratch[node]);
            adli_room_take(room, view, node, room->scratch[node]);
            room->distributed[node] += used > 1;
        }
    return true;
}

bool adli_room_spread(adli_room *room, adli_plan *plan, int job, int replicas, bool exclusive)
{
    const adl_job *view = &plan->snapshot->jobs[job];
    bool tried[ADL_MAX_TYPES] = {false};
    if (!room->type_of)
        return spread_on(room, plan, job, -1, replicas, exclusive);
    for (int turn = 0; turn < room->snapshot->type_count; turn++) {
        int best = -1;
        double fastest = -1;
        for (int t = 0; t < room->snapshot->type_count; t++) {
            double speedup = adli_job_speedup(view, (adl_shape){1, replicas, t});
            if (!tried[t] && speedup > fastest) {
                fastest = speedup;
                best = t;
            }
        }
        if (best < 0) /* no speedup is a number */
            return false;
        tried[best] = true;
        if (spread_on(room, plan, job, best, replicas, exclusive))
            return true;
    }
    return false;
}
