#include "top_view.h"

#include "cluster.h"
#include "term.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BAR = 12, LETTERS = 52 };

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

typedef struct view {
    adli_buf *out;
    const top_size *size;
    const json_t **jobs; /* [count] in the order shown; the unfinished ones first */
    size_t count, active;
    int lines;
} view;

/* ---- lines ---- */

/* The line in `text` (which may hold colours), cut to the width. */
static void end_line(view *v, adli_buf *text)
{
    int column = 0;
    const char *p = text->data ? text->data : "";
    while (*p && column < v->size->width) {
        size_t step = 1;
        if (*p == '\033') {
            step = strcspn(p, "m") + 1;
        } else {
            while (((unsigned char)p[step] & 0xc0) == 0x80)
                step++;
            column++;
        }
        adli_buf_append(v->out, p, step);
        p += step;
    }
    adli_buf_printf(v->out, "%s\n", term_code(PLAIN, v->size->colours));
    adli_buf_clear(text);
    v->lines++;
}

static void put_coloured(view *v, adli_buf *text, term_colour colour, const char *words)
{
    adli_buf_puts(text, term_code(colour, v->size->colours));
    adli_buf_puts(text, words);
    adli_buf_puts(text, term_code(PLAIN, v->size->colours));
}

/* A cell of a table: cleaned, cut and padded. */
static void put_cell(adli_buf *text, const char *words, size_t width)
{
    adli_buf clean;
    adli_buf_init(&clean, 4096);
    term_clean(&clean, words, strlen(words));
    const char *p = clean.data ? clean.data : "";
    size_t used = 0;
    while (*p && used < width) {
        size_t step = 1;
        while (((unsigned char)p[step] & 0xc0) == 0x80)
            step++;
        adli_buf_append(text, p, step);
        p += step;
        used++;
    }
    adli_buf_printf(text, "%*s", (int)(width - used + 1), "");
    adli_buf_fini(&clean);
}

static term_colour colour_of(size_t index)
{
    static const term_colour colours[] = {GREEN, BLUE, MAGENTA, CYAN, YELLOW, RED};
    return colours[index % ADLI_COUNT(colours)];
}

/* ---- parts ---- */

static void draw_head(view *v, const json_t *state)
{
    static const char *const phases[] = {"Running", "Starting",  "Stopping",
                                         "Pending", "Succeeded", "Failed"};
    const json_t *nodes = json_object_get(state, "nodes"), *node;
    const json_t *counts = json_object_get(state, "jobs");
    char span[TIME_TEXT], cell[64];
    int slots = 0;
    size_t i, used = 0;
    adli_buf text;
    adli_buf_init(&text, 8192);
    json_array_foreach((json_t *)nodes, i, node)
    {
        slots += whole_of(node, "slots");
        used += json_array_size(json_object_get(node, "replicas"));
    }
    adli_buf_puts(&text, "adaptdl ");
    put_cell(&text, text_of(state, "version", "?"), strlen(text_of(state, "version", "?")));
    snprintf(cell, sizeof cell, "%.20s", text_of(state, "policy", "?"));
    adli_buf_puts(&text, "  policy ");
    put_cell(&text, cell, strlen(cell));
    double left_s = number_of(state, "nextRound") - number_of(state, "now");
    adli_buf_printf(&text, "  round %d, next in %s", whole_of(state, "round"),
                    term_span(left_s, span));
    adli_buf_printf(&text, "   %zu of %d slots in use", used, slots);
    end_line(v, &text);
    for (i = 0; i < ADLI_COUNT(phases); i++) {
        snprintf(cell, sizeof cell, "%s %d", phases[i], whole_of(counts, phases[i]));
        put_coloured(v, &text, whole_of(counts, phases[i]) ? term_phase_colour(phases[i]) : DIM,
                     cell);
        adli_buf_puts(&text, i + 1 < ADLI_COUNT(phases) ? "   " : "");
    }
    end_line(v, &text);
    end_line(v, &text);
    adli_buf_fini(&text);
}

