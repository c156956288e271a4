#include "backend/local/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PERIOD_US = 100000, QUOTA_MIN_US = 1000 };

static bool join(char *out, const char *dir, const char *name)
{
    return snprintf(out, ADLI_CGROUP_PATH, "%s/%s", dir, name) < ADLI_CGROUP_PATH;
}

static int put(const char *dir, const char *file, const char *text)
{
    char path[ADLI_CGROUP_PATH];
    if (!join(path, dir, file))
        return -1;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t length = (ssize_t)strlen(text), put = write(fd, text, (size_t)length);
    int why = errno;
    close(fd);
    errno = why;
    return put == length ? 0 : -1;
}

static ssize_t get(const char *dir, const char *file, char *text, size_t size)
{
    char path[ADLI_CGROUP_PATH];
    if (!join(path, dir, file))
        return -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t got = read(fd, text, size - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    return got;
}

/* ---- where we are ---- */

/* Our group in the hierarchy of `controller` ("" for version 2), from /proc/self/cgroup's lines
 * "4:cpu,cpuacct:/path". */
static bool own_group(const char *controller, char *out)
{
    char line[ADLI_CGROUP_PATH + 128];
    bool found = false;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        if (!*controller)
            found = names[1] == '\0';
        for (char *name = names + 1, *rest; *controller && !found && name; name = rest) {
            rest = strchr(name, ',');
            if (rest)
                *rest++ = '\0';
            found = strcmp(name, controller) == 0;
        }
        if (found)
            found = snprintf(out, ADLI_CGROUP_PATH, "%s", path) < ADLI_CGROUP_PATH;
    }
    if (file)
        fclose(file);
    return found;
}

/* Is the word in a list with commas or spaces between? */
static bool has_word(const char *list, const char *word)
{
    static const char *const between = ", \n";
    size_t length = strlen(word);
    for (const char *at = list; *at; at += strcspn(at, between), at += strspn(at, between))
        if (strncmp(at, word, length) == 0 && (!at[length] || strchr(between, at[length])))
            return true;
    return false;
}

/* Where the hierarchy is mounted, from /proc/self/mountinfo: "... ROOT POINT options - TYPE source
 * SUPER". A mount of a part of the hierarchy (ROOT not "/") is that of a container: then `relative` is
 * cut by it. */
static bool find_mount(const char *controller, char *relative, char *out)
{
    char line[4096], root[ADLI_CGROUP_PATH], point[ADLI_CGROUP_PATH], type[32], super[1024];
    bool found = false;
    FILE *file = fopen("/proc/self/mountinfo", "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        const char *tail = strstr(line, " - ");
        if (!tail || sscanf(line, "%*s %*s %*s %511s %511s", root, point) != 2 ||
            sscanf(tail, " - %31s %*s %1023s", type, super) != 2)
            continue;
        bool version2 = strcmp(type, "cgroup2") == 0;
        if (*controller ? version2 || strcmp(type, "cgroup") != 0 || !has_word(super, controller)
                        : !version2)
            continue;
        size_t cut = strcmp(root, "/") == 0 ? 0 : strlen(root);
        if (cut && strncmp(relative, root, cut) != 0)
            continue;
        const char *rest = relative + cut;
        found = snprintf(out, ADLI_CGROUP_PATH, "%s%s", point, strcmp(rest, "/") ? rest : "") <
                ADLI_CGROUP_PATH;
    }
    if (file)
        fclose(file);
    return found;
}

static adl_status own_directory(const char *controller, char *out)
{
    char relative[ADLI_CGROUP_PATH];
    if (own_group(controller, relative) && find_mount(controller, relative, out))
        return ADL_OK;
    return adli_fail(ADL_ENOENT, "no cgroup hierarchy %s is mounted",
                     *controller ? controller : "v2");
}

/* ---- probing ---- */

/* A daemon that may have a subtree (a service with Delegate=yes and DelegateSubgroup=adaptdl-daemon) sits
 * in this group of it, because version 2 gives limits only to groups whose parent has no processes. */
static const char *const daemon_group = "/adaptdl-daemon";
static const char *const probe_prefix = "adaptdl-probe-";

static bool leave_daemon_group(char *path)
{
    size_t length = strlen(path), tail = strlen(daemon_group);
    if (length <= tail || strcmp(path + length - tail, daemon_group) != 0)
        return false;
    path[length - tail] = '\0';
    return true;
}

