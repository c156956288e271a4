/* Sizes and deaths without a restart, for the processes of a run. sched/worlds.h decides; here is what it decides upon
 * (processes, and the connections that they hold to the launcher: train/opener.h says what is said there) and what
 * becomes of it. */
#include "launch/run.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- seeing ------------------------------------------------------------------------------------ */

static adli_gone gone(const adli_replica *replica)
{
    const adli_ward *ward = &replica->ward;
    if (!replica->over)
        return ADLI_GONE_NOT;
    if (WIFSIGNALED(ward->status) && !ward->asked)
        return ADLI_GONE_KILLED;
    return adli_ward_code(ward) == ADLI_EXIT_LEFT ? ADLI_GONE_LEFT : ADLI_GONE_ITSELF;
}

/* All places of a run are on one node. */
static adl_status want(adli_run *self)
{
    int *nodes = adli_calloc((size_t)self->wanted + 1, sizeof *nodes);
    adl_status status =
        nodes ? adli_worlds_want(&self->worlds, nodes, self->wanted) : adli_fail_memory("places");
    free(nodes);
    return status;
}

void adli_run_see(adli_run *self)
{
    adli_worlds *worlds = &self->worlds;
    worlds->running = self->life.phase == ADL_RUNNING && !self->stop;
    worlds->stopping = self->life.phase == ADL_STOPPING;
    if (worlds->wanted_count != self->wanted && want(self) != ADL_OK)
        adli_say(ADL_LOG_WARNING, "%s: %s", self->name, adl_error()); /* the next turn does it */
    for (size_t i = 0; i < self->count; i++) {
        adli_member *as = self->all[i]->as;
        as->gone = gone(self->all[i]);
        as->stopped = self->all[i]->ward.stopped;
        as->away = self->all[i]->link.fd < 0;
    }
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
    for (size_t i = 0; i < self->count && line->status == ADL_OK; i++)
        if (self->all[i]->as->role != ADLI_ROLE_DEAD)
            say_line(self->all[i], line);
}

static void release_port(adli_run *self)
{
    if (self->next_port_fd >= 0)
        close(self->next_port_fd);
    self->next_port_fd = -1;
}

static void say_opened(adli_run *self)
{
    adli_worlds *worlds = &self->worlds;
    adli_buf line;
    worlds->opened = false;
    release_port(self);
    if (adli_run_reserve_port(&worlds->port, &self->next_port_fd) != ADL_OK) {
        adli_worlds_refuse(worlds, adl_error());
        return;
    }
    adli_buf_init(&line, 1 << 16);
    adli_buf_printf(&line, "world %u 1 127.0.0.1 %d", worlds->last, worlds->port);
    for (int i = 0; i < worlds->next_count; i++)
        adli_buf_printf(&line, " %d", worlds->next[i]);
    adli_buf_puts(&line, "\n");
    say_all(self, &line);
    adli_buf_fini(&line);
}

static void say_withdrawn(adli_run *self)
{
    adli_buf line;
    self->worlds.withdrawn = false;
    adli_buf_init(&line, 64);
    adli_buf_printf(&line, "drop %u\n", self->worlds.dropped);
    say_all(self, &line);
    adli_buf_fini(&line);
}

/* For people. */
static void say_note(adli_run *self, const adli_world_note *note)
{
    const adli_replica *who = note->member ? note->member->user : NULL;
    const char *plural = self->replicas == 1 ? "" : "s";
    char fate[128] = "";
    if (who && who->over)
        adli_replica_fate(who, fate, sizeof fate);
    switch (note->news) {
    case ADLI_NEWS_RESIZED:
    case ADLI_NEWS_WENT_ON:
        adli_say(ADL_LOG_INFO, "%s: %s, paused %.2f s; %d replica%s now", self->name,
                 note->news == ADLI_NEWS_RESIZED ? "resized in place" : "going on without it",
                 note->seconds, self->replicas, plural);
        break;
    case ADLI_NEWS_DIED:
        adli_say(ADL_LOG_ERROR, "replica %d %s", note->member->rank, fate);
        break;
    case ADLI_NEWS_NEW_DIED:
        adli_say(ADL_LOG_ERROR, "new replica %d %s before it had joined", note->member->rank, fate);
        break;
    case ADLI_NEWS_GAVE_UP:
        adli_say(ADL_LOG_ERROR, "%s: stays at %d replicas", self->name, self->replicas);
        self->wanted = self->replicas;
        break;
    case ADLI_NEWS_KILLED:
        adli_say(ADL_LOG_ERROR, "replica %d %s: killed", note->member->rank, note->text);
        break;
    case ADLI_NEWS_RESTART:
        adli_say(ADL_LOG_WARNING, "%s: %s: restarting it", self->name, note->text);
        break;
    }
}

