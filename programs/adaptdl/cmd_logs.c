/* `adaptdl logs`: the output of a job's replicas, one stream for each rank that is wanted, over
 * restarts of the job and of the scheduler. What was printed is counted: when a connection
 * breaks, the stream is asked for again and so many bytes are skipped, for a log only grows. */
#include "commands.h"
#include "log_text.h"
#include "logs.h"

#include "base/clock.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { ALL_RANKS = 256, NO_FOLLOW, GROUP, RANK, TAIL, RANKS_MAX = 10000 };
static const double PATIENCE_S = 30; /* with a scheduler that does not answer */

typedef struct rank_log {
    log_text text;
    adli_stream *stream;
} rank_log;

typedef struct log_set {
    cluster *k;
    const job_name *job;
    const logs_options *options;
    rank_log **logs;
    size_t count, capacity;
    double silent_since_s; /* the scheduler does not answer; 0: it does */
    int group;             /* 0: the server's choice */
    bool lenient;          /* a rank that is not in this group may be in another */
    bool found;            /* one was there */
} log_set;

/* How the job is. */
typedef struct job_state {
    bool
        silent; /* the scheduler does not answer, and may be starting again; the rest is not known */
    bool over;  /* or gone */
    int replicas, group;
} job_state;

static adl_status open_log(log_set *set, rank_log *log)
{
    const logs_options *o = set->options;
    char path[PATH_TEXT], rest[160];
    int used = snprintf(rest, sizeof rest, "/logs?rank=%d%s", log->text.rank,
                        o->follow ? "&follow=1" : "");
    if (set->group > 0)
        used += snprintf(rest + used, sizeof rest - (size_t)used, "&group=%d", set->group);
    if (o->tail >= 0)
        snprintf(rest + used, sizeof rest - (size_t)used, "&tail=%d", o->tail);
    adli_stream_request request = {.method = "GET",
                                   .path = job_path(set->job, rest, path),
                                   .data = log_text_take,
                                   .user = &log->text};
    log->text.to_skip = log->text.printed;
    return adli_stream_open(set->k->streams, &request, &log->stream);
}

static adl_status add_rank(log_set *set, int rank)
{
    if (adli_grow(&set->logs, &set->capacity, set->count + 1, sizeof *set->logs) != 0)
        return adli_fail_memory("logs");
    rank_log *log = adli_calloc(1, sizeof *log); /* its address is the stream's */
    if (!log)
        return adli_fail_memory("logs");
    log_text_init(&log->text, rank, set->options->all_ranks);
    set->logs[set->count++] = log;
    return open_log(set, log);
}

static void finish_log(rank_log *log)
{
    adli_stream_close(log->stream);
    log->stream = NULL;
    log_text_end(&log->text);
}

/* EXIT_DONE, or a message was shown. */
static int look(log_set *set, job_state *state)
{
    char path[PATH_TEXT];
    double now_s = adli_monotonic_s();
    json_t *job = NULL;
    adl_status status = cluster_look(set->k, job_path(set->job, "", path), 10000);
    *state = (job_state){.silent = status == ADL_ENET};
    if (state->silent && set->silent_since_s == 0)
        set->silent_since_s = now_s;
    if (state->silent && now_s < set->silent_since_s + PATIENCE_S)
        return EXIT_DONE;
    if (status != ADL_OK || (set->k->code >= 400 && set->k->code != 404))
        return cluster_failed(set->k, status, set->k->code, &set->k->answer);
    set->silent_since_s = 0;
    state->over = set->k->code == 404;
    if (state->over)
        return EXIT_DONE;
    int result = cluster_parse(set->k, &job);
    state->over = phase_over(text_of(job, "phase", ""));
    state->replicas = whole_of(job, "replicas");
    state->group = whole_of(job, "group");
    json_decref(job);
    return result;
}

/* The log has ended. Of a job that is over it is not known how many ranks it had: after one that
 * had something to say the next is tried. */
static int end_log(log_set *set, rank_log *log)
{
    bool next = log->text.prefixed && log->text.printed > 0 &&
                log->text.rank + 1 == (int)set->count && set->count < RANKS_MAX;
    set->found = true;
    finish_log(log);
    if (next && add_rank(set, log->text.rank + 1) != ADL_OK)
        return report_error(set->k->cli->command->name, EXIT_REFUSED);
    return EXIT_DONE;
}

