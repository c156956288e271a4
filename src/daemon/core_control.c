/* The controller: one thread that observes, decides, writes down and acts, in this order.
 *
 * Killed between any two steps it starts again from what is written down:
 *   before the commit    nothing was decided, nothing was done; it decides again.
 *   after it             Starting: the group is started, a second time harmlessly, by its name.
 *                        Stopping: the signal is sent again.
 *                        the group is over: it is forgotten, again harmlessly. */
#include "daemon/core_impl.h"

#include "adaptdl/snapshot.h"
#include "base/clock.h"
#include "base/json_write.h"
#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TURNS = 8, LONGEST_WAIT_S = 60, START_PAUSE_MAX_S = 30 };

/* ---- lists ---- */

void adli_core_touch(adli_core *core, adli_kept_job *job)
{
    if (!job->is_touched)
        TAILQ_INSERT_TAIL(&core->touched, job, touched);
    job->is_touched = true;
}

void adli_core_touch_active(adli_core *core)
{
    adli_kept_job *job;
    TAILQ_FOREACH(job, &core->active, stage)
    {
        core->visits++;
        adli_core_touch(core, job);
    }
}

void adli_core_plan(adli_core *core, adli_kept_job *job)
{
    if (!job->is_todo)
        TAILQ_INSERT_TAIL(&core->todo, job, todo);
    job->is_todo = true;
}

static struct adli_kept_jobs *list_of(adli_core *core, int stage)
{
    return stage == STAGE_ACTIVE ? &core->active
           : stage == STAGE_OVER ? &core->over
                                 : &core->doomed;
}

void adli_core_stage(adli_core *core, adli_kept_job *job, int stage)
{
    core->active_count += (stage == STAGE_ACTIVE) - (job->where == STAGE_ACTIVE);
    core->over_count += (stage == STAGE_OVER) - (job->where == STAGE_OVER);
    if (job->where != STAGE_NONE)
        TAILQ_REMOVE(list_of(core, (int)job->where), job, stage);
    if (stage != STAGE_NONE)
        TAILQ_INSERT_TAIL(list_of(core, stage), job, stage);
    job->where = (__typeof__(job->where))stage;
}

adli_kept_job *adli_core_busy(adli_core *core, const adli_kept_job *after)
{
    int number = adl_cluster_busy(core->cluster, after ? after->number : -1);
    core->visits++;
    return number < 0 ? NULL : adl_cluster_job(core->cluster, number)->user;
}

/* ---- orders: noted here, carried out after the commit ---- */

static void note_order(adli_core *core, const adl_order *order)
{
    adli_kept_job *job = order->user;
    switch (order->action) {
    case ADL_START:
        job->do_start = true;
        job->do_terminate = job->do_kill = job->lost_start = job->failure_seen = false;
        job->start_again_s = job->start_pause_s = 0;
        adli_core_begin_worlds(core, job, order->nodes, order->replicas);
        break;
    case ADL_TERMINATE:
    case ADL_KILL:
        job->do_terminate = true;
        job->start_again_s = 0;
        job->do_kill |= order->action == ADL_KILL;
        break;
    case ADL_CLEAN:
        job->cleaned = order->group;
        adli_core_end_worlds(job);
        job->do_start = job->do_terminate = job->do_kill = job->lost_start = false;
        job->start_again_s = 0;
        break;
    case ADL_NOTHING:
        break;
    }
    adli_core_touch(core, job);
    adli_core_plan(core, job);
}

static void note_orders(adli_core *core, adl_orders orders)
{
    for (size_t i = 0; i < orders.count; i++)
        note_order(core, &orders.items[i]);
}

static void advance(adli_core *core, double now_s)
{
    adl_orders orders;
    if (adl_cluster_advance(core->cluster, now_s, &orders) != ADL_OK)
        adli_say(ADL_LOG_WARNING, "%s", adl_error()); /* the next turn goes on */
    note_orders(core, orders);
}

/* ---- observe ---- */

