/* The core's coming and going: what it is made of, its clock, its thread. */
#include "daemon/core_impl.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

enum { EVENT_LIMIT = 1000 };

static double wall_s(void *user)
{
    (void)user;
    return adli_clock_of(CLOCK_REALTIME);
}

void adli_core_set_clock(adli_core *core, double (*clock)(void *user), void *user)
{
    core->clock = clock;
    core->clock_user = user;
    core->now_s = core->opened_s = clock(user);
    core->now_mono_s = INFINITY; /* a test's clock is alone to say what time it is */
}

/* Time goes on as it passes, whatever the wall clock is set to: what is due after a minute is due after a minute. A wall
 * clock that says otherwise is approached by a twentieth of the time that passes; one that was set by a few seconds is
 * met again soon, and one that jumped by years moves nothing. What passes while the machine sleeps counts. */
double adli_core_now(adli_core *core)
{
    pthread_mutex_lock(&core->lock);
    double wall = core->clock(core->clock_user), passing = adli_clock_of(CLOCK_BOOTTIME);
    double passed = fmax(passing - core->now_mono_s, 0);
    if (isfinite(core->now_mono_s)) {
        double most = passed / 20;
        core->now_s += passed + fmin(fmax(wall - core->now_s - passed, -most), most);
        core->now_mono_s = passing;
    } else if (wall > core->now_s)
        core->now_s = wall;
    double now = core->now_s;
    pthread_mutex_unlock(&core->lock);
    return now;
}

double adli_core_from_wall(adli_core *core, double wall_s, double first_s)
{
    double now_s = adli_core_now(core), off_s = now_s - core->clock(core->clock_user);
    if (wall_s <= 0 || fabs(off_s) < 1 || (wall_s >= first_s && wall_s <= now_s))
        return wall_s;
    return fmin(fmax(wall_s + off_s, first_s), now_s);
}

void adli_core_wake_for_report(adli_core *core)
{
    uint64_t one = 1;
    if (write(core->wake_fd, &one, sizeof one) < 0 && errno != EAGAIN)
        adli_say(ADL_LOG_WARNING, "wake-up: %s", strerror(errno));
}

void adli_core_wake(adli_core *core)
{
    pthread_mutex_lock(&core->lock);
    core->urgent = true;
    pthread_mutex_unlock(&core->lock);
    adli_core_wake_for_report(core);
}

