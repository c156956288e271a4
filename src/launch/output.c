#include "launch/output.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void adli_output_clear(adli_output *output)
{
    if (output->shown)
        fputs("\r\033[K", stderr);
    output->shown = false;
}

static void show(adli_output *output)
{
    if (!output->terminal || !output->state[0])
        return;
    fprintf(stderr, "\r\033[K%s", output->state);
    fflush(stderr);
    output->shown = true;
}

void adli_output_state(adli_output *output, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(output->state, sizeof output->state, format, args);
    va_end(args);
    show(output);
}

/* A line of the launcher's own, on standard error. */
static void print(void *user, adl_log_level level, const char *line)
{
    (void)level;
    adli_output_clear(user);
    fprintf(stderr, "adaptdl run: %s\n", line);
    fflush(stderr);
    show(user);
}

void adli_output_init(adli_output *output, adl_log_level level)
{
    *output = (adli_output){.terminal = isatty(STDERR_FILENO) && level <= ADL_LOG_INFO};
    adli_log_start(print, output, level);
}

static void print_line(const adli_buf *line, int rank, FILE *to)
{
    fprintf(to, "[%d] ", rank);
    if (line->length)
        fwrite(line->data, 1, line->length, to);
    fputc('\n', to);
}

/* Appends text to the line, printing it at each newline and when it has become too long. */
static void take(adli_stream *stream, const char *text, size_t length, int rank, FILE *to)
{
    while (length > 0) {
        const char *end = memchr(text, '\n', length);
        size_t piece = end ? (size_t)(end - text) : length;
        if (stream->line.length + piece > stream->line.max) {
            print_line(&stream->line, rank, to);
            adli_buf_clear(&stream->line);
        }
        adli_buf_append(&stream->line, text, piece);
        if (end) {
            print_line(&stream->line, rank, to);
            adli_buf_clear(&stream->line);
            piece++;
        }
        text += piece;
        length -= piece;
    }
}

bool adli_output_pump(adli_output *output, adli_stream *stream, int rank, bool to_stderr)
{
    char chunk[1 << 14];
    FILE *to = to_stderr ? stderr : stdout;
    ssize_t got = read(stream->fd, chunk, sizeof chunk);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    adli_output_clear(output);
    if (got > 0)
        take(stream, chunk, (size_t)got, rank, to);
    if (got <= 0) {
        if (stream->line.length)
            print_line(&stream->line, rank, to);
        close(stream->fd);
        stream->fd = -1;
    }
    fflush(to);
    show(output);
    return got > 0;
}
