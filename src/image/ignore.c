#include "image/ignore.h"

#include "image/names.h"

#include <fnmatch.h>
#include <string.h>

enum { PATTERNS_MAX = 10000, PATTERN_MAX = 1000 };

/* "/a//b/./c/" -> "a/b/c"; ".." is taken back as far as there is something. Returns the length. */
static size_t clean(const char *from, size_t length, char *to)
{
    size_t used = 0;
    for (size_t i = 0; i < length;) {
        size_t part = 0;
        while (i + part < length && from[i + part] != '/')
            part++;
        if (part == 2 && from[i] == '.' && from[i + 1] == '.') {
            while (used > 0 && to[used - 1] != '/')
                used--;
            used -= used > 0;
        } else if (part > 0 && !(part == 1 && from[i] == '.')) {
            if (used > 0)
                to[used++] = '/';
            memcpy(to + used, from + i, part);
            used += part;
        }
        i += part + 1;
    }
    to[used] = '\0';
    return used;
}

static adl_status add_line(adli_ignore *ignore, const char *line, size_t length, int number)
{
    char pattern[PATTERN_MAX + 2];
    while (length > 0 && strchr(" \t\r", line[length - 1]))
        length--;
    while (length > 0 && (*line == ' ' || *line == '\t'))
        line++, length--;
    if (length == 0 || *line == '#')
        return ADL_OK;
    if (length > PATTERN_MAX || ignore->patterns.count == PATTERNS_MAX)
        return adli_fail(ADL_EINVAL, ".dockerignore:%d: %s", number,
                         length > PATTERN_MAX ? "the pattern is too long" : "too many patterns");
    size_t bang = *line == '!';
    pattern[0] = '!';
    size_t used = clean(line + bang, length - bang, pattern + bang);
    if (used == 0)
        return ADL_OK;
    ignore->exceptions |= bang;
    return adli_words_add(&ignore->patterns, pattern, used + bang);
}

adl_status adli_ignore_parse(adli_ignore *ignore, const char *text, size_t length)
{
    adl_status status = ADL_OK;
    int number = 1;
    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3, length -= 3;
    for (size_t i = 0; i < length && status == ADL_OK; number++) {
        const char *end = memchr(text + i, '\n', length - i);
        size_t line = end ? (size_t)(end - text) - i : length - i;
        if (memchr(text + i, '\0', line))
            return adli_fail(ADL_EINVAL, ".dockerignore:%d: not a text", number);
        status = add_line(ignore, text + i, line, number);
        i += line + 1;
    }
    return status;
}

void adli_ignore_fini(adli_ignore *ignore)
{
    adli_words_fini(&ignore->patterns);
}

static bool match_part(const char *pattern, size_t pattern_length, const char *part, size_t length)
{
    char glob[PATTERN_MAX + 1], name[ADLI_PATH_PART_MAX + 1];
    if (length > ADLI_PATH_PART_MAX)
        return false;
    memcpy(glob, pattern, pattern_length);
    memcpy(name, part, length);
    glob[pattern_length] = name[length] = '\0';
    return fnmatch(glob, name, 0) == 0;
}

static const char *after(const char *part)
{
    part += strcspn(part, "/");
    return part + (*part == '/');
}

/* Does the pattern match the first length bytes of path? One "**" is retried at a time: a later one
 * that matches makes the earlier choices irrelevant, so the work is at most quadratic. */
static bool match_path(const char *pattern, const char *path, size_t length)
{
    const char *retry_pattern = NULL, *retry_path = NULL, *end = path + length;
    while (path < end || *pattern) {
        size_t part = strcspn(pattern, "/");
        if (part == 2 && memcmp(pattern, "**", 2) == 0) {
            retry_pattern = pattern = after(pattern);
            retry_path = path;
            continue;
        }
        if (part > 0 && path < end && match_part(pattern, part, path, strcspn(path, "/"))) {
            pattern = after(pattern);
            path = after(path);
            continue;
        }
        if (!retry_pattern || retry_path >= end)
            return false;
        retry_path = after(retry_path);
        pattern = retry_pattern;
        path = retry_path;
    }
    return true;
}

bool adli_ignore_match(const adli_ignore *ignore, const char *path)
{
    bool ignored = false;
    for (size_t i = 0; i < ignore->patterns.count; i++) {
        const char *pattern = ignore->patterns.list[i];
        bool bang = pattern[0] == '!';
        if (ignored != bang) /* it would change nothing */
            continue;
        bool match = false;
        for (size_t length = 0; !match && path[length]; length += path[length] == '/') {
            length += strcspn(path + length, "/");
            match = match_path(pattern + bang, path, length);
        }
        ignored ^= match;
    }
    return ignored;
}
