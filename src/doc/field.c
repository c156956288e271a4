/* Reading the fields of a document with messages that say where and what. */
#include "doc/doc.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

adli_field adli_doc_root(const adli_doc *doc)
{
    return (adli_field){.doc = doc, .value = doc->root, .mark = &doc->mark};
}

size_t adli_field_count(const adli_field *collection)
{
    return json_is_object(collection->value) ? json_object_size(collection->value)
                                             : json_array_size(collection->value);
}

adli_field adli_field_get(const adli_field *object, const char *key)
{
    adli_field field = {.doc = object->doc, .mark = object->mark, .parent = object, .key = key};
    const json_t *value = json_object_get(object->value, key);
    if (!value)
        return field;
    size_t index = 0; /* jansson keeps the order of the text, and so do the marks */
    void *iter = json_object_iter((json_t *)object->value);
    while (json_object_iter_value(iter) != value || strcmp(json_object_iter_key(iter), key) != 0) {
        iter = json_object_iter_next((json_t *)object->value, iter);
        index++;
    }
    field.mark = &object->mark->child[index];
    field.value = json_is_null(value) ? NULL : value;
    return field;
}

adli_field adli_field_at(const adli_field *collection, size_t index)
{
    adli_field field = {.doc = collection->doc,
                        .mark = &collection->mark->child[index],
                        .parent = collection,
                        .index = index};
    if (json_is_array(collection->value)) {
        field.value = json_array_get(collection->value, index);
        return field;
    }
    void *iter = json_object_iter((json_t *)collection->value);
    for (size_t i = 0; i < index; i++)
        iter = json_object_iter_next((json_t *)collection->value, iter);
    field.key = json_object_iter_key(iter);
    field.value = json_object_iter_value(iter);
    return field;
}

/* Length of the UTF-8 character at text, 0 when it is none that a line of a message should hold. */
static size_t printable(const char *text)
{
    uint32_t code = 0;
    size_t length = adli_utf8_decode(text, 4, &code);
    bool control = code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029;
    return length > 0 && !control ? length : 0;
}

const char *adli_show(const char *text, char *out, size_t size)
{
    size_t used = 0;
    for (const char *at = text; *at;) {
        size_t length = printable(at), taken = length ? length : 1;
        if (used + taken + 4 > size) {
            memcpy(out + used, "...", 4);
            return out;
        }
        memcpy(out + used, length ? at : "?", taken);
        used += taken;
        at += taken;
    }
    out[used] = '\0';
    return out;
}

