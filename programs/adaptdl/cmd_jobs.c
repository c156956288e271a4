/* `adaptdl ls`, `describe` and `delete`: the jobs of the cluster. */
#include "cluster.h"
#include "commands.h"
#include "term.h"

#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- ls ---- */

enum { PHASE = 256, ALL, WAIT };

static double runtime_of(const json_t *job)
{
    double started = number_of(job, "started"), completed = number_of(job, "completed");
    if (!isfinite(completed))
        completed = adli_clock_of(CLOCK_REALTIME);
    return completed - started;
}

/* What the tables below show. */
#define LS_FIELDS                                                                                  \
    "namespace,name,phase,reason,message,created,started,completed,replicas,pinned,restarts,"      \
    "train"

static void print_names(const json_t *jobs, bool with_namespace)
{
    size_t i;
    const json_t *job;
    json_array_foreach((json_t *)jobs, i, job)
    {
        if (with_namespace) {
            term_line(stdout, text_of(job, "namespace", ""));
            putchar('/');
        }
        term_line(stdout, text_of(job, "name", ""));
        putchar('\n');
    }
}

static void put_job(term_table *table, const json_t *job, bool wide, bool with_namespace)
{
    const json_t *train = json_object_get(job, "train");
    double fraction = number_of(train, "fractionDone");
    char text[TIME_TEXT];
    if (with_namespace)
        table_put(table, "%s/%s", text_of(job, "namespace", "-"), text_of(job, "name", "-"));
    else
        table_put(table, "%s", text_of(job, "name", "-"));
    table_put(table, "%s", text_of(job, "phase", "-"));
    table_put(table, "%s", term_date(number_of(job, "started"), text));
    table_put(table, "%s", term_minutes(runtime_of(job), text));
    table_put(table, "%s%d", whole_of(job, "pinned") > 0 ? "=" : "", whole_of(job, "replicas"));
    table_put(table, "%d", whole_of(job, "restarts"));
    if (!wide)
        return;
    table_put(table, "%s", term_short(number_of(train, "batchSize"), text));
    table_put(table, "%s", term_short(number_of(train, "throughput"), text));
    table_put(table, "%s", term_short(number_of(train, "goodput"), text));
    if (isfinite(fraction))
        table_put(table, "%.0f%%", 100 * fraction);
    else
        table_put(table, "-");
    const char *message = text_of(job, "message", "-");
    table_put(table, "%s", text_of(job, "reason", "-"));
    table_put(table, "%.*s", (int)strcspn(message, "\n"), message);
}

static void print_jobs(const cli *c, const json_t *jobs, bool with_namespace)
{
    static const char *const heads[] = {"Name",    "Status", "Start(UTC)", "Runtime",
                                        "Rplc",    "Rtrt",   "Batch",      "Thrpt",
                                        "Goodput", "Done",   "Reason",     "Message"};
    bool wide = c->format == FORMAT_WIDE;
    term_table table;
    size_t i;
    const json_t *job;
    table_init(&table, wide ? 12 : 6, heads);
    int least[] = {63, 9, 12, 7, 4, 4};
    static const int spare[] = {2, 5, 3, 4}; /* the first that a narrow screen can do without */
    memcpy(table.least, least, sizeof least);
    memcpy(table.spare, spare, sizeof spare);
    table.fit = wide ? 0 : term_columns(stdout, NULL);
    table.phase_column = 1;
    json_array_foreach((json_t *)jobs, i, job)
    {
        put_job(&table, job, wide, with_namespace);
    }
    table_print(&table, stdout);
    table_fini(&table);
}

static bool known_phase(const char *phase)
{
    static const char *const phases[] = {"Pending",  "Starting",  "Running",
                                         "Stopping", "Succeeded", "Failed"};
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++)
        if (strcmp(phases[i], phase) == 0)
            return true;
    return false;
}

