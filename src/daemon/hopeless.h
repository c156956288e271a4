/* Which failures would come again. Trying such a job again takes minutes from its user and tells nothing new. */
#ifndef ADLI_HOPELESS_H
#define ADLI_HOPELESS_H

#include "backend/backend.h"

#include <stddef.h>
#include <stdint.h>

typedef struct adli_failure {
    adli_cause cause;
    int exit_code;
    double ran_s;       /* from the start of its group to its end */
    const char *output; /* [length] the end of its log */
    size_t length;
} adli_failure;

/* A number for the Python traceback that the output ends with: the same for the same one. 0: there is none. */
uint64_t adli_traceback_print(const char *output, size_t length);

/* Why there is no use in trying again, for people; NULL: there may be. print: of its traceback; before: of that of
 * the job's failure before this one, 0: none. Static. */
const char *adli_failure_hopeless(const adli_failure *failure, uint64_t print, uint64_t before);

#endif
