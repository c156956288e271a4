#include "daemon/hopeless.h"

#include "base/mem.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <xxhash.h>

/* What fails later than this has done something before, and may come further the next time. */
static const double AT_ONCE_S = 60;

typedef struct line {
    const char *text;
    size_t length;
} line;

/* The line at *at, which moves behind it. */
static line next_line(const char **at, const char *end)
{
    const char *newline = memchr(*at, '\n', (size_t)(end - *at));
    line got = {*at, (size_t)((newline ? newline : end) - *at)};
    *at = newline ? newline + 1 : end;
    if (got.length > 0 && got.text[got.length - 1] == '\r')
        got.length--;
    return got;
}

static bool begins(line l, const char *word)
{
    size_t length = strlen(word);
    return l.length >= length && memcmp(l.text, word, length) == 0;
}

/* The last traceback: *from, where it begins, and the line that names the exception. length 0: none. */
static line find_exception(const char *output, size_t length, const char **from)
{
    line found = {0};
    const char *at = output, *end = output + length;
    bool inside = false;
    while (at < end) {
        const char *start = at;
        line l = next_line(&at, end);
        if (begins(l, "Traceback (most recent call last)")) {
            *from = start;
            found = (line){0};
            inside = true;
        } else if (inside && l.length > 0 && !isspace((unsigned char)l.text[0])) {
            found = l;
            inside = false;
        }
    }
    return found;
}

/* The frames as they are; of the exception's line numbers are left out: addresses, ports and times differ. */
uint64_t adli_traceback_print(const char *output, size_t length)
{
    const char *from = NULL;
    uint64_t print;
    line exception = find_exception(output, length, &from);
    if (exception.length == 0)
        return 0;
    print = XXH3_64bits(from, (size_t)(exception.text - from));
    for (size_t i = 0; i < exception.length; i++)
        if (!isxdigit((unsigned char)exception.text[i]))
            print = XXH3_64bits_withSeed(&exception.text[i], 1, print);
    return print ? print : 1;
}

static line last_line(const char *output, size_t length)
{
    line last = {0};
    for (const char *at = output, *end = output + length; at < end;) {
        line l = next_line(&at, end);
        last = l.length > 0 ? l : last;
    }
    return last;
}

/* Python's words for a program that is not there, or cannot be one. */
static const char *broken_program(const adli_failure *failure)
{
    static const char *const errors[] = {
        "ModuleNotFoundError:", "ImportError:", "SyntaxError:", "IndentationError:", "TabError:"};
    const char *from;
    line last = last_line(failure->output, failure->length);
    line exception = find_exception(failure->output, failure->length, &from);
    if (exception.length == 0)
        exception = last; /* of the program's own file no traceback is printed */
    for (size_t i = 0; i < ADLI_COUNT(errors); i++)
        if (begins(exception, errors[i]))
            return i < 2 ? "an import failed" : "the program is not valid Python";
    if (last.length > 0 && memmem(last.text, last.length, "can't open file", 15))
        return "the program was not found";
    return NULL;
}

const char *adli_failure_hopeless(const adli_failure *failure, uint64_t print, uint64_t before)
{
    if (failure->cause == ADLI_CAUSE_CANNOT_RUN)
        return "the program cannot be run";
    if (failure->cause != ADLI_CAUSE_NONE)
        return NULL;
    if (print && print == before)
        return "it failed with the same traceback before";
    if (failure->ran_s >= AT_ONCE_S)
        return NULL;
    if (failure->exit_code == 127) /* what shells say */
        return "the program was not found";
    return broken_program(failure);
}
