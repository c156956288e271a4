/* `adaptdl version` and `adaptdl completion`. */
#include "commands.h"

#include "adaptdl/status.h"

#include <string.h>

static int run_version(cli *c)
{
    int status;
    if (cli_no_options(c, &status))
        printf("adaptdl %s\n", adl_version());
    return status;
}

const cli_command command_version = {
    .name = "version",
    .summary = "show the version",
    .usage = "",
    .text = "Shows the version of this program. That of the cluster: adaptdl top --once",
    .run = run_version,
};

static int run_completion(cli *c)
{
    int status;
    if (!cli_no_options(c, &status))
        return status;
    const char *shell = cli_argument(c, 0);
    if (!shell || cli_count(c) > 1)
        return usage_error("completion", "which shell: bash, zsh or fish?");
    if (strcmp(shell, "bash") == 0)
        cli_print_bash(stdout);
    else if (strcmp(shell, "zsh") == 0)
        cli_print_zsh(stdout);
    else if (strcmp(shell, "fish") == 0)
        cli_print_fish(stdout);
    else
        return usage_error("completion", "shell \"%s\": must be bash, zsh or fish", shell);
    return EXIT_DONE;
}

const cli_command command_completion = {
    .name = "completion",
    .summary = "print a completion script for bash, zsh or fish",
    .usage = "bash|zsh|fish",
    .text = "Prints a script that completes commands, options and names of jobs and nodes.",
    .examples = "source <(adaptdl completion bash)\n"
                "adaptdl completion zsh > ~/.zfunc/_adaptdl\n"
                "adaptdl completion fish > ~/.config/fish/completions/adaptdl.fish",
    .arguments = "bash zsh fish",
    .run = run_completion,
};