static int run_ls(cli *c)
{
    const char *phase = NULL;
    bool all = false;
    char path[PATH_TEXT];
    json_t *answer = NULL;
    cluster k;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        if (option == 'A')
            all = true;
        else
            phase = c->value;
    }
    if (cli_count(c) > 0)
        return usage_error("ls", "takes no arguments, not \"%s\"", cli_argument(c, 0));
    if (phase && !known_phase(phase))
        return usage_error("ls",
                           "--phase %s: must be Pending, Starting, Running, Stopping, "
                           "Succeeded or Failed",
                           phase);
    int status = cluster_open(&k, c);
    bool whole = c->format == FORMAT_JSON || c->format == FORMAT_YAML;
    snprintf(path, sizeof path, "%s%s%s%s%s", all ? "" : "namespace=", all ? "" : k.ns,
             phase ? "&phase=" : "", phase ? phase : "", whole ? "" : "&fields=" LS_FIELDS);
    if (status == EXIT_DONE)
        status = cluster_list(&k, path, &answer);
    if (status == EXIT_DONE) {
        const json_t *items = json_object_get(answer, "items");
        if (whole)
            status = print_value(c, answer);
        else if (c->format == FORMAT_NAME)
            print_names(items, all);
        else
            print_jobs(c, items, all);
    }
    json_decref(answer);
    cluster_close(&k);
    return status;
}

static const cli_option ls_options[] = {
    {'A', "all-namespaces", NULL, "jobs of all namespaces, shown as NS/NAME", NULL},
    {PHASE, "phase", "PHASE", "only jobs of this phase",
     "Pending Starting Running Stopping Succeeded Failed"},
    {0},
};

const cli_command command_ls = {
    .name = "ls",
    .summary = "list jobs",
    .usage = "[OPTIONS]",
    .text =
        "Lists the jobs, oldest first: name, phase, first start (UTC), time since then, replicas "
        "and restarts, as far as the terminal is wide enough: long names are shortened in the "
        "middle. With -o wide whole, and also batch size, examples per second, goodput, how much "
        "is done and the reason.",
    .options = ls_options,
    .flags = CLI_CLUSTER | CLI_OUTPUT,
    .run = run_ls,
};

/* ---- describe ---- */

static void show(const char *label, const char *text)
{
    do { /* further lines below the first */
        char line[400];
        size_t length = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, text);
        printf("%-14s ", label);
        term_line(stdout, line);
        putchar('\n');
        text += length;
        label = "";
    } while (*text++ && *text);
}

static void show_time(const char *label, double time_s)
{
    char day[TIME_TEXT], clock[TIME_TEXT], text[2 * TIME_TEXT];
    if (!isfinite(time_s))
        return;
    snprintf(text, sizeof text, "%.6s %s UTC", term_date(time_s, day), term_clock(time_s, clock));
    show(label, text);
}

static void show_list(const char *label, const json_t *list)
{
    adli_buf text;
    size_t i;
    const json_t *item;
    adli_buf_init(&text, 1 << 16);
    json_array_foreach((json_t *)list, i, item)
    {
        const char *word = json_string_value(item);
        adli_buf_printf(&text, "%s%s", i ? " " : "", word ? word : "?");
    }
    show(label, text.data && adli_buf_check(&text) == ADL_OK ? text.data : "-");
    adli_buf_fini(&text);
}

static void show_train(const json_t *train)
{
    char a[TIME_TEXT], b[TIME_TEXT], most[TIME_TEXT], text[200];
    if (!json_is_object(train)) {
        show("Training", "nothing reported yet");
        return;
    }
    snprintf(text, sizeof text, "%s (first %s, at most %s)",
             term_short(number_of(train, "batchSize"), a),
             term_short(number_of(train, "initBatchSize"), b),
             term_short(number_of(train, "maxBatchSize"), most));
    show("Batch size", text);
    double efficiency = number_of(train, "efficiency"); /* of what runs */
    if (isfinite(efficiency)) {
        snprintf(text, sizeof text, "%s examples/s x %.0f%% efficiency = goodput %s",
                 term_short(number_of(train, "throughput"), a), 100 * efficiency,
                 term_short(number_of(train, "goodput"), b));
        show("Speed", text);
    }
    double fraction = number_of(train, "fractionDone");
    if (isfinite(fraction)) {
        snprintf(text, sizeof text, "%.1f%%", 100 * fraction);
        show("Done", text);
    }
    show_time("Expected end", number_of(train, "estimatedFinish"));
}

