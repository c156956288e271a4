/* The world of a context: who trains together at present. What a process was started with (paths, names, secrets)
 * stays in ctx->env; what may change while it runs is here, and is asked here, never kept. A world is replaced as a
 * whole, at a step boundary (regroup.c). */
#ifndef ADLI_TRAIN_WORLD_H
#define ADLI_TRAIN_WORLD_H

#include "adaptdl/context.h"

typedef struct adli_world {
    uint32_t generation; /* worlds before this one, since the processes were started */
    int rank, replicas;
    int nodes;
    char *master_addr; /* where rank 0 listens; "0.0.0.0": this machine */
    int master_port;
    int *members; /* [replicas] the processes, by numbers that are never used again; by rank */
} adli_world;

/* The first world, as the environment says: members have consecutive numbers when all start together. */
ADL_MUST adl_status adli_world_init(adli_world *world, const adl_env *env);
void adli_world_fini(adli_world *world);
/* Another address of rank 0 (heap memory, taken). */
void adli_world_take_master(adli_world *world, char *address);
/* The rank of a member; -1: it is not in this world. */
int adli_world_rank(const adli_world *world, int member);

/* Options for the group of a world of this context; the strings are borrowed from both. */
adl_group_options adli_world_group(adl_context *ctx, const adli_world *world);

#endif
