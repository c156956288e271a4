/* The library's threads and timed waits: threads take no signals of the program, condition variables
 * use the monotonic clock. */
#ifndef ADLI_BASE_THREAD_H
#define ADLI_BASE_THREAD_H

#include "base/status.h"

#include <pthread.h>
#include <time.h>

/* `name` is shown by ps and debuggers, at most 15 bytes. */
ADL_MUST adl_status adli_thread_start(pthread_t *out, const char *name, void *(*run)(void *),
                                      void *argument);
ADL_MUST adl_status adli_cond_init(pthread_cond_t *cond);
/* Now plus timeout_ms, for pthread_cond_timedwait. */
struct timespec adli_deadline(int timeout_ms);

#endif