/* false: tried again at the next turn. */
static bool take_new(adli_core *core, adli_kept_job *job)
{
    char application[ADLI_APPLICATION_SIZE];
    adl_job_spec spec = adli_core_sched_spec(core, job);
    adli_core_application(job, application);
    spec.application = application;
    if (adl_cluster_submit(core->cluster, &spec, &job->number) != ADL_OK) {
        adli_say(ADL_LOG_WARNING, "job %s: %s", job->id, adl_error());
        return false;
    }
    adli_core_stage(core, job, STAGE_ACTIVE);
    job->is_new = false;
    job->hints_new = true;
    return true;
}

/* Cancelled for good, suspended, or neither any more. */
static void take_asked(adli_core *core, adli_kept_job *job)
{
    if (job->asked == ADLI_ASKED_CANCEL)
        adl_cluster_delete(core->cluster, job->number);
    else
        adl_cluster_hold(core->cluster, job->number, job->asked == ADLI_ASKED_SUSPEND);
    core->placeless = true; /* what it has is for others, or it wants some again */
}

/* Jobs that came, and what was asked of those that are there. */
static void take_changes(adli_core *core, double now_s)
{
    pthread_mutex_lock(&core->lock);
    for (adli_kept_job *job; (job = TAILQ_FIRST(&core->changed));) {
        if (job->is_new && !take_new(core, job))
            break;
        core->visits++;
        TAILQ_REMOVE(&core->changed, job, changed);
        job->is_changed = false;
        bool deleted = job->deleted_new, reported = job->hints_new, asked = job->asked_new;
        bool said = job->said != NULL;
        job->deleted_new = job->hints_new = job->asked_new = false;
        if (job->number < 0) {
            if (job->deleted)
                adli_core_stage(core, job, STAGE_DOOMED);
            continue;
        }
        if (deleted)
            adl_cluster_delete(core->cluster, job->number);
        if (asked)
            take_asked(core, job);
        if (job->pin_new) {
            adli_cluster_pin(core->cluster, job->number, job->pin);
            core->placeless = true;
            job->pin_new = false;
        }
        if (reported || said) {
            pthread_mutex_unlock(&core->lock);
            if (reported)
                adli_core_report(core, job);
            if (said)
                adli_core_hear(core, job, now_s);
            pthread_mutex_lock(&core->lock);
        }
        adli_core_touch(core, job);
    }
    pthread_mutex_unlock(&core->lock);
}

/* ---- decide ---- */

/* A new job starts where there is room; else it asks for a round. So does one of which enough is known to
 * choose its size, which is better than a start on one replica and a restart. */
static void place_new(adli_core *core, double now_s)
{
    bool at_once = core->config.start_at_once && adl_policy_adapts(core->policy);
    adli_kept_job *job;
    TAILQ_FOREACH(job, &core->touched, touched)
    {
        bool placed = false;
        core->visits++;
        if (job->number < 0 || job->was_placed)
            continue;
        job->was_placed = true;
        if (at_once && !adli_core_knows(core, job) &&
            adl_cluster_place(core->cluster, job->number, now_s, &placed) != ADL_OK)
            adli_say(ADL_LOG_WARNING, "job %s: %s", job->id, adl_error());
        core->placeless |= !placed;
    }
}

static void remember_before(adli_core *core)
{
    adli_kept_job *job;
    TAILQ_FOREACH(job, &core->active, stage)
    {
        const adl_job_info *info = adl_cluster_job(core->cluster, job->number);
        core->visits++;
        job->before_count = 0;
        if (adli_grow(&job->before, &job->before_capacity, (size_t)info->replicas,
                      sizeof *job->before) != 0)
            continue;
        if (info->replicas)
            memcpy(job->before, info->nodes, (size_t)info->replicas * sizeof *job->before);
        job->before_count = info->replicas;
    }
}

