/* What the backend sees, told to the cluster; why a group failed, told to people. */
#include "daemon/core_impl.h"
#include "daemon/hopeless.h"

#include "base/json_write.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { END_BYTES = 16384, TAIL_BYTES = 2048, TAIL_LINES = 20 };

/* Copies what is printable; the rest becomes '?'. Returns the length. */
static size_t clean_text(const char *from, size_t length, char *to)
{
    size_t used = 0;
    for (size_t i = 0; i < length;) {
        uint32_t code;
        size_t step = adli_utf8_decode(from + i, length - i, &code);
        if (step == 0 || (code < 0x20 && code != '\n' && code != '\t') || code == 0x7f) {
            if (from[i] != '\r')
                to[used++] = '?';
            i++;
            continue;
        }
        memcpy(to + used, from + i, step);
        used += step;
        i += step;
    }
    to[used] = 0;
    return used;
}

/* The end of a replica's output; the length. */
static size_t log_end(adli_core *core, const adli_kept_job *job, int group, int member,
                      char out[END_BYTES])
{
    int fd;
    if (core->backend->ops->open_log(core->backend->self, job->uid, group, member, &fd) != ADL_OK)
        return 0;
    off_t size = lseek(fd, 0, SEEK_END), from = size > END_BYTES ? size - END_BYTES : 0;
    ssize_t got = size > 0 ? pread(fd, out, END_BYTES, from) : 0;
    close(fd);
    return got > 0 ? (size_t)got : 0;
}

/* Its last lines, fit for a message. */
static void log_tail(const char *bytes, size_t length, char *out)
{
    size_t end = length, start = 0;
    while (end > 0 && bytes[end - 1] == '\n')
        end--;
    if (length > TAIL_BYTES) { /* not from the middle of a line, if there is another */
        start = length - TAIL_BYTES;
        const char *newline = end > start ? memchr(bytes + start, '\n', end - start) : NULL;
        start = newline ? (size_t)(newline - bytes) + 1 : start;
    }
    start = start < end ? start : end;
    int lines = 0;
    for (size_t i = end; i-- > start;)
        if (bytes[i] == '\n' && ++lines == TAIL_LINES) {
            start = i + 1;
            break;
        }
    clean_text(bytes + start, end - start, out);
}

void adli_core_failure(adli_kept_job *job, const char *reason, const char *message,
                       const char *detail)
{
    adli_buf text;
    adli_buf_init(&text, ADLI_MESSAGE_MAX);
    adli_buf_printf(&text, "%s%s%s", message, *detail ? "\n" : "", detail);
    snprintf(job->failure_reason, sizeof job->failure_reason, "%s", *reason ? reason : "Error");
    free(job->failure_message);
    job->failure_message = text.data; /* taken; NULL is "no text" */
    job->failure_seen = true;
}

/* Was it taken from the job, whatever it did itself? */
static bool was_taken(adli_cause cause)
{
    switch (cause) {
    case ADLI_CAUSE_NODE_LOST:
    case ADLI_CAUSE_LOST:
    case ADLI_CAUSE_OUT_OF_RESOURCES:
    case ADLI_CAUSE_EVICTED:
    case ADLI_CAUSE_SILENT:
        return true;
    case ADLI_CAUSE_NONE:
    case ADLI_CAUSE_KILLED:
    case ADLI_CAUSE_OOM_KILLED:
    case ADLI_CAUSE_CANNOT_RUN:
        break;
    }
    return false;
}

static adli_end end_of(const adli_member_view *view)
{
    adli_end end = {.ended_s = view->ended_s};
    switch (view->state) {
    case ADLI_MEMBER_WAITING:
        end.fate = ADLI_FATE_WAITING;
        break;
    case ADLI_MEMBER_READY:
        end.fate = ADLI_FATE_READY;
        break;
    case ADLI_MEMBER_SUCCEEDED:
        end.fate = ADLI_FATE_SUCCEEDED;
        break;
    case ADLI_MEMBER_INTERRUPTED:
        end.fate = was_taken(view->cause) ? ADLI_FATE_TAKEN : ADLI_FATE_LEFT;
        break;
    case ADLI_MEMBER_FAILED:
        end.fate = view->cause != ADLI_CAUSE_NONE ? ADLI_FATE_BROKEN : ADLI_FATE_DIED;
        break;
    }
    return end;
}

