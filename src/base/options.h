/* Option structs that grow: their first member is size_t size, set by the _INIT macro (or sizeof) that the caller
 * was compiled with. One rule for all of them. */
#ifndef ADLI_OPTIONS_H
#define ADLI_OPTIONS_H

#include "base/status.h"

#include <stddef.h>

/* Copies what the caller knows over *own, which holds the defaults and is own_size bytes long; own's size
 * stays. A caller of an older version has a smaller struct: what it does not know keeps its default. EINVAL, with
 * the name of the struct, when the size is not set, or is that of a newer version. given NULL: the defaults. */
ADL_MUST adl_status adli_options_take(const char *what, void *own, size_t own_size,
                                      const void *given);

/* The other way, for structs that the library fills: as much of *own as the caller knows; its size stays. */
ADL_MUST adl_status adli_options_give(const char *what, void *given, const void *own,
                                      size_t own_size);

#endif
