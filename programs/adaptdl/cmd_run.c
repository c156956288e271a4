/* `adaptdl run` and `adaptdl scale`: training without a cluster, on as many replicas as one likes at the
 * moment. */
#include "commands.h"

#include "base/mem.h"
#include "launch/agent.h"
#include "launch/launch.h"

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
    OPTION_SSH
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

/* A script that python3 has to run: FILE.py, unless it is named by a path and can be executed. */
static bool is_script(const char *program)
{
    const char *ending = strrchr(program, '.');
    return ending && strcmp(ending, ".py") == 0 && access(program, R_OK) == 0 &&
           !(strchr(program, '/') && access(program, X_OK) == 0);
}

/* The program could not be started: what is to be done about that? */
static int advise(const char *program)
{
    struct stat seen;
    if (stat(program, &seen) != 0 || !S_ISREG(seen.st_mode))
        return report_error("run", EXIT_USAGE);
    if (access(program, X_OK) != 0)
        return not_executable(program);
    if (!strchr(program, '/'))
        return problem("run", EXIT_USAGE, "%s; it is in this directory: adaptdl run ./%s",
                       adl_error(), program);
    return report_error("run", EXIT_USAGE);
}

static int launch(adli_launch_options *options, char **words, int count)
{
    static char python[] = "python3";
    bool script = is_script(words[0]);
    char **argv = adli_calloc((size_t)count + 2, sizeof *argv);
    int status;
    if (!argv)
        return problem("run", EXIT_USAGE, "out of memory");
    argv[0] = python;
    memcpy(argv + script, words, (size_t)count * sizeof *argv);
    options->argv = argv;
    if (adli_launch(options, &status) != ADL_OK)
        status = advise(words[0]);
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
        "lines are shown with their ranks. A script FILE.py is run by python3. CTRL-C saves a "
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

static int run_scale(cli *c)
{
    int replicas = 0;
    bool force = false;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        force |= option == 'f';
    }
    if (cli_count(c) < 1 || cli_count(c) > 2)
        return usage_error("scale", "expected the name of a run and a number");
    const char *number = cli_argument(c, 1);
    if (number && !cli_whole(number, 1, ADLI_LAUNCH_REPLICAS_MAX, &replicas))
        return usage_error("scale", "%s replicas: must be from 1 to %d", number,
                           ADLI_LAUNCH_REPLICAS_MAX);
    adli_buf answer;
    adli_buf_init(&answer, 4096);
    adl_status result = adli_launch_scale(cli_argument(c, 0), replicas, force, &answer);
    if (result == ADL_OK)
        printf("%s\n", answer.data);
    adli_buf_fini(&answer);
    if (result == ADL_OK)
        return EXIT_DONE;
    bool no_such_run = result == ADL_ENOENT || result == ADL_EINVAL;
    return report_error("scale", no_such_run ? EXIT_USAGE : EXIT_PROBLEM);
}

static const cli_option scale_options[] = {
    {'f', "force", NULL,
     "also when the run saves no checkpoints, and so starts from its first step", NULL},
    {0},
};

const cli_command command_scale = {
    .name = "scale",
    .summary = "change the number of replicas of a run",
    .usage = "[OPTIONS] RUN [REPLICAS]",
    .text =
        "Asks a run of `adaptdl run` on this machine for another number of replicas: it saves a "
        "checkpoint and starts again on so many. Without a number: says how the run is.",
    .options = scale_options,
    .exits = "0 done, 1 the run refused or does not answer, 2 there is no such run.",
    .run = run_scale,
};