/* A stream is over: the log's end, or the connection's? */
static int judge_end(log_set *set, rank_log *log)
{
    int code = 0;
    job_state state;
    adl_status status = adli_stream_result(log->stream, &code);
    if (status != ADL_ENET && (status != ADL_OK || code >= 400)) {
        bool none =
            code == 404 && (log->text.prefixed || set->lenient); /* no such rank in this group */
        int result = none ? EXIT_DONE
                          : cluster_failed(set->k, status, code, adli_stream_answer(log->stream));
        finish_log(log);
        return result;
    }
    bool broken = status == ADL_ENET;
    if (broken && set->options->tail >= 0 && log->text.printed > 0) {
        int result =
            cluster_failed(set->k, status, 0, NULL); /* where it broke cannot be found again */
        finish_log(log);
        return result;
    }
    if (!broken && !set->options->follow)
        return end_log(set, log);
    int result = look(set, &state);
    if (result != EXIT_DONE) {
        finish_log(log);
        return result;
    }
    if (!broken && (state.over || set->group > 0))
        return end_log(set, log);
    pause_ms(state.silent ? 500 : 100);
    adli_stream_close(log->stream);
    log->stream = NULL;
    return open_log(set, log) == ADL_OK ? EXIT_DONE
                                        : report_error(set->k->cli->command->name, EXIT_REFUSED);
}

static int serve(log_set *set)
{
    double looked_s = adli_monotonic_s();
    int status = EXIT_DONE;
    for (;;) {
        size_t open = 0;
        for (size_t i = 0; i < set->count && status == EXIT_DONE; i++) {
            if (set->logs[i]->stream && adli_stream_over(set->logs[i]->stream))
                status = judge_end(set, set->logs[i]);
            open += set->logs[i]->stream != NULL;
        }
        if (status != EXIT_DONE || open == 0)
            return status;
        if (interrupted())
            return EXIT_INTERRUPTED;
        if (adli_streams_step(set->k->streams, 200, -1) != ADL_OK)
            return report_error(set->k->cli->command->name, EXIT_REFUSED);
        if (!set->options->all_ranks || !set->options->follow || adli_monotonic_s() < looked_s + 1)
            continue;
        job_state state; /* the job may have grown */
        status = look(set, &state);
        looked_s = adli_monotonic_s();
        while (status == EXIT_DONE && !state.silent && (int)set->count < state.replicas &&
               set->count < RANKS_MAX)
            if (add_rank(set, (int)set->count) != ADL_OK)
                status = report_error(set->k->cli->command->name, EXIT_REFUSED);
    }
}

static void close_logs(log_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        adli_stream_close(set->logs[i]->stream);
        log_text_fini(&set->logs[i]->text);
        free(set->logs[i]);
    }
    free(set->logs);
    set->logs = NULL;
    set->count = set->capacity = 0;
}

/* Ranks first .. last of set->group. */
static int print_ranks(log_set *set, int first, int last)
{
    int status = EXIT_DONE;
    for (int rank = first; rank <= last && status == EXIT_DONE; rank++)
        if (add_rank(set, rank) != ADL_OK)
            status = report_error(set->k->cli->command->name, EXIT_REFUSED);
    if (status == EXIT_DONE)
        status = serve(set);
    close_logs(set);
    return status;
}

static int no_rank(const log_set *set, int groups)
{
    return problem(set->k->cli->command->name, EXIT_ABSENT,
                   "job %s/%s had no rank %d in any of its %d starts", set->job->ns, set->job->name,
                   set->options->rank, groups);
}

/* What there is of every start, with a line between them. */
static int print_groups(log_set *set, int first, int last, int groups, bool separated)
{
    int status = EXIT_DONE;
    set->lenient = true;
    for (set->group = 1; set->group <= groups && status == EXIT_DONE; set->group++) {
        if (groups > 1 && separated)
            printf("---- start %d of %d ----\n", set->group, groups);
        fflush(stdout);
        status = print_ranks(set, first, last);
    }
    return status == EXIT_DONE && !set->found ? no_rank(set, groups) : status;
}

