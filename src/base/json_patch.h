/* Changes to a JSON document, written as JSON themselves (RFC 6902): what an administrator has to say about objects that
 * others write. */
#ifndef ADLI_JSON_PATCH_H
#define ADLI_JSON_PATCH_H

#include "base/status.h"

#include <jansson.h>

/* Is it a list of operations that we know (add, replace, remove, test)? EINVAL says which is not. */
ADL_MUST adl_status adli_json_patch_check(const json_t *patch);
/* Applies them in their order. EINVAL: one cannot be, or a test fails; the text says which, and the document may have been
 * changed by those before it. The document itself is an object and cannot be replaced. */
ADL_MUST adl_status adli_json_patch(json_t *document, const json_t *patch);

#endif
