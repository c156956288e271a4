/* Values as YAML for people. A string is written plain only when no reader, of YAML 1.1 either,
 * could take it for anything else; text of several lines as a literal block; all others in double
 * quotes. */
#include "base/mem.h"
#include "doc/yaml.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

enum { KEY_MAX = 256 }; /* longer ones are written as explicit keys: readers look 1024 ahead */

/* What YAML 1.1 reads as booleans. */
static bool old_boolean(const char *text)
{
    static const char *const words[] = {"y",   "n",    "yes",   "no",  "on",
                                        "off", "true", "false", "null"};
    for (size_t i = 0; i < ADLI_COUNT(words); i++)
        if (strcasecmp(text, words[i]) == 0)
            return true;
    return false;
}

static bool plain(const char *text, size_t length)
{
    static const char first[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/";
    static const char inner[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/0123456789.-+=@,;() :";
    if (length == 0 || !strchr(first, text[0]) || strspn(text, inner) != length)
        return false;
    if (text[length - 1] == ' ' || text[length - 1] == ':' || strstr(text, ": "))
        return false;
    return !old_boolean(text);
}

/* A character of NUL-terminated UTF-8 text and its length. A broken one is taken as Latin-1. */
static uint32_t decode(const unsigned char *at, size_t *length)
{
    size_t count = at[0] < 0xc0 ? 1 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    uint32_t code = count == 1 ? at[0] : at[0] & (0xffu >> (count + 1));
    *length = 1;
    for (size_t i = 1; i < count; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return at[0];
        code = code << 6 | (at[i] & 0x3fu);
    }
    *length = count;
    return code;
}

/* May it stand in YAML text as it is, on one line? */
static bool printable(uint32_t code)
{
    return (code >= 0x20 && code < 0x7f) ||
           (code >= 0xa0 && code <= 0xd7ff && code != 0x2028 && code != 0x2029) ||
           (code >= 0xe000 && code <= 0xfffd && code != 0xfeff) || code >= 0x10000;
}

static void write_quoted(const char *text, size_t length, adli_buf *out)
{
    size_t step;
    adli_buf_puts(out, "\"");
    for (size_t i = 0; i < length; i += step) {
        uint32_t code = decode((const unsigned char *)text + i, &step);
        if (code == '"' || code == '\\')
            adli_buf_printf(out, "\\%c", (int)code);
        else if (code == '\n')
            adli_buf_puts(out, "\\n");
        else if (code == '\t')
            adli_buf_puts(out, "\\t");
        else if (printable(code) && (code < 0x80 || step > 1))
            adli_buf_append(out, text + i, step);
        else
            adli_buf_printf(out, code < 0x100 ? "\\x%02" PRIx32 : "\\u%04" PRIx32, code);
    }
    adli_buf_puts(out, "\"");
}

/* Several lines that a literal block keeps as they are. */
static bool literal(const char *text, size_t length)
{
    size_t step, lines = 0;
    if (length < 2 || text[0] == ' ' || text[0] == '\n' || text[length - 2] == '\n')
        return false;
    for (size_t i = 0; i < length; i += step) {
        uint32_t code = decode((const unsigned char *)text + i, &step);
        if (code == '\n')
            lines++;
        else if (!printable(code))
            return false;
    }
    return lines > 0;
}

static void indent_by(adli_buf *out, int indent)
{
    adli_buf_printf(out, "%*s", indent, "");
}

static void write_literal(const char *text, size_t length, int indent, adli_buf *out)
{
    bool ended = text[length - 1] == '\n';
    adli_buf_puts(out, ended ? "|" : "|-");
    for (const char *at = text; at < text + length;) {
        const char *end = memchr(at, '\n', (size_t)(text + length - at));
        size_t line = (size_t)((end ? end : text + length) - at);
        adli_buf_puts(out, "\n");
        if (line)
            indent_by(out, indent);
        adli_buf_append(out, at, line);
        at += line + 1;
    }
}

static void write_text(const char *text, size_t length, adli_buf *out)
{
    if (plain(text, length))
        adli_buf_append(out, text, length);
    else
        write_quoted(text, length, out);
}

void adli_yaml_text(const char *text, adli_buf *out)
{
    write_text(text, strlen(text), out);
}

/* A value on the line it stands on; literal blocks are indented by `indent`, 0: not allowed. */
static void write_scalar(const json_t *value, int indent, adli_buf *out)
{
    size_t start = out->length;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        adli_buf_puts(out, "{}");
        break;
    case JSON_ARRAY:
        adli_buf_puts(out, "[]");
        break;
    case JSON_STRING:
        if (indent > 0 && literal(json_string_value(value), json_string_length(value)))
            write_literal(json_string_value(value), json_string_length(value), indent, out);
        else
            write_text(json_string_value(value), json_string_length(value), out);
        break;
    case JSON_INTEGER:
        adli_buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        adli_buf_double(out, json_real_value(value));
        if (out->data && !strpbrk(out->data + start, ".e"))
            adli_buf_puts(out, ".0"); /* or it would read back as an integer */
        break;
    case JSON_TRUE:
        adli_buf_puts(out, "true");
        break;
    case JSON_FALSE:
        adli_buf_puts(out, "false");
        break;
    case JSON_NULL:
        adli_buf_puts(out, "null");
        break;
    }
    adli_buf_puts(out, "\n");
}

static size_t size_of(const json_t *value)
{
    return json_is_object(value) ? json_object_size(value) : json_array_size(value);
}

/* Lines of a collection that is not empty, at that indentation; the first one is begun already when
 * `begun` (it follows "- "). */
static adl_status write_lines(const json_t *value, int indent, bool begun, int depth,
                              adli_buf *out);

static adl_status write_item(const json_t *item, int indent, int depth, adli_buf *out)
{
    adli_buf_puts(out, "- ");
    if (size_of(item) > 0)
        return write_lines(item, indent + 2, true, depth + 1, out);
    write_scalar(item, indent + 2, out);
    return ADL_OK;
}

static adl_status write_member(const char *key, const json_t *value, int indent, int depth,
                               adli_buf *out)
{
    size_t length = strlen(key);
    if (length > KEY_MAX) {
        adli_buf_puts(out, "? ");
        write_quoted(key, length, out);
        adli_buf_puts(out, "\n");
        indent_by(out, indent);
    } else {
        write_text(key, length, out);
    }
    adli_buf_puts(out, ":");
    if (size_of(value) > 0) {
        adli_buf_puts(out, "\n");
        bool list = json_is_array(value) && length <= KEY_MAX;
        return write_lines(value, list ? indent : indent + 2, false, depth + 1, out);
    }
    adli_buf_puts(out, " ");
    write_scalar(value, indent + 2, out);
    return ADL_OK;
}

static adl_status write_lines(const json_t *value, int indent, bool begun, int depth, adli_buf *out)
{
    if (depth >= ADLI_DOC_DEPTH_MAX)
        return adli_fail(ADL_EINVAL, "nested more than %d deep", ADLI_DOC_DEPTH_MAX);
    adl_status status = ADL_OK;
    void *iter = json_object_iter((json_t *)value);
    for (size_t i = 0; i < size_of(value) && status == ADL_OK; i++) {
        if (i > 0 || !begun)
            indent_by(out, indent);
        if (json_is_array(value)) {
            status = write_item(json_array_get(value, i), indent, depth, out);
        } else {
            status = write_member(json_object_iter_key(iter), json_object_iter_value(iter), indent,
                                  depth, out);
            iter = json_object_iter_next((json_t *)value, iter);
        }
    }
    return status;
}

adl_status adli_yaml_write(const json_t *value, adli_buf *out)
{
    adl_status status = ADL_OK;
    if (size_of(value) > 0)
        status = write_lines(value, 0, false, 0, out);
    else
        write_scalar(value, 0, out);
    return status == ADL_OK ? adli_buf_check(out) : status;
}
