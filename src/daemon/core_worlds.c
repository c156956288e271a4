/* Jobs that change their size while they run. sched/worlds.h decides what becomes of their processes; here is what it
 * decides upon (what the backend sees, what replicas say) and what becomes of it, in the controller's order: it moves,
 * it is written down with the job's row, it is published to the replicas and done by the backend. */
#include "daemon/core_impl.h"

#include "base/json.h"
#include "base/json_write.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAID_MAX = 4096, LINES_MAX = 16, LINE_MAX = 512 };
/* How long one that the others have lost may take to say that it has lost them. */
static const double patience_s = 2;

/* One line of a replica's that the controller has not heard yet. */
struct adli_said {
    adli_said *next;
    int restarts, member;
    char line[];
};

/* ---- what replicas say and ask: any thread ---- */

static void free_said(adli_said *first)
{
    for (adli_said *next; first; first = next) {
        next = first->next;
        free(first);
    }
}

static adl_status read_line(const json_t *value, int restarts, int member, adli_said **out)
{
    const char *line = json_string_value(value);
    size_t length = line ? strlen(line) : 0;
    if (length == 0 || length > LINE_MAX)
        return adli_fail(ADL_EINVAL, "field \"says\" must be a list of texts of at most %d bytes",
                         LINE_MAX);
    *out = adli_calloc(1, sizeof **out + length + 1);
    if (!*out)
        return adli_fail_memory("what a replica says");
    (*out)->restarts = restarts;
    (*out)->member = member;
    memcpy((*out)->line, line, length + 1);
    return ADL_OK;
}

static adl_status read_said(const char *body, size_t length, adli_said **out, int *count)
{
    json_t *root = NULL;
    const json_t *lines = NULL;
    int restarts = 0, member = 0;
    *out = NULL;
    *count = 0;
    adl_status status = adli_json_parse(body, length, &root);
    if (status == ADL_OK)
        status = adli_json_int(root, "restarts", 0, 1000000000, &restarts);
    if (status == ADL_OK)
        status = adli_json_int(root, "member", 0, 1000000000, &member);
    if (status == ADL_OK)
        status = adli_json_array(root, "says", LINES_MAX, &lines);
    adli_said **end = out;
    for (size_t i = 0; status == ADL_OK && i < json_array_size(lines); i++) {
        status = read_line(json_array_get(lines, i), restarts, member, end);
        if (status == ADL_OK) {
            end = &(*end)->next;
            ++*count;
        }
    }
    json_decref(root);
    if (status != ADL_OK) {
        free_said(*out);
        *out = NULL;
    }
    return status;
}

adl_status adli_core_say(adli_core *core, const char *ns, const char *name, const char *body,
                         size_t length)
{
    adli_said *said;
    int count;
    adl_status status = read_said(body, length, &said, &count);
    if (status != ADL_OK)
        return status;
    pthread_mutex_lock(&core->lock);
    adli_kept_job *job = adli_core_find(core, ns, name);
    if (!job)
        status = adli_core_no_job(ns, name);
    else if (job->said_count + count > SAID_MAX)
        status = adli_fail(ADL_ENOMEM, "job %s/%s: its replicas say too much at once", ns, name);
    if (status == ADL_OK && said) {
        adli_said **end = &job->said;
        while (*end)
            end = &(*end)->next;
        *end = said;
        said = NULL;
        job->said_count += count;
        adli_core_changed(core, job);
    }
    pthread_mutex_unlock(&core->lock);
    free_said(said);
    if (status == ADL_OK)
        adli_core_wake(core);
    return status;
}

static void put_offer(const adli_core *core, const adli_offer *offer, adli_buf *out)
{
    adli_jw_open(out, NULL, '{');
    adli_jw_text(out, "scheduler", core->instance);
    adli_jw_int(out, "restarts", offer->group - 1);
    adli_jw_int(out, "generation", offer->generation);
    adli_jw_int(out, "dropped", offer->dropped);
    adli_jw_bool(out, "open", offer->open);
    adli_jw_int(out, "nodes", offer->nodes);
    adli_jw_text(out, "address", offer->address);
    adli_jw_int(out, "port", offer->port);
    adli_jw_open(out, "members", '[');
    for (int i = 0; i < offer->count; i++)
        adli_jw_int(out, NULL, offer->members[i]);
    adli_jw_close(out, ']');
    adli_jw_close(out, '}');
}

