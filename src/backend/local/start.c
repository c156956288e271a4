/* Starting members: their plan first, then a keeper for each that nobody has claimed. Every step
 * can be the last: what is there is used, what is missing is made. */
#include "backend/local/impl.h"

#include "base/clock.h"
#include "base/dirs.h"
#include "base/mem.h"
#include "base/options.h"

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

/* ---- the plan ---- */

/* A group that is over holds nothing. Found out only here, where it matters. */
static void refresh_over(local *self, group *item)
{
    adli_member_view view;
    int dir = item->over ? -1 : adli_local_open(self, item->uid, item->number);
    if (dir < 0)
        return;
    item->over = true;
    for (size_t i = 0; item->over && i < item->count; i++) {
        adli_local_look(self, item, dir, &item->members[i], &view);
        item->over = view.state > ADLI_MEMBER_READY;
    }
    close(dir);
}

static bool port_taken(const local *self, int port)
{
    for (size_t i = 0; i < self->group_count; i++)
        if (!self->groups[i].over && self->groups[i].plans[0]->port == port)
            return true;
    for (size_t i = 0; i < ADLI_COUNT(self->lent); i++)
        if (self->lent[i] == port)
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

adl_status adli_local_meet(void *opaque, const adli_meet *who, char *address, size_t size,
                           int *port)
{
    local *self = opaque;
    if (!adli_local_node_named(self, who->node))
        return adli_fail(ADL_ENOENT, "no node %s", who->node);
    adl_status status = choose_port(self, port);
    if (status == ADL_OK)
        self->lent[self->lent_count++ % (int)ADLI_COUNT(self->lent)] = *port;
    snprintf(address, size, "127.0.0.1");
    return status;
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

/* By a living member, there or on a node that is gone. */
static bool gpu_used(local *self, const char *where, const char *gpu)
{
    adli_member_view view;
    for (size_t i = 0; i < self->group_count; i++) {
        const group *item = &self->groups[i];
        int dir = item->over ? -1 : adli_local_open(self, item->uid, item->number);
        bool used = false;
        for (size_t k = 0; dir >= 0 && !used && k < item->count; k++) {
            const member *other = &item->members[k];
            if (!listed(other->gpus, gpu) ||
                (strcmp(other->node, where) != 0 && adli_local_node_named(self, other->node)))
                continue;
            adli_local_look(self, item, dir, other, &view);
            used = view.state <= ADLI_MEMBER_READY;
        }
        if (dir >= 0)
            close(dir);
        if (used)
            return true;
    }
    return false;
}

/* Appends the devices of the plan's i-th member to list; how many are missing is returned. */
static int choose_gpus(local *self, const adli_start_plan *plan, int i, int devices, adli_buf *list)
{
    const node *where = adli_local_node_named(self, plan->nodes[i]);
    int wanted = devices;
    for (int g = 0; wanted > 0 && g < where->gpu_count; g++) {
        bool taken = gpu_used(self, where->name, where->gpus[g]);
        for (int other = 0; !taken && other < i; other++)
            taken = strcmp(plan->nodes[other], where->name) == 0 &&
                    listed(plan->gpus[other], where->gpus[g]);
        if (taken)
            continue;
        adli_buf_printf(list, "%s%s", list->length ? "," : "", where->gpus[g]);
        wanted--;
    }
    if (devices == 0)
        adli_buf_puts(list, where->gpu_count ? "" : "-");
    return wanted;
}

/* plan->gpus[] become new texts; refused and message say when they do not suffice. */
static adl_status plan_gpus(local *self, int devices, adli_start_plan *plan, char *message,
                            size_t size)
{
    adl_status status = ADL_OK;
    for (int i = 0; status == ADL_OK && i < plan->count; i++) {
        adli_buf list;
        adli_buf_init(&list, 1 << 16);
        int missing = choose_gpus(self, plan, i, devices, &list);
        if (missing > 0 && !plan->refused[0]) {
            plan->refused = adli_cause_name(ADLI_CAUSE_OUT_OF_RESOURCES);
            snprintf(message, size, "node %s: member %d wants %d GPUs, %d are free", plan->nodes[i],
                     plan->members[i], devices, devices - missing);
        }
        adli_buf_puts(&list, "");
        status = adli_buf_check(&list);
        plan->gpus[i] = status == ADL_OK ? list.data : NULL;
    }
    return status;
}

/* Those of the start that no plan has yet. */
static adl_status unplanned(const local *self, const adli_start *start, const group *item,
                            adli_start_plan *plan)
{
    for (int i = 0; i < start->count; i++) {
        const adli_member_start *which = &start->members[i];
        if (item && adli_local_member(item, which->member))
            continue;
        if (!adli_local_node_named(self, which->node))
            return adli_fail(ADL_ENOENT, "no node %s", which->node);
        plan->members[plan->count] = which->member;
        plan->nodes[plan->count++] = which->node;
    }
    return ADL_OK;
}

static adl_status write_plan(local *self, const adli_start *start, const group *item, int dir,
                             int devices, adli_start_plan *plan)
{
    char message[160] = "", name[ADLI_PLAN_NAME] = ADLI_PLAN_FIRST;
    plan->cgroups = self->cgroups;
    plan->refused = "";
    plan->message = message;
    for (size_t i = 0; i < self->group_count; i++)
        refresh_over(self, &self->groups[i]);
    adl_status status = ADL_OK;
    if (item) {
        plan->port = item->plans[0]->port;
        snprintf(name, sizeof name, ADLI_PLAN_FIRST "-%d", plan->members[0]);
    } else
        status = choose_port(self, &plan->port);
    if (status == ADL_OK)
        status = plan_gpus(self, devices, plan, message, sizeof message);
    if (status == ADL_OK)
        status = adli_start_plan_write(dir, name, plan);
    if (status == ADL_OK || status == ADL_ESTATE) /* another was quicker: theirs holds */
        adli_local_drop(self, start->uid, start->group);
    return status == ADL_ESTATE ? ADL_OK : status;
}

/* Nothing is planned when there is nothing new. */
static adl_status make_plan(local *self, const adli_start *start, const group *item, int dir,
                            int devices)
{
    adli_start_plan plan = {0};
    size_t room = (size_t)start->count;
    plan.members = adli_calloc(room, sizeof *plan.members);
    plan.nodes = adli_calloc(room, sizeof *plan.nodes);
    plan.gpus = adli_calloc(room, sizeof *plan.gpus);
    adl_status status = ADL_OK;
    if (!plan.members || !plan.nodes || !plan.gpus)
        status = adli_fail_memory("a plan");
    if (status == ADL_OK)
        status = unplanned(self, start, item, &plan);
    if (status == ADL_OK && plan.count > 0)
        status = write_plan(self, start, item, dir, devices, &plan);
    for (int i = 0; plan.gpus && i < plan.count; i++)
        free((char *)plan.gpus[i]);
    free(plan.gpus);
    free(plan.nodes);
    free(plan.members);
    return status;
}

/* ---- the members ---- */

/* One that nobody has claimed gets a keeper, or its end when it cannot have one. */
static adl_status start_member(local *self, const adli_start *start, const adli_member_start *which,
                               const run *what, const group *item, int dir, pending *wait)
{
    const member *who = adli_local_member(item, which->member);
    adli_result no;
    pid_t keeper;
    int lock;
    adli_claim_state state = adli_claim_look(dir, who->number, &keeper, &lock);
    if (lock >= 0)
        close(lock);
    if (state != ADLI_CLAIM_NONE)
        return ADL_OK;
    if (who->plan->refused[0]) {
        adli_result_set(&no, ADLI_MEMBER_INTERRUPTED, -1, adli_cause_named(who->plan->refused),
                        "%s", who->plan->message);
        adli_local_settle(dir, who->number, &no);
        return ADL_OK;
    }
    int why = adli_local_spawn(self, start, which, what, item, wait);
    if (why == E2BIG) { /* the job's own doing: its arguments and environment are too long */
        adli_result_set(&no, ADLI_MEMBER_FAILED, 126, ADLI_CAUSE_CANNOT_RUN, "%.100s: %s",
                        what->argv[0], strerror(why));
        adli_local_settle(dir, who->number, &no);
        return ADL_OK;
    }
    bool full = why == EAGAIN || why == ENOMEM || why == EMFILE || why == ENFILE;
    return why ? adli_fail(full ? ADL_ENOMEM : ADL_EIO, "%s: %s", self->keeper, strerror(why))
               : ADL_OK;
}

/* Of two members' failures the one that trying again does not help. */
static adl_status worse(adl_status one, adl_status other)
{
    return one == ADL_OK || (adli_start_later(one) && other != ADL_OK) ? other : one;
}

static adl_status start_members(local *self, const adli_start *start, const run *what,
                                const group *item, int dir)
{
    adl_status status = ADL_OK;
    pending *waits = adli_calloc((size_t)start->count, sizeof *waits);
    if (!waits)
        return adli_fail_memory("keepers");
    for (int i = 0; i < start->count; i++) {
        waits[i].fd = -1;
        adl_status one = start_member(self, start, &start->members[i], what, item, dir, &waits[i]);
        status = worse(status, one);
    }
    for (int i = 0; i < start->count; i++) {
        adl_status one = waits[i].fd >= 0 ? adli_local_await(&waits[i]) : ADL_OK;
        if (one != ADL_OK)
            status = worse(status, adli_wrap(one, "%s group %d member %d", start->uid, start->group,
                                             start->members[i].member));
    }
    free(waits);
    return status;
}

static adl_status make_directory(const local *self, const adli_start *start, int *dir)
{
    char path[PATH_MAX];
    adl_status status = adli_local_job_dir(self, start->uid, "logs", path, sizeof path);
    if (status != ADL_OK)
        return status;
    snprintf(path, sizeof path, "%s/jobs/%s/groups/%d", self->state_dir, start->uid, start->group);
    status = adli_dirs_make(path, 0755);
    if (status != ADL_OK)
        return status;
    return adli_dirs_enter(path, dir);
}

/* The group, with all members of the start planned. A plan that another wrote meanwhile may lack some of
 * ours: then they get one of their own. */
static adl_status plan_group(local *self, const adli_start *start, int devices, int *dir,
                             group **item)
{
    adl_status status = ADL_OK;
    for (int tries = 0; status == ADL_OK && tries < 3; tries++) {
        status = adli_local_find(self, start->uid, start->group, item);
        if (status == ADL_ENOENT) {
            *item = NULL;
            if (start->group <= adli_local_forgotten(self, start->uid))
                return adli_fail(ADL_ESTATE, "%s: group %d is over", start->uid, start->group);
            for (int i = 0; i < start->count; i++) /* before anything is made */
                if (!adli_local_node_named(self, start->members[i].node))
                    return adli_fail(ADL_ENOENT, "no node %s", start->members[i].node);
            status = ADL_OK;
        }
        if (status == ADL_OK && *dir < 0)
            status = make_directory(self, start, dir);
        if (status == ADL_OK)
            status = make_plan(self, start, *item, *dir, devices);
    }
    return status == ADL_OK ? adli_local_find(self, start->uid, start->group, item) : status;
}

adl_status adli_local_start(void *opaque, const adli_start *given)
{
    local *self = opaque;
    adli_start start = ADLI_START_INIT;
    run what = {0};
    group *item = NULL;
    int dir = -1;
    adl_status status = adli_options_take("start", &start, sizeof start, given);
    if (status == ADL_OK)
        status = adli_start_check(&start);
    if (status == ADL_OK)
        status = adli_local_run(self, &start, &what);
    what.as = adli_local_user(self, start.ns);
    if (status == ADL_OK)
        status = adli_local_admit(self, start.ns ? start.ns : "");
    if (status == ADL_OK)
        status = plan_group(self, &start, what.devices, &dir, &item);
    if (status == ADL_OK && what.as)
        status = adli_local_give(self, start.uid, what.as);
    if (status == ADL_OK)
        status = start_members(self, &start, &what, item, dir);
    if (dir >= 0)
        close(dir);
    adli_local_run_fini(&what);
    return status;
}
