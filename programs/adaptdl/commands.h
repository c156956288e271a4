/* The commands of `adaptdl`. To add one: a file cmd_NAME.c with its function, its prototype here,
 * and one line in the table of main.c. */
#ifndef ADAPTDL_COMMANDS_H
#define ADAPTDL_COMMANDS_H

/* A command gets its own name as argv[0] and returns the exit status: 0 done, 1 it ran and
 * something was wrong with what it was given or did, 2 it was called wrongly or a file could not be
 * used. --help must print help to stdout and return 0. getopt_long is ready for use, and silent
 * (opterr = 0). */
typedef int command_function(int argc, char **argv);

enum { EXIT_DONE = 0, EXIT_PROBLEM = 1, EXIT_USAGE = 2 };

int cmd_model(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_scale(int argc, char **argv);
int cmd_sim(int argc, char **argv);

/* "adaptdl COMMAND: TEXT (see: adaptdl help COMMAND)" on stderr; returns EXIT_USAGE. */
int usage_error(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* For the '?' and ':' of getopt_long: names the option that argv holds at fault. */
int option_error(const char *command, char **argv);

/* "adaptdl COMMAND: " and the library's present error on stderr; returns status. */
int report_error(const char *command, int status);

#endif
