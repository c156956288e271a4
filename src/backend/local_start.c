/* Starting a group: its plan first, then a keeper for each replica that nobody has claimed. Every step
 * can be the last: what is there is used, what is missing is made. */
#include "backend/local_impl.h"

#include "base/clock.h"
#include "base/dirs.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* Ports below those that the kernel hands to clients, so that none of them takes ours before the replica
 * listens on it. */
enum { PORT_FIRST = 20000, PORT_LAST = 32000 };

static adl_status check_spec(const adli_group_spec *spec)
{
    adl_status status = adli_local_check_name(spec->uid, spec->group);
    if (status != ADL_OK)
        return status;
    if (spec->replicas < 1 || spec->replicas > ADLI_REPLICAS_MAX || !spec->nodes)
        return adli_fail(ADL_EINVAL, "replicas: %d, not in 1 .. %d", spec->replicas,
                         ADLI_REPLICAS_MAX);
    if (!spec->argv || !spec->argv[0] || !spec->argv[0][0])
        return adli_fail(ADL_EINVAL, "argv: empty");
    if (spec->cpu_milli < 0 || spec->memory_bytes < 0 || spec->devices < 0)
        return adli_fail(ADL_EINVAL, "limits: negative");
    for (int i = 0; spec->env && spec->env[i]; i++)
        if (!strchr(spec->env[i], '=') || spec->env[i][0] == '=')
            return adli_fail(ADL_EINVAL, "env: \"%.40s\" is not NAME=value", spec->env[i]);
    return ADL_OK;
}

/* ---- the plan ---- */

/* A group that is over holds nothing. Found out only here, where it matters. */
static void refresh_over(local *self, group *item)
{
    adli_replica_view view;
    int dir = item->over ? -1 : adli_local_open(self, item->uid, item->number);
    if (dir < 0)
        return;
    item->over = true;
    for (int rank = 0; item->over && rank < item->plan->replicas; rank++) {
        adli_local_look(self, item, dir, rank, &view);
        item->over = view.state > ADLI_REPLICA_READY;
    }
    close(dir);
}

static bool port_taken(const local *self, int port)
{
    for (size_t i = 0; i < self->group_count; i++)
        if (!self->groups[i].over && self->groups[i].plan->port == port)
            return true;
    return false;
}

static bool port_free(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool can = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0)
        close(fd);
    return can;
}

static adl_status choose_port(const local *self, int *out)
{
    uint32_t random = (uint32_t)getpid();
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) < 0)
        random ^= (uint32_t)(1e6 * adli_monotonic_s());
    for (int i = 0; i <= PORT_LAST - PORT_FIRST; i++) {
        int port = PORT_FIRST + (int)((random + (uint32_t)i) % (PORT_LAST - PORT_FIRST + 1));
        if (port_taken(self, port) || !port_free(port))
            continue;
        *out = port;
        return ADL_OK;
    }
    return adli_fail(ADL_EIO, "no free port in %d .. %d", PORT_FIRST, PORT_LAST);
}

/* Is `name` one of the comma-separated list? */
static bool listed(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || !at[length]))
            return true;
    return false;
}

static bool gpu_used(local *self, const char *where, const char *gpu)
{
    adli_replica_view view;
    for (size_t i = 0; i < self->group_count; i++) {
        const group *item = &self->groups[i];
        int dir = item->over ? -1 : adli_local_open(self, item->uid, item->number);
        bool used = false;
        for (int rank = 0; dir >= 0 && !used && rank < item->plan->replicas; rank++) {
            if (strcmp(item->plan->nodes[rank], where) != 0 || !listed(item->plan->gpus[rank], gpu))
                continue;
            adli_local_look(self, item, dir, rank, &view);
            used = view.state <= ADLI_REPLICA_READY;
        }
        if (dir >= 0)
            close(dir);
        if (used)
            return true;
    }
    return false;
}

/* Appends the rank's devices to list; how many are missing is returned. */
static int choose_gpus(local *self, const adli_group_spec *spec, int rank, const char **gpus,
                       adli_buf *list)
{
    const node *where = adli_local_node_named(self, spec->nodes[rank]);
    int wanted = spec->devices;
    for (int i = 0; wanted > 0 && i < where->gpu_count; i++) {
        bool mine = gpu_used(self, where->name, where->gpus[i]);
        for (int other = 0; !mine && other < rank; other++)
            mine =
                strcmp(spec->nodes[other], where->name) == 0 && listed(gpus[other], where->gpus[i]);
        if (mine)
            continue;
        adli_buf_printf(list, "%s%s", list->length ? "," : "", where->gpus[i]);
        wanted--;
    }
    if (spec->devices == 0)
        adli_buf_puts(list, where->gpu_count ? "" : "-");
    return wanted;
}

/* gpus[rank] are new texts; *refused and message say when they do not suffice. */
static adl_status plan_gpus(local *self, const adli_group_spec *spec, const char **gpus,
                            adli_plan *plan, char *message, size_t size)
{
    adl_status status = ADL_OK;
    for (int rank = 0; status == ADL_OK && rank < spec->replicas; rank++) {
        const node *where = adli_local_node_named(self, spec->nodes[rank]);
        adli_buf list;
        adli_buf_init(&list, 1 << 16);
        int missing = choose_gpus(self, spec, rank, gpus, &list);
        if (!where->ready) {
            plan->refused = "NodeLost";
            snprintf(message, size, "node %s is lost", where->name);
        } else if (missing > 0 && !plan->refused[0]) {
            plan->refused = "OutOfResources";
            snprintf(message, size, "node %s: rank %d wants %d GPUs, %d are free", where->name,
                     rank, spec->devices, spec->devices - missing);
        }
        adli_buf_puts(&list, "");
        status = adli_buf_check(&list);
        gpus[rank] = status == ADL_OK ? list.data : NULL;
    }
    return status;
}

