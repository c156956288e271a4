#include "log_text.h"

#include <string.h>

enum { LINE_MAX_BYTES = 1 << 16 };

void log_text_init(log_text *log, int rank, bool prefixed)
{
    *log = (log_text){.rank = rank, .prefixed = prefixed};
    adli_buf_init(&log->line, LINE_MAX_BYTES + 16);
}

static void end_line(log_text *log)
{
    printf("[%d] ", log->rank);
    term_log(stdout, &log->held, log->line.data ? log->line.data : "", log->line.length);
    adli_buf_clear(&log->line);
}

/* Lines of several ranks must not mix: each is printed when it is whole. */
static void print_prefixed(log_text *log, const char *data, size_t length)
{
    while (length > 0) {
        const char *end = memchr(data, '\n', length);
        size_t part = end ? (size_t)(end - data) + 1 : length;
        if (log->line.length + part > LINE_MAX_BYTES) {
            adli_buf_puts(&log->line, "\n");
            end_line(log);
            part = part < LINE_MAX_BYTES ? part : LINE_MAX_BYTES;
        }
        adli_buf_append(&log->line, data, part);
        if (data[part - 1] == '\n')
            end_line(log);
        data += part;
        length -= part;
    }
}

adl_status log_text_take(void *user, const char *data, size_t length)
{
    log_text *log = user;
    if (log->to_skip > 0) {
        size_t skip = (int64_t)length < log->to_skip ? length : (size_t)log->to_skip;
        log->to_skip -= (int64_t)skip;
        data += skip;
        length -= skip;
    }
    if (length == 0)
        return ADL_OK;
    log->printed += (int64_t)length;
    if (log->prefixed)
        print_prefixed(log, data, length);
    else
        term_log(stdout, &log->held, data, length);
    if (fflush(stdout) != 0)
        return adli_fail(ADL_EIO, "cannot write the output");
    return ADL_OK;
}

void log_text_end(log_text *log)
{
    if (log->line.length > 0) {
        adli_buf_puts(&log->line, "\n");
        end_line(log);
    }
    if (!log->prefixed)
        term_log(stdout, &log->held, NULL, 0);
}

void log_text_fini(log_text *log)
{
    adli_buf_fini(&log->line);
}
