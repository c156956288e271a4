/* What jobs of one application teach each other, over the life of a daemon and beyond: which application a
 * job is of, what a job is told when it is started, and how the pool gets to disk and back. */
#include "daemon/core_impl.h"

#include "base/json_write.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/perf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POOL_MAX_BYTES = 32 << 20 };

/* Between two savings. A daemon that is killed loses no more: jobs that run report again. */
static const double save_every_s = 30;

/* The namespace, for what strangers report teaches nobody, and the label adaptdl/application; else the image and the
 * program: the command's words up to the first that is neither an option nor an interpreter. */
void adli_core_application(const adli_kept_job *job, char out[ADLI_APPLICATION_SIZE])
{
    const adli_jobfile *spec = &job->spec;
    for (size_t i = 0; i < spec->labels.count; i++)
        if (strcmp(spec->labels.items[i].name, "adaptdl/application") == 0) {
            snprintf(out, ADLI_APPLICATION_SIZE, "%s label %s", job->ns,
                     spec->labels.items[i].value);
            return;
        }
    int used =
        snprintf(out, ADLI_APPLICATION_SIZE, "%s %s", job->ns, spec->image ? spec->image : "");
    for (int i = 0; i < spec->argc && used < ADLI_APPLICATION_SIZE; i++) {
        const char *word = spec->argv[i], *slash = strrchr(word, '/');
        const char *base = slash ? slash + 1 : word;
        if (word[0] == '-')
            continue;
        used += snprintf(out + used, (size_t)(ADLI_APPLICATION_SIZE - used), " %s", word);
        if (strncmp(base, "python", 6) != 0 && strcmp(base, "sh") != 0 &&
            strcmp(base, "bash") != 0 && strcmp(base, "env") != 0)
            return;
    }
}

adl_status adli_core_load_pool(adli_core *core)
{
    adl_status status = adli_pool_new(core->config.share_models, &core->pool);
    char *text = adli_calloc(1, POOL_MAX_BYTES);
    if (status == ADL_OK && !text)
        status = adli_fail_memory("pool of models");
    if (status == ADL_OK && core->config.share_models) {
        status = adli_store_get(core->store, "pool", text, POOL_MAX_BYTES);
        /* one that cannot be read is no reason not to start: it is learned again */
        if (status == ADL_OK && *text && adli_pool_load(core->pool, text, strlen(text)) != ADL_OK)
            adli_say(ADL_LOG_WARNING, "what jobs have learned is not readable and forgotten: %s",
                     adl_error());
    }
    free(text);
    core->pool_saved = core->pool ? adli_pool_clock(core->pool) : 0;
    return status;
}

void adli_core_save_pool(adli_core *core, double now_s, bool at_once)
{
    uint64_t clock = adli_pool_clock(core->pool);
    if (!core->config.share_models || clock == core->pool_saved ||
        (!at_once && now_s < core->pool_saved_s + save_every_s))
        return;
    adli_buf text;
    adli_buf_init(&text, POOL_MAX_BYTES - 1);
    core->pool_saved_s = now_s;
    adl_status status = adli_pool_save(core->pool, &text);
    if (status == ADL_OK) {
        adli_store_begin(core->store);
        adli_store_set(core->store, "pool", text.data);
        status = adli_store_commit(core->store);
    }
    if (status == ADL_OK && core->mirror.keep_pool)
        status = core->mirror.keep_pool(core->mirror.user, text.data);
    if (status == ADL_OK)
        core->pool_saved = clock;
    else
        adli_say(ADL_LOG_WARNING, "what jobs have learned was not written: %s", adl_error());
    adli_buf_fini(&text);
}

bool adli_core_knows(const adli_core *core, const adli_kept_job *job)
{
    adl_goodput known;
    int types = adli_pool_type_count(core->pool);
    for (int t = 0; t < types; t++)
        if (adl_cluster_prior(core->cluster, job->number, t, &known))
            return true;
    return false;
}

bool adli_core_prior(const adli_core *core, const adli_kept_job *job, int node, adli_buf *out)
{
    adl_goodput prior;
    int type = adl_cluster_type(core->cluster, node);
    if (!adl_cluster_prior(core->cluster, job->number, type, &prior))
        return false;
    adli_jw_open(out, NULL, '{');
    adli_jw_number(out, "initBatchSize", prior.init_batch_size);
    adli_jw_open(out, "gradParams", '{');
    adli_jw_number(out, "norm", prior.grad.sqr);
    adli_jw_number(out, "var", prior.grad.var);
    adli_jw_close(out, '}');
    adli_jw_open(out, "perfParams", '{');
    for (int i = 0; i < ADLI_PERF_COUNT; i++)
        adli_jw_number(out, adli_perf_names[i], adli_perf_get(&prior.perf, i));
    adli_jw_close(out, '}');
    adli_jw_close(out, '}');
    return adli_buf_check(out) == ADL_OK;
}
