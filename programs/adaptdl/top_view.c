#include "top_view.h"

#include "cluster.h"
#include "term.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BAR = 12, LETTERS = 52, NAME_LEAST = 8, NAME_MOST = 32 };

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

typedef struct view {
    adli_buf *out;
    const top_size *size;
    const json_t *state;
    const json_t **jobs; /* [count] in the order shown; the unfinished ones first */
    size_t *slots;       /* [count] the place of their letters */
    size_t count, active;
    size_t replicas; /* whose use is known */
    int lines;
} view;

/* ---- letters ---- */

void top_letters_fini(top_letters *letters)
{
    free(letters->owners);
    *letters = (top_letters){0};
}

static bool is_shown(const view *v, const char *uid)
{
    for (size_t i = 0; i < v->count; i++)
        if (strcmp(text_of(v->jobs[i], "uid", ""), uid) == 0)
            return true;
    return false;
}

/* The slot of a job: the one that it had in the last picture, a new one, or, when there are no more letters, that
 * of a job that is gone. */
static size_t slot_of(const view *v, top_letters *letters, const char *uid)
{
    size_t slot = letters->count;
    for (size_t i = 0; i < letters->count; i++)
        if (strcmp(letters->owners[i], uid) == 0)
            return i;
    for (size_t i = 0; letters->count >= LETTERS && i < letters->count && slot == letters->count;
         i++)
        slot = is_shown(v, letters->owners[i]) ? slot : i;
    if (slot == letters->count) {
        if (adli_grow(&letters->owners, &letters->capacity, slot + 1, sizeof *letters->owners) != 0)
            return 0;
        letters->count++;
    }
    snprintf(letters->owners[slot], sizeof letters->owners[slot], "%s", uid);
    return slot;
}

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

/* A cell of a table: cleaned, shortened and padded. */
static void put_cell(adli_buf *text, const char *words, size_t width)
{
    adli_buf clean, cell;
    adli_buf_init(&clean, 4096);
    adli_buf_init(&cell, 4096);
    term_clean(&clean, words, strlen(words));
    term_shorten(&cell, clean.data ? clean.data : "", width);
    adli_buf_append(text, cell.data, cell.length);
    adli_buf_printf(text, "%*s", (int)(width - term_width(cell.data ? cell.data : "") + 1), "");
    adli_buf_fini(&cell);
    adli_buf_fini(&clean);
}

/* A part of a line that goes on in the next one where it does not fit. */
static void put_part(view *v, adli_buf *text, size_t *used, term_colour colour, const char *words)
{
    size_t length = term_width(words);
    if (*used > 0 && *used + 3 + length > (size_t)v->size->width) {
        end_line(v, text);
        *used = 0;
    }
    adli_buf_puts(text, *used ? "   " : "");
    put_coloured(v, text, colour, words);
    *used += length + (*used ? 3 : 0);
}

static term_colour colour_of(size_t index)
{
    static const term_colour colours[] = {GREEN, BLUE, MAGENTA, CYAN, YELLOW, RED};
    return colours[index % ADLI_COUNT(colours)];
}

/* ---- parts ---- */

