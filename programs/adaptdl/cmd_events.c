/* `adaptdl events` and `adaptdl explain`: what happened, and why. */
#include "cluster.h"
#include "commands.h"
#include "term.h"

#include "base/file.h"

#include "base/clock.h"
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { JOB = 256, EVENT_MAX = 1 << 20 };
static const double PATIENCE_S = 30; /* with a scheduler that does not answer */

/* ---- events ---- */

typedef struct follower {
    const cli *c;
    adli_buf line; /* of the stream, not ended yet */
    adli_buf data; /* of the present event */
    long long last;
    double heard_s; /* from the scheduler */
} follower;

static void print_event(const cli *c, const json_t *event)
{
    char clock[TIME_TEXT];
    if (c->format == FORMAT_JSON) {
        json_dumpf(event, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
        putchar('\n');
    } else if (c->format == FORMAT_YAML) {
        printf("---\n");
        print_value(c, event);
    } else {
        term_field(stdout, term_clock(number_of(event, "time"), clock), 8);
        term_field(stdout, text_of(event, "type", "-"), 13);
        term_field(stdout, text_of(event, "job", text_of(event, "node", "-")), 24);
        term_line(stdout, text_of(event, "message", ""));
        putchar('\n');
    }
}

/* Server-sent events: "data: ..." lines, ended by an empty one. */
static adl_status take_line(follower *f)
{
    const char *line = f->line.data ? f->line.data : "";
    if (strncmp(line, "data:", 5) == 0) {
        adli_buf_puts(&f->data, line + 5 + (line[5] == ' '));
    } else if (!*line && f->data.length > 0) {
        json_t *event = NULL;
        adl_status status = adli_json_parse(f->data.data, f->data.length, &event);
        adli_buf_clear(&f->data);
        if (status != ADL_OK)
            return status;
        double seq = number_of(event, "seq");
        if (isfinite(seq))
            f->last = (long long)seq;
        print_event(f->c, event);
        json_decref(event);
        if (fflush(stdout) != 0)
            return adli_fail(ADL_EIO, "cannot write the output");
    }
    return ADL_OK;
}

static adl_status take(void *user, const char *data, size_t length)
{
    follower *f = user;
    adl_status status = ADL_OK;
    f->heard_s = adli_monotonic_s();
    while (length > 0 && status == ADL_OK) {
        const char *end = memchr(data, '\n', length);
        size_t part = end ? (size_t)(end - data) : length;
        adli_buf_append(&f->line, data, part > 0 && data[part - 1] == '\r' ? part - 1 : part);
        status = adli_buf_check(&f->line);
        if (status == ADL_OK && end) {
            status = take_line(f);
            adli_buf_clear(&f->line);
        }
        data += part + (end != NULL);
        length -= part + (end != NULL);
    }
    return status;
}

/* One connection; EXIT_DONE: it broke or ended, try again. */
static int listen_once(cluster *k, follower *f, const char *path)
{
    char last[32];
    adli_stream *stream;
    int code = 0;
    snprintf(last, sizeof last, "%lld", f->last);
    adli_stream_request request = {.method = "GET",
                                   .path = path,
                                   .accept = "text/event-stream",
                                   .last_event_id = f->last >= 0 ? last : NULL,
                                   .data = take,
                                   .user = f};
    adli_buf_clear(&f->line);
    adli_buf_clear(&f->data);
    int ready = cluster_reach(k);
    if (ready != EXIT_DONE)
        return ready;
    adl_status status = adli_stream_open(k->streams, &request, &stream);
    if (status != ADL_OK)
        return report_error("events", EXIT_REFUSED);
    while (status == ADL_OK && !adli_stream_over(stream) && !interrupted())
        status = adli_streams_step(k->streams, 200, -1);
    if (status == ADL_OK && adli_stream_over(stream))
        status = adli_stream_result(stream, &code);
    int result = EXIT_DONE;
    if (interrupted())
        result = EXIT_INTERRUPTED;
    else if ((status == ADL_ENET && adli_monotonic_s() > f->heard_s + PATIENCE_S) ||
             (status != ADL_OK && status != ADL_ENET) || code >= 400)
        result = cluster_failed(k, status, code, adli_stream_answer(stream));
    adli_stream_close(stream);
    return result;
}

static int follow(cluster *k, const char *job)
{
    follower f = {.c = k->cli, .last = -1, .heard_s = -INFINITY};
    char path[PATH_TEXT];
    int status = EXIT_DONE;
    adli_buf_init(&f.line, EVENT_MAX);
    adli_buf_init(&f.data, EVENT_MAX);
    snprintf(path, sizeof path, "/api/v1/events%s%s", job ? "?job=" : "", job ? job : "");
    while (status == EXIT_DONE) {
        status = listen_once(k, &f, path);
        if (status == EXIT_DONE)
            pause_ms(300);
    }
    adli_buf_fini(&f.line);
    adli_buf_fini(&f.data);
    return status;
}

static int print_all(cluster *k, const char *job)
{
    char path[PATH_TEXT];
    json_t *answer = NULL, *event;
    size_t i;
    snprintf(path, sizeof path, "/api/v1/events?since=0%s%s", job ? "&job=" : "", job ? job : "");
    int status = cluster_ask(k, "GET", path, 0, &answer);
    if (status == EXIT_DONE && (k->cli->format == FORMAT_JSON || k->cli->format == FORMAT_YAML)) {
        status = print_value(k->cli, answer);
    } else {
        json_array_foreach(json_object_get(answer, "items"), i, event)
        {
            print_event(k->cli, event);
        }
    }
    json_decref(answer);
    return status;
}

static int run_events(cli *c)
{
    bool followed = false;
    const char *name = NULL;
    char text[140];
    cluster k;
    job_name job;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        if (option == 'f')
            followed = true;
        else
            name = c->value;
    }
    if (cli_count(c) > 0)
        return usage_error("events", "takes no arguments, not \"%s\"", cli_argument(c, 0));
    int status = cluster_open(&k, c);
    if (status == EXIT_DONE && name) {
        status = cluster_job_name(&k, name, &job);
        snprintf(text, sizeof text, "%s/%s", job.ns, job.name);
        name = text;
    }
    if (status == EXIT_DONE)
        status = followed ? follow(&k, name) : print_all(&k, name);
    cluster_close(&k);
    return status;
}