adl_status adli_core_world(adli_core *core, const char *ns, const char *name,
                           const adli_world_asked *asked, adli_buf *out)
{
    adl_status status = ADL_OK;
    pthread_mutex_lock(&core->lock);
    const adli_kept_job *job = adli_core_find(core, ns, name);
    const adli_offer *offer = job ? &job->offer : NULL;
    int group = job ? job->row.life.group : 0;
    if (!job)
        status = adli_core_no_job(ns, name);
    else if (asked->restarts >= 0 && group > 0 && asked->restarts != group - 1)
        status =
            adli_fail(ADL_ESTATE, "job %s/%s was restarted: %d times now", ns, name, group - 1);
    else if (offer->group == 0 || offer->group != group ||
             (offer->generation <= asked->after && offer->dropped <= asked->dropped &&
              (!asked->scheduler || strcmp(asked->scheduler, core->instance) == 0)))
        status = adli_fail(ADL_ETIMEOUT, "job %s/%s: no world after %lld", ns, name,
                           (long long)asked->after);
    else
        put_offer(core, offer, out);
    pthread_mutex_unlock(&core->lock);
    return status == ADL_OK ? adli_buf_check(out) : status;
}

/* ---- begin and end ---- */

static void finish(adli_kept_job *job)
{
    adli_worlds_fini(&job->worlds);
    job->has_worlds = job->world_told = job->could = false;
}

static bool has_room(void *user, int node, int more)
{
    adli_kept_job *job = user;
    return adli_cluster_room(job->core->cluster, job->number, node, more);
}

static void prepare(adli_core *core, adli_kept_job *job)
{
    job->core = core;
    job->has_worlds = true;
    job->worlds.patience_s = patience_s;
    job->worlds.room = has_room;
    job->worlds.user = job;
}

void adli_core_begin_worlds(adli_core *core, adli_kept_job *job, const int *nodes, int count)
{
    finish(job);
    if (!core->backend->ops->meet)
        return;
    for (int i = 0; i < count; i++)
        if (!adli_worlds_add(&job->worlds, ADLI_ROLE_IN, i, nodes[i])) {
            adli_say(ADL_LOG_WARNING, "job %s: no memory to resize it in place", job->id);
            finish(job);
            return;
        }
    prepare(core, job);
}

void adli_core_end_worlds(adli_kept_job *job)
{
    finish(job);
}

void adli_core_free_worlds(adli_kept_job *job)
{
    adli_worlds_fini(&job->worlds);
    free_said(job->said);
    free(job->offer.members);
}

static const char *node_name(void *user, int node)
{
    return ((adli_core *)user)->nodes[node].name;
}

static int node_number(void *user, const char *name)
{
    return adli_core_node_number(user, name);
}

void adli_core_load_worlds(adli_core *core, adli_kept_job *job)
{
    const adli_row *row = &job->row;
    adli_world_names names = {node_name, node_number, core};
    adl_phase phase = row->life.phase;
    if (phase != ADL_STARTING && phase != ADL_RUNNING && phase != ADL_STOPPING)
        return;
    adli_core_begin_worlds(core, job, row->placed, row->placed_count);
    if (!job->has_worlds || !row->world || !*row->world)
        return;
    adli_worlds read;
    adli_worlds_init(&read);
    adl_status status = adli_worlds_read(row->world, &names, &read);
    if (status == ADL_OK) {
        adli_worlds_fini(&job->worlds);
        job->worlds = read;
        prepare(core, job);
        job->world_told = true;
    } else { /* who is who is not known any more: it begins anew, from its checkpoint */
        adli_say(ADL_LOG_WARNING, "job %s: %s", job->id, adl_error());
        adli_worlds_fini(&read);
        adli_worlds_refuse(&job->worlds, adl_error());
    }
}

/* ---- observe ---- */

void adli_core_hear(adli_core *core, adli_kept_job *job, double now_s)
{
    pthread_mutex_lock(&core->lock);
    adli_said *first = job->said;
    job->said = NULL;
    job->said_count = 0;
    pthread_mutex_unlock(&core->lock);
    const adl_life *life =
        job->number >= 0 ? adl_cluster_job(core->cluster, job->number)->life : NULL;
    for (adli_said *said = first; said; said = said->next) {
        adli_member *from = life && job->has_worlds && said->restarts == life->group - 1
                                ? adli_worlds_find(&job->worlds, said->member)
                                : NULL;
        adli_say(ADL_LOG_DEBUG, "job %s: member %d: %s", job->id, said->member, said->line);
        if (from && !adli_worlds_hear(&job->worlds, from, said->line, now_s))
            adli_say(ADL_LOG_DEBUG, "job %s: member %d says what is not understood: %.80s", job->id,
                     said->member, said->line);
        job->world_told |= from != NULL;
    }
    free_said(first);
}