/* The round's snapshot; NULL: not now. It is written before the decision, which changes what it points to. */
static char *write_snapshot(adli_core *core, double now_s)
{
    char *text = NULL;
    pthread_mutex_lock(&core->lock);
    bool wanted = core->save || core->active_count <= ADLI_SAVED_JOBS_MAX;
    core->save = false;
    pthread_mutex_unlock(&core->lock);
    if (wanted && (adl_cluster_prepare(core->cluster, now_s) != ADL_OK ||
                   adl_snapshot_write(adl_cluster_snapshot(core->cluster), core->policy, NULL,
                                      &text) != ADL_OK))
        adli_say(ADL_LOG_WARNING, "snapshot: %s", adl_error());
    return text;
}

/* Takes the text. NULL: the one that is there stays. */
static void keep_snapshot(adli_core *core, char *snapshot)
{
    if (!snapshot)
        return;
    char *decision = NULL;
    adli_buf out;
    adli_buf_init(&out, 1 << 30);
    if (adl_decision_write(adl_cluster_snapshot(core->cluster), adl_cluster_decision(core->cluster),
                           &decision) == ADL_OK) {
        adli_buf_append(&out, snapshot, strlen(snapshot) - 1);
        adli_jw_raw(&out, "decision", decision);
        adli_jw_close(&out, '}');
    }
    free(decision);
    free(snapshot);
    if (adli_buf_check(&out) != ADL_OK)
        adli_buf_fini(&out);
    pthread_mutex_lock(&core->lock);
    free(core->saved);
    core->saved = out.data;
    pthread_mutex_unlock(&core->lock);
}

static void run_round(adli_core *core, double now_s)
{
    double from_s = adli_monotonic_s();
    remember_before(core);
    core->placeless = false;
    core->round_wanted_s = HUGE_VAL;
    adl_orders orders;
    char *snapshot = write_snapshot(core, now_s);
    adl_status status = adl_cluster_round(core->cluster, now_s, &orders);
    if (status == ADL_OK)
        keep_snapshot(core, snapshot);
    else
        free(snapshot);
    note_orders(core, orders);
    adli_core_touch_active(core);
    double took_s = adli_monotonic_s() - from_s;
    if (status == ADL_OK) {
        adli_core_decisions_of_round(core, now_s, took_s);
        adli_core_want_nodes(core, now_s);
    } else
        adli_say(ADL_LOG_WARNING, "round: %s", adl_error());
    pthread_mutex_lock(&core->lock);
    core->last_round_s = now_s;
    core->next_round_s = now_s + core->config.interval_s;
    core->counters.rounds++;
    core->counters.rounds_s += took_s;
    pthread_mutex_unlock(&core->lock);
}

/* An event asks for a round as soon as the last one is long enough ago. */
static void decide(adli_core *core, double now_s)
{
    if (core->placeless && isinf(core->round_wanted_s))
        core->round_wanted_s = fmax(now_s, core->last_round_s + core->config.event_delay_s);
    if (now_s < core->round_wanted_s && now_s < core->next_round_s)
        return;
    if (core->active_count > 0 && !core->held)
        run_round(core, now_s);
    else { /* nothing to decide; what changes that asks for a round */
        core->placeless = false;
        core->round_wanted_s = HUGE_VAL;
        if (adli_core_autoscales(core) && core->active_count == 0)
            adli_core_want_nodes(core, now_s);
        pthread_mutex_lock(&core->lock);
        core->next_round_s = now_s + core->config.interval_s;
        pthread_mutex_unlock(&core->lock);
    }
}

/* ---- act ---- */

/* Nothing is wrong with the job: it keeps what was started of it, and the rest follows. */
static void start_later(adli_kept_job *job, int group, double now_s)
{
    job->start_pause_s =
        job->start_pause_s > 0 ? fmin(2 * job->start_pause_s, START_PAUSE_MAX_S) : 1;
    job->start_again_s = now_s + job->start_pause_s;
    adli_say(ADL_LOG_WARNING, "job %s: group %d is not all started yet, tried again in %g s: %s",
             job->id, group, job->start_pause_s, adl_error());
}

