/* The help of the commands and the man page, both from the commands' tables. */
#include "cli.h"

#include "adaptdl/status.h"

#include <ctype.h>
#include <string.h>

enum { WIDTH = 92, INDENT = 25 };

static const struct {
    const char *name, *text;
} variables[] = {
    {"ADAPTDL_SERVER", "the scheduler to talk to, as with --server"},
    {"ADAPTDL_TOKEN", "the token for a scheduler on TCP"},
    {"ADAPTDL_CA", "certificates to trust with https, as with --ca"},
    {"ADAPTDL_STATE", "the state directory, as with --state"},
    {"XDG_STATE_HOME", "the state directory is below it when the above is not set"},
    {"ADAPTDL_LOG", "what run and up log: debug, info, warning, error or off (default: info)"},
    {"NO_COLOR", "no colours, when it is not empty"},
};

/* ---- plain text ---- */

/* Words of a text between the columns; the cursor is at column `at`. */
static void print_wrapped(FILE *out, const char *text, size_t at, size_t indent)
{
    bool first = true;
    while (*text) {
        size_t length = strcspn(text, " ");
        if (!first && at + 1 + length > WIDTH) {
            fprintf(out, "\n%*s", (int)indent, "");
            at = indent;
            first = true;
        }
        fprintf(out, "%s%.*s", first ? "" : " ", (int)length, text);
        at += length + !first;
        first = false;
        text += length;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

/* Calls each for every line of a text. */
static void each_line(FILE *out, const char *text, void (*each)(FILE *out, const char *line))
{
    char line[2000];
    while (*text) {
        size_t length = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, text);
        each(out, line);
        text += length + (text[length] == '\n');
    }
}

static void print_line(FILE *out, const char *line)
{
    if (*line == ' ' || !*line)
        fprintf(out, "%s\n", line);
    else
        print_wrapped(out, line, 0, 0);
}

static void print_indented(FILE *out, const char *line)
{
    fprintf(out, "  %s\n", line);
}

/* "-n, --name VALUE" */
static void option_head(const cli_option *o, char *text, size_t size)
{
    char letter[8] = "";
    if (o->id < 256)
        snprintf(letter, sizeof letter, "-%c%s", o->id, o->name ? ", " : "");
    snprintf(text, size, "%s%s%s%s%s", letter, o->name ? "--" : "", o->name ? o->name : "",
             o->value ? " " : "", o->value ? o->value : "");
}

void cli_print_help(const cli_command *command, FILE *out)
{
    const cli_option *o;
    fprintf(out, "Usage: adaptdl %s%s%s\n\n", command->name, *command->usage ? " " : "",
            command->usage);
    each_line(out, command->text, print_line);
    fprintf(out, "\nOptions:\n");
    for (int i = 0; (o = cli_option_at(command, i)); i++) {
        char head[80];
        option_head(o, head, sizeof head);
        int used = fprintf(out, "  %s", head);
        if (used + 2 > INDENT)
            used = fprintf(out, "\n") - 1;
        fprintf(out, "%*s", INDENT - used, "");
        print_wrapped(out, o->text, INDENT, INDENT);
    }
    if (command->more)
        command->more(out);
    if (command->examples) {
        fprintf(out, "\nExamples:\n");
        each_line(out, command->examples, print_indented);
    }
    if (command->exits) {
        fprintf(out, "\nExit status: ");
        print_wrapped(out, command->exits, 13, 0);
    }
}

void cli_print_overview(FILE *out)
{
    fprintf(out, "adaptdl - elastic training of neural networks on shared clusters\n\n"
                 "Usage: adaptdl COMMAND [OPTIONS] [ARGUMENTS]\n\nCommands:\n");
    for (int i = 0; cli_list(i); i++)
        fprintf(out, "  %-12s %s\n", cli_list(i)->name, cli_list(i)->summary);
    fprintf(
        out,
        "\nHelp of one command: adaptdl help COMMAND. The manual: adaptdl help --man | man -l -\n"
        "\nExit status:\n");
    for (const cli_exit *e = cli_exits; e->meaning; e++)
        fprintf(out, "  %3d  %s\n", e->status, e->meaning);
}

/* ---- roff ---- */

/* Text for roff: minus signs that can be copied, nothing that roff would obey. */
static void put_roff(FILE *out, const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", out);
    for (; *text; text++) {
        if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else if (*text == '`' || *text == '\'' || *text == '^' || *text == '~')
            fprintf(out, "%s",
                    *text == '`'    ? "\\(ga"
                    : *text == '\'' ? "\\(aq"
                    : *text == '^'  ? "\\(ha"
                                    : "\\(ti");
        else
            fputc(*text, out);
    }
}

static void put_roff_line(FILE *out, const char *line)
{
    if (!*line) {
        fputs(".PP\n", out);
        return;
    }
    if (*line == ' ')
        fputs(".br\n\\&", out); /* as it stands: keep its spaces */
    for (; *line == ' '; line++)
        fputs("\\ ", out);
    put_roff(out, line);
    fputc('\n', out);
}

static void put_roff_example(FILE *out, const char *line)
{
    put_roff(out, line);
    fputc('\n', out);
}

static void put_roff_item(FILE *out, const char *head, const char *text)
{
    fputs(".TP\n.B ", out);
    put_roff(out, head);
    fputc('\n', out);
    put_roff(out, text);
    fputc('\n', out);
}

static void put_roff_command(FILE *out, const cli_command *command)
{
    const cli_option *o;
    fputs(".SS ", out);
    put_roff(out, command->name);
    fputs("\n.B adaptdl ", out);
    put_roff(out, command->name);
    fputc('\n', out);
    if (*command->usage)
        put_roff_line(out, command->usage);
    fputs(".PP\n", out);
    each_line(out, command->text, put_roff_line);
    for (int i = 0; (o = cli_option_at(command, i)); i++) {
        char head[80];
        option_head(o, head, sizeof head);
        put_roff_item(out, head, o->text);
    }
    if (command->exits) {
        fputs(".PP\nExit status: ", out);
        put_roff(out, command->exits);
        fputc('\n', out);
    }
    if (command->examples) {
        fputs(".PP\nExamples:\n.PP\n.nf\n.RS\n", out);
        each_line(out, command->examples, put_roff_example);
        fputs(".RE\n.fi\n", out);
    }
}

void cli_print_man(FILE *out)
{
    fprintf(out, ".TH ADAPTDL 1 \"\" \"adaptdl %s\" \"User Commands\"\n", adl_version());
    fputs(".SH NAME\nadaptdl \\- elastic training of neural networks on shared clusters\n"
          ".SH SYNOPSIS\n.B adaptdl\n.I COMMAND\n[\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]\n"
          ".SH DESCRIPTION\nJobs are training programs that can run on any number of replicas and\n"
          "change it while they run. A scheduler decides how many each job gets. With\n"
          ".B adaptdl up\nthis machine becomes a cluster;\n.B adaptdl submit\ngives it a job.\n"
          ".SH COMMANDS\n",
          out);
    for (int i = 0; cli_list(i); i++)
        put_roff_command(out, cli_list(i));
    fputs(".SH EXIT STATUS\n", out);
    for (const cli_exit *e = cli_exits; e->meaning; e++) {
        char status[16];
        snprintf(status, sizeof status, "%d", e->status);
        put_roff_item(out, status, e->meaning);
    }
    fputs(".SH ENVIRONMENT\n", out);
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        put_roff_item(out, variables[i].name, variables[i].text);
    fputs(".SH FILES\n", out);
    put_roff_item(out, "STATE/adaptdl.sock",
                  "the socket of the local cluster; STATE is the state directory");
    put_roff_item(out, "STATE/daemon.log", "what the scheduler of adaptdl up has to say");
}