static adli_gone gone(const adli_member_view *view, bool *taken)
{
    *taken = false;
    switch (view->state) {
    case ADLI_MEMBER_WAITING:
    case ADLI_MEMBER_READY:
        return ADLI_GONE_NOT;
    case ADLI_MEMBER_INTERRUPTED:
        *taken = view->cause != ADLI_CAUSE_NONE;
        return *taken ? ADLI_GONE_KILLED : ADLI_GONE_LEFT;
    case ADLI_MEMBER_FAILED:
        if (view->cause == ADLI_CAUSE_NONE && view->exit_code > 128)
            return ADLI_GONE_KILLED;
        break;
    case ADLI_MEMBER_SUCCEEDED:
        break;
    }
    return ADLI_GONE_ITSELF;
}

static const adli_member_view *view_of(const adli_member_view *views, int count, int member)
{
    for (int i = 0; i < count; i++)
        if (views[i].member == member)
            return &views[i];
    return NULL;
}

int adli_core_see_worlds(adli_kept_job *job, const adl_life *life, adli_member_view *views,
                         int count)
{
    adli_worlds *worlds = &job->worlds;
    int kept = 0;
    if (!job->has_worlds || count == 0)
        return count;
    adli_member_view *all = adli_memdup(views, (size_t)count, sizeof *views);
    if (!all)
        return count;
    worlds->running = life->phase == ADL_RUNNING;
    worlds->stopping = life->phase == ADL_STOPPING;
    for (size_t i = 0; i < worlds->count; i++) {
        adli_member *one = worlds->all[i];
        const adli_member_view *view = view_of(all, count, one->number);
        if (view && one->gone == ADLI_GONE_NOT)
            one->gone = gone(view, &one->taken);
    }
    /* those in the world by rank, then whoever else counts */
    for (size_t i = 0; i < worlds->count; i++) {
        const adli_member_view *view = view_of(all, count, worlds->all[i]->number);
        if (view && !adli_worlds_handles(worlds, worlds->all[i]))
            views[kept++] = *view;
    }
    free(all);
    return kept;
}

/* ---- decide ---- */