/* A rank that the job does not have is not waited for. */
static int check_rank(const log_set *set, const job_state *state)
{
    int rank = set->options->rank;
    if (state->replicas == 0 || rank < state->replicas)
        return EXIT_DONE;
    return problem(set->k->cli->command->name, EXIT_ABSENT,
                   "job %s/%s has %d replica%s, and so no rank %d", set->job->ns, set->job->name,
                   state->replicas, state->replicas == 1 ? "" : "s", rank);
}

int logs_print(cluster *k, const job_name *job, const logs_options *options)
{
    if (k->kube)
        return kube_logs(k, job, options);
    log_set set = {.k = k, .job = job, .options = options, .group = options->group};
    job_state state;
    int first = options->all_ranks ? 0 : options->rank, last = first;
    int status = look(&set, &state);
    char path[PATH_TEXT];
    if (status == EXIT_DONE && (state.silent || k->code == 404)) /* once more, for its message */
        status = cluster_ask(k, "GET", job_path(job, "", path), 0, NULL);
    if (status == EXIT_DONE && options->follow)
        status = check_rank(&set, &state);
    if (status != EXIT_DONE)
        return status;
    if (options->all_ranks && state.replicas > 1)
        last = (state.replicas < RANKS_MAX ? state.replicas : RANKS_MAX) - 1;
    bool whole = options->group == 0 && options->tail < 0;
    bool ended = !options->follow || (state.over && options->rank > 0); /* nothing more will come */
    if (!whole || !ended || state.group == 0)
        return print_ranks(&set, first, last);
    logs_options now = *options;
    now.follow = false;
    set.options = &now;
    return print_groups(&set, first, last, state.group, !options->follow);
}

static int parse(cli *c, int option, logs_options *o)
{
    switch (option) {
    case 'f':
        o->follow = true;
        break;
    case NO_FOLLOW:
        o->follow = false;
        break;
    case ALL_RANKS:
        o->all_ranks = true;
        break;
    case GROUP:
        if (!cli_whole(c->value, 1, 1000000000, &o->group))
            return usage_error("logs", "--group %s: must be a number from 1 on", c->value);
        o->follow = false;
        break;
    case RANK:
        if (!cli_whole(c->value, 0, RANKS_MAX - 1, &o->rank))
            return usage_error("logs", "--rank %s: must be a number from 0 on", c->value);
        break;
    case TAIL:
        if (!cli_whole(c->value, 0, 1000000000, &o->tail))
            return usage_error("logs", "--tail %s: must be a number of lines", c->value);
        break;
    }
    return EXIT_DONE;
}

static int run_logs(cli *c)
{
    logs_options options = {.follow = true, .tail = -1};
    cluster k;
    job_name job;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        int status = parse(c, option, &options);
        if (status != EXIT_DONE)
            return status;
    }
    if (cli_count(c) != 1)
        return usage_error("logs", "expected the name of one job");
    int status = cluster_open(&k, c);
    if (status == EXIT_DONE)
        status = cluster_job_name(&k, cli_argument(c, 0), &job);
    if (status == EXIT_DONE)
        status = logs_print(&k, &job, &options);
    cluster_close(&k);
    return status;
}

static const cli_option logs_options_table[] = {
    {'f', "follow", NULL, "go on until the job ends, over restarts (default, but not with --group)",
     NULL},
    {NO_FOLLOW, "no-follow", NULL,
     "what there is of every start of the job, with a line between them, then end", NULL},
    {GROUP, "group", "N", "the output of the Nth start of the job only", NULL},
    {RANK, "rank", "R", "of this replica (default 0)", NULL},
    {ALL_RANKS, "all-ranks", NULL, "of all replicas, each line with its rank before it", NULL},
    {TAIL, "tail", "N", "begin with the last N lines", NULL},
    {0},
};

const cli_command command_logs = {
    .name = "logs",
    .summary = "show the output of a job as it comes",
    .usage = "[OPTIONS] JOB",
    .text =
        "Shows what the replicas of a job print, from its first start on and over its restarts, "
        "until the job ends. On a terminal, control characters other than colours are not passed "
        "on.",
    .options = logs_options_table,
    .examples = "adaptdl logs mnist-x7k2p\n"
                "adaptdl logs --all-ranks --tail 20 mnist-x7k2p",
    .arguments = COMPLETE_JOB,
    .flags = CLI_CLUSTER,
    .run = run_logs,
};
