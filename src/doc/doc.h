/* A document that a person wrote (a job file, a configuration): its values as a jansson tree, and
 * beside it the line of every value, so that a message can say where the mistake is:
 *   job.yaml:12: spec.template.spec.containers[0].command: expected a list of strings, got a number
 * YAML (doc/yaml.h) and JSON give the same documents and the same messages.
 *
 * Fields are cursors: small values on the stack that know their way back to the root. A field whose
 * value is absent is fine to have; reading it says that it is missing. Threads: a document is
 * read-only once parsed. Nothing here blocks, but for adli_doc_load on its file. */
#ifndef ADLI_DOC_H
#define ADLI_DOC_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a value stands in the text: a scalar itself, a collection by its key. Lines and columns
 * count from 1. child: [count] marks of its elements, in document order. */
typedef struct adli_mark {
    int line, column;
    size_t count;
    struct adli_mark *child;
} adli_mark;

typedef struct adli_doc {
    char *name; /* of the file, for messages */
    json_t *root;
    adli_mark mark;
    adli_mark **blocks; /* the storage behind the marks */
    size_t block_count, block_capacity;
} adli_doc;

enum {
    ADLI_DOC_DEPTH_MAX = 64,
    ADLI_DOC_VALUES_MAX = 200000,     /* with aliases expanded */
    ADLI_DOC_EXPANDED_MAX = 16 << 20, /* bytes of text, with aliases expanded */
};

typedef enum adli_doc_format { ADLI_DOC_YAML, ADLI_DOC_JSON } adli_doc_format;

/* Reads one document of length bytes. name is copied. On failure (EINVAL: the text names the line)
 * *out is empty; adli_doc_fini is harmless then. */
ADL_MUST adl_status adli_doc_parse(const char *name, const char *text, size_t length,
                                   adli_doc_format format, adli_doc *out);
/* The same from a file of at most max_bytes; "-" is standard input. A name that ends in .json is
 * JSON, any other YAML. ENOENT, EIO: the file. */
ADL_MUST adl_status adli_doc_load(const char *path, size_t max_bytes, adli_doc *out);
void adli_doc_fini(adli_doc *doc);

/* For readers of documents: the document takes over marks (from adli_calloc or adli_grow). ENOMEM:
 * it did not. */
ADL_MUST adl_status adli_doc_take_marks(adli_doc *doc, adli_mark *marks);
/* "file:line: " and the text. EINVAL. */
adl_status adli_doc_fail(const adli_doc *doc, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

typedef struct adli_field {
    const adli_doc *doc;
    const json_t *value; /* NULL: absent */
    const adli_mark *mark;
    const struct adli_field *parent; /* NULL: the root. Must outlive this field */
    const char *key;                 /* in an object, else NULL */
    size_t index;                    /* in an array */
} adli_field;

adli_field adli_doc_root(const adli_doc *doc);
/* A member of an object; absent when the field is absent, is no object or has no such member. A
 * null is as good as absent, as in Kubernetes. */
adli_field adli_field_get(const adli_field *object, const char *key);
/* The index-th member of an object or element of an array, in document order. */
adli_field adli_field_at(const adli_field *collection, size_t index);
/* How many there are; 0 for what is no collection. */
size_t adli_field_count(const adli_field *collection);
static inline bool adli_field_given(const adli_field *field)
{
    return field->value != NULL;
}

/* "file:line: a.b[0].c: " and the text, as one line. EINVAL. */
adl_status adli_field_fail(const adli_field *field, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The field's path, "spec.template", cut to size; "the document" at the root. */
const char *adli_field_path(const adli_field *field, char *out, size_t size);

/* Typed reading: EINVAL when absent, of another type or out of range. Texts are borrowed from the
 * document, hold no NUL, and are at most max bytes long. */
ADL_MUST adl_status adli_field_text(const adli_field *field, size_t max, const char **out);
ADL_MUST adl_status adli_field_int(const adli_field *field, int64_t low, int64_t high,
                                   int64_t *out);
ADL_MUST adl_status adli_field_double(const adli_field *field, double low, double high,
                                      double *out);
ADL_MUST adl_status adli_field_bool(const adli_field *field, bool *out);
/* It is there, and an object; an array of low .. high elements, whose elements are `of`
 * ("strings"). */
ADL_MUST adl_status adli_field_object(const adli_field *field);
ADL_MUST adl_status adli_field_array(const adli_field *field, size_t low, size_t high,
                                     const char *of);
/* All members of the object are in known[count]; the error names the nearest one. */
ADL_MUST adl_status adli_field_known(const adli_field *object, const char *const *known,
                                     size_t count);
/* The nearest of known[count] to text, or NULL when none is near enough to be what was meant. */
const char *adli_nearest(const char *text, const char *const *known, size_t count);
/* text fit for a message: cut, control characters and broken UTF-8 replaced. Returns out. */
const char *adli_show(const char *text, char *out, size_t size);

#endif
