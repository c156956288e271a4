/* The output of one replica on its way to the terminal: as it comes, or line by line with the rank before each. */
#ifndef ADAPTDL_LOG_TEXT_H
#define ADAPTDL_LOG_TEXT_H

#include "term.h"

#include <stdint.h>

typedef struct log_text {
    int rank;
    bool prefixed;
    int64_t printed, to_skip; /* bytes; those of a log that is read again are skipped */
    adli_buf line;            /* of a prefixed log: not ended yet */
    term_held held;
} log_text;

void log_text_init(log_text *log, int rank, bool prefixed);
/* As adli_stream_request has it; user: the log_text. */
adl_status log_text_take(void *user, const char *data, size_t length);
/* No more comes of it. */
void log_text_end(log_text *log);
void log_text_fini(log_text *log);

#endif
