/* The one logger of a program: the daemon's, the launcher's, the keeper's. A program says once where lines go
 * and from which level on; until then, in tests and in other people's programs, nothing is printed. */
#ifndef ADLI_LOG_H
#define ADLI_LOG_H

#include "adaptdl/log.h"

/* The level that was asked for: what $ADAPTDL_LOG names, or ADL_LOG_INFO; a level lower for each -v. EINVAL when
 * the variable names none. */
ADL_MUST adl_status adli_log_level(int verbose, adl_log_level *out);

/* Lines of at least that level go to `to` from now on; NULL: nowhere. Before other threads start. */
void adli_log_start(adl_log_fn to, void *user, adl_log_level least);
void adli_say(adl_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "", "warning: ", "error: " or "debug: ". */
const char *adli_log_mark(adl_log_level level);
/* Where a daemon's lines go: standard error, with the time. */
void adli_log_stamped(void *user, adl_log_level level, const char *line);

#endif
