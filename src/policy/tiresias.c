/* tiresias: two queues by attained service (Gu et al., NSDI 2019), discretised as in the Pollux
 * artifact. Jobs run at the size their users asked for. A job that has had less than `threshold`
 * device-seconds is in the first queue, afterwards in the second; within a queue the order is that of
 * submission. From the head of the first queue on, every job that still fits runs; others are
 * suspended. New ones go to the emptiest nodes. */
#include "policy/policy.h"
#include "policy/room.h"

#include "base/mem.h"

#include <stdlib.h>

enum { THRESHOLD_S, EXCLUSIVE };

static const adli_policy_param params[] = {
    [THRESHOLD_S] = {"threshold_s", 16 * 3600, 0, 1e12,
                     "device-seconds after which a job goes to the second queue"},
    [EXCLUSIVE] = {"exclusive", 0, 0, 1,
                   "1: no node serves two distributed jobs (the published form lets them share)"},
    {0}};

static int size_of(const adl_job *job)
{
    int replicas = job->fixed_replicas > 0 ? job->fixed_replicas : job->max_replicas;
    if (replicas > job->max_replicas)
        replicas = job->max_replicas;
    return replicas > job->min_replicas ? replicas : job->min_replicas;
}

/* Jobs in the order in which they are served: first queue, then second. */
static void order_jobs(const adl_snapshot *snapshot, double threshold_s, int *order)
{
    int count = 0;
    for (int queue = 0; queue < 2; queue++)
        for (int job = 0; job < snapshot->job_count; job++)
            if ((snapshot->jobs[job].attained_s >= threshold_s) == queue)
                order[count++] = job;
}

/* Takes the resources of `replicas` off the cluster's total; false when they are not there. */
static bool take_total(const adl_snapshot *snapshot, adl_resources *total, const adl_job *job,
                       int replicas)
{
    if (adli_resources_fit(snapshot, total, job) < replicas)
        return false;
    adli_resources_take(snapshot, total, job, replicas);
    return true;
}

/* Marks the jobs that shall run: pinned ones, then by queue as long as the total lasts. */
static void choose(const adl_snapshot *snapshot, adl_resources total, const int *order, bool *runs)
{
    for (int job = 0; job < snapshot->job_count; job++) {
        runs[job] = adli_job_pinned(&snapshot->jobs[job]);
        if (runs[job])
            take_total(snapshot, &total, &snapshot->jobs[job], snapshot->jobs[job].replicas);
    }
    for (int i = 0; i < snapshot->job_count; i++) {
        const adl_job *job = &snapshot->jobs[order[i]];
        if (!runs[order[i]])
            runs[order[i]] = take_total(snapshot, &total, job, size_of(job));
    }
}

static adl_status decide(adli_plan *plan)
{
    const adl_snapshot *snapshot = plan->snapshot;
    size_t count = (size_t)snapshot->job_count;
    int *order = adli_calloc(count, sizeof *order);
    bool *runs = adli_calloc(count, sizeof *runs);
    adli_room room = {0};
    adl_status status =
        order && runs ? adli_room_init(&room, snapshot) : adli_fail_memory("queues");
    if (status != ADL_OK)
        goto out;
    order_jobs(snapshot, plan->params[THRESHOLD_S], order);
    choose(snapshot, adli_room_total(&room), order, runs);
    for (int job = 0; job < snapshot->job_count; job++) {
        const adl_job *view = &snapshot->jobs[job];
        if (adli_job_pinned(view) || (runs[job] && view->replicas == size_of(view))) {
            adli_room_keep(&room, plan, job);
            runs[job] = false; /* served */
        }
    }
    for (int i = 0; i < snapshot->job_count; i++)
        if (runs[order[i]])
            adli_room_spread(&room, plan, order[i], size_of(&snapshot->jobs[order[i]]),
                             plan->params[EXCLUSIVE] > 0);
out:
    adli_room_fini(&room);
    free(runs);
    free(order);
    return status;
}

const adli_policy_class adli_policy_tiresias = {
    .name = "tiresias",
    .summary = "least attained service in two queues, fixed sizes (NSDI'19)",
    .params = params,
    .decide = decide,
};
