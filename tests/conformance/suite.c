#include "conformance/suite.h"

#include "base/clock.h"

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const adlt_node usual[] = {{"a", 4, 2}, {"b", 4, 2}};
static const double patience_s = 60;

static int count_descriptors(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count;
}

adlt_site *adlt_open(void)
{
    static adlt_site site;
    site = (adlt_site){.state = "/tmp/adl-conform-XXXXXX", .descriptors = count_descriptors()};
    if (!mkdtemp(site.state))
        return NULL;
    if (adlt_backend.make(site.state, usual, 2, &site.backend) == ADL_OK)
        return &site;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", site.state);
    if (system(command) != 0)
        fprintf(stderr, "%s stays\n", site.state);
    return NULL;
}

adl_status adlt_reopen(adlt_site *site)
{
    if (site->backend)
        site->backend->ops->free(site->backend->self);
    return adlt_backend.make(site->state, usual, 2, &site->backend);
}

static void forget_one(void *user, const char *uid, int group)
{
    adli_backend *backend = user;
    (void)group;
    backend->ops->remove(backend->self, uid);
}

const char *adlt_close(adlt_site *site)
{
    static char wrong[200];
    char command[128];
    wrong[0] = '\0';
    site->backend->ops->list(site->backend->self, forget_one, site->backend);
    site->backend->ops->free(site->backend->self);
    int left = adlt_backend.leftovers(site->state), now = count_descriptors();
    for (int i = 0; left > 0 && i < 1000; i++) { /* a keeper goes just after its result came */
        usleep(10000);
        left = adlt_backend.leftovers(site->state);
    }
    if (left > 0)
        snprintf(wrong, sizeof wrong, "%d processes or groups are left", left);
    else if (now != site->descriptors)
        snprintf(wrong, sizeof wrong, "%d descriptors, %d before", now, site->descriptors);
    snprintf(command, sizeof command, "find %s -name '*gone*' -o -name '*.tmp.*' | grep -q .",
             site->state);
    if (!wrong[0] && system(command) == 0)
        snprintf(wrong, sizeof wrong, "temporary files are left");
    snprintf(command, sizeof command, "rm -rf %s", site->state);
    if (system(command) != 0)
        snprintf(wrong, sizeof wrong, "%s cannot be removed", site->state);
    return wrong[0] ? wrong : NULL;
}

void adlt_spec(adlt_site *site, const char *uid, int group, int replicas, const char *script,
               adli_group_spec *spec)
{
    static const char *nodes[ADLT_RANKS];
    static const char *argv[4] = {"/bin/sh", "-c"}, *env[2];
    static char dir[4200], share[4096];
    for (int i = 0; i < ADLT_RANKS; i++)
        nodes[i] = i % 2 ? "b" : "a";
    argv[2] = script;
    if (site->backend->ops->job_path(site->backend->self, uid, "share", share, sizeof share) !=
        ADL_OK)
        share[0] = '\0';
    snprintf(dir, sizeof dir, "DIR=%s", share);
    env[0] = dir;
    *spec = (adli_group_spec){
        .uid = uid, .group = group, .replicas = replicas, .nodes = nodes, .argv = argv, .env = env};
}

adl_status adlt_start(adlt_site *site, const char *uid, int group, int replicas, const char *script)
{
    adli_group_spec spec;
    adlt_spec(site, uid, group, replicas, script, &spec);
    return site->backend->ops->start(site->backend->self, &spec);
}

adli_replica_view adlt_view(adlt_site *site, const char *uid, int group, int rank)
{
    adli_replica_view views[ADLT_RANKS] = {0};
    int count;
    adl_status status =
        site->backend->ops->observe(site->backend->self, uid, group, views, ADLT_RANKS, &count);
    if (status != ADL_OK || rank >= count)
        views[rank] = (adli_replica_view){0};
    return views[rank];
}

bool adlt_gone(adlt_site *site, const char *uid, int group)
{
    adli_replica_view view;
    int count;
    return site->backend->ops->observe(site->backend->self, uid, group, &view, 1, &count) ==
           ADL_ENOENT;
}

static bool all_there(adlt_site *site, const char *uid, int group, int rank, int state)
{
    adli_replica_view views[ADLT_RANKS];
    int count;
    if (site->backend->ops->observe(site->backend->self, uid, group, views, ADLT_RANKS, &count) !=
        ADL_OK)
        return false;
    for (int i = 0; i < count; i++)
        if ((rank < 0 || rank == i) &&
            (state < 0 ? views[i].state <= ADLI_REPLICA_READY : (int)views[i].state != state))
            return false;
    return true;
}

bool adlt_wait(adlt_site *site, const char *uid, int group, int rank, int state)
{
    const adli_backend *backend = site->backend;
    double until_s = adli_monotonic_s() + patience_s;
    while (!all_there(site, uid, group, rank, state)) {
        struct pollfd wait = {.fd = backend->ops->event_fd(backend->self), .events = POLLIN};
        if (adli_monotonic_s() > until_s)
            return false;
        poll(&wait, 1, 5000);
        backend->ops->drain_events(backend->self);
    }
    return true;
}

const char *adlt_text(const char *path)
{
    static char text[16384];
    size_t length = 0;
    FILE *file = fopen(path, "re");
    if (file) {
        length = fread(text, 1, sizeof text - 1, file);
        fclose(file);
    }
    text[length] = '\0';
    return text;
}

const char *adlt_log(adlt_site *site, const char *uid, int group, int rank)
{
    char path[4096];
    if (site->backend->ops->log_path(site->backend->self, uid, group, rank, path, sizeof path) !=
        ADL_OK)
        return "";
    return adlt_text(path);
}

bool adlt_wait_log(adlt_site *site, const char *uid, int group, int rank, const char *text)
{
    double until_s = adli_monotonic_s() + patience_s;
    while (!strstr(adlt_log(site, uid, group, rank), text)) {
        if (adli_monotonic_s() > until_s)
            return false;
        usleep(5000);
    }
    return true;
}

int adlt_lines(const char *text, const char *line)
{
    size_t length = strlen(line);
    int count = 0;
    for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n')
        count += strncmp(at, line, length) == 0 && (at[length] == '\n' || !at[length]);
    return count;
}
