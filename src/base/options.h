/* Option structs that grow: their first member is size_t size, set by the _INIT macro that the caller was
 * compiled with. One rule for all of them. */
#ifndef ADLI_OPTIONS_H
#define ADLI_OPTIONS_H

#include "base/status.h"

#include <stddef.h>

/* Copies what the caller knows over *own, which holds the defaults and is own_size bytes long; own's size
 * stays. A caller of an older version has a smaller struct: what it does not know keeps its default. A newer
 * one's may be larger, as long as it asks for nothing there that we do not know (it is all zero). EINVAL
 * else, or when the size is not set; `what` names the struct. */
ADL_MUST adl_status adli_options_take(const char *what, void *own, size_t own_size,
                                      const void *given);

#endif
