/* The local backend in the conformance suite. ADLT_CGROUPS=none|v1|v2|auto says how limits are kept. */
#include "conformance/suite.h"

#include "backend/local/local.h"
#include "backend/local/record.h"
#include "proc/procs.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int declare(const adlt_node *nodes, int count, adli_local_node *out)
{
    for (int i = 0; i < count; i++)
        out[i] = (adli_local_node){.name = nodes[i].name,
                                   .resource_count = 2,
                                   .resource_names = {"pods", "nvidia.com/gpu"},
                                   .resource_amounts = {nodes[i].pods, nodes[i].gpus}};
    return count;
}

static adl_status make(const char *state, const adlt_node *nodes, int count, adli_backend **out)
{
    adli_local_node declared[8];
    adli_local_options options = ADLI_LOCAL_OPTIONS_INIT;
    const char *how = getenv("ADLT_CGROUPS");
    options.state_dir = state;
    options.nodes = declared;
    options.node_count = declare(nodes, count, declared);
    options.cgroups = !how || strcmp(how, "auto") == 0 ? ADLI_CGROUPS_AUTO
                      : strcmp(how, "v1") == 0         ? ADLI_CGROUPS_V1
                      : strcmp(how, "v2") == 0         ? ADLI_CGROUPS_V2
                                                       : ADLI_CGROUPS_NONE;
    return adli_local_new(&options, out);
}

static adl_status set_nodes(adli_backend *backend, const adlt_node *nodes, int count)
{
    adli_local_node declared[8];
    declare(nodes, count, declared);
    return adli_local_set_nodes(backend, declared, count);
}

static bool carries_mark(const char *id, const char *prefix)
{
    static char text[1 << 20];
    char path[300];
    snprintf(path, sizeof path, "/proc/%s/environ", id);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    for (const char *at = text; at < text + length; at += strlen(at) + 1)
        if (strncmp(at, prefix, strlen(prefix)) == 0)
            return true;
    return false;
}

static int count_marked(const char *prefix)
{
    int count = 0;
    DIR *stream = opendir("/proc");
    for (struct dirent *entry; stream && (entry = readdir(stream));)
        count += isdigit((unsigned char)entry->d_name[0]) && carries_mark(entry->d_name, prefix);
    if (stream)
        closedir(stream);
    return count;
}

/* Keepers, replicas and their descendants carry the mark; control groups have the directory's sum in
 * their names. */
static int leftovers(const char *state)
{
    char mark[256], name[64], command[256];
    snprintf(mark, sizeof mark, "%s=%s/", ADLI_REPLICA_MARK, state);
    int count = count_marked(mark);
    snprintf(name, sizeof name, "adaptdl-%08x-", (unsigned)adli_record_sum(state, strlen(state)));
    snprintf(command, sizeof command, "find /sys/fs/cgroup -name '%s*' 2>/dev/null | grep -q .",
             name);
    count += system(command) == 0;
    return count;
}

static void touch(const char *state, const char *uid, const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/jobs/%s/share/%s", state, uid, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0)
        close(fd);
}

const adlt_backend_kind adlt_backend = {
    .name = "local",
    .make = make,
    .set_nodes = set_nodes,
    .leftovers = leftovers,
    .touch = touch,
    .has_devices = true,
    .limits_memory = true,
    .here = true,
};
