/* A backend for tests: nothing runs, the test says what becomes of replicas. It keeps to the rules of
 * backend.h and remembers whether the scheduler does: a group that is started twice, or again after it was
 * forgotten, is counted in `broken`. It outlives the core that uses it, as real replicas do. */
#ifndef ADLT_FAKE_BACKEND_H
#define ADLT_FAKE_BACKEND_H

#include "backend/backend.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FAKE_GROUPS = 512, FAKE_REPLICAS = 16, FAKE_NODES = 4 };

typedef struct fake_group {
    char uid[64];
    int group, replicas;
    bool forgotten;
    char nodes[FAKE_REPLICAS][64];
    adli_member_view views[FAKE_REPLICAS];
    char *pod;            /* as it was given */
    char *env, *defaults; /* joined by newlines */
    int terms, kills;
} fake_group;

typedef struct fake_backend {
    adli_backend backend;
    adli_backend_ops ops;
    pthread_mutex_t lock;
    char dir[256];
    adli_backend_node nodes[FAKE_NODES];
    int node_count;
    fake_group groups[FAKE_GROUPS];
    int group_count;
    int starts, forgets, removes, broken;
    int desired_nodes, scales; /* what scale was told last, and how often */
    bool auto_ready;           /* started replicas are ready at once */
    bool obedient;             /* SIGTERM interrupts at once */
    adl_status start_fails;    /* what start answers, when not ADL_OK */
    adl_status observe_fails;  /* and observe */
    int fd;
} fake_backend;

static fake_group *fake_find(fake_backend *fake, const char *uid, int group)
{
    for (int i = 0; i < fake->group_count; i++)
        if (fake->groups[i].group == group && strcmp(fake->groups[i].uid, uid) == 0)
            return &fake->groups[i];
    return NULL;
}

static char *fake_join(const char *const *texts)
{
    size_t size = 1;
    for (int i = 0; texts && texts[i]; i++)
        size += strlen(texts[i]) + 1;
    char *joined = calloc(1, size);
    for (int i = 0; texts && texts[i]; i++) {
        strcat(joined, texts[i]);
        strcat(joined, "\n");
    }
    return joined;
}

static adl_status fake_nodes(void *self, const adli_backend_node **nodes, int *count)
{
    fake_backend *fake = self;
    *nodes = fake->nodes;
    *count = fake->node_count;
    return ADL_OK;
}

/* An older group of the job that is alive would be a job run twice. */
static int fake_alive_before(const fake_backend *fake, const char *uid)
{
    int alive = 0;
    for (int i = 0; i < fake->group_count - 1; i++) {
        const fake_group *group = &fake->groups[i];
        for (int r = 0; strcmp(group->uid, uid) == 0 && r < group->replicas; r++)
            alive += !group->forgotten && group->views[r].state <= ADLI_MEMBER_READY;
    }
    return alive;
}

/* Members that join a group that is there. */
static void fake_add(fake_backend *fake, fake_group *group, const adli_start *start)
{
    for (int i = 0; i < start->count; i++) {
        bool there = group->forgotten;
        for (int r = 0; r < group->replicas; r++)
            there |= group->views[r].member == start->members[i].member;
        if (there || group->replicas == FAKE_REPLICAS)
            continue;
        adli_member_view *view = &group->views[group->replicas];
        snprintf(group->nodes[group->replicas++], sizeof group->nodes[0], "%s",
                 start->members[i].node);
        *view = (adli_member_view){.member = start->members[i].member, .exit_code = -1};
        view->state = fake->auto_ready ? ADLI_MEMBER_READY : ADLI_MEMBER_WAITING;
        snprintf(view->address, sizeof view->address, "10.0.0.%d", group->replicas);
    }
}

/* For fake->ops.meet: with it, jobs are changed in place. */
static inline adl_status fake_meet(void *self, const adli_meet *who, char *address, size_t size,
                                   int *port)
{
    (void)self, (void)who;
    snprintf(address, size, "10.0.0.1");
    *port = 4711;
    return ADL_OK;
}