/* Are the controllers to be had there? Answers most failures without making a group. */
static bool has_controllers(const char *parent)
{
    char text[512];
    return get(parent, "cgroup.controllers", text, sizeof text) > 0 && has_word(text, "cpu") &&
           has_word(text, "memory");
}

/* Removes what probes that were killed have left in the directory. */
static void remove_stale_probes(const char *parent)
{
    char path[ADLI_CGROUP_PATH];
    size_t length = strlen(probe_prefix);
    DIR *dir = parent[0] ? opendir(parent) : NULL;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (strncmp(entry->d_name, probe_prefix, length) != 0)
            continue;
        long id = strtol(entry->d_name + length, NULL, 10);
        if (id > 1 && kill((pid_t)id, 0) != 0 && errno == ESRCH &&
            join(path, parent, entry->d_name))
            rmdir(path);
    }
    if (dir)
        closedir(dir);
}

adl_status adli_cgroup_probe(adli_cgroup_kind kind, const char *parent, adli_cgroup *out)
{
    char name[64];
    adl_status status;
    *out = (adli_cgroup){.kind = kind};
    if (kind == ADLI_CGROUP_V2 && parent)
        status = snprintf(out->path[0], ADLI_CGROUP_PATH, "%s", parent) < ADLI_CGROUP_PATH
                     ? ADL_OK
                     : adli_fail(ADL_ENOENT, "%s: too long", parent);
    else
        status = own_directory(kind == ADLI_CGROUP_V2 ? "" : "memory", out->path[0]);
    bool ours = kind == ADLI_CGROUP_V2 && (parent || leave_daemon_group(out->path[0]));
    if (status == ADL_OK && kind == ADLI_CGROUP_V1)
        status = own_directory("cpu", out->path[1]);
    if (status != ADL_OK)
        return status;
    if (kind == ADLI_CGROUP_V2 && !has_controllers(out->path[0]))
        return adli_fail(ADL_ENOENT, "cgroups: %s has no controllers cpu and memory", out->path[0]);
    for (int i = 0; i < 2; i++)
        remove_stale_probes(out->path[i]);
    snprintf(name, sizeof name, "%s%ld", probe_prefix, (long)getpid());
    adli_cgroup probe = adli_cgroup_child(out, name);
    status = adli_cgroup_make(&probe, 1000, 64 << 20);
    if (status != ADL_OK && ours && /* what is not ours is left as it is */
        put(out->path[0], "cgroup.subtree_control", "+cpu +memory") == 0)
        status = adli_cgroup_make(&probe, 1000, 64 << 20);
    if (status != ADL_OK)
        return adli_wrap(ADL_ENOENT, "cgroups");
    adli_cgroup_remove(&probe);
    return ADL_OK;
}

/* ---- one replica's ---- */

adli_cgroup adli_cgroup_child(const adli_cgroup *parents, const char *name)
{
    adli_cgroup child = {.kind = parents->kind};
    for (int i = 0; i < 2; i++)
        if (parents->path[i][0] && !join(child.path[i], parents->path[i], name))
            child.path[i][0] = '\0';
    return child;
}

static int set_cpu(const adli_cgroup *group, int64_t milli)
{
    char text[64];
    int64_t quota_us = milli * (PERIOD_US / 1000);
    if (quota_us < QUOTA_MIN_US)
        quota_us = QUOTA_MIN_US;
    if (group->kind == ADLI_CGROUP_V2) {
        snprintf(text, sizeof text, "%" PRId64 " %d", quota_us, PERIOD_US);
        return put(group->path[0], "cpu.max", text);
    }
    snprintf(text, sizeof text, "%d", PERIOD_US);
    if (put(group->path[1], "cpu.cfs_period_us", text) != 0)
        return -1;
    snprintf(text, sizeof text, "%" PRId64, quota_us);
    return put(group->path[1], "cpu.cfs_quota_us", text);
}

static int set_memory(const adli_cgroup *group, int64_t bytes)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, bytes);
    if (group->kind == ADLI_CGROUP_V1)
        return put(group->path[0], "memory.limit_in_bytes", text);
    if (put(group->path[0], "memory.max", text) != 0)
        return -1;
    put(group->path[0], "memory.swap.max", "0"); /* not there without swap */
    put(group->path[0], "memory.oom.group", "1");
    return 0;
}

