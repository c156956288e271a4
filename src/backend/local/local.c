/* The local backend's interface: options, events, and the operations that are not start. */
#include "backend/local/local.h"

#include "backend/local/impl.h"

#include "base/dirs.h"
#include "base/mem.h"
#include "base/options.h"
#include "jobspec/nodes.h"
#include "proc/nvml.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* Files tell what happens. The timer is there for what they cannot tell (a keeper's lock is let go just
 * after its last file event) and for systems without inotify. */
enum { POLL_SLOW_MS = 1000, POLL_SOON_MS = 20, POLL_BLIND_MS = 100 };

static void arm(const local *self, int first_ms)
{
    int period_ms = self->notify >= 0 ? POLL_SLOW_MS : POLL_BLIND_MS;
    struct itimerspec when = {
        .it_value = {first_ms / 1000, first_ms % 1000 * 1000000L},
        .it_interval = {period_ms / 1000, period_ms % 1000 * 1000000L},
    };
    timerfd_settime(self->timer, 0, &when, NULL);
}

static adl_status make_events(local *self)
{
    struct epoll_event event = {.events = EPOLLIN};
    self->events = epoll_create1(EPOLL_CLOEXEC);
    self->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    self->notify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (self->events < 0 || self->timer < 0 ||
        epoll_ctl(self->events, EPOLL_CTL_ADD, self->timer, &event) != 0 ||
        (self->notify >= 0 && epoll_ctl(self->events, EPOLL_CTL_ADD, self->notify, &event) != 0))
        return adli_fail(ADL_EIO, "events: %s", strerror(errno));
    arm(self, 1); /* look at once */
    return ADL_OK;
}

static int op_event_fd(void *opaque)
{
    return ((local *)opaque)->events;
}

static void op_drain_events(void *opaque)
{
    local *self = opaque;
    _Alignas(struct inotify_event) char buffer[8192];
    bool closed = false, changed = false;
    uint64_t ticks;
    ssize_t got;
    while (self->notify >= 0 && (got = read(self->notify, buffer, sizeof buffer)) > 0)
        for (char *at = buffer; at < buffer + got;) {
            const struct inotify_event *event = (const struct inotify_event *)at;
            closed |= (event->mask & (IN_CLOSE_WRITE | IN_Q_OVERFLOW)) != 0;
            changed = true;
            at += sizeof *event + event->len;
        }
    bool ticked = read(self->timer, &ticks, sizeof ticks) == sizeof ticks;
    if (closed || (changed && !ticked))
        arm(self, closed ? POLL_SOON_MS : POLL_SLOW_MS);
}

/* ---- groups ---- */

static void op_stop(void *opaque, const char *uid, int number, int which, bool kill)
{
    local *self = opaque;
    group *item;
    adli_result stopped;
    if (adli_member_check(uid, number) != ADL_OK ||
        adli_local_find(self, uid, number, &item) != ADL_OK)
        return;
    adli_result_set(&stopped, ADLI_MEMBER_INTERRUPTED, -1, ADLI_CAUSE_KILLED,
                    "stopped before it was started");
    for (size_t i = 0; i < item->count; i++)
        if (which == ADLI_ALL_MEMBERS || which == item->members[i].number)
            adli_local_signal(self, item, &item->members[i],
                              kill ? ADLI_KEEPER_KILL : ADLI_KEEPER_TERMINATE, &stopped);
}

static adl_status op_observe(void *opaque, const char *uid, int number, adli_member_view *views,
                             int capacity, int *count)
{
    local *self = opaque;
    group *item;
    *count = 0;
    adl_status status = adli_member_check(uid, number);
    if (status == ADL_OK)
        status = adli_local_find(self, uid, number, &item);
    if (status != ADL_OK)
        return status;
    int dir = adli_local_open(self, uid, number);
    if (dir < 0) {
        adli_local_drop(self, uid, number); /* another object forgot it */
        return adli_fail(ADL_ENOENT, "%s: no group %d", uid, number);
    }
    *count = (int)item->count;
    item->over = capacity >= *count;
    for (int i = 0; i < *count && i < capacity; i++) {
        adli_local_look(self, item, dir, &item->members[i], &views[i]);
        item->over = item->over && views[i].state > ADLI_MEMBER_READY;
    }
    close(dir);
    return ADL_OK;
}

static void op_forget(void *opaque, const char *uid, int number)
{
    if (adli_member_check(uid, number) == ADL_OK)
        adli_local_forget(opaque, uid, number);
}