static adl_status fake_start(void *self, const adli_start *start)
{
    fake_backend *fake = self;
    pthread_mutex_lock(&fake->lock);
    adl_status status = ADL_OK;
    fake_group *known = fake_find(fake, start->uid, start->group);
    if (fake->start_fails != ADL_OK)
        status = adli_fail(fake->start_fails, "made to fail");
    else if (known && start->joins)
        fake_add(fake, known, start);
    else if (known)
        fake->broken += known->forgotten;
    else {
        fake_group *group = &fake->groups[fake->group_count++];
        *group = (fake_group){.group = start->group, .replicas = start->count};
        snprintf(group->uid, sizeof group->uid, "%s", start->uid);
        group->pod = strdup(start->pod);
        group->env = fake_join(start->env);
        group->defaults = fake_join(start->defaults);
        for (int i = 0; i < start->count; i++) {
            adli_member_view *view = &group->views[i];
            snprintf(group->nodes[i], sizeof group->nodes[i], "%s", start->members[i].node);
            view->member = start->members[i].member;
            view->state = fake->auto_ready ? ADLI_MEMBER_READY : ADLI_MEMBER_WAITING;
            view->exit_code = -1;
            snprintf(view->address, sizeof view->address, "10.0.0.%d", i + 1);
        }
        fake->broken += fake_alive_before(fake, start->uid);
        fake->starts++;
    }
    pthread_mutex_unlock(&fake->lock);
    return status;
}

static adl_status fake_scale(void *self, int desired_nodes)
{
    fake_backend *fake = self;
    fake->desired_nodes = desired_nodes;
    fake->scales++;
    return ADL_OK;
}

static void fake_stop(void *self, const char *uid, int number, int member, bool kill)
{
    fake_backend *fake = self;
    pthread_mutex_lock(&fake->lock);
    fake_group *group = fake_find(fake, uid, number);
    if (group) {
        group->terms += !kill;
        group->kills += kill;
        for (int i = 0; i < group->replicas; i++)
            if ((member == ADLI_ALL_MEMBERS || member == group->views[i].member) &&
                group->views[i].state <= ADLI_MEMBER_READY && (kill || fake->obedient)) {
                group->views[i].state = ADLI_MEMBER_INTERRUPTED;
                group->views[i].exit_code = kill ? 137 : 143;
            }
    }
    pthread_mutex_unlock(&fake->lock);
}

static adl_status fake_observe(void *self, const char *uid, int number, adli_member_view *views,
                               int capacity, int *count)
{
    fake_backend *fake = self;
    pthread_mutex_lock(&fake->lock);
    fake_group *group = fake_find(fake, uid, number);
    bool known = group && !group->forgotten;
    adl_status fails = fake->observe_fails;
    if (known) {
        *count = group->replicas;
        memcpy(views, group->views,
               (size_t)(capacity < group->replicas ? capacity : group->replicas) * sizeof *views);
    }
    pthread_mutex_unlock(&fake->lock);
    if (fails != ADL_OK)
        return adli_fail(fails, "made to fail");
    return known ? ADL_OK : adli_fail(ADL_ENOENT, "no group %s/%d", uid, number);
}

static void fake_forget(void *self, const char *uid, int number)
{
    fake_backend *fake = self;
    pthread_mutex_lock(&fake->lock);
    fake_group *group = fake_find(fake, uid, number);
    if (group && !group->forgotten) {
        group->forgotten = true;
        fake->forgets++;
    }
    pthread_mutex_unlock(&fake->lock);
}

static void fake_remove(void *self, const char *uid)
{
    (void)uid;
    ((fake_backend *)self)->removes++;
}

static void fake_list(void *self, void (*each)(void *user, const char *uid, int group), void *user)
{
    fake_backend *fake = self;
    for (int i = 0; i < fake->group_count; i++)
        if (!fake->groups[i].forgotten)
            each(user, fake->groups[i].uid, fake->groups[i].group);
}

static int fake_event_fd(void *self)
{
    return ((fake_backend *)self)->fd;
}

static void fake_drain_events(void *self)
{
    uint64_t count;
    ssize_t got = read(((fake_backend *)self)->fd, &count, sizeof count);
    (void)got;
}

