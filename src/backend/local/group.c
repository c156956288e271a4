/* Groups of the local backend and their files:
 *   STATE/jobs/UID/groups/GROUP/plan, plan-MEMBER, MEMBER.claim, MEMBER.result
 *   STATE/jobs/UID/groups/forgotten      groups up to this number are over for ever
 * The files are the truth; the table in memory says only which groups there are. */
#include "backend/local/impl.h"
#include "backend/local/record.h"

#include "base/clock.h"
#include "base/dirs.h"
#include "base/mem.h"
#include "proc/procs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

static const double forget_wait_s = 2;
enum { CLEAN_LOOKS = 3, SWEEPS = 80 };

int adli_local_enter(const char *path)
{
    int fd;
    return adli_dirs_enter(path, &fd) == ADL_OK ? fd : -1;
}

int adli_local_open(const local *self, const char *uid, int number)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/jobs/%s/groups/%d", self->state_dir, uid, number) >=
        (int)sizeof path)
        return -1;
    return adli_local_enter(path);
}

static group *find_known(const local *self, const char *uid, int number)
{
    for (size_t i = 0; i < self->group_count; i++)
        if (self->groups[i].number == number && strcmp(self->groups[i].uid, uid) == 0)
            return &self->groups[i];
    return NULL;
}

static void watch_directory(const local *self, const char *uid, int number)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/jobs/%s/groups/%d", self->state_dir, uid, number);
    inotify_add_watch(self->notify, path, IN_CREATE | IN_MOVED_TO | IN_MODIFY | IN_CLOSE_WRITE);
}

/* ---- what is planned ---- */

void adli_local_group_fini(group *item)
{
    for (size_t i = 0; i < item->plan_count; i++)
        adli_start_plan_free(item->plans[i]);
    free(item->plans);
    free(item->members);
}

static int by_number(const void *a, const void *b)
{
    const member *left = a, *right = b;
    return (left->number > right->number) - (left->number < right->number);
}

static adl_status read_plan(group *item, int dir, const char *name)
{
    adli_start_plan *plan;
    adl_status status = adli_start_plan_read(dir, name, &plan);
    if (status != ADL_OK)
        return status;
    if (adli_grow(&item->plans, &item->plan_capacity, item->plan_count + 1, sizeof *item->plans) !=
            0 ||
        adli_grow(&item->members, &item->capacity, item->count + (size_t)plan->count,
                  sizeof *item->members) != 0) {
        adli_start_plan_free(plan);
        return adli_fail_memory("a group");
    }
    item->plans[item->plan_count++] = plan;
    for (int i = 0; i < plan->count; i++)
        if (!adli_local_member(item, plan->members[i]))
            item->members[item->count++] =
                (member){plan->members[i], plan->nodes[i], plan->gpus[i], plan};
    qsort(item->members, item->count, sizeof *item->members, by_number);
    return ADL_OK;
}

/* The first plan, then those of members that joined later. */
static adl_status read_plans(group *item, int dir)
{
    adl_status status = read_plan(item, dir, ADLI_PLAN_FIRST);
    int again = status == ADL_OK ? dup(dir) : -1;
    DIR *stream = again >= 0 ? fdopendir(again) : NULL;
    if (!stream && again >= 0)
        close(again);
    if (status == ADL_OK && !stream)
        return adli_fail(ADL_EIO, "%s", strerror(errno));
    if (stream)
        rewinddir(stream); /* the place is shared with dir */
    for (struct dirent *entry; status == ADL_OK && stream && (entry = readdir(stream));)
        if (strncmp(entry->d_name, ADLI_PLAN_FIRST "-", strlen(ADLI_PLAN_FIRST) + 1) == 0 &&
            !strstr(entry->d_name, ".tmp."))
            status = read_plan(item, dir, entry->d_name);
    if (stream)
        closedir(stream);
    return status;
}

const member *adli_local_member(const group *item, int number)
{
    for (size_t i = 0; i < item->count; i++)
        if (item->members[i].number == number)
            return &item->members[i];
    return NULL;
}