/* The newest value of each metric. */
static void show_metrics(const json_t *metrics)
{
    const char *name, *label = "Metrics";
    json_t *metric;
    json_object_foreach((json_t *)metrics, name, metric)
    {
        char text[200], value[TIME_TEXT];
        snprintf(text, sizeof text, "%s %s at step %.0f", name,
                 term_value(number_of(metric, "value"), value), number_of(metric, "step"));
        show(label, text);
        label = "";
    }
}

/* What each replica uses. */
static void show_use(const json_t *job)
{
    const json_t *nodes = json_object_get(job, "allocation"), *use;
    const char *label = "Use";
    size_t i;
    json_array_foreach(json_object_get(job, "use"), i, use)
    {
        char text[300], a[TIME_TEXT], b[TIME_TEXT];
        int rank = whole_of(use, "rank");
        const char *node = json_string_value(json_array_get(nodes, (size_t)rank));
        int used = snprintf(text, sizeof text, "replica %d on %.100s: %s CPUs, %s memory", rank,
                            node ? node : "?", term_short(number_of(use, "cpus"), a),
                            term_bytes(number_of(use, "memoryBytes"), b));
        if (json_object_get(use, "gpus") || json_object_get(use, "gpuMemoryBytes"))
            snprintf(text + used, sizeof text - (size_t)used, ", %s GPUs, %s GPU memory",
                     term_short(number_of(use, "gpus"), a),
                     term_bytes(number_of(use, "gpuMemoryBytes"), b));
        show(label, text);
        label = "";
    }
}

static void describe(const json_t *job)
{
    char text[200];
    show("Name", text_of(job, "name", "-"));
    show("Namespace", text_of(job, "namespace", "-"));
    show("UID", text_of(job, "uid", "-"));
    show("Status", text_of(job, "phase", "-"));
    if (text_of(job, "reason", NULL))
        show("Reason", text_of(job, "reason", ""));
    if (text_of(job, "message", NULL))
        show("Message", text_of(job, "message", ""));
    show_list("Command", json_object_get(job, "command"));
    show_time("Created", number_of(job, "created"));
    show_time("Started", number_of(job, "started"));
    show_time("Completed", number_of(job, "completed"));
    snprintf(text, sizeof text, "%d, %d ready", whole_of(job, "replicas"),
             whole_of(job, "readyReplicas"));
    show("Replicas", text);
    show_list("Nodes", json_object_get(job, "allocation"));
    const json_t *most = json_object_get(job, "maxReplicas");
    if (json_is_integer(most))
        snprintf(text, sizeof text, "%d to %d%s", whole_of(job, "minReplicas"),
                 whole_of(job, "maxReplicas"),
                 true_of(job, "preemptible") ? "" : ", not preemptible");
    else
        snprintf(text, sizeof text, "at least %d%s", whole_of(job, "minReplicas"),
                 true_of(job, "preemptible") ? "" : ", not preemptible");
    show("Allowed", text);
    double priority = number_of(job, "priority");
    const char *suspend = text_of(job, "suspend", "when-better");
    if ((isfinite(priority) && priority != 1) || strcmp(suspend, "when-better") != 0) {
        snprintf(text, sizeof text, "%g, suspended: %.20s", priority, suspend);
        show("Priority", text);
    }
    if (whole_of(job, "pinned") > 0) {
        snprintf(text, sizeof text, "to %d, until adaptdl scale --auto", whole_of(job, "pinned"));
        show("Pinned", text);
    }
    if (*text_of(job, "lastResize", ""))
        show("Resized", text_of(job, "lastResize", ""));
    snprintf(text, sizeof text, "%d restarts, %d failures", whole_of(job, "restarts"),
             whole_of(job, "failures"));
    show("History", text);
    show_train(json_object_get(job, "train"));
    show_metrics(json_object_get(job, "metrics"));
    show_use(job);
}

