/* Reading environment variables: what env.c and env_foreign.c share. */
#ifndef ADLI_TRAIN_ENV_H
#define ADLI_TRAIN_ENV_H

#include "adaptdl/context.h"
#include "base/status.h"

/* NULL when it is not set. An empty variable counts as one that is not: that is how shells and YAML files
 * "unset". */
const char *adli_env_text(const char *variable);
/* Leaves *out alone when the variable is not set. EINVAL names it. */
ADL_MUST adl_status adli_env_number(const char *variable, int low, int high, int *out);

/* env_foreign.c: what torchrun or srun says, where no ADAPTDL_* variable says it. env->nodes is 0 when it is not
 * known. A host of Slurm's is in a buffer of the thread's, until the next call. EINVAL names the variable. */
ADL_MUST adl_status adli_env_foreign(adl_env *env);

/* The first machine of a list in Slurm's notation: "gpu[03-05,9],cpu1" gives "gpu03". EINVAL when it is none. */
ADL_MUST adl_status adli_env_first_host(const char *list, char *out, size_t capacity);

#endif
