/* The end of a job's record: its files first, then its row. Killed in between, it is done again. */
#include "daemon/core_impl.h"

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
        adli_core_drop_job(core, job);
        core->counters.deleted++;
        pthread_mutex_unlock(&core->lock);
    }
    pthread_mutex_unlock(&core->changes);
    if (status != ADL_OK)
        return status;
    adli_core_stage(core, job, STAGE_NONE);
    if (job->is_touched)
        TAILQ_REMOVE(&core->touched, job, touched);
    adli_core_job_free(job);
    return ADL_OK;
}

void adli_core_remove_jobs(adli_core *core, double now_s)
{
    adli_kept_job *job;
    while (core->over_count > core->config.store.finished_jobs) /* those over for longest */
        adli_core_stage(core, TAILQ_FIRST(&core->over), STAGE_DOOMED);
    while ((job = TAILQ_FIRST(&core->doomed)))
        if (remove_job(core, job, now_s) != ADL_OK) {
            adli_say(ADL_LOG_WARNING, "not removed, tried again: %s", adl_error());
            core->commit_failed = true;
            core->retry_commit_s = now_s + 1;
            return;
        }
}