static void describe(adli_kept_job *job, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* How its size was last changed, for people. */
static void describe(adli_kept_job *job, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(job->resized, sizeof job->resized, format, args);
    va_end(args);
}

static void event(adli_core *core, const adli_kept_job *job, double now_s, const char *type,
                  int rank, double paused_s, const char *text)
{
    adli_buf fields;
    adli_buf_init(&fields, FIELDS_MAX);
    adli_jw_int(&fields, "group", adl_cluster_job(core->cluster, job->number)->life->group);
    if (rank >= 0)
        adli_jw_int(&fields, "rank", rank);
    else
        adli_jw_int(&fields, "after", job->worlds.replicas);
    if (paused_s >= 0)
        adli_jw_number(&fields, "paused", paused_s);
    adli_core_event(core, now_s, type, job->id, fields.data, "%s", text);
    adli_buf_fini(&fields);
}

static void tell(adli_core *core, adli_kept_job *job, const adli_world_note *note, double now_s)
{
    char text[256];
    int rank = note->member ? note->member->rank : -1, replicas = job->worlds.replicas;
    const char *plural = replicas == 1 ? "" : "s";
    switch (note->news) {
    case ADLI_NEWS_RESIZED:
        describe(job, "resized in place, paused %.2f s", note->seconds);
        job->resize_cost_s =
            job->resize_cost_s > 0 ? (job->resize_cost_s + note->seconds) / 2 : note->seconds;
        snprintf(text, sizeof text, "%d replica%s now: resized in place, paused %.2f s", replicas,
                 plural, note->seconds);
        event(core, job, now_s, "JobRescaled", -1, note->seconds, text);
        break;
    case ADLI_NEWS_WENT_ON:
        describe(job, "a replica died and the others went on, paused %.2f s", note->seconds);
        snprintf(text, sizeof text, "%d replica%s now: went on without it, paused %.2f s", replicas,
                 plural, note->seconds);
        event(core, job, now_s, "JobRescaled", -1, note->seconds, text);
        break;
    case ADLI_NEWS_DIED:
        snprintf(text, sizeof text, "replica %d was %s; the others go on", rank,
                 note->member->taken ? "taken from it" : "killed");
        event(core, job, now_s, "ReplicaFailed", rank, -1, text);
        break;
    case ADLI_NEWS_NEW_DIED:
        snprintf(text, sizeof text, "new replica %d ended before it had joined", rank);
        event(core, job, now_s, "ReplicaFailed", rank, -1, text);
        break;
    case ADLI_NEWS_GAVE_UP:
        adli_worlds_refuse(&job->worlds, "new replicas end before they join");
        break;
    case ADLI_NEWS_KILLED:
        snprintf(text, sizeof text, "replica %d %s: killed", rank, note->text);
        event(core, job, now_s, "ReplicaFailed", rank, -1, text);
        break;
    case ADLI_NEWS_RESTART:
        describe(job, "restarted: %s", note->text);
        snprintf(text, sizeof text, "cannot be changed in place and is restarted: %s", note->text);
        event(core, job, now_s, "JobRescaled", -1, -1, text);
        break;
    }
}

static void tell_all(adli_core *core, adli_kept_job *job, double now_s)
{
    adli_worlds *worlds = &job->worlds;
    for (size_t i = 0; i < worlds->note_count; i++) { /* some make more */
        adli_world_note note = worlds->notes[i];
        tell(core, job, &note, now_s);
    }
    worlds->note_count = 0;
    for (; worlds->deaths > 0; worlds->deaths--)
        adli_cluster_survived(core->cluster, job->number, now_s);
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Where its processes are, those that come and go too. */
static void follow(adli_core *core, adli_kept_job *job)
{
    const adli_worlds *worlds = &job->worlds;
    int count = 0, in = 0;
    int *nodes = adli_calloc(worlds->count ? worlds->count : 1, sizeof *nodes);
    for (size_t i = 0; nodes && i < worlds->count; i++) {
        const adli_member *one = worlds->all[i];
        if (one->role == ADLI_ROLE_DEAD ||
            (one->gone != ADLI_GONE_NOT && one->role != ADLI_ROLE_IN))
            continue;
        nodes[count++] = one->node;
        in += one->role == ADLI_ROLE_IN;
    }
    if (!nodes || count == 0) {
        free(nodes);
        return;
    }
    qsort(nodes, (size_t)count, sizeof *nodes, by_number);
    bool settled = adli_worlds_settled(worlds) && in == count;
    if (adli_cluster_follow(core->cluster, job->number, nodes, count, settled) != ADL_OK)
        adli_say(ADL_LOG_WARNING, "job %s: %s", job->id, adl_error());
    free(nodes);
}

/* A world is on offer: where its rank 0 is met. */
static void find_place(adli_core *core, adli_kept_job *job)
{
    adli_worlds *worlds = &job->worlds;
    const adli_member *first = adli_worlds_find(worlds, worlds->next[0]);
    adli_meet who = {.uid = job->uid,
                     .group = adl_cluster_job(core->cluster, job->number)->life->group,
                     .member = first->number,
                     .node = core->nodes[first->node].name};
    worlds->opened = false;
    if (core->backend->ops->meet(core->backend->self, &who, worlds->address, sizeof worlds->address,
                                 &worlds->port) == ADL_OK)
        return;
    adli_worlds_refuse(worlds, adl_error());
}

static bool to_do(const adli_kept_job *job, int group)
{
    const adli_worlds *worlds = &job->worlds;
    const adli_offer *offer = &job->offer;
    bool any = offer->group != group || offer->generation != worlds->last ||
               offer->dropped != worlds->dropped || offer->open != adli_worlds_on_offer(worlds);
    for (size_t i = 0; i < worlds->count; i++) {
        const adli_member *one = worlds->all[i];
        any |= one->start || (one->kill && one->gone == ADLI_GONE_NOT && !one->user);
    }
    return any;
}

static void step(adli_core *core, adli_kept_job *job, double now_s)
{
    adli_worlds *worlds = &job->worlds;
    const adl_job_info *info = adl_cluster_job(core->cluster, job->number);
    const adl_life *life = info->life;
    worlds->running = life->phase == ADL_RUNNING;
    worlds->stopping = life->phase == ADL_STOPPING;
    worlds->deadly = !adli_cluster_may_fail(core->cluster, job->number, now_s);
    if (adli_worlds_want(worlds, info->nodes, info->replicas) != ADL_OK)
        return;
    if (worlds->stopping && !job->could && info->replicas > 0 && !adli_worlds_settled(worlds))
        describe(job, "restarted: %s", adli_worlds_cannot);
    if (!worlds->running)
        return;
    adli_worlds_act(worlds, now_s);
    if (worlds->opened)
        find_place(core, job);
    tell_all(core, job, now_s);
    const char *why = adli_worlds_why(worlds);
    if (why)
        describe(job, "restarted: %s", why);
    follow(core, job);
    job->could = adli_worlds_able(worlds) || worlds->refused; /* why, was told */
    bool can = adli_worlds_able(worlds) || worlds->broken || adli_worlds_on_offer(worlds);
    adli_cluster_in_place(core->cluster, job->number, can && !adli_worlds_restart(worlds),
                          job->resize_cost_s);
    if (to_do(job, life->group))
        adli_core_plan(core, job);
}

void adli_core_step_worlds(adli_core *core, double now_s)
{
    for (adli_kept_job *job = adli_core_busy(core, NULL); job; job = adli_core_busy(core, job))
        if (job->has_worlds)
            step(core, job, now_s);
}

/* ---- write down ---- */

void adli_core_write_world(adli_core *core, const adli_kept_job *job, adli_buf *out)
{
    adli_world_names names = {node_name, node_number, core};
    if (job->has_worlds && job->world_told)
        adli_worlds_write(&job->worlds, &names, out);
}

/* ---- act: what is on disk by now ---- */

static int count_nodes(const adli_worlds *worlds, const int *members, int count)
{
    int nodes = 0;
    for (int i = 0; i < count; i++) {
        bool seen = false;
        for (int k = 0; k < i && !seen; k++)
            seen = adli_worlds_find(worlds, members[k])->node ==
                   adli_worlds_find(worlds, members[i])->node;
        nodes += !seen;
    }
    return nodes;
}

/* Replicas see the world on offer, or that there is none. */
static void publish(adli_core *core, adli_kept_job *job, int group)
{
    const adli_worlds *worlds = &job->worlds;
    bool open = adli_worlds_on_offer(worlds);
    size_t room = worlds->count ? worlds->count : 1;
    adli_offer made = {.group = group,
                       .generation = worlds->last,
                       .dropped = worlds->dropped,
                       .open = open,
                       .port = worlds->port,
                       .members_ever = worlds->next_member,
                       .members = adli_calloc(room, sizeof(int))};
    if (!made.members)
        return; /* the next turn does it */
    for (int i = 0; open && i < worlds->next_count; i++)
        made.members[made.count++] = worlds->next[i];
    for (size_t i = 0; !open && i < worlds->count; i++)
        if (worlds->all[i]->role == ADLI_ROLE_IN)
            made.members[made.count++] = worlds->all[i]->number;
    made.nodes = count_nodes(worlds, made.members, made.count);
    snprintf(made.address, sizeof made.address, "%s", worlds->address);
    pthread_mutex_lock(&core->lock);
    int *old = job->offer.members;
    job->offer = made;
    pthread_mutex_unlock(&core->lock);
    free(old);
    core->tell = true;
}

/* All that are to be started join the world that is there. */
static void start_newcomers(adli_core *core, adli_kept_job *job, int group, double now_s)
{
    adli_worlds *worlds = &job->worlds;
    for (size_t i = 0; i < worlds->count; i++) {
        adli_member *one = worlds->all[i];
        if (!one->start)
            continue;
        adli_member_start start = {
            .member = one->number,
            .rank = one->rank < worlds->wanted_count ? one->rank : worlds->wanted_count - 1,
            .node = core->nodes[one->node].name};
        adl_status status =
            adli_core_start_members(core, job, group, &start, 1, worlds->wanted_count, one->node);
        if (adli_start_later(status)) {
            job->start_again_s = now_s + 1;
            continue;
        }
        one->start = false;
        if (status == ADL_OK)
            continue;
        adli_say(ADL_LOG_WARNING, "job %s: member %d: %s", job->id, one->number, adl_error());
        one->gone = ADLI_GONE_ITSELF;
    }
}

void adli_core_do_worlds(adli_core *core, adli_kept_job *job, double now_s)
{
    adli_worlds *worlds = &job->worlds;
    const adl_life *life = adl_cluster_job(core->cluster, job->number)->life;
    if (!job->has_worlds || life->phase == ADL_PENDING)
        return;
    if (job->offer.group != life->group || job->offer.generation != worlds->last ||
        job->offer.dropped != worlds->dropped || job->offer.open != adli_worlds_on_offer(worlds) ||
        job->offer.members_ever != worlds->next_member)
        publish(core, job, life->group);
    if (life->phase != ADL_RUNNING)
        return;
    start_newcomers(core, job, life->group, now_s);
    for (size_t i = 0; i < worlds->count; i++) {
        adli_member *one = worlds->all[i];
        if (!one->kill || one->gone != ADLI_GONE_NOT || one->user || one->start)
            continue;
        one->user = job; /* once is enough */
        core->backend->ops->stop(core->backend->self, job->uid, life->group, one->number, true);
    }
}
