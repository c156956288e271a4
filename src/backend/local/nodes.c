/* Nodes of the local backend: shares of this machine under names of their own, and which of its GPUs
 * belong to which. */
#include "backend/local/impl.h"

#include "base/mem.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const gpu_resource = "nvidia.com/gpu";
enum { GPUS_MAX = 1024, NODES_MAX = 4096 };

static void node_fini(node *item)
{
    free(item->name);
    free(item->device_type);
    for (int i = 0; i < item->resource_count; i++)
        free(item->resource_names[i]);
    for (int i = 0; i < item->gpu_count && item->gpus; i++)
        free(item->gpus[i]);
    free(item->gpus);
    *item = (node){0};
}

static void nodes_free(node *nodes, int count)
{
    for (int i = 0; i < count; i++)
        node_fini(&nodes[i]);
    free(nodes);
}

void adli_local_nodes_fini(local *self)
{
    nodes_free(self->nodes, self->node_count);
    free(self->views);
}

node *adli_local_node_named(const local *self, const char *name)
{
    for (int i = 0; i < self->node_count; i++)
        if (strcmp(self->nodes[i].name, name) == 0)
            return &self->nodes[i];
    return NULL;
}

/* ---- declarations ---- */

static adl_status check_node(const adli_local_node *nodes, int index)
{
    const adli_local_node *item = &nodes[index];
    if (!item->name || !item->name[0] || strlen(item->name) > 63)
        return adli_fail(ADL_EINVAL, "node %d: its name has 1 to 63 characters", index);
    for (int i = 0; i < index; i++)
        if (strcmp(nodes[i].name, item->name) == 0)
            return adli_fail(ADL_EINVAL, "node %s: declared twice", item->name);
    if (item->resource_count < 0 || item->resource_count > ADLI_NODE_RESOURCES_MAX)
        return adli_fail(ADL_EINVAL, "node %s: at most %d resources", item->name,
                         ADLI_NODE_RESOURCES_MAX);
    for (int i = 0; i < item->resource_count; i++) {
        bool gpu = item->resource_names[i] && strcmp(item->resource_names[i], gpu_resource) == 0;
        if (!item->resource_names[i] || item->resource_amounts[i] < 0 ||
            (gpu && item->resource_amounts[i] > GPUS_MAX))
            return adli_fail(ADL_EINVAL, "node %s: resource %s: %lld", item->name,
                             item->resource_names[i] ? item->resource_names[i] : "without name",
                             (long long)item->resource_amounts[i]);
    }
    return ADL_OK;
}

/* The list "a,b,c" as texts. */
static adl_status take_gpu_names(node *item, const char *list)
{
    char *copy = adli_strdup(list), *rest = copy;
    int count = 0;
    item->gpus_given = true;
    for (char *name; copy && (name = strtok_r(rest, ", ", &rest));) {
        if (count == item->gpu_count) {
            free(copy);
            return adli_fail(ADL_EINVAL, "node %s: gpus: more than its %d %s", item->name,
                             item->gpu_count, gpu_resource);
        }
        if (!(item->gpus[count++] = adli_strdup(name)))
            break;
    }
    free(copy);
    if (count < item->gpu_count || !copy || (count && !item->gpus[count - 1]))
        return adli_fail(ADL_EINVAL, "node %s: gpus: names %d of %d", item->name, count,
                         item->gpu_count);
    return ADL_OK;
}

static adl_status copy_node(node *out, const adli_local_node *from)
{
    out->name = adli_strdup(from->name);
    out->device_type = adli_strdup(from->device_type ? from->device_type : "");
    out->preemptible = from->preemptible;
    for (int i = 0; i < from->resource_count; i++) {
        out->resource_names[i] = adli_strdup(from->resource_names[i]);
        out->resource_amounts[i] = from->resource_amounts[i];
        out->resource_count = i + 1;
        if (!out->resource_names[i])
            return adli_fail_memory("a node");
        if (strcmp(from->resource_names[i], gpu_resource) == 0)
            out->gpu_count = (int)from->resource_amounts[i];
    }
    out->gpus = adli_calloc((size_t)out->gpu_count, sizeof *out->gpus);
    if (!out->name || !out->device_type || !out->gpus)
        return adli_fail_memory("a node");
    return from->gpus ? take_gpu_names(out, from->gpus) : ADL_OK;
}

static bool gpu_dealt(const node *nodes, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        for (int j = 0; j < nodes[i].gpu_count; j++)
            if (nodes[i].gpus[j] && strcmp(nodes[i].gpus[j], name) == 0)
                return true;
    return false;
}

