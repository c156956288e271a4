/* Directories: made along a path, removed with all that is in them. */
#ifndef ADLI_BACKEND_TREE_H
#define ADLI_BACKEND_TREE_H

#include "base/status.h"

/* Makes the directory and those above it, durably. */
ADL_MUST adl_status adli_tree_make(const char *path);

/* Removes dir/name and everything below it, however deep; links are removed, never followed. What cannot
 * be removed is left. */
void adli_tree_remove(int dir, const char *name);

#endif
