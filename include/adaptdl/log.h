/* Lines for people. The library prints nothing by itself: what it has to say goes to the function that its user
 * chose, at one of four levels. */
#ifndef ADAPTDL_LOG_H
#define ADAPTDL_LOG_H

#include "adaptdl/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum adl_log_level {
    ADL_LOG_DEBUG = -1, /* what only somebody who looks for a mistake wants to know */
    ADL_LOG_INFO,
    ADL_LOG_WARNING,
    ADL_LOG_ERROR,
} adl_log_level;

/* One line, without a newline. Called from the caller's thread and from the library's own. */
typedef void (*adl_log_fn)(void *user, adl_log_level level, const char *line);

/* "adaptdl: line" to standard error, warnings and errors marked as such. Lines below the level that
 * ADAPTDL_LOG names (debug, info, warning, error, off; info when it names none) are left out. user is
 * ignored. Any thread. */
ADL_API void adl_log_stderr(void *user, adl_log_level level, const char *line);

#ifdef __cplusplus
}
#endif

#endif
