/* optimus: devices go where they shorten the remaining time most (Peng et al., EuroSys 2018), as in
 * the Pollux artifact. Batch sizes are fixed. Every job gets one replica (its minimum), in order of
 * submission, as long as there are devices; then, one at a time, a device goes to the job with the
 * largest
 *     gain = (step time on n - step time on n + 1) * remaining steps,
 * until none gains. Jobs whose number changed are placed anew on the emptiest nodes, small ones
 * first; the others stay. A job keeps to one device type: it grows to what one of them has, and gets less where the
 * others left less. */
#include "policy/policy.h"
#include "policy/room.h"

#include "base/mem.h"

#include <stdlib.h>

enum { EXCLUSIVE };

static const adli_policy_param params[] = {
    [EXCLUSIVE] = {"exclusive", 0, 0, 1,
                   "1: no node serves two distributed jobs (the published form lets them share)"},
    {0}};

typedef struct state {
    int *size;    /* [job_count] replicas so far */
    double *gain; /* [job_count] of one more */
    int *order;   /* [job_count] */
    int *most;    /* [job_count] replicas that one device type can hold */
} state;

/* Seconds of work left on n replicas: true step times when the caller has them, else the model's. */
static double time_left(const adl_job *job, int replicas)
{
    if (job->step_time_s)
        return job->step_time_s(job->step_context, replicas) * job->remaining_steps;
    double left = job->total_work > job->progress ? job->total_work - job->progress : 1;
    double rate = job->model
                      ? adl_speedup_rate(job->model, adl_shape_of(replicas > 1 ? 2 : 1, replicas))
                      : (double)replicas;
    return rate > 0 ? left / rate : 0;
}

static double gain_of(const adl_job *job, int size, int most)
{
    if (size == 0 || size + 1 > most)
        return 0;
    return time_left(job, size) - time_left(job, size + 1);
}

static void choose_sizes(const adl_snapshot *snapshot, adl_resources total, state *s)
{
    for (int i = 0; i < snapshot->job_count; i++)
        if (adli_job_pinned(&snapshot->jobs[i])) {
            s->size[i] = snapshot->jobs[i].replicas;
            adli_resources_take(snapshot, &total, &snapshot->jobs[i], s->size[i]);
        }
    for (int i = 0; i < snapshot->job_count; i++) {
        const adl_job *job = &snapshot->jobs[i];
        int least = job->min_replicas > 1 ? job->min_replicas : 1;
        if (adli_job_pinned(job))
            continue;
        if (adli_resources_fit(snapshot, &total, job) >= least) {
            s->size[i] = least;
            adli_resources_take(snapshot, &total, job, least);
        }
        s->gain[i] = gain_of(job, s->size[i], s->most[i]);
    }
    for (;;) {
        int best = -1;
        for (int i = 0; i < snapshot->job_count; i++)
            if (s->gain[i] > (best < 0 ? 0 : s->gain[best]))
                best = i;
        if (best < 0)
            return;
        const adl_job *job = &snapshot->jobs[best];
        if (adli_resources_fit(snapshot, &total, job) < 1) {
            s->gain[best] = 0;
            continue;
        }
        adli_resources_take(snapshot, &total, job, 1);
        s->size[best]++;
        s->gain[best] = gain_of(job, s->size[best], s->most[best]);
    }
}

/* Jobs by size, ascending; equals in order of submission. */
static void order_by_size(int count, state *s)
{
    for (int i = 0; i < count; i++) {
        int to = i;
        for (; to > 0 && s->size[s->order[to - 1]] > s->size[i]; to--)
            s->order[to] = s->order[to - 1];
        s->order[to] = i;
    }
}

/* As many as were chosen, or on several types as many as one of them still has. */
static void place(adli_room *room, adli_plan *plan, int job, int size)
{
    const adl_job *view = &plan->snapshot->jobs[job];
    int least = view->min_replicas > 1 ? view->min_replicas : 1;
    bool exclusive = plan->params[EXCLUSIVE] > 0, types = plan->snapshot->type_count > 1;
    while (!adli_room_spread(room, plan, job, size, exclusive) && types && size > least)
        size--;
}

static adl_status decide(adli_plan *plan)
{
    const adl_snapshot *snapshot = plan->snapshot;
    size_t count = (size_t)snapshot->job_count;
    state s = {adli_calloc(count, sizeof(int)), adli_calloc(count, sizeof(double)),
               adli_calloc(count, sizeof(int)), adli_calloc(count, sizeof(int))};
    adli_room room = {0};
    adl_status status = s.size && s.gain && s.order && s.most ? adli_room_init(&room, snapshot)
                                                              : adli_fail_memory("sizes of jobs");
    if (status != ADL_OK)
        goto out;
    for (int i = 0; i < snapshot->job_count; i++) {
        int64_t fit = adli_room_most(&room, &snapshot->jobs[i]);
        s.most[i] =
            fit < snapshot->jobs[i].max_replicas ? (int)fit : snapshot->jobs[i].max_replicas;
    }
    choose_sizes(snapshot, adli_room_total(&room), &s);
    order_by_size(snapshot->job_count, &s);
    for (int i = 0; i < snapshot->job_count; i++)
        if (snapshot->jobs[i].replicas > 0 && snapshot->jobs[i].replicas == s.size[i])
            adli_room_keep(&room, plan, i);
    for (int i = 0; i < snapshot->job_count; i++) {
        int job = s.order[i];
        if (s.size[job] == 0 || s.size[job] == snapshot->jobs[job].replicas)
            continue;
        place(&room, plan, job, s.size[job]);
    }
out:
    adli_room_fini(&room);
    free(s.most);
    free(s.order);
    free(s.gain);
    free(s.size);
    return status;
}

const adli_policy_class adli_policy_optimus = {
    .name = "optimus",
    .summary = "devices where they shorten the remaining time most, fixed batch sizes (EuroSys'18)",
    .params = params,
    .decide = decide,
};
