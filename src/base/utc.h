/* A moment as RFC 3339 writes it, in UTC: "2026-01-02T03:04:05.006Z". */
#ifndef ADLI_UTC_H
#define ADLI_UTC_H

#include <time.h>

enum { ADLI_UTC_SIZE = 40 };

/* digits: of the second, 0 to 9; the rest is cut off. "" for a year that no calendar has. */
void adli_utc_text(const struct timespec *when, int digits, char out[ADLI_UTC_SIZE]);

#endif
