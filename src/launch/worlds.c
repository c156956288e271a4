/* Sizes and deaths without a restart. The processes of a run hold a connection to it (train/opener.h says what is said
 * there). Another number is reached by another world: new processes are started first, and when they wait at their
 * first epoch the next world is opened to all who are in the one or the other; the replicas cross to it by themselves
 * and say so. When a process dies, the others say that they have lost it; when all who are left have said it, a
 * world without the dead one is opened. What does not work out so ends in a restart, which is launch.c's affair. */
#include "launch/run.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NEWCOMER_FAILURES_MAX = 3, MENDINGS_MAX = 3 };
/* How long new processes may take until they are ready, and the others until they have noticed a death: both are
 * about programs that hang, so they are long. */
static const double join_limit_s = 600, lost_limit_s = 120, cross_limit_s = 300;

/* ---- who is who -------------------------------------------------------------------------------- */

static adli_replica *find_member(const adli_run *self, int member)
{
    for (size_t i = 0; i < self->count; i++)
        if (self->all[i]->member == member)
            return self->all[i];
    return NULL;
}

static int count_role(const adli_run *self, adli_role role)
{
    int found = 0;
    for (size_t i = 0; i < self->count; i++)
        found += self->all[i]->role == role && !self->all[i]->over;
    return found;
}

static bool on_offer(const adli_run *self)
{
    return self->worlds.last > self->worlds.generation;
}

bool adli_worlds_able(const adli_run *self)
{
    bool able = self->replicas > 0 && self->life.phase == ADL_RUNNING && !self->stop;
    for (size_t i = 0; i < self->count; i++)
        if (self->all[i]->role == ADLI_ROLE_IN && !self->all[i]->over)
            able = able && self->all[i]->able && self->all[i]->link.fd >= 0;
    return able;
}

bool adli_worlds_moved(const adli_run *self)
{
    if (self->worlds.refused)
        return true;
    if (self->wanted == self->replicas || self->worlds.broken || on_offer(self))
        return false;
    for (size_t i = 0; i < self->count;
         i++) { /* one that hangs up is ending: how, is not known yet */
        const adli_replica *one = self->all[i];
        if (one->role == ADLI_ROLE_IN && !one->over && one->able && one->link.fd < 0)
            return false;
    }
    return !adli_worlds_able(self);
}

/* Killed, not ended by itself: what a program decides, and what it fails of, are not for the others to survive. */
static bool was_killed(const adli_replica *replica)
{
    return replica->over && WIFSIGNALED(replica->ward.status) && !replica->ward.asked;
}

/* It has left the present world, which is not over yet for the others: it has crossed out of it, or, when a member was
 * lost, taken an offer from before for what comes now. */
static bool left_early(const adli_run *self, const adli_replica *replica)
{
    bool listed = false;
    for (int i = 0; i < self->worlds.next_count; i++)
        listed |= self->worlds.next[i] == replica->member;
    return replica->over && adli_ward_code(&replica->ward) == ADLI_EXIT_LEFT &&
           (replica->lost || (on_offer(self) && !listed));
}

/* Is there somebody who may go on without it? */
static bool survivable(const adli_run *self)
{
    int left = 0;
    for (size_t i = 0; i < self->count; i++) {
        const adli_replica *one = self->all[i];
        if (one->role != ADLI_ROLE_IN || was_killed(one) || left_early(self, one))
            continue;
        if (one->over || !one->able)
            return false;
        left++;
    }
    return left > 0 && !self->stop && !self->worlds.refused && self->life.phase == ADL_RUNNING;
}

bool adli_worlds_handles(const adli_run *self, const adli_replica *replica)
{
    switch (replica->role) {
    case ADLI_ROLE_IN:
        return left_early(self, replica) || (was_killed(replica) && survivable(self));
    case ADLI_ROLE_NEW:
    case ADLI_ROLE_OUT:
        /* waited for at the end, whatever they end with */
        return replica->over || self->life.phase != ADL_STOPPING;
    case ADLI_ROLE_DEAD:
        break;
    }
    return true;
}

