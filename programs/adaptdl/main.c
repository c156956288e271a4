/* The command-line program: finds the command and calls it. Everything else is in cmd_*.c. */
#include "commands.h"

#include "adaptdl/status.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *summary;
    command_function *run;
} commands[] = {
    {"model", "ask the goodput models: evaluate, optimize, fit, speedup, plot", cmd_model},
    {"run", "run a training program on several replicas on this machine", cmd_run},
    {"scale", "change the number of replicas of a run", cmd_scale},
    {"sim", "replay recorded workloads through scheduling policies", cmd_sim},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(void)
{
    printf("adaptdl - elastic training of neural networks on shared clusters\n\n"
           "Usage: adaptdl COMMAND [OPTIONS] [ARGUMENTS]\n\nCommands:\n");
    for (int i = 0; i < COMMANDS; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    printf("  %-10s %s\n", "help", "show the help of a command: adaptdl help COMMAND");
    printf("  %-10s %s\n", "version", "show the version");
    printf("\nExit status: 0 done, 1 something was wrong with the input, 2 wrong usage.\n");
}

int usage_error(const char *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "adaptdl %s: ", command);
    vfprintf(stderr, format, args);
    fprintf(stderr, " (see: adaptdl help %s)\n", command);
    va_end(args);
    return EXIT_USAGE;
}

int option_error(const char *command, char **argv)
{
    const char *last = argv[optind > 0 ? optind - 1 : 0];
    if (optopt > ' ' && optopt < 127 && strncmp(last, "--", 2) != 0)
        return usage_error(command, "option -%c is unknown or lacks its value", optopt);
    return usage_error(command, "option %s is unknown or lacks its value", last);
}

int report_error(const char *command, int status)
{
    fprintf(stderr, "adaptdl %s: %s\n", command, adl_error());
    return status;
}

static int run(int argc, char **argv)
{
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(commands[i].name, argv[0]) != 0)
            continue;
        optind = 0; /* glibc: start afresh */
        opterr = 0;
        int status = commands[i].run(argc, argv);
        if (fflush(stdout) != 0 || ferror(stdout)) {
            fprintf(stderr, "adaptdl %s: cannot write the output\n", argv[0]);
            return EXIT_USAGE;
        }
        return status;
    }
    fprintf(stderr, "adaptdl: unknown command \"%s\" (see: adaptdl --help)\n", argv[0]);
    return EXIT_USAGE;
}

/* "help CMD ARGS" is "CMD ARGS --help" */
static int help(int argc, char **argv)
{
    enum { MOST = 8 };
    static char option[] = "--help";
    char *arguments[MOST + 2];
    int count = 0;
    if (argc < 1) {
        print_help();
        return EXIT_DONE;
    }
    for (; count < argc && count < MOST; count++)
        arguments[count] = argv[count];
    arguments[count++] = option;
    arguments[count] = NULL;
    return run(count, arguments);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "adaptdl: no command given (see: adaptdl --help)\n");
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0)
        return help(argc - 2, argv + 2);
    if (strcmp(argv[1], "version") == 0 || strcmp(argv[1], "--version") == 0) {
        printf("adaptdl %s\n", adl_version());
        return EXIT_DONE;
    }
    return run(argc - 1, argv + 1);
}
