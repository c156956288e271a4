/* What was decided about members before the first of them was started: the file "plan" in their group's
 * directory, "plan-M" for those that joined it later, from member M on. It is made once and never changed, so
 * that a start that was cut short goes on as it began: the same port for all, the same devices. */
#ifndef ADLI_LOCAL_PLAN_H
#define ADLI_LOCAL_PLAN_H

#include "backend/local/cgroup.h"
#include "base/buf.h"

enum { ADLI_PLAN_NAME = 32 };
#define ADLI_PLAN_FIRST "plan"

/* Texts point into `text`. */
typedef struct adli_start_plan {
    int count;
    int port;
    adli_cgroup cgroups; /* the parents */
    const char *refused; /* "", or the cause why nothing of it is started */
    const char *message; /* and that in words */
    int *members;        /* [count] ascending */
    const char **nodes;  /* [count] */
    const char **gpus;   /* [count] the value of CUDA_VISIBLE_DEVICES; "-": left alone */
    adli_buf text;
} adli_start_plan;

/* Writes the plan (its text is not read). ESTATE: there is one. */
ADL_MUST adl_status adli_start_plan_write(int dir, const char *name, const adli_start_plan *plan);
/* *out is new, or NULL. ENOENT: there is none. */
ADL_MUST adl_status adli_start_plan_read(int dir, const char *name, adli_start_plan **out);
void adli_start_plan_free(adli_start_plan *plan);

#endif