/* The place of the job "ns/name" in the list; v->count: not there. */
static size_t find_job(const view *v, const char *name)
{
    size_t i = 0;
    for (; i < v->count; i++) {
        const char *ns = text_of(v->jobs[i], "namespace", "");
        size_t length = strlen(ns);
        if (strncmp(name, ns, length) == 0 && name[length] == '/' &&
            strcmp(name + length + 1, text_of(v->jobs[i], "name", "")) == 0)
            break;
    }
    return i;
}

static void draw_node(view *v, const json_t *node, size_t name_width)
{
    const json_t *replicas = json_object_get(node, "replicas");
    int slots = whole_of(node, "slots");
    size_t used = json_array_size(replicas);
    char letter[2] = "?";
    adli_buf text;
    adli_buf_init(&text, 1 << 16);
    put_cell(&text, text_of(node, "name", "?"), name_width);
    adli_buf_puts(&text, "[");
    for (size_t i = 0; (i < used || (int)i < slots) && i < 1000; i++) {
        adli_buf_puts(&text, i ? " " : "");
        if (i >= used) {
            put_coloured(v, &text, DIM, ".");
            continue;
        }
        size_t job = find_job(v, text_of(json_array_get(replicas, i), "job", ""));
        letter[0] = job < v->count ? letters[job % LETTERS] : '?';
        put_coloured(v, &text, job < v->count ? colour_of(job) : PLAIN, letter);
    }
    adli_buf_puts(&text, "]");
    if (!true_of(node, "ready"))
        put_coloured(v, &text, RED, " lost");
    else if (true_of(node, "draining"))
        put_coloured(v, &text, YELLOW, " draining");
    end_line(v, &text);
    adli_buf_fini(&text);
}

static void draw_nodes(view *v, const json_t *state)
{
    const json_t *nodes = json_object_get(state, "nodes"), *node;
    size_t i, width = 4, shown = json_array_size(nodes);
    adli_buf text;
    if (v->size->height && shown > (size_t)v->size->height / 2)
        shown = (size_t)v->size->height / 2;
    json_array_foreach((json_t *)nodes, i, node)
    {
        size_t length = strlen(text_of(node, "name", "?"));
        width = length > width ? length : width;
    }
    for (i = 0; i < shown; i++)
        draw_node(v, json_array_get(nodes, i), width < 40 ? width : 40);
    adli_buf_init(&text, 4096);
    if (shown < json_array_size(nodes)) {
        adli_buf_printf(&text, "... and %zu more", json_array_size(nodes) - shown);
        end_line(v, &text);
    }
    end_line(v, &text);
    adli_buf_fini(&text);
}

static void put_bar(view *v, adli_buf *text, double fraction, size_t job)
{
    char bar[BAR + 3], percent[8];
    if (!isfinite(fraction)) {
        put_cell(text, "-", BAR + 7);
        return;
    }
    fraction = fmin(fmax(fraction, 0), 1);
    int done = (int)(fraction * BAR + 0.5);
    snprintf(bar, sizeof bar, "%.*s", done, "############");
    adli_buf_puts(text, "[");
    put_coloured(v, text, colour_of(job), bar);
    adli_buf_printf(text, "%.*s]", BAR - done, "............");
    snprintf(percent, sizeof percent, "%.0f%%", 100 * fraction);
    adli_buf_printf(text, " %4s ", percent);
}

/* One metric of those that the job told of: a loss if there is one. */
static void put_metric(adli_buf *text, const json_t *metrics)
{
    const char *name, *shown = NULL;
    char cell[TIME_TEXT];
    json_t *metric;
    json_object_foreach((json_t *)metrics, name, metric)
    {
        if (!shown || (!strstr(shown, "loss") && strstr(name, "loss")))
            shown = name;
    }
    if (!shown)
        return;
    metric = json_object_get(metrics, shown);
    put_cell(text, shown, strlen(shown));
    adli_buf_puts(text, term_value(number_of(metric, "value"), cell));
}

