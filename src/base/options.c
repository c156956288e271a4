#include "base/options.h"

#include <string.h>

adl_status adli_options_take(const char *what, void *own, size_t own_size, const void *given)
{
    size_t size;
    if (!given)
        return ADL_OK;
    memcpy(&size, given, sizeof size);
    if (size < sizeof size || size > 64 * own_size)
        return adli_fail(ADL_EINVAL, "%s: size is %zu, not that of a struct made by its _INIT",
                         what, size);
    const unsigned char *bytes = given;
    for (size_t i = own_size; i < size; i++)
        if (bytes[i])
            return adli_fail(ADL_EINVAL,
                             "%s: has options that this library (whose struct has %zu bytes, not "
                             "%zu) does not know",
                             what, own_size, size);
    memcpy((char *)own + sizeof size, bytes + sizeof size,
           (size < own_size ? size : own_size) - sizeof size);
    return ADL_OK;
}
