#include "base/options.h"

#include <string.h>

static adl_status check(const char *what, const void *given, size_t own_size, size_t *size)
{
    memcpy(size, given, sizeof *size);
    if (*size >= sizeof *size && *size <= own_size)
        return ADL_OK;
    return adli_fail(
        ADL_EINVAL, "%s: size is %zu, this library knows up to %zu: %s", what, *size, own_size,
        *size > own_size ? "of a newer version, or not initialised?" : "not initialised?");
}

adl_status adli_options_take(const char *what, void *own, size_t own_size, const void *given)
{
    size_t size;
    adl_status status = given ? check(what, given, own_size, &size) : ADL_OK;
    if (given && status == ADL_OK)
        memcpy((char *)own + sizeof size, (const char *)given + sizeof size, size - sizeof size);
    return status;
}

adl_status adli_options_give(const char *what, void *given, const void *own, size_t own_size)
{
    size_t size;
    adl_status status = check(what, given, own_size, &size);
    if (status == ADL_OK)
        memcpy((char *)given + sizeof size, (const char *)own + sizeof size, size - sizeof size);
    return status;
}
