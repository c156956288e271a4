/* Command lines against the tables of the commands. */
#include "cli.h"

#include "term.h"

#include "adaptdl/status.h"
#include "doc/doc.h"

#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { OPTIONS_MAX = 48, SERVER = 1000, STATE, CA, KUBERNETES, CONTEXT };

static const cli_option cluster_options[] = {
    {SERVER, "server", "URL",
     "the scheduler: unix:PATH, http://HOST:PORT or https://HOST:PORT (default: $ADAPTDL_SERVER, "
     "else "
     "the socket in the state directory)",
     NULL},
    {STATE, "state", "DIR",
     "state directory of the local cluster (default: $ADAPTDL_STATE, else ~/.local/state/adaptdl)",
     COMPLETE_DIR},
    {CA, "ca", "FILE", "certificates to trust with https (default: $ADAPTDL_CA, else the system's)",
     COMPLETE_FILE},
    {KUBERNETES, "kubernetes", NULL,
     "work on the Kubernetes cluster of the kubeconfig (default when $ADAPTDL_KUBERNETES is set, "
     "or "
     "when no cluster on this machine is up and $KUBECONFIG is set; adaptdl context tells)",
     NULL},
    {CONTEXT, "context", "NAME", "that context of the kubeconfig; with it, as --kubernetes", NULL},
    {'N', "namespace", "NS",
     "namespace of the jobs (default: default; on Kubernetes that of the context)", NULL},
};
static const cli_option output_option = {'o', "output", "FORMAT",
                                         "json, yaml, wide or name (default: a table for people)",
                                         "json yaml wide name"};
static const cli_option help_option = {'h', "help", NULL, "show this help", NULL};

const cli_exit cli_exits[] = {
    {EXIT_DONE, "done"},
    {EXIT_PROBLEM, "the answer is no: a job failed, or lines of the input were wrong"},
    {EXIT_USAGE, "wrong usage, or a file that cannot be used"},
    {EXIT_TIMEOUT, "the time was up (--timeout)"},
    {EXIT_ABSENT, "there is no such job, node or file"},
    {EXIT_NO_CLUSTER, "no cluster answers"},
    {EXIT_REFUSED, "the cluster refused, or failed"},
    {EXIT_INTERRUPTED, "interrupted by CTRL-C"},
    {0, NULL},
};

const cli_option *cli_option_at(const cli_command *command, int index)
{
    enum { CLUSTER = sizeof cluster_options / sizeof cluster_options[0] };
    int own = 0;
    while (command->options && command->options[own].id)
        own++;
    if (index < own)
        return &command->options[index];
    index -= own;
    if (command->flags & CLI_OUTPUT && index-- == 0)
        return &output_option;
    if (command->flags & CLI_CLUSTER) {
        if (index < CLUSTER)
            return &cluster_options[index];
        index -= CLUSTER;
    }
    return index == 0 ? &help_option : NULL;
}

/* The two forms that getopt_long wants. */
static void make_tables(const cli_command *command, struct option *longs, char *shorts)
{
    const cli_option *o;
    int count = 0;
    if (command->flags & CLI_FIRST)
        *shorts++ = '+';
    *shorts++ = ':';
    for (int i = 0; (o = cli_option_at(command, i)) && count + 1 < OPTIONS_MAX; i++) {
        if (o->name)
            longs[count++] = (struct option){o->name, o->value ? 1 : 0, NULL, o->id};
        if (o->id < 256) {
            *shorts++ = (char)o->id;
            if (o->value)
                *shorts++ = ':';
        }
    }
    longs[count] = (struct option){0};
    *shorts = '\0';
}

static bool take_format(cli *c, const char *text)
{
    static const char *const names[] = {"table", "wide", "json", "yaml", "name"};
    for (int i = 0; i < 5; i++) {
        if (strcmp(text, names[i]) == 0) {
            c->format = (cli_format)i;
            return true;
        }
    }
    usage_error(c->command->name, "-o %s: must be json, yaml, wide or name", text);
    return false;
}