/* Starts that are due again. */
static void start_again(adli_core *core, double now_s)
{
    for (adli_kept_job *job = adli_core_busy(core, NULL); job; job = adli_core_busy(core, job)) {
        if (job->start_again_s == 0 || now_s < job->start_again_s)
            continue;
        job->start_again_s = 0;
        job->do_start = true;
        adli_core_plan(core, job);
    }
}

static void start_group(adli_core *core, adli_kept_job *job, double now_s)
{
    const adl_job_info *info = adl_cluster_job(core->cluster, job->number);
    job->do_start = false;
    job->start_again_s = 0;
    if (info->life->phase != ADL_STARTING)
        return; /* stopped before it was started */
    adl_status status =
        adli_core_start_group(core, job, info->life->group, info->placed, info->placed_count);
    if (status == ADL_OK) {
        job->start_pause_s = 0;
        return;
    }
    if (adli_start_later(status)) {
        start_later(job, info->life->group, now_s);
        return;
    }
    adl_observed seen = {.started = info->placed_count};
    if (status == ADL_ENOENT) /* the node has just gone */
        seen.interrupted = info->placed_count;
    else
        seen.failed = info->placed_count;
    char message[512];
    snprintf(message, sizeof message, "group %d could not be started: %s", info->life->group,
             adl_error());
    adli_say(ADL_LOG_WARNING, "job %s: %s", job->id, message);
    if (seen.failed) {
        adli_core_failure(job, "CannotStart", message, "");
        adli_core_event(core, now_s, "ReplicaFailed", job->id, "", "%s", message);
    }
    job->lost_start = true;
    adl_cluster_observe(core->cluster, job->number, &seen, now_s);
}

static void act(adli_core *core, adli_kept_job *job, double now_s)
{
    const adli_backend_ops *ops = core->backend->ops;
    void *self = core->backend->self;
    while (job->forgotten < job->cleaned)
        ops->forget(self, job->uid, ++job->forgotten);
    if (job->number >= 0) {
        const adl_job_info *info = adl_cluster_job(core->cluster, job->number);
        if (job->do_start)
            start_group(core, job, now_s);
        if (job->do_terminate && info->life->phase == ADL_STOPPING)
            ops->stop(self, job->uid, info->life->group, ADLI_ALL_MEMBERS, job->do_kill);
        job->do_start = job->do_terminate = job->do_kill = false;
        adli_core_do_worlds(core, job, now_s);
    }
    if (job->number < 0 || !adl_life_over(&job->row.life))
        return;
    /* over, and that is written down: it leaves the cluster */
    adl_cluster_remove(core->cluster, job->number);
    job->number = -1;
    core->placeless = true; /* others may have what it had */
    pthread_mutex_lock(&core->lock);
    bool deleted = job->deleted;
    pthread_mutex_unlock(&core->lock);
    adli_core_stage(core, job, deleted ? STAGE_DOOMED : STAGE_OVER);
}

/* ---- the turn ---- */

/* When something is due without anybody telling. */
static double deadline(adli_core *core, double now_s)
{
    double next = now_s + LONGEST_WAIT_S;
    if (core->commit_failed)
        return fmin(next, core->retry_commit_s);
    next = fmin(next, fmin(core->round_wanted_s, core->next_round_s));
    for (adli_kept_job *job = adli_core_busy(core, NULL); job; job = adli_core_busy(core, job)) {
        const adl_job_info *info = adl_cluster_job(core->cluster, job->number);
        const adl_life *life = info->life;
        if (life->phase == ADL_PENDING && info->replicas > 0 && life->retry_at_s > now_s)
            next = fmin(next, life->retry_at_s);
        if (life->phase == ADL_STOPPING && !life->killed) {
            double grace_s = job->spec.grace_s >= 0 ? job->spec.grace_s : core->config.grace_s;
            next = fmin(next, life->stop_since_s + grace_s);
        }
        if (job->start_again_s > 0)
            next = fmin(next, job->start_again_s);
        if (job->has_worlds)
            next = fmin(next, adli_worlds_deadline(&job->worlds));
        if (info->placed_count > 0)
            next = fmin(next, job->sampled_s + core->config.history_s);
    }
    return next;
}

