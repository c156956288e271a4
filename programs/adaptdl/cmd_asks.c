/* `adaptdl cancel`, `suspend`, `resume` and `rerun`: what users ask of jobs that they keep. */
#include "cluster.h"
#include "commands.h"
#include "term.h"

#include <string.h>

/* One request; *job (may be NULL): the answer, json_decref. */
static int ask(cluster *k, const char *verb, const char *text, job_name *name, json_t **job)
{
    char path[PATH_TEXT], rest[16];
    int status = cluster_job_name(k, text, name);
    snprintf(rest, sizeof rest, "/%s", verb);
    return status == EXIT_DONE ? cluster_ask(k, "POST", job_path(name, rest, path), 0, job)
                               : status;
}

/* The verb for every job that was named, each told with the word. */
static int ask_all(cli *c, const char *word)
{
    int status;
    cluster k;
    job_name name;
    if (!cli_no_options(c, &status))
        return status;
    if (cli_count(c) == 0)
        return usage_error(c->command->name, "which jobs?");
    status = cluster_open(&k, c);
    for (int i = 0; status == EXIT_DONE && i < cli_count(c); i++) {
        status = ask(&k, c->command->name, cli_argument(c, i), &name, NULL);
        if (status == EXIT_DONE)
            printf("%s/%s %s\n", name.ns, name.name, word);
    }
    cluster_close(&k);
    return status;
}

static int run_cancel(cli *c)
{
    return ask_all(c, "cancelled");
}

const cli_command command_cancel = {
    .name = "cancel",
    .summary = "stop jobs for good, and keep their files",
    .usage = "JOB...",
    .text =
        "Stops jobs for good: they save a checkpoint, end, and are shown as Failed with the reason "
        "Cancelled. Their files, logs and history stay until adaptdl delete.",
    .arguments = COMPLETE_JOB,
    .flags = CLI_CLUSTER,
    .run = run_cancel,
};

static int run_suspend(cli *c)
{
    return ask_all(c, "suspended");
}

const cli_command command_suspend = {
    .name = "suspend",
    .summary = "stop jobs until adaptdl resume",
    .usage = "JOB...",
    .text =
        "Stops jobs: they save a checkpoint and are Pending, with the reason Suspended and without "
        "replicas, until adaptdl resume.",
    .arguments = COMPLETE_JOB,
    .flags = CLI_CLUSTER,
    .run = run_suspend,
};

static int run_resume(cli *c)
{
    return ask_all(c, "resumed");
}

const cli_command command_resume = {
    .name = "resume",
    .summary = "let suspended jobs go on",
    .usage = "JOB...",
    .text = "Lets jobs that were suspended go on from their checkpoints.",
    .arguments = COMPLETE_JOB,
    .flags = CLI_CLUSTER,
    .run = run_resume,
};

static int run_rerun(cli *c)
{
    int status;
    cluster k;
    job_name name;
    json_t *job = NULL;
    if (!cli_no_options(c, &status))
        return status;
    if (cli_count(c) != 1)
        return usage_error("rerun", "expected the name of one job");
    status = cluster_open(&k, c);
    if (status == EXIT_DONE)
        status = ask(&k, "rerun", cli_argument(c, 0), &name, &job);
    if (status == EXIT_DONE && (c->format == FORMAT_JSON || c->format == FORMAT_YAML)) {
        status = print_value(c, job);
    } else if (status == EXIT_DONE) {
        term_line(stdout, text_of(job, "name", "?"));
        putchar('\n');
    }
    json_decref(job);
    cluster_close(&k);
    return status;
}

const cli_command command_rerun = {
    .name = "rerun",
    .summary = "submit a job once more, as it was submitted",
    .usage = "JOB",
    .text =
        "Submits a job that the cluster has, running or over, once more: the same job file and the "
        "same files, from its first step, under a new name, which is printed.",
    .arguments = COMPLETE_JOB,
    .flags = CLI_CLUSTER | CLI_OUTPUT,
    .run = run_rerun,
};
