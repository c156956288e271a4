/* Whole files in and out, with a limit on what is read. */
#ifndef ADLI_FILE_H
#define ADLI_FILE_H

#include "base/buf.h"

/* Appends the file's bytes to buf (whose max is the limit). Errors name the path. "-" is standard
 * input. */
ADL_MUST adl_status adli_file_read(const char *path, adli_buf *buf);

/* Writes the whole file through a temporary name beside it, so that a failed write leaves the old
 * file. "-" is standard output. */
ADL_MUST adl_status adli_file_write(const char *path, const void *data, size_t length);

#endif
