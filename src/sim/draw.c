/* The pictures of a simulation. */
#include "sim/report.h"

#include "base/mem.h"
#include "plot/chart.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 1000,
    TIMELINE_HEIGHT = 320,
    JCT_HEIGHT = 340,
    HINT_SIZE = 160,
    JOBS_TOLD_APART = 8000
};

static int by_start(const void *a, const void *b)
{
    const adli_sim_span *x = a, *y = b;
    if (x->start_s != y->start_s)
        return x->start_s > y->start_s ? 1 : -1;
    return x->node != y->node ? x->node - y->node : x->job - y->job;
}

/* Which jobs touch in the picture: one above the other, or one after the other on a device. */
typedef struct touching {
    unsigned char *pairs; /* [jobs * jobs]; NULL: too many to be told apart */
    int *last;            /* [devices] the job that had it last; -1: none */
    int jobs;
} touching;

static void touch(touching *t, int a, int b)
{
    if (t->pairs && a >= 0 && b >= 0 && a != b)
        t->pairs[(size_t)a * (size_t)t->jobs + (size_t)b] =
            t->pairs[(size_t)b * (size_t)t->jobs + (size_t)a] = 1;
}

/* One colour per job, another one than those it touches have; where eight are too few, the one that touches it
 * least often. */
static void choose_colours(const touching *t, int *colours)
{
    for (int job = 0; job < t->jobs; job++) {
        int used[ADLI_SVG_COLOURS] = {0}, best = job % ADLI_SVG_COLOURS;
        for (int other = 0; other < job; other++)
            used[colours[other]] +=
                t->pairs && t->pairs[(size_t)job * (size_t)t->jobs + (size_t)other];
        for (int i = 1; i < ADLI_SVG_COLOURS; i++) {
            int next = (job + i) % ADLI_SVG_COLOURS;
            best = used[next] < used[best] ? next : best;
        }
        colours[job] = best;
    }
}

/* Gives each device of each span a row of its node that is free. busy_until: [nodes * gpus]. */
static size_t lay_out(const adli_batch *batch, const adli_sim_result *result, double *busy_until,
                      adli_bar *bars, char (*hints)[HINT_SIZE], touching *t)
{
    int devices = batch->options.nodes * batch->options.gpus;
    int gpus = batch->options.gpus;
    size_t used = 0;
    for (size_t i = 0; i < result->span_count; i++) {
        const adli_sim_span *span = &result->spans[i];
        int left = span->count;
        snprintf(hints[i], HINT_SIZE, "%s: node %d, %d GPUs, %.0f to %.0f s",
                 batch->workloads[0].jobs[span->job].name, span->node, span->count, span->start_s,
                 span->end_s);
        for (int slot = span->node * gpus; slot < (span->node + 1) * gpus && left > 0; slot++) {
            if (busy_until[slot] > span->start_s)
                continue;
            touch(t, span->job, t->last[slot]);
            touch(t, span->job, slot > 0 ? t->last[slot - 1] : -1);
            touch(t, span->job, slot + 1 < devices ? t->last[slot + 1] : -1);
            t->last[slot] = span->job;
            busy_until[slot] = span->end_s;
            bars[used++] = (adli_bar){.x0 = span->start_s / 3600,
                                      .x1 = span->end_s / 3600,
                                      .y0 = slot,
                                      .y1 = slot + 1,
                                      .colour = span->job, /* its place in the colours, for now */
                                      .hint = hints[i]};
            left--;
        }
    }
    return used;
}

/* When the last job of the first workload ends, whichever policy is slowest, in hours. */
static double last_end(const adli_batch *batch)
{
    double end_s = 0;
    for (int p = 0; p < batch->policy_count; p++) {
        const adli_sim_result *result = adli_batch_result(batch, p, 0);
        for (size_t i = 0; i < result->span_count; i++)
            end_s = fmax(end_s, result->spans[i].end_s);
    }
    return end_s / 3600;
}

