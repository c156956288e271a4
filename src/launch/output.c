#include "launch/output.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void adli_output_init(adli_output *output, bool quiet)
{
    *output = (adli_output){.terminal = isatty(STDERR_FILENO) && !quiet, .quiet = quiet};
}

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

__attribute__((format(printf, 2, 0))) static void say(adli_output *output, const char *format,
                                                      va_list args)
{
    adli_output_clear(output);
    fputs("adaptdl run: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    fflush(stderr);
    show(output);
}

void adli_output_say(adli_output *output, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!output->quiet)
        say(output, format, args);
    va_end(args);
}

void adli_output_fail(adli_output *output, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(output, format, args);
    va_end(args);
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