static adl_status make_plan(local *self, const adli_group_spec *spec, int dir)
{
    char message[160] = "";
    adli_plan plan = {
        .replicas = spec->replicas, .cgroups = self->cgroups, .refused = "", .message = message};
    adl_status status = ADL_OK;
    const char **gpus = adli_calloc((size_t)spec->replicas, sizeof *gpus);
    const char **nodes = adli_calloc((size_t)spec->replicas, sizeof *nodes);
    if (!gpus || !nodes) {
        status = adli_fail_memory("a plan");
        goto out;
    }
    for (int rank = 0; rank < spec->replicas; rank++)
        nodes[rank] = spec->nodes[rank];
    for (size_t i = 0; i < self->group_count; i++)
        refresh_over(self, &self->groups[i]);
    status = choose_port(self, &plan.port);
    if (status == ADL_OK)
        status = plan_gpus(self, spec, gpus, &plan, message, sizeof message);
    if (status != ADL_OK)
        goto out;
    plan.nodes = nodes;
    plan.gpus = gpus;
    status = adli_plan_write(dir, &plan);
    if (status == ADL_ESTATE) /* another was quicker: theirs holds */
        status = ADL_OK;
out:
    for (int rank = 0; gpus && rank < spec->replicas; rank++)
        free((char *)gpus[rank]);
    free(gpus);
    free(nodes);
    return status;
}

/* ---- the group ---- */

static adl_status start_ranks(local *self, const adli_group_spec *spec, const group *item, int dir)
{
    adl_status status = ADL_OK;
    pid_t keeper;
    int lock;
    pending *waits = adli_calloc((size_t)spec->replicas, sizeof *waits);
    if (!waits)
        return adli_fail_memory("keepers");
    for (int rank = 0; rank < spec->replicas; rank++) {
        adli_result no;
        waits[rank].fd = -1;
        adli_claim_state state = adli_claim_look(dir, rank, &keeper, &lock);
        if (lock >= 0)
            close(lock);
        if (state != ADLI_CLAIM_NONE)
            continue;
        if (item->plan->refused[0]) {
            adli_result_set(&no, ADLI_REPLICA_INTERRUPTED, -1, item->plan->refused, "%s",
                            item->plan->message);
            adli_local_settle(dir, rank, &no);
            continue;
        }
        int why = adli_local_spawn(self, spec, item, rank, &waits[rank]);
        if (why == E2BIG) { /* the job's own doing: its arguments and environment are too long */
            adli_result_set(&no, ADLI_REPLICA_FAILED, 126, "CannotRun", "%.100s: %s", spec->argv[0],
                            strerror(why));
            adli_local_settle(dir, rank, &no);
        } else if (why)
            status = adli_fail(ADL_EIO, "%s: %s", self->keeper, strerror(why));
    }
    for (int rank = 0; rank < spec->replicas; rank++)
        if (waits[rank].fd >= 0 && adli_local_await(&waits[rank]) != ADL_OK)
            status = adli_wrap(ADL_EIO, "%s group %d rank %d", spec->uid, spec->group, rank);
    free(waits);
    return status;
}

static adl_status make_directories(const local *self, const adli_group_spec *spec, int *dir)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/jobs/%s/logs", self->state_dir, spec->uid);
    if (length + 64 > (int)sizeof path)
        return adli_fail(ADL_EINVAL, "%s: too long", self->state_dir);
    adl_status status = adli_dirs_make(path, 0755);
    if (status != ADL_OK)
        return status;
    snprintf(path, sizeof path, "%s/jobs/%s/groups/%d", self->state_dir, spec->uid, spec->group);
    status = adli_dirs_make(path, 0755);
    if (status != ADL_OK)
        return status;
    *dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *dir >= 0 ? ADL_OK : adli_fail(ADL_EIO, "%s: %s", path, strerror(errno));
}

adl_status adli_local_start(void *opaque, const adli_group_spec *spec)
{
    local *self = opaque;
    group *item;
    int dir = -1;
    adl_status status = check_spec(spec);
    for (int i = 0; status == ADL_OK && i < spec->replicas; i++)
        if (!spec->nodes[i] || !adli_local_node_named(self, spec->nodes[i]))
            status =
                adli_fail(ADL_ENOENT, "no node %s", spec->nodes[i] ? spec->nodes[i] : "(none)");
    if (status != ADL_OK)
        return status;
    status = adli_local_find(self, spec->uid, spec->group, &item);
    bool known = status == ADL_OK;
    if (status == ADL_ENOENT && spec->group <= adli_local_forgotten(self, spec->uid))
        return adli_fail(ADL_ESTATE, "%s: group %d is over", spec->uid, spec->group);
    if (known || status == ADL_ENOENT)
        status = make_directories(self, spec, &dir);
    if (status == ADL_OK && !known) {
        status = make_plan(self, spec, dir);
        if (status == ADL_OK)
            status = adli_local_find(self, spec->uid, spec->group, &item);
    }
    if (status == ADL_OK && item->plan->replicas != spec->replicas)
        status = adli_fail(ADL_EINVAL, "%s: group %d has %d replicas, not %d", spec->uid,
                           spec->group, item->plan->replicas, spec->replicas);
    if (status == ADL_OK)
        status = start_ranks(self, spec, item, dir);
    if (dir >= 0)
        close(dir);
    return status;
}
