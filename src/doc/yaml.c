/* libyaml's events into a document. Aliases are expanded as copies, because the tree is the
 * caller's to change; what every node stands for, with its aliases expanded, is counted in values
 * and bytes against the limits before it is copied, so that a few lines cannot become gigabytes. */
#include "doc/yaml.h"

#include "base/mem.h"
#include "doc/yaml_scalar.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { ANCHORS_MAX = 1000 };

typedef struct weight {
    size_t values, bytes;
} weight;

typedef struct anchor {
    char *name;
    json_t *value; /* NULL while its node is still being read */
    adli_mark mark;
    weight weight;
} anchor;

typedef struct loader {
    yaml_parser_t parser;
    adli_doc *doc;
    const char *text; /* all of it */
    size_t length;
    anchor *anchors;
    size_t anchor_count, anchor_capacity;
    weight used;
} loader;

static int line_of(const yaml_event_t *event)
{
    return (int)event->start_mark.line + 1;
}

static int line_at(const loader *l, size_t offset)
{
    int line = 1;
    for (size_t i = 0; i < offset && i < l->length; i++)
        line += l->text[i] == '\n';
    return line;
}

static adl_status parser_failed(const loader *l)
{
    const yaml_parser_t *parser = &l->parser;
    const char *problem = parser->problem ? parser->problem : "not YAML";
    if (parser->error == YAML_MEMORY_ERROR)
        return adli_fail_memory("a YAML document");
    if (parser->error == YAML_READER_ERROR)
        return adli_doc_fail(l->doc, line_at(l, parser->problem_offset), "not YAML text: %s",
                             problem);
    return adli_doc_fail(l->doc, (int)parser->problem_mark.line + 1,
                         "not YAML (column %zu): %s%s%s", parser->problem_mark.column + 1,
                         parser->context ? parser->context : "", parser->context ? ": " : "",
                         problem);
}

static adl_status next(loader *l, yaml_event_t *event)
{
    return yaml_parser_parse(&l->parser, event) ? ADL_OK : parser_failed(l);
}

/* One more value with that many bytes of text. */
static adl_status count(loader *l, int line, size_t values, size_t bytes)
{
    l->used.values += values;
    l->used.bytes += bytes;
    if (l->used.values > ADLI_DOC_VALUES_MAX || l->used.bytes > ADLI_DOC_EXPANDED_MAX)
        return adli_doc_fail(l->doc, line,
                             "with its aliases expanded the document has more than %d values or %d "
                             "bytes",
                             ADLI_DOC_VALUES_MAX, ADLI_DOC_EXPANDED_MAX);
    return ADL_OK;
}

/* ---- anchors ---- */

static adl_status open_anchor(loader *l, const yaml_char_t *name, int line, anchor **out)
{
    *out = NULL;
    if (!name)
        return ADL_OK;
    if (l->anchor_count == ANCHORS_MAX)
        return adli_doc_fail(l->doc, line, "more than %d anchors", ANCHORS_MAX);
    char *copy = adli_strdup((const char *)name);
    if (!copy ||
        adli_grow(&l->anchors, &l->anchor_capacity, l->anchor_count + 1, sizeof *l->anchors) != 0) {
        free(copy);
        return adli_fail_memory("a YAML anchor");
    }
    *out = &l->anchors[l->anchor_count++];
    **out = (anchor){.name = copy, .weight = l->used};
    return ADL_OK;
}

/* The node of the anchor at that index is complete. */
static void close_anchor(loader *l, size_t index, json_t *value, const adli_mark *mark)
{
    anchor *a = &l->anchors[index];
    a->value = json_incref(value);
    a->mark = *mark;
    a->weight.values = l->used.values - a->weight.values;
    a->weight.bytes = l->used.bytes - a->weight.bytes;
}