/* ---- what was decided -------------------------------------------------------------------------- */

static int by_rank(const void *a, const void *b)
{
    const adli_member *x = (*(adli_replica *const *)a)->as, *y = (*(adli_replica *const *)b)->as;
    bool x_in = x->role == ADLI_ROLE_IN, y_in = y->role == ADLI_ROLE_IN;
    if (x_in != y_in)
        return x_in ? -1 : 1;
    return x_in ? x->rank - y->rank : x->number - y->number;
}

/* Who is who, and whose port is held. */
static void follow(adli_run *self)
{
    adli_worlds *worlds = &self->worlds;
    self->replicas = worlds->replicas;
    for (size_t i = 0; i < self->count; i++)
        self->all[i]->rank = self->all[i]->as->rank;
    if (self->count > 0)
        qsort(self->all, self->count, sizeof *self->all, by_rank);
    if (adli_worlds_on_offer(worlds) || self->next_port_fd < 0)
        return;
    if (worlds->entered != worlds->last) {
        release_port(self);
        return;
    }
    if (self->port_fd >= 0)
        close(self->port_fd);
    self->port = worlds->port;
    self->port_fd = self->next_port_fd;
    self->next_port_fd = -1;
}

/* A death that the others survive is a failure; its place is filled again as long as there may be more. */
static void count_deaths(adli_run *self)
{
    for (; self->worlds.deaths > 0; self->worlds.deaths--) {
        if (self->life.failures < self->rules.max_retries)
            self->life.failures++;
        else if (self->wanted > 1 && self->wanted >= self->replicas)
            self->wanted--;
    }
}

static void start_newcomer(adli_run *self, adli_member *as)
{
    as->start = false;
    if (adli_run_start_one(self, as, self->wanted, true) == ADL_OK)
        return;
    adli_say(ADL_LOG_ERROR, "%s: cannot start a replica: %s", self->name, adl_error());
    self->wanted = self->replicas;
    as->gone = ADLI_GONE_ITSELF;
    as->unwanted = true;
}

static void carry_out(adli_run *self)
{
    adli_worlds *worlds = &self->worlds;
    follow(self);
    count_deaths(self);
    for (size_t i = 0; i < worlds->note_count; i++)
        say_note(self, &worlds->notes[i]);
    worlds->note_count = 0;
    if (worlds->withdrawn)
        say_withdrawn(self);
    if (worlds->opened)
        say_opened(self);
    for (size_t i = 0; i < worlds->count; i++) {
        adli_member *as = worlds->all[i];
        adli_replica *replica = as->user;
        if (as->start)
            start_newcomer(self, as);
        else if (as->kill && replica && !replica->over && !replica->ward.killed)
            adli_ward_kill(&replica->ward);
    }
}

void adli_run_act(adli_run *self)
{
    adli_run_see(self);
    adli_worlds_act(&self->worlds, adli_monotonic_s());
    carry_out(self);
}

/* ---- hearing ----------------------------------------------------------------------------------- */

bool adli_run_adopt(void *run, const char *line, int fd)
{
    adli_run *self = run;
    int member;
    if (sscanf(line, "member %9d", &member) != 1)
        return false;
    adli_member *as = adli_worlds_find(&self->worlds, member);
    adli_replica *replica = as ? as->user : NULL;
    if (!replica || replica->link.fd >= 0)
        return false;
    replica->link.fd = fd;
    return true;
}

void adli_run_hear(adli_run *self, adli_replica *replica)
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
        if (line->length > 0 && line->status == ADL_OK &&
            !adli_worlds_hear(&self->worlds, replica->as, line->data, adli_monotonic_s()))
            adli_say(ADL_LOG_DEBUG, "replica %d says what is not understood: %.80s", replica->rank,
                     line->data);
        adli_buf_clear(line);
    }
    carry_out(self);
}

/* ---- life -------------------------------------------------------------------------------------- */

void adli_run_end_worlds(adli_run *self)
{
    int next = self->worlds.next_member; /* numbers are never used again */
    release_port(self);
    adli_worlds_fini(&self->worlds);
    self->worlds.next_member = next;
}
