#include "base/csv.h"

#include "base/file.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

adl_status adli_csv_fail(const adli_csv *csv, int column, const char *format, ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return adli_fail(ADL_EINVAL, "%s:%d: field \"%s\": %s", csv->name, csv->line,
                     csv->columns[column], what);
}

/* Cuts the next line that holds something off csv->next; NULL at the end. */
static char *next_line(adli_csv *csv)
{
    while (csv->next && *csv->next) {
        char *line = csv->next, *end = strchr(line, '\n');
        csv->next = end ? end + 1 : NULL;
        csv->line++;
        if (end)
            *end = '\0';
        size_t length = strlen(line);
        if (length && line[length - 1] == '\r')
            line[length - 1] = '\0';
        if (line[0] != '\0' && line[0] != '#')
            return line;
    }
    return NULL;
}

/* Takes one field off *rest, in place; *rest becomes NULL after the last. NULL: a quote is open. */
static char *take_field(char **rest)
{
    char *from = *rest, *to = *rest, *field = *rest;
    bool quoted = *from == '"';
    from += quoted;
    for (; *from && (quoted || *from != ','); from++) {
        if (quoted && *from == '"') {
            if (from[1] != '"') {
                from++;
                quoted = false;
                if (*from != ',' && *from != '\0')
                    return NULL;
                break;
            }
            from++;
        }
        *to++ = *from;
    }
    if (quoted)
        return NULL;
    *rest = *from ? from + 1 : NULL;
    *to = '\0';
    return field;
}

static adl_status read_header(adli_csv *csv, int required)
{
    char *line = next_line(csv);
    if (!line)
        return adli_fail(ADL_EINVAL, "%s:1: empty, expected a header with column \"%s\"", csv->name,
                         csv->columns[0]);
    for (int position = 0; line; position++) {
        const char *name = take_field(&line);
        if (!name)
            return adli_fail(ADL_EINVAL, "%s:%d: bad quotes in the header", csv->name, csv->line);
        for (int i = 0; i < csv->wanted; i++)
            if (strcmp(csv->columns[i], name) == 0) {
                if (csv->position[i] >= 0)
                    return adli_csv_fail(csv, i, "the column appears twice");
                csv->position[i] = position;
            }
    }
    for (int i = 0; i < required; i++)
        if (csv->position[i] < 0)
            return adli_csv_fail(csv, i, "the column is missing");
    return ADL_OK;
}

static void start(adli_csv *csv, const char *name, const char *const *columns, int count)
{
    *csv = (adli_csv){.name = name, .columns = columns, .wanted = count};
    adli_buf_init(&csv->text, ADLI_CSV_BYTES_MAX);
    for (int i = 0; i < ADLI_CSV_COLUMNS_MAX; i++)
        csv->position[i] = -1;
}

static adl_status check_text(adli_csv *csv, int required)
{
    adl_status status = adli_buf_check(&csv->text);
    if (status != ADL_OK)
        return status;
    if (strlen(csv->text.data) != csv->text.length)
        return adli_fail(ADL_EINVAL, "%s: holds a NUL byte, so it is no text", csv->name);
    csv->next = csv->text.data;
    if (strncmp(csv->next, "\xef\xbb\xbf", 3) == 0) /* a byte order mark */
        csv->next += 3;
    return read_header(csv, required);
}

adl_status adli_csv_open_text(adli_csv *csv, const char *name, const char *text, size_t length,
                              const char *const *columns, int count, int required)
{
    start(csv, name, columns, count);
    adli_buf_append(&csv->text, text, length);
    return check_text(csv, required);
}

adl_status adli_csv_open(adli_csv *csv, const char *path, const char *const *columns, int count,
                         int required)
{
    start(csv, path, columns, count);
    adl_status status = adli_file_read(path, &csv->text);
    return status == ADL_OK ? check_text(csv, required) : status;
}

void adli_csv_close(adli_csv *csv)
{
    adli_buf_fini(&csv->text);
}

adl_status adli_csv_next(adli_csv *csv, bool *more)
{
    char *line = next_line(csv);
    *more = line != NULL;
    if (!line)
        return ADL_OK;
    if (++csv->rows > ADLI_CSV_ROWS_MAX)
        return adli_fail(ADL_EINVAL, "%s:%d: more than %d rows", csv->name, csv->line,
                         ADLI_CSV_ROWS_MAX);
    for (int i = 0; i < csv->wanted; i++)
        csv->field[i] = NULL;
    for (int position = 0; line; position++) {
        const char *field = take_field(&line);
        if (!field)
            return adli_fail(ADL_EINVAL, "%s:%d: bad quotes", csv->name, csv->line);
        for (int i = 0; i < csv->wanted; i++)
            if (csv->position[i] == position)
                csv->field[i] = field;
    }
    for (int i = 0; i < csv->wanted; i++)
        if (csv->position[i] >= 0 && !csv->field[i])
            return adli_csv_fail(csv, i, "missing in this row");
    return ADL_OK;
}

adl_status adli_csv_double(const adli_csv *csv, int column, double low, double high, double *out)
{
    const char *text = csv->field[column];
    char *end;
    *out = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(*out))
        return adli_csv_fail(csv, column, "\"%.40s\" is not a number", text);
    if (*out < low)
        return adli_csv_fail(csv, column, "%g is less than %g", *out, low);
    if (*out > high)
        return adli_csv_fail(csv, column, "%g is more than %g", *out, high);
    return ADL_OK;
}

adl_status adli_csv_int(const adli_csv *csv, int column, int low, int high, int *out)
{
    double number;
    adl_status status = adli_csv_double(csv, column, low, high, &number);
    if (status != ADL_OK)
        return status;
    if (number != floor(number))
        return adli_csv_fail(csv, column, "%g is not a whole number", number);
    *out = (int)number;
    return ADL_OK;
}
