/* How a job's members are started: the pod template of its file goes to the backend as it was submitted, with
 * what the training runtime expects to find in its environment. */
#include "daemon/core_impl.h"

#include "adli_version.h"
#include "base/json.h"
#include "base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPEC_MAX = 4 << 20, VARIABLES = 7 };

/* "http://HOST" as "http://job:TOKEN@HOST"; as it is where nobody asks for tokens. */
static void supervisor_url(adli_core *core, const adli_kept_job *job, char *out, size_t size)
{
    pthread_mutex_lock(&core->lock);
    const char *url = core->supervisor, *host = strstr(url, "://");
    if (host && core->no_job_tokens)
        snprintf(out, size, "%s", url);
    else if (host)
        snprintf(out, size, "%.*sjob:%s@%s", (int)(host + 3 - url), url, job->token, host + 3);
    else
        *out = 0;
    pthread_mutex_unlock(&core->lock);
}

/* The template of the job's file as compact JSON; *out is freed by the caller. */
static adl_status read_pod(adli_core *core, const adli_kept_job *job, char **out)
{
    adli_buf text;
    json_t *root = NULL;
    *out = NULL;
    adli_buf_init(&text, SPEC_MAX);
    adl_status status = adli_store_spec(core->store, job->uid, &text);
    if (status == ADL_OK)
        status = adli_json_parse(text.data, text.length, &root);
    if (status == ADL_OK) {
        const json_t *spec = json_object_get(root, "spec");
        *out = json_dumps(json_object_get(spec, "template"), JSON_COMPACT);
        if (!*out)
            status = adli_fail(ADL_EINVAL, "its file has no spec.template");
    }
    json_decref(root);
    adli_buf_fini(&text);
    return status;
}

typedef struct variables {
    char text[VARIABLES][1200];
    const char *list[VARIABLES + 1];
    int count;
} variables;

__attribute__((format(printf, 3, 4))) static void add(variables *env, const char *name,
                                                      const char *format, ...)
{
    char *text = env->text[env->count];
    int used = snprintf(text, sizeof env->text[0], "%s=", name);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, sizeof env->text[0] - (size_t)used, format, arguments);
    va_end(arguments);
    env->list[env->count++] = text;
}

static void make_env(adli_core *core, const adli_kept_job *job, int node, variables *env,
                     variables *defaults)
{
    char url[1024];
    adli_buf prior;
    supervisor_url(core, job, url, sizeof url);
    if (*url)
        add(env, "ADAPTDL_SUPERVISOR_URL", "%s", url);
    add(env, "ADAPTDL_JOB_ID", "%s", job->id);
    add(env, "ADAPTDL_JOB_SECRET", "%s", job->secret);
    add(env, "ADAPTDL_SCHED_VERSION", "%s", ADLI_VERSION);
    if (core->nodes[node].device_type[0])
        add(env, "ADAPTDL_DEVICE_TYPE", "%s", core->nodes[node].device_type);
    adli_buf_init(&prior, 1024);
    if (adli_core_prior(core, job, node, &prior))
        add(env, "ADAPTDL_PRIOR", "%s", prior.data);
    adli_buf_fini(&prior);
    /* Twice in a round, so that a round never decides on what the last one knew. */
    add(defaults, "ADAPTDL_HINTS_INTERVAL", "%d",
        (int)fmin(fmax(core->config.interval_s / 2, 1), 30));
}

/* Member i of a new group has rank i. nodes: [replicas] ascending. */
static adl_status make_members(const adli_core *core, const int *nodes, int replicas,
                               adli_start *start, adli_member_start **out)
{
    adli_member_start *members = *out =
        adli_calloc((size_t)(replicas ? replicas : 1), sizeof **out);
    if (!members)
        return adli_fail_memory("members");
    for (int i = 0; i < replicas; i++) {
        members[i] =
            (adli_member_start){.member = i, .rank = i, .node = core->nodes[nodes[i]].name};
        start->nodes += i == 0 || nodes[i] != nodes[i - 1];
    }
    start->members = members;
    start->count = start->replicas = replicas;
    return ADL_OK;
}

/* start has its members already. */
static adl_status start_with(adli_core *core, adli_kept_job *job, int group, int node,
                             adli_start start)
{
    char *pod = NULL;
    variables *env = adli_calloc(2, sizeof *env);
    adl_status status = env ? read_pod(core, job, &pod) : adli_fail_memory("variables");
    if (status == ADL_OK) {
        make_env(core, job, node, &env[0], &env[1]);
        start.uid = job->uid;
        start.ns = job->ns;
        start.name = job->name;
        start.group = group;
        start.pod = pod;
        start.env = env[0].list;
        start.defaults = env[1].list;
        status = core->backend->ops->start(core->backend->self, &start);
    }
    free(pod);
    free(env);
    return status;
}

adl_status adli_core_start_group(adli_core *core, adli_kept_job *job, int group, const int *nodes,
                                 int replicas)
{
    adli_start start = ADLI_START_INIT;
    adli_member_start *members = NULL;
    adl_status status = make_members(core, nodes, replicas, &start, &members);
    if (status == ADL_OK)
        status = start_with(core, job, group, replicas ? nodes[0] : 0, start);
    free(members);
    return status;
}

adl_status adli_core_start_members(adli_core *core, adli_kept_job *job, int group,
                                   const adli_member_start *members, int count, int replicas,
                                   int node)
{
    adli_start start = ADLI_START_INIT;
    start.members = members;
    start.count = count;
    start.replicas = replicas;
    start.nodes = 1;
    start.joins = true;
    return start_with(core, job, group, node, start);
}
