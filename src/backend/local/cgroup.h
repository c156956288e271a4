/* Control groups: where limits are kept by the kernel. A replica gets a group of its own below a parent
 * that we may write to; in version 1 one below each of the controllers cpu and memory. Nothing is
 * assumed: a probe makes a group and looks. */
#ifndef ADLI_LOCAL_CGROUP_H
#define ADLI_LOCAL_CGROUP_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { ADLI_CGROUP_PATH = 512 };

typedef enum adli_cgroup_kind { ADLI_CGROUP_NONE, ADLI_CGROUP_V1, ADLI_CGROUP_V2 } adli_cgroup_kind;

/* The parents, or one replica's own groups. path[0]: v2, or v1's memory; path[1]: v1's cpu. */
typedef struct adli_cgroup {
    adli_cgroup_kind kind;
    char path[2][ADLI_CGROUP_PATH];
} adli_cgroup;

/* Finds parents below which groups with limits can be made. parent: for v2, NULL: our own group. ENOENT:
 * there are none; the text says why. */
ADL_MUST adl_status adli_cgroup_probe(adli_cgroup_kind kind, const char *parent, adli_cgroup *out);

/* The group called name below the parents. */
adli_cgroup adli_cgroup_child(const adli_cgroup *parents, const char *name);

/* Makes the directories and sets the limits (0: none). On failure nothing is left. */
ADL_MUST adl_status adli_cgroup_make(const adli_cgroup *group, int64_t cpu_milli,
                                     int64_t memory_bytes);
/* Moves the calling process there. Safe between fork and exec. Returns 0 or -1. */
int adli_cgroup_enter(const adli_cgroup *group);
/* SIGKILL to all in it. */
void adli_cgroup_kill(const adli_cgroup *group);
/* Did the kernel kill something in it for want of memory? */
bool adli_cgroup_was_oom(const adli_cgroup *group);
/* Processor time that was used in it; NAN: it does not say (version 1 may count that elsewhere). */
double adli_cgroup_cpu_s(const adli_cgroup *group);
/* Memory that is used in it, without file pages, which the kernel can drop; -1: it does not say. */
int64_t adli_cgroup_memory(const adli_cgroup *group);
/* Removes the empty group; true when it is gone. */
bool adli_cgroup_remove(const adli_cgroup *group);

#endif
