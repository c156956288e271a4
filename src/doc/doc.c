/* Documents: the two formats behind one door. JSON is parsed by jansson, which keeps no positions,
 * so a second walk over the text, known to be good by then, finds the line of every value. */
#include "doc/doc.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "doc/yaml.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

adl_status adli_doc_fail(const adli_doc *doc, int line, const char *format, ...)
{
    char text[512], name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return adli_fail(ADL_EINVAL, "%s:%d: %s", adli_show(doc->name, name, sizeof name), line, text);
}

adl_status adli_doc_take_marks(adli_doc *doc, adli_mark *marks)
{
    if (adli_grow(&doc->blocks, &doc->block_capacity, doc->block_count + 1, sizeof *doc->blocks) !=
        0)
        return adli_fail_memory("lines of a document");
    doc->blocks[doc->block_count++] = marks;
    return ADL_OK;
}

void adli_doc_fini(adli_doc *doc)
{
    for (size_t i = 0; i < doc->block_count; i++)
        free(doc->blocks[i]);
    free(doc->blocks);
    json_decref(doc->root);
    free(doc->name);
    *doc = (adli_doc){0};
}

/* ---- lines of JSON values ---- */

typedef struct scan {
    adli_doc *doc;
    const char *at, *end, *line_start;
    int line;
    size_t values;
} scan;

static void skip_space(scan *s)
{
    for (; s->at < s->end && strchr(" \t\r\n", *s->at) && *s->at; s->at++) {
        if (*s->at == '\n') {
            s->line++;
            s->line_start = s->at + 1;
        }
    }
}

/* A string, number or word; JSON strings hold no line ends. */
static void skip_scalar(scan *s)
{
    if (*s->at == '"') {
        for (s->at++; s->at < s->end && *s->at != '"'; s->at++)
            s->at += *s->at == '\\';
        s->at += s->at < s->end;
    } else {
        while (s->at < s->end && !strchr(" \t\r\n,]}", *s->at))
            s->at++;
    }
}

static adli_mark mark_here(const scan *s)
{
    return (adli_mark){.line = s->line, .column = (int)(s->at - s->line_start) + 1};
}

static adl_status scan_value(scan *s, const json_t *value, int depth, adli_mark *mark);

static adl_status scan_members(scan *s, const json_t *value, int depth, adli_mark *mark)
{
    bool object = json_is_object(value);
    size_t count = object ? json_object_size(value) : json_array_size(value);
    adli_mark *child = adli_calloc(count, sizeof *child);
    if (!child)
        return adli_fail_memory("lines of a document");
    adl_status status = adli_doc_take_marks(s->doc, child);
    if (status != ADL_OK) {
        free(child);
        return status;
    }
    mark->child = child;
    mark->count = count;
    void *iter = object ? json_object_iter((json_t *)value) : NULL;
    s->at++; /* the bracket */
    for (size_t i = 0; i < count && status == ADL_OK; i++) {
        skip_space(s);
        adli_mark key = mark_here(s);
        if (object) {
            skip_scalar(s);
            skip_space(s);
            s->at++; /* the colon */
        }
        const json_t *member = object ? json_object_iter_value(iter) : json_array_get(value, i);
        status = scan_value(s, member, depth + 1, &child[i]);
        if (object && (json_is_object(member) || json_is_array(member))) {
            child[i].line = key.line;
            child[i].column = key.column;
        }
        skip_space(s);
        s->at++; /* the comma or the closing bracket */
        iter = object ? json_object_iter_next((json_t *)value, iter) : NULL;
    }
    if (count == 0) {
        skip_space(s);
        s->at++;
    }
    return status;
}

static adl_status scan_value(scan *s, const json_t *value, int depth, adli_mark *mark)
{
    skip_space(s);
    *mark = mark_here(s);
    bool collection = json_is_object(value) || json_is_array(value);
    if (collection && depth >= ADLI_DOC_DEPTH_MAX)
        return adli_doc_fail(s->doc, mark->line, "nested more than %d deep", ADLI_DOC_DEPTH_MAX);
    if (++s->values > ADLI_DOC_VALUES_MAX)
        return adli_doc_fail(s->doc, mark->line, "more than %d values", ADLI_DOC_VALUES_MAX);
    if (collection)
        return scan_members(s, value, depth, mark);
    skip_scalar(s);
    return ADL_OK;
}

static adl_status read_json(const char *text, size_t length, adli_doc *out)
{
    json_error_t error;
    char shown[200];
    out->root = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!out->root && json_error_code(&error) == json_error_out_of_memory)
        return adli_fail_memory("a JSON document");
    if (!out->root)
        return adli_doc_fail(out, error.line > 0 ? error.line : 1, "not JSON (column %d): %s",
                             error.column, adli_show(error.text, shown, sizeof shown));
    scan s = {.doc = out, .at = text, .end = text + length, .line_start = text, .line = 1};
    return scan_value(&s, out->root, 0, &out->mark);
}

adl_status adli_doc_parse(const char *name, const char *text, size_t length, adli_doc_format format,
                          adli_doc *out)
{
    *out = (adli_doc){0};
    out->name = adli_strdup(name);
    if (!out->name)
        return adli_fail_memory("a document");
    adl_status status;
    if (length > ADLI_DOC_EXPANDED_MAX)
        status = adli_doc_fail(out, 1, "%zu bytes long, at most %d are allowed", length,
                               ADLI_DOC_EXPANDED_MAX);
    else if (format == ADLI_DOC_JSON)
        status = read_json(text, length, out);
    else
        status = adli_yaml_read(text, length, out);
    if (status != ADL_OK)
        adli_doc_fini(out);
    return status;
}

adl_status adli_doc_load(const char *path, size_t max_bytes, adli_doc *out)
{
    adli_buf text;
    *out = (adli_doc){0};
    adli_buf_init(&text, max_bytes);
    size_t length = strlen(path);
    bool json = length > 5 && strcmp(path + length - 5, ".json") == 0;
    adl_status status = adli_file_read(path, &text);
    if (status == ADL_OK)
        status = adli_doc_parse(strcmp(path, "-") == 0 ? "standard input" : path, text.data,
                                text.length, json ? ADLI_DOC_JSON : ADLI_DOC_YAML, out);
    adli_buf_fini(&text);
    return status;
}