adl_status adli_local_find(local *self, const char *uid, int number, group **out)
{
    *out = find_known(self, uid, number);
    if (*out)
        return ADL_OK;
    int dir = adli_local_open(self, uid, number);
    if (dir < 0)
        return adli_fail(ADL_ENOENT, "%s: no group %d", uid, number);
    group found = {.number = number};
    snprintf(found.uid, sizeof found.uid, "%s", uid);
    adl_status status = read_plans(&found, dir);
    close(dir);
    if (status == ADL_OK && adli_grow(&self->groups, &self->group_capacity, self->group_count + 1,
                                      sizeof *self->groups) != 0)
        status = adli_fail_memory("a group");
    if (status != ADL_OK) {
        adli_local_group_fini(&found);
        return adli_wrap(status, "%s: group %d", uid, number);
    }
    *out = &self->groups[self->group_count++];
    **out = found;
    watch_directory(self, uid, number);
    return ADL_OK;
}

void adli_local_drop(local *self, const char *uid, int number)
{
    group *item = find_known(self, uid, number);
    if (!item)
        return;
    adli_local_group_fini(item);
    *item = self->groups[--self->group_count];
}

/* ---- one member ---- */

void adli_local_mark(const local *self, const group *item, int number, char *out, size_t size)
{
    snprintf(out, size, "%s/jobs/%s/groups/%d/%d", self->state_dir, item->uid, item->number,
             number);
}

adli_cgroup adli_local_cgroup_of(const local *self, const adli_cgroup *parents, const char *uid,
                                 int number, int which)
{
    char name[160];
    snprintf(name, sizeof name, "adaptdl-%08x-%s-%d-%d",
             (unsigned)adli_record_sum(self->state_dir, strlen(self->state_dir)), uid, number,
             which);
    return adli_cgroup_child(parents, name);
}

adli_cgroup adli_local_cgroup(const local *self, const group *item, const member *who)
{
    return adli_local_cgroup_of(self, &who->plan->cgroups, item->uid, item->number, who->number);
}

bool adli_local_settle(int dir, int number, const adli_result *result)
{
    int claim;
    if (adli_claim_take(dir, number, &claim) != ADL_OK)
        return false;
    bool written = adli_result_write(dir, number, result) == ADL_OK;
    close(claim);
    return written;
}

/* The keeper was killed. The replica dies with it, but not what the replica started: that is found by
 * its mark. True when nothing is left: not seen in several looks at a stretch, since a process that forks and
 * ends while /proc is being read is not in that look, and neither is its child. Processes that are in
 * the middle of exec for all that time are taken for what they look like: without an environment. */
static bool sweep(const local *self, const group *item, const member *who, int claim)
{
    char mark[PATH_MAX];
    unsigned long long since = adli_claim_born(claim);
    adli_cgroup cgroup = adli_local_cgroup(self, item, who);
    adli_local_mark(self, item, who->number, mark, sizeof mark);
    int clean = 0, sure = 0, unsure;
    for (int i = 0; i < SWEEPS; i++) {
        adli_cgroup_kill(&cgroup);
        bool none =
            adli_procs_kill_marked(mark, since, &unsure) == 0 && adli_cgroup_remove(&cgroup);
        clean = none ? clean + 1 : 0;
        sure = none && unsure == 0 ? sure + 1 : 0;
        if (sure == CLEAN_LOOKS)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 2500000}, NULL);
    }
    return clean >= SWEEPS / 2;
}

static void show(const adli_result *result, adli_member_view *view)
{
    view->state = result->state;
    view->exit_code = result->exit_code;
    view->cause = result->cause;
    memcpy(view->message, result->message, sizeof view->message);
    view->ended_s = result->ended_s;
}

/* With the claim's lock in our hands: the result, or that the replica is lost. */
static void look_dead(const local *self, const group *item, int dir, const member *who, int claim,
                      adli_member_view *view)
{
    adli_result result;
    adl_status status = adli_result_read(dir, who->number, &result);
    if (status != ADL_OK) {
        if (!sweep(self, item, who, claim)) {
            view->state = ADLI_MEMBER_READY; /* something of it lives: ask again */
            return;
        }
        adli_result_set(&result, ADLI_MEMBER_INTERRUPTED, -1, ADLI_CAUSE_LOST,
                        "its keeper was killed, or the machine restarted");
        if (adli_result_write(dir, who->number, &result) != ADL_OK)
            status = ADL_EIO; /* found again the next time */
    }
    show(&result, view);
}

