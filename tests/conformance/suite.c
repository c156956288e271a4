#include "conformance/suite.h"

#include "base/buf.h"
#include "base/clock.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const adlt_node usual[] = {{"a", 4, 2}, {"b", 4, 2}};

static double until(void)
{
    return adli_monotonic_s() + (adlt_backend.patience_s > 0 ? adlt_backend.patience_s : 60);
}

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
    char command[256];
    wrong[0] = '\0';
    site->backend->ops->list(site->backend->self, forget_one, site->backend);
    forget_one(site->backend, "job",
               0); /* of groups that were forgotten something may be kept until their job goes */
    site->backend->ops->free(site->backend->self);
    int left = adlt_backend.leftovers(site->state), now = count_descriptors();
    /* a keeper goes just after its result came, a pod when its kubelet gets to it */
    for (double until_s = until(); left > 0 && adli_monotonic_s() < until_s;) {
        usleep(10000);
        left = adlt_backend.leftovers(site->state);
    }
    if (left > 0)
        snprintf(wrong, sizeof wrong, "%d processes or groups are left", left);
    else if (now != site->descriptors)
        snprintf(wrong, sizeof wrong, "%d descriptors, %d before", now, site->descriptors);
    snprintf(command, sizeof command,
             "find %s -name .trash -prune -o '(' -name '*gone*' -o -name '*.tmp.*' ')' -print | "
             "grep -q .",
             site->state);
    if (!wrong[0] && system(command) == 0)
        snprintf(wrong, sizeof wrong, "temporary files are left");
    snprintf(command, sizeof command, "rm -rf %s", site->state);
    if (system(command) != 0)
        snprintf(wrong, sizeof wrong, "%s cannot be removed", site->state);
    return wrong[0] ? wrong : NULL;
}

/* In a pod template "$$" stands for "$". */
static const char *twice(const char *script)
{
    static char out[8192];
    size_t used = 0;
    for (const char *c = script; *c && used < sizeof out - 2; c++) {
        if (c[0] == '$' && c[1] == '$')
            out[used++] = '$';
        else if (c[0] == '$' && c > script && c[-1] == '$')
            out[used++] = '$';
        out[used++] = *c;
    }
    out[used] = '\0';
    return out;
}

const char *adlt_pod(const char *script, const char *more)
{
    static adli_buf pod;
    adli_buf_fini(&pod);
    adli_buf_init(&pod, 1 << 20);
    adli_buf_puts(&pod, "{\"spec\":{\"containers\":[{\"name\":\"main\","
                        "\"command\":[\"/bin/sh\",\"-c\",");
    adli_buf_json(&pod, twice(script));
    adli_buf_printf(&pod, "]%s%s}]}}",
                    strstr(more, "\"env\"") ? ""
                                            : ",\"env\":[{\"name\":\"DIR\","
                                              "\"value\":\"/adaptdl/share\"}]",
                    more);
    return pod.data;
}

void adlt_spec(const char *uid, int group, int replicas, const char *script, adli_start *start)
{
    static adli_member_start members[ADLT_RANKS];
    for (int i = 0; i < ADLT_RANKS; i++)
        members[i] = (adli_member_start){.member = i, .rank = i, .node = i % 2 ? "b" : "a"};
    *start = (adli_start)ADLI_START_INIT;
    start->uid = uid;
    start->group = group;
    start->members = members;
    start->count = start->replicas = replicas;
    start->nodes = replicas > 1 ? 2 : 1;
    start->pod = adlt_pod(script, "");
}

adl_status adlt_start(adlt_site *site, const char *uid, int group, int replicas, const char *script)
{
    adli_start start;
    adlt_spec(uid, group, replicas, script, &start);
    return site->backend->ops->start(site->backend->self, &start);
}

adl_status adlt_join(adlt_site *site, const char *uid, int group, int member, const char *node,
                     int rank, int replicas, const char *script)
{
    adli_start start;
    adli_member_start one = {.member = member, .rank = rank, .node = node};
    adlt_spec(uid, group, replicas, script, &start);
    start.members = &one;
    start.count = 1;
    return site->backend->ops->start(site->backend->self, &start);
}

adli_member_view adlt_view(adlt_site *site, const char *uid, int group, int member)
{
    adli_member_view views[ADLT_RANKS] = {0};
    int count;
    adl_status status =
        site->backend->ops->observe(site->backend->self, uid, group, views, ADLT_RANKS, &count);
    for (int i = 0; status == ADL_OK && i < count; i++)
        if (views[i].member == member)
            return views[i];
    return (adli_member_view){0};
}

bool adlt_gone(adlt_site *site, const char *uid, int group)
{
    adli_member_view view;
    int count;
    return site->backend->ops->observe(site->backend->self, uid, group, &view, 1, &count) ==
           ADL_ENOENT;
}

static bool all_there(adlt_site *site, const char *uid, int group, int member, int state)
{
    adli_member_view views[ADLT_RANKS];
    int count;
    if (site->backend->ops->observe(site->backend->self, uid, group, views, ADLT_RANKS, &count) !=
        ADL_OK)
        return false;
    for (int i = 0; i < count; i++)
        if ((member < 0 || member == views[i].member) &&
            (state < 0 ? views[i].state <= ADLI_MEMBER_READY : (int)views[i].state != state))
            return false;
    return true;
}

bool adlt_wait(adlt_site *site, const char *uid, int group, int member, int state)
{
    const adli_backend *backend = site->backend;
    double until_s = until();
    while (!all_there(site, uid, group, member, state)) {
        struct pollfd wait = {.fd = backend->ops->event_fd(backend->self), .events = POLLIN};
        if (adli_monotonic_s() > until_s)
            return false;
        poll(&wait, 1, 5000);
        backend->ops->drain_events(backend->self);
    }
    return true;
}

/* The descriptor's bytes; it is closed. */
static const char *read_text(int fd)
{
    static char text[16384];
    size_t length = 0;
    for (ssize_t got; fd >= 0 && length < sizeof text - 1; length += (size_t)got)
        if ((got = pread(fd, text + length, sizeof text - 1 - length, (off_t)length)) <= 0)
            break;
    if (fd >= 0)
        close(fd);
    text[length] = '\0';
    return text;
}

const char *adlt_text(const char *path)
{
    return read_text(open(path, O_RDONLY | O_CLOEXEC));
}

const char *adlt_file(adlt_site *site, const char *uid, const char *path)
{
    adli_opened opened;
    if (site->backend->ops->open_file(site->backend->self, uid, path, &opened) != ADL_OK)
        return "";
    return read_text(opened.fd);
}

const char *adlt_log(adlt_site *site, const char *uid, int group, int member)
{
    int fd;
    if (site->backend->ops->open_log(site->backend->self, uid, group, member, &fd) != ADL_OK)
        return "";
    return read_text(fd);
}

bool adlt_wait_log(adlt_site *site, const char *uid, int group, int member, const char *text)
{
    double until_s = until();
    while (!strstr(adlt_log(site, uid, group, member), text)) {
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
