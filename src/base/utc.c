#include "base/utc.h"

#include <stdio.h>

void adli_utc_text(const struct timespec *when, int digits, char out[ADLI_UTC_SIZE])
{
    struct tm parts;
    char fraction[16] = "";
    out[0] = '\0';
    if (!gmtime_r(&when->tv_sec, &parts))
        return;
    if (digits > 0)
        snprintf(fraction, sizeof fraction, ".%09ld", when->tv_nsec);
    size_t used = strftime(out, ADLI_UTC_SIZE, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(out + used, ADLI_UTC_SIZE - used, "%.*sZ", digits > 0 ? digits + 1 : 0, fraction);
}
