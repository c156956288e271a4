/* `adaptdl run` and `adaptdl scale`: training without a cluster, on as many replicas as one likes at the
 * moment. */
#include "cluster.h"
#include "commands.h"

#include "base/mem.h"
#include "launch/agent.h"
#include "launch/launch.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    OPTION_CHECKPOINT = 256,
    OPTION_MAX_RESTARTS,
    OPTION_NAME,
    OPTION_GRACE,
    OPTION_HOSTS,
    OPTION_SSH,
    OPTION_AUTO
};

static int parse_run(cli *c, int option, adli_launch_options *options)
{
    int grace_s;
    switch (option) {
    case 'q':
        options->level = ADL_LOG_WARNING;
        break;
    case 'v':
        options->level = ADL_LOG_DEBUG;
        break;
    case OPTION_CHECKPOINT:
        options->checkpoint = c->value;
        break;
    case OPTION_NAME:
        options->name = c->value;
        break;
    case OPTION_HOSTS:
        options->hosts = c->value;
        break;
    case OPTION_SSH:
        options->ssh = c->value;
        break;
    case 'n':
        if (!cli_whole(c->value, 1, ADLI_LAUNCH_REPLICAS_MAX, &options->replicas))
            return usage_error("run", "-n %s: must be from 1 to %d", c->value,
                               ADLI_LAUNCH_REPLICAS_MAX);
        break;
    case OPTION_MAX_RESTARTS:
        if (!cli_whole(c->value, 0, 1000000, &options->max_restarts))
            return usage_error("run", "--max-restarts %s: must be from 0 to 1000000", c->value);
        break;
    case OPTION_GRACE:
        if (!cli_whole(c->value, 0, 86400, &grace_s))
            return usage_error("run", "--grace %s: must be from 0 to 86400", c->value);
        options->grace_s = grace_s;
        break;
    }
    return EXIT_DONE;
}

/* One replica for each machine, unless -n says otherwise. */
static int count_hosts(const char *list)
{
    int count = 1;
    for (const char *at = list; at && *at; at++)
        count += *at == ',';
    return count < ADLI_LAUNCH_REPLICAS_MAX ? count : ADLI_LAUNCH_REPLICAS_MAX;
}

static int not_executable(const char *program)
{
    return problem(
        "run", EXIT_USAGE,
        "%s: may not be executed; if it is a program: chmod +x %s, if a script: name what "
        "runs it, as in: adaptdl run -- sh %s",
        program, program, program);
}

static bool names_its_interpreter(const char *path)
{
    char start[2] = "";
    FILE *file = fopen(path, "re");
    bool named = file && fread(start, 1, 2, file) == 2 && memcmp(start, "#!", 2) == 0;
    if (file)
        fclose(file);
    return named;
}

typedef enum { PROGRAM, SCRIPT, OWN_SCRIPT } kind_of_program;

/* FILE.py that is there is a SCRIPT for python3, with or without a run bit; one that may be executed and begins with
 * "#!" says itself what runs it. Anything else is a PROGRAM. */
static kind_of_program kind_of(const char *program)
{
    const char *ending = strrchr(program, '.');
    struct stat seen;
    if (!ending || strcmp(ending, ".py") != 0 || stat(program, &seen) != 0 ||
        !S_ISREG(seen.st_mode))
        return PROGRAM;
    return access(program, X_OK) == 0 && names_its_interpreter(program) ? OWN_SCRIPT : SCRIPT;
}

/* The program could not be started: what is to be done about that? */
static int advise(const char *program)
{
    struct stat seen;
    if (stat(program, &seen) != 0)
        return report_error("run", EXIT_USAGE);
    if (S_ISDIR(seen.st_mode))
        return problem("run", EXIT_USAGE, "%s: is a directory, not a program", program);
    if (S_ISREG(seen.st_mode) && access(program, X_OK) != 0)
        return not_executable(program);
    if (S_ISREG(seen.st_mode) && !strchr(program, '/'))
        return problem("run", EXIT_USAGE, "%s; it is in this directory: adaptdl run ./%s",
                       adl_error(), program);
    return report_error("run", EXIT_USAGE);
}