static adl_status read_alias(loader *l, const yaml_event_t *event, json_t **out, adli_mark *mark)
{
    const char *name = (const char *)event->data.alias.anchor;
    char shown[64];
    const anchor *found = NULL;
    for (size_t i = l->anchor_count; i-- > 0 && !found;)
        if (strcmp(l->anchors[i].name, name) == 0)
            found = &l->anchors[i];
    adli_show(name, shown, sizeof shown);
    if (!found)
        return adli_doc_fail(l->doc, line_of(event), "alias *%s: there is no anchor &%s above",
                             shown, shown);
    if (!found->value)
        return adli_doc_fail(l->doc, line_of(event), "alias *%s: it would contain itself", shown);
    adl_status status = count(l, line_of(event), found->weight.values, found->weight.bytes);
    if (status != ADL_OK)
        return status;
    mark->child = found->mark.child;
    mark->count = found->mark.count;
    *out = json_deep_copy(found->value);
    return *out ? ADL_OK : adli_fail_memory("a YAML alias");
}

/* ---- nodes ---- */

/* The part of a core tag after "tag:yaml.org,2002:", "" for none, NULL for another one. */
static const char *core_tag(const char *tag)
{
    static const char prefix[] = "tag:yaml.org,2002:";
    static const char *const core[] = {"str", "int", "float", "bool", "null", "map", "seq"};
    if (!tag)
        return "";
    if (strcmp(tag, "!") == 0)
        return "str";
    if (strncmp(tag, prefix, sizeof prefix - 1) == 0)
        for (size_t i = 0; i < ADLI_COUNT(core); i++)
            if (strcmp(tag + sizeof prefix - 1, core[i]) == 0)
                return core[i];
    return NULL;
}

static adl_status check_tag(const loader *l, const yaml_event_t *event, const yaml_char_t *tag,
                            const char *allowed)
{
    const char *core = core_tag((const char *)tag);
    char shown[64];
    if (core && (!*core || strstr(allowed, core)))
        return ADL_OK;
    return adli_doc_fail(l->doc, line_of(event), "tag %s is not allowed here",
                         adli_show((const char *)tag, shown, sizeof shown));
}

static adl_status check_text(const loader *l, const yaml_event_t *event)
{
    if (memchr(event->data.scalar.value, '\0', event->data.scalar.length))
        return adli_doc_fail(l->doc, line_of(event), "a string with a NUL byte");
    return ADL_OK;
}

static bool tag_agrees(const char *tag, adli_scalar kind)
{
    switch (kind) {
    case ADLI_SCALAR_NULL:
        return strcmp(tag, "null") == 0;
    case ADLI_SCALAR_TRUE:
    case ADLI_SCALAR_FALSE:
        return strcmp(tag, "bool") == 0;
    case ADLI_SCALAR_INT:
        return strcmp(tag, "int") == 0 || strcmp(tag, "float") == 0;
    case ADLI_SCALAR_FLOAT:
        return strcmp(tag, "float") == 0;
    case ADLI_SCALAR_TEXT:
    case ADLI_SCALAR_RANGE:
        break;
    }
    return false;
}

static json_t *scalar_value(adli_scalar kind, const char *text, size_t length, int64_t integer,
                            double real, bool as_float)
{
    switch (kind) {
    case ADLI_SCALAR_NULL:
        return json_null();
    case ADLI_SCALAR_TRUE:
        return json_true();
    case ADLI_SCALAR_FALSE:
        return json_false();
    case ADLI_SCALAR_INT:
        return as_float ? json_real((double)integer) : json_integer(integer);
    case ADLI_SCALAR_FLOAT:
        return json_real(real);
    case ADLI_SCALAR_TEXT:
    case ADLI_SCALAR_RANGE:
        break;
    }
    return json_stringn(text, length);
}

static adl_status read_scalar(loader *l, const yaml_event_t *event, json_t **out)
{
    const char *text = (const char *)event->data.scalar.value;
    const char *tag = core_tag((const char *)event->data.scalar.tag);
    char shown[64];
    int64_t integer = 0;
    double real = 0;
    adl_status status = check_tag(l, event, event->data.scalar.tag, "str int float bool null");
    if (status == ADL_OK)
        status = check_text(l, event);
    if (status != ADL_OK)
        return status;
    bool typed = *tag && strcmp(tag, "str") != 0;
    bool plain = !*tag && event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    adli_scalar kind = typed || plain ? adli_yaml_resolve(text, &integer, &real) : ADLI_SCALAR_TEXT;
    if (kind == ADLI_SCALAR_RANGE)
        return adli_doc_fail(l->doc, line_of(event), "%s: the number is out of range",
                             adli_show(text, shown, sizeof shown));
    if (typed && !tag_agrees(tag, kind))
        return adli_doc_fail(l->doc, line_of(event), "\"%s\" does not agree with its tag !!%s",
                             adli_show(text, shown, sizeof shown), tag);
    *out = scalar_value(kind, text, event->data.scalar.length, integer, real,
                        strcmp(tag, "float") == 0);
    return *out ? ADL_OK : adli_fail_memory("a YAML scalar");
}