/* From a copy: `each` may forget groups. */
static void op_list(void *opaque, void (*each)(void *user, const char *uid, int group), void *user)
{
    local *self = opaque;
    size_t count = self->group_count;
    group *copy = adli_memdup(self->groups, count, sizeof *copy);
    for (size_t i = 0; copy && i < count; i++)
        each(user, copy[i].uid, copy[i].number);
    free(copy);
}

static void op_remove(void *opaque, const char *uid)
{
    local *self = opaque;
    char path[PATH_MAX];
    if (adli_member_check(uid, 1) != ADL_OK)
        return;
    for (size_t i = self->group_count; i-- > 0;)
        if (i < self->group_count && strcmp(self->groups[i].uid, uid) == 0)
            adli_local_forget(self, uid, self->groups[i].number);
    snprintf(path, sizeof path, "%s/jobs", self->state_dir);
    int dir = adli_local_enter(path);
    if (dir >= 0 && adli_local_trash(dir, uid))
        adli_local_empty_trash(self);
    if (dir >= 0)
        close(dir);
}

/* ---- nodes ---- */

/* The nodes here are shares of one machine that somebody declared: none can be added. */
static adl_status op_scale(void *opaque, int desired_nodes)
{
    (void)opaque;
    if (desired_nodes < 0)
        return adli_fail(ADL_EINVAL, "%d nodes: must not be negative", desired_nodes);
    return ADL_OK;
}

/* Borrows the texts. */
static adli_local_node *declared(const adli_nodes *nodes)
{
    adli_local_node *out = adli_calloc(nodes->count ? nodes->count : 1, sizeof *out);
    for (size_t i = 0; out && i < nodes->count; i++) {
        const adli_node_spec *from = &nodes->items[i];
        out[i] = (adli_local_node){.name = from->name,
                                   .device_type = from->device_type,
                                   .preemptible = from->preemptible,
                                   .resource_count = from->resources.count};
        for (int r = 0; r < from->resources.count; r++) {
            out[i].resource_names[r] = from->resources.names[r];
            out[i].resource_amounts[r] = from->resources.amounts[r];
        }
    }
    return out;
}

static adl_status op_declare(void *opaque, const adli_nodes *nodes)
{
    local *self = opaque;
    if (!nodes)
        return adli_fail(ADL_EINVAL, "nodes: none were given");
    adli_local_node *list = declared(nodes);
    adl_status status = list ? adli_local_set_nodes(&self->base, list, (int)nodes->count)
                             : adli_fail_memory("nodes");
    free(list);
    return status;
}

/* ---- coming and going ---- */

