#include "term.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* ---- text of others ---- */

static bool harmless(uint32_t code)
{
    return code >= 0x20 && !(code >= 0x7f && code < 0xa0) && /* C0, DEL, C1 */
           code != 0x2028 && code != 0x2029 && !(code >= 0x202a && code <= 0x202e) &&
           !(code >= 0x2066 && code <= 0x2069) && code != 0x200e && code != 0x200f;
}

void term_clean(adli_buf *out, const char *text, size_t length)
{
    for (size_t i = 0; i < length;) {
        uint32_t code;
        size_t step = adli_utf8_decode(text + i, length - i, &code);
        if (step > 0 && harmless(code))
            adli_buf_append(out, text + i, step);
        else
            adli_buf_puts(out, "?");
        i += step ? step : 1;
    }
}

void term_line(FILE *out, const char *text)
{
    adli_buf clean;
    adli_buf_init(&clean, 1 << 20);
    term_clean(&clean, text, strlen(text));
    fputs(clean.data ? clean.data : "", out);
    adli_buf_fini(&clean);
}

void term_lines(FILE *out, const char *text)
{
    for (const char *newline; (newline = strchr(text, '\n')); text = newline + 1) {
        adli_buf line;
        adli_buf_init(&line, 1 << 20);
        adli_buf_append(&line, text, (size_t)(newline - text));
        term_line(out, line.data ? line.data : "");
        fputs("\n    ", out);
        adli_buf_fini(&line);
    }
    term_line(out, text);
}

void term_field(FILE *out, const char *text, size_t width)
{
    size_t used = term_width(text);
    term_line(out, text);
    fprintf(out, "%*s", (int)(used < width ? width - used + 2 : 2), "");
}

/* Length of a colour sequence ESC [ digits ; ... m at p; 0: it is something else; left + 1: it
 * is not over yet. */
static size_t colour_sequence(const char *p, size_t left)
{
    size_t i = 2;
    if (p[0] != '\033' || (left > 1 && p[1] != '['))
        return 0;
    while (i < left && i < 32 && ((p[i] >= '0' && p[i] <= '9') || p[i] == ';'))
        i++;
    if (i >= left)
        return left + 1;
    return p[i] == 'm' ? i + 1 : 0;
}

/* Like colour_sequence, for a character. */
static size_t whole_character(const char *p, size_t left)
{
    unsigned char first = (unsigned char)p[0];
    size_t length = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    for (size_t i = 1; i < length; i++) {
        if (i == left)
            return left + 1;
        if (((unsigned char)p[i] & 0xc0) != 0x80)
            return i;
    }
    return length;
}

/* Appends what may be shown; the length of what was used. */
static size_t filter(adli_buf *clean, const char *data, size_t length, bool last)
{
    size_t i = 0;
    while (i < length) {
        size_t step = colour_sequence(data + i, length - i);
        bool pass = step > 0 || data[i] == '\n' || data[i] == '\t' || data[i] == '\r';
        if (step == 0)
            step = whole_character(data + i, length - i);
        if (step > length - i) {
            if (!last)
                break;
            step = length - i;
            pass = false;
        }
        if (pass)
            adli_buf_append(clean, data + i, step);
        else
            term_clean(clean, data + i, step);
        i += step;
    }
    return i;
}

void term_log(FILE *out, term_held *held, const char *data, size_t length)
{
    if (!isatty(fileno(out))) {
        if (length > 0)
            fwrite(data, 1, length, out);
        return;
    }
    adli_buf all, clean;
    adli_buf_init(&all, length + sizeof held->bytes);
    adli_buf_init(&clean, 4 * (length + sizeof held->bytes));
    adli_buf_append(&all, held->bytes, held->length);
    adli_buf_append(&all, data, length);
    size_t used = all.data ? filter(&clean, all.data, all.length, data == NULL) : 0;
    held->length = all.length - used < sizeof held->bytes ? all.length - used : 0;
    if (held->length)
        memcpy(held->bytes, all.data + used, held->length);
    fwrite(clean.data ? clean.data : "", 1, clean.length, out);
    adli_buf_fini(&clean);
    adli_buf_fini(&all);
}