static adl_status draw_timeline(const adli_batch *batch, int policy, double y, adli_buf *out)
{
    const adli_sim_result *result = adli_batch_result(batch, policy, 0);
    size_t devices = (size_t)(batch->options.nodes * batch->options.gpus), most = 0;
    adl_status status = ADL_OK;
    for (size_t i = 0; i < result->span_count; i++)
        most += (size_t)result->spans[i].count;
    adli_bar *bars = adli_calloc(most, sizeof *bars);
    char(*hints)[HINT_SIZE] = adli_calloc(result->span_count, sizeof *hints);
    double *busy_until = adli_calloc(devices, sizeof *busy_until);
    touching t = {.jobs = batch->workloads[0].count};
    size_t jobs = (size_t)t.jobs;
    bool many = jobs > JOBS_TOLD_APART;
    t.pairs = many ? NULL : adli_calloc(jobs * jobs, 1);
    t.last = adli_calloc(devices, sizeof *t.last);
    int *colours = adli_calloc(jobs, sizeof *colours);
    if (!bars || !hints || !busy_until || (!t.pairs && !many) || !t.last || !colours) {
        status = adli_fail_memory("timeline");
        goto out;
    }
    qsort(result->spans, result->span_count, sizeof *result->spans, by_start);
    char title[256];
    snprintf(title, sizeof title, "%s on %s: devices over time, one colour per job",
             batch->policies[policy], batch->workloads[0].name);
    adli_chart chart = {.title = title,
                        .y = y,
                        .width = WIDTH,
                        .height = TIMELINE_HEIGHT,
                        .x_axis = {.label = "hours", .high = last_end(batch)},
                        .y_axis = {.label = "device", .high = (double)devices},
                        .bars = bars};
    for (size_t i = 0; i < devices; i++)
        t.last[i] = -1;
    chart.bar_count = lay_out(batch, result, busy_until, bars, hints, &t);
    choose_colours(&t, colours);
    for (size_t i = 0; i < chart.bar_count; i++)
        bars[i].colour = colours[bars[i].colour];
    adli_chart_draw(out, &chart, policy + 1);
out:
    free(colours);
    free(t.last);
    free(t.pairs);
    free(busy_until);
    free(hints);
    free(bars);
    return status;
}

/* All completion times of a policy over all workloads, ascending, into x, and shares into y. */
static size_t distribution(const adli_batch *batch, int policy, double *x, double *y)
{
    size_t count = 0;
    for (int w = 0; w < batch->workload_count; w++)
        for (int j = 0; j < batch->workloads[w].count; j++)
            x[count++] = adli_batch_result(batch, policy, w)->jobs[j].jct_s;
    qsort(x, count, sizeof *x, adli_by_double);
    for (size_t i = 0; i < count; i++)
        y[i] = 100 * (double)(i + 1) / (double)count;
    return count;
}

static adl_status draw_distributions(const adli_batch *batch, double y, adli_buf *out)
{
    size_t jobs = 0, policies = (size_t)batch->policy_count;
    for (int w = 0; w < batch->workload_count; w++)
        jobs += (size_t)batch->workloads[w].count;
    adli_series *series = adli_calloc(policies, sizeof *series);
    double *points = adli_calloc(policies * jobs * 2, sizeof *points);
    if (!series || !points) {
        free(series);
        free(points);
        return adli_fail_memory("distributions");
    }
    for (size_t p = 0; p < policies; p++) {
        double *xs = points + 2 * p * jobs, *ys = xs + jobs;
        series[p] = (adli_series){.name = batch->policies[p],
                                  .x = xs,
                                  .y = ys,
                                  .count = distribution(batch, (int)p, xs, ys),
                                  .colour = (int)p % ADLI_SVG_COLOURS,
                                  .steps = true};
    }
    adli_chart chart = {.title = "Completion times of all jobs",
                        .y = y,
                        .width = WIDTH,
                        .height = JCT_HEIGHT,
                        .x_axis = {.label = "completion time, s", .logarithmic = true},
                        .y_axis = {.label = "% of jobs done", .high = 100},
                        .series = series,
                        .series_count = policies};
    adli_chart_draw(out, &chart, 0);
    free(points);
    free(series);
    return ADL_OK;
}

adl_status adli_report_svg(const adli_batch *batch, adli_buf *out)
{
    adl_status status = ADL_OK;
    double height = JCT_HEIGHT + batch->policy_count * TIMELINE_HEIGHT;
    adli_svg_open(out, WIDTH, height, "Simulated cluster");
    for (int p = 0; p < batch->policy_count && status == ADL_OK; p++)
        status = draw_timeline(batch, p, p * TIMELINE_HEIGHT, out);
    if (status == ADL_OK)
        status = draw_distributions(batch, batch->policy_count * TIMELINE_HEIGHT, out);
    adli_svg_close(out);
    return status == ADL_OK ? adli_buf_check(out) : status;
}
