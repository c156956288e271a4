/* `adaptdl logs` on Kubernetes: each replica is a pod whose output the API server has, as long as the pod is there. Pods
 * are looked for again and again while the job lives, and each is followed from its beginning to its end; so a start
 * follows the one before it. */
#include "kube.h"
#include "log_text.h"
#include "logs.h"

#include "base/clock.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { LOOK_MS = 200 };
static const double LOOK_EVERY_S = 1, PATIENCE_S = 30;

typedef struct pod_log {
    char pod[254], container[64];
    int group;
    bool started; /* its container has been: there is a log */
    bool over;    /* ... and has ended */
    bool shown;   /* all of it */
    adli_stream *stream;
    log_text text;
} pod_log;

typedef struct pod_logs {
    cluster *k;
    const job_name *job;
    const logs_options *options;
    pod_log **list;
    size_t count, capacity;
    char uid[64];
    bool job_over;
    int groups;            /* starts of the job so far */
    double silent_since_s; /* 0: the servers answer */
} pod_logs;

/* ---- which pods ---- */

static int number_in(const json_t *notes, const char *name)
{
    const char *text = text_of(notes, name, NULL);
    return text ? atoi(text) : -1;
}

/* The state of the main container: what the log is of. */
static void read_state(const json_t *pod, pod_log *log)
{
    const json_t *status = json_object_get(pod, "status"), *container;
    const json_t *all = json_object_get(status, "containerStatuses");
    const char *phase = text_of(status, "phase", "");
    size_t i;
    json_array_foreach((json_t *)all, i, container)
    {
        const json_t *state = json_object_get(container, "state");
        if (json_array_size(all) > 1 && strcmp(text_of(container, "name", ""), log->container) != 0)
            continue;
        log->over = json_object_get(state, "terminated") != NULL;
        log->started |= log->over || json_object_get(state, "running") != NULL;
    }
    log->started |= strcmp(phase, "Running") == 0; /* one of its containers, at least */
    if (strcmp(phase, "Succeeded") == 0 || strcmp(phase, "Failed") == 0)
        log->over = true; /* started or not: nothing more will come */
}

static pod_log *find(const pod_logs *set, const char *pod)
{
    for (size_t i = 0; i < set->count; i++)
        if (strcmp(set->list[i]->pod, pod) == 0)
            return set->list[i];
    return NULL;
}

static int by_start(const void *a, const void *b)
{
    const pod_log *x = *(pod_log *const *)a, *y = *(pod_log *const *)b;
    return x->group != y->group ? (x->group < y->group ? -1 : 1) : x->text.rank - y->text.rank;
}

static int take_pod(pod_logs *set, const json_t *pod)
{
    const json_t *metadata = json_object_get(pod, "metadata"),
                 *notes = json_object_get(metadata, "annotations");
    const json_t *first =
        json_array_get(json_object_get(json_object_get(pod, "spec"), "containers"), 0);
    int group = number_in(notes, "adaptdl/group"), rank = number_in(notes, "adaptdl/rank");
    const char *name = text_of(metadata, "name", "");
    bool wanted = group > 0 && rank >= 0 &&
                  strcmp(text_of(notes, "adaptdl/uid", ""), set->uid) == 0 &&
                  (set->options->all_ranks || rank == set->options->rank) &&
                  (set->options->group == 0 || group == set->options->group);
    pod_log *log = find(set, name);
    if (!wanted)
        return EXIT_DONE;
    if (!log) {
        log = adli_calloc(1, sizeof *log);
        if (!log || adli_grow(&set->list, &set->capacity, set->count + 1, sizeof *set->list) != 0) {
            free(log);
            return problem(set->k->cli->command->name, EXIT_REFUSED, "out of memory");
        }
        log->group = group;
        snprintf(log->pod, sizeof log->pod, "%s", name);
        snprintf(log->container, sizeof log->container, "%s", text_of(first, "name", ""));
        log_text_init(&log->text, rank, set->options->all_ranks);
        set->list[set->count++] = log;
        qsort(set->list, set->count, sizeof *set->list, by_start);
    }
    read_state(pod, log);
    return EXIT_DONE;
}

/* The job as it is at the API server, which knows it as soon as it is made. */
static int look_at_job(pod_logs *set)
{
    char path[PATH_TEXT], hint[HINT_TEXT];
    json_t *job = NULL;
    snprintf(path, sizeof path, KUBE_JOBS "/%s", set->job->ns, set->job->name);
    int status = kube_ask(set->k, "GET", path, NULL, NULL, 404, &job);
    if (status != EXIT_DONE)
        return status;
    const json_t *is = json_object_get(job, "status");
    const char *uid = text_of(json_object_get(job, "metadata"), "uid", "");
    bool gone = !job || (*set->uid && strcmp(set->uid, uid) != 0);
    if (gone && !*set->uid)
        status = problem(set->k->cli->command->name, EXIT_ABSENT, "there is no job %s/%s%s",
                         set->job->ns, set->job->name, job_hint(set->k, set->job, hint));
    if (!*set->uid)
        snprintf(set->uid, sizeof set->uid, "%s", uid);
    set->job_over = gone || phase_over(text_of(is, "phase", ""));
    if (!gone)
        set->groups = whole_of(is, "group");
    json_decref(job);
    return status;
}

/* The job first: pods that are there when it is over are all that there will be. */
static int look(pod_logs *set)
{
    char path[PATH_TEXT];
    json_t *list = NULL, *pod;
    size_t i;
    int status = look_at_job(set);
    if (status != EXIT_DONE)
        return status;
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/pods?labelSelector=adaptdl/job%%3D%s",
             set->job->ns, set->job->name);
    status = kube_ask(set->k, "GET", path, NULL, NULL, 0, &list);
    json_array_foreach(json_object_get(list, "items"), i, pod)
    {
        if (status == EXIT_DONE)
            status = take_pod(set, pod);
    }
    json_decref(list);
    return status;
}

