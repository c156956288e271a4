/* The commands of `adaptdl`. To add one: a file cmd_NAME.c with its cli_command, a declaration
 * here, and one line in the table of main.c. Help, man page and completion follow from the
 * cli_command. */
#ifndef ADAPTDL_COMMANDS_H
#define ADAPTDL_COMMANDS_H

#include "cli.h"

extern const cli_command command_backup, command_cancel, command_completion, command_context,
    command_cp, command_dashboard, command_delete, command_describe, command_down, command_drain,
    command_events, command_exec, command_explain, command_help, command_init, command_logs,
    command_ls, command_model, command_nodes, command_ray, command_rerun, command_restore,
    command_resume, command_run, command_scale, command_sim, command_status, command_submit,
    command_suspend, command_tensorboard, command_top, command_undrain, command_up, command_version,
    command_wait;

#endif
