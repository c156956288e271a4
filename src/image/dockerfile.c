#include "image/dockerfile.h"

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { WORD_MAX = 1 << 16 };

adl_status adli_dockerfile_fail(const adli_dockerfile *file, const adli_instruction *at,
                                const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return adli_fail(ADL_EINVAL, "%s:%d: %s", file->path, at->line, text);
}

void adli_dockerfile_fini(adli_dockerfile *file)
{
    for (size_t i = 0; i < file->count; i++)
        free(file->list[i].arguments);
    free(file->list);
    *file = (adli_dockerfile){0};
}

/* ---- lines ---- */

typedef struct cursor {
    const char *next, *end;
    int line; /* number of the line that was read last */
} cursor;

/* The next physical line without its end; false after the last. */
static bool next_line(cursor *c, const char **line, size_t *length)
{
    if (c->next >= c->end)
        return false;
    const char *end = memchr(c->next, '\n', (size_t)(c->end - c->next));
    *line = c->next;
    *length = (size_t)((end ? end : c->end) - c->next);
    c->next = end ? end + 1 : c->end;
    c->line++;
    if (*length > 0 && (*line)[*length - 1] == '\r')
        --*length;
    return true;
}

static bool is_blank(const char *line, size_t length)
{
    while (length > 0 && (*line == ' ' || *line == '\t'))
        line++, length--;
    return length == 0;
}

static bool is_comment(const char *line, size_t length)
{
    while (length > 0 && (*line == ' ' || *line == '\t'))
        line++, length--;
    return length > 0 && *line == '#';
}

/* "# escape=`": counts only in the comments at the top. */
static void read_directive(adli_dockerfile *file, const char *line, size_t length)
{
    char text[64];
    char escape;
    if (length >= sizeof text)
        return;
    memcpy(text, line, length);
    text[length] = '\0';
    if (sscanf(text, " # escape = %c", &escape) == 1 && (escape == '`' || escape == '\\'))
        file->escape = escape;
}

/* One instruction with its continued lines into text; at->line is set. */
static bool join_lines(adli_dockerfile *file, cursor *c, adli_buf *text, adli_instruction *at)
{
    const char *line;
    size_t length;
    bool started = false;
    while (next_line(c, &line, &length)) {
        if (is_comment(line, length)) {
            if (!started && file->count == 0)
                read_directive(file, line, length);
            continue;
        }
        if (is_blank(line, length))
            continue; /* also between continued lines, as Docker allows */
        if (!started)
            at->line = c->line;
        started = true;
        size_t end = length;
        while (end > 0 && (line[end - 1] == ' ' || line[end - 1] == '\t'))
            end--;
        bool goes_on = end > 0 && line[end - 1] == file->escape;
        adli_buf_append(text, line, goes_on ? end - 1 : length);
        if (!goes_on)
            return true;
    }
    return started;
}

/* The words that end the here-documents of "RUN <<EOF"; skips their lines. */
static adl_status skip_documents(adli_dockerfile *file, cursor *c, adli_instruction *at)
{
    for (const char *p = at->arguments; (p = strstr(p, "<<"));) {
        char word[64];
        size_t used = 0;
        p += 2;
        bool tabs = *p == '-';
        p += tabs;
        char quote = *p == '"' || *p == '\'' ? *p++ : '\0';
        while (used + 1 < sizeof word && (isalnum((unsigned char)*p) || *p == '_'))
            word[used++] = *p++;
        word[used] = '\0';
        if (used == 0 || isdigit((unsigned char)word[0]) || (quote && *p != quote))
            continue;
        at->document = true;
        const char *line;
        size_t length;
        bool ended = false;
        while (!ended && next_line(c, &line, &length)) {
            while (tabs && length > 0 && *line == '\t')
                line++, length--;
            ended = length == used && memcmp(line, word, used) == 0;
        }
        if (!ended)
            return adli_dockerfile_fail(file, at, "the text after <<%s has no end", word);
    }
    return ADL_OK;
}

