#include "base/options.h"

#include <string.h>

adl_status adli_options_take(const char *what, void *own, size_t own_size, const void *given)
{
    size_t size;
    if (!given)
        return ADL_OK;
    memcpy(&size, given, sizeof size);
    if (size < sizeof size || size > own_size)
        return adli_fail(
            ADL_EINVAL, "%s: size is %zu, this library knows up to %zu: %s", what, size, own_size,
            size > own_size ? "of a newer version, or not initialised?" : "not initialised?");
    memcpy((char *)own + sizeof size, (const char *)given + sizeof size, size - sizeof size);
    return ADL_OK;
}