static void op_free(void *opaque)
{
    local *self = opaque;
    if (!self)
        return;
    adli_local_trash_fini(self);
    for (size_t i = 0; i < self->group_count; i++)
        adli_local_group_fini(&self->groups[i]);
    free(self->groups);
    adli_local_nodes_fini(self);
    adli_local_users_fini(self);
    int fds[] = {self->events, self->timer, self->notify};
    for (size_t i = 0; i < ADLI_COUNT(fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    adli_nvml_free(self->nvml);
    free(self->state_dir);
    free(self->keeper);
    free(self);
}

static const adli_backend_ops local_ops = {
    .nodes = adli_local_nodes,
    .scale = op_scale,
    .declare = op_declare,
    .start = adli_local_start,
    .meet = adli_local_meet,
    .stop = op_stop,
    .observe = op_observe,
    .use = adli_local_use,
    .forget = op_forget,
    .remove = op_remove,
    .list = op_list,
    .event_fd = op_event_fd,
    .drain_events = op_drain_events,
    .admit = adli_local_admit,
    .put_source = adli_local_put_source,
    .copy_source = adli_local_copy_source,
    .open_log = adli_local_open_log,
    .open_file = adli_local_open_file,
    .free = op_free,
};

static adl_status find_keeper(const char *given, char **out)
{
    static const char *const places[] = {"", "../bin/", "../libexec/adaptdl/"};
    char self[PATH_MAX] = "", path[PATH_MAX];
    if (!given)
        given = getenv("ADAPTDL_KEEPER");
    if (given) {
        if (access(given, X_OK) != 0)
            return adli_fail(ADL_ENOENT, "%s: %s", given, strerror(errno));
        *out = realpath(given, NULL);
        return *out ? ADL_OK : adli_fail(ADL_ENOENT, "%s: %s", given, strerror(errno));
    }
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash = length > 0 ? strrchr(self, '/') : NULL;
    if (slash)
        slash[1] = '\0';
    for (size_t i = 0; slash && i < ADLI_COUNT(places); i++)
        if (snprintf(path, sizeof path, "%s%sadaptdl-keeper", self, places[i]) < (int)sizeof path &&
            access(path, X_OK) == 0 && (*out = realpath(path, NULL)))
            return ADL_OK;
    return adli_fail(ADL_ENOENT, "adaptdl-keeper: not beside this program (%s)", self);
}

static adl_status choose_cgroups(const adli_local_options *options, adli_cgroup *out)
{
    adl_status status = ADL_OK;
    *out = (adli_cgroup){0};
    if (options->cgroups == ADLI_CGROUPS_NONE)
        return ADL_OK;
    status =
        adli_cgroup_probe(options->cgroups == ADLI_CGROUPS_V1 ? ADLI_CGROUP_V1 : ADLI_CGROUP_V2,
                          options->cgroup_parent, out);
    if (status != ADL_OK)
        *out = (adli_cgroup){0};
    return options->cgroups == ADLI_CGROUPS_AUTO ? ADL_OK : status;
}

adl_status adli_local_new(const adli_local_options *given, adli_backend **out)
{
    adli_local_options own = ADLI_LOCAL_OPTIONS_INIT;
    const adli_local_options *options = &own;
    *out = NULL;
    adl_status status = adli_options_take("local backend", &own, sizeof own, given);
    if (status != ADL_OK)
        return status;
    if (!options->state_dir || !options->state_dir[0])
        return adli_fail(ADL_EINVAL, "local backend: options: no state directory");
    local *self = adli_calloc(1, sizeof *self);
    if (!self)
        return adli_fail_memory("the local backend");
    self->base = (adli_backend){&local_ops, self};
    self->events = self->timer = self->notify = -1;
    self->log_bytes = options->log_bytes;
    pthread_mutex_init(&self->trash.lock, NULL);
    self->trash.removing = options->removing;
    self->trash.removing_user = options->removing_user;
    status = adli_dirs_make(options->state_dir, 0755);
    if (status == ADL_OK && !(self->state_dir = realpath(options->state_dir, NULL)))
        status = adli_fail(ADL_EIO, "%s: %s", options->state_dir, strerror(errno));
    if (status == ADL_OK && strlen(self->state_dir) > PATH_MAX / 2)
        status = adli_fail(ADL_EINVAL, "%s: too long", self->state_dir);
    if (status == ADL_OK)
        status = find_keeper(options->keeper, &self->keeper);
    if (status == ADL_OK)
        status = adli_local_users(self, options->users);
    if (status == ADL_OK)
        status = choose_cgroups(options, &self->cgroups);
    if (status == ADL_OK)
        status = adli_local_declare(self, options->nodes, options->node_count);
    if (status == ADL_OK)
        status = make_events(self);
    if (status == ADL_OK)
        status = adli_local_scan(self);
    if (status != ADL_OK) {
        op_free(self);
        return status;
    }
    adli_local_lose(self);
    *out = &self->base;
    return ADL_OK;
}

adl_status adli_local_set_nodes(adli_backend *backend, const adli_local_node *nodes, int count)
{
    local *self = backend->self;
    adl_status status = adli_local_declare(self, nodes, count);
    if (status == ADL_OK) {
        adli_local_lose(self);
        arm(self, 1);
    }
    return status;
}

const char *adli_local_limits(const adli_backend *backend)
{
    static const char *const names[] = {"watched", "cgroup v1", "cgroup v2"};
    return names[((const local *)backend->self)->cgroups.kind];
}

/* ---- as one of the backends ---- */

static adl_status open_class(const adli_backend_options *options, adli_backend **out)
{
    adli_local_options own = ADLI_LOCAL_OPTIONS_INIT;
    adli_nodes found = {0};
    const adli_nodes *nodes = options->nodes;
    adl_status status = ADL_OK;
    if (!nodes || nodes->count == 0) {
        status = adli_nodes_detect("", &found);
        nodes = &found;
    }
    adli_local_node *list = status == ADL_OK ? declared(nodes) : NULL;
    if (status == ADL_OK && !list)
        status = adli_fail_memory("nodes");
    own.state_dir = options->state_dir;
    own.nodes = list;
    own.node_count = (int)nodes->count;
    own.log_bytes = options->log_bytes;
    own.users = options->users;
    if (status == ADL_OK)
        status = adli_local_new(&own, out);
    free(list);
    adli_nodes_fini(&found);
    return status;
}

const adli_backend_class adli_backend_local = {
    .name = "local",
    .summary = "replicas are processes on this machine",
    .open = open_class,
};
