/* Taking back the end of an event file: what was written of steps that are run again. */
#ifndef ADLI_TRAIN_TENSORBOARD_CUT_H
#define ADLI_TRAIN_TENSORBOARD_CUT_H

#include "adaptdl/status.h"

#include <stddef.h>
#include <stdint.h>

/* From which steps on events are not wanted: of tags that end in "/batch", and of all others. */
typedef struct adli_events_from {
    int64_t batch, epoch;
} adli_events_from;

/* How many of these bytes are whole events before the first that is not wanted. *events: how many of those say
 * something: not the file's version. */
size_t adli_events_wanted(const void *data, size_t length, const adli_events_from *from,
                          size_t *events);

/* Shortens the file to that, or removes it when nothing is left. ENOENT, EIO: named. */
ADL_MUST adl_status adli_events_cut(const char *path, const adli_events_from *from);

#endif
