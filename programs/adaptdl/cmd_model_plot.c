/* `adaptdl model plot`: what the model of one job says, as two charts. On the left the trade
 * between large batches (fast) and small ones (efficient), one line per replica count; on the right
 * what more replicas are worth. */
#include "cmd_model_plot.h"

#include "commands.h"

#include "base/file.h"
#include "base/mem.h"
#include "model_json/model_json.h"
#include "plot/chart.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REPLICAS = 4096, SAMPLES = 100, CURVES = ADLI_SVG_COLOURS };

typedef struct plot_job {
    adl_goodput model;
    adl_batch_limits limits;
    int gpus_per_node, max_replicas;
    const char *title; /* borrowed from the JSON */
} plot_job;

/* Goodput over total batch size at one replica count. */
typedef struct curve {
    char name[32];
    double x[SAMPLES], y[SAMPLES], best[2];
} curve;

static int print_help(void)
{
    printf(
        "Usage: adaptdl model plot FILE [-o OUT.svg]\n\n"
        "Draws goodput over total batch size, one line per replica count with its optimum\n"
        "marked, and goodput over replicas, as SVG.\n\n"
        "FILE (- for standard input) holds one JSON object: perf, grad, init, and optionally\n"
        "max_batch_size, min_m, max_m, accumulation, lone_grows, gpus_per_node (4),\n"
        "max_replicas (16), title.\n\n"
        "  -o, --output FILE   where to write (default: standard output)\n\n"
        "Example:\n"
        "  echo '{\"perf\": [0.1, 0.01, 0.2, 0.02, 0.05, 0.01, 1.5], \"grad\": [0.01, 0.5],\n"
        "    \"init\": 128, \"max_batch_size\": 4096, \"max_m\": 512, \"accumulation\": true}' |\n"
        "    adaptdl model plot - -o goodput.svg\n");
    return EXIT_DONE;
}

static adl_status read_count(const json_t *object, const char *field, int most, int *out)
{
    return json_object_get(object, field) ? adli_json_int(object, field, 1, most, out) : ADL_OK;
}

static adl_status read_plot(const json_t *root, plot_job *out)
{
    const json_t *title = json_object_get(root, "title"), *shape = json_object_get(root, "shape");
    *out = (plot_job){.gpus_per_node = 4, .max_replicas = 16, .title = json_string_value(title)};
    if (!json_is_object(shape))
        shape = root;
    adl_status status = adli_model_read(root, &out->model);
    if (status == ADL_OK)
        status = adli_model_read_limits(root, &out->limits);
    if (status == ADL_OK)
        status = read_count(shape, "gpus_per_node", MAX_REPLICAS, &out->gpus_per_node);
    if (status == ADL_OK)
        status = read_count(shape, "max_replicas", MAX_REPLICAS, &out->max_replicas);
    return status;
}

static int nodes_for(const plot_job *job, int replicas)
{
    return (replicas + job->gpus_per_node - 1) / job->gpus_per_node;
}

/* The curve through real batch sizes; optimize chooses whole ones on or beside it. A batch size
 * that the bounds forbid leaves a gap. */
static void sample(const plot_job *job, int replicas, curve *out)
{
    double low = job->model.init_batch_size;
    double high = job->limits.max_batch_size == 0 ? low : job->limits.max_batch_size;
    double min_m = fmax(job->limits.min_local_bsz, 1);
    double max_m = job->limits.max_local_bsz == 0 ? high : job->limits.max_local_bsz;
    adl_batch_choice best;
    snprintf(out->name, sizeof out->name, "R = %d", replicas);
    for (int i = 0; i < SAMPLES; i++) {
        double batch = low * pow(high / low, i / (SAMPLES - 1.0)), local = batch / replicas;
        double s = fmax(ceil(local / max_m - 1e-8) - 1, 0);
        if (replicas == 1 && !job->limits.lone_grows && batch > low * (1 + 1e-9))
            s = fmax(s, 1);
        out->x[i] = batch;
        bool allowed = local / (s + 1) >= min_m && (s == 0 || job->limits.accumulation);
        if (!allowed ||
            adl_goodput_evaluate(&job->model, adl_shape_of(nodes_for(job, replicas), replicas),
                                 local / (s + 1), (int)s, &out->y[i]) != ADL_OK)
            out->y[i] = NAN;
    }
    out->best[0] = out->best[1] = NAN;
    if (adl_goodput_optimize(&job->model, &job->limits,
                             adl_shape_of(nodes_for(job, replicas), replicas), &best) == ADL_OK) {
        out->best[0] = (double)replicas * best.local_bsz * (best.accum_steps + 1.0);
        out->best[1] = best.goodput;
    }
}

/* 1, 2, 4 ... and max_replicas itself, the largest ones when there are too many. */
static int choose_counts(const plot_job *job, int counts[CURVES])
{
    int used = 0;
    for (int replicas = job->max_replicas; replicas >= 1 && used < CURVES;) {
        counts[used++] = replicas;
        int power = 1;
        while (power * 2 < replicas)
            power *= 2;
        replicas = replicas == 1 ? 0 : power;
    }
    return used;
}

