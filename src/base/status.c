/* Error text is kept per thread so that two threads never see each other's failures, and in fixed
 * storage so that running out of memory can still be reported. */
#include "base/status.h"

#include "adli_version.h"
#include "base/mask.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ERROR_TEXT_MAX = 1024 };

static _Thread_local char error_text[ERROR_TEXT_MAX];

const char *adl_error(void)
{
    return error_text;
}

adl_status adli_fail(adl_status status, const char *format, ...)
{
    char text[ERROR_TEXT_MAX]; /* the arguments may point into error_text */
    va_list args;
    va_start(args, format);
    adli_print_masked(text, sizeof text, format, args);
    va_end(args);
    memcpy(error_text, text, sizeof text);
    return status;
}

adl_status adli_wrap(adl_status status, const char *format, ...)
{
    char prefix[ERROR_TEXT_MAX / 2];
    va_list args;
    va_start(args, format);
    adli_print_masked(prefix, sizeof prefix, format, args);
    va_end(args);
    return adli_fail(status, "%s: %s", prefix, error_text);
}

adl_status adli_fail_memory(const char *what)
{
    return adli_fail(ADL_ENOMEM, "out of memory: %s", what);
}

const char *adl_status_text(adl_status status)
{
    switch (status) {
    case ADL_OK:
        return "ok";
    case ADL_EINVAL:
        return "invalid input";
    case ADL_ENOMEM:
        return "out of memory";
    case ADL_EIO:
        return "file error";
    case ADL_ENOENT:
        return "not found";
    case ADL_ESTATE:
        return "not possible in this state";
    case ADL_ENET:
        return "network error";
    case ADL_ETIMEOUT:
        return "timed out";
    case ADL_EPEER:
        return "another replica failed";
    case ADL_ECORRUPT:
        return "corrupt data";
    case ADL_EINTR:
        return "interrupted";
    }
    return "unknown status";
}

const char *adl_version(void)
{
    return ADLI_VERSION;
}
