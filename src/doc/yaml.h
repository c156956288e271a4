/* YAML on libyaml, as much of it as configuration needs and no more: one document, the scalars of
 * the YAML 1.2 core schema (true and false are booleans, "no" and "on" are text), anchors and
 * aliases within limits. Refused, with the line: duplicate keys, other tags than the core ones,
 * merge keys, aliases that contain themselves or expand too far, more than one document, numbers
 * that JSON cannot hold, NUL. */
#ifndef ADLI_YAML_H
#define ADLI_YAML_H

#include "base/buf.h"
#include "doc/doc.h"

/* As adli_doc_parse with ADLI_DOC_YAML. out->name is set by the caller (adli_doc_parse). */
ADL_MUST adl_status adli_yaml_read(const char *text, size_t length, adli_doc *out);

/* Appends value as YAML, block style, two spaces, members in their order, ending in a newline.
 * Reading it gives an equal value. */
ADL_MUST adl_status adli_yaml_write(const json_t *value, adli_buf *out);

/* Appends text as a string on one line, in quotes where they are needed. */
void adli_yaml_text(const char *text, adli_buf *out);

#endif
