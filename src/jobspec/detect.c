/* This machine as a node: what this process may use of it, not what is built in. A container's
 * share of cores and memory is in its control group, version 1 or 2; a group is bound by its
 * parents too, so the smallest limit on the way up to the mount counts. */
#include "jobspec/nodes.h"

#include "adaptdl/policy.h"
#include "jobspec/collect.h"
#include "jobspec/node_list.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The file's first bytes as text; false when it cannot be read. */
static bool read_small(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    size_t length = fread(out, 1, size - 1, file);
    fclose(file);
    out[length] = '\0';
    return length > 0;
}

static int64_t usable_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    long cores = sysconf(_SC_NPROCESSORS_ONLN); /* more than CPU_SETSIZE of them */
    return cores > 0 ? cores : 1;
}

static int64_t machine_memory(const char *root)
{
    char path[PATH_MAX], text[4096];
    int64_t kib = 0;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    const char *line = read_small(path, text, sizeof text) ? strstr(text, "MemTotal:") : NULL;
    if (line && sscanf(line, "MemTotal: %" SCNd64 " kB", &kib) == 1 && kib > 0 &&
        kib < ADL_MAX_AMOUNT / 1024)
        return kib * 1024;
    return 0;
}

typedef struct limits {
    int64_t cpu_milli, memory_bytes; /* INT64_MAX: none */
} limits;

/* "150000 100000" (version 2) or the two files of version 1. */
static void read_cpu_limit(const char *dir, limits *out)
{
    char path[PATH_MAX + 32], text[128];
    int64_t quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (read_small(path, text, sizeof text)) {
        if (sscanf(text, "%" SCNd64 " %" SCNd64, &quota, &period) != 2)
            return; /* "max" */
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
        if (!read_small(path, text, sizeof text))
            return;
        quota = strtoll(text, NULL, 10);
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
        if (read_small(path, text, sizeof text))
            period = strtoll(text, NULL, 10);
    }
    if (quota <= 0 || period <= 0 || quota > INT64_MAX / 1000)
        return;
    int64_t milli = quota * 1000 / period;
    if (milli < out->cpu_milli)
        out->cpu_milli = milli > 0 ? milli : 1;
}

static void read_memory_limit(const char *dir, limits *out)
{
    static const char *const names[] = {"memory.max", "memory.limit_in_bytes"};
    char path[PATH_MAX + 32], text[128];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (!read_small(path, text, sizeof text))
            continue;
        int64_t bytes = strtoll(text, NULL, 10); /* 0 for "max" */
        if (bytes > 0 && bytes < out->memory_bytes)
            out->memory_bytes = bytes;
    }
}

/* The group and all above it, below a hierarchy's mount. */
static void read_group(const char *mount, const char *group, limits *out)
{
    char dir[PATH_MAX];
    int length = snprintf(dir, sizeof dir, "%s%s", mount, group);
    if (length < 0 || (size_t)length >= sizeof dir)
        return;
    for (;;) {
        read_cpu_limit(dir, out);
        read_memory_limit(dir, out);
        char *slash = strrchr(dir, '/');
        if (strlen(dir) <= strlen(mount) || !slash)
            return;
        *slash = '\0';
    }
}

/* Lines "ID:CONTROLLERS:PATH"; version 2 has ID 0 and no controllers. */
static limits group_limits(const char *root)
{
    limits out = {INT64_MAX, INT64_MAX};
    char path[PATH_MAX], text[8192], mount[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!read_small(path, text, sizeof text))
        return out;
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        char *id = strsep(&line, ":"), *controllers = strsep(&line, ":");
        if (!id || !controllers || !line)
            continue;
        if (!*controllers) {
            snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
            read_group(mount, line, &out);
            continue;
        }
        for (char *one; (one = strsep(&controllers, ","));) {
            if (strcmp(one, "cpu") != 0 && strcmp(one, "memory") != 0)
                continue;
            snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/%s", root, one);
            read_group(mount, line, &out);
        }
    }
    return out;
}

/* Devices that this process can open: /dev/nvidia0, /dev/nvidia1 ... In a container /proc lists
 * those of the whole machine, so it is believed only where the driver is open to us. */
static int64_t count_devices(const char *root)
{
    char path[PATH_MAX];
    int64_t count = 0;
    bool driver = false;
    snprintf(path, sizeof path, "%s/dev", root);
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        const char *number = entry->d_name + 6;
        if (strncmp(entry->d_name, "nvidia", 6) != 0)
            continue;
        driver |= strcmp(number, "ctl") == 0;
        count += *number && number[strspn(number, "0123456789")] == '\0';
    }
    if (dir)
        closedir(dir);
    if (count > 0 || !driver)
        return count;
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus", root);
    dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return count;
}

adl_status adli_nodes_detect(const char *root, adli_nodes *out)
{
    *out = (adli_nodes){0};
    adli_node_spec *node;
    limits group = group_limits(root);
    int64_t milli = usable_cores() * 1000, memory = machine_memory(root);
    int64_t devices = count_devices(root);
    if (milli > group.cpu_milli)
        milli = group.cpu_milli;
    if (memory == 0 || memory > group.memory_bytes)
        memory = group.memory_bytes;
    adl_status status = adli_nodes_add(out, "node-0", "", false, &node);
    if (status == ADL_OK)
        status = adli_amounts_set(&node->resources, "cpu", milli);
    if (status == ADL_OK && memory <= ADL_MAX_AMOUNT)
        status = adli_amounts_set(&node->resources, "memory", memory);
    if (status == ADL_OK && devices > 0)
        status = adli_amounts_set(&node->resources, "nvidia.com/gpu", devices);
    if (status == ADL_OK)
        status = adli_node_default_pods(&node->resources);
    if (status != ADL_OK)
        adli_nodes_fini(out);
    return status;
}
