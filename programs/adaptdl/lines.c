#include "lines.h"

#include <ctype.h>

void lines_init(line_reader *reader, FILE *file, size_t max_bytes)
{
    *reader = (line_reader){.file = file};
    adli_buf_init(&reader->line, max_bytes);
}

void lines_fini(line_reader *reader)
{
    adli_buf_fini(&reader->line);
}

bool lines_next(line_reader *reader)
{
    char chunk[4096];
    size_t used = 0;
    int c = getc_unlocked(reader->file);
    if (c == EOF)
        return false;
    adli_buf_clear(&reader->line);
    for (; c != EOF && c != '\n'; c = getc_unlocked(reader->file)) {
        chunk[used++] = (char)c;
        if (used == sizeof chunk) {
            adli_buf_append(&reader->line, chunk, used);
            used = 0;
        }
    }
    adli_buf_append(&reader->line, chunk, used);
    reader->number++;
    reader->too_long = reader->line.status != ADL_OK;
    return true;
}

bool lines_blank(const line_reader *reader)
{
    for (size_t i = 0; i < reader->line.length; i++)
        if (!isspace((unsigned char)reader->line.data[i]))
            return false;
    return !reader->too_long;
}