int cli_next(cli *c)
{
    struct option longs[OPTIONS_MAX];
    char shorts[3 * OPTIONS_MAX];
    make_tables(c->command, longs, shorts);
    for (;;) {
        int option = getopt_long(c->argc, c->argv, shorts, longs, NULL);
        c->value = optarg;
        c->first = optind;
        if (option == -1)
            return CLI_END;
        if (option == '?' || option == ':') {
            option_error(c->command->name, c->argv);
            return CLI_BAD;
        }
        if (option == 'h') {
            cli_print_help(c->command, stdout);
            return CLI_HELP;
        }
        if (c->command->flags & CLI_OUTPUT && option == 'o') {
            if (!take_format(c, optarg))
                return CLI_BAD;
        } else if (option == SERVER) {
            c->server = optarg;
        } else if (option == STATE) {
            c->state = optarg;
        } else if (option == CA) {
            c->ca = optarg;
        } else if (option == KUBERNETES) {
            c->kubernetes = true;
        } else if (option == CONTEXT) {
            c->context = optarg;
        } else if (c->command->flags & CLI_CLUSTER && option == 'N') {
            c->ns = optarg;
        } else {
            return option;
        }
    }
}

bool cli_no_options(cli *c, int *status)
{
    int option = cli_next(c);
    *status = option == CLI_END ? EXIT_DONE : cli_result(option);
    return option == CLI_END;
}

bool cli_whole(const char *text, long low, long high, int *out)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < low || value > high)
        return false;
    *out = (int)value;
    return true;
}

bool cli_number(const char *text, double low, double high, double *out)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < low || value > high)
        return false;
    *out = value;
    return true;
}

int usage_error(const char *command, const char *format, ...)
{
    char text[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "adaptdl %s: ", command);
    term_line(stderr, text);
    fprintf(stderr, " (see: adaptdl help %s)\n", command);
    return EXIT_USAGE;
}

int problem(const char *command, int status, const char *format, ...)
{
    char text[4000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "adaptdl %s: ", command);
    term_lines(stderr, text);
    fputc('\n', stderr);
    return status;
}

const char *did_you_mean(const char *word, const char *const *names, size_t count,
                         const char *prefix, char out[HINT_TEXT])
{
    const char *near = NULL;
    for (size_t i = 0; i < count && !near && strlen(word) > 1; i++)
        if (strncmp(names[i], word, strlen(word)) == 0)
            near = names[i]; /* its beginning */
    if (!near && count > 0)
        near = adli_nearest(word, names, count);
    *out = '\0';
    if (near && strcmp(near, word) != 0)
        snprintf(out, HINT_TEXT, "; did you mean %s%s?", prefix, near);
    return out;
}

/* Is it unknown, or is its value wrong? */
static int long_option_error(const char *command, const char *typed)
{
    const char *names[OPTIONS_MAX];
    char name[64], hint[HINT_TEXT];
    size_t count = 0;
    const cli_option *o;
    const cli_command *known = cli_find(command);
    snprintf(name, sizeof name, "%.*s", (int)strcspn(typed + 2, "="), typed + 2);
    for (int i = 0; known && (o = cli_option_at(known, i)) && count < OPTIONS_MAX; i++) {
        if (o->name && strcmp(o->name, name) == 0 && o->value)
            return usage_error(command, "option %s lacks its value", typed);
        if (o->name && strcmp(o->name, name) == 0)
            return usage_error(command, "option --%s takes no value", name);
        if (o->name)
            names[count++] = o->name;
    }
    if (count == 0) /* a part of a command, with options of its own */
        return usage_error(command, "option %s is unknown or lacks its value", typed);
    return usage_error(command, "option %s is unknown%s", typed,
                       did_you_mean(name, names, count, "--", hint));
}

int option_error(const char *command, char **argv)
{
    const char *last = argv[optind > 0 ? optind - 1 : 0];
    if (strncmp(last, "--", 2) == 0)
        return long_option_error(command, last);
    if (optopt > ' ' && optopt < 127)
        return usage_error(command, "option -%c is unknown or lacks its value", optopt);
    return usage_error(command, "option %s is unknown or lacks its value", last);
}

int report_error(const char *command, int status)
{
    return problem(command, status, "%s", adl_error());
}