void adli_local_look(const local *self, const group *item, int dir, const member *who,
                     adli_member_view *view)
{
    pid_t keeper;
    int lock;
    adli_result result;
    *view =
        (adli_member_view){.member = who->number, .state = ADLI_MEMBER_WAITING, .exit_code = -1};
    if (who->plan->refused[0] == '\0')
        snprintf(view->address, sizeof view->address, "127.0.0.1");
    if (adli_result_read(dir, who->number, &result) == ADL_OK) {
        show(&result, view);
        return;
    }
    switch (adli_claim_look(dir, who->number, &keeper, &lock)) {
    case ADLI_CLAIM_NONE:
        view->address[0] = '\0';
        break;
    case ADLI_CLAIM_STARTING:
        break;
    case ADLI_CLAIM_RUNNING:
        view->state = ADLI_MEMBER_READY;
        break;
    case ADLI_CLAIM_DEAD:
        look_dead(self, item, dir, who, lock, view);
        close(lock);
        break;
    }
}

void adli_local_signal(local *self, const group *item, const member *who, int signal,
                       const adli_result *result)
{
    int dir = adli_local_open(self, item->uid, item->number);
    if (dir < 0)
        return;
    if (!adli_local_settle(dir, who->number, result))
        adli_claim_signal(dir, who->number, signal);
    close(dir);
}

/* ---- the end of a group ---- */

static int open_groups(const local *self, const char *uid)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/jobs/%s/groups", self->state_dir, uid) >= (int)sizeof path)
        return -1;
    return adli_local_enter(path);
}

int adli_local_forgotten(const local *self, const char *uid)
{
    int64_t number = 0;
    size_t at = 0;
    adli_buf buf;
    int dir = open_groups(self, uid);
    if (dir < 0)
        return 0;
    adli_buf_init(&buf, 4096);
    if (adli_record_read(dir, "forgotten", &buf) != ADL_OK ||
        adli_record_next_int(&buf, &at, "group", &number) != ADL_OK)
        number = 0;
    adli_buf_fini(&buf);
    close(dir);
    return (int)number;
}

static adl_status remember_forgotten(const local *self, int dir, const char *uid, int number)
{
    adli_buf buf;
    if (adli_local_forgotten(self, uid) >= number)
        return ADL_OK;
    adli_buf_init(&buf, 4096);
    adli_record_put_int(&buf, "group", number);
    adl_status status = adli_record_write(dir, "forgotten", &buf, false);
    adli_buf_fini(&buf);
    return status;
}

