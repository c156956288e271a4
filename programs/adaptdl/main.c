/* The command-line program: finds the command and calls it. Everything else is in cmd_*.c. */
#include "commands.h"
#include "term.h"

#include "adaptdl/status.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

/* In order of name. */
static const cli_command *const commands[] = {
    &command_backup,  &command_cancel,      &command_completion, &command_context,
    &command_cp,      &command_dashboard,   &command_delete,     &command_describe,
    &command_down,    &command_drain,       &command_events,     &command_exec,
    &command_explain, &command_help,        &command_init,       &command_logs,
    &command_ls,      &command_model,       &command_nodes,      &command_ray,
    &command_rerun,   &command_restore,     &command_resume,     &command_run,
    &command_scale,   &command_sim,         &command_status,     &command_submit,
    &command_suspend, &command_tensorboard, &command_top,        &command_undrain,
    &command_up,      &command_version,     &command_wait,
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

const cli_command *cli_list(int index)
{
    return index < COMMANDS ? commands[index] : NULL;
}

const cli_command *cli_find(const char *name)
{
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

static int run(int argc, char **argv)
{
    const cli_command *command = cli_find(argv[0]);
    if (!command) {
        const char *names[COMMANDS];
        char hint[HINT_TEXT];
        for (int i = 0; i < COMMANDS; i++)
            names[i] = commands[i]->name;
        fprintf(stderr, "adaptdl: unknown command \"");
        term_line(stderr, argv[0]);
        fprintf(stderr, "\"%s (see: adaptdl --help)\n",
                did_you_mean(argv[0], names, COMMANDS, "adaptdl ", hint));
        return EXIT_USAGE;
    }
    optind = 0; /* glibc: start afresh */
    opterr = 0;
    cli c = {.command = command, .argc = argc, .argv = argv, .first = 1};
    int status = command->run(&c);
    if (fflush(stdout) != 0 || ferror(stdout))
        return problem(argv[0], EXIT_USAGE, "cannot write the output");
    return status;
}

/* "help CMD ARGS" is "CMD ARGS --help" */
static int help(cli *c)
{
    enum { MOST = 8 };
    static char option[] = "--help";
    char *arguments[MOST + 2];
    int count = 0;
    for (; count < c->argc - 1 && count < MOST; count++)
        arguments[count] = c->argv[count + 1];
    if (count == 0) {
        cli_print_overview(stdout);
        return EXIT_DONE;
    }
    if (strcmp(arguments[0], "--man") == 0) {
        cli_print_man(stdout);
        return EXIT_DONE;
    }
    if (strcmp(arguments[0], "--help") == 0 || strcmp(arguments[0], "-h") == 0) {
        cli_print_help(c->command, stdout);
        return EXIT_DONE;
    }
    arguments[count++] = option;
    arguments[count] = NULL;
    return run(count, arguments);
}

static const cli_option help_options[] = {
    {256, "man", NULL, "print the manual page (read it with: adaptdl help --man | man -l -)", NULL},
    {0},
};

const cli_command command_help = {
    .name = "help",
    .summary = "show the help of a command, or the manual page",
    .usage = "[COMMAND]",
    .text = "Shows what a command does and its options; without one, the list of commands.",
    .options = help_options,
    .arguments = COMPLETE_COMMAND,
    .run = help,
};

int main(int argc, char **argv)
{
    static char help_name[] = "help", version_name[] = "version";
    if (argc < 2) {
        cli_print_overview(stdout);
        return EXIT_DONE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        argv[1] = help_name;
    if (strcmp(argv[1], "--version") == 0)
        argv[1] = version_name;
    return run(argc - 1, argv + 1);
}
