/* Values as YAML for people, by libyaml's emitter. What is decided here is the style of a string: plain
 * only when no reader, of YAML 1.1 either, could take it for anything else; text of several lines as a
 * literal block; all others in double quotes. */
#include "base/mem.h"
#include "doc/yaml.h"

#include <string.h>
#include <strings.h>
#include <yaml.h>

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

/* Several lines that read well as a literal block; the emitter quotes what such a block cannot hold. */
static bool literal(const char *text, size_t length)
{
    return memchr(text, '\n', length) && text[0] != ' ' && text[0] != '\n' &&
           text[length - 2] != '\n' && !memchr(text, '\t', length);
}

/* ---- events; each returns whether the emitter took it ---- */

static int emit(yaml_emitter_t *emitter, yaml_event_t *event, int made)
{
    return made && yaml_emitter_emit(emitter, event);
}

static int emit_text(yaml_emitter_t *emitter, const char *text, size_t length,
                     yaml_scalar_style_t style)
{
    yaml_event_t event;
    return emit(emitter, &event,
                yaml_scalar_event_initialize(&event, NULL, NULL, (const yaml_char_t *)text,
                                             (int)length, 1, 1, style));
}

static int emit_string(yaml_emitter_t *emitter, const char *text, size_t length, bool lines)
{
    return emit_text(emitter, text, length,
                     plain(text, length)              ? YAML_PLAIN_SCALAR_STYLE
                     : lines && literal(text, length) ? YAML_LITERAL_SCALAR_STYLE
                                                      : YAML_DOUBLE_QUOTED_SCALAR_STYLE);
}

/* Numbers, true, false and null are in YAML what they are in JSON. */
static int emit_simple(yaml_emitter_t *emitter, const json_t *value)
{
    adli_buf text;
    adli_buf_init(&text, 64);
    if (json_is_integer(value))
        adli_buf_printf(&text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        adli_buf_double(&text, json_real_value(value));
    else
        adli_buf_puts(&text, json_is_null(value) ? "null" : json_is_true(value) ? "true" : "false");
    if (json_is_real(value) && text.data && !strpbrk(text.data, ".e"))
        adli_buf_puts(&text, ".0"); /* or it would read back as an integer */
    int ok = text.status == ADL_OK &&
             emit_text(emitter, text.data, text.length, YAML_PLAIN_SCALAR_STYLE);
    adli_buf_fini(&text);
    return ok;
}

static int emit_value(yaml_emitter_t *emitter, const json_t *value, int depth);

static int emit_array(yaml_emitter_t *emitter, const json_t *array, int depth)
{
    yaml_event_t event;
    int ok = emit(
        emitter, &event,
        yaml_sequence_start_event_initialize(&event, NULL, NULL, 1, YAML_BLOCK_SEQUENCE_STYLE));
    for (size_t i = 0; i < json_array_size(array) && ok; i++)
        ok = emit_value(emitter, json_array_get(array, i), depth + 1);
    return ok && emit(emitter, &event, yaml_sequence_end_event_initialize(&event));
}

static int emit_object(yaml_emitter_t *emitter, const json_t *object, int depth)
{
    yaml_event_t event;
    int ok =
        emit(emitter, &event,
             yaml_mapping_start_event_initialize(&event, NULL, NULL, 1, YAML_BLOCK_MAPPING_STYLE));
    for (void *iter = json_object_iter((json_t *)object); iter && ok;
         iter = json_object_iter_next((json_t *)object, iter)) {
        const char *key = json_object_iter_key(iter);
        ok = emit_string(emitter, key, strlen(key), false) &&
             emit_value(emitter, json_object_iter_value(iter), depth + 1);
    }
    return ok && emit(emitter, &event, yaml_mapping_end_event_initialize(&event));
}

static int emit_value(yaml_emitter_t *emitter, const json_t *value, int depth)
{
    if (depth > ADLI_DOC_DEPTH_MAX) /* adli_yaml_read would refuse it too */
        return 0;
    if (json_is_object(value))
        return emit_object(emitter, value, depth);
    if (json_is_array(value))
        return emit_array(emitter, value, depth);
    if (json_is_string(value))
        return emit_string(emitter, json_string_value(value), json_string_length(value), true);
    return emit_simple(emitter, value);
}

static int take(void *user, unsigned char *data, size_t length)
{
    adli_buf *out = user;
    adli_buf_append(out, data, length);
    return out->status == ADL_OK;
}

/* A document of one value, or of one string on one line. */
static adl_status write_document(const json_t *value, const char *line, adli_buf *out)
{
    yaml_emitter_t emitter;
    yaml_event_t event;
    if (!yaml_emitter_initialize(&emitter))
        return adli_fail_memory("YAML emitter");
    yaml_emitter_set_output(&emitter, take, out);
    yaml_emitter_set_unicode(&emitter, 1);
    yaml_emitter_set_width(&emitter, -1);
    int ok =
        emit(&emitter, &event, yaml_stream_start_event_initialize(&event, YAML_UTF8_ENCODING)) &&
        emit(&emitter, &event, yaml_document_start_event_initialize(&event, NULL, NULL, NULL, 1)) &&
        (line ? emit_string(&emitter, line, strlen(line), false)
              : emit_value(&emitter, value, 0)) &&
        emit(&emitter, &event, yaml_document_end_event_initialize(&event, 1)) &&
        emit(&emitter, &event, yaml_stream_end_event_initialize(&event));
    adl_status status = adli_buf_check(out);
    if (!ok && status == ADL_OK)
        status = emitter.error == YAML_NO_ERROR
                     ? adli_fail(ADL_EINVAL, "nested more than %d deep", ADLI_DOC_DEPTH_MAX)
                     : adli_fail(ADL_ENOMEM, "out of memory: YAML");
    yaml_emitter_delete(&emitter);
    return status;
}

adl_status adli_yaml_write(const json_t *value, adli_buf *out)
{
    return write_document(value, NULL, out);
}

void adli_yaml_text(const char *text, adli_buf *out)
{
    adl_status status = write_document(NULL, text, out);
    if (status != ADL_OK && out->status == ADL_OK)
        out->status = status;
    else if (status == ADL_OK)
        out->data[--out->length] = '\0'; /* the newline */
}