size_t term_width(const char *text)
{
    size_t width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

/* Where the text goes on behind so many columns. */
static const char *skip_columns(const char *text, size_t columns)
{
    for (; *text && columns > 0; columns--)
        do
            text++;
        while (((unsigned char)*text & 0xc0) == 0x80);
    return text;
}

void term_shorten(adli_buf *out, const char *text, size_t width)
{
    static const char gap[] = "...";
    size_t all = term_width(text), left = width > sizeof gap ? width - (sizeof gap - 1) : 0;
    if (all <= width || left == 0) {
        adli_buf_append(out, text, (size_t)(skip_columns(text, width) - text));
        return;
    }
    size_t head = (left + 1) / 2;
    adli_buf_append(out, text, (size_t)(skip_columns(text, head) - text));
    adli_buf_puts(out, gap);
    adli_buf_puts(out, skip_columns(text, all - (left - head)));
}

int term_columns(FILE *out, int *lines)
{
    struct winsize window = {0};
    const char *columns = getenv("COLUMNS");
    bool screen = ioctl(fileno(out), TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
    if (lines)
        *lines = screen ? window.ws_row : 0;
    if (screen)
        return window.ws_col;
    return columns && atoi(columns) > 0 ? atoi(columns) : 0;
}

/* ---- colours ---- */

bool term_colours(FILE *out)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(out)) && !(no && *no) && term && strcmp(term, "dumb") != 0;
}

const char *term_code(term_colour colour, bool wanted)
{
    static const char *const codes[] = {"\033[0m",  "\033[31m", "\033[32m", "\033[33m", "\033[34m",
                                        "\033[35m", "\033[36m", "\033[1m",  "\033[2m"};
    return wanted ? codes[colour] : "";
}

term_colour term_phase_colour(const char *phase)
{
    static const struct {
        const char *phase;
        term_colour colour;
    } colours[] = {{"Running", GREEN},   {"Failed", RED},    {"Pending", YELLOW},
                   {"Starting", CYAN},   {"Stopping", CYAN}, {"Succeeded", BLUE},
                   {"Draining", YELLOW}, {"Lost", RED},      {"Ready", GREEN}};
    for (size_t i = 0; i < ADLI_COUNT(colours); i++)
        if (strcmp(colours[i].phase, phase) == 0)
            return colours[i].colour;
    return PLAIN;
}

/* ---- tables ---- */

void table_init(term_table *table, int columns, const char *const *heads)
{
    *table = (term_table){.columns = columns, .phase_column = -1};
    for (int i = 0; i < columns; i++)
        table_put(table, "%s", heads[i]);
}

void table_fini(term_table *table)
{
    for (size_t i = 0; i < table->count; i++)
        free(table->cells[i]);
    free(table->cells);
    *table = (term_table){0};
}

void table_put(term_table *table, const char *format, ...)
{
    char text[2000];
    adli_buf clean;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (adli_grow(&table->cells, &table->capacity, table->count + 1, sizeof *table->cells) != 0)
        return;
    adli_buf_init(&clean, 8000);
    term_clean(&clean, text, strlen(text));
    table->cells[table->count++] = clean.data;
}

enum { HIDDEN = -1, GAP = 2, NAME_LEAST = 12 };

/* Makes the columns fit: width[0] gets what the others leave. */
static void fit_columns(const term_table *table, int *width)
{
    int others = 0, next = 0;
    for (int c = 1; c < table->columns; c++)
        others += width[c] + GAP;
    while (table->fit - others < (width[0] < NAME_LEAST ? width[0] : NAME_LEAST) &&
           table->spare[next]) {
        others -= width[table->spare[next]] + GAP;
        width[table->spare[next++]] = HIDDEN;
    }
    int left = table->fit - others;
    width[0] = width[0] < left ? width[0] : left > 1 ? left : 1;
}

static void measure_columns(const term_table *table, int *width)
{
    for (int c = 0; c < table->columns; c++)
        width[c] = table->fit && c == 0 ? 0 : table->least[c];
    for (size_t i = 0; i < table->count; i++) {
        int *column = &width[i % (size_t)table->columns];
        int wide = (int)term_width(table->cells[i] ? table->cells[i] : "");
        *column = wide > *column ? wide : *column;
    }
    if (table->fit)
        fit_columns(table, width);
}