adl_status adli_random_hex(char *out, size_t size)
{
    unsigned char bytes[64];
    size_t need = size / 2;
    for (size_t have = 0; have < need;) {
        ssize_t got = getrandom(bytes + have, need - have, 0);
        if (got < 0 && errno != EINTR)
            return adli_fail(ADL_EIO, "random numbers: %s", strerror(errno));
        have += got > 0 ? (size_t)got : 0;
    }
    for (size_t i = 0; i < need; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return ADL_OK;
}

adli_kept_job *adli_core_find(adli_core *core, const char *ns, const char *name)
{
    char id[ADLI_JOB_ID_SIZE];
    if ((size_t)snprintf(id, sizeof id, "%s/%s", ns, name) >= sizeof id)
        return NULL;
    return adli_index_find(&core->by_id, id);
}

void adli_core_changed(adli_core *core, adli_kept_job *job)
{
    core->news++;
    if (!job->is_changed)
        TAILQ_INSERT_TAIL(&core->changed, job, changed);
    job->is_changed = true;
}

void adli_core_count_row(adli_core *core, adli_kept_job *job, bool in)
{
    core->news++;
    core->phases[job->row.life.phase] += in ? 1 : -1;
    if (job->row.placed_count == 0)
        return;
    if (!in) {
        TAILQ_REMOVE(&core->placed, job, placed);
        return;
    }
    adli_kept_job *after = TAILQ_LAST(&core->placed, adli_kept_jobs);
    while (after && after->created_s > job->created_s)
        after = TAILQ_PREV(after, adli_kept_jobs, placed);
    if (after)
        TAILQ_INSERT_AFTER(&core->placed, after, job, placed);
    else
        TAILQ_INSERT_HEAD(&core->placed, job, placed);
}

void adli_core_add_job(adli_core *core, adli_kept_job *job)
{
    adli_core_count_row(core, job, true);
    job->order = ++core->last_order;
    TAILQ_INSERT_TAIL(&core->jobs, job, all);
    adli_index_add(&core->by_id, &job->by_id, job->id, job);
    adli_index_add(&core->by_uid, &job->by_uid, job->uid, job);
}

void adli_core_drop_job(adli_core *core, adli_kept_job *job)
{
    adli_core_count_row(core, job, false);
    core->drops++;
    TAILQ_REMOVE(&core->jobs, job, all);
    adli_index_remove(&core->by_id, &job->by_id);
    adli_index_remove(&core->by_uid, &job->by_uid);
    if (job->is_changed)
        TAILQ_REMOVE(&core->changed, job, changed);
}

adl_status adli_core_no_job(const char *ns, const char *name)
{
    return adli_fail(ADL_ENOENT, "no job %.*s/%.*s", ADLI_NAME_MAX, ns, ADLI_NAME_MAX, name);
}

void adli_row_fini(adli_row *row)
{
    free(row->wanted);
    free(row->placed);
    free(row->world);
    free(row->message);
    *row = (adli_row){0};
}

void adli_core_job_free(adli_kept_job *job)
{
    if (!job)
        return;
    adli_row_fini(&job->row);
    adli_hints_fini(&job->hints);
    free(job->hints_json);
    free(job->listed);
    adli_series_free(job->series, job->series_count);
    free(job->views);
    free(job->uses);
    free(job->failure_message);
    free(job->before);
    free(job->taken);
    adli_core_free_worlds(job);
    adli_jobfile_fini(&job->spec);
    free(job);
}

static adl_status make_policy(adli_core *core)
{
    const adli_config *config = &core->config;
    const char *name = *config->policy ? config->policy : adl_policy_list(0, NULL);
    adl_status status = adl_policy_new(name, &core->policy);
    for (size_t i = 0; status == ADL_OK && i < config->parameter_count; i++)
        status =
            adl_policy_set(core->policy, config->parameters[i].name, config->parameters[i].value);
    return status;
}

static adl_status make_cluster(adli_core *core)
{
    const adli_config *config = &core->config;
    adl_cluster_options options = {.size = sizeof options,
                                   .resource_names = core->resource_names,
                                   .resource_count = core->resource_count,
                                   .nodes = core->sched_nodes,
                                   .node_count = core->node_count,
                                   .policy = core->policy,
                                   .seed = 1,
                                   .rules = {.grace_s = config->grace_s,
                                             .max_retries = config->max_retries,
                                             .retry_pause_s = config->retry_pause_s,
                                             .interrupted_pause_s = 1,
                                             .forgive_s = ADLI_FORGIVE_S},
                                   .wait_for_room = true};
    return adli_cluster_new(&options, core->pool, &core->cluster);
}

static adl_status open_core(adli_core *core, const adli_core_options *options)
{
    char path[4096];
    core->state_dir = adli_strdup(options->state_dir);
    core->supervisor = adli_strdup(options->supervisor_url ? options->supervisor_url : "");
    if (!core->state_dir || !core->supervisor)
        return adli_fail_memory("core");
    core->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (core->wake_fd < 0)
        return adli_fail(ADL_EIO, "eventfd: %s", strerror(errno));
    snprintf(path, sizeof path, "%s/jobs.sqlite", core->state_dir);
    adl_status status = adli_config_copy(options->config, &core->config);
    if (status == ADL_OK)
        status = adli_index_init(&core->by_id);
    if (status == ADL_OK)
        status = adli_index_init(&core->by_uid);
    if (status == ADL_OK)
        status = adli_store_open(path, &core->store);
    if (status == ADL_OK)
        status = make_policy(core);
    if (status == ADL_OK)
        status = adli_core_refresh_nodes(core, true);
    if (status == ADL_OK)
        status = adli_core_load_pool(core);
    if (status == ADL_OK)
        status = make_cluster(core);
    if (status == ADL_OK)
        status = adli_core_load(core);
    if (status == ADL_OK)
        status = adli_core_load_missed(core);
    core->round = status == ADL_OK ? adli_store_look(core->store).last_round : 0;
    return status;
}

adl_status adli_core_new(const adli_core_options *options, adli_core **out)
{
    pthread_condattr_t monotonic;
    *out = NULL;
    adli_core *core = adli_calloc(1, sizeof *core);
    if (!core)
        return adli_fail_memory("core");
    pthread_mutex_init(&core->changes, NULL);
    pthread_mutex_init(&core->lock, NULL);
    pthread_mutex_init(&core->wake_lock, NULL);
    pthread_mutex_init(&core->room.lock, NULL);
    core->room.fd = -1;
    pthread_cond_init(&core->called, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&core->use_stop, &monotonic);
    pthread_condattr_destroy(&monotonic);
    TAILQ_INIT(&core->jobs);
    TAILQ_INIT(&core->changed);
    TAILQ_INIT(&core->placed);
    TAILQ_INIT(&core->active);
    TAILQ_INIT(&core->over);
    TAILQ_INIT(&core->doomed);
    TAILQ_INIT(&core->touched);
    TAILQ_INIT(&core->todo);
    core->wake_fd = core->desired_nodes = core->told_nodes = -1;
    core->backend = options->backend;
    core->no_job_tokens = options->no_job_tokens;
    if (options->mirror)
        core->mirror = *options->mirror;
    core->clock = wall_s;
    core->now_s = core->opened_s = wall_s(NULL);
    core->now_mono_s = adli_clock_of(CLOCK_BOOTTIME);
    core->round_wanted_s = HUGE_VAL;
    adl_status status = adli_random_hex(core->instance, sizeof core->instance);
    if (status == ADL_OK)
        status = open_core(core, options);
    if (status != ADL_OK) {
        adli_core_free(core);
        core = NULL;
    }
    *out = core;
    return status;
}

static adl_status set_text(adli_core *core, char **to, const char *text)
{
    char *copy = adli_strdup(text ? text : "");
    if (!copy)
        return adli_fail_memory("text");
    pthread_mutex_lock(&core->lock);
    free(*to);
    *to = copy;
    pthread_mutex_unlock(&core->lock);
    return ADL_OK;
}

void adli_core_set_supervisor(adli_core *core, const char *url)
{
    if (set_text(core, &core->supervisor, url) != ADL_OK)
        adli_say(ADL_LOG_WARNING, "%s", adl_error());
}

void adli_core_set_dashboard(adli_core *core, const char *url)
{
    if (set_text(core, &core->dashboard, url) != ADL_OK)
        adli_say(ADL_LOG_WARNING, "%s", adl_error());
}

adl_status adli_core_set(adli_core *core, const char *key, const char *value)
{
    adli_store_begin(core->store);
    adli_store_set(core->store, key, value);
    return adli_store_commit(core->store);
}

adl_status adli_core_get(adli_core *core, const char *key, char *value, size_t size)
{
    return adli_store_get(core->store, key, value, size);
}

adl_status adli_core_check_store(adli_core *core)
{
    char saved[PATH_MAX];
    if (adli_store_present(core->store))
        return ADL_OK;
    snprintf(saved, sizeof saved, "%s/jobs.sqlite.rescued", core->state_dir);
    if (adli_store_rescue(core->store, saved) != ADL_OK)
        return adli_fail(ADL_EIO,
                         "jobs.sqlite was removed under the scheduler, which ends; saving its "
                         "content failed: %.200s",
                         adl_error());
    return adli_fail(ADL_EIO,
                     "jobs.sqlite was removed under the scheduler, which ends; replicas run on; "
                     "its content is in %s: bring it back with adaptdl restore",
                     saved);
}

adl_status adli_core_start(adli_core *core)
{
    int code = pthread_create(&core->thread, NULL, adli_core_controller, core);
    if (code != 0)
        return adli_fail(ADL_EIO, "controller thread: %s", strerror(code));
    core->running = true;
    adli_core_start_use(core);
    return ADL_OK;
}

void adli_core_call(adli_core *core, void (*function)(void *user), void *user)
{
    if (!core->running) {
        function(user);
        return;
    }
    pthread_mutex_lock(&core->lock);
    while (core->call)
        pthread_cond_wait(&core->called, &core->lock);
    if (core->gone) {
        pthread_mutex_unlock(&core->lock);
        function(user);
        return;
    }
    core->call = function;
    core->call_user = user;
    core->urgent = true;
    adli_core_wake_for_report(core);
    while (core->call == function && core->call_user == user)
        pthread_cond_wait(&core->called, &core->lock);
    pthread_mutex_unlock(&core->lock);
}

void adli_core_answer_call(adli_core *core)
{
    pthread_mutex_lock(&core->lock);
    void (*function)(void *user) = core->call;
    void *user = core->call_user;
    pthread_mutex_unlock(&core->lock);
    if (!function)
        return;
    function(user);
    pthread_mutex_lock(&core->lock);
    core->call = NULL;
    pthread_cond_broadcast(&core->called);
    pthread_mutex_unlock(&core->lock);
}

void adli_core_stop(adli_core *core)
{
    if (!core || !core->running)
        return;
    pthread_mutex_lock(&core->lock);
    core->stopping = true;
    pthread_mutex_unlock(&core->lock);
    adli_core_wake(core);
    pthread_join(core->thread, NULL);
    adli_core_stop_use(core);
    core->running = false;
    adli_core_end_drain(core);
    pthread_mutex_lock(&core->wake_lock);
    if (core->wake)
        core->wake(core->wake_user);
    pthread_mutex_unlock(&core->wake_lock);
}

void adli_core_free(adli_core *core)
{
    if (!core)
        return;
    adli_core_stop(core);
    for (adli_kept_job *job = TAILQ_FIRST(&core->jobs), *next; job; job = next) {
        next = TAILQ_NEXT(job, all);
        adli_core_job_free(job);
    }
    adli_index_fini(&core->by_id);
    adli_index_fini(&core->by_uid);
    for (size_t i = 0; i < core->outbox_count; i++)
        adli_pending_fini(&core->outbox[i]);
    for (int i = 0; i < core->node_count; i++) {
        free(core->nodes[i].name);
        free(core->nodes[i].device_type);
    }
    for (int i = 0; i < ADL_MAX_RESOURCES; i++)
        free(core->resource_storage[i]);
    adl_cluster_free(core->cluster);
    adli_pool_free(core->pool);
    adl_policy_free(core->policy);
    adli_store_close(core->store);
    adli_config_fini(&core->config);
    if (core->wake_fd >= 0)
        close(core->wake_fd);
    free(core->outbox);
    free(core->scratch);
    free(core->ends);
    free(core->sched_nodes);
    free(core->prices);
    free(core->nodes);
    free(core->saved);
    free(core->dashboard);
    free(core->supervisor);
    free(core->state_dir);
    pthread_cond_destroy(&core->use_stop);
    pthread_cond_destroy(&core->called);
    if (core->room.fd >= 0)
        close(core->room.fd);
    adli_shared_drop(core->whole);
    pthread_mutex_destroy(&core->room.lock);
    pthread_mutex_destroy(&core->wake_lock);
    pthread_mutex_destroy(&core->lock);
    pthread_mutex_destroy(&core->changes);
    free(core);
}

void adli_core_listen(adli_core *core, void (*wake)(void *user), void *user)
{
    pthread_mutex_lock(&core->wake_lock);
    core->wake = wake;
    core->wake_user = user;
    pthread_mutex_unlock(&core->wake_lock);
}

adl_status adli_core_events(adli_core *core, const char *ns, const char *name, int limit,
                            int64_t *seq, adli_buf *out)
{
    char id[ADLI_JOB_ID_SIZE] = "";
    if (ns && name)
        snprintf(id, sizeof id, "%s/%s", ns, name);
    if (limit < 1 || limit > EVENT_LIMIT)
        limit = EVENT_LIMIT;
    return adli_store_events(core->store, id, limit, seq, out);
}