static const cli_option events_options[] = {
    {'f', "follow", NULL, "go on with new ones until CTRL-C", NULL},
    {JOB, "job", "JOB", "only those of this job", COMPLETE_JOB},
    {0},
};

const cli_command command_events = {
    .name = "events",
    .summary = "show what happened in the cluster",
    .usage = "[-f] [--job JOB]",
    .text =
        "Shows the events that the scheduler keeps, oldest first: jobs created, started, rescaled, "
        "ended, nodes lost and found. Times are UTC.",
    .options = events_options,
    .flags = CLI_CLUSTER | CLI_OUTPUT,
    .run = run_events,
};

/* ---- explain ---- */

enum { SAVE = 256 };

/* "node-0 x2, node-1", or "nothing" */
static void put_allocation(adli_buf *out, const json_t *nodes)
{
    size_t count = json_array_size(nodes);
    if (count == 0)
        adli_buf_puts(out, "nothing");
    for (size_t i = 0; i < count;) {
        const char *name = json_string_value(json_array_get(nodes, i));
        size_t same = 1;
        while (i + same < count && name && json_string_value(json_array_get(nodes, i + same)) &&
               strcmp(json_string_value(json_array_get(nodes, i + same)), name) == 0)
            same++;
        adli_buf_printf(out, "%s%s", i ? ", " : "", name ? name : "?");
        if (same > 1)
            adli_buf_printf(out, " x%zu", same);
        i += same;
    }
}

static void print_decision(const json_t *decision)
{
    const json_t *before = json_object_get(decision, "before");
    const json_t *after = json_object_get(decision, "after");
    char clock[TIME_TEXT];
    double speedup = number_of(decision, "speedup"), cost = number_of(decision, "restartCost");
    adli_buf text;
    adli_buf_init(&text, 1 << 16);
    adli_buf_printf(&text, "round %d  %s  ", whole_of(decision, "round"),
                    term_clock(number_of(decision, "time"), clock));
    if (json_equal((json_t *)before, (json_t *)after)) {
        adli_buf_puts(&text, "keeps ");
        put_allocation(&text, after);
    } else {
        put_allocation(&text, before);
        adli_buf_puts(&text, " -> ");
        put_allocation(&text, after);
    }
    if (isfinite(speedup))
        adli_buf_printf(&text, "  speedup %.2f over one replica with the initial batch", speedup);
    if (isfinite(cost) && cost > 0)
        adli_buf_printf(&text, "  restart costs %.0f%%", 100 * cost);
    term_line(stdout, text.data ? text.data : "");
    adli_buf_fini(&text);
    printf("\n    ");
    term_line(stdout, text_of(decision, "text", text_of(decision, "reason", "")));
    putchar('\n');
}

