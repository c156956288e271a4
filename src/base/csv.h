/* CSV tables with a header line, read by column name. Every error names file, line and field. The
 * format: comma-separated, a field may be in double quotes ("" is a quote), LF or CRLF, blank lines
 * and lines that start with # are skipped; columns nobody asked for are ignored. */
#ifndef ADLI_CSV_H
#define ADLI_CSV_H

#include "base/buf.h"

#include <stdbool.h>

enum { ADLI_CSV_COLUMNS_MAX = 32, ADLI_CSV_ROWS_MAX = 1000000, ADLI_CSV_BYTES_MAX = 256 << 20 };

typedef struct adli_csv {
    const char *name; /* for messages; borrowed */
    adli_buf text;
    char *next; /* unread part of text */
    int line, rows;
    const char *const *columns;         /* wanted names; borrowed */
    int wanted;                         /* how many */
    int position[ADLI_CSV_COLUMNS_MAX]; /* column of the file for each wanted one, -1: absent */
    const char *field[ADLI_CSV_COLUMNS_MAX];
} adli_csv;

/* Opens the file and reads its header; the first `required` of the `count` columns must be there.
 * Call adli_csv_close whatever the result. */
ADL_MUST adl_status adli_csv_open(adli_csv *csv, const char *path, const char *const *columns,
                                  int count, int required);
/* The same from memory (copied); name is used in messages. */
ADL_MUST adl_status adli_csv_open_text(adli_csv *csv, const char *name, const char *text,
                                       size_t length, const char *const *columns, int count,
                                       int required);
void adli_csv_close(adli_csv *csv);

/* The next row; *more is false at the end. */
ADL_MUST adl_status adli_csv_next(adli_csv *csv, bool *more);

/* A field of the present row, by index into columns; NULL when the column is absent. */
static inline const char *adli_csv_text(const adli_csv *csv, int column)
{
    return csv->field[column];
}
ADL_MUST adl_status adli_csv_double(const adli_csv *csv, int column, double low, double high,
                                    double *out);
ADL_MUST adl_status adli_csv_int(const adli_csv *csv, int column, int low, int high, int *out);

/* EINVAL "file:line: field "x": ..." for a check of the caller's own. */
adl_status adli_csv_fail(const adli_csv *csv, int column, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