static void draw_job(view *v, const json_t *state, size_t index, size_t name_width)
{
    const json_t *job = v->jobs[index], *train = json_object_get(job, "train");
    const char *phase = text_of(job, "phase", "-");
    char cell[TIME_TEXT], letter[2] = {letters[index % LETTERS], '\0'};
    double efficiency = number_of(train, "efficiency");
    adli_buf text;
    adli_buf_init(&text, 1 << 16);
    put_coloured(v, &text, index < v->active ? colour_of(index) : DIM, letter);
    adli_buf_puts(&text, " ");
    put_cell(&text, text_of(job, "name", "-"), name_width);
    adli_buf_puts(&text, term_code(term_phase_colour(phase), v->size->colours));
    put_cell(&text, phase, 9);
    adli_buf_puts(&text, term_code(PLAIN, v->size->colours));
    snprintf(cell, sizeof cell, "%d", whole_of(job, "replicas"));
    put_cell(&text, cell, 4);
    snprintf(cell, sizeof cell, "%d", whole_of(job, "restarts"));
    put_cell(&text, cell, 4);
    put_cell(&text, term_short(number_of(train, "batchSize"), cell), 6);
    put_cell(&text, term_short(number_of(train, "throughput"), cell), 7);
    if (isfinite(efficiency))
        snprintf(cell, sizeof cell, "%.0f%%", 100 * fmin(fmax(efficiency, 0), 9.99));
    else
        snprintf(cell, sizeof cell, "-");
    put_cell(&text, cell, 4);
    put_cell(&text, term_short(number_of(train, "goodput"), cell), 7);
    put_bar(v, &text, number_of(train, "fractionDone"), index);
    double end_s = number_of(train, "estimatedFinish");
    if (phase_over(phase) || end_s == 0)
        end_s = NAN;
    put_cell(&text, term_span(end_s - number_of(state, "now"), cell), 8);
    put_metric(&text, json_object_get(job, "metrics"));
    end_line(v, &text);
    adli_buf_fini(&text);
}

static void draw_jobs(view *v, const json_t *state)
{
    size_t width = 10, room = v->count;
    adli_buf text;
    adli_buf_init(&text, 4096);
    for (size_t i = 0; i < v->count; i++) {
        size_t length = strlen(text_of(v->jobs[i], "name", ""));
        width = length > width ? length : width;
    }
    width = width < 32 ? width : 32;
    adli_buf_puts(&text, term_code(BOLD, v->size->colours));
    adli_buf_puts(&text, "  ");
    put_cell(&text, "Job", width);
    adli_buf_puts(
        &text,
        "Status    Rplc Rtrt Batch  Thrpt   Eff  Goodput Progress            ETA      Metric");
    end_line(v, &text);
    if (v->size->height) {
        int left = v->size->height - v->lines - 2;
        room = left > 0 ? (size_t)left : 0;
    }
    size_t shown = v->count <= room + 1 ? v->count : room;
    for (size_t i = 0; i < shown; i++)
        draw_job(v, state, i, width);
    if (shown < v->count) {
        adli_buf_printf(&text, "... and %zu more", v->count - shown);
        end_line(v, &text);
    }
    if (v->count == 0) {
        adli_buf_puts(&text, "  no jobs; submit one with: adaptdl submit DIR");
        end_line(v, &text);
    }
    adli_buf_fini(&text);
}

void top_draw(adli_buf *out, const json_t *state, const json_t *jobs, const top_size *size)
{
    const json_t *items = json_object_get(jobs, "items");
    size_t count = json_array_size(items);
    view v = {.out = out, .size = size};
    v.jobs = adli_calloc(count, sizeof *v.jobs);
    if (!v.jobs)
        return;
    for (size_t i = 0; i < count; i++) /* as they came */
        if (!phase_over(text_of(json_array_get(items, i), "phase", "")))
            v.jobs[v.count++] = json_array_get(items, i);
    v.active = v.count;
    for (size_t i = count; i-- > 0;) /* the newest first */
        if (phase_over(text_of(json_array_get(items, i), "phase", "")))
            v.jobs[v.count++] = json_array_get(items, i);
    draw_head(&v, state);
    draw_nodes(&v, state);
    draw_jobs(&v, state);
    free(v.jobs);
}
