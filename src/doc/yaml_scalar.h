/* What a plain scalar means in the YAML 1.2 core schema. */
#ifndef ADLI_YAML_SCALAR_H
#define ADLI_YAML_SCALAR_H

#include <stdint.h>

typedef enum adli_scalar {
    ADLI_SCALAR_TEXT,
    ADLI_SCALAR_NULL,
    ADLI_SCALAR_TRUE,
    ADLI_SCALAR_FALSE,
    ADLI_SCALAR_INT,
    ADLI_SCALAR_FLOAT,
    ADLI_SCALAR_RANGE, /* a number that neither int64_t nor double can hold; .inf and .nan */
} adli_scalar;

/* *integer or *real is set when the result says so. */
adli_scalar adli_yaml_resolve(const char *text, int64_t *integer, double *real);

#endif
