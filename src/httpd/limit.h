/* Token buckets: at most `rate` requests a second for each key, `burst` at once. A fixed table, so that
 * a flood of addresses costs no memory; when it is crowded the key that was quiet longest is forgotten. */
#ifndef ADLI_HTTPD_LIMIT_H
#define ADLI_HTTPD_LIMIT_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct adli_limit adli_limit;

ADL_MUST adl_status adli_limit_new(double rate, double burst, adli_limit **out);
void adli_limit_free(adli_limit *limit);
/* Takes one token of the key's bucket. False: there is none; *retry_s: when there will be one. Any
 * thread. */
bool adli_limit_take(adli_limit *limit, uint64_t key, double now_s, double *retry_s);

#endif
