/* Directories: named, made along a path, removed with all that is in them. */
#ifndef ADLI_DIRS_H
#define ADLI_DIRS_H

#include "base/status.h"

#include <stdbool.h>
#include <sys/types.h>

/* Makes the directory and those above it that are missing, durably, each with that mode. */
ADL_MUST adl_status adli_dirs_make(const char *path, mode_t mode);
/* Copies what is below one directory into another that is there and empty: files and directories, no links. EIO names
 * what could not be copied; what was copied before stays. */
ADL_MUST adl_status adli_dirs_copy(const char *from, const char *to);

/* Is this directory ours alone? What others could have put there must not be trusted: EINVAL, with the
 * command that mends it, when it is another user's or others may write. One that others may only read is
 * closed to them. A link is refused, too. */
ADL_MUST adl_status adli_dirs_private(const char *path);

/* Opens a directory of such a directory, to read: no link anywhere in its name is followed (before Linux 5.6: none at
 * its end), so it begins with what realpath made. errno is kept. */
ADL_MUST adl_status adli_dirs_enter(const char *path, int *fd);

/* Opens a file of such a directory: no link is followed, and what is there must be a plain file of ours that
 * others cannot write. */
ADL_MUST adl_status adli_dirs_open(const char *path, int flags, mode_t mode, int *fd);

/* Removes dir/path and everything below it, however deep; links are removed, never followed, and other
 * file systems are not entered. What cannot be removed is left: then the result is EIO. */
adl_status adli_dirs_remove(int dir, const char *path);
/* The same, while go_on says so: it is asked before each entry. */
adl_status adli_dirs_remove_while(int dir, const char *path, bool (*go_on)(void *user), void *user);

/* The path from the root on, on the heap, without a slash at its end. It need not exist. */
ADL_MUST adl_status adli_absolute(const char *path, char **out);

/* Where a scheduler keeps its state and its command line finds it: given, else $ADAPTDL_STATE, else
 * $XDG_STATE_HOME/adaptdl, else ~/.local/state/adaptdl; absolute, on the heap. It need not exist. EINVAL: none can
 * be made of the environment. */
ADL_MUST adl_status adli_state_dir(const char *given, char **out);

#endif