static adl_status add_instruction(adli_dockerfile *file, cursor *c, char *text,
                                  adli_instruction *at)
{
    text += strspn(text, " \t");
    size_t length = strcspn(text, " \t");
    if (length == 0 || length >= sizeof at->name)
        return adli_dockerfile_fail(file, at, "\"%.40s\" is not an instruction", text);
    for (size_t i = 0; i < length; i++) {
        if (!isalpha((unsigned char)text[i]))
            return adli_dockerfile_fail(file, at, "\"%.40s\" is not an instruction", text);
        at->name[i] = (char)toupper((unsigned char)text[i]);
    }
    text += length;
    text += strspn(text, " \t");
    for (size_t end = strlen(text); end > 0 && strchr(" \t", text[end - 1]); end--)
        text[end - 1] = '\0';
    if (file->count == ADLI_DOCKERFILE_LINES_MAX)
        return adli_dockerfile_fail(file, at, "more than %d instructions",
                                    ADLI_DOCKERFILE_LINES_MAX);
    if (adli_grow(&file->list, &file->capacity, file->count + 1, sizeof *file->list) != 0 ||
        !(at->arguments = adli_strdup(text)))
        return adli_fail_memory("Dockerfile");
    file->list[file->count++] = *at;
    bool may_have = strcmp(at->name, "RUN") == 0 || strcmp(at->name, "COPY") == 0 ||
                    strcmp(at->name, "ADD") == 0;
    return may_have ? skip_documents(file, c, &file->list[file->count - 1]) : ADL_OK;
}

adl_status adli_dockerfile_parse(adli_dockerfile *file, const char *path, const char *text,
                                 size_t length)
{
    cursor c = {text, text + length, 0};
    adl_status status = ADL_OK;
    adli_buf joined;
    file->path = path;
    file->escape = '\\';
    if (length > ADLI_DOCKERFILE_MAX_BYTES)
        return adli_fail(ADL_EINVAL, "%s: larger than %d bytes", path, ADLI_DOCKERFILE_MAX_BYTES);
    if (memchr(text, '\0', length))
        return adli_fail(ADL_EINVAL, "%s: not a text file", path);
    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        c.next += 3;
    adli_buf_init(&joined, ADLI_DOCKERFILE_MAX_BYTES);
    while (status == ADL_OK) {
        adli_instruction at = {0};
        adli_buf_clear(&joined);
        if (!join_lines(file, &c, &joined, &at))
            break;
        adli_buf_append(&joined, "", 0);
        status = adli_buf_check(&joined);
        if (status == ADL_OK && joined.data[strspn(joined.data, " \t")])
            status = add_instruction(file, &c, joined.data, &at);
    }
    adli_buf_fini(&joined);
    return status;
}

/* ---- words ---- */

typedef struct lexer {
    const adli_dockerfile *file;
    const adli_instruction *at;
    const adli_words *variables;
    adli_buf word;
    bool in_word;
} lexer;

static size_t name_length(const char *p)
{
    size_t length = 0;
    while (isalnum((unsigned char)p[length]) || p[length] == '_')
        length++;
    return length;
}

/* p is after "${": NAME}, NAME:-word} or NAME:+word}. Words inside are taken as they are, but for a
 * variable that is one whole. */
static adl_status expand_braced(lexer *x, const char **p)
{
    const char *name = *p, *close = strchr(name, '}');
    size_t length = name_length(name);
    if (!close || length == 0)
        return adli_dockerfile_fail(x->file, x->at, "\"${%.40s\": not a variable", name);
    const char *value = adli_words_get(x->variables, name, length), *rest = name + length;
    if (rest == close) {
        adli_buf_puts(&x->word, value ? value : "");
    } else if (rest[0] == ':' && (rest[1] == '-' || rest[1] == '+')) {
        bool set = value && *value;
        if (rest[1] == '-' && set)
            adli_buf_puts(&x->word, value);
        else if ((rest[1] == '-') != set)
            adli_buf_append(&x->word, rest + 2, (size_t)(close - rest - 2));
    } else {
        return adli_dockerfile_fail(x->file, x->at,
                                    "\"${%.40s\": only ${NAME}, ${NAME:-word} and "
                                    "${NAME:+word} are known",
                                    name);
    }
    *p = close + 1;
    return ADL_OK;
}