/* Gives nodes without a list of their own the GPUs they had, then the lowest that nobody has. */
static adl_status deal_gpus(const local *self, node *nodes, int count)
{
    for (int i = 0; i < count; i++) {
        const node *old = adli_local_node_named(self, nodes[i].name);
        if (nodes[i].gpus_given || !old || old->gpus_given || old->gpu_count != nodes[i].gpu_count)
            continue;
        for (int j = 0; j < old->gpu_count; j++)
            if (!gpu_dealt(nodes, count, old->gpus[j]) &&
                !(nodes[i].gpus[j] = adli_strdup(old->gpus[j])))
                return adli_fail_memory("a node");
    }
    int next = 0;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < nodes[i].gpu_count; j++) {
            char name[16];
            if (nodes[i].gpus[j])
                continue;
            do
                snprintf(name, sizeof name, "%d", next++);
            while (gpu_dealt(nodes, count, name));
            if (!(nodes[i].gpus[j] = adli_strdup(name)))
                return adli_fail_memory("a node");
        }
    return ADL_OK;
}

adl_status adli_local_declare(local *self, const adli_local_node *declared, int count)
{
    adl_status status = ADL_OK;
    if (count < 0 || count > NODES_MAX || (count > 0 && !declared))
        return adli_fail(ADL_EINVAL, "%d nodes: at most %d", count, NODES_MAX);
    for (int i = 0; status == ADL_OK && i < count; i++)
        status = check_node(declared, i);
    if (status != ADL_OK)
        return status;
    size_t room = count > 0 ? (size_t)count : 1;
    node *nodes = adli_calloc(room, sizeof *nodes);
    adli_backend_node *views = adli_calloc(room, sizeof *views);
    if (!nodes || !views)
        status = adli_fail_memory("nodes");
    for (int i = 0; status == ADL_OK && i < count; i++)
        status = copy_node(&nodes[i], &declared[i]);
    if (status == ADL_OK)
        status = deal_gpus(self, nodes, count);
    if (status != ADL_OK) {
        if (nodes)
            nodes_free(nodes, count);
        free(views);
        return status;
    }
    adli_local_nodes_fini(self);
    self->nodes = nodes;
    self->node_count = count;
    self->views = views;
    return ADL_OK;
}

void adli_local_lose(local *self)
{
    adli_result lost;
    adli_result_set(&lost, ADLI_MEMBER_INTERRUPTED, -1, ADLI_CAUSE_NODE_LOST, "its node was lost");
    for (size_t i = 0; i < self->group_count; i++) {
        group *item = &self->groups[i];
        for (size_t k = 0; !item->over && k < item->count; k++)
            if (!adli_local_node_named(self, item->members[k].node))
                adli_local_signal(self, item, &item->members[k], ADLI_KEEPER_NODE_LOST, &lost);
    }
}

adl_status adli_local_nodes(void *opaque, const adli_backend_node **nodes, int *count)
{
    local *self = opaque;
    for (int i = 0; i < self->node_count; i++) {
        const node *from = &self->nodes[i];
        adli_backend_node *view = &self->views[i];
        *view = (adli_backend_node){.name = from->name,
                                    .device_type = from->device_type,
                                    .address = "127.0.0.1",
                                    .ready = true,
                                    .preemptible = from->preemptible,
                                    .resource_count = from->resource_count};
        for (int j = 0; j < from->resource_count; j++) {
            view->resource_names[j] = from->resource_names[j];
            view->resource_amounts[j] = from->resource_amounts[j];
        }
    }
    *nodes = self->views;
    *count = self->node_count;
    return ADL_OK;
}

/* ---- this machine ---- */

/* The driver has a directory for each. */
static int count_gpus(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/driver/nvidia/gpus");
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return count;
}

static void add_resource(adli_local_node *out, const char *name, int64_t amount)
{
    out->resource_names[out->resource_count] = name;
    out->resource_amounts[out->resource_count++] = amount;
}

void adli_local_machine(adli_local_node *out)
{
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                            : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int gpus = count_gpus();
    if (cores < 1)
        cores = 1;
    *out = (adli_local_node){.name = "node-0", .device_type = gpus ? "gpu" : "cpu"};
    add_resource(out, "pods", gpus ? gpus : cores);
    add_resource(out, "cpu", 1000 * (int64_t)cores);
    add_resource(out, "memory", (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    if (gpus)
        add_resource(out, gpu_resource, gpus);
}
