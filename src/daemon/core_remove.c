/* The end of a job's record: its files first, then its row. Killed in between, it is done again. The backend takes files
 * away in the background: neither rounds nor the commit wait for them. */
#include "daemon/core_impl.h"

/* In one commit: each waits for the disk, but others wait for it to end. */
enum { AT_A_TIME = 1024 };

static adl_status remove_some(adli_core *core, double now_s)
{
    adli_kept_job *jobs[AT_A_TIME], *job;
    int count = 0;
    for (job = TAILQ_FIRST(&core->doomed); job && count < AT_A_TIME; job = TAILQ_NEXT(job, stage))
        jobs[count++] = job;
    for (int i = 0; i < count; i++)
        core->backend->ops->remove(core->backend->self, jobs[i]->uid);
    pthread_mutex_lock(&core->changes);
    adli_core_make_room(core);
    adli_store_begin(core->store);
    for (int i = 0; i < count; i++) {
        adli_store_remove_job(core->store, jobs[i]->uid);
        adli_store_event(core->store, now_s, "JobDeleted", jobs[i]->id, "removed", "");
    }
    adl_status status = adli_store_commit(core->store);
    pthread_mutex_lock(&core->lock);
    for (int i = 0; status == ADL_OK && i < count; i++) {
        adli_core_drop_job(core, jobs[i]);
        core->counters.deleted++;
    }
    pthread_mutex_unlock(&core->lock);
    pthread_mutex_unlock(&core->changes);
    for (int i = 0; status == ADL_OK && i < count; i++) {
        adli_core_stage(core, jobs[i], STAGE_NONE);
        if (jobs[i]->is_touched)
            TAILQ_REMOVE(&core->touched, jobs[i], touched);
        adli_core_job_free(jobs[i]);
    }
    return status;
}

void adli_core_remove_jobs(adli_core *core, double now_s)
{
    while (core->over_count > core->config.store.finished_jobs) /* those over for longest */
        adli_core_stage(core, TAILQ_FIRST(&core->over), STAGE_DOOMED);
    while (!TAILQ_EMPTY(&core->doomed))
        if (remove_some(core, now_s) != ADL_OK) {
            adli_say(ADL_LOG_WARNING, "not removed, tried again: %s", adl_error());
            core->commit_failed = true;
            core->retry_commit_s = now_s + 1;
            return;
        }
}
