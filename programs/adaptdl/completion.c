/* Completion scripts for bash, zsh and fish, from the commands' tables. Names of jobs and nodes are
 * asked of the cluster while completing. */
#include "cli.h"

#include "term.h"

#include <string.h>

static void put_commands(FILE *out)
{
    for (int i = 0; cli_list(i); i++)
        fprintf(out, "%s%s", i ? " " : "", cli_list(i)->name);
}

static void put_words(FILE *out, const cli_command *command)
{
    const cli_option *o;
    for (int i = 0; (o = cli_option_at(command, i)); i++) {
        if (o->name)
            fprintf(out, "%s--%s", i ? " " : "", o->name);
        if (o->id < 256)
            fprintf(out, "%s-%c", i || o->name ? " " : "", o->id);
    }
}

static void put_choices(FILE *out, const char *source)
{
    if (strcmp(source, COMPLETE_COMMAND) == 0)
        put_commands(out);
    else
        fputs(source, out);
}

/* The shell's way to fill COMPREPLY from what completes a value. */
static void put_bash_source(FILE *out, const char *source)
{
    if (!source)
        fputs(":", out);
    else if (strcmp(source, COMPLETE_JOB) == 0 || strcmp(source, COMPLETE_NODE) == 0)
        fprintf(out,
                "COMPREPLY=($(compgen -W \"$(\"$program\" %s -o name 2>/dev/null)\" -- \"$cur\"))",
                strcmp(source, COMPLETE_JOB) == 0 ? "ls" : "nodes");
    else if (strcmp(source, COMPLETE_FILE) == 0)
        fputs("COMPREPLY=($(compgen -f -- \"$cur\"))", out);
    else if (strcmp(source, COMPLETE_DIR) == 0)
        fputs("COMPREPLY=($(compgen -d -- \"$cur\"))", out);
    else {
        fputs("COMPREPLY=($(compgen -W \"", out);
        put_choices(out, source);
        fputs("\" -- \"$cur\"))", out);
    }
}

static void put_bash_command(FILE *out, const cli_command *command)
{
    const cli_option *o;
    fprintf(out, "    %s)\n        case $prev in\n", command->name);
    for (int i = 0; (o = cli_option_at(command, i)); i++) {
        if (!o->value)
            continue;
        fputs("        ", out);
        if (o->name)
            fprintf(out, "--%s", o->name);
        if (o->id < 256)
            fprintf(out, "%s-%c", o->name ? "|" : "", o->id);
        fputs(") ", out);
        put_bash_source(out, o->complete);
        fputs("; return ;;\n", out);
    }
    fputs("        esac\n        options=\"", out);
    put_words(out, command);
    fputs("\"\n        [[ $cur == -* ]] || { ", out);
    put_bash_source(out, command->arguments);
    fputs("; return; }\n        ;;\n", out);
}

void cli_print_bash(FILE *out)
{
    fputs("# bash completion of adaptdl. Put this in your ~/.bashrc: source <(adaptdl completion "
          "bash)\n"
          "_adaptdl() {\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} options "
          "program=$1\n"
          "    COMPREPLY=()\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        COMPREPLY=($(compgen -W \"--help "
          "--version",
          out);
    fputc(' ', out);
    put_commands(out);
    fputs("\" -- \"$cur\"))\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n", out);
    for (int i = 0; cli_list(i); i++)
        put_bash_command(out, cli_list(i));
    fputs("    *) return ;;\n    esac\n"
          "    COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n}\n"
          "complete -o filenames -o bashdefault -F _adaptdl adaptdl\n",
          out);
}

/* ---- zsh ---- */

/* Text inside [...] inside single quotes. */
static void put_zsh_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", out);
        else if (strchr("[]:\\`", *text))
            fprintf(out, "\\%c", *text);
        else
            fputc(*text, out);
    }
}

static void put_zsh_source(FILE *out, const char *source)
{
    if (!source)
        fputs(" ", out);
    else if (strcmp(source, COMPLETE_JOB) == 0)
        fputs("_adaptdl_jobs", out);
    else if (strcmp(source, COMPLETE_NODE) == 0)
        fputs("_adaptdl_nodes", out);
    else if (strcmp(source, COMPLETE_FILE) == 0)
        fputs("_files", out);
    else if (strcmp(source, COMPLETE_DIR) == 0)
        fputs("_files -/", out);
    else {
        fputc('(', out);
        put_choices(out, source);
        fputc(')', out);
    }
}