/* How it ended, in the backend's words if it has any. */
static void fate_of(const adli_member_view *view, char *out, size_t size)
{
    if (view->message[0])
        snprintf(out, size, "%s", view->message);
    else if (view->exit_code > 128 && view->exit_code < 128 + 65)
        snprintf(out, size, "ended by signal %d", view->exit_code - 128);
    else if (view->exit_code >= 0)
        snprintf(out, size, "exited with %d", view->exit_code);
    else
        snprintf(out, size, "failed");
}

/* The failure that came first is the cause; the others follow from it. -1: none. */
static int first_failure(const adl_life *life, const adli_end *ends, int count)
{
    int first = -1;
    for (int rank = 0; rank < count; rank++)
        if (adli_end_failed(life, ends, count, rank) &&
            (first < 0 || (ends[rank].ended_s > 0 && ends[rank].ended_s < ends[first].ended_s)))
            first = rank;
    return first;
}

/* Would it fail again? */
static void judge(adli_kept_job *job, const adl_life *life, const adli_member_view *view,
                  double now_s, const char *output, size_t length)
{
    adli_failure failure = {.cause = view->cause,
                            .exit_code = view->exit_code,
                            .ran_s = (view->ended_s > 0 ? view->ended_s : now_s) - life->started_s,
                            .output = output,
                            .length = length};
    if (job->traceback_group != life->group)
        job->traceback_before = job->traceback;
    job->traceback_group = life->group;
    job->traceback = adli_traceback_print(output, length);
    bool counts = life->failures > 0 && failure.ran_s < ADLI_FORGIVE_S;
    job->hopeless =
        adli_failure_hopeless(&failure, job->traceback, counts ? job->traceback_before : 0);
}

static void note_failures(adli_core *core, adli_kept_job *job, const adl_life *life,
                          const adli_end *ends, const adli_member_view *views, int count,
                          double now_s)
{
    int group = life->group, rank = first_failure(life, ends, count);
    if (job->failure_seen || rank < 0)
        return;
    const adli_member_view *view = &views[rank];
    char message[512], fate[192], end[END_BYTES], tail[TAIL_BYTES + 1];
    const char *cause = adli_cause_name(view->cause);
    size_t length = log_end(core, job, group, view->member, end);
    fate_of(view, fate, sizeof fate);
    judge(job, life, view, now_s, end, length);
    snprintf(message, sizeof message, "replica %d of %d (group %d)%s%s%s %s%s%s", rank, count,
             group, *cause ? ", " : "", cause, *cause ? ":" : "", fate,
             job->hopeless ? "; not tried again: " : "", job->hopeless ? job->hopeless : "");
    log_tail(end, length, tail);
    adli_core_failure(job, cause, message, tail);
    adli_buf fields;
    adli_buf_init(&fields, FIELDS_MAX);
    adli_jw_int(&fields, "group", group);
    adli_jw_int(&fields, "rank", rank);
    adli_jw_int(&fields, "exitCode", view->exit_code);
    adli_jw_text(&fields, "reason", cause);
    adli_core_event(core, now_s, "ReplicaFailed", job->id, fields.data, "%s", message);
    adli_buf_fini(&fields);
    core->tell = true;
}

/* Once of each member: what was taken from a job is no failure of its, and would be missed in silence. */
static void tell_taken(adli_core *core, adli_kept_job *job, int group, const adli_member_view *view,
                       double now_s)
{
    size_t member = (size_t)view->member;
    char message[256];
    if (job->taken_group != group)
        job->taken_count = 0;
    job->taken_group = group;
    if (member >= ADLI_MEMBERS_MAX || (member < job->taken_count && job->taken[member]) ||
        adli_grow(&job->taken, &job->taken_capacity, member + 1, sizeof *job->taken) != 0)
        return;
    while (job->taken_count <= member)
        job->taken[job->taken_count++] = false;
    job->taken[member] = true;
    const char *cause = adli_cause_name(view->cause);
    snprintf(message, sizeof message, "replica %d (group %d), %s: %s", view->member, group, cause,
             view->message[0] ? view->message : "it was taken from the job");
    adli_buf fields;
    adli_buf_init(&fields, FIELDS_MAX);
    adli_jw_int(&fields, "group", group);
    adli_jw_int(&fields, "member", view->member);
    adli_jw_text(&fields, "reason", cause);
    adli_core_event(core, now_s, "ReplicaLost", job->id, fields.data, "%s", message);
    adli_buf_fini(&fields);
    if (core->mirror.tell)
        core->mirror.tell(core->mirror.user, job->uid, job->ns, job->name, cause, message, true);
    core->tell = true;
}