static int launch(adli_launch_options *options, char **words, int count)
{
    static char python[] = "python3";
    kind_of_program kind = kind_of(words[0]);
    char here[PATH_MAX], **argv = adli_calloc((size_t)count + 2, sizeof *argv);
    int status;
    if (!argv)
        return problem("run", EXIT_USAGE, "out of memory");
    argv[0] = python;
    memcpy(argv + (kind == SCRIPT), words, (size_t)count * sizeof *argv);
    if (kind == OWN_SCRIPT && !strchr(words[0], '/') &&
        snprintf(here, sizeof here, "./%s", words[0]) < (int)sizeof here)
        argv[0] = here; /* not that of PATH */
    if (kind == SCRIPT && options->level <= ADL_LOG_INFO)
        fprintf(stderr, "adaptdl run: %s is run by python3\n", words[0]);
    options->argv = argv;
    options->program = words[0];
    if (adli_launch(options, &status) != ADL_OK)
        status = kind == SCRIPT ? report_error("run", EXIT_USAGE) : advise(words[0]);
    free(argv);
    return status;
}

static int run_run(cli *c)
{
    if (c->argc == 2 && strcmp(c->argv[1], "--as-replica") == 0)
        return adli_agent_run(); /* by our own ssh: no option of people's */
    adli_launch_options options = {.grace_s = 30};
    if (adli_log_level(0, &options.level) != ADL_OK)
        return report_error("run", EXIT_USAGE);
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        int status = parse_run(c, option, &options);
        if (status != EXIT_DONE)
            return status;
    }
    if (cli_count(c) == 0)
        return usage_error("run", "which program?");
    if (options.ssh && !options.hosts)
        return usage_error("run", "--ssh goes with --hosts");
    if (options.replicas == 0)
        options.replicas = count_hosts(options.hosts);
    return launch(&options, c->argv + c->first, cli_count(c));
}

static const cli_option run_options[] = {
    {'n', "replicas", "R", "how many (default 1, or one for each of the hosts)", NULL},
    {OPTION_HOSTS, "hosts", "A,B", "run on these machines, over ssh, in the same directory there",
     NULL},
    {OPTION_SSH, "ssh", "COMMAND", "how to reach them, for example \"ssh -p 2222\" (default ssh)",
     NULL},
    {OPTION_CHECKPOINT, "checkpoint", "DIR",
     "where to save (default: $ADAPTDL_CHECKPOINT_PATH, or nowhere)", COMPLETE_DIR},
    {OPTION_MAX_RESTARTS, "max-restarts", "K", "start again after up to K failures (default 0)",
     NULL},
    {OPTION_NAME, "name", "NAME", "for adaptdl scale (default: the program's name and a number)",
     NULL},
    {OPTION_GRACE, "grace", "S", "seconds from SIGTERM to SIGKILL (default 30)", NULL},
    {'q', "quiet", NULL, "show no messages but those of replicas and failures", NULL},
    {'v', "verbose", NULL, "show more (or set ADAPTDL_LOG: debug, info, warning, error, off)",
     NULL},
    {0},
};

const cli_command command_run = {
    .name = "run",
    .summary = "run a training program on several replicas, without a cluster",
    .usage = "[OPTIONS] [--] PROGRAM [ARGUMENTS]",
    .text =
        "Runs a training program on several replicas on this machine, without a cluster. Their "
        "lines are shown with their ranks. A script FILE.py is run by python3, unless it may be "
        "executed and names what runs it in its first line (#!). CTRL-C saves a "
        "checkpoint and stops; the same command "
        "goes on from there, on any number of replicas.\n\n"
        "With --hosts the replicas are on other machines, as evenly dealt out as can be, rank 0 on "
        "the first. Each must have adaptdl and the program, in a directory of the same name, and "
        "let ssh in without a password; the others must reach the first by its name.",
    .options = run_options,
    .exits = "0 finished, 143 stopped as asked, 2 the program could not be started, otherwise that "
             "of the replica that failed (128 + N when signal N killed it).",
    .arguments = COMPLETE_FILE,
    .flags = CLI_FIRST,
    .run = run_run,
};

