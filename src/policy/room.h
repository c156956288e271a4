/* Free resources while a plan is made, and the placements that several policies share. */
#ifndef ADLI_ROOM_H
#define ADLI_ROOM_H

#include "policy/policy.h"

typedef struct adli_room {
    const adl_snapshot *snapshot;
    adl_resources *free; /* [node_count] */
    int *distributed;    /* [node_count] jobs on the node that use other nodes too */
    int *scratch;        /* [node_count] */
    int *type_of;        /* [node_count] device types; NULL where there is one */
} adli_room;

/* All nodes empty. */
ADL_MUST adl_status adli_room_init(adli_room *room, const adl_snapshot *snapshot);
void adli_room_fini(adli_room *room);

/* How many replicas of the job fit in these resources; INT_MAX / 2 when it asks for nothing. */
int adli_resources_fit(const adl_snapshot *snapshot, const adl_resources *have, const adl_job *job);

/* How many more replicas of the job fit on the node now. */
static inline int adli_room_fit(const adli_room *room, const adl_job *job, int node)
{
    return adli_resources_fit(room->snapshot, &room->free[node], job);
}

/* What is free on all nodes together. */
adl_resources adli_room_total(const adli_room *room);

/* The most replicas of the job that the nodes of one device type hold, were they empty. */
int64_t adli_room_most(const adli_room *room, const adl_job *job);

/* Takes (count > 0) or gives back (count < 0) the resources of count replicas. */
void adli_resources_take(const adl_snapshot *snapshot, adl_resources *have, const adl_job *job,
                         int count);
void adli_room_take(adli_room *room, const adl_job *job, int node, int count);

/* Lets the job keep its present allocation. */
void adli_room_keep(adli_room *room, adli_plan *plan, int job);

/* Keeps every pinned job (see adli_job_pinned), which all policies do first. */
void adli_room_keep_pinned(adli_room *room, adli_plan *plan);

/* Places `replicas` of the job on the emptiest nodes first (where most of them fit; the earlier of
 * equals), each filled as far as it goes. With `exclusive`, a job that needs several nodes takes only
 * nodes without another such job. All are of one device type, the one on which the job is fastest of those with
 * room. Returns false, with nothing placed, when they do not fit. */
bool adli_room_spread(adli_room *room, adli_plan *plan, int job, int replicas, bool exclusive);

#endif