void table_print(const term_table *table, FILE *out)
{
    int width[TABLE_COLUMNS_MAX], last = table->columns - 1;
    bool colours = term_colours(out);
    measure_columns(table, width);
    while (last > 0 && width[last] == HIDDEN)
        last--;
    for (size_t i = 0; i < table->count; i++) {
        int column = (int)(i % (size_t)table->columns);
        adli_buf cell;
        term_colour colour = PLAIN;
        if (width[column] == HIDDEN)
            continue;
        adli_buf_init(&cell, 8000);
        term_shorten(&cell, table->cells[i] ? table->cells[i] : "", (size_t)width[column]);
        const char *text = cell.data ? cell.data : "";
        if (column == table->phase_column && i >= (size_t)table->columns)
            colour = term_phase_colour(text);
        fprintf(out, "%s%s%s", colour ? term_code(colour, colours) : "", text,
                colour ? term_code(PLAIN, colours) : "");
        if (column == last)
            fputc('\n', out);
        else
            fprintf(out, "%*s", width[column] - (int)term_width(text) + GAP, "");
        adli_buf_fini(&cell);
    }
}

/* ---- times and numbers ---- */

/* The parts of a time; false when it is not known. */
static bool split_time(double time_s, struct tm *parts)
{
    time_t whole = isfinite(time_s) && fabs(time_s) < 1e11 ? (time_t)time_s : 0;
    return whole != 0 && gmtime_r(&whole, parts);
}

const char *term_date(double time_s, char *out)
{
    struct tm parts;
    if (!split_time(time_s, &parts) || strftime(out, TIME_TEXT, "%b-%d %H:%M", &parts) == 0)
        snprintf(out, TIME_TEXT, "-");
    return out;
}

const char *term_clock(double time_s, char *out)
{
    struct tm parts;
    if (!split_time(time_s, &parts) || strftime(out, TIME_TEXT, "%H:%M:%S", &parts) == 0)
        snprintf(out, TIME_TEXT, "-");
    return out;
}

const char *term_minutes(double seconds, char *out)
{
    if (!isfinite(seconds) || fabs(seconds) > 1e11)
        snprintf(out, TIME_TEXT, "-");
    else
        snprintf(out, TIME_TEXT, "%lld min", (long long)(fmax(seconds, 0) / 60));
    return out;
}

const char *term_span(double seconds, char *out)
{
    if (!isfinite(seconds) || fabs(seconds) > 1e11) {
        snprintf(out, TIME_TEXT, "-");
        return out;
    }
    long long s = (long long)fmax(seconds, 0);
    if (s < 3600)
        snprintf(out, TIME_TEXT, "%lld:%02lld", s / 60, s % 60);
    else
        snprintf(out, TIME_TEXT, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    return out;
}

const char *term_short(double number, char *out)
{
    static const char units[] = " kMGTP";
    size_t unit = 0;
    double size = fabs(number);
    if (!isfinite(number)) {
        snprintf(out, TIME_TEXT, "-");
        return out;
    }
    while (size >= 9999.5 && unit + 2 < sizeof units) {
        size /= 1000;
        number /= 1000;
        unit++;
    }
    int digits = size >= 99.5 ? 0 : size >= 9.95 ? 1 : 2;
    if (size == floor(size) && unit == 0)
        digits = 0;
    snprintf(out, TIME_TEXT, "%.*f%.1s", digits, number, unit ? &units[unit] : "");
    return out;
}

const char *term_bytes(double bytes, char *out)
{
    static const char units[] = "BKMGTP";
    size_t unit = 0;
    for (; fabs(bytes) >= 999.5 && unit + 2 < sizeof units; unit++)
        bytes /= 1024;
    if (isfinite(bytes))
        snprintf(out, TIME_TEXT, "%.*f%.1s",
                 unit == 0 || bytes >= 99.5 ? 0
                 : bytes >= 9.95            ? 1
                                            : 2,
                 bytes, &units[unit]);
    else
        snprintf(out, TIME_TEXT, "-");
    return out;
}

const char *term_value(double number, char *out)
{
    if (isfinite(number))
        snprintf(out, TIME_TEXT, "%.4g", number);
    else
        snprintf(out, TIME_TEXT, "nan");
    return out;
}