static adl_status read_node(loader *l, yaml_event_t *event, int depth, json_t **out,
                            adli_mark *mark);

static adl_status read_sequence(loader *l, int depth, json_t *array, adli_mark **marks)
{
    size_t capacity = 0;
    for (;;) {
        yaml_event_t event;
        adl_status status = next(l, &event);
        if (status != ADL_OK)
            return status;
        bool end = event.type == YAML_SEQUENCE_END_EVENT;
        json_t *value = NULL;
        size_t index = json_array_size(array);
        if (!end && adli_grow(marks, &capacity, index + 1, sizeof **marks) != 0)
            status = adli_fail_memory("lines of a document");
        else if (!end)
            status = read_node(l, &event, depth + 1, &value, &(*marks)[index]);
        yaml_event_delete(&event);
        if (end || status != ADL_OK)
            return status;
        if (json_array_append_new(array, value) != 0)
            return adli_fail_memory("a YAML list");
    }
}

static adl_status check_key(const loader *l, const yaml_event_t *event, const json_t *object)
{
    char shown[64];
    if (event->type != YAML_SCALAR_EVENT)
        return adli_doc_fail(l->doc, line_of(event), "a key must be a plain word or a string");
    const char *key = (const char *)event->data.scalar.value;
    adl_status status = check_text(l, event);
    if (status == ADL_OK)
        status = check_tag(l, event, event->data.scalar.tag, "str");
    if (status != ADL_OK)
        return status;
    if (event->data.scalar.anchor)
        return adli_doc_fail(l->doc, line_of(event), "a key cannot have an anchor");
    if (!*key && event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        return adli_doc_fail(l->doc, line_of(event), "an empty key");
    if (strcmp(key, "<<") == 0 && event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        return adli_doc_fail(l->doc, line_of(event),
                             "merge keys (<<) are not supported: write the fields out");
    if (json_object_get(object, key))
        return adli_doc_fail(l->doc, line_of(event), "key \"%s\" appears twice",
                             adli_show(key, shown, sizeof shown));
    return ADL_OK;
}

/* The value of the key that was just read, into the object. */
static adl_status read_member(loader *l, const yaml_event_t *key, int depth, json_t *object,
                              adli_mark *mark)
{
    yaml_event_t event;
    json_t *value = NULL;
    adl_status status = count(l, line_of(key), 0, key->data.scalar.length);
    if (status == ADL_OK)
        status = next(l, &event);
    if (status != ADL_OK)
        return status;
    status = read_node(l, &event, depth + 1, &value, mark);
    yaml_event_delete(&event);
    if (status != ADL_OK)
        return status;
    if (json_is_object(value) || json_is_array(value)) {
        mark->line = line_of(key);
        mark->column = (int)key->start_mark.column + 1;
    }
    if (json_object_set_new(object, (const char *)key->data.scalar.value, value) != 0)
        return adli_fail_memory("a YAML mapping");
    return ADL_OK;
}

static adl_status read_mapping(loader *l, int depth, json_t *object, adli_mark **marks)
{
    size_t capacity = 0;
    for (;;) {
        yaml_event_t event;
        adl_status status = next(l, &event);
        if (status != ADL_OK)
            return status;
        bool end = event.type == YAML_MAPPING_END_EVENT;
        size_t index = json_object_size(object);
        if (!end)
            status = check_key(l, &event, object);
        if (!end && status == ADL_OK && adli_grow(marks, &capacity, index + 1, sizeof **marks) != 0)
            status = adli_fail_memory("lines of a document");
        if (!end && status == ADL_OK)
            status = read_member(l, &event, depth, object, &(*marks)[index]);
        yaml_event_delete(&event);
        if (end || status != ADL_OK)
            return status;
    }
}

static adl_status read_collection(loader *l, yaml_event_t *event, int depth, json_t **out,
                                  adli_mark *mark)
{
    bool mapping = event->type == YAML_MAPPING_START_EVENT;
    const yaml_char_t *tag =
        mapping ? event->data.mapping_start.tag : event->data.sequence_start.tag;
    adli_mark *marks = NULL;
    adl_status status = check_tag(l, event, tag, mapping ? "map" : "seq");
    if (status == ADL_OK && depth >= ADLI_DOC_DEPTH_MAX)
        status =
            adli_doc_fail(l->doc, line_of(event), "nested more than %d deep", ADLI_DOC_DEPTH_MAX);
    if (status != ADL_OK)
        return status;
    json_t *value = mapping ? json_object() : json_array();
    if (!value)
        return adli_fail_memory("a YAML collection");
    status =
        mapping ? read_mapping(l, depth, value, &marks) : read_sequence(l, depth, value, &marks);
    if (status == ADL_OK && marks)
        status = adli_doc_take_marks(l->doc, marks);
    if (status != ADL_OK) {
        free(marks);
        json_decref(value);
        return status;
    }
    mark->child = marks;
    mark->count = mapping ? json_object_size(value) : json_array_size(value);
    *out = value;
    return ADL_OK;
}

static const yaml_char_t *anchor_of(const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return event->data.scalar.anchor;
    case YAML_SEQUENCE_START_EVENT:
        return event->data.sequence_start.anchor;
    case YAML_MAPPING_START_EVENT:
        return event->data.mapping_start.anchor;
    default:
        return NULL;
    }
}

/* The node that starts with the event; the event stays the caller's. */
static adl_status read_node(loader *l, yaml_event_t *event, int depth, json_t **out,
                            adli_mark *mark)
{
    anchor *opened;
    int line = line_of(event);
    *mark = (adli_mark){.line = line, .column = (int)event->start_mark.column + 1};
    if (event->type == YAML_ALIAS_EVENT)
        return read_alias(l, event, out, mark);
    adl_status status = open_anchor(l, anchor_of(event), line, &opened);
    size_t index = opened ? (size_t)(opened - l->anchors) : 0; /* the array may move */
    bool scalar = event->type == YAML_SCALAR_EVENT;
    if (status == ADL_OK)
        status = count(l, line, 1, scalar ? event->data.scalar.length : 0);
    if (status == ADL_OK)
        status = scalar ? read_scalar(l, event, out) : read_collection(l, event, depth, out, mark);
    if (status == ADL_OK && opened)
        close_anchor(l, index, *out, mark);
    return status;
}

/* ---- documents ---- */

static adl_status expect_end(loader *l)
{
    yaml_event_t event;
    adl_status status = next(l, &event);
    if (status != ADL_OK)
        return status;
    yaml_event_delete(&event); /* the document's end */
    status = next(l, &event);
    if (status != ADL_OK)
        return status;
    if (event.type != YAML_STREAM_END_EVENT)
        status = adli_doc_fail(l->doc, line_of(&event),
                               "a second document begins here; only one "
                               "is allowed");
    yaml_event_delete(&event);
    return status;
}

static adl_status read_document(loader *l)
{
    yaml_event_t event;
    adl_status status = next(l, &event); /* the stream's start */
    if (status != ADL_OK)
        return status;
    yaml_event_delete(&event);
    status = next(l, &event);
    if (status != ADL_OK)
        return status;
    bool empty = event.type == YAML_STREAM_END_EVENT;
    yaml_event_delete(&event);
    if (empty)
        return adli_doc_fail(l->doc, 1, "the document is empty");
    status = next(l, &event);
    if (status != ADL_OK)
        return status;
    status = read_node(l, &event, 0, &l->doc->root, &l->doc->mark);
    yaml_event_delete(&event);
    return status == ADL_OK ? expect_end(l) : status;
}

adl_status adli_yaml_read(const char *text, size_t length, adli_doc *out)
{
    loader l = {.doc = out, .text = text, .length = length};
    if (!yaml_parser_initialize(&l.parser))
        return adli_fail_memory("a YAML parser");
    yaml_parser_set_encoding(&l.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&l.parser, (const unsigned char *)text, length);
    adl_status status = read_document(&l);
    for (size_t i = 0; i < l.anchor_count; i++) {
        free(l.anchors[i].name);
        json_decref(l.anchors[i].value);
    }
    free(l.anchors);
    yaml_parser_delete(&l.parser);
    return status;
}
