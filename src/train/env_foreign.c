/* Programs that other launchers start: torchrun (and what follows its convention) and Slurm's srun. They say the
 * same as our own variables do, in other words; with this a program needs no launcher of ours to train on several
 * replicas. Our own variables win, so that `adaptdl run` and clusters work inside of an allocation of Slurm's. */
#include "train/env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 1 << 20, PORT_FIRST = 20000, PORTS = 12000, HOST_MAX = 256 };

/* Keeps what a variable of ours has said. */
static adl_status unless(const char *ours, const char *variable, int low, int high, int *out)
{
    return adli_env_text(ours) ? ADL_OK : adli_env_number(variable, low, high, out);
}

static adl_status check_rank(const char *rank_name, const char *count_name, const adl_env *env)
{
    if (env->rank < env->replicas)
        return ADL_OK;
    return adli_fail(ADL_EINVAL, "%s=%d: must be below %s=%d", rank_name, env->rank, count_name,
                     env->replicas);
}

static void keep_nodes(adl_env *env, int nodes)
{
    if (!adli_env_text("ADAPTDL_NUM_NODES") && nodes > 0)
        env->nodes = nodes < env->replicas ? nodes : env->replicas;
}

/* MASTER_ADDR and MASTER_PORT: torchrun's, or what scripts for Slurm export by custom. */
static adl_status read_master(adl_env *env)
{
    if (!adli_env_text("ADAPTDL_MASTER_ADDR") && adli_env_text("MASTER_ADDR"))
        env->master_addr = adli_env_text("MASTER_ADDR");
    return unless("ADAPTDL_MASTER_PORT", "MASTER_PORT", 0, 65535, &env->master_port);
}

/* torchrun itself listens on MASTER_PORT, for the store of torch.distributed: rank 0 takes the next one. */
static void leave_port_to_agent(adl_env *env)
{
    const char *agent = adli_env_text("TORCHELASTIC_USE_AGENT_STORE");
    if (!agent || strcmp(agent, "True") != 0 || adli_env_text("ADAPTDL_MASTER_PORT") ||
        env->master_port == 0)
        return;
    env->master_port += env->master_port < 65535 ? 1 : -1;
}

static adl_status from_torchrun(adl_env *env)
{
    int local = 0, nodes = 0;
    adl_status status = adli_env_number("WORLD_SIZE", 1, MANY, &env->replicas);
    if (status == ADL_OK)
        status = adli_env_number("RANK", 0, MANY, &env->rank);
    if (status == ADL_OK)
        status = check_rank("RANK", "WORLD_SIZE", env);
    if (status == ADL_OK)
        status = unless("ADAPTDL_LOCAL_RANK", "LOCAL_RANK", 0, MANY, &env->local_rank);
    if (status == ADL_OK)
        status = adli_env_number("LOCAL_WORLD_SIZE", 1, MANY, &local);
    if (status == ADL_OK)
        status = adli_env_number("GROUP_WORLD_SIZE", 1, MANY, &nodes);
    if (status == ADL_OK)
        status =
            unless("ADAPTDL_NUM_RESTARTS", "TORCHELASTIC_RESTART_COUNT", 0, MANY, &env->restarts);
    if (status == ADL_OK)
        status = read_master(env);
    if (status != ADL_OK)
        return status;
    keep_nodes(env, nodes > 0 ? nodes : local > 0 ? (env->replicas + local - 1) / local : 0);
    leave_port_to_agent(env);
    return ADL_OK;
}

adl_status adli_env_first_host(const char *list, char *out, size_t capacity)
{
    size_t length = 0;
    bool inside = false, skip = false; /* of brackets; after their first number */
    for (const char *at = list; *at && (inside || *at != ','); at++) {
        if (*at == '[' && !inside)
            inside = true;
        else if (*at == ']' && inside)
            inside = skip = false;
        else if (inside && (*at == '-' || *at == ','))
            skip = true;
        else if (inside && (*at < '0' || *at > '9'))
            return adli_fail(ADL_EINVAL, "%s: not a list of machines", list);
        else if (!inside && *at == ']')
            return adli_fail(ADL_EINVAL, "%s: not a list of machines", list);
        else if (!skip && length + 1 < capacity)
            out[length++] = *at;
        else if (!skip)
            return adli_fail(ADL_EINVAL, "%.32s...: a name of more than %zu bytes", list,
                             capacity - 1);
    }
    out[length] = '\0';
    return length > 0 && !inside ? ADL_OK
                                 : adli_fail(ADL_EINVAL, "%s: not a list of machines", list);
}

/* srun starts task 0 on the first machine of the step. */
static adl_status slurm_master(adl_env *env)
{
    static _Thread_local char host[HOST_MAX];
    const char *list = adli_env_text("SLURM_STEP_NODELIST");
    int job = 0, step = 0;
    adl_status status = read_master(env);
    if (status == ADL_OK && list && !adli_env_text("MASTER_ADDR") &&
        !adli_env_text("ADAPTDL_MASTER_ADDR")) {
        status = adli_env_first_host(list, host, sizeof host);
        if (status != ADL_OK)
            return adli_wrap(status, "SLURM_STEP_NODELIST");
        env->master_addr = host;
    }
    if (status == ADL_OK)
        status = adli_env_number("SLURM_JOB_ID", 0, 2147483647, &job);
    if (status == ADL_OK)
        status = adli_env_number("SLURM_STEP_ID", 0, 2147483647, &step);
    /* All tasks must come to the same port, and neighbours on the machine to another one. */
    if (status == ADL_OK && env->master_port == 0)
        env->master_port = PORT_FIRST + (int)((31u * (unsigned)job + (unsigned)step) % PORTS);
    return status;
}

static adl_status from_slurm(adl_env *env)
{
    int nodes = 0;
    adl_status status = adli_env_number("SLURM_STEP_NUM_TASKS", 1, MANY, &env->replicas);
    if (status == ADL_OK)
        status = adli_env_number("SLURM_PROCID", 0, MANY, &env->rank);
    if (status == ADL_OK)
        status = check_rank("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", env);
    if (status == ADL_OK)
        status = unless("ADAPTDL_LOCAL_RANK", "SLURM_LOCALID", 0, MANY, &env->local_rank);
    if (status == ADL_OK)
        status = adli_env_number("SLURM_STEP_NUM_NODES", 1, MANY, &nodes);
    if (status == ADL_OK)
        status = unless("ADAPTDL_NUM_RESTARTS", "SLURM_RESTART_COUNT", 0, MANY, &env->restarts);
    if (status != ADL_OK || env->replicas == 1)
        return status;
    keep_nodes(env, nodes);
    return slurm_master(env);
}

adl_status adli_env_foreign(adl_env *env)
{
    if (adli_env_text("ADAPTDL_NUM_REPLICAS") || adli_env_text("ADAPTDL_REPLICA_RANK") ||
        adli_env_text("ADAPTDL_SUPERVISOR_URL"))
        return ADL_OK;
    /* RANK alone may be anybody's. A script of sbatch has SLURM_PROCID and SLURM_NTASKS too, but runs once: only
     * what srun started is in a step. */
    if (adli_env_text("RANK") && adli_env_text("WORLD_SIZE"))
        return from_torchrun(env);
    if (adli_env_text("SLURM_PROCID") && adli_env_text("SLURM_STEP_NUM_TASKS"))
        return from_slurm(env);
    return ADL_OK;
}
