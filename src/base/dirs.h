/* Directories: made along a path, removed with all that is in them. */
#ifndef ADLI_DIRS_H
#define ADLI_DIRS_H

#include "base/status.h"

#include <sys/types.h>

/* Makes the directory and those above it that are missing, durably, each with that mode. */
ADL_MUST adl_status adli_dirs_make(const char *path, mode_t mode);

/* Removes dir/path and everything below it, however deep; links are removed, never followed, and other
 * file systems are not entered. What cannot be removed is left: then the result is EIO. */
adl_status adli_dirs_remove(int dir, const char *path);

#endif
