/* `adaptdl run` and `adaptdl scale`: training on this machine, on as many replicas as one likes at the
 * moment. */
#include "commands.h"

#include "launch/launch.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_CHECKPOINT = 256, OPTION_MAX_RESTARTS, OPTION_NAME, OPTION_GRACE };

static int help_run(void)
{
    printf(
        "Usage: adaptdl run [OPTIONS] [--] PROGRAM [ARGUMENTS]\n\n"
        "Runs a training program on several replicas on this machine. Their lines are shown with\n"
        "their ranks. CTRL-C saves a checkpoint and stops; the same command goes on from there,\n"
        "on any number of replicas.\n\n"
        "  -n, --replicas R     how many (default 1)\n"
        "  --checkpoint DIR     where to save (default: $ADAPTDL_CHECKPOINT_PATH, or nowhere)\n"
        "  --max-restarts K     start again after up to K failures (default 0)\n"
        "  --name NAME          for adaptdl scale (default: the program's name and a number)\n"
        "  --grace S            seconds from SIGTERM to SIGKILL (default 30)\n"
        "  -q, --quiet          show no messages but those of replicas and failures\n\n"
        "Exit status: 0 finished, 143 stopped as asked, 2 the program could not be started,\n"
        "otherwise that of the replica that failed (128 + N when signal N killed it).\n");
    return EXIT_DONE;
}

/* A whole number within low .. high into *out. */
static bool parse(const char *text, long low, long high, int *out)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < low || value > high)
        return false;
    *out = (int)value;
    return true;
}

int cmd_run(int argc, char **argv)
{
    static const struct option long_options[] = {
        {"replicas", required_argument, NULL, 'n'},
        {"checkpoint", required_argument, NULL, OPTION_CHECKPOINT},
        {"max-restarts", required_argument, NULL, OPTION_MAX_RESTARTS},
        {"name", required_argument, NULL, OPTION_NAME},
        {"grace", required_argument, NULL, OPTION_GRACE},
        {"quiet", no_argument, NULL, 'q'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    adli_launch_options options = {.replicas = 1, .grace_s = 30};
    int option, grace_s;
    while ((option = getopt_long(argc, argv, "+:n:qh", long_options, NULL)) != -1) {
        if (option == 'h')
            return help_run();
        if (option == 'q')
            options.quiet = true;
        else if (option == OPTION_CHECKPOINT)
            options.checkpoint = optarg;
        else if (option == OPTION_NAME)
            options.name = optarg;
        else if (option == 'n') {
            if (!parse(optarg, 1, ADLI_LAUNCH_REPLICAS_MAX, &options.replicas))
                return usage_error("run", "-n %s: must be from 1 to %d", optarg,
                                   ADLI_LAUNCH_REPLICAS_MAX);
        } else if (option == OPTION_MAX_RESTARTS) {
            if (!parse(optarg, 0, 1000000, &options.max_restarts))
                return usage_error("run", "--max-restarts %s: must be from 0 to 1000000", optarg);
        } else if (option == OPTION_GRACE) {
            if (!parse(optarg, 0, 86400, &grace_s))
                return usage_error("run", "--grace %s: must be from 0 to 86400", optarg);
            options.grace_s = grace_s;
        } else {
            return option_error("run", argv);
        }
    }
    if (optind >= argc)
        return usage_error("run", "which program?");
    options.argv = argv + optind;
    int exit_code;
    if (adli_launch(&options, &exit_code) != ADL_OK)
        return report_error("run", EXIT_USAGE);
    return exit_code;
}

static int help_scale(void)
{
    printf(
        "Usage: adaptdl scale RUN [REPLICAS]\n\n"
        "Asks a run of `adaptdl run` on this machine for another number of replicas: it saves a\n"
        "checkpoint and starts again on so many. Without a number: says how the run is.\n\n"
        "Exit status: 0 done, 1 the run refused or does not answer, 2 there is no such run.\n");
    return EXIT_DONE;
}

int cmd_scale(int argc, char **argv)
{
    static const struct option long_options[] = {{"help", no_argument, NULL, 'h'}, {0}};
    int option, replicas = 0;
    while ((option = getopt_long(argc, argv, ":h", long_options, NULL)) != -1) {
        if (option == 'h')
            return help_scale();
        return option_error("scale", argv);
    }
    if (argc - optind < 1 || argc - optind > 2)
        return usage_error("scale", "expected the name of a run and a number");
    if (argc - optind == 2 && !parse(argv[optind + 1], 1, ADLI_LAUNCH_REPLICAS_MAX, &replicas))
        return usage_error("scale", "%s replicas: must be from 1 to %d", argv[optind + 1],
                           ADLI_LAUNCH_REPLICAS_MAX);
    adli_buf answer;
    adli_buf_init(&answer, 4096);
    adl_status status = adli_launch_scale(argv[optind], replicas, &answer);
    if (status == ADL_OK)
        printf("%s\n", answer.data);
    adli_buf_fini(&answer);
    if (status == ADL_OK)
        return EXIT_DONE;
    bool no_such_run = status == ADL_ENOENT || status == ADL_EINVAL;
    return report_error("scale", no_such_run ? EXIT_USAGE : EXIT_PROBLEM);
}