/* The last round's snapshot, for a desk. */
static int save_snapshot(cluster *k, const char *path)
{
    int status = cluster_ask(k, "GET", "/api/v1/snapshot", 0, NULL);
    if (status != EXIT_DONE)
        return status;
    if (adli_file_write(path, k->answer.data, k->answer.length) != ADL_OK)
        return report_error("explain", EXIT_USAGE);
    fprintf(stderr, "the last round is in %s; adaptdl sim --snapshot %s decides it again\n", path,
            path);
    return EXIT_DONE;
}

/* What was decided is no longer so for a job that is over, or that its user has suspended. */
static void print_reason(const json_t *job)
{
    const char *reason = text_of(job, "reason", NULL), *message = text_of(job, "message", "");
    if (!reason)
        return;
    printf("now %s: %s", text_of(job, "phase", "?"), reason);
    if (*message) {
        char line[300];
        snprintf(line, sizeof line, ": %.*s", (int)strcspn(message, "\n"), message);
        term_line(stdout, line);
    }
    putchar('\n');
}

/* How it came to its size, beside what was decided. */
static int print_size(cluster *k, const job_name *name)
{
    char path[PATH_TEXT];
    json_t *job = NULL;
    int status = cluster_ask(k, "GET", job_path(name, "", path), 0, &job);
    const char *resized = text_of(job, "lastResize", "");
    if (status == EXIT_DONE && whole_of(job, "pinned") > 0)
        printf("pinned to %d replicas by its user, until adaptdl scale --auto\n",
               whole_of(job, "pinned"));
    if (status == EXIT_DONE && *resized) {
        printf("last change of size: ");
        term_line(stdout, resized);
        putchar('\n');
    }
    if (status == EXIT_DONE)
        print_reason(job);
    json_decref(job);
    return status;
}

static int run_explain(cli *c)
{
    int limit = 10;
    const char *save = NULL;
    char path[PATH_TEXT], rest[64];
    cluster k;
    job_name job;
    json_t *answer = NULL;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        if (option == SAVE)
            save = c->value;
        else if (!cli_whole(c->value, 1, 10000, &limit))
            return usage_error("explain", "-n %s: must be from 1 to 10000", c->value);
    }
    if (cli_count(c) != 1 && !(save && cli_count(c) == 0))
        return usage_error("explain", "expected the name of one job");
    int status = cluster_open(&k, c);
    if (status == EXIT_DONE && save)
        status = save_snapshot(&k, save);
    if (cli_count(c) == 0 || status != EXIT_DONE) {
        cluster_close(&k);
        return status;
    }
    if (status == EXIT_DONE)
        status = cluster_job_name(&k, cli_argument(c, 0), &job);
    snprintf(rest, sizeof rest, "/decisions?limit=%d", limit);
    if (status == EXIT_DONE)
        status = cluster_ask(&k, "GET", job_path(&job, rest, path), 0, &answer);
    const json_t *items = json_object_get(answer, "items");
    if (status == EXIT_DONE && (c->format == FORMAT_JSON || c->format == FORMAT_YAML))
        status = print_value(c, answer);
    else if (status == EXIT_DONE && json_array_size(items) == 0)
        printf("no decision about %s/%s yet\n", job.ns, job.name);
    else
        for (size_t i = json_array_size(items); i-- > 0;)
            print_decision(json_array_get(items, i));
    json_decref(answer);
    if (status == EXIT_DONE && c->format != FORMAT_JSON && c->format != FORMAT_YAML)
        status = print_size(&k, &job);
    cluster_close(&k);
    return status;
}

static const cli_option explain_options[] = {
    {'n', "limit", "N", "the last N decisions (default 10)", NULL},
    {SAVE, "save", "FILE",
     "write the last round down: adaptdl sim --snapshot FILE decides it again", COMPLETE_FILE},
    {0},
};

const cli_command command_explain = {
    .name = "explain",
    .summary = "say why a job has the replicas it has",
    .usage = "[-n N] JOB",
    .text =
        "Shows the scheduler's decisions about a job, the newest last: its allocation before and "
        "after, the speedup that was expected (of goodput, over one replica with the initial "
        "batch), what the restart cost, and the reason in words. Where devices went to another job "
        "it says what they would be worth to this one and what they are worth to the other, "
        "per share of the cluster, which is what the policy compares: the gain times the job's "
        "weight.",
    .options = explain_options,
    .arguments = COMPLETE_JOB,
    .flags = CLI_CLUSTER | CLI_OUTPUT,
    .run = run_explain,
};
