/* The output of a replica in a file that may grow for ever but takes no more than so much of the disk. The replica
 * itself writes the file; its keeper takes the oldest part of it away from time to time: a hole where it was, so that
 * what is left stays at its offset and nobody who follows the file reads anything twice or misses anything. On file
 * systems that know no holes the file begins anew. docs/adr/0240. */
#ifndef ADLI_OUTPUT_H
#define ADLI_OUTPUT_H

#include <stdint.h>

/* Takes away the oldest of more than max bytes, so that half of that is left, and says so in the file. Returns the
 * bytes that the file now has on the disk. max 0: no limit. fd: open for reading and writing, without O_APPEND. */
int64_t adli_output_trim(int fd, int64_t max);
/* Where what is left of the file begins. */
int64_t adli_output_begin(int fd);

#endif