/* ---- saying ------------------------------------------------------------------------------------ */

static void say_line(const adli_replica *replica, const adli_buf *line)
{
    if (replica->link.fd >= 0 && !replica->over &&
        send(replica->link.fd, line->data, line->length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        adli_say(ADL_LOG_DEBUG, "replica %d does not listen: %s", replica->rank, strerror(errno));
}

static void say_all(const adli_run *self, const adli_buf *line)
{
    for (size_t i = 0; i < self->count; i++)
        if (self->all[i]->role != ADLI_ROLE_DEAD)
            say_line(self->all[i], line);
}

/* ---- opening a world --------------------------------------------------------------------------- */

static void end_offer(adli_run *self)
{
    adli_worlds *worlds = &self->worlds;
    free(worlds->next);
    worlds->next = NULL;
    worlds->next_count = 0;
    if (worlds->port_fd >= 0)
        close(worlds->port_fd);
    worlds->port_fd = -1;
}

/* The next world has these members, in this order; they are copied. */
static void open_world(adli_run *self, const int *members, int count)
{
    adli_worlds *worlds = &self->worlds;
    adli_buf line;
    end_offer(self);
    worlds->mends = worlds->broken;
    worlds->next = adli_memdup(members, (size_t)count, sizeof *members);
    if (!worlds->next || adli_run_reserve_port(&worlds->port, &worlds->port_fd) != ADL_OK) {
        adli_say(ADL_LOG_ERROR, "%s: cannot change in place: %s", self->name, adl_error());
        worlds->refused = true;
        return;
    }
    worlds->next_count = count;
    worlds->last++;
    worlds->since_s = adli_monotonic_s();
    adli_buf_init(&line, 1 << 16);
    adli_buf_printf(&line, "world %u 1 127.0.0.1 %d", worlds->last, worlds->port);
    for (int i = 0; i < count; i++)
        adli_buf_printf(&line, " %d", members[i]);
    adli_buf_puts(&line, "\n");
    if (adli_buf_check(&line) == ADL_OK)
        say_all(self, &line);
    adli_buf_fini(&line);
}

/* Nothing is to come of what is on offer; whether that is so the replicas say. */
static void take_back(adli_run *self)
{
    adli_buf line;
    adli_buf_init(&line, 64);
    adli_buf_printf(&line, "drop %u\n", self->worlds.last);
    if (adli_buf_check(&line) == ADL_OK)
        say_all(self, &line);
    adli_buf_fini(&line);
}

static int by_rank(const void *a, const void *b)
{
    const adli_replica *x = *(adli_replica *const *)a, *y = *(adli_replica *const *)b;
    bool x_in = x->role == ADLI_ROLE_IN, y_in = y->role == ADLI_ROLE_IN;
    if (x_in != y_in)
        return x_in ? -1 : 1;
    return x_in ? x->rank - y->rank : x->member - y->member;
}

/* When both are known: that all have crossed, and how long nobody took a step. */
static void say_pause(adli_run *self)
{
    adli_worlds *worlds = &self->worlds;
    const char *plural = self->replicas == 1 ? "" : "s";
    if (worlds->paused != worlds->generation || worlds->paused == 0)
        return;
    worlds->paused = 0;
    adli_say(ADL_LOG_INFO, "%s: %s, paused %.2f s; %d replica%s now", self->name,
             worlds->resized ? "resized in place" : "going on without it", worlds->pause_s,
             self->replicas, plural);
}

/* One that is not in the present world any more and waits for another: none will come. */
static void end_waiting(adli_replica *one)
{
    if (one->role == ADLI_ROLE_OUT && one->lost)
        adli_ward_kill(&one->ward);
}

/* The world on offer is the present one now. Whoever has not joined it yet, because it broke before, stays a new one:
 * it waits for the next. */
static void commit(adli_run *self)
{
    adli_worlds *worlds = &self->worlds;
    int before = self->replicas;
    for (size_t i = 0; i < self->count; i++) {
        adli_replica *one = self->all[i];
        int rank = worlds->next_count - 1;
        while (rank >= 0 && worlds->next[rank] != one->member)
            rank--;
        if (rank >= 0) {
            one->rank = rank;
            if (one->role == ADLI_ROLE_NEW && one->entered >= worlds->last)
                one->role = ADLI_ROLE_IN;
            one->able = one->able || one->role == ADLI_ROLE_IN;
        } else if (one->role == ADLI_ROLE_IN) {
            one->role = one->over ? ADLI_ROLE_DEAD : ADLI_ROLE_OUT;
            end_waiting(one);
        }
    }
    qsort(self->all, self->count, sizeof *self->all, by_rank);
    self->replicas = worlds->next_count;
    worlds->generation = worlds->last;
    worlds->resized = !worlds->mends;
    worlds->broken = worlds->mends = false;
    worlds->failures = worlds->unformed = 0;
    if (self->port_fd >= 0)
        close(self->port_fd);
    self->port = worlds->port;
    self->port_fd = worlds->port_fd;
    worlds->port_fd = -1;
    end_offer(self);
    adli_say(ADL_LOG_DEBUG, "world %u: %d replicas, before it %d", worlds->generation,
             self->replicas, before);
    say_pause(self);
}

/* ---- hearing ----------------------------------------------------------------------------------- */

bool adli_worlds_adopt(void *run, const char *line, int fd)
{
    adli_run *self = run;
    int member;
    if (sscanf(line, "member %9d", &member) != 1)
        return false;
    adli_replica *replica = find_member(self, member);
    if (!replica || replica->link.fd >= 0)
        return false;
    replica->link.fd = fd;
    return true;
}

static bool all_entered(const adli_run *self)
{
    for (int i = 0; i < self->worlds.next_count; i++) {
        const adli_replica *one = find_member(self, self->worlds.next[i]);
        if (!one || one->entered < self->worlds.last)
            return false;
    }
    return true;
}

static void hear_refused(adli_run *self, const adli_replica *replica, const char *why)
{
    adli_worlds *worlds = &self->worlds;
    if (!on_offer(self) || worlds->mends || replica->rank != 0 || replica->role != ADLI_ROLE_IN)
        return;
    worlds->generation = worlds->last; /* the replicas are as they were; numbers go up */
    end_offer(self);
    if (worlds->failures == 0 && !worlds->broken) {
        adli_say(ADL_LOG_WARNING, "%s: cannot be resized in place (%s): restarting it", self->name,
                 why);
        worlds->refused = true;
    }
}

static void hear_lost(adli_run *self, adli_replica *replica, uint32_t generation, uint64_t applied,
                      int member)
{
    adli_worlds *worlds = &self->worlds;
    if (on_offer(self) && generation == worlds->last && !worlds->mends)
        commit(self); /* some had crossed: who they were with now is the world that lost one */
    replica->lost = true;
    replica->lost_in = generation;
    replica->applied = applied;
    end_waiting(replica);
    if (replica->role != ADLI_ROLE_IN || generation < replica->entered)
        return; /* the others have gone on meanwhile */
    adli_replica *named = find_member(self, member);
    if (named)
        named->named = true;
    if (!worlds->broken)
        worlds->since_s = adli_monotonic_s();
    worlds->broken = true;
}

static void hear_entered(adli_run *self, adli_replica *replica, uint32_t generation)
{
    replica->entered = generation;
    replica->lost = replica->named = false;
    if (on_offer(self) && generation == self->worlds.last && all_entered(self)) {
        commit(self);
    } else if (replica->role == ADLI_ROLE_NEW && generation == self->worlds.generation) {
        replica->role = ADLI_ROLE_IN; /* another was quicker to say that this world broke */
        replica->able = true;
        qsort(self->all, self->count, sizeof *self->all, by_rank);
    }
}

/* The group of a world without the dead did not form at one of its members: that one waits for another again. */
static void hear_unformed(adli_run *self, adli_replica *replica, uint32_t generation)
{
    adli_worlds *worlds = &self->worlds;
    if (!on_offer(self) || !worlds->mends || generation != worlds->last ||
        replica->role != ADLI_ROLE_IN)
        return;
    replica->lost = true;
    replica->lost_in = generation;
    worlds->unformed++;
}

static void hear_line(adli_run *self, adli_replica *replica, const char *line)
{
    unsigned generation;
    unsigned long long applied;
    int member = -1, used = 0;
    double seconds;
    if (strcmp(line, "able") == 0) {
        replica->able = true;
    } else if (strcmp(line, "ready") == 0) {
        replica->ready = true;
    } else if (sscanf(line, "entered %u", &generation) == 1) {
        hear_entered(self, replica, generation);
    } else if (sscanf(line, "unformed %u", &generation) == 1) {
        hear_unformed(self, replica, generation);
    } else if (sscanf(line, "paused %u %lf", &generation, &seconds) == 2) {
        self->worlds.paused = generation;
        self->worlds.pause_s = seconds;
        say_pause(self);
    } else if (sscanf(line, "refused %u %n", &generation, &used) == 1 && used > 0) {
        if (generation == self->worlds.last)
            hear_refused(self, replica, line + used);
    } else if (sscanf(line, "lost %u %llu %d", &generation, &applied, &member) >= 2) {
        hear_lost(self, replica, generation, applied, member);
    } else {
        adli_say(ADL_LOG_DEBUG, "replica %d says what is not understood: %.80s", replica->rank,
                 line);
    }
}

void adli_worlds_hear(adli_run *self, adli_replica *replica)
{
    char chunk[4096];
    ssize_t got = recv(replica->link.fd, chunk, sizeof chunk, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        close(replica->link.fd);
        replica->link.fd = -1;
        return;
    }
    adli_buf *line = &replica->link.line;
    for (ssize_t i = 0; i < got; i++) {
        if (chunk[i] != '\n') {
            adli_buf_append(line, &chunk[i], 1);
            continue;
        }
        adli_buf_append(line, "", 0);
        if (line->length > 0 && line->status == ADL_OK)
            hear_line(self, replica, line->data);
        adli_buf_clear(line);
    }
}

/* ---- deaths ------------------------------------------------------------------------------------ */

static int ahead_first(const void *a, const void *b)
{
    const adli_replica *x = *(adli_replica *const *)a, *y = *(adli_replica *const *)b;
    if (x->applied != y->applied)
        return x->applied > y->applied ? -1 : 1;
    return x->rank - y->rank;
}

/* Those who wait for a world without the dead; false: some have not noticed yet. */
static bool list_survivors(adli_run *self, int *members, int *count)
{
    adli_replica **left = adli_calloc(self->count, sizeof(adli_replica *));
    bool all = left != NULL;
    size_t found = 0;
    for (size_t i = 0; all && i < self->count; i++) {
        adli_replica *one = self->all[i];
        if (one->role != ADLI_ROLE_IN || one->over)
            continue;
        all = one->lost;
        left[found++] = one;
    }
    if (all && found > 0)
        qsort(left, found, sizeof(adli_replica *), ahead_first);
    for (size_t i = 0; all && i < found; i++)
        members[i] = left[i]->member;
    *count = (int)found;
    free(left);
    return all;
}

/* One that others have lost and that is stopped, or that has not noticed for long, is not one of them any more. */
static void end_silent(adli_run *self)
{
    bool late = adli_monotonic_s() - self->worlds.since_s > lost_limit_s;
    for (size_t i = 0; i < self->count; i++) {
        adli_replica *one = self->all[i];
        bool entered = on_offer(self) && one->entered == self->worlds.last;
        if (one->role != ADLI_ROLE_IN || one->over || one->lost || one->ward.killed || entered ||
            !((one->named && one->ward.stopped) || late))
            continue;
        adli_say(ADL_LOG_ERROR, "replica %d %s: killed", one->rank,
                 one->ward.stopped ? "was stopped and cannot go on with the others"
                                   : "does not answer");
        adli_ward_kill(&one->ward);
    }
}

/* Has one of those who were offered a world without the dead died since, or lost it again? */
static bool mending_fails(const adli_run *self)
{
    for (int i = 0; i < self->worlds.next_count; i++) {
        const adli_replica *one = find_member(self, self->worlds.next[i]);
        if (!one || one->over || (one->lost && one->lost_in == self->worlds.last))
            return true;
    }
    return false;
}

/* Nobody meets with one that is stopped, and it will not meet with those who have gone on. */
static void end_stopped(adli_run *self)
{
    for (int i = 0; i < self->worlds.next_count; i++) {
        adli_replica *one = find_member(self, self->worlds.next[i]);
        if (!one || one->over || !one->ward.stopped || one->ward.killed)
            continue;
        adli_say(ADL_LOG_ERROR, "replica %d was stopped and cannot go on with the others: killed",
                 one->rank);
        adli_ward_kill(&one->ward);
    }
}

/* Is it time to give up finding a world without the dead? */
static bool hopeless(adli_run *self)
{
    adli_worlds *worlds = &self->worlds;
    if (adli_monotonic_s() - worlds->since_s <= cross_limit_s &&
        worlds->unformed < MENDINGS_MAX * self->replicas)
        return false;
    adli_say(ADL_LOG_WARNING, "%s: the others do not come together: restarting it", self->name);
    worlds->refused = true;
    return true;
}

/* The world has lost a member: the others are given one without it, as soon as all have noticed. */
static void mend(adli_run *self)
{
    adli_worlds *worlds = &self->worlds;
    int count = 0;
    end_silent(self);
    if (on_offer(self) && worlds->mends) {
        if (hopeless(self) || !mending_fails(self))
            return;
        end_stopped(self);
        take_back(self);
        worlds->generation = worlds->last;
        end_offer(self);
    }
    int *members = adli_calloc(self->count, sizeof *members);
    if (members && list_survivors(self, members, &count) && count > 0) {
        worlds->generation = worlds->last; /* nobody has crossed to what was on offer before */
        open_world(self, members, count);
    }
    free(members);
}

/* Deaths that the others survive are said here; others are launch.c's to report. */
static void look_for_deaths(adli_run *self)
{
    adli_worlds *worlds = &self->worlds;
    for (size_t i = 0; i < self->count; i++) {
        adli_replica *one = self->all[i];
        char fate[128];
        if (one->role != ADLI_ROLE_IN || !was_killed(one) || !survivable(self) || one->told)
            continue;
        one->told = true;
        if (self->life.failures < self->rules.max_retries)
            self->life.failures++; /* its place is filled again */
        else if (self->wanted > 1 && self->wanted >= self->replicas)
            self->wanted--;
        adli_say(ADL_LOG_ERROR, "replica %d %s", one->rank,
                 adli_replica_fate(one, fate, sizeof fate));
        if (!worlds->broken)
            worlds->since_s = adli_monotonic_s();
        if (on_offer(self) && !worlds->mends) /* if they cross nevertheless, they say so */
            take_back(self);
        worlds->broken = true;
        worlds->replaced = -1; /* ranks are about to change */
    }
}

/* ---- sizes ------------------------------------------------------------------------------------- */

/* It has no part in the job yet: nothing is lost with it. */
static void end_newcomer(adli_replica *one)
{
    one->unwanted = true;
    adli_ward_kill(&one->ward);
}

static void end_newcomers(adli_run *self)
{
    for (size_t i = 0; i < self->count; i++)
        if (self->all[i]->role == ADLI_ROLE_NEW && !self->all[i]->over)
            end_newcomer(self->all[i]);
}

/* A new process died before it had joined, or does not come: the others go on as they are. */
static void look_at_newcomers(adli_run *self)
{
    adli_worlds *worlds = &self->worlds;
    for (size_t i = 0; i < self->count; i++) {
        adli_replica *one = self->all[i];
        char fate[128];
        if (one->role != ADLI_ROLE_NEW || !one->over)
            continue;
        one->role = ADLI_ROLE_DEAD;
        if (one->unwanted)
            continue;
        worlds->failures++;
        adli_say(ADL_LOG_ERROR, "new replica %d %s before it had joined", one->rank,
                 adli_replica_fate(one, fate, sizeof fate));
        if (on_offer(self) && !worlds->mends)
            take_back(self);
        if (worlds->failures < NEWCOMER_FAILURES_MAX)
            continue;
        adli_say(ADL_LOG_ERROR, "%s: stays at %d replicas", self->name, self->replicas);
        self->wanted = self->replicas;
        worlds->replaced = -1;
        end_newcomers(self);
    }
}

/* Starts what is missing; true: all new ones are there and ready. */
static bool gather_newcomers(adli_run *self, int missing)
{
    bool ready = true;
    int have = count_role(self, ADLI_ROLE_NEW);
    for (; have < missing; have++) {
        int rank = self->worlds.replaced >= 0 ? self->worlds.replaced : self->replicas + have;
        if (adli_run_start_one(self, rank, self->wanted, true) != ADL_OK) {
            adli_say(ADL_LOG_ERROR, "%s: cannot start a replica: %s", self->name, adl_error());
            self->wanted = self->replicas;
            self->worlds.replaced = -1;
            return false;
        }
        self->worlds.since_s = adli_monotonic_s();
        ready = false;
    }
    for (size_t i = 0; i < self->count; i++) {
        adli_replica *one = self->all[i];
        if (one->role != ADLI_ROLE_NEW || one->over)
            continue;
        ready = ready && one->ready;
        if (have-- > missing) /* fewer are wanted by now */
            end_newcomer(one);
        else if (!one->ready && adli_monotonic_s() - self->worlds.since_s > join_limit_s)
            adli_ward_kill(&one->ward);
    }
    return ready;
}

/* The members of the wanted world: those who are there, without who is to be replaced, then the new ones. */
static void open_wanted(adli_run *self)
{
    int *members = adli_calloc(self->count, sizeof *members), count = 0;
    for (size_t i = 0; members && i < self->count && count < self->wanted; i++) {
        const adli_replica *one = self->all[i];
        bool in = one->role == ADLI_ROLE_IN && one->rank != self->worlds.replaced;
        if (!one->over && (in || (one->role == ADLI_ROLE_NEW && one->ready)))
            members[count++] = one->member;
    }
    self->worlds.replaced = -1;
    if (members && count == self->wanted)
        open_world(self, members, count);
    free(members);
}

static void resize(adli_run *self)
{
    adli_worlds *worlds = &self->worlds;
    if (on_offer(self)) {
        if (adli_monotonic_s() - worlds->since_s > cross_limit_s) {
            adli_say(ADL_LOG_WARNING,
                     "%s: the replicas did not resize within %.0f s: restarting it", self->name,
                     cross_limit_s);
            worlds->refused = true;
        }
        return;
    }
    bool replaces = worlds->replaced >= 0 && self->wanted == self->replicas;
    if (!replaces)
        worlds->replaced = -1;
    int missing = replaces ? 1 : self->wanted > self->replicas ? self->wanted - self->replicas : 0;
    bool ready = gather_newcomers(self, missing);
    if ((missing > 0 && ready) || self->wanted < self->replicas)
        open_wanted(self);
}

void adli_worlds_act(adli_run *self)
{
    if (self->life.phase != ADL_RUNNING || self->stop || self->worlds.refused)
        return;
    look_for_deaths(self);
    look_at_newcomers(self);
    if (self->worlds.broken)
        mend(self);
    else if (adli_worlds_able(self))
        resize(self);
}

/* ---- life -------------------------------------------------------------------------------------- */

void adli_worlds_begin(adli_run *self)
{
    adli_worlds_fini(self);
    self->worlds = (adli_worlds){.port_fd = -1, .replaced = -1};
}

void adli_worlds_fini(adli_run *self)
{
    end_offer(self);
}
