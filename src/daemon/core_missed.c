/* How often jobs said that they would be done and were not (sched/trust.h), over restarts of the scheduler: else each
 * of them would be believed anew. Rare, so it is one text for all, written when it changes. */
#include "daemon/core_impl.h"

#include "base/json.h"
#include "base/json_write.h"
#include "base/mem.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MISSED_MAX_BYTES = 4 << 20, RETRY_S = 30 };

void adli_core_save_missed(adli_core *core, double now_s)
{
    const adli_kept_job *job;
    adli_buf text;
    int64_t misses = adli_cluster_misses(core->cluster);
    if (misses == core->misses_saved || now_s < core->misses_retry_s)
        return;
    adli_buf_init(&text, MISSED_MAX_BYTES - 1);
    adli_jw_open(&text, NULL, '{');
    TAILQ_FOREACH(job, &core->active, stage)
    {
        int missed = adli_cluster_missed(core->cluster, job->number);
        if (missed > 0)
            adli_jw_int(&text, job->uid, missed);
    }
    adli_jw_close(&text, '}');
    adl_status status = adli_buf_check(&text);
    if (status == ADL_OK) {
        adli_store_begin(core->store);
        adli_store_set(core->store, "missed", text.data);
        status = adli_store_commit(core->store);
    }
    if (status == ADL_OK)
        core->misses_saved = misses;
    else {
        core->misses_retry_s = now_s + RETRY_S;
        adli_say(ADL_LOG_WARNING, "how often jobs were not done in time was not written: %s",
                 adl_error());
    }
    adli_buf_fini(&text);
}

adl_status adli_core_load_missed(adli_core *core)
{
    const adli_kept_job *job;
    json_t *counts = NULL;
    char *text = adli_calloc(1, MISSED_MAX_BYTES);
    if (!text)
        return adli_fail_memory("what jobs have missed");
    adl_status status = adli_store_get(core->store, "missed", text, MISSED_MAX_BYTES);
    /* one that cannot be read is no reason not to start */
    if (status == ADL_OK && *text && adli_json_parse(text, strlen(text), &counts) != ADL_OK)
        adli_say(ADL_LOG_WARNING, "how often jobs were not done in time is forgotten: %s",
                 adl_error());
    TAILQ_FOREACH(job, &core->active, stage)
    {
        json_int_t missed = json_integer_value(json_object_get(counts, job->uid));
        if (missed > 0)
            adli_cluster_set_missed(core->cluster, job->number,
                                    missed < INT_MAX / 2 ? (int)missed : INT_MAX / 2);
    }
    core->misses_saved = adli_cluster_misses(core->cluster);
    json_decref(counts);
    free(text);
    return status;
}
