/* The canonical text of a JSON value. */
#ifndef ADLI_CANONICAL_H
#define ADLI_CANONICAL_H

#include "base/buf.h"

#include <jansson.h>

/* Appends value: no spaces, keys sorted by bytes, shortest numbers. Reading it gives an equal
 * value. Strings must not hold NUL. */
ADL_MUST adl_status adli_canonical(const json_t *value, adli_buf *out);

#endif
