/* The control socket of a run: RUNTIME/NAME.sock, where RUNTIME is $XDG_RUNTIME_DIR/adaptdl or
 * /tmp/adaptdl-UID. One line in ("scale 4", "status"), one line out. */
#ifndef ADLI_LAUNCH_CONTROL_H
#define ADLI_LAUNCH_CONTROL_H

#include "base/buf.h"
#include "base/status.h"

#include <stdbool.h>

typedef struct adli_control {
    int fd;
    adli_buf path;
} adli_control;

/* Listens. EINVAL: a name that is no file name; ESTATE: a run of that name is alive. */
ADL_MUST adl_status adli_control_open(adli_control *control, const char *name);
/* Removes the socket. */
void adli_control_close(adli_control *control);

/* Takes one waiting connection and reads its line. adopt may keep the connection, whose descriptor is its own then
 * (true); otherwise answer is called and what it appends to out is sent. A client that says nothing for long is
 * dropped; never blocks for more than a second. */
void adli_control_serve(adli_control *control, bool (*adopt)(void *user, const char *line, int fd),
                        void (*answer)(void *user, const char *line, adli_buf *out), void *user);

/* The client's side: sends a line, appends the answer. ENOENT: there is no such run. */
ADL_MUST adl_status adli_control_ask(const char *name, const char *line, adli_buf *answer);

#endif
