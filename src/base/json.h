/* JSON in, checked: jansson parses, these read fields and name the one that is wrong. `where` is the
 * place for the message ("line 3", "perf"). Numbers must be finite. */
#ifndef ADLI_JSON_H
#define ADLI_JSON_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Parses one document of length bytes; duplicate keys and NaN are refused. *out is new (json_decref)
 * or NULL. */
ADL_MUST adl_status adli_json_parse(const char *text, size_t length, json_t **out);

ADL_MUST adl_status adli_json_double(const json_t *object, const char *field, double *out);
/* An integer (or a number with no fraction) within low .. high. */
ADL_MUST adl_status adli_json_int(const json_t *object, const char *field, int low, int high,
                                  int *out);
ADL_MUST adl_status adli_json_bool(const json_t *object, const char *field, bool *out);
/* An array of exactly count numbers into out. */
ADL_MUST adl_status adli_json_doubles(const json_t *object, const char *field, size_t count,
                                      double *out);
/* The array under field, at most max long. Borrowed. */
ADL_MUST adl_status adli_json_array(const json_t *object, const char *field, size_t max,
                                    const json_t **out);
/* A number on its own; `name` is used in the message. */
ADL_MUST adl_status adli_json_number(const json_t *value, const char *name, double *out);

#endif
