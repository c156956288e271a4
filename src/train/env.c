/* The environment variables of a replica, read once and checked: a launcher's typing error should be
 * one clear line, not a hang on the wrong port. */
#include "train/env.h"

#include "train/context.h"

#include "base/mem.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { SECONDS_MAX = 86400 };

const char *adli_env_text(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value ? value : NULL;
}

adl_status adli_env_number(const char *variable, int low, int high, int *out)
{
    const char *value = adli_env_text(variable);
    if (!value)
        return ADL_OK;
    char *end;
    long parsed = strtol(value, &end, 10);
    if (*end != '\0' || end == value || value[0] == ' ')
        return adli_fail(ADL_EINVAL, "%s=%s: not a whole number", variable, value);
    if (parsed < low || parsed > high)
        return adli_fail(ADL_EINVAL, "%s=%s: must be from %d to %d", variable, value, low, high);
    *out = (int)parsed;
    return ADL_OK;
}

/* "namespace/name", each part fit for a path of a URL; or a name alone, of a job that no cluster runs. */
static adl_status check_job_id(const char *id)
{
    const char *slash = strchr(id, '/');
    if (slash && (slash == id || !slash[1] || strchr(slash + 1, '/')))
        return adli_fail(ADL_EINVAL, "ADAPTDL_JOB_ID=%s: must be namespace/name or a name", id);
    for (const char *at = id; *at; at++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._/", *at))
            return adli_fail(
                ADL_EINVAL, "ADAPTDL_JOB_ID=%s: only letters, digits, '-', '.' and '_' are allowed",
                id);
    return ADL_OK;
}

static adl_status check_version(const char *version)
{
    char *end;
    long theirs = strtol(version, &end, 10);
    if (end == version || (*end != '.' && *end != '\0') || version[0] < '0' || version[0] > '9')
        return adli_fail(ADL_EINVAL, "ADAPTDL_SCHED_VERSION=%s: not a version", version);
    long ours = strtol(adl_version(), NULL, 10);
    if (theirs != ours)
        return adli_fail(ADL_EINVAL,
                         "ADAPTDL_SCHED_VERSION=%s: the scheduler is of major version %ld, this "
                         "library is %s; use a library of major version %ld",
                         version, theirs, adl_version(), theirs);
    return ADL_OK;
}

adl_status adli_env_check(const adl_env *env)
{
    if (env->replicas < 1)
        return adli_fail(ADL_EINVAL, "ADAPTDL_NUM_REPLICAS=%d: must be at least 1", env->replicas);
    if (env->rank < 0 || env->rank >= env->replicas)
        return adli_fail(ADL_EINVAL,
                         "ADAPTDL_REPLICA_RANK=%d: must be below ADAPTDL_NUM_REPLICAS=%d",
                         env->rank, env->replicas);
    if (env->nodes < 1 || env->nodes > env->replicas)
        return adli_fail(ADL_EINVAL,
                         "ADAPTDL_NUM_NODES=%d: must be from 1 to ADAPTDL_NUM_REPLICAS=%d",
                         env->nodes, env->replicas);
    if (env->restarts < 0)
        return adli_fail(ADL_EINVAL, "ADAPTDL_NUM_RESTARTS=%d: must not be negative",
                         env->restarts);
    if (env->master_port < 0 || env->master_port > 65535)
        return adli_fail(ADL_EINVAL, "ADAPTDL_MASTER_PORT=%d: must be from 0 to 65535",
                         env->master_port);
    const char *url = env->supervisor_url;
    if (url && strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0)
        return adli_fail(ADL_EINVAL,
                         "ADAPTDL_SUPERVISOR_URL=%s: must start with http:// or https://",
                         strchr(url, '@') ? "..." : url);
    adl_status status = env->job_id ? check_job_id(env->job_id) : ADL_OK;
    if (status == ADL_OK && url && !env->job_id)
        status = adli_fail(ADL_EINVAL,
                           "ADAPTDL_SUPERVISOR_URL=%s is set, but ADAPTDL_JOB_ID is not", url);
    if (status == ADL_OK && env->sched_version)
        status = check_version(env->sched_version);
    return status;
}

/* The variable's 0 is -1 in adl_env, where 0 stands for one that is not set. */
static adl_status load_checkpoint_interval(int *out)
{
    int seconds = -1;
    adl_status status = adli_env_number("ADAPTDL_CHECKPOINT_INTERVAL", 0, SECONDS_MAX, &seconds);
    *out = seconds < 0 ? 0 : seconds == 0 ? -1 : seconds;
    return status;
}

/* How batch sizes are chosen, and what becomes of Adam's moments then. */
static adl_status load_batch_rules(adl_env *env)
{
    int steps = -1;
    const char *rule = adli_env_text("ADAPTDL_BATCH_RULE");
    const char *moments = adli_env_text("ADAPTDL_MOMENTS");
    adl_status status = adli_env_number("ADAPTDL_BATCH_STEPS", 0, INT_MAX, &steps);
    env->batch_steps = steps < 0 ? 0 : steps == 0 ? -1 : steps;
    env->original_rule = rule && strcmp(rule, "original") == 0;
    env->keep_moments = moments && strcmp(moments, "keep") == 0;
    if (status == ADL_OK && rule && !env->original_rule && strcmp(rule, "adaptive") != 0)
        return adli_fail(ADL_EINVAL, "ADAPTDL_BATCH_RULE=%s: must be adaptive or original", rule);
    if (status == ADL_OK && moments && !env->keep_moments && strcmp(moments, "restart") != 0)
        return adli_fail(ADL_EINVAL, "ADAPTDL_MOMENTS=%s: must be keep or restart", moments);
    return status;
}

adl_status adli_env_load(adl_env *out)
{
    adl_env env = ADL_ENV_INIT;
    env.nodes = 0;
    env.checkpoint_path = adli_env_text("ADAPTDL_CHECKPOINT_PATH");
    env.share_path = adli_env_text("ADAPTDL_SHARE_PATH");
    env.job_id = adli_env_text("ADAPTDL_JOB_ID");
    env.supervisor_url = adli_env_text("ADAPTDL_SUPERVISOR_URL");
    env.sched_version = adli_env_text("ADAPTDL_SCHED_VERSION");
    env.tensorboard_logdir = adli_env_text("ADAPTDL_TENSORBOARD_LOGDIR");
    env.job_secret = adli_env_text("ADAPTDL_JOB_SECRET");
    env.prior = adli_env_text("ADAPTDL_PRIOR");
    env.world_socket = adli_env_text("ADAPTDL_WORLD_SOCKET");
    env.device_type = adli_env_text("ADAPTDL_DEVICE_TYPE");
    if (adli_env_text("ADAPTDL_MASTER_ADDR"))
        env.master_addr = adli_env_text("ADAPTDL_MASTER_ADDR");
    adl_status status = adli_env_number("ADAPTDL_MASTER_PORT", 0, 65535, &env.master_port);
    if (status == ADL_OK)
        status = adli_env_number("ADAPTDL_NUM_REPLICAS", 1, 1 << 20, &env.replicas);
    if (status == ADL_OK)
        status = adli_env_number("ADAPTDL_REPLICA_RANK", 0, 1 << 20, &env.rank);
    if (status == ADL_OK)
        status = adli_env_number("ADAPTDL_NUM_NODES", 1, 1 << 20, &env.nodes);
    if (status == ADL_OK)
        status = adli_env_number("ADAPTDL_NUM_RESTARTS", 0, INT_MAX, &env.restarts);
    if (status == ADL_OK)
        status = adli_env_number("ADAPTDL_HINTS_INTERVAL", 1, SECONDS_MAX, &env.hints_interval_s);
    if (status == ADL_OK)
        status = adli_env_number("ADAPTDL_CONNECT_TIMEOUT", 1, SECONDS_MAX, &env.connect_timeout_s);
    if (status == ADL_OK)
        status = load_checkpoint_interval(&env.checkpoint_interval_s);
    if (status == ADL_OK)
        status = adli_env_number("ADAPTDL_PEER_TIMEOUT", 1, SECONDS_MAX, &env.peer_timeout_s);
    if (status == ADL_OK)
        status = adli_env_number("ADAPTDL_LOCAL_RANK", 0, 1 << 20, &env.local_rank);
    int joins = 0;
    if (status == ADL_OK)
        status = load_batch_rules(&env);
    if (status == ADL_OK)
        status = adli_env_number("ADAPTDL_MEMBER", 0, INT_MAX, &env.member);
    if (status == ADL_OK)
        status = adli_env_number("ADAPTDL_JOIN", 0, 1, &joins);
    env.joins = joins != 0;
    if (status == ADL_OK)
        status = adli_env_foreign(&env);
    if (status == ADL_OK && joins && !env.world_socket && !env.supervisor_url)
        status = adli_fail(ADL_EINVAL, "ADAPTDL_JOIN=1, but neither ADAPTDL_WORLD_SOCKET nor "
                                       "ADAPTDL_SUPERVISOR_URL is set");
    if (status == ADL_OK && env.world_socket && !env.joins && env.member < env.rank)
        status = adli_fail(ADL_EINVAL, "ADAPTDL_MEMBER=%d: below ADAPTDL_REPLICA_RANK=%d",
                           env.member, env.rank);
    if (status == ADL_OK)
        *out = env;
    return status;
}

adl_status adl_env_read(adl_env *out)
{
    adl_env env;
    adl_status status = adli_env_load(&env);
    if (status != ADL_OK)
        return status;
    if (env.nodes == 0)
        env.nodes = env.replicas;
    status = adli_env_check(&env);
    if (status == ADL_OK && env.replicas > 1 && env.master_port == 0)
        status =
            adli_fail(ADL_EINVAL, "ADAPTDL_MASTER_PORT is not set: %d replicas need rank 0's port",
                      env.replicas);
    if (status == ADL_OK)
        *out = env;
    return status;
}

struct adli_env_copy {
    char *text[11];
};

adl_status adli_env_copy_new(const adl_env *env, adl_env *out, adli_env_copy **copy)
{
    *out = *env;
    *copy = adli_calloc(1, sizeof **copy);
    if (!*copy)
        return adli_fail_memory("environment");
    const char **fields[] = {&out->checkpoint_path,    &out->share_path,     &out->job_id,
                             &out->master_addr,        &out->supervisor_url, &out->sched_version,
                             &out->tensorboard_logdir, &out->job_secret,     &out->prior,
                             &out->world_socket,       &out->device_type};
    for (size_t i = 0; i < ADLI_COUNT(fields); i++) {
        if (!*fields[i])
            continue;
        *fields[i] = (*copy)->text[i] = adli_strdup(*fields[i]);
        if (!*fields[i])
            return adli_fail_memory("environment");
    }
    return ADL_OK;
}

void adli_env_copy_free(adli_env_copy *copy)
{
    if (!copy)
        return;
    for (size_t i = 0; i < ADLI_COUNT(copy->text); i++)
        free(copy->text[i]);
    free(copy);
}
