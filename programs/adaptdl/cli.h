/* What a command is: one table of names, texts and options, from which its --help, its part of
 * the man page, its completion and the parsing of its command line are made. */
#ifndef ADAPTDL_CLI_H
#define ADAPTDL_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Exit statuses; cli_exits tells their meanings. */
enum {
    EXIT_DONE = 0,
    EXIT_PROBLEM = 1,
    EXIT_USAGE = 2,
    EXIT_TIMEOUT = 3,
    EXIT_ABSENT = 4,
    EXIT_NO_CLUSTER = 5,
    EXIT_REFUSED = 6,
    EXIT_INTERRUPTED = 130,
};

typedef struct cli cli;

/* What completes a value or an argument: words with spaces between them, or one of these. */
#define COMPLETE_JOB     "@job"
#define COMPLETE_NODE    "@node"
#define COMPLETE_FILE    "@file"
#define COMPLETE_DIR     "@dir"
#define COMPLETE_COMMAND "@command"

typedef struct cli_option {
    int id;               /* its letter, or from 256 on when it has none */
    const char *name;     /* long, without "--"; NULL: only a letter */
    const char *value;    /* "DIR": it takes one; NULL: it does not */
    const char *text;     /* what it does, in one piece */
    const char *complete; /* of the value; NULL: nothing */
} cli_option;

enum {
    CLI_CLUSTER = 1, /* talks to a scheduler: --server, --state, --ca, --namespace */
    CLI_OUTPUT = 2,  /* prints data: --output */
    CLI_FIRST = 4,   /* options end at the first argument */
};

typedef struct cli_command {
    const char *name;
    const char *summary;       /* half a line, lower case */
    const char *usage;         /* after "adaptdl NAME" */
    const char *text;          /* paragraphs; lines that start with a space stay as they are */
    const cli_option *options; /* ends with {0}; NULL: none */
    const char *exits;         /* what differs from cli_exits; NULL: nothing */
    const char *examples;      /* command lines; NULL: none */
    const char *arguments;     /* completes them; NULL: nothing */
    int flags;
    void (*more)(FILE *out); /* goes on after the options; may be NULL */
    int (*run)(cli *c);
} cli_command;

typedef enum cli_format {
    FORMAT_TABLE,
    FORMAT_WIDE,
    FORMAT_JSON,
    FORMAT_YAML,
    FORMAT_NAME
} cli_format;

/* A command line being read. */
struct cli {
    const cli_command *command;
    int argc;
    char **argv;       /* argv[0] is the command's name */
    const char *value; /* of the option that cli_next gave */
    int first;         /* after CLI_END: index of the first argument */
    /* the common options */
    const char *server, *state, *ca, *ns, *context;
    bool kubernetes;
    cli_format format;
};

enum { CLI_END = -1, CLI_HELP = -2, CLI_BAD = -3 };

/* The next option's id, or: CLI_END no more; CLI_HELP help was asked for and printed; CLI_BAD
 * the command line is wrong, and was told so. The common options are kept in *c and not given. */
int cli_next(cli *c);
/* The exit status after CLI_HELP or CLI_BAD. */
static inline int cli_result(int option)
{
    return option == CLI_HELP ? EXIT_DONE : EXIT_USAGE;
}
/* Reads all common options; for commands that have no others. *status: what to return when
 * false. */
bool cli_no_options(cli *c, int *status);

static inline int cli_count(const cli *c)
{
    return c->argc - c->first;
}
static inline const char *cli_argument(const cli *c, int index)
{
    return index < cli_count(c) ? c->argv[c->first + index] : NULL;
}

/* A whole number within low .. high into *out. */
bool cli_whole(const char *text, long low, long high, int *out);
/* A number within low .. high. */
bool cli_number(const char *text, double low, double high, double *out);

/* The commands, in order of name; NULL after the last. */
const cli_command *cli_list(int index);
const cli_command *cli_find(const char *name);

/* The options of a command: its own, then the common ones, then --help. NULL after the last. */
const cli_option *cli_option_at(const cli_command *command, int index);

typedef struct cli_exit {
    int status;
    const char *meaning;
} cli_exit;
/* Ends with a meaning of NULL. */
extern const cli_exit cli_exits[];

/* Help of one command, of all, the man page, and the completions (completion.c). */
void cli_print_help(const cli_command *command, FILE *out);
void cli_print_overview(FILE *out);
void cli_print_man(FILE *out);
void cli_print_bash(FILE *out);
void cli_print_zsh(FILE *out);
void cli_print_fish(FILE *out);

/* "adaptdl COMMAND: TEXT (see: adaptdl help COMMAND)" on stderr; returns EXIT_USAGE. */
int usage_error(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "adaptdl COMMAND: TEXT", returns status. Control characters in TEXT are made harmless. */
int problem(const char *command, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
enum { HINT_TEXT = 120 };
/* "; did you mean PREFIXNAME?" for a name that begins with the word, else the nearest; "" when none is near. */
const char *did_you_mean(const char *word, const char *const *names, size_t count,
                         const char *prefix, char out[HINT_TEXT]);
/* For the '?' and ':' of getopt_long: names the option that argv holds at fault. */
int option_error(const char *command, char **argv);
/* "adaptdl COMMAND: " and the library's present error on stderr; returns status. */
int report_error(const char *command, int status);

#endif