/* Kills the group and waits until it is gone, for as long as a kill takes. */
static bool end_group(local *self, group *item)
{
    adli_result killed;
    double until_s = adli_monotonic_s() + forget_wait_s;
    adli_result_set(&killed, ADLI_MEMBER_INTERRUPTED, -1, ADLI_CAUSE_KILLED, "never started");
    for (size_t i = 0; i < item->count; i++)
        adli_local_signal(self, item, &item->members[i], ADLI_KEEPER_KILL, &killed);
    int dir = adli_local_open(self, item->uid, item->number);
    int alive = 1;
    while (dir >= 0 && alive > 0) {
        adli_member_view view;
        alive = 0;
        for (size_t i = 0; i < item->count; i++) {
            adli_local_look(self, item, dir, &item->members[i], &view);
            alive += view.state <= ADLI_MEMBER_READY;
        }
        if (alive == 0 || adli_monotonic_s() > until_s)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    if (dir >= 0)
        close(dir);
    return alive == 0;
}

/* A group whose plan cannot be read: its members are those that were claimed. */
static adl_status find_claimed(const local *self, const char *uid, int number, group *out)
{
    static adli_start_plan unknown = {.refused = "", .message = ""};
    int dir = adli_local_open(self, uid, number);
    DIR *stream = dir >= 0 ? fdopendir(dir) : NULL;
    adl_status status = ADL_OK;
    *out = (group){.number = number};
    snprintf(out->uid, sizeof out->uid, "%s", uid);
    if (!stream && dir >= 0)
        close(dir);
    for (struct dirent *entry; status == ADL_OK && stream && (entry = readdir(stream));) {
        char *end;
        long claimed = strtol(entry->d_name, &end, 10);
        if (end == entry->d_name || strcmp(end, ".claim") != 0 || claimed < 0 || claimed > INT_MAX)
            continue;
        if (adli_grow(&out->members, &out->capacity, out->count + 1, sizeof *out->members) != 0)
            status = adli_fail_memory("a group");
        else
            out->members[out->count++] = (member){(int)claimed, "", "", &unknown};
    }
    if (stream)
        closedir(stream);
    return status;
}

static bool end_unreadable(local *self, const char *uid, int number)
{
    group found;
    bool ended = find_claimed(self, uid, number, &found) == ADL_OK && end_group(self, &found);
    adli_local_group_fini(&found);
    return ended;
}

/* A directory in the way of being removed is called gone-NUMBER, so that nobody takes it for a group. */
void adli_local_forget(local *self, const char *uid, int number)
{
    char name[16], gone[32];
    group *item;
    int dir = open_groups(self, uid);
    if (dir < 0)
        return;
    adl_status status = adli_local_find(self, uid, number, &item);
    bool ended = status == ADL_OK       ? end_group(self, item)
                 : status == ADL_ENOENT ? true
                                        : end_unreadable(self, uid, number);
    snprintf(name, sizeof name, "%d", number);
    snprintf(gone, sizeof gone, "gone-%d", number);
    if (remember_forgotten(self, dir, uid, number) == ADL_OK &&
        renameat(dir, name, dir, gone) == 0 && ended)
        adli_dirs_remove(dir, gone);
    close(dir);
    adli_local_drop(self, uid, number);
}

/* ---- finding them again ---- */

static void scan_job(local *self, const char *uid)
{
    group *item;
    int dir = open_groups(self, uid);
    DIR *stream = dir >= 0 ? fdopendir(dir) : NULL;
    if (!stream && dir >= 0)
        close(dir);
    if (!stream)
        return;
    for (struct dirent *entry; (entry = readdir(stream));) {
        char *end;
        long number = strtol(entry->d_name, &end, 10);
        if (strncmp(entry->d_name, "gone-", 5) == 0 ||
            strncmp(entry->d_name, "forgotten.tmp.", 14) == 0) /* of one that was killed */
            adli_dirs_remove(dir, entry->d_name);
        else if (!*end && end != entry->d_name && number >= 1 && number <= INT_MAX &&
                 adli_local_find(self, uid, (int)number, &item) != ADL_OK)
            continue; /* cut short before its plan: nothing was started */
    }
    closedir(stream);
}

adl_status adli_local_scan(local *self)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/jobs", self->state_dir) >= (int)sizeof path)
        return adli_fail(ADL_EINVAL, "%s: too long", self->state_dir);
    adl_status status = adli_dirs_make(path, 0755);
    if (status != ADL_OK)
        return status;
    int dir;
    status = adli_dirs_enter(path, &dir);
    if (status != ADL_OK)
        return status;
    DIR *stream = fdopendir(dir);
    if (!stream) {
        close(dir);
        return adli_fail_memory(path);
    }
    bool trashed = false;
    for (struct dirent *entry; (entry = readdir(stream));) {
        if (strncmp(entry->d_name, "gone.", 5) == 0) /* half removed by an earlier version */
            trashed |= adli_local_trash(dirfd(stream), entry->d_name);
        else if (strcmp(entry->d_name, ADLI_LOCAL_TRASH) == 0)
            trashed = true;
        else if (adli_member_check(entry->d_name, 1) == ADL_OK)
            scan_job(self, entry->d_name);
    }
    closedir(stream);
    if (trashed)
        adli_local_empty_trash(self);
    return ADL_OK;
}