static void draw_head(view *v)
{
    static const char *const phases[] = {"Running", "Starting",  "Stopping",
                                         "Pending", "Succeeded", "Failed"};
    const json_t *nodes = json_object_get(v->state, "nodes"), *node;
    const json_t *counts = json_object_get(v->state, "jobs");
    char span[TIME_TEXT], part[96];
    int slots = 0;
    size_t i, used = 0, at = 0;
    adli_buf text;
    adli_buf_init(&text, 8192);
    json_array_foreach((json_t *)nodes, i, node)
    {
        slots += whole_of(node, "slots");
        used += json_array_size(json_object_get(node, "replicas"));
    }
    snprintf(part, sizeof part, "adaptdl %.40s", text_of(v->state, "version", "?"));
    put_part(v, &text, &at, PLAIN, part);
    snprintf(part, sizeof part, "policy %.20s", text_of(v->state, "policy", "?"));
    put_part(v, &text, &at, PLAIN, part);
    double left_s = number_of(v->state, "nextRound") - number_of(v->state, "now");
    snprintf(part, sizeof part, "round %d, next in %s", whole_of(v->state, "round"),
             term_span(left_s, span));
    put_part(v, &text, &at, PLAIN, part);
    snprintf(part, sizeof part, "%zu of %d slots in use", used, slots);
    put_part(v, &text, &at, PLAIN, part);
    end_line(v, &text);
    at = 0;
    for (i = 0; i < ADLI_COUNT(phases); i++) {
        int count = whole_of(counts, phases[i]);
        snprintf(part, sizeof part, "%s %d", phases[i], count);
        put_part(v, &text, &at, count ? term_phase_colour(phases[i]) : DIM, part);
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
    size_t used = json_array_size(replicas), slots = (size_t)whole_of(node, "slots");
    size_t places = used > slots ? used : slots, room = (size_t)v->size->width - name_width - 2;
    size_t in_line = room / 2 > 1 ? room / 2 : 1;
    char letter[2] = "?";
    adli_buf text;
    adli_buf_init(&text, 1 << 16);
    put_cell(&text, text_of(node, "name", "?"), name_width);
    adli_buf_puts(&text, "[");
    for (size_t i = 0; i < places && i < 1000; i++) {
        if (i > 0 && i % in_line == 0) { /* goes on below */
            end_line(v, &text);
            adli_buf_printf(&text, "%*s", (int)name_width + 2, "");
        } else
            adli_buf_puts(&text, i ? " " : "");
        if (i >= used) {
            put_coloured(v, &text, DIM, ".");
            continue;
        }
        size_t job = find_job(v, text_of(json_array_get(replicas, i), "job", ""));
        letter[0] = job < v->count ? alphabet[v->slots[job] % LETTERS] : '?';
        put_coloured(v, &text, job < v->count ? colour_of(v->slots[job]) : PLAIN, letter);
    }
    adli_buf_puts(&text, "]");
    if (!true_of(node, "ready"))
        put_coloured(v, &text, RED, " lost");
    else if (true_of(node, "draining"))
        put_coloured(v, &text, YELLOW, " draining");
    end_line(v, &text);
    adli_buf_fini(&text);
}

static void draw_nodes(view *v)
{
    const json_t *nodes = json_object_get(v->state, "nodes"), *node;
    size_t i, width = 4, shown = json_array_size(nodes), most = v->size->width < 80 ? 12 : 40;
    adli_buf text;
    if (v->size->height && shown > (size_t)v->size->height / 2)
        shown = (size_t)v->size->height / 2;
    json_array_foreach((json_t *)nodes, i, node)
    {
        size_t length = strlen(text_of(node, "name", "?"));
        width = length > width ? length : width;
    }
    for (i = 0; i < shown; i++)
        draw_node(v, json_array_get(nodes, i), width < most ? width : most);
    adli_buf_init(&text, 4096);
    if (shown < json_array_size(nodes)) {
        adli_buf_printf(&text, "... and %zu more", json_array_size(nodes) - shown);
        end_line(v, &text);
    }
    end_line(v, &text);
    adli_buf_fini(&text);
}

/* ---- jobs ---- */

/* A column of the table of jobs. Where the screen is narrow those of the highest rank are left out. */
typedef struct column {
    const char *head;
    size_t width;
    int rank;
    enum { TEXT, WHOLE, METRIC, SHORT, PERCENT, BAR_OF, TIME_TO } kind;
    const char *field; /* of the job; of its "train" from SHORT on */
} column;

static const column columns[] = {
    {"Status", 9, 1, TEXT, "phase"},         {"Rplc", 4, 2, WHOLE, "replicas"},
    {"Rtrt", 4, 10, WHOLE, "restarts"},      {"Batch", 6, 7, SHORT, "batchSize"},
    {"Thrpt", 7, 9, SHORT, "throughput"},    {"Eff", 4, 6, PERCENT, "efficiency"},
    {"Goodput", 7, 5, SHORT, "goodput"},     {"Progress", BAR + 2, 11, BAR_OF, "fractionDone"},
    {"Done", 4, 3, PERCENT, "fractionDone"}, {"ETA", 7, 4, TIME_TO, "estimatedFinish"},
    {"Metric", 18, 8, METRIC, "metrics"},
};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

/* Which of them fit beside a name; what is left for the name. */
static size_t choose_columns(const view *v, bool shown[COLUMNS])
{
    size_t left = (size_t)v->size->width - 2;
    for (int c = 0; c < COLUMNS; c++)
        shown[c] = false;
    for (int rank = 1; rank <= COLUMNS; rank++)
        for (int c = 0; c < COLUMNS; c++)
            if (columns[c].rank == rank && left > NAME_LEAST + columns[c].width + 1) {
                shown[c] = true;
                left -= columns[c].width + 1;
            }
    return left - 1;
}

/* One metric of those that the job told of: a loss if there is one. */
static void put_metric(adli_buf *text, const json_t *metrics, size_t width)
{
    const char *name, *shown = NULL;
    char cell[TIME_TEXT], words[96];
    json_t *metric;
    json_object_foreach((json_t *)metrics, name, metric)
    {
        if (!shown || (!strstr(shown, "loss") && strstr(name, "loss")))
            shown = name;
    }
    metric = shown ? json_object_get(metrics, shown) : NULL;
    snprintf(words, sizeof words, "%.40s%s%s", shown ? shown : "", shown ? " " : "",
             shown ? term_value(number_of(metric, "value"), cell) : "");
    put_cell(text, words, width);
}

static void put_bar(view *v, adli_buf *text, double fraction, size_t slot)
{
    char bar[BAR + 1];
    if (!isfinite(fraction)) {
        put_cell(text, "-", BAR + 2);
        return;
    }
    int done = (int)(fmin(fmax(fraction, 0), 1) * BAR + 0.5);
    snprintf(bar, sizeof bar, "%.*s", done, "############");
    adli_buf_puts(text, "[");
    put_coloured(v, text, colour_of(slot), bar);
    adli_buf_printf(text, "%.*s] ", BAR - done, "............");
}

static void put_column(view *v, adli_buf *text, size_t index, const column *c)
{
    const json_t *job = v->jobs[index];
    const char *phase = text_of(job, "phase", "-"), *words = "-";
    double number = number_of(json_object_get(job, "train"), c->field);
    char cell[TIME_TEXT];
    switch (c->kind) {
    case TEXT:
        words = text_of(job, c->field, "-");
        break;
    case WHOLE:
        snprintf(cell, sizeof cell, "%d", whole_of(job, c->field));
        words = cell;
        break;
    case METRIC:
        put_metric(text, json_object_get(job, c->field), c->width);
        return;
    case SHORT:
        words = term_short(number, cell);
        break;
    case PERCENT:
        snprintf(cell, sizeof cell, "%.0f%%", 100 * fmin(fmax(number, 0), 9.99));
        words = isfinite(number) ? cell : "-";
        break;
    case BAR_OF:
        put_bar(v, text, number, v->slots[index]);
        return;
    case TIME_TO:
        if (phase_over(phase) || number == 0)
            number = NAN;
        words = term_span(number - number_of(v->state, "now"), cell);
        break;
    }
    bool coloured = c->kind == TEXT;
    adli_buf_puts(text, coloured ? term_code(term_phase_colour(phase), v->size->colours) : "");
    put_cell(text, words, c->width);
    adli_buf_puts(text, coloured ? term_code(PLAIN, v->size->colours) : "");
}

static void draw_job(view *v, size_t index, size_t name_width, const bool shown[COLUMNS])
{
    size_t slot = v->slots[index];
    char letter[2] = {alphabet[slot % LETTERS], '\0'};
    adli_buf text;
    adli_buf_init(&text, 1 << 16);
    put_coloured(v, &text, index < v->active ? colour_of(slot) : DIM, letter);
    adli_buf_puts(&text, " ");
    put_cell(&text, text_of(v->jobs[index], "name", "-"), name_width);
    for (int c = 0; c < COLUMNS; c++)
        if (shown[c])
            put_column(v, &text, index, &columns[c]);
    end_line(v, &text);
    adli_buf_fini(&text);
}

/* ---- what replicas use ---- */

/* The lines that the table of replicas may take from the jobs. */
static size_t replica_lines(const view *v)
{
    size_t wanted = v->replicas ? v->replicas + 2 : 0, most = (size_t)v->size->height / 3;
    return wanted < most ? wanted : most;
}

static const struct {
    const char *head;
    size_t width;
    const char *field;
    const char *(*show)(double value, char *out);
} uses[] = {
    {"CPUs", 5, "cpus", term_short},
    {"Mem", 6, "memoryBytes", term_bytes},
    {"GPUs", 5, "gpus", term_short},
    {"GPUmem", 6, "gpuMemoryBytes", term_bytes},
};
enum { USES = sizeof uses / sizeof uses[0], RANK_WIDTH = 4, NODE_LEAST = 6, NODE_MOST = 24 };

/* GPUs only where a replica uses some. */
static int use_columns(const view *v)
{
    for (size_t j = 0; j < v->count; j++) {
        const json_t *list = json_object_get(v->jobs[j], "use"), *use;
        size_t i;
        json_array_foreach((json_t *)list, i, use)
        {
            if (json_object_get(use, "gpus") || json_object_get(use, "gpuMemoryBytes"))
                return USES;
        }
    }
    return 2;
}

static void draw_replica(view *v, size_t job, const json_t *use, const size_t widths[2],
                         int columns_shown)
{
    const json_t *nodes = json_object_get(v->jobs[job], "allocation");
    const char *node = json_string_value(json_array_get(nodes, (size_t)whole_of(use, "rank")));
    char letter[2] = {alphabet[v->slots[job] % LETTERS], '\0'}, cell[TIME_TEXT];
    adli_buf text;
    adli_buf_init(&text, 1 << 16);
    put_coloured(v, &text, colour_of(v->slots[job]), letter);
    adli_buf_puts(&text, " ");
    put_cell(&text, text_of(v->jobs[job], "name", "-"), widths[0]);
    snprintf(cell, sizeof cell, "%d", whole_of(use, "rank"));
    put_cell(&text, cell, RANK_WIDTH);
    if (widths[1])
        put_cell(&text, node ? node : "-", widths[1]);
    for (int c = 0; c < columns_shown; c++)
        put_cell(&text, uses[c].show(number_of(use, uses[c].field), cell), uses[c].width);
    end_line(v, &text);
    adli_buf_fini(&text);
}

/* The widths of names and nodes; a screen that is too narrow has no nodes. */
static void replica_widths(const view *v, int columns_shown, size_t widths[2])
{
    size_t left = (size_t)v->size->width - 2 - (RANK_WIDTH + 1), longest[2] = {NAME_LEAST, 4};
    for (int c = 0; c < columns_shown; c++)
        left = left > uses[c].width + 1 ? left - uses[c].width - 1 : 0;
    for (size_t j = 0; j < v->count; j++) {
        const json_t *nodes = json_object_get(v->jobs[j], "allocation"), *node;
        size_t i, length = strlen(text_of(v->jobs[j], "name", ""));
        longest[0] = length > longest[0] ? length : longest[0];
        json_array_foreach((json_t *)nodes, i, node)
        {
            length = json_string_length(node);
            longest[1] = length > longest[1] ? length : longest[1];
        }
    }
    longest[0] = longest[0] < NAME_MOST ? longest[0] : NAME_MOST;
    longest[1] = longest[1] < NODE_MOST ? longest[1] : NODE_MOST;
    bool with_node = left >= NAME_LEAST + 1 + NODE_LEAST + 1;
    widths[1] = !with_node                           ? 0
                : longest[1] < left - NAME_LEAST - 2 ? longest[1]
                                                     : left - NAME_LEAST - 2;
    left -= widths[1] ? widths[1] + 1 : 0;
    widths[0] = left <= NAME_LEAST ? NAME_LEAST : longest[0] < left ? longest[0] : left - 1;
}

static void draw_replicas(view *v)
{
    int columns_shown = use_columns(v);
    size_t widths[2], room = v->replicas, shown = 0;
    adli_buf text;
    if (v->size->height) {
        int left = v->size->height - v->lines - 3; /* a blank line, the heads, the last line */
        room = left > 0 ? (size_t)left : 0;
    }
    if (room == 0 || v->replicas == 0)
        return;
    adli_buf_init(&text, 4096);
    end_line(v, &text);
    replica_widths(v, columns_shown, widths);
    adli_buf_printf(&text, "%s  ", term_code(BOLD, v->size->colours));
    put_cell(&text, "Replica", widths[0]);
    put_cell(&text, "Rank", RANK_WIDTH);
    if (widths[1])
        put_cell(&text, "Node", widths[1]);
    for (int c = 0; c < columns_shown; c++)
        put_cell(&text, uses[c].head, uses[c].width);
    end_line(v, &text);
    if (v->replicas > room)
        room--;
    for (size_t j = 0; j < v->count; j++) {
        const json_t *list = json_object_get(v->jobs[j], "use"), *use;
        size_t i;
        json_array_foreach((json_t *)list, i, use)
        {
            if (shown < room) {
                draw_replica(v, j, use, widths, columns_shown);
                shown++;
            }
        }
    }
    if (shown < v->replicas) {
        adli_buf_printf(&text, "... and %zu more", v->replicas - shown);
        end_line(v, &text);
    }
    adli_buf_fini(&text);
}

/* ---- all ---- */

static void draw_jobs(view *v)
{
    bool chosen[COLUMNS];
    size_t width = NAME_LEAST, room = v->count, most = choose_columns(v, chosen);
    adli_buf text;
    adli_buf_init(&text, 4096);
    for (size_t i = 0; i < v->count; i++) {
        size_t length = strlen(text_of(v->jobs[i], "name", ""));
        width = length > width ? length : width;
    }
    most = most < NAME_MOST ? most : NAME_MOST;
    width = width < most ? width : most;
    adli_buf_puts(&text, term_code(BOLD, v->size->colours));
    adli_buf_puts(&text, "  ");
    put_cell(&text, "Job", width);
    for (int c = 0; c < COLUMNS; c++)
        if (chosen[c])
            put_cell(&text, columns[c].head, columns[c].width);
    end_line(v, &text);
    if (v->size->height) {
        int left = v->size->height - v->lines - 2 - (int)replica_lines(v);
        room = left > 0 ? (size_t)left : 0;
    }
    size_t shown = v->count <= room + 1 ? v->count : room;
    for (size_t i = 0; i < shown; i++)
        draw_job(v, i, width, chosen);
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

void top_draw(adli_buf *out, const json_t *state, const json_t *jobs, const top_size *size,
              top_letters *letters)
{
    const json_t *items = json_object_get(jobs, "items");
    size_t count = json_array_size(items);
    view v = {.out = out, .size = size, .state = state};
    v.jobs = adli_calloc(count, sizeof *v.jobs);
    v.slots = adli_calloc(count, sizeof *v.slots);
    if (v.jobs && v.slots) {
        for (size_t i = 0; i < count; i++) /* as they came */
            if (!phase_over(text_of(json_array_get(items, i), "phase", "")))
                v.jobs[v.count++] = json_array_get(items, i);
        v.active = v.count;
        for (size_t i = count; i-- > 0;) /* the newest first */
            if (phase_over(text_of(json_array_get(items, i), "phase", "")))
                v.jobs[v.count++] = json_array_get(items, i);
        for (size_t i = 0; i < count; i++)
            v.replicas += json_array_size(json_object_get(v.jobs[i], "use"));
        for (size_t i = 0; i < count; i++)
            v.slots[i] = slot_of(&v, letters, text_of(v.jobs[i], "uid", ""));
        draw_head(&v);
        draw_nodes(&v);
        draw_jobs(&v);
        draw_replicas(&v);
    }
    free(v.slots);
    free(v.jobs);
}