/* A job of the cluster; replicas 0: says how it is, unless the policy is to decide again. */
static int scale_job(const cli *c, int replicas, bool automatic)
{
    cluster k;
    job_name name;
    json_t *job = NULL;
    char path[PATH_TEXT], rest[64] = "";
    int status = cluster_open_local(&k, c);
    if (automatic)
        snprintf(rest, sizeof rest, "/scale?auto=1");
    else if (replicas > 0)
        snprintf(rest, sizeof rest, "/scale?replicas=%d", replicas);
    if (status == EXIT_DONE)
        status = cluster_job_name(&k, cli_argument(c, 0), &name);
    if (status == EXIT_DONE)
        status = cluster_ask(&k, *rest ? "POST" : "GET", job_path(&name, rest, path), 0, &job);
    if (status == EXIT_DONE) {
        int pinned = whole_of(job, "pinned");
        printf("%s/%s: %s, %d replicas, ", name.ns, name.name, text_of(job, "phase", "?"),
               whole_of(job, "replicas"));
        if (pinned > 0)
            printf("pinned to %d\n", pinned);
        else
            puts("not pinned");
    }
    json_decref(job);
    cluster_close(&k);
    return status;
}

/* Was a cluster named, or has one been started here? */
static bool has_cluster(const cli *c)
{
    cluster k;
    bool there = cluster_open_local(&k, c) == EXIT_DONE &&
                 (!k.server.socket_path || access(k.server.socket_path, F_OK) == 0);
    cluster_close(&k);
    return there;
}

static int run_scale(cli *c)
{
    int replicas = 0;
    bool force = false, automatic = false;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        force |= option == 'f';
        automatic |= option == OPTION_AUTO;
    }
    if (cli_count(c) < 1 || cli_count(c) > (automatic ? 1 : 2))
        return usage_error("scale", "expected the name of a run or job, and a number or --auto");
    const char *number = cli_argument(c, 1);
    if (number && !cli_whole(number, 1, ADLI_LAUNCH_REPLICAS_MAX, &replicas))
        return usage_error("scale", "%s replicas: must be from 1 to %d", number,
                           ADLI_LAUNCH_REPLICAS_MAX);
    if (automatic)
        return scale_job(c, 0, true);
    adli_buf answer;
    adli_buf_init(&answer, 4096);
    adl_status result = adli_launch_scale(cli_argument(c, 0), replicas, force, &answer);
    if (result == ADL_OK)
        printf("%s\n", answer.data);
    adli_buf_fini(&answer);
    if (result == ADL_OK)
        return EXIT_DONE;
    if (result == ADL_ENOENT && has_cluster(c)) /* no run of this machine: a job */
        return scale_job(c, replicas, false);
    bool no_such_run = result == ADL_ENOENT || result == ADL_EINVAL;
    return report_error("scale", no_such_run ? EXIT_USAGE : EXIT_PROBLEM);
}

static const cli_option scale_options[] = {
    {'f', "force", NULL,
     "also when the run saves no checkpoints, and so starts from its first step", NULL},
    {OPTION_AUTO, "auto", NULL, "a job: the scheduler decides again", NULL},
    {0},
};

const cli_command command_scale = {
    .name = "scale",
    .summary = "change the number of replicas of a run or a job",
    .usage = "[OPTIONS] RUN|JOB [REPLICAS]",
    .text =
        "Asks a run of `adaptdl run` on this machine, or a job of the cluster, for another number "
        "of replicas. It changes while it runs where its program can; else it saves a checkpoint "
        "and starts again on so many. A job keeps the number (it is pinned) until --auto. Without "
        "a number: says how it is.",
    .options = scale_options,
    .exits = "0 done, 1 it refused or does not answer, 2 there is no such run, or "
             "no such job.",
    .arguments = COMPLETE_JOB,
    .flags = CLI_CLUSTER,
    .run = run_scale,
};
