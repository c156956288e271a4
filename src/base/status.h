/* How failures are made inside the library: return adli_fail(ADL_EINVAL, "what: %s", which). */
#ifndef ADLI_STATUS_H
#define ADLI_STATUS_H

#include "adaptdl/status.h"

/* What libadaptdl-nn uses of libadaptdl beside the public names, so that adl_error() tells of both. */
#define ADLI_SHARED __attribute__((visibility("default")))

/* Sets the thread's error text and returns status. */
ADLI_SHARED adl_status adli_fail(adl_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Puts "prefix: " before the present error text, for callers that know the context (a file, a node,
 * a job) that the callee does not. Returns status. */
ADLI_SHARED adl_status adli_wrap(adl_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ADL_ENOMEM with a text that names what could not be had. */
ADLI_SHARED adl_status adli_fail_memory(const char *what);

#endif
