/* `adaptdl model`: the models as a filter, one JSON object per line in and out, so that a script in
 * any language (and a person with echo) can ask them. */
#include "commands.h"
#include "lines.h"

#include "cmd_model_plot.h"
#include "base/json_write.h"
#include "model_json/model_json.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MODEL_FIELDS                                                                               \
    "  perf  [alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma]  step-time model\n"        \
    "  grad  [sqr, var]  |G|^2 and tr(Sigma)      init  initial batch size B0\n"                   \
    "  N     nodes                                R     replicas, R >= N\n"
#define LIMIT_FIELDS                                                                               \
    "  max_batch_size  largest total batch, default B0     min_m, max_m  bounds of m\n"            \
    "  accumulation    true: s may be more than 0          (all five may be left out or null)\n"   \
    "  lone_grows      true: one replica's m may be more than B0 without accumulation\n"
#define EXAMPLE_MODEL                                                                              \
    "\"perf\": [0.1, 0.01, 0.2, 0.02, 0.05, 0.01, 1.5], \"grad\": [0.01, 0.5], \"init\": 128"

static const struct verb {
    const char *name, *summary;
    adli_model_question *ask;
    const char *fields, *answer, *example;
} verbs[] = {
    {"evaluate", "throughput, efficiency and goodput of one configuration", adli_model_evaluate,
     MODEL_FIELDS "  m     examples per replica and pass        s     accumulation steps\n",
     "throughput and goodput (examples per second), efficiency (0 to 1)",
     "{" EXAMPLE_MODEL ", \"N\": 1, \"R\": 4, \"m\": 64, \"s\": 0}"},
    {"optimize", "the batch size of highest goodput for N nodes and R replicas",
     adli_model_optimize, MODEL_FIELDS LIMIT_FIELDS, "goodput, m, s",
     "{" EXAMPLE_MODEL ", \"N\": 1, \"R\": 4, \"max_batch_size\": 4096, \"max_m\": 512}"},
    {"fit", "the step-time model that explains measured times", adli_model_fit,
     "  N, R, m, accum_time, optim_time  arrays of one length, one element per measurement:\n"
     "  seconds of a pass that accumulates and of a pass that ends in an optimizer step\n",
     "params (the 7 numbers of perf), objective, points used and rejected",
     "{\"N\": [1, 1, 2], \"R\": [1, 2, 4], \"m\": [64, 64, 128], \"accum_time\": [0.1, 0.1, 0.2], "
     "\"optim_time\": [0.1, 0.12, 0.3]}"},
    {"speedup", "goodput of N nodes and R replicas over that of one replica", adli_model_speedup,
     MODEL_FIELDS LIMIT_FIELDS "  perf may be null: nothing is known yet, the speedup is R\n",
     "speedup (0 where the bounds allow no batch size)",
     "{" EXAMPLE_MODEL ", \"N\": 2, \"R\": 8, \"max_batch_size\": 4096, \"max_m\": 512}"},
};

enum { VERBS = sizeof verbs / sizeof verbs[0], LINE_MAX_BYTES = 16 << 20 };

static void print_verbs(FILE *out)
{
    fprintf(out, "\nVerbs:\n");
    for (int i = 0; i < VERBS; i++)
        fprintf(out, "  %-10s %s\n", verbs[i].name, verbs[i].summary);
    fprintf(out, "  %-10s %s\n", "plot", "draw goodput over batch size and over replicas, as SVG");
}

static int print_verb_help(const struct verb *verb)
{
    printf("Usage: adaptdl model %s [FILE]\n\n%s.\n\n", verb->name, verb->summary);
    printf("Fields of each line (JSON object):\n%s\nAnswer: %s\n\n", verb->fields, verb->answer);
    printf("Example:\n  echo '%s' | adaptdl model %s\n", verb->example, verb->name);
    return EXIT_DONE;
}