static void fake_job_dir(const fake_backend *fake, const char *uid, char *out, size_t size)
{
    snprintf(out, size, "%s/jobs", fake->dir);
    mkdir(out, 0755);
    snprintf(out, size, "%s/jobs/%s", fake->dir, uid);
    mkdir(out, 0755);
}

static adl_status fake_put_source(void *self, const char *uid, const char *folder)
{
    char dir[512], to[520];
    fake_job_dir(self, uid, dir, sizeof dir);
    snprintf(to, sizeof to, "%s/source", dir);
    return rename(folder, to) == 0 ? ADL_OK : adli_fail(ADL_EIO, "%s", to);
}

static adl_status fake_open_log(void *self, const char *uid, int group, int member, int *fd)
{
    char path[512];
    snprintf(path, sizeof path, "%s/jobs/%s/%d.%d.log", ((fake_backend *)self)->dir, uid, group,
             member);
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    return *fd >= 0 ? ADL_OK : adli_fail(ADL_ENOENT, "no log");
}

static adl_status fake_open_file(void *self, const char *uid, const char *path, adli_opened *out)
{
    (void)self, (void)uid;
    *out = (adli_opened){.fd = -1};
    return adli_fail(ADL_ENOENT, "%s: no file", path);
}

/* Says that something changed, so that a controller thread looks. */
static inline void fake_ring(fake_backend *fake)
{
    uint64_t one = 1;
    ssize_t put = write(fake->fd, &one, sizeof one);
    (void)put;
}

/* All replicas of the newest group of the job become this. */
static inline fake_group *fake_set(fake_backend *fake, const char *uid, adli_member_state state,
                                   int exit_code)
{
    fake_group *newest = NULL;
    pthread_mutex_lock(&fake->lock);
    for (int i = 0; i < fake->group_count; i++)
        if (strcmp(fake->groups[i].uid, uid) == 0)
            newest = &fake->groups[i];
    for (int i = 0; newest && i < newest->replicas; i++) {
        newest->views[i].state = state;
        newest->views[i].exit_code = exit_code;
    }
    pthread_mutex_unlock(&fake->lock);
    fake_ring(fake);
    return newest;
}

/* Nodes node-0 ... of so many slots each. */
static inline fake_backend *fake_new(const char *dir, int nodes, int slots)
{
    static const char *const names[FAKE_NODES] = {"node-0", "node-1", "node-2", "node-3"};
    fake_backend *fake = calloc(1, sizeof *fake);
    pthread_mutex_init(&fake->lock, NULL);
    fake->ops = (adli_backend_ops){.nodes = fake_nodes,
                                   .scale = fake_scale,
                                   .start = fake_start,
                                   .stop = fake_stop,
                                   .observe = fake_observe,
                                   .forget = fake_forget,
                                   .remove = fake_remove,
                                   .list = fake_list,
                                   .event_fd = fake_event_fd,
                                   .drain_events = fake_drain_events,
                                   .put_source = fake_put_source,
                                   .open_log = fake_open_log,
                                   .open_file = fake_open_file};
    fake->backend = (adli_backend){&fake->ops, fake};
    snprintf(fake->dir, sizeof fake->dir, "%s", dir);
    fake->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    fake->node_count = nodes;
    fake->auto_ready = fake->obedient = true;
    for (int i = 0; i < nodes; i++)
        fake->nodes[i] = (adli_backend_node){.name = names[i],
                                             .addable = true,
                                             .device_type = "",
                                             .address = "127.0.0.1",
                                             .ready = true,
                                             .resource_count = 1,
                                             .resource_names = {"pods"},
                                             .resource_amounts = {slots}};
    return fake;
}

static inline void fake_free(fake_backend *fake)
{
    for (int i = 0; i < fake->group_count; i++) {
        free(fake->groups[i].pod);
        free(fake->groups[i].env);
        free(fake->groups[i].defaults);
    }
    close(fake->fd);
    pthread_mutex_destroy(&fake->lock);
    free(fake);
}

#endif