/* ---- their logs ---- */

static int open_log(pod_logs *set, pod_log *log, bool follow)
{
    const logs_options *o = set->options;
    char path[2 * PATH_TEXT], tail[40] = "";
    if (o->tail >= 0)
        snprintf(tail, sizeof tail, "&tailLines=%d", o->tail);
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/pods/%s/log?container=%s%s%s", set->job->ns,
             log->pod, log->container, follow ? "&follow=true" : "", tail);
    adli_stream_request request = {
        .method = "GET", .path = path, .data = log_text_take, .user = &log->text};
    log->text.to_skip = o->tail >= 0 ? 0 : log->text.printed;
    return adli_stream_open(set->k->kube->streams, &request, &log->stream) == ADL_OK
               ? EXIT_DONE
               : report_error(set->k->cli->command->name, EXIT_REFUSED);
}

/* A stream is over: the log's end, the connection's, or there was none yet. */
static int close_log(pod_logs *set, pod_log *log)
{
    int code = 0, result = EXIT_DONE;
    double now_s = adli_monotonic_s();
    adl_status status = adli_stream_result(log->stream, &code);
    bool gone = status == ADL_OK && code == 404, early = status == ADL_OK && code == 400;
    bool late = status == ADL_OK && code == 401 && kube_renew(set->k);
    if (status == ADL_ENET && set->silent_since_s == 0)
        set->silent_since_s = now_s;
    if (status == ADL_ENET && now_s < set->silent_since_s + PATIENCE_S && set->options->tail < 0)
        pause_ms(LOOK_MS); /* it is opened again */
    else if (status == ADL_OK && (code < 400 || gone || (early && log->over)))
        log->shown = true;
    else if (!early && !late)
        result = kube_failed(set->k, status, code, adli_stream_answer(log->stream));
    if (status == ADL_OK)
        set->silent_since_s = 0;
    adli_stream_close(log->stream);
    log->stream = NULL;
    if (log->shown)
        log_text_end(&log->text);
    return result;
}

static int step(pod_logs *set)
{
    for (size_t i = 0; i < set->count; i++)
        if (set->list[i]->stream && adli_stream_over(set->list[i]->stream)) {
            int status = close_log(set, set->list[i]);
            if (status != EXIT_DONE)
                return status;
        }
    if (interrupted())
        return EXIT_INTERRUPTED;
    return adli_streams_step(set->k->kube->streams, LOOK_MS, -1) == ADL_OK
               ? EXIT_DONE
               : report_error(set->k->cli->command->name, EXIT_REFUSED);
}

/* Everything as it comes, until the job is over and its last word shown. */
static int follow(pod_logs *set)
{
    double looked_s = -1e9;
    for (;;) {
        bool waits = false, complete = false;
        if (adli_monotonic_s() >= looked_s + LOOK_EVERY_S) {
            int status = look(set);
            if (status != EXIT_DONE)
                return status;
            looked_s = adli_monotonic_s();
            complete = set->job_over;
        }
        for (size_t i = 0; i < set->count; i++) {
            pod_log *log = set->list[i];
            int status = EXIT_DONE;
            if (!log->shown && !log->stream && log->started)
                status = open_log(set, log, true);
            else if (!log->shown && !log->started && log->over)
                log->shown = true; /* it never ran */
            waits |= !log->shown && log->started;
            if (status != EXIT_DONE)
                return status;
        }
        if (complete && !waits)
            return EXIT_DONE;
        int status = step(set);
        if (status != EXIT_DONE)
            return status;
        if (!waits)
            pause_ms(LOOK_MS);
    }
}

/* ---- what there is ---- */

static int show_one(pod_logs *set, pod_log *log)
{
    int status = open_log(set, log, false);
    while (status == EXIT_DONE && log->stream)
        status = step(set);
    return status;
}

static int show_group(pod_logs *set, int group)
{
    int status = EXIT_DONE;
    bool any = false;
    for (size_t i = 0; i < set->count && status == EXIT_DONE; i++)
        if (set->list[i]->group == group) {
            any = true;
            if (set->list[i]->started || set->list[i]->over)
                status = show_one(set, set->list[i]);
        }
    if (!any && status == EXIT_DONE) {
        fflush(stdout);
        fprintf(stderr, "adaptdl %s: note: the pods of start %d are gone, and their output\n",
                set->k->cli->command->name, group);
    }
    return status;
}

/* All starts, with a line between them; of a tail the newest. */
static int show(pod_logs *set)
{
    int status = look(set), first = 1, last = set->groups;
    if (set->options->group > 0)
        first = last = set->options->group;
    else if (set->options->tail >= 0)
        first = last;
    if (status == EXIT_DONE && set->options->group > set->groups)
        return problem(set->k->cli->command->name, EXIT_ABSENT,
                       "job %s/%s: no group %d; the newest is %d", set->job->ns, set->job->name,
                       set->options->group, set->groups);
    for (int group = first; group > 0 && group <= last && status == EXIT_DONE; group++) {
        if (first != last)
            printf("---- start %d of %d ----\n", group, last);
        fflush(stdout);
        status = show_group(set, group);
    }
    return status;
}

int kube_logs(cluster *k, const job_name *job, const logs_options *options)
{
    pod_logs set = {.k = k, .job = job, .options = options};
    int status = options->follow ? follow(&set) : show(&set);
    for (size_t i = 0; i < set.count; i++) {
        adli_stream_close(set.list[i]->stream);
        log_text_fini(&set.list[i]->text);
        free(set.list[i]);
    }
    free(set.list);
    return status;
}
