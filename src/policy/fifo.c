/* fifo: first come, first served, with fixed sizes. The smallest policy, and the one to read first.
 *
 * Jobs are taken in order of submission. A job that runs keeps what it has. One that does not gets
 * the number of replicas that its user asked for (else its minimum, at least 1) on the emptiest
 * nodes of one device type, and the first that does not fit blocks those behind it, so nobody is overtaken for ever. */
#include "policy/policy.h"
#include "policy/room.h"

static int wanted(const adl_job *job)
{
    int replicas = job->fixed_replicas > 0 ? job->fixed_replicas : 1;
    if (replicas < job->min_replicas)
        replicas = job->min_replicas;
    return replicas < job->max_replicas ? replicas : job->max_replicas;
}

static adl_status decide(adli_plan *plan)
{
    const adl_snapshot *snapshot = plan->snapshot;
    adli_room room;
    adl_status status = adli_room_init(&room, snapshot);
    if (status != ADL_OK)
        return status;
    for (int job = 0; job < snapshot->job_count; job++)
        if (snapshot->jobs[job].replicas > 0)
            adli_room_keep(&room, plan, job);
    for (int job = 0; job < snapshot->job_count; job++) {
        int replicas = wanted(&snapshot->jobs[job]);
        /* one that could not run were the cluster empty must not block the others */
        if (snapshot->jobs[job].replicas > 0 ||
            adli_room_most(&room, &snapshot->jobs[job]) < replicas)
            continue;
        if (!adli_room_spread(&room, plan, job, replicas, true))
            break;
    }
    adli_room_fini(&room);
    return ADL_OK;
}

static const adli_policy_param params[] = {{0}};

const adli_policy_class adli_policy_fifo = {
    .name = "fifo",
    .summary = "first come, first served, fixed sizes",
    .params = params,
    .decide = decide,
};