/* p is at a '$'. */
static adl_status expand(lexer *x, const char **p)
{
    size_t length = name_length(*p + 1);
    if ((*p)[1] == '{') {
        *p += 2;
        return expand_braced(x, p);
    }
    if (length == 0) {
        adli_buf_puts(&x->word, "$");
    } else {
        const char *value = adli_words_get(x->variables, *p + 1, length);
        adli_buf_puts(&x->word, value ? value : "");
    }
    *p += 1 + length;
    return ADL_OK;
}

/* p is after the opening quote. */
static adl_status quoted(lexer *x, const char **p, char quote)
{
    adl_status status = ADL_OK;
    while (status == ADL_OK && **p && **p != quote) {
        char escape = x->file->escape;
        if (quote == '"' && **p == '$') {
            status = expand(x, p);
            continue;
        }
        if (quote == '"' && **p == escape && (*p)[1] && strchr("\"$\\`", (*p)[1]))
            ++*p;
        adli_buf_append(&x->word, *p, 1);
        ++*p;
    }
    if (status == ADL_OK && **p != quote)
        return adli_dockerfile_fail(x->file, x->at, "a quote is not closed");
    *p += status == ADL_OK;
    return status;
}

static adl_status end_word(lexer *x, adli_words *out)
{
    adl_status status = adli_buf_check(&x->word);
    if (status == ADL_OK && x->in_word)
        status = adli_words_add(out, x->word.data ? x->word.data : "", x->word.length);
    adli_buf_clear(&x->word);
    x->in_word = false;
    return status;
}

static adl_status lex(lexer *x, const char *p, bool split, adli_words *out)
{
    adl_status status = ADL_OK;
    while (*p && status == ADL_OK) {
        if (split && (*p == ' ' || *p == '\t')) {
            status = end_word(x, out);
            p++;
            continue;
        }
        x->in_word = true;
        if (*p == '"' || *p == '\'') {
            char quote = *p++;
            status = quoted(x, &p, quote);
        } else if (*p == '$') {
            status = expand(x, &p);
        } else {
            if (*p == x->file->escape && p[1])
                p++;
            adli_buf_append(&x->word, p++, 1);
        }
    }
    return status == ADL_OK ? end_word(x, out) : status;
}

static adl_status lex_text(const adli_dockerfile *file, const adli_instruction *at,
                           const char *text, const adli_words *variables, bool split,
                           adli_words *out)
{
    lexer x = {.file = file, .at = at, .variables = variables, .in_word = !split};
    adli_buf_init(&x.word, WORD_MAX);
    adl_status status = lex(&x, text, split, out);
    adli_buf_fini(&x.word);
    return status;
}

adl_status adli_dockerfile_words(const adli_dockerfile *file, const adli_instruction *at,
                                 const char *text, const adli_words *variables, adli_words *out)
{
    return lex_text(file, at, text, variables, true, out);
}

adl_status adli_dockerfile_word(const adli_dockerfile *file, const adli_instruction *at,
                                const char *text, const adli_words *variables, adli_words *out)
{
    return lex_text(file, at, text, variables, false, out);
}

adl_status adli_dockerfile_list(const char *text, adli_words *out, bool *is_list)
{
    *is_list = false;
    if (*text != '[')
        return ADL_OK;
    json_t *list = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    adl_status status = ADL_OK;
    size_t i;
    json_t *item;
    *is_list = json_is_array(list);
    json_array_foreach(list, i, item)
    {
        if (!json_is_string(item))
            *is_list = false;
    }
    if (*is_list)
        json_array_foreach(list, i, item)
        {
            if (status == ADL_OK)
                status = adli_words_add(out, json_string_value(item), json_string_length(item));
        }
    json_decref(list);
    return status;
}