adl_status adli_cgroup_make(const adli_cgroup *group, int64_t cpu_milli, int64_t memory_bytes)
{
    for (int i = 0; i < (group->kind == ADLI_CGROUP_V1 ? 2 : 1); i++) {
        if (group->path[i][0] && (mkdir(group->path[i], 0755) == 0 || errno == EEXIST))
            continue;
        adl_status status = adli_fail(ADL_EIO, "%s: %s", group->path[i], strerror(errno));
        adli_cgroup_remove(group);
        return status;
    }
    if ((cpu_milli > 0 && set_cpu(group, cpu_milli) != 0) ||
        (memory_bytes > 0 && set_memory(group, memory_bytes) != 0)) {
        adl_status status = adli_fail(ADL_EIO, "%s: limits: %s", group->path[0], strerror(errno));
        adli_cgroup_remove(group);
        return status;
    }
    return ADL_OK;
}

int adli_cgroup_enter(const adli_cgroup *group)
{
    for (int i = 0; i < 2; i++)
        if (group->path[i][0] && put(group->path[i], "cgroup.procs", "0") != 0)
            return -1;
    return 0;
}

/* Version 1 has no cgroup.kill. */
static void kill_listed(const char *path)
{
    char file[ADLI_CGROUP_PATH];
    long id;
    if (!join(file, path, "cgroup.procs"))
        return;
    FILE *members = fopen(file, "re");
    while (members && fscanf(members, "%ld", &id) == 1)
        if (id > 1 && id != (long)getpid())
            kill((pid_t)id, SIGKILL);
    if (members)
        fclose(members);
}

void adli_cgroup_kill(const adli_cgroup *group)
{
    if (group->kind == ADLI_CGROUP_NONE)
        return;
    if (group->kind == ADLI_CGROUP_V1 || put(group->path[0], "cgroup.kill", "1") != 0)
        kill_listed(group->path[0]);
}

bool adli_cgroup_was_oom(const adli_cgroup *group)
{
    char text[1024];
    if (group->kind == ADLI_CGROUP_NONE)
        return false;
    const char *file = group->kind == ADLI_CGROUP_V1 ? "memory.oom_control" : "memory.events";
    if (get(group->path[0], file, text, sizeof text) <= 0)
        return false;
    const char *field = strstr(text, "oom_kill ");
    return field && strtol(field + strlen("oom_kill "), NULL, 10) > 0;
}

/* The number after a name at the beginning of a line; -1: there is none. */
static int64_t field(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, length) == 0 && line[length] == ' ')
            return strtoll(line + length, NULL, 10);
    }
    return -1;
}

double adli_cgroup_cpu_s(const adli_cgroup *group)
{
    char text[1024];
    bool second = group->kind == ADLI_CGROUP_V2;
    if (group->kind == ADLI_CGROUP_NONE ||
        get(group->path[!second], second ? "cpu.stat" : "cpuacct.usage", text, sizeof text) <= 0)
        return NAN;
    int64_t used_us = second ? field(text, "usage_usec") : strtoll(text, NULL, 10) / 1000;
    return used_us >= 0 ? 1e-6 * (double)used_us : NAN;
}

int64_t adli_cgroup_memory(const adli_cgroup *group)
{
    enum { STAT_BYTES = 8192 };
    char used[64], text[STAT_BYTES];
    bool second = group->kind == ADLI_CGROUP_V2;
    if (group->kind == ADLI_CGROUP_NONE ||
        get(group->path[0], second ? "memory.current" : "memory.usage_in_bytes", used,
            sizeof used) <= 0 ||
        get(group->path[0], "memory.stat", text, sizeof text) <= 0)
        return -1;
    /* shared memory is among the cache, and cannot be dropped */
    int64_t cache = field(text, second ? "file" : "total_cache"),
            shared = field(text, second ? "shmem" : "total_shmem"),
            bytes = strtoll(used, NULL, 10) - cache + (shared > 0 ? shared : 0);
    return cache < 0 ? -1 : bytes > 0 ? bytes : 0;
}

bool adli_cgroup_remove(const adli_cgroup *group)
{
    bool gone = true;
    for (int i = 0; i < 2 && group->kind != ADLI_CGROUP_NONE; i++)
        if (group->path[i][0] && rmdir(group->path[i]) != 0 && errno != ENOENT)
            gone = false;
    return gone;
}
