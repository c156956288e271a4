/* What replicas use of the machine: processor and memory from their control groups, or else from /proc for all that is
 * below their keepers, GPUs from NVIDIA's library by process. One look at the machine serves all replicas.
 *
 * On a thread of its own beside the backend's: of the backend it reads only what never changes, and the claims on
 * disk. */
#include "backend/local/impl.h"

#include "base/log.h"
#include "base/mem.h"
#include "proc/nvml.h"
#include "proc/procs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Who keeps it, and what its control group says. */
static void look_at(const local *self, adli_member_use *use, adli_procs_use *below)
{
    if (adli_member_check(use->uid, use->group) != ADL_OK)
        return;
    adli_cgroup cgroup =
        adli_local_cgroup_of(self, &self->cgroups, use->uid, use->group, use->member);
    use->cpu_s = adli_cgroup_cpu_s(&cgroup);
    use->memory_bytes = adli_cgroup_memory(&cgroup);
    below->weigh = use->memory_bytes < 0;
    int dir = adli_local_open(self, use->uid, use->group);
    if (dir < 0)
        return;
    below->root = adli_claim_keeper(dir, use->member, &below->born);
    close(dir);
}

static int by_id(const void *a, const void *b)
{
    const adli_procs_owner *left = a, *right = b;
    return (left->id > right->id) - (left->id < right->id);
}

/* GPUs: those of a process are its owner's. */
static void add_gpus(adli_nvml *nvml, adli_member_use *uses, const adli_procs_owner *owners,
                     size_t owner_count)
{
    adli_nvml_process *processes;
    size_t count;
    if (adli_nvml_look(nvml, &processes, &count) != ADL_OK) {
        adli_say(ADL_LOG_DEBUG, "%s", adl_error());
        return;
    }
    for (size_t i = 0; i < count; i++) {
        adli_procs_owner key = {.id = processes[i].id};
        const adli_procs_owner *owner =
            owner_count ? bsearch(&key, owners, owner_count, sizeof *owners, by_id) : NULL;
        if (!owner)
            continue;
        adli_member_use *use = &uses[owner->use];
        if (isfinite(processes[i].busy))
            use->gpus = processes[i].busy + (isfinite(use->gpus) ? use->gpus : 0);
        if (processes[i].memory_bytes >= 0)
            use->gpu_memory_bytes =
                processes[i].memory_bytes + (use->gpu_memory_bytes > 0 ? use->gpu_memory_bytes : 0);
    }
    free(processes);
}

static void find_nvml(local *self)
{
    if (self->nvml_sought)
        return;
    self->nvml_sought = true;
    const char *path = getenv("ADAPTDL_NVML");
    if (adli_nvml_open(path && *path ? path : NULL, &self->nvml) != ADL_OK)
        adli_say(path && *path ? ADL_LOG_WARNING : ADL_LOG_DEBUG,
                 "the use of GPUs is not known: %s", adl_error());
}

void adli_local_use(void *opaque, adli_member_use *uses, int count)
{
    local *self = opaque;
    adli_procs_owner *owners;
    size_t owner_count;
    adli_procs_use *below = adli_calloc(count > 0 ? (size_t)count : 1, sizeof *below);
    for (int i = 0; i < count; i++) {
        uses[i].cpu_s = uses[i].gpus = NAN;
        uses[i].memory_bytes = uses[i].gpu_memory_bytes = -1;
    }
    if (!below || count <= 0) {
        free(below);
        return;
    }
    find_nvml(self);
    for (int i = 0; i < count; i++)
        look_at(self, &uses[i], &below[i]);
    adli_procs_use_below(below, (size_t)count, &owners, &owner_count);
    for (int i = 0; i < count; i++) {
        if (!isfinite(uses[i].cpu_s))
            uses[i].cpu_s = below[i].cpu_s;
        if (below[i].weigh)
            uses[i].memory_bytes = below[i].memory_bytes;
    }
    if (self->nvml)
        add_gpus(self->nvml, uses, owners, owner_count);
    free(owners);
    free(below);
}