enum { EVENTS_SHOWN = 10 };

static bool is_report(const json_t *items, size_t i)
{
    return strcmp(text_of(json_array_get(items, i), "type", ""), "JobTrain") == 0;
}

/* A job reports all the time: of reports that follow each other one line is shown. How many events such a line
 * stands for that ends, or begins, at this one. */
static size_t fold(const json_t *items, size_t end)
{
    size_t same = 1;
    while (is_report(items, end) && same <= end && is_report(items, end - same))
        same++;
    return same;
}

static size_t fold_on(const json_t *items, size_t from)
{
    size_t same = 1;
    while (is_report(items, from) && is_report(items, from + same))
        same++;
    return same;
}

static void show_events(cluster *k, const job_name *job)
{
    char path[PATH_TEXT], clock[TIME_TEXT];
    json_t *answer = NULL;
    snprintf(path, sizeof path, "/api/v1/events?since=0&job=%s/%s", job->ns, job->name);
    if (cluster_ask(k, "GET", path, 404, &answer) != EXIT_DONE)
        return;
    const json_t *items = json_object_get(answer, "items");
    size_t count = json_array_size(items), from = count;
    for (int shown = 0; from > 0 && shown < EVENTS_SHOWN; shown++)
        from -= fold(items, from - 1);
    if (count > 0)
        printf("\nEvents:\n");
    while (from < count) {
        size_t same = fold_on(items, from);
        const json_t *event = json_array_get(items, from + same - 1);
        printf("  %s  ", term_clock(number_of(event, "time"), clock));
        term_line(stdout, text_of(event, "message", text_of(event, "type", "")));
        if (same > 1)
            printf(" (the last of %zu reports)", same);
        putchar('\n');
        from += same;
    }
    json_decref(answer);
}

static int run_describe(cli *c)
{
    int status;
    char path[PATH_TEXT];
    job_name job;
    cluster k;
    json_t *answer = NULL;
    if (!cli_no_options(c, &status))
        return status;
    if (cli_count(c) != 1)
        return usage_error("describe", "expected the name of one job");
    status = cluster_open(&k, c);
    if (status == EXIT_DONE)
        status = cluster_job_name(&k, cli_argument(c, 0), &job);
    if (status == EXIT_DONE)
        status = cluster_ask(&k, "GET", job_path(&job, "", path), 0, &answer);
    if (status == EXIT_DONE && (c->format == FORMAT_JSON || c->format == FORMAT_YAML)) {
        status = print_value(c, answer);
    } else if (status == EXIT_DONE) {
        describe(answer);
        show_events(&k, &job);
    }
    json_decref(answer);
    cluster_close(&k);
    return status;
}

const cli_command command_describe = {
    .name = "describe",
    .summary = "show everything about a job",
    .usage = "JOB",
    .text = "Shows what a job is doing, why, and its last events. JOB is NAME or NS/NAME.",
    .arguments = COMPLETE_JOB,
    .flags = CLI_CLUSTER | CLI_OUTPUT,
    .run = run_describe,
};

/* ---- delete ---- */

typedef struct deletion {
    job_name job;
    char uid[80]; /* so that a new job of the same name is not waited for */
} deletion;

static int request_end(cluster *k, const char *text, deletion *d)
{
    char path[PATH_TEXT];
    json_t *answer = NULL;
    int status = cluster_job_name(k, text, &d->job);
    if (status == EXIT_DONE)
        status = cluster_ask(k, "DELETE", job_path(&d->job, "", path), 0, &answer);
    snprintf(d->uid, sizeof d->uid, "%s", text_of(answer, "uid", ""));
    json_decref(answer);
    return status;
}