static adl_status draw_batches(const plot_job *job, adli_buf *out)
{
    int counts[CURVES], used = choose_counts(job, counts);
    adli_series series[CURVES];
    curve *curves = adli_calloc((size_t)used, sizeof *curves);
    if (!curves)
        return adli_fail_memory("curves of a plot");
    for (int i = 0; i < used; i++) {
        sample(job, counts[i], &curves[i]);
        series[i] = (adli_series){.name = curves[i].name,
                                  .x = curves[i].x,
                                  .y = curves[i].y,
                                  .count = SAMPLES,
                                  .colour = used - 1 - i,
                                  .mark = curves[i].best};
    }
    adli_chart chart = {.title = "Goodput by batch size",
                        .y = 40,
                        .width = 560,
                        .height = 380,
                        .x_axis = {.label = "total batch size", .logarithmic = true},
                        .y_axis = {.label = "goodput, examples/s"},
                        .series = series,
                        .series_count = (size_t)used};
    adli_chart_draw(out, &chart, 1);
    free(curves);
    return ADL_OK;
}

static adl_status draw_replicas(const plot_job *job, adli_buf *out)
{
    size_t count = (size_t)job->max_replicas;
    double *x = adli_calloc(count, sizeof *x), *y = adli_calloc(count, sizeof *y);
    double *linear = adli_calloc(count, sizeof *linear);
    adl_status status = ADL_OK;
    if (!x || !y || !linear) {
        status = adli_fail_memory("points of a plot");
        goto out;
    }
    double highest = 0;
    for (size_t i = 0; i < count; i++) {
        adl_batch_choice best;
        int replicas = (int)i + 1;
        x[i] = replicas;
        y[i] =
            adl_goodput_optimize(&job->model, &job->limits,
                                 adl_shape_of(nodes_for(job, replicas), replicas), &best) == ADL_OK
                ? best.goodput
                : NAN;
        linear[i] = y[0] * replicas;
        highest = fmax(highest, y[i]);
    }
    adli_series series[] = {
        {.name = "best batch", .x = x, .y = y, .count = count, .dots = count <= 32},
        {.name = "linear", .x = x, .y = linear, .count = count, .colour = 7, .dashed = true}};
    adli_chart chart = {
        .title = "Goodput by replicas",
        .x = 570,
        .y = 40,
        .width = 480,
        .height = 380,
        .x_axis = {.label = "replicas", .low = 0, .high = (double)count + 0.5},
        .y_axis = {.label = "goodput, examples/s", .low = 0, .high = highest * 1.15},
        .series = series,
        .series_count = ADLI_COUNT(series)};
    adli_chart_draw(out, &chart, 2);
out:
    free(linear);
    free(y);
    free(x);
    return status;
}

static adl_status draw(const plot_job *job, adli_buf *out)
{
    const char *title = job->title ? job->title : "Goodput model";
    adl_batch_choice choice;
    /* bad bounds are an error, not an empty chart; one replica too few for B0 is neither */
    adl_status status = adl_goodput_optimize(
        &job->model, &job->limits,
        adl_shape_of(nodes_for(job, job->max_replicas), job->max_replicas), &choice);
    if (status != ADL_OK)
        return status;
    adli_svg_open(out, 1060, 430, title);
    adli_svg_text(out, 14, 28, ADLI_SVG_START, ADLI_SVG_TITLE, title);
    status = draw_batches(job, out);
    if (status == ADL_OK)
        status = draw_replicas(job, out);
    adli_svg_close(out);
    return status == ADL_OK ? adli_buf_check(out) : status;
}

static adl_status plot_file(const char *path, const char *output)
{
    adli_buf text, svg;
    json_t *root = NULL;
    plot_job job;
    adli_buf_init(&text, 1 << 20);
    adli_buf_init(&svg, 16 << 20);
    adl_status status = adli_file_read(path, &text);
    if (status != ADL_OK)
        goto out;
    status = adli_json_parse(text.data, text.length, &root);
    if (status == ADL_OK)
        status = read_plot(root, &job);
    if (status == ADL_OK)
        status = draw(&job, &svg);
    if (status != ADL_OK)
        status = adli_wrap(status, "%s", path);
    else
        status = adli_file_write(output, svg.data, svg.length);
out:
    json_decref(root);
    adli_buf_fini(&svg);
    adli_buf_fini(&text);
    return status;
}

int cmd_model_plot(int argc, char **argv)
{
    static const struct option options[] = {
        {"help", no_argument, NULL, 'h'}, {"output", required_argument, NULL, 'o'}, {0}};
    const char *output = "-";
    int option;
    while ((option = getopt_long(argc, argv, "ho:", options, NULL)) != -1) {
        if (option == 'h')
            return print_help();
        if (option != 'o')
            return option_error("model plot", argv);
        output = optarg;
    }
    if (argc - optind != 1)
        return usage_error("model plot", "exactly one file is needed");
    adl_status status = plot_file(argv[optind], output);
    if (status == ADL_OK)
        return EXIT_DONE;
    return report_error("model plot",
                        status == ADL_EIO || status == ADL_ENOENT ? EXIT_USAGE : EXIT_PROBLEM);
}
