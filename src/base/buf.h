/* A growable text buffer with a maximum. Appending never fails on the spot: the first failure is
 * remembered and reported once, by adli_buf_check, so that building a long text reads well. */
#ifndef ADLI_BUF_H
#define ADLI_BUF_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct adli_buf {
    char *data; /* always NUL-terminated once something was appended; NULL before */
    size_t length;
    size_t capacity;
    size_t max;        /* bytes, without the NUL */
    adl_status status; /* first failure */
    bool spaced;       /* see adli_jw_spaced */
} adli_buf;

void adli_buf_init(adli_buf *buf, size_t max);
void adli_buf_fini(adli_buf *buf);
void adli_buf_clear(adli_buf *buf);
void adli_buf_append(adli_buf *buf, const void *data, size_t length);
void adli_buf_puts(adli_buf *buf, const char *text);
void adli_buf_printf(adli_buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The shortest decimal that reads back as the same double ("null" when it is not finite): what JSON
 * and logs use, so that they are byte-identical everywhere. */
void adli_buf_double(adli_buf *buf, double value);

/* text as a JSON string, quotes included. */
void adli_buf_json(adli_buf *buf, const char *text);

/* ADL_OK, or the first failure with its error text set again. */
ADL_MUST adl_status adli_buf_check(const adli_buf *buf);

#endif
