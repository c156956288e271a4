#include "train/world.h"

#include "base/mem.h"
#include "train/context.h"

#include <stdlib.h>
#include <string.h>

adl_status adli_world_init(adli_world *world, const adl_env *env)
{
    *world = (adli_world){.rank = env->rank,
                          .replicas = env->replicas,
                          .nodes = env->nodes,
                          .master_port = env->master_port,
                          .master_addr = adli_strdup(env->master_addr),
                          .members = adli_calloc((size_t)env->replicas, sizeof(int))};
    if (!world->master_addr || !world->members)
        return adli_fail_memory("world");
    int first = env->world_socket ? env->member - env->rank : 0;
    for (int r = 0; r < env->replicas; r++)
        world->members[r] = first + r;
    return ADL_OK;
}

void adli_world_fini(adli_world *world)
{
    free(world->master_addr);
    free(world->members);
    world->master_addr = NULL;
    world->members = NULL;
}

int adli_world_rank(const adli_world *world, int member)
{
    int rank = world->replicas - 1;
    while (rank >= 0 && world->members[rank] != member)
        rank--;
    return rank;
}

void adli_world_take_master(adli_world *world, char *address)
{
    free(world->master_addr);
    world->master_addr = address;
}

adl_group_options adli_world_group(adl_context *ctx, const adli_world *world)
{
    adl_group_options options = ADL_GROUP_OPTIONS_INIT;
    options.rank = world->rank;
    options.replicas = world->replicas;
    /* 0.0.0.0, the default, is an address to listen on; to connect it stands for this machine. */
    if (strcmp(world->master_addr, "0.0.0.0") != 0)
        options.master_addr = world->master_addr;
    options.master_port = world->master_port;
    /* Stragglers of an earlier start or an earlier world are refused. */
    options.generation = (uint64_t)ctx->env.restarts << 32 | world->generation;
    if (ctx->env.job_secret) {
        options.secret = ctx->env.job_secret;
        options.secret_length = strlen(ctx->env.job_secret);
    }
    options.connect_timeout_ms = ctx->options.connect_timeout_ms;
    options.peer_timeout_ms = ctx->options.peer_timeout_ms;
    options.cancelled = adli_give_up;
    options.cancel_context = ctx;
    return options;
}