static void tell_listener(adli_core *core)
{
    int64_t last = adli_store_look(core->store).last_event;
    if (!core->tell && last == core->told_event)
        return;
    core->tell = false;
    core->told_event = last;
    pthread_mutex_lock(&core->wake_lock);
    if (core->wake)
        core->wake(core->wake_user);
    pthread_mutex_unlock(&core->wake_lock);
}

/* Observes, decides, commits, acts. Returns whether it did something that may show at once. */
static bool turn(adli_core *core, double now_s)
{
    take_changes(core, now_s);
    if (adli_core_refresh_nodes(core, false) != ADL_OK)
        adli_say(ADL_LOG_WARNING, "nodes: %s", adl_error());
    adli_core_observe(core, now_s);
    start_again(core, now_s);
    adli_core_step_worlds(core, now_s);
    advance(core, now_s);
    place_new(core, now_s);
    decide(core, now_s);
    adli_core_step_worlds(core, now_s);
    advance(core, now_s);
    adl_status status = adli_core_commit(core, now_s);
    core->commit_failed = status != ADL_OK;
    if (status != ADL_OK) {
        core->retry_commit_s = now_s + 1;
        adli_say(ADL_LOG_WARNING, "not written, tried again: %s", adl_error());
        return false;
    }
    bool acted = !TAILQ_EMPTY(&core->todo);
    for (adli_kept_job *job; (job = TAILQ_FIRST(&core->todo));) {
        TAILQ_REMOVE(&core->todo, job, todo);
        job->is_todo = false;
        act(core, job, now_s);
    }
    adli_core_scale(core);
    adli_core_remove_jobs(core, now_s);
    adli_core_save_pool(core, now_s, false);
    adli_core_save_missed(core, now_s);
    return acted || (core->placeless && isinf(core->round_wanted_s));
}

double adli_core_step(adli_core *core)
{
    double now_s = adli_core_now(core);
    core->backend->ops->drain_events(core->backend->self);
    for (int i = 0; i < MAX_TURNS && turn(core, now_s); i++)
        now_s = adli_core_now(core);
    tell_listener(core);
    return deadline(core, now_s);
}

/* Waits until a turn is due; reports that come meanwhile are for the next round, and for those who listen.
 * false: the controller is to end. */
static bool await_turn(adli_core *core, double until_s)
{
    for (;;) {
        struct pollfd fds[] = {
            {.fd = core->wake_fd, .events = POLLIN},
            {.fd = core->backend->ops->event_fd(core->backend->self), .events = POLLIN}};
        double wait_s = until_s - adli_core_now(core);
        int ready = poll(fds, 2, wait_s > 0 ? (int)ceil(wait_s * 1000) : 0);
        uint64_t count;
        if (read(core->wake_fd, &count, sizeof count) < 0 && errno != EAGAIN)
            adli_say(ADL_LOG_WARNING, "wake-up: %s", strerror(errno));
        adli_core_answer_call(core);
        pthread_mutex_lock(&core->lock);
        bool stopping = core->gone = core->stopping, urgent = core->urgent;
        core->urgent = false;
        pthread_mutex_unlock(&core->lock);
        if (stopping)
            return false;
        if (urgent || ready <= 0 || fds[1].revents)
            return true;
        take_changes(core, adli_core_now(core));
        tell_listener(core);
    }
}

void *adli_core_controller(void *user)
{
    adli_core *core = user;
    while (await_turn(core, adli_core_step(core)))
        ;
    adli_core_answer_call(core); /* one that came just now */
    adli_core_save_pool(core, adli_core_now(core), true);
    return NULL;
}