/* What readers (and discovery) see of the group. */
static void publish(adli_core *core, adli_kept_job *job, int group, int count, int ready)
{
    size_t bytes = (size_t)count * sizeof *core->scratch;
    bool same = job->view_group == group && job->view_count == count && job->ready == ready &&
                (bytes == 0 || memcmp(job->views, core->scratch, bytes) == 0);
    if (same)
        return;
    adli_member_view *copy =
        adli_memdup(core->scratch, (size_t)(count ? count : 1), sizeof *core->scratch);
    if (!copy) {
        adli_say(ADL_LOG_WARNING, "job %s: no memory for its replicas' states", job->id);
        return;
    }
    pthread_mutex_lock(&core->lock);
    free(job->views);
    job->views = copy;
    job->view_count = count;
    job->view_group = group;
    job->ready = ready;
    core->news++;
    pthread_mutex_unlock(&core->lock);
    core->tell = true;
}

static void observe_job(adli_core *core, adli_kept_job *job, double now_s)
{
    const adl_job_info *info = adl_cluster_job(core->cluster, job->number);
    adl_phase phase = info->life->phase;
    int group = info->life->group, wanted = info->placed_count, count = 0;
    if (job->has_worlds && job->worlds.next_member > wanted)
        wanted = job->worlds.next_member;
    bool present = phase == ADL_STARTING || phase == ADL_RUNNING || phase == ADL_STOPPING;
    if (!present || job->do_start || job->lost_start)
        return;
    size_t room = wanted ? (size_t)wanted : 1;
    if (adli_grow(&core->scratch, &core->scratch_capacity, room, sizeof *core->scratch) != 0 ||
        adli_grow(&core->ends, &core->ends_capacity, room, sizeof *core->ends) != 0)
        return;
    memset(core->scratch, 0, room * sizeof *core->scratch);
    adl_status status = core->backend->ops->observe(core->backend->self, job->uid, group,
                                                    core->scratch, wanted, &count);
    for (int i = 0; status == ADL_OK && i < count && i < wanted; i++)
        core->scratch[i].ended_s =
            adli_core_from_wall(core, core->scratch[i].ended_s, info->life->started_s);
    if (status == ADL_ENOENT && phase == ADL_STARTING) {
        if (job->start_again_s > 0) /* it is tried again then */
            return;
        job->do_start = true;
        adli_core_plan(core, job);
        return;
    }
    adl_observed seen = {.started = wanted, .interrupted = wanted};
    if (status != ADL_OK && status != ADL_ENOENT)
        adli_say(ADL_LOG_WARNING, "job %s: %s", job->id, adl_error());
    if (status == ADL_ECORRUPT) { /* nobody will ever know what became of it: it ends */
        core->backend->ops->forget(core->backend->self, job->uid, group);
        status = ADL_ENOENT;
    }
    if (status != ADL_OK && status != ADL_ENOENT)
        return;
    for (int i = 0; status == ADL_OK && i < count && i < wanted; i++)
        if (core->scratch[i].state == ADLI_MEMBER_INTERRUPTED && was_taken(core->scratch[i].cause))
            tell_taken(core, job, group, &core->scratch[i], now_s);
    if (status == ADL_OK) {
        count =
            adli_core_see_worlds(job, info->life, core->scratch, count < wanted ? count : wanted);
        for (int i = 0; i < count; i++)
            core->ends[i] = end_of(&core->scratch[i]);
        seen = adli_observe_ends(info->life, core->ends, count);
        if (seen.failed == 0) /* or it has turned out to be a consequence */
            job->failure_seen = false;
        note_failures(core, job, info->life, core->ends, core->scratch, count, now_s);
        seen.hopeless = job->failure_seen && job->hopeless;
        publish(core, job, group, count, seen.ready - seen.succeeded);
    } else if (phase == ADL_RUNNING) /* one that is stopped may never have been started */
        adli_say(ADL_LOG_WARNING, "job %s: group %d is not there any more", job->id, group);
    adl_cluster_observe(core->cluster, job->number, &seen, now_s);
}

void adli_core_observe(adli_core *core, double now_s)
{
    for (adli_kept_job *job = adli_core_busy(core, NULL); job; job = adli_core_busy(core, job))
        observe_job(core, job, now_s);
}