static int await_end(cluster *k, const deletion *d)
{
    char path[PATH_TEXT];
    for (;;) {
        json_t *answer = NULL;
        int status = cluster_ask(k, "GET", job_path(&d->job, "", path), 404, &answer);
        bool there = answer && strcmp(text_of(answer, "uid", ""), d->uid) == 0;
        json_decref(answer);
        if (status != EXIT_DONE || !there)
            return status;
        pause_ms(100);
    }
}

/* All are asked to stop before any is waited for. */
static int delete_jobs(cluster *k, const char *const *names, size_t count, bool wait)
{
    int status = EXIT_DONE;
    size_t used = 0;
    deletion *list = adli_calloc(count, sizeof *list);
    if (!list)
        return problem("delete", EXIT_REFUSED, "out of memory");
    for (size_t i = 0; i < count && (status == EXIT_DONE || status == EXIT_ABSENT); i++) {
        int one = request_end(k, names[i], &list[used]);
        used += one == EXIT_DONE;
        status = one != EXIT_DONE ? one : status;
    }
    for (size_t i = 0; i < used; i++) {
        int one = wait ? await_end(k, &list[i]) : EXIT_DONE;
        if (one == EXIT_DONE)
            printf("%s/%s deleted\n", list[i].job.ns, list[i].job.name);
        else
            status = one;
    }
    free(list);
    return status;
}

/* Until no job of the namespace is on its way out. */
static int await_all(cluster *k, const char *ns)
{
    char query[PATH_TEXT];
    snprintf(query, sizeof query, "namespace=%s&fields=deleted", ns);
    for (bool gone = false; !gone;) {
        json_t *answer = NULL;
        int status = cluster_list(k, query, &answer);
        if (status != EXIT_DONE)
            return status;
        size_t i;
        const json_t *job;
        gone = true;
        json_array_foreach(json_object_get(answer, "items"), i, job)
        {
            gone &= !json_is_true(json_object_get(job, "deleted"));
        }
        json_decref(answer);
        if (!gone)
            pause_ms(100);
    }
    return EXIT_DONE;
}

/* One request, however many there are. */
static int delete_all(cluster *k, bool wait)
{
    char path[PATH_TEXT];
    json_t *answer = NULL;
    const char *ns = k->ns;
    snprintf(path, sizeof path, "/api/v1/jobs?namespace=%s", ns);
    int status = cluster_ask(k, "DELETE", path, 0, &answer);
    if (status == EXIT_DONE && wait)
        status = await_all(k, ns);
    size_t i;
    const json_t *id;
    json_array_foreach(json_object_get(answer, "items"), i, id)
    {
        if (status == EXIT_DONE)
            printf("%s deleted\n", json_string_value(id));
    }
    json_decref(answer);
    return status;
}

static int run_delete(cli *c)
{
    bool all = false, wait = false;
    cluster k;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        if (option == ALL)
            all = true;
        else
            wait = true;
    }
    if (all == (cli_count(c) > 0))
        return usage_error("delete", all ? "--all takes no names" : "which jobs?");
    int status = cluster_open(&k, c);
    if (status == EXIT_DONE)
        status = all ? delete_all(&k, wait)
                     : delete_jobs(&k, (const char *const *)c->argv + c->first,
                                   (size_t)cli_count(c), wait);
    cluster_close(&k);
    return status;
}

static const cli_option delete_options[] = {
    {WAIT, "wait", NULL, "until they are gone", NULL},
    {ALL, "all", NULL, "all jobs of the namespace", NULL},
    {0},
};

const cli_command command_delete = {
    .name = "delete",
    .summary = "stop jobs and remove them with their files",
    .usage = "[--wait] JOB... | --all",
    .text = "Stops jobs and removes them, with their checkpoints, shared files and logs.",
    .options = delete_options,
    .arguments = COMPLETE_JOB,
    .flags = CLI_CLUSTER,
    .run = run_delete,
};
