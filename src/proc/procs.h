/* Finding and ending processes that are not our children: the descendants of a process, however deep and
 * whatever session they made for themselves, and those that carry a mark in their environment. */
#ifndef ADLI_PROCS_H
#define ADLI_PROCS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Every process of a replica has this variable: the path of its claim without ".claim". */
#define ADLI_REPLICA_MARK "ADAPTDL_LOCAL_REPLICA"

/* SIGKILL to all descendants of root (not root). Returns how many there were that are no zombies. One
 * pass: what is born meanwhile is found by the next. */
int adli_procs_kill_below(pid_t root);

/* Living children of the process that are in that process group: [*count], to be freed; may be NULL for none. */
pid_t *adli_procs_children(pid_t parent, pid_t group, size_t *count);

/* Bytes of memory that the descendants of root use, each shared page counted once among them. The exact
 * figure is asked for only when a quick upper bound passes `enough`; else the bound is returned. */
int64_t adli_procs_memory_below(pid_t root, int64_t enough);

/* What is below one process, the root. */
typedef struct adli_procs_use {
    pid_t root; /* given; and its birth, so that nobody else is taken for it */
    unsigned long long born;
    bool weigh; /* given: memory_bytes is wanted, which is the dear part */
    double
        cpu_s; /* processor time of all that are or ever were below it; NAN: there is no such root */
    int64_t memory_bytes; /* as adli_procs_memory_below has it exactly; -1: not known */
} adli_procs_use;

/* Whose a process is: the number of the root that it is below. */
typedef struct adli_procs_owner {
    pid_t id;
    size_t use;
} adli_procs_owner;

/* Fills uses[count] by one look at all processes, however many roots there are. No root is below another. *owners:
 * [*owner_count] ascending by id, to be freed. Without memory or /proc everything is unknown. */
void adli_procs_use_below(adli_procs_use *uses, size_t count, adli_procs_owner **owners,
                          size_t *owner_count);

/* When the process was born, in clock ticks since boot; 0: there is none. */
unsigned long long adli_procs_born(pid_t id);

/* SIGKILL to all processes, except this one, that were born at `since` or later and whose environment has
 * ADLI_REPLICA_MARK=mark. Returns how many there were that are no zombies. *unsure: how many could not be
 * told because they were in the middle of exec; ask again. */
int adli_procs_kill_marked(const char *mark, unsigned long long since, int *unsure);

#endif
