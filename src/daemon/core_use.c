/* What replicas use of their machines, for people: sampled by a thread of its own, so that nobody waits for it, and kept
 * in memory only. A sample looks at all replicas at once. Where that is dear (thousands of processes, or much memory
 * to weigh) it is taken less often, so that it costs a hundredth of a processor at most. */
#include "daemon/core_impl.h"

#include "base/clock.h"
#include "base/json_write.h"
#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double COST_MAX = 0.01;

/* ---- a sample ---- */

typedef struct running {
    adli_member_use *uses; /* [count] of the members that run, those of a job together */
    size_t count, capacity;
} running;

/* Under lock. */
static bool collect(const adli_core *core, running *all)
{
    const adli_kept_job *job;
    TAILQ_FOREACH(job, &core->placed, placed)
    {
        int count = job->view_group == job->row.life.group ? job->view_count : 0;
        for (int i = 0; i < count; i++) {
            if (job->views[i].state != ADLI_MEMBER_READY)
                continue;
            if (adli_grow(&all->uses, &all->capacity, all->count + 1, sizeof *all->uses) != 0)
                return false;
            adli_member_use *use = &all->uses[all->count++];
            *use = (adli_member_use){.group = job->view_group, .member = job->views[i].member};
            snprintf(use->uid, sizeof use->uid, "%s", job->uid);
        }
    }
    return true;
}

/* The last sample of a member; NULL: none. place: where it would be if all were there; since members ascend, it is not
 * further on. */
static const adli_replica_use *find(const adli_kept_job *job, int group, int member, int place)
{
    if (job->use_group != group)
        return NULL;
    for (int i = place < job->use_count ? place : job->use_count - 1; i >= 0; i--)
        if (job->uses[i].member <= member)
            return job->uses[i].member == member ? &job->uses[i] : NULL;
    return NULL;
}

/* Processors in use since the sample before; NAN: there is none. */
static double rate_since(const adli_replica_use *before, double cpu_s, double now_s)
{
    if (!before || now_s <= before->sampled_s)
        return NAN;
    return fmax(cpu_s - before->cpu_s, 0) / (now_s - before->sampled_s);
}

/* Under lock. uses[count]: the members of one job. */
static void publish(adli_core *core, const adli_member_use *uses, size_t count, double now_s)
{
    adli_kept_job *job = adli_index_find(&core->by_uid, uses[0].uid);
    adli_replica_use *list = job ? adli_calloc(count, sizeof *list) : NULL;
    if (!list)
        return;
    for (size_t i = 0; i < count; i++) {
        const adli_replica_use *before =
            find(job, uses[i].group, uses[i].member, job->use_count - 1);
        list[i] = (adli_replica_use){.member = uses[i].member,
                                     .sampled_s = now_s,
                                     .cpu_s = uses[i].cpu_s,
                                     .cpus = rate_since(before, uses[i].cpu_s, now_s),
                                     .memory_bytes = uses[i].memory_bytes,
                                     .gpus = uses[i].gpus,
                                     .gpu_memory_bytes = uses[i].gpu_memory_bytes};
    }
    free(job->uses);
    job->uses = list;
    job->use_count = (int)count;
    job->use_group = uses[0].group;
}

void adli_core_sample_use(adli_core *core, double now_s)
{
    running all = {0};
    const adli_backend_ops *ops = core->backend->ops;
    if (!ops->use)
        return;
    pthread_mutex_lock(&core->lock);
    bool known = collect(core, &all);
    pthread_mutex_unlock(&core->lock);
    if (known && all.count > 0) {
        ops->use(core->backend->self, all.uses, (int)all.count);
        pthread_mutex_lock(&core->lock);
        for (size_t i = 0, next; i < all.count; i = next) {
            for (next = i + 1;
                 next < all.count && strcmp(all.uses[next].uid, all.uses[i].uid) == 0;)
                next++;
            publish(core, &all.uses[i], next - i, now_s);
        }
        pthread_mutex_unlock(&core->lock);
    }
    free(all.uses);
}

/* ---- the thread ---- */

static void *sampler(void *user)
{
    adli_core *core = user;
    pthread_mutex_lock(&core->lock);
    while (!core->stopping) {
        pthread_mutex_unlock(&core->lock);
        double cpu_s = adli_thread_cpu_s();
        adli_core_sample_use(core, adli_monotonic_s());
        double pause_s = fmax((adli_thread_cpu_s() - cpu_s) / COST_MAX, core->config.use_s);
        double until_s = adli_monotonic_s() + pause_s;
        struct timespec until = {.tv_sec = (time_t)until_s,
                                 .tv_nsec = (long)(1e9 * (until_s - floor(until_s)))};
        pthread_mutex_lock(&core->lock);
        for (int code = 0; !core->stopping && code != ETIMEDOUT;)
            code = pthread_cond_timedwait(&core->use_stop, &core->lock, &until);
    }
    pthread_mutex_unlock(&core->lock);
    return NULL;
}

void adli_core_start_use(adli_core *core)
{
    if (!core->backend->ops->use || core->config.use_s <= 0)
        return;
    core->use_running = pthread_create(&core->use_thread, NULL, sampler, core) == 0;
    if (!core->use_running)
        adli_say(ADL_LOG_WARNING, "what replicas use is not shown: no thread for it");
}

void adli_core_stop_use(adli_core *core)
{
    if (!core->use_running)
        return;
    pthread_cond_broadcast(&core->use_stop);
    pthread_join(core->use_thread, NULL);
    core->use_running = false;
}

/* ---- what becomes of it ---- */

/* The use of the i-th replica, by rank; NULL: not known. */
static const adli_replica_use *use_of(const adli_kept_job *job, int i)
{
    if (job->view_group != job->row.life.group || i >= job->view_count ||
        job->views[i].state != ADLI_MEMBER_READY)
        return NULL;
    const adli_replica_use *use = find(job, job->view_group, job->views[i].member, i);
    return use && isfinite(use->cpu_s) ? use : NULL;
}

void adli_job_use_json(const adli_kept_job *job, adli_buf *out)
{
    adli_jw_open(out, "use", '[');
    for (int i = 0; i < job->row.placed_count; i++) {
        const adli_replica_use *use = use_of(job, i);
        if (!use)
            continue;
        adli_jw_open(out, NULL, '{');
        adli_jw_int(out, "rank", i);
        if (isfinite(use->cpus))
            adli_jw_number(out, "cpus", use->cpus);
        if (use->memory_bytes >= 0)
            adli_jw_int(out, "memoryBytes", use->memory_bytes);
        if (isfinite(use->gpus))
            adli_jw_number(out, "gpus", use->gpus);
        if (use->gpu_memory_bytes >= 0)
            adli_jw_int(out, "gpuMemoryBytes", use->gpu_memory_bytes);
        adli_jw_close(out, '}');
    }
    adli_jw_close(out, ']');
}

double adli_job_use(const adli_kept_job *job, int rank, adli_use_kind kind)
{
    const adli_replica_use *use = use_of(job, rank);
    if (!use)
        return NAN;
    switch (kind) {
    case ADLI_USE_CPU:
        return use->cpu_s;
    case ADLI_USE_MEMORY:
        return use->memory_bytes >= 0 ? (double)use->memory_bytes : NAN;
    case ADLI_USE_GPU:
        return use->gpus;
    case ADLI_USE_GPU_MEMORY:
        return use->gpu_memory_bytes >= 0 ? (double)use->gpu_memory_bytes : NAN;
    }
    return NAN;
}
