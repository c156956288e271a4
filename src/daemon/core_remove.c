/* The end of a job's record: its files first, then its row. Killed in between, it is done again. */
#include "daemon/core_impl.h"

#include <string.h>

static void drop(adli_kept_job **list, size_t *count, const adli_kept_job *job)
{
    for (size_t i = 0; i < *count; i++)
        if (list[i] == job) {
            memmove(&list[i], &list[i + 1], (*count - i - 1) * sizeof *list);
            --*count;
            return;
        }
}

static adl_status remove_job(adli_core *core, adli_kept_job *job, double now_s)
{
    core->backend->ops->remove(core->backend->self, job->uid);
    pthread_mutex_lock(&core->changes);
    adli_store_begin(core->store);
    adli_store_remove_job(core->store, job->uid);
    adli_store_event(core->store, now_s, "JobDeleted", job->id, "removed", "");
    adl_status status = adli_store_commit(core->store);
    if (status == ADL_OK) {
        pthread_mutex_lock(&core->lock);
        drop(core->jobs, &core->job_count, job);
        core->counters.deleted++;
        pthread_mutex_unlock(&core->lock);
        drop(core->known, &core->known_count, job);
    }
    pthread_mutex_unlock(&core->changes);
    if (status == ADL_OK)
        adli_core_job_free(job);
    return status;
}

/* The finished job that has been over for longest, when there are too many. */
static adli_kept_job *oldest_surplus(adli_core *core)
{
    adli_kept_job *oldest = NULL;
    int finished = 0;
    for (size_t i = 0; i < core->known_count; i++) {
        adli_kept_job *job = core->known[i];
        if (job->number >= 0)
            continue;
        finished++;
        if (!oldest || job->row.completed_s < oldest->row.completed_s)
            oldest = job;
    }
    return finished > core->config.store.finished_jobs ? oldest : NULL;
}

static adli_kept_job *deleted_and_over(adli_core *core)
{
    adli_kept_job *found = NULL;
    pthread_mutex_lock(&core->lock);
    for (size_t i = 0; !found && i < core->known_count; i++)
        if (core->known[i]->number < 0 && core->known[i]->deleted)
            found = core->known[i];
    pthread_mutex_unlock(&core->lock);
    return found;
}

void adli_core_remove_jobs(adli_core *core, double now_s)
{
    adli_kept_job *job;
    while ((job = deleted_and_over(core)) || (job = oldest_surplus(core)))
        if (remove_job(core, job, now_s) != ADL_OK) {
            adli_core_log(core, "not removed, tried again: %s", adl_error());
            core->commit_failed = true;
            core->retry_commit_s = now_s + 1;
            return;
        }
}
