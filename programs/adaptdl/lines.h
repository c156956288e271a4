/* Lines of a stream, one at a time, with a limit on their length, without waiting for more than the
 * newline: so a script can hold a conversation with a command through a pipe. */
#ifndef ADAPTDL_LINES_H
#define ADAPTDL_LINES_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct line_reader {
    FILE *file;
    adli_buf line; /* the present line, without its newline */
    size_t number; /* of the present line, from 1 */
    bool too_long; /* it passed the limit; line holds nothing useful */
} line_reader;

void lines_init(line_reader *reader, FILE *file, size_t max_bytes);
void lines_fini(line_reader *reader);

/* The next line into reader; false at the end or at a read error (ferror tells). */
bool lines_next(line_reader *reader);

/* Is there nothing but spaces on the present line? */
bool lines_blank(const line_reader *reader);

#endif
