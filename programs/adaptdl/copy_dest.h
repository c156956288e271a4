/* Where `adaptdl cp` writes to. The names of what is copied are the job's to choose; here is what may be written. */
#ifndef ADAPTDL_COPY_DEST_H
#define ADAPTDL_COPY_DEST_H

#include "cli.h"

/* One name, neither "." nor "..", without a slash. */
bool copy_plain(const char *name);
/* Tells errno of that name; EXIT_USAGE. */
int copy_cannot_write(const char *name);
/* DEST is a directory: into it, under the last name of the remote path; else DEST itself. *name is a part of remote or
 * dest, *parent the directory that it is in, to be closed. EXIT_DONE, or a message was shown. */
int copy_open_dest(const char *remote, const char *dest, const char **name, int *parent);

#endif