static void put_zsh_option(FILE *out, const cli_option *o, bool letter)
{
    fputs("            '*", out);
    if (letter)
        fprintf(out, "-%c", o->id);
    else
        fprintf(out, "--%s", o->name);
    fputc('[', out);
    put_zsh_text(out, o->text);
    fputc(']', out);
    if (o->value) {
        fprintf(out, ":%s:", o->value);
        put_zsh_source(out, o->complete);
    }
    fputs("' \\\n", out);
}

static void put_zsh_command(FILE *out, const cli_command *command)
{
    const cli_option *o;
    fprintf(out, "        %s)\n            _arguments -s \\\n", command->name);
    for (int i = 0; (o = cli_option_at(command, i)); i++) {
        if (o->name)
            put_zsh_option(out, o, false);
        if (o->id < 256)
            put_zsh_option(out, o, true);
    }
    fputs("            '*:argument:", out);
    put_zsh_source(out, command->arguments);
    fputs("' ;;\n", out);
}

void cli_print_zsh(FILE *out)
{
    fputs("#compdef adaptdl\n"
          "# zsh completion of adaptdl. Save it as _adaptdl in a directory of your $fpath, or put "
          "this in\n"
          "# your ~/.zshrc after compinit: source <(adaptdl completion zsh)\n"
          "_adaptdl_jobs() { compadd -- ${(f)\"$(adaptdl ls -o name 2>/dev/null)\"} }\n"
          "_adaptdl_nodes() { compadd -- ${(f)\"$(adaptdl nodes -o name 2>/dev/null)\"} }\n"
          "_adaptdl() {\n    local -a commands\n    commands=(\n",
          out);
    for (int i = 0; cli_list(i); i++) {
        fprintf(out, "        '%s:", cli_list(i)->name);
        put_zsh_text(out, cli_list(i)->summary);
        fputs("'\n", out);
    }
    fputs("    )\n    if (( CURRENT == 2 )); then\n        _describe command commands\n        "
          "return\n"
          "    fi\n    local command=$words[2]\n    shift words\n    (( CURRENT-- ))\n"
          "    case $command in\n",
          out);
    for (int i = 0; cli_list(i); i++)
        put_zsh_command(out, cli_list(i));
    fputs("    esac\n}\n"
          "if [[ $funcstack[1] == _adaptdl ]]; then _adaptdl \"$@\"; else compdef _adaptdl "
          "adaptdl; fi\n",
          out);
}

/* ---- fish ---- */

/* Text inside single quotes. */
static void put_fish_text(FILE *out, const char *text)
{
    fputc('\'', out);
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\')
            fputc('\\', out);
        fputc(*text, out);
    }
    fputc('\'', out);
}

/* -a and what completes, without file names unless they are wanted. */
static void put_fish_source(FILE *out, const char *source)
{
    if (source && strcmp(source, COMPLETE_JOB) == 0)
        fputs(" -f -a '(__adaptdl_names ls)'", out);
    else if (source && strcmp(source, COMPLETE_NODE) == 0)
        fputs(" -f -a '(__adaptdl_names nodes)'", out);
    else if (source && strcmp(source, COMPLETE_FILE) == 0)
        fputs(" -F", out);
    else if (source && strcmp(source, COMPLETE_DIR) == 0)
        fputs(" -f -a '(__fish_complete_directories)'", out);
    else if (source) {
        fputs(" -f -a '", out);
        put_choices(out, source);
        fputc('\'', out);
    } else
        fputs(" -f", out);
}

static void put_fish_command(FILE *out, const cli_command *command)
{
    const cli_option *o;
    fprintf(out, "complete -c adaptdl -n __fish_use_subcommand -f -a %s -d ", command->name);
    put_fish_text(out, command->summary);
    fprintf(out, "\ncomplete -c adaptdl -n '__fish_seen_subcommand_from %s'", command->name);
    put_fish_source(out, command->arguments);
    fputc('\n', out);
    for (int i = 0; (o = cli_option_at(command, i)); i++) {
        fprintf(out, "complete -c adaptdl -n '__fish_seen_subcommand_from %s'", command->name);
        if (o->id < 256)
            fprintf(out, " -s %c", o->id);
        if (o->name)
            fprintf(out, " -l %s", o->name);
        if (o->value) {
            fputs(" -r", out);
            put_fish_source(out, o->complete);
        }
        fputs(" -d ", out);
        put_fish_text(out, o->text);
        fputc('\n', out);
    }
}

void cli_print_fish(FILE *out)
{
    fputs("# fish completion of adaptdl. Save it as ~/.config/fish/completions/adaptdl.fish\n"
          "function __adaptdl_names; adaptdl $argv -o name 2>/dev/null; end\n",
          out);
    for (int i = 0; cli_list(i); i++)
        put_fish_command(out, cli_list(i));
}
