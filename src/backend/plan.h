/* What was decided about a group before its first replica was started: the file "plan" in its directory.
 * It is made once and never changed, so that a start that was cut short goes on as it began: the same
 * port for all ranks, the same devices. */
#ifndef ADLI_BACKEND_PLAN_H
#define ADLI_BACKEND_PLAN_H

#include "backend/cgroup.h"
#include "base/buf.h"

enum { ADLI_REPLICAS_MAX = 4096 };

/* Texts point into `text`. */
typedef struct adli_plan {
    int replicas;
    int port;
    adli_cgroup cgroups; /* the parents */
    const char *refused; /* "", or the reason why nothing of it is started */
    const char *message; /* and that in words */
    const char **nodes;  /* [replicas] */
    const char **gpus;   /* [replicas] the value of CUDA_VISIBLE_DEVICES; "-": left alone */
    adli_buf text;
} adli_plan;

/* Writes the plan (its text is not read). ESTATE: there is one. */
ADL_MUST adl_status adli_plan_write(int dir, const adli_plan *plan);
/* *out is new, or NULL. ENOENT: there is none. */
ADL_MUST adl_status adli_plan_read(int dir, adli_plan **out);
void adli_plan_free(adli_plan *plan);

#endif