static bool regular(FILE *file)
{
    struct stat info;
    return fstat(fileno(file), &info) == 0 && S_ISREG(info.st_mode);
}

/* Appends the answer, or the error in its place. False for an error. */
static bool answer(const struct verb *verb, const line_reader *reader, adli_buf *out)
{
    adl_status status = reader->too_long
                            ? adli_fail(ADL_EINVAL, "longer than %d MiB", LINE_MAX_BYTES >> 20)
                            : verb->ask(reader->line.data, reader->line.length, out);
    if (status == ADL_OK)
        return true;
    char text[1200];
    snprintf(text, sizeof text, "line %zu: %s", reader->number, adl_error());
    adli_buf_clear(out);
    adli_jw_open(out, NULL, '{');
    adli_jw_text(out, "error", text);
    adli_jw_close(out, '}');
    return false;
}

static int converse(const struct verb *verb, FILE *file, const char *path)
{
    line_reader reader;
    adli_buf out;
    int status = EXIT_DONE;
    bool flush = !regular(file);
    lines_init(&reader, file, LINE_MAX_BYTES);
    adli_buf_init(&out, 1 << 16);
    adli_jw_spaced(&out);
    while (!ferror(stdout) && lines_next(&reader)) {
        if (lines_blank(&reader))
            continue;
        adli_buf_clear(&out);
        if (!answer(verb, &reader, &out))
            status = EXIT_PROBLEM;
        adli_buf_puts(&out, "\n");
        fwrite(out.data, 1, out.length, stdout);
        if (flush)
            fflush(stdout);
    }
    if (ferror(file)) {
        fprintf(stderr, "adaptdl model %s: %s: %s\n", verb->name, path, strerror(errno));
        status = EXIT_USAGE;
    }
    adli_buf_fini(&out);
    lines_fini(&reader);
    return status;
}

static int run_verb(const struct verb *verb, int argc, char **argv)
{
    static const struct option options[] = {{"help", no_argument, NULL, 'h'}, {0}};
    char name[32];
    int option;
    snprintf(name, sizeof name, "model %s", verb->name);
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'h')
            return print_verb_help(verb);
        return option_error(name, argv);
    }
    if (argc - optind > 1)
        return usage_error(name, "one file at most, not %d", argc - optind);
    const char *path = optind < argc ? argv[optind] : "-";
    if (strcmp(path, "-") == 0)
        return converse(verb, stdin, "standard input");
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "adaptdl %s: %s: %s\n", name, path, strerror(errno));
        return EXIT_USAGE;
    }
    int status = converse(verb, file, path);
    fclose(file);
    return status;
}

static int run_model(cli *c)
{
    int argc = c->argc;
    char **argv = c->argv;
    if (argc < 2)
        return usage_error("model", "no verb given");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        cli_print_help(c->command, stdout);
        return EXIT_DONE;
    }
    if (strcmp(argv[1], "plot") == 0)
        return cmd_model_plot(argc - 1, argv + 1);
    for (int i = 0; i < VERBS; i++)
        if (strcmp(argv[1], verbs[i].name) == 0)
            return run_verb(&verbs[i], argc - 1, argv + 1);
    return usage_error("model", "unknown verb \"%s\"", argv[1]);
}

const cli_command command_model = {
    .name = "model",
    .summary = "ask the goodput models: evaluate, optimize, fit, speedup, plot",
    .usage = "VERB [FILE]",
    .text =
        "Asks the models of step time, efficiency and goodput. The verbs are evaluate, optimize, "
        "fit, speedup and plot.\n\n"
        "Reads JSON objects, one per line, from FILE or standard input and prints one JSON "
        "object per line. A bad line gives {\"error\": \"line N: ...\"} in its place and exit "
        "status 1 at the end. Fields of one verb: adaptdl help model VERB",
    .arguments = "evaluate optimize fit speedup plot",
    .more = print_verbs,
    .run = run_model,
};