static bool plain_key(const char *key)
{
    size_t length = strspn(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return length > 0 && length < 64 && key[length] == '\0';
}

static void append_path(const adli_field *field, char *out, size_t size)
{
    if (field->parent)
        append_path(field->parent, out, size);
    size_t used = strlen(out);
    char shown[64];
    if (!field->parent)
        return;
    if (!field->key)
        snprintf(out + used, size - used, "[%zu]", field->index);
    else if (plain_key(field->key))
        snprintf(out + used, size - used, "%s%s", used ? "." : "", field->key);
    else
        snprintf(out + used, size - used, "[\"%s\"]", adli_show(field->key, shown, sizeof shown));
}

const char *adli_field_path(const adli_field *field, char *out, size_t size)
{
    out[0] = '\0';
    append_path(field, out, size);
    if (!out[0])
        snprintf(out, size, "the document");
    return out;
}

adl_status adli_field_fail(const adli_field *field, const char *format, ...)
{
    char text[512], path[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return adli_doc_fail(field->doc, field->mark->line, "%s: %s",
                         adli_field_path(field, path, sizeof path), text);
}

static const char *kind(const json_t *value)
{
    if (!value)
        return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "a mapping";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        break;
    }
    return "null";
}

static adl_status wrong_type(const adli_field *field, const char *expected)
{
    if (!field->value)
        return adli_field_fail(field, "is missing (expected %s)", expected);
    return adli_field_fail(field, "expected %s, got %s", expected, kind(field->value));
}

adl_status adli_field_text(const adli_field *field, size_t max, const char **out)
{
    if (json_is_number(field->value) || json_is_boolean(field->value))
        return adli_field_fail(field, "expected a string, got %s (in quotes it would be one)",
                               kind(field->value));
    if (!json_is_string(field->value))
        return wrong_type(field, "a string");
    size_t length = json_string_length(field->value);
    *out = json_string_value(field->value);
    if (memchr(*out, '\0', length))
        return adli_field_fail(field, "has a NUL byte");
    if (length > max)
        return adli_field_fail(field, "is %zu bytes long, at most %zu are allowed", length, max);
    return ADL_OK;
}

adl_status adli_field_int(const adli_field *field, int64_t low, int64_t high, int64_t *out)
{
    if (json_is_real(field->value))
        return adli_field_fail(field, "expected a whole number, got %g",
                               json_real_value(field->value));
    if (!json_is_integer(field->value))
        return wrong_type(field, "a whole number");
    *out = json_integer_value(field->value);
    if (*out < low || *out > high)
        return adli_field_fail(field, "must be from %" PRId64 " to %" PRId64 ", not %" PRId64, low,
                               high, *out);
    return ADL_OK;
}

adl_status adli_field_double(const adli_field *field, double low, double high, double *out)
{
    if (!json_is_number(field->value))
        return wrong_type(field, "a number");
    *out = json_number_value(field->value);
    if (!isfinite(*out) || *out < low || *out > high)
        return adli_field_fail(field, "must be from %.10g to %.10g, not %.10g", low, high, *out);
    return ADL_OK;
}

adl_status adli_field_bool(const adli_field *field, bool *out)
{
    if (!json_is_boolean(field->value))
        return wrong_type(field, "true or false");
    *out = json_is_true(field->value);
    return ADL_OK;
}

adl_status adli_field_object(const adli_field *field)
{
    return json_is_object(field->value) ? ADL_OK : wrong_type(field, "a mapping");
}

adl_status adli_field_array(const adli_field *field, size_t low, size_t high, const char *of)
{
    char expected[64];
    size_t count = json_array_size(field->value);
    snprintf(expected, sizeof expected, "a list of %s", of);
    if (!json_is_array(field->value))
        return wrong_type(field, expected);
    if (count < low)
        return adli_field_fail(field, "has %zu %s, at least %zu needed", count, of, low);
    if (count > high)
        return adli_field_fail(field, "has %zu %s, at most %zu are allowed", count, of, high);
    return ADL_OK;
}

/* ---- what was meant ---- */

enum { WORD_MAX = 48 };

/* Levenshtein's distance, letters of either case alike. */
static size_t distance(const char *a, const char *b)
{
    size_t row[WORD_MAX + 1], length = strlen(b);
    for (size_t j = 0; j <= length; j++)
        row[j] = j;
    for (size_t i = 0; a[i]; i++) {
        size_t corner = row[0]; /* what was in the row above, one to the left */
        row[0] = i + 1;
        for (size_t j = 0; j < length; j++) {
            size_t change = corner + (strncasecmp(&a[i], &b[j], 1) != 0);
            size_t step = (row[j] < row[j + 1] ? row[j] : row[j + 1]) + 1;
            corner = row[j + 1];
            row[j + 1] = change < step ? change : step;
        }
    }
    return row[length];
}

const char *adli_nearest(const char *text, const char *const *known, size_t count)
{
    const char *best = NULL;
    size_t length = strlen(text), least = length / 3 + 2;
    for (size_t i = 0; i < count && length <= WORD_MAX; i++) {
        size_t apart = strlen(known[i]) <= WORD_MAX ? distance(text, known[i]) : least;
        if (apart < least && apart < strlen(known[i])) {
            least = apart;
            best = known[i];
        }
    }
    return best;
}

adl_status adli_field_known(const adli_field *object, const char *const *known, size_t count)
{
    const char *key;
    const json_t *value;
    size_t index = 0;
    json_object_foreach((json_t *)object->value, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < count && !found; i++)
            found = strcmp(key, known[i]) == 0;
        if (!found) {
            adli_field field = adli_field_at(object, index);
            const char *near = adli_nearest(key, known, count);
            return adli_field_fail(&field, "unknown field%s%s%s", near ? "; did you mean \"" : "",
                                   near ? near : "", near ? "\"?" : "");
        }
        index++;
    }
    return ADL_OK;
}
